//! The machines of a cluster, and the daemons that run on them.

use super::ClusterScenario;
use coordination::Coordination;
use coordination::simulated::Simulated;
use futures::future::{Either, select};
use model::{NodeId, NsdId, Result};
use node::{Founding, FoundingNsd, Member, MemberSettings};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use world::World;
use world::sim::{Answer, Cluster, Judge, SimNode};

/// Where daemons listen.
const PORT: u16 = 7_000;
/// Pause of a daemon that couldn't start.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a daemon may take to start when nothing is broken.
const START_MAX: Duration = Duration::from_secs(30);
/// How long it may take until all are members once nothing is broken any more.
const SETTLED_MAX: Duration = Duration::from_secs(60);
/// By then nodes that are up have connections with each other.
const CONNECTED_AFTER: Duration = Duration::from_secs(2);
/// How often it is looked for daemons that ended by themselves.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The name of a node's first region.
const REGION: &str = "nsd";

/// A cluster of simulated machines.
pub struct Machines {
    pub(super) cluster: Arc<Cluster>,
    pub(super) store: Simulated,
    /// Runs the script's own requests to coordination; nothing happens to it.
    pub(super) script: SimNode,
    pub(super) nodes: Vec<Machine>,
}

/// One of the machines, and its daemon if one runs.
#[derive(Clone)]
pub(super) struct Machine {
    pub(super) id: NodeId,
    pub(super) node: SimNode,
    store: Simulated,
    /// The regions of its NSDs, as a daemon finds them in its configuration.
    regions: Arc<Mutex<BTreeMap<NsdId, PathBuf>>>,
    member: Arc<Mutex<Weak<Member>>>,
    /// Its daemon ended because the cluster had expelled it: it starts again at once.
    has_ended: Arc<AtomicBool>,
}

impl Machines {
    /// Machines with empty disks.
    #[must_use]
    pub fn new(cluster: &Arc<Cluster>, seed: u64, scenario: &ClusterScenario) -> Arc<Self> {
        let script = cluster.node("script");
        let clock = Arc::new(Mutex::new(None));
        let put = clock.clone();
        // The store needs a clock that always goes.
        drop(script.start(move |world| {
            *put.lock().expect("one thread") = Some(world);
            std::future::pending::<()>()
        }));
        let clock = clock.lock().expect("one thread").take();
        let store = Simulated::new(&clock.expect("the program has begun"), seed);
        if scenario.members {
            store.put_members_on((1..=scenario.nodes).map(NodeId));
        }
        let machine = |number| {
            let node = cluster.node(&format!("node{number}"));
            let first = (NsdId(number), PathBuf::from(REGION));
            let first = Some(first).filter(|_| number <= scenario.first_nsds);
            Machine {
                id: NodeId(number),
                node,
                store: store.clone(),
                regions: Arc::new(Mutex::new(first.into_iter().collect())),
                member: Arc::default(),
                has_ended: Arc::default(),
            }
        };
        Arc::new(Self {
            cluster: cluster.clone(),
            nodes: (1..=scenario.nodes).map(machine).collect(),
            script,
            store,
        })
    }

    /// Founds the file system and starts all daemons.
    pub(super) async fn found(&self, judge: &Judge, scenario: &ClusterScenario) {
        let founding = Founding {
            scheme: scenario.scheme,
            block_bytes: scenario.block_bytes,
            nsds: self
                .with_nsd(scenario)
                .map(|it| it.founding(scenario))
                .collect(),
        };
        let store = self.store.clone();
        let founded = self.script.run("founds", move |world| async move {
            let coordination = store.connect(NodeId(0), &world);
            let founded = Member::found(&world, &coordination, &founding).await;
            founded.expect("founded");
        });
        judge.within("founded", START_MAX, founded.done()).await;
        for machine in self.with_nsd(scenario) {
            machine.format(judge, scenario).await;
        }
        let first = &self.nodes[..(scenario.nodes - scenario.late_nodes) as usize];
        for machine in first {
            machine.start();
        }
        for machine in first {
            machine.is_up(judge).await;
        }
        let first = self.nodes[0].run("creates the shard", |_, member| async move {
            member.create_shard().await.expect("created");
        });
        judge.within("created", START_MAX, first.done()).await;
        let owns = || {
            self.nodes[0]
                .member()
                .is_some_and(|it| it.hosted().is_some())
        };
        judge.until("the shard is hosted", START_MAX, owns).await;
    }

