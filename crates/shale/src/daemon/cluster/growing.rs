//! A node that is alone becomes the first one of a cluster while it serves. Programs on its mounts see a pause.
//!
//! *Before programs notice anything* ([`become_first`]) the node's place is in node.toml, with `founding`, its keys are made, and
//! its etcd answers. *Then* the requests of all mounts are held, all is made durable, and the node's client leaves its session
//! with what programs have open. Whatever goes wrong until then is taken back, and the node goes on as it was.
//!
//! *From then on there is only one direction*, as for a daemon that starts: the parts of the node that was alone are closed, its
//! facts move to etcd (`member/founding.rs`), a member begins in the same run, and a client of it goes on in the session. Then
//! the mounts' requests go on. If the daemon ends before, by itself or by a kill, its mounts end with it and the next start does
//! the rest: all that was answered is durable.
//!
//! *What kernels keep* was allowed by the former client. Until that counts as the new one's the node answers nobody, so that no
//! other one can join and change it.

use super::{Base, Front};
use crate::daemon::config::{ClusterConfig, NodeConfig};
use crate::daemon::member::{InCluster, founding};
use crate::daemon::mounts::HeldMount;
use crate::daemon::running::Running;
use crate::daemon::serving::Serving;
use crate::daemon::signals::Signals;
use client::Legacy;
use coordination::Coordination;
use fuse::Door;
use futures::future::join_all;
use model::{Error, ErrorKind, NodeRun, Result};
use node::Node;
use std::sync::Arc;
use std::time::Duration;
use world::{Instant, World};

/// How long requests may take that are under way when all are held, of all mounts together.
const HOLD_MAX: Duration = Duration::from_secs(10);

/// Pause between two attempts to move the facts.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// A node that was alone, and that nobody uses any more.
pub(in crate::daemon) struct Grown {
    config: NodeConfig,
    base: Base,
    node: Arc<Node>,
    left: Left,
}

/// What programs have of it.
struct Left {
    legacy: Legacy,
    mounts: Vec<HeldMount>,
    /// Since when their requests are held.
    held_since: Instant,
}

/// What the daemon of the cluster's node goes on with.
pub(super) struct Begun {
    pub(super) base: Base,
    /// The node's own store, from which the facts move.
    pub(super) store: Coordination,
    /// The run, and what programs have.
    pub(super) moving: Moving,
}

/// What the first member of the node goes on with.
pub(super) struct Moving {
    pub(super) run: NodeRun,
    left: Left,
}

impl Grown {
    /// Ends all of it: somebody has ended the daemon by force meanwhile. The next start of the daemon goes on.
    ///
    /// # Errors
    /// The first part that didn't end as it should.
    pub(in crate::daemon) async fn end(self) -> Result<()> {
        drop(self.left);
        self.node.close_left().await
    }

    /// Since when programs wait.
    pub(super) fn held_since(&self) -> Instant {
        self.left.held_since
    }

    /// Closes what is left of the node, and returns its settings, its place in the cluster and all that goes on.
    pub(super) async fn close(self) -> (NodeConfig, ClusterConfig, Begun) {
        let Self {
            config,
            base,
            node,
            left,
        } = self;
        // All that was answered is durable already, and the shard's next owner finds it.
        if let Err(error) = node.close_left().await {
            tracing::warn!(%error, "not everything of the node that was alone ended as it should");
        }
        let cluster = config.cluster.clone().expect("it is to become a cluster's");
        let (store, run) = (node.coordination().clone(), node.run());
        let moving = Moving { run, left };
        let begun = Begun {
            base,
            store,
            moving,
        };
        (config, cluster, begun)
    }
}

/// Waits until a node that is alone is to become the first one of a cluster, and can.
pub(in crate::daemon) async fn grow(serving: &Arc<Serving>) -> Grown {
    loop {
        let wish = serving.wished().await;
        match become_first(serving, wish.cluster.clone()).await {
            Ok(grown) => {
                wish.answer(Ok(()));
                return grown;
            }
            Err(error) => {
                tracing::warn!(%error, "the node stays alone");
                wish.answer(Err(error));
            }
        }
    }
}

