//! What this node may write to the pool.

use super::ANSWER_MAX;
use crate::member::Parts;
use coordination::Roster;
use manager::space::Purse;
use model::call::{Call, Class};
use model::member::Term;
use model::space::{SPACE_STATE, Statement, Told};
use model::{Error, ErrorKind, NodeRun, Result};
use parking_lot::Mutex;
use pool::{Room, Taken};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use world::{Deadline, Instant, World};

/// How often the manager is told what was written.
const STATE_EVERY: Duration = Duration::from_secs(1);
/// How often while a write waits.
const WANTING_EVERY: Duration = Duration::from_millis(100);
/// For so long a full pool is taken for full: writers that wait for the same answer all get it.
const FULL_FOR: Duration = Duration::from_millis(50);

/// This run's purse.
pub(in crate::member) struct Holding {
    world: World,
    state: Mutex<State>,
    /// A write lacks room, or the next ones will.
    wants: Notify,
    /// A wish was answered.
    answered: Notify,
}

#[derive(Default)]
struct State {
    purse: Purse,
    /// The newest manager that coordination has shown.
    manager: Option<(NodeRun, Term)>,
    /// A wish for so many bytes was refused then.
    full: Option<(u64, Instant)>,
    /// Writes may wait for an answer.
    is_asked: bool,
    /// The manager had nothing to give ahead: it is asked for that with what it is told every second, and no sooner.
    is_scarce: bool,
    /// Taken for the metadata here, beyond the pool's reserve.
    kept: u64,
}

impl Holding {
    pub(in crate::member) fn new(world: &World) -> Arc<Self> {
        let mut state = State::default();
        if world.has_planted(world::Planted::ClaimNoRoom) {
            state.purse.plant(manager::Planted::ForgetClaim);
        }
        Arc::new(Self {
            world: world.clone(),
            state: Mutex::new(state),
            wants: Notify::new(),
            answered: Notify::new(),
        })
    }

    /// What the manager tells.
    ///
    /// # Errors
    /// `OldEpoch`: it isn't the newest manager that is known here; it tells it again.
    pub(in crate::member) fn told(&self, from: NodeRun, told: Told) -> Result<Statement> {
        if self.state.lock().manager != Some((from, told.term)) {
            let text = format!("run {from} isn't known here as the manager of this term");
            return Err(Error::new(ErrorKind::OldEpoch, text));
        }
        self.take_in(told);
        Ok(self.state.lock().purse.state())
    }

    /// Returns whether more was given.
    fn take_in(&self, told: Told) -> bool {
        let (is_given, is_answer) = {
            let state = &mut *self.state.lock();
            let before = state.purse.available();
            let total = told.granted;
            let is_given = total.is_some_and(|total| state.purse.granted(told.term, total));
            let more = state.purse.available() > before;
            if let Some(number) = told.recall {
                state.purse.recalled(told.term, number);
            }
            let full = told.full;
            let refused = full.and_then(|want| state.purse.full(told.term, want));
            if let Some(bytes) = refused {
                state.full = Some((bytes, self.world.now()));
            }
            let is_answer = more || refused.is_some();
            state.is_asked &= !is_answer;
            state.is_scarce &= !is_given;
            // What had been written may have used up most of it, or all: then a write that waits lacks as much as before.
            if is_given && (state.purse.asks_ahead() || state.purse.lacks_room()) {
                self.wants.notify_one();
            }
            (is_given, is_answer)
        };
        if is_answer {
            self.answered.notify_waiters();
        }
        is_given
    }

    /// Takes what the metadata here needs beyond the pool's reserve, or gives it back. Writes that wait go
    /// first.
    fn keep(&self, bytes: u64) {
        let state = &mut *self.state.lock();
        if state.is_asked {
            return;
        }
        if bytes < state.kept {
            state.purse.put_back(state.kept - bytes);
            state.kept = bytes;
        } else if state.purse.take_if_there(bytes - state.kept) {
            state.kept = bytes;
        }
    }

    /// What to say to this manager.
    fn statement(&self, manager: (NodeRun, Term)) -> Statement {
        let state = &mut *self.state.lock();
        state.manager = Some(manager);
        state.purse.begin_term(manager.1);
        state.purse.state()
    }
}

