//! Workloads on any mounted directory: Shale's mount, its floor, or the disk's own file system.

use crate::measure::{per_second, rate};
use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use world::AlignedBuffer;

fn name(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("file{number:06}"))
}

/// Creates and closes empty files.
pub fn create(folder: &Path, count: u64) -> f64 {
    fs::create_dir(folder).expect("the folder is new");
    rate(count, || {
        for number in 0..count {
            drop(
                OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .open(name(folder, number))
                    .expect("creates"),
            );
        }
    })
}

/// Size of the files that mdtest-hard writes.
pub const SMALL_BYTES: usize = 3901;

/// stat of each file with the kernel's caches dropped.
pub fn stat(folder: &Path, count: u64) -> f64 {
    drop_kernel_caches();
    stat_each(folder, count)
}

/// stat of each file.
pub fn stat_each(folder: &Path, count: u64) -> f64 {
    rate(count, || {
        for number in 0..count {
            fs::symlink_metadata(name(folder, number)).expect("stats");
        }
    })
}

/// Unlinks the files and removes the folder.
pub fn unlink(folder: &Path, count: u64) -> f64 {
    let speed = rate(count, || {
        for number in 0..count {
            fs::remove_file(name(folder, number)).expect("unlinks");
        }
    });
    fs::remove_dir(folder).expect("the folder is empty");
    speed
}

/// Lists a folder with attributes like `ls -l`: lstat of each entry.
pub fn scan(folder: &Path) -> f64 {
    scan_by(folder, |path| {
        // Not with std: it asks for the birth time as well, which listings don't carry, so the
        // kernel would ask for each file again (`scan_with_births`).
        rustix::fs::lstat(path).expect("stats");
    })
}

/// Like `scan`, with the birth time of each entry.
pub fn scan_with_births(folder: &Path) -> f64 {
    scan_by(folder, |path| {
        fs::symlink_metadata(path).expect("stats");
    })
}

fn scan_by(folder: &Path, stat: impl Fn(&Path)) -> f64 {
    let mut count = 0;
    let begun = std::time::Instant::now();
    for entry in fs::read_dir(folder).expect("lists") {
        stat(&entry.expect("lists").path());
        count += 1;
    }
    crate::measure::per_second(count, begun.elapsed())
}

/// Creates and writes files in a folder that other workers use as well.
pub fn write_small(folder: &Path, worker: u64, count: u64, bytes: usize) {
    let data = vec![7; bytes];
    for number in 0..count {
        let path = folder.join(format!("w{worker}.{number}"));
        let mut file = File::create_new(path).expect("creates");
        if bytes > 0 {
            file.write_all(&data).expect("writes");
        }
    }
}

/// Reads a worker's files of [`write_small`] completely.
pub fn read_small(folder: &Path, worker: u64, count: u64) {
    for number in 0..count {
        fs::read(folder.join(format!("w{worker}.{number}"))).expect("reads");
    }
}

/// stat of each file of [`write_small`].
pub fn stat_small(folder: &Path, worker: u64, count: u64) {
    for number in 0..count {
        fs::symlink_metadata(folder.join(format!("w{worker}.{number}"))).expect("stats");
    }
}

/// Removes a worker's files of [`write_small`].
pub fn remove_small(folder: &Path, worker: u64, count: u64) {
    for number in 0..count {
        fs::remove_file(folder.join(format!("w{worker}.{number}"))).expect("removes");
    }
}

/// SQLite: `count` transactions of one row each into a new database, per second.
pub fn sqlite(folder: &Path, count: u64) -> f64 {
    use std::process::{Command, Stdio};
    fs::create_dir(folder).expect("the folder is new");
    let mut script = String::from("create table t(id integer primary key, v text);\n");
    for number in 0..count {
        script.push_str(&format!("insert into t(v) values('row {number}');\n"));
    }
    let speed = rate(count, || {
        let mut child = Command::new("sqlite3")
            .arg(folder.join("db"))
            .stdin(Stdio::piped())
            .spawn()
            .expect("sqlite3 runs; `make bench` installs it");
        let mut stdin = child.stdin.take().expect("its stdin is piped");
        stdin
            .write_all(script.as_bytes())
            .expect("it reads its stdin");
        drop(stdin);
        assert!(child.wait().expect("ends").success(), "sqlite3 failed");
    });
    fs::remove_dir_all(folder).expect("removes");
    speed
}

/// Writes a file in 1 MiB pieces, with fsync at the end; bytes per second.
pub fn write_stream(path: &Path, bytes: u64) -> f64 {
    // Page-aligned, as in programs that stream. From unaligned memory the kernel splits a 1 MiB
    // write into two requests, the second with the few bytes on the 257th page.
    let piece = AlignedBuffer::copy_of(&[0x5A; 1 << 20]);
    let _ = fs::remove_file(path);
    rate(bytes, || {
        let mut file = File::create(path).expect("creates");
        for _ in 0..bytes >> 20 {
            file.write_all(&piece).expect("writes");
        }
        file.sync_all().expect("syncs");
    })
}

/// Bytes of a record of [`write_strided`]: no multiple of a page or of a block.
const RECORD: usize = 47_008;

