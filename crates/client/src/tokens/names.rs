//! Tokens under which names are known: claims that needn't succeed.

use super::{Go, Tokens, Try};
use crate::known_names::KnownNames;
use model::{TokenMode, TokenObject, TokenRange};
use std::time::Duration;
use tokens::holder::Want;

/// How long a token is waited for. Longer, and the operation had better be sent.
const CLAIM_MAX: Duration = Duration::from_secs(1);

impl Tokens {
    /// Asks for a token so that an answer of the owner can be kept, unless others want it too. True if
    /// the client has had it: it isn't in use now, or a recall and the owner's answer would wait for
    /// each other.
    pub(crate) async fn claim_to_know(&self, known: &KnownNames, object: TokenObject) -> bool {
        let want = Want {
            object,
            mode: TokenMode::Shared,
            range: TokenRange::ALL,
            desired: TokenRange::ALL,
            can_ship: true,
        };
        let begun = match self.try_claim(want) {
            Ok(Try::Begun(begun)) => Some(begun),
            Ok(Try::Waits(waiting)) => {
                let turn = self.wait(want, waiting.turn());
                match self.session.world().timeout(CLAIM_MAX, turn).await {
                    Ok(Ok(Some(Go::Begin(begun)))) => Some(begun),
                    _ => None,
                }
            }
            Ok(Try::Refused) => None,
            // The owner hasn't answered this session yet.
            Ok(Try::NotYet) | Err(_) => return false,
        };
        let now = self.session.standing().now();
        let Some(begun) = begun else {
            known.refuse(object, now);
            return false;
        };
        let mut state = self.state.lock();
        if let Some(holder) = &mut state.holder {
            holder.end_use(begun, now);
        }
        self.act(state);
        true
    }

    /// Whether something was looked at under a token lately.
    pub(super) fn are_names_used(&self, object: TokenObject) -> bool {
        let names = self.session.names();
        names.is_some_and(|names| names.was_used(object))
    }
}
