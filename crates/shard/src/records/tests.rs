//! Promises of the hot records: views, eviction, freezing, completeness.

use super::*;
use model::{
    CommitNumber, DataId, FileKind, FileName, FilesetId, InodeId, InodeNumber, SegmentId,
    SessionId, Timestamp,
};
use namespace::{Effects, Key, Name, NameEntry, Record, View};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

fn unheld(_: InodeId) -> bool {
    false
}

fn inode(number: u64, kind: FileKind) -> (Key, Record) {
    let effects = namespace::genesis(FilesetId(0), Timestamp(1), 0, 0, 0o755);
    let Some(Record::Inode(root)) = effects
        .0
        .into_iter()
        .find_map(|(key, value)| matches!(key, Key::Inode(_)).then_some(value?))
    else {
        panic!("a new fileset has a root directory");
    };
    let record = namespace::Inode {
        kind,
        data: DataId(number),
        parent: InodeNumber(1),
        ..(*root).clone()
    };
    (Key::Inode(InodeId(number)), Record::Inode(Arc::new(record)))
}

fn name(directory: u64, position: u64) -> (Key, Record) {
    let entry = NameEntry {
        name: FileName::new(b"x").unwrap(),
        inode: InodeNumber(position),
        kind: FileKind::File,
    };
    let record = Record::Name(Arc::new(Name {
        entry: Some(entry),
        highest: 0,
    }));
    (
        Key::Name {
            directory: InodeId(directory),
            position,
        },
        record,
    )
}

fn records(budget: usize) -> Records {
    records_after(budget, CommitNumber(0))
}

fn records_after(budget: usize, applied: CommitNumber) -> Records {
    let memory = crate::ShardMemory::new(budget, 1 << 20);
    Records::new(memory.share(), applied)
}

fn put(records: &mut Records, (key, value): (Key, Record)) {
    records.apply(Effects(vec![(key, Some(value))]));
}

fn remove(records: &mut Records, key: &Key) {
    records.apply(Effects(vec![(key.clone(), None)]));
}

#[test]
fn what_was_created_and_removed_in_one_commit_leaves_no_trace() {
    let mut records = records(1 << 20);
    put(&mut records, inode(5, FileKind::Directory));
    put(&mut records, name(5, 256));
    put(&mut records, inode(6, FileKind::File));
    remove(&mut records, &name(5, 256).0);
    remove(&mut records, &inode(6, FileKind::File).0);
    let (number, rows) = records.freeze();
    assert_eq!(number, CommitNumber(1));
    assert_eq!(
        rows.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>(),
        [inode(5, FileKind::File).0]
    );
}

#[test]
fn what_an_earlier_commit_created_is_removed_by_a_row() {
    let mut records = records(1 << 20);
    put(&mut records, inode(6, FileKind::File));
    records.freeze();
    remove(&mut records, &inode(6, FileKind::File).0);
    let (_, rows) = records.freeze();
    assert_eq!(rows, [(inode(6, FileKind::File).0, None)]);
}

#[test]
fn a_record_changed_often_is_one_row_with_its_last_value() {
    let mut records = records(1 << 20);
    let (key, _) = inode(6, FileKind::File);
    for data in 0..100 {
        put(&mut records, (key.clone(), inode(data, FileKind::File).1));
    }
    let (_, rows) = records.freeze();
    assert_eq!(rows, [(key, Some(inode(99, FileKind::File).1))]);
}

#[test]
fn a_directory_made_here_answers_absence_by_itself_until_a_name_of_it_is_forgotten() {
    let mut records = records(1);
    put(&mut records, inode(5, FileKind::Directory));
    put(&mut records, name(5, 256));
    {
        let view = records.view(&unheld);
        assert_eq!(view.get(&name(5, 512).0), Ok(None));
        let (first, end) = (name(5, 0).0, name(6, 0).0);
        assert_eq!(view.range(&first, &end, 10).unwrap().len(), 1);
        assert_eq!(view.shown(), CommitNumber(1));
        assert!(view.get(&name(4, 512).0).is_err());
    }
    let (number, _) = records.freeze();
    for _ in 0..10 {
        records.make_room();
    }
    // In flight: still in memory, although there is no room.
    assert!(
        records
            .view(&unheld)
            .get(&name(5, 256).0)
            .is_ok_and(|found| found.is_some())
    );
    for _ in 0..10 {
        records.applied(number);
    }
    assert!(records.view(&unheld).get(&name(5, 256).0).is_err());
    assert!(records.view(&unheld).get(&name(5, 512).0).is_err());
}

