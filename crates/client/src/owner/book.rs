//! What a session holds at its owner, so that it can be said to the next one. Pure: it follows from
//! the answers to requests in order, and from nothing else. Of operations that make something held and
//! aren't answered it says that they were sent: whether they have made anything the owner knows.
//! Locks that requests end which aren't answered it doesn't say: others may have got them from the
//! owner before, and been told so. Of those about the same locks one is under way at a time (`locks/turns.rs`):
//! their answers come in the order in which the owner has done them.
//!
//! Bounded by what the owner gives: holds by the inodes that the client has in use, locks by the
//! owner's limits.

use model::lock::{LockDoor, LockOwner, LockRequest, LockSpace};
use model::operation::{Ranked, Turn};
use model::owner::{LockCall, Order, OwnerReply, OwnerRequest, RECLAIM_MAX, Reclaimed, Tenure};
use model::{ErrorKind, InodeId, LockKind, LockRange, Reply, Result};
use std::collections::{BTreeMap, BTreeSet};

/// The opens and locks of a session.
#[derive(Clone, Default)]
pub(crate) struct Book {
    /// The tenure of the owner that knows all of it.
    tenure: Tenure,
    holds: BTreeMap<InodeId, u64>,
    doors: BTreeSet<LockDoor>,
    /// The locks of an owner on an inode, by their starts: ranges without overlaps, each as it would be asked for.
    locks: BTreeMap<(InodeId, LockSpace, LockOwner), BTreeMap<u64, LockRequest>>,
    /// Requests that wait for their turn, by number.
    waits: BTreeMap<u64, LockRequest>,
    /// By slot: the number of an operation that was sent, and with which the session holds what it makes. Those
    /// that certainly weren't applied stay until the slot has another one: no record has their number.
    under_way: BTreeMap<u8, u64>,
    /// By slot: a request about locks that was sent and isn't answered. One that certainly wasn't done isn't among them.
    asked: BTreeMap<u8, LockCall>,
}

impl Book {
    pub(super) fn tenure(&self) -> Tenure {
        self.tenure
    }

    /// An owner of this tenure knows everything from now on, except for waits.
    pub(super) fn set_tenure(&mut self, tenure: Tenure) {
        if tenure != self.tenure {
            self.waits.clear();
        }
        self.tenure = tenure;
    }

    /// Whether the answer to a request changes what the session holds: it must be taken in before
    /// anything is said to a new owner.
    pub(super) fn concerns(request: &OwnerRequest) -> bool {
        match request {
            OwnerRequest::Execute { operation, .. } => operation.makes_held(),
            OwnerRequest::ExecuteStream { .. } => true,
            request => request.is_in_order(),
        }
    }

    /// A request is about to be sent.
    pub(super) fn begun(&mut self, request: &OwnerRequest, order: Option<Order>) {
        if let Some((slot, number)) = makes_held(request) {
            self.under_way.insert(slot, number);
        }
        if let (OwnerRequest::Lock(call), Some(order)) = (request, order) {
            self.asked.insert(order.slot, call.clone());
        }
    }

    /// A request in order is decided: what it changes is known, or it certainly wasn't done.
    pub(super) fn decided(&mut self, order: Option<Order>) {
        if let Some(order) = order {
            self.asked.remove(&order.slot);
        }
    }

    /// Locks that requests end or weaken which were sent and aren't answered count as ended and weakened from now on. The
    /// owner before may have done that, and others have got what it let in: they may be told of that, and who asked may not.
    pub(super) fn let_go(&mut self) {
        let asked: Vec<LockCall> = self.asked.values().cloned().collect();
        for call in &asked {
            match call {
                LockCall::Set(request) | LockCall::Queue { request, .. } => self.weaken(request),
                LockCall::EndDoor(_) | LockCall::EndProcess { .. } | LockCall::EndOpen { .. } => {
                    self.lock_answered(call, &Ok(OwnerReply::Done));
                }
                LockCall::BeginDoor(_)
                | LockCall::Await { .. }
                | LockCall::EndWait { .. }
                | LockCall::Test { .. } => {}
            }
        }
    }

