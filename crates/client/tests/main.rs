//! A complete file system on simulated disks, used through the client.
//!
//! All test files form one program, because linking would take most of the time to build several.
//! `cargo test --workspace --test client_tests semantics::` runs the tests in `semantics.rs`.

#![allow(clippy::unwrap_used, reason = "tests")]

mod broken;
mod crashes;
mod created;
mod delegated;
mod families;
mod kept;
mod late;
mod leaving;
mod listed;
mod locks;
mod mappings;
mod moved;
mod names;
mod near;
mod owner;
mod pieces;
mod planted;
mod privileges;
mod random;
mod renewed;
mod returning;
mod rig;
mod scattered;
mod semantics;
mod sharing;
mod space;
mod stuck;
mod together;
mod undecided;
mod waits;