    /// The place of the machine whose daemon is the cluster's manager, as itself sees it.
    pub(super) fn manager(&self) -> Option<usize> {
        let manages = |machine: &Machine| machine.member().is_some_and(|it| it.is_manager());
        self.nodes.iter().position(manages)
    }

    /// Waits until one daemon is the cluster's manager and all are members: those that were expelled have
    /// noticed it and started anew.
    pub(super) async fn settled(&self, judge: &Judge) {
        let is_settled = || {
            let manager = self.manager().and_then(|at| self.nodes[at].member());
            let roster = manager.map(|manager| manager.roster());
            let members = roster.as_ref().and_then(|it| it.membership.as_ref());
            members.is_some_and(|members| {
                self.nodes.iter().all(|machine| {
                    let member = machine.member();
                    member.is_some_and(|it| members.value.is_member(it.run()))
                })
            })
        };
        let settled = judge.until("all are members", SETTLED_MAX, is_settled);
        settled.await;
        // Connections that broke are opened again after a pause.
        judge.sleep(CONNECTED_AFTER).await;
    }

    /// Drives `script`, and starts daemons again that the cluster has expelled, as systemd would.
    pub(super) async fn keep_up<F: Future>(&self, judge: &Judge, script: F) -> F::Output {
        let keeps_up = async {
            loop {
                judge.sleep(LOOK_EVERY).await;
                let ended = |it: &&Machine| it.has_ended.load(Ordering::Relaxed);
                for machine in self.nodes.iter().filter(ended) {
                    if !machine.node.is_running() {
                        machine.start();
                    }
                }
            }
        };
        match select(pin!(script), pin!(keeps_up)).await {
            Either::Left((output, _)) => output,
            Either::Right((never, _)) => never,
        }
    }

    /// The machines that have an NSD from the beginning.
    fn with_nsd(&self, scenario: &ClusterScenario) -> impl Iterator<Item = &Machine> {
        self.nodes.iter().take(scenario.first_nsds as usize)
    }

    /// The machine that hosts the shard, as itself sees it.
    pub(super) fn owner(&self) -> Option<&Machine> {
        let hosts = |machine: &&Machine| machine.member().is_some_and(|it| it.hosted().is_some());
        self.nodes.iter().find(hosts)
    }

    /// Cuts all links of a machine, with that of its member of coordination.
    pub(super) fn isolate(&self, machine: &Machine) {
        self.cluster.wires().isolate(&machine.node);
        self.store.cut_off(machine.id);
        self.store.stop_member(machine.id);
    }

    /// All links work again; this machine reaches coordination.
    pub(super) fn reconnect(&self, machine: &Machine) {
        self.cluster.wires().heal_all();
        self.store.reconnect(machine.id);
        self.store.start_member(machine.id);
    }

    /// Runs a task of the script with coordination.
    pub(super) fn ask<T, F>(
        &self,
        ask: impl FnOnce(Coordination) -> F + Send + 'static,
    ) -> Answer<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let store = self.store.clone();
        self.script.run("the script", move |world| {
            ask(store.connect(NodeId(0), &world))
        })
    }
}

impl Machine {
    /// Flips a bit in the first page with this content of the first region, if there is one.
    pub(super) fn damage(&self, region_bytes: u64, page: &[u8]) -> bool {
        let disk = self.node.disk(REGION, region_bytes);
        let mut pages = (0..disk.bytes()).step_by(page.len());
        let found = pages.find(|at| disk.content(*at, page.len()) == page);
        if let Some(at) = found {
            disk.overwrite(at + 100, &[page[100] ^ 1]);
        }
        found.is_some()
    }

    /// The daemon that runs there now; `None` also while it starts.
    pub(super) fn member(&self) -> Option<Arc<Member>> {
        let member = self.member.lock().expect("one thread").upgrade();
        member.filter(|_| self.node.is_running())
    }

    /// The name of its disk for faults.
    pub(super) fn disk(&self) -> String {
        format!("{}/{REGION}", self.node.name())
    }