    /// Whether a process may have locks of a file's bytes, which its end ends: it has some, or asks or waits for one.
    pub(super) fn may_have_locks(&self, inode: InodeId, owner: LockOwner) -> bool {
        let is_its = |request: &LockRequest| (request.inode, request.owner) == (inode, owner);
        let asks = |call: &LockCall| match call {
            LockCall::Set(request) | LockCall::Queue { request, .. } => is_its(request),
            _ => false,
        };
        let key = (inode, LockSpace::Range, owner);
        self.locks.contains_key(&key)
            || self.waits.values().any(is_its)
            || self.asked.values().any(asks)
    }

    /// A request for a lock, or to unlock, may have been granted: what its owner has there is the least that it may have left.
    fn weaken(&mut self, request: &LockRequest) {
        let known = self.locks.get(&key(request));
        let known = known.into_iter().flat_map(BTreeMap::values);
        let changes =
            |lock: &&LockRequest| lock.kind != request.kind && lock.range.overlaps(request.range);
        let changed: Vec<LockRequest> = known.filter(changes).copied().collect();
        for lock in changed {
            let range = LockRange {
                start: lock.range.start.max(request.range.start),
                end: lock.range.end.min(request.range.end),
            };
            let is_whole = request.space == LockSpace::Whole;
            let kind = match request.kind {
                None => None,
                // flock gives the old lock up first.
                Some(LockKind::Exclusive) if is_whole => None,
                // It stays shared until it is exclusive.
                Some(LockKind::Exclusive) => continue,
                // If it asks for more than is locked it may be refused, or wait: then nothing changes.
                Some(LockKind::Shared) if !is_whole && range != request.range => continue,
                Some(LockKind::Shared) => request.kind,
            };
            self.set(&LockRequest {
                kind,
                range,
                ..lock
            });
        }
    }

    /// Takes in the answer to a request.
    pub(crate) fn answered(&mut self, request: &OwnerRequest, reply: &Result<OwnerReply>) {
        if let Some((slot, _)) = makes_held(request) {
            self.under_way.remove(&slot);
        }
        if let (OwnerRequest::ExecuteStream { operations, .. }, Ok(OwnerReply::Streamed(done))) =
            (request, reply)
        {
            for (operation, done) in operations.iter().zip(done) {
                let is_held = operation.operation.makes_held() && done.is_ok();
                if let Some(inode) = operation.made().filter(|_| is_held) {
                    *self.holds.entry(inode).or_default() += 1;
                }
            }
            return;
        }
        if let Some(inode) = held_by(request, reply) {
            *self.holds.entry(inode).or_default() += 1;
            return;
        }
        match request {
            // The uses are removed whether or not the inodes could be released.
            OwnerRequest::Unhold { inode, .. } => self.unhold(*inode),
            OwnerRequest::UnholdAll { inodes, .. } => {
                inodes.iter().for_each(|inode| self.unhold(*inode));
            }
            OwnerRequest::Lock(call) => self.lock_answered(call, reply),
            _ => {}
        }
    }

