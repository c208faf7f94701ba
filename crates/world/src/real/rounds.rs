//! For a plain thread that drives many futures at once, and sleeps in an io_uring of its own between its rounds over those
//! that were woken.
//!
//! `World::block_on` has a waker for one future, and sleeps in the ring of the thread's disk I/O. A thread that gets its
//! work from another ring must hear of three things in one place: of work, of answers of disks, and that a future was
//! woken. All come to that other ring: it polls the disk ring ([`Rounds::disks`]) and the bell ([`Bell::descriptor`]).

use super::ring::Driving;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Wake, Waker};

/// Rings when a future is woken whose thread sleeps.
#[derive(Debug)]
pub struct Bell {
    descriptor: OwnedFd,
    /// A bit for each place whose future was woken since the thread looked.
    woken: AtomicU64,
    /// The thread sleeps, or is about to.
    is_asleep: AtomicBool,
}

/// Wakes the future at one place.
struct PlaceWaker {
    bell: Arc<Bell>,
    place: usize,
}

/// While this exists, the calling thread drives futures, each at a place, and what they ask of disks goes to the thread's
/// own ring. The thread must be one of `World::spawn_thread`: there timers and tasks work.
pub struct Rounds {
    bell: Arc<Bell>,
    wakers: Vec<Waker>,
    driving: Driving,
    /// It is this thread's.
    _here: PhantomData<*const ()>,
}

impl Bell {
    /// Most places of a thread.
    pub const PLACES_MAX: usize = 64;

    /// A bell for a thread that hasn't begun.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            descriptor: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            woken: AtomicU64::new(0),
            is_asleep: AtomicBool::new(false),
        }))
    }

    /// An eventfd that is written to when it rings. Nobody reads it: each write is an event of its own to whom polls for
    /// edges, and the counter has 64 bits.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// Of all that are woken while the thread sleeps only the first one makes a system call.
    fn ring(&self, place: usize) {
        self.woken.fetch_or(1 << place, Ordering::SeqCst);
        // As `Rounds::fall_asleep` does the same in the opposite order, one of the two sees the other.
        if self.is_asleep.load(Ordering::SeqCst) && self.is_asleep.swap(false, Ordering::SeqCst) {
            rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes())
                .expect("nobody rings a bell 2^64 times");
        }
    }
}

impl Wake for PlaceWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.bell.ring(self.place);
    }
}

impl Rounds {
    /// The calling thread begins; the bell is its own from now on.
    ///
    /// # Panics
    /// If there are more places than [`Bell::PLACES_MAX`].
    #[must_use]
    pub fn begin(bell: &Arc<Bell>, places: usize) -> Self {
        assert!(places <= Bell::PLACES_MAX, "each place has a bit");
        let waker = |place| {
            let bell = bell.clone();
            Waker::from(Arc::new(PlaceWaker { bell, place }))
        };
        Self {
            bell: bell.clone(),
            wakers: (0..places).map(waker).collect(),
            driving: Driving::begin(),
            _here: PhantomData,
        }
    }

    /// That of the future at a place. It may wake later ones at the same place for nothing.
    #[must_use]
    pub fn waker(&self, place: usize) -> &Waker {
        &self.wakers[place]
    }

    /// The places whose futures were woken since this was asked last, a bit for each.
    #[must_use]
    pub fn woken(&self) -> u64 {
        match self.bell.woken.load(Ordering::SeqCst) {
            0 => 0,
            _ => self.bell.woken.swap(0, Ordering::SeqCst),
        }
    }

    /// The thread wants to sleep. False: a future was woken, and must be polled first. From a true one until
    /// [`Rounds::wake_up`], the bell rings if one is woken.
    #[must_use]
    pub fn fall_asleep(&self) -> bool {
        self.bell.is_asleep.store(true, Ordering::SeqCst);
        let may_sleep = self.bell.woken.load(Ordering::SeqCst) == 0;
        if !may_sleep {
            self.wake_up();
        }
        may_sleep
    }

    /// The thread sleeps no longer. The bell may still ring once.
    pub fn wake_up(&self) {
        self.bell.is_asleep.store(false, Ordering::SeqCst);
    }

