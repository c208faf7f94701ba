//! Whole stops of a cluster whose nodes die, start again and don't hear each other: marks, tours and successions as they are,
//! and in a few words what steps do to a node.

use super::following::SETTLED_MAX;
use super::succession::{Heard, Succession, Turn, settled};
use super::tour::{Next, Outcome, Tour};
use crate::admin::MemberLine;
use crate::admin::stopping::{StepTaken, StopPart, StopStep, TakeStep};
use crate::daemon::stop_mark::{StopMark, run_of};
use fuzzing::{ROUNDS, Seen, Source, fuzz};
use model::{NodeId, NodeRun};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const NODES: u32 = 5;
/// The node whose people stop the cluster.
const FIRST: u32 = 3;
/// How often nodes look whose turn it is.
const ROUND: Duration = Duration::from_secs(2);
/// By then all is over: a node that hears nobody waits for each of the others, and asks them all.
const ROUNDS_MAX: usize = 400;

/// What can go wrong.
#[derive(Default)]
struct Faults {
    /// Only the first node dies.
    only_first: bool,
    deaths: usize,
    starts: usize,
    /// Messages that get lost, or whose answers do.
    losses: usize,
    /// Two nodes that never hear each other.
    apart: Option<(u32, u32)>,
}

struct Machine {
    run: NodeRun,
    is_up: bool,
    is_mounted: bool,
    has_clients: bool,
    mark: StopMark,
    following: Option<(NodeRun, Succession)>,
    work: Option<Work>,
}

/// What a node does that has others take steps.
struct Work {
    by: NodeRun,
    begun: Duration,
    /// `None`: it asks how far the stop has come.
    tour: Option<Tour>,
    /// Those that have yet to be asked for the step that is taken now.
    asked: Option<Vec<u32>>,
    said: Vec<(u32, Outcome)>,
}

impl Machine {
    fn start(node: u32, incarnation: u64) -> Self {
        Self {
            run: run_of((node, incarnation)),
            is_up: true,
            is_mounted: true,
            has_clients: true,
            mark: StopMark::default(),
            following: None,
            work: None,
        }
    }

    /// Members of etcd are in the middle, so that some nodes before and behind them have none.
    fn has_etcd(&self) -> bool {
        (2..=4).contains(&self.run.node.0)
    }

    fn takes_part(&self) -> bool {
        self.is_up && self.mark.followed().is_some()
    }

    fn end(&mut self) {
        self.is_up = false;
        self.work = None;
        self.following = None;
    }
}

struct Cluster<'a> {
    source: Source<'a>,
    machines: BTreeMap<u32, Machine>,
    faults: Faults,
    now: Duration,
    killed: BTreeSet<u32>,
}

impl<'a> Cluster<'a> {
    fn new(mut source: Source<'a>) -> Self {
        let faults = match source.below(3) {
            0 => Faults {
                only_first: true,
                deaths: 1,
                ..Faults::default()
            },
            _ => Faults {
                deaths: source.below(4),
                starts: source.below(4),
                losses: source.below(4),
                apart: match source.below(3) {
                    0 => None,
                    _ => {
                        let one = source.below(NODES as usize) as u32;
                        let other = source.below(NODES as usize - 1) as u32;
                        Some((1 + one, 1 + (one + 1 + other) % NODES))
                    }
                },
                ..Faults::default()
            },
        };
        let machines = (1..=NODES).map(|node| (node, Machine::start(node, 1)));
        let mut cluster = Self {
            source,
            machines: machines.collect(),
            faults,
            now: Duration::ZERO,
            killed: BTreeSet::new(),
        };
        let tour = Tour::of(&cluster.members(), FIRST, false);
        cluster.machine(FIRST).work = Some(Work {
            by: run_of((FIRST, 1)),
            begun: Duration::ZERO,
            tour: Some(tour),
            asked: None,
            said: Vec::new(),
        });
        cluster
    }

    fn machine(&mut self, node: u32) -> &mut Machine {
        self.machines.get_mut(&node).unwrap()
    }

    fn members(&self) -> Vec<MemberLine> {
        let line = |node: &u32| MemberLine {
            node: *node,
            name: format!("n{node}"),
            is_here: false,
        };
        self.machines.keys().map(line).collect()
    }

    fn runs(&self) -> Vec<NodeRun> {
        self.machines.values().map(|it| it.run).collect()
    }

    fn happens(&mut self, one_in: usize) -> bool {
        // Nothing more happens at the end of the input.
        self.source.below(one_in) == 1
    }

    fn is_cut(&self, one: u32, other: u32) -> bool {
        let apart = self.faults.apart;
        apart.is_some_and(|pair| pair == (one, other) || pair == (other, one))
    }

