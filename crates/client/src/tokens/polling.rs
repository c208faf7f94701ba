//! Listens to the owner: one request is under way all the time, whose answers renew the tokens and say
//! what others want back.

use super::{ASK_PAUSE, State, Tokens};
use crate::session::{Session, unexpected_answer};
use model::ErrorKind;
use model::owner::{OwnerReply, OwnerRequest, Renewal, Tenure};
use model::token::TokenRecall;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokens::Holder;
use world::{Instant, Task, Work};

/// A recall that waits for its grant is looked at again after this.
const LOOK_AGAIN: Duration = Duration::from_millis(101);
/// What the work of beginning another session is called.
const NEXT_SESSION: &str = "begins another session";
/// How often the owner is asked again while it mustn't hear yet that the session hasn't everything.
const EMPTYING_PAUSE: Duration = Duration::from_millis(200);

/// Until the session ends or nobody uses the tokens any more.
pub(super) async fn run(tokens: Weak<Tokens>, session: Arc<Session>) {
    let (mut known, mut has_all) = (Tenure::default(), false);
    // Publishes the rest of what the session had when it had everything.
    let mut emptying: Option<Task<()>> = None;
    loop {
        let sent = session.now();
        let asked = OwnerRequest::AwaitRecalls {
            session: session.id(),
            known,
            has_all,
        };
        let answer = session.ask(&asked).await;
        let Some(tokens) = tokens.upgrade() else {
            return;
        };
        match answer {
            Ok(OwnerReply::Recalls {
                recalls,
                has_all: has_all_now,
                renewal,
            }) => {
                known = renewal.tenure;
                let any = !recalls.is_empty();
                tokens.hear(recalls, renewal, sent);
                if any {
                    let later = tick_later(Arc::downgrade(&tokens), session.clone());
                    session.spawn("looks at early recalls", later);
                }
                tokens.make_room();
                has_all = match (has_all, has_all_now) {
                    (false, true) => tokens.begin_all(renewal.tenure),
                    (true, false) => {
                        let left = match emptying.take() {
                            None => tokens.give_up_all().await,
                            Some(left) => left,
                        };
                        emptying = (!left.is_finished()).then_some(left);
                        emptying.is_some()
                    }
                    (_, has_all) => has_all,
                };
                tokens.begun.notify_waiters();
                if emptying.is_some() {
                    drop(tokens);
                    session.world().sleep(EMPTYING_PAUSE).await;
                }
            }
            Ok(other) => unexpected_answer(&other),
            Err(error) if error.kind() == ErrorKind::SessionEnded => {
                // The rest is under tokens, and lost with them.
                let had_all = emptying.take().is_none() && has_all;
                let next = tokens.begin_next_session(had_all);
                let work = Work::NextSession;
                if !session.world().at_work(NEXT_SESSION, work, next).await {
                    tokens.begun.notify_waiters();
                    return;
                }
                (known, has_all) = (Tenure::default(), false);
            }
            Err(error) => {
                tracing::debug!(%error, "the owner doesn't say what it wants back");
                drop(tokens);
                session.world().sleep(ASK_PAUSE).await;
            }
        }
    }
}

impl Tokens {
    /// The owner of this tenure has given the session everything, unless it has heard meanwhile that it has ended, or goes on
    /// with another owner. Returns whether it has.
    fn begin_all(&self, tenure: Tenure) -> bool {
        let state = self.state.lock();
        let holder = state.holder.as_ref().filter(|_| !state.is_over);
        let is_given = holder.is_some_and(|holder| holder.tenure() == tenure);
        if is_given {
            self.set_has_all(true);
        }
        is_given
    }

    /// The owner has answered.
    fn hear(&self, recalls: Vec<TokenRecall>, renewal: Renewal, sent: Instant) {
        let mut state = self.state.lock();
        let State {
            holder,
            former,
            dropping: waiting,
            ..
        } = &mut *state;
        let holder = holder.get_or_insert_with(|| match former.take() {
            None => {
                let mut holder = Holder::new(renewal.tenure);
                let planted = self.session.world().planted();
                if let Some(fault) = planted.and_then(tokens::Planted::of) {
                    holder.plant(fault);
                }
                holder
            }
            Some(former) => former.next_session(renewal.tenure),
        });
        let now = self.session.standing().now();
        let mut dropping = Vec::new();
        for recall in recalls {
            let recall = self.widened(holder, recall);
            let Some(recall) = self.after_pages(waiting, recall, &mut dropping) else {
                continue;
            };
            if let Err(error) = holder.recalled(recall, now) {
                tracing::error!(%error, "the owner's recall makes no sense");
            }
        }
        holder.tick(now);
        self.renewed(&mut state, renewal, sent);
        self.act(state);
        for inode in dropping {
            self.drop_pages_first(inode);
        }
    }
}

async fn tick_later(tokens: Weak<Tokens>, session: Arc<Session>) {
    session.world().sleep(LOOK_AGAIN).await;
    if let Some(tokens) = tokens.upgrade() {
        let mut state = tokens.state.lock();
        if let Some(holder) = &mut state.holder {
            holder.tick(session.standing().now());
        }
        tokens.act(state);
    }
}
