//! Promises of publish, truncate, ranges and sharing.

use super::*;
use model::operation::RangeChange;

fn change(
    store: &mut Store,
    inode: InodeId,
    offset: u64,
    length: u64,
    change: RangeChange,
    keep_size: bool,
) {
    let mut next = Some(offset);
    while let Some(from) = next {
        let length = offset + length - from;
        let operation = Operation::ChangeRange {
            inode,
            offset: from,
            length,
            change,
            keep_size,
        };
        match store.run(&operation) {
            Ok(Reply::RangeChanged {
                next: Some(further),
                ..
            }) => {
                assert!(further > from, "every step makes progress");
                next = Some(further);
            }
            Ok(Reply::RangeChanged { next: None, .. }) => next = None,
            other => panic!("{other:?}"),
        }
        store.audit();
    }
}

/// A file of `count` extents of 10 bytes, each followed by a hole of 10 bytes.
fn sparse(store: &mut Store, count: u64) -> InodeId {
    let file = store.file("sparse");
    for number in 0..count {
        store
            .write(file, number * 20, &[number as u8 + 1; 10])
            .unwrap();
    }
    file
}

#[test]
fn a_small_file_lives_in_its_inode() {
    let mut store = Store::new();
    let file = store.file("f");
    let attributes = store.write_inline(file, 0, &[7; 3901]).unwrap();
    assert_eq!((attributes.size, attributes.allocated), (3901, 3901));
    store.write_inline(file, 3901, &[8; 100]).unwrap();
    store.write_inline(file, 10, &[9; 5]).unwrap();
    assert_eq!(store.count(Table::Extents) + store.count(Table::Folds), 0);
    let content = store.content(file);
    assert_eq!(
        (
            content.len(),
            content[9],
            content[10],
            content[15],
            content[4000]
        ),
        (4001, 7, 9, 7, 8)
    );
    assert!(store.extents(file)[0].birth.0 > 0);
    store.audit();
}

#[test]
fn a_small_file_that_grows_keeps_its_content() {
    let mut store = Store::new();
    let file = store.file("f");
    store.write_inline(file, 0, &[7; 4000]).unwrap();
    store.write(file, 4000, &[8; 5000]).unwrap();
    assert_eq!(store.count(Table::Folds), 1);
    let content = store.content(file);
    assert!(
        content.len() == 9000
            && content[..4000].iter().all(|b| *b == 7)
            && content[4000..].iter().all(|b| *b == 8)
    );
    store.audit();
    store.write(file, 0, &[9; 4500]).unwrap();
    assert_eq!(store.count(Table::Folds), 0, "nothing inline is left");
    store.audit();
}

#[test]
fn an_overwrite_cuts_what_it_meets() {
    let mut store = Store::new();
    let file = store.file("f");
    let first = store.segment(&[1; 100]);
    store
        .publish(file, vec![data(0, 100, first, 0)], 100)
        .unwrap();
    store.write(file, 40, &[2; 20]).unwrap();
    assert_eq!(
        store
            .extents(file)
            .iter()
            .map(|e| (e.offset, e.length))
            .collect::<Vec<_>>(),
        [(0, 40), (40, 20), (60, 40)]
    );
    let Some(Record::Segment(segment)) = store.records.get(&Key::Segment(first.segment)) else {
        panic!()
    };
    assert_eq!(segment.live, 80);
    store.audit();
    store.write(file, 0, &[3; 100]).unwrap();
    assert_eq!(
        (store.count(Table::Segments), store.count(Table::Deads)),
        (1, 2)
    );
    assert_eq!(store.content(file), vec![3; 100]);
    store.audit();
}

#[test]
fn a_pack_is_of_one_family() {
    let mut store = Store::new();
    let other = model::FamilyId(1);
    let effects = crate::genesis(other.first_fileset(), model::Timestamp(1), 0, 0, 0o755);
    for (key, record) in effects.0 {
        store.records.insert(key, record.unwrap());
    }
    let own = store.file("f");
    let foreign = store.file_in(other.root(), "g");
    assert_eq!(foreign.fileset().family(), other);
    let pack = store.segment(&[1; 100]);
    store.publish(own, vec![data(0, 50, pack, 0)], 50).unwrap();
    let refused = store.publish(foreign, vec![data(0, 50, pack, 50)], 50);
    assert_eq!(refused.unwrap_err(), ErrorKind::InvalidArgument);
    store.write(foreign, 0, &[2; 10]).unwrap();
    store.audit();
}

