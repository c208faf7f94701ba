//! `shale lab`: clusters of real daemons on this machine.

pub(crate) mod fixture;

mod actors;
mod clusters;
#[path = "../../../sim/tests/figures.rs"]
mod figures;
mod histories;
mod nodes;
mod programs;
mod refusals;
