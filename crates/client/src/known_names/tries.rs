//! When a client tries to make the names of a directory itself. Pure.
//!
//! A try asks for tokens that others may want. One in vain is repeated soon, and less often each time: what stands in its
//! way, as another client that has just made a directory beside this one, mostly goes by.

use std::time::Duration;
use tokens::Moment;

/// So many names that this client has had made make it worthwhile to make the next ones itself.
const HAD_MADE_MIN: u32 = 8;
/// How long after a try in vain it isn't tried again; twice as long after each further one.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Once the client has made so many names itself, earlier tries in vain count no more.
const MADE_HERE_MIN: u32 = 8;

/// What is known of a directory's tries.
pub(super) struct Tries {
    /// Names that the owner has made for this client since it was last tried with success.
    had_made: u32,
    /// Names that this client has made itself since it was last tried in vain.
    made_here: u32,
    /// When it may be tried again, and for how long not after the next try in vain.
    not_before: Moment,
    pause: Duration,
}

impl Tries {
    /// None yet.
    pub(super) fn new() -> Self {
        Self {
            had_made: 0,
            made_here: 0,
            not_before: Moment::default(),
            pause: PAUSE_MIN,
        }
    }

    /// The owner has made a name for this client. Whether it is time for a try.
    pub(super) fn note_had_made(&mut self, now: Moment) -> bool {
        self.had_made = self.had_made.saturating_add(1);
        self.had_made >= HAD_MADE_MIN && now >= self.not_before
    }

    /// A try has ended: with the delegation, or in vain.
    pub(super) fn note_end(&mut self, is_delegated: bool, now: Moment) {
        if is_delegated {
            self.had_made = 0;
            return;
        }
        self.made_here = 0;
        self.not_before = now.plus(self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// The client has made a name itself.
    pub(super) fn note_made_here(&mut self) {
        self.made_here += 1;
        if self.made_here >= MADE_HERE_MIN {
            *self = Self::new();
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
            tries.note_end(false, at(now));
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
            tries.note_end(false, at(1_000));
        }
        for _ in 1..MADE_HERE_MIN {
            tries.note_made_here();
        }
        made_until_due(&mut tries, 60_000);
        tries.note_end(false, at(60_000));
        assert!(!tries.note_had_made(at(61_500)), "it goes on as before");
        for _ in 0..MADE_HERE_MIN {
            tries.note_made_here();
        }
        assert_eq!(made_until_due(&mut tries, 60_000), HAD_MADE_MIN);
        tries.note_end(false, at(60_000));
        assert!(!tries.note_had_made(at(60_049)) && tries.note_had_made(at(60_050)));
    }

    #[test]
    fn after_a_try_with_success_others_are_worthwhile_when_the_owner_makes_names_again() {
        let mut tries = Tries::new();
        made_until_due(&mut tries, 0);
        tries.note_end(true, at(0));
        assert_eq!(made_until_due(&mut tries, 0), HAD_MADE_MIN);
    }
}
