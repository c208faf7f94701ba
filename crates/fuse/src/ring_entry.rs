//! One entry of FUSE over io_uring: the memory into which the kernel puts a request, and the small
//! io_uring through which one thread fetches requests and commits replies.

use crate::abi::{OutHeader, RingCommand, RingHeader, ring_command};
use crate::device::Device;
use crate::init::DATA_BYTES_MAX;
use crate::reply::Reply;
use crate::request::{Incoming, Malformed};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// The payload begins on the second page, so that data of a WRITE is page aligned.
const PAYLOAD_AT: usize = 4096;
/// The iovecs that describe header and payload to the kernel are stored here, after the header.
const PARTS_AT: usize = 2048;
const PARTS: usize = 2;
const MEMORY_BYTES: usize = PAYLOAD_AT + DATA_BYTES_MAX as usize;
/// Payload memory beyond this is given back to the system after a rest.
const PAYLOAD_KEPT: usize = 64 * 1024;
/// How long an entry rests before that.
const REST: Duration = Duration::from_secs(10);
/// The device's place in the ring's table of files.
const DEVICE: types::Fixed = types::Fixed(0);
/// Offset of `len` in an SQE; the crate has no way to set it for commands.
const SQE_LEN_AT: usize = 24;
/// A queue number that no kernel has.
const NO_QUEUE: u16 = u16::MAX;

const _: () = assert!(size_of::<RingHeader>() <= PARTS_AT);
const _: () = assert!(size_of::<squeue::Entry128>() == 128);

/// An entry belongs to one queue of the kernel (one per CPU) for the life of the mount, and to one
/// thread: only the thread that registers it may fetch.
pub(crate) struct RingEntry {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    memory: ManuallyDrop<Memory>,
    queue: u16,
    /// The kernel may use the memory.
    with_kernel: bool,
    /// The payload was used beyond `PAYLOAD_KEPT`.
    grown: bool,
}

/// Result of a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fetched {
    /// A request: see [`RingEntry::request`].
    Request,
    /// The file system is unmounted or the connection was aborted.
    Ended,
}

impl RingEntry {
    /// An entry for a queue, not registered yet. Any thread may make it.
    ///
    /// # Errors
    /// io_uring is forbidden or too old; no memory or descriptors.
    pub(crate) fn new(device: &Device, queue: u16) -> io::Result<Self> {
        // Disabled until `register`, so that the ring binds to the registering thread. Deferred:
        // only that thread, and only while it fetches, runs the kernel's work on the memory.
        let ring = IoUring::builder()
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(1)?;
        ring.submitter().register_files(&[device.raw_fd()])?;
        Ok(Self {
            ring,
            memory: ManuallyDrop::new(Memory::new()?),
            queue,
            with_kernel: false,
            grown: false,
        })
    }

    /// An entry for `refuse` only: registering it fails, which makes the kernel give up io_uring on
    /// a connection that doesn't use it yet.
    pub(crate) fn to_refuse(device: &Device) -> io::Result<Self> {
        Self::new(device, NO_QUEUE)
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
        self.queue
    }