#[test]
fn walking_through_many_cold_records_stays_within_the_budget() {
    const BUDGET: usize = 256 * 1024;
    let mut records = records(BUDGET);
    for directory in 0..100 {
        let pin = records.pin();
        let first = 1000 * directory;
        for number in first..first + 1000 {
            let (key, value) = inode(number, FileKind::File);
            records.offer(key, Some(value));
            let (key, value) = name(directory, 256 * number);
            records.offer(key, Some(value));
        }
        let names = |directory| name(directory, 0).0;
        records.offered_all(pin, (names(directory), names(directory + 1)));
        // The operation reads the records that it asked for.
        let view = records.view(&unheld);
        let listed = view.range(&names(directory), &names(directory + 1), 2000);
        assert_eq!(listed.map(|names| names.len()), Ok(1000));
        records.unpin(pin);
        let (_, bytes) = records.size();
        assert!(bytes <= BUDGET, "{bytes} after {directory} directories");
    }
    assert!(records.size().1 > BUDGET / 2, "a cache keeps what fits");
}

#[test]
fn making_many_files_stays_within_the_budget() {
    const BUDGET: usize = 4 << 20;
    // This many are added by one operation.
    for at_once in [1, 300] {
        let mut records = records(BUDGET);
        for number in 1..60_000 {
            put(&mut records, inode(number, FileKind::File));
            put(&mut records, name(0, 256 * number));
            if number % at_once == 0 {
                records.make_room();
            }
            if number % 600 == 0 {
                let (commit, _) = records.freeze();
                records.applied(commit);
            }
            let (_, bytes) = records.size();
            assert!(bytes <= BUDGET, "{bytes} after {number} files");
        }
        assert!(records.size().1 > BUDGET / 2, "a cache keeps what fits");
    }
}

#[test]
fn removing_a_large_file_in_steps_doesnt_walk_over_the_steps_before() {
    let extent = |end| Key::Extent {
        fileset: FilesetId(0),
        data: DataId(7),
        end,
    };
    let mut records = records(1 << 20);
    let (first, to) = (extent(0), extent(u64::MAX));
    put(&mut records, inode(7, FileKind::File));
    for number in 1..=2000 {
        let record = model::Extent {
            offset: number * 10 - 10,
            length: 10,
            kind: model::ExtentKind::Reserved,
            birth: CommitNumber(1),
        };
        put(
            &mut records,
            (extent(number * 10), Record::Extent(Arc::new(record))),
        );
    }
    for step in 0..20 {
        let view = records.view(&unheld);
        let found = view.range(&first, &to, 100).unwrap();
        assert_eq!(found.len(), 100, "step {step}");
        assert_eq!(found[0].0, extent(step * 1000 + 10));
        // Only records removed by the previous step were passed.
        if step > 0 {
            assert_eq!(records.begin_of_walk(&first), found[0].0);
        }
        for (key, _) in found {
            remove(&mut records, &key);
        }
    }
    assert_eq!(records.view(&unheld).range(&first, &to, 100), Ok(vec![]));
    assert_eq!(records.begin_of_walk(&first), to);
    // A record added again is seen.
    let record = Record::Extent(Arc::new(model::Extent {
        offset: 10,
        length: 10,
        kind: model::ExtentKind::Reserved,
        birth: CommitNumber(1),
    }));
    put(&mut records, (extent(20), record));
    let found = records.view(&unheld).range(&first, &to, 100).unwrap();
    assert_eq!(found.len(), 1);
}

