//! Tokens under which names are known: claims that needn't succeed.

use super::{Go, OBJECTS_MAX, Tokens, Try};
use crate::known_names::KnownNames;
use model::owner::{KNOWN_MAX, OwnerReply, OwnerRequest};
use model::token::{GrantNumber, TokenReply};
use model::{ErrorKind, InodeId, Result, SessionId, TokenMode, TokenObject, TokenRange};
use std::sync::Arc;
use std::time::Duration;
use tokens::holder::{UseNumber, Want};
use world::Instant;

/// How long a token is waited for. Longer, and the operation had better be sent; the token is waited for
/// beside it, so that the next answer can be kept.
const CLAIM_MAX: Duration = Duration::from_secs(1);
/// How long it is waited for beside operations: commits are slow, or others give it back slowly.
const LATER_MAX: Duration = Duration::from_secs(60);
/// How many objects are looked at, to give back those that nobody uses, when there is hardly room for more.
const ROOM_MADE: usize = 4 * KNOWN_MAX;

/// Inodes whose tokens are being asked for in one message; nobody waits for them any more if it is dropped.
struct AskingToKnow {
    tokens: Arc<Tokens>,
    known: Arc<KnownNames>,
    session: SessionId,
    requests: Vec<(u64, InodeId)>,
}

impl AskingToKnow {
    /// The owner has answered what was sent then. Whether it makes sense to ask for more.
    fn end(mut self, answer: Result<OwnerReply>, sent: Instant) -> bool {
        let (grants, renewal) = match answer {
            Ok(OwnerReply::Known { grants, renewal }) => (grants, renewal),
            Ok(other) => crate::session::unexpected_answer(&other),
            Err(error) => {
                if error.kind() == ErrorKind::SessionEnded {
                    let state = self.tokens.state.lock();
                    // Another session may have begun: this one's end isn't its end.
                    if self.session == self.tokens.session.id() {
                        self.tokens.lose_all(state);
                    }
                }
                return false;
            }
        };
        let tokens = self.tokens.clone();
        let now = tokens.session.standing().now();
        let mut state = tokens.state.lock();
        // What was granted to a session that has ended since is lost with the rest of it.
        if state.is_over {
            return false;
        }
        let Some(holder) = tokens.holder_of(&mut state, self.session) else {
            return false;
        };
        let requests = std::mem::take(&mut self.requests);
        // What a faulty owner leaves out is refused.
        let grants = grants.into_iter().chain(std::iter::repeat(None));
        for ((request, inode), grant) in requests.into_iter().zip(grants) {
            if grant.is_none() {
                self.known.refuse(TokenObject::Inode(inode), now);
            }
            let answered = holder.answered(request, reply(grant), now);
            assert!(
                answered.is_ok(),
                "one whole range of an inode: {answered:?}"
            );
        }
        tokens.renewed(&mut state, renewal, sent);
        tokens.act(state);
        true
    }
}

impl Drop for AskingToKnow {
    fn drop(&mut self) {
        if self.requests.is_empty() {
            return;
        }
        let now = self.tokens.session.standing().now();
        let mut state = self.tokens.state.lock();
        if let Some(holder) = self.tokens.holder_of(&mut state, self.session) {
            for (request, _) in std::mem::take(&mut self.requests) {
                holder.unanswered(request, now);
            }
        }
        self.tokens.act(state);
    }
}

fn reply(grant: Option<GrantNumber>) -> TokenReply {
    match grant {
        Some(number) => TokenReply::Granted {
            ranges: vec![TokenRange::ALL],
            mode: TokenMode::Shared,
            number,
        },
        None => TokenReply::Ship,
    }
}

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

    /// Asks for shared tokens of inodes that are about to be listed with their attributes, so that these can be
    /// kept, in one message; those of which others want something are left out. Returns when the owner has
    /// answered.
    ///
    /// No more than there is room for; what wasn't looked at for long goes back meanwhile.
    pub(crate) async fn ask_to_know(&self, known: &Arc<KnownNames>, inodes: Vec<InodeId>) {
        for inodes in inodes.chunks(KNOWN_MAX) {
            let Some(asking) = self.begin_to_know(known, inodes) else {
                return;
            };
            let sent = self.session.now();
            let asked = OwnerRequest::AskToKnow {
                session: asking.session,
                inodes: asking.requests.iter().map(|(_, inode)| *inode).collect(),
            };
            let answer = self.session.ask(&asked).await;
            if !asking.end(answer, sent) {
                return;
            }
        }
    }

    fn begin_to_know(&self, known: &Arc<KnownNames>, inodes: &[InodeId]) -> Option<AskingToKnow> {
        let tokens = self.me.upgrade()?;
        let mut state = self.state.lock();
        let room = OBJECTS_MAX.saturating_sub(state.kept.len());
        let inodes = &inodes[..inodes.len().min(room)];
        let session = self.session.id();
        let is_over = state.is_over;
        let holder = state.holder.as_mut().filter(|_| !is_over)?;
        let requests = holder.ask_to_know(inodes);
        self.act(state);
        if room < 2 * KNOWN_MAX {
            self.release_unused(ROOM_MADE);
        }
        (!requests.is_empty()).then(|| AskingToKnow {
            tokens,
            known: known.clone(),
            session,
            requests,
        })
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
        let names = self.session.known_names();
        names.is_some_and(|names| names.was_used(object))
    }
}
