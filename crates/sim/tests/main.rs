//! Whole file systems, each from one seed.
//!
//! All test files form one program, because linking would take most of the time to build several.
//! `cargo test --workspace --test sim_tests power_cut::` runs the tests in `power_cut.rs`.

mod catalogue;
mod crowd;
mod doubts;
mod failover;
mod file_systems;
mod growing;
mod jobs;
mod near;
#[path = "../../shale/tests/fixture/noted.rs"]
mod noted;
mod partition;
mod planted;
mod power_cut;
mod quorum;
mod racks;
mod random_actions;
mod repairing;
mod reports;
mod scrub;
mod seeds;
mod several_nodes;
mod several_shards;
mod space;
mod stories;
mod traces;
