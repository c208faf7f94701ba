//! A daemon whose node belongs to a cluster.
//!
//! *A start*: the node's member of etcd is started if it has one, coordination is reached, and a new run of the node
//! joins as a [`node::Member`]; then the node's mount is made, through a client of the first file system. *An expulsion*:
//! the run's mounts end, so that programs get errors instead of old data, the member is closed, and another run joins and
//! mounts again; until then the mounts stay in their places and refuse all requests, so that nobody writes into the directories
//! below. *An expulsion by hand*: the same, but the run leaves in good order, and the daemon waits, without its member of etcd,
//! until the node is let in; only a start of the daemon is refused meanwhile. *An end*: mounts end, the shards here go to others,
//! the member leaves.
//!
//! The admin socket (`front`) and the signals that end the daemon are there all the time, also while no run is.
//! `member` is what runs meanwhile; `keeping` learns of changes of the cluster's nodes, `security` of changes of its keys and of
//! `cipher_list`; `tending` looks after the etcd; `beating` tells the watchdog that the daemon can run. A node that was alone
//! until now comes here with its mounts (`growing`).

mod beating;
mod etcd;
mod front;
pub(super) mod growing;
mod keeping;
mod security;
mod tending;

use super::config::{ClusterConfig, EtcdConfig, NodeConfig};
use super::member::endpoints::moved;
use super::member::etcd_identity::{self, EtcdIdentity};
use super::member::etcd_members::data_directory;
use super::member::key_ring::KeyRing;
use super::member::protection::{DEFAULT, policy_of};
use super::member::quorum::goes_on_without;
use super::member::{InCluster, admission::Admission, founding, joining, keys, renewal::Renewal};
use super::relay::Relay;
use super::running::Running;
use super::serving::Serving;
use super::signals::Signals;
use super::stopping;
use super::watchdog::{Again, Guard, Watchdog};
use super::{Ended, attend, remove_socket, say, supervisor};
use coordination::etcd::{
    Etcd, EtcdCertificates, EtcdPeerCertificate, EtcdServer, EtcdSettings, HEARTBEAT,
};
use coordination::{Coordination, Versioned};
use etcd::{EtcdHandle, EtcdProcess};
use front::{Front, Open};
use growing::{Begun, Grown};
use model::{Error, ErrorKind, NodeId, NodeRun, Result};
use node::{Member, MemberSettings, NodeFacts, Protection, Renew};
use rpc::security::{Admit, Policy, Security};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use world::{Deadline, Task, World};

/// How long coordination and the other nodes are waited for when the daemon starts. A whole cluster that starts needs
/// most of its quorum nodes for the first of them to go on.
const START_MAX: Duration = Duration::from_secs(300);
/// The same for a quorum node: without an end. With its daemon its member of etcd would end, for which the others wait.
const START_OF_QUORUM_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);
/// How long this node's member of etcd is waited for until it has caught up, each time.
const PROMOTE_MAX: Duration = Duration::from_secs(60);
/// How long this node's member of etcd may take to find the others when it runs for the first time.
const BEGIN_MAX: Duration = Duration::from_secs(120);
/// Longest pause between two such attempts; each is twice as long as the one before.
const PROMOTE_AGAIN_MAX: Duration = Duration::from_secs(30);
/// Pause between two attempts.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Longest pause between two attempts of a node that was expelled: each is twice as long as the one before.
const AGAIN_MAX: Duration = Duration::from_secs(10);

/// How long coordination may not answer until a member of etcd that rests runs again.
const MISSED_AFTER: Duration = Duration::from_secs(10);

/// Runs the daemon of a cluster's node until it is told to end.
///
/// # Errors
/// The reason why it couldn't start, or ended by itself.
pub(crate) async fn live(
    world: &World,
    dir: &Path,
    config: NodeConfig,
    cluster: ClusterConfig,
    on_demand: bool,
) -> Result<()> {
    let signals = Signals::catch(world);
    let open = Front::open(world, dir)?;
    let how = How {
        on_demand,
        begun: None,
    };
    live_with(world, dir, (config, cluster), how, (open, &signals)).await
}

