//! Numbers that are reserved for the session's new inodes, by the directory that uses them. Pure.
//!
//! The inodes of a directory shall be neighbours, so each directory has runs of its own. There are fewer runs than an owner
//! keeps for a session: when they are all given away, a directory without any takes over those of the one that hasn't used its
//! own for longest.
//!
//! The owner keeps room for what is made with each of them. So those of a directory that hasn't used its own for a while go
//! back ([`Numbers::take_unused`]).

use model::limits::RESERVED_RUNS_MAX;
use model::{FilesetId, InodeId, InodeNumber};
use std::collections::VecDeque;
use std::ops::Range;
use world::Map;

/// Most runs of a fileset.
const RUNS_MAX: usize = 48;
/// When fewer numbers than this are left for a directory, more are reserved.
const RESERVED_MIN: u64 = 512;

const _: () = assert!(RUNS_MAX < RESERVED_RUNS_MAX);

/// What is reserved and not used.
#[derive(Default)]
pub(super) struct Numbers {
    directories: Map<InodeId, Own>,
    /// Counts what is reserved, taken over and used.
    last: u64,
    /// How far that had come when it was looked last which are unused.
    looked: u64,
}

/// The numbers of a directory; at least one.
struct Own {
    runs: VecDeque<Range<u64>>,
    /// When they were last used, or came.
    used: u64,
}

impl Numbers {
    /// Whether few are left for a directory.
    pub(super) fn is_short(&self, directory: InodeId) -> bool {
        let own = self.directories.get(&directory);
        let left: u64 = own.map_or(0, |own| own.runs.iter().map(|it| it.end - it.start).sum());
        left < RESERVED_MIN
    }

    /// Whether a fileset has as many runs as it may.
    pub(super) fn is_full(&self, fileset: FilesetId) -> bool {
        let all = self.directories.iter();
        let all = all.filter(|(directory, _)| directory.fileset() == fileset);
        all.map(|(_, own)| own.runs.len()).sum::<usize>() >= RUNS_MAX
    }

    /// The directories that have some.
    pub(super) fn directories(&self) -> Vec<InodeId> {
        self.directories.keys().copied().collect()
    }

    /// The owner has reserved these.
    pub(super) fn put(&mut self, directory: InodeId, run: Range<u64>) {
        self.own(directory).runs.push_back(run);
    }

    /// Another directory of its fileset gets those of a directory. Whether it had any.
    pub(super) fn pass(&mut self, from: InodeId, to: InodeId) -> bool {
        if from.fileset() != to.fileset() {
            return false;
        }
        let Some(passed) = self.directories.remove(&from) else {
            return false;
        };
        self.own(to).runs.extend(passed.runs);
        true
    }

    /// A directory that has none gets those of the directory of its fileset that hasn't used its own for longest.
    pub(super) fn take_over(&mut self, directory: InodeId) {
        if self.directories.contains_key(&directory) {
            return;
        }
        let others = self.directories.iter();
        let others = others.filter(|(other, _)| other.fileset() == directory.fileset());
        let unused = others.min_by_key(|(_, own)| own.used);
        if let Some(from) = unused.map(|(other, _)| *other) {
            self.pass(from, directory);
        }
    }

    /// Takes the next one.
    pub(super) fn take(&mut self, directory: InodeId) -> Option<InodeNumber> {
        let own = self.directories.get_mut(&directory)?;
        let run = own.runs.front_mut()?;
        let number = run.start;
        run.start += 1;
        if run.is_empty() {
            own.runs.pop_front();
        }
        self.last += 1;
        own.used = self.last;
        if own.runs.is_empty() {
            self.directories.remove(&directory);
        }
        Some(InodeNumber(number))
    }

    /// Takes those away from directories that haven't used theirs since this was asked last: the runs of each, the newest
    /// first.
    pub(super) fn take_unused(&mut self) -> Vec<(InodeId, Range<u64>)> {
        let since = std::mem::replace(&mut self.looked, self.last);
        let all = self.directories.iter();
        let unused = all.filter(|(_, own)| own.used <= since);
        let unused: Vec<InodeId> = unused.map(|(directory, _)| *directory).collect();
        let mut taken = Vec::new();
        for directory in unused {
            let own = self.directories.remove(&directory);
            let runs = own.into_iter().flat_map(|own| own.runs);
            taken.extend(runs.map(|run| (directory, run)));
        }
        taken.sort_by_key(|(_, run)| std::cmp::Reverse(run.start));
        taken
    }

    /// Those of a directory that is about to get some.
    fn own(&mut self, directory: InodeId) -> &mut Own {
        self.last += 1;
        let used = self.last;
        let own = self.directories.entry(directory).or_insert_with(|| Own {
            runs: VecDeque::new(),
            used,
        });
        own.used = used;
        own
    }
}
