//! The lock tables keep their promises: ranges, waiters, deadlocks, against a byte-wise model.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const FILE: InodeId = InodeId(7);

fn process(id: u64) -> LockOwner {
    LockOwner::Process(SessionId(1), id)
}

fn open_file(id: u64) -> LockOwner {
    LockOwner::OpenFile(SessionId(1), id)
}

fn range(start: u64, end: u64) -> LockRange {
    LockRange { start, end }
}

fn lock(owner: LockOwner, kind: Option<LockKind>, at: LockRange) -> Request {
    Request {
        space: Space::Range,
        inode: FILE,
        owner,
        kind,
        range: at,
        pid: 1,
    }
}

fn kind_of(error: Error) -> ErrorKind {
    error.kind()
}

#[test]
fn ranges_of_one_owner_split_and_join() {
    let mut table: Table<u32> = Table::default();
    let shared = Some(LockKind::Shared);
    let exclusive = Some(LockKind::Exclusive);
    table
        .request(lock(process(1), exclusive, range(0, 99)), None)
        .unwrap();
    table
        .request(lock(process(1), shared, range(20, 29)), None)
        .unwrap();
    let held = |table: &Table<u32>| -> Vec<(u64, u64, LockKind)> {
        table
            .held(Space::Range, FILE)
            .iter()
            .map(|lock| (lock.range.start, lock.range.end, lock.kind))
            .collect()
    };
    assert_eq!(
        held(&table),
        [
            (0, 19, LockKind::Exclusive),
            (20, 29, LockKind::Shared),
            (30, 99, LockKind::Exclusive)
        ]
    );
    table
        .request(lock(process(1), None, range(10, 39)), None)
        .unwrap();
    assert_eq!(
        held(&table),
        [(0, 9, LockKind::Exclusive), (40, 99, LockKind::Exclusive)]
    );
    table
        .request(lock(process(1), exclusive, range(10, 39)), None)
        .unwrap();
    assert_eq!(held(&table), [(0, 99, LockKind::Exclusive)]);
    table
        .request(lock(process(1), None, LockRange::ALL), None)
        .unwrap();
    assert_eq!(table.counts(), (0, 0));
}

#[test]
fn getlk_tells_the_first_lock_in_the_way() {
    let locks = Locks::new();
    let mut table = locks.table.lock();
    table
        .request(
            lock(process(1), Some(LockKind::Shared), range(50, 59)),
            None,
        )
        .unwrap();
    table
        .request(
            lock(process(2), Some(LockKind::Exclusive), range(10, 19)),
            None,
        )
        .unwrap();
    drop(table);
    let found = locks
        .conflict(FILE, process(3), LockRange::ALL, LockKind::Exclusive)
        .unwrap();
    assert_eq!((found.owner, found.range), (process(2), range(10, 19)));
    assert_eq!(
        locks.conflict(FILE, process(3), range(50, 55), LockKind::Shared),
        None
    );
    assert_eq!(
        locks.conflict(FILE, process(1), range(50, 55), LockKind::Exclusive),
        None
    );
}

#[test]
fn a_circle_of_waiting_processes_is_refused_and_open_files_are_not_asked() {
    let mut table: Table<u32> = Table::default();
    let exclusive = Some(LockKind::Exclusive);
    for id in 1..=3 {
        table
            .request(lock(process(id), exclusive, range(id, id)), None)
            .unwrap();
    }
    assert!(matches!(
        table.request(lock(process(1), exclusive, range(2, 2)), Some(1)),
        Ok(Answer::Waits(_))
    ));
    assert!(matches!(
        table.request(lock(process(2), exclusive, range(3, 3)), Some(2)),
        Ok(Answer::Waits(_))
    ));
    let refused = table
        .request(lock(process(3), exclusive, range(1, 1)), Some(3))
        .map_err(kind_of);
    assert_eq!(refused, Err(ErrorKind::WouldDeadlock));
    assert!(matches!(
        table.request(lock(open_file(3), exclusive, range(1, 1)), Some(4)),
        Ok(Answer::Waits(_))
    ));
}

