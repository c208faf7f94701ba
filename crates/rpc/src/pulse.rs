//! When to say that this side is there, and when to take the other for gone.

use crate::Fault;
use std::time::Duration;
use world::Instant;

/// A side that has sent nothing for this long says that it is there.
pub(crate) const ALIVE_AFTER: Duration = Duration::from_secs(1);

/// A side from which nothing has come for this long is taken for gone.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(4);

/// Both directions' last sign of life.
#[derive(Debug)]
pub(crate) struct Pulse {
    heard: Instant,
    sent: Instant,
    /// When the connection was opened, until the other side has said hello.
    opened: Option<Instant>,
}

/// What is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Beat {
    /// Say that this side is there.
    Alive,
    /// Nothing before that much time has passed.
    Wait(Duration),
}

impl Pulse {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            heard: now,
            sent: now,
            opened: Some(now),
        }
    }

    /// The other side said hello.
    pub(crate) fn greeted(&mut self) {
        self.opened = None;
    }

    /// Bytes came.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard = now;
    }

    /// A frame goes out.
    pub(crate) fn sent(&mut self, now: Instant) {
        self.sent = now;
    }

    /// What is due when there is no frame to send. The shell sends what it is told to.
    pub(crate) fn beat(&mut self, now: Instant) -> Result<Beat, Fault> {
        // Single bytes without end are no hello.
        if self
            .opened
            .is_some_and(|opened| now.since(opened) >= SILENCE_MAX)
        {
            return Err(Fault::new("the other side said no hello"));
        }
        let silence = now.since(self.heard);
        if silence >= SILENCE_MAX {
            return Err(Fault::new(format!(
                "nothing was heard of the other node for {} s",
                SILENCE_MAX.as_secs()
            )));
        }
        let quiet = now.since(self.sent);
        if quiet >= ALIVE_AFTER {
            self.sent = now;
            return Ok(Beat::Alive);
        }
        Ok(Beat::Wait((SILENCE_MAX - silence).min(ALIVE_AFTER - quiet)))
    }
}