    /// What is readable when a disk has answered the thread; `None` while it has asked none. The same one until the thread
    /// ends.
    #[must_use]
    pub fn disks(&self) -> Option<RawFd> {
        self.driving.ring().map(|ring| ring.descriptor())
    }

    /// Passes on what disks have answered to the thread: wakes those who wait for it.
    pub fn collect(&self) {
        if let Some(ring) = self.driving.ring() {
            self.driving.collect(&ring);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::World;
    use crate::real::gather_io;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::io::Errno;
    use std::os::fd::BorrowedFd;
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::{Context, Poll};

    /// Waits until a descriptor is readable.
    fn readable(descriptor: RawFd) {
        // SAFETY: it stays open over the call: both kinds belong to the calling thread's rounds.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        loop {
            let mut one = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
            match poll(&mut one, None) {
                Ok(_) => return,
                Err(Errno::INTR) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn no_wake_up_is_lost_between_a_look_and_a_sleep() {
        const TIMES: usize = 20_000;
        let bell = Bell::new().expect("a descriptor");
        let rounds = Rounds::begin(&bell, 2);
        let mut seen = [0; 2];
        std::thread::scope(|scope| {
            let takers = [0, 1].map(|place| {
                let waker = rounds.waker(place).clone();
                let (taken, is_taken) = mpsc::sync_channel(1);
                scope.spawn(move || {
                    for _ in 0..TIMES {
                        waker.wake_by_ref();
                        // None of them may be taken for two.
                        is_taken.recv().expect("the other side goes on");
                    }
                });
                taken
            });
            while seen != [TIMES; 2] {
                let woken = rounds.woken();
                for (place, taken) in takers.iter().enumerate() {
                    if woken & (1 << place) != 0 {
                        seen[place] += 1;
                        taken.send(()).expect("the other side waits");
                    }
                }
                if woken == 0 && rounds.fall_asleep() {
                    readable(bell.descriptor());
                    rustix::io::read(&bell.descriptor, &mut [0_u8; 8]).expect("it has rung");
                    rounds.wake_up();
                }
            }
        });
        assert_eq!(rounds.woken(), 0);
    }

    #[test]
    fn the_bell_is_silent_while_the_thread_is_awake() {
        let bell = Bell::new().expect("a descriptor");
        let rounds = Rounds::begin(&bell, 3);
        let has_rung = || rustix::io::read(&bell.descriptor, &mut [0_u8; 8]).is_ok();
        rounds.waker(2).wake_by_ref();
        assert!(!has_rung());
        assert!(!rounds.fall_asleep(), "one was woken");
        assert_eq!(rounds.woken(), 1 << 2);
        assert!(rounds.fall_asleep());
        rounds.waker(0).wake_by_ref();
        assert!(has_rung());
        rounds.waker(1).wake_by_ref();
        assert!(!has_rung(), "it rings once");
        rounds.wake_up();
        assert_eq!(rounds.woken(), 0b11);
    }

    #[test]
    fn answers_of_disks_come_to_the_thread_that_has_asked() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let _context = runtime.enter();
        let directory = tempfile::tempdir().expect("a directory");
        let disk = World::real()
            .create_disk(&directory.path().join("nsd0"), 1 << 20)
            .expect("a disk");
        let bell = Bell::new().expect("a descriptor");
        let rounds = Rounds::begin(&bell, 2);
        assert_eq!(rounds.disks(), None);
        let mut reads = [0, 1].map(|_| Box::pin(disk.read(0, 4096)));
        let has_told = || rounds.driving.ring().is_some_and(|ring| ring.has_told());
        gather_io(|| {
            for (place, read) in reads.iter_mut().enumerate() {
                let mut context = Context::from_waker(rounds.waker(place));
                assert!(read.as_mut().poll(&mut context).is_pending());
            }
            assert!(!has_told());
        });
        assert!(has_told());
        let mut woken = 0;
        while woken != 0b11 {
            readable(rounds.disks().expect("a read is under way"));
            rounds.collect();
            woken |= rounds.woken();
        }
        assert_eq!(rounds.disks(), None);
        for (place, read) in reads.into_iter().enumerate() {
            let mut context = Context::from_waker(rounds.waker(place));
            let Poll::Ready(Ok(bytes)) = pin!(read).poll(&mut context) else {
                panic!("it was answered");
            };
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    }
}
