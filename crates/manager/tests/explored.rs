//! Every order of events of two nodes that are the manager in turn, up to written bounds.

use super::cluster::{Cluster, Life, Message};
use super::judged;
use manager::Planted;
use stateright::{Checker, Model, Property};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// One in so many states is brought to rest as well, chosen by its hash.
const RESTED: u64 = 50;
/// How far the clock goes in a step.
const TICK: Duration = Duration::from_millis(3_300);

/// How often things may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Budget {
    passed: u32,
    /// Times that a node acts before time passes again.
    acts: u32,
    killed: u32,
    /// Times that the last two nodes die at once.
    racks: u32,
    paused: u32,
    cut: u32,
    /// Messages that come at any later time, or never. All others come at once.
    held: u32,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    cluster: Cluster,
    budget: Budget,
    /// What the nodes have acted since time passed.
    acted: [u32; 3],
    held: Vec<Message>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    /// A node reads coordination, and does what it does by itself.
    Act(usize),
    /// The same; the first message that comes of it is held.
    ActUnheard(usize),
    /// The same; the first answer that comes of it is held.
    ActUnanswered(usize),
    /// A message that was held arrives.
    Deliver(usize),
    Pass,
    Kill(usize),
    KillRack,
    Start(usize),
    Pause(usize),
    Resume(usize),
    Cut(u32, u32),
    Heal,
}

struct Explored {
    start: State,
}

impl Model for Explored {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.start.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        let (cluster, budget) = (&state.cluster, state.budget);
        for (at, node) in cluster.nodes.iter().enumerate() {
            match node.life {
                Life::Running => {
                    if state.acted[at] < budget.acts {
                        actions.push(Step::Act(at));
                        if budget.held > 0 {
                            actions.extend([Step::ActUnheard(at), Step::ActUnanswered(at)]);
                        }
                    }
                    actions.extend((budget.killed > 0).then_some(Step::Kill(at)));
                    actions.extend((budget.paused > 0).then_some(Step::Pause(at)));
                }
                Life::Paused => actions.push(Step::Resume(at)),
                Life::Down => actions.push(Step::Start(at)),
            }
        }
        let rack = &cluster.nodes[1..];
        let lives = rack.iter().all(|node| node.life == Life::Running);
        actions.extend((budget.racks > 0 && lives).then_some(Step::KillRack));
        actions.extend((0..state.held.len()).map(Step::Deliver));
        actions.extend((budget.passed > 0).then_some(Step::Pass));
        if budget.cut > 0 {
            actions.extend([Step::Cut(1, 2), Step::Cut(0, 1), Step::Cut(0, 2)]);
        }
        actions.extend((!cluster.cuts.is_empty()).then_some(Step::Heal));
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        let held = next.take(step);
        next.settle(held);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "one owner, and nobody expelled early",
                |_, state: &State| state.cluster.check().is_ok(),
            ),
            Property::always("all is well in the end", |_, state: &State| {
                let mut hasher = DefaultHasher::new();
                state.hash(&mut hasher);
                let is_chosen = hasher.finish().is_multiple_of(RESTED);
                !is_chosen || state.clone().comes_to_rest()
            }),
        ]
    }
}

impl State {
    fn take(&mut self, step: Step) -> Hold {
        let cluster = &mut self.cluster;
        match step {
            Step::Act(at) => self.act(at),
            Step::ActUnheard(at) => {
                self.act(at);
                self.budget.held -= 1;
                return Hold::First;
            }
            Step::ActUnanswered(at) => {
                self.act(at);
                self.budget.held -= 1;
                return Hold::Reply;
            }
            Step::Deliver(at) => {
                let message = self.held.remove(at);
                cluster.messages.insert(0, message);
                if cluster.can_arrive(0) {
                    cluster.deliver(0);
                }
            }
            Step::Pass => {
                self.budget.passed -= 1;
                self.acted = [0; 3];
                cluster.pass(TICK);
            }
            Step::Kill(at) => {
                self.budget.killed -= 1;
                cluster.kill(at);
            }
            Step::KillRack => {
                self.budget.racks -= 1;
                (1..cluster.nodes.len()).for_each(|at| cluster.kill(at));
            }
            Step::Start(at) => cluster.start(at),
            Step::Pause(at) => {
                self.budget.paused -= 1;
                cluster.nodes[at].life = Life::Paused;
            }
            Step::Resume(at) => cluster.nodes[at].life = Life::Running,
            Step::Cut(one, other) => {
                self.budget.cut -= 1;
                cluster.cuts.insert((one, other));
            }
            Step::Heal => cluster.cuts.clear(),
        }
        Hold::Nothing
    }

