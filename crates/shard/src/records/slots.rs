//! The table of hot records, what is known beyond it, and what may be forgotten.

use model::{CommitNumber, DataId, FileKind, FilesetId, InodeId, SegmentId, SessionId};
use namespace::{Effects, Key, Missing, Record, View};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use world::{Map, Set};

/// What a slot costs beside its record: key three times (table, order, clock) and the nodes.
const SLOT_BYTES: usize = 320;
/// Slots that one call looks at when it makes room.
const EVICTION_STEPS_MAX: usize = 16;

/// One record, or the knowledge that there is none.
struct Slot {
    value: Option<Record>,
    /// The commit that changed it last; 0: as it is in the tree.
    changed: CommitNumber,
    /// There was none before the open commit: created and removed in it, it leaves no trace.
    fresh: bool,
    /// Used since the clock's hand passed.
    referenced: Cell<bool>,
}

/// Keys of which all records may be known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Prefix {
    Names(InodeId),
    Extents(FilesetId, DataId),
    Xattrs(InodeId),
}

impl Prefix {
    fn of(key: &Key) -> Option<Prefix> {
        Some(match key {
            Key::Name { directory, .. } => Self::Names(*directory),
            Key::Extent { fileset, data, .. } => Self::Extents(*fileset, *data),
            Key::Xattr { inode, .. } => Self::Xattrs(*inode),
            _ => return None,
        })
    }

    /// First key (inclusive) and end (exclusive).
    fn range(self) -> (Key, Key) {
        match self {
            Self::Names(directory) => (
                Key::Name {
                    directory,
                    position: 0,
                },
                Key::Name {
                    directory: InodeId(directory.0 + 1),
                    position: 0,
                },
            ),
            Self::Extents(fileset, data) => (
                Key::Extent {
                    fileset,
                    data,
                    end: 0,
                },
                Key::Extent {
                    fileset,
                    data: DataId(data.0.saturating_add(1)),
                    end: 0,
                },
            ),
            Self::Xattrs(inode) => (
                Key::Xattr {
                    inode,
                    name: Box::default(),
                },
                Key::Xattr {
                    inode: InodeId(inode.0 + 1),
                    name: Box::default(),
                },
            ),
        }
    }
}

/// A range of which all records are in the table: from (inclusive), to (exclusive).
pub(crate) type Interval = (Key, Key);

/// A fetch from the tree that is going on: what it may have missed must stay in memory.
struct Pin {
    /// The newest commit that was in the tree when it began.
    applied: CommitNumber,
    /// What it has proven so far.
    intervals: Vec<Interval>,
}

/// The table.
pub(crate) struct Records {
    slots: Map<Key, Slot>,
    order: BTreeSet<Key>,
    complete: Set<Prefix>,
    /// All orphans are in the table: every last close asks for one.
    orphans_complete: bool,
    /// Sessions that began under this owner: their segments above the number are all here.
    segment_floors: Map<SessionId, u64>,
    /// Every key of the table once, next candidate for eviction first.
    clock: VecDeque<Key>,
    pins: BTreeMap<u64, Pin>,
    next_pin: u64,
    bytes: usize,
    budget: usize,
    /// The commit that changes go into.
    open: CommitNumber,
    /// The newest commit in the tree.
    applied: CommitNumber,
    /// Keys changed in the open commit, each once.
    changed: Vec<Key>,
    changed_bytes: usize,
}

/// The records as an operation sees them.
pub(crate) struct HotView<'a> {
    records: &'a Records,
    held: &'a dyn Fn(InodeId) -> bool,
    shown: Cell<CommitNumber>,
}

impl Records {
    /// Nothing in memory; everything up to `applied` is in the tree.
    pub(crate) fn new(budget: usize, applied: CommitNumber) -> Self {
        Self {
            slots: Map::default(),
            order: BTreeSet::new(),
            complete: Set::default(),
            orphans_complete: false,
            segment_floors: Map::default(),
            clock: VecDeque::new(),
            pins: BTreeMap::new(),
            next_pin: 0,
            bytes: 0,
            budget,
            open: applied.next(),
            applied,
            changed: Vec::new(),
            changed_bytes: 0,
        }
    }

