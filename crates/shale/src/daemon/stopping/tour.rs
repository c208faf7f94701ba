//! What the nodes of a cluster that is being stopped have said, and what follows from it: who is asked next, whether the
//! cluster goes on instead, and what people are told.

use crate::admin::MemberLine;
use crate::admin::stopping::{ClusterStopped, StepTaken, StopPart, StopStep, StoppedNode};
use std::collections::BTreeMap;

/// What can be done about a node that gave no answer.
const SILENT_REMEDY: &str = "`shale down` there, or `shale down --kill` if its daemon doesn't answer there either; `--force` stops the others without it";
/// What can be done about a node that goes on.
const UP_REMEDY: &str = "`shale down` there";
/// What can be done about a node that wasn't seen to have ended.
const ENDS_REMEDY: &str = "look there whether its daemon has ended; `shale down` waits for it";
/// What is wrong with a node that was started meanwhile.
const REPLACED: &str = "its daemon was started again meanwhile, and has no part in this";

/// What became of a step on a node.
#[derive(Debug)]
pub enum Outcome {
    /// It was taken.
    Taken(StepTaken),
    /// The run that has taken the steps before has ended, and the node's next one, which answers, has taken none.
    Replaced,
    /// It wasn't, or not as it should.
    Refused(String),
    /// The node didn't answer.
    Silent(String),
}

/// What is done next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// These nodes are to take this step: what they say is [taken in](Tour::take_in).
    Ask(StopStep, Vec<u32>),
    /// It is waited, for a bounded time, until these have ended: those that have are [noted](Tour::note_ended).
    Await(Vec<u32>),
    /// Nothing.
    Over {
        /// Whether nodes end; otherwise all go on.
        stops: bool,
    },
}

/// How far the tour has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Look,
    Unmount,
    Sync,
    /// The cluster goes on, and nodes take back what they did.
    Back,
    CloseClients,
    CloseShards,
    Retire,
    /// Other nodes end: those with a member of etcd, or without.
    End {
        has_etcd: bool,
    },
    Await {
        has_etcd: bool,
    },
    /// This node ends.
    EndHere,
    Over {
        stops: bool,
    },
}

/// The members of the cluster, as they were when it began to be stopped.
pub struct Tour {
    force: bool,
    /// The node that has the others take the steps.
    own: u32,
    at: At,
    places: BTreeMap<u32, Place>,
}

struct Place {
    member: MemberLine,
    /// The run that takes the steps, once it has said so.
    run: Option<u64>,
    /// That run has ended, and its node's next one has no part in this.
    is_replaced: bool,
    has_etcd: bool,
    /// The first step at which it gave no answer.
    silent_at: Option<StopStep>,
    /// What is wrong, in the order in which it was said.
    troubles: Vec<String>,
    left: Vec<String>,
    was_told_to_end: bool,
    has_ended: bool,
}

impl Tour {
    /// Of these members. `force`: what can't be unmounted or made durable doesn't hold it up.
    pub fn of(members: &[MemberLine], own: u32, force: bool) -> Self {
        let places = members.iter().map(|it| (it.node, Place::of(it, None)));
        Self {
            force,
            own,
            at: At::Look,
            places: places.collect(),
        }
    }

    /// Of the members that have a part in a stop which nobody goes on with: it is finished if there is no way back for one of
    /// them, and called off otherwise.
    pub fn going_on(members: &[MemberLine], own: u32, parts: &BTreeMap<u32, StopPart>) -> Self {
        let taking = members.iter().filter_map(|it| {
            let part = parts.get(&it.node).filter(|part| part.takes_part)?;
            Some((it.node, Place::of(it, Some(part.run))))
        });
        let is_final = parts.values().any(|part| part.takes_part && part.is_final);
        Self {
            force: false,
            own,
            at: match is_final {
                true => At::CloseClients,
                false => At::Back,
            },
            places: taking.collect(),
        }
    }

