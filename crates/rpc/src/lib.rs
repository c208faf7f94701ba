//! Requests and replies between nodes: frames over one stream of ordered bytes, with deadlines,
//! credits and outcomes.
//!
//! **A request.** [`Peer::call`](world::call::Remote::call) opens a connection if there is none,
//! hands the call to the connection's `Caller` and waits for its ticket until the deadline. The
//! connection's task asks the `Caller` for the next frame: of the classes that have credits left,
//! lease before metadata before bulk before repair, and none overtaken for ever. On the other node
//! the connection's `Answerer` checks the frame's header against the credits it granted before
//! memory is taken for the rest, [`Server`] runs the request as a task (so many per class at a time),
//! and the reply goes back, marked with the request's number.
//!
//! **A failure.** When a connection ends, calls that weren't sent go over the next one, inside their
//! deadlines; all others end as `NoAnswer::Unknown` at once. `rpc` never sends a request twice and
//! promises no exactly-once: slots of sessions do. A side that hears nothing for four seconds takes
//! the connection for broken, so that a cut cable is noticed while nothing is asked.
//!
//! **Who is there.** With [`security::Security`], `Addresses` and `Server` prove by TLS which node is on
//! the other side before the first frame, and protect the frames; without it, as in simulations, nobody
//! proves anything.
//!
//! The rules (`frame`, `receive`, `seal`, `caller`, `answerer`, `queue`, `pulse`, `places`) have no I/O;
//! `drive`, `peer`, `server`, `gate`, `security` and `addresses` move bytes and time.

mod addresses;
mod answerer;
mod caller;
mod channel;
mod drive;
mod frame;
mod gate;
mod hello;
mod peer;
mod places;
mod pulse;
mod queue;
mod receive;
mod seal;
pub mod security;
mod server;
#[cfg(test)]
mod tests;

pub use addresses::Addresses;
pub use channel::{Channel, Stream};
pub use hello::{Credit, Credits, Identity};
pub use peer::{Dial, Peer};
pub use server::{Admission, Server};

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
