//! Nodes on which a test plays one story, step by step.

use super::ClusterScenario;
use super::faults::run_of;
use super::machines::{Machine, Machines};
use super::script;
use client::{Client, ClientSettings};
use model::{InodeId, NsdId, ShardId};
use node::Member;
use std::sync::Arc;
use std::time::Duration;
use world::sim::{Answer, Cluster, Judge};
use world::{Interruption, Planted, Point, World};

/// How long a step may take unless it says otherwise.
const STEP_MAX: Duration = Duration::from_secs(300);

/// Nodes, numbered from 0, with their daemons; the first owns the shard at the beginning.
pub struct Stage {
    judge: Judge,
    machines: Arc<Machines>,
}

impl Stage {
    /// Plays a story on the nodes of `scenario`, then looks at everything: each node is up again,
    /// background work ends, and a deep check finds nothing. A fault can be planted in all daemons.
    /// Returns a hash of what happened. With `SIM_LOG` the nodes' logs are printed.
    ///
    /// # Panics
    /// If the story does, or the check finds something.
    pub fn play<F: Future<Output = ()>>(
        seed: u64,
        scenario: &ClusterScenario,
        planted: Option<Planted>,
        story: impl FnOnce(Arc<Self>) -> F,
    ) -> u64 {
        let cluster = Arc::new(Cluster::new(seed));
        cluster.plant(planted);
        let machines = Machines::new(&cluster, seed, scenario);
        cluster.run(|judge| async move {
            machines.found(&judge, scenario).await;
            let stage = Arc::new(Self { judge, machines });
            let running = async {
                story(stage.clone()).await;
                script::end(&stage.machines, &stage.judge, seed).await;
            };
            let running = stage.machines.keep_up(&stage.judge, running);
            tokio::select! {
                () = running => {}
                () = script::clock(&stage.judge) => unreachable!("time goes on"),
            }
        });
        cluster.trace_hash()
    }

    /// Waits while the nodes run.
    pub async fn sleep(&self, time: Duration) {
        self.judge.sleep(time).await;
    }

