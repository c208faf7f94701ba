//! A metanode over simulated NSDs.
//!
//! All are one program, because linking is what makes building tests slow. The module is the file:
//! `cargo test --workspace --test metanode_tests commits::` runs those of `commits.rs`.

#![allow(clippy::unwrap_used, reason = "tests")]

mod commits;
mod damage;
mod faults;
mod life;
mod moving;
mod rig;
mod space;
mod takeover;
mod unreadable;
