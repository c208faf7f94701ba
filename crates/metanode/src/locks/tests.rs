//! Promises of the lock tables: ranges, waiters, deadlocks, against a byte-wise model.

use super::charges::{Charges, LOCKS_MAX, USER_LOCKS_MAX, USER_WAITS_MAX, WAITS_MAX};
use super::queued::QUEUED_MAX;
use super::spans::{Span, Spans};
use super::table::DOORS_MAX;
use super::*;
use futures::FutureExt;
use model::lock::LockTaker;
use proptest::prelude::*;
use std::collections::BTreeMap;

const FILE: InodeId = InodeId(7);
const SESSION: SessionId = SessionId(1);
const DOOR: LockDoor = LockDoor {
    session: SESSION,
    number: 1,
};
const SHARED: Option<LockKind> = Some(LockKind::Shared);
const EXCLUSIVE: Option<LockKind> = Some(LockKind::Exclusive);

/// A table with one door.
struct Tables {
    table: LockTable<u64>,
    door: LockDoor,
}

impl Tables {
    fn new() -> Self {
        let mut table = LockTable::default();
        table.begin_door(DOOR).unwrap();
        Self { table, door: DOOR }
    }

    fn owner(&self, id: u64) -> LockOwner {
        LockOwner {
            door: self.door,
            id,
        }
    }

    /// A range lock of an owner that is a process of the same number, through one of its opens.
    fn lock(&self, id: u64, kind: Option<LockKind>, range: LockRange) -> LockRequest {
        LockRequest {
            space: LockSpace::Range,
            inode: FILE,
            owner: self.owner(id),
            kind,
            range,
            taker: LockTaker {
                open: id,
                pid: id as u32,
                user: 1000,
            },
        }
    }

    fn flock(&self, id: u64, kind: Option<LockKind>) -> LockRequest {
        LockRequest {
            space: LockSpace::Whole,
            ..self.lock(id, kind, LockRange::ALL)
        }
    }

    fn set(&mut self, request: LockRequest) -> std::result::Result<(), ErrorKind> {
        let answer = self.table.request(request, None);
        let answer = answer.map_err(|error| error.kind())?;
        assert_eq!(answer, Answer::Granted);
        Ok(())
    }

    /// The request must wait; `name` identifies it.
    fn wait(&mut self, request: LockRequest, name: u64) -> u64 {
        match self.table.request(request, Some(name)) {
            Ok(Answer::Waits(ticket)) => ticket,
            other => panic!("it should wait: {other:?}"),
        }
    }

    fn held(&self) -> Vec<(u64, u64, u64, LockKind)> {
        let held = self.table.held(LockSpace::Range, FILE);
        let shown = held.iter().map(|(lock, _)| {
            let range = lock.range;
            (lock.owner.id, range.start, range.end, lock.kind)
        });
        shown.collect()
    }
}

fn range(start: u64, end: u64) -> LockRange {
    LockRange { start, end }
}

#[test]
fn ranges_of_one_owner_split_and_join() {
    let mut all = Tables::new();
    all.set(all.lock(1, EXCLUSIVE, range(0, 99))).unwrap();
    all.set(all.lock(1, SHARED, range(20, 29))).unwrap();
    assert_eq!(
        all.held(),
        [
            (1, 0, 19, LockKind::Exclusive),
            (1, 20, 29, LockKind::Shared),
            (1, 30, 99, LockKind::Exclusive)
        ]
    );
    all.set(all.lock(1, None, range(10, 39))).unwrap();
    let (low, high) = (
        (1, 0, 9, LockKind::Exclusive),
        (1, 40, 99, LockKind::Exclusive),
    );
    assert_eq!(all.held(), [low, high]);
    all.set(all.lock(1, EXCLUSIVE, range(10, 39))).unwrap();
    assert_eq!(all.held(), [(1, 0, 99, LockKind::Exclusive)]);
    all.set(all.lock(1, None, LockRange::ALL)).unwrap();
    assert_eq!(all.table.counts(), (0, 0));
}

#[test]
fn getlk_tells_the_first_lock_in_the_way_with_its_neighbours() {
    let mut all = Tables::new();
    all.set(all.lock(1, SHARED, range(50, 59))).unwrap();
    all.set(all.lock(2, EXCLUSIVE, range(10, 19))).unwrap();
    // The same process through another open: others see one lock.
    let mut further = all.lock(2, EXCLUSIVE, range(20, 24));
    further.taker.open = 77;
    all.set(further).unwrap();
    let conflict = |id, range, kind| {
        let found = all
            .table
            .conflict(LockSpace::Range, FILE, all.owner(id), range, kind);
        found.map(|held| (held.owner.id, held.range, held.pid))
    };
    let exclusive = LockKind::Exclusive;
    let both = Some((2, range(10, 24), 2));
    assert_eq!(conflict(3, LockRange::ALL, exclusive), both);
    assert_eq!(conflict(3, range(22, 90), exclusive), both);
    assert_eq!(conflict(3, range(50, 55), LockKind::Shared), None);
    assert_eq!(conflict(1, range(50, 55), exclusive), None);
}