    fn unhold(&mut self, inode: InodeId) {
        if let Some(count) = self.holds.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                self.holds.remove(&inode);
            }
        }
    }

    fn lock_answered(&mut self, call: &LockCall, reply: &Result<OwnerReply>) {
        let is_done = matches!(reply, Ok(OwnerReply::Done));
        match call {
            LockCall::BeginDoor(door) if is_done => {
                self.doors.insert(*door);
            }
            LockCall::EndDoor(door) if is_done => {
                self.doors.remove(door);
                self.locks.retain(|(_, _, owner), _| owner.door != *door);
                self.waits.retain(|_, request| request.owner.door != *door);
            }
            LockCall::Set(request) | LockCall::Queue { request, .. } => {
                let waits = matches!(reply, Ok(OwnerReply::Waits));
                let is_refused = reply.as_ref().is_err_and(|error| {
                    matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TooManyLocks
                    )
                });
                if is_done {
                    self.set(request);
                } else if request.space == LockSpace::Whole && (waits || is_refused) {
                    // flock(2) gives the old lock up before it asks for one of another kind.
                    let unlock = LockRequest {
                        kind: None,
                        ..*request
                    };
                    let known = self.locks.get(&key(request));
                    let mut known = known.into_iter().flat_map(BTreeMap::values);
                    let is_same = known.next().is_some_and(|it| it.kind == request.kind);
                    if !is_same {
                        self.set(&unlock);
                    }
                }
                if let LockCall::Queue { wait, .. } = call
                    && waits
                {
                    self.waits.insert(*wait, *request);
                }
            }
            LockCall::EndWait { wait, .. } => {
                if let Some(request) = self.waits.remove(wait)
                    && is_done
                {
                    self.set(&request);
                }
            }
            LockCall::EndProcess { inode, owner } if is_done => {
                self.locks.remove(&(*inode, LockSpace::Range, *owner));
            }
            LockCall::EndOpen { door, open } if is_done => {
                for ((_, _, owner), locks) in &mut self.locks {
                    if owner.door == *door {
                        locks.retain(|_, lock| lock.taker.open != *open);
                    }
                }
                self.locks.retain(|_, locks| !locks.is_empty());
            }
            _ => {}
        }
    }

    /// Locks or unlocks a range. What that costs depends on the locks in the range, not on all.
    fn set(&mut self, request: &LockRequest) {
        let (key, range) = (key(request), request.range);
        let locks = self.locks.entry(key).or_default();
        // One before may reach into the range, or continue in it, and one behind may continue it.
        let before = locks.range(..range.start).next_back();
        let first = before.map_or(range.start, |(start, _)| *start);
        let last = range.end.saturating_add(1);
        let touched = locks.range(first..=last).map(|(_, lock)| *lock);
        let touched: Vec<LockRequest> = touched.collect();
        let mut kept: Vec<LockRequest> = Vec::with_capacity(touched.len() + 2);
        for lock in &touched {
            locks.remove(&lock.range.start);
            kept.extend(outside(lock, range));
        }
        if request.kind.is_some() {
            kept.push(*request);
        }
        kept.sort_by_key(|lock| lock.range.start);
        // Neighbours of one kind and origin are one lock.
        let mut start = None;
        for lock in kept {
            let last = match start {
                Some(start) => locks.get_mut(&start),
                None => None,
            };
            match last.filter(|last| continues(last, &lock)) {
                Some(last) => last.range.end = lock.range.end,
                None => {
                    start = Some(lock.range.start);
                    locks.insert(lock.range.start, lock);
                }
            }
        }
        if locks.is_empty() {
            self.locks.remove(&key);
        }
    }

    /// It holds an inode so often.
    pub(crate) fn hold(&mut self, inode: InodeId, count: u64) {
        self.holds.insert(inode, count);
    }

    /// The numbers of the doors.
    pub(crate) fn doors(&self) -> BTreeSet<u32> {
        self.doors.iter().map(|door| door.number).collect()
    }

    /// The inodes on which locks are held.
    pub(crate) fn locked(&self) -> BTreeSet<InodeId> {
        self.locks.keys().map(|(inode, _, _)| *inode).collect()
    }

    /// All of it, in parts for messages; at least one.
    pub(super) fn parts(&self) -> Vec<Reclaimed> {
        let mut parts = vec![Reclaimed::default()];
        let mut count = 0;
        let mut next = |parts: &mut Vec<Reclaimed>| {
            if count == RECLAIM_MAX {
                parts.push(Reclaimed::default());
                count = 0;
            }
            count += 1;
            parts.len() - 1
        };
        // Doors first: locks need theirs.
        for door in &self.doors {
            let at = next(&mut parts);
            parts[at].doors.push(*door);
        }
        for lock in self.locks.values().flat_map(BTreeMap::values) {
            let at = next(&mut parts);
            parts[at].locks.push(*lock);
        }
        for (inode, count) in &self.holds {
            let at = next(&mut parts);
            parts[at].holds.push((*inode, *count));
        }
        parts
    }

    /// Operations that were sent and not answered, and with which the session holds what they make: slots and
    /// numbers. What they have made isn't in the parts.
    pub(super) fn under_way(&self) -> Vec<(u8, u64)> {
        let under_way = self.under_way.iter();
        under_way.map(|(slot, number)| (*slot, *number)).collect()
    }
}

