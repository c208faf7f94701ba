//! Waits for what the kernel tells, for a limited time.

use model::Result;
use std::time::{Duration, Instant};

/// Pause between two looks at what the kernel tells.
pub const SOON: Duration = Duration::from_millis(5);

/// Looks, with pauses, until something is so; false if that takes longer than `patience`.
///
/// # Errors
/// The first one of a look.
pub fn until(
    patience: Duration,
    pause: Duration,
    mut is_so: impl FnMut() -> Result<bool>,
) -> Result<bool> {
    let begun = Instant::now();
    loop {
        if is_so()? {
            return Ok(true);
        }
        if begun.elapsed() >= patience {
            return Ok(false);
        }
        std::thread::sleep(pause);
    }
}