/// As [`live`], of a node that was alone until now, and goes on in this process with what programs have.
///
/// # Errors
/// As [`live`].
pub(crate) async fn go_on(
    world: &World,
    dir: &Path,
    grown: Grown,
    signals: &Signals,
) -> Result<()> {
    // First: programs wait, and the end of what is left may take a while. People who ask are answered meanwhile.
    let open = match Front::open(world, dir) {
        Ok(open) => open,
        Err(error) => {
            // What programs have can't go on.
            let _ = grown.end().await;
            return Err(error);
        }
    };
    open.front.holds_since(grown.held_since());
    open.front
        .waits("what served it alone must end, and be durable");
    let (config, cluster, begun) = grown.close().await;
    let how = How {
        on_demand: false,
        begun: Some(begun),
    };
    live_with(world, dir, (config, cluster), how, (open, signals)).await
}

/// How the daemon of a cluster's node begins.
struct How {
    on_demand: bool,
    /// What there is already, of a node that was alone until now.
    begun: Option<Begun>,
}

async fn live_with(
    world: &World,
    dir: &Path,
    place: (NodeConfig, ClusterConfig),
    how: How,
    (open, signals): (Open, &Signals),
) -> Result<()> {
    let front = open.front.clone();
    let result = live_in(world, dir, place, how, (&*front, signals)).await;
    // A run that was expelled has left its mounts to the next one, which hasn't come.
    super::detach_mounts(dir, "removing the mount of a run that has ended");
    // The client that asked for the end still needs its answer.
    open.close().await;
    if result.is_ok() {
        remove_socket(dir);
    }
    result
}