#[test]
fn a_late_release_ends_only_what_its_own_open_took() {
    let mut all = Tables::new();
    let through = |all: &Tables, open, request: LockRequest| LockRequest {
        taker: LockTaker {
            open,
            ..request.taker
        },
        ..all.lock(1, request.kind, request.range)
    };
    // The owner closed open 10, and locked again through open 11 before the release arrives.
    all.set(through(&all, 10, all.lock(1, EXCLUSIVE, range(0, 9))))
        .unwrap();
    assert!(all.table.release_process(FILE, all.owner(1)));
    all.set(through(&all, 11, all.lock(1, EXCLUSIVE, range(0, 9))))
        .unwrap();
    assert!(!all.table.release_open(all.door, 10));
    assert_eq!(all.held(), [(1, 0, 9, LockKind::Exclusive)]);
    // The kernel reuses an open file's number while the old one is being released.
    all.set(through(&all, 12, all.lock(1, EXCLUSIVE, range(5, 6))))
        .unwrap();
    assert!(all.table.release_open(all.door, 11));
    assert_eq!(all.held(), [(1, 5, 6, LockKind::Exclusive)]);
    // flock and ranges don't conflict with each other.
    all.set(all.flock(1, EXCLUSIVE)).unwrap();
    assert!(all.table.release_process(FILE, all.owner(1)));
    assert!(!all.table.release_open(all.door, 12));
    assert_eq!(all.table.counts(), (1, 0));
    assert!(all.table.release_open(all.door, 1));
    assert_eq!(all.table.counts(), (0, 0));
    all.table.assert_charges();
}

#[test]
fn a_close_leaves_the_waiting_requests_of_its_process_alone() {
    let mut all = Tables::new();
    all.set(all.lock(1, EXCLUSIVE, range(0, 9))).unwrap();
    let ticket = all.wait(all.lock(2, EXCLUSIVE, range(0, 9)), 2);
    assert!(!all.table.release_process(FILE, all.owner(2)));
    assert!(!all.table.release_open(all.door, 2));
    assert!(all.table.is_waiting(ticket));
    assert!(all.table.release_process(FILE, all.owner(1)));
    assert_eq!(all.table.take_granted(), [2]);
}

#[test]
fn a_circle_of_waiting_processes_is_refused() {
    let mut all = Tables::new();
    for id in 1..=3 {
        all.set(all.lock(id, EXCLUSIVE, range(id, id))).unwrap();
    }
    all.wait(all.lock(1, EXCLUSIVE, range(2, 2)), 1);
    all.wait(all.lock(2, EXCLUSIVE, range(3, 3)), 2);
    let closing = all.lock(3, EXCLUSIVE, range(1, 1));
    let refused = all.table.request(closing, Some(3));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::WouldDeadlock);
}

#[test]
fn a_circle_with_two_owners_of_one_process_is_none() {
    let mut all = Tables::new();
    // Open file descriptions of one process, whose threads wait for each other: another thread may
    // unlock what they wait for.
    let lock = |id, at| {
        let mut request = all.lock(id, EXCLUSIVE, range(at, at));
        request.taker.pid = 5;
        request
    };
    let requests = [lock(1, 1), lock(2, 2), lock(1, 2), lock(2, 1)];
    all.set(requests[0]).unwrap();
    all.set(requests[1]).unwrap();
    all.wait(requests[2], 1);
    all.wait(requests[3], 2);
    all.table.assert_charges();
}

#[test]
fn a_waiter_gets_its_lock_when_the_holder_lets_go() {
    let mut all = Tables::new();
    all.set(all.lock(1, EXCLUSIVE, range(0, 9))).unwrap();
    all.wait(all.lock(2, EXCLUSIVE, range(5, 14)), 2);
    all.set(all.lock(3, EXCLUSIVE, range(20, 29))).unwrap();
    assert!(all.table.take_granted().is_empty());
    all.set(all.lock(1, None, LockRange::ALL)).unwrap();
    assert_eq!(all.table.take_granted(), [2]);
    assert_eq!(all.table.counts(), (2, 0));
}