    /// All nodes do something; `true` if that was all.
    fn round(&mut self) -> bool {
        self.now += ROUND;
        self.break_something();
        let slow = match self.faults.only_first {
            true => 0,
            false => self.source.below(8) as u32,
        };
        for node in 1..=NODES {
            if self.machines[&node].work.is_some() {
                for _ in 0..=self.source.below(4) {
                    self.work(node);
                    self.break_something();
                }
            }
            if node != slow {
                self.follow(node);
            }
        }
        let mut machines = self.machines.values();
        machines.all(|it| !it.is_up || (it.work.is_none() && it.mark.now().is_none()))
    }

    fn break_something(&mut self) {
        if self.faults.deaths > 0 && self.happens(64) {
            self.faults.deaths -= 1;
            let node = match self.faults.only_first || self.source.chance() {
                true => FIRST,
                false => 1 + self.source.below(NODES as usize) as u32,
            };
            if self.machines[&node].is_up {
                self.killed.insert(node);
                self.machine(node).end();
            }
        }
        if self.faults.starts > 0 && self.happens(32) {
            self.faults.starts -= 1;
            let node = 1 + self.source.below(NODES as usize) as u32;
            let known = self.machine(node);
            if !known.is_up {
                *known = Machine::start(node, known.run.incarnation + 1);
            }
        }
    }

    /// A node that has others take steps gets one answer.
    fn work(&mut self, node: u32) {
        let Some(mut work) = self.machine(node).work.take() else {
            return;
        };
        let is_over = self.work_on(node, &mut work);
        let machine = self.machine(node);
        if !is_over && machine.is_up {
            machine.work = Some(work);
        }
    }

    /// Whether there is nothing left to do.
    fn work_on(&mut self, node: u32, work: &mut Work) -> bool {
        let own = self.machines[&node].run;
        if work.tour.is_none() {
            let is_late = self.now - work.begun >= SETTLED_MAX;
            let parts = self.parts(node, work.by, is_late);
            work.tour = parts.map(|parts| Tour::going_on(&self.members(), node, &parts));
            return false;
        }
        let tour = work.tour.as_mut().unwrap();
        match tour.next() {
            Next::Ask(step, nodes) => {
                let asked = work.asked.get_or_insert(nodes);
                if asked.is_empty() {
                    work.asked = None;
                    tour.take_in(std::mem::take(&mut work.said));
                    return false;
                }
                let to = asked.remove(self.source.below(asked.len()));
                let step = TakeStep {
                    step,
                    by: (work.by.node.0, work.by.incarnation),
                    run: tour.run_of(to),
                    force: false,
                };
                let outcome = self.ask(own, to, step);
                work.said.push((to, outcome));
                false
            }
            Next::Await(nodes) => {
                let has_ended = |node: &u32| {
                    let machine = &self.machines[node];
                    !machine.is_up || Some(machine.run.incarnation) != tour.run_of(*node)
                };
                let ended: Vec<u32> = nodes.into_iter().filter(has_ended).collect();
                tour.note_ended(&ended);
                false
            }
            Next::Over { .. } => true,
        }
    }

    fn ask(&mut self, from: NodeRun, to: u32, asked: TakeStep) -> Outcome {
        let silent = || Outcome::Silent("no answer".into());
        let is_own = from.node.0 == to;
        let is_lost = !is_own && self.faults.losses > 0 && self.happens(24);
        if is_lost {
            self.faults.losses -= 1;
        }
        if self.is_cut(from.node.0, to) || (is_lost && self.source.chance()) {
            return silent();
        }
        let outcome = self.take(from, to, asked);
        match is_lost {
            true => silent(),
            false => outcome,
        }
    }

    /// A node takes a step, as in `part`.
    fn take(&mut self, from: NodeRun, to: u32, asked: TakeStep) -> Outcome {
        let runs = self.runs();
        let has_ended = |run: NodeRun| runs.iter().any(|it| it.node == run.node && *it > run);
        let machine = self.machine(to);
        if !machine.is_up {
            return Outcome::Silent("it has died".into());
        }
        if asked.run.is_some_and(|run| run != machine.run.incarnation) {
            return Outcome::Replaced;
        }
        if let Err(error) = machine.mark.admit(&asked, from, has_ended) {
            return Outcome::Refused(error.to_string());
        }
        match asked.step {
            StopStep::Look | StopStep::Sync | StopStep::Retire => {}
            StopStep::Unmount => machine.is_mounted = false,
            StopStep::Resume => match machine.mark.go_on() {
                Ok(true) => {
                    machine.is_mounted = true;
                    machine.mark.over();
                }
                Ok(false) => {}
                Err(error) => return Outcome::Refused(error.to_string()),
            },
            StopStep::CloseClients => {
                assert!(!machine.is_mounted, "clients are closed under a mount");
                machine.has_clients = false;
            }
            StopStep::CloseShards => {
                assert!(!machine.has_clients, "shards are closed before clients");
                self.check_order(|it| it.has_clients);
            }
            StopStep::End => {
                let has_etcd = machine.has_etcd();
                machine.end();
                if has_etcd {
                    self.check_order(|it| !it.has_etcd() && it.run != from);
                }
            }
        }
        let machine = &self.machines[&to];
        Outcome::Taken(StepTaken {
            run: machine.run.incarnation,
            has_etcd: machine.has_etcd(),
            ..StepTaken::default()
        })
    }