/// As [`live`], with the admin socket open and signals caught.
async fn live_in(
    world: &World,
    dir: &Path,
    (mut config, mut cluster): (NodeConfig, ClusterConfig),
    How { on_demand, begun }: How,
    (front, signals): (&Front, &Signals),
) -> Result<()> {
    let (base, store, mut moving) = match begun {
        None => (Base::begin(world, dir, &cluster)?, None, None),
        Some(begun) => (begun.base, Some(begun.store), Some(begun.moving)),
    };
    // In this order: the last ones end first, and etcd after everything else here.
    let Base {
        etcd,
        mut passes_for_ready,
        coordination,
        renew,
        own,
        settings,
    } = base;
    if !cluster.founding
        && let (Some(etcd), Some(own)) = (&etcd, &mut cluster.etcd)
        && !own.began
    {
        front.waits("its member of etcd joins the others");
        tokio::select! {
            biased;
            () = front.told_to_end() => return Ok(()),
            () = signals.told() => return Ok(()),
            begun = until_begun(world, dir, &settings, own) => begun?,
        }
        // Before it gets its vote, and so before anything depends on what it remembers.
        own.began = true;
        config.cluster = Some(cluster.clone());
        config.store(dir)?;
        etcd.has_begun();
    }
    let _promotion = promotion(world, &cluster, &settings, &coordination)?;
    if cluster.founding {
        front.waits("its facts move to the cluster's etcd");
        let (place, to) = ((&config, &cluster), &coordination);
        let attempt = || founding::found(world, dir, place, store.clone(), to);
        let says = |error: &Error| {
            front.waits(format!(
                "its facts can't move to the cluster's etcd yet: {error}"
            ));
        };
        let founded = async {
            match &moving {
                None => attempt().await,
                Some(_) => growing::until_moved(world, attempt, says).await,
            }
        };
        let founded = tokio::select! {
            biased;
            () = front.told_to_end() => None,
            () = signals.told() => None,
            founded = founded => Some(founded?),
        };
        if founded.is_none() {
            say(ENDS_EARLY);
            tracing::info!("told to end before the node's facts had moved");
            return Ok(());
        }
        cluster.founding = false;
        if let (Some(etcd), Some(own)) = (&etcd, &mut cluster.etcd) {
            own.began = true;
            etcd.has_begun();
        }
        config.cluster = Some(cluster.clone());
        config.store(dir)?;
    }
    drop(store);
    // Also if the daemon that made the cluster died before it could.
    founding::put_store_aside(dir)?;
    let events = front.events.clone();
    let mut patience = Patience::Until(Deadline::after(world, start_max(&cluster)));
    let watchdog = Arc::new(Watchdog::start(dir)?);
    let (mut left, mut unmounted) = (Vec::new(), Vec::new());
    let mut between_runs: Option<Task<()>> = None;
    loop {
        front.waits(patience.says("it joins"));
        // In which it was alone until now.
        let run = moving.as_ref().map(|it| it.run);
        let joined = tokio::select! {
            biased;
            () = front.told_to_end() => None,
            () = signals.told() => None,
            joined = join(world, (&config, &cluster), run, &coordination, &own, patience, front) => Some(joined?),
        };
        let Some(here) = joined else {
            say(ENDS_EARLY);
            tracing::info!("told to end before the node had joined its cluster");
            return Ok(());
        };
        drop(passes_for_ready.take());
        let here = Arc::new(here);
        if let Some(renew) = &renew {
            here.member().answer_renewals(renew.clone());
        }
        if cluster.etcd_id.is_none()
            && let Some(id) = coordination.etcd_cluster()
        {
            cluster.etcd_id = Some(format!("{id:x}"));
            config.cluster = Some(cluster.clone());
            config.store(dir)?;
        }
        let running = Running::InCluster(here.clone());
        let of_guard = here.member().clone();
        let guard = Guard {
            watchdog: watchdog.clone(),
            again: Again {
                events: events.clone(),
                may_serve: Box::new(move || of_guard.lease_ends() > of_guard.world().now()),
            },
        };
        let serving = Arc::new(Serving::new(
            dir,
            config.clone(),
            running,
            events.clone(),
            Some(guard),
            on_demand,
        ));
        serving.discard_leftovers().await;
        let doors = match moving.take() {
            None => Vec::new(),
            Some(moving) => match growing::go_on(&serving, &here, moving, (front, signals)).await {
                Ok(Some(doors)) => doors,
                // Its mounts have ended.
                Ok(None) => return serving.close().await,
                Err(error) => {
                    let _ = serving.close().await;
                    return Err(error);
                }
            },
        };
        serving.mount_again(std::mem::take(&mut left));
        serving.mount_later(std::mem::take(&mut unmounted));
        let run = here.member().run();
        match here.member().waits_to_join() {
            true => events.tell(
                "node-waits",
                "this node",
                &format!("run {run} joins when it reaches the nodes that it needs: `shale health`"),
            ),
            false => events.tell(
                "node-joined",
                "this node",
                &format!("run {run} is a member"),
            ),
        }
        let (mounting, is_ready) = mount(&serving, on_demand);
        let tending = tending::tend(serving.clone(), here.clone());
        let has_etcd = cluster.etcd.is_some();
        let tending = has_etcd.then(|| world.spawn("looks after etcd", tending));
        let beating = beating::beat(serving.clone(), here.clone(), watchdog.clone());
        let beating = world.spawn("beats for the watchdog", beating);
        drop(between_runs.take());
        let handle = own.etcd.clone();
        let ended = match growing::until_accounted(doors, (front, signals)).await {
            true => serve(&serving, &here, is_ready, handle, (front, signals)).await,
            false => Ended::AsTold(true),
        };
        let ended = match ended {
            Ended::AsTold(force) => Some(serving.end(force).await),
            Ended::ByItself => {
                let what = told_of_expulsion(&here);
                tracing::warn!(%run, "{what}");
                events.tell("node-expelled", "this node", &what);
                front.waits(
                    "the cluster has expelled it, and it ends its mounts before it joins again",
                );
                let ended;
                (left, ended) = serving.end_expelled().await;
                unmounted = serving.stop.take_unmounted();
                if let Err(error) = ended {
                    tracing::warn!(%error, "not everything of the expelled run ended as it should");
                }
                serving.was_told_to_end().then_some(Ok(()))
            }
        };
        // It has nothing under way any more.
        drop((mounting, tending, beating));
        if let Some(result) = ended {
            return result;
        }
        let between = beating::beat_between_runs(world.clone(), watchdog.clone());
        between_runs = Some(world.spawn("beats between two runs", between));
        config = serving.config.lock().clone();
        // Where coordination is may have changed since the daemon began.
        cluster = config.cluster.clone().unwrap_or(cluster);
        patience = Patience::Endless;
    }
}

