//! Peers and servers in simulation, over connections that are slow, stall, break and lie.

#![allow(clippy::unwrap_used, reason = "tests")]

mod breaks;
mod deadlines;
mod lanes;
mod machines;
mod network;
mod random;
mod scene;
mod security;
mod short;
mod strangers;
mod together;
