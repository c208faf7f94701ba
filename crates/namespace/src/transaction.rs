//! The records as one operation sees them: the view with the operation's own changes on top.

use crate::{
    Counters, Effects, Inode, Key, Missing, Need, Record, Stop, View, balance, counts,
    record::sound, view::Step,
};
use model::{
    CommitNumber, Error, ErrorKind, FileKind, FilesetId, InodeId, Operation, SessionId, Timestamp,
    operation::{Fresh, Stamp, Turn},
};
use std::{collections::BTreeMap, sync::Arc};

/// Up to this many changes are searched linearly; most operations make four.
const LINEAR: usize = 12;

/// Most answers of the view that are kept.
const SEEN_MAX: usize = 6;

/// One run of one operation.
pub(crate) struct Transaction<'a, V> {
    view: &'a V,
    pub(crate) now: Now,
    pub(crate) session: SessionId,
    /// The numbers of what the operation makes, if its client has chosen them.
    pub(crate) fresh: Option<Fresh>,
    pub(crate) commit: CommitNumber,
    /// In the order of first change, each key once.
    changes: Vec<(Key, Option<Record>)>,
    /// The values under the keys of `changes` before the operation.
    before: Vec<Option<Record>>,
    /// Index of each key in `changes`, once there are many.
    index: BTreeMap<Key, usize>,
    needs: Vec<Need>,
    /// The first answers of the view: an operation asks for the same few records repeatedly, and
    /// the view's lookup costs more than comparing keys.
    seen: Vec<(Key, Option<Record>)>,
}

impl<'a, V: View> Transaction<'a, V> {
    pub(crate) fn new(view: &'a V, stamp: &Stamp, commit: CommitNumber) -> Self {
        Self {
            view,
            now: Now {
                client: stamp.now,
                latest: stamp.latest,
            },
            session: stamp.session,
            fresh: match stamp.turn {
                Turn::Stream { fresh, .. } => Some(fresh),
                _ => None,
            },
            commit,
            changes: Vec::new(),
            before: Vec::new(),
            index: BTreeMap::new(),
            needs: Vec::new(),
            seen: Vec::with_capacity(SEEN_MAX),
        }
    }

    /// Ends an operation that wasn't refused: its changes must add up.
    ///
    /// # Errors
    /// `Corrupt` if, because of damaged records, it would write a record that can't be read again.
    pub(crate) fn finish(&mut self, operation: &Operation) -> Step<Effects> {
        let changes = std::mem::take(&mut self.changes);
        if !changes.is_empty() {
            balance::check(operation, &changes, &self.before);
        }
        for (key, record) in &changes {
            if let Some(why) = record.as_ref().and_then(|record| sound::fault(key, record)) {
                let text = format!("the record under {key:?} contradicts others: {why}");
                return Err(counts::damaged(text));
            }
        }
        Ok(Effects(changes))
    }

    pub(crate) fn is_held(&self, inode: InodeId) -> bool {
        self.view.is_held(inode)
    }

    pub(crate) fn first_number(&self, fileset: FilesetId) -> u64 {
        self.view.first_number(fileset)
    }

    // ---- asking: notes what is missing and continues, so that one round fetches everything ----

    /// Notes a need if the record is missing; else it is at hand for the operation.
    pub(crate) fn ask(&mut self, key: &Key) {
        let is_at_hand =
            self.position(key).is_some() || self.seen.iter().any(|(seen, _)| seen == key);
        if is_at_hand {
            return;
        }
        match self.view.get(key) {
            Ok(record) if self.seen.len() < SEEN_MAX => self.seen.push((key.clone(), record)),
            Ok(_) => {}
            Err(Missing) => self.needs.push(Need::Key(key.clone())),
        }
    }

    /// The record, or `None` after noting a need. Inner `None`: no such record exists.
    pub(crate) fn look(&mut self, key: &Key) -> Option<Option<Record>> {
        if let Some(at) = self.position(key) {
            return Some(self.changes[at].1.clone());
        }
        if let Some((_, record)) = self.seen.iter().find(|(seen, _)| seen == key) {
            return Some(record.clone());
        }
        let Ok(record) = self.view.get(key) else {
            self.needs.push(Need::Key(key.clone()));
            return None;
        };
        if self.seen.len() < SEEN_MAX {
            self.seen.push((key.clone(), record.clone()));
        }
        Some(record)
    }