#[test]
fn a_waiter_gets_its_lock_when_the_holder_lets_go() {
    let mut table: Table<u32> = Table::default();
    let exclusive = Some(LockKind::Exclusive);
    table
        .request(lock(process(1), exclusive, range(0, 9)), None)
        .unwrap();
    table
        .request(lock(process(2), exclusive, range(5, 14)), Some(2))
        .unwrap();
    table
        .request(lock(process(3), exclusive, range(20, 29)), Some(3))
        .unwrap();
    assert!(table.take_granted().is_empty());
    table
        .request(lock(process(1), None, LockRange::ALL), None)
        .unwrap();
    assert_eq!(table.take_granted(), [2]);
    assert_eq!(table.counts(), (2, 0));
}

#[test]
fn a_change_of_kind_in_flock_gives_the_old_lock_up_first() {
    let mut table: Table<u32> = Table::default();
    let whole = |owner, kind| Request {
        space: Space::Whole,
        inode: FILE,
        owner,
        kind,
        range: LockRange::ALL,
        pid: 0,
    };
    table
        .request(whole(open_file(1), Some(LockKind::Shared)), None)
        .unwrap();
    table
        .request(whole(open_file(2), Some(LockKind::Shared)), None)
        .unwrap();
    // Both want it alone: with waiting the one that asks first loses its shared lock, so the
    // other can get it; nobody waits for ever.
    assert!(matches!(
        table.request(whole(open_file(1), Some(LockKind::Exclusive)), Some(1)),
        Ok(Answer::Waits(_))
    ));
    assert_eq!(
        table
            .request(whole(open_file(2), Some(LockKind::Exclusive)), Some(2))
            .unwrap(),
        Answer::Granted
    );
    // flock and ranges don't see each other.
    table
        .request(
            lock(process(9), Some(LockKind::Exclusive), LockRange::ALL),
            None,
        )
        .unwrap();
    assert!(table.release_owner(FILE, open_file(2)));
    assert_eq!(table.take_granted(), [1]);
}

#[test]
fn a_session_that_ends_frees_all_its_locks_and_interrupts_its_waiters() {
    let mut table: Table<u32> = Table::default();
    let exclusive = Some(LockKind::Exclusive);
    let other = LockOwner::Process(SessionId(2), 1);
    table
        .request(lock(process(1), exclusive, range(0, 9)), None)
        .unwrap();
    table
        .request(lock(other, exclusive, range(0, 9)), Some(2))
        .unwrap();
    table
        .request(lock(process(3), exclusive, range(0, 9)), Some(3))
        .unwrap();
    table.release_session(SessionId(1));
    assert_eq!(table.take_granted(), [2]);
    assert_eq!(table.counts(), (1, 0));
}

#[test]
fn a_cancelled_waiter_gives_back_what_it_was_granted_meanwhile() {
    let mut table: Table<u32> = Table::default();
    let exclusive = Some(LockKind::Exclusive);
    table
        .request(lock(process(1), exclusive, range(0, 9)), None)
        .unwrap();
    let Answer::Waits(ticket) = table
        .request(lock(process(2), exclusive, range(0, 9)), Some(2))
        .unwrap()
    else {
        panic!("it waits");
    };
    table
        .request(lock(process(1), None, range(0, 9)), None)
        .unwrap();
    table.cancel(ticket);
    assert_eq!(table.counts(), (0, 0));
}

