//! Lookups whose entries aren't in memory.

use super::*;
use crate::Nsd;
use crate::handle::Handle;
use crate::open::{open, open_with};
use crate::small::{BYTES, IDENTITY, blob, disk_of, formatted, machine};
use futures::future::join_all;
use model::nsd::{BlobPut, LogPut};
use model::{EntryNumber, ErrorKind, ShardEpoch, ShardId};
use std::future::Future;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::time::Duration;
use world::{Deadline, Disk, Part, World, errand};

const SHARD: ShardId = ShardId(3);
/// Entries of the shard's log: more than a page of the index has.
const ENTRIES: u64 = 300;

fn key(number: u64) -> Key {
    Key::log(SHARD, EntryNumber(number))
}

fn entry(number: u64) -> LogPut {
    LogPut {
        shard: SHARD,
        epoch: ShardEpoch(1),
        number: EntryNumber(number),
        bytes: vec![5; 50].into(),
    }
}

/// Makes an NSD whose log has entries 1 to [`ENTRIES`], all of them in the index.
async fn fill(world: &World, disk: &Disk) {
    let core = formatted(world, disk.clone()).await;
    let puts = (1..=ENTRIES).map(|number| core.clone().put_log(entry(number)));
    for put in join_all(puts).await {
        put.unwrap();
    }
    core.close().await.unwrap();
}

/// The machine's NSD, opened after [`fill`].
async fn open_filled(world: &World) -> Arc<Core> {
    let disk = disk_of(world);
    fill(world, &disk).await;
    open(world, disk).await.unwrap()
}

/// Whether a future waits at its first poll.
fn waits(future: std::pin::Pin<&mut impl Future>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    future.poll(&mut context).is_pending()
}

/// Would be broken if a disk that hangs while its index is read held up requests that don't concern it: a thread of a mount
/// has several, and one of the runtime any.
#[test]
fn a_lookup_whose_disk_hangs_holds_up_no_thread() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let _context = runtime.enter();
    let world = World::real();
    let disk = world.create_disk(&folder.path().join("nsd"), BYTES);
    let disk = disk.unwrap();
    let core = runtime.block_on(async {
        fill(&world, &disk).await;
        // Without memory for pages each lookup reads some.
        open_with(&world, disk, 0).await.unwrap()
    });

    let (tell, told) = mpsc::sync_channel(1);
    let (own, on) = (core.clone(), world.clone());
    let look = move || {
        let keys: Vec<Key> = (1..=ENTRIES).map(key).collect();
        let mut lookups: Vec<_> = keys.iter().map(|key| Box::pin(own.locate(key))).collect();
        assert!(lookups.iter_mut().all(|lookup| waits(lookup.as_mut())));
        let free_places = own.lookups.available_permits();

        let nsd = Nsd { core: own.clone() };
        let handle = Handle::local(&on, Arc::new(nsd));
        let read = |patience| {
            let deadline = Deadline::after(&on, Duration::from_millis(patience));
            handle.log_read(SHARD, EntryNumber(1), 1, deadline)
        };
        let mut listed = Box::pin(errand::begin(read(3_600_000)));
        assert!(waits(listed.as_mut()));
        let (all, _) = on.waits();
        let is_listed = all
            .iter()
            .any(|wait| wait.part == Part::ForNsd(IDENTITY.nsd));
        let late = on.block_on(read(1)).unwrap_err();
        tell.send((free_places, is_listed, late.kind())).unwrap();
        // The disk works again.
        for found in on.block_on(join_all(lookups)) {
            assert!(found.unwrap().is_some());
        }
        assert_eq!(on.block_on(listed).unwrap().len(), 1);
    };
    let (looking, told) = core.index.hang_during(|| {
        let looking = world.spawn_thread("looks", look);
        (looking, told.recv_timeout(Duration::from_secs(60)))
    });
    looking.join().unwrap();
    let told = told.expect("who looks up isn't held up");
    assert_eq!(told, (0, true, ErrorKind::Unknown));
    assert!(core.is_at_hand(&key(1)));
}