    /// The commit that changes go into now.
    pub(crate) fn open_commit(&self) -> CommitNumber {
        self.open
    }

    /// Keys and bytes changed in the open commit.
    pub(crate) fn changed(&self) -> (usize, usize) {
        (self.changed.len(), self.changed_bytes)
    }

    /// Records in the table and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.slots.len(), self.bytes)
    }

    /// What an operation sees.
    pub(crate) fn view<'a>(&'a self, held: &'a dyn Fn(InodeId) -> bool) -> HotView<'a> {
        HotView {
            records: self,
            held,
            shown: Cell::new(CommitNumber(0)),
        }
    }

    /// The record under a key, if it is known.
    pub(crate) fn get(&self, key: &Key) -> Option<Option<Record>> {
        match self.slots.get(key) {
            Some(slot) => {
                slot.referenced.set(true);
                Some(slot.value.clone())
            }
            None => self.is_known_absent(key).then_some(None),
        }
    }

    /// The session began under this owner, so no segment of it is in the tree.
    pub(crate) fn session_began(&mut self, session: SessionId) {
        self.segment_floors.entry(session).or_insert(0);
    }

    /// Every orphan of the tree was offered.
    pub(crate) fn orphans_offered(&mut self) {
        self.orphans_complete = true;
    }

    /// The session ended; nothing is published for it any more.
    pub(crate) fn session_ended(&mut self, session: SessionId) {
        self.segment_floors.remove(&session);
    }

    /// Puts an operation's effects into the open commit.
    pub(crate) fn apply(&mut self, effects: Effects) {
        let Effects(effects) = effects;
        let reclaims = effects
            .iter()
            .any(|(key, value)| matches!(key, Key::Reclaim { .. }) && value.is_some());
        for (key, value) in effects {
            self.put(key, value, reclaims);
        }
    }

    /// Puts rows that an earlier owner had not made durable into the open commit. Nothing is
    /// concluded from them: they are what is left of operations, not operations.
    pub(crate) fn restore(&mut self, rows: &[(Key, Option<Record>)]) {
        let open = self.open;
        for (key, value) in rows {
            if let Some(slot) = self.slots.remove(key) {
                self.bytes -= SLOT_BYTES + slot.value.as_ref().map_or(0, Record::weight);
                self.order.remove(key);
                self.clock.retain(|other| other != key);
                if slot.changed == open {
                    self.changed.retain(|other| other != key);
                }
            }
            self.changed.push(key.clone());
            self.changed_bytes += SLOT_BYTES / 2 + value.as_ref().map_or(0, Record::weight);
            let slot = Slot {
                value: value.clone(),
                changed: open,
                fresh: false,
                referenced: Cell::new(true),
            };
            self.insert(key.clone(), slot);
        }
    }

    /// Changes one record in the open commit. `reclaims`: the same operation queues what hangs
    /// under a removed inode, so what is known of it stays useful.
    fn put(&mut self, key: Key, value: Option<Record>, reclaims: bool) {
        let weight = value.as_ref().map_or(0, Record::weight);
        let known_absent = self.is_known_absent(&key);
        let open = self.open;
        let before = self
            .slots
            .get(&key)
            .map(|slot| (slot.value.clone(), slot.changed));
        self.learn(
            &key,
            before.as_ref().and_then(|(value, _)| value.as_ref()),
            value.as_ref(),
            reclaims,
        );
        match self.slots.get_mut(&key) {
            Some(slot) => {
                let old = slot.value.as_ref().map_or(0, Record::weight);
                if slot.changed != open {
                    slot.fresh = slot.value.is_none();
                    slot.changed = open;
                    self.changed.push(key);
                    self.changed_bytes += SLOT_BYTES / 2 + weight;
                } else {
                    self.changed_bytes = self.changed_bytes.saturating_sub(old) + weight;
                }
                slot.value = value;
                self.bytes = self.bytes + weight - old;
            }
            None => {
                // An operation reads what it changes, so an inode that isn't here is a new one.
                let fresh = known_absent || matches!(key, Key::Inode(_));
                self.changed.push(key.clone());
                self.changed_bytes += SLOT_BYTES / 2 + weight;
                self.insert(
                    key,
                    Slot {
                        value,
                        changed: open,
                        fresh,
                        referenced: Cell::new(true),
                    },
                );
            }
        }
    }

    /// Ends the open commit and begins the next one: its number and rows, in the order in
    /// which they were first changed. What was created and removed in it isn't there.
    pub(crate) fn freeze(&mut self) -> (CommitNumber, Vec<(Key, Option<Record>)>) {
        let number = self.open;
        self.open = number.next();
        self.changed_bytes = 0;
        let keys = std::mem::take(&mut self.changed);
        let mut rows = Vec::with_capacity(keys.len());
        for key in keys {
            let slot = self
                .slots
                .get(&key)
                .expect("a changed record stays in memory until it is in the tree");
            if slot.value.is_some() || !slot.fresh {
                rows.push((key, slot.value.clone()));
            }
        }
        (number, rows)
    }

    /// A frozen commit is in the tree.
    pub(crate) fn applied(&mut self, commit: CommitNumber) {
        self.applied = self.applied.max(commit);
        self.make_room();
    }

    /// The open commit gets at least this number.
    pub(crate) fn raise_open_commit(&mut self, at_least: CommitNumber) {
        assert!(
            self.changed.is_empty(),
            "numbers are raised before anything is changed"
        );
        self.open = self.open.max(at_least);
    }

    /// A fetch from the tree begins: nothing that it might miss is forgotten before it ends.
    pub(crate) fn pin(&mut self) -> u64 {
        let pin = self.next_pin;
        self.next_pin += 1;
        self.pins.insert(
            pin,
            Pin {
                applied: self.applied,
                intervals: Vec::new(),
            },
        );
        pin
    }

    /// The fetch has ended.
    pub(crate) fn unpin(&mut self, pin: u64) {
        self.pins.remove(&pin);
        self.make_room();
    }

    /// Takes in one record (or none) as the tree had it during a pinned fetch. What is here
    /// already is never older.
    pub(crate) fn offer(&mut self, key: Key, value: Option<Record>) {
        if !self.slots.contains_key(&key) {
            let slot = Slot {
                value,
                changed: CommitNumber(0),
                fresh: false,
                referenced: Cell::new(true),
            };
            self.insert(key, slot);
        }
    }

    /// All records of the interval were offered.
    pub(crate) fn offered_all(&mut self, pin: u64, interval: Interval) {
        if let Some(prefix) = Prefix::of(&interval.0) {
            let (first, end) = prefix.range();
            if interval.0 <= first && end <= interval.1 {
                self.complete.insert(prefix);
            }
        }
        if let Some(pin) = self.pins.get_mut(&pin) {
            pin.intervals.push(interval);
        }
    }

    /// Records in a range that the table knows, also removed ones.
    pub(crate) fn known_in<'a>(
        &'a self,
        from: &Key,
        to: &Key,
    ) -> impl Iterator<Item = (&'a Key, Option<&'a Record>)> + use<'a> {
        let keys = (from < to).then(|| self.order.range(from.clone()..to.clone()));
        keys.into_iter()
            .flatten()
            .map(|key| (key, self.slots[key].value.as_ref()))
    }

    fn is_known_absent(&self, key: &Key) -> bool {
        match key {
            Key::Segment(segment) | Key::Dead(segment) => {
                let floor = self.segment_floors.get(&segment.session);
                floor.is_some_and(|floor| segment.counter > *floor)
            }
            Key::Orphan(_) => self.orphans_complete,
            _ => Prefix::of(key).is_some_and(|prefix| self.complete.contains(&prefix)),
        }
    }

    /// Whether all records of a range are in the table.
    fn is_all_known(&self, from: &Key, to: &Key) -> bool {
        if let Some(prefix) = Prefix::of(from)
            && self.complete.contains(&prefix)
            && *to <= prefix.range().1
        {
            return true;
        }
        self.pins
            .values()
            .flat_map(|pin| &pin.intervals)
            .any(|(first, end)| first <= from && to <= end)
    }

    /// How far from `from` all records are in the table by a fetch that is going on.
    fn known_until(&self, from: &Key) -> Option<&Key> {
        let intervals = self.pins.values().flat_map(|pin| &pin.intervals);
        intervals
            .filter(|(first, end)| first <= from && from < end)
            .map(|(_, end)| end)
            .max()
    }

    /// What a changed inode tells about the records that hang under it.
    fn learn(
        &mut self,
        key: &Key,
        before: Option<&Record>,
        after: Option<&Record>,
        reclaims: bool,
    ) {
        match (key, before, after) {
            (Key::Inode(inode), None, Some(Record::Inode(new)))
                if !self.slots.contains_key(key) =>
            {
                self.complete.insert(Prefix::Xattrs(*inode));
                match new.kind {
                    FileKind::Directory => self.complete.insert(Prefix::Names(*inode)),
                    FileKind::File => self
                        .complete
                        .insert(Prefix::Extents(inode.fileset(), new.data)),
                    _ => false,
                };
            }
            (Key::Inode(inode), Some(Record::Inode(old)), Some(Record::Inode(new)))
                if old.data != new.data =>
            {
                self.complete
                    .insert(Prefix::Extents(inode.fileset(), new.data));
            }
            (Key::Inode(inode), Some(Record::Inode(old)), None) => {
                self.complete.remove(&Prefix::Names(*inode));
                if !reclaims {
                    self.complete.remove(&Prefix::Xattrs(*inode));
                    self.complete
                        .remove(&Prefix::Extents(inode.fileset(), old.data));
                }
            }
            (Key::Reclaim { fileset, data }, Some(Record::Reclaim(old)), None) => {
                self.complete.remove(&Prefix::Extents(*fileset, *data));
                if old.xattrs {
                    self.complete
                        .remove(&Prefix::Xattrs(InodeId::new(*fileset, old.inode)));
                }
            }
            _ => {}
        }
    }

    fn insert(&mut self, key: Key, slot: Slot) {
        self.bytes += SLOT_BYTES + slot.value.as_ref().map_or(0, Record::weight);
        self.order.insert(key.clone());
        self.clock.push_back(key.clone());
        self.slots.insert(key, slot);
    }

    /// Forgets what the tree has, least recently used first (second chance), until the budget
    /// is kept. Bounded, so that no operation pays for many.
    pub(crate) fn make_room(&mut self) {
        let mut steps = 0;
        while self.bytes > self.budget && steps < EVICTION_STEPS_MAX {
            steps += 1;
            let Some(key) = self.clock.pop_front() else {
                return;
            };
            let slot = &self.slots[&key];
            if slot.referenced.replace(false) || !self.is_forgettable(&key, slot.changed) {
                self.clock.push_back(key);
                continue;
            }
            self.forget(&key);
        }
    }

    fn is_forgettable(&self, key: &Key, changed: CommitNumber) -> bool {
        changed <= self.applied
            && self.pins.values().all(|pin| {
                changed <= pin.applied
                    && !pin
                        .intervals
                        .iter()
                        .any(|(first, end)| first <= key && key < end)
            })
    }

    fn forget(&mut self, key: &Key) {
        let slot = self
            .slots
            .remove(key)
            .expect("every key of the clock is in the table");
        self.order.remove(key);
        self.bytes -= SLOT_BYTES + slot.value.as_ref().map_or(0, Record::weight);
        match (key, &slot.value) {
            // Absent stays absent: the rest of what is known doesn't depend on it.
            (_, None) => {}
            (Key::Inode(inode), Some(Record::Inode(record))) => {
                self.complete.remove(&Prefix::Names(*inode));
                self.complete.remove(&Prefix::Xattrs(*inode));
                self.complete
                    .remove(&Prefix::Extents(inode.fileset(), record.data));
            }
            (Key::Segment(segment) | Key::Dead(segment), Some(_)) => {
                if let Some(floor) = self.segment_floors.get_mut(&segment.session) {
                    *floor = (*floor).max(segment.counter);
                }
            }
            (Key::Orphan(_), Some(_)) => self.orphans_complete = false,
            _ => {
                if let Some(prefix) = Prefix::of(key) {
                    self.complete.remove(&prefix);
                }
            }
        }
    }
}

