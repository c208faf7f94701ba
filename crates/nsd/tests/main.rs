//! An NSD on simulated and real disks.
//!
//! All test files form one program, because linking would take most of the time to build several.
//! `cargo test --workspace --test nsd_tests damage::` runs the tests in `damage.rs`.

#![allow(clippy::unwrap_used, reason = "tests")]

mod broken;
mod covered;
mod damage;
mod fences;
mod liars;
mod power;
mod real_disk;
mod scene;
mod semantics;
