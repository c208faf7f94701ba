//! Everything that is known of names, and when it may be learned. Pure.

use super::change::{Concerned, Outcome};
use super::directory::{Directory, Named};
use model::limits::LISTING_ENTRIES_MAX;
use model::operation::DirectoryEntry;
use model::{Attributes, FileKind, FileName, InodeId, TokenMode, TokenObject};
use std::collections::BTreeSet;
use std::time::Duration;
use tokens::Moment;
use world::Map;

/// How long a token isn't asked for that others wanted: as long as the owner calls it contended.
const PAUSE: Duration = Duration::from_secs(1);
/// Most tokens of which that is remembered.
const REFUSED_MAX: usize = 4_096;
/// Most tokens that are asked for while no operation waits for them.
const ASKED_LATER_MAX: usize = 256;
/// Of all that may be kept, no directory takes more than a fourth.
const SHARE: usize = 4;

/// When the owner was asked: what was held and unchanged before can be learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked(u64);

impl Asked {
    /// When nothing can be learned.
    pub(super) fn in_vain() -> Self {
        Self(0)
    }
}

/// When something was learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Learned(u64);

/// What is known of a name.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Looked {
    /// It leads to an inode with these attributes.
    Found(Attributes, Learned),
    /// It doesn't exist.
    Missing,
    /// The owner must be asked. With these tokens its answer could be kept.
    Unknown(Vec<TokenObject>),
}

/// An inode whose token is held.
struct Inode {
    /// Since when it is held and nobody here has changed it.
    since: u64,
    /// Nobody else changes its attributes.
    is_exact: bool,
    was_used: bool,
    known: Option<Box<KnownAttributes>>,
}

/// The name under which an inode is known.
#[derive(Clone, Copy)]
struct Lead {
    kind: FileKind,
    /// When the name was learned.
    learned: u64,
    has_others: bool,
}

/// What was held when a change of this client began.
#[derive(Clone, Copy, Default)]
pub(super) struct Begun {
    /// [`Directory::since`] of the one whose names change.
    directory: Option<u64>,
    /// [`Inode::since`] of the same.
    inode: Option<u64>,
    /// All names in it were known.
    was_whole: bool,
}

/// Attributes that were found under a name.
struct KnownAttributes {
    attributes: Attributes,
    /// When the name was learned.
    learned: u64,
    /// Of a directory: [`Directory::since`] of its own token.
    own: u64,
}

/// What is known.
pub(super) struct Memory {
    bytes_max: usize,
    /// Bytes of all directories' names.
    bytes: usize,
    /// Inodes whose attributes are known.
    attributes: usize,
    /// Counts what is learned, comes to be held, or changes.
    last: u64,
    directories: Map<InodeId, Directory>,
    inodes: Map<InodeId, Inode>,
    /// Of inodes with a known name: which that is.
    leads: Map<InodeId, Lead>,
    /// Own changes under way of each object; no more than the session has slots, with two for each.
    changing: Map<TokenObject, usize>,
    /// Until when a token isn't asked for.
    refused: Map<TokenObject, Moment>,
    /// Tokens that are asked for while no operation waits for them.
    asked_later: BTreeSet<TokenObject>,
}

