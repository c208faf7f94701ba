//! The parts of one node, wired together; the program, the simulator and the benchmarks start
//! the same node.

pub mod node;
