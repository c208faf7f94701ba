//! Whether the cluster hears this node, for logs that would go on with NSDs of this node alone (`shard::Touch`).
//!
//! *Another run is the manager*: it has renewed this node's lease by its answer to a heartbeat that was sent since.
//! *This run is the manager*: it has heard so many of those that would be asked whether they hear it that most of them can't say
//! no. It hears itself, too, of course; that proves nothing.

use super::lease::RunLease;
use super::managing::Office;
use coordination::Roster;
use metanode::{Contact, Touch};
use std::sync::Arc;
use tokio::sync::watch;
use world::Instant;

/// What is looked at.
pub(super) struct NodeTouch {
    pub(super) lease: Arc<RunLease>,
    pub(super) office: Arc<Office>,
    pub(super) roster: watch::Receiver<Arc<Roster>>,
}

impl Touch for NodeTouch {
    fn ask(&self) {
        self.lease.speak();
    }

    fn since(&self, moment: Instant) -> Contact {
        let roster = self.roster.borrow().clone();
        let is_heard = self.lease.was_heard_since(moment) || {
            let since = self.lease.moment(moment);
            self.office.was_heard_since(&roster.quorum, since)
        };
        match is_heard {
            _ if self.lease.has_ended() => Contact::Over,
            true => Contact::Heard,
            false => Contact::NotYet,
        }
    }
}
