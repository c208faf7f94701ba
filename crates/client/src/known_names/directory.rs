//! What is known of one directory. Pure.

use super::looks::Looks;
use super::table_bytes;
use super::tries::Tries;
use model::operation::DirectoryEntry;
use model::{FileKind, InodeId};
use std::ops::Range;
use std::sync::Arc;
use tokens::Moment;
use world::Map;

/// So many names that were found missing make it worthwhile to learn all names of a directory.
const MISSES_MIN: u32 = 4;
/// If they couldn't be learned, so many times as many make it worthwhile again.
const MISSES_AGAIN: u32 = 8;
/// Most parts in which the names of a directory are learned: more names than that can't be kept.
const PARTS_MAX: u32 = 64;

/// Where a name leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Named {
    pub(super) inode: InodeId,
    pub(super) kind: FileKind,
    /// When it was learned: attributes that were found under it have the same number.
    pub(super) learned: u64,
    /// It has other names: its attributes can't be known.
    pub(super) has_others: bool,
}

impl Named {
    /// Whether it is no directory and has no other name: its attributes can be known under its own token alone.
    pub(super) fn is_lone_file(&self) -> bool {
        self.kind != FileKind::Directory && !self.has_others
    }
}

/// What is known of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    Leads(Named),
    Missing,
    /// This client changes it, or doesn't know what came of that, though it knows all other names.
    Unsure,
}

impl Known {
    fn named(self) -> Option<Named> {
        match self {
            Self::Leads(named) => Some(named),
            Self::Missing | Self::Unsure => None,
        }
    }
}

/// The names up to a position, in its order.
#[derive(Default)]
struct Listing {
    entries: Vec<(u64, Arc<[u8]>)>,
    to: u64,
    is_complete: bool,
}

/// What is known of a directory whose token is held.
pub(super) struct Directory {
    /// Since when it is held, and changes of this client are counted.
    pub(super) held: u64,
    /// Since when it is held and nobody here has changed it.
    pub(super) since: u64,
    /// When it was last looked at.
    pub(super) used: u64,
    pub(super) was_used: bool,
    /// The client may make names itself, and nobody else may look at any.
    pub(super) is_delegated: bool,
    /// What programs have looked at in it.
    pub(super) looks: Looks,
    /// The client's tries to have that.
    tries: Tries,
    /// It has more names than can be kept.
    is_too_large: bool,
    names: Map<Arc<[u8]>, Known>,
    /// A name of which nothing is known is missing.
    is_whole: bool,
    /// How many names were found missing by the owner, and after how many all names are to be learned.
    misses: u32,
    misses_most: u32,
    listing: Option<Listing>,
    /// Bytes of the names themselves.
    text: usize,
}

impl Directory {
    pub(super) fn new(since: u64) -> Self {
        Self {
            held: since,
            since,
            used: since,
            was_used: true,
            is_delegated: false,
            looks: Looks::default(),
            tries: Tries::new(),
            is_too_large: false,
            names: Map::default(),
            is_whole: false,
            misses: 0,
            misses_most: MISSES_MIN,
            listing: None,
            text: 0,
        }
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        let listed = self.listing.as_ref().map_or(0, |listing| {
            listing.entries.capacity() * size_of::<(u64, Arc<[u8]>)>()
        });
        table_bytes::<(Arc<[u8]>, Known)>(self.names.capacity()) + self.text + listed
    }

    /// What is known of a name: it leads there, it is missing, nothing.
    pub(super) fn find(&self, name: &[u8]) -> Option<Option<Named>> {
        match self.names.get(name) {
            Some(Known::Leads(named)) => Some(Some(*named)),
            Some(Known::Missing) => Some(None),
            Some(Known::Unsure) => None,
            None => self.is_whole.then_some(None),
        }
    }

    fn set(&mut self, name: &[u8], known: Known) -> Option<Named> {
        if let Some(before) = self.names.get_mut(name) {
            return std::mem::replace(before, known).named();
        }
        self.text += text_bytes(name);
        self.names.insert(name.into(), known);
        None
    }

    /// Its names that lead to files with one name, as far as they are known.
    pub(super) fn lone_files(&self) -> impl Iterator<Item = (&Arc<[u8]>, Named)> {
        let names = self.names.iter();
        let leading = names.filter_map(|(name, known)| Some((name, known.named()?)));
        leading.filter(|(_, named)| named.is_lone_file())
    }

    /// Takes a name down; returns where it led to.
    pub(super) fn put(&mut self, name: &[u8], named: Option<Named>) -> Option<Named> {
        let before = self.set(name, named.map_or(Known::Missing, Known::Leads));
        if before.is_some() && named.is_none() {
            // It may be listed: the owner contradicts itself.
            self.listing = None;
            self.is_whole = false;
        }
        before
    }

