//! Workloads through the client library, without the kernel.

use crate::measure::rate;
use bytes::Bytes;
use client::{Client, OpenFlags};
use model::{FileKind, FileName, InodeId};
use std::sync::Arc;
use testkit::inodes::new_inode;
use world::World;

/// A client and the thread that drives it.
pub struct Library<'a> {
    /// Drives futures on this thread, as FUSE threads do.
    pub world: &'a World,
    /// The file system.
    pub client: &'a Arc<Client>,
}

fn name(number: u64) -> FileName {
    FileName::new(format!("file{number:06}").as_bytes()).expect("a short plain name")
}

impl Library<'_> {
    /// Makes a folder under the root.
    pub fn folder(&self, label: &str) -> InodeId {
        let label = FileName::new(label.as_bytes()).expect("a short plain name");
        self.world
            .block_on(
                self.client
                    .create(InodeId::ROOT, label, new_inode(FileKind::Directory)),
            )
            .expect("makes a folder")
            .inode
    }

    /// Removes an empty folder.
    pub fn remove_folder(&self, label: &str) {
        let label = FileName::new(label.as_bytes()).expect("a short plain name");
        self.world
            .block_on(self.client.remove_directory(InodeId::ROOT, label))
            .expect("the folder is empty");
    }

    /// Creates, opens and closes empty files.
    pub fn create(&self, folder: InodeId, count: u64) -> f64 {
        rate(count, || {
            for number in 0..count {
                self.world.block_on(async {
                    let made = self
                        .client
                        .create_and_open(folder, name(number), new_inode(FileKind::File))
                        .await
                        .expect("creates");
                    self.client.release(made.inode).await;
                });
            }
        })
    }

    /// Looks up each file.
    pub fn stat(&self, folder: InodeId, count: u64) -> f64 {
        rate(count, || {
            for number in 0..count {
                self.world
                    .block_on(self.client.lookup(folder, name(number)))
                    .expect("finds");
            }
        })
    }

    /// Unlinks the files.
    pub fn unlink(&self, folder: InodeId, count: u64) -> f64 {
        rate(count, || {
            for number in 0..count {
                self.world
                    .block_on(self.client.unlink(folder, name(number)))
                    .expect("unlinks");
            }
        })
    }

    /// Writes a new file in 1 MiB pieces with fsync at the end; returns the file and bytes per
    /// second.
    pub fn write_stream(&self, label: &str, bytes: u64) -> (InodeId, f64) {
        let label = FileName::new(label.as_bytes()).expect("a short plain name");
        let piece = vec![0x5A; 1 << 20];
        self.world.block_on(async {
            let _ = self.client.unlink(InodeId::ROOT, label.clone()).await;
            let file = self
                .client
                .create_and_open(InodeId::ROOT, label, new_inode(FileKind::File))
                .await
                .expect("creates")
                .inode;
            let begun = std::time::Instant::now();
            for number in 0..bytes >> 20 {
                self.client
                    .write(file, number << 20, &piece)
                    .await
                    .expect("writes");
            }
            self.client.fsync(file, false).await.expect("syncs");
            let speed = crate::measure::per_second(bytes, begun.elapsed());
            self.client.release(file).await;
            (file, speed)
        })
    }

    /// Reads a file in 1 MiB pieces, with nothing cached.
    pub fn read_stream(&self, file: InodeId, bytes: u64) -> f64 {
        self.client.forget_clean();
        self.world.block_on(async {
            self.client
                .open(file, OpenFlags::default())
                .await
                .expect("opens");
            let begun = std::time::Instant::now();
            for number in 0..bytes >> 20 {
                let pieces = self
                    .client
                    .read(file, number << 20, 1 << 20)
                    .await
                    .expect("reads");
                assert!(
                    pieces.iter().map(Bytes::len).sum::<usize>() == 1 << 20,
                    "a whole piece"
                );
            }
            let speed = crate::measure::per_second(bytes, begun.elapsed());
            self.client.release(file).await;
            speed
        })
    }

    /// 4 KiB reads at random offsets, `depth` at once, with nothing cached.
    pub fn read_random(&self, file: InodeId, bytes: u64, count: u64, depth: u64) -> f64 {
        self.client.forget_clean();
        rate(count, || {
            self.world.block_on(async {
                let worker = |worker: u64| async move {
                    let mut state = worker.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
                    for _ in 0..count / depth {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        self.client
                            .read(file, state % (bytes / 4096) * 4096, 4096)
                            .await
                            .expect("reads");
                    }
                };
                futures::future::join_all((1..=depth).map(worker)).await;
            });
        })
    }

    /// Files of 4 KiB, each created, written and fsynced.
    pub fn synced_files(&self, folder: InodeId, count: u64) -> f64 {
        let data = vec![7; 4096];
        rate(count, || {
            for number in 0..count {
                self.world.block_on(async {
                    let file = self
                        .client
                        .create_and_open(folder, name(number), new_inode(FileKind::File))
                        .await
                        .expect("creates")
                        .inode;
                    self.client.write(file, 0, &data).await.expect("writes");
                    self.client.fsync(file, false).await.expect("syncs");
                    self.client.release(file).await;
                });
            }
        })
    }
}