    /// No node that takes part is still so, unless messages were lost.
    fn check_order(&self, is_early: impl Fn(&Machine) -> bool) {
        let mut parts = self.machines.values().filter(|it| it.takes_part());
        let is_early = parts.any(is_early);
        assert!(
            !self.faults.only_first || !is_early,
            "a step comes too early"
        );
    }

    /// A node looks whose turn it is, as in `following`.
    fn follow(&mut self, node: u32) {
        let (members, now) = (self.runs(), self.now);
        let machine = self.machine(node);
        let own = machine.run;
        let followed = machine.mark.followed().filter(|_| machine.is_up);
        let Some(by) = followed else {
            machine.following = None;
            return;
        };
        let known = machine.following.take().filter(|(known, _)| *known == by);
        let (_, mut succession) = known.unwrap_or_else(|| (by, Succession::new(own, by)));
        match succession.turn(&members) {
            Turn::Own => {
                let work = || Work {
                    by,
                    begun: now,
                    tour: None,
                    asked: None,
                    said: Vec::new(),
                };
                machine.work.get_or_insert_with(work);
            }
            Turn::Of(_) => {
                let asked = succession.asked(&members).into_iter();
                let said: Vec<_> = asked.map(|run| (run, self.hear(node, run, by))).collect();
                succession.take_in(&members, &said, now);
                if succession.is_orphaned() {
                    self.machine(node).mark.orphan(by);
                }
            }
        }
        self.machine(node).following = Some((by, succession));
    }

    fn hear(&self, asks: u32, run: NodeRun, by: NodeRun) -> Heard {
        let NodeId(node) = run.node;
        if self.is_cut(asks, node) {
            return Heard::Silent;
        }
        let machine = &self.machines[&node];
        if !machine.is_up || machine.run != run {
            return Heard::Over;
        }
        Heard::Part(StopPart {
            drives: machine.work.is_some(),
            ..machine.mark.part(by, run)
        })
    }

    /// How far the stop has come on all nodes, once that is certain, or it is too late to wait for that.
    fn parts(&self, asks: u32, by: NodeRun, is_late: bool) -> Option<BTreeMap<u32, StopPart>> {
        let mut parts = BTreeMap::new();
        for run in self.runs() {
            let heard = self.hear(asks, run, by);
            let known = match (settled(heard), heard) {
                (Some(known), _) => known,
                (None, _) if !is_late => return None,
                (None, Heard::Part(part)) => Some(part),
                (None, Heard::Over | Heard::Silent) => None,
            };
            parts.extend(known.map(|part| (run.node.0, part)));
        }
        Some(parts)
    }
}

/// Would be broken if a node waited for ever with its mounts ended, or closed its clients under programs, because somebody
/// died in the midst of a stop; and if some nodes ended and others went on, because whoever had them stop died.
#[test]
fn whatever_dies_in_the_midst_of_a_stop_no_node_stays_half_stopped() {
    let (finished, called_off, mixed) = (Seen::default(), Seen::default(), Seen::default());
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut cluster = Cluster::new(Source::new(input));
        let is_over = (0..ROUNDS_MAX).any(|_| cluster.round());
        assert!(is_over, "a node stays half stopped");
        let (mut up, mut ended) = (0, 0);
        for (node, machine) in &cluster.machines {
            match machine.is_up {
                true => {
                    assert!(machine.is_mounted && machine.has_clients, "node {node}");
                    up += 1;
                }
                false if cluster.killed.contains(node) => {}
                false => ended += 1,
            }
        }
        if cluster.faults.only_first {
            assert!(
                up == 0 || ended == 0,
                "{up} nodes are up, {ended} have ended"
            );
            if !cluster.killed.is_empty() {
                let seen = if up > 0 { &called_off } else { &finished };
                seen.note();
            }
        } else if up > 0 && ended > 0 {
            mixed.note();
        }
    });
    finished.check(10, "stops are finished by another node");
    called_off.check(10, "stops are called off");
    mixed.check(1, "nodes end without others");
}
