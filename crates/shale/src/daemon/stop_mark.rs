//! What a node knows of a stop of its whole cluster that is under way: who may have it take which step, and what it is to
//! undo if the cluster goes on.
//!
//! A stop is known by the run whose people want it. That run has the node take the steps, and nobody else does, until the
//! node takes it for gone: from then on none of its steps is taken, and those of who goes on in its place are.

use crate::admin::stopping::{StopPart, StopStep, TakeStep};
use crate::options::Options;
use model::{Error, ErrorKind, NodeId, NodeRun, Result};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

/// A stop that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stop {
    /// Whose people stop the cluster.
    pub by: NodeRun,
    /// How far it has come here.
    pub stage: Stage,
    /// That run is gone, as far as this node knows: another one goes on with the stop, or calls it off.
    pub is_orphaned: bool,
}

/// How far a stop has come on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The mounts have ended, or are about to. The node can go on.
    Unmounted,
    /// The cluster goes on, and the mounts are being made again.
    GoesOn,
    /// The node's clients are closed, or about to be: it can't go on any more.
    Ends,
}

/// Whether the cluster is being stopped, as far as this node was asked.
#[derive(Default)]
pub struct StopMark {
    now: watch::Sender<Option<Stop>>,
    /// The mounts that were ended for it, and aren't there again.
    unmounted: Mutex<Vec<(PathBuf, Options)>>,
    /// Held while mounts are ended for it, or made again: whoever wants them back waits until all have ended.
    pub mounting: tokio::sync::Mutex<()>,
    /// This node has nodes take steps.
    drives: AtomicBool,
}

/// This node has nodes take the steps of a stop as long as this lives.
pub struct Driving<'a>(&'a AtomicBool);

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A run as it is said between nodes.
pub fn run_of((node, incarnation): (u32, u64)) -> NodeRun {
    NodeRun {
        node: NodeId(node),
        incarnation,
    }
}

impl StopMark {
    /// The stop that is under way.
    pub fn now(&self) -> Option<Stop> {
        *self.now.borrow()
    }

    /// The node can't go on any more: it ends, whatever becomes of the cluster.
    pub fn is_final(&self) -> bool {
        self.now().is_some_and(|stop| stop.stage == Stage::Ends)
    }

    /// The run whose stop is to be finished or called off here.
    pub fn followed(&self) -> Option<NodeRun> {
        let stop = self.now().filter(|stop| stop.stage != Stage::GoesOn)?;
        Some(stop.by)
    }

    /// Whether `from` may have this node take a step, which is known from then on. `has_ended`: of which runs that is
    /// certain.
    ///
    /// # Errors
    /// `Busy`: another one stops the cluster. `Changed`: the node isn't being stopped, or goes on again. `InvalidArgument`:
    /// nobody asks for that in another one's place.
    pub fn admit(
        &self,
        asked: &TakeStep,
        from: NodeRun,
        has_ended: impl Fn(NodeRun) -> bool,
    ) -> Result<()> {
        let mut result = Ok(());
        self.now
            .send_if_modified(|now| match after(*now, asked, from, has_ended) {
                Ok(next) => {
                    let is_new = *now != next;
                    *now = next;
                    is_new
                }
                Err(error) => {
                    result = Err(error);
                    false
                }
            });
        result
    }

    /// The run whose people stop the cluster is gone.
    pub fn orphan(&self, by: NodeRun) {
        self.now.send_if_modified(|now| match now {
            Some(stop) if stop.by == by && !stop.is_orphaned => {
                stop.is_orphaned = true;
                true
            }
            _ => false,
        });
    }

    /// The node's part in the stop that `by` has begun.
    pub fn part(&self, by: NodeRun, own: NodeRun) -> StopPart {
        let stop = self.now().filter(|stop| stop.by == by);
        let part = stop.filter(|stop| stop.stage != Stage::GoesOn);
        StopPart {
            run: own.incarnation,
            drives: self.is_driven(),
            takes_part: part.is_some(),
            is_final: part.is_some_and(|stop| stop.stage == Stage::Ends),
            is_orphaned: part.is_some_and(|stop| stop.is_orphaned),
        }
    }

