//! A lab: a cluster of real daemons on this machine, each in a network of its own, to be broken on
//! purpose. `machine` knows networks and processes, `cluster` what runs there.

pub mod cluster;
pub mod machine;
