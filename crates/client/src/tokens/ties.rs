//! What the listed waits for tokens wait for: looked up when somebody wants to see it, because it changes while they wait.
//!
//! *A read of a file whose token has run out*: it is asked for ([`Work::Ask`]), and the owner grants it. If that came too late to
//! be used, or the lease of this node is over, nobody asks any more: the read waits for any answer of the owner that renews what
//! the session has ([`Part::ForOwner`]). *One of a file that another client wants*: it waits until that is given back here
//! ([`Work::Return`]), and is asked for then. *One whose session has ended*: for the next one ([`Work::NextSession`]).

use super::{State, TOKEN_WAIT, Tokens, inode_of};
use crate::session::SESSION_WAIT;
use model::InodeId;
use std::collections::BTreeMap;
use tokens::holder::WaitsFor;
use world::{Errand, Part, Waiter, Work};

/// The cause by which waits for the owner are listed that has yet to say for how long what is held may be used.
const RENEWAL_WAIT: &str = "the owner of the metadata, which renews what this client may use";
/// The cause by which waits are listed for what is given back first.
const RETURN_WAIT: &str = "this client to give back what another one wants";

/// What a claim waits for, by whom it waits, and of what.
type Ties = BTreeMap<(Errand, InodeId), (Part, &'static str)>;

impl Tokens {
    /// Says of the waits for tokens among these what they wait for now.
    pub(crate) fn tie(&self, waits: &mut [Waiter]) {
        // An owner that is the whole cluster has no lease, and renews everything in time.
        let Some(shard) = self.session.owner().shard() else {
            return;
        };
        let mut claims = waits.iter_mut().filter(|it| it.cause == TOKEN_WAIT);
        let Some(first) = claims.next() else {
            return;
        };
        let owner = (Part::ForOwner(shard), RENEWAL_WAIT);
        let (of_all, ties) = {
            let state = self.state.lock();
            let of_all = match &state.holder {
                _ if state.is_over => Some((Part::ForWork(Work::NextSession), SESSION_WAIT)),
                // The owner hasn't answered the session yet.
                None => Some(owner),
                Some(_) => None,
            };
            (of_all, ties_of(&state, owner))
        };
        for claim in std::iter::once(first).chain(claims) {
            let own = || ties.get(&(claim.errand, claim.inode?)).copied();
            if let Some((part, cause)) = of_all.or_else(own) {
                (claim.part, claim.cause) = (part, cause);
            }
        }
    }
}

/// What the claims wait for that wait in a session; `owner`: if it is for the owner to answer anything.
fn ties_of(state: &State, owner: (Part, &'static str)) -> Ties {
    let waiting = state.holder.iter().flat_map(|holder| holder.waiting());
    let ties = waiting.filter_map(|(wait, object, what)| {
        let errand = state.waits.get(&wait)?.errand;
        let inode = inode_of(object);
        let tie = match what {
            WaitsFor::Answer(request) if state.asking.contains(&request) => {
                (Part::ForWork(Work::Ask(inode)), TOKEN_WAIT)
            }
            WaitsFor::Return => (Part::ForWork(Work::Return(inode)), RETURN_WAIT),
            // What isn't asked for either waits for the answer to what makes the file, or for another owner to hear first
            // what is held.
            WaitsFor::Answer(_) | WaitsFor::Renewal => owner,
        };
        Some(((errand, inode), tie))
    });
    ties.collect()
}
