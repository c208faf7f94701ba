//! Shows the progress of long work: a changing line on a terminal, a line every 30 s in a log, a
//! line of JSON per second for programs.

use super::start::block_on;
use crate::{
    admin::{Progress, client::Admin},
    output::{bytes, plain, say},
};
use hyper::Method;
use model::{Error, ErrorKind, Result};
use std::{
    io::{IsTerminal, Write, stderr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::signal::unix::{SignalKind, signal};

/// How often progress is requested.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause between two lines of a log.
const LOG_EVERY: Duration = Duration::from_secs(30);
/// A request for progress that isn't answered in this time is skipped.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// Looks may fail for this long.
const SILENT_MAX: Duration = Duration::from_secs(60);
/// Time to say what happens after Ctrl-C.
const SAY_MAX: Duration = Duration::from_secs(1);
/// The shell's exit status for a program ended by Ctrl-C.
const INTERRUPTED: i32 = 128 + 2;
/// A rate is shown after measuring for this long.
const RATE_AFTER: Duration = Duration::from_millis(1500);

/// The output for progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Style {
    Terminal,
    Log,
    Json,
}

/// Shows the progress of one command.
pub struct Display {
    style: Style,
    meter: Meter,
    /// When the last line of the log was written.
    logged: Instant,
}

impl Display {
    /// Shows nothing yet.
    pub fn new(json: bool) -> Self {
        let style = match (json, stderr().is_terminal()) {
            (true, _) => Style::Json,
            (false, true) => Style::Terminal,
            (false, false) => Style::Log,
        };
        Self {
            style,
            meter: Meter::default(),
            logged: Instant::now(),
        }
    }

    /// Shows the current progress.
    pub fn show(&mut self, progress: &Progress) {
        let pace = self.meter.pace(progress, Instant::now());
        // Failing to show progress must not end the work.
        let _unseen = match self.style {
            Style::Terminal => write!(stderr(), "\r\x1b[K{}", sentence(progress, pace)),
            Style::Log if self.logged.elapsed() >= LOG_EVERY => {
                self.logged = Instant::now();
                writeln!(stderr(), "shale: {}", sentence(progress, pace))
            }
            Style::Log => Ok(()),
            Style::Json => {
                say!("{}", line_of_json(progress, pace));
                Ok(())
            }
        };
    }

    /// Clears the terminal's line for the answer.
    pub fn end(&self) {
        if self.style == Style::Terminal {
            let _unseen = write!(stderr(), "\r\x1b[K");
        }
    }
}

/// Units per second and the remaining time, as far as known.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Pace {
    rate: Option<f64>,
    left: Option<Duration>,
}

/// Measures the pace of each phase from its beginning.
#[derive(Default)]
struct Meter {
    phase: String,
    first: Option<(Instant, u64)>,
}

impl Meter {
    fn pace(&mut self, progress: &Progress, now: Instant) -> Pace {
        let (begun, at) = match self.first {
            Some(first) if self.phase == progress.phase && first.1 <= progress.done => first,
            _ => {
                self.phase.clone_from(&progress.phase);
                *self.first.insert((now, progress.done))
            }
        };
        let elapsed = now.duration_since(begun);
        if elapsed < RATE_AFTER || progress.done == at {
            return Pace::default();
        }
        let rate = (progress.done - at) as f64 / elapsed.as_secs_f64();
        let left = progress
            .total
            .map(|total| total.saturating_sub(progress.done));
        Pace {
            rate: Some(rate),
            left: left.map(|left| Duration::from_secs_f64((left as f64 / rate).min(1e9))),
        }
    }
}

/// For example `reading segments: 1.2 GiB of 5.0 GiB (24 %), 210 MiB/s, about 18 s left`. The words are the daemon's, which
/// another user may run.
fn sentence(progress: &Progress, pace: Pace) -> String {
    let count = |count: u64| match progress.unit.as_str() {
        "bytes" => bytes(count),
        _ => count.to_string(),
    };
    let unit = match progress.unit.as_str() {
        "bytes" => String::new(),
        other => format!(" {other}"),
    };
    let mut out = format!("{}: {}", progress.phase, count(progress.done));
    if let Some(total) = progress.total {
        out += &format!(" of {}{unit}", count(total));
        if let Some(percent) = progress.done.saturating_mul(100).checked_div(total) {
            out += &format!(" ({percent} %)");
        }
    } else {
        out += &unit;
    }
    if let Some(rate) = pace.rate {
        out += &format!(", {}/s", count(rate as u64));
    }
    if let Some(left) = pace.left {
        out += &format!(", about {} left", time(left));
    }
    plain(&out).into_owned()
}

