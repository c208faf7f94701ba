//! Limits of connections that the real and the simulated network keep alike.

use std::ops::RangeInclusive;
use std::time::Duration;

/// How long the peer of a connection may be silent, although it is probed or bytes are under way to
/// it, before the connection fails.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Most connections of one listener that nobody has accepted yet. Further ones wait for room until
/// their deadline.
pub const BACKLOG_MAX: usize = 128;

/// The ports that connecting sockets get where nobody says otherwise: Linux' default.
pub(crate) const EPHEMERAL_PORTS: RangeInclusive<u16> = 32_768..=60_999;
