//! A witness of what programs saw on a whole cluster: one order of all operations must explain every
//! answer.
//!
//! *Names, links, permissions, extended attributes*: the owner's answers say where each change stands in
//! the shard's history (`model::operation::Rank`). The changes are replayed in this order on a tree of
//! its own ([`tree`]), which must come to the same answers; what was only looked at must be true at its
//! rank, or, if a client answered it from what it had cached or an owner refused it, at some moment
//! between its begin and its end. Whoever was answered before another one asked has the earlier rank.
//! *Creates under a delegation* are answered by their client, and sent to the owner later: they stand where they were
//! answered, since nobody else can have looked before they were sent ([`line`]); what was never sent is gone with its
//! client, or a lie ([`streams`]).
//! *Content and sizes* are written behind, so their changes have no rank: each cell of a file, and each
//! size, is an object of its own that some order of its reads and writes must explain ([`content`]).
//!
//! *Times*, where clocks are right: they never go back, and each change moves them ([`times`]).
//!
//! *An unknown outcome* (the client's node went down) is a change that may have been made at any moment
//! since it began, until the node's next client has a session, or never. *A client that was lost* may take its unsynced writes with it, but no write
//! that another client has read; one whose owner was in its own process also its last changes of names and attributes, but
//! none that was synced or that another client has seen ([`gone`]).
//!
//! It knows nothing of clusters, tokens or caches: a history goes in, and an error that names the
//! operation comes out.

pub mod content;
mod gone;
mod largest;
mod line;
pub mod order;
mod replay;
mod streams;
mod times;
mod tree;

#[cfg(test)]
mod tests;

use model::operation::{Rank, RenameMode};
use model::{ErrorKind, FileKind, InodeId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// One client, from its opening to its end; never used again.
pub type ClientNumber = u32;

/// Counts what happened in a run: each begin and each end has its own.
pub type Tick = u64;

/// The end of what never ended.
pub const NEVER: Tick = Tick::MAX;

/// What a program asks. Content is in cells: numbers that stand for equal runs of bytes, 0 for zeros.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields are what the verbs of POSIX take")]
pub enum Call {
    Create {
        directory: InodeId,
        name: String,
        kind: FileKind,
    },
    /// A file without a name, which its program holds open.
    CreateUnnamed {
        directory: InodeId,
    },
    Link {
        inode: InodeId,
        directory: InodeId,
        name: String,
    },
    Unlink {
        directory: InodeId,
        name: String,
    },
    RemoveDirectory {
        directory: InodeId,
        name: String,
    },
    Rename {
        from: (InodeId, String),
        to: (InodeId, String),
        mode: RenameMode,
    },
    SetMode {
        inode: InodeId,
        mode: u32,
    },
    SetOwner {
        inode: InodeId,
        owner: u32,
    },
    /// The time of a file's last change becomes this one, which no clock shows.
    SetTime {
        inode: InodeId,
        time: u32,
    },
    /// The one extended attribute that the witness knows; `None` removes it.
    SetXattr {
        inode: InodeId,
        value: Option<u32>,
    },
    Lookup {
        directory: InodeId,
        name: String,
    },
    List {
        directory: InodeId,
    },
    Stat {
        inode: InodeId,
    },
    GetXattr {
        inode: InodeId,
    },
    Write {
        inode: InodeId,
        cell: usize,
        cells: usize,
        value: u32,
    },
    Append {
        inode: InodeId,
        cells: usize,
        value: u32,
    },
    Truncate {
        inode: InodeId,
        cells: usize,
    },
    Punch {
        inode: InodeId,
        cell: usize,
        cells: usize,
    },
    /// Cells become zeros, also behind the end.
    Zero {
        inode: InodeId,
        cell: usize,
        cells: usize,
    },
    /// Cells get space, also behind the end.
    Reserve {
        inode: InodeId,
        cell: usize,
        cells: usize,
    },
    /// Cells become those of a file from a cell on, up to that file's end.
    Copy {
        from: (InodeId, usize),
        inode: InodeId,
        cell: usize,
        cells: usize,
    },
    Read {
        inode: InodeId,
        cell: usize,
        cells: usize,
    },
    /// Where data begins, from this cell on.
    Seek {
        inode: InodeId,
        cell: usize,
    },
    Fsync {
        inode: InodeId,
    },
    /// A store in a mapping: at one moment, which no daemon sees.
    Store {
        inode: InodeId,
        cell: usize,
        value: u32,
    },
    /// A load from a mapping.
    Load {
        inode: InodeId,
        cell: usize,
    },
}

/// What a program saw of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "as stat shows them")]
pub struct Seen {
    pub inode: InodeId,
    pub kind: FileKind,
    pub mode: u32,
    pub links: u32,
    pub owner: u32,
    /// Of a file, in cells; `None` where the answer doesn't say it exactly.
    pub cells: Option<usize>,
    /// The time of a file's last change, if a program has set it; [`NOW`] for one of a clock, `None` as for
    /// `cells`.
    pub time: Option<u32>,
    /// The times themselves.
    pub mtime: Timestamp,
    pub ctime: Timestamp,
}

/// A time of a clock.
pub const NOW: u32 = 0;

/// Marks a time that a program has set into the future.
pub const AHEAD: u32 = 1 << 31;

/// What a program was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is done.
    Done,
    /// An inode: that which was made, found or looked at.
    Inode(Seen),
    /// The inode that a name leads to; its attributes were asked for afterwards, which is an event of its own.
    Leads(InodeId),
    /// All names of a directory.
    Names(BTreeMap<String, InodeId>),
    /// The same, with attributes of some; these are events of their own to the witness.
    Listed(BTreeMap<String, InodeId>, Vec<Seen>),
    /// The extended attribute, if there is one.
    Xattr(Option<u32>),
    /// The cells of a read; fewer than asked for at the file's end.
    Cells(Vec<u32>),
    /// So many cells were copied; fewer than asked for if the source ended there.
    Copied(usize),
    /// Up to this cell there are only zeros.
    ZerosTo(usize),
    /// Where an append begins.
    At(usize),
    /// An error of the operation itself.
    Refused(ErrorKind),
    /// Nothing is known of what became of it.
    Unknown,
}