    fn nsd(&self) -> NsdId {
        NsdId(self.id.0)
    }

    fn founding(&self, scenario: &ClusterScenario) -> FoundingNsd {
        FoundingNsd {
            nsd: self.nsd(),
            node: self.id,
            bytes: scenario.region_bytes,
        }
    }

    async fn format(&self, judge: &Judge, scenario: &ClusterScenario) {
        let regions =
            BTreeMap::from([(self.nsd(), (PathBuf::from(REGION), scenario.region_bytes))]);
        let (store, id) = (self.store.clone(), self.id);
        let formatted = self.node.start(move |world| async move {
            let coordination = store.connect(id, &world);
            let formatted = Member::format_nsds(&world, &coordination, &regions).await;
            formatted.expect("formatted");
        });
        judge.within("formatted", START_MAX, formatted.done()).await;
        judge
            .until("the formatting has ended", START_MAX, || {
                !self.node.is_running()
            })
            .await;
    }

    /// Starts the daemon, and its machine if that was off; it tries until it has joined.
    pub(super) fn start(&self) {
        self.store.start_member(self.id);
        let settings = MemberSettings {
            node: self.id,
            listen: self.node.port(PORT),
            nsds: self.regions.lock().expect("one thread").clone(),
            protection: None,
        };
        // The daemon before may have been killed in this instant, and not be gone yet.
        *self.member.lock().expect("one thread") = Weak::new();
        self.has_ended.store(false, Ordering::Relaxed);
        let (store, slot) = (self.store.clone(), self.member.clone());
        let has_ended = self.has_ended.clone();
        drop(self.node.start(move |world| async move {
            daemon(world, store, settings, slot).await;
            has_ended.store(true, Ordering::Relaxed);
        }));
    }

    /// Makes a region there and adds it to the pool. Every later daemon of the machine opens it.
    pub(super) fn add_nsd(&self, path: &'static str, bytes: u64) -> Answer<Result<NsdId>> {
        let regions = self.regions.clone();
        self.run("adds an NSD", move |_, member| async move {
            let nsd = member.next_nsd().await?;
            let noted = (nsd, PathBuf::from(path));
            regions.lock().expect("one thread").extend([noted]);
            member.add_nsd(nsd, Path::new(path), bytes).await?;
            Ok(nsd)
        })
    }

    /// The machine stands still.
    pub(super) fn pause(&self) {
        self.node.pause();
        self.store.stop_member(self.id);
    }

    /// It goes on.
    pub(super) fn resume(&self) {
        self.node.resume();
        self.store.start_member(self.id);
    }

    /// Kills the daemon; it stays down until it is started. Coordination is another process.
    pub(super) fn kill(&self) {
        self.has_ended.store(false, Ordering::Relaxed);
        self.node.kill();
    }

    /// Cuts the machine's power; its daemon stays down until it is started.
    pub(super) fn cut_power(&self) {
        self.has_ended.store(false, Ordering::Relaxed);
        self.node.cut_power();
        self.store.stop_member(self.id);
    }

    /// Waits until the daemon has joined.
    pub(super) async fn is_up(&self, judge: &Judge) {
        let is_up = || self.member().is_some();
        judge.until("the node is up", START_MAX, is_up).await;
    }

    /// Runs a task of the daemon.
    ///
    /// # Panics
    /// If none has joined.
    pub(super) fn run<T, F>(
        &self,
        name: &'static str,
        task: impl FnOnce(World, Arc<Member>) -> F,
    ) -> Answer<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let member = self.member().expect("a daemon runs on this machine");
        self.node.run(name, move |world| task(world, member))
    }
}

/// Returns when the cluster has expelled it.
async fn daemon(
    world: World,
    store: Simulated,
    settings: MemberSettings,
    slot: Arc<Mutex<Weak<Member>>>,
) {
    let member = loop {
        let coordination = store.connect(settings.node, &world);
        match Member::start(&world, coordination, settings.clone()).await {
            Ok(member) => break member,
            Err(_) => world.sleep(PAUSE).await,
        }
    };
    // The judge's side doesn't keep it alive: a kill ends all of it.
    *slot.lock().expect("one thread") = Arc::downgrade(&member);
    member.ended().await;
}