#[test]
fn an_exclusive_lock_that_becomes_shared_lets_earlier_readers_in() {
    let mut all = Tables::new();
    all.set(all.lock(1, EXCLUSIVE, range(0, 9))).unwrap();
    all.set(all.lock(2, SHARED, range(20, 29))).unwrap();
    all.wait(all.lock(3, SHARED, range(0, 9)), 3);
    // Waits for the reader of the higher part, and already has the lower part.
    all.wait(all.lock(1, EXCLUSIVE, range(0, 29)), 1);
    all.set(all.lock(1, SHARED, range(0, 9))).unwrap();
    assert_eq!(all.table.take_granted(), [3]);
    all.set(all.lock(3, None, LockRange::ALL)).unwrap();
    all.set(all.lock(2, None, LockRange::ALL)).unwrap();
    assert_eq!(all.table.take_granted(), [1]);
    assert_eq!(all.held(), [(1, 0, 29, LockKind::Exclusive)]);
}

#[test]
fn a_change_of_kind_in_flock_gives_the_old_lock_up_first() {
    let mut all = Tables::new();
    all.set(all.flock(1, SHARED)).unwrap();
    all.set(all.flock(2, SHARED)).unwrap();
    // As in Linux, even without waiting: if two ask repeatedly, one of them gets it.
    assert_eq!(all.set(all.flock(1, EXCLUSIVE)), Err(ErrorKind::WouldBlock));
    all.set(all.flock(2, EXCLUSIVE)).unwrap();
    all.wait(all.flock(1, SHARED), 1);
    all.set(all.lock(9, EXCLUSIVE, LockRange::ALL)).unwrap();
    all.set(all.flock(2, SHARED)).unwrap();
    assert_eq!(all.table.take_granted(), [1]);
    // Requesting the same kind again changes nothing.
    all.set(all.flock(2, SHARED)).unwrap();
    assert_eq!(all.table.counts(), (3, 0));
}

#[test]
fn a_door_that_ends_frees_only_its_own_locks() {
    let mut all = Tables::new();
    let second = LockDoor { number: 2, ..DOOR };
    all.table.begin_door(second).unwrap();
    let at_second = |request: LockRequest| LockRequest {
        owner: LockOwner {
            door: second,
            ..request.owner
        },
        ..request
    };
    all.set(all.lock(1, EXCLUSIVE, range(0, 9))).unwrap();
    all.set(all.flock(1, EXCLUSIVE)).unwrap();
    // Numbers of owners and opens have no meaning at another door.
    let same = at_second(all.lock(1, EXCLUSIVE, range(0, 9)));
    assert_eq!(all.set(same), Err(ErrorKind::WouldBlock));
    all.set(at_second(all.lock(1, EXCLUSIVE, range(20, 29))))
        .unwrap();
    all.wait(at_second(all.lock(2, EXCLUSIVE, range(0, 9))), 2);
    all.wait(all.lock(3, EXCLUSIVE, range(20, 29)), 3);
    all.table.end_door(all.door);
    assert_eq!(all.table.take_granted(), [2]);
    assert_eq!(all.table.counts(), (2, 0));
    let late = all.lock(3, EXCLUSIVE, range(90, 99));
    assert_eq!(all.set(late), Err(ErrorKind::Interrupted));
    all.table.end_session(SessionId(1));
    assert_eq!(all.table.counts(), (0, 0));
    all.table.assert_charges();
}

#[test]
fn a_waiter_that_gives_up_keeps_a_lock_granted_meanwhile() {
    let mut all = Tables::new();
    all.set(all.lock(1, EXCLUSIVE, range(0, 9))).unwrap();
    let second = all.wait(all.lock(2, EXCLUSIVE, range(0, 9)), 2);
    let third = all.wait(all.lock(3, EXCLUSIVE, range(0, 9)), 3);
    assert_eq!(all.table.give_up(third), GaveUp::Cancelled);
    all.set(all.lock(1, None, range(0, 9))).unwrap();
    assert_eq!(all.table.give_up(second), GaveUp::Granted);
    assert_eq!(all.held(), [(2, 0, 9, LockKind::Exclusive)]);
    all.table.assert_charges();
}

#[test]
fn an_interrupted_change_of_kind_leaves_the_lock_as_it_was() {
    let mut all = Tables::new();
    all.set(all.lock(1, SHARED, range(0, 9))).unwrap();
    all.set(all.lock(2, SHARED, range(0, 9))).unwrap();
    let ticket = all.wait(all.lock(1, EXCLUSIVE, range(0, 9)), 1);
    assert_eq!(all.table.give_up(ticket), GaveUp::Cancelled);
    let shared = |id| (id, 0, 9, LockKind::Shared);
    assert_eq!(all.held(), [shared(1), shared(2)]);
}

