//! A store in memory for running operations, used by all tests of the crate.

mod any_bytes;
mod balances;
mod buffers;
mod damage;
mod data;
mod format;
mod lifetimes;
mod model_tree;
mod numbers;
mod random;
mod renames;
mod rules;

use crate::{Key, Missing, Need, Outcome, Record, Stop, Table, View, apply, audit::Audit, genesis};
use bytes::Bytes;
use model::{
    Attributes, CommitNumber, DataId, ErrorKind, Extent, ExtentKind, FileKind, FileName, FilesetId,
    GroupId, InodeId, InodeNumber, Operation, Reply, Scheme, SegmentId, SegmentPlace, SessionId,
    SetAttributes, Timestamp,
    operation::{Fresh, NewInode, Publish, Rank, RenameMode, Stamp, Turn},
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub(super) const SESSION: SessionId = SessionId(5);
pub(super) const ROOT: InodeId = InodeId::ROOT;

/// Everything that a shard would hold, including open inodes.
#[derive(Clone)]
pub(super) struct Store {
    pub(super) records: BTreeMap<Key, Record>,
    pub(super) held: BTreeSet<InodeId>,
    pub(super) clock: i64,
    pub(super) commit: u64,
    /// Contents of the segments that tests have "written".
    pub(super) segments: BTreeMap<SegmentId, Vec<u8>>,
    pub(super) most_rounds: usize,
    /// The first number that the present owner gives.
    pub(super) first_number: u64,
}

impl View for Store {
    fn get(&self, key: &Key) -> Result<Option<Record>, Missing> {
        Ok(self.records.get(key).cloned())
    }

    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Record)>, Missing> {
        if from >= to {
            return Ok(Vec::new());
        }
        let found = self.records.range(from.clone()..to.clone()).take(limit);
        Ok(found
            .map(|(key, record)| (key.clone(), record.clone()))
            .collect())
    }

    fn is_held(&self, inode: InodeId) -> bool {
        self.held.contains(&inode)
    }

    fn first_number(&self, _: FilesetId) -> u64 {
        self.first_number
    }
}

/// A view that knows only fetched records.
struct Cold<'a> {
    store: &'a Store,
    keys: RefCell<BTreeSet<Key>>,
    ranges: RefCell<BTreeSet<(Key, Key, usize)>>,
}

impl View for Cold<'_> {
    fn get(&self, key: &Key) -> Result<Option<Record>, Missing> {
        if self.keys.borrow().contains(key) {
            self.store.get(key)
        } else {
            Err(Missing)
        }
    }

    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Record)>, Missing> {
        if self
            .ranges
            .borrow()
            .contains(&(from.clone(), to.clone(), limit))
        {
            self.store.range(from, to, limit)
        } else {
            Err(Missing)
        }
    }

    fn is_held(&self, inode: InodeId) -> bool {
        self.store.is_held(inode)
    }

    fn first_number(&self, fileset: FilesetId) -> u64 {
        self.store.first_number(fileset)
    }
}

impl Store {
    pub(super) fn new() -> Self {
        let effects = genesis(FilesetId(0), Timestamp(1_000), 0, 0, 0o755);
        let records = effects
            .0
            .into_iter()
            .map(|(key, record)| (key, record.unwrap()))
            .collect();
        Self {
            records,
            held: BTreeSet::new(),
            clock: 10_000,
            commit: 1,
            segments: BTreeMap::new(),
            most_rounds: 0,
            first_number: 0,
        }
    }

    pub(super) fn stamp(&mut self) -> Stamp {
        self.clock += 1_000;
        self.commit += 1;
        Stamp::own(Timestamp(self.clock), SESSION)
    }

    /// Makes the store's session open (`Some(false)`), ended, or unknown.
    pub(super) fn set_session(&mut self, ended: Option<bool>) {
        self.records.remove(&Key::Session(SESSION));
        if let Some(ended) = ended {
            let run = model::NodeRun {
                node: model::NodeId(1),
                incarnation: 1,
            };
            let of_owner = false;
            let record = Record::Session(Arc::new(crate::Session {
                run,
                of_owner,
                ended,
            }));
            self.records.insert(Key::Session(SESSION), record);
        }
    }

