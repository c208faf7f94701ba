//! Disks that are slow on purpose, for labs: a file says how slow, and may be changed at any time.
//!
//! The file has lines `KEY = NUMBER`. A missing or empty file means that disks are as fast as they are.
//!
//! | key | unit | what it does |
//! |---|---|---|
//! | `read_mbit` | megabits (10^6) per second, from 1 | each disk reads at most as fast |
//! | `write_mbit` | megabits per second, from 1 | each disk writes at most as fast |
//! | `latency_ms` | milliseconds | each request takes so much longer, flushes included |
//!
//! A request waits before it is submitted. Blocking reads and writes, which go through the kernel's
//! page cache, aren't slowed; a blocking flush is.

use parking_lot::Mutex;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer files are refused.
const FILE_BYTES_MAX: u64 = 4096;
/// How often a waiting request looks whether the file has changed: then it waits no longer.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// No request waits longer.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// What the file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Limits {
    read_mbit: Option<u64>,
    write_mbit: Option<u64>,
    latency_ms: u64,
}

/// Tells one content of the file from another: its place, length and time of change.
type Stamp = (u64, u64, i64, i64);

/// The file, as it was when it was last looked at.
pub(crate) struct Faults {
    file: PathBuf,
    seen: Mutex<(Option<Stamp>, Limits)>,
}

/// What a request moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moves {
    /// Bytes from the disk.
    Read(usize),
    /// Bytes to the disk.
    Write(usize),
    /// No bytes: a flush, a discard.
    Nothing,
}

/// One disk's faults.
pub(super) struct SlowDisk {
    faults: Arc<Faults>,
    /// Until when what was asked for keeps the disk busy: reads, writes.
    busy_until: Mutex<[Option<Instant>; 2]>,
}

impl Faults {
    /// Those that the file says, now and later.
    pub(crate) fn of(file: &Path) -> Arc<Self> {
        Arc::new(Self {
            file: file.to_owned(),
            seen: Mutex::default(),
        })
    }

    /// What the file says now; it is read again only if it has changed.
    fn limits(&self) -> Limits {
        let stamp = std::fs::metadata(&self.file).ok();
        let stamp = stamp.map(|it| (it.ino(), it.len(), it.mtime(), it.mtime_nsec()));
        let mut seen = self.seen.lock();
        if seen.0 != stamp {
            let limits = self.read().unwrap_or_else(|error| {
                let file = self.file.display();
                tracing::warn!(%file, %error, "the file of a lab's faults isn't obeyed");
                Limits::default()
            });
            if limits != seen.1 {
                tracing::warn!(?limits, "the speed of disks is limited as the lab says");
            }
            *seen = (stamp, limits);
        }
        seen.1
    }

    fn read(&self) -> io::Result<Limits> {
        let file = match std::fs::File::open(&self.file) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Limits::default()),
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(invalid(format!("it is longer than {FILE_BYTES_MAX} bytes")));
        }
        Limits::parse(&text)
    }
}

