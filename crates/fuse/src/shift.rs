//! One thread's work on the requests that come to its ring: it runs as many at once as the ring has entries.
//!
//! A request that needs not wait is answered at its first poll. One that waits (for another node, a disk, a lock) keeps its
//! seat, and the thread goes on with others: with the next request, or with whichever can go on. So requests that come
//! together, or whose answers come together, cost one wake-up of the thread and one system call for all their replies.

use crate::pulse::Pulse;
use crate::reply::Reply;
use crate::ring_entry::RingEntry;
use crate::thread_ring::Line;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use world::{Bell, Rounds, World, in_one_go};

/// Rounds of polling after each other before the thread turns to the kernel for replies and further requests: these don't
/// wait as long as others can go on.
const ROUNDS_MAX: u32 = 4;
/// A round that has lasted so long is cut, and the thread turns to the kernel: what it has for programs, disks and other
/// nodes doesn't wait for requests that take much. Longer than a round of others takes.
const ROUND_MAX: Duration = Duration::from_micros(250);

/// The work. `A` answers a request.
pub(crate) struct Shift<'a, A> {
    line: &'a mut Line,
    entries: &'a [RingEntry],
    /// By entry. Boxed once: a request takes no memory of its own.
    seats: Vec<Pin<Box<Option<A>>>>,
    /// Seats that are taken.
    taken: usize,
    /// Those whose turn in the round hasn't come.
    due: VecDeque<usize>,
    rounds: Rounds,
    pulse: &'a Pulse,
}

/// What the thread has to do with a mount.
pub(crate) trait Boss {
    /// The mount has begun to end.
    fn ends(&self);
    /// The kernel's answer makes no sense: ends the connection.
    fn abort(&self, error: &io::Error);
}

impl<'a, A: Future<Output = Reply>> Shift<'a, A> {
    /// The calling thread's work with the ring that it has registered.
    pub(crate) fn new(
        line: &'a mut Line,
        entries: &'a [RingEntry],
        bell: &Arc<Bell>,
        pulse: &'a Pulse,
    ) -> Self {
        Self {
            line,
            entries,
            seats: entries.iter().map(|_| Box::pin(None)).collect(),
            taken: 0,
            due: VecDeque::new(),
            rounds: Rounds::begin(bell, entries.len()),
            pulse,
        }
    }

    /// Answers all requests until the mount has ended, each with what `begin` makes for its entry.
    pub(crate) fn run(&mut self, begin: impl Fn(usize) -> A, boss: &impl Boss, world: &World) {
        let mut has_told = false;
        let mut busy = 0;
        loop {
            if let Err(error) = self.line.collect(self.entries) {
                boss.abort(&error);
            }
            if self.line.is_ending() && !has_told {
                has_told = true;
                boss.ends();
            }
            if self.entries.iter().all(RingEntry::has_ended) {
                return;
            }
            self.rounds.collect();
            // What its requests ask of disks is told to the kernel together, and what they ask of another node leaves
            // together.
            let has_polled = in_one_go(|| world.gather_io(|| self.round(&begin, world)));
            busy += 1;
            let turned = if !has_polled && self.rounds.fall_asleep() {
                busy = 0;
                self.sleep()
            } else if busy == ROUNDS_MAX || !self.due.is_empty() {
                busy = 0;
                self.submit()
            } else {
                Ok(())
            };
            if let Err(error) = turned {
                boss.abort(&error);
                boss.ends();
                return self.finish(world);
            }
        }
    }

    /// Begins with the requests that have come, and goes on with those that can. If that takes long, it leaves some to the
    /// next round, which then looks for no others. False if there were none.
    fn round(&mut self, begin: &impl Fn(usize) -> A, world: &World) -> bool {
        if self.due.is_empty() {
            self.fill(begin);
        }
        let has_polled = !self.due.is_empty();
        let end = world.now() + ROUND_MAX;
        while let Some(at) = self.due.pop_front() {
            self.poll(at);
            if world.now() >= end {
                break;
            }
        }
        has_polled
    }

    /// Looks for those that have come or can go on.
    fn fill(&mut self, begin: &impl Fn(usize) -> A) {
        while let Some(at) = self.line.next_request() {
            self.seats[at].set(Some(begin(at)));
            self.taken += 1;
            self.due.push_back(at);
        }
        let mut woken = self.rounds.woken();
        while woken != 0 {
            self.due.push_back(woken.trailing_zeros() as usize);
            woken &= woken - 1;
        }
    }

    fn poll(&mut self, at: usize) {
        // Empty if the wake-up was for an earlier request, or this one was answered in the same round.
        let Some(answer) = self.seats[at].as_mut().as_pin_mut() else {
            return;
        };
        // Said for each: a thread that has much to do gets on.
        self.pulse.runs();
        let mut context = Context::from_waker(self.rounds.waker(at));
        if let Poll::Ready(reply) = answer.poll(&mut context) {
            // Ends what reads from the entry.
            self.seats[at].set(None);
            self.taken -= 1;
            // Its request doesn't run any more, however long the kernel takes for the reply.
            self.pulse.waits();
            self.line.commit(at, self.entries, &reply);
        }
    }

    /// Sends the replies and fetches further requests, without waiting for any.
    fn submit(&mut self) -> io::Result<()> {
        self.pulse.waits();
        self.line.submit(self.entries)
    }

    /// Sleeps until something comes or can go on.
    fn sleep(&mut self) -> io::Result<()> {
        match self.taken {
            0 => self.pulse.reads(),
            _ => self.pulse.waits(),
        }
        let waited = self.line.wait(self.entries, self.rounds.disks());
        self.rounds.wake_up();
        waited
    }

    /// Lets the requests that are under way end, which can't be answered any more.
    fn finish(&mut self, world: &World) {
        self.pulse.waits();
        world.block_on(poll_fn(|context| {
            for seat in &mut self.seats {
                if let Some(answer) = seat.as_mut().as_pin_mut()
                    && answer.poll(context).is_ready()
                {
                    seat.set(None);
                }
            }
            match self.seats.iter().all(|seat| seat.is_none()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }));
    }
}