async fn become_first(serving: &Arc<Serving>, mut cluster: ClusterConfig) -> Result<Grown> {
    let Running::Alone(node) = &serving.running else {
        let text = "this node belongs to a cluster already";
        return Err(Error::new(ErrorKind::Exists, text));
    };
    // Nobody adds one that the cluster wouldn't know.
    let nsds = serving.change_nsds().await?;
    let id = node.coordination().cluster().await?;
    let id = id.ok_or_else(|| Error::new(ErrorKind::NotFound, "it has no finished file system"))?;
    cluster.id = format!("{id:032x}");
    cluster.prefix = format!("/shale/{}/", cluster.id);
    cluster.founding = true;
    match begin(serving, node, &cluster).await {
        Ok(grown) => {
            // Nobody does any more.
            std::mem::forget(nsds);
            Ok(grown)
        }
        Err(error) => {
            let given_up = founding::give_up(serving.dir(), &mut serving.config.lock());
            given_up.map_err(|other| {
                let doing = format!("taking the attempt back that has failed ({error})");
                other.while_doing(doing)
            })?;
            Err(error.while_doing("the node stays as it was"))
        }
    }
}

async fn begin(serving: &Serving, node: &Arc<Node>, cluster: &ClusterConfig) -> Result<Grown> {
    let (world, dir) = (serving.world(), serving.dir());
    founding::make_keys(dir, cluster, world.wall())?;
    let config = {
        let mut config = serving.config.lock();
        config.cluster = Some(cluster.clone());
        config.store(dir)?;
        config.clone()
    };
    let base = Base::begin(world, dir, cluster)?;
    founding::until_answered(world, dir, cluster, &base.coordination).await?;
    // Most of it before programs wait.
    serving.running.sync_all().await?;
    let held_since = world.now();
    let held = serving.mounts.hold_all(HOLD_MAX).await?;
    let begun = world.now();
    let legacy = node.leave().await?;
    let mounts = held.hand_over();
    let milliseconds = world.now().since(begun).as_millis();
    tracing::info!(
        milliseconds,
        "programs wait: the node becomes the first one of a cluster"
    );
    Ok(Grown {
        config,
        base,
        node: node.clone(),
        left: Left {
            legacy,
            mounts,
            held_since,
        },
    })
}

/// Has the node's facts move by an `attempt` that can be made again, as long as etcd doesn't answer: programs wait for that, and
/// would lose what they have. `says`: is told why it takes so long.
///
/// # Errors
/// Why they can't move at all.
pub(super) async fn until_moved<F: Future<Output = Result<()>>>(
    world: &World,
    mut attempt: impl FnMut() -> F,
    mut says: impl FnMut(&Error),
) -> Result<()> {
    loop {
        match attempt().await {
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) => {
                tracing::warn!(%error, "programs wait: the node's facts can't move yet");
                says(&error);
            }
            done => return done,
        }
        world.sleep(AGAIN_AFTER).await;
    }
}

/// Has what programs have go on through a run of the cluster's node. `None` if somebody has told the daemon to end before.
///
/// # Errors
/// As [`InCluster::open_left`]: what programs have open is lost.
pub(super) async fn go_on(
    serving: &Serving,
    here: &InCluster,
    moving: Moving,
    (front, signals): (&Front, &Signals),
) -> Result<Option<Vec<Arc<Door>>>> {
    let Left { legacy, mounts, .. } = moving.left;
    let opened = tokio::select! {
        biased;
        () = front.told_to_end() => return Ok(None),
        () = signals.told() => return Ok(None),
        opened = here.open_left(legacy) => opened?,
    };
    let doors = serving.mounts.take_over(mounts, &opened);
    front.lets_go();
    tracing::info!("programs go on");
    Ok(Some(doors))
}

/// Waits until what kernels keep of the former client's answers counts as the new one's. False if somebody has told the daemon to
/// end before.
pub(super) async fn until_accounted(
    doors: Vec<Arc<Door>>,
    (front, signals): (&Front, &Signals),
) -> bool {
    if doors.is_empty() {
        return true;
    }
    front.waits("its client must have everything that kernels may know of the files");
    let accounted = join_all(doors.iter().map(|door| door.until_accounted()));
    tokio::select! {
        biased;
        () = front.told_to_end() => false,
        () = signals.told() => false,
        _ = accounted => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::ready;
    use world::sim::Simulation;

    /// Would be broken if programs lost what they have because etcd is away for longer than a start waits for it, or if they
    /// waited for facts that can't move.
    #[test]
    fn facts_move_however_long_etcd_is_away() {
        let ran = Simulation::new(1).run(async |world: World| {
            for (last, is_moved) in [(Ok(()), true), (Err(ErrorKind::Exists), false)] {
                let away = [ErrorKind::Unavailable, ErrorKind::Unknown];
                let mut answers = away.map(Err).into_iter().chain([last]);
                let mut said = Vec::new();
                let attempt = || {
                    let answer = answers.next().expect("the last one ends it");
                    ready(answer.map_err(Error::from))
                };
                let moved = until_moved(&world, attempt, |error| said.push(error.kind())).await;
                assert_eq!(moved.is_ok(), is_moved);
                assert_eq!(said, away);
            }
        });
        ran.finished();
    }
}
