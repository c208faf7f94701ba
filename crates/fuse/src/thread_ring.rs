//! The io_uring of one thread that serves requests: it fetches requests into its entries, commits replies, and is where the
//! thread sleeps.
//!
//! All replies that were made since the thread last turned to the kernel are committed by the system call in which it waits
//! for the next request. Whatever else goes on while it sleeps comes to the same ring: that one of its requests can go on
//! ([`Bell`]), and that a disk has answered ([`world::Rounds::disks`]).

use crate::abi::{RingCommand, ring_command};
use crate::device::Device;
use crate::reply::Reply;
use crate::ring_entry::{PARTS, PAYLOAD_KEPT, RingEntry};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use world::Bell;
use zerocopy::IntoBytes;

/// Most entries of a ring: so many requests can share a wake-up and a system call. With two threads for each CPU, eight
/// CPUs then have as many entries as requests of a mount may wait.
pub(crate) const ENTRIES_MAX: usize = 16;
/// Memory of large requests and replies is given back to the system when a thread has had none for so long.
const REST: Duration = Duration::from_secs(10);
/// The device's place in the ring's table of files.
const DEVICE: types::Fixed = types::Fixed(0);
/// Offset of `len` in an SQE; the crate has no way to set it for commands.
const SQE_LEN_AT: usize = 24;
/// A queue number that no kernel has.
const NO_QUEUE: u16 = u16::MAX;
/// `user_data` of the bell's poll. That of a command is its entry's number.
const BELL: u64 = u64::MAX;
/// `user_data` of the poll for answers of disks.
const DISKS: u64 = u64::MAX - 1;
/// How many polls there are.
const POLLS: usize = 2;

const _: () = assert!(size_of::<squeue::Entry128>() == 128);
const _: () = assert!(ENTRIES_MAX <= Bell::PLACES_MAX);

/// A ring with its entries.
pub(crate) struct ThreadRing {
    // Dropped first: the kernel gets no commands any more when an entry's memory goes.
    line: Line,
    entries: Box<[RingEntry]>,
}

/// What a thread and the kernel tell each other by. Only the thread that registers the entries may use it then.
pub(crate) struct Line {
    uring: IoUring<squeue::Entry128, cqueue::Entry>,
    queue: u16,
    bell: Arc<Bell>,
    /// The kernel polls the bell.
    hears_bell: bool,
    /// The kernel polls the ring of the thread's disk I/O.
    hears_disks: bool,
    /// An entry has memory to give back.
    is_grown: bool,
    /// When there was a large request or reply.
    large_at: Instant,
    /// Entries with requests that nobody has taken, in the order in which these came.
    came: VecDeque<usize>,
    /// An entry has ended, so the mount does.
    is_ending: bool,
}

impl ThreadRing {
    /// A ring for a queue, with so many entries that aren't registered yet. Any thread may make it.
    ///
    /// # Errors
    /// io_uring is forbidden or too old; no memory or descriptors.
    pub(crate) fn new(device: &Device, queue: u16, entries: usize) -> io::Result<Self> {
        assert!((1..=ENTRIES_MAX).contains(&entries), "{entries} entries");
        // Disabled until `register`, so that the ring binds to the registering thread. Deferred:
        // only that thread, and only while it turns to the kernel, runs the kernel's work on the memory.
        let uring = IoUring::builder()
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build((entries + POLLS) as u32)?;
        uring.submitter().register_files(&[device.raw_fd()])?;
        let line = Line {
            uring,
            queue,
            bell: Bell::new()?,
            hears_bell: false,
            hears_disks: false,
            is_grown: false,
            large_at: Instant::now(),
            came: VecDeque::with_capacity(entries),
            is_ending: false,
        };
        let entries = (0..entries).map(|_| RingEntry::new());
        Ok(Self {
            line,
            entries: entries.collect::<io::Result<_>>()?,
        })
    }

    /// A ring for `refuse` only: registering it fails, which makes the kernel give up io_uring on
    /// a connection that doesn't use it yet.
    pub(crate) fn to_refuse(device: &Device) -> io::Result<Self> {
        Self::new(device, NO_QUEUE, 1)
    }

