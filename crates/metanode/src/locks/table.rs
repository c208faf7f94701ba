//! The rules of file locks, as a state machine without clocks, tasks or I/O.
//!
//! One list of held locks per inode and space. Range locks of one owner never overlap and
//! neighbours of the same kind are one lock. Waiting requests are granted in the order of
//! their arrival, except that one may pass another that still has to wait (as in Linux).

use model::{Error, ErrorKind, InodeId, Result, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// Requests that may wait in all.
pub(super) const WAITERS_MAX: usize = 65_536;

/// Who holds a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LockOwner {
    /// A process (the kernel's lock owner); POSIX locks. Circles among them are refused.
    Process(SessionId, u64),
    /// An open file: flock and OFD locks.
    OpenFile(SessionId, u64),
}

impl LockOwner {
    /// The session that the owner belongs to.
    #[must_use]
    pub fn session(self) -> SessionId {
        match self {
            Self::Process(session, _) | Self::OpenFile(session, _) => session,
        }
    }
}

/// Shared or exclusive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LockKind {
    /// Many may hold it: LOCK_SH, F_RDLCK.
    Shared,
    /// One may hold it: LOCK_EX, F_WRLCK.
    Exclusive,
}

/// A byte range, both ends included, as the kernel sends it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte; `u64::MAX` for "to the end, wherever it is".
    pub end: u64,
}

impl LockRange {
    /// The whole file.
    pub const ALL: Self = Self {
        start: 0,
        end: u64::MAX,
    };

    fn overlaps(self, other: Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    fn touches(self, other: Self) -> bool {
        self.start <= other.end.saturating_add(1) && other.start <= self.end.saturating_add(1)
    }
}

/// A lock that somebody holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldLock {
    /// Who.
    pub owner: LockOwner,
    /// How.
    pub kind: LockKind,
    /// Which bytes.
    pub range: LockRange,
    /// The process that took it, for F_GETLK.
    pub pid: u32,
}

/// flock locks and range locks don't see each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Space {
    Whole,
    Range,
}

/// A wish to lock (`kind`) or unlock (`None`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) space: Space,
    pub(super) inode: InodeId,
    pub(super) owner: LockOwner,
    pub(super) kind: Option<LockKind>,
    pub(super) range: LockRange,
    pub(super) pid: u32,
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Granted,
    Waits(u64),
}

struct Waiter<W> {
    request: Request,
    waker: W,
}

/// All locks of a file system; `W` is told when a waiting request is granted.
pub(super) struct Table<W> {
    held: BTreeMap<(Space, InodeId), Vec<HeldLock>>,
    waiting: BTreeMap<u64, Waiter<W>>,
    /// Waiting tickets per inode, so that a release looks only at its own.
    queues: BTreeMap<(Space, InodeId), BTreeSet<u64>>,
    /// Granted to waiters that haven't said yet that they know.
    unclaimed: BTreeMap<u64, Request>,
    granted: Vec<W>,
    next_ticket: u64,
}

impl<W> Default for Table<W> {
    fn default() -> Self {
        Self {
            held: BTreeMap::new(),
            waiting: BTreeMap::new(),
            queues: BTreeMap::new(),
            unclaimed: BTreeMap::new(),
            granted: Vec::new(),
            next_ticket: 1,
        }
    }
}

