//! Managers, nodes and coordination together, with faults.

#![allow(clippy::print_stdout, reason = "says how much was explored")]

mod apart;
mod chance;
mod cluster;
mod crowd;
mod explored;
mod former;
mod groups;
mod jobs;
mod judged;
mod ledgers;
mod pools;
mod removed;
mod spaces;
mod storms;
mod story;
mod thousand;
mod times;
mod unheard;
