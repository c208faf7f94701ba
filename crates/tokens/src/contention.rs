//! How long something counts as wanted by others after they wanted it. Pure.
//!
//! *Once isn't a quarrel*: who makes something beside what another one has wants that back for a moment, and never again. So
//! the first pause is short. *Those that want it in turn* would pass it on after each pause: it is twice as long each time,
//! until they leave it alone for a while.

use crate::Moment;
use std::time::Duration;

/// How long it counts after the first time. A program that begins something else meanwhile hardly notices.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest: what several use in turn goes round no more often than that.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Whether others have wanted something lately, and how often.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Contention {
    /// When the last pause ends.
    until: Moment,
    /// How long it is from the beginning; nothing before the first one.
    pause: Duration,
}

impl Contention {
    /// Others want it, once more or for the first time.
    pub fn begin(&mut self, now: Moment) {
        self.pause = match now < self.fades() {
            true => (self.pause * 2).min(PAUSE_MAX),
            false => PAUSE_MIN,
        };
        self.until = now.plus(self.pause);
    }

    /// They have wanted it until now. Half of the pause is left at least: it may have taken them long to get it.
    pub fn go_on(&mut self, now: Moment) {
        self.until = self.until.max(now.plus(self.pause / 2));
    }

    /// Whether others have wanted it a moment ago.
    #[must_use]
    pub fn is_on(&self, now: Moment) -> bool {
        now < self.until
    }

    /// From when on nothing of it need be remembered: a next time belongs to the ones before within one more pause. More
    /// would keep the pause long where several want something in turn now and then, as those do that each make a directory
    /// in one: a few wants at once would count for all that follow.
    #[must_use]
    pub fn fades(&self) -> Moment {
        self.until.plus(self.pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment(Duration::from_millis(millis))
    }

    /// How long it counts from then on, in milliseconds.
    fn rest(contention: Contention, now: u64) -> u64 {
        let rest = (0..10_000).find(|rest: &u64| !contention.is_on(at(now + rest)));
        rest.expect("it ends")
    }

    /// Others want it as soon as they may, so often. Until when it counts.
    fn wanted_in_turn(contention: &mut Contention, times: usize) -> u64 {
        let mut now = 0;
        for _ in 0..times {
            contention.begin(at(now));
            now += rest(*contention, now);
        }
        now
    }

    #[test]
    fn each_pause_is_twice_as_long_up_to_a_second() {
        let mut contention = Contention::default();
        assert!(!contention.is_on(at(0)) && contention.fades() == at(0));
        let (mut now, mut pauses) = (7, Vec::new());
        for _ in 0..8 {
            contention.begin(at(now));
            pauses.push(rest(contention, now));
            now += rest(contention, now);
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1_000, 1_000, 1_000]);
    }

    #[test]
    fn a_pause_is_short_again_once_nobody_has_wanted_it_for_as_long_as_the_last_one() {
        for (times, pause) in [(1, 50), (3, 200), (9, 1_000)] {
            let mut contention = Contention::default();
            let end = wanted_in_turn(&mut contention, times);
            let fades = end + pause;
            assert_eq!(contention.fades(), at(fades));
            let mut late = contention;
            late.begin(at(fades));
            assert_eq!(rest(late, fades), 50);
            contention.begin(at(fades - 1));
            assert_eq!(rest(contention, fades - 1), (2 * pause).min(1_000));
        }
    }

    /// Would be broken if each look while somebody waits counted, or if what takes long to go back were forgotten meanwhile.
    #[test]
    fn what_is_wanted_for_long_counts_once_and_for_half_of_its_pause_after_its_end() {
        let mut contention = Contention::default();
        let end = wanted_in_turn(&mut contention, 2);
        contention.begin(at(end));
        contention.go_on(at(end + 1));
        assert_eq!(rest(contention, end), 200, "it isn't longer");
        for waited in 0..10_000 {
            contention.go_on(at(end + waited));
        }
        let end = end + 9_999;
        assert_eq!(rest(contention, end), 100);
        contention.begin(at(end + 299));
        assert_eq!(rest(contention, end + 299), 400);
    }
}