    /// Whether a node is one of them.
    pub fn has(&self, node: u32) -> bool {
        self.places.contains_key(&node)
    }

    /// The run of a node that takes the steps; `None`: it hasn't answered yet.
    pub fn run_of(&self, node: u32) -> Option<u64> {
        self.places.get(&node)?.run
    }

    /// What is done next.
    pub fn next(&self) -> Next {
        let step = match self.at {
            At::Look => StopStep::Look,
            At::Unmount => StopStep::Unmount,
            At::Sync => StopStep::Sync,
            At::CloseClients => StopStep::CloseClients,
            At::CloseShards => StopStep::CloseShards,
            At::Retire => StopStep::Retire,
            At::Back => return Next::Ask(StopStep::Resume, self.reached()),
            At::End { has_etcd } => return Next::Ask(StopStep::End, self.others(has_etcd)),
            At::Await { has_etcd } => return Next::Await(self.others(has_etcd)),
            At::EndHere => return Next::Ask(StopStep::End, vec![self.own]),
            At::Over { stops } => return Next::Over { stops },
        };
        // All that have answered so far.
        Next::Ask(step, self.which(|it| it.silent_at.is_none()))
    }

    /// Those that may have taken a step: all that have answered once.
    fn reached(&self) -> Vec<u32> {
        self.which(|it| it.silent_at != Some(StopStep::Look))
    }

    /// Those that end before this node does: with a member of etcd, or without.
    fn others(&self, has_etcd: bool) -> Vec<u32> {
        self.which(|it| {
            let is_reached = it.silent_at != Some(StopStep::Look);
            is_reached && it.member.node != self.own && it.has_etcd == has_etcd
        })
    }

    fn which(&self, is_meant: impl Fn(&Place) -> bool) -> Vec<u32> {
        let found = self.places.iter();
        let found = found.filter(|(_, place)| !place.is_replaced && is_meant(place));
        found.map(|(node, _)| *node).collect()
    }

    /// What the nodes have said that were to take a step.
    pub fn take_in(&mut self, said: Vec<(u32, Outcome)>) {
        let Next::Ask(step, _) = self.next() else {
            unreachable!("nobody is asked at {:?}", self.at);
        };
        let mut goes_on = true;
        for (node, outcome) in said {
            if let Some(place) = self.places.get_mut(&node) {
                goes_on &= place.take_in(step, outcome, self.force);
            }
        }
        self.at = match self.at {
            At::Look if !goes_on => At::Over { stops: false },
            At::Unmount | At::Sync if !goes_on => At::Back,
            At::Look => At::Unmount,
            At::Unmount => At::Sync,
            At::Sync => At::CloseClients,
            At::CloseClients => At::CloseShards,
            At::CloseShards => At::Retire,
            At::Retire => At::End { has_etcd: false },
            At::End { has_etcd } => At::Await { has_etcd },
            At::EndHere => At::Over { stops: true },
            At::Back => At::Over { stops: false },
            At::Await { .. } | At::Over { .. } => self.at,
        };
    }

    /// Of those that it was waited for, these have ended.
    pub fn note_ended(&mut self, nodes: &[u32]) {
        for node in nodes {
            if let Some(place) = self.places.get_mut(node) {
                place.has_ended = true;
            }
        }
        self.at = match self.at {
            At::Await { has_etcd: false } => At::End { has_etcd: true },
            At::Await { has_etcd: true } => At::EndHere,
            at => at,
        };
    }

    /// What people are told: of all members, and of `more` nodes that weren't asked.
    pub fn report(self, stops: bool, more: Vec<StoppedNode>) -> ClusterStopped {
        let places = self.places.into_values();
        let mut nodes: Vec<_> = places.map(|place| place.report(stops)).collect();
        nodes.extend(more);
        ClusterStopped { stops, nodes }
    }
}

