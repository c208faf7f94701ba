//! Written bytes read back, whatever the range and whatever is missing.

use super::*;
use crate::SuspectCause;
use model::ErrorKind;
use model::nsd::{BlobDelete, BlobPut, GroupFence};

#[test]
fn every_range_of_a_segment_reads_back() {
    with_pool(WIDE, 6, DISK_BYTES, async |rig| {
        for length in [1, 4095, 4096, 65_535, 65_536, 100_001, 4 * MIB, 16 * MIB] {
            let bytes = plain(length, length as u64);
            let place = rig.write(&bytes).await;
            assert_eq!(place.missing, 0);
            assert_eq!(rig.read(&place).await, bytes);
            for (at, part) in [
                (0, 1),
                (length - 1, 1),
                (length / 3, length / 2),
                (length / 4, (length / 4).max(1)),
            ] {
                let part = part.min(length - at);
                let chunks = rig
                    .pool
                    .read(&place, at as u32, part as u32)
                    .await
                    .expect("inside");
                assert_eq!(
                    chunks.concat(),
                    bytes[at..at + part],
                    "{part} bytes at {at} of {length}"
                );
            }
        }
    });
}

#[test]
fn a_range_outside_of_the_segment_is_refused() {
    with_pool(Scheme::Replicate(1), 1, DISK_BYTES, async |rig| {
        let place = rig.write(&plain(100, 1)).await;
        for (at, length) in [(0, 101), (100, 1), (u32::MAX, 2)] {
            let error = rig
                .pool
                .read(&place, at, length)
                .await
                .expect_err("outside");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        assert!(
            rig.pool
                .read(&place, 100, 0)
                .await
                .expect("nothing")
                .is_empty()
        );
        let empty = rig.pool.write(&rig.source, OWNER, Bytes::new()).await;
        assert_eq!(empty.expect_err("empty").kind(), ErrorKind::InvalidArgument);
    });
}

#[test]
fn any_two_of_six_nsds_may_be_away() {
    with_pool(WIDE, 6, DISK_BYTES, async |rig| {
        let long = plain(MIB + 77, 1);
        let short = plain(9000, 2);
        let places = [rig.write(&long).await, rig.write(&short).await];
        for first in 1..=6 {
            for second in first + 1..=6 {
                let away = [first, second].map(|nsd| rig.disconnect(NsdId(nsd)));
                assert_eq!(rig.read(&places[0]).await, long);
                assert_eq!(rig.read(&places[1]).await, short);
                let part = rig
                    .pool
                    .read(&places[0], 300_000, 70_000)
                    .await
                    .expect("readable")
                    .concat();
                assert_eq!(part, long[300_000..370_000]);
                for nsd in away {
                    rig.connect(nsd).await;
                }
            }
        }
    });
}

#[test]
fn three_of_six_away_is_unavailable_and_not_corrupt() {
    with_pool(WIDE, 6, DISK_BYTES, async |rig| {
        let place = rig.write(&plain(MIB, 1)).await;
        for nsd in 1..=3 {
            rig.disconnect(NsdId(nsd));
        }
        let error = rig.pool.read_whole(&place).await.expect_err("too few");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    });
}

#[test]
fn a_deleted_segment_is_not_found_and_leaves_nothing() {
    with_pool(WIDE, 6, DISK_BYTES, async |rig| {
        let places = [
            rig.write(&plain(MIB, 1)).await,
            rig.write(&plain(10, 1)).await,
        ];
        rig.pool.delete(&places).await.expect("nothing is away");
        for place in &places {
            assert_eq!(
                rig.pool.read_whole(place).await.expect_err("gone").kind(),
                ErrorKind::NotFound
            );
        }
        assert_eq!(rig.pool.usage().blobs, 0);
    });
}

/// Flips a bit of the first byte of a piece on its disk.
fn damage(rig: &Rig, simulation_disk: &world::sim::SimDisk, piece: &[u8]) {
    let content = simulation_disk.content(0, DISK_BYTES as usize);
    let at = content
        .chunks(4096)
        .position(|unit| unit.starts_with(&piece[..64]))
        .expect("the piece is on the disk");
    rig.faults
        .flip_bit(simulation_disk.name(), at as u64 * 4096 + 5);
}

#[test]
fn a_damaged_piece_is_rebuilt_by_the_reader_and_then_mended() {
    let simulation = Simulation::new(1);
    let disks: Vec<_> = (1..=6)
        .map(|nsd| simulation.disk(&format!("{nsd}"), DISK_BYTES))
        .collect();
    let faults = simulation.faults();
    let run = async |world: World| {
        let rig = Rig::new(world, faults, WIDE, 6).await;
        for (length, piece) in [(2 * MIB, 1u8), (2 * MIB, 5), (70_000, 0)] {
            let bytes = plain(length, 17 + u64::from(piece));
            let place = rig.write(&bytes).await;
            let pieces = placement::codec::encode(place.scheme, &bytes.clone().into());
            let nsd = rig.holder(&place, piece);
            damage(
                &rig,
                &disks[nsd.0 as usize - 1],
                pieces[usize::from(piece)].bytes(),
            );
            assert_eq!(rig.read(&place).await, bytes);
            let outcome = rig
                .pool
                .repair_segment(&place, Depth::Bytes)
                .await
                .expect("five are good");
            assert_eq!(
                (outcome.rebuilt, outcome.mended, outcome.missing),
                (1, 1, 0),
                "piece {piece}"
            );
            let suspects = rig.pool.take_suspects(9, |_| true);
            if piece < 4 {
                assert_eq!(
                    (suspects.len(), suspects[0].cause, suspects[0].pieces),
                    (1, SuspectCause::Damaged, 1 << piece)
                );
            }
            assert!(rig.is_whole(&place).await);
        }
        assert_eq!(rig.pool.repair_progress().mended_pieces, 3);
    };
    simulation.run(run).finished();
}

/// Replaces a piece by other bytes, which fit the checksums that its NSD has of it then.
async fn make_wrong(rig: &Rig, place: &SegmentPlace, piece: u8) {
    let name = place.blob(piece);
    let nsd = rig.nsd(rig.holder(place, piece));
    let info = nsd.info(name).await.expect("it was written");
    let version = rig.pool.map().version(place.group);
    let fence = GroupFence {
        group: place.group,
        version,
    };
    let delete = BlobDelete {
        names: vec![name],
        fences: vec![fence],
    };
    nsd.delete(delete).await.expect("deleted");
    let put = BlobPut {
        name,
        nonce: info.nonce,
        header: info.header,
        payload: plain(info.length as usize, 99).into(),
        fence: version,
    };
    nsd.put(put).await.expect("put");
}

/// Would be broken if any copy or piece were believed that fits its own checksums, or if the segment were given up
/// although enough of it is good.
#[test]
fn a_wrong_piece_that_fits_its_checksums_is_found_by_the_others_and_mended() {
    for scheme in [WIDE, Scheme::Replicate(3)] {
        with_pool(scheme, 6, DISK_BYTES, async |rig| {
            for piece in 0..scheme.width() as u8 {
                let bytes = plain(MIB, u64::from(piece));
                let place = rig.write(&bytes).await;
                make_wrong(&rig, &place, piece).await;
                assert_eq!(rig.read(&place).await, bytes, "piece {piece} of {scheme}");
                let repaired = rig.pool.repair_segment(&place, Depth::Bytes).await;
                let outcome = repaired.expect("the others are good");
                assert_eq!(
                    (outcome.rebuilt, outcome.mended, outcome.missing),
                    (1, 1, 0),
                    "piece {piece} of {scheme}"
                );
                assert!(rig.is_whole(&place).await);
            }
        });
    }
}

#[test]
fn two_wrong_pieces_that_fit_their_checksums_are_an_error_and_no_wrong_bytes() {
    with_pool(WIDE, 6, DISK_BYTES, async |rig| {
        let place = rig.write(&plain(MIB, 1)).await;
        for piece in [0, 3] {
            make_wrong(&rig, &place, piece).await;
        }
        let told = rig.pool.read_whole(&place).await.expect_err("wrong");
        assert_eq!(told.kind(), ErrorKind::Corrupt);
        let suspects = rig.pool.take_suspects(9, |_| true);
        assert!(
            suspects
                .iter()
                .any(|it| it.cause == SuspectCause::Unreadable)
        );
    });
}

/// Would be broken if the segment were said to be damaged for good, although pieces that are away show which one is wrong.
#[test]
fn a_wrong_piece_is_found_once_enough_others_are_back() {
    with_pool(WIDE, 6, DISK_BYTES, async |rig| {
        let bytes = plain(MIB, 1);
        let place = rig.write(&bytes).await;
        make_wrong(&rig, &place, 0).await;
        let away = [4, 5].map(|piece| rig.disconnect(rig.holder(&place, piece)));
        let told = rig.pool.read_whole(&place).await.expect_err("one is wrong");
        assert_eq!(told.kind(), ErrorKind::Unavailable);
        for nsd in away {
            rig.connect(nsd).await;
        }
        assert_eq!(rig.read(&place).await, bytes);
    });
}

#[test]
fn a_slow_nsd_is_hedged_by_rebuilding_from_the_others() {
    for scheme in [WIDE, Scheme::Replicate(3)] {
        with_pool(scheme, 6, DISK_BYTES, async |rig| {
            let bytes = plain(MIB, 1);
            let place = rig.write(&bytes).await;
            for piece in 0..scheme.width() as u8 {
                let slow = rig.holder(&place, piece).to_string();
                rig.faults.slow(&slow, Duration::from_secs(8));
                let started = rig.world.now();
                assert_eq!(rig.read(&place).await, bytes);
                let took = rig.world.now() - started;
                assert!(
                    took < Duration::from_millis(1500),
                    "piece {piece} of {scheme}: {took:?}"
                );
                rig.faults.heal(&slow);
            }
        });
    }
}

/// Read times by NSD after five minutes of reading all segments repeatedly, `at_once` at a time.
async fn read_times(rig: &Rig, places: &[SegmentPlace], at_once: usize) -> Vec<Duration> {
    for _ in 0..100 {
        for some in places.chunks(at_once) {
            let reads = some.iter().map(|place| rig.pool.read_whole(place));
            for read in futures::future::join_all(reads).await {
                read.expect("enough pieces are there");
            }
        }
        rig.world.sleep(Duration::from_secs(3)).await;
    }
    let states = rig.pool.nsd_states();
    let times = states.iter().map(|state| state.read_time);
    times.map(|time| time.expect("it was read often")).collect()
}

#[test]
fn an_nsd_that_is_slow_for_minutes_stands_out_and_a_busy_one_does_not() {
    if is_by_call() {
        // Requests that arrive twice load the disks: times would prove nothing.
        return;
    }
    with_pool(WIDE, 6, DISK_BYTES, async |rig| {
        let mut places = Vec::new();
        for seed in 0..24 {
            places.push(rig.write(&plain(100_000, seed)).await);
        }
        rig.faults.slow("4", Duration::from_millis(100));
        let mut times = read_times(&rig, &places, 1).await;
        let slow = times.remove(3);
        assert!(
            times.iter().all(|time| slow > *time * 4),
            "{slow:?} {times:?}"
        );
        // All NSDs are equally slow, and many reads run at once.
        for nsd in 1..=6 {
            rig.faults
                .slow(&nsd.to_string(), Duration::from_millis(100));
        }
        rig.world.sleep(Duration::from_secs(600)).await;
        let times = read_times(&rig, &places, 24).await;
        let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        assert!(*most < *least * 4, "{times:?}");
    });
}
