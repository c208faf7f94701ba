//! How long programs were held up.

use std::{collections::BTreeMap, fmt, time::Duration};

/// The longest that operations have taken, each kind of its own.
#[derive(Clone, Default)]
pub(crate) struct Pauses(BTreeMap<String, Duration>);

impl Pauses {
    /// That of all operations.
    pub(crate) fn longest(&self) -> Duration {
        self.0.values().max().copied().unwrap_or_default()
    }

    /// The longest one alone, as in `2.1 s (create)`.
    pub(crate) fn shortly(&self) -> String {
        let longest = self.0.iter().max_by_key(|(_, time)| **time);
        longest.map_or_else(
            || "none".to_owned(),
            |(operation, time)| format!("{:.1} s ({operation})", time.as_secs_f64()),
        )
    }

    /// Of each kind the longer one.
    pub(crate) fn add(&mut self, others: &Self) {
        for (operation, time) in &others.0 {
            self.note(operation, *time);
        }
    }

    /// An operation has taken so long.
    pub(crate) fn note(&mut self, operation: &str, time: Duration) {
        let longest = self.0.entry(operation.to_owned()).or_default();
        *longest = (*longest).max(time);
    }
}

impl fmt::Display for Pauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |(operation, time): (&String, &Duration)| {
            format!("{operation} {:.1}", time.as_secs_f64())
        };
        let lines: Vec<_> = self.0.iter().map(line).collect();
        let longest = self.longest().as_secs_f64();
        write!(f, "{longest:.1} s ({})", lines.join(", "))
    }
}