#[test]
fn one_publish_cuts_an_extent_in_several_places() {
    let mut store = Store::new();
    let file = store.file("f");
    store.write(file, 0, &[1; 100]).unwrap();
    let new = store.segment(&[2; 30]);
    let extents = vec![
        data(10, 10, new, 0),
        data(30, 10, new, 10),
        data(60, 10, new, 20),
    ];
    store.publish(file, extents, 100).unwrap();
    let content = store.content(file);
    for (at, byte) in content.iter().enumerate() {
        assert_eq!(*byte == 2, [1, 3, 6].contains(&(at / 10)), "byte {at}");
    }
    store.audit();
}

#[test]
fn one_segment_holds_many_files_and_dies_with_the_last() {
    let mut store = Store::new();
    let (a, b) = (store.file("a"), store.file("b"));
    let pack = store.segment(&[5; 100]);
    store.publish(a, vec![data(0, 50, pack, 0)], 50).unwrap();
    store.publish(b, vec![data(0, 50, pack, 50)], 50).unwrap();
    store.truncate(a, 0).unwrap();
    store.background();
    assert_eq!(
        (store.count(Table::Segments), store.count(Table::Deads)),
        (1, 0)
    );
    assert_eq!(store.content(b), vec![5; 50]);
    store.unlink(ROOT, "b").unwrap();
    let Some(Key::Reclaim { fileset, data: id }) = store
        .records
        .keys()
        .find(|k| k.table() == Table::Reclaims)
        .cloned()
    else {
        panic!()
    };
    store
        .run(&Operation::Reclaim { fileset, data: id })
        .unwrap();
    assert_eq!(
        (store.count(Table::Segments), store.count(Table::Deads)),
        (0, 1)
    );
    assert_eq!(
        store.publish(a, vec![data(0, 10, pack, 0)], 10),
        Err(ErrorKind::Stale),
        "dead bytes never come back"
    );
    store.audit();
}

#[test]
fn only_its_own_session_publishes_a_segment() {
    let mut store = Store::new();
    let file = store.file("f");
    let foreign = place(
        SegmentId {
            session: SessionId(99),
            counter: 1,
        },
        100,
    );
    assert_eq!(
        store.publish(file, vec![data(0, 100, foreign, 0)], 100),
        Err(ErrorKind::InvalidArgument)
    );
}

#[test]
fn malformed_publishes_are_refused() {
    let mut store = Store::new();
    let file = store.file("f");
    let place = store.segment(&[1; 100]);
    for extents in [
        vec![data(0, 101, place, 0)],
        vec![data(0, 50, place, 51)],
        vec![data(0, 0, place, 0)],
        vec![data(10, 10, place, 0), data(0, 10, place, 10)],
        vec![data(0, 20, place, 0), data(10, 20, place, 20)],
        vec![inline(0, &[1; 40_000])],
        vec![data(1000, 1, place, 0)],
    ] {
        assert_eq!(
            store.publish(file, extents, 500),
            Err(ErrorKind::InvalidArgument)
        );
    }
    assert_eq!(
        store.publish(file, vec![data(u64::MAX - 5, 10, place, 0)], 5),
        Err(ErrorKind::FileTooLarge)
    );
    let directory = store.directory(ROOT, "d");
    assert_eq!(
        store.publish(directory, vec![], 0),
        Err(ErrorKind::IsDirectory)
    );
}