impl HotView<'_> {
    /// The newest commit that any answer of this view showed.
    pub(crate) fn shown(&self) -> CommitNumber {
        self.shown.get()
    }

    fn show(&self, slot: &Slot) {
        if slot.changed > self.shown.get() {
            self.shown.set(slot.changed);
        }
    }
}

impl View for HotView<'_> {
    fn get(&self, key: &Key) -> Result<Option<Record>, Missing> {
        match self.records.slots.get(key) {
            Some(slot) => {
                slot.referenced.set(true);
                self.show(slot);
                Ok(slot.value.clone())
            }
            None if self.records.is_known_absent(key) => Ok(None),
            None => Err(Missing),
        }
    }

    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Record)>, Missing> {
        if from >= to || limit == 0 {
            return Ok(Vec::new());
        }
        let all = self.records.is_all_known(from, to);
        let end = if all {
            to
        } else {
            self.records.known_until(from).ok_or(Missing)?
        };
        let mut out = Vec::new();
        for key in self.records.order.range(from.clone()..end.clone()) {
            let slot = &self.records.slots[key];
            slot.referenced.set(true);
            self.show(slot);
            if let Some(value) = &slot.value {
                out.push((key.clone(), value.clone()));
                if out.len() == limit {
                    return Ok(out);
                }
            }
        }
        if all { Ok(out) } else { Err(Missing) }
    }

    fn is_held(&self, inode: InodeId) -> bool {
        (self.held)(inode)
    }
}