/// One operation of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Who asked.
    pub client: ClientNumber,
    /// When it asked.
    pub begun: Tick,
    /// When it was answered; [`NEVER`] if it wasn't.
    pub ended: Tick,
    /// What it asked.
    pub call: Call,
    /// What it was answered.
    pub answer: Answer,
    /// Where the owner says it stands; `None` if it wasn't asked, or refused. Of a create under a delegation, where it was
    /// applied in the end; `None` if nobody has heard of that.
    pub rank: Option<Rank>,
    /// A create that its client has answered itself, under a delegation.
    pub is_delegated: bool,
    /// Its client holds the inode open: it is there, whatever becomes of its names.
    pub is_held: bool,
    /// An owner in its client's process answered it, perhaps before it was durable.
    pub is_near: bool,
}

/// What all programs of a run saw.
#[derive(Clone, Debug)]
pub struct History {
    /// The root directory.
    pub root: InodeId,
    /// In any order.
    pub events: Vec<Event>,
    /// Clients that were lost: what they hadn't synced may be gone, of names and attributes if it `is_near` or `is_delegated`.
    pub lost: BTreeSet<ClientNumber>,
    /// Since when nothing comes of what a client asked that has ended with its daemon: its successor has a session.
    pub over: BTreeMap<ClientNumber, Tick>,
    /// Whether all clocks are right and nothing breaks, so that times mean something.
    pub has_right_times: bool,
}

/// What a check looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Explained {
    /// Changes that have a rank.
    pub changes: usize,
    /// Answers that were compared with the tree.
    pub looks: usize,
    /// Changes with unknown outcomes that must have been made.
    pub made_unknown: usize,
    /// Reads and writes of cells and sizes.
    pub content: usize,
}

