//! What crosses a process boundary, from nodes that may send anything.

mod messages;
mod names;