    fn comes_to_rest(mut self) -> bool {
        // What coordination was asked and never did has no outcome.
        for message in self.held {
            self.cluster.messages.push(message);
            let at = self.cluster.messages.len() - 1;
            self.cluster.lose(at, false);
        }
        self.cluster.come_to_rest().is_ok()
    }

    fn act(&mut self, at: usize) {
        self.acted[at] += 1;
        self.cluster.read(at);
        self.cluster.duties(at);
    }

    /// All messages that can arrive do.
    fn settle(&mut self, mut hold: Hold) {
        let cluster = &mut self.cluster;
        loop {
            let is_due = |at: &usize| cluster.can_arrive(*at) && !stands_still(cluster, *at);
            let Some(at) = (0..cluster.messages.len()).find(is_due) else {
                break;
            };
            let is_reply = matches!(
                cluster.messages[at],
                Message::Reply { .. } | Message::Told { .. }
            );
            match hold {
                Hold::First => self.held.push(cluster.messages.remove(at)),
                Hold::Reply if is_reply => self.held.push(cluster.messages.remove(at)),
                _ => {
                    cluster.deliver(at);
                    continue;
                }
            }
            hold = Hold::Nothing;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    Nothing,
    First,
    Reply,
}

/// The message waits in the buffers of a machine that stands still.
fn stands_still(cluster: &Cluster, at: usize) -> bool {
    match &cluster.messages[at] {
        Message::Heartbeat { to, .. } | Message::Reply { to, .. } | Message::Told { to, .. } => {
            let node = cluster.node(to.node);
            node.run == *to && node.life == Life::Paused
        }
        _ => false,
    }
}

fn explore(name: &str, budget: Budget, planted: Option<Planted>) -> bool {
    // The second node's clock is as slow as a clock may be beside the first one's.
    explore_from(name, Cluster::new(&[24, -24], 1, planted), budget)
}

fn explore_from(name: &str, mut cluster: Cluster, budget: Budget) -> bool {
    // Until all are members, and the shards are served.
    for _ in 0..200 {
        cluster.calm_tick();
    }
    judged::rest(&cluster).expect("all nodes become members");
    let start = State {
        cluster,
        budget,
        acted: [0; 3],
        held: Vec::new(),
    };
    let checker = Explored { start }.checker().spawn_bfs().join();
    println!("{name}: {} states", checker.unique_state_count());
    checker.discoveries().is_empty()
}

const NONE: Budget = Budget {
    passed: 4,
    acts: 1,
    killed: 0,
    racks: 0,
    paused: 0,
    cut: 0,
    held: 0,
};

#[test]
fn a_node_that_is_killed() {
    let budget = Budget {
        killed: 1,
        held: 1,
        ..NONE
    };
    assert!(explore("killed", budget, None));
}

/// Two of three nodes die at once, at any moment of what the third one does about it, and start again.
#[test]
fn a_rack_that_is_killed() {
    let budget = Budget {
        racks: 1,
        passed: 3,
        ..NONE
    };
    let cluster = Cluster::new(&[24, -24, 0], 3, None).spread();
    assert!(explore_from("rack", cluster, budget));
}

#[test]
fn a_node_that_stands_still_and_goes_on() {
    let budget = Budget { paused: 2, ..NONE };
    assert!(explore("paused", budget, None));
}

#[test]
fn a_node_that_is_cut_off() {
    let budget = Budget { cut: 2, ..NONE };
    assert!(explore("cut", budget, None));
}

#[test]
fn messages_that_come_late_or_never() {
    let budget = Budget {
        held: 2,
        paused: 1,
        ..NONE
    };
    assert!(explore("held", budget, None));
}

#[test]
fn exploring_finds_a_plan_that_marks_only_one_of_two_that_it_expels() {
    let budget = Budget {
        racks: 1,
        passed: 2,
        ..NONE
    };
    let planted = Some(Planted::MarkFirst);
    let cluster = Cluster::new(&[24, -24, 0], 3, planted).spread();
    assert!(!explore_from("planted", cluster, budget));
}

/// Would pass without exploring anything if it found no fault that is there.
#[test]
fn exploring_finds_a_manager_that_counts_from_the_wrong_moment() {
    let budget = Budget {
        killed: 1,
        passed: 2,
        ..NONE
    };
    let planted = Some(Planted::CountEarly);
    let cluster = Cluster::new(&[24, -24, 0], 3, planted).spread();
    assert!(!explore_from("planted", cluster, budget));
}
