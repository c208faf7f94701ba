//! Names, missing names and listings of directories whose tokens the client holds, and attributes of
//! what is found under them: a lookup or listing of them asks nobody.
//!
//! *A lookup* looks here first. What isn't known is asked of the owner, after the tokens that are missing
//! were claimed; none of them is in use meanwhile, so a recall waits for nothing. *Its answer* is kept
//! if all that it says was held, and nobody here changed it, from before it was asked ([`Asked`]) until
//! it came. *A recall* drops what is known first (`tokens.rs` says what is held, [`KnownNames::show`]).
//! *Attributes that come with their token* were looked at after it was granted, so the answer to the same question is kept
//! ([`AskedToKnow`]).
//! *A change of this client* isn't recalled from it: what it concerns is dropped when it begins and
//! when its outcome is known, and nothing is learned of it between ([`OwnChange`]). Who can do nothing beside it waits
//! for its end ([`KnownNames::until_quiet`]).
//!
//! A name needs its directory's token. Attributes need that, the inode's, and of a directory also its
//! own, because they change with its names; those of a file with several names are never known, because
//! another name can be removed without any of these.
//!
//! *A program that makes files* looks each name up before: kernels do, and ask for the directory's attributes
//! again after each change in it. So all names of a directory are learned once several are missing
//! ([`KnownNames::wants_names`]), and what this client's changes say of their outcome is known from then on,
//! if nothing else it did at the same time can have come between.
//!
//! *A program that looks at one file after the other* in a delegated directory, as one that removes them, would ask about each:
//! others are asked about together with it ([`KnownNames::wanted_ahead`]).
//!
//! A client that has everything needs none of this: asking is a function call there. Nothing is known then, and nothing is
//! learned ([`KnownNames::rest`]); its changes are only counted, so that nothing is learned beside one that began before the
//! client used tokens again. The client of a single node never has any of it.

mod change;
mod changing;
mod directory;
mod looks;
mod memory;
mod places;
mod shown;
#[cfg(test)]
mod tests;
mod tries;

pub(crate) use memory::{Asked, Came, Learned, Looked, LookedAt, Making, ToLearn};

use change::{Became, Concerned};
use memory::{Memory, NEVER};
use model::operation::DirectoryEntry;
use model::{Attributes, FileName, InodeId, Operation, Reply, TokenMode, TokenObject};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokens::Moment;
use tokio::sync::Notify;

/// Most bytes that all of this takes: some 150,000 names.
const BYTES_MAX: usize = 32 << 20;

/// Bytes that a table of such entries takes: it has a free place beside seven used ones, and a byte for each.
fn table_bytes<Entry>(capacity: usize) -> usize {
    capacity * (size_of::<Entry>() + 1) * 8 / 7
}

/// What a client knows of names.
pub(crate) struct KnownNames {
    memory: Mutex<Memory>,
    /// [`RESTS`], and the changes under way that are only counted.
    gate: AtomicUsize,
    /// Signals that a change of this client has ended.
    ended: Notify,
}

/// In the gate: nothing is known, and nothing is learned.
const RESTS: usize = 1;
/// In the gate: one change.
const ONE: usize = 2;

/// A change of this client whose outcome isn't known; over when it is dropped.
pub(crate) struct OwnChange {
    names: Arc<KnownNames>,
    /// `None` of one that is only counted.
    concerned: Option<Concerned>,
    begun: u64,
    /// What comes of it may be learned.
    teaches: bool,
    became: Option<Became>,
}

/// Tokens of inodes are being asked for that come with attributes. What this client changes meanwhile is taken down until
/// this is dropped.
pub(crate) struct AskedToKnow {
    names: Arc<KnownNames>,
    asked: Asked,
}

/// A token is waited for beside operations; no longer when this is dropped.
pub(crate) struct AskedLater {
    names: Arc<KnownNames>,
    object: TokenObject,
}