    /// Makes the kernel continue with /dev/fuse after INIT has agreed on io_uring. Entries already
    /// registered stay unused until the mount ends.
    ///
    /// # Errors
    /// The kernel's error if that doesn't work.
    pub(crate) fn refuse(mut self) -> io::Result<()> {
        match self.register() {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err(io::Error::other("the kernel has more queues than CPUs")),
        }
    }

    pub(crate) fn queue(&self) -> u16 {
        self.line.queue
    }

    pub(crate) fn bell(&self) -> Arc<Bell> {
        self.line.bell.clone()
    }

    /// Registers the entries that aren't registered. From now on the calling thread owns the ring. May be repeated after a
    /// failure: others may be registered then.
    pub(crate) fn register(&mut self) -> io::Result<()> {
        self.line.register(&self.entries)
    }

    /// Does without the entries that the kernel has refused. Says how many. All of them: none is registered, and nothing
    /// has changed. None: it hasn't seen all of them.
    pub(crate) fn do_without_refused(&self) -> usize {
        let refused = self.entries.iter().filter(|entry| entry.is_new());
        let count = refused.clone().count();
        if count < self.entries.len() {
            refused.for_each(RingEntry::give_up);
        }
        count
    }

    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// The two parts, for the thread's work: what it answers reads from entries while the line commits others.
    pub(crate) fn split(&mut self) -> (&mut Line, &[RingEntry]) {
        (&mut self.line, &self.entries)
    }
}

impl Line {
    fn register(&mut self, entries: &[RingEntry]) -> io::Result<()> {
        match self.uring.submitter().register_enable_rings() {
            // Enabled by an earlier attempt.
            Err(error) if error.raw_os_error() == Some(libc::EBADFD) => {}
            result => result?,
        }
        for (at, entry) in entries.iter().enumerate() {
            if entry.is_new() {
                self.command(ring_command::REGISTER, at, entry, 0);
            }
        }
        // What an earlier attempt couldn't submit is still there.
        let submitted = self.uring.submit();
        let mut refused = None;
        // An immediate completion is a refusal, or already the first request.
        for completion in self.uring.completion() {
            let at = completion.user_data() as usize;
            match -completion.result() {
                ..=0 => {
                    entries[at].came(completion.result())?;
                    self.came.push_back(at);
                }
                errno => {
                    entries[at].refused();
                    refused = Some(io::Error::from_raw_os_error(errno));
                }
            }
        }
        match refused {
            Some(error) => Err(error),
            None => submitted.map(drop),
        }
    }

    /// Takes what the kernel has answered.
    ///
    /// # Errors
    /// The kernel's error; it has taken the rest all the same.
    pub(crate) fn collect(&mut self, entries: &[RingEntry]) -> io::Result<()> {
        let mut result = Ok(());
        for completion in self.uring.completion() {
            let polled = |completion: &cqueue::Entry| match -completion.result() {
                ..=0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            };
            match completion.user_data() {
                BELL => {
                    self.hears_bell = cqueue::more(completion.flags());
                    result = polled(&completion).and(result);
                }
                DISKS => {
                    self.hears_disks = false;
                    result = polled(&completion).and(result);
                }
                at => match entries[at as usize].came(completion.result()) {
                    Ok(true) => self.came.push_back(at as usize),
                    Ok(false) => self.is_ending = true,
                    Err(error) => {
                        self.is_ending = true;
                        result = Err(error);
                    }
                },
            }
        }
        // Here, too, as a thread that always has a little to do never waits so long. Not while a reply lies in an entry
        // that the kernel hasn't taken.
        if self.is_grown && self.large_at.elapsed() >= REST && self.uring.submission().is_empty() {
            self.rest(entries);
        }
        result
    }

    /// Gives memory back that was needed. The kernel must have taken all commands, and all its answers be collected.
    fn rest(&mut self, entries: &[RingEntry]) {
        entries.iter().for_each(RingEntry::rest);
        self.is_grown = entries.iter().any(RingEntry::is_grown);
    }

    /// The entry with the next request.
    pub(crate) fn next_request(&mut self) -> Option<usize> {
        self.came.pop_front()
    }