impl Limits {
    fn parse(text: &str) -> io::Result<Self> {
        let mut limits = Self::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let wrong = || invalid(format!("{line:?} isn't KEY = NUMBER with a known key"));
            let (key, number) = line.split_once('=').ok_or_else(wrong)?;
            let number: u64 = number.trim().parse().map_err(|_| wrong())?;
            match (key.trim(), number) {
                ("read_mbit", 1..) => limits.read_mbit = Some(number),
                ("write_mbit", 1..) => limits.write_mbit = Some(number),
                ("latency_ms", _) => limits.latency_ms = number,
                _ => return Err(wrong()),
            }
        }
        Ok(limits)
    }

    /// How long the disk needs to move this, by its speed alone.
    fn moving(&self, moves: Moves) -> Duration {
        let (bytes, mbit) = match moves {
            Moves::Read(bytes) => (bytes, self.read_mbit),
            Moves::Write(bytes) => (bytes, self.write_mbit),
            Moves::Nothing => return Duration::ZERO,
        };
        let bits = bytes as u64 * 8;
        // A megabit per second is a bit per microsecond.
        mbit.map_or(Duration::ZERO, |mbit| Duration::from_micros(bits / mbit))
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl SlowDisk {
    pub(super) fn new(faults: &Arc<Faults>) -> Self {
        Self {
            faults: faults.clone(),
            busy_until: Mutex::default(),
        }
    }

    /// Waits as long as the request is to be delayed; less, if the file changes meanwhile.
    pub(super) async fn hold(&self, moves: Moves) {
        let limits = self.faults.limits();
        let due = self.book(&limits, moves, Instant::now());
        while let Some(left) = self.left(due, limits) {
            tokio::time::sleep(left).await;
        }
    }

    /// As [`SlowDisk::hold`], blocking the thread.
    pub(super) fn hold_now(&self, moves: Moves) {
        let limits = self.faults.limits();
        let due = self.book(&limits, moves, Instant::now());
        while let Some(left) = self.left(due, limits) {
            std::thread::sleep(left);
        }
    }

    /// How long to wait before looking again; `None`: no longer.
    fn left(&self, due: Instant, limits: Limits) -> Option<Duration> {
        let left = due.saturating_duration_since(Instant::now());
        (!left.is_zero() && self.faults.limits() == limits).then(|| left.min(LOOK_EVERY))
    }

    /// Puts a request behind those of its direction; returns when it may be submitted.
    fn book(&self, limits: &Limits, moves: Moves, now: Instant) -> Instant {
        let latest = now + WAIT_MAX;
        let moving = limits.moving(moves);
        let mut moved = now;
        if !moving.is_zero() {
            let mut busy = self.busy_until.lock();
            let busy = &mut busy[usize::from(matches!(moves, Moves::Write(_)))];
            // What was booked at another speed may be far away.
            moved = (busy.unwrap_or(now).clamp(now, latest) + moving).min(latest);
            *busy = Some(moved);
        }
        (moved + Duration::from_millis(limits.latency_ms)).min(latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow_disk(text: &str) -> (tempfile::TempDir, SlowDisk) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("faults");
        std::fs::write(&file, text).unwrap();
        (folder, SlowDisk::new(&Faults::of(&file)))
    }

    #[test]
    fn the_file_is_read_again_when_it_has_changed() {
        let (folder, disk) = slow_disk("read_mbit = 8\n\nlatency_ms=20\n");
        let limits = Limits {
            read_mbit: Some(8),
            write_mbit: None,
            latency_ms: 20,
        };
        assert_eq!(disk.faults.limits(), limits);
        let file = folder.path().join("faults");
        crate::host::replace_file(&file, b"write_mbit = 7").unwrap();
        assert_eq!(disk.faults.limits().write_mbit, Some(7));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(disk.faults.limits(), Limits::default());
    }

    #[test]
    fn a_file_that_says_something_else_isnt_obeyed() {
        let long = "latency_ms = 5\n".repeat(1000);
        for text in [
            "latency_ms 20",
            "read_mbit = 0",
            "x = 1",
            "latency_ms = -1",
            &long,
        ] {
            let (_folder, disk) = slow_disk(&format!("latency_ms = 9\n{text}"));
            assert_eq!(disk.faults.limits(), Limits::default(), "{text}");
        }
        assert_eq!(slow_disk("\u{0}\u{1}").1.faults.limits(), Limits::default());
    }

    #[test]
    fn requests_of_one_direction_wait_for_each_other() {
        let (_folder, disk) = slow_disk("read_mbit = 8\nlatency_ms = 20");
        let limits = disk.faults.limits();
        let now = Instant::now();
        let after = |ms| now + Duration::from_millis(ms);
        // 8 megabits a second are 1,000 bytes a millisecond.
        assert_eq!(disk.book(&limits, Moves::Read(500_000), now), after(520));
        assert_eq!(disk.book(&limits, Moves::Read(100_000), now), after(620));
        assert_eq!(disk.book(&limits, Moves::Write(100_000), now), after(20));
        assert_eq!(disk.book(&limits, Moves::Nothing, now), after(20));
        let later = after(10_000);
        assert_eq!(disk.book(&limits, Moves::Read(1000), later), after(10_021));
        let hanging = Limits {
            latency_ms: u64::MAX,
            ..limits
        };
        assert_eq!(disk.book(&hanging, Moves::Nothing, now), now + WAIT_MAX);
    }

    #[test]
    fn a_waiting_request_goes_on_when_the_file_changes() {
        let (folder, disk) = slow_disk("latency_ms = 3600000");
        let limits = disk.faults.limits();
        let due = disk.book(&limits, Moves::Nothing, Instant::now());
        assert_eq!(disk.left(due, limits), Some(LOOK_EVERY));
        crate::host::replace_file(&folder.path().join("faults"), b"").unwrap();
        assert_eq!(disk.left(due, limits), None);
        disk.hold_now(Moves::Nothing);
    }
}
