//! A metanode over simulated NSDs.
//!
//! All test files form one program, because linking would take most of the time to build several.
//! `cargo test --workspace --test metanode_tests commits::` runs the tests in `commits.rs`.

#![allow(clippy::unwrap_used, reason = "tests")]

mod commits;
mod condemned;
mod damage;
mod faults;
mod generations;
mod hostile;
mod life;
mod listed;
mod moving;
mod near;
mod neighbours;
mod races;
mod reclaims;
mod rig;
mod sessions;
mod space;
mod streams;
mod takeover;
mod unreadable;