/// The slot and number of an operation with which its session holds what it makes.
fn makes_held(request: &OwnerRequest) -> Option<(u8, u64)> {
    match request {
        OwnerRequest::Execute { operation, stamp } if operation.makes_held() => match stamp.turn {
            Turn::Slot { slot, number } => Some((slot, number)),
            _ => None,
        },
        _ => None,
    }
}

/// The inode that its session holds once more since a request.
pub(super) fn held_by(request: &OwnerRequest, reply: &Result<OwnerReply>) -> Option<InodeId> {
    match request {
        OwnerRequest::Hold { inode, .. } => reply.is_ok().then_some(*inode),
        request => made_held(request, reply),
    }
}

/// The inode that a request made, if its session holds it with that.
fn made_held(request: &OwnerRequest, reply: &Result<OwnerReply>) -> Option<InodeId> {
    match (request, reply) {
        (
            OwnerRequest::Execute { operation, .. },
            Ok(OwnerReply::Operation(Ranked {
                reply: Reply::Entry { attributes, .. },
                ..
            })),
        ) if operation.makes_held() => Some(attributes.inode),
        _ => None,
    }
}

fn key(request: &LockRequest) -> (InodeId, LockSpace, LockOwner) {
    (request.inode, request.space, request.owner)
}

/// What is left of a lock when a range is taken out of it.
fn outside(lock: &LockRequest, range: LockRange) -> impl Iterator<Item = LockRequest> {
    let with = |start, end| LockRequest {
        range: LockRange { start, end },
        ..*lock
    };
    if !lock.range.overlaps(range) {
        return [Some(*lock), None].into_iter().flatten();
    }
    let before = (lock.range.start < range.start).then(|| with(lock.range.start, range.start - 1));
    let after = (lock.range.end > range.end).then(|| with(range.end + 1, lock.range.end));
    [before, after].into_iter().flatten()
}