#[test]
fn a_fold_replaces_exactly_what_it_read_or_nothing() {
    let mut store = Store::new();
    let file = store.file("f");
    store.write(file, 0, &[1; 5000]).unwrap();
    store.write_inline(file, 100, &[2; 50]).unwrap();
    let before = store.attributes(file).unwrap();
    let old: Vec<Extent> = store
        .extents(file)
        .into_iter()
        .filter(|e| e.offset == 100)
        .collect();
    let fold = |store: &mut Store, replaces: Vec<Extent>| {
        let place = store.segment(&[2; 50]);
        let extents = vec![data(100, 50, place, 0)];
        let publish = Publish {
            inode: file,
            extents,
            size_at_least: 0,
            written: None,
            replaces: Some(replaces),
        };
        attributes(store.run(&Operation::Publish(publish)))
    };
    // A write intervenes.
    let mut overtaken = store.clone();
    overtaken.write_inline(file, 120, &[3; 1]).unwrap();
    assert_eq!(fold(&mut overtaken, old.clone()), Err(ErrorKind::Changed));
    assert_eq!(overtaken.content(file)[120], 3);
    overtaken.audit();
    let (after, _) = fold(&mut store, old).unwrap();
    assert_eq!(
        (after, store.count(Table::Folds)),
        (before, 0),
        "times and size don't change"
    );
    assert_eq!(store.content(file)[100..150], [2; 50]);
    store.audit();
}

#[test]
fn a_fold_leaves_out_the_ranges_that_changed_meanwhile() {
    let mut store = Store::new();
    let file = store.file("f");
    for at in 0..10 {
        store.write(file, at * 100, &[at as u8 + 1; 100]).unwrap();
    }
    let believed = store.extents(file);
    assert_eq!(believed.len(), 10);
    let before = store.content(file);
    let place = store.segment(&before);
    let extents: Vec<Extent> = (0..10)
        .map(|at| data(at * 100, 100, place, at as u32 * 100))
        .collect();
    store.write(file, 250, &[20; 100]).unwrap();
    store.write(file, 950, &[30; 10]).unwrap();
    let expected = store.content(file);
    let fold = Operation::Publish(Publish {
        inode: file,
        extents,
        size_at_least: 0,
        written: None,
        replaces: Some(believed),
    });
    store.run(&fold).unwrap();
    assert_eq!(store.content(file), expected);
    let points_at_pack = |extent: &&Extent| matches!(&extent.kind, ExtentKind::Data { place: of, .. } if *of == place);
    let extents = store.extents(file);
    let moved: Vec<u64> = extents
        .iter()
        .filter(points_at_pack)
        .map(|e| e.offset)
        .collect();
    assert_eq!(moved, [0, 400], "and neighbours are joined");
    store.audit();
    assert_eq!(store.run(&fold).unwrap_err(), ErrorKind::Changed);
    assert_eq!(store.content(file), expected);
}

#[test]
fn a_fold_whose_replaced_extents_are_not_sorted_or_overlap_is_refused() {
    let mut store = Store::new();
    let file = store.file("f");
    for at in 0..3 {
        store.write(file, at * 100, &[at as u8 + 1; 100]).unwrap();
    }
    let believed = store.extents(file);
    let before = store.content(file);
    let place = store.segment(&before);
    let mut fold = |replaces: Vec<Extent>| {
        store.run(&Operation::Publish(Publish {
            inode: file,
            extents: vec![data(0, 300, place, 0)],
            size_at_least: 0,
            written: None,
            replaces: Some(replaces),
        }))
    };
    let reversed = believed.iter().rev().cloned().collect();
    assert_eq!(fold(reversed).unwrap_err(), ErrorKind::InvalidArgument);
    let twice = [&believed[..1], &believed[..]].concat();
    assert_eq!(fold(twice).unwrap_err(), ErrorKind::InvalidArgument);
    fold(believed).unwrap();
    assert_eq!(store.content(file), before);
    store.audit();
}

#[test]
fn a_repair_may_publish_a_better_place_of_the_same_segment() {
    let mut store = Store::new();
    let file = store.file("f");
    let segment = SegmentId {
        session: SessionId(77),
        counter: 1,
    };
    let mut old = place(segment, 100);
    old.missing = 2;
    let stamp = Stamp {
        session: SessionId(77),
        ..store.stamp()
    };
    let publish = |place, replaces| {
        let extents = vec![data(0, 100, place, 0)];
        Operation::Publish(Publish {
            inode: file,
            extents,
            size_at_least: 100,
            written: None,
            replaces,
        })
    };
    let outcome = apply(&publish(old, None), &stamp, in_commit(9), &store).unwrap();
    store.take(outcome);
    let replaces = store.extents(file);
    store
        .run(&publish(place(segment, 100), Some(replaces)))
        .unwrap();
    let Some(Record::Segment(record)) = store.records.get(&Key::Segment(segment)) else {
        panic!()
    };
    assert_eq!((record.place.missing, record.live), (0, 100));
    store.audit();
}