#[test]
fn an_owner_at_the_limit_of_locks_can_release_but_not_add_locks() {
    let mut all = Tables::new();
    let user = all.lock(1, None, range(0, 0)).taker.user;
    all.table.charge_locks(SESSION, user, USER_LOCKS_MAX - 2);
    all.set(all.lock(1, EXCLUSIVE, range(0, 9))).unwrap();
    all.set(all.lock(1, EXCLUSIVE, range(20, 29))).unwrap();
    let too_many = Err(ErrorKind::TooManyLocks);
    assert_eq!(all.set(all.lock(1, SHARED, range(40, 49))), too_many);
    assert_eq!(all.set(all.flock(1, SHARED)), too_many);
    // One lock would be split into two.
    assert_eq!(all.set(all.lock(1, None, range(3, 4))), too_many);
    let mut of_other = all.lock(2, SHARED, range(40, 49));
    of_other.taker.user = user + 1;
    assert_eq!(all.set(of_other), Ok(()));
    assert_eq!(all.set(all.lock(1, None, range(0, 9))), Ok(()));
    assert_eq!(all.set(all.lock(1, None, range(23, 24))), Ok(()));
    assert_eq!(all.set(all.lock(1, SHARED, range(40, 49))), too_many);
}

/// Takes locks and waits for a user of a session until no more are given. Returns how many.
fn fill(charges: &mut Charges, session: SessionId, user: u32) -> (usize, usize) {
    let before = charges.all();
    while charges.may_hold(session, user, 1) {
        charges.hold(session, user);
    }
    while charges.may_wait(session, user) {
        charges.wait(session, user);
    }
    let after = charges.all();
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn no_user_can_take_all_locks_or_all_waits() {
    let mut charges = Charges::default();
    let most = (USER_LOCKS_MAX, USER_WAITS_MAX);
    for user in 1..3 {
        assert_eq!(fill(&mut charges, SESSION, user), most);
    }
    for user in 3..10 {
        let taken = fill(&mut charges, SESSION, user);
        assert!(taken.0 > 0 && taken.1 > 0, "user {user} finds nothing left");
    }
    let (held, waiting) = charges.all();
    assert!(held < LOCKS_MAX && waiting < WAITS_MAX);
}

/// Would be broken if a faulty daemon that names many users, or those of others, left nobody else a lock or a wait.
#[test]
fn no_session_can_take_all_locks_or_all_waits_whatever_users_it_names() {
    let mut charges = Charges::default();
    for user in 0..99 {
        fill(&mut charges, SESSION, user);
    }
    for session in 2..6 {
        let taken = fill(&mut charges, SessionId(session), 1);
        assert!(
            taken.0 >= 64 && taken.1 >= 64,
            "session {session} gets {taken:?}"
        );
    }
    let (held, waiting) = charges.all();
    assert!(held < LOCKS_MAX && waiting < WAITS_MAX);
    // Nor can it by saying that it had them under the owner before.
    let mut charges = Charges::default();
    while charges.may_keep(SESSION) {
        charges.hold(SESSION, 1);
    }
    let other = SESSION.next();
    assert!(charges.may_hold(other, 1, 1) && charges.may_keep(other));
}

/// Would be broken if a faulty daemon could make its owner remember doors without end.
#[test]
fn a_session_has_only_so_many_doors_and_takes_none_from_others() {
    let locks = Locks::new();
    let door = |number| LockDoor { number, ..DOOR };
    for number in 1..=DOORS_MAX as u32 {
        locks.begin_door(door(number)).unwrap();
    }
    let further = door(DOORS_MAX as u32 + 1);
    let refused = locks.begin_door(further).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooManyLocks);
    locks.begin_door(DOOR).unwrap();
    let of_other = LockDoor {
        session: SESSION.next(),
        ..DOOR
    };
    locks.begin_door(of_other).unwrap();
    // What it says to a new owner has the same limit, and a lock through one too many isn't had back.
    let tables = Tables::new();
    let mut lock = tables.lock(1, EXCLUSIVE, range(0, 9));
    lock.owner.door = further;
    let part = Reclaimed {
        doors: vec![further],
        locks: vec![lock],
        ..Reclaimed::default()
    };
    assert_eq!(locks.reclaim(SESSION, &part), 1);
    locks.end_door(DOOR);
    assert_eq!(locks.reclaim(SESSION, &part), 0);
}

/// An owner's locks, with the door of [`Tables`].
fn with_door() -> Locks {
    let locks = Locks::new();
    locks.begin_door(DOOR).unwrap();
    locks
}

