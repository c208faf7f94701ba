//! When a client tries to make the names of a directory itself. Pure.
//!
//! A try asks for tokens that others may want. One in vain is repeated soon, and less often each time: what stands in its
//! way, as another client that has just made a directory beside this one, mostly goes by. Creates wait meanwhile, so tries take a
//! small share of the time, also where each has success and nothing comes of it: programs that rename what they make, say.
//!
//! *A create may wait* for what goes by: changes of its own client in the directory. Where others always follow it would wait each
//! time, and be sent all the same. So after a wait in vain there is none for a while, longer each time.

use std::ops::Range;
use std::time::Duration;
use tokens::Moment;

/// So many names that this client has had made make it worthwhile to make the next ones itself.
const HAD_MADE_MIN: u32 = 8;
/// How long after a try in vain it isn't tried again; twice as long after each further one.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Nor for so many times as long as any try has taken, up to the longest pause.
const REST: u32 = 10;
/// Once the client has made so many names itself, earlier tries and waits in vain count no more.
const MADE_HERE_MIN: u32 = 8;

/// What is known of a directory's tries.
pub(super) struct Tries {
    /// Names that the owner has made for this client since it was last tried with success.
    had_made: u32,
    /// Names that this client has made itself since it last tried, or waited, in vain.
    made_here: u32,
    tries: Pauses,
    /// Until when there is none after the last one, whatever came of it.
    rests_until: Moment,
    waits: Pauses,
}

/// When something may be done again that was done in vain.
struct Pauses {
    not_before: Moment,
    /// How long it isn't done after the next time in vain.
    pause: Duration,
}

impl Pauses {
    fn none() -> Self {
        Self {
            not_before: Moment::default(),
            pause: PAUSE_MIN,
        }
    }

    fn are_over(&self, now: Moment) -> bool {
        now >= self.not_before
    }

    /// It was done in vain.
    fn begin(&mut self, now: Moment) {
        self.not_before = now.plus(self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

impl Tries {
    /// None yet.
    pub(super) fn new() -> Self {
        Self {
            had_made: 0,
            made_here: 0,
            tries: Pauses::none(),
            rests_until: Moment::default(),
            waits: Pauses::none(),
        }
    }

    /// The owner has made a name for this client. Whether it is time for a try.
    pub(super) fn note_had_made(&mut self, now: Moment) -> bool {
        self.had_made = self.had_made.saturating_add(1);
        let is_worthwhile = self.had_made >= HAD_MADE_MIN;
        is_worthwhile && self.tries.are_over(now) && now >= self.rests_until
    }

    /// A try of this time has ended: with the delegation, or in vain.
    pub(super) fn note_end(&mut self, is_delegated: bool, tried: Range<Moment>) {
        let took = tried.end.since(tried.start);
        let rest = took.saturating_mul(REST).min(PAUSE_MAX);
        self.rests_until = tried.end.plus(rest);
        if is_delegated {
            self.had_made = 0;
            return;
        }
        self.made_here = 0;
        self.tries.begin(tried.end);
    }

    /// Whether a create may wait for what is in its way.
    pub(super) fn may_wait(&self, now: Moment) -> bool {
        self.waits.are_over(now)
    }

    /// A create has waited in vain. Several that did so at the same time count once.
    pub(super) fn note_waited(&mut self, now: Moment) {
        if self.waits.are_over(now) {
            self.made_here = 0;
            self.waits.begin(now);
        }
    }

    /// The client has made a name itself.
    pub(super) fn note_made_here(&mut self) {
        self.made_here += 1;
        if self.made_here >= MADE_HERE_MIN {
            *self = Self {
                rests_until: self.rests_until,
                ..Self::new()
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment(Duration::from_millis(millis))
    }

    /// Has names made at a time until it is to be tried; how many.
    fn made_until_due(tries: &mut Tries, now: u64) -> u32 {
        let made = (1..1_000).find(|_| tries.note_had_made(at(now)));
        made.expect("it becomes worthwhile")
    }

    #[test]
    fn a_try_in_vain_is_repeated_soon_and_each_further_one_later() {
        let mut tries = Tries::new();
        assert_eq!(made_until_due(&mut tries, 0), HAD_MADE_MIN);
        let (mut now, mut pauses) = (7, Vec::new());
        for _ in 0..8 {
            tries.note_end(false, at(now)..at(now));
            let is_due = |pause: &u64| tries.note_had_made(at(now + pause));
            let pause = (0..10_000).find(is_due).expect("it is tried again");
            pauses.push(pause);
            now += pause;
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1_600, 2_000, 2_000]);
    }

    #[test]
    fn tries_in_vain_are_forgotten_once_some_names_were_made_here() {
        let mut tries = Tries::new();
        for _ in 0..5 {
            tries.note_end(false, at(1_000)..at(1_000));
        }
        for _ in 1..MADE_HERE_MIN {
            tries.note_made_here();
        }
        made_until_due(&mut tries, 60_000);
        tries.note_end(false, at(60_000)..at(60_000));
        assert!(!tries.note_had_made(at(61_500)), "it goes on as before");
        for _ in 0..MADE_HERE_MIN {
            tries.note_made_here();
        }
        assert_eq!(made_until_due(&mut tries, 60_000), HAD_MADE_MIN);
        tries.note_end(false, at(60_000)..at(60_000));
        assert!(!tries.note_had_made(at(60_049)) && tries.note_had_made(at(60_050)));
    }

    #[test]
    fn after_a_try_with_success_others_are_worthwhile_when_the_owner_makes_names_again() {
        let mut tries = Tries::new();
        made_until_due(&mut tries, 0);
        tries.note_end(true, at(0)..at(0));
        assert_eq!(made_until_due(&mut tries, 0), HAD_MADE_MIN);
    }

    /// Would be broken if programs whose creates wait for each try did little else, where nothing comes of tries with success.
    #[test]
    fn tries_take_a_small_share_of_the_time_whatever_comes_of_them() {
        for is_delegated in [true, false] {
            let mut tries = Tries::new();
            let (mut now, mut tried) = (0, 0);
            while now < 60_000 {
                if tries.note_had_made(at(now)) {
                    tries.note_end(is_delegated, at(now)..at(now + 30));
                    (0..MADE_HERE_MIN).for_each(|_| tries.note_made_here());
                    (now, tried) = (now + 30, tried + 30);
                }
                now += 1;
            }
            assert!((4_000..6_000).contains(&tried), "{tried} ms of a minute");
        }
    }

    #[test]
    fn a_wait_in_vain_is_followed_by_none_for_a_while_until_names_are_made_here() {
        let mut tries = Tries::new();
        let mut rests = Vec::new();
        for round in 0..8 {
            let now = 10_000 * round;
            assert!(tries.may_wait(at(now)));
            // Several wait at the same time.
            (0..8).for_each(|_| tries.note_waited(at(now)));
            let rest = (0..10_000).find(|rest: &u64| tries.may_wait(at(now + rest)));
            rests.push(rest.expect("creates wait again"));
        }
        assert_eq!(rests, [50, 100, 200, 400, 800, 1_600, 2_000, 2_000]);
        (0..MADE_HERE_MIN).for_each(|_| tries.note_made_here());
        assert!(tries.may_wait(at(0)), "they are forgotten");
    }
}