/// What people are told when a run has ended for the cluster.
fn told_of_expulsion(here: &InCluster) -> String {
    if here.is_barred() {
        let node = here.member().run().node;
        return format!(
            "it was expelled by hand: its mounts give EIO until `shale node unexpel {node}` on another node lets it in and it \
             has joined again, and what programs had open does until it is closed; what they had written becomes durable if \
             others answer for so long"
        );
    }
    let why = here.why_expelled();
    let why = why.map_or_else(String::new, |why| format!(" ({why})"));
    format!(
        "the cluster has expelled this run{why}: its mounts give EIO until the node has joined again, what programs had open \
         does until it is closed, and what was written and not synced is lost"
    )
}

/// Tells systemd after a while that a quorum node is ready although it waits for others. It would end a service that
/// isn't ready in time, and with the daemon its member of etcd, for which the others wait; and the machine's start goes
/// on only then.
fn pass_for_ready(world: &World) -> Task<()> {
    let of_task = world.clone();
    let pass = async move {
        of_task.sleep(START_MAX).await;
        supervisor::tell("READY=1");
    };
    world.spawn("tells systemd not to wait", pass)
}

/// Begins to make the node's own mount, unless mounts are made on demand. The future is ready after the first attempt.
fn mount(
    serving: &Arc<Serving>,
    on_demand: bool,
) -> (Option<Task<()>>, impl Future<Output = ()> + use<>) {
    let (tell, tried) = tokio::sync::oneshot::channel();
    let of_task = serving.clone();
    let mount = async move {
        let tell = move || {
            // Nobody waits for it if the run has ended before.
            let _ = tell.send(());
        };
        of_task.keep_mounting_own(tell).await;
    };
    let world = serving.world();
    let task = (!on_demand).then(|| world.spawn("makes the node's own mount", mount));
    // Without the task the sender is gone.
    let is_ready = async move {
        let _ = tried.await;
    };
    (task, is_ready)
}

/// Has a run serve until it is told to end or was expelled; ends nothing itself.
async fn serve(
    serving: &Arc<Serving>,
    here: &Arc<InCluster>,
    is_ready: impl Future<Output = ()>,
    etcd: Option<EtcdHandle>,
    (front, signals): (&Front, &Signals),
) -> Ended {
    let world = serving.world();
    let for_others = super::server::routes_for_others(serving.clone());
    let commands = Relay::new(world, for_others);
    here.member().answer_commands(commands);
    front.serves(super::server::routes(serving.clone()));
    let keeping = keeping::keep(serving.clone(), here.clone());
    let _keeping = world.spawn("reads the cluster's nodes", keeping);
    let securing = security::keep(serving.clone(), here.clone(), etcd);
    let _securing = world.spawn("looks after keys and connections", securing);
    let of_task = here.clone();
    let unused = async move { of_task.close_unused().await };
    let _unused = world.spawn("closes clients that nobody uses", unused);
    let stopping = stopping::look_after(serving.clone(), here.clone());
    let _stopping = world.spawn("looks after stops of the cluster", stopping);
    attend(serving, signals, is_ready, here.over()).await
}

/// What a daemon has from before its node joins until it ends.
struct Base {
    settings: EtcdSettings,
    own: Own,
    renew: Option<Arc<dyn Renew>>,
    coordination: Coordination,
    passes_for_ready: Option<Task<()>>,
    /// Ends after everything else here.
    etcd: Option<EtcdProcess>,
}

