//! Answers requests that move the bytes of files.

use super::Serving;
use crate::abi;
use crate::file_system::FileSystem;
use crate::mapped::Writing;
use crate::notifier::Notice;
use crate::reply::Reply;
use crate::request::DataRequest;
use crate::verbs::{Caller, Read, Write};
use bytes::Bytes;
use model::{InodeId, Result, TokenMode};

impl<F: FileSystem> Serving<F> {
    pub(super) async fn data(
        &self,
        caller: &Caller,
        inode: InodeId,
        request: DataRequest<'_>,
    ) -> Result<Reply> {
        match request {
            DataRequest::Read(args) => {
                let length = args.size.min(self.agreement.data_bytes);
                // Read by the page cache: a read(2) that bypasses it sends its lock owner.
                let is_kept = args.read_flags & abi::READ_LOCKOWNER == 0;
                if is_kept {
                    self.mapped.filled(inode, args.offset, length.into());
                }
                let read = Read {
                    inode,
                    handle: args.fh,
                    offset: args.offset,
                    length,
                    flags: args.flags as i32,
                    kept: is_kept.then(|| self.kept_under(inode)),
                };
                let mut pieces = self.fs.read(caller, read).await?;
                cut(&mut pieces, length as usize);
                Ok(Reply::Data(pieces))
            }
            DataRequest::Write { args, data } => {
                let write = Write {
                    inode,
                    handle: args.fh,
                    offset: args.offset,
                    data,
                    flags: args.flags as i32,
                    from_cache: args.write_flags & abi::WRITE_CACHE != 0,
                    kill_privileges: args.write_flags & abi::WRITE_KILL_SUIDGID != 0,
                };
                let size = if write.from_cache {
                    self.store(caller, write).await?
                } else {
                    self.write(caller, write).await?
                };
                Ok(Reply::fixed(&abi::WriteOut { size, padding: 0 }))
            }
        }
    }

    /// Which token the page cache needs for what it reads.
    fn kept_under(&self, inode: InodeId) -> TokenMode {
        match self.agreement.flags & abi::init::DIRECT_IO_ALLOW_MMAP {
            // Every open uses the page cache then, and isn't noted.
            0 => TokenMode::Exclusive,
            _ => self.mapped.kept_under(inode),
        }
    }

    /// A write(2).
    async fn write(&self, caller: &Caller, write: Write<'_>) -> Result<u32> {
        let (inode, offset, length) = (write.inode, write.offset, write.data.len() as u64);
        let writing = self.mapped.write(inode, offset, length).await;
        let size = self.fs.write(caller, write).await?;
        if writing.is_some_and(Writing::finish) {
            self.forget_pages(inode, offset, length);
        }
        Ok(size)
    }

    /// Writes mapped pages back, except for ranges that were written past the page cache since.
    async fn store(&self, caller: &Caller, write: Write<'_>) -> Result<u32> {
        let (offset, length) = (write.offset, write.data.len());
        let storing = self.mapped.store(write.inode, offset, length as u64).await;
        if storing.is_cut {
            // Otherwise stores into those ranges would be skipped for as long as the kernel has the
            // page.
            self.forget_pages(write.inode, offset, length as u64);
        }
        for range in &storing.ranges {
            let within = |at: u64| usize::try_from(at - offset).expect("it is part of the data");
            let data = &write.data[within(range.start)..within(range.end)];
            let offset = range.start;
            let part = Write {
                offset,
                data,
                ..write
            };
            self.fs.write(caller, part).await?;
        }
        Ok(u32::try_from(length).expect("requests have at most 1 MiB"))
    }

    /// Older kernels keep pages that were read during a direct write. This doesn't wait: the kernel
    /// may hold one of the pages until another request is answered.
    fn forget_pages(&self, inode: InodeId, offset: u64, length: u64) {
        let range = i64::try_from(offset).ok().zip(i64::try_from(length).ok());
        if let (Some(notifier), Some((offset, length))) = (self.notifier.get(), range) {
            notifier.post(Notice::Inode {
                inode,
                offset,
                length,
            });
        }
    }
}

/// Cuts pieces to at most `length` bytes: the kernel rejects longer replies.
fn cut(pieces: &mut Vec<Bytes>, length: usize) {
    let mut left = length;
    for piece in pieces.iter_mut() {
        piece.truncate(left);
        left -= piece.len();
    }
    pieces.retain(|piece| !piece.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::NotifyInvalInodeOut;
    use crate::device::Device;
    use crate::init::Agreement;
    use crate::memory::{MemoryFileSystem, MemorySettings};
    use crate::notifier::Notifier;
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Duration;
    use world::World;
    use zerocopy::FromBytes;

    #[test]
    fn the_kernel_is_told_to_drop_a_page_whose_old_bytes_were_left_out() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let world = runtime.block_on(async { World::real() });
        let fs = Arc::new(MemoryFileSystem::new(&world, MemorySettings::default()));
        let agreement = Agreement {
            flags: abi::init::DIRECT_IO_ALLOW_MMAP,
            minor: 36,
            data_bytes: 1 << 20,
        };
        let serving = Serving::new(world.clone(), fs, agreement);
        let caller = Caller::default();
        let create = abi::CreateIn {
            flags: libc::O_RDWR as u32,
            ..Default::default()
        };
        let made = serving.create(&caller, InodeId::ROOT, create, Some(b"f"));
        runtime.block_on(made).expect("a file");
        let bytes = |data, from_cache| Write {
            inode: InodeId(2),
            handle: 0,
            offset: 0,
            data,
            flags: libc::O_RDWR,
            from_cache,
            kill_privileges: false,
        };
        serving.mapped.filled(InodeId(2), 0, 4096);
        // The notice of this write is lost: there is no notifier yet.
        let write = serving.write(&caller, bytes(b"new", false));
        runtime.block_on(write).expect("written");
        let (ours, mut kernel) = UnixStream::pair().expect("sockets");
        let notifier = Notifier::start(&world, Arc::new(Device::from_fd(ours.into())));
        let notifier = notifier.expect("a thread");
        serving.reach_by(&notifier);
        let store = serving.store(&caller, bytes(b"old, stored", true));
        assert_eq!(runtime.block_on(store).expect("stored"), 11);
        // Far more than a busy machine needs: without the notice the test fails instead of hanging.
        let patience = Some(Duration::from_secs(60));
        kernel.set_read_timeout(patience).expect("a socket");
        let mut told = [0; size_of::<abi::OutHeader>() + size_of::<NotifyInvalInodeOut>()];
        kernel
            .read_exact(&mut told)
            .expect("the kernel is notified");
        let told = &told[size_of::<abi::OutHeader>()..];
        let told = NotifyInvalInodeOut::read_from_bytes(told).expect("a notice");
        assert_eq!((told.ino, told.off, told.len), (2, 0, 11));
        notifier.close();
        let read = Read {
            inode: InodeId(2),
            handle: 0,
            offset: 0,
            length: 100,
            flags: 0,
            kept: None,
        };
        let read = runtime.block_on(serving.fs.read(&caller, read));
        assert_eq!(read.expect("bytes").concat(), b"new, stored");
    }

    #[test]
    fn data_replies_are_never_longer_than_asked() {
        let mut pieces = vec![
            Bytes::from_static(b"abc"),
            Bytes::from_static(b"def"),
            Bytes::from_static(b"ghi"),
        ];
        cut(&mut pieces, 4);
        assert_eq!(
            pieces,
            [Bytes::from_static(b"abc"), Bytes::from_static(b"d")]
        );
    }
}
