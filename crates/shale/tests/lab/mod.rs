//! `shale lab`: clusters of real daemons on this machine.

pub(crate) mod fixture;

mod clusters;
mod nodes;
mod refusals;
