//! One entry of FUSE over io_uring: the memory into which the kernel puts a request, and from which it takes the reply.

use crate::abi::{OutHeader, RingHeader};
use crate::init::DATA_BYTES_MAX;
use crate::reply::Reply;
use crate::request::{Incoming, Malformed};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use zerocopy::{FromBytes, IntoBytes};

/// The payload begins on the second page, so that data of a WRITE is page aligned.
const PAYLOAD_AT: usize = 4096;
/// The iovecs that describe header and payload to the kernel are stored here, after the header.
const PARTS_AT: usize = 2048;
/// How many iovecs there are.
pub(crate) const PARTS: usize = 2;
const MEMORY_BYTES: usize = PAYLOAD_AT + DATA_BYTES_MAX as usize;
/// Payload memory beyond this is given back to the system after a rest.
pub(crate) const PAYLOAD_KEPT: usize = 64 * 1024;
/// The kernel's answers when the mount has ended. ENOENT: the request was aborted while it was being answered.
const ENDS: [i32; 5] = [
    libc::ENOTCONN,
    libc::ECONNABORTED,
    libc::ENODEV,
    libc::ENOENT,
    libc::ECANCELED,
];

const _: () = assert!(size_of::<RingHeader>() <= PARTS_AT);

/// An entry belongs to one queue of the kernel (one per CPU) for the life of the mount, and to the ring of one thread.
pub(crate) struct RingEntry {
    memory: ManuallyDrop<Memory>,
    state: Cell<State>,
    /// The payload was used beyond `PAYLOAD_KEPT`.
    is_grown: Cell<bool>,
}

/// Who uses an entry's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nobody: the kernel doesn't know the entry.
    New,
    /// The kernel may.
    WithKernel,
    /// Its thread: a request is in it.
    Here,
    /// [`OpenRequest`] does.
    Open,
    /// Nobody: the kernel gives it no more requests.
    Ended,
}

/// A request in an entry. While it exists, the entry's memory stays as it is.
pub(crate) struct OpenRequest<'a>(&'a RingEntry);

/// A reply that lies in an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Put {
    /// The kernel's number of the request.
    pub(crate) commit_id: u64,
    /// Bytes of payload.
    pub(crate) bytes: usize,
    /// The request or the reply has taken memory to give back.
    pub(crate) is_large: bool,
}

impl RingEntry {
    /// An entry that the kernel doesn't know yet. Any thread may make it.
    ///
    /// # Errors
    /// There is no memory, or there are too many mappings.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            memory: ManuallyDrop::new(Memory::new()?),
            state: Cell::new(State::New),
            is_grown: Cell::new(false),
        })
    }

    pub(crate) fn is_new(&self) -> bool {
        self.state.get() == State::New
    }

    /// Whether no request will come to it any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.get() == State::Ended
    }

    /// Whether its memory may have to be given back after a rest.
    pub(crate) fn is_grown(&self) -> bool {
        self.is_grown.get()
    }

    /// Where a command finds header and payload.
    pub(crate) fn parts(&self) -> *mut [libc::iovec; PARTS] {
        self.memory.parts()
    }

    /// A command with it is on its way to the kernel.
    pub(crate) fn given(&self) {
        assert!(
            matches!(self.state.get(), State::New | State::Here),
            "one command at a time is under way"
        );
        self.state.set(State::WithKernel);
    }

    /// The kernel has answered that command. Says whether there is a request; otherwise the file system was unmounted or
    /// the connection was aborted.
    ///
    /// # Errors
    /// The kernel's error if it is another one. No request comes to this entry any more.
    pub(crate) fn came(&self, result: i32) -> io::Result<bool> {
        assert_eq!(
            self.state.get(),
            State::WithKernel,
            "each answer has a command"
        );
        self.state.set(State::Ended);
        match -result {
            ..=0 => {
                self.state.set(State::Here);
                Ok(true)
            }
            errno if ENDS.contains(&errno) => Ok(false),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// The kernel has refused to register it.
    pub(crate) fn refused(&self) {
        assert_eq!(
            self.state.get(),
            State::WithKernel,
            "it was to be registered"
        );
        self.state.set(State::New);
    }

    /// It won't be registered.
    pub(crate) fn give_up(&self) {
        assert!(self.is_new(), "it isn't registered");
        self.state.set(State::Ended);
    }

    /// The request that has come.
    pub(crate) fn open(&self) -> OpenRequest<'_> {
        assert_eq!(self.state.get(), State::Here, "a request has come");
        self.state.set(State::Open);
        OpenRequest(self)
    }

    /// Puts the reply to the request into the memory. Data is copied once here, and once more by the kernel.
    pub(crate) fn put(&self, reply: &Reply) -> Put {
        assert_eq!(self.state.get(), State::Here, "a request has come");
        // SAFETY: the mapping is initialised (by zeros or the kernel) and lives as long as self. In this state neither the
        // kernel uses it nor an `OpenRequest`, and only the entry's thread gets here.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(self.memory.start.as_ptr().cast::<u8>(), MEMORY_BYTES)
        };
        let (header, payload) = bytes.split_at_mut(PAYLOAD_AT);
        let (header, _) = RingHeader::mut_from_prefix(header).expect("page aligned");
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
        let is_large = length.max(header.payload_sz as usize) > PAYLOAD_KEPT;
        if is_large {
            self.is_grown.set(true);
        }
        header.payload_sz = bytes;
        Put {
            commit_id: header.commit_id,
            bytes: length,
            is_large,
        }
    }

    /// Gives the memory of the payload's far part back to the system, if it was used and no request is in the entry.
    pub(crate) fn rest(&self) {
        if self.is_grown.get() && self.state.get() == State::WithKernel {
            self.memory.give_back();
            self.is_grown.set(false);
        }
    }
}