    /// Registers the entry with the kernel. From now on the calling thread owns it. May be repeated
    /// after a failure.
    pub(crate) fn register(&mut self) -> io::Result<()> {
        match self.ring.submitter().register_enable_rings() {
            // Enabled by an earlier attempt.
            Err(error) if error.raw_os_error() == Some(libc::EBADFD) => {}
            result => result?,
        }
        if self.ring.submission().is_empty() {
            self.push(ring_command::REGISTER, 0);
        }
        let submitted = self.ring.submit();
        // An immediate completion is a refusal, or already the first request.
        let Some(answer) = self.ring.completion().next() else {
            return submitted.map(drop);
        };
        self.with_kernel = false;
        match -answer.result() {
            ..=0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Submits the committed reply and waits for the next request, in one system call.
    pub(crate) fn fetch(&mut self) -> io::Result<Fetched> {
        if !self.with_kernel {
            return Ok(Fetched::Request);
        }
        loop {
            if let Some(completion) = self.ring.completion().next() {
                self.with_kernel = false;
                return match -completion.result() {
                    ..=0 => Ok(Fetched::Request),
                    // ENOENT: the request was aborted while it was being answered.
                    libc::ENOTCONN
                    | libc::ECONNABORTED
                    | libc::ENODEV
                    | libc::ENOENT
                    | libc::ECANCELED => Ok(Fetched::Ended),
                    errno => Err(io::Error::from_raw_os_error(errno)),
                };
            }
            let waited = if self.grown {
                let rest = types::Timespec::from(REST);
                let limit = types::SubmitArgs::new().timespec(&rest);
                self.ring.submitter().submit_with_args(1, &limit)
            } else {
                self.ring.submit_and_wait(1)
            };
            match waited.map_err(|error| (error.raw_os_error(), error)) {
                Ok(_) | Err((Some(libc::EINTR | libc::EBUSY), _)) => {}
                Err((Some(libc::ETIME), _)) => {
                    self.memory.give_back();
                    self.grown = false;
                }
                // The kernel is temporarily short of memory.
                Err((Some(libc::EAGAIN | libc::ENOMEM), _)) => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err((_, error)) => return Err(error),
            }
        }
    }

    /// The request that was fetched. `long_setxattr`: INIT agreed on SETXATTR_EXT.
    pub(crate) fn request(&self, long_setxattr: bool) -> Result<Incoming<'_>, Malformed> {
        let (header, payload) = self.parts();
        Incoming::from_ring(header, payload, long_setxattr)
    }

    /// Puts the reply to the fetched request into the memory; the next `fetch` sends it. Data is
    /// copied once here, and once more by the kernel.
    pub(crate) fn commit(&mut self, reply: &Reply) {
        let (header, payload) = self.parts_mut();
        let mut length = 0;
        let mut put = |bytes: &[u8]| {
            payload[length..length + bytes.len()].copy_from_slice(bytes);
            length += bytes.len();
        };
        let mut error = 0;
        match reply {
            Reply::Errno(errno) => error = -errno,
            // Each request that comes this way must be committed, so `None` commits an empty reply.
            Reply::None | Reply::Later | Reply::Empty => {}
            Reply::Fixed(fixed) => put(fixed.as_bytes()),
            Reply::Buffer(bytes) => put(bytes),
            Reply::Data(pieces) => pieces.iter().for_each(|piece| put(piece)),
        }
        let bytes = u32::try_from(length).expect("the payload has 1 MiB");
        let out = OutHeader {
            len: size_of::<OutHeader>() as u32 + bytes,
            error,
            unique: header.commit_id,
        };
        header.in_out[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        let used = length.max(header.payload_sz as usize);
        header.payload_sz = bytes;
        let commit_id = header.commit_id;
        self.grown |= used > PAYLOAD_KEPT;
        self.push(ring_command::COMMIT_AND_FETCH, commit_id);
    }

    /// Queues a command.
    fn push(&mut self, command: u32, commit_id: u64) {
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
            .addr(Some(self.memory.parts() as u64))
            .build();
        // SAFETY: an SQE is plain data of 128 bytes (asserted above), borrowed exclusively;
        // `len` is a u32 at this place.
        unsafe {
            (&raw mut sqe)
                .cast::<u8>()
                .add(SQE_LEN_AT)
                .cast::<u32>()
                .write_unaligned(PARTS as u32);
        }
        self.with_kernel = true;
        // SAFETY: the command works on `memory` alone, which stays until its answer has come,
        // or forever (`drop`).
        unsafe { self.ring.submission().push(&sqe) }
            .expect("one command at a time is under way, and the queue has a place");
    }

    fn parts(&self) -> (&RingHeader, &[u8]) {
        assert!(!self.with_kernel, "a request was fetched");
        // SAFETY: the mapping is initialised (by zeros or the kernel), lives as long as self,
        // and the kernel doesn't write to it before the next command.
        let bytes = unsafe {
            std::slice::from_raw_parts(self.memory.start.as_ptr().cast::<u8>(), MEMORY_BYTES)
        };
        let (header, payload) = bytes.split_at(PAYLOAD_AT);
        let (header, _) = RingHeader::ref_from_prefix(header).expect("page aligned");
        (header, payload)
    }

    fn parts_mut(&mut self) -> (&mut RingHeader, &mut [u8]) {
        assert!(!self.with_kernel, "a request was fetched");
        // SAFETY: as in `parts`, and self is borrowed exclusively.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(self.memory.start.as_ptr().cast::<u8>(), MEMORY_BYTES)
        };
        let (header, payload) = bytes.split_at_mut(PAYLOAD_AT);
        let (header, _) = RingHeader::mut_from_prefix(header).expect("page aligned");
        (header, payload)
    }
}

impl Drop for RingEntry {
    fn drop(&mut self) {
        if self.with_kernel {
            // Only after an unexpected error: closing the ring cancels the command some time later,
            // so the memory is leaked.
            tracing::debug!(queue = self.queue, "a ring entry is left to the kernel");
            return;
        }
        // SAFETY: dropped once, here; the kernel has no command with it any more.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

/// The entry's own mapping: header, iovecs, payload. Untouched pages cost nothing.
struct Memory {
    start: NonNull<libc::c_void>,
}

// SAFETY: the mapping has one owner; nothing in it is bound to a thread.
unsafe impl Send for Memory {}

impl Memory {
    fn new() -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at a place of the kernel's choice touches nothing else.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                MEMORY_BYTES,
                access,
                MapFlags::PRIVATE,
            )
        }?;
        let start = NonNull::new(start).expect("mmap gives no null");
        let memory = Self { start };
        // SAFETY: both places lie in the mapping, and the parts' one is aligned.
        unsafe {
            let header = libc::iovec {
                iov_base: start.as_ptr(),
                iov_len: size_of::<RingHeader>(),
            };
            let payload = libc::iovec {
                iov_base: start.byte_add(PAYLOAD_AT).as_ptr(),
                iov_len: DATA_BYTES_MAX as usize,
            };
            memory.parts().write([header, payload]);
        }
        Ok(memory)
    }

    fn parts(&self) -> *mut [libc::iovec; PARTS] {
        // SAFETY: inside the mapping.
        unsafe { self.start.byte_add(PARTS_AT) }.as_ptr().cast()
    }

    /// Releases the memory of the payload's far part. The kernel may have an entry with this
    /// memory: it doesn't write before the owner fetches (deferred).
    fn give_back(&self) {
        let kept = PAYLOAD_AT + PAYLOAD_KEPT;
        // SAFETY: the range lies in the mapping, and its content isn't needed: a request
        // that comes is written after this call. Failing changes nothing.
        let _ = unsafe {
            madvise(
                self.start.byte_add(kept).as_ptr(),
                MEMORY_BYTES - kept,
                Advice::LinuxDontNeed,
            )
        };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping; its owner is gone.
        // If it fails (too many mappings), the memory stays.
        let _ = unsafe { munmap(self.start.as_ptr(), MEMORY_BYTES) };
    }
}