#[test]
fn what_was_read_of_a_file_stays_known_after_the_fetch() {
    let extent = |end| Key::Extent {
        fileset: FilesetId(0),
        data: DataId(9),
        end,
    };
    let (_, record) = name(1, 1);
    let mut records = records(60 * 400);
    let pin = records.pin();
    for end in 1..=50 {
        records.offer(extent(end * 10), Some(record.clone()));
    }
    records.offered_all(pin, (extent(1), extent(501)));
    records.unpin(pin);
    // The fetch is over, and its answer is still good: also for where nothing is.
    assert_eq!(records.answers(&extent(5), &extent(501), 99), Ok(()));
    assert_eq!(records.get(&extent(15)), Some(None));
    assert_eq!(records.answers(&extent(495), &extent(900), 1), Ok(()));
    assert_eq!(
        records.answers(&extent(495), &extent(900), 2),
        Err(extent(501))
    );
}

#[test]
fn segments_of_a_session_that_began_here_are_never_looked_for() {
    let mut records = records(1 << 20);
    let segment = |session, counter| {
        Key::Segment(SegmentId {
            session: SessionId(session),
            counter,
        })
    };
    records.session_began(SessionId(9));
    assert_eq!(records.view(&unheld).get(&segment(9, 1)), Ok(None));
    assert!(records.view(&unheld).get(&segment(8, 1)).is_err());
}

/// A commit reaches the tree.
fn apply_to(tree: &mut BTreeMap<Key, Record>, rows: crate::state::Rows) {
    for (key, value) in rows {
        match value {
            Some(value) => tree.insert(key, value),
            None => tree.remove(&key),
        };
    }
}

/// Steps against a tree modelled by a map, with fetches that answer late.
#[derive(Clone, Debug)]
enum Step {
    Put(u64, u64),
    Remove(u64),
    Look(u64),
    List(u64, u64, usize),
    FetchKey(u64),
    FetchRange(u64, u64, usize),
    EndFetch,
    Commit,
    Applied,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0u64..24;
    let step = prop_oneof![
        (key.clone(), 0u64..1000).prop_map(|(key, value)| Step::Put(key, value)),
        key.clone().prop_map(Step::Remove),
        key.clone().prop_map(Step::Look),
        (key.clone(), key.clone(), 1usize..6)
            .prop_map(|(from, to, limit)| Step::List(from, to, limit)),
        key.clone().prop_map(Step::FetchKey),
        (key.clone(), key, 1usize..6)
            .prop_map(|(from, to, limit)| Step::FetchRange(from, to, limit)),
        Just(Step::EndFetch),
        Just(Step::Commit),
        Just(Step::Applied),
    ];
    prop::collection::vec(step, 1..200)
}

/// Extents of one file, or names of one directory whose number is its position's upper bits.
fn at_in(of_file: bool, key: u64) -> Key {
    if of_file {
        return Key::Extent {
            fileset: FilesetId(0),
            data: DataId(5),
            end: key << 8,
        };
    }
    Key::Name {
        directory: InodeId(5),
        position: key << 8,
    }
}

struct Late {
    pin: u64,
    keys: Vec<(Key, Option<Record>)>,
    interval: Option<(Key, Key)>,
}