    /// Runs an operation twice, on all records and on fetched records only: both must agree. Then
    /// applies the effects.
    pub(super) fn run(&mut self, operation: &Operation) -> Result<Reply, ErrorKind> {
        let stamp = self.stamp();
        let result = apply(operation, &stamp, in_commit(self.commit), self);
        let cold = self.run_cold(operation, &stamp);
        assert_eq!(
            result, cold,
            "the result doesn't depend on what is cached: {operation:?}"
        );
        match result {
            Ok(outcome) => {
                let reply = self.take(outcome);
                assert!(operation.is_answered_by(&reply), "{operation:?}: {reply:?}");
                Ok(reply)
            }
            Err(Stop::Refused(error)) => {
                assert_ne!(error.kind(), ErrorKind::Corrupt, "{operation:?}: {error}");
                Err(error.kind())
            }
            Err(stop) => panic!("a full view misses nothing and there is no slot: {stop:?}"),
        }
    }

    pub(super) fn take(&mut self, outcome: Outcome) -> Reply {
        let mut keys = BTreeSet::new();
        for (key, record) in outcome.effects.0 {
            assert!(keys.insert(key.clone()), "{key:?} appears twice");
            let fault = record
                .as_ref()
                .and_then(|record| crate::record::sound::fault(&key, record));
            assert_eq!(fault, None, "records are valid after an operation: {key:?}");
            match record {
                Some(record) => self.records.insert(key, record),
                None => self.records.remove(&key),
            };
        }
        outcome.reply
    }