impl Place {
    fn of(member: &MemberLine, run: Option<u64>) -> Self {
        Self {
            member: member.clone(),
            run,
            is_replaced: false,
            has_etcd: false,
            silent_at: None,
            troubles: Vec::new(),
            left: Vec::new(),
            was_told_to_end: false,
            has_ended: false,
        }
    }

    /// What it has said to a step; whether the next one may come.
    fn take_in(&mut self, step: StopStep, outcome: Outcome, force: bool) -> bool {
        let may_go_back = matches!(step, StopStep::Unmount | StopStep::Sync);
        match outcome {
            Outcome::Taken(taken) => self.take(step, taken),
            Outcome::Replaced => {
                self.is_replaced = true;
                self.troubles.push(REPLACED.into());
                // What the run before had not made durable is lost, and people should hear of it before the others end.
                force || !may_go_back
            }
            Outcome::Refused(why) => {
                self.troubles.push(in_words(step, why));
                // Something stands against the stop as such.
                step != StopStep::Look && (force || !may_go_back)
            }
            // Whether it has ended is seen by looking at it.
            Outcome::Silent(_) if step == StopStep::End => {
                self.was_told_to_end = true;
                true
            }
            Outcome::Silent(why) => {
                self.troubles.push(in_words(step, why));
                self.silent_at.get_or_insert(step);
                // It may be slow only, with something to make durable.
                force || !(may_go_back || step == StopStep::Look)
            }
        }
    }

    fn take(&mut self, step: StopStep, taken: StepTaken) -> bool {
        self.run = Some(taken.run);
        self.has_etcd = taken.has_etcd;
        self.left.extend(taken.left);
        self.was_told_to_end |= step == StopStep::End;
        let is_idle = taken.busy.is_empty();
        self.troubles.extend(taken.busy);
        is_idle
    }

    fn report(self, stops: bool) -> StoppedNode {
        let (state, remedy) = match stops {
            false if self.silent_at.is_some() => ("silent", Some(SILENT_REMEDY)),
            false => ("up", None),
            true if self.has_ended => ("ended", None),
            true if self.member.is_here && self.was_told_to_end => ("ends", None),
            true if self.was_told_to_end => ("ends", Some(ENDS_REMEDY)),
            true if self.silent_at.is_some() => ("silent", Some(SILENT_REMEDY)),
            true => ("up", Some(UP_REMEDY)),
        };
        let why = (!self.troubles.is_empty()).then(|| self.troubles.join("; "));
        let mut left = self.left;
        left.dedup();
        StoppedNode {
            node: self.member.node,
            name: self.member.name,
            is_here: self.member.is_here,
            state: state.into(),
            why,
            remedy: remedy.map(str::to_owned),
            left,
        }
    }
}

/// What is wrong if a step wasn't taken, for this reason.
fn in_words(step: StopStep, why: String) -> String {
    match step {
        StopStep::Sync | StopStep::CloseClients => {
            format!("not all that was written there is durable: {why}")
        }
        StopStep::CloseShards => format!("its shards aren't closed: {why}"),
        StopStep::Look
        | StopStep::Unmount
        | StopStep::Resume
        | StopStep::Retire
        | StopStep::End => why,
    }
}

/// Of a node that wasn't there when the others were asked first.
pub fn joined_meanwhile(member: &MemberLine) -> StoppedNode {
    let why = "it has joined meanwhile, and wasn't asked";
    not_asked(member, "up", why.into(), UP_REMEDY)
}

/// Of a node that was expelled, whose daemon may run.
pub fn was_expelled(member: &MemberLine) -> StoppedNode {
    let why = "it was expelled before";
    let remedy = "if its daemon runs, it waits for the cluster: `shale down` there";
    not_asked(member, "away", why.into(), remedy)
}

fn not_asked(member: &MemberLine, state: &str, why: String, remedy: &str) -> StoppedNode {
    StoppedNode {
        node: member.node,
        name: member.name.clone(),
        is_here: member.is_here,
        state: state.into(),
        why: Some(why),
        remedy: Some(remedy.into()),
        left: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