impl Drop for RingEntry {
    fn drop(&mut self) {
        if self.state.get() == State::WithKernel {
            // Only after an unexpected error: closing the ring cancels the command some time later,
            // so the memory is leaked.
            tracing::debug!("a ring entry is left to the kernel");
            return;
        }
        // SAFETY: dropped once, here; the kernel has no command with it any more.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

impl OpenRequest<'_> {
    /// The request. `long_setxattr`: INIT agreed on SETXATTR_EXT.
    pub(crate) fn incoming(&self, long_setxattr: bool) -> Result<Incoming<'_>, Malformed> {
        // SAFETY: the mapping is initialised (by zeros or the kernel) and lives as long as the entry. While it is open the
        // kernel doesn't write to it, and `put` doesn't either.
        let bytes = unsafe {
            std::slice::from_raw_parts(self.0.memory.start.as_ptr().cast::<u8>(), MEMORY_BYTES)
        };
        let (header, payload) = bytes.split_at(PAYLOAD_AT);
        let (header, _) = RingHeader::ref_from_prefix(header).expect("page aligned");
        Incoming::from_ring(header, payload, long_setxattr)
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        self.0.state.set(State::Here);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_used_by_one_at_a_time() {
        let entry = RingEntry::new().expect("memory");
        assert!(entry.is_new());
        entry.given();
        assert!(entry.came(0).expect("a request"));
        let open = entry.open();
        assert!(open.incoming(true).is_ok());
        let put = || entry.put(&Reply::Buffer(vec![7; PAYLOAD_KEPT + 1]));
        let while_open = std::panic::catch_unwind(std::panic::AssertUnwindSafe(put));
        assert!(while_open.is_err(), "its bytes are being read");
        drop(open);
        let put = put();
        assert_eq!((put.bytes, put.is_large), (PAYLOAD_KEPT + 1, true));
        // Not while the reply is in it.
        entry.rest();
        assert!(entry.is_grown());
        entry.given();
        entry.rest();
        assert!(!entry.is_grown());
        assert!(!entry.came(-libc::ENOTCONN).expect("the end"));
        assert!(entry.has_ended());
    }

    #[test]
    fn an_error_of_the_kernel_ends_an_entry() {
        let entry = RingEntry::new().expect("memory");
        entry.given();
        entry.refused();
        entry.given();
        let error = entry.came(-libc::EIO).expect_err("no usual end");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        assert!(entry.has_ended());
    }
}
