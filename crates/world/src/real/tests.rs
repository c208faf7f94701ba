//! Tests of real disks' promises; they need a file system with O_DIRECT.

use super::gather_io;
use crate::{AlignedBuffer, DISK_ALIGNMENT, Disk, World, is_aligned};
use bytes::Bytes;
use std::future::Future;
use std::io;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

const MIB: usize = 1 << 20;

/// A runtime with so many threads.
fn runtime(threads: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads).enable_all();
    builder.build().unwrap()
}

/// Runs `scenario` with a new region of 64 MiB, on a multi-thread runtime.
fn with_disk<F: Future<Output = ()> + Send + 'static>(
    scenario: impl FnOnce(World, Disk, TempDir) -> F,
) {
    let runtime = runtime(2);
    runtime.block_on(async {
        let world = World::real();
        let directory = tempfile::tempdir().unwrap();
        let disk = world
            .create_disk(&directory.path().join("nsd0"), 64 * MIB as u64)
            .unwrap();
        tokio::spawn(scenario(world, disk, directory))
            .await
            .unwrap();
    });
}

#[test]
fn disks_of_a_lab_are_as_slow_as_its_file_says_and_otherwise_the_same() {
    let runtime = runtime(1);
    let _context = runtime.enter();
    let directory = tempfile::tempdir().unwrap();
    let faults = directory.path().join("faults");
    let world = World::real_with_slow_disks(&faults);
    let path = directory.path().join("nsd0");
    drop(world.create_disk(&path, 64 * MIB as u64).unwrap());
    let disk = world.open_disk(&path).unwrap();
    let took = |says: &str, work: &mut dyn FnMut()| {
        crate::host::replace_file(&faults, says.as_bytes()).unwrap();
        let begun = std::time::Instant::now();
        work();
        begun.elapsed()
    };
    let bytes = pattern(3, MIB);
    // A mebibyte has 8.4 megabits.
    let write = &mut || world.block_on(disk.write(0, bytes.clone())).unwrap();
    assert!(took("write_mbit = 40", write) >= Duration::from_millis(200));
    let read = &mut || assert!(world.block_on(disk.read(0, MIB)).unwrap() == bytes);
    assert!(took("read_mbit = 80", read) >= Duration::from_millis(100));
    let flush = &mut || world.block_on(disk.flush()).unwrap();
    assert!(took("latency_ms = 70", flush) >= Duration::from_millis(70));
    let flush_now = &mut || disk.flush_now().unwrap();
    assert!(took("latency_ms = 60", flush_now) >= Duration::from_millis(60));
}

fn pattern(seed: u8, length: usize) -> Bytes {
    let mut buffer = AlignedBuffer::zeroed(length);
    for (index, byte) in buffer.iter_mut().enumerate() {
        *byte = (index / 509) as u8 ^ seed;
    }
    buffer.freeze()
}

#[test]
fn written_bytes_read_back_in_any_size_and_from_any_memory() {
    with_disk(|_, disk, _directory| async move {
        assert!(
            disk.read(0, 8192)
                .await
                .unwrap()
                .iter()
                .all(|byte| *byte == 0)
        );
        for length in [0, 4096, MIB, MIB + 4096, 10 * MIB] {
            let bytes = pattern(length as u8, length);
            disk.write(8192, bytes.clone()).await.unwrap();
            let read = disk.read(8192, length).await.unwrap();
            assert!(read == bytes && is_aligned(&read));
            // Memory that starts one byte after a page border.
            let skewed = Bytes::from([&[1], &*bytes].concat()).slice(1..);
            disk.write_durable(20 * MIB as u64, skewed).await.unwrap();
            assert!(disk.read(20 * MIB as u64, length).await.unwrap() == bytes);
        }
        disk.flush().await.unwrap();
        disk.discard(0, 4096).await;
    });
}

#[test]
fn blocking_io_has_any_alignment() {
    with_disk(|_, disk, _directory| async move {
        disk.write_now(4097, b"index").unwrap();
        disk.flush_now().unwrap();
        let mut buffer = [0; 6];
        disk.read_now(4096, &mut buffer).unwrap();
        assert_eq!(&buffer, b"\0index");
        assert!(disk.read_now(disk.bytes() - 1, &mut [0; 2]).is_err());
    });
}

#[test]
fn a_read_of_the_medium_sees_blocking_writes_before_they_are_flushed() {
    with_disk(|_, disk, _directory| async move {
        disk.write_now(8192, &[5; 8192]).unwrap();
        let mut pages = vec![0; 8192];
        disk.read_medium_now(8192, &mut pages).unwrap();
        assert!(pages == [5; 8192]);
        assert!(disk.read_medium_now(100, &mut [0; 4096]).is_err());
        assert!(disk.read_medium_now(0, &mut [0; 100]).is_err());
    });
}

