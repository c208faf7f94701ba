//! `shale lab`: clusters of real daemons on this machine, how they grow, and what they survive.

pub(crate) mod fixture;

mod actors;
mod clocks;
mod clusters;
mod disks;
mod etcd;
mod faults;
mod full_disks;
mod growth;
mod histories;
mod load;
mod nasty;
mod nodes;
mod programs;
mod quorum;
mod refusals;
mod roles;
mod space;
mod survivors;
mod waits;
mod worst;
