//! Who waits for tokens here, and for which sessions: for lists.

use super::{OTHERS_WAIT, State, Tokens};
use model::{InodeId, NodeId, SessionId, TokenObject};
use std::collections::BTreeMap;
use std::time::Duration;
use tokens::Moment;
use tokens::granter::WaitedFor;
use world::{Errand, Part, WAITERS_MAX, Waiter};

/// Somebody who waits for an object.
struct Waiting {
    errand: Errand,
    since: Moment,
    by: SessionId,
    object: TokenObject,
}

impl Tokens {
    /// Operations that wait for others, longest first.
    pub(crate) fn waiters(&self) -> Vec<Waiter> {
        let now = self.now();
        let state = self.state.lock();
        let mut waiting = operations(&state);
        keep_oldest(&mut waiting);
        waiting.iter().map(|it| it.waiter(now)).collect()
    }

    /// Operations and requests that wait for others, longest first, each followed by whom it waits for. `nodes`: those of
    /// sessions. At most as many as are listed of any kind of waits, and for each at most
    /// [`WAITED_FOR_MAX`](tokens::granter::WAITED_FOR_MAX) more. Also how many more wait.
    pub(crate) fn waits(&self, nodes: &BTreeMap<SessionId, NodeId>) -> (Vec<Waiter>, usize) {
        let now = self.now();
        let state = self.state.lock();
        let mut waiting = operations(&state);
        let asked = state.asked.iter();
        waiting.extend(asked.map(|((session, _), asking)| Waiting {
            errand: asking.errand,
            since: asking.since,
            by: *session,
            object: asking.object,
        }));
        let left_out = keep_oldest(&mut waiting);
        let mut waits = Vec::with_capacity(waiting.len());
        for it in &waiting {
            waits.push(it.waiter(now));
            let holders = state.granter.waited_for(it.object, it.by);
            waits.extend(
                holders
                    .iter()
                    .map(|holder| it.waiter_for(holder, nodes, now)),
            );
        }
        (waits, left_out)
    }
}

fn operations(state: &State) -> Vec<Waiting> {
    let claims = state.claims.iter().filter_map(|(number, turn)| {
        let (by, object) = state.granter.claim_waits(*number)?;
        Some(Waiting {
            errand: turn.errand,
            since: turn.since,
            by,
            object,
        })
    });
    claims.collect()
}

/// Returns how many others there are.
fn keep_oldest(waiting: &mut Vec<Waiting>) -> usize {
    waiting.sort_by_key(|it| it.since);
    let others = waiting.len().saturating_sub(WAITERS_MAX);
    waiting.truncate(WAITERS_MAX);
    others
}

impl Waiting {
    fn inode(&self) -> InodeId {
        match self.object {
            TokenObject::Inode(inode)
            | TokenObject::Bytes(inode)
            | TokenObject::Directory(inode) => inode,
        }
    }

    fn listed(&self, since: Duration, part: Part) -> Waiter {
        Waiter {
            cause: OTHERS_WAIT,
            inode: Some(self.inode()),
            since,
            errand: self.errand,
            part,
        }
    }

    fn waiter(&self, now: Moment) -> Waiter {
        self.listed(now.since(self.since), Part::Wait)
    }

    fn waiter_for(
        &self,
        holder: &WaitedFor,
        nodes: &BTreeMap<SessionId, NodeId>,
        now: Moment,
    ) -> Waiter {
        let part = Part::ForToken {
            inode: self.inode(),
            node: nodes.get(&holder.session).copied(),
            runs_out: holder.runs_out.since(now),
        };
        self.listed(now.since(holder.since.unwrap_or(self.since)), part)
    }
}