/// Time in at most two units.
pub(super) fn time(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

fn line_of_json(progress: &Progress, pace: Pace) -> serde_json::Value {
    serde_json::json!({ "progress": {
        "phase": progress.phase,
        "done": progress.done,
        "total": progress.total,
        "unit": progress.unit,
        "per_second": pace.rate.map(|rate| rate as u64),
        "seconds_left": pace.left.map(|left| left.as_secs()),
    }})
}

/// Ends the program at Ctrl-C, and says what then happens to the work. The main thread may wait for
/// the daemon or, even after the answer, for a reader of the output that has stopped reading.
pub struct UntilInterrupted {
    is_over: Arc<AtomicBool>,
}

impl UntilInterrupted {
    /// From the return on, `what_now` is said at Ctrl-C.
    pub fn tell(what_now: &'static str) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let (heeds, is_heeded) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let waited = block_on(async move {
                let mut interrupts = signal(SignalKind::interrupt())?;
                let _ = heeds.send(());
                let heard = interrupts.recv().await;
                heard.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::BrokenPipe))
            });
            // Without the means to wait for it, Ctrl-C ends the program silently.
            if matches!(waited, Ok(Ok(()))) {
                end(what_now, over.load(Ordering::Acquire));
            }
        });
        // An error: there are no such means, and the thread has ended.
        let _ = is_heeded.recv();
        Self { is_over }
    }
}

impl Drop for UntilInterrupted {
    /// There is no more work, only output; Ctrl-C still ends the program.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
    }
}

fn end(what_now: &'static str, is_over: bool) -> ! {
    let (told, said) = std::sync::mpsc::channel();
    // Standard error may have the same reader.
    std::thread::spawn(move || {
        let clear = if stderr().is_terminal() {
            "\r\x1b[K"
        } else {
            ""
        };
        let _unseen = match is_over {
            true => write!(stderr(), "{clear}"),
            false => writeln!(stderr(), "{clear}shale: interrupted: {what_now}"),
        };
        let _ = told.send(());
    });
    let _ = said.recv_timeout(SAY_MAX);
    std::process::exit(INTERRUPTED)
}

