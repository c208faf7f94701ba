//! A whole file system on simulated disks, used through the client.
//!
//! All are one program, because linking is what makes building tests slow. The module is the file:
//! `cargo test --workspace --test client_tests semantics::` runs those of `semantics.rs`.

#![allow(clippy::unwrap_used, reason = "tests")]

mod broken;
mod crashes;
mod kept;
mod pieces;
mod random;
mod rig;
mod semantics;
mod space;
mod stuck;