impl Base {
    /// Starts the node's member of etcd if it has one.
    ///
    /// # Errors
    /// What is wrong with the node's keys or its member of etcd.
    fn begin(world: &World, dir: &Path, cluster: &ClusterConfig) -> Result<Self> {
        keys::finish(dir)?;
        let credentials = keys::load(dir)?;
        let settings = joining::etcd_settings(world, cluster, &credentials)?;
        let keys = KeyRing::load(dir)?;
        let etcd_identity = match &cluster.etcd {
            None => None,
            Some(own) => {
                let (peer, now) = (own.peer.ip(), world.wall());
                let made = EtcdIdentity::make(dir, keys.as_ref(), &credentials, peer, now);
                Some(made?)
            }
        };
        founding::begin_anew(dir, cluster)?;
        let etcd = start_etcd(dir, cluster)?;
        let coordination = Coordination::etcd(world, &settings)?;
        // Before a run begins coordination says what counts.
        let security = Security::new(world, Policy::only(DEFAULT), credentials)?;
        let admit: Option<Arc<dyn Admit>> = match &keys {
            None => None,
            Some(keys) => {
                let new = Admission::new(world, &coordination, keys, &security, cluster);
                Some(new?)
            }
        };
        let renew: Option<Arc<dyn Renew>> = match &keys {
            None => None,
            Some(keys) => Some(Renewal::new(world, &coordination, keys, &security)),
        };
        let own = Own {
            protection: Protection { security, admit },
            keys,
            etcd_identity,
            etcd: etcd.as_ref().map(EtcdProcess::handle),
        };
        Ok(Self {
            passes_for_ready: etcd.as_ref().map(|_| pass_for_ready(world)),
            etcd,
            coordination,
            renew,
            own,
            settings,
        })
    }
}

/// What all runs of the node have, as long as its daemon runs.
struct Own {
    protection: Protection,
    /// With which it certifies others, if it does.
    keys: Option<Arc<KeyRing>>,
    /// What its member of etcd has for others, if it runs one.
    etcd_identity: Option<Arc<EtcdIdentity>>,
    /// Its member of etcd, if it runs one.
    etcd: Option<EtcdHandle>,
}

impl Own {
    /// What the cluster knows of the node. Its member of etcd, if that rests, runs again when coordination doesn't answer: it may be
    /// the one that is missing, and nobody could let the node in.
    async fn facts_of(
        &self,
        world: &World,
        coordination: &Coordination,
        node: NodeId,
    ) -> Result<Option<Versioned<NodeFacts>>> {
        let mut asked = pin!(coordination.node_facts(node));
        let Some(etcd) = self.etcd.as_ref().filter(|it| it.rests()) else {
            return asked.await;
        };
        let answer = world.timeout(MISSED_AFTER, asked.as_mut()).await;
        if !matches!(answer, Ok(Ok(_))) {
            etcd.rest(false);
        }
        match answer {
            Ok(answer) => answer,
            Err(_) => asked.await,
        }
    }

    /// While the node was expelled by hand, which may last: its member of etcd rests as long as the others can do without it, and
    /// coordination is reached where it is by now (`reached`: where it was).
    async fn wait_outside(
        &self,
        world: &World,
        reached: &mut ClusterConfig,
        coordination: &Coordination,
    ) -> Result<()> {
        let credentials = self.protection.security.credentials();
        let nodes = coordination.nodes().await;
        if let Some(etcd) = &self.etcd {
            let rests = match &nodes {
                Ok(nodes) => goes_on_without(world, (reached, &credentials), nodes).await,
                Err(_) => Ok(false),
            };
            etcd.rest(rests.unwrap_or(false));
        }
        if let Some(next) = moved(reached, None, &nodes?) {
            coordination.reach(&joining::etcd_settings(world, &next, &credentials)?)?;
            *reached = next;
        }
        Ok(())
    }
}

/// How long a node tries to join.
#[derive(Clone, Copy)]
enum Patience {
    /// When its daemon starts: whoever started it wants to know.
    Until(Deadline),
    /// When it was expelled: nobody watches, and it is missed until it is back.
    Endless,
}

impl Patience {
    /// Whether this error of an attempt ends all attempts.
    fn ends_with(self, error: &Error) -> bool {
        match self {
            Self::Until(_) => error.kind() != ErrorKind::Unavailable,
            // The cluster doesn't know it any more, or has no file system.
            Self::Endless => matches!(error.kind(), ErrorKind::NotPermitted | ErrorKind::NotFound),
        }
    }

