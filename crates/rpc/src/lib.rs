//! Requests and replies between nodes: frames over one stream of ordered bytes, with deadlines,
//! credits and outcomes.
//!
//! **A request.** [`Peer::call`](world::call::Remote::call) gives the call to its [`Lane`]: leases, small
//! messages and file data have connections of their own. It waits in the lane's `Traffic`, which opens a
//! connection if it needs one, until the connection with the least bytes under way takes it: of the
//! classes that have credits left, lease before metadata before bulk before repair, and none overtaken
//! for ever. A small call leaves on the thread that makes it if its connection has nothing else to send (`outlet`).
//! Whoever asked waits for its ticket until the deadline. On the other node the connection's
//! `Answerer` checks the frame's header against the credits it granted before memory is taken for the
//! rest, [`Server`] runs the request as a task (so many per class at a time), and the reply goes back,
//! marked with the request's number; a small one leaves on the thread that made it, as small calls do. Short requests,
//! of which many wait for a disk at the same time, are run by the connection's task, and their replies leave together
//! (`own_work`).
//!
//! **A failure.** When a connection ends, calls that weren't sent go over the next one, inside their
//! deadlines; all others end as `NoAnswer::Unknown` at once. `rpc` never sends a request twice and
//! promises no exactly-once: slots of sessions do. A side that hears nothing for four seconds takes
//! the connection for broken, so that a cut cable is noticed while nothing is asked.
//!
//! **Who is there.** With [`security::Security`], `Addresses` and `Server` prove by TLS on each connection
//! which node is on the other side before the first frame, and protect the frames; without it, as in
//! simulations, nobody proves anything.
//!
//! **Threads.** The lane for leases, the requests of their class, and connections that haven't said
//! hello are on the urgent thread (`World::urgent`), all else on the other ones. Proofs of who opened a
//! connection are on the urgent thread too, but never so many that leases would wait for them.
//!
//! The rules (`frame`, `receive`, `seal`, `lanes`, `traffic`, `caller`, `answerer`, `registry`,
//! `admission`, `attempts`, `bond`, `queue`, `pulse`, `places`, `rate_limit`, `shares`) have no I/O; `drive`, `outlet`,
//! `peer`, `server`, `own_work`, `gate`, `security` and `addresses` move bytes and time.

mod addresses;
mod admission;
mod answerer;
mod attempts;
mod bond;
mod caller;
mod channel;
mod dial;
mod drive;
mod frame;
mod gate;
mod hello;
mod lanes;
mod outlet;
mod own_work;
mod peer;
mod places;
mod pulse;
mod queue;
mod rate_limit;
mod receive;
mod registry;
mod seal;
pub mod security;
mod server;
mod shares;
#[cfg(test)]
mod tests;
mod traffic;

pub use addresses::{ADDRESSES_MAX, Addresses};
pub use admission::Admission;
pub use channel::{Channel, Receive, Stream};
pub use dial::{Dial, Place};
pub use hello::{Credit, Credits, Identity};
pub use lanes::{CONNECTIONS_MAX, Connections, Lane};
pub use peer::{LaneView, Peer};
pub use server::{ServedView, Server};
pub use traffic::LinkView;

use std::borrow::Cow;
use std::fmt;

/// Why a connection ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault(Cow<'static, str>);

impl Fault {
    pub(crate) fn new(text: impl Into<Cow<'static, str>>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
