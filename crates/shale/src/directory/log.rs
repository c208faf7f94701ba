//! The daemon's log: lets a burst of lines through, then one a second, so that no user can fill the
//! disk by causing the same error again and again.

use super::private;
use parking_lot::Mutex;
use std::{
    borrow::Cow,
    fs,
    io::{self, Stderr, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tracing_subscriber::fmt::{MakeWriter, writer::OptionalWriter};

/// Log file in the node's directory, unless the daemon's standard error goes elsewhere.
pub const FILE: &str = "daemon.log";
const LARGE: u64 = 64 << 20;
/// Bytes that are copied at once to the log of another program.
const COPY_BYTES: usize = 16 * 1024;

/// Lines that may come in a burst.
const BURST: u32 = 2_000;
/// After the burst, one line per pause: at most 1 GiB in two months.
const PAUSE: Duration = Duration::from_secs(1);

/// Where the log of a directory's daemon is, for messages.
pub fn place(dir: &Path) -> String {
    format!("{} (under systemd: the journal)", dir.join(FILE).display())
}

/// Where the daemon's log goes.
pub struct Log {
    limit: Mutex<Limit>,
}

struct Limit {
    lines: u32,
    counted_at: Instant,
    left_out: u64,
}

impl Log {
    /// To standard error.
    pub fn new() -> Self {
        Self {
            limit: Mutex::new(Limit::new(Instant::now())),
        }
    }
}

impl Limit {
    fn new(now: Instant) -> Self {
        Self {
            lines: BURST,
            counted_at: now,
            left_out: 0,
        }
    }

    /// Whether a line may be written; if so, how many were left out since the last one.
    fn next(&mut self, now: Instant) -> Option<u64> {
        let pauses = now.saturating_duration_since(self.counted_at).as_secs() / PAUSE.as_secs();
        let more = u32::try_from(pauses).unwrap_or(BURST).min(BURST);
        if more > 0 {
            self.lines = (self.lines + more).min(BURST);
            self.counted_at = now;
        }
        if self.lines == 0 {
            self.left_out += 1;
            return None;
        }
        self.lines -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Where a line goes. Writing to it never fails: whoever logs can't help it if the disk is full, and the subscriber would
/// print the failure to the same place and panic if that fails. What isn't written counts as left out.
pub struct Line<'a, W> {
    limit: &'a Mutex<Limit>,
    out: W,
}

impl<W: Write> Line<'_, W> {
    fn write_or_count(&mut self, text: &[u8], lines: u64) {
        if self.out.write_all(text).is_err() {
            self.limit.lock().left_out += lines;
        }
    }
}

impl<W: Write> Write for Line<'_, W> {
    /// Gets whole lines.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.write_or_count(&one_line(line), 1);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A line that is one: what another node has said in it, why it refuses something for instance, looks like no further line of
/// this daemon.
fn one_line(line: &[u8]) -> Cow<'_, [u8]> {
    let text = line.strip_suffix(b"\n").unwrap_or(line);
    let is_text = |byte: &u8| !byte.is_ascii_control() || *byte == b'\t';
    if text.iter().all(is_text) {
        return Cow::Borrowed(line);
    }
    let mut shown = Vec::with_capacity(line.len());
    for byte in text {
        match is_text(byte) {
            true => shown.push(*byte),
            false => shown.extend(byte.escape_ascii()),
        }
    }
    shown.push(b'\n');
    Cow::Owned(shown)
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = OptionalWriter<Line<'a, Stderr>>;

    /// Called for each line.
    fn make_writer(&'a self) -> Self::Writer {
        let next = self.limit.lock().next(Instant::now());
        let Some(left_out) = next else {
            return OptionalWriter::none();
        };
        let mut line = Line {
            limit: &self.limit,
            out: io::stderr(),
        };
        if left_out > 0 {
            let why = "too many at a time, or no room on the disk";
            let text = format!("({left_out} lines were left out: {why})\n");
            line.write_or_count(text.as_bytes(), left_out);
        }
        OptionalWriter::some(line)
    }
}

/// Renames a large log of earlier daemons, replacing the one renamed before.
///
/// # Errors
/// The system's error.
pub fn put_large_aside(dir: &Path) -> io::Result<()> {
    put_aside_if_large(&dir.join(FILE))
}

/// Renames any log that is large to the same name with `.old` behind it.
fn put_aside_if_large(file: &Path) -> io::Result<()> {
    match fs::symlink_metadata(file) {
        Ok(found) if found.len() > LARGE => put_aside(file),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn put_aside(file: &Path) -> io::Result<()> {
    let mut old = file.as_os_str().to_owned();
    old.push(".old");
    fs::rename(file, old)
}

/// The log of another program: one that is large is put aside while it is written, so that both files together have at most
/// twice [`LARGE`] bytes.
pub struct Bounded {
    path: PathBuf,
    max: u64,
    /// With its bytes; none if it couldn't be opened again.
    file: Option<(fs::File, u64)>,
}

impl Bounded {
    /// Goes on with a log.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut log = Self {
            path: path.to_path_buf(),
            max: LARGE,
            file: None,
        };
        log.file = Some(log.reopen()?);
        Ok(log)
    }

    fn reopen(&self) -> io::Result<(fs::File, u64)> {
        let how = &mut fs::OpenOptions::new();
        let file = private::open(how.create(true).append(true), &self.path)?;
        let bytes = file.metadata()?.len();
        Ok((file, bytes))
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        let (mut file, mut bytes) = match self.file.take() {
            Some(open) => open,
            None => self.reopen()?,
        };
        let length = text.len() as u64;
        if bytes > 0 && bytes + length > self.max {
            put_aside(&self.path)?;
            (file, bytes) = self.reopen()?;
        }
        file.write_all(text)?;
        self.file = Some((file, bytes + length));
        Ok(())
    }

    /// Writes all that comes, until it ends. What can't be written is left out: whoever says it must not wait.
    pub fn copy(mut self, mut from: impl io::Read) {
        let mut buffer = vec![0; COPY_BYTES];
        let mut is_failing = false;
        loop {
            let count = match from.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            let written = self.write(&buffer[..count]);
            if let Err(error) = &written
                && !is_failing
            {
                tracing::warn!(%error, path = %self.path.display(), "a log can't be written");
            }
            is_failing = written.is_err();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD_FILE: &str = "daemon.log.old";

    #[test]
    fn a_burst_of_lines_goes_through_and_then_one_a_pause() {
        let begun = Instant::now();
        let mut limit = Limit::new(begun);
        assert!((0..BURST).all(|_| limit.next(begun) == Some(0)));
        assert!((0..7).all(|_| limit.next(begun + PAUSE / 2).is_none()));
        assert_eq!(limit.next(begun + PAUSE), Some(7));
        assert_eq!(limit.next(begun + PAUSE), None);
        assert_eq!(limit.next(begun + 3 * PAUSE), Some(1));
        assert_eq!(limit.next(begun + 3 * PAUSE), Some(0));
        assert_eq!(limit.next(begun + 3 * PAUSE), None);
        let later = begun + 10 * BURST * PAUSE;
        assert_eq!(limit.next(later), Some(1));
        assert!((1..BURST).all(|_| limit.next(later) == Some(0)));
        assert_eq!(limit.next(later), None);
    }

    #[test]
    fn a_line_that_finds_no_room_is_no_error_and_is_counted() {
        /// A disk without room.
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let now = Instant::now();
        let limit = Mutex::new(Limit::new(now));
        let mut full = Line {
            limit: &limit,
            out: Full,
        };
        full.write_all(b"a line\n").unwrap();
        full.write_all(b"another one\n").unwrap();
        assert_eq!(limit.lock().next(now), Some(2));
        full.write_or_count(b"(2 lines were left out)\n", 2);
        assert_eq!(limit.lock().next(now), Some(2));
        let mut out = Vec::new();
        let mut line = Line {
            limit: &limit,
            out: &mut out,
        };
        line.write_all(b"there is room\n").unwrap();
        assert_eq!(out, b"there is room\n");
        assert_eq!(limit.lock().next(now), Some(0));
    }

    /// Would be broken if another node could write lines into this one's log.
    #[test]
    fn what_is_logged_at_a_time_is_one_line() {
        let limit = Mutex::new(Limit::new(Instant::now()));
        let mut out = Vec::new();
        let mut line = Line {
            limit: &limit,
            out: &mut out,
        };
        line.write_all("größe\t1\n".as_bytes()).unwrap();
        line.write_all(b"refused: no\n2026-11-29 ERROR a disk is gone\r\x1b[2J\n")
            .unwrap();
        let shown = "größe\t1\nrefused: no\\n2026-11-29 ERROR a disk is gone\\r\\x1b[2J\n";
        assert_eq!(String::from_utf8(out).unwrap(), shown);
    }

    #[test]
    fn a_large_log_is_put_aside_and_a_small_one_goes_on() {
        let home = tempfile::tempdir().unwrap();
        put_large_aside(home.path()).unwrap();
        fs::write(home.path().join(FILE), "words").unwrap();
        put_large_aside(home.path()).unwrap();
        assert!(home.path().join(FILE).exists() && !home.path().join(OLD_FILE).exists());
        let file = fs::File::create(home.path().join(FILE)).unwrap();
        file.set_len(LARGE + 1).unwrap();
        put_large_aside(home.path()).unwrap();
        assert!(!home.path().join(FILE).exists() && home.path().join(OLD_FILE).exists());
    }

    #[test]
    fn a_log_that_another_program_writes_has_a_maximum_while_it_is_written() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("other.log");
        let old = home.path().join("other.log.old");
        let mut log = Bounded::open(&path).unwrap();
        log.max = 1_000;
        let line = "x".repeat(99) + "\n";
        let said = line.repeat(25);
        let mut parts = said.as_bytes().chunks(100);
        for part in parts.by_ref().take(10) {
            log.write(part).unwrap();
        }
        assert!(!old.exists());
        log.copy(io::Cursor::new(&said.as_bytes()[..100]));
        let length = |path: &Path| fs::metadata(path).unwrap().len();
        assert_eq!((length(&old), length(&path)), (1_000, 100));
        // Another program goes on with it; much at once isn't cut.
        let mut log = Bounded::open(&path).unwrap();
        log.max = 1_000;
        log.copy(said.as_bytes());
        assert!(length(&path) <= COPY_BYTES as u64);
        assert_eq!(length(&old), 100);
    }

    #[test]
    fn a_log_that_cannot_be_written_holds_nobody_up() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("other.log");
        let mut log = Bounded::open(&path).unwrap();
        log.max = 10;
        log.write(b"first\n").unwrap();
        // Nobody can rename onto a directory that has something.
        fs::create_dir_all(home.path().join("other.log.old/a")).unwrap();
        log.write(b"second\n").unwrap_err();
        fs::remove_dir_all(home.path().join("other.log.old")).unwrap();
        log.write(b"third\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "third\n");
    }
}
