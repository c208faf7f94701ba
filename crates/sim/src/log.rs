//! The log of a replayed run, with simulated times: set `SIM_LOG` to a level (`info`, `debug`).

use std::cell::Cell;
use std::fmt;
use std::sync::Once;
use std::time::Duration;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

thread_local! {
    /// The simulated time of the run on this thread.
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Whether a log was asked for; starts it then.
pub(crate) fn is_on() -> bool {
    static START: Once = Once::new();
    let level = std::env::var("SIM_LOG").ok();
    let level = level.and_then(|level| level.parse::<tracing::Level>().ok());
    if let Some(level) = level {
        START.call_once(|| {
            let log = tracing_subscriber::fmt().with_timer(Simulated);
            log.with_max_level(level).with_ansi(false).init();
        });
    }
    level.is_some()
}

/// Tells the log the time.
pub(crate) fn set_time(now: Duration) {
    NOW.set(now);
}

struct Simulated;

impl FormatTime for Simulated {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        write!(writer, "{:>9.3}", NOW.get().as_secs_f64())
    }
}
