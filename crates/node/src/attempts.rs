//! When an NSD that doesn't serve is tried again. Pure.

use std::time::Duration;
use world::Instant;

/// The first and the longest pause between two attempts with one NSD. It doubles in between, so
/// that a disk that keeps failing isn't taken in and lost every few seconds.
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// An NSD that served this long starts again with the shortest pause.
const TRUSTED_AFTER: Duration = Duration::from_secs(600);

/// When an NSD that doesn't serve is tried again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    next: Option<Instant>,
    pause: Duration,
}

impl Look {
    /// Whether the next attempt is due; if so, plans the one after it.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        match self.next {
            Some(next) if now < next => return false,
            Some(next) if now - next > TRUSTED_AFTER => self.pause = Duration::ZERO,
            _ => {}
        }
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.next = Some(now + self.pause);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rarer_until_the_nsd_served_for_long() {
        let mut look = Look::default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let mut now = world::World::real().now();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert!(look.is_due(now) && !look.is_due(now));
            let next = look.next.unwrap();
            pauses.push((next - now).as_secs());
            now = next;
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60]);
        now = now + TRUSTED_AFTER + Duration::from_secs(1);
        assert!(look.is_due(now));
        assert_eq!(look.pause, PAUSE_MIN);
    }
}