    fn run_cold(&mut self, operation: &Operation, stamp: &Stamp) -> Result<Outcome, Stop> {
        let cold = Cold {
            store: self,
            keys: RefCell::default(),
            ranges: RefCell::default(),
        };
        if self.commit.is_multiple_of(16) {
            // Some records are cached, others not.
            let lucky = |at: &usize| {
                (*at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 & self.commit != 0
            };
            let some = self.records.keys().enumerate().filter(|(at, _)| lucky(at));
            cold.keys
                .borrow_mut()
                .extend(some.map(|(_, key)| key.clone()));
        }
        let mut rounds = 0;
        let result = loop {
            let needs = match apply(operation, stamp, in_commit(self.commit), &cold) {
                Err(Stop::Missing(needs)) => needs,
                other => break other,
            };
            assert!(!needs.is_empty(), "a stop names what it needs");
            rounds += 1;
            let mut new = false;
            for need in needs {
                match need {
                    Need::Key(key) => new |= cold.keys.borrow_mut().insert(key),
                    Need::Range { from, to, limit } => {
                        for (key, _) in self.range(&from, &to, limit).unwrap() {
                            cold.keys.borrow_mut().insert(key);
                        }
                        new |= cold.ranges.borrow_mut().insert((from, to, limit));
                    }
                }
            }
            assert!(new, "requested a record that it has: {operation:?}");
        };
        let is_rename = matches!(operation, Operation::Rename { .. });
        // Renames of directories ask for ancestors one by one.
        assert!(
            rounds <= 4 || is_rename,
            "{rounds} rounds for {operation:?}"
        );
        self.most_rounds = self.most_rounds.max(rounds);
        result
    }

    /// Checks every promise between records now.
    pub(super) fn audit(&self) -> crate::audit::Report {
        let mut audit = Audit::new();
        for (key, record) in &self.records {
            audit.add_record(key, record);
        }
        let report = audit.finish();
        assert_eq!(report.findings, [], "the records contradict each other");
        report
    }

    pub(super) fn count(&self, table: Table) -> usize {
        let (from, to) = table.range();
        self.records.range(from..to).count()
    }

    // ---- shorthands ----

    pub(super) fn create(
        &mut self,
        directory: InodeId,
        name: &str,
        kind: FileKind,
    ) -> Result<Attributes, ErrorKind> {
        entry(self.run(&Operation::Create {
            directory,
            name: file_name(name),
            new: new_inode(kind),
        }))
    }

    pub(super) fn file(&mut self, name: &str) -> InodeId {
        self.file_in(ROOT, name)
    }

    pub(super) fn file_in(&mut self, directory: InodeId, name: &str) -> InodeId {
        self.create(directory, name, FileKind::File).unwrap().inode
    }

    pub(super) fn directory(&mut self, parent: InodeId, name: &str) -> InodeId {
        self.create(parent, name, FileKind::Directory)
            .unwrap()
            .inode
    }

    pub(super) fn lookup(
        &mut self,
        directory: InodeId,
        name: &str,
    ) -> Result<Attributes, ErrorKind> {
        entry(self.run(&Operation::Lookup {
            directory,
            name: file_name(name),
        }))
    }

    pub(super) fn link(
        &mut self,
        inode: InodeId,
        directory: InodeId,
        name: &str,
    ) -> Result<Attributes, ErrorKind> {
        entry(self.run(&Operation::Link {
            inode,
            directory,
            name: file_name(name),
        }))
    }

    pub(super) fn unlink(&mut self, directory: InodeId, name: &str) -> Result<Reply, ErrorKind> {
        self.run(&Operation::Unlink {
            directory,
            name: file_name(name),
        })
    }

    pub(super) fn rmdir(&mut self, directory: InodeId, name: &str) -> Result<Reply, ErrorKind> {
        self.run(&Operation::RemoveDirectory {
            directory,
            name: file_name(name),
        })
    }

    pub(super) fn rename(
        &mut self,
        from: (InodeId, &str),
        to: (InodeId, &str),
        mode: RenameMode,
    ) -> Result<Reply, ErrorKind> {
        self.run(&Operation::Rename {
            from_directory: from.0,
            from_name: file_name(from.1),
            to_directory: to.0,
            to_name: file_name(to.1),
            mode,
        })
    }

    pub(super) fn attributes(&mut self, inode: InodeId) -> Result<Attributes, ErrorKind> {
        match self.run(&Operation::GetAttributes { inode })? {
            Reply::Attributes { attributes, .. } => Ok(attributes),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn set(
        &mut self,
        inode: InodeId,
        set: SetAttributes,
    ) -> Result<(Attributes, bool), ErrorKind> {
        attributes(self.run(&Operation::SetAttributes { inode, set }))
    }

    pub(super) fn truncate(
        &mut self,
        inode: InodeId,
        size: u64,
    ) -> Result<(Attributes, bool), ErrorKind> {
        self.set(
            inode,
            SetAttributes {
                size: Some(size),
                ..SetAttributes::default()
            },
        )
    }

    /// "Writes" a segment with these bytes.
    pub(super) fn segment(&mut self, bytes: &[u8]) -> SegmentPlace {
        let segment = SegmentId {
            session: SESSION,
            counter: self.segments.len() as u64 + 1,
        };
        self.segments.insert(segment, bytes.to_vec());
        place(segment, bytes.len() as u32)
    }

    pub(super) fn publish(
        &mut self,
        inode: InodeId,
        extents: Vec<Extent>,
        size_at_least: u64,
    ) -> Result<(Attributes, bool), ErrorKind> {
        let publish = Publish {
            inode,
            extents,
            size_at_least,
            written: None,
            replaces: None,
        };
        attributes(self.run(&Operation::Publish(publish)))
    }

    /// Publishes bytes through a segment.
    pub(super) fn write(
        &mut self,
        inode: InodeId,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Attributes, ErrorKind> {
        let place = self.segment(bytes);
        let extent = data(offset, bytes.len() as u64, place, 0);
        Ok(self
            .publish(inode, vec![extent], offset + bytes.len() as u64)?
            .0)
    }

    /// Publishes bytes inline.
    pub(super) fn write_inline(
        &mut self,
        inode: InodeId,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Attributes, ErrorKind> {
        Ok(self
            .publish(
                inode,
                vec![inline(offset, bytes)],
                offset + bytes.len() as u64,
            )?
            .0)
    }

    pub(super) fn extents(&mut self, inode: InodeId) -> Vec<Extent> {
        let (mut all, mut offset) = (Vec::new(), 0);
        while offset < u64::MAX >> 1 {
            let length = u64::MAX >> 1;
            let reply = self.run(&Operation::ReadExtents {
                inode,
                offset,
                length,
                limit: 3,
            });
            let Ok(Reply::Extents {
                extents, known_to, ..
            }) = reply
            else {
                panic!("{reply:?}")
            };
            assert!(extents.len() <= 3 && known_to > offset);
            all.extend(extents);
            offset = known_to;
        }
        all
    }

    /// The bytes that a reader sees, including the segments' contents.
    pub(super) fn content(&mut self, inode: InodeId) -> Vec<u8> {
        let size = usize::try_from(self.attributes(inode).unwrap().size).unwrap();
        let mut content = vec![0; size];
        for extent in self
            .extents(inode)
            .iter()
            .filter_map(|extent| extent.clip(0, size as u64))
        {
            let range = extent.offset as usize..extent.end() as usize;
            match &extent.kind {
                ExtentKind::Data { place, at, .. } => {
                    let at = *at as usize;
                    content[range.clone()]
                        .copy_from_slice(&self.segments[&place.segment][at..at + range.len()]);
                }
                ExtentKind::Inline(bytes) => content[range].copy_from_slice(bytes),
                ExtentKind::Reserved => {}
            }
        }
        content
    }

    /// Runs all background work that the records ask for, except folds.
    pub(super) fn background(&mut self) {
        let keys = |store: &Store, table: Table| -> Vec<Key> {
            let (from, to) = table.range();
            store
                .records
                .range(from..to)
                .map(|(key, _)| key.clone())
                .collect()
        };
        for key in keys(self, Table::Reclaims) {
            let Key::Reclaim { fileset, data } = key else {
                continue;
            };
            while self.run(&Operation::Reclaim { fileset, data })
                == Ok(Reply::Progress { more: true })
            {
                self.audit();
            }
        }
        for key in keys(self, Table::Cuts) {
            let Key::Cut(inode) = key else { continue };
            while attributes(self.run(&Operation::ContinueCut { inode }))
                .unwrap()
                .1
            {
                self.audit();
            }
        }
        let segments = keys(self, Table::Deads)
            .into_iter()
            .filter_map(|key| match key {
                Key::Dead(segment) => Some(segment),
                _ => None,
            });
        let segments = segments.collect();
        self.run(&Operation::ForgetDead { segments }).unwrap();
    }
}

pub(super) fn entry(reply: Result<Reply, ErrorKind>) -> Result<Attributes, ErrorKind> {
    match reply? {
        Reply::Entry { attributes, .. } => Ok(attributes),
        other => panic!("{other:?}"),
    }
}

pub(super) fn attributes(reply: Result<Reply, ErrorKind>) -> Result<(Attributes, bool), ErrorKind> {
    match reply? {
        Reply::Attributes {
            attributes,
            unfinished,
        } => Ok((attributes, unfinished)),
        other => panic!("{other:?}"),
    }
}

pub(super) fn file_name(name: &str) -> FileName {
    FileName::new(name.as_bytes()).unwrap()
}

pub(super) fn new_inode(kind: FileKind) -> NewInode {
    let target = if kind == FileKind::Symlink {
        Bytes::from_static(b"there")
    } else {
        Bytes::new()
    };
    NewInode {
        kind,
        mode: 0o644,
        uid: 10,
        gid: 20,
        umask: 0,
        rdev: 0,
        target,
    }
}

/// Where the first change of a commit is.
pub(super) fn in_commit(commit: u64) -> Rank {
    let commit = CommitNumber(commit);
    Rank {
        commit,
        ..Rank::default()
    }
    .next()
}

pub(super) fn place(segment: SegmentId, length: u32) -> SegmentPlace {
    SegmentPlace {
        segment,
        group: GroupId(3),
        scheme: Scheme::Erasure { k: 4, m: 2 },
        skipped_slots: 0,
        missing: 0,
        length,
        crc: 0xdead_beef,
    }
}

pub(super) fn data(offset: u64, length: u64, place: SegmentPlace, at: u32) -> Extent {
    Extent {
        offset,
        length,
        kind: ExtentKind::Data {
            place,
            at,
            codec: 0,
            key_id: 0,
        },
        birth: CommitNumber(0),
    }
}

pub(super) fn inline(offset: u64, bytes: &[u8]) -> Extent {
    let kind = ExtentKind::Inline(Bytes::copy_from_slice(bytes));
    Extent {
        offset,
        length: bytes.len() as u64,
        kind,
        birth: CommitNumber(0),
    }
}