#[test]
fn a_write_moves_the_time_only_inside_its_generation() {
    let mut store = Store::new();
    let file = store.file("f");
    let generation = store.attributes(file).unwrap().generation;
    let written = |at: i64| Publish {
        inode: file,
        extents: vec![inline(0, b"x")],
        size_at_least: 1,
        written: Some((Timestamp(at), generation)),
        replaces: None,
    };
    let (after, _) = attributes(store.run(&Operation::Publish(written(1_000_000)))).unwrap();
    assert_eq!(
        (after.mtime, after.ctime),
        (Timestamp(1_000_000), Timestamp(1_000_000))
    );
    let (after, _) = attributes(store.run(&Operation::Publish(written(500_000)))).unwrap();
    assert_eq!(after.mtime, Timestamp(1_000_000), "the latest write counts");
    let set = SetAttributes {
        mtime: Some(model::TimeChange::At(Timestamp(50))),
        ..Default::default()
    };
    store.set(file, set).unwrap();
    let (after, _) = attributes(store.run(&Operation::Publish(written(2_000_000)))).unwrap();
    assert_eq!(
        after.mtime,
        Timestamp(50),
        "utimes after the write wins over a late publish"
    );
}

/// Would be broken if a file whose time a program has set into the future seemed unchanged to make(1) for ever.
#[test]
fn a_write_after_utimes_into_the_future_sets_the_time_back_to_now() {
    let mut store = Store::new();
    let file = store.file("f");
    let ahead = Timestamp::from_timespec(1 << 33, 0);
    let set = SetAttributes {
        mtime: Some(model::TimeChange::At(ahead)),
        ..Default::default()
    };
    let (before, _) = store.set(file, set).unwrap();
    assert_eq!(before.mtime, ahead);
    let generation = before.generation;
    let written = |at| Publish {
        inode: file,
        extents: Vec::new(),
        size_at_least: 0,
        written: Some((Timestamp(at), generation)),
        replaces: None,
    };
    for (at, then) in [(2_000_000, 2_000_000), (1_000_000, 2_000_000)] {
        let published = store.run(&Operation::Publish(written(at)));
        let (after, _) = attributes(published).unwrap();
        assert_eq!(after.mtime, Timestamp(then));
    }
}

#[test]
fn truncate_to_nothing_is_one_step_and_new_data_is_safe_from_reclaim() {
    let mut store = Store::new();
    let file = sparse(&mut store, 30);
    let before = store.attributes(file).unwrap();
    let (after, unfinished) = store.truncate(file, 0).unwrap();
    assert!(!unfinished && after.size == 0 && after.allocated == 0);
    assert!(after.mtime > before.mtime && after.generation == before.generation + 1);
    store.audit();
    store.write(file, 500, &[9; 10]).unwrap();
    store.background();
    let content = store.content(file);
    assert!(content[..500].iter().all(|b| *b == 0) && content[500..] == [9; 10]);
    assert_eq!(store.count(Table::Extents), 1);
    store.audit();
}

#[test]
fn a_long_truncate_runs_in_steps_and_hides_what_it_cuts() {
    let mut store = Store::new();
    let file = sparse(&mut store, 30);
    let (_, unfinished) = store.truncate(file, 65).unwrap();
    assert!(unfinished, "26 extents are more than one step");
    assert_eq!(
        (store.count(Table::Cuts), store.content(file).len()),
        (1, 65)
    );
    store.audit();
    assert_eq!(store.truncate(file, 1000), Err(ErrorKind::Busy));
    assert_eq!(store.write(file, 60, &[1; 10]), Err(ErrorKind::Busy));
    let reserve = Operation::ChangeRange {
        inode: file,
        offset: 0,
        length: 66,
        change: RangeChange::Reserve,
        keep_size: true,
    };
    assert_eq!(store.run(&reserve), Err(ErrorKind::Busy));
    store.write(file, 55, &[1; 10]).unwrap();
    assert!(store.extents(file).iter().all(|extent| extent.end() <= 65));
    store.truncate(file, 43).unwrap();
    store.background();
    let (after, _) = store.truncate(file, 2000).unwrap();
    assert_eq!((after.size, after.allocated), (2000, 23));
    let content = store.content(file);
    assert!(
        content[43..].iter().all(|b| *b == 0),
        "old data never shows up in the hole"
    );
    assert_eq!(content[42], 3);
    store.audit();
}

