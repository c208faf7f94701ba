//! Decides who is a member of the cluster, who owns which shard, who may use how much space, and who
//! repairs what.
//!
//! State machines without I/O: events and the time come in, actions come out. The protocol, and why it
//! is right although clocks and messages aren't, is in `docs/protocols/membership.md`.
//!
//! *A node joins*: its first heartbeat asks for it; [`Manager`] stores it in the membership
//! ([`model::member::Membership`]), and answers with a lease from then on. *A node dies*: its
//! connection breaks, two attempts are refused, and the manager stores a plan that expels it: the plan
//! gives its shards to others, step by step, and a new manager goes on where the record says. *A node
//! falls silent*: [`NodeLease`] on the node stops it when its lease is over; the manager waits until
//! that has happened by every clock, then does the same. *Two nodes can't reach each other*: one that needs the other
//! ([`Reach`]) says so, and the manager has one of both fall silent. *Nobody hears the manager*, which reaches coordination:
//! most of a [`jury`] say so ([`Poll`]), and it gives its place up.

mod apart;
mod balance;
mod changes;
mod facts;
pub mod jobs;
mod leases;
mod machine;
mod node_lease;
mod planted;
mod reach;
pub mod space;
mod unheard;

pub use apart::Roles;
pub use balance::{HYSTERESIS_PERCENT, MOVE_EVERY};
pub use leases::{LEASE_BY_ANY_CLOCK, by_any_clock};
pub use machine::{Action, Event, Manager, Resigned, Start};
pub use model::Moment;
pub use node_lease::{NodeLease, Standing};
pub use planted::Planted;
pub use reach::{Reach, UNREACHED_AFTER};
pub use unheard::{Poll, UNHEARD_AFTER, jury};
