//! Random requests of three processes under faults: every answer must be explained by the changes
//! that really happened, in their order.

mod explain;

use super::patient::PATIENCE;
use super::{DISK, embedded, machine};
use crate::etcd::tests::servers::{Servers, in_real_time};
use crate::simulated::{Chances, Simulated};
use crate::{Change, Coordination, Event, Facts, Lease, LeaseId, News, Reading, Versioned};
use bytes::Bytes;
use explain::explain;
use futures::future::{join, join_all};
use model::{NodeId, Result};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;
use world::sim::{Faults, Simulation};
use world::{Deadline, Instant, Task, World};

const KEYS: u64 = 5;
const SEEDS: u64 = 60;

/// How much is done, and how long it takes.
#[derive(Clone, Copy)]
struct Measure {
    /// Requests of each process.
    actions: usize,
    /// The longest pause between two.
    pause: Duration,
    /// The longest lease.
    lease_seconds: u64,
    /// How much later than they happened the witness may hear of changes.
    late: Duration,
}

const SIMULATED: Measure = Measure {
    actions: 80,
    pause: Duration::from_secs(3),
    lease_seconds: 6,
    late: Duration::ZERO,
};
const REAL: Measure = Measure {
    actions: 100,
    pause: Duration::from_millis(400),
    lease_seconds: 3,
    late: Duration::from_secs(20),
};

/// A request and its outcome, as its caller saw it.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) sent: Instant,
    pub(super) answered: Instant,
    pub(super) outcome: Outcome,
}

#[derive(Debug)]
pub(super) enum Outcome {
    Got(String, Result<Reading<Option<Versioned<Bytes>>>>),
    Listed(Result<Reading<Facts>>),
    Changed(Vec<Change>, Result<u64>),
    Granted(Result<Lease>),
    Alive(LeaseId, Result<Duration>),
    Revoked(LeaseId, Result<()>),
    /// A watch after this revision told all this, and then was lost (or not).
    Told(u64, Vec<(u64, Vec<Event>)>),
}

/// What happened.
pub(super) struct Happened {
    pub(super) at: Instant,
    pub(super) revision: u64,
    pub(super) events: Vec<Event>,
}

struct Actor {
    world: World,
    store: Coordination,
    process: u64,
    calls: Vec<Call>,
    versions: BTreeMap<String, u64>,
    leases: Vec<LeaseId>,
    written: u64,
    measure: Measure,
}

impl Actor {
    fn chance(&self, bound: u64) -> u64 {
        self.world.random_u64() % bound
    }

    fn key(&self) -> String {
        format!("key/{}", self.chance(KEYS))
    }

    async fn act(mut self) -> Vec<Call> {
        let mut watch = None;
        for _ in 0..self.measure.actions {
            let sent = self.world.now();
            let outcome = match self.chance(16) {
                0..=2 => {
                    let key = self.key();
                    let got = self.store.get(&key).await;
                    if let Ok(reading) = &got {
                        let version = reading.found.as_ref().map_or(0, |fact| fact.version);
                        self.versions.insert(key.clone(), version);
                    }
                    Outcome::Got(key, got)
                }
                3 => {
                    let listed = self.store.list("").await;
                    if let Ok(reading) = &listed {
                        let found = reading.found.iter();
                        self.versions = found
                            .map(|(key, fact)| (key.clone(), fact.version))
                            .collect();
                    }
                    Outcome::Listed(listed)
                }
                4..=9 => {
                    let changes = self.changes();
                    let changed = self.store.transaction(changes.clone()).await;
                    if let Ok(version) = changed {
                        for change in &changes {
                            self.versions.insert(change.key.clone(), version);
                        }
                    }
                    Outcome::Changed(changes, changed)
                }
                10 => {
                    let ttl = Duration::from_secs(1 + self.chance(self.measure.lease_seconds));
                    let granted = self.store.grant(ttl).await;
                    self.leases.extend(granted.iter().map(|lease| lease.id));
                    Outcome::Granted(granted)
                }
                11 | 12 if !self.leases.is_empty() => {
                    let lease = self.leases[self.chance(self.leases.len() as u64) as usize];
                    Outcome::Alive(lease, self.store.keep_alive(lease).await)
                }
                13 if !self.leases.is_empty() => {
                    let lease = self.leases[self.chance(self.leases.len() as u64) as usize];
                    Outcome::Revoked(lease, self.store.revoke(lease).await)
                }
                14 => {
                    let longest = self.measure.pause.as_millis() as u64;
                    let pause = Duration::from_millis(self.chance(longest));
                    self.world.sleep(pause).await;
                    continue;
                }
                _ => {
                    let (after, told) = self.watch(&mut watch).await;
                    Outcome::Told(after, told)
                }
            };
            self.calls.push(Call {
                sent,
                answered: self.world.now(),
                outcome,
            });
        }
        self.calls
    }