impl<W> Table<W> {
    /// Grants, refuses, or (with a waker) queues a request.
    pub(super) fn request(&mut self, request: Request, waker: Option<W>) -> Result<Answer> {
        if request.range.start > request.range.end {
            return Err(ErrorKind::InvalidArgument.into());
        }
        let Some(kind) = request.kind else {
            self.set(&request);
            self.grant_waiting(request.space, request.inode);
            return Ok(Answer::Granted);
        };
        if self
            .conflict(
                request.space,
                request.inode,
                request.owner,
                request.range,
                kind,
            )
            .is_none()
        {
            // A downgrade may let others in.
            self.set(&request);
            self.grant_waiting(request.space, request.inode);
            return Ok(Answer::Granted);
        }
        let Some(waker) = waker else {
            return Err(ErrorKind::WouldBlock.into());
        };
        if self.waiting.len() >= WAITERS_MAX {
            return Err(Error::new(
                ErrorKind::WouldBlock,
                "too many lock requests are waiting",
            ));
        }
        if self.closes_circle(&request) {
            return Err(ErrorKind::WouldDeadlock.into());
        }
        if request.space == Space::Whole {
            // flock(2): a conversion is a removal followed by a new lock.
            self.set(&Request {
                kind: None,
                ..request
            });
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.insert(ticket, Waiter { request, waker });
        self.queues
            .entry((request.space, request.inode))
            .or_default()
            .insert(ticket);
        self.grant_waiting(request.space, request.inode);
        Ok(Answer::Waits(ticket))
    }

    /// The first lock of another owner that stops this one, by start.
    pub(super) fn conflict(
        &self,
        space: Space,
        inode: InodeId,
        owner: LockOwner,
        range: LockRange,
        kind: LockKind,
    ) -> Option<HeldLock> {
        self.conflicts(space, inode, owner, range, kind)
            .min_by_key(|held| held.range.start)
    }

    /// The waiter of a granted ticket knows; its lock is its own now.
    pub(super) fn claim(&mut self, ticket: u64) {
        self.unclaimed.remove(&ticket);
    }

    /// The waiter is gone: its request is taken back, also if it was granted meanwhile.
    pub(super) fn cancel(&mut self, ticket: u64) {
        let request = match self.remove_waiting(ticket) {
            Some(waiter) => waiter.request,
            None => match self.unclaimed.remove(&ticket) {
                Some(request) => {
                    self.set(&Request {
                        kind: None,
                        ..request
                    });
                    request
                }
                None => return,
            },
        };
        self.grant_waiting(request.space, request.inode);
    }

    /// All locks and requests of an owner on an inode go. True if there were any.
    pub(super) fn release_owner(&mut self, inode: InodeId, owner: LockOwner) -> bool {
        let mut had = false;
        for space in [Space::Whole, Space::Range] {
            had |= self.release_where(space, inode, |other| other == owner);
        }
        had
    }

    /// All locks and requests of a session go.
    pub(super) fn release_session(&mut self, session: SessionId) {
        let places: BTreeSet<(Space, InodeId)> = self
            .held
            .keys()
            .chain(self.queues.keys())
            .copied()
            .collect();
        for (space, inode) in places {
            self.release_where(space, inode, |owner| owner.session() == session);
        }
    }

    /// Wakers of requests granted since the last call.
    pub(super) fn take_granted(&mut self) -> Vec<W> {
        std::mem::take(&mut self.granted)
    }

    /// Locks held and requests waiting.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.held.values().map(Vec::len).sum(), self.waiting.len())
    }

    /// The locks held on an inode, by owner and start.
    #[cfg(test)]
    pub(super) fn held(&self, space: Space, inode: InodeId) -> Vec<HeldLock> {
        let mut held = self.held.get(&(space, inode)).cloned().unwrap_or_default();
        held.sort_by_key(|lock| (lock.owner, lock.range.start));
        held
    }

    #[cfg(test)]
    pub(super) fn is_waiting(&self, ticket: u64) -> bool {
        self.waiting.contains_key(&ticket)
    }

    fn conflicts(
        &self,
        space: Space,
        inode: InodeId,
        owner: LockOwner,
        range: LockRange,
        kind: LockKind,
    ) -> impl Iterator<Item = HeldLock> {
        self.held
            .get(&(space, inode))
            .into_iter()
            .flatten()
            .filter(move |held| {
                held.owner != owner
                    && held.range.overlaps(range)
                    && (held.kind == LockKind::Exclusive || kind == LockKind::Exclusive)
            })
            .copied()
    }

