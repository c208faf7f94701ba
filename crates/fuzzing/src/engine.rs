//! Runs a target with a fixed series of inputs, or hands it to a fuzzer.

use bolero::TargetLocation;
use std::panic::RefUnwindSafe;

/// Inputs of an ordinary target in `make test`; targets state theirs as a part or a multiple of it. It
/// bounds the time of all of them together: about a hundred targets have 95 times as many inputs, of which
/// each takes some ten to two hundred microseconds. `SHALE_LONG` makes them more, `SHALE_FUZZ_ROUNDS` says
/// how many.
pub const ROUNDS: u64 = 1000;

/// Says how many inputs each target gets.
const ROUNDS_CHOSEN: &str = "SHALE_FUZZ_ROUNDS";

/// Whether targets run with the inputs that they always have, or more of them: then each has seen what
/// it is for. Not if somebody chose their number, nor if `cargo bolero` only asks what targets there are.
pub(crate) fn has_all_inputs() -> bool {
    let is_set = |name| std::env::var_os(name).is_some();
    !is_set(ROUNDS_CHOSEN) && !is_set("CARGO_BOLERO_SELECT")
}

/// Runs a target. A failure prints the smallest input that was found, and its number for
/// `SHALE_FUZZ_START`. Not generic: there are a hundred targets, and the engine is compiled once.
///
/// # Panics
/// If the target panics for an input.
#[cfg(not(fuzzing))]
pub fn run(location: TargetLocation, rounds: u64, target: &dyn Fn(&[u8])) {
    // `cargo bolero` asks every target for its place, and runs none meanwhile.
    if location.should_run() {
        let engine = fixed::Series::new(location.item_path, rounds);
        let target = Target(target);
        bolero::TestTarget::new(engine).for_each(|input: &[u8]| target.take(input));
    }
}

/// Runs a target as the fuzzer says.
#[cfg(fuzzing)]
pub fn run(location: TargetLocation, _: u64, target: &dyn Fn(&[u8])) {
    if location.should_run() {
        let target = Target(target);
        bolero::test(location).for_each(|input: &[u8]| target.take(input));
    }
}

/// A target that panicked is run again only to find a smaller input that it panics for, so what a panic
/// leaves behind does no harm.
struct Target<'a>(&'a dyn Fn(&[u8]));

impl RefUnwindSafe for Target<'_> {}

impl Target<'_> {
    fn take(&self, input: &[u8]) {
        (self.0)(input);
    }
}

#[cfg(not(fuzzing))]
mod fixed {
    use super::ROUNDS_CHOSEN;
    use bolero::bolero_engine::{Failure, driver::Options, input::Bytes, panic};
    use bolero::{Engine, Test};
    use std::fmt::Debug;

    /// How many times more inputs a long run has.
    const LONG: u64 = 20;

    /// Inputs of a target, from one number to another.
    pub(super) struct Series {
        name: u64,
        rounds: std::ops::Range<u64>,
    }

    impl Series {
        pub(super) fn new(name: &str, rounds: u64) -> Self {
            let number = |variable: &str| -> Option<u64> {
                let text = std::env::var(variable).ok()?;
                let number = text.parse();
                Some(number.unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
            };
            let rounds = match std::env::var_os("SHALE_LONG") {
                Some(_) => rounds * LONG,
                None => rounds,
            };
            let rounds = number(ROUNDS_CHOSEN).unwrap_or(rounds);
            let start = number("SHALE_FUZZ_START").unwrap_or(0);
            Self {
                name: name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                    (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
                }),
                rounds: start..start.saturating_add(rounds),
            }
        }
    }