    /// Changes of some keys, one of which is always put: its value tells the change from others.
    fn changes(&mut self) -> Vec<Change> {
        let mut changes = BTreeMap::new();
        for number in 0..=self.chance(3) {
            let key = self.key();
            let known = self.versions.get(&key).copied().unwrap_or(0);
            let expected = if self.chance(8) == 0 { 0 } else { known };
            self.written += 1;
            let value = format!("{}.{}", self.process, self.written);
            let lease = self.leases.last().copied();
            let change = match (self.chance(6), lease) {
                (0, _) if number > 0 => Change::keep(key.clone(), expected),
                (1, _) if number > 0 => Change::remove(key.clone(), expected),
                (2 | 3, Some(lease)) => Change::put_leased(key.clone(), expected, value, lease),
                _ => Change::put(key.clone(), expected, value),
            };
            changes.entry(key).or_insert(change);
        }
        changes.into_values().collect()
    }

    /// Goes on with a watch, or begins one at a revision that is known.
    async fn watch(
        &self,
        watch: &mut Option<(crate::Watch, u64)>,
    ) -> (u64, Vec<(u64, Vec<Event>)>) {
        let newest = self.versions.values().max().copied().unwrap_or(1);
        let (mut running, after) = watch
            .take()
            .unwrap_or_else(|| (self.store.watch("key/", newest), newest));
        let mut told = Vec::new();
        for _ in 0..=self.chance(10) {
            match running.next(PATIENCE / 5).await {
                News::Changed { revision, events } => told.push((revision, events)),
                News::Quiet => {}
                News::Lost => return (after, told),
            }
        }
        let last = told.last().map_or(after, |(revision, _)| *revision);
        *watch = Some((running, last));
        (after, told)
    }
}

async fn act(world: &World, processes: Vec<Coordination>, measure: Measure) -> Vec<Call> {
    let actors = (1..).zip(processes).map(|(process, store)| {
        Actor {
            world: world.clone(),
            store,
            process,
            calls: Vec::new(),
            versions: BTreeMap::new(),
            leases: Vec::new(),
            written: 0,
            measure,
        }
        .act()
    });
    join_all(actors).await.into_iter().flatten().collect()
}

/// Notes all changes as a watch tells them.
struct Witness {
    noting: watch::Sender<u64>,
    happened: Task<Vec<Happened>>,
}

impl Witness {
    /// Notes changes after this revision.
    fn new(world: &World, store: &Coordination, begun: u64) -> Self {
        // The revision that is to be heard before it ends.
        let (noting, until) = watch::channel(u64::MAX);
        let mut told = store.watch("", begun);
        let clock = world.clone();
        let noted = async move {
            let mut happened = Vec::new();
            let mut heard = begun;
            while heard < *until.borrow() {
                match told.next(Duration::from_millis(500)).await {
                    News::Changed { revision, events } => {
                        heard = revision;
                        let at = clock.now();
                        happened.push(Happened {
                            at,
                            revision,
                            events,
                        });
                    }
                    News::Quiet => {}
                    News::Lost => panic!("the witness reads on all the time"),
                }
            }
            happened
        };
        Self {
            noting,
            happened: world.spawn("witness", noted),
        }
    }

    /// All changes up to now.
    async fn end(self, store: &Coordination) -> Vec<Happened> {
        let last = store.transaction(vec![Change::put("key/end", 0, "")]);
        let last = last.await.unwrap();
        self.noting.send_replace(last);
        let mut happened = self.happened.await;
        assert_eq!(happened.pop().map(|one| one.revision), Some(last));
        happened
    }
}

/// Whatever is stored is what was put last.
fn is_as_told(stored: &Facts, happened: &[Happened]) {
    assert!(stored.iter().all(|(key, fact)| {
        let put = happened.iter().find(|one| one.revision == fact.version);
        let event = put.and_then(|put| put.events.iter().find(|e| e.key == *key));
        event.is_some_and(|event| event.value.as_ref() == Some(&fact.value))
    }));
}

/// After all faults: whatever is stored is what happened, and nothing is left of any lease.
async fn settled(world: &World, store: &Coordination, happened: impl AsyncFn() -> Vec<Happened>) {
    world.sleep(Duration::from_secs(60)).await;
    let list = store.list("").await.unwrap();
    let mut keys: BTreeMap<String, Versioned<Bytes>> = BTreeMap::new();
    for Happened {
        revision, events, ..
    } in happened().await
    {
        for Event { key, value } in events {
            let version = revision;
            match value {
                Some(value) => keys.insert(key, Versioned { value, version }),
                None => keys.remove(&key),
            };
        }
    }
    assert!(list.found.into_iter().eq(keys));
}

