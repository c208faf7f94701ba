//! One node, wired together from its parts: the program, the simulator and the benchmarks all start
//! it this way.

pub mod node;