#[test]
fn a_truncate_to_the_same_size_moves_the_times() {
    let mut store = Store::new();
    let file = store.file("f");
    store.write(file, 0, &[1; 100]).unwrap();
    let before = store.attributes(file).unwrap();
    let (after, _) = store.truncate(file, 100).unwrap();
    assert!(after.mtime > before.mtime && after.ctime > before.ctime && after.size == 100);
    assert_eq!(store.truncate(ROOT, 0), Err(ErrorKind::IsDirectory));
    assert_eq!(store.truncate(file, u64::MAX), Err(ErrorKind::FileTooLarge));
}

#[test]
fn a_small_file_is_cut_and_grown_in_place() {
    let mut store = Store::new();
    let file = store.file("f");
    store.write_inline(file, 0, &[7; 100]).unwrap();
    store.truncate(file, 50).unwrap();
    store.truncate(file, 80).unwrap();
    assert_eq!(store.content(file), [vec![7; 50], vec![0; 30]].concat());
    assert_eq!(store.attributes(file).unwrap().allocated, 50);
    store.audit();
    store.truncate(file, 0).unwrap();
    assert_eq!(store.count(Table::Reclaims), 0);
    store.audit();
}

#[test]
fn punch_makes_holes_and_keeps_the_size() {
    let mut store = Store::new();
    let file = sparse(&mut store, 30);
    let size = store.attributes(file).unwrap().size;
    change(&mut store, file, 5, 500, RangeChange::Punch, true);
    let content = store.content(file);
    assert!(
        content.len() as u64 == size
            && content[..5] == [1; 5]
            && content[5..505].iter().all(|b| *b == 0)
    );
    assert_eq!(content[505], 26);
    assert!(
        store
            .extents(file)
            .iter()
            .all(|extent| extent.end() <= 5 || extent.offset >= 505)
    );
}

#[test]
fn zero_and_reserve_hold_space_and_keep_other_bytes() {
    let mut store = Store::new();
    let file = sparse(&mut store, 30);
    change(&mut store, file, 25, 400, RangeChange::Zero, true);
    let content = store.content(file);
    assert!(content[24] == 2 && content[25..425].iter().all(|b| *b == 0) && content[425] == 22);
    change(&mut store, file, 0, 1000, RangeChange::Reserve, false);
    let after = store.attributes(file).unwrap();
    assert_eq!((after.size, after.allocated), (1000, 1000));
    assert_eq!(store.content(file)[..590], content[..590]);
    change(&mut store, file, 1000, 500, RangeChange::Reserve, true);
    let after = store.attributes(file).unwrap();
    assert_eq!((after.size, after.allocated), (1000, 1500));
    store.truncate(file, 1000).unwrap();
    store.background();
    assert_eq!(store.attributes(file).unwrap().allocated, 1000);
    let empty = Operation::ChangeRange {
        inode: file,
        offset: 0,
        length: 0,
        change: RangeChange::Punch,
        keep_size: true,
    };
    assert_eq!(store.run(&empty), Err(ErrorKind::InvalidArgument));
}

#[test]
fn shared_bytes_outlive_their_source() {
    let mut store = Store::new();
    let from = sparse(&mut store, 30);
    let to = store.file("to");
    store.write(to, 0, &[99; 700]).unwrap();
    let expected = store.content(from);
    let mut next = Some(3);
    while let Some(from_offset) = next {
        let to_offset = from_offset + 4;
        let operation = Operation::Share {
            from,
            from_offset,
            to,
            to_offset,
            length: 10_000,
        };
        let Ok(Reply::RangeChanged { next: further, .. }) = store.run(&operation) else {
            panic!()
        };
        // It ends where the source does, short of the requested length.
        next = further.filter(|further| *further > from_offset);
        assert!(next.is_some() || further == Some(590));
        store.audit();
    }
    store.unlink(ROOT, "sparse").unwrap();
    store.background();
    let content = store.content(to);
    assert_eq!(content[7..594], expected[3..590]);
    assert!(content[..7].iter().chain(&content[594..]).all(|b| *b == 99) && content.len() == 700);
    store.audit();
}

