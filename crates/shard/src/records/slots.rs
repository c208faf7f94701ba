//! The table of hot records: which ranges are complete, and which records may be evicted.

use super::absent::{Absent, NOTED_MIN};
use super::known::{Known, Line};
use super::order::Place;
use super::table::{Complete, Slot, SlotTable, weight};
use super::work::NewWork;
use crate::memory::Share;
use crate::numbers::Numbers;
use model::{
    CommitNumber, DataId, FileKind, FilesetId, InodeId, InodeNumber, SegmentId, SessionId,
};
use namespace::{Effects, Key, Missing, Record, View};
use std::cell::Cell;
use std::collections::BTreeMap;
use world::{Map, Set};

/// Slots examined per call when making room, if no records were added.
const EVICTION_STEPS_MAX: usize = 16;
/// Slots examined per added record, so that the hand passes a table full of marks before the free
/// part of the budget is used up: the first visit only clears a mark.
const EVICTION_STEPS_PER_RECORD: usize = 3 * FREE_PART / 2;
/// Eviction starts when less than this fraction of the budget is free.
const FREE_PART: usize = 8;
/// Most slots examined by one call; the rest is left to later calls.
const EVICTION_STEPS_AT_ONCE: usize = 8192;
/// Bytes of a row besides its value, in the log and in the tree's memory.
const ROW_BYTES: usize = 160;

/// A range of keys whose records may be completely in memory.
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

    /// Data that an inode got after its creation: no inode's slot covers it.
    fn later_data(self) -> Option<(FilesetId, DataId)> {
        match self {
            Self::Extents(fileset, data) if data.0 >> InodeId::NUMBER_BITS != 0 => {
                Some((fileset, data))
            }
            _ => None,
        }
    }

    /// The inode whose slot says whether the prefix is complete; not for later data.
    fn inode(self) -> InodeId {
        match self {
            Self::Names(inode) | Self::Xattrs(inode) => inode,
            Self::Extents(fileset, data) => InodeId::new(fileset, InodeNumber(data.0)),
        }
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
                    // No inode has the last number.
                    directory: InodeId(directory.0.saturating_add(1)),
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
                    inode: InodeId(inode.0.saturating_add(1)),
                    name: Box::default(),
                },
            ),
        }
    }
}

/// A range whose records are all in the table: from (inclusive), to (exclusive).
pub(crate) type Interval = (Key, Key);

/// A running fetch from the tree: records that it may read stale must stay in memory.
struct Pin {
    /// The newest commit in the tree when it began.
    applied: CommitNumber,
    /// Ranges that it has completed so far.
    intervals: Vec<Interval>,
}

/// The table.
pub(crate) struct Records {
    table: SlotTable,
    /// Data ids whose extents are all in the table, except those that inodes were created with:
    /// their slots say it.
    complete_data: Set<(FilesetId, DataId)>,
    /// All orphans are in the table: every last close looks for one.
    orphans_complete: bool,
    /// Sessions that began under this owner: all their segments above the number are in the table.
    segment_floors: Map<SessionId, u64>,
    pins: BTreeMap<u64, Pin>,
    next_pin: u64,
    /// Its part of the memory.
    share: Share,
    /// Slots to examine because records were added: callers that add records pay for their room.
    owed_steps: usize,
    /// Ranges of extents known to be removed.
    absent: Absent,
    /// Parts of files whose extents are all in the table.
    known: Known,
    /// Background work found in changes.
    work: NewWork,
    /// The commit that changes go into.
    open: CommitNumber,
    /// The newest commit in the tree.
    applied: CommitNumber,
    /// Records changed in the open commit, each once.
    changed: Vec<Place>,
    changed_bytes: usize,
}

/// The records as an operation sees them.
pub(crate) struct HotView<'a> {
    records: &'a Records,
    held: &'a dyn Fn(InodeId) -> bool,
    numbers: Option<&'a Numbers>,
    shown: Cell<CommitNumber>,
}

