//! Space is counted, held and released; a full pool refuses writes and recovers.

use super::*;
use model::ErrorKind;

const SMALL_DISK: u64 = 96 << 20;

#[test]
fn reservations_end_where_users_space_ends_and_come_back_when_dropped() {
    with_pool(Scheme::Replicate(2), 3, SMALL_DISK, async |rig| {
        let usage = rig.pool.usage();
        assert!(usage.raw_capacity <= 3 * SMALL_DISK && usage.capacity < usage.raw_capacity / 2);
        let all = rig
            .pool
            .reserve(usage.available_to_users)
            .expect("exactly the free space");
        assert_eq!(rig.pool.usage().available_to_users, 0);
        assert_eq!(
            rig.pool
                .reserve(1)
                .map(|_| ())
                .expect_err("nothing left")
                .kind(),
            ErrorKind::NoSpace
        );
        assert_eq!(rig.pool.usage().held, usage.available_to_users);
        let mut all = all;
        let part = all.split(1000);
        all.release(500);
        assert!(rig.pool.reserve(500).is_ok());
        drop(part);
        drop(all);
        assert_eq!(
            rig.pool.usage().available_to_users,
            usage.available_to_users
        );
    });
}

#[test]
fn a_full_pool_refuses_segments_and_takes_them_again_after_deletes() {
    with_pool(WIDE, 6, SMALL_DISK, async |rig| {
        let bytes = plain(4 * MIB, 1);
        let mut places = Vec::new();
        let error = loop {
            match rig.pool.write(&rig.source, OWNER, bytes.clone()).await {
                Ok(place) => places.push(place),
                Err(error) => break error,
            }
            assert!(places.len() < 200, "the disks hold less");
        };
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert!(
            places.len() > 40,
            "{} segments of 4 MiB on 6 x 96 MiB",
            places.len()
        );
        assert!(rig.pool.usage().available_to_users < 16 << 20);
        assert_eq!(rig.read(&places[0]).await, bytes);
        rig.pool
            .delete(&places)
            .await
            .expect("deleting always works");
        let place = rig.write(&bytes).await;
        assert_eq!((place.scheme, rig.read(&place).await), (WIDE, bytes));
    });
}

#[test]
fn use_follows_what_is_written_at_once() {
    with_pool(WIDE, 6, DISK_BYTES, async |rig| {
        let before = rig.pool.usage();
        rig.write(&plain(8 * MIB, 1)).await;
        let after = rig.pool.usage();
        let raw = after.raw_used - before.raw_used;
        assert!(
            (12 << 20..13 << 20).contains(&raw),
            "{raw} bytes for 8 MiB at 4+2"
        );
        assert!(before.available_to_users - after.available_to_users >= 8 << 20);
    });
}

/// Fills the pool with short segments and deletes every second one.
async fn cut_up(rig: &Rig, short: &Bytes) {
    let mut places = Vec::new();
    while let Ok(place) = rig.pool.write(&rig.source, OWNER, short.clone()).await {
        places.push(place);
        assert!(places.len() < 10_000, "the disk holds less");
    }
    let every_second: Vec<SegmentPlace> = places.iter().copied().step_by(2).collect();
    rig.pool
        .delete(&every_second)
        .await
        .expect("deleting always works");
}

#[test]
fn a_pool_with_fragmented_free_space_is_full_and_not_away() {
    with_pool(Scheme::Replicate(1), 1, SMALL_DISK, async |rig| {
        let bytes = plain(20_000, 1);
        cut_up(&rig, &bytes).await;
        assert!(rig.pool.usage().available_to_users > 16 << 20);
        let refused = rig.pool.write(&rig.source, OWNER, plain(12 * MIB, 2)).await;
        let refused = refused.expect_err("it would need hundreds of runs");
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        // A segment that fits into one of the gaps is accepted.
        assert_eq!(rig.read(&rig.write(&bytes).await).await, bytes);
        let long = plain(12 * MIB, 3);
        let parts = rig.pool.write_parts(&rig.source, OWNER, long.clone()).await;
        let mut whole = Vec::new();
        for place in parts.expect("there is space in many places") {
            whole.extend_from_slice(&rig.read(&place).await);
        }
        assert!(long == whole);
        let blobs = rig.pool.usage().blobs;
        let longer = plain(16 * MIB, 4);
        for _ in 0..3 {
            let parts = rig
                .pool
                .write_parts(&rig.source, OWNER, longer.clone())
                .await;
            if let Err(full) = parts {
                assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
                break;
            }
        }
        assert!(rig.pool.usage().blobs >= blobs);
    });
}

#[test]
fn an_nsd_with_fragmented_free_space_costs_no_copy() {
    with_pool(Scheme::Replicate(2), 2, SMALL_DISK, async |rig| {
        // Fragments only the first NSD.
        let other = rig.disconnect(NsdId(2));
        cut_up(&rig, &plain(20_000, 1)).await;
        rig.connect(other).await;
        let long = plain(12 * MIB, 2);
        let refused = rig.pool.write(&rig.source, OWNER, long.clone()).await;
        let refused = refused.expect_err("one NSD can't fit it");
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        let parts = rig.pool.write_parts(&rig.source, OWNER, long.clone()).await;
        let mut whole = Vec::new();
        for place in parts.expect("there is space in many places") {
            assert_eq!(place.scheme, Scheme::Replicate(2));
            whole.extend_from_slice(&rig.read(&place).await);
        }
        assert!(long == whole);
    });
}