impl Memory {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            attributes: 0,
            last: 0,
            directories: Map::default(),
            inodes: Map::default(),
            leads: Map::default(),
            changing: Map::default(),
            refused: Map::default(),
            asked_later: BTreeSet::new(),
        }
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Bytes that all of it takes. The tables of what is held are as large as tokens are many; the rest
    /// is kept below the maximum.
    pub(super) fn bytes(&self) -> usize {
        let place = |bytes: usize| (bytes + 1) * 8 / 7;
        self.bytes
            + self.attributes * size_of::<KnownAttributes>()
            + self.directories.capacity() * place(size_of::<(InodeId, Directory)>())
            + self.inodes.capacity() * place(size_of::<(InodeId, Inode)>())
            + self.leads.capacity() * place(size_of::<(InodeId, Lead)>())
            + self.refused.capacity() * place(size_of::<(TokenObject, Moment)>())
    }

    // Looks.

    pub(super) fn look(&mut self, directory: InodeId, name: &[u8], now: Moment) -> Looked {
        let at = self.next();
        let Some(known) = self.directories.get_mut(&directory) else {
            let object = TokenObject::Directory(directory);
            let is_wanted = self.wants(object, now);
            return Looked::Unknown(is_wanted.then_some(object).into_iter().collect());
        };
        known.was_used = true;
        known.used = at;
        match known.find(name) {
            None => {
                known.note_miss();
                Looked::Unknown(Vec::new())
            }
            Some(None) => Looked::Missing,
            Some(Some(named)) => match self.attributes(&named) {
                Some(attributes) => Looked::Found(attributes, Learned(named.learned)),
                None => Looked::Unknown(self.wanted_for(&named, now)),
            },
        }
    }

    /// The attributes of an inode, if they are known, and when its name was learned; else tokens with which they
    /// could be.
    pub(super) fn look_inode(
        &mut self,
        inode: InodeId,
        now: Moment,
    ) -> std::result::Result<(Attributes, Learned), Vec<TokenObject>> {
        let Some(named) = self.named(inode) else {
            return Err(Vec::new());
        };
        match self.attributes(&named) {
            Some(attributes) => Ok((attributes, Learned(named.learned))),
            None => Err(self.wanted_for(&named, now)),
        }
    }

    /// The name under which an inode is known. Roots have none, and are never removed or moved.
    fn named(&self, inode: InodeId) -> Option<Named> {
        let root = Lead {
            kind: FileKind::Directory,
            learned: 0,
            has_others: false,
        };
        let is_root = inode.number() == InodeId::ROOT.number();
        let lead = self.leads.get(&inode).copied();
        let lead = lead.or_else(|| is_root.then_some(root))?;
        Some(Named {
            inode,
            kind: lead.kind,
            learned: lead.learned,
            has_others: lead.has_others,
        })
    }

    /// Whether all names of a directory had better be asked for: it is held, and several weren't known.
    pub(super) fn should_list(&mut self, directory: InodeId) -> bool {
        let known = self.directories.get_mut(&directory);
        known.is_some_and(Directory::should_list)
    }

    /// Whether a directory's token is held.
    pub(super) fn holds(&self, directory: InodeId) -> bool {
        self.directories.contains_key(&directory)
    }

    fn attributes(&mut self, named: &Named) -> Option<Attributes> {
        if let Some(inode) = self.inodes.get_mut(&named.inode) {
            inode.was_used = true;
        }
        self.known_attributes(named)
    }

    fn known_attributes(&self, named: &Named) -> Option<Attributes> {
        let own = self.own(named.kind, named.inode)?;
        let known = self.inodes.get(&named.inode)?.known.as_ref()?;
        let is_it = known.learned == named.learned && known.own == own;
        is_it.then_some(known.attributes)
    }

    /// Since when an inode's own token as a directory is held; `None` if it needs one and hasn't.
    fn own(&self, kind: FileKind, inode: InodeId) -> Option<u64> {
        match kind {
            FileKind::Directory => self.directories.get(&inode).map(|known| known.since),
            _ => Some(0),
        }
    }

    /// Tokens with which attributes could be known.
    fn wanted_for(&self, named: &Named, now: Moment) -> Vec<TokenObject> {
        if named.has_others {
            return Vec::new();
        }
        let own =
            (named.kind == FileKind::Directory).then_some(TokenObject::Directory(named.inode));
        let all = [Some(TokenObject::Inode(named.inode)), own];
        let all = all.into_iter().flatten();
        all.filter(|object| self.wants(*object, now)).collect()
    }

    /// Whether a token isn't held, and would be of use.
    pub(super) fn wants(&self, object: TokenObject, now: Moment) -> bool {
        let is_held = match object {
            TokenObject::Directory(inode) => self.directories.contains_key(&inode),
            TokenObject::Inode(inode) | TokenObject::Bytes(inode) => {
                self.inodes.contains_key(&inode)
            }
        };
        let is_refused = self.refused.get(&object).is_some_and(|until| now < *until);
        let is_asked = self.asked_later.contains(&object);
        !is_held && !is_refused && !is_asked && !self.changing.contains_key(&object)
    }

    pub(super) fn list(
        &mut self,
        directory: InodeId,
        after: u64,
        limit: usize,
        with_attributes: bool,
    ) -> Option<(Vec<DirectoryEntry>, bool)> {
        let at = self.next();
        let known = self.directories.get_mut(&directory)?;
        known.was_used = true;
        known.used = at;
        let limit = limit.clamp(1, LISTING_ENTRIES_MAX);
        let is_whole = known.is_listed_to_its_end();
        let mut listed = known.listed(after)?;
        let mut entries = Vec::new();
        for (position, name, named) in listed.by_ref().take(limit) {
            let name = FileName::new(name).expect("a name that was listed");
            entries.push((position, name, named));
        }
        let is_end = listed.next().is_none() && is_whole;
        drop(listed);
        let entries = entries.into_iter().map(|(position, name, named)| {
            let attributes = with_attributes.then(|| self.attributes(&named));
            if attributes == Some(None) {
                return None;
            }
            Some(DirectoryEntry {
                position,
                name,
                inode: named.inode,
                kind: named.kind,
                attributes: attributes.flatten(),
            })
        });
        Some((entries.collect::<Option<_>>()?, is_end))
    }

    // Answers.

    pub(super) fn begin(&self) -> Asked {
        Asked(self.last)
    }

    /// Whether an object was held and unchanged since before the owner was asked.
    fn may_learn(&self, object: TokenObject, asked: Asked) -> bool {
        let since = match object {
            TokenObject::Directory(inode) => self.directories.get(&inode).map(|it| it.since),
            TokenObject::Inode(inode) | TokenObject::Bytes(inode) => {
                let held = self.inodes.get(&inode).filter(|it| it.is_exact);
                held.map(|it| it.since)
            }
        };
        since.is_some_and(|since| since <= asked.0) && !self.changing.contains_key(&object)
    }

    pub(super) fn learn(
        &mut self,
        directory: InodeId,
        name: &[u8],
        found: Option<&Attributes>,
        asked: Asked,
    ) -> Option<Learned> {
        if !self.may_learn(TokenObject::Directory(directory), asked) {
            return None;
        }
        match found {
            Some(attributes) => self.learn_found(directory, name, attributes, asked),
            None => self.put(directory, name, None),
        }
        self.make_room(directory);
        Some(Learned(self.last))
    }

    /// Whether a name is still known as it was learned then, and the attributes that came with it.
    pub(super) fn knows(&self, directory: InodeId, name: &[u8], learned: Learned) -> (bool, bool) {
        let known = self.directories.get(&directory);
        let named = known.and_then(|known| known.find(name)).flatten();
        match named.filter(|named| Learned(named.learned) == learned) {
            Some(named) => (true, self.known_attributes(&named).is_some()),
            None => (false, false),
        }
    }

    fn learn_found(
        &mut self,
        directory: InodeId,
        name: &[u8],
        attributes: &Attributes,
        asked: Asked,
    ) {
        let Attributes { inode, kind, .. } = *attributes;
        let is_directory = kind == FileKind::Directory;
        let named = Named {
            inode,
            kind,
            learned: self.next(),
            has_others: !is_directory && attributes.links > 1,
        };
        self.put(directory, name, Some(named));
        self.keep_attributes(&named, attributes, asked);
    }

    /// Keeps attributes that the owner told of an inode, if its name was known before it was asked. Returns when
    /// that was learned; `None` if they can't be kept.
    pub(super) fn learn_attributes(
        &mut self,
        attributes: &Attributes,
        asked: Asked,
    ) -> Option<Learned> {
        let named = self.named(attributes.inode)?;
        let is_directory = attributes.kind == FileKind::Directory;
        let has_others = !is_directory && attributes.links > 1;
        if named.learned > asked.0 || named.kind != attributes.kind || has_others {
            return None;
        }
        let is_kept = self.keep_attributes(&named, attributes, asked);
        is_kept.then_some(Learned(named.learned))
    }

    /// False if not all is held that they need.
    fn keep_attributes(&mut self, named: &Named, attributes: &Attributes, asked: Asked) -> bool {
        let (inode, is_directory) = (named.inode, named.kind == FileKind::Directory);
        let is_held = self.may_learn(TokenObject::Inode(inode), asked)
            && (!is_directory || self.may_learn(TokenObject::Directory(inode), asked));
        let own = self.own(named.kind, inode);
        let (Some(own), Some(held)) = (own, self.inodes.get_mut(&inode)) else {
            return false;
        };
        if !is_held || named.has_others {
            return false;
        }
        let known = KnownAttributes {
            attributes: *attributes,
            learned: named.learned,
            own,
        };
        self.attributes += usize::from(held.known.is_none());
        held.known = Some(Box::new(known));
        true
    }

    /// Whether an inode's attributes are still known that were learned under a name of then.
    pub(super) fn knows_inode(&self, inode: InodeId, learned: Learned) -> bool {
        let named = self.named(inode);
        let named = named.filter(|named| Learned(named.learned) == learned);
        named.is_some_and(|named| self.known_attributes(&named).is_some())
    }

    /// When an entry of a listing was learned as it is, with its attributes.
    pub(super) fn learned(&self, directory: InodeId, entry: &DirectoryEntry) -> Option<Learned> {
        let known = self.directories.get(&directory)?;
        let named = known.find(entry.name.as_bytes()).flatten()?;
        let is_it = named.inode == entry.inode
            && entry.attributes.is_some()
            && self.known_attributes(&named) == entry.attributes;
        is_it.then_some(Learned(named.learned))
    }

    /// Inodes in a listing whose attributes could be kept if their tokens were held. Those of directories need
    /// more than that.
    pub(super) fn listed_without_token(
        &self,
        directory: InodeId,
        entries: &[DirectoryEntry],
        now: Moment,
    ) -> Vec<InodeId> {
        let Some(known) = self.directories.get(&directory) else {
            return Vec::new();
        };
        let is_known = |entry: &&DirectoryEntry| {
            let named = known.find(entry.name.as_bytes()).flatten();
            let named = named.filter(|named| named.inode == entry.inode && !named.has_others);
            named.is_some_and(|named| named.kind != FileKind::Directory)
        };
        let inodes = entries.iter().filter(is_known).map(|entry| entry.inode);
        inodes
            .filter(|inode| self.wants(TokenObject::Inode(*inode), now))
            .collect()
    }

    pub(super) fn learn_listing(
        &mut self,
        directory: InodeId,
        after: u64,
        entries: &[DirectoryEntry],
        is_end: bool,
        asked: Asked,
    ) {
        if !self.may_learn(TokenObject::Directory(directory), asked) {
            return;
        }
        for entry in entries {
            let name = entry.name.as_bytes();
            if let Some(attributes) = &entry.attributes {
                self.learn_found(directory, name, attributes, asked);
                continue;
            }
            let known = self.directories[&directory].find(name).flatten();
            if known.is_none_or(|known| known.inode != entry.inode) {
                let named = Named {
                    inode: entry.inode,
                    kind: entry.kind,
                    learned: self.next(),
                    has_others: false,
                };
                self.put(directory, name, Some(named));
            }
        }
        self.with(directory, |known| known.put_listing(after, entries, is_end));
        self.make_room(directory);
    }

    fn put(&mut self, directory: InodeId, name: &[u8], named: Option<Named>) {
        let before = self.with(directory, |known| known.put(name, named));
        let is_held = before.is_some();
        before.flatten().into_iter().for_each(|it| self.gone(&it));
        if let Some(named) = named.filter(|_| is_held) {
            let Named {
                inode,
                kind,
                learned,
                has_others,
            } = named;
            let lead = Lead {
                kind,
                learned,
                has_others,
            };
            self.leads.insert(inode, lead);
        }
    }

    /// A name isn't known any more, and so aren't the attributes of what it led to.
    fn gone(&mut self, named: &Named) {
        let lead = self.leads.get(&named.inode);
        if lead.is_some_and(|lead| lead.learned == named.learned) {
            self.leads.remove(&named.inode);
        }
        self.forget_attributes(named.inode);
    }

    /// Changes what is known of a directory, if it is held.
    fn with<T>(
        &mut self,
        directory: InodeId,
        change: impl FnOnce(&mut Directory) -> T,
    ) -> Option<T> {
        let known = self.directories.get_mut(&directory)?;
        self.bytes -= known.bytes();
        let result = change(known);
        self.bytes += known.bytes();
        Some(result)
    }

    fn forget_attributes(&mut self, inode: InodeId) {
        if let Some(held) = self.inodes.get_mut(&inode)
            && held.known.take().is_some()
        {
            self.attributes -= 1;
        }
    }

    fn clear(&mut self, directory: InodeId) {
        let forgotten = self.with(directory, Directory::clear);
        let forgotten = forgotten.into_iter().flatten();
        forgotten.for_each(|named| self.gone(&named));
    }

    /// Forgets directories that weren't looked at for long, if there is too much, and this one if it
    /// alone is too large.
    fn make_room(&mut self, newest: InodeId) {
        let is_too_large = self
            .directories
            .get(&newest)
            .is_some_and(|known| known.bytes() > self.bytes_max / SHARE);
        if is_too_large {
            self.clear(newest);
            self.with(newest, Directory::note_too_large);
        }
        if self.bytes() <= self.bytes_max {
            return;
        }
        let all = self.directories.iter();
        let mut all: Vec<_> = all.map(|(inode, known)| (known.used, *inode)).collect();
        all.sort_unstable();
        for (_, directory) in all {
            if self.bytes() <= self.bytes_max / 8 * 7 {
                break;
            }
            self.clear(directory);
        }
    }

    /// Forgets everything but what is held. Answers that were asked for before teach nothing.
    pub(super) fn forget_all(&mut self) {
        let since = self.next();
        let directories: Vec<_> = self.directories.keys().copied().collect();
        for directory in directories {
            self.clear(directory);
            self.with(directory, |known| known.since = since);
        }
        for held in self.inodes.values_mut() {
            held.since = since;
            self.attributes -= usize::from(held.known.take().is_some());
        }
    }

    // Tokens.

    pub(super) fn show(&mut self, object: TokenObject, mode: Option<TokenMode>, now: Moment) {
        match (object, mode) {
            (TokenObject::Directory(inode), None) => {
                self.clear(inode);
                if self.directories.remove(&inode).is_some() {
                    self.refuse(object, now);
                }
            }
            (TokenObject::Directory(inode), Some(_)) => {
                let since = self.next();
                let known = self.directories.entry(inode);
                known.or_insert_with(|| Directory::new(since));
            }
            (TokenObject::Inode(inode), None) => {
                self.forget_attributes(inode);
                if self.inodes.remove(&inode).is_some() {
                    self.refuse(object, now);
                }
            }
            (TokenObject::Inode(inode), Some(mode)) => {
                let is_exact = mode != TokenMode::SharedWrite;
                let since = self.next();
                let known = self.inodes.entry(inode).or_insert(Inode {
                    since,
                    is_exact,
                    was_used: true,
                    known: None,
                });
                if known.is_exact != is_exact {
                    known.is_exact = is_exact;
                    known.since = since;
                    self.forget_attributes(inode);
                }
            }
            (TokenObject::Bytes(_), _) => {}
        }
    }

    pub(super) fn refuse(&mut self, object: TokenObject, now: Moment) {
        if self.refused.len() >= REFUSED_MAX {
            self.refused.retain(|_, until| now < *until);
        }
        if self.refused.len() >= REFUSED_MAX {
            self.refused.clear();
        }
        self.refused.insert(object, now.plus(PAUSE));
    }

    /// False if it is asked for already, or as many are as may be.
    pub(super) fn ask_later(&mut self, object: TokenObject) -> bool {
        self.asked_later.len() < ASKED_LATER_MAX && self.asked_later.insert(object)
    }

    pub(super) fn has_asked(&mut self, object: TokenObject) {
        self.asked_later.remove(&object);
    }

    pub(super) fn was_used(&mut self, object: TokenObject) -> bool {
        let was_used = match object {
            TokenObject::Directory(inode) => {
                self.directories.get_mut(&inode).map(|it| &mut it.was_used)
            }
            TokenObject::Inode(inode) => self.inodes.get_mut(&inode).map(|it| &mut it.was_used),
            TokenObject::Bytes(_) => None,
        };
        was_used.is_some_and(std::mem::take)
    }

    // Own changes.

    pub(super) fn begin_change(&mut self, concerned: &Concerned) -> Begun {
        for object in concerned.objects() {
            *self.changing.entry(object).or_default() += 1;
        }
        let only = concerned.only_directory();
        let was_whole = only.is_some_and(|it| {
            let known = self.directories.get(&it);
            known.is_some_and(Directory::is_whole)
        });
        self.void(concerned);
        let directory = only.and_then(|it| self.directories.get(&it));
        let inode = only.and_then(|it| self.inodes.get(&it));
        Begun {
            directory: directory.map(|known| known.since),
            inode: inode.filter(|held| held.is_exact).map(|held| held.since),
            was_whole,
        }
    }

    /// `outcome`: what the owner answered, if it did what was asked.
    pub(super) fn end_change(
        &mut self,
        concerned: &Concerned,
        begun: Begun,
        outcome: Option<&Outcome>,
    ) {
        for object in concerned.objects() {
            if let Some(count) = self.changing.get_mut(&object) {
                *count -= 1;
                if *count == 0 {
                    self.changing.remove(&object);
                }
            }
        }
        let is_sure = outcome.is_some() && self.was_alone(concerned, begun);
        self.void(concerned);
        if let (true, Some(outcome), [(directory, name)]) = (is_sure, outcome, &concerned.names[..])
        {
            self.learn_outcome((*directory, name), begun, outcome);
        }
    }

    /// Whether a change was the only one of its directory from its beginning on, and the token was held.
    fn was_alone(&self, concerned: &Concerned, begun: Begun) -> bool {
        let Some(directory) = concerned.only_directory() else {
            return false;
        };
        let since = self.directories.get(&directory).map(|known| known.since);
        let object = TokenObject::Directory(directory);
        since.is_some() && since == begun.directory && !self.changing.contains_key(&object)
    }

    /// Nobody else has changed the directory since: what the owner answered is how it is.
    fn learn_outcome(
        &mut self,
        (directory, name): (InodeId, &FileName),
        begun: Begun,
        outcome: &Outcome,
    ) {
        let named = outcome.found.as_ref().map(|found| Named {
            inode: found.inode,
            kind: found.kind,
            learned: self.next(),
            has_others: found.kind != FileKind::Directory && found.links > 1,
        });
        self.put(directory, name.as_bytes(), named);
        if begun.was_whole {
            self.with(directory, Directory::keep_whole);
        }
        let since = self.inodes.get(&directory).map(|held| held.since);
        if let (Some(attributes), Some(named)) = (&outcome.directory, self.named(directory))
            && begun.inode.is_some()
            && since == begun.inode
            // Nobody else has moved it, either.
            && begun.directory.is_some_and(|begun| named.learned < begun)
            && attributes.inode == directory
        {
            let now = self.begin();
            self.keep_attributes(&named, attributes, now);
        }
        self.make_room(directory);
    }

    /// Forgets what a change concerns; answers that were asked for before teach nothing of it.
    fn void(&mut self, concerned: &Concerned) {
        let since = self.next();
        for (directory, name) in &concerned.names {
            let forgotten = self.with(*directory, |known| {
                known.since = since;
                known.forget(name.as_bytes())
            });
            let forgotten = forgotten.flatten().into_iter();
            forgotten.for_each(|named| self.gone(&named));
        }
        for inode in &concerned.inodes {
            self.forget_attributes(*inode);
            if let Some(held) = self.inodes.get_mut(inode) {
                held.since = since;
            }
        }
    }
}

#[cfg(test)]
impl Memory {
    /// The bytes, counted from the beginning.
    pub(super) fn recounted(&self) -> usize {
        let directories = self.directories.values().map(Directory::bytes);
        let known = self.inodes.values().filter(|it| it.known.is_some()).count();
        self.bytes() - self.bytes - self.attributes * size_of::<KnownAttributes>()
            + directories.sum::<usize>()
            + known * size_of::<KnownAttributes>()
    }
}