    fn release_where(
        &mut self,
        space: Space,
        inode: InodeId,
        whose: impl Fn(LockOwner) -> bool,
    ) -> bool {
        let mut had = false;
        if let Some(held) = self.held.get_mut(&(space, inode)) {
            let before = held.len();
            held.retain(|lock| !whose(lock.owner));
            had |= held.len() != before;
            if held.is_empty() {
                self.held.remove(&(space, inode));
            }
        }
        let tickets: Vec<u64> = self
            .queues
            .get(&(space, inode))
            .into_iter()
            .flatten()
            .copied()
            .collect();
        for ticket in tickets {
            if whose(self.waiting[&ticket].request.owner) {
                // Its waker is dropped: the waiter learns that it was interrupted.
                self.remove_waiting(ticket);
                had = true;
            }
        }
        if had {
            self.grant_waiting(space, inode);
        }
        had
    }

    fn remove_waiting(&mut self, ticket: u64) -> Option<Waiter<W>> {
        let waiter = self.waiting.remove(&ticket)?;
        let place = (waiter.request.space, waiter.request.inode);
        if let Some(queue) = self.queues.get_mut(&place) {
            queue.remove(&ticket);
            if queue.is_empty() {
                self.queues.remove(&place);
            }
        }
        Some(waiter)
    }

    fn grant_waiting(&mut self, space: Space, inode: InodeId) {
        loop {
            let ready = self.queues.get(&(space, inode)).and_then(|queue| {
                queue.iter().copied().find(|ticket| {
                    let request = &self.waiting[ticket].request;
                    let kind = request.kind.expect("only locks wait, unlocks never do");
                    self.conflicts(space, inode, request.owner, request.range, kind)
                        .next()
                        .is_none()
                })
            });
            let Some(ticket) = ready else { return };
            let waiter = self
                .remove_waiting(ticket)
                .expect("the ticket was found in the queue");
            self.set(&waiter.request);
            self.unclaimed.insert(ticket, waiter.request);
            self.granted.push(waiter.waker);
        }
    }

    /// Gives the owner's range its new kind (or none), splitting and joining its own locks.
    fn set(&mut self, request: &Request) {
        let held = self.held.entry((request.space, request.inode)).or_default();
        let mut range = request.range;
        let mut kept = Vec::with_capacity(held.len() + 2);
        for lock in held.drain(..) {
            if lock.owner != request.owner || !lock.range.touches(range) {
                kept.push(lock);
            } else if request.kind == Some(lock.kind) {
                range = LockRange {
                    start: range.start.min(lock.range.start),
                    end: range.end.max(lock.range.end),
                };
            } else {
                if lock.range.start < request.range.start {
                    let end = lock.range.end.min(request.range.start - 1);
                    kept.push(HeldLock {
                        range: LockRange {
                            start: lock.range.start,
                            end,
                        },
                        ..lock
                    });
                }
                if lock.range.end > request.range.end {
                    let start = lock.range.start.max(request.range.end + 1);
                    kept.push(HeldLock {
                        range: LockRange {
                            start,
                            end: lock.range.end,
                        },
                        ..lock
                    });
                }
            }
        }
        if let Some(kind) = request.kind {
            kept.push(HeldLock {
                owner: request.owner,
                kind,
                range,
                pid: request.pid,
            });
        }
        if kept.is_empty() {
            self.held.remove(&(request.space, request.inode));
        } else {
            *held = kept;
        }
    }

    /// Whether processes would wait for each other in a circle if this request waited. Only
    /// process-owned range locks take part, as in Linux.
    fn closes_circle(&self, request: &Request) -> bool {
        if request.space != Space::Range || !matches!(request.owner, LockOwner::Process(..)) {
            return false;
        }
        let mut seen = BTreeSet::new();
        let mut ahead = vec![*request];
        while let Some(waits) = ahead.pop() {
            let kind = waits.kind.expect("only locks wait, unlocks never do");
            for stopper in self.conflicts(Space::Range, waits.inode, waits.owner, waits.range, kind)
            {
                if stopper.owner == request.owner {
                    return true;
                }
                if !matches!(stopper.owner, LockOwner::Process(..)) || !seen.insert(stopper.owner) {
                    continue;
                }
                let further = self.waiting.values().map(|waiter| waiter.request);
                ahead.extend(
                    further.filter(|other| {
                        other.space == Space::Range && other.owner == stopper.owner
                    }),
                );
            }
        }
        false
    }
}
