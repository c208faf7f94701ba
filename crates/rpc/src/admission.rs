//! How much a node takes on for others: of each connection, of each node, of all. No I/O.

use crate::hello::{Credit, Credits};
use crate::lanes::{CONNECTIONS_MAX, Lane};

/// Most connections of a node that carry small messages: the one that isn't counted, and half of the
/// counted ones.
pub(crate) const SMALL_MAX: usize = 1 + CONNECTIONS_MAX as usize / 2;

/// Most connections of a node that carry file data.
pub(crate) const BULK_MAX: usize = CONNECTIONS_MAX as usize;

/// Most connections of a node for small messages and file data together.
pub(crate) const SMALL_AND_BULK_MAX: usize = 1 + CONNECTIONS_MAX as usize;

/// Most connections of a node on which somebody has said goodbye and replies are still due.
pub(crate) const ENDING_MAX: usize = 4;

/// How much a server takes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admission {
    /// Credits of each connection, of the classes that its lane carries: leases; metadata; file data
    /// and repair. A connection of a node that knows no lanes has all of them.
    pub credits: Credits,
    /// Credits of small file data on each connection for small messages.
    pub small_data: Credit,
    /// Requests of each class, from lease to repair, that run at the same time on all connections.
    pub running: [usize; 4],
    /// Connections; further ones are closed at once.
    pub connections: usize,
}

impl Admission {
    /// What a connection of the lane is granted; none: it is for all classes.
    pub(crate) fn granted(&self, lane: Option<Lane>) -> Credits {
        let none = Credit::default();
        let [lease, metadata, bulk, repair] = self.credits;
        match lane {
            None => self.credits,
            Some(Lane::Lease) => [lease, none, none, none],
            Some(Lane::Small) => [none, metadata, self.small_data, none],
            Some(Lane::Bulk) => [none, none, bulk, repair],
        }
    }

    /// Most bytes of requests, and of the largest replies that they allow, that one node can have
    /// under way here, whatever it does: those of all connections that it may have, and of some that
    /// are ending. (A node has as many connections for itself as it asks for; all of them only if it
    /// breaks the rules.)
    #[must_use]
    pub fn node_bytes_max(&self) -> u64 {
        let bytes = |lane| {
            let granted = self.granted(lane);
            granted.iter().map(|credit| credit.bytes).sum::<u64>()
        };
        let [lease, small, bulk] = Lane::ALL.map(|lane| bytes(Some(lane)));
        let (many, few) = (small.max(bulk), small.min(bulk));
        // As many as may be of the lane with more bytes, the rest of the other one.
        let many_max = match small > bulk {
            true => SMALL_MAX,
            false => BULK_MAX,
        } as u64;
        let open = many_max * many + (SMALL_AND_BULK_MAX as u64 - many_max) * few;
        lease + open + bytes(None) + ENDING_MAX as u64 * lease.max(many)
    }
}