    /// Runs a task on a node, for as long as its daemon runs.
    ///
    /// # Panics
    /// If the daemon isn't up.
    pub fn start_task<T, F>(
        &self,
        node: usize,
        task: impl FnOnce(World, Arc<Member>) -> F,
    ) -> Answer<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.machine(node).run("a step of the story", task)
    }

    /// Runs a task on a node to its end.
    ///
    /// # Panics
    /// If it doesn't end, or the node goes down.
    pub async fn run<T, F>(&self, node: usize, task: impl FnOnce(World, Arc<Member>) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.end_of(self.start_task(node, task)).await
    }

    /// Waits for a task's end.
    ///
    /// # Panics
    /// If it doesn't end, or its node went down.
    pub async fn end_of<T>(&self, task: Answer<T>) -> T {
        let ended = task.done();
        self.judge.within("a step ends", STEP_MAX, ended).await
    }

    /// Makes a region on a node and adds it to the pool. Every later daemon there opens it.
    ///
    /// # Panics
    /// If it isn't added.
    pub async fn add_nsd(&self, node: usize, path: &'static str, bytes: u64) -> NsdId {
        let added = self.machine(node).add_nsd(path, bytes);
        self.end_of(added).await.expect("an NSD is added")
    }

    /// Flips a bit in the first page with this content of a node's first region, if there is one.
    #[must_use]
    pub fn damage(&self, node: usize, region_bytes: u64, page: &[u8]) -> bool {
        self.machine(node).damage(region_bytes, page)
    }

    /// The daemon's process ends, as by SIGKILL.
    pub fn kill(&self, node: usize) {
        self.machine(node).kill();
    }

    /// The process that comes to a point next ends there, once others have passed it so many times.
    pub fn kill_at(&self, point: Point, after: u64) {
        self.machines
            .cluster
            .interrupt(point, after, Interruption::Kill);
    }

    /// The node that has ended at the point. Starts no other daemon.
    #[must_use]
    pub fn killed(&self) -> Option<usize> {
        let met = self.machines.cluster.interrupted()?;
        let mut nodes = self.machines.nodes.iter();
        nodes.position(|machine| machine.node.name() == met.name())
    }

    /// A daemon starts and joins.
    pub async fn start(&self, node: usize) {
        self.machine(node).start();
        self.machine(node).is_up(&self.judge).await;
    }

    /// Whether a daemon runs there that has begun a run of the node, and whose run hasn't ended.
    #[must_use]
    pub fn is_up(&self, node: usize) -> bool {
        self.machine(node).member().is_some()
    }

    /// The daemon stands still, as by SIGSTOP.
    pub fn pause(&self, node: usize) {
        self.machine(node).pause();
    }

    /// Whoever comes to this point of the program next stands still there for as long.
    pub fn hold_at(&self, point: Point, time: Duration) {
        let how = Interruption::Delay(time);
        self.machines.cluster.interrupt(point, 0, how);
    }

    /// Waits until somebody stands still where [`Stage::hold_at`] said.
    pub async fn until_held(&self) {
        while self.machines.cluster.is_armed() {
            self.sleep(Duration::from_millis(1)).await;
        }
    }

    /// It goes on.
    pub fn resume(&self, node: usize) {
        self.machine(node).resume();
    }

    /// No message goes to the node or comes from it, coordination's included.
    pub fn isolate(&self, node: usize) {
        self.machines.isolate(self.machine(node));
    }

    /// The node doesn't reach coordination, and nothing else is wrong.
    pub fn cut_off_coordination(&self, node: usize) {
        self.machines.store.cut_off(self.machine(node).id);
    }

    /// The node hears of changes in coordination only after this time.
    pub fn silence_watches(&self, node: usize, time: Duration) {
        let id = self.machine(node).id;
        self.machines.store.silence_watches(id, time);
    }

    /// The member of coordination on this node is the one that leads.
    pub fn lead_from(&self, node: usize) {
        self.machines.store.lead_from(self.machine(node).id);
    }

    /// Most members of coordination stop: nothing is answered until [`Stage::regain_quorum`].
    pub fn lose_quorum(&self) {
        self.machines.store.lose_quorum();
    }

    /// They are back.
    pub fn regain_quorum(&self) {
        self.machines.store.regain_quorum();
    }

    /// Coordination gets another leader.
    pub fn change_leader(&self) {
        self.machines.store.change_leader();
    }

    /// No message goes from one node to another.
    pub fn cut_one_way(&self, from: usize, to: usize) {
        let (from, to) = (self.machine(from), self.machine(to));
        self.machines
            .cluster
            .wires()
            .cut_one_way(&from.node, &to.node);
    }

    /// No message goes from one of two nodes to the other; both reach all else.
    pub fn cut(&self, one: usize, other: usize) {
        let (one, other) = (self.machine(one), self.machine(other));
        self.machines.cluster.wires().cut(&one.node, &other.node);
    }

    /// Other nodes that call this one are told that nobody listens there; it reaches all of them, and coordination.
    pub fn refuse(&self, node: usize) {
        let node = &self.machine(node).node;
        self.machines.cluster.wires().refuse(node);
    }

    /// One node that calls another one is told that nobody listens there; nothing else is wrong.
    pub fn refuse_from(&self, from: usize, to: usize) {
        let (from, to) = (self.machine(from), self.machine(to));
        let wires = self.machines.cluster.wires();
        wires.refuse_from(&from.node, &to.node);
    }

    /// All links and coordination work again.
    pub fn heal(&self) {
        for machine in &self.machines.nodes {
            self.machines.reconnect(machine);
        }
    }

    /// Gives the shard to a node. The one before may not hear of it yet.
    ///
    /// # Panics
    /// If the daemon isn't up.
    pub async fn assign(&self, node: usize) {
        let run = run_of(self.machine(node)).expect("its daemon is up");
        self.machines.assign(&self.judge, run).await;
    }

    /// Gives any shard to a node. The one before may not hear of it yet.
    ///
    /// # Panics
    /// If the daemon isn't up.
    pub async fn assign_shard(&self, shard: ShardId, node: usize) {
        let run = run_of(self.machine(node)).expect("its daemon is up");
        self.machines.assign_of(&self.judge, shard, run).await;
    }

    /// The node that hosts a shard, as itself sees it.
    #[must_use]
    pub fn host_of(&self, shard: ShardId) -> Option<usize> {
        let hosts = |machine: &Machine| {
            let member = machine.member();
            member.is_some_and(|member| member.hosted_of(shard).is_some())
        };
        self.machines.nodes.iter().position(hosts)
    }

    /// Gives the shard to a node, and waits until it serves there.
    ///
    /// # Panics
    /// If it doesn't.
    pub async fn move_shard(&self, node: usize) {
        self.assign(node).await;
        let machine = self.machine(node);
        let serves = || machine.member().is_some_and(|it| it.hosted().is_some());
        self.judge.until("the shard serves", STEP_MAX, serves).await;
    }

    /// Takes the shard from its owner, in good order. Once that one has given it up, the manager gives it to a node, and this
    /// returns when that one serves it.
    ///
    /// # Panics
    /// If that doesn't happen.
    pub async fn release_shard(&self) {
        let epoch = || {
            let owner = self.machines.owner().and_then(Machine::member);
            let hosted = owner.and_then(|member| member.hosted());
            hosted.map(|metanode| metanode.shard_status().epoch)
        };
        let before = epoch();
        self.machines.release(&self.judge).await;
        let is_next = || epoch().is_some_and(|epoch| Some(epoch) > before);
        let what = "the shard has another owner";
        self.judge.until(what, STEP_MAX, is_next).await;
    }

    /// Waits until one node is the cluster's manager and all are members.
    ///
    /// # Panics
    /// If that doesn't happen.
    pub async fn settled(&self) {
        self.machines.settled(&self.judge).await;
    }

    /// The node that is the cluster's manager, as itself sees it.
    #[must_use]
    pub fn manager(&self) -> Option<usize> {
        self.machines.manager()
    }

    /// Simulated time since the beginning.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.judge.now()
    }

    fn machine(&self, node: usize) -> &Machine {
        &self.machines.nodes[node]
    }
}

/// A client that waits for two minutes, longer than anything in a story is broken.
///
/// # Panics
/// If no owner gives it a session.
pub async fn client(member: &Member) -> Arc<Client> {
    member.open_client(patient()).await.expect("a session")
}

/// Such a client of a file system, and its root directory.
///
/// # Panics
/// If there is no such file system, or no owner gives it a session.
pub async fn client_of(member: &Member, name: &str) -> (Arc<Client>, InodeId) {
    let name = name.parse().expect("a name of a file system");
    let opened = member.open_client_of_file_system(&name, patient());
    opened.await.expect("a session")
}

fn patient() -> ClientSettings {
    ClientSettings {
        page_pool_bytes: 16 << 20,
        patience: super::turn::PATIENCE,
        ..ClientSettings::default()
    }
}