impl KnownNames {
    /// Nothing is held.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: Mutex::new(Memory::new(BYTES_MAX)),
            gate: AtomicUsize::new(0),
            ended: Notify::new(),
        })
    }

    /// The client gets everything: forgets all that is known. Until [`KnownNames::go_on`] nothing is learned.
    pub(crate) fn rest(&self) {
        let mut memory = self.memory.lock();
        memory.forget_all();
        self.gate.fetch_or(RESTS, Ordering::SeqCst);
    }

    /// The client uses tokens again.
    pub(crate) fn go_on(&self) {
        // With the memory locked, as `rest` does: one is after the other.
        let _memory = self.memory.lock();
        self.gate.fetch_and(!RESTS, Ordering::SeqCst);
    }

    /// What is known of a name. It counts if tokens may be used at all when this has returned.
    pub(crate) fn look(&self, directory: InodeId, name: &FileName, now: Moment) -> Looked {
        self.memory.lock().look(directory, name.as_bytes(), now)
    }

    /// Where a name leads to, if that is known.
    pub(crate) fn leads_to(&self, directory: InodeId, name: &FileName) -> Option<InodeId> {
        self.memory.lock().leads_to(directory, name.as_bytes())
    }

    /// A part of a directory, as the owner would list it, if that is known; see [`KnownNames::look`].
    pub(crate) fn list(
        &self,
        directory: InodeId,
        after: u64,
        limit: u32,
        with_attributes: bool,
    ) -> Option<(Vec<DirectoryEntry>, bool)> {
        let mut memory = self.memory.lock();
        memory.list(directory, after, limit as usize, with_attributes)
    }

    /// Whether it would be of use to hold a directory's token.
    pub(crate) fn wants(&self, directory: InodeId, now: Moment) -> bool {
        let object = TokenObject::Directory(directory);
        self.memory.lock().wants(object, now)
    }

    /// The owner is about to be asked.
    pub(crate) fn begin(&self) -> Asked {
        self.begin_with(&self.memory.lock())
    }

    fn begin_with(&self, memory: &Memory) -> Asked {
        match self.gate.load(Ordering::SeqCst) {
            0 => memory.begin(),
            _ => Asked::in_vain(),
        }
    }

    /// As [`KnownNames::begin`], for tokens of inodes that come with attributes.
    pub(crate) fn ask_to_know(self: &Arc<Self>) -> AskedToKnow {
        let mut memory = self.memory.lock();
        memory.begin_to_know();
        let asked = self.begin_with(&memory);
        drop(memory);
        AskedToKnow {
            names: self.clone(),
            asked,
        }
    }

    /// The owner must be asked about a file that a program looks at: that and others of its directory whose tokens are worth
    /// asking for at once ([`KnownNames::ask_to_know`]); nothing if none are.
    pub(crate) fn wanted_ahead(
        &self,
        directory: InodeId,
        name: &FileName,
        now: Moment,
    ) -> Vec<DirectoryEntry> {
        let mut memory = self.memory.lock();
        memory.wanted_ahead(directory, name.as_bytes(), now)
    }

    /// How much has been learned, come to be held, or changed; for [`Came::new`].
    pub(crate) fn count(&self) -> u64 {
        self.memory.lock().count()
    }

    /// The owner has found a name, or has found it missing. Returns when it was learned; `None` if it
    /// can't be kept.
    pub(crate) fn learn(
        &self,
        directory: InodeId,
        name: &FileName,
        found: Option<&Attributes>,
        asked: Asked,
    ) -> Option<Learned> {
        let mut memory = self.memory.lock();
        memory.learn(directory, name.as_bytes(), found, asked)
    }

    /// What is still known of what was learned then: the name, and with it the attributes. If these are, a kernel may
    /// keep them until the token of the inode, or of the directory, goes back ([`KnownNames::shown_in`]).
    pub(crate) fn show_entry(
        &self,
        directory: InodeId,
        name: &FileName,
        learned: Learned,
    ) -> (bool, bool) {
        let mut memory = self.memory.lock();
        memory.show_entry(directory, name.as_bytes(), learned)
    }

    /// Whether all names of a directory should be learned now, and in how many parts at most.
    pub(crate) fn wants_names(&self, directory: InodeId) -> Option<u32> {
        self.memory.lock().wants_names(directory)
    }

    /// What is known of a directory's attributes; see [`KnownNames::look`].
    pub(crate) fn look_at(&self, inode: InodeId, now: Moment) -> LookedAt {
        self.memory.lock().look_at(inode, now)
    }

    /// The owner has said an inode's attributes. Returns when they were learned; `None` if they can't be kept.
    pub(crate) fn learn_attributes(
        &self,
        attributes: &Attributes,
        asked: Asked,
    ) -> Option<Learned> {
        self.memory.lock().learn_attributes(attributes, asked)
    }

    /// Whether a directory's attributes are still known as they were learned then. If yes, a kernel may keep them
    /// until the token of the directory, or of the one with its name, goes back ([`KnownNames::shown_in`]).
    pub(crate) fn show_attributes(&self, inode: InodeId, learned: Learned) -> bool {
        self.memory.lock().show_attributes(inode, learned)
    }

    /// A directory's token is lost. The inodes with names in it whose attributes kernels may keep; from now on
    /// they don't.
    pub(crate) fn take_shown(&self, directory: InodeId) -> Vec<InodeId> {
        self.memory.lock().take_shown(directory)
    }

    /// A directory's token goes back. The inodes with names in it whose attributes kernels may keep, until they have dropped them
    /// ([`KnownNames::hide_in`]).
    pub(crate) fn shown_in(&self, directory: InodeId) -> Vec<InodeId> {
        self.memory.lock().shown_in(directory)
    }

    /// Kernels have dropped the attributes of these, whose names were in a directory.
    pub(crate) fn hide_in(&self, directory: InodeId, inodes: &[InodeId]) {
        self.memory.lock().hide_in(directory, inodes);
    }

    /// A kernel may keep an inode's access lists from now on.
    pub(crate) fn show_lists(&self, inode: InodeId) {
        self.memory.lock().show_lists(inode);
    }

    /// Whether kernels may keep an inode's attributes, or its access lists.
    pub(crate) fn is_shown(&self, inode: InodeId) -> bool {
        self.memory.lock().is_shown(inode)
    }

    /// An inode's token has gone back, and kernels keep nothing of it; or it is lost, and what they keep runs out.
    pub(crate) fn hide(&self, inode: InodeId) {
        self.memory.lock().hide(inode);
    }

    /// This client has removed a file's last name, and nobody has it open. Kernels keep nothing of it: each needs no more word
    /// when its token goes back, with which it would forget all names.
    pub(crate) fn note_gone(&self, inode: InodeId) {
        self.memory.lock().note_gone(inode);
    }

    /// Whether a listing of the directory would be kept.
    pub(crate) fn holds(&self, directory: InodeId) -> bool {
        self.memory.lock().holds(directory)
    }

    /// Inodes in a listing, just learned, whose attributes could be kept if their tokens were held.
    pub(crate) fn listed_without_token(
        &self,
        directory: InodeId,
        entries: &[DirectoryEntry],
        now: Moment,
    ) -> Vec<InodeId> {
        let memory = self.memory.lock();
        memory.listed_without_token(directory, entries, now)
    }

    /// When each entry of a listing was learned as it is, with its attributes; `None` of what can't be kept.
    pub(crate) fn learned(
        &self,
        directory: InodeId,
        entries: &[DirectoryEntry],
    ) -> Vec<Option<Learned>> {
        let memory = self.memory.lock();
        let entries = entries.iter();
        entries
            .map(|entry| memory.learned(directory, entry))
            .collect()
    }

    /// The owner has listed a part of a directory. Returns whether all parts up to this one are known as a listing: the
    /// directory's token was held and this client has changed nothing in it since the first one was asked for.
    pub(crate) fn learn_listing(
        &self,
        directory: InodeId,
        after: u64,
        (entries, is_end): (&[DirectoryEntry], bool),
        asked: Asked,
    ) -> bool {
        let mut memory = self.memory.lock();
        memory.learn_listing(directory, after, entries, is_end, asked)
    }

    /// What may be used of an object is this now.
    pub(crate) fn show(&self, object: TokenObject, mode: Option<TokenMode>, now: Moment) {
        self.memory.lock().show(object, mode, now);
    }

    /// The owner doesn't give this token now, or asks for it back: it isn't asked for it for a while.
    pub(crate) fn refuse(&self, object: TokenObject, now: Moment) {
        self.memory.lock().refuse(object, now);
    }

    /// The owner is being asked for a token by nobody who waits: operations don't ask for it. `None` if as
    /// many are being asked for as may be.
    pub(crate) fn ask_later(self: &Arc<Self>, object: TokenObject) -> Option<AskedLater> {
        let is_new = self.memory.lock().ask_later(object);
        let names = self.clone();
        is_new.then(|| AskedLater { names, object })
    }

    /// Whether something known under a token was looked at since this was last asked of it.
    pub(crate) fn was_used(&self, object: TokenObject) -> bool {
        self.memory.lock().was_used(object)
    }

    /// Makes a name in a directory that is delegated, if all is known that it takes: `make` gets the directory's attributes,
    /// and the directory that has its name, and says where the name leads to and what the directory's attributes are
    /// afterwards. It is called with everything locked.
    pub(crate) fn make<T>(
        &self,
        directory: InodeId,
        name: &FileName,
        make: impl FnOnce(&Attributes, Option<InodeId>) -> Option<(InodeId, Attributes, T)>,
    ) -> Making<T> {
        let mut memory = self.memory.lock();
        if self.gate.load(Ordering::SeqCst) != 0 {
            return Making::Not;
        }
        memory.make(directory, name, make)
    }

    /// Whether a create may wait for what is in the way of making its file here.
    pub(crate) fn may_wait(&self, directory: InodeId, now: Moment) -> bool {
        self.memory.lock().may_wait(directory, now)
    }

    /// A create has waited for that, and the owner must be asked all the same.
    pub(crate) fn note_waited(&self, directory: InodeId, now: Moment) {
        self.memory.lock().note_waited(directory, now);
    }

    /// Waits until those changes of names in a directory, and of its attributes, have ended that are under way now: not for
    /// those that begin meanwhile, or it might never end. Locks nothing while it waits.
    pub(crate) async fn until_quiet(&self, directory: InodeId) {
        let now = self.memory.lock().begin();
        loop {
            // First: an end that follows isn't missed.
            let ended = self.ended.notified();
            if !self.memory.lock().is_changing(directory, now) {
                return;
            }
            ended.await;
        }
    }

    /// The owner has made a name for this client. Whether the client should ask for a delegation now.
    pub(crate) fn wants_delegation(&self, directory: InodeId, now: Moment) -> bool {
        self.memory.lock().wants_delegation(directory, now)
    }

    /// A file is about to be made in a directory. Whether the client should ask for a delegation before, because it has made the
    /// directory itself; once.
    pub(crate) fn wants_new_delegation(&self, directory: InodeId, now: Moment) -> bool {
        self.memory.lock().wants_new_delegation(directory, now)
    }

    /// The client has asked for a delegation at this time, and has it or not.
    pub(crate) fn note_tried(&self, directory: InodeId, is_delegated: bool, tried: Range<Moment>) {
        let mut memory = self.memory.lock();
        memory.note_tried(directory, is_delegated, tried);
    }

    /// What is to be learned next until a directory's attributes are known under its tokens; `None` if they can't be now.
    pub(crate) fn to_learn(&self, directory: InodeId) -> Option<ToLearn> {
        self.memory.lock().to_learn(directory)
    }

    /// Whether a directory is delegated.
    pub(crate) fn is_delegated(&self, directory: InodeId) -> bool {
        self.memory.lock().is_delegated(directory)
    }

    /// The owner has said, to what was asked then, that a directory has no default ACL.
    pub(crate) fn learn_plain(&self, directory: InodeId, asked: Asked) {
        self.memory.lock().learn_plain(directory, asked);
    }

    /// Whether a directory is known to have no default ACL.
    pub(crate) fn is_plain(&self, directory: InodeId) -> bool {
        self.memory.lock().is_plain(directory)
    }

    /// A change of this client is about to be sent; `None` if it concerns nothing that can be known.
    pub(crate) fn begin_change(self: &Arc<Self>, operation: &Operation) -> Option<OwnChange> {
        let concerned = Concerned::of(operation)?;
        let mut memory = self.memory.lock();
        let begun = memory.begin_change(&concerned);
        // Beside changes that are only counted nothing is learned, nor of its outcome.
        let teaches = self.gate.load(Ordering::SeqCst) == 0;
        drop(memory);
        Some(OwnChange {
            names: self.clone(),
            concerned: Some(concerned),
            begun,
            teaches,
            became: None,
        })
    }

    /// As [`KnownNames::begin_change`], quick while nothing is known.
    pub(crate) fn begin_near_change(self: &Arc<Self>, operation: &Operation) -> Option<OwnChange> {
        if self.gate.load(Ordering::Relaxed) & RESTS == 0 {
            return self.begin_change(operation);
        }
        if self.gate.fetch_add(ONE, Ordering::SeqCst) & RESTS == 0 {
            self.gate.fetch_sub(ONE, Ordering::SeqCst);
            return self.begin_change(operation);
        }
        Some(OwnChange {
            names: self.clone(),
            concerned: None,
            begun: NEVER,
            teaches: false,
            became: None,
        })
    }
}