#[test]
fn sharing_inside_a_file_must_not_overlap() {
    let mut store = Store::new();
    let file = store.file("f");
    store.write_inline(file, 0, &[7; 100]).unwrap();
    let share = |to_offset| Operation::Share {
        from: file,
        from_offset: 0,
        to: file,
        to_offset,
        length: 100,
    };
    assert_eq!(store.run(&share(50)), Err(ErrorKind::InvalidArgument));
    store.run(&share(100)).unwrap();
    assert_eq!(store.content(file), [7; 200]);
    let beyond = Operation::Share {
        from: file,
        from_offset: 500,
        to: file,
        to_offset: 0,
        length: 1,
    };
    assert!(matches!(
        store.run(&beyond),
        Ok(Reply::RangeChanged {
            next: Some(500),
            ..
        })
    ));
    store.audit();
}

#[test]
fn a_range_reserved_in_small_steps_is_one_record() {
    for change_kind in [RangeChange::Zero, RangeChange::Reserve] {
        let mut store = Store::new();
        let file = store.file("f");
        let bytes = (0..100).rev().filter(|at| at % 2 == 0);
        for at in bytes.chain((0..100).filter(|at| at % 2 == 1)) {
            change(&mut store, file, at, 1, change_kind, false);
        }
        assert_eq!(store.count(Table::Extents), 1, "{change_kind:?}");
        // Ranges already reserved stay as they are.
        change(&mut store, file, 40, 20, change_kind, false);
        assert_eq!(store.count(Table::Extents), 1, "{change_kind:?}");
        let after = store.attributes(file).unwrap();
        assert_eq!((after.size, after.allocated), (100, 100));
        // Zeros over data share one record with the reservations around it.
        store.write(file, 30, &[7; 10]).unwrap();
        store.audit();
        change(&mut store, file, 30, 10, RangeChange::Zero, true);
        assert_eq!(store.count(Table::Extents), 1, "{change_kind:?}");
        assert_eq!(store.content(file), [0; 100]);
    }
}

#[test]
fn files_of_the_largest_size_are_counted_and_go() {
    let mut store = Store::new();
    let largest = model::limits::FILE_BYTES_MAX;
    for name in ["a", "b", "c", "d", "e"] {
        let file = store.file(name);
        store.truncate(file, largest).unwrap();
        store.audit();
    }
    let Ok(Reply::Usage { logical, .. }) = store.run(&Operation::GetUsage { inode: ROOT }) else {
        panic!("GetUsage answers Usage")
    };
    assert_eq!(logical, 5 * u128::from(largest));
    for name in ["a", "b", "c", "d", "e"] {
        store.unlink(ROOT, name).unwrap();
    }
    assert_eq!(store.audit().logical, 0);
    let file = store.file("f");
    assert_eq!(
        store.truncate(file, largest + 1).unwrap_err(),
        ErrorKind::FileTooLarge
    );
}

#[test]
fn a_publish_over_very_many_extents_is_refused_until_it_is_cut_small_enough() {
    let mut store = Store::new();
    let file = store.file("f");
    for at in 0..1200u64 {
        store.write(file, at * 2, &[1]).unwrap();
    }
    let place = store.segment(&[2; 2400]);
    let part = |from: u64, to: u64| vec![data(from, to - from, place, from as u32)];
    assert_eq!(
        store.publish(file, part(0, 2400), 2400).unwrap_err(),
        ErrorKind::Overflow
    );
    let believed = Publish {
        inode: file,
        extents: part(0, 2400),
        size_at_least: 0,
        written: None,
        replaces: Some(Vec::new()),
    };
    assert_eq!(
        store.run(&Operation::Publish(believed)).unwrap_err(),
        ErrorKind::Overflow
    );
    store.publish(file, part(0, 1200), 1200).unwrap();
    store.publish(file, part(1200, 2400), 2400).unwrap();
    assert_eq!(store.content(file), [2; 2400]);
    store.audit();
}