/// The lowest key behind `key` that can exist: where a scan goes on.
#[must_use]
pub fn successor(key: &Key) -> Key {
    let inode = |inode: &InodeId| InodeId(inode.0 + 1);
    let segment = |id: &SegmentId| SegmentId {
        session: id.session,
        counter: id.counter.saturating_add(1),
    };
    match key {
        Key::Fileset(fileset) => Key::Fileset(FilesetId(fileset.0 + 1)),
        Key::Counters(fileset) => Key::Counters(FilesetId(fileset.0 + 1)),
        Key::Inode(number) => Key::Inode(inode(number)),
        Key::Name {
            directory,
            position,
        } => Key::Name {
            directory: *directory,
            position: position.saturating_add(1),
        },
        Key::Extent { fileset, data, end } => Key::Extent {
            fileset: *fileset,
            data: *data,
            end: end.saturating_add(1),
        },
        Key::Xattr { inode, name } => {
            let mut name = name.to_vec();
            name.push(0);
            Key::Xattr {
                inode: *inode,
                name: name.into(),
            }
        }
        Key::Segment(id) => Key::Segment(segment(id)),
        Key::Dead(id) => Key::Dead(segment(id)),
        Key::Orphan(number) => Key::Orphan(inode(number)),
        Key::Reclaim { fileset, data } => Key::Reclaim {
            fileset: *fileset,
            data: DataId(data.0.saturating_add(1)),
        },
        Key::Fold(number) => Key::Fold(inode(number)),
        Key::Cut(number) => Key::Cut(inode(number)),
        Key::Slot { session, slot } => match slot.checked_add(1) {
            Some(slot) => Key::Slot {
                session: *session,
                slot,
            },
            None => Key::Slot {
                session: session.next(),
                slot: 0,
            },
        },
        Key::Stream(session) => Key::Stream(session.next()),
    }
}
