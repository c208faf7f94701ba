//! An NSD on simulated and real disks.
//!
//! All are one program, because linking is what makes building tests slow. The module is the file:
//! `cargo test --workspace --test nsd_tests damage::` runs those of `damage.rs`.

#![allow(clippy::unwrap_used, reason = "tests")]

mod broken;
mod damage;
mod power;
mod real_disk;
mod scene;
mod semantics;