/// Two writers put every other record into a new file, each from its beginning to its end, and
/// fsync it; bytes per second.
pub fn write_strided(path: &Path, bytes: u64) -> f64 {
    use std::os::unix::fs::FileExt;
    let _ = fs::remove_file(path);
    let file = File::create(path).expect("creates");
    rate(bytes, || {
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let file = &file;
                scope.spawn(move || {
                    let record = AlignedBuffer::copy_of(&[writer as u8; RECORD]);
                    for number in (writer..bytes / RECORD as u64).step_by(2) {
                        file.write_all_at(&record[..RECORD], number * RECORD as u64)
                            .expect("writes");
                    }
                    file.sync_all().expect("syncs");
                });
            }
        });
    })
}

/// Two writers put as many bytes into a new file each, in 1 MiB pieces, and fsync it; bytes per
/// second.
pub fn write_separately(folder: &Path, bytes: u64) -> f64 {
    rate(bytes, || {
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let path = folder.join(format!("separate{writer}"));
                scope.spawn(move || write_stream(&path, bytes / 2));
            }
        });
    })
}

/// Reads a file in 1 MiB pieces with the kernel's caches dropped.
pub fn read_stream(path: &Path, bytes: u64) -> f64 {
    drop_kernel_caches();
    let mut piece = vec![0; 1 << 20];
    rate(bytes, || {
        let mut file = File::open(path).expect("opens");
        let mut got = 0;
        while let Ok(read) = file.read(&mut piece) {
            if read == 0 {
                break;
            }
            got += read as u64;
        }
        assert!(got == bytes, "the whole file was read");
    })
}

/// 4 KiB reads with O_DIRECT at random offsets by `depth` threads.
pub fn read_random(path: &Path, bytes: u64, count: u64, depth: u64) -> f64 {
    drop_kernel_caches();
    rate(count, || {
        std::thread::scope(|scope| {
            for worker in 0..depth {
                scope.spawn(move || read_random_worker(path, bytes, count / depth, worker));
            }
        });
    })
}

fn read_random_worker(path: &Path, bytes: u64, count: u64, worker: u64) {
    use std::os::unix::fs::FileExt;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .expect("opens with O_DIRECT");
    let mut memory = world::AlignedBuffer::zeroed(4096);
    let mut state = worker.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for _ in 0..count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        file.read_exact_at(&mut memory, state % (bytes / 4096) * 4096)
            .expect("reads");
    }
}

/// Two writers put 4 KiB with O_DIRECT here and there into a file for so long. Writes per second,
/// and the longest of them in microseconds.
pub fn overwrite(path: &Path, bytes: u64, time: Duration) -> (f64, f64) {
    drop_kernel_caches();
    let results: Vec<(u64, Duration)> = std::thread::scope(|scope| {
        let writers =
            (0..2).map(|writer| scope.spawn(move || overwriter(path, bytes, time, writer)));
        let writers: Vec<_> = writers.collect();
        let results = writers
            .into_iter()
            .map(|writer| writer.join().expect("writes"));
        results.collect()
    });
    let count = results.iter().map(|(count, _)| count).sum();
    let longest = results.iter().map(|(_, longest)| *longest).max();
    let longest = longest.unwrap_or_default();
    (per_second(count, time), longest.as_secs_f64() * 1e6)
}

fn overwriter(path: &Path, bytes: u64, time: Duration, writer: u64) -> (u64, Duration) {
    use std::os::unix::fs::FileExt;
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .expect("opens with O_DIRECT");
    let memory = AlignedBuffer::copy_of(&[writer as u8; 4096]);
    let mut state = writer.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let (mut count, mut longest) = (0, Duration::ZERO);
    let begun = Instant::now();
    let mut last = begun;
    while last - begun < time {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        file.write_all_at(&memory, state % (bytes / 4096) * 4096)
            .expect("writes");
        let now = Instant::now();
        longest = longest.max(now - last);
        last = now;
        count += 1;
    }
    (count, longest)
}

/// Files of 4 KiB, each created, written and fsynced.
pub fn synced_files(folder: &Path, count: u64) -> f64 {
    let speed = write_synced(folder, count);
    remove_folder(folder);
    settle(folder.parent().expect("it is in another one"));
    speed
}

/// The same, and the files stay.
pub fn write_synced(folder: &Path, count: u64) -> f64 {
    fs::create_dir(folder).expect("the folder is new");
    let data = vec![7; 4096];
    rate(count, || {
        for number in 0..count {
            let mut file = File::create(name(folder, number)).expect("creates");
            file.write_all(&data).expect("writes");
            file.sync_all().expect("syncs");
        }
    })
}

/// Removes a folder with all that is in it.
pub fn remove_folder(folder: &Path) {
    fs::remove_dir_all(folder).expect("removes");
}

/// Makes the kernel drop clean pages, entries and inodes.
pub fn drop_kernel_caches() {
    // Without permission, caches stay warm on both sides of a pair.
    let _ = fs::write("/proc/sys/vm/drop_caches", "2");
}

/// Makes a folder's file system write everything out, so that the next pair doesn't pay for it.
pub fn settle(folder: &Path) {
    if let Ok(folder) = fs::File::open(folder) {
        let _ = rustix::fs::syncfs(folder);
    }
}