impl Explained {
    /// Counts what was looked at in another history too.
    pub fn add(&mut self, other: &Self) {
        self.changes += other.changes;
        self.looks += other.looks;
        self.made_unknown += other.made_unknown;
        self.content += other.content;
    }
}

/// Explains a history.
///
/// # Errors
/// Which operation no order explains.
pub fn explain(history: &History) -> Result<Explained, String> {
    let mut explained = replay::explain(history)?;
    explained.content = content::explain(history)?;
    if history.has_right_times {
        times::explain(history)?;
    }
    Ok(explained)
}

impl History {
    /// By when a change without an answer has been made, or never is.
    fn made_by(&self, client: ClientNumber) -> Tick {
        self.over.get(&client).copied().unwrap_or(NEVER)
    }
}

impl Event {
    /// The inodes that are there, as it shows: those that it has worked on, made, found or listed.
    #[must_use]
    pub fn shows(&self) -> Vec<InodeId> {
        if matches!(self.answer, Answer::Refused(_) | Answer::Unknown) {
            return Vec::new();
        }
        let mut shown: Vec<_> = self.call.inode().into_iter().collect();
        match &self.call {
            Call::Link { inode, .. } => shown.push(*inode),
            Call::Copy { from, .. } => shown.push(from.0),
            _ => {}
        }
        match &self.answer {
            Answer::Inode(seen) => shown.push(seen.inode),
            Answer::Leads(inode) => shown.push(*inode),
            Answer::Names(names) | Answer::Listed(names, _) => shown.extend(names.values()),
            _ => {}
        }
        shown
    }

    /// The inode that a create has made, if it was answered.
    #[must_use]
    pub fn made(&self) -> Option<InodeId> {
        match (&self.call, &self.answer) {
            (Call::Create { .. }, Answer::Inode(seen)) => Some(seen.inode),
            (Call::Create { .. }, Answer::Leads(inode)) => Some(*inode),
            _ => None,
        }
    }
}

impl Call {
    /// Whether it is a change whose order the owner knows.
    #[must_use]
    pub fn is_ranked_change(&self) -> bool {
        matches!(
            self,
            Self::Create { .. }
                | Self::CreateUnnamed { .. }
                | Self::Link { .. }
                | Self::Unlink { .. }
                | Self::RemoveDirectory { .. }
                | Self::Rename { .. }
                | Self::SetMode { .. }
                | Self::SetOwner { .. }
                | Self::SetXattr { .. }
        )
    }

    /// The inode that a call works on without a name; `None` of calls that go by names.
    #[must_use]
    pub fn inode(&self) -> Option<InodeId> {
        match self {
            Self::SetMode { inode, .. }
            | Self::SetOwner { inode, .. }
            | Self::SetTime { inode, .. }
            | Self::Seek { inode, .. }
            | Self::Store { inode, .. }
            | Self::Load { inode, .. }
            | Self::SetXattr { inode, .. }
            | Self::Stat { inode }
            | Self::GetXattr { inode }
            | Self::Write { inode, .. }
            | Self::Append { inode, .. }
            | Self::Truncate { inode, .. }
            | Self::Punch { inode, .. }
            | Self::Zero { inode, .. }
            | Self::Reserve { inode, .. }
            | Self::Copy { inode, .. }
            | Self::Read { inode, .. }
            | Self::Fsync { inode } => Some(*inode),
            Self::Create { .. }
            | Self::CreateUnnamed { .. }
            | Self::Link { .. }
            | Self::Unlink { .. }
            | Self::RemoveDirectory { .. }
            | Self::Rename { .. }
            | Self::Lookup { .. }
            | Self::List { .. } => None,
        }
    }

    /// Whether the tree says something of its answer: it has to do with names and attributes.
    fn is_of_tree(&self) -> bool {
        self.is_ranked_change()
            || matches!(
                self,
                Self::Lookup { .. } | Self::List { .. } | Self::Stat { .. } | Self::GetXattr { .. }
            )
    }
}