    /// Whether the mount ends: requests that are under way are the last ones.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Puts the reply to an entry's request where the kernel takes it when the thread next turns to it. A large one at once:
    /// others shall not keep it waiting, and a system call is little beside it.
    pub(crate) fn commit(&mut self, at: usize, entries: &[RingEntry], reply: &Reply) {
        let entry = &entries[at];
        let put = entry.put(reply);
        if put.is_large {
            (self.is_grown, self.large_at) = (true, Instant::now());
        }
        self.command(ring_command::COMMIT_AND_FETCH, at, entry, put.commit_id);
        if put.bytes > PAYLOAD_KEPT {
            // If it fails, the next wait does, too.
            let _ = self.submit(entries);
        }
    }

    /// Commits what there is, and has the kernel do what it has put off, without waiting.
    ///
    /// # Errors
    /// The ring can't be used any more.
    pub(crate) fn submit(&mut self, entries: &[RingEntry]) -> io::Result<()> {
        let queue = self.uring.submission();
        let is_due = !queue.is_empty() || queue.taskrun();
        drop(queue);
        if !is_due {
            return Ok(());
        }
        let submitted = self.uring.submit();
        self.judge(submitted, entries)
    }

    /// Commits what there is and waits until there is something to collect, in one system call. `disks`: see
    /// [`world::Rounds::disks`].
    ///
    /// # Errors
    /// The ring can't be used any more.
    pub(crate) fn wait(&mut self, entries: &[RingEntry], disks: Option<RawFd>) -> io::Result<()> {
        if !self.hears_bell {
            self.hears_bell = true;
            // For edges: the bell is never read.
            let poll = opcode::PollAdd::new(types::Fd(self.bell.descriptor()), libc::POLLIN as u32);
            self.push(&poll.multi(true).build().user_data(BELL).into());
        }
        if let Some(disks) = disks
            && !self.hears_disks
        {
            self.hears_disks = true;
            let poll = opcode::PollAdd::new(types::Fd(disks), libc::POLLIN as u32);
            self.push(&poll.build().user_data(DISKS).into());
        }
        let waited = if self.is_grown {
            let rest = types::Timespec::from(REST);
            let limit = types::SubmitArgs::new().timespec(&rest);
            self.uring.submitter().submit_with_args(1, &limit)
        } else {
            self.uring.submit_and_wait(1)
        };
        self.judge(waited, entries)
    }

    fn judge(&mut self, turned: io::Result<usize>, entries: &[RingEntry]) -> io::Result<()> {
        let Err(error) = turned else {
            return Ok(());
        };
        match error.raw_os_error() {
            Some(libc::EINTR | libc::EBUSY) => Ok(()),
            Some(libc::ETIME) => {
                // So there is no answer, and nothing was to be submitted.
                self.rest(entries);
                Ok(())
            }
            // The kernel is temporarily short of memory.
            Some(libc::EAGAIN | libc::ENOMEM) => {
                std::thread::sleep(Duration::from_millis(1));
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Queues a command about an entry.
    fn command(&mut self, command: u32, at: usize, entry: &RingEntry, commit_id: u64) {
        let arguments = RingCommand {
            flags: 0,
            commit_id,
            qid: self.queue,
            padding: [0; 6],
        };
        let mut bytes = [0; 80];
        bytes[..size_of::<RingCommand>()].copy_from_slice(arguments.as_bytes());
        let mut sqe = opcode::UringCmd80::new(DEVICE, command)
            .cmd(bytes)
            .addr(Some(entry.parts() as u64))
            .build()
            .user_data(at as u64);
        // SAFETY: an SQE is plain data of 128 bytes (asserted above), borrowed exclusively;
        // `len` is a u32 at this place.
        unsafe {
            (&raw mut sqe)
                .cast::<u8>()
                .add(SQE_LEN_AT)
                .cast::<u32>()
                .write_unaligned(PARTS as u32);
        }
        entry.given();
        self.push(&sqe);
    }

    fn push(&mut self, sqe: &squeue::Entry128) {
        // SAFETY: a command works on its entry's memory alone, which stays until its answer has come, or forever
        // (`RingEntry::drop`); a poll uses none.
        unsafe { self.uring.submission().push(sqe) }
            .expect("there is a place for one command of each entry, and for each poll");
    }
}