#[test]
fn ranges_that_are_unaligned_or_end_after_the_region_are_refused() {
    with_disk(|_, disk, _directory| async move {
        let end = disk.bytes();
        for (offset, length) in [(1, 4096), (0, 1), (end, 4096), (end - 4096, 8192)] {
            let read = disk.read(offset, length).await.unwrap_err();
            let write = disk
                .write(offset, Bytes::from(vec![0; length]))
                .await
                .unwrap_err();
            assert_eq!(read.kind(), io::ErrorKind::InvalidInput);
            assert_eq!(write.kind(), io::ErrorKind::InvalidInput);
        }
    });
}

#[test]
fn more_io_than_places_runs_in_parallel_to_its_end() {
    with_disk(|world, disk, _directory| async move {
        let tasks: Vec<_> = (0..2000_usize)
            .map(|number| {
                let disk = disk.clone();
                world.spawn("writer", async move {
                    let offset = (number * DISK_ALIGNMENT) as u64;
                    disk.write(offset, pattern(number as u8, DISK_ALIGNMENT))
                        .await
                        .unwrap();
                    let read = disk.read(offset, DISK_ALIGNMENT).await.unwrap();
                    assert_eq!(read, pattern(number as u8, DISK_ALIGNMENT));
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    });
}

#[test]
fn dropped_io_keeps_its_memory_until_the_kernel_is_done_and_gives_its_place_back() {
    with_disk(|_, disk, _directory| async move {
        disk.write(0, pattern(3, 32 * MIB)).await.unwrap();
        for round in 0..200 {
            let mut context = Context::from_waker(Waker::noop());
            let mut read = Box::pin(disk.read(0, 4 * MIB));
            let mut write = Box::pin(disk.write(40 * MIB as u64, pattern(round, 2 * MIB)));
            let _: (Poll<_>, Poll<_>) = (
                read.as_mut().poll(&mut context),
                write.as_mut().poll(&mut context),
            );
            drop((read, write));
            // If the memory had been freed too early, this buffer would get and clear it.
            let other = AlignedBuffer::zeroed(MIB);
            assert!(other.iter().all(|byte| *byte == 0));
        }
        disk.quiesce().await;
        disk.write(40 * MIB as u64, pattern(9, 2 * MIB))
            .await
            .unwrap();
        assert!(disk.read(40 * MIB as u64, 2 * MIB).await.unwrap() == pattern(9, 2 * MIB));
        assert!(disk.read(0, 32 * MIB).await.unwrap() == pattern(3, 32 * MIB));
    });
}

#[test]
fn io_that_a_thread_abandons_is_still_answered() {
    with_disk(|world, disk, _directory| async move {
        let content = pattern(7, MIB);
        disk.write(0, content.clone()).await.unwrap();
        let (inner, other) = (world.clone(), disk.clone());
        let work = move || {
            for round in 0..200_u64 {
                // More reads than a thread's ring has places.
                let mut reads: Vec<_> = (0..40_u64)
                    .map(|part| {
                        let disk = other.clone();
                        let offset = (part + round) % 250 * DISK_ALIGNMENT as u64;
                        Box::pin(async move { (offset, disk.read(offset, DISK_ALIGNMENT).await) })
                    })
                    .collect();
                inner.block_on(async {
                    std::future::poll_fn(|context| {
                        reads.retain_mut(|read| read.as_mut().poll(context).is_pending());
                        Poll::Ready(())
                    })
                    .await;
                });
                // The thread has left its ring; a task gets the answers.
                let content = content.clone();
                let handed_over = inner.spawn("reader", async move {
                    for read in reads {
                        let (offset, bytes) = read.await;
                        let at = usize::try_from(offset).unwrap();
                        assert_eq!(bytes.unwrap(), content[at..at + DISK_ALIGNMENT]);
                    }
                });
                if round % 2 == 0 {
                    inner.block_on(handed_over);
                } else {
                    handed_over.detach();
                }
            }
        };
        let thread = world.spawn_thread("test", work);
        world.blocking(move || thread.join().unwrap()).await;
        disk.quiesce().await;
    });
}

#[test]
fn a_region_that_is_cut_short_or_removed_while_open_is_noticed() {
    with_disk(|_, disk, directory| async move {
        let path = directory.path().join("nsd0");
        disk.check().unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(MIB as u64).unwrap();
        let cut = disk.check().unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
        file.set_len(64 * MIB as u64).unwrap();
        disk.check().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(disk.check().unwrap_err().kind(), io::ErrorKind::NotFound);
    });
}

#[test]
fn a_released_region_can_be_opened_again_and_its_old_opening_does_nothing_more() {
    with_disk(|world, disk, directory| async move {
        let path = directory.path().join("nsd0");
        disk.write_durable(0, pattern(1, 4096)).await.unwrap();
        let holder = disk.clone();
        disk.release().await;
        // A second call doesn't hang.
        disk.release().await;
        let again = world.open_disk(&path).unwrap();
        let refused = [
            holder.write(0, pattern(2, 4096)).await.unwrap_err(),
            holder.read(0, 4096).await.unwrap_err(),
            holder.flush().await.unwrap_err(),
            holder.write_now(0, &[2]).unwrap_err(),
            holder.read_now(0, &mut [0]).unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        }
        assert_eq!(again.read(0, 4096).await.unwrap(), pattern(1, 4096));
        drop(holder);
        let error = world.open_disk(&path).unwrap_err();
        assert_eq!(
            error.kind(),
            io::ErrorKind::WouldBlock,
            "the new opening keeps its lock"
        );
    });
}

#[test]
fn a_region_is_opened_by_one_only_and_never_overwritten() {
    with_disk(|world, disk, directory| async move {
        let path = directory.path().join("nsd0");
        let error = world.open_disk(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(error.to_string().contains("in use"), "{error}");
        disk.write_durable(0, pattern(1, 4096)).await.unwrap();
        drop(disk);
        let error = world.create_disk(&path, 4096).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        let disk = world.open_disk(&path).unwrap();
        assert_eq!(disk.bytes(), 64 * MIB as u64);
        assert_eq!(disk.read(0, 4096).await.unwrap(), pattern(1, 4096));
    });
}

#[test]
fn a_region_that_does_not_fit_leaves_nothing_behind() {
    with_disk(|world, _disk, directory| async move {
        let path = directory.path().join("large");
        assert!(world.create_disk(&path, 1 << 60).is_err());
        assert!(world.create_disk(&path, 1000).is_err());
        assert_eq!(
            world.open_disk(&path).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    });
}

#[test]
fn plain_threads_wait_for_io_tasks_and_timers() {
    with_disk(|world, disk, _directory| async move {
        let threads: Vec<_> = (0..4_u64)
            .map(|number| {
                let (inner, disk) = (world.clone(), disk.clone());
                world.spawn_thread("test", move || {
                    for round in 0..50_u8 {
                        let offset = number * DISK_ALIGNMENT as u64;
                        let world = inner.clone();
                        let disk = disk.clone();
                        inner.block_on(async {
                            disk.write_durable(offset, pattern(round, 4096))
                                .await
                                .unwrap();
                            let task = world.spawn("reader", {
                                let (disk, world) = (disk.clone(), world.clone());
                                async move {
                                    world.sleep(Duration::from_millis(1)).await;
                                    disk.read(offset, 4096).await
                                }
                            });
                            assert_eq!(task.await.unwrap(), pattern(round, 4096));
                            let late = world
                                .timeout(Duration::from_millis(1), std::future::pending::<()>());
                            late.await.unwrap_err();
                        });
                    }
                })
            })
            .collect();
        world
            .blocking(|| {
                threads
                    .into_iter()
                    .for_each(|thread| thread.join().unwrap())
            })
            .await;
    });
}

#[test]
fn time_advances_and_random_numbers_differ() {
    with_disk(|world, _disk, _directory| async move {
        let start = world.now();
        world.sleep(Duration::from_millis(2)).await;
        assert!(world.now() - start >= Duration::from_millis(2));
        assert!(world.wall().seconds() > 1_700_000_000);
        assert_ne!(world.random_u64(), world.random_u64());
    });
}

#[test]
fn io_of_tasks_is_still_answered_when_their_runtime_has_ended() {
    let runtime = runtime(2);
    let directory = tempfile::tempdir().unwrap();
    let disk = {
        let _context = runtime.enter();
        let path = directory.path().join("nsd0");
        World::real().create_disk(&path, 64 * MIB as u64).unwrap()
    };
    let (begun, has_begun) = std::sync::mpsc::channel();
    let task = {
        let disk = disk.clone();
        async move {
            let mut reads: Vec<_> = (0..100).map(|_| Box::pin(disk.read(0, MIB))).collect();
            // Until the kernel is told of them when all have begun, none of them can be over.
            gather_io(|| {
                for read in &mut reads {
                    let mut context = Context::from_waker(Waker::noop());
                    assert!(read.as_mut().poll(&mut context).is_pending());
                }
            });
            begun.send(()).unwrap();
            std::future::pending::<()>().await;
        }
    };
    runtime.spawn(task);
    has_begun.recv().unwrap();
    drop(runtime);
    // Where nobody drives I/O: what comes now has another ring, or would never be answered.
    let elsewhere = Builder::new_current_thread().build().unwrap();
    elsewhere.block_on(disk.quiesce());
    let read = elsewhere.block_on(disk.read(0, MIB)).unwrap();
    assert!(read.iter().all(|byte| *byte == 0));
}
