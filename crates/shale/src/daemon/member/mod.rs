//! This node as a member of its cluster: how it became one, what it proves itself with, and what people ask it about the
//! cluster and change in it. Who starts and ends it is `cluster`.
//!
//! `founding` makes the first node of a node that was alone, `joining` further ones; `admission` is the cluster's side of
//! that. `renewal` replaces certificates before they end; `rotation` replaces the authority, whose keys `key_ring` has, and
//! with it all keys (`next_key` is the node's until then); `protection` changes how connections are protected. `checks` finds
//! mistakes before either begins. `endpoints` says where the etcd is, `etcd_identity` what a member of it proves itself with.

pub mod admission;
pub mod checks;
pub mod endpoints;
pub mod etcd_identity;
pub mod etcd_members;
pub mod founding;
mod here;
pub mod joining;
pub mod key_ring;
pub mod keys;
mod next_key;
mod nodes;
pub mod outside;
pub mod protection;
pub mod quorum;
pub mod renewal;
pub mod repairs;
mod reports;
pub mod rotation;
mod settings;

pub use here::InCluster;
pub use reports::Home;
