//! How a cluster goes from one value of `cipherList` to another: in steps, between two of which all nodes still take what
//! the others open. No I/O.

use super::mode::{Mode, Policy};

impl Policy {
    /// The next step of a change towards `wanted` and nothing else; `None`: it is made. A step may be begun when all nodes
    /// have made the one before: then whatever a node opens, as the one or the other says, all take. It opens or takes no
    /// mode that is neither wanted nor opened now, so a cluster that goes from one protected mode to another never takes
    /// connections without protection.
    #[must_use]
    pub fn step_towards(&self, wanted: Mode) -> Option<Self> {
        let opens = self.opens();
        let next = if !self.takes_mode(wanted) {
            Self::only(opens).also_taking(wanted)
        } else if opens != wanted {
            Self::only(wanted).also_taking(opens)
        } else {
            Self::only(wanted)
        };
        (next != *self).then_some(next)
    }

    /// Whether it takes all connections that the other one takes.
    #[must_use]
    pub fn takes_all_of(&self, other: &Self) -> bool {
        other.takes().all(|mode| self.takes_mode(mode))
    }

    /// Whether it takes connections of this mode, with each of its suites.
    pub(crate) fn takes_mode(&self, mode: Mode) -> bool {
        self.clone().also_taking(mode) == *self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::{Suite, Suites};
    use proptest::prelude::*;

    /// Most steps from any policy to any mode.
    const STEPS_MAX: usize = 3;

    fn some_mode() -> impl Strategy<Value = Mode> {
        let suites = prop::collection::vec(0..3_usize, 1..4).prop_map(|chosen| {
            let chosen = chosen.into_iter().map(|at| Suites::only(Suite::ALL[at]));
            Mode::Encrypted(chosen.reduce(Suites::and).unwrap())
        });
        prop_oneof![Just(Mode::Off), Just(Mode::AuthOnly), suites]
    }

    /// Whether a connection that the first opens is made with the second.
    fn meet(opens: &Policy, takes: &Policy) -> bool {
        match opens.opens() {
            Mode::Off => takes.takes_plain(),
            Mode::AuthOnly => takes.takes().any(|mode| mode == Mode::AuthOnly),
            Mode::Encrypted(suites) => takes
                .takes_encrypted()
                .is_some_and(|taken| suites.iter().any(|suite| taken.contains(suite))),
        }
    }

    fn steps(from: Policy, wanted: Mode) -> Vec<Policy> {
        let mut steps = vec![from];
        while let Some(next) = steps.last().unwrap().step_towards(wanted) {
            steps.push(next);
            assert!(steps.len() <= STEPS_MAX + 1, "{steps:?}");
        }
        steps
    }

    proptest! {
        #[test]
        fn nodes_that_are_a_step_apart_always_meet(
            from in some_mode(),
            also in prop::collection::vec(some_mode(), 0..3),
            wanted in some_mode(),
        ) {
            // Whatever was broken off before.
            let from = also.iter().copied().fold(Policy::only(from), Policy::also_taking);
            let steps = steps(from.clone(), wanted);
            for pair in steps.windows(2) {
                for (opening, taking) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    prop_assert!(meet(&pair[opening], &pair[taking]), "{:?}", pair);
                }
            }
            prop_assert_eq!(steps.last().unwrap(), &Policy::only(wanted));
            // Nobody takes connections without protection who wasn't told to.
            if wanted != Mode::Off && from.opens() != Mode::Off {
                prop_assert!(steps[1..].iter().all(|step| !step.takes_plain()), "{:?}", steps);
            }
        }

        #[test]
        fn a_policy_takes_all_that_a_smaller_one_takes(
            opens in some_mode(),
            also in prop::collection::vec(some_mode(), 0..3),
        ) {
            let small = Policy::only(opens);
            let large = also.iter().copied().fold(small.clone(), Policy::also_taking);
            prop_assert!(large.takes_all_of(&small) && large.takes_all_of(&large));
            let is_same = small == large;
            prop_assert_eq!(small.takes_all_of(&large), is_same);
        }
    }

    #[test]
    fn a_change_has_three_steps() {
        let text =
            |steps: Vec<Policy>| -> Vec<String> { steps.iter().map(ToString::to_string).collect() };
        let all = steps(Policy::only(Mode::AuthOnly), Mode::Off);
        let expected = [
            "AUTHONLY",
            "AUTHONLY also EMPTY",
            "EMPTY also AUTHONLY",
            "EMPTY",
        ];
        assert_eq!(text(all), expected);
        assert_eq!(Policy::only(Mode::Off).step_towards(Mode::Off), None);
    }
}
