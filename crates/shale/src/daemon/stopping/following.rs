//! What a node does by itself about a stop that it takes part in: it looks whether somebody still has the nodes take the steps,
//! and does so itself when it is its turn. And it makes the mounts again that were ended for a stop which was called off.

use super::PART_PATH;
use super::drive::Drive;
use super::succession::{Heard, Succession, TURN_MAX, Turn, settled};
use super::tour::Tour;
use crate::admin::stopping::{AskPart, ClusterStopped, StopPart};
use crate::daemon::member::InCluster;
use crate::daemon::relay::ask_node;
use crate::daemon::serving::Serving;
use futures::future::join_all;
use model::NodeRun;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use world::Deadline;

/// How often the run is asked whose turn it is, and how often it is tried to make mounts that are missing.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long its answer is waited for.
const PART_MAX: Duration = Duration::from_secs(3);
/// Most runs that are asked at the same time.
const ASKED_MAX: usize = 32;
/// How long nodes are asked that don't answer, or don't know yet that whoever began the stop is gone: each of them finds that
/// out within [`TURN_MAX`].
pub const SETTLED_MAX: Duration = Duration::from_secs(60);
/// Pause before they are asked again.
const SETTLED_AGAIN: Duration = Duration::from_secs(1);

const _: () = assert!(SETTLED_MAX.as_secs() > TURN_MAX.as_secs() + 2 * LOOK_EVERY.as_secs());

/// Looks after stops of the cluster, as long as a run serves. Never returns.
pub async fn look_after(serving: Arc<Serving>, here: Arc<InCluster>) {
    loop {
        match serving.stop.followed() {
            Some(by) => {
                let following = Following {
                    serving: serving.clone(),
                    here: here.clone(),
                    by,
                };
                following.follow().await;
            }
            None if serving.stop.has_unmounted() => serving.make_what_is_missing().await,
            None => {}
        }
        serving.world().sleep(LOOK_EVERY).await;
    }
}

/// A node that takes part in a stop.
struct Following {
    serving: Arc<Serving>,
    here: Arc<InCluster>,
    /// The run whose people stop the cluster.
    by: NodeRun,
}

impl Following {
    /// Looks whose turn it is, until the stop is over here.
    async fn follow(&self) {
        let (world, begun) = (self.serving.world(), self.serving.world().now());
        let mut succession = Succession::new(self.here.member().run(), self.by);
        let mut had_turn = false;
        while self.serving.stop.followed() == Some(self.by) {
            let members = self.here.member_runs();
            match succession.turn(&members) {
                Turn::Own => {
                    self.go_on(!had_turn).await;
                    had_turn = true;
                }
                Turn::Of(run) => {
                    let said = self.hear_all(succession.asked(&members)).await;
                    succession.take_in(&members, &said, world.now() - begun);
                    if succession.is_orphaned() {
                        self.serving.stop.orphan(self.by);
                    }
                    for (asked, heard) in said {
                        if succession.has_passed(asked) {
                            tracing::info!(run = %asked, by = %self.by, ?heard, "a run doesn't go on with the stop of the cluster");
                        }
                    }
                    if succession.has_passed(run) {
                        continue;
                    }
                }
            }
            world.sleep(LOOK_EVERY).await;
        }
    }

    /// What these say of their parts. Those behind one that answers needn't be asked.
    async fn hear_all(&self, runs: Vec<NodeRun>) -> Vec<(NodeRun, Heard)> {
        let mut said = Vec::new();
        for some in runs.chunks(ASKED_MAX) {
            let asking = some
                .iter()
                .copied()
                .map(|run| async move { (run, self.hear(run).await) });
            said.extend(join_all(asking).await);
            if said
                .iter()
                .any(|(_, heard)| matches!(heard, Heard::Part(_)))
            {
                break;
            }
        }
        said
    }

    /// What a run says of its part.
    async fn hear(&self, run: NodeRun) -> Heard {
        let member = self.here.member();
        if run == member.run() {
            return Heard::Part(self.serving.stop.part(self.by, run));
        }
        if self.here.has_ended(run) {
            return Heard::Over;
        }
        let asked = AskPart {
            by: (self.by.node.0, self.by.incarnation),
        };
        let said = ask_node::<StopPart>(member, run.node, PART_PATH, &asked, PART_MAX).await;
        match said {
            Ok(Ok(part)) if part.run == run.incarnation => Heard::Part(part),
            Ok(Ok(_)) => Heard::Over,
            // It is starting or ending, or too busy.
            Ok(Err(_)) => Heard::Silent,
            Err(_) => match member.is_over(run).await {
                true => Heard::Over,
                false => Heard::Silent,
            },
        }
    }

    /// Finishes the stop in the place of whoever began it, or calls it off.
    async fn go_on(&self, is_first: bool) {
        // Its people may have begun another stop meanwhile.
        let Some(_driving) = self.serving.stop.drive() else {
            return;
        };
        let node = self.by.node;
        if is_first {
            let told = format!(
                "node {node}, which was stopping the cluster, is gone: this node finishes that in its place, or calls it off"
            );
            self.serving
                .events
                .tell("cluster-stop-inherited", "this node", &told);
        }
        let parts = self.parts().await;
        let own = self.here.member().run().node.0;
        let tour = Tour::going_on(&self.here.member_lines(), own, &parts);
        let drive = Drive {
            serving: self.serving.clone(),
            here: self.here.clone(),
            by: self.by,
            force: false,
        };
        say(&drive.run(tour).await);
    }

    /// The parts that nodes have in the stop, once no step of the run that began it can change them.
    async fn parts(&self) -> BTreeMap<u32, StopPart> {
        let world = self.serving.world();
        let deadline = Deadline::after(world, SETTLED_MAX);
        let asking = self.here.member_runs().into_iter().map(|run| async move {
            loop {
                let heard = self.hear(run).await;
                if let Some(known) = settled(heard) {
                    return Some((run.node.0, known?));
                }
                if deadline.has_passed(world) {
                    tracing::warn!(%run, ?heard, "how far a stop has come on a node isn't known for certain");
                    return match heard {
                        Heard::Part(part) => Some((run.node.0, part)),
                        Heard::Over | Heard::Silent => None,
                    };
                }
                world.sleep(SETTLED_AGAIN).await;
            }
        });
        join_all(asking).await.into_iter().flatten().collect()
    }
}

/// Nobody waits for what became of the nodes: it is in the log.
fn say(stopped: &ClusterStopped) {
    for node in &stopped.nodes {
        let why = node.why.as_deref().unwrap_or_default();
        tracing::info!(
            stops = stopped.stops,
            node = node.node,
            state = %node.state,
            %why,
            "a stop of the cluster is over that another node had begun"
        );
    }
}