    /// This node has nodes take steps from now on; `None`: it does already.
    pub fn drive(&self) -> Option<Driving<'_>> {
        let was_driven = self.drives.swap(true, Ordering::AcqRel);
        (!was_driven).then(|| Driving(&self.drives))
    }

    /// Whether this node has nodes take steps.
    pub fn is_driven(&self) -> bool {
        self.drives.load(Ordering::Acquire)
    }

    /// These mounts were ended for it, or couldn't be made again yet.
    pub fn note_unmounted(&self, mounts: Vec<(PathBuf, Options)>) {
        self.unmounted.lock().extend(mounts);
    }

    /// Whether mounts were ended for it that aren't there again.
    pub fn has_unmounted(&self) -> bool {
        !self.unmounted.lock().is_empty()
    }

    /// Those mounts: whoever takes them makes them again, or notes them once more.
    pub fn take_unmounted(&self) -> Vec<(PathBuf, Options)> {
        std::mem::take(&mut *self.unmounted.lock())
    }

    /// The cluster goes on; [`StopMark::over`] says that the mounts are there again. Whether a stop was under way.
    ///
    /// # Errors
    /// `ShuttingDown`: the node can't go on.
    pub fn go_on(&self) -> Result<bool> {
        self.now.send_if_modified(|now| match now {
            Some(stop) if stop.stage == Stage::Unmounted => {
                stop.stage = Stage::GoesOn;
                true
            }
            _ => false,
        });
        if self.is_final() {
            let text = "the node has begun to end with its cluster, and can't go on";
            return Err(Error::new(ErrorKind::ShuttingDown, text));
        }
        Ok(self.now().is_some())
    }

    /// No stop is under way any more, unless the node ends.
    pub fn over(&self) {
        self.now.send_if_modified(|now| match now {
            Some(stop) if stop.stage != Stage::Ends => {
                *now = None;
                true
            }
            _ => false,
        });
    }

    /// Returns once no stop is under way.
    pub async fn until_over(&self) {
        // The sender is here.
        let _ = self.now.subscribe().wait_for(Option::is_none).await;
    }
}

/// What a node knows once it takes a step, if it may.
fn after(
    now: Option<Stop>,
    asked: &TakeStep,
    from: NodeRun,
    has_ended: impl Fn(NodeRun) -> bool,
) -> Result<Option<Stop>> {
    use StopStep::{CloseClients, CloseShards, End, Look, Resume, Retire, Sync, Unmount};

    let by = run_of(asked.by);
    let is_own = from == by;
    let begins = matches!(asked.step, Look | Unmount);
    match now {
        Some(stop) if stop.by == by => {
            let may_ask = match (is_own, asked.step) {
                // It knows best that the cluster goes on.
                (true, Resume) => true,
                (true, _) => !stop.is_orphaned,
                // Whoever goes on in its place begins nothing.
                (false, Look | Unmount | Sync) => false,
                (false, _) => stop.is_orphaned,
            };
            if !may_ask {
                return Err(in_the_way(&stop, is_own));
            }
            if stop.stage == Stage::GoesOn && !begins && asked.step != Resume {
                return Err(goes_on());
            }
            // It has missed the step before.
            if matches!(asked.step, CloseShards | Retire) && stop.stage != Stage::Ends {
                let text = "this node's clients haven't been closed yet";
                return Err(Error::new(ErrorKind::Changed, text));
            }
        }
        // As another one it could keep that one, and people there, from stopping the cluster, or from letting it go on.
        _ if !is_own && asked.step != Resume => {
            let text = format!("{from} asks for a step of a stop in another node's name");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Some(other) => {
            let is_free = other.is_orphaned || other.stage == Stage::GoesOn || has_ended(other.by);
            if !(begins && is_free) {
                return Err(in_the_way(&other, false));
            }
        }
        None => match asked.step {
            // Nothing is to be undone.
            Look | Unmount | Resume => {}
            // It has missed what came before.
            End if asked.force => {}
            End | Sync | CloseClients | CloseShards | Retire => return Err(goes_on()),
        },
    }
    let known = now.filter(|stop| stop.by == by);
    let stage = match asked.step {
        Unmount if now.is_some_and(|stop| stop.stage == Stage::Ends) => Stage::Ends,
        Unmount => Stage::Unmounted,
        CloseClients | End => Stage::Ends,
        Look | Resume | Sync | CloseShards | Retire => return Ok(now),
    };
    Ok(Some(Stop {
        by,
        stage,
        is_orphaned: known.is_some_and(|stop| stop.is_orphaned),
    }))
}

/// Why a step of somebody else isn't taken, or one of a run that was taken for gone.
fn in_the_way(stop: &Stop, is_own: bool) -> Error {
    let node = stop.by.node;
    let text = match is_own {
        true => format!(
            "this node has taken run {} for gone, and waits for others to go on with the stop or to call it off: try again \
             in a minute or two",
            stop.by
        ),
        false => format!(
            "node {node} stops the cluster already: wait until that is done. If node {node} is gone, the others finish it or \
             call it off by themselves, within a minute or two"
        ),
    };
    Error::new(ErrorKind::Busy, text)
}

fn goes_on() -> Error {
    let text = "this node isn't being stopped, or goes on again";
    Error::new(ErrorKind::Changed, text)
}

#[cfg(test)]
mod tests;
