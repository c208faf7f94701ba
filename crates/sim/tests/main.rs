//! Whole file systems, each from one seed.
//!
//! All are one program, because linking is what makes building tests slow. The module is the file:
//! `cargo test --workspace --test sim_tests power_cut::` runs those of `power_cut.rs`.

mod power_cut;
mod random_actions;
