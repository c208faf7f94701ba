//! Both halves together: an owner and its clients in a network that loses, repeats and reorders.

#![allow(clippy::print_stdout, reason = "says how much was explored")]

mod cluster;
mod explored;
mod storms;