proptest! {
    #[test]
    fn the_cache_never_shows_anything_but_the_newest_state(of_file: bool, steps in steps()) {
        let at = |key| at_in(of_file, key);
        let mut records = records(2000);
        let mut tree: BTreeMap<Key, Record> = BTreeMap::new();
        let mut truth: BTreeMap<Key, Record> = BTreeMap::new();
        let mut frozen: Option<(CommitNumber, crate::state::Rows)> = None;
        let mut late: Option<Late> = None;
        for step in steps {
            match step {
                Step::Put(key, value) => {
                    let (_, record) = name(5, value);
                    // As an operation does: it reads records before changing them.
                    if records.view(&unheld).get(&at(key)).is_ok() {
                        truth.insert(at(key), record.clone());
                        put(&mut records, (at(key), record));
                    }
                }
                Step::Remove(key)
                    if records.view(&unheld).get(&at(key)).is_ok() => {
                        truth.remove(&at(key));
                        remove(&mut records, &at(key));
                    }
                Step::Look(key) => {
                    let view = records.view(&unheld);
                    if let Ok(found) = view.get(&at(key)) {
                        prop_assert_eq!(found.as_ref(), truth.get(&at(key)));
                    }
                }
                Step::List(from, to, limit) => {
                    if let Ok(found) = records.view(&unheld).range(&at(from), &at(to), limit) {
                        let wanted: Vec<(Key, Record)> = if from < to {
                            truth.range(at(from)..at(to)).take(limit).map(|(k, v)| (k.clone(), v.clone())).collect()
                        } else {
                            Vec::new()
                        };
                        prop_assert_eq!(found, wanted);
                    }
                    if from < to && limit > 0
                        && let Some((found, end)) = records.all_from(&at(from), &at(to), limit)
                    {
                        prop_assert!(at(from) < end && end <= at(to));
                        let wanted: Vec<(Key, Record)> =
                            truth.range(at(from)..end).map(|(k, v)| (k.clone(), v.clone())).collect();
                        prop_assert!(wanted.len() <= limit);
                        prop_assert_eq!(found, wanted);
                    }
                }
                Step::FetchKey(key) if late.is_none() => {
                    let pin = records.pin();
                    late = Some(Late { pin, keys: vec![(at(key), tree.get(&at(key)).cloned())], interval: None });
                }
                Step::FetchRange(from, to, limit) if late.is_none() && from < to => {
                    let pin = records.pin();
                    let rows: Vec<(Key, Record)> =
                        tree.range(at(from)..at(to)).take(limit).map(|(k, v)| (k.clone(), v.clone())).collect();
                    let end = if rows.len() == limit { successor(&rows[limit - 1].0) } else { at(to) };
                    let keys = rows.into_iter().map(|(key, record)| (key, Some(record))).collect();
                    late = Some(Late { pin, keys, interval: Some((at(from), end)) });
                }
                Step::EndFetch => {
                    if let Some(Late { pin, keys, interval }) = late.take() {
                        for (key, value) in keys {
                            records.offer(key, value);
                        }
                        if let Some((from, end)) = interval {
                            records.offered_all(pin, (from.clone(), end.clone()));
                            let found = records.view(&unheld).range(&from, &end, 1000).unwrap();
                            let wanted: Vec<(Key, Record)> =
                                truth.range(from..end).map(|(k, v)| (k.clone(), v.clone())).collect();
                            prop_assert_eq!(found, wanted);
                        }
                        records.unpin(pin);
                    }
                }
                Step::Commit if frozen.is_none() => frozen = Some(records.freeze()),
                Step::Applied => {
                    if let Some((number, rows)) = frozen.take() {
                        apply_to(&mut tree, rows);
                        for _ in 0..8 {
                            records.applied(number);
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

/// Life of inodes and of the records under them, with a tree that has only applied commits.
#[derive(Clone, Copy, Debug)]
enum Life {
    /// The next inode number, as a directory or a file.
    Make(bool),
    /// A name, an extent and an attribute are added to the inode, or removed.
    Under(usize, u64, bool),
    /// The file gets a fresh data id.
    Drop(usize),
    /// The inode is removed; records under it are queued, or there are none.
    End(usize, bool),
    /// Everything under the inode is read from the tree by range.
    Fetch(usize),
    Commit,
}

fn lives() -> impl Strategy<Value = Vec<Life>> {
    let which = 0usize..6;
    let step = prop_oneof![
        2 => any::<bool>().prop_map(Life::Make),
        6 => (which.clone(), 0u64..4, any::<bool>()).prop_map(|(i, n, put)| Life::Under(i, n, put)),
        1 => which.clone().prop_map(Life::Drop),
        1 => (which.clone(), any::<bool>()).prop_map(|(i, reclaims)| Life::End(i, reclaims)),
        2 => which.prop_map(Life::Fetch),
        3 => Just(Life::Commit),
    ];
    prop::collection::vec(step, 1..300)
}

fn under(inode: InodeId, data: DataId, at: u64) -> [Key; 3] {
    [
        Key::Name {
            directory: inode,
            position: at << 8,
        },
        Key::Extent {
            fileset: FilesetId(0),
            data,
            end: at + 1,
        },
        Key::Xattr {
            inode,
            name: [at as u8].into(),
        },
    ]
}

fn ranges(inode: InodeId, data: DataId) -> [(Key, Key); 3] {
    let [name, extent, xattr] = under(inode, data, 0);
    let [next_name, _, next_xattr] = under(InodeId(inode.0 + 1), data, 0);
    let [_, last_extent, _] = under(inode, data, u64::MAX - 2);
    [
        (name, next_name),
        (extent, last_extent),
        (xattr, next_xattr),
    ]
}

proptest! {
    #[test]
    fn nothing_is_taken_for_absent_that_the_tree_has(lives in lives()) {
        let mut records = records(3000);
        let mut tree: BTreeMap<Key, Record> = BTreeMap::new();
        let mut truth: BTreeMap<Key, Record> = BTreeMap::new();
        let mut made: Vec<(InodeId, DataId)> = Vec::new();
        let mut next = 10u64;
        for life in lives {
            match life {
                Life::Make(directory) => {
                    let kind = if directory { FileKind::Directory } else { FileKind::File };
                    let (key, record) = inode(next, kind);
                    made.push((InodeId(next), DataId(next)));
                    next += 1;
                    truth.insert(key.clone(), record.clone());
                    put(&mut records, (key, record));
                }
                Life::Under(which, at, is_put) if !made.is_empty() => {
                    let (id, data) = made[which % made.len()];
                    for key in under(id, data, at) {
                        // As an operation does: it reads records before changing them.
                        if records.view(&unheld).get(&key).is_err() {
                            continue;
                        }
                        if is_put {
                            truth.insert(key.clone(), Record::Mark);
                            put(&mut records, (key, Record::Mark));
                        } else {
                            truth.remove(&key);
                            remove(&mut records, &key);
                        }
                    }
                }
                Life::Drop(which) if !made.is_empty() => {
                    let which = which % made.len();
                    let (id, old) = made[which];
                    let key = Key::Inode(id);
                    let known = records.view(&unheld).get(&key);
                    if let (Ok(Some(_)), Some(Record::Inode(now))) = (known, truth.get(&key)) {
                        let fresh = DataId((1 << 63) | (next << 8));
                        next += 1;
                        let record = Record::Inode(Arc::new(namespace::Inode {
                            data: fresh,
                            ..(**now).clone()
                        }));
                        truth.insert(key.clone(), record.clone());
                        put(&mut records, (key, record));
                        made[which].1 = fresh;
                        // Records under the old data id are removed in the background.
                        let (first, end) = ranges(id, old)[1].clone();
                        truth.retain(|key, _| *key < first || *key >= end);
                        tree.retain(|key, _| *key < first || *key >= end);
                    }
                }
                Life::End(which, reclaims) if !made.is_empty() => {
                    let (id, data) = made[which % made.len()];
                    let key = Key::Inode(id);
                    if matches!(records.view(&unheld).get(&key), Ok(Some(_))) {
                        truth.remove(&key);
                        let mut effects = vec![(key, None)];
                        if reclaims {
                            let queued = Key::Reclaim { fileset: FilesetId(0), data };
                            effects.push((queued, Some(Record::Mark)));
                        }
                        records.apply(Effects(effects));
                    }
                }
                Life::Fetch(which) if !made.is_empty() => {
                    let (id, data) = made[which % made.len()];
                    let pin = records.pin();
                    if let Some(record) = tree.get(&Key::Inode(id)) {
                        records.offer(Key::Inode(id), Some(record.clone()));
                    }
                    for (from, to) in ranges(id, data) {
                        for (key, record) in tree.range(from.clone()..to.clone()) {
                            records.offer(key.clone(), Some(record.clone()));
                        }
                        records.offered_all(pin, (from, to));
                    }
                    records.unpin(pin);
                }
                Life::Commit => {
                    let (number, rows) = records.freeze();
                    apply_to(&mut tree, rows);
                    for _ in 0..8 {
                        records.applied(number);
                    }
                }
                _ => {}
            }
            let view = records.view(&unheld);
            for (id, data) in &made {
                for key in (0..4).flat_map(|at| under(*id, *data, at)) {
                    if let Ok(found) = view.get(&key) {
                        prop_assert_eq!(found.as_ref(), truth.get(&key), "{:?}", key);
                    }
                }
                for (from, to) in ranges(*id, *data) {
                    if let Ok(found) = view.range(&from, &to, 100) {
                        let wanted: Vec<(Key, Record)> = truth
                            .range(from..to)
                            .map(|(key, record)| (key.clone(), record.clone()))
                            .collect();
                        prop_assert_eq!(found, wanted);
                    }
                }
            }
        }
    }
}

#[test]
fn names_that_a_listing_passed_go_when_memory_is_short_but_no_changed_or_wanted_ones() {
    for is_short in [false, true] {
        let mut records = records_after(if is_short { 60_000 } else { 1 << 20 }, CommitNumber(1));
        let (directory, record) = inode(9, FileKind::Directory);
        let pin = records.pin();
        records.offer(directory, Some(record));
        for position in 1..=200 {
            let (key, record) = name(9, position);
            records.offer_ahead(key, record);
        }
        let key = |position| name(9, position).0;
        records.offered_all(pin, (key(0), key(201)));
        remove(&mut records, &key(5));
        put(&mut records, name(9, 300));
        let view = records.view(&unheld);
        assert_eq!(view.range(&key(0), &key(201), 1000).unwrap().len(), 199);
        assert!(view.get(&key(6)).unwrap().is_some());
        records.forget_listed(pin);
        records.unpin(pin);
        assert_eq!(records.get(&key(7)).is_some(), !is_short);
        assert_eq!(records.get(&key(5)), Some(None));
        assert!(records.get(&key(300)).flatten().is_some());
        assert!(records.get(&key(6)).flatten().is_some());
    }
}

/// Three shards that use a cache of records each, in turns chosen at random: together they keep to the
/// budget, and whoever works alone has what the others don't need.
#[test]
fn shards_of_a_process_share_one_budget() {
    const BUDGET: usize = 4 << 20;
    for seed in 0..8 {
        let memory = crate::ShardMemory::new(BUDGET, 1 << 20);
        let mut shards: Vec<_> = (0..3)
            .map(|_| Records::new(memory.share(), CommitNumber(0)))
            .collect();
        let mut chance = seed;
        let mut next = move || {
            chance = u64::wrapping_add(chance, 0x9e37_79b9_7f4a_7c15);
            (chance ^ (chance >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
        };
        for turn in 0..60 {
            let busy = next() as usize % 3;
            for number in 0..next() % 8_000 {
                let (key, value) = inode(turn * 8_000 + number, FileKind::File);
                shards[busy].offer(key, Some(value));
                shards[busy].make_room();
            }
            // What the tasks of the others do when they are told.
            for shard in &mut shards {
                let calls = shard.shrinking_calls();
                (0..calls).any(|_| !shard.shrink());
            }
            let sum: usize = shards.iter().map(|shard| shard.size().1).sum();
            assert!(sum <= BUDGET, "seed {seed}, turn {turn}: {sum} bytes");
        }
        let used = |shards: &[Records]| shards.iter().map(|it| it.size().1).sum::<usize>();
        assert!(used(&shards) > BUDGET / 2, "a cache keeps what fits");
        let mut last = shards.pop().unwrap();
        drop(shards);
        for number in 0..40_000 {
            let (key, value) = inode(number, FileKind::File);
            last.offer(key, Some(value));
            last.make_room();
        }
        assert!(
            last.size().1 > BUDGET / 4 * 3,
            "seed {seed}: {}",
            last.size().1
        );
    }
}