impl Records {
    /// Nothing in memory; everything up to `applied` is in the tree.
    pub(crate) fn new(share: Share, applied: CommitNumber) -> Self {
        Self {
            table: SlotTable::default(),
            complete_data: Set::default(),
            orphans_complete: false,
            segment_floors: Map::default(),
            pins: BTreeMap::new(),
            next_pin: 0,
            share,
            owed_steps: 0,
            absent: Absent::default(),
            known: Known::default(),
            work: NewWork::default(),
            open: applied.next(),
            applied,
            changed: Vec::new(),
            changed_bytes: 0,
        }
    }

    /// Still empty, with hashes that can't be predicted without the seed.
    pub(crate) fn with_seed(self, seed: u64) -> Self {
        assert!(self.table.len() == 0, "a seed comes before the records");
        Self {
            table: SlotTable::seeded(seed),
            ..self
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
        (self.table.len(), self.bytes())
    }

    /// The records as an operation sees them.
    pub(crate) fn view<'a>(&'a self, held: &'a dyn Fn(InodeId) -> bool) -> HotView<'a> {
        HotView {
            records: self,
            held,
            numbers: None,
            shown: Cell::new(CommitNumber(0)),
        }
    }

    /// The record of a key, if known; `Some(None)`: known to be absent.
    pub(crate) fn get(&self, key: &Key) -> Option<Option<Record>> {
        match self.table.get(key) {
            Some(slot) => {
                slot.referenced.set(true);
                Some(slot.value.clone())
            }
            None => self.is_known_absent(key).then_some(None),
        }
    }

    /// A session began under this owner, so the tree has no segments of it.
    pub(crate) fn session_began(&mut self, session: SessionId) {
        self.segment_floors.entry(session).or_insert(0);
    }

    /// All orphans of the tree were offered.
    pub(crate) fn orphans_offered(&mut self) {
        self.orphans_complete = true;
    }

    /// The session ended and publishes nothing more.
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

    /// Puts rows that an earlier owner had not made durable into the open commit. They are results
    /// of operations, not operations, so nothing is inferred from them.
    pub(crate) fn restore(&mut self, rows: &[(Key, Option<Record>)]) {
        for (key, value) in rows {
            if value.is_some() {
                self.absent.put(key);
            }
            let after = weight(value.as_ref());
            match self.table.find(key) {
                Some(place) => {
                    self.table.replace(place, value.clone());
                    self.table.slot_mut(place).complete = Complete::default();
                    self.note_change(place, false, after, 0);
                }
                None => self.insert_changed(key.clone(), value.clone(), false),
            }
        }
    }

    /// Changes one record in the open commit. `reclaims`: the same operation queues the records
    /// under a removed inode, so their completeness stays known.
    fn put(&mut self, key: Key, value: Option<Record>, reclaims: bool) {
        self.work.note(&key, value.as_ref());
        if value.is_some() {
            self.absent.put(&key);
        }
        let Some(place) = self.table.find(&key) else {
            // Operations read records before changing them, so an unknown inode is a new one.
            let fresh = matches!(key, Key::Inode(_)) || self.is_known_absent(&key);
            self.insert_changed(key, value, fresh);
            return;
        };
        let after = weight(value.as_ref());
        let before = self.table.replace(place, value);
        let was_absent = before.is_none();
        self.note_change(place, was_absent, after, weight(before.as_ref()));
        if let Some(before) = before {
            self.learn(place, &before, reclaims);
        }
    }

    /// Counts a change of a record in the open commit, with its weights after and before.
    fn note_change(&mut self, place: Place, was_absent: bool, weight: usize, old: usize) {
        let open = self.open;
        let slot = self.table.slot_mut(place);
        if slot.changed == open {
            let others = self.changed_bytes.checked_sub(old);
            self.changed_bytes = others.expect("a changed record is counted") + weight;
        } else {
            slot.fresh = was_absent;
            slot.changed = open;
            self.changed.push(place);
            self.changed_bytes += ROW_BYTES + weight;
        }
    }

    /// Inserts a changed record that the table didn't have.
    fn insert_changed(&mut self, key: Key, value: Option<Record>, fresh: bool) {
        self.changed_bytes += ROW_BYTES + weight(value.as_ref());
        let complete = match (&key, &value) {
            // A new inode can have no records elsewhere.
            (Key::Inode(inode), Some(Record::Inode(new))) if fresh => Complete {
                names: new.kind == FileKind::Directory,
                xattrs: true,
                extents: new.data.0 == inode.number().0,
            },
            _ => Complete::default(),
        };
        self.owed_steps += EVICTION_STEPS_PER_RECORD;
        let place = self.table.insert(Slot {
            key,
            value,
            changed: self.open,
            fresh,
            referenced: Cell::new(true),
            complete,
        });
        self.changed.push(place);
    }

    /// Closes the open commit and opens the next one. Returns its number and rows, in the order of
    /// their first change. Records created and removed in it are left out.
    pub(crate) fn freeze(&mut self) -> (CommitNumber, Vec<(Key, Option<Record>)>) {
        let number = self.open;
        self.open = number.next();
        self.changed_bytes = 0;
        let places = std::mem::take(&mut self.changed);
        let mut rows = Vec::with_capacity(places.len());
        for place in places {
            // A changed record stays in memory until it is in the tree.
            let slot = self.table.slot(place);
            if slot.value.is_some() || !slot.fresh {
                rows.push((slot.key.clone(), slot.value.clone()));
            }
        }
        (number, rows)
    }

    /// A frozen commit is in the tree.
    pub(crate) fn applied(&mut self, commit: CommitNumber) {
        self.applied = self.applied.max(commit);
        self.make_room();
    }

    /// Raises the open commit's number to at least this.
    pub(crate) fn raise_open_commit(&mut self, at_least: CommitNumber) {
        assert!(
            self.changed.is_empty(),
            "numbers are raised before anything is changed"
        );
        self.open = self.open.max(at_least);
    }

    /// A fetch from the tree begins: until it ends, nothing newer than its read is evicted.
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

    /// Adds one record (or its absence) read from the tree during a pinned fetch. A record already
    /// in the table is at least as new.
    pub(crate) fn offer(&mut self, key: Key, value: Option<Record>) {
        self.take_in(key, value, true);
    }

    /// As [`Records::offer`], for a record that no operation has asked for yet: it is forgotten
    /// before used ones.
    pub(crate) fn offer_ahead(&mut self, key: Key, value: Record) {
        self.take_in(key, Some(value), false);
    }

    fn take_in(&mut self, key: Key, value: Option<Record>, referenced: bool) {
        if let Some(place) = self.table.find(&key) {
            // Wanted by its key now, if a listing brought it: that listing must not forget it.
            let slot = self.table.slot(place);
            slot.referenced.set(slot.referenced.get() || referenced);
        } else {
            self.owed_steps += EVICTION_STEPS_PER_RECORD;
            self.table.insert(Slot {
                key,
                value,
                changed: CommitNumber(0),
                fresh: false,
                referenced: Cell::new(referenced),
                complete: Complete::default(),
            });
        }
    }

    /// All records of the interval were offered.
    pub(crate) fn offered_all(&mut self, pin: u64, interval: Interval) {
        if let Some(prefix) = Prefix::of(&interval.0) {
            let (first, end) = prefix.range();
            if interval.0 <= first && end <= interval.1 {
                self.set_complete(prefix, true);
            }
        }
        self.known.note(&interval.0, &interval.1);
        if let Some(pin) = self.pins.get_mut(&pin) {
            match pin.intervals.last_mut() {
                Some(last) if last.1 == interval.0 => last.1 = interval.1,
                _ => pin.intervals.push(interval),
            }
        }
    }

    /// Whether names that were only listed may stay in memory.
    pub(crate) fn has_room_for_names(&self) -> bool {
        self.bytes() <= self.wanted() / 4 * 3
    }

    /// If memory is short, forgets names that this fetch only listed: otherwise a listing with more
    /// names than fit would push out its inodes, which its later pages need.
    pub(crate) fn forget_listed(&mut self, pin: u64) {
        if self.has_room_for_names() {
            return;
        }
        let Some(ended) = self.pins.remove(&pin) else {
            return;
        };
        for (from, to) in &ended.intervals {
            let slots = self.table.range(from, to).filter(|slot| {
                matches!(slot.key, Key::Name { .. })
                    && !slot.referenced.get()
                    && self.is_forgettable(&slot.key, slot.changed)
            });
            let keys: Vec<Key> = slots.map(|slot| slot.key.clone()).collect();
            for place in keys
                .iter()
                .filter_map(|key| self.table.find(key))
                .collect::<Vec<_>>()
            {
                self.forget(place);
            }
        }
    }

    /// The records' bytes, and those of what is known about ranges.
    fn bytes(&self) -> usize {
        self.table.bytes() + self.known.bytes()
    }

    /// The size down to which the table is shrunk.
    fn wanted(&self) -> usize {
        let limit = self.share.limit();
        limit - limit / FREE_PART
    }

    /// Whether a view can return the first `limit` records of a range. If not, returns the first
    /// unknown key, from which a fetch must continue.
    pub(crate) fn answers(&self, from: &Key, to: &Key, limit: usize) -> Result<(), Key> {
        if from >= to || limit == 0 || self.is_all_known(from, to) {
            return Ok(());
        }
        let Some(until) = self.known_until(from) else {
            return Err(from.clone());
        };
        let known = self.table.range(&self.begin_of_walk(from), &until);
        let records = known.filter(|slot| slot.value.is_some());
        if records.take(limit).count() == limit {
            return Ok(());
        }
        Err(until)
    }

    /// Records of a range in the table, including removed ones.
    pub(crate) fn known_in<'a>(
        &'a self,
        from: &Key,
        to: &Key,
    ) -> impl Iterator<Item = (&'a Key, Option<&'a Record>)> + use<'a> {
        self.table
            .range(from, to)
            .map(|slot| (&slot.key, slot.value.as_ref()))
    }

    /// At most `limit` records from `from` on, and the key (exclusive) up to which these are all;
    /// `None` if the next ones aren't known. Doesn't count as use.
    pub(crate) fn all_from(
        &self,
        from: &Key,
        to: &Key,
        limit: usize,
    ) -> Option<(Vec<(Key, Record)>, Key)> {
        let prefix = Prefix::of(from).filter(|prefix| self.is_complete(*prefix));
        let complete = prefix.map(|prefix| prefix.range().1);
        let until = complete.or_else(|| self.known_until(from))?.min(to.clone());
        let slots = self.table.range(&self.begin_of_walk(from), &until);
        let record = |slot: &Slot| Some((slot.key.clone(), slot.value.clone()?));
        let records: Vec<_> = slots.filter_map(record).take(limit).collect();
        let end = match records.last() {
            Some((last, _)) if records.len() == limit => successor(last),
            _ => until,
        };
        Some((records, end))
    }

    /// Number of records in a range that the open commit removes.
    pub(crate) fn removals_in(&self, from: &Key, to: &Key) -> usize {
        let slots = self.changed.iter().map(|place| self.table.slot(*place));
        let removed = |slot: &&Slot| slot.value.is_none() && *from <= slot.key && slot.key < *to;
        slots.filter(removed).count()
    }

    /// Where a walk from `from` may begin: nothing exists before that.
    pub(crate) fn begin_of_walk(&self, from: &Key) -> Key {
        self.absent.skip(from).unwrap_or_else(|| from.clone())
    }

    fn is_known_absent(&self, key: &Key) -> bool {
        match key {
            Key::Segment(segment) | Key::Dead(segment) => {
                let floor = self.segment_floors.get(&segment.session);
                floor.is_some_and(|floor| segment.counter > *floor)
            }
            Key::Orphan(_) => self.orphans_complete,
            Key::Extent { .. } | Key::Name { .. } if self.known.contains(key) => true,
            _ => Prefix::of(key).is_some_and(|prefix| self.is_complete(prefix)),
        }
    }

    /// Whether all records of a range are in the table.
    fn is_all_known(&self, from: &Key, to: &Key) -> bool {
        if let Some(prefix) = Prefix::of(from)
            && self.is_complete(prefix)
            && *to <= prefix.range().1
        {
            return true;
        }
        if self.known.covers(from, to) {
            return true;
        }
        self.pins
            .values()
            .flat_map(|pin| &pin.intervals)
            .any(|(first, end)| first <= from && to <= end)
    }

    /// The key (exclusive) up to which all records from `from` on are in the table, by earlier
    /// fetches or running ones.
    fn known_until(&self, from: &Key) -> Option<Key> {
        let of_pins = || {
            let intervals = self.pins.values().flat_map(|pin| &pin.intervals);
            let around = intervals.filter(|(first, end)| first <= from && from < end);
            around.map(|(_, end)| end).max().cloned()
        };
        self.known.until(from).or_else(of_pins)
    }

    fn is_complete(&self, prefix: Prefix) -> bool {
        if let Some(data) = prefix.later_data() {
            return self.complete_data.contains(&data);
        }
        let slot = self.table.get(&Key::Inode(prefix.inode()));
        slot.is_some_and(|slot| match prefix {
            Prefix::Names(_) => slot.complete.names,
            Prefix::Xattrs(_) => slot.complete.xattrs,
            Prefix::Extents(..) => slot.complete.extents,
        })
    }

    /// Without a slot to say it, a prefix stays incomplete, and the tree is asked.
    fn set_complete(&mut self, prefix: Prefix, complete: bool) {
        if let Some(data) = prefix.later_data() {
            if complete {
                self.complete_data.insert(data);
            } else {
                self.complete_data.remove(&data);
            }
        } else if let Some(place) = self.table.find(&Key::Inode(prefix.inode())) {
            let said = &mut self.table.slot_mut(place).complete;
            match prefix {
                Prefix::Names(_) => said.names = complete,
                Prefix::Xattrs(_) => said.xattrs = complete,
                Prefix::Extents(..) => said.extents = complete,
            }
        }
    }

    /// Updates what is known about the records under a changed one.
    fn learn(&mut self, place: Place, before: &Record, reclaims: bool) {
        let slot = self.table.slot(place);
        match (&slot.key, before, &slot.value) {
            (Key::Inode(inode), Record::Inode(old), Some(Record::Inode(new)))
                if old.data != new.data =>
            {
                let fresh = Prefix::Extents(inode.fileset(), new.data);
                self.set_complete(fresh, true);
            }
            (Key::Inode(inode), Record::Inode(old), None) => {
                let inode = *inode;
                self.set_complete(Prefix::Names(inode), false);
                self.known.forget(Line::Names(inode));
                if !reclaims {
                    self.set_complete(Prefix::Xattrs(inode), false);
                    self.set_complete(Prefix::Extents(inode.fileset(), old.data), false);
                    self.known.forget(Line::Extents(inode.fileset(), old.data));
                }
            }
            (Key::Reclaim { fileset, data }, Record::Reclaim(old), None) => {
                let (fileset, data) = (*fileset, *data);
                self.set_complete(Prefix::Extents(fileset, data), false);
                self.known.forget(Line::Extents(fileset, data));
                if old.xattrs {
                    let inode = InodeId::new(fileset, old.inode);
                    self.set_complete(Prefix::Xattrs(inode), false);
                }
            }
            _ => {}
        }
    }

    /// Evicts records that the tree has, least recently used first (second chance), until a part of
    /// the budget is free. Bounded: an operation pays for the records that it added, and a little
    /// more.
    pub(crate) fn make_room(&mut self) {
        self.evict();
        self.share.count(self.bytes());
    }

    /// The number of calls of [`Records::shrink`] in which the hand passes every record twice: the first
    /// time it may only clear a mark.
    pub(crate) fn shrinking_calls(&self) -> usize {
        2 * self.table.len() / EVICTION_STEPS_AT_ONCE + 2
    }

    /// As [`Records::make_room`] without an operation that pays for it. Returns whether too much is
    /// left.
    pub(crate) fn shrink(&mut self) -> bool {
        self.owed_steps = EVICTION_STEPS_AT_ONCE;
        self.make_room();
        self.bytes() > self.wanted()
    }

    /// Resolves when this shard should [shrink](Records::shrink), because all together use too much.
    pub(crate) fn pressed(&self) -> impl Future<Output = ()> + Send + use<> {
        self.share.pressed()
    }

    fn evict(&mut self) {
        let wanted = self.wanted();
        let steps = self.owed_steps.min(EVICTION_STEPS_AT_ONCE);
        for _ in 0..steps.max(EVICTION_STEPS_MAX) {
            if self.bytes() <= wanted {
                self.owed_steps = 0;
                return;
            }
            self.owed_steps = self.owed_steps.saturating_sub(1);
            let Some(place) = self.table.advance() else {
                return;
            };
            let slot = self.table.slot(place);
            if !slot.referenced.replace(false) && self.is_forgettable(&slot.key, slot.changed) {
                self.forget(place);
            }
        }
    }

    /// Background work found in changes since the last call.
    pub(crate) fn take_work(&mut self) -> NewWork {
        std::mem::take(&mut self.work)
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

    /// Evicting an inode's slot also drops what it says about the records under it.
    fn forget(&mut self, place: Place) {
        let slot = self.table.remove(place);
        match (&slot.key, &slot.value) {
            // Evicting an absence changes nothing else that is known.
            (_, None) => {}
            (Key::Inode(inode), Some(Record::Inode(record))) => {
                let later = (inode.fileset(), record.data);
                self.complete_data.remove(&later);
            }
            (Key::Segment(segment) | Key::Dead(segment), Some(_)) => {
                if let Some(floor) = self.segment_floors.get_mut(&segment.session) {
                    *floor = (*floor).max(segment.counter);
                }
            }
            (Key::Orphan(_), Some(_)) => self.orphans_complete = false,
            _ => {
                if let Some(prefix) = Prefix::of(&slot.key) {
                    if !matches!(prefix, Prefix::Xattrs(_)) && self.is_complete(prefix) {
                        // All its other records are still here.
                        let (first, end) = prefix.range();
                        self.known.note(&first, &end);
                    }
                    self.set_complete(prefix, false);
                }
                let table = &self.table;
                let has_records = |from: &Key, to: &Key| table.range(from, to).next().is_some();
                self.known.cut(&slot.key, has_records);
            }
        }
    }
}

