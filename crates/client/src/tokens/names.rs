//! Tokens under which names are known: claims that needn't succeed.

use super::{Go, OBJECTS_MAX, TOKEN_WAIT, Tokens, Try};
use crate::known_names::{Came, KnownNames};
use futures::future::join;
use model::owner::{KNOWN_MAX, KnownInode, OwnerReply, OwnerRequest};
use model::token::{Ship, TokenReply};
use model::{ErrorKind, InodeId, Result, SessionId, TokenMode, TokenObject, TokenRange};
use std::sync::Arc;
use std::time::Duration;
use tokens::holder::{UseNumber, Want};
use tokio::sync::oneshot;
use world::{Deadline, Instant, Work};

/// How long a token is waited for. Longer, and the operation had better be sent; the token is waited for
/// beside it, so that the next answer can be kept.
const CLAIM_MAX: Duration = Duration::from_secs(1);
/// How long it is waited for beside operations: commits are slow, or others give it back slowly.
const LATER_MAX: Duration = Duration::from_secs(60);
/// Most inodes whose tokens are being asked for in messages of many.
const TO_KNOW_MAX: usize = 16 * KNOWN_MAX;

/// Inodes whose tokens are being asked for in one message; nobody waits for them any more if it is dropped.
struct AskingToKnow {
    tokens: Arc<Tokens>,
    known: Arc<KnownNames>,
    session: SessionId,
    requests: Vec<(u64, InodeId)>,
    /// How many there were.
    count: usize,
}

impl AskingToKnow {
    /// Asks. Returns what came with tokens; `None` if it makes no sense to ask for more.
    async fn ask(self) -> Option<Came> {
        let tokens = self.tokens.clone();
        let sent = tokens.session.now();
        let asked = OwnerRequest::AskToKnow {
            session: self.session,
            inodes: self.requests.iter().map(|(_, inode)| *inode).collect(),
        };
        let answer = tokens.session.ask(&asked).await;
        self.end(answer, sent)
    }

    /// The owner has answered what was sent then.
    fn end(mut self, answer: Result<OwnerReply>, sent: Instant) -> Option<Came> {
        let (known, renewal) = match answer {
            Ok(OwnerReply::Known { inodes, renewal }) => (inodes, renewal),
            Ok(other) => crate::session::unexpected_answer(&other),
            Err(error) => {
                if error.kind() == ErrorKind::SessionEnded {
                    let state = self.tokens.state.lock();
                    // Another session may have begun: this one's end isn't its end.
                    if self.session == self.tokens.session.id() {
                        self.tokens.lose_all(state);
                    }
                }
                return None;
            }
        };
        let tokens = self.tokens.clone();
        let now = tokens.session.standing().now();
        let mut state = tokens.state.lock();
        // What was granted to a session that has ended since is lost with the rest of it.
        if state.is_over {
            return None;
        }
        let holder = tokens.holder_of(&mut state, self.session)?;
        let requests = std::mem::take(&mut self.requests);
        let mut attributes = Vec::with_capacity(requests.len());
        // What a faulty owner leaves out is refused.
        let known = known.into_iter().chain(std::iter::repeat(None));
        for ((request, inode), known) in requests.into_iter().zip(known) {
            match &known {
                // A faulty owner may say those of another one.
                Some(known) => attributes.extend(known.attributes.filter(|it| it.inode == inode)),
                None => self.known.refuse(TokenObject::Inode(inode), now),
            }
            let answered = holder.answered(request, reply(known), now);
            assert!(
                answered.is_ok(),
                "one whole range of an inode: {answered:?}"
            );
        }
        tokens.renewed(&mut state, renewal, sent);
        // Nothing else is shown meanwhile: the state is locked.
        let before = self.known.count();
        let after = tokens.act_then(state, || self.known.count());
        Some(Came::new(attributes, before, after))
    }
}

impl Drop for AskingToKnow {
    fn drop(&mut self) {
        let now = self.tokens.session.standing().now();
        let mut state = self.tokens.state.lock();
        state.asked_to_know -= self.count;
        if let Some(holder) = self.tokens.holder_of(&mut state, self.session) {
            for (request, _) in std::mem::take(&mut self.requests) {
                holder.unanswered(request, now);
            }
        }
        self.tokens.act(state);
    }
}

fn reply(known: Option<KnownInode>) -> TokenReply {
    match known {
        Some(known) => TokenReply::Granted {
            ranges: vec![TokenRange::ALL],
            mode: TokenMode::Shared,
            number: known.number,
        },
        None => TokenReply::Ship,
    }
}

