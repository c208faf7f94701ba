//! A node's lease as the node sees it: until when it may serve, and when it must say something.

use crate::planted::Planted;
use model::member::{
    HEARTBEAT_EVERY, HeartbeatReply, KnownEnd, Membership, NODE_LEASE, Term, Verdict,
};
use model::{Moment, NodeRun};

/// How a run stands with the cluster, as far as itself knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Standing {
    /// It may serve, until its lease ends.
    Serving,
    /// It must not serve now, and may again.
    Pausing,
    /// It must end; a new run may start.
    Ended,
    /// It has left, as it wanted to.
    Left,
}

/// The lease of one run. Heartbeats are sent one at a time, each with a deadline.
///
/// A renewal after a gap says that the run is still a member, so nobody else was given its shards.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct NodeLease {
    /// The newest manager that answered.
    term: Term,
    /// The end of the lease, by this machine's clock; `None` before the first one.
    ends: Option<Moment>,
    last_sent: Option<Moment>,
    verdict: Option<Verdict>,
    planted: Option<Planted>,
}

impl NodeLease {
    /// A fault for a test.
    pub fn plant(&mut self, fault: Planted) {
        self.planted = Some(fault);
    }

    /// When the next heartbeat is due. A new manager, or a shard that was given up, is told at once
    /// whatever this says.
    #[must_use]
    pub fn next_heartbeat(&self) -> Moment {
        match self.last_sent {
            Some(sent) => sent.plus(HEARTBEAT_EVERY),
            None => Moment::default(),
        }
    }

    /// A heartbeat is sent now.
    pub fn sent(&mut self, now: Moment) {
        self.last_sent = Some(now);
    }

    /// The answer to the heartbeat that was sent at `sent`.
    pub fn answered(&mut self, reply: HeartbeatReply, sent: Moment, now: Moment) {
        if reply.term < self.term {
            return;
        }
        self.term = reply.term;
        match reply.verdict {
            Verdict::Renewed => {
                let counted = match self.planted {
                    Some(Planted::CountFromAnswer) => now,
                    _ => sent,
                };
                self.ends = self.ends.max(Some(counted.plus(NODE_LEASE)));
            }
            Verdict::Wait => {}
            Verdict::Ended | Verdict::Left => self.verdict = Some(reply.verdict),
        }
    }

    /// The lease is over, whatever was answered before: the manager that renewed it had lost its place. It lasts again
    /// when a heartbeat is answered that is sent from now on.
    pub fn void(&mut self) {
        self.ends = None;
    }

    /// What coordination says of the members.
    pub fn learn(&mut self, membership: &Membership, own: NodeRun) {
        if let Some(end) = membership.end_of(own) {
            self.end(end);
        }
    }

    /// What another member says that coordination has shown to it of this run. A run that has ended never is a member again,
    /// so old news are true, too; but those of a manager before the one that has answered here are from another history of the
    /// cluster's facts, if from any.
    pub fn told(&mut self, end: KnownEnd) {
        if end.term >= self.term {
            self.end(end);
        }
    }

    fn end(&mut self, end: KnownEnd) {
        let verdict = match end.has_left {
            true => Verdict::Left,
            false => Verdict::Ended,
        };
        self.verdict.get_or_insert(verdict);
    }

    /// The newest manager that answered.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }

    /// The end of the lease by this machine's clock; `None` before the first one.
    #[must_use]
    pub fn ends(&self) -> Option<Moment> {
        self.ends
    }

    /// How the run stands now. To be asked after the work and before each reply.
    #[must_use]
    pub fn standing(&self, now: Moment) -> Standing {
        match self.verdict {
            Some(Verdict::Left) => Standing::Left,
            Some(_) => Standing::Ended,
            None if !self.is_lasting(now) => Standing::Pausing,
            None => Standing::Serving,
        }
    }

    fn is_lasting(&self, now: Moment) -> bool {
        self.ends.is_some_and(|end| now < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    fn reply(term: u64, verdict: Verdict) -> HeartbeatReply {
        HeartbeatReply {
            term: Term(term),
            verdict,
        }
    }

    #[test]
    fn a_lease_is_counted_from_what_was_sent() {
        let mut lease = NodeLease::default();
        assert_eq!(lease.standing(at(0)), Standing::Pausing);
        lease.answered(reply(1, Verdict::Renewed), at(10), at(13));
        assert_eq!(lease.standing(at(15)), Standing::Serving);
        assert_eq!(lease.standing(at(16)), Standing::Pausing);
        lease.answered(reply(1, Verdict::Renewed), at(14), at(17));
        assert_eq!(lease.standing(at(19)), Standing::Serving);
        // An answer that was overtaken shortens nothing.
        lease.answered(reply(1, Verdict::Renewed), at(12), at(18));
        assert_eq!(lease.standing(at(19)), Standing::Serving);
    }

    #[test]
    fn a_lease_that_is_void_lasts_again_with_the_next_answer() {
        let mut lease = NodeLease::default();
        lease.answered(reply(1, Verdict::Renewed), at(10), at(10));
        lease.void();
        assert_eq!(lease.standing(at(11)), Standing::Pausing);
        assert_eq!(lease.ends(), None);
        lease.answered(reply(2, Verdict::Renewed), at(12), at(12));
        assert_eq!(lease.standing(at(17)), Standing::Serving);
    }

    #[test]
    fn an_earlier_manager_renews_nothing_and_an_end_is_final() {
        let mut lease = NodeLease::default();
        lease.answered(reply(4, Verdict::Renewed), at(1), at(1));
        lease.answered(reply(3, Verdict::Renewed), at(4), at(4));
        assert_eq!(lease.standing(at(8)), Standing::Pausing);
        lease.answered(reply(5, Verdict::Ended), at(8), at(8));
        lease.answered(reply(5, Verdict::Renewed), at(9), at(9));
        assert_eq!(lease.standing(at(9)), Standing::Ended);
    }

    #[test]
    fn another_member_tells_the_end_of_a_run_unless_its_news_are_of_an_earlier_manager() {
        let end = |term, has_left| KnownEnd {
            term: Term(term),
            has_left,
        };
        for (has_left, standing) in [(false, Standing::Ended), (true, Standing::Left)] {
            let mut lease = NodeLease::default();
            lease.answered(reply(4, Verdict::Renewed), at(1), at(1));
            lease.told(end(3, has_left));
            assert_eq!(lease.standing(at(8)), Standing::Pausing);
            lease.told(end(4, has_left));
            assert_eq!(lease.standing(at(8)), standing);
            lease.told(end(5, !has_left));
            assert_eq!(lease.standing(at(8)), standing);
        }
    }
}
