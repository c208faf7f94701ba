//! Managers, nodes and coordination together, with faults.

#![allow(clippy::print_stdout, reason = "says how much was explored")]

mod cluster;
mod explored;
mod judged;
mod storms;
mod times;
