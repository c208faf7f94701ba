//! Everything that is known of names, and when it may be learned. Pure.

mod ahead;
mod by_number;
mod delegated;
mod granted;
mod own_changes;

pub(crate) use by_number::LookedAt;
pub(crate) use delegated::{Making, ToLearn};
pub(crate) use granted::Came;

use super::changing::Changing;
use super::directory::{Directory, Named};
use super::places::Places;
use super::shown::Shown;
use delegated::New;
use granted::Meanwhile;
use model::limits::LISTING_ENTRIES_MAX;
use model::operation::DirectoryEntry;
use model::{Attributes, FileKind, FileName, InodeId, TokenMode, TokenObject};
use std::collections::BTreeSet;
use tokens::{Contention, Moment};
use world::Map;

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
        Self(NEVER)
    }
}

/// Before anything was learned or held.
pub(super) const NEVER: u64 = 0;

/// When something was learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Learned(u64);

/// The number of a name that this client has made: no attributes were found under it.
const MADE: u64 = 0;

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
    /// Nor may anybody else look at them.
    is_alone: bool,
    was_used: bool,
    known: Option<Box<KnownAttributes>>,
    /// Of a directory that has no default ACL: [`Inode::since`] when that was asked.
    plain: Option<u64>,
}

impl Inode {
    /// Whether it is a directory that is known to have no default ACL.
    fn is_plain(&self) -> bool {
        self.plain == Some(self.since)
    }
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
    /// Own changes under way of each object; no more than the session has slots, with two for each.
    changing: Changing<TokenObject>,
    /// The same of each name.
    changing_names: Changing<(InodeId, FileName)>,
    /// Inodes that own changes have concerned since tokens are asked for that come with attributes.
    meanwhile: Meanwhile,
    /// Where the names of directories are.
    places: Places,
    /// Directories that this client has just made.
    new: New,
    /// Of which inodes kernels may keep attributes.
    shown: Shown,
    /// Tokens that others wanted: they aren't asked for about as long as the owner calls them contended.
    refused: Map<TokenObject, Contention>,
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
            changing: Changing::default(),
            changing_names: Changing::default(),
            meanwhile: Meanwhile::default(),
            places: Places::default(),
            new: New::default(),
            shown: Shown::default(),
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
            + self.refused.capacity() * place(size_of::<(TokenObject, Contention)>())
            + self.places.bytes()
            + self.new.bytes()
            + self.shown.bytes()
            + self.meanwhile.bytes()
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
            None => Looked::Unknown(Vec::new()),
            Some(None) => Looked::Missing,
            Some(Some(named)) => {
                let is_first = match self.inodes.get(&named.inode) {
                    // Not what programs come back to.
                    Some(held) => !held.was_used,
                    // Nor what others want: it is looked at each time as if nobody had before.
                    None => {
                        let refused = self.refused.get(&TokenObject::Inode(named.inode));
                        refused.is_none_or(|refused| !refused.is_on(now))
                    }
                };
                if named.is_lone_file() && is_first {
                    known.looks.note();
                }
                match self.attributes(&named) {
                    Some(attributes) => Looked::Found(attributes, Learned(named.learned)),
                    // It is looked up for the first time.
                    None if named.learned == MADE => Looked::Unknown(Vec::new()),
                    None => Looked::Unknown(self.wanted_for(&named, now)),
                }
            }
        }
    }

    /// Where a name leads to, if that is known: no use of it.
    pub(super) fn leads_to(&self, directory: InodeId, name: &[u8]) -> Option<InodeId> {
        let named = self.directories.get(&directory)?.find(name)??;
        Some(named.inode)
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
        let is_asked = self.asked_later.contains(&object);
        let may_ask = !self.is_refused(object, now) && !is_asked;
        // Changes of names in a directory may overlap without end, and its names are learned in a pause that is made for it.
        let is_of_use =
            matches!(object, TokenObject::Directory(_)) || !self.changing.contains(&object);
        may_ask && is_of_use && !self.is_held(object)
    }

    fn is_held(&self, object: TokenObject) -> bool {
        match object {
            TokenObject::Directory(inode) => self.directories.contains_key(&inode),
            TokenObject::Inode(inode) | TokenObject::Bytes(inode) => {
                self.inodes.contains_key(&inode)
            }
        }
    }

    /// Whether others have wanted a token a moment ago, or more of it than they may have beside this client.
    fn is_refused(&self, object: TokenObject, now: Moment) -> bool {
        let refused = self.refused.get(&object);
        refused.is_some_and(|refused| refused.is_on(now))
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
            // Listing it isn't use of it: who goes through all there is would keep nothing else.
            let attributes = with_attributes.then(|| self.known_attributes(&named));
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

    /// Whether a directory's token is held.
    pub(super) fn holds(&self, directory: InodeId) -> bool {
        self.directories.contains_key(&directory)
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

    // Answers.

    pub(super) fn begin(&self) -> Asked {
        Asked(self.last)
    }

    pub(super) fn count(&self) -> u64 {
        self.last
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
        since.is_some_and(|since| since <= asked.0) && !self.changing.contains(&object)
    }

    /// Whether an inode's attributes, as an answer to what was asked then says them, are known under the tokens
    /// of the inode and, of a directory, its own.
    fn may_keep(&self, attributes: &Attributes, asked: Asked) -> bool {
        let Attributes { inode, kind, .. } = *attributes;
        self.may_learn(TokenObject::Inode(inode), asked)
            && (kind != FileKind::Directory || self.may_learn(TokenObject::Directory(inode), asked))
    }

    pub(super) fn learn(
        &mut self,
        directory: InodeId,
        name: &[u8],
        found: Option<&Attributes>,
        asked: Asked,
    ) -> Option<Learned> {
        if !self.may_learn(TokenObject::Directory(directory), asked) {
            // Programs that look for missing names are a reason to learn all, also if own changes come between each time.
            if found.is_none() {
                self.with(directory, Directory::note_miss);
            }
            return None;
        }
        match found {
            Some(attributes) => {
                let may_keep = self.may_keep(attributes, asked);
                self.learn_found(directory, name, attributes, may_keep);
            }
            None => {
                self.put(directory, name, None);
                self.with(directory, Directory::note_miss);
            }
        }
        self.make_room(directory);
        Some(Learned(self.last))
    }

    /// Whether all names of a directory should be learned, and in how many parts at most: programs look for many that are
    /// missing.
    pub(super) fn wants_names(&mut self, directory: InodeId) -> Option<u32> {
        let known = self.directories.get_mut(&directory);
        known.and_then(Directory::wants_names)
    }

    /// Whether a name is still known as it was learned then, and the attributes that came with it: then kernels may
    /// keep these.
    pub(super) fn show_entry(
        &mut self,
        directory: InodeId,
        name: &[u8],
        learned: Learned,
    ) -> (bool, bool) {
        let known = self.directories.get(&directory);
        let named = known.and_then(|known| known.find(name)).flatten();
        let Some(named) = named.filter(|named| Learned(named.learned) == learned) else {
            return (false, false);
        };
        let is_all = self.known_attributes(&named).is_some();
        if is_all {
            self.shown.show(named.inode, directory);
        }
        (true, is_all)
    }

    fn learn_found(
        &mut self,
        directory: InodeId,
        name: &[u8],
        attributes: &Attributes,
        may_keep: bool,
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
        if may_keep && !named.has_others {
            self.keep(attributes, named.learned);
        }
    }

    /// Keeps attributes of an inode whose token is held, as those that were learned then.
    fn keep(&mut self, attributes: &Attributes, learned: u64) {
        let own = self.own(attributes.kind, attributes.inode);
        if let (Some(own), Some(held)) = (own, self.inodes.get_mut(&attributes.inode)) {
            let known = KnownAttributes {
                attributes: *attributes,
                learned,
                own,
            };
            self.attributes += usize::from(held.known.is_none());
            held.known = Some(Box::new(known));
        }
    }

    /// Returns whether the listing is known from its beginning to the end of this part.
    pub(super) fn learn_listing(
        &mut self,
        directory: InodeId,
        after: u64,
        entries: &[DirectoryEntry],
        is_end: bool,
        asked: Asked,
    ) -> bool {
        if !self.may_learn(TokenObject::Directory(directory), asked) {
            return false;
        }
        for entry in entries {
            let name = entry.name.as_bytes();
            if let Some(attributes) = &entry.attributes {
                let may_keep = self.may_keep(attributes, asked);
                self.learn_found(directory, name, attributes, may_keep);
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
        let last = entries.last().map_or(after, |entry| entry.position);
        let known = self.directories.get(&directory);
        known.is_some_and(|known| known.is_listed_to(last))
    }

    fn put(&mut self, directory: InodeId, name: &[u8], named: Option<Named>) {
        if let Some(named) = named {
            self.shown.follow(named.inode, directory);
            if named.kind == FileKind::Directory {
                self.places.note(named.inode, directory, name);
            }
        }
        let before = self.with(directory, |known| known.put(name, named));
        before
            .flatten()
            .into_iter()
            .for_each(|it| self.forget_attributes(it.inode));
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
        forgotten.for_each(|named| self.forget_attributes(named.inode));
    }

    /// Forgets directories that weren't looked at for long, if there is too much, and this one if it
    /// alone is too large.
    pub(super) fn make_room(&mut self, newest: InodeId) {
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

    /// Forgets everything but what is held. Answers that were asked for before teach nothing, nor do changes that began
    /// before: what else this client changes meanwhile isn't counted against them.
    pub(super) fn forget_all(&mut self) {
        let since = self.next();
        let directories: Vec<_> = self.directories.keys().copied().collect();
        for directory in directories {
            self.clear(directory);
            self.with(directory, |known| {
                (known.held, known.since) = (since, since);
            });
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
            (TokenObject::Directory(inode), Some(mode)) => {
                let since = self.next();
                let known = self.directories.entry(inode);
                let known = known.or_insert_with(|| Directory::new(since));
                let is_delegated = mode == TokenMode::Exclusive;
                if std::mem::replace(&mut known.is_delegated, is_delegated) && !is_delegated {
                    self.refuse(object, now);
                }
            }
            (TokenObject::Inode(inode), None) => {
                self.forget_attributes(inode);
                if self.inodes.remove(&inode).is_some() {
                    self.refuse(object, now);
                }
            }
            (TokenObject::Inode(inode), Some(mode)) => {
                let is_exact = mode != TokenMode::SharedWrite;
                let is_alone = mode == TokenMode::Exclusive;
                let since = self.next();
                let known = self.inodes.entry(inode).or_insert(Inode {
                    since,
                    is_exact,
                    is_alone,
                    // What was only listed goes first if there is too much.
                    was_used: false,
                    known: None,
                    plain: None,
                });
                let was_alone = std::mem::replace(&mut known.is_alone, is_alone);
                if known.is_exact != is_exact {
                    known.is_exact = is_exact;
                    known.since = since;
                    self.forget_attributes(inode);
                }
                // Of a directory that was delegated.
                if was_alone && !is_alone && self.directories.contains_key(&inode) {
                    self.refuse(object, now);
                }
            }
            (TokenObject::Bytes(_), _) => {}
        }
    }

    pub(super) fn refuse(&mut self, object: TokenObject, now: Moment) {
        if self.refused.len() >= REFUSED_MAX {
            self.refused.retain(|_, refused| now < refused.fades());
        }
        if self.refused.len() >= REFUSED_MAX {
            self.refused.clear();
        }
        let refused = self.refused.entry(object).or_default();
        // Several operations that have waited for the same answer are refused once.
        match refused.is_on(now) {
            true => refused.go_on(now),
            false => refused.begin(now),
        }
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
