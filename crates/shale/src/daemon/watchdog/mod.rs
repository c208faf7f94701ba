//! The watchdog: a process beside the daemon of a cluster's node that ends the node's mounts when the daemon can't run.
//!
//! A daemon that is stopped, or hangs as a whole, answers no request and hears nothing of what others change. What its
//! kernel keeps of names, attributes and pages is valid for the rest of the node's lease only; then programs would hang.
//! So the daemon beats twice a second, and says until when it may serve. When that time is over and there was no beat for
//! seconds, the watchdog aborts the connections of the daemon's mounts: programs get ENOTCONN, ECONNABORTED or EIO.
//!
//! `rule` decides, `messages` is what both say, `process` is the watchdog, and `keeper` is the daemon's side: it starts
//! the process before anything is mounted, starts it again when it dies, and tells the mounts what it did once the daemon
//! goes on.

mod keeper;
mod messages;
mod process;
mod rule;

pub use keeper::{Again, Guard, Watchdog};
pub use messages::MountNumber;
pub use process::run;
pub use rule::BEAT_EVERY;
