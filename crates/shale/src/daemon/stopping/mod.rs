//! `shale cluster stop`: the node that is asked has all members take the same steps, and no member takes one before all
//! have taken the one before.
//!
//! *Look*: who uses the mounts. *Unmount*. *Sync*: all that was written is durable. Until then nothing is lost if the cluster
//! goes on: a node that refuses, or doesn't answer, has all of them mount again. From then on there is no way back.
//! *Clients* are closed while their owners answer, *shards* where they are: nothing moves to other nodes, because all of
//! them end. *Nobody is the manager* any more, so nobody expels those that end first. Then daemons *end*: those without a
//! member of etcd, those with one, and at last the one that was asked, which sees how the others end.
//!
//! `tour` decides, from what nodes say; `part` is what each node does; here is who asks. It goes on when whoever asked the
//! daemon goes away. If the daemon dies, the nodes stay as they are, say so (`shale health`), and are stopped by the same
//! command again, or each by `shale down`.

mod part;
mod tour;

use super::member::InCluster;
use super::relay::ask_node;
use super::serving::Serving;
use crate::admin::stopping::{ClusterStopped, StepTaken, StopStep, StoppedNode, TakeStep};
use futures::future::join_all;
use model::{Error, ErrorKind, NodeId, NodeRun, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tour::{Next, Outcome, Tour};
use world::Deadline;

/// Where a node is asked by others to take a step.
pub const PATH: &str = "/v1/stop";

/// How long a node that was told to end is looked at.
const ENDED_MAX: Duration = Duration::from_secs(60);
/// How often.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// For how long a node is asked again to go on that gives no answer, and the pause before: nobody else asks it.
const RESUME_FOR: Duration = Duration::from_secs(30);
const RESUME_AGAIN: Duration = Duration::from_secs(1);

/// How long a node may take for a step: somewhat longer than all that has a deadline there.
const fn patience(step: StopStep) -> Duration {
    Duration::from_secs(match step {
        StopStep::Look | StopStep::Retire => 10,
        StopStep::Unmount | StopStep::Resume => 60,
        StopStep::Sync | StopStep::CloseClients => 120,
        StopStep::CloseShards => 45,
        StopStep::End => 30,
    })
}

/// Stops the whole cluster, or nothing. This node ends last, after the answer.
///
/// # Errors
/// `NotSupported` on a node that is alone; `Busy`: its people stop the cluster already. What other nodes say, or that they
/// don't, is in the answer.
pub(crate) async fn stop_cluster(serving: Arc<Serving>, force: bool) -> Result<ClusterStopped> {
    let here = serving.running.in_cluster()?.clone();
    let Ok(_alone) = serving.stop.driving.try_lock() else {
        let text =
            "this node stops its cluster already; `shale node list` shows which nodes are up";
        return Err(Error::new(ErrorKind::Busy, text));
    };
    let drive = Drive {
        serving: serving.clone(),
        here,
        force,
    };
    Ok(drive.run().await)
}

/// Who has the others take their steps.
struct Drive {
    serving: Arc<Serving>,
    here: Arc<InCluster>,
    force: bool,
}

impl Drive {
    async fn run(&self) -> ClusterStopped {
        let members = self.here.member_lines();
        let runs = self.runs();
        let mut tour = Tour::of(&members, self.force);
        for step in [StopStep::Look, StopStep::Unmount, StopStep::Sync] {
            let said = self.ask(tour.asked(), step).await;
            if tour.take_in(step, said) == Next::Back {
                if step != StopStep::Look {
                    let said = self.ask(tour.reached(), StopStep::Resume).await;
                    tour.take_in(StopStep::Resume, said);
                }
                return tour.report(false, Vec::new());
            }
        }
        for step in [StopStep::CloseClients, StopStep::CloseShards] {
            let said = self.ask(tour.asked(), step).await;
            tour.take_in(step, said);
        }
        let more = self.not_asked(&tour);
        let said = self.ask(tour.asked(), StopStep::Retire).await;
        tour.take_in(StopStep::Retire, said);
        for has_etcd in [false, true] {
            let others = tour.others(has_etcd);
            let said = self.ask(others.clone(), StopStep::End).await;
            tour.take_in(StopStep::End, said);
            let ended = self.until_over(others, &runs).await;
            tour.note_ended(&ended);
        }
        let own = self.here.member().run().node.0;
        let said = self.ask(vec![own], StopStep::End).await;
        tour.take_in(StopStep::End, said);
        tour.report(true, more)
    }

    /// The newest run of each node.
    fn runs(&self) -> BTreeMap<u32, NodeRun> {
        let roster = self.here.member().roster();
        let known = roster.addresses.iter();
        known.map(|(node, it)| (node.0, it.run)).collect()
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
    async fn ask(&self, nodes: Vec<u32>, step: StopStep) -> Vec<(u32, Outcome)> {
        tracing::info!(?step, ?nodes, "the cluster is being stopped");
        let run = self.here.member().run();
        let asked = TakeStep {
            step,
            by: (run.node.0, run.incarnation),
            force: self.force,
        };
        let asking = nodes.into_iter().map(|node| async move {
            let said = match node == run.node.0 {
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
            Ok(Ok(taken)) => Outcome::Taken(taken),
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
        let serving = self.serving.clone();
        let take = async move {
            // It may be waited for no longer.
            let _ = tell.send(serving.take_step(asked).await);
        };
        world.spawn("a step of a stop", take).detach();
        let patience = patience(asked.step);
        match world.timeout(patience, told).await {
            Ok(Ok(Ok(taken))) => Outcome::Taken(taken),
            Ok(Ok(Err(error))) => Outcome::Refused(error.to_string()),
            Ok(Err(_)) | Err(_) => {
                let text = format!("it takes longer than {} s", patience.as_secs());
                Outcome::Silent(text)
            }
        }
    }

    /// Waits until daemons have ended; returns those that surely have.
    async fn until_over(&self, nodes: Vec<u32>, runs: &BTreeMap<u32, NodeRun>) -> Vec<u32> {
        let member = self.here.member();
        let world = member.world();
        let deadline = Deadline::after(world, ENDED_MAX);
        let looking = nodes.into_iter().map(|node| async move {
            let run = *runs.get(&node)?;
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