    /// Why a node doesn't join that was expelled by hand. Whoever starts it is told at once; one that was up waits until it is let
    /// in, as its mounts do.
    fn of_barred(self, node: NodeId) -> Error {
        let text = format!(
            "node {node} was expelled by hand; `shale node unexpel {node}` on another node lets it join again"
        );
        let kind = match self {
            Self::Until(_) => ErrorKind::NotPermitted,
            Self::Endless => ErrorKind::Unavailable,
        };
        Error::new(kind, text)
    }

    /// What people are told that the node waits for.
    fn says(self, what: &str) -> String {
        match self {
            Self::Until(_) => what.into(),
            Self::Endless => format!("the cluster has expelled it; {what}"),
        }
    }

    /// The pause after one of that length.
    fn pause_after(self, pause: Duration) -> Duration {
        match self {
            Self::Until(_) => pause,
            Self::Endless => (pause * 2).min(AGAIN_MAX),
        }
    }
}

/// How long a node tries to join.
fn start_max(cluster: &ClusterConfig) -> Duration {
    match cluster.etcd {
        Some(_) => START_OF_QUORUM_MAX,
        None => START_MAX,
    }
}

/// Joins with a new run of the node, or with one in which the node was alone before.
async fn join(
    world: &World,
    (config, cluster): (&NodeConfig, &ClusterConfig),
    run: Option<NodeRun>,
    coordination: &Coordination,
    own: &Own,
    patience: Patience,
    front: &Front,
) -> Result<InCluster> {
    let node = NodeId(cluster.node);
    let (mut last, mut pause) = (None::<String>, AGAIN_AFTER);
    let mut reached = cluster.clone();
    loop {
        let deadline = match patience {
            Patience::Until(deadline) if deadline.has_passed(world) => break,
            Patience::Until(deadline) => deadline,
            Patience::Endless => Deadline::after(world, START_MAX),
        };
        let how = (patience, front, &mut reached);
        let joining = join_once(world, (config, cluster), run, coordination, own, how);
        let joined = deadline.bound(world, joining);
        match joined.await {
            Ok(Ok(here)) => return Ok(here),
            Ok(Err(error)) if patience.ends_with(&error) => return Err(error),
            Ok(Err(error)) => {
                let why = error.to_string();
                // It may be the same for days.
                if last.as_ref() != Some(&why) {
                    tracing::warn!(%error, "the node can't join yet");
                }
                front.waits(patience.says(&format!("it can't join yet: {why}")));
                last = Some(why);
            }
            Err(_) => front.waits(patience.says(NO_ANSWER)),
        }
        world.sleep(pause).await;
        pause = patience.pause_after(pause);
    }
    let why = last.unwrap_or_else(|| NO_ANSWER.into());
    let text = format!(
        "node {node} could not join its cluster within {} s: {why}; see that most of the quorum nodes run and that the \
         network reaches them ({})",
        start_max(cluster).as_secs(),
        cluster.coordination.join(", ")
    );
    Err(Error::new(ErrorKind::Unavailable, text))
}

/// What whoever started it is told if it ends by somebody's wish.
const ENDS_EARLY: &str = "it was told to end before it had joined its cluster";
/// Why a node can't join about which nothing else is known.
const NO_ANSWER: &str = "coordination doesn't answer";

async fn join_once(
    world: &World,
    (config, cluster): (&NodeConfig, &ClusterConfig),
    run: Option<NodeRun>,
    coordination: &Coordination,
    own: &Own,
    (patience, front, reached): (Patience, &Front, &mut ClusterConfig),
) -> Result<InCluster> {
    let node = NodeId(cluster.node);
    let facts = own.facts_of(world, coordination, node).await?;
    let facts = facts.ok_or_else(|| {
        let text = format!(
            "the cluster knows no node {node}; this directory belongs to another cluster, or its node was removed"
        );
        Error::new(ErrorKind::NotPermitted, text)
    })?;
    let mut facts = facts.value;
    front.keeps_out(facts.is_barred.then_some(node));
    if facts.is_barred {
        own.wait_outside(world, reached, coordination).await?;
        return Err(patience.of_barred(node));
    }
    if let Some(etcd) = &own.etcd {
        etcd.rest(false);
    }
    let security = &own.protection.security;
    let key = security.credentials().key().key_hash();
    if facts.key != key {
        // It founded the cluster, or a change of its key broke off. Certificates are for the key that is known.
        let told = coordination.change_node(node, |it| {
            it.key = key;
            Ok(())
        });
        facts = told.await?;
    }
    // Connections are made and taken as all others do it now, from the first one on.
    let ciphers = coordination.ciphers().await?;
    security.set_policy(policy_of(ciphers.as_ref().map(|it| &it.value))?)?;
    let settings = MemberSettings {
        node,
        listen: cluster.address,
        nsds: config.region_paths()?,
        protection: Some(own.protection.clone()),
    };
    let member = match run {
        None => Member::start(world, coordination.clone(), settings).await?,
        Some(run) => Member::go_on(world, coordination.clone(), settings, run).await?,
    };
    Ok(InCluster::new(
        member,
        facts,
        cluster,
        security.clone(),
        (own.keys.clone(), own.etcd_identity.clone()),
    ))
}

