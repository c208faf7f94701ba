//! Whole file systems from one seed, broken on purpose, checked.

pub mod action;
pub mod drive;
pub mod model;
pub mod recovered;
pub mod scenario;