/// Whether a lock begins where another of the same kind and origin ends.
fn continues(first: &LockRequest, second: &LockRequest) -> bool {
    first.kind == second.kind
        && first.taker == second.taker
        && first.range.end.checked_add(1) == Some(second.range.start)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use model::lock::LockTaker;
    use model::operation::{Rank, Stamp};
    use model::{FileKind, FileName, Operation, SessionId, Timestamp};
    use proptest::prelude::*;
    use testkit::inodes::{attributes, new_inode};

    const SESSION: SessionId = SessionId(3);
    const DOOR: LockDoor = LockDoor {
        session: SESSION,
        number: 1,
    };

    fn request(owner: u64, open: u64, kind: Option<LockKind>, start: u64, end: u64) -> LockRequest {
        LockRequest {
            space: LockSpace::Range,
            inode: InodeId(5),
            owner: LockOwner {
                door: DOOR,
                id: owner,
            },
            kind,
            range: LockRange { start, end },
            taker: LockTaker {
                open,
                pid: 1,
                user: 1,
            },
        }
    }

    fn whole(kind: Option<LockKind>) -> LockRequest {
        LockRequest {
            space: LockSpace::Whole,
            range: LockRange::ALL,
            ..request(1, 1, kind, 0, 0)
        }
    }

    fn locks(book: &Book) -> Vec<LockRequest> {
        book.parts()
            .into_iter()
            .flat_map(|part| part.locks)
            .collect()
    }

    fn lock(book: &mut Book, call: LockCall, reply: Result<OwnerReply>) {
        book.answered(&OwnerRequest::Lock(call), &reply);
    }

    #[test]
    fn holds_follow_the_answers_and_not_the_requests() {
        let mut book = Book::default();
        let inode = InodeId(7);
        let hold = OwnerRequest::Hold {
            session: SESSION,
            inode,
        };
        let stamp = Stamp::own(Timestamp(0), SESSION);
        let unhold = OwnerRequest::Unhold { inode, stamp };
        book.answered(&hold, &Err(ErrorKind::ReclaimFirst.into()));
        assert_eq!(book.parts(), [Reclaimed::default()]);
        book.answered(&hold, &Ok(OwnerReply::Done));
        book.answered(&hold, &Ok(OwnerReply::Done));
        assert_eq!(book.parts()[0].holds, [(inode, 2)]);
        book.answered(&unhold, &Ok(OwnerReply::Done));
        book.answered(&unhold, &Err(ErrorKind::Unavailable.into()));
        assert_eq!(book.parts(), [Reclaimed::default()]);
        for _ in 0..3 {
            book.answered(&hold, &Ok(OwnerReply::Done));
        }
        // One that is named twice was used twice; of the last one nothing was known.
        let inodes = vec![inode, InodeId(8), inode];
        let all = OwnerRequest::UnholdAll { inodes, stamp };
        book.answered(&all, &Ok(OwnerReply::Done));
        assert_eq!(book.parts()[0].holds, [(inode, 1)]);
    }

    #[test]
    fn what_an_operation_makes_is_held_from_its_answer_on_and_under_way_until_then() {
        let make = |number| OwnerRequest::Execute {
            operation: Operation::CreateHeld {
                directory: InodeId::ROOT,
                name: FileName::new(b"f").unwrap(),
                new: new_inode(FileKind::File),
            },
            stamp: Stamp {
                turn: Turn::Slot { slot: 3, number },
                ..Stamp::own(Timestamp(0), SESSION)
            },
        };
        let mut book = Book::default();
        book.begun(&make(1), None);
        assert_eq!(book.under_way(), [(3, 1)]);
        book.answered(&make(1), &Err(ErrorKind::Exists.into()));
        assert!(book.under_way().is_empty());
        assert_eq!(book.parts(), [Reclaimed::default()], "nothing was made");
        // One that certainly wasn't applied gives way to the slot's next one.
        for number in [2, 3, 3] {
            book.begun(&make(number), None);
            assert_eq!(book.under_way(), [(3, number)]);
        }
        let inode = InodeId(7);
        let reply = Reply::Entry {
            attributes: attributes(inode, FileKind::File),
            directory: None,
        };
        let rank = Rank::default();
        let made = Ok(OwnerReply::Operation(Ranked { reply, rank }));
        book.answered(&make(3), &made);
        assert!(book.under_way().is_empty());
        assert_eq!(book.parts()[0].holds, [(inode, 1)]);
    }

    #[test]
    fn a_flock_that_is_refused_or_waits_has_given_up_the_old_one() {
        for (reply, is_kept) in [
            (Err(ErrorKind::WouldBlock.into()), false),
            (Ok(OwnerReply::Waits), false),
            (Err(ErrorKind::TooManyLocks.into()), false),
            // Refused before anything was given up.
            (Err(ErrorKind::InvalidArgument.into()), true),
            (Err(ErrorKind::ShuttingDown.into()), true),
        ] {
            let mut book = Book::default();
            let shared = whole(Some(LockKind::Shared));
            let exclusive = whole(Some(LockKind::Exclusive));
            lock(&mut book, LockCall::Set(shared), Ok(OwnerReply::Done));
            let queue = LockCall::Queue {
                wait: 1,
                request: exclusive,
            };
            lock(&mut book, queue, reply);
            assert_eq!(locks(&book), if is_kept { vec![shared] } else { vec![] });
        }
        // One of the same kind gives nothing up.
        let mut book = Book::default();
        let shared = whole(Some(LockKind::Shared));
        lock(&mut book, LockCall::Set(shared), Ok(OwnerReply::Done));
        let refused = Err(ErrorKind::TooManyLocks.into());
        lock(&mut book, LockCall::Set(shared), refused);
        assert_eq!(locks(&book), [shared]);
    }

    /// Would be broken if a new owner were told of a lock that the one before may have ended and given to others.
    #[test]
    fn what_a_request_without_an_answer_may_have_ended_is_not_said() {
        let (shared, exclusive) = (Some(LockKind::Shared), Some(LockKind::Exclusive));
        let part = |kind, start, end| request(1, 1, kind, start, end);
        let held = part(exclusive, 0, 9);
        let (inode, owner, door) = (held.inode, held.owner, DOOR);
        let set = LockCall::Set;
        let queue = |request| LockCall::Queue { wait: 1, request };
        let cut = vec![part(exclusive, 0, 2), part(exclusive, 6, 9)];
        let weaker = vec![part(exclusive, 0, 4), part(shared, 5, 9)];
        let all = [
            (set(part(None, 3, 5)), cut),
            (set(part(shared, 5, 9)), weaker.clone()),
            (queue(part(shared, 5, 9)), weaker),
            // They may be refused, or have to wait, and then change nothing.
            (set(part(shared, 5, 20)), vec![held]),
            (queue(part(shared, 5, 20)), vec![held]),
            (set(part(exclusive, 5, 20)), vec![held]),
            (LockCall::EndProcess { inode, owner }, vec![]),
            (LockCall::EndOpen { door, open: 1 }, vec![]),
            (LockCall::EndDoor(door), vec![]),
        ];
        let order = Some(Order { slot: 3, number: 7 });
        for (call, left) in all {
            for is_decided in [true, false] {
                let mut book = Book::default();
                lock(&mut book, set(held), Ok(OwnerReply::Done));
                book.begun(&OwnerRequest::Lock(call.clone()), order);
                if is_decided {
                    book.decided(order);
                }
                assert_eq!(locks(&book), [held], "as long as its owner lives");
                book.let_go();
                let expected = if is_decided { vec![held] } else { left.clone() };
                assert_eq!(locks(&book), expected, "{call:?}");
            }
        }
        for kind in [None, exclusive] {
            let mut book = Book::default();
            lock(&mut book, set(whole(shared)), Ok(OwnerReply::Done));
            book.begun(&OwnerRequest::Lock(queue(whole(kind))), order);
            book.let_go();
            assert_eq!(locks(&book), [], "flock gives the old lock up first");
        }
    }

    #[test]
    fn a_wait_becomes_a_lock_when_its_end_says_so() {
        let mut book = Book::default();
        let exclusive = request(1, 1, Some(LockKind::Exclusive), 0, 9);
        for (wait, end) in [
            (1, Err(ErrorKind::Interrupted.into())),
            (2, Ok(OwnerReply::Done)),
        ] {
            assert_eq!(locks(&book), []);
            let queue = LockCall::Queue {
                wait,
                request: exclusive,
            };
            lock(&mut book, queue, Ok(OwnerReply::Waits));
            let session = SESSION;
            lock(&mut book, LockCall::EndWait { session, wait }, end);
        }
        assert_eq!(locks(&book), [exclusive]);
        lock(&mut book, LockCall::EndDoor(DOOR), Ok(OwnerReply::Done));
        assert_eq!(locks(&book), []);
    }

    #[test]
    fn much_is_said_in_several_parts_with_doors_first() {
        let mut book = Book::default();
        lock(&mut book, LockCall::BeginDoor(DOOR), Ok(OwnerReply::Done));
        for inode in 0..RECLAIM_MAX as u64 {
            let hold = OwnerRequest::Hold {
                session: SESSION,
                inode: InodeId(inode),
            };
            book.answered(&hold, &Ok(OwnerReply::Done));
        }
        let parts = book.parts();
        assert_eq!(parts.len(), 2);
        assert_eq!(
            (parts[0].doors.len(), parts[0].holds.len()),
            (1, RECLAIM_MAX - 1)
        );
        assert_eq!((parts[1].doors.len(), parts[1].holds.len()), (0, 1));
    }

    /// Would be broken if a program that locks a file piece by piece had a lock for each, or if a part couldn't be unlocked.
    #[test]
    fn what_touches_is_one_lock_up_to_the_last_byte_and_a_part_can_be_unlocked() {
        const LAST: u64 = u64::MAX;
        let mut book = Book::default();
        let mut set = |asked: LockRequest| {
            lock(&mut book, LockCall::Set(asked), Ok(OwnerReply::Done));
            locks(&book)
        };
        let shared = |start, end| request(1, 1, Some(LockKind::Shared), start, end);
        let unlocked = |start, end| request(1, 1, None, start, end);
        assert_eq!(set(shared(0, 9)), [shared(0, 9)]);
        let two = [shared(0, 9), shared(20, LAST)];
        assert_eq!(set(shared(20, LAST)), two);
        assert_eq!(set(shared(10, 19)), [shared(0, LAST)]);
        let around = [shared(0, 4), shared(6, LAST)];
        assert_eq!(set(unlocked(5, 5)), around);
        // Of another kind, or by another open.
        for other in [
            request(1, 1, Some(LockKind::Exclusive), 5, 5),
            request(1, 2, Some(LockKind::Shared), 5, 5),
        ] {
            assert_eq!(set(other), [around[0], other, around[1]]);
        }
        assert_eq!(set(shared(5, 5)), [shared(0, LAST)]);
        assert_eq!(set(unlocked(LAST, LAST)), [shared(0, LAST - 1)]);
        assert_eq!(set(shared(LAST, LAST)), [shared(0, LAST)]);
        assert_eq!(set(unlocked(0, LAST)), []);
    }

    proptest! {
        /// Byte by byte, the book has the kinds and opens that the requests leave.
        #[test]
        fn ranges_are_those_of_the_requests(
            steps in prop::collection::vec(
                (0_u8..6, 0_u64..20, 0_u64..20, 1_u64..3, 0_u8..3), 1..60)
        ) {
            let mut book = Book::default();
            let mut bytes: [Option<(LockKind, u64)>; 40] = [None; 40];
            for (what, start, length, open, kind) in steps {
                if what == 0 {
                    let end = LockCall::EndOpen { door: DOOR, open };
                    lock(&mut book, end, Ok(OwnerReply::Done));
                    bytes.iter_mut().for_each(|it| *it = it.filter(|(_, by)| *by != open));
                    continue;
                }
                let kind = [None, Some(LockKind::Shared), Some(LockKind::Exclusive)][usize::from(kind)];
                let asked = request(1, open, kind, start, start + length);
                lock(&mut book, LockCall::Set(asked), Ok(OwnerReply::Done));
                for byte in start..=start + length {
                    bytes[byte as usize] = kind.map(|kind| (kind, open));
                }
                let mut found = [None; 40];
                let all = locks(&book);
                prop_assert!(!all.windows(2).any(|two| continues(&two[0], &two[1])));
                for held in all {
                    for byte in held.range.start..=held.range.end {
                        prop_assert!(found[byte as usize].is_none(), "no overlaps");
                        found[byte as usize] = Some((held.kind.unwrap(), held.taker.open));
                    }
                }
                prop_assert_eq!(found, bytes);
            }
        }
    }
}