impl Tokens {
    /// Asks for a token so that an answer of the owner can be kept, unless others want it too, as `ship` says. True if
    /// the client has had it: it isn't in use now, or a recall and the owner's answer would wait for
    /// each other.
    ///
    /// A client that has as many as it keeps, although it gives back what nobody uses, asks for none.
    pub(crate) async fn claim_to_know(
        &self,
        known: &Arc<KnownNames>,
        object: TokenObject,
        ship: Ship,
    ) -> bool {
        if !self.make_room() {
            return false;
        }
        let want = Want {
            object,
            mode: TokenMode::Shared,
            range: TokenRange::ALL,
            desired: TokenRange::ALL,
            ship,
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

    /// Asks for the delegation of a directory, unless others want it too: for its names and its attributes. True if the client
    /// has had both: nothing is in use now.
    pub(crate) async fn claim_delegation(
        &self,
        known: &Arc<KnownNames>,
        directory: InodeId,
    ) -> bool {
        self.claim_alone(known, TokenObject::Inode(directory)).await
            && self
                .claim_alone(known, TokenObject::Directory(directory))
                .await
    }

    /// The same of a directory that the client has just made, if there is room for more: hardly anybody else has anything of it,
    /// so neither is asked for in vain, and both are asked for at once.
    pub(crate) async fn claim_new_delegation(
        &self,
        known: &Arc<KnownNames>,
        directory: InodeId,
    ) -> bool {
        if !self.make_room() {
            return false;
        }
        let attributes = self.claim_alone(known, TokenObject::Inode(directory));
        let names = self.claim_alone(known, TokenObject::Directory(directory));
        join(attributes, names).await == (true, true)
    }

    /// Asks for a token alone, unless others want it too. True if the client has had it: it isn't in use any more, so nobody
    /// waits for what this client waits with.
    async fn claim_alone(&self, known: &KnownNames, object: TokenObject) -> bool {
        let want = Want {
            object,
            mode: TokenMode::Exclusive,
            range: TokenRange::ALL,
            desired: TokenRange::ALL,
            ship: Ship::IfHeld,
        };
        let begun = match self.try_claim(want) {
            Ok(Try::Begun(begun)) => begun,
            Ok(Try::Waits(waiting)) => {
                let waited = self.wait(want, waiting.turn());
                match self.session.world().timeout(CLAIM_MAX, waited).await {
                    Ok(Ok(Some(Go::Begin(begun)))) => begun,
                    _ => return false,
                }
            }
            _ => return false,
        };
        self.has_claimed(known, object, Some(begun))
    }

    /// Asks for shared tokens of inodes that have been listed, so that their attributes can be kept; those of which
    /// others want something are left out. Returns the attributes that came with them, in the order of the inodes. Waits as
    /// long as for one token; what comes later is there for the next listing.
    ///
    /// No more than there is room for; what wasn't looked at for long goes back meanwhile.
    pub(crate) async fn ask_to_know(
        &self,
        known: &Arc<KnownNames>,
        inodes: Vec<InodeId>,
    ) -> Vec<Came> {
        let world = self.session.world();
        let deadline = Deadline::after(world, CLAIM_MAX);
        self.make_room();
        // All messages at once: who lists waits for one way there and back.
        let all = inodes.chunks(KNOWN_MAX);
        let all = all.filter_map(|inodes| self.begin_to_know(known, inodes));
        let all: Vec<_> = all.map(|asking| self.spawn_asking(asking)).collect();
        let mut came = Vec::with_capacity(all.len());
        for (inode, told) in all {
            let work = Work::Ask(inode);
            let waiting = self.session.wait_for_work(TOKEN_WAIT, inode, work, told);
            match deadline.bound(world, waiting).await {
                Ok(Ok(Ok(Some(some)))) => came.push(some),
                _ => break,
            }
        }
        came
    }

    /// Asks in a task of its own: what the owner grants to somebody who has stopped waiting would be held by the session and
    /// known to nobody. Returns one of the inodes, and what says what came.
    fn spawn_asking(&self, asking: AskingToKnow) -> (InodeId, oneshot::Receiver<Option<Came>>) {
        let inode = asking.requests[0].1;
        let (tell, told) = oneshot::channel();
        let asks = async move {
            let _nobody = tell.send(asking.ask().await);
        };
        let what = "asks for tokens of what is listed";
        self.session.spawn_work(what, Work::Ask(inode), asks);
        (inode, told)
    }

    fn begin_to_know(&self, known: &Arc<KnownNames>, inodes: &[InodeId]) -> Option<AskingToKnow> {
        let tokens = self.me.upgrade()?;
        let mut state = self.state.lock();
        let under_way = state.asked_to_know;
        let room = OBJECTS_MAX.saturating_sub(state.kept.len() + under_way);
        let most = room.min(TO_KNOW_MAX - under_way);
        let inodes = &inodes[..inodes.len().min(most)];
        let session = self.session.id();
        let is_over = state.is_over;
        let holder = state.holder.as_mut().filter(|_| !is_over)?;
        let requests = holder.ask_to_know(inodes);
        let count = requests.len();
        state.asked_to_know += count;
        self.act(state);
        (count > 0).then(|| AskingToKnow {
            tokens,
            known: known.clone(),
            session,
            requests,
            count,
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