#[test]
fn a_wait_that_ends_takes_its_request_back_unless_it_was_granted() {
    let (locks, all) = (with_door(), Tables::new());
    locks.try_set(all.flock(1, EXCLUSIVE)).unwrap();
    let refused = locks.try_set(all.flock(2, EXCLUSIVE)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    let wait = |number, id| {
        assert!(!locks.queue(number, all.flock(id, EXCLUSIVE)).unwrap());
        assert!(locks.granted(SESSION, number).now_or_never().is_none());
    };
    let end = |number| locks.end_wait(SESSION, number).map_err(|it| it.kind());
    wait(1, 2);
    assert_eq!(locks.counts(), (1, 1));
    assert_eq!(end(1), Err(ErrorKind::Interrupted));
    assert_eq!(locks.counts(), (1, 0));
    // Granted before it was interrupted.
    wait(2, 3);
    locks.try_set(all.flock(1, None)).unwrap();
    assert_eq!((end(2), locks.counts()), (Ok(()), (1, 0)));
    wait(3, 4);
    locks.try_set(all.flock(3, None)).unwrap();
    locks.granted(SESSION, 3).now_or_never().unwrap().unwrap();
    assert_eq!(end(3), Ok(()));
    wait(4, 5);
    locks.end_door(DOOR);
    let refused = locks.granted(SESSION, 4).now_or_never().unwrap();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(end(4), Err(ErrorKind::Interrupted));
    assert_eq!(locks.counts(), (0, 0));
}

/// Would be broken if a program were told that it has a lock which another one of its threads has ended since it was granted: its
/// client would tell the next owner of that lock, which others have by then.
#[test]
fn a_lock_that_has_ended_since_it_was_granted_is_not_claimed() {
    let (locks, all) = (with_door(), Tables::new());
    let lock = |id, kind| all.lock(id, kind, range(0, 9));
    for number in [1, 2] {
        locks.try_set(lock(1, EXCLUSIVE)).unwrap();
        assert!(!locks.queue(number, lock(2, EXCLUSIVE)).unwrap());
        locks.try_set(lock(1, None)).unwrap();
        let granted = locks.granted(SESSION, number).now_or_never();
        granted.unwrap().unwrap();
        match number {
            1 => locks.try_set(lock(2, None)).unwrap(),
            _ => assert!(locks.release_process(FILE, all.owner(2))),
        }
        let ended = locks.end_wait(SESSION, number).unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::Interrupted);
        assert_eq!(locks.counts(), (0, 0));
    }
}

/// Would be broken if a faulty daemon could end its owner's, or leave a wait behind that nobody can end.
#[test]
fn a_number_under_which_a_session_waits_is_refused_for_another_wait() {
    let (locks, all) = (with_door(), Tables::new());
    locks.try_set(all.flock(1, EXCLUSIVE)).unwrap();
    assert!(!locks.queue(7, all.flock(2, EXCLUSIVE)).unwrap());
    let again = locks.queue(7, all.flock(3, EXCLUSIVE)).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::InvalidArgument);
    assert_eq!(locks.counts(), (1, 1));
    // The first one goes on, and the number is free when it has ended.
    locks.try_set(all.flock(1, None)).unwrap();
    locks.granted(SESSION, 7).now_or_never().unwrap().unwrap();
    locks.end_wait(SESSION, 7).unwrap();
    assert!(!locks.queue(7, all.flock(3, EXCLUSIVE)).unwrap());
    assert_eq!(locks.counts(), (1, 1));
}

/// Would be broken if it depended on the room for waits whether a flock that is refused has given its old lock up: clients tell a
/// new owner what they hold. Or if what was granted to a session that never asked outlived it.
#[test]
fn without_room_for_waits_a_free_lock_is_granted_and_a_flock_gives_its_old_one_up() {
    let (locks, all) = (with_door(), Tables::new());
    let set = |id, kind| locks.try_set(all.flock(id, kind)).unwrap();
    // Each wait is granted, and never ended.
    let most = QUEUED_MAX as u64 / 2;
    for number in 0..most {
        set(1, EXCLUSIVE);
        assert!(!locks.queue(number, all.flock(2, EXCLUSIVE)).unwrap());
        set(1, None);
        set(2, None);
    }
    assert_eq!(locks.table.lock().unclaimed_count() as u64, most);
    for id in [1, 3] {
        assert!(locks.queue(most, all.flock(id, SHARED)).unwrap());
    }
    let refused = locks.queue(most, all.flock(1, EXCLUSIVE)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooManyLocks);
    set(3, None);
    set(4, EXCLUSIVE);
    // Others still wait.
    let door = LockDoor {
        session: SESSION.next(),
        ..DOOR
    };
    locks.begin_door(door).unwrap();
    let mut of_other = all.flock(1, EXCLUSIVE);
    of_other.owner.door = door;
    assert!(!locks.queue(1, of_other).unwrap());
    locks.release_session(SESSION);
    let granted = locks.granted(door.session, 1).now_or_never();
    granted.unwrap().unwrap();
    assert_eq!(locks.table.lock().unclaimed_count(), 1);
    assert_eq!(locks.end_wait(door.session, 1), Ok(()));
    assert_eq!(locks.counts(), (1, 0));
}