/// Sends a long request and shows its progress until the answer arrives. Waits as long as the
/// daemon answers at all, as [`Admin::ask`] does.
///
/// # Errors
/// As [`Admin::ask`].
pub(crate) async fn ask_showing(
    admin: &Admin,
    path: &str,
    json: bool,
    after_ctrl_c: &'static str,
) -> Result<serde_json::Value> {
    let _running = UntilInterrupted::tell(after_ctrl_c);
    let number = work_number();
    let separator = if path.contains('?') { '&' } else { '?' };
    let path = format!("{path}{separator}work={number}");
    let look = format!("/v1/work/{number}");
    let mut answer = std::pin::pin!(admin.ask(Method::POST, &path, ()));
    let mut display = Display::new(json);
    loop {
        tokio::select! {
            biased;
            answer = &mut answer => {
                display.end();
                return answer;
            }
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let look = admin.ask::<Option<Progress>>(Method::GET, &look, ());
        if let Ok(Ok(Some(progress))) = tokio::time::timeout(LOOK_MAX, look).await {
            display.show(&progress);
        }
    }
}

/// Watches work that the daemon does in the background, until it has ended. A busy daemon may miss
/// some looks: only after a minute without an answer is that an error, or when no daemon runs.
///
/// # Errors
/// Those of the look; `Unavailable` if the work can't continue.
pub(crate) async fn wait_showing<T>(
    admin: &Admin,
    json: bool,
    mut look: impl AsyncFnMut() -> Result<Looked<T>>,
) -> Result<T> {
    let mut display = Display::new(json);
    let mut answered = Instant::now();
    loop {
        match look().await {
            Ok(Looked::Ended(end)) => {
                display.end();
                return Ok(end);
            }
            Ok(Looked::Stuck(why)) => {
                display.end();
                return Err(stuck(&why));
            }
            Ok(Looked::At(progress)) => {
                answered = Instant::now();
                display.show(&progress);
            }
            Err(error)
                if error.kind() == ErrorKind::Unavailable
                    && admin.has_daemon()
                    && answered.elapsed() < SILENT_MAX => {}
            Err(error) => {
                display.end();
                return Err(error);
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Result of one look.
pub enum Looked<T> {
    At(Progress),
    /// It can't continue; why.
    Stuck(String),
    Ended(T),
}

/// A number that no other command chooses while this one runs.
fn work_number() -> u64 {
    let nanoseconds = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    u64::from(std::process::id()) << 32 | u64::from(nanoseconds)
}

/// The error for work that can't continue.
pub fn stuck(why: &str) -> Error {
    Error::new(ErrorKind::Unavailable, why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(phase: &str, done: u64, total: Option<u64>, unit: &str) -> Progress {
        Progress {
            phase: phase.into(),
            done,
            total,
            unit: unit.into(),
        }
    }

    #[test]
    fn a_sentence_has_the_share_the_rate_and_the_time_that_is_left() {
        let (mut meter, begun) = (Meter::default(), Instant::now());
        let first = at("reading segments", 0, Some(5 << 30), "bytes");
        let pace = meter.pace(&first, begun);
        assert_eq!(
            sentence(&first, pace),
            "reading segments: 0 B of 5.0 GiB (0 %)"
        );
        let later = at("reading segments", 1 << 30, Some(5 << 30), "bytes");
        let pace = meter.pace(&later, begun + Duration::from_secs(8));
        assert_eq!(
            sentence(&later, pace),
            "reading segments: 1.0 GiB of 5.0 GiB (20 %), 128 MiB/s, about 32 s left"
        );
        // A new phase is measured from its start.
        let other = at("looking for lost space", 3, Some(512), "groups");
        let pace = meter.pace(&other, begun + Duration::from_secs(9));
        assert_eq!(
            sentence(&other, pace),
            "looking for lost space: 3 of 512 groups (0 %)"
        );
    }

    #[test]
    fn without_a_total_there_is_a_count_and_a_rate() {
        let (mut meter, begun) = (Meter::default(), Instant::now());
        meter.pace(&at("reading names", 100, None, "records"), begun);
        let later = at("reading names", 5100, None, "records");
        let pace = meter.pace(&later, begun + Duration::from_secs(10));
        assert_eq!(sentence(&later, pace), "reading names: 5100 records, 500/s");
        let nothing = at("reading segments", 0, Some(0), "bytes");
        assert_eq!(
            sentence(&nothing, Pace::default()),
            "reading segments: 0 B of 0 B"
        );
    }

    /// Would be broken if whoever runs a node could write to the terminal of root, who checks it.
    #[test]
    fn progress_commands_no_terminal() {
        let hostile = at("reading\u{1b}[2J", 3, None, "rec\u{9b}ords");
        let said = sentence(&hostile, Pace::default());
        assert_eq!(said, "reading\\u001b[2J: 3 rec\\u009bords");
        let most = at("reading", u64::MAX, Some(u64::MAX), "records");
        assert!(sentence(&most, Pace::default()).ends_with("(1 %)"));
    }

    #[test]
    fn times_are_short() {
        let said = [5, 61, 3_700, 90_000].map(|seconds| time(Duration::from_secs(seconds)));
        assert_eq!(said, ["5 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]);
    }

    #[test]
    fn a_line_of_json_has_the_same_numbers() {
        let pace = Pace {
            rate: Some(2.5),
            left: Some(Duration::from_secs(4)),
        };
        let line = line_of_json(&at("reading NSDs", 5, Some(15), "bytes"), pace);
        assert_eq!(line["progress"]["done"], 5);
        assert_eq!(line["progress"]["seconds_left"], 4);
        assert!(!line.to_string().contains('\n'), "one line");
    }
}
