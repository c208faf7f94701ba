//! When this run was held up: without a lease, although nobody had said that it is expelled (`client/patience.rs`).

use client::HoldUp;
use std::collections::VecDeque;
use std::time::Duration;
use world::Instant;

/// Most that are remembered. Of more the earliest is forgotten: who has waited since then counts it as time with a lease.
const REMEMBERED_MAX: usize = 64;

/// The times without a lease.
pub(super) struct HoldUps {
    /// Until when the lease lasts, or has lasted; the run's beginning before the first one.
    lasts_until: Instant,
    /// From when to when there was none, earliest first.
    over: VecDeque<(Instant, Instant)>,
}

impl HoldUps {
    /// Those of a run that begins then.
    pub(super) fn new(began: Instant) -> Self {
        Self {
            lasts_until: began,
            over: VecDeque::new(),
        }
    }

    /// The lease lasts until then.
    pub(super) fn extend(&mut self, ends: Instant) {
        self.lasts_until = ends;
    }

    /// The lease is over now, although it should have lasted longer.
    pub(super) fn cut(&mut self, now: Instant) {
        self.lasts_until = self.lasts_until.min(now);
    }

    /// There is a lease now, and there was none. To be called before it is extended.
    pub(super) fn end(&mut self, now: Instant) {
        if self.over.len() >= REMEMBERED_MAX {
            self.over.pop_front();
        }
        self.over.push_back((self.lasts_until, now));
    }

    /// How the run was held up since then. `now`: the time, if it is held up.
    pub(super) fn since(&self, since: Instant, now: Option<Instant>) -> Option<HoldUp> {
        let lasting = now.map(|now| (self.lasts_until, now));
        let all = self.over.iter().copied().chain(lasting);
        let later = all.filter(|(_, to)| *to >= since);
        later.fold(None, |before: Option<HoldUp>, (from, until)| {
            let lasted = before.map_or(Duration::ZERO, |it| it.lasted) + (until - from.max(since));
            Some(HoldUp { until, lasted })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use world::World;
    use world::sim::Simulation;

    const SECOND: Duration = Duration::from_secs(1);

    /// Would be broken if a run whose lease is lost again and again remembered ever more of that.
    #[test]
    fn the_earliest_of_many_is_forgotten() {
        let ran = Simulation::new(1).run(async |world: World| {
            let began = world.now();
            let mut hold_ups = HoldUps::new(began);
            let mut now = began;
            for _ in 0..REMEMBERED_MAX + 2 {
                now = now + SECOND;
                hold_ups.end(now);
                now = now + SECOND;
                hold_ups.extend(now);
            }
            assert_eq!(hold_ups.over.len(), REMEMBERED_MAX);
            let until = now - SECOND;
            let counted = u32::try_from(REMEMBERED_MAX).unwrap();
            let lasted = SECOND * counted;
            assert_eq!(hold_ups.since(began, None), Some(HoldUp { until, lasted }));
            // The last one and the one that lasts, each since a half of it.
            let half = SECOND / 2;
            let held_up = hold_ups.since(until - half, Some(now + half));
            let (until, lasted) = (now + half, SECOND);
            assert_eq!(held_up, Some(HoldUp { until, lasted }));
            assert_eq!(hold_ups.since(now, None), None);
        });
        ran.finished();
    }
}