/// Fills all NSDs of a pool but one, which is away while the others fill up.
async fn fill_all_but(rig: &Rig, nsd: u32) -> (Vec<SegmentPlace>, Bytes) {
    let other = rig.disconnect(NsdId(nsd));
    let bytes = plain(MIB, 1);
    let mut places = Vec::new();
    while let Ok(place) = rig.pool.write(&rig.source, OWNER, bytes.clone()).await {
        places.push(place);
        assert!(places.len() < 200, "the disk holds less");
    }
    rig.connect(other).await;
    (places, bytes)
}

#[test]
fn a_full_nsd_costs_no_copy_but_one_that_is_away_does() {
    with_pool(Scheme::Replicate(2), 2, SMALL_DISK, async |rig| {
        let (places, bytes) = fill_all_but(&rig, 2).await;
        assert_eq!(places[0].scheme, Scheme::Replicate(1), "the other was away");
        let refused = rig.pool.write(&rig.source, OWNER, bytes.clone()).await;
        let refused = refused.expect_err("one NSD is full");
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        // Tables are still written with the remaining space: deleting needs them.
        let table = SegmentOwner::table(OWNER.family);
        let table = rig
            .pool
            .write_table_parts(&rig.source, table, bytes.clone());
        let table = table.await.expect("one NSD has space");
        assert_eq!(table[0].scheme, Scheme::Replicate(1));
        let full = rig.disconnect(NsdId(1));
        assert_eq!(rig.write(&bytes).await.scheme, Scheme::Replicate(1));
        rig.connect(full).await;
        let half = &places[..places.len() / 2];
        rig.pool.delete(half).await.expect("deleting always works");
        let place = rig.write(&bytes).await;
        assert_eq!(place.scheme, Scheme::Replicate(2));
        assert_eq!(rig.read(&place).await, bytes);
    });
}

#[test]
fn space_in_only_one_failure_group_is_not_available() {
    with_pool(Scheme::Replicate(2), 2, SMALL_DISK, async |rig| {
        let empty = rig.pool.usage();
        let (places, _) = fill_all_but(&rig, 2).await;
        let usage = rig.pool.usage();
        assert_eq!(usage.available_to_users, 0);
        assert!(usage.free < 8 << 20, "{usage:?}");
        assert_eq!(usage.capacity, empty.capacity);
        let refused = rig.pool.reserve(1).map(drop).expect_err("nothing left");
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        rig.pool.delete(&places).await.expect("deleting works");
        let available = rig.pool.usage().available_to_users;
        assert!(available > empty.available_to_users / 10 * 9, "{available}");
    });
}

#[test]
fn space_in_too_few_failure_groups_for_a_coded_segment_is_not_available() {
    with_pool(WIDE, 4, SMALL_DISK, async |rig| {
        let empty = rig.pool.usage();
        let (places, bytes) = fill_all_but(&rig, 4).await;
        assert_eq!(
            places[0].scheme,
            Scheme::Replicate(3),
            "the fourth was away"
        );
        let refused = rig.pool.write(&rig.source, OWNER, bytes).await;
        assert_eq!(
            refused.expect_err("one has space").kind(),
            ErrorKind::NoSpace
        );
        assert_eq!(rig.pool.usage().available_to_users, 0);
        let refused = rig.pool.reserve(1).map(drop).expect_err("nothing left");
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        rig.pool.delete(&places).await.expect("deleting works");
        let available = rig.pool.usage().available_to_users;
        assert!(available > empty.available_to_users / 10 * 9, "{available}");
    });
}

/// Would make each operation on a full pool wait anew for an NSD that is gone for good.
#[test]
fn an_nsd_that_says_nothing_is_waited_for_once() {
    with_pool(Scheme::Replicate(2), 4, SMALL_DISK, async |rig| {
        let all = rig.pool.usage().raw_capacity;
        let away = rig.disconnect(NsdId(4));
        let node = Arc::<NsdServer>::default();
        let link = Loopback::new(&rig.world, node.clone(), Duration::from_millis(1));
        rig.pool.add_remote_nsd(NsdId(4), link);
        rig.pool.refresh();
        assert_eq!(rig.pool.usage().unknown, 1);
        let began = rig.world.now();
        // Two that wait at the same time, and one of which the request was repeated.
        let repeated = async {
            rig.world.sleep(Duration::from_secs(15)).await;
            rig.pool.until_known().await;
        };
        futures::future::join(rig.pool.until_known(), repeated).await;
        let waited = rig.world.now() - began;
        assert!((20..21).contains(&waited.as_secs()), "{waited:?}");
        assert_eq!(rig.pool.usage().unknown, 0, "it isn't waited for again");
        rig.pool.until_known().await;
        assert_eq!(rig.world.now() - began, waited);
        // When it comes nevertheless, its room counts.
        node.add(away);
        let handle = rig.pool.handle(NsdId(4)).expect("it was added");
        while !handle.is_known() {
            rig.world.sleep(Duration::from_millis(100)).await;
        }
        rig.pool.refresh();
        assert_eq!(rig.pool.usage().raw_capacity, all);
    });
}