impl Room for Holding {
    fn take(&self, bytes: u64) -> Taken {
        let state = &mut *self.state.lock();
        if state.purse.available() < bytes {
            let now = self.world.now();
            let is_full = |(refused, at): (u64, Instant)| bytes >= refused && now - at < FULL_FOR;
            if state.full.is_some_and(is_full) {
                return Taken::Full;
            }
        }
        let asked_ahead = state.purse.asks_ahead();
        if state.purse.take(bytes) {
            let begins = state.purse.asks_ahead() && !asked_ahead;
            if begins && !state.is_scarce {
                self.wants.notify_one();
            }
            return Taken::Yes;
        }
        state.is_asked = true;
        self.wants.notify_one();
        Taken::Asked
    }

    fn put_back(&self, bytes: u64) {
        let is_awaited = {
            let mut state = self.state.lock();
            state.purse.put_back(bytes);
            state.is_asked
        };
        if is_awaited {
            self.answered.notify_waiters();
        }
    }

    fn written(&self, bytes: u64) {
        self.state.lock().purse.written(bytes);
    }

    fn ask_anew(&self) {
        self.state.lock().full = None;
    }

    fn give_up(&self) {
        {
            let mut state = self.state.lock();
            state.purse.forget_want();
            state.is_asked = false;
        }
        self.answered.notify_waiters();
    }

    fn answered(&self) -> &Notify {
        &self.answered
    }
}

/// The task that states the purse to the manager.
pub(in crate::member) async fn state(parts: Arc<Parts>) {
    let holding = &parts.holding;
    let mut roster = parts.roster.subscribe();
    loop {
        let known = roster.borrow_and_update().clone();
        let manager = manager_of(&known);
        holding.keep(parts.nsds.pool.kept_beyond_reserve());
        let mut pause = WANTING_EVERY;
        if let Some(manager) = manager {
            let statement = holding.statement(manager);
            // The next manager needn't wait for the answer of one that may be dead.
            let replaced = roster.wait_for(|roster| manager_of(roster) != Some(manager));
            let told = tokio::select! {
                told = ask(&parts, manager.0, statement) => told,
                _ = replaced => None,
            };
            if let Some(told) = told {
                let is_given = holding.take_in(told);
                if statement.ahead > 0 {
                    holding.state.lock().is_scarce = !is_given;
                }
                if statement.want.is_none() {
                    pause = STATE_EVERY;
                }
            }
        }
        let changed = roster.wait_for(|roster| manager_of(roster) != manager);
        tokio::select! {
            changed = changed => if changed.is_err() {
                return;
            },
            () = holding.wants.notified() => {}
            () = parts.world.sleep(pause) => {}
        }
    }
}

/// The manager whose term coordination shows.
fn manager_of(roster: &Roster) -> Option<(NodeRun, Term)> {
    let members = &roster.membership.as_ref()?.value;
    Some((members.manager?, members.term))
}

async fn ask(parts: &Parts, manager: NodeRun, statement: Statement) -> Option<Told> {
    let call = Call::new(SPACE_STATE, Class::Lease, &statement);
    let deadline = Deadline::after(&parts.world, ANSWER_MAX);
    let answer = parts.way_to(manager).call(call, deadline).await.ok()?;
    let is_meant = answer.from == manager;
    answer.reply.decode().ok().filter(|_| is_meant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use model::NodeId;
    use world::sim::Simulation;

    const TERM: Term = Term(3);
    const SLICE: u64 = manager::space::SLICE_BYTES;

    fn granted(slices: u64) -> Told {
        Told {
            term: TERM,
            granted: Some(slices * SLICE),
            ..Told::default()
        }
    }

    /// Would be broken if the next question waited for its time: a stream that has used up its slice before it got the next
    /// one, and whose bytes are stored and not yet published, would get one slice in 100 ms.
    #[test]
    fn a_slice_that_is_used_up_by_what_was_written_before_is_followed_by_a_question_at_once() {
        let run = Simulation::new(1).run(|world| async move {
            let holding = Holding::new(&world);
            let manager = NodeRun {
                node: NodeId(1),
                incarnation: 1,
            };
            let asks = || holding.wants.notified().now_or_never().is_some();
            assert_eq!(holding.statement((manager, TERM)).want, None);
            assert!(holding.take_in(granted(1)));
            assert_eq!(holding.take(SLICE), Taken::Yes);
            holding.written(SLICE);
            assert_eq!(holding.take(1), Taken::Asked);
            assert!(asks());
            assert!(holding.take_in(granted(2)), "it was given");
            let available = holding.state.lock().purse.available();
            assert_eq!(available, 0, "and is used up");
            assert!(asks(), "the write waits");
            assert!(!holding.take_in(granted(2)), "nothing new");
            assert!(!asks());
            assert!(holding.take_in(granted(3)));
            assert_eq!(holding.take(1), Taken::Yes);
        });
        run.finished();
    }
}
