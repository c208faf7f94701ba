//! Has nodes take the steps of a stop, one after the other, as the tour says.

use super::tour::{self, Next, Outcome, Tour};
use super::{PATH, patience};
use crate::admin::stopping::{ClusterStopped, StepTaken, StopStep, StoppedNode, TakeStep};
use crate::daemon::member::InCluster;
use crate::daemon::relay::ask_node;
use crate::daemon::serving::Serving;
use futures::future::join_all;
use model::{ErrorKind, NodeId, NodeRun};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use world::Deadline;

/// How long a node that was told to end is looked at.
const ENDED_MAX: Duration = Duration::from_secs(60);
/// How often.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// For how long a node is asked again to go on that gives no answer, and the pause before.
const RESUME_FOR: Duration = Duration::from_secs(30);
const RESUME_AGAIN: Duration = Duration::from_secs(1);

/// Who has the others take their steps.
pub struct Drive {
    pub serving: Arc<Serving>,
    pub here: Arc<InCluster>,
    /// The run whose people stop the cluster: this one, or one in whose place this one goes on.
    pub by: NodeRun,
    pub force: bool,
}

impl Drive {
    /// Takes the tour to its end. If nodes end, this one ends after the answer.
    pub async fn run(&self, mut tour: Tour) -> ClusterStopped {
        let mut more = Vec::new();
        loop {
            match tour.next() {
                Next::Ask(step, nodes) => {
                    if step == StopStep::Retire {
                        more = self.not_asked(&tour);
                    }
                    let said = self.ask(&tour, nodes, step).await;
                    tour.take_in(said);
                }
                Next::Await(nodes) => {
                    let ended = self.until_over(&tour, nodes).await;
                    tour.note_ended(&ended);
                }
                Next::Over { stops } => return tour.report(stops, more),
            }
        }
    }

    /// Nodes that aren't asked: those that have joined meanwhile, and those whose daemons may wait for the cluster.
    fn not_asked(&self, tour: &Tour) -> Vec<StoppedNode> {
        let members = self.here.member_lines();
        let joined = members.iter().filter(|it| !tour.has(it.node));
        let mut all: Vec<_> = joined.map(tour::joined_meanwhile).collect();
        let expelled = self.here.expelled();
        let expelled = expelled.iter().filter(|it| !tour.has(it.node));
        all.extend(expelled.map(tour::was_expelled));
        all
    }

    /// Has nodes take a step at the same time, each for a bounded time.
    async fn ask(&self, tour: &Tour, nodes: Vec<u32>, step: StopStep) -> Vec<(u32, Outcome)> {
        tracing::info!(?step, ?nodes, by = %self.by, "the cluster is being stopped");
        let own = self.here.member().run().node.0;
        let asking = nodes.into_iter().map(|node| async move {
            let asked = TakeStep {
                step,
                by: (self.by.node.0, self.by.incarnation),
                // Another run may be there meanwhile, which has taken none of the steps before.
                run: tour.run_of(node),
                force: self.force,
            };
            let said = match node == own {
                true => self.ask_here(asked).await,
                false => self.ask_there(node, asked).await,
            };
            (node, said)
        });
        join_all(asking).await
    }

    async fn ask_there(&self, node: u32, asked: TakeStep) -> Outcome {
        let world = self.here.member().world();
        let deadline = Deadline::after(world, RESUME_FOR);
        loop {
            let outcome = self.ask_once(node, asked).await;
            // A connection that broke may be why the cluster goes on, and breaks what is asked next as well.
            let is_again = asked.step == StopStep::Resume && matches!(outcome, Outcome::Silent(_));
            if !is_again || deadline.has_passed(world) {
                return outcome;
            }
            world.sleep(RESUME_AGAIN).await;
        }
    }

    async fn ask_once(&self, node: u32, asked: TakeStep) -> Outcome {
        let member = self.here.member();
        let patience = patience(asked.step);
        let said = ask_node::<StepTaken>(member, NodeId(node), PATH, &asked, patience);
        match said.await {
            Ok(Ok(taken)) => took(&asked, taken),
            Ok(Err(refusal)) => Outcome::Refused(refusal.message),
            Err(error) => match error.kind() {
                ErrorKind::Unavailable | ErrorKind::Unknown => Outcome::Silent(error.to_string()),
                _ => Outcome::Refused(error.to_string()),
            },
        }
    }

    /// This node's own part, which is taken to its end as that of the others is.
    async fn ask_here(&self, asked: TakeStep) -> Outcome {
        let world = self.serving.world().clone();
        let (tell, told) = oneshot::channel();
        let (serving, own) = (self.serving.clone(), self.here.member().run());
        let take = async move {
            // It may be waited for no longer.
            let _ = tell.send(serving.take_step(asked, own).await);
        };
        world.spawn("a step of a stop", take).detach();
        let patience = patience(asked.step);
        match world.timeout(patience, told).await {
            Ok(Ok(Ok(taken))) => took(&asked, taken),
            Ok(Ok(Err(error))) => Outcome::Refused(error.to_string()),
            Ok(Err(_)) | Err(_) => {
                let text = format!("it takes longer than {} s", patience.as_secs());
                Outcome::Silent(text)
            }
        }
    }

    /// Waits until daemons have ended; returns those that surely have.
    async fn until_over(&self, tour: &Tour, nodes: Vec<u32>) -> Vec<u32> {
        let member = self.here.member();
        let world = member.world();
        let deadline = Deadline::after(world, ENDED_MAX);
        let looking = nodes.into_iter().map(|node| async move {
            let run = NodeRun {
                node: NodeId(node),
                incarnation: tour.run_of(node)?,
            };
            let over = async {
                while !member.is_over(run).await {
                    world.sleep(LOOK_EVERY).await;
                }
            };
            deadline.bound(world, over).await.is_ok().then_some(node)
        });
        join_all(looking).await.into_iter().flatten().collect()
    }
}

/// What an answer means.
fn took(asked: &TakeStep, taken: StepTaken) -> Outcome {
    match asked.run {
        Some(meant) if meant != taken.run => Outcome::Replaced,
        _ => Outcome::Taken(taken),
    }
}