#[test]
fn half_of_a_lock_stays_charged_to_whom_the_lock_is() {
    let mut all = Tables::new();
    // An open file that was passed on to another user together with its lock.
    let mut whole = all.lock(1, EXCLUSIVE, LockRange::ALL);
    let owner = whole.taker.user;
    all.set(whole).unwrap();
    all.table.charge_locks(SESSION, owner, USER_LOCKS_MAX - 2);
    whole.taker.user = owner + 1;
    let hole = |at| LockRequest {
        kind: None,
        range: range(at, at),
        ..whole
    };
    all.set(hole(10)).unwrap();
    assert_eq!(all.set(hole(20)), Err(ErrorKind::TooManyLocks));
    // Requests that need no further lock still succeed.
    let rest = LockRequest {
        kind: None,
        range: range(11, u64::MAX),
        ..whole
    };
    all.set(rest).unwrap();
    all.set(hole(5)).unwrap();
}

/// Sized so that examining each lock for each waiter would take minutes, under the one mutex that
/// all locks need.
#[test]
fn many_locks_and_many_waiters_of_one_file_delay_no_other_process() {
    const HOLDERS: u64 = 16_000;
    const WAITERS: u64 = 1_000;
    const FAR: u64 = 1 << 40;
    let mut all = Tables::new();
    for id in 0..HOLDERS {
        for at in 0..4 {
            let start = 2 * (4 * id + at);
            all.set(all.lock(id, EXCLUSIVE, range(start, start)))
                .unwrap();
        }
    }
    // Owned by the last owner in the order, and in conflict with all.
    all.set(all.lock(u64::MAX, EXCLUSIVE, range(FAR, FAR + WAITERS)))
        .unwrap();
    for id in 0..WAITERS {
        let mut wait = all.lock(HOLDERS + id, EXCLUSIVE, range(FAR, FAR + WAITERS));
        wait.taker.pid = 0;
        all.wait(wait, id);
    }
    for at in (FAR..FAR + WAITERS).rev() {
        all.set(all.lock(u64::MAX, None, range(at + 1, u64::MAX)))
            .unwrap();
        assert!(all.table.take_granted().is_empty());
    }
    all.set(all.lock(u64::MAX, None, LockRange::ALL)).unwrap();
    assert_eq!(all.table.take_granted(), [0]);
    all.table.assert_charges();
}

#[test]
fn a_request_that_waits_is_listed_with_the_program_that_it_waits_for_and_the_rest_is_counted() {
    const MORE: u64 = 3;
    let run = world::sim::Simulation::new(1).run(async |world: world::World| {
        let (locks, all) = (with_door(), Tables::new());
        locks.try_set(all.lock(1, EXCLUSIVE, range(0, 9))).unwrap();
        let begun = world.now();
        let mut waits = Vec::new();
        let most = LISTED_MAX as u64;
        for wait in 1..=most + MORE {
            let bytes = range(wait % 10, 20);
            let queued = locks.queue(wait, all.lock(1 + wait, EXCLUSIVE, bytes));
            assert!(!queued.unwrap(), "it waits");
            let errand = Errand {
                trace: wait,
                from: Some(NodeId(4)),
            };
            locks.note_wait(SESSION, wait, (errand, begun));
            waits.push(errand);
        }
        let second = std::time::Duration::from_secs(1);
        world.sleep(second).await;
        let nodes = BTreeMap::from([(SESSION, NodeId(4))]);
        let (listed, left_out) = locks.waits(&nodes, world.now());
        let errands: Vec<_> = listed.iter().map(|it| it.errand).collect();
        assert_eq!(errands, waits[..LISTED_MAX]);
        assert_eq!(left_out, MORE as usize);
        for waiter in &listed {
            let (inode, node) = (FILE, Some(NodeId(4)));
            let pid = 1;
            assert_eq!(waiter.part, Part::ForLock { inode, node, pid });
            assert!(waiter.since >= second, "{waiter:?}");
        }
        // Who has got its lock, and hasn't heard it yet, waits no more: each gets it when the one before gives it up.
        for owner in 1..=most + MORE {
            locks
                .try_set(all.lock(owner, None, LockRange::ALL))
                .unwrap();
        }
        assert_eq!(locks.waits(&nodes, world.now()), (Vec::new(), 0));
    });
    run.finished();
}