#[test]
fn a_dropped_future_takes_its_request_back() {
    use futures::FutureExt;
    let locks = Locks::new();
    let exclusive = Some(LockKind::Exclusive);
    locks
        .flock(FILE, open_file(1), exclusive, true)
        .now_or_never()
        .unwrap()
        .unwrap();
    assert_eq!(
        locks
            .flock(FILE, open_file(2), exclusive, false)
            .now_or_never()
            .unwrap()
            .map_err(kind_of),
        Err(ErrorKind::WouldBlock)
    );
    let mut waiting = Box::pin(locks.flock(FILE, open_file(2), exclusive, true));
    assert!(waiting.as_mut().now_or_never().is_none());
    assert_eq!(locks.counts(), (1, 1));
    drop(waiting);
    assert_eq!(locks.counts(), (1, 0));
    let mut waiting = Box::pin(locks.flock(FILE, open_file(3), exclusive, true));
    assert!(waiting.as_mut().now_or_never().is_none());
    locks
        .flock(FILE, open_file(1), None, false)
        .now_or_never()
        .unwrap()
        .unwrap();
    waiting.now_or_never().unwrap().unwrap();
    assert!(locks.release_owner(FILE, open_file(3)));
    assert_eq!(locks.counts(), (0, 0));
}

/// What each byte is locked by, the slow way.
type Bytes = BTreeMap<(LockOwner, u64), LockKind>;

proptest! {
    #[test]
    fn ranges_mean_what_their_bytes_mean(
        steps in prop::collection::vec((0u64..3, 0u64..24, 0u64..24, 0u8..3), 1..60)
    ) {
        let mut table: Table<u32> = Table::default();
        let mut bytes = Bytes::new();
        for (owner, a, b, kind) in steps {
            let owner = process(owner);
            let at = range(a.min(b), a.max(b));
            let kind = [None, Some(LockKind::Shared), Some(LockKind::Exclusive)][usize::from(kind)];
            let blocked = kind.is_some_and(|kind| {
                bytes.iter().any(|((other, byte), held)| {
                    *other != owner
                        && (at.start..=at.end).contains(byte)
                        && (kind == LockKind::Exclusive || *held == LockKind::Exclusive)
                })
            });
            let answer = table.request(lock(owner, kind, at), None);
            prop_assert_eq!(answer.is_err(), blocked);
            if !blocked {
                for byte in at.start..=at.end {
                    match kind {
                        Some(kind) => bytes.insert((owner, byte), kind),
                        None => bytes.remove(&(owner, byte)),
                    };
                }
            }
            let held = table.held(Space::Range, FILE);
            let mut seen = Bytes::new();
            for lock in &held {
                for byte in lock.range.start..=lock.range.end {
                    prop_assert!(seen.insert((lock.owner, byte), lock.kind).is_none(), "ranges overlap");
                }
            }
            prop_assert_eq!(&seen, &bytes);
            for pair in held.windows(2) {
                let apart = pair[0].owner != pair[1].owner
                    || pair[0].kind != pair[1].kind
                    || pair[0].range.end + 1 < pair[1].range.start;
                prop_assert!(apart, "neighbours of one kind are one lock");
            }
        }
    }

    #[test]
    fn nobody_waits_for_what_is_free(
        steps in prop::collection::vec((0u64..5, 0u64..10, 0u64..10, 0u8..4), 1..60)
    ) {
        let mut table: Table<u64> = Table::default();
        let mut waiting: BTreeMap<u64, Request> = BTreeMap::new();
        for (owner, a, b, what) in steps {
            let at = range(a.min(b), a.max(b));
            if what == 3 {
                table.release_owner(FILE, process(owner));
                waiting.retain(|_, request| request.owner != process(owner));
            } else {
                let kind = [None, Some(LockKind::Shared), Some(LockKind::Exclusive)][usize::from(what)];
                let request = lock(process(owner), kind, at);
                let waker = kind.is_some().then_some(owner);
                if let Ok(Answer::Waits(ticket)) = table.request(request, waker) {
                    waiting.insert(ticket, request);
                }
            }
            let granted = table.take_granted().len();
            let (_, still) = table.counts();
            prop_assert!(still + granted >= still);
            // Whoever still waits meets a real conflict.
            waiting.retain(|ticket, _| table.is_waiting(*ticket));
            prop_assert_eq!(waiting.len(), still);
            for request in waiting.values() {
                let kind = request.kind.unwrap();
                prop_assert!(table.conflict(Space::Range, FILE, request.owner, request.range, kind).is_some());
            }
        }
    }
}