/// Breaks the simulated store in turn until the actors are done.
async fn break_things(world: &World, store: &Simulated) {
    for _ in 0..12 {
        let time = Duration::from_millis(world.random_u64() % 6000);
        let node = NodeId((world.random_u64() % 3) as u32 + 1);
        match world.random_u64() % 6 {
            0 => store.change_leader(),
            1 => {
                store.lose_quorum();
                world.sleep(time).await;
                store.regain_quorum();
            }
            2 => {
                store.cut_off(node);
                world.sleep(time).await;
                store.reconnect(node);
            }
            3 => store.silence_watches(node, time),
            4 => store.compact(),
            _ => {
                store.set_chances(Chances::HARSH);
                world.sleep(time).await;
                store.set_chances(Chances::NONE);
            }
        }
        let pause = Duration::from_millis(world.random_u64() % 3000);
        world.sleep(pause).await;
    }
    store.heal();
}

fn run_simulated(seed: u64) -> u64 {
    Simulation::new(seed)
        .run(|world| async move {
            let store = Simulated::new(&world, seed);
            let processes = [1, 2, 3].map(|node| store.connect(NodeId(node), &world));
            let last = processes[0].clone();
            let acting = act(&world, processes.to_vec(), SIMULATED);
            let (calls, ()) = join(acting, break_things(&world, &store)).await;
            let happened = || async {
                let record = store.record(0).into_iter();
                record
                    .map(|recorded| Happened {
                        at: recorded.at,
                        revision: recorded.revision,
                        events: recorded.events,
                    })
                    .collect()
            };
            settled(&world, &last, happened).await;
            explain(&happened().await, &calls, SIMULATED.late);
            store.trace_hash()
        })
        .finished()
}

#[test]
fn every_answer_of_simulated_etcd_is_explained() {
    for seed in 0..SEEDS {
        run_simulated(seed);
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    let runs: Vec<u64> = (0..5).map(run_simulated).collect();
    let again: Vec<u64> = (0..5).map(run_simulated).collect();
    assert_eq!(runs, again);
    assert!(runs.windows(2).all(|two| two[0] != two[1]));
}

/// The disk of the embedded store fails and hangs now and then.
async fn break_disk(world: &World, faults: &Faults) {
    for _ in 0..8 {
        let pause = Duration::from_millis(world.random_u64() % 4000);
        world.sleep(pause).await;
        match world.random_u64() % 2 {
            0 => faults.fail(DISK),
            _ => faults.slow(DISK, Duration::from_secs(40)),
        }
        let time = Duration::from_millis(world.random_u64() % 3000);
        world.sleep(time).await;
        faults.heal(DISK);
    }
}

#[test]
fn every_answer_of_the_embedded_store_is_explained() {
    for seed in 0..SEEDS {
        let machine = machine(seed);
        let faults = machine.faults();
        machine
            .run(|world| async move {
                let store = embedded(&world).await;
                let begun = store.list("").await.unwrap().revision;
                let witness = Witness::new(&world, &store, begun);
                let processes = vec![store.clone(); 3];
                let acting = act(&world, processes, SIMULATED);
                let (calls, ()) = join(acting, break_disk(&world, &faults)).await;
                // Longer than a change that hangs.
                world.sleep(Duration::from_secs(200)).await;
                let stored = store.list("").await.unwrap().found;
                let happened = witness.end(&store).await;
                explain(&happened, &calls, SIMULATED.late);
                is_as_told(&stored, &happened);
            })
            .finished();
    }
}

/// Kills members, the leader more often than not, and stops one for a moment; never two at once.
async fn break_members(world: &World, servers: &mut Servers) {
    for round in 0..5 {
        let pause = Duration::from_millis(world.random_u64() % 1500);
        world.sleep(pause).await;
        let member = match round % 2 {
            0 => servers.leader(world).await,
            _ => (world.random_u64() % 3) as usize,
        };
        let time = Duration::from_millis(world.random_u64() % 2000);
        if round == 3 {
            servers.pause(member);
            // Less than a lease lasts: see `crate::etcd`.
            world.sleep(time / 4).await;
            servers.resume(member);
            continue;
        }
        servers.kill(member);
        world.sleep(time).await;
        servers.begin(member);
        servers.until_ready(world, member).await;
    }
}

#[test]
fn every_answer_of_an_etcd_whose_members_are_killed_is_explained() {
    let mut servers = Servers::start(3, &[]);
    let settings = servers.settings_of_its_own();
    in_real_time(async |world| {
        let processes = [(); 3].map(|()| Coordination::etcd(&world, &settings).unwrap());
        let [store, ..] = &processes;
        let begun = store.list("").await.unwrap().revision;
        let witness = Witness::new(&world, store, begun);
        let acting = act(&world, processes.to_vec(), REAL);
        let (calls, ()) = join(acting, break_members(&world, &mut servers)).await;
        // What was sent to members that were killed is done by now, or never.
        let deadline = Deadline::after(&world, Duration::from_secs(60));
        let stored = loop {
            let first = store.list("").await;
            world.sleep(Duration::from_secs(5)).await;
            // All leases have ended.
            match (first, store.list("").await) {
                (Ok(first), Ok(second)) if first.revision == second.revision => break second.found,
                _ => assert!(!deadline.has_passed(&world)),
            }
        };
        let happened = witness.end(store).await;
        explain(&happened, &calls, REAL.late);
        is_as_told(&stored, &happened);
    });
}
