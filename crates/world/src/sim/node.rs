//! What the simulation knows of one machine: its process, its power, its clocks.

use std::task::Waker;

/// One simulated machine.
#[derive(Clone)]
pub(super) struct NodeState {
    pub(super) name: String,
    /// What the names of its disks begin with.
    pub(super) prefix: String,
    /// The process that runs there.
    pub(super) run: Option<u64>,
    /// Nanoseconds by which its calendar was set back.
    pub(super) clock_set_back: i64,
    /// Its monotonic clock, in nanoseconds.
    pub(super) clock: u64,
    /// Nanoseconds that its clock gains in each second (or loses).
    pub(super) drift: i64,
    /// Stopped as by SIGSTOP.
    pub(super) is_paused: bool,
    /// Wakes the run when its process ends.
    pub(super) on_end: Option<Waker>,
}

impl NodeState {
    pub(super) fn new(name: &str, prefix: String) -> Self {
        Self {
            name: name.to_owned(),
            prefix,
            run: None,
            clock_set_back: 0,
            clock: 0,
            drift: 0,
            is_paused: false,
            on_end: None,
        }
    }
}