    impl<T: Test> Engine<T> for Series
    where
        T::Value: Debug,
    {
        type Output = ();

        fn run(self, mut test: T, options: Options) {
            panic::set_hook();
            panic::forward_panic(false);
            for round in self.rounds {
                let input = input(self.name, round);
                let Err(error) = test.test(&mut Bytes::new(&input, &options)) else {
                    continue;
                };
                let mut fails = |bytes: &[u8]| test.test(&mut Bytes::new(bytes, &options)).err();
                let (input, error) = smaller(input, error, &mut fails);
                let input = test.generate_value(&mut Bytes::new(&input, &options));
                let seed = None;
                let failure = Failure { error, input, seed };
                panic::forward_panic(true);
                panic!("input {round} (SHALE_FUZZ_START={round} SHALE_FUZZ_ROUNDS=1): {failure}");
            }
            panic::forward_panic(true);
        }
    }

    /// An input that fails as well, with parts left out. (bolero's own search doesn't shorten slices.)
    fn smaller<E>(
        mut input: Vec<u8>,
        mut error: E,
        fails: &mut impl FnMut(&[u8]) -> Option<E>,
    ) -> (Vec<u8>, E) {
        let mut part = input.len().div_ceil(2);
        while part > 0 {
            // From the end on: what comes first decides what the rest means.
            let mut end = input.len();
            while end > 0 {
                let from = end.saturating_sub(part);
                let without = [&input[..from], &input[end..]].concat();
                if let Some(found) = fails(&without) {
                    (input, error) = (without, found);
                }
                end = from;
            }
            part /= 2;
        }
        (input, error)
    }

    /// SplitMix64.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        fn below(&mut self, most: u64) -> u64 {
            self.next() % most
        }
    }

    /// The input with a number. Mostly some hundred bytes, now and then none or many thousand; any
    /// bytes, or stretches of such as end loops early and lengths late.
    pub(super) fn input(name: u64, round: u64) -> Vec<u8> {
        let mut numbers = Numbers(name ^ round.wrapping_mul(0xd6e8_feb8_6659_fd93));
        let most = match numbers.below(20) {
            0..5 => 32,
            5..15 => 512,
            15..19 => 4096,
            _ => 65_536,
        };
        let length = numbers.below(most) as usize;
        let is_patchy = numbers.below(3) == 0;
        let mut out = Vec::with_capacity(length);
        while out.len() < length {
            let rest = length - out.len();
            let stretch = match is_patchy {
                true => rest.min(1 + numbers.below(24) as usize),
                false => rest,
            };
            let kind = if is_patchy { numbers.below(6) } else { 0 };
            out.extend((0..stretch).map(|_| match kind {
                0 | 1 => numbers.next() as u8,
                2 => numbers.below(8) as u8,
                3 => 0,
                4 => 0xff,
                _ => 0x80 | numbers.below(2) as u8,
            }));
        }
        out
    }
}

#[cfg(all(test, not(fuzzing)))]
mod tests {
    use super::fixed::input;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn inputs_are_the_same_in_every_run_and_differ_from_each_other() {
        let all: BTreeSet<Vec<u8>> = (0..200).map(|round| input(1, round)).collect();
        assert!(all.len() > 190, "{} inputs", all.len());
        assert_eq!(input(1, 7), input(1, 7));
        assert_ne!(input(1, 7), input(2, 7));
        assert!(all.iter().any(|input| input.len() > 4096));
    }

    #[test]
    fn a_target_that_panics_fails_with_a_small_input() {
        let failed = std::panic::catch_unwind(|| {
            crate::fuzz!(2000, |input: &[u8]| assert!(
                !input.contains(&0xab),
                "found"
            ));
        });
        let text = failed.unwrap_err();
        let text = text.downcast_ref::<String>().unwrap();
        assert!(
            text.contains("SHALE_FUZZ_START=") && text.contains("found"),
            "{text}"
        );
        assert!(text.len() < 2000, "the input was made smaller: {text}");
    }

    #[test]
    fn a_target_runs_as_often_as_it_says() {
        if std::env::var_os("SHALE_LONG").is_some() || !super::has_all_inputs() {
            return;
        }
        let runs = AtomicU64::new(0);
        crate::fuzz!(123, |_: &[u8]| {
            runs.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(runs.into_inner(), 123);
    }
}
