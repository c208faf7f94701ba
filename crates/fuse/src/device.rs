//! One descriptor of /dev/fuse: receives requests, sends replies and notifications.

use crate::abi::OutHeader;
use crate::reply::Reply;
use rustix::ioctl;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use zerocopy::IntoBytes;

/// FUSE_DEV_IOC_CLONE of the kernel's fuse.h.
const CLONE: ioctl::Opcode = ioctl::opcode::read::<u32>(229, 0);
/// Most pieces of memory in one reply; writev takes 1,024.
const PIECES_MAX: usize = 1000;

/// A descriptor of /dev/fuse. A reply must go to the descriptor that the request was read
/// from; closing a descriptor fails the requests that were read from it.
#[derive(Debug)]
pub(crate) struct Device {
    file: File,
}

/// Result of reading the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Received {
    /// A request of this many bytes.
    Request(usize),
    /// Nothing this time: read again.
    Again,
    /// The file system is unmounted or the connection was aborted.
    Ended,
}

impl Device {
    /// A new descriptor, to mount with.
    pub(crate) fn open() -> io::Result<Self> {
        let file = File::options().read(true).write(true).open("/dev/fuse")?;
        Ok(Self { file })
    }

    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self { file: fd.into() }
    }

    pub(crate) fn raw_fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Another descriptor of the same connection with its own queue, so that threads don't share a
    /// lock.
    pub(crate) fn clone_queue(&self) -> io::Result<Self> {
        let clone = Self::open()?;
        let source = self.raw_fd() as u32;
        // SAFETY: this request of /dev/fuse reads one u32.
        unsafe { ioctl::ioctl(&clone.file, ioctl::Setter::<CLONE, u32>::new(source)) }?;
        Ok(clone)
    }

    /// Blocks until a request arrives. `buffer` must have room for the headers and the largest
    /// data.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        match (&self.file).read(buffer) {
            Ok(0) => Ok(Received::Ended),
            Ok(length) => Ok(Received::Request(length)),
            Err(error) => match error.raw_os_error() {
                // ENOENT: the request was cancelled while it was being read.
                Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => Ok(Received::Again),
                Some(libc::ENODEV | libc::ECONNABORTED) => Ok(Received::Ended),
                _ => Err(error),
            },
        }
    }

    /// Sends the reply to request `unique`. A request that was cancelled meanwhile (ENOENT) needs
    /// none.
    pub(crate) fn reply(&self, unique: u64, reply: &Reply) -> io::Result<()> {
        match reply {
            Reply::None | Reply::Later => Ok(()),
            Reply::Errno(errno) => self.send(-errno, unique, &[IoSlice::new(&[])]),
            Reply::Empty => self.send(0, unique, &[IoSlice::new(&[])]),
            Reply::Fixed(fixed) => self.send(
                0,
                unique,
                &[IoSlice::new(&[]), IoSlice::new(fixed.as_bytes())],
            ),
            Reply::Buffer(bytes) => self.send(0, unique, &[IoSlice::new(&[]), IoSlice::new(bytes)]),
            Reply::Data(pieces) if pieces.len() < PIECES_MAX => {
                let mut slices = Vec::with_capacity(pieces.len() + 1);
                slices.push(IoSlice::new(&[]));
                slices.extend(pieces.iter().map(|piece| IoSlice::new(piece)));
                self.send(0, unique, &slices)
            }
            Reply::Data(pieces) => self.send(
                0,
                unique,
                &[IoSlice::new(&[]), IoSlice::new(&pieces.concat())],
            ),
        }
    }

    /// Sends the reply; logs a failure.
    pub(crate) fn answer(&self, unique: u64, reply: &Reply) {
        if let Err(error) = self.reply(unique, reply) {
            // EINVAL would be our bug; ENODEV means that the mount is ending.
            if error.raw_os_error() != Some(libc::ENODEV) {
                tracing::error!(unique, %error, ?reply, "the kernel refused a reply");
            }
        }
    }

    /// Sends a notification: a reply without a request.
    pub(crate) fn notify(&self, code: i32, body: &[&[u8]]) -> io::Result<()> {
        let mut slices = vec![IoSlice::new(&[])];
        slices.extend(body.iter().map(|part| IoSlice::new(part)));
        self.write(code, 0, &slices)
    }

    fn send(&self, error: i32, unique: u64, slices: &[IoSlice<'_>]) -> io::Result<()> {
        match self.write(error, unique, slices) {
            Err(gone) if gone.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result,
        }
    }

    /// Writes one message; `slices[0]` is reserved for the header.
    fn write(&self, error: i32, unique: u64, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let body: usize = slices.iter().map(|slice| slice.len()).sum();
        let len = u32::try_from(size_of::<OutHeader>() + body)
            .expect("replies are at most 1 MiB and a header");
        let header = OutHeader { len, error, unique };
        let mut all = [IoSlice::new(&[]); 4];
        let header = IoSlice::new(header.as_bytes());
        let written = if slices.len() <= all.len() {
            all[..slices.len()].copy_from_slice(slices);
            all[0] = header;
            (&self.file).write_vectored(&all[..slices.len()])?
        } else {
            let mut long = slices.to_vec();
            long[0] = header;
            (&self.file).write_vectored(&long)?
        };
        assert!(
            written == len as usize,
            "the kernel takes a reply whole or not at all"
        );
        Ok(())
    }
}