    /// The first `limit` records of a range, including own changes, or `None` after noting a need.
    pub(crate) fn ask_range(
        &mut self,
        from: &Key,
        to: &Key,
        limit: usize,
    ) -> Option<Vec<(Key, Record)>> {
        let own = |(key, _): &&(Key, Option<Record>)| key >= from && key < to;
        let removed = self
            .changes
            .iter()
            .filter(own)
            .filter(|change| change.1.is_none())
            .count();
        let limit_of_view = limit + removed;
        let Ok(records) = self.view.range(from, to, limit_of_view) else {
            self.needs.push(Need::Range {
                from: from.clone(),
                to: to.clone(),
                limit: limit_of_view,
            });
            return None;
        };
        if !self.changes.iter().any(|change| own(&change)) {
            return Some(records);
        }
        // If the view's answer was full, nothing is known after its last record.
        let horizon = (records.len() == limit_of_view)
            .then(|| records.last().map(|(key, _)| key.clone()))
            .flatten();
        let mut merged: BTreeMap<Key, Record> = records.into_iter().collect();
        for (key, value) in self.changes.iter().filter(own) {
            if horizon.as_ref().is_some_and(|horizon| key > horizon) {
                continue;
            }
            match value {
                Some(record) => merged.insert(key.clone(), record.clone()),
                None => merged.remove(key),
            };
        }
        Some(merged.into_iter().take(limit).collect())
    }

    /// Asks for the records that every change of a file's content reads first.
    pub(crate) fn ask_change(&mut self, id: InodeId) {
        self.ask(&Key::Inode(id));
        self.ask(&Key::Counters(id.fileset()));
    }

    /// Like [`Transaction::look`], but doesn't note the need.
    pub(crate) fn known(&self, key: &Key) -> Option<Option<Record>> {
        match self.position(key) {
            Some(at) => Some(self.changes[at].1.clone()),
            None => self.view.get(key).ok(),
        }
    }

    /// Notes a need that the caller found itself.
    pub(crate) fn need(&mut self, need: Need) {
        self.needs.push(need);
    }

    /// Stops if any record asked for so far is missing.
    pub(crate) fn stop_if_missing(&mut self) -> Step<()> {
        if self.needs.is_empty() {
            Ok(())
        } else {
            Err(Stop::Missing(std::mem::take(&mut self.needs)))
        }
    }

    // ---- reading: stops at once if a record is missing ----

    pub(crate) fn get(&mut self, key: &Key) -> Step<Option<Record>> {
        match self.look(key) {
            Some(record) => Ok(record),
            None => Err(Stop::Missing(std::mem::take(&mut self.needs))),
        }
    }

    pub(crate) fn range(&mut self, from: &Key, to: &Key, limit: usize) -> Step<Vec<(Key, Record)>> {
        match self.ask_range(from, to, limit) {
            Some(records) => Ok(records),
            None => Err(Stop::Missing(std::mem::take(&mut self.needs))),
        }
    }

    /// An inode named by the caller; `Stale` if it is gone.
    pub(crate) fn inode(&mut self, id: InodeId) -> Step<Arc<Inode>> {
        match self.get(&Key::Inode(id))? {
            Some(Record::Inode(inode)) => Ok(inode),
            _ => Err(ErrorKind::Stale.into()),
        }
    }

    /// An inode that a name refers to: it must exist and have the name's kind.
    pub(crate) fn named(&mut self, id: InodeId, kind: FileKind) -> Step<Arc<Inode>> {
        let inode = self.child(id)?;
        if inode.kind != kind {
            let text = format!(
                "a name gives the type of inode {id} as {kind:?}, the inode as {:?}",
                inode.kind
            );
            return Err(counts::damaged(text));
        }
        Ok(inode)
    }

    /// An inode that a record refers to: it must exist.
    pub(crate) fn child(&mut self, id: InodeId) -> Step<Arc<Inode>> {
        match self.get(&Key::Inode(id))? {
            Some(Record::Inode(inode)) => Ok(inode),
            _ => Err(Error::new(
                ErrorKind::Corrupt,
                format!("a record names inode {id}, which doesn't exist"),
            )
            .into()),
        }
    }

    /// A directory named by the caller.
    pub(crate) fn directory(&mut self, id: InodeId) -> Step<Arc<Inode>> {
        let inode = self.inode(id)?;
        if inode.kind == FileKind::Directory {
            Ok(inode)
        } else {
            Err(ErrorKind::NotDirectory.into())
        }
    }

    /// A directory that can take new names; a removed one can't.
    pub(crate) fn living_directory(&mut self, id: InodeId) -> Step<Arc<Inode>> {
        let inode = self.directory(id)?;
        if inode.links == 0 {
            Err(ErrorKind::NotFound.into())
        } else {
            Ok(inode)
        }
    }

    /// A regular file named by the caller.
    pub(crate) fn file(&mut self, id: InodeId) -> Step<Arc<Inode>> {
        let inode = self.inode(id)?;
        match inode.kind {
            FileKind::File => Ok(inode),
            FileKind::Directory => Err(ErrorKind::IsDirectory.into()),
            _ => Err(ErrorKind::InvalidArgument.into()),
        }
    }

    // ---- changing ----

    /// Replaces a record that the operation has read.
    pub(crate) fn put(&mut self, key: Key, record: Record) {
        let before = self.value_before(&key);
        self.set(key, Some(record), before);
    }

