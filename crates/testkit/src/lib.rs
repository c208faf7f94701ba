//! What tests of several crates share: test machines, models, a file system in memory,
//! processes with mounts of their own.
//!
//! No part of the program depends on it. A crate's unit tests can use it for what is below their crate;
//! types of the crate itself would be those of another build of it.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up has failed")]

pub mod content;
pub mod disks;
pub mod errands;
pub mod forge;
pub mod inodes;
pub mod memory;
pub mod model_fs;
pub mod own_mounts;