/// Starts the node's member of etcd, if it has one.
fn start_etcd(dir: &Path, cluster: &ClusterConfig) -> Result<Option<EtcdProcess>> {
    let Some(own) = &cluster.etcd else {
        return Ok(None);
    };
    let begin = etcd::beginning(dir, cluster)?;
    let own_peer = (cluster.name.clone(), own.peer.to_string());
    let members = match own.joins.is_empty() {
        true => vec![own_peer],
        false => own.joins.clone(),
    };
    let files = keys::files(dir);
    let server = EtcdServer {
        name: cluster.name.clone(),
        data_directory: data_directory(dir),
        client_listen: own.client,
        client_authority: own.client.to_string(),
        peer_listen: own.peer,
        peer_authority: own.peer.to_string(),
        members,
        begin,
        certificates: Some(EtcdCertificates {
            certificate: files.certificate,
            key: files.key,
            authority: files.authorities,
            peer: Some(EtcdPeerCertificate {
                certificate: files.etcd_certificate,
                key: files.etcd_key,
                name: etcd_identity::NAME.into(),
            }),
        }),
        heartbeat: HEARTBEAT,
    };
    EtcdProcess::start(dir, cluster, server).map(Some)
}

/// Waits until this node's member of etcd, which runs for the first time, is one of the etcd that it joins.
async fn until_begun(
    world: &World,
    dir: &Path,
    settings: &EtcdSettings,
    own: &EtcdConfig,
) -> Result<()> {
    let settings = EtcdSettings {
        endpoints: vec![founding::endpoint(own.client).parse()?],
        ..settings.clone()
    };
    let etcd = Etcd::new(world, &settings)?;
    let deadline = Deadline::after(world, BEGIN_MAX);
    let ready = etcd.until_ready(0, deadline).await;
    ready.map(drop).map_err(|error| {
        let doing = format!(
            "waiting for this node's own member of etcd, which joins the others; see {}, and whether the network lets \
             quorum nodes reach each other's ports ({} and {} here)",
            dir.join(etcd::LOG).display(),
            own.client,
            own.peer
        );
        error.while_doing(doing)
    })
}

/// Gives this node's member of etcd its vote once it has caught up, and says where it answers; nothing if it has both.
fn promotion(
    world: &World,
    cluster: &ClusterConfig,
    settings: &EtcdSettings,
    coordination: &Coordination,
) -> Result<Option<Task<()>>> {
    let Some(own) = cluster.etcd.as_ref().filter(|own| !own.joins.is_empty()) else {
        return Ok(None);
    };
    let etcd = Etcd::new(world, settings)?;
    let (peer, client) = (
        format!("https://{}", own.peer),
        founding::endpoint(own.client),
    );
    let (node, facts, of_task) = (NodeId(cluster.node), coordination.clone(), world.clone());
    let promote = async move {
        let mut pause = AGAIN_AFTER;
        loop {
            let promoted = promote_once(&of_task, &etcd, &peer).await;
            let told = match promoted {
                Ok(()) => facts
                    .change_node(node, |it| {
                        it.etcd = Some(client.clone());
                        Ok(())
                    })
                    .await
                    .map(drop),
                Err(error) => Err(error),
            };
            match told {
                Ok(()) => return,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    tracing::error!(
                        %error,
                        "this node's member of etcd gets no vote: join again with a new token and an empty --dir to make \
                         this machine a quorum node"
                    );
                    return;
                }
                Err(error) => tracing::warn!(%error, "this node's member of etcd has no vote yet"),
            }
            of_task.sleep(pause).await;
            pause = (pause * 2).min(PROMOTE_AGAIN_MAX);
        }
    };
    Ok(Some(world.spawn("promotes etcd's member", promote)))
}

