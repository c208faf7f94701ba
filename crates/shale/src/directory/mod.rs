//! The node's directory: its lock, the daemon's log, and that only its owner has it.

pub mod lock;
pub mod log;
pub mod private;
