//! Tries a scenario with a power cut at every one of its I/Os.

use super::{Cut, Simulation};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Calls `scenario` once without a cut to count its I/Os, then once for every I/O and every kind of
/// [`Cut`] with that cut scheduled (at most `tries_max` calls, spread evenly), each on a fresh
/// machine with the same seed. The scenario runs its program and, after a crash, its recovery
/// (which the cut may hit too: repeat it while it crashes), and checks the result.
///
/// # Panics
/// With the scenario's panic, after naming the cut.
pub fn for_every_cut(seed: u64, tries_max: u64, scenario: impl Fn(&Simulation)) {
    let whole = Simulation::new(seed);
    scenario(&whole);
    let ios = whole.io_count();
    let cuts = [Cut::Before, Cut::After, Cut::Torn];
    let tries = ios * cuts.len() as u64;
    let step = tries.div_ceil(tries_max.max(1)).max(1);
    for number in (0..tries).step_by(step as usize) {
        let (io, cut) = (number / 3, cuts[(number % 3) as usize]);
        let simulation = Simulation::new(seed);
        simulation.faults().cut_at_io(io, cut);
        let result = catch_unwind(AssertUnwindSafe(|| scenario(&simulation)));
        if let Err(panic) = result {
            eprintln!("failed with power cut {cut:?} I/O {io} of {ios}, seed {seed}");
            resume_unwind(panic);
        }
    }
}