impl OwnChange {
    /// The owner has done it, and this is its answer.
    pub(crate) fn note(&mut self, operation: &Operation, reply: &Reply) {
        if self.teaches {
            self.became = Became::of(operation, reply);
        }
    }
}

impl AskedToKnow {
    /// Takes in what came with tokens of inodes in a listing of a directory: the listing shows it from now on, and it is known if
    /// this client has changed none of it since the tokens were asked for.
    pub(crate) fn learn(&self, directory: InodeId, entries: &mut [DirectoryEntry], came: &Came) {
        let mut memory = self.names.memory.lock();
        let mut entries = entries.iter_mut();
        for attributes in came.attributes() {
            // Both are in the order of the listing.
            let Some(entry) = entries.find(|entry| entry.inode == attributes.inode) else {
                break;
            };
            entry.attributes = Some(*attributes);
            memory.learn_granted(directory, entry, came, self.asked);
        }
        memory.make_room(directory);
    }
}

impl Drop for AskedToKnow {
    fn drop(&mut self) {
        self.names.memory.lock().end_to_know();
    }
}

impl Drop for AskedLater {
    fn drop(&mut self) {
        self.names.memory.lock().has_asked(self.object);
    }
}

impl Drop for OwnChange {
    fn drop(&mut self) {
        let Some(concerned) = &self.concerned else {
            self.names.gate.fetch_sub(ONE, Ordering::SeqCst);
            return;
        };
        let mut memory = self.names.memory.lock();
        memory.end_change(concerned, self.begun, self.became.as_ref());
        drop(memory);
        self.names.ended.notify_waiters();
    }
}
