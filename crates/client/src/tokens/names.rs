//! Tokens under which names are known: claims that needn't succeed.

use super::{Go, OBJECTS_MAX, Tokens, Try};
use crate::known_names::KnownNames;
use model::{TokenMode, TokenObject, TokenRange};
use std::sync::Arc;
use std::time::Duration;
use tokens::holder::{UseNumber, Want};

/// How long a token is waited for. Longer, and the operation had better be sent; the token is waited for
/// beside it, so that the next answer can be kept.
const CLAIM_MAX: Duration = Duration::from_secs(1);
/// How long it is waited for beside operations: commits are slow, or others give it back slowly.
const LATER_MAX: Duration = Duration::from_secs(60);

impl Tokens {
    /// Asks for a token so that an answer of the owner can be kept, unless others want it too. True if
    /// the client has had it: it isn't in use now, or a recall and the owner's answer would wait for
    /// each other.
    ///
    /// A client that has as many as it keeps asks for none: they would be given back at once.
    pub(crate) async fn claim_to_know(&self, known: &Arc<KnownNames>, object: TokenObject) -> bool {
        if self.state.lock().kept.len() >= OBJECTS_MAX {
            return false;
        }
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
                let mut turn = Box::pin(waiting.turn());
                let waited = self.wait(want, turn.as_mut());
                match self.session.world().timeout(CLAIM_MAX, waited).await {
                    Ok(Ok(Some(Go::Begin(begun)))) => Some(begun),
                    Err(_) => {
                        self.claim_later(known, object, turn);
                        return false;
                    }
                    _ => None,
                }
            }
            Ok(Try::Refused) => None,
            // The owner hasn't answered this session yet.
            Ok(Try::NotYet) | Err(_) => return false,
        };
        self.has_claimed(known, object, begun)
    }

    /// Goes on waiting in a task. The token isn't asked for again meanwhile.
    fn claim_later(
        &self,
        known: &Arc<KnownNames>,
        object: TokenObject,
        turn: impl Future<Output = Option<Go>> + Send + 'static,
    ) {
        let (Some(asking), Some(tokens)) = (known.ask_later(object), self.me.upgrade()) else {
            return;
        };
        let known = known.clone();
        self.session
            .spawn("waits for a token of names", async move {
                let begun = match tokens.session.world().timeout(LATER_MAX, turn).await {
                    Ok(Some(Go::Begin(begun))) => Some(begun),
                    _ => None,
                };
                tokens.has_claimed(&known, object, begun);
                drop(asking);
            });
    }

    /// The claim is over: it was granted, or others want the token.
    fn has_claimed(
        &self,
        known: &KnownNames,
        object: TokenObject,
        begun: Option<UseNumber>,
    ) -> bool {
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
