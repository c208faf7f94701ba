//! Coordination in an etcd (3.4 or newer), and what a daemon needs that runs a member of one itself.
//!
//! Asked through etcd's JSON gateway over HTTP/1.1 (`gateway`), which every etcd has unless it was
//! started with `--enable-grpc-gateway=false`. The path of a request: `store` puts it into etcd's words,
//! `client` chooses the member and says how often it may be asked, `connection` sends it and bounds
//! its answer, `refusal` says what an error means. The path of a change to a watch: `following` reads a
//! stream, `decode` makes revisions of it.
//!
//! Who asks on the urgent thread (`World::urgent`) has a client of its own beside the usual one (`store`), with its own
//! connections and timers: so the manager's place is kept while all other threads block. Both know the same of the etcd.
//!
//! # What etcd doesn't do as it should
//! Found in its list of changes, for the versions that Debian has (12: 3.4.23, 13: 3.5.16):
//! * Before 3.4.31 and 3.5.13, a leader that was stopped for longer than a lease lasts, and goes on,
//!   can end leases that its successor keeps alive (etcd's issue 15247). Before 3.4.38 it can also say
//!   that one which has ended goes on. So neither the end of a lease nor an answer proves anything.
//! * Before 3.4.31 a watch that isn't read can lose changes, before 3.4.36 one that begins right at
//!   a compacted revision loses removals; before 3.4.25 a watch can tell changes again. `following` and
//!   `decode` work around these.
//! * Before 3.4.42 a read right after a member was stopped and went on can be old. So what such a read doesn't show
//!   isn't all that keeps the manager's place: whoever takes it also ends its lease (`crate::members`).

mod client;
mod connection;
mod copies;
mod decode;
mod following;
mod gateway;
mod members;
mod newcomer;
mod refusal;
mod server;
mod settings;
mod store;
mod tending;
mod upkeep;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use following::Following;
pub use members::{Etcd, EtcdMember, EtcdMemberId, EtcdStatus};
pub use server::{EtcdBegin, EtcdCertificates, EtcdPeerCertificate, EtcdServer, HEARTBEAT};
pub use settings::{ENDPOINTS_MAX, EtcdEndpoint, EtcdSettings, PREFIX_BYTES_MAX};
pub(crate) use store::Store;
pub use tending::{EtcdTended, EtcdTending, EtcdTour, UNSTARTED_MAX};
pub use upkeep::{EtcdAlarm, EtcdLeftOut};