    /// Nothing is known of a name any more, nor where it would be in a listing. Returns where it led to.
    pub(super) fn forget(&mut self, name: &[u8]) -> Option<Named> {
        self.listing = None;
        if self.is_whole {
            return self.set(name, Known::Unsure);
        }
        let known = self.names.remove(name)?;
        self.text -= text_bytes(name);
        known.named()
    }

    /// Forgets everything; says where its names led to.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Named> + use<> {
        self.listing = None;
        self.is_whole = false;
        self.text = 0;
        let names = std::mem::take(&mut self.names);
        names.into_values().filter_map(Known::named)
    }

    /// Its names are too many to be kept.
    pub(super) fn note_too_large(&mut self) {
        self.is_too_large = true;
    }

    /// The owner has found a name missing.
    pub(super) fn note_miss(&mut self) {
        self.misses = self.misses.saturating_add(1);
    }

    /// Whether all its names should be learned, because programs look for many that are missing, and in how many parts at
    /// most: the more they look, the more that may cost. If yes, not soon again.
    pub(super) fn wants_names(&mut self) -> Option<u32> {
        let is_due = self.misses >= self.misses_most && !self.is_whole && !self.is_too_large;
        is_due.then(|| {
            self.misses_most = self.misses.saturating_mul(MISSES_AGAIN);
            (self.misses / MISSES_MIN).min(PARTS_MAX)
        })
    }

    /// The owner has made a name for this client. Whether it is time to try to make the next ones here: all names are known.
    pub(super) fn note_had_made(&mut self, now: Moment) -> bool {
        self.tries.note_had_made(now) && self.is_whole
    }

    /// A try of this time has ended.
    pub(super) fn note_tried(&mut self, is_delegated: bool, tried: Range<Moment>) {
        self.tries.note_end(is_delegated, tried);
    }

    /// Whether a create may wait for what is in the way of making its file here.
    pub(super) fn may_wait(&self, now: Moment) -> bool {
        self.tries.may_wait(now)
    }

    /// A create has waited for that in vain.
    pub(super) fn note_waited(&mut self, now: Moment) {
        self.tries.note_waited(now);
    }

    /// The client has made a name itself.
    pub(super) fn note_made_here(&mut self) {
        self.tries.note_made_here();
    }

    /// Takes a part of a listing down whose names are known. What is known of its rest is as true: a change forgets all of it.
    pub(super) fn put_listing(&mut self, after: u64, entries: &[DirectoryEntry], is_end: bool) {
        if self.is_too_large {
            return;
        }
        if after == 0 && self.listing.is_none() {
            self.listing = Some(Listing::default());
        }
        let Some(listing) = &mut self.listing else {
            return;
        };
        if after > listing.to || listing.is_complete {
            return;
        }
        for entry in entries.iter().filter(|entry| entry.position > listing.to) {
            let Some((name, _)) = self.names.get_key_value(entry.name.as_bytes()) else {
                self.listing = None;
                return;
            };
            listing.entries.push((entry.position, name.clone()));
        }
        let last = entries.last().map_or(after, |entry| entry.position);
        listing.to = listing.to.max(last);
        listing.is_complete = is_end;
        self.is_whole |= is_end;
    }

    /// Whether what is known of a listing goes to a position.
    pub(super) fn is_listed_to(&self, position: u64) -> bool {
        let listing = self.listing.as_ref();
        listing.is_some_and(|it| it.is_complete || it.to >= position)
    }

    /// Whether what is known of a listing goes to its end.
    pub(super) fn is_listed_to_its_end(&self) -> bool {
        self.listing.as_ref().is_some_and(|it| it.is_complete)
    }

    /// The names after a position that are known in their order, and where they lead to: at least one, unless
    /// the listing is known to its end. Never of an empty directory: it can be removed without its token.
    pub(super) fn listed(
        &self,
        after: u64,
    ) -> Option<impl Iterator<Item = (u64, &Arc<[u8]>, Named)>> {
        let listing = self.listing.as_ref();
        let listing = listing.filter(|it| it.is_complete || after < it.to)?;
        if listing.entries.is_empty() {
            return None;
        }
        let first = listing
            .entries
            .partition_point(|(position, _)| *position <= after);
        let rest = listing.entries[first..].iter();
        Some(rest.map(|(position, name)| {
            let known = self.names.get(name).and_then(|known| known.named());
            (*position, name, known.expect("listed names are known"))
        }))
    }
}

/// Bytes of a shared name, with its two counters.
pub(super) fn text_bytes(name: &[u8]) -> usize {
    (name.len() + 2 * size_of::<usize>()).next_multiple_of(16)
}