    /// Removes a record that the operation has read.
    pub(crate) fn delete(&mut self, key: Key) {
        let before = self.value_before(&key);
        self.set(key, None, before);
    }

    /// Creates a record where the rules say that none exists.
    ///
    /// # Errors
    /// `Corrupt` if one exists: then another record is wrong.
    pub(crate) fn put_new(&mut self, key: Key, record: Record) -> Step<()> {
        if let Some(at) = self.position(&key) {
            assert!(
                self.changes[at].1.is_none(),
                "one operation creates each record once: {key:?}"
            );
        } else if let Ok(Some(_)) = self.view.get(&key) {
            return Err(counts::damaged(format!(
                "a record under {key:?} already exists, contradicting other records"
            )));
        }
        self.set(key, Some(record), None);
        Ok(())
    }

    /// Removes a record that the operation knows without having asked for its key: from a range, or
    /// because an inode implies it.
    pub(crate) fn delete_known(&mut self, key: Key, before: Record) {
        self.set(key, None, Some(before));
    }

    /// Removes a record whether or not it exists.
    pub(crate) fn forget(&mut self, key: Key) {
        self.set(key, None, None);
    }

    /// The view's record under a key that is about to change.
    fn value_before(&self, key: &Key) -> Option<Record> {
        if self.position(key).is_some() {
            // Noted at its first change.
            return None;
        }
        if let Some((_, record)) = self.seen.iter().find(|(seen, _)| seen == key) {
            return record.clone();
        }
        match self.view.get(key) {
            Ok(record) => record,
            Err(Missing) => panic!("an operation reads what it changes: {key:?}"),
        }
    }

    /// This run's only mutable copy of an inode; `Stale` if it is gone.
    pub(crate) fn inode_mut(&mut self, id: InodeId) -> Step<&mut Inode> {
        let key = Key::Inode(id);
        let at = match self.position(&key) {
            Some(at) => at,
            None => {
                let inode = Record::Inode(self.inode(id)?);
                self.set(key, Some(inode.clone()), Some(inode))
            }
        };
        match &mut self.changes[at].1 {
            Some(Record::Inode(inode)) => Ok(Arc::make_mut(inode)),
            _ => Err(ErrorKind::Stale.into()),
        }
    }

    /// This run's only mutable copy of a fileset's counters.
    pub(crate) fn counters_mut(&mut self, fileset: FilesetId) -> Step<&mut Counters> {
        let key = Key::Counters(fileset);
        let at = match self.position(&key) {
            Some(at) => at,
            None => match self.get(&key)? {
                Some(record) => self.set(key, Some(record.clone()), Some(record)),
                None => return Err(no_counters(fileset).into()),
            },
        };
        match &mut self.changes[at].1 {
            Some(Record::Counters(counters)) => Ok(Arc::make_mut(counters)),
            _ => Err(no_counters(fileset).into()),
        }
    }

    fn position(&self, key: &Key) -> Option<usize> {
        if self.changes.len() <= LINEAR {
            self.changes.iter().position(|(own, _)| own == key)
        } else {
            self.index.get(key).copied()
        }
    }

    /// Uses `before` only at the first change of a key.
    fn set(&mut self, key: Key, record: Option<Record>, before: Option<Record>) -> usize {
        if let Some(at) = self.position(&key) {
            self.changes[at].1 = record;
            return at;
        }
        let at = self.changes.len();
        if at == 0 {
            self.changes.reserve_exact(8);
            self.before.reserve_exact(8);
        }
        if at > LINEAR {
            self.index.insert(key.clone(), at);
        } else if at == LINEAR {
            self.index = self
                .changes
                .iter()
                .enumerate()
                .map(|(at, (key, _))| (key.clone(), at))
                .collect();
            self.index.insert(key.clone(), at);
        }
        self.changes.push((key, record));
        self.before.push(before);
        at
    }
}

fn no_counters(fileset: FilesetId) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("fileset {fileset} has no counters"),
    )
}

/// When an operation runs.
#[derive(Clone, Copy)]
pub(crate) struct Now {
    client: Timestamp,
    pub(crate) latest: Timestamp,
}

impl Now {
    /// The time of a change of an object that last changed then. Always later, also if a clock far
    /// ahead has dated that change: clients take the attributes with the later ctime for the newer
    /// ones.
    pub(crate) fn after(self, last_change: Timestamp) -> Timestamp {
        self.client.min(self.latest).after(last_change)
    }
}

/// Advances an inode's ctime and returns it.
pub(crate) fn touch(inode: &mut Inode, now: Now) -> Timestamp {
    inode.ctime = now.after(inode.ctime);
    inode.ctime
}

/// Like [`touch`], for a change of content: also sets mtime.
pub(crate) fn touch_content(inode: &mut Inode, now: Now) -> Timestamp {
    inode.mtime = touch(inode, now);
    inode.mtime
}