impl<'a> HotView<'a> {
    /// The same of an owner that has given these numbers.
    pub(crate) fn giving(self, numbers: &'a Numbers) -> Self {
        Self {
            numbers: Some(numbers),
            ..self
        }
    }

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
        match self.records.table.get(key) {
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
            to.clone()
        } else {
            self.records.known_until(from).ok_or(Missing)?
        };
        let mut out = Vec::new();
        let mut removed = 0;
        for slot in self
            .records
            .table
            .range(&self.records.begin_of_walk(from), &end)
        {
            // Being listed doesn't make a name likely to be used again.
            if !matches!(slot.key, Key::Name { .. }) {
                slot.referenced.set(true);
            }
            self.show(slot);
            let Some(value) = &slot.value else {
                removed += 1;
                continue;
            };
            if out.is_empty() && removed >= NOTED_MIN {
                self.records.absent.note(from, &slot.key);
            }
            out.push((slot.key.clone(), value.clone()));
            if out.len() == limit {
                return Ok(out);
            }
        }
        if !all {
            return Err(Missing);
        }
        if out.is_empty() && removed >= NOTED_MIN {
            self.records.absent.note(from, to);
        }
        Ok(out)
    }

    fn is_held(&self, inode: InodeId) -> bool {
        (self.held)(inode)
    }

    fn first_number(&self, fileset: FilesetId) -> u64 {
        self.numbers.map_or(0, |numbers| numbers.first(fileset))
    }
}

/// The lowest possible key after `key`, where a scan continues.
#[must_use]
pub fn successor(key: &Key) -> Key {
    let inode = |inode: &InodeId| InodeId(inode.0.saturating_add(1));
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
        Key::Session(session) => Key::Session(session.next()),
        Key::Reserved { session, fileset } => Key::Reserved {
            session: *session,
            fileset: FilesetId(fileset.0 + 1),
        },
    }
}
