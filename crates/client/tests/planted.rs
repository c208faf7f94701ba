//! Faults that are planted in clients and owners, and that storms of clients find: those which the crowd of
//! `sim` meets too rarely. `docs/planted-faults.md` lists them.

use crate::delegated::visited;
use crate::mappings;
use crate::names::storm_of_kernels;
use crate::rig::{self, run_planted};
use crate::sharing::storm;
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::{Planted, World};

/// Seeds until a fault must have been found.
const SEEDS_MAX: u64 = 200;

/// The run that finds it succeeds without it. `first`: where the search begins, a seed that found it before,
/// which saves time; any change of the program may move it.
#[allow(clippy::print_stdout, reason = "says which seed found it")]
fn must_find<F: Future<Output = ()>>(
    planted: Planted,
    first: u64,
    storm: impl Fn(World, rig::Node) -> F,
) {
    let fails = |seed: &u64| {
        let run = || run_planted(*seed, Some(planted), &storm);
        catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    let found = (first..first + SEEDS_MAX).find(fails);
    println!("{planted:?}: seed {found:?}");
    let found = found.unwrap_or_else(|| panic!("{planted:?} isn't found in {SEEDS_MAX} seeds"));
    run_planted(found, None, &storm);
}

#[test]
fn a_client_that_keeps_the_last_byte_of_what_it_gives_back_is_found() {
    must_find(Planted::KeepOneByte, 0, |world, node| {
        storm(world, node, 0, 1)
    });
}

#[test]
fn a_client_that_begins_to_use_what_it_is_giving_back_is_found() {
    must_find(Planted::UseTaken, 48, |world, node| {
        storm(world, node, 0, 2)
    });
}

#[test]
fn a_client_that_gives_back_what_it_did_not_publish_is_found() {
    must_find(Planted::ReturnUnflushed, 0, |world, node| {
        storm(world, node, 0, 1)
    });
}

#[test]
fn a_client_that_gives_a_delegation_back_before_it_sends_what_it_made_is_found() {
    must_find(Planted::ReturnUnstreamed, 0, visited::storm);
}

#[test]
fn a_client_that_keeps_bytes_that_it_gives_back_is_found() {
    must_find(Planted::KeepBytes, 0, |world, node| {
        storm(world, node, 0, 1)
    });
}

#[test]
fn a_client_that_gives_back_what_kernels_still_keep_is_found() {
    let storm = |world, node| storm_of_kernels(world, node, 0);
    must_find(Planted::KeepInKernels, 0, storm);
}

#[test]
fn a_client_that_gives_back_bytes_of_which_kernels_have_pages_is_found() {
    let storm = |world, node| mappings::storm(world, node, 0);
    must_find(Planted::KeepPages, 0, storm);
}

#[test]
fn a_client_that_lets_others_read_what_is_changed_in_a_mapping_is_found() {
    let storm = |world, node| mappings::storm(world, node, 0);
    must_find(Planted::FillShared, 0, storm);
}