async fn promote_once(world: &World, etcd: &Etcd, peer: &str) -> Result<()> {
    let members = etcd.members().await?;
    let own = members
        .iter()
        .find(|it| it.peer_urls.iter().any(|url| url == peer));
    let own = own.ok_or_else(|| {
        let text = format!("etcd has no member at {peer}; it was removed");
        Error::new(ErrorKind::NotFound, text)
    })?;
    etcd.promote(own.id, Deadline::after(world, PROMOTE_MAX))
        .await
}

#[cfg(test)]
mod tests {
    use super::super::{NEEDS_SOMEBODY, needs_somebody};
    use super::*;
    use world::sim::Simulation;

    #[test]
    fn systemd_lets_a_node_of_a_cluster_speak_and_waits_for_it() {
        let system = include_str!("../../../../../scripts/systemd/shale@.service");
        let user = include_str!("../../../../../scripts/systemd/shale-user@.service");
        let value = |unit: &str, name: &str| {
            let mut lines = unit.lines();
            let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or_else(|| panic!("{name}")).to_owned()
        };
        for unit in [system, user] {
            let seconds = value(unit, "TimeoutStartSec").parse().unwrap();
            // Joining, then the first attempt to mount: a client's patience, and what a mount takes.
            let patience = client::ClientSettings::default().patience;
            let needed = START_MAX + patience + Duration::from_secs(30);
            assert!(Duration::from_secs(seconds) > needed, "{seconds}");
        }
        let families = value(system, "RestrictAddressFamilies");
        for family in ["AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"] {
            assert!(families.split(' ').any(|it| it == family), "{family}");
        }
        for name in ["After", "Wants"] {
            assert!(
                value(system, name).contains("network-online.target"),
                "{name}"
            );
        }
        // A machine that starts alone tries until it isn't; one that may not come back doesn't.
        for unit in [system, user] {
            assert_eq!(value(unit, "StartLimitIntervalSec"), "0");
            let code = NEEDS_SOMEBODY.to_string();
            assert_eq!(value(unit, "RestartPreventExitStatus"), code);
        }
    }

    #[test]
    fn a_node_that_was_expelled_tries_to_come_back_until_it_may_not() {
        let error = |kind| Error::new(kind, "refused");
        for kind in [
            ErrorKind::InvalidArgument,
            ErrorKind::Corrupt,
            ErrorKind::OldEpoch,
        ] {
            assert!(!Patience::Endless.ends_with(&error(kind)), "{kind:?}");
        }
        for kind in [ErrorKind::NotPermitted, ErrorKind::NotFound] {
            assert!(Patience::Endless.ends_with(&error(kind)), "{kind:?}");
        }
        let run = Simulation::new(1).run(async |world: World| {
            let starts = Patience::Until(Deadline::after(&world, START_MAX));
            let barred = |patience: Patience| {
                let error = patience.of_barred(NodeId(3));
                assert!(error.to_string().contains("unexpel 3"), "{error}");
                (patience.ends_with(&error), needs_somebody(error.kind()))
            };
            assert_eq!(barred(starts), (true, true));
            assert_eq!(barred(Patience::Endless), (false, false));
        });
        run.finished();
        let told = Patience::Endless.says(NO_ANSWER);
        assert!(
            told.contains("expelled") && told.contains(NO_ANSWER),
            "{told}"
        );
        let mut pauses = vec![AGAIN_AFTER];
        for _ in 0..8 {
            let last = *pauses.last().unwrap();
            pauses.push(Patience::Endless.pause_after(last));
        }
        assert!(pauses.is_sorted() && pauses[1] > pauses[0], "{pauses:?}");
        assert_eq!(*pauses.last().unwrap(), AGAIN_MAX);
    }
}