/// The lock on each byte, computed the slow way.
type Bytes = BTreeMap<(LockOwner, u64), LockKind>;

proptest! {
    #[test]
    fn spans_of_others_are_found_in_whatever_parts(
        steps in prop::collection::vec((0u64..24, 0u64..12, 0u64..3, 0u8..3), 1..120)
    ) {
        let door = Tables::new().door;
        let mut spans = Spans::with_parts_of(4);
        let mut all: BTreeMap<(u64, LockOwner), u64> = BTreeMap::new();
        for (start, length, id, what) in steps {
            let owner = LockOwner { door, id };
            let end = start + length;
            if what > 0 {
                if let std::collections::btree_map::Entry::Vacant(free) = all.entry((start, owner)) {
                    free.insert(end);
                    spans.add(Span { start, end, owner });
                }
            } else if let Some(end) = all.remove(&(start, owner)) {
                spans.remove(&Span { start, end, owner });
            }
            for (asker, at) in [(0, range(start, end)), (1, range(end, end + 3)), (9, range(0, start))] {
                let asker = LockOwner { door, id: asker };
                let found: Vec<_> = spans.others(at, asker).map(|it| (it.start, it.owner)).collect();
                let others = all.iter().filter(|((start, owner), end)| {
                    *owner != asker && *start <= at.end && **end >= at.start
                });
                prop_assert_eq!(found, others.map(|(place, _)| *place).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn ranges_mean_what_their_bytes_mean(
        steps in prop::collection::vec((0u64..3, 0u64..2, 0u64..24, 0u64..24, 0u8..4), 1..60),
        crowd in 1usize..9,
    ) {
        let mut all = Tables::new();
        all.table.crowd_from(crowd);
        let mut bytes = Bytes::new();
        let mut opens: BTreeMap<(LockOwner, u64), u64> = BTreeMap::new();
        for (id, open, a, b, kind) in steps {
            let owner = all.owner(id);
            let at = range(a.min(b), a.max(b));
            if kind == 3 {
                all.table.release_open(all.door, open);
                bytes.retain(|byte, _| opens[byte] != open);
            } else {
                let kind = [None, SHARED, EXCLUSIVE][usize::from(kind)];
                let blocked = kind.is_some_and(|kind| {
                    bytes.iter().any(|((other, byte), held)| {
                        *other != owner
                            && (at.start..=at.end).contains(byte)
                            && (kind == LockKind::Exclusive || *held == LockKind::Exclusive)
                    })
                });
                let mut request = all.lock(id, kind, at);
                request.taker.open = open;
                prop_assert_eq!(all.set(request).is_err(), blocked);
                for byte in (at.start..=at.end).filter(|_| !blocked) {
                    match kind {
                        Some(kind) => bytes.insert((owner, byte), kind),
                        None => bytes.remove(&(owner, byte)),
                    };
                    opens.insert((owner, byte), open);
                }
            }
            let held = all.table.held(LockSpace::Range, FILE);
            let mut seen = Bytes::new();
            for (lock, open) in &held {
                for byte in lock.range.start..=lock.range.end {
                    prop_assert!(seen.insert((lock.owner, byte), lock.kind).is_none(), "ranges overlap");
                    prop_assert_eq!(opens[&(lock.owner, byte)], *open);
                }
            }
            prop_assert_eq!(&seen, &bytes);
            for pair in held.windows(2) {
                let ((low, low_open), (high, high_open)) = (pair[0], pair[1]);
                let apart = low.owner != high.owner
                    || low.kind != high.kind
                    || low_open != high_open
                    || low.range.end + 1 < high.range.start;
                prop_assert!(apart, "neighbours of one kind and open are one lock");
            }
            all.table.assert_charges();
        }
    }

    #[test]
    fn nobody_waits_for_what_is_free(
        steps in prop::collection::vec((0u64..5, 0u64..10, 0u64..10, 0u8..4), 1..60),
        crowd in 1usize..9,
    ) {
        let mut all = Tables::new();
        all.table.crowd_from(crowd);
        let mut waiting: BTreeMap<u64, LockRequest> = BTreeMap::new();
        for (id, a, b, what) in steps {
            let at = range(a.min(b), a.max(b));
            if what == 3 {
                all.table.release_process(FILE, all.owner(id));
            } else {
                let kind = [None, SHARED, EXCLUSIVE][usize::from(what)];
                let request = all.lock(id, kind, at);
                if let Ok(Answer::Waits(ticket)) = all.table.request(request, kind.map(|_| id)) {
                    waiting.insert(ticket, request);
                }
            }
            let granted = all.table.take_granted().len();
            let before = waiting.len();
            waiting.retain(|ticket, _| all.table.is_waiting(*ticket));
            prop_assert_eq!(before - waiting.len(), granted, "a waiter left without being woken");
            // Whoever still waits has a real conflict.
            for request in waiting.values() {
                let kind = request.kind.unwrap();
                let conflict = all.table.conflict(LockSpace::Range, FILE, request.owner, request.range, kind);
                prop_assert!(conflict.is_some());
            }
            all.table.assert_charges();
        }
    }
}

#[test]
fn a_lock_that_is_named_again_needs_no_room() {
    let locks = Locks::new();
    let tables = Tables::new();
    let part = Reclaimed {
        doors: vec![DOOR],
        locks: vec![tables.lock(1, EXCLUSIVE, range(0, 9))],
        ..Reclaimed::default()
    };
    assert_eq!(locks.reclaim(SESSION, &part), 0);
    let mut table = locks.table.lock();
    table.charge_locks(SESSION, 1000, USER_LOCKS_MAX);
    drop(table);
    assert_eq!(locks.reclaim(SESSION, &part), 0);
}

/// Would be broken if a lock were lost because others name theirs first to a new owner, and leave its user a smaller share than
/// it had.
#[test]
fn a_lock_that_was_held_before_needs_no_share() {
    let locks = Locks::new();
    let tables = Tables::new();
    let mut table = locks.table.lock();
    table.charge_locks(SESSION, 1000, USER_LOCKS_MAX);
    drop(table);
    let part = Reclaimed {
        doors: vec![DOOR],
        locks: vec![tables.lock(1, EXCLUSIVE, range(0, 9))],
        ..Reclaimed::default()
    };
    assert_eq!(locks.reclaim(SESSION, &part), 0);
    let more = locks.try_set(tables.lock(1, EXCLUSIVE, range(20, 29)));
    assert_eq!(more.unwrap_err().kind(), ErrorKind::TooManyLocks);
    // All together have a limit nevertheless.
    let mut table = locks.table.lock();
    let all = LOCKS_MAX + WAITS_MAX;
    table.charge_locks(SESSION.next(), 1001, all - USER_LOCKS_MAX - 1);
    drop(table);
    let part = Reclaimed {
        locks: vec![tables.lock(1, EXCLUSIVE, range(20, 29))],
        ..part
    };
    assert_eq!(locks.reclaim(SESSION, &part), 1);
}

proptest! {
    /// Byte by byte: what a session has said and says again stays, in its newest kind.
    #[test]
    fn of_what_a_session_has_it_keeps_what_it_names(
        before in prop::collection::vec((0_u64..12, 0_u64..5, any::<bool>()), 0..6),
        after in prop::collection::vec((0_u64..12, 0_u64..5, any::<bool>()), 0..6),
    ) {
        let (locks, tables) = (Locks::new(), Tables::new());
        let kind = |is_shared| if is_shared { SHARED } else { EXCLUSIVE };
        let said = |ranges: &[(u64, u64, bool)]| Reclaimed {
            doors: vec![DOOR],
            locks: ranges
                .iter()
                .map(|(start, more, is_shared)| {
                    tables.lock(1, kind(*is_shared), range(*start, start + more))
                })
                .collect(),
            ..Reclaimed::default()
        };
        let newest = |ranges: &[(u64, u64, bool)], byte| {
            let mut newest = ranges.iter().rev();
            let found = newest.find(|(start, more, _)| (*start..=start + more).contains(&byte));
            found.and_then(|(.., is_shared)| kind(*is_shared))
        };
        locks.reclaim(SESSION, &said(&before));
        let again = said(&after);
        locks.reclaim(SESSION, &again);
        let mut kept = Kept::default();
        kept.add(SESSION, &again);
        locks.keep_only(SESSION, &kept);
        let table = locks.table.lock();
        table.assert_charges();
        let held = table.held(LockSpace::Range, FILE);
        for byte in 0..20 {
            let here = held.iter().find(|(lock, _)| {
                (lock.range.start..=lock.range.end).contains(&byte)
            });
            prop_assert_eq!(here.map(|(lock, _)| lock.kind), newest(&after, byte));
        }
    }
}