/// Would be broken if the index were read for each entry that is appended to a log, before a program's fsync returns; or if
/// what was known not to be there stayed unknown once it is.
#[test]
fn what_a_log_does_not_have_yet_is_known_without_a_look() {
    let ran = machine().run(async |world: World| {
        let core = open_filled(&world).await;
        assert!(!core.is_at_hand(&key(ENTRIES)));
        assert!(core.is_at_hand(&key(ENTRIES + 1)));
        assert!(core.is_at_hand(&Key::log(ShardId(4), EntryNumber(0))));

        core.clone().put_log(entry(ENTRIES + 9)).await.unwrap();
        let between = key(ENTRIES + 5);
        assert!(!core.is_at_hand(&between));
        assert_eq!(core.locate(&between).await.unwrap(), None);
        assert!(core.is_at_hand(&between));
        core.clone().put_log(entry(ENTRIES + 5)).await.unwrap();
        for _ in 0..2 {
            for number in [1, ENTRIES + 5, ENTRIES + 9] {
                assert!(core.locate(&key(number)).await.unwrap().is_some());
            }
            core.checkpoint().await.unwrap();
        }
        let epoch = ShardEpoch(1);
        let below = EntryNumber(ENTRIES + 9);
        core.clone().trim(SHARD, epoch, below).await.unwrap();
        for _ in 0..2 {
            for number in [1, ENTRIES, ENTRIES + 5] {
                assert_eq!(core.locate(&key(number)).await.unwrap(), None);
            }
            assert!(core.locate(&key(ENTRIES + 9)).await.unwrap().is_some());
            core.checkpoint().await.unwrap();
        }
        assert_eq!(core.usage().log_entries, 1);
    });
    ran.finished();
}

/// Would be broken if the index were read for each new segment, on a thread that must be woken for it; or if what was known not
/// to be there stayed unknown once it is, also after the NSD was opened again.
#[test]
fn what_a_session_has_not_written_yet_is_known_without_a_look() {
    let blob = |counter| blob(counter, 1);
    let key = move |counter| Key::blob(blob(counter).name);
    let ran = machine().run(async move |world: World| {
        let core = open_filled(&world).await;
        assert!(core.is_at_hand(&key(1)));
        for counter in [1, 3] {
            core.clone().put_blob(blob(counter)).await.unwrap();
        }
        assert!(core.is_at_hand(&key(2)));
        core.clone().put_blob(blob(2)).await.unwrap();
        core.close().await.unwrap();
        drop(core);

        let core = open(&world, disk_of(&world)).await.unwrap();
        for counter in 1..=3 {
            assert!(!core.is_at_hand(&key(counter)));
            assert!(core.locate(&key(counter)).await.unwrap().is_some());
        }
        assert!(core.is_at_hand(&key(4)));
        assert_eq!(core.locate(&key(4)).await.unwrap(), None);
        // One that is put again is known as that, and another writer's isn't taken.
        core.clone().put_blob(blob(2)).await.unwrap();
        let other = BlobPut {
            nonce: 9,
            ..blob(2)
        };
        let refused = core.clone().put_blob(other).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Exists);
    });
    ran.finished();
}

/// Would be broken if who writes the journal, for whom all who write wait, had to wait until reads have looked up what they
/// need: an fsync then lasted as long as the queue of these.
#[test]
fn who_writes_the_journal_waits_for_no_turn_among_lookups() {
    let ran = machine().run(async |world: World| {
        let core = open_filled(&world).await;
        let all = u32::try_from(core.lookups.available_permits()).unwrap();
        let reads = core.lookups.clone().acquire_many_owned(all).await.unwrap();
        // What it removes isn't in memory.
        let below = EntryNumber(9);
        let trim = core.clone().trim(SHARD, ShardEpoch(1), below);
        let trimmed = world.timeout(Duration::from_secs(60), trim).await;
        trimmed.expect("nobody holds it up").unwrap();
        drop(reads);
        assert_eq!(core.locate(&key(8)).await.unwrap(), None);
        assert!(core.locate(&key(9)).await.unwrap().is_some());
    });
    ran.finished();
}
