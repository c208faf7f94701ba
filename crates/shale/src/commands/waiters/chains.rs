//! Puts the waits of several nodes together: who waits for whom, down to what waits for nothing else. Pure.
//!
//! *A program's request* and what is listed of its errand on its node are one group; the wait that began first contains
//! the next one, and the last one those for answers, NSDs, tokens and locks. *A wait for a node's answer* leads to the
//! group of the same errand there that serves this node. *A wait for work* (a commit, a token that is given back) leads to
//! that work, which has an errand of its own. What no other wait leads to begins a chain.

use crate::admin::{Wait, WaitPart, Waits};
use std::collections::{BTreeMap, BTreeSet};

/// Most links of a chain.
const LINKS_MAX: usize = 200;
/// Most links one below the other.
const DEPTH_MAX: usize = 40;
/// Most works of one kind that a wait leads to, the oldest ones.
const WORKS_MAX: usize = 3;
/// The name of storing what was written to several small files, and in a wait of storing anything; that of storing what was
/// written to one file begins so.
const STORE: &str = "store";

/// A node; `None`: it is alone.
pub(super) type Place = Option<u32>;

/// What is known of the nodes.
#[derive(Default)]
pub(super) struct Known {
    /// What they have answered.
    pub(super) answers: BTreeMap<Place, Waits>,
    /// Why these haven't.
    pub(super) silent: BTreeMap<u32, String>,
    /// What they are called.
    pub(super) names: BTreeMap<u32, String>,
}

/// What a link is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Item {
    /// The wait with this number.
    Wait(usize),
    /// It leads back to a wait further up.
    Circle(usize),
    /// A node that hasn't answered.
    Silent(u32),
    /// A node that wasn't asked.
    NotAsked(u32),
    /// A node without a lease: it answers nobody.
    NoLease(u32),
    /// The cluster has no manager.
    NoManager,
    /// The manager waits for the lease of a node, which lasts so many milliseconds still.
    Lease {
        manager: u32,
        node: u32,
        milliseconds: u64,
    },
    /// There is more than is followed.
    More,
}

/// A link of a chain, with those that it waits for.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Link {
    pub(super) item: Item,
    pub(super) links: Vec<Link>,
}

/// An errand on a node, as the work of one caller there.
type Group<'a> = (Place, &'a str, Option<u32>);

/// How far inside its group a wait is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Head,
    Middle,
    Leaf,
}

/// All waits, by what leads to them.
pub(super) struct Chains<'a> {
    known: &'a Known,
    waits: Vec<(Place, &'a Wait)>,
    /// Of each group its waits, the oldest first.
    groups: BTreeMap<Group<'a>, Vec<usize>>,
    works: BTreeMap<(Place, &'a str), Vec<usize>>,
}

fn level(part: &WaitPart) -> Level {
    match part {
        WaitPart::Program | WaitPart::Work { .. } | WaitPart::Call { .. } => Level::Head,
        WaitPart::Wait | WaitPart::ForWork { .. } | WaitPart::ForOwner { .. } => Level::Middle,
        WaitPart::ForAnswer { .. }
        | WaitPart::ForNsd { .. }
        | WaitPart::ForCoordination
        | WaitPart::ForToken { .. }
        | WaitPart::ForLock { .. } => Level::Leaf,
    }
}

impl<'a> Chains<'a> {
    pub(super) fn new(known: &'a Known) -> Self {
        let answers = known.answers.iter();
        let waits =
            answers.flat_map(|(place, answer)| answer.waits.iter().map(move |it| (*place, it)));
        let mut waits: Vec<(Place, &Wait)> = waits.collect();
        waits.sort_by_key(|(_, wait)| std::cmp::Reverse(wait.milliseconds));
        let mut groups: BTreeMap<Group<'_>, Vec<usize>> = BTreeMap::new();
        let mut works: BTreeMap<(Place, &str), Vec<usize>> = BTreeMap::new();
        for (at, (place, wait)) in waits.iter().enumerate() {
            if !wait.trace.is_empty() {
                let group = (*place, wait.trace.as_str(), wait.from);
                groups.entry(group).or_default().push(at);
            }
            if let WaitPart::Work { work } = &wait.part {
                works.entry((*place, work.as_str())).or_default().push(at);
            }
        }
        Self {
            known,
            waits,
            groups,
            works,
        }
    }

    /// The wait with this number, and where it is.
    pub(super) fn wait(&self, at: usize) -> (Place, &'a Wait) {
        self.waits[at]
    }

    /// The numbers of all waits, the oldest first.
    pub(super) fn numbers(&self) -> std::ops::Range<usize> {
        0..self.waits.len()
    }

    /// The chains, the oldest first.
    pub(super) fn all(&self) -> Vec<Link> {
        let starts = self.starts();
        let led_to: BTreeSet<Item> = (0..self.waits.len()).flat_map(|at| self.next(at)).collect();
        let is_first = |at: &&usize| !led_to.contains(&Item::Wait(**at));
        let mut seen = BTreeSet::new();
        let mut chains: Vec<Link> = Vec::new();
        // Then what is only in a circle.
        for at in starts.iter().filter(is_first).chain(&starts) {
            if !seen.contains(at) {
                let mut budget = LINKS_MAX;
                chains.push(self.follow(Item::Wait(*at), &mut Vec::new(), &mut seen, &mut budget));
            }
        }
        chains.sort_by_key(|chain| match chain.item {
            Item::Wait(at) => at,
            _ => usize::MAX,
        });
        chains
    }

    /// The waits at which a chain may begin: of each group the one that contains the others, and those of no errand.
    fn starts(&self) -> Vec<usize> {
        let mut starts: Vec<usize> = self
            .groups
            .keys()
            .flat_map(|group| self.enter(group))
            .collect();
        let all = self.waits.iter().enumerate();
        starts.extend(
            all.filter(|(_, (_, it))| it.trace.is_empty())
                .map(|(at, _)| at),
        );
        starts.sort_unstable();
        starts
    }

    fn follow(
        &self,
        item: Item,
        above: &mut Vec<Item>,
        seen: &mut BTreeSet<usize>,
        budget: &mut usize,
    ) -> Link {
        let end = |item| Link {
            item,
            links: Vec::new(),
        };
        if above.contains(&item) {
            return match item {
                Item::Wait(at) => end(Item::Circle(at)),
                other => end(other),
            };
        }
        if *budget == 0 || above.len() >= DEPTH_MAX {
            return end(Item::More);
        }
        *budget -= 1;
        let next = match item {
            Item::Wait(at) => {
                seen.insert(at);
                self.next(at)
            }
            Item::Silent(node) => self.lease_of(node),
            Item::NoLease(node) => self.why_no_lease(node),
            _ => Vec::new(),
        };
        above.push(item);
        let links = next.into_iter();
        let links = links.map(|item| self.follow(item, above, seen, budget));
        let links = links.collect();
        above.pop();
        Link { item, links }
    }

    /// What a wait waits for.
    fn next(&self, at: usize) -> Vec<Item> {
        let (place, wait) = self.waits[at];
        match &wait.part {
            WaitPart::Program | WaitPart::Wait | WaitPart::Work { .. } | WaitPart::Call { .. } => {
                self.inside(at)
            }
            WaitPart::ForWork { work } => {
                let mut next = self.inside(at);
                next.extend(self.works(place, work));
                next
            }
            WaitPart::ForOwner { shard, node } => {
                let mut next = self.inside(at);
                let has_manager = |it: &Waits| it.manager.is_some();
                match node {
                    Some(node) => {
                        next.extend(self.standing(*node));
                        // Without a lease of its own it uses nothing that the owner promises.
                        let own = place.filter(|own| own != node);
                        next.extend(own.and_then(|own| self.standing(own)));
                        next.extend(self.works(Some(*node), &format!("take-over {shard}")));
                    }
                    None if !self.known.answers.get(&place).is_some_and(has_manager) => {
                        next.push(Item::NoManager);
                    }
                    None => {}
                }
                next
            }
            WaitPart::ForAnswer { node, .. } => self.elsewhere(*node, place, wait),
            WaitPart::ForNsd {
                node: Some(node), ..
            } if Some(*node) != place => self.elsewhere(*node, place, wait),
            WaitPart::ForToken {
                inode,
                node: Some(node),
                ..
            } => match self.known.answers.contains_key(&Some(*node)) {
                true => self.works(Some(*node), &format!("return {inode}")),
                false => vec![self.absent(*node)],
            },
            WaitPart::ForNsd { .. }
            | WaitPart::ForToken { .. }
            | WaitPart::ForLock { .. }
            | WaitPart::ForCoordination => Vec::new(),
        }
    }

    /// What a wait contains: the next one of its group, or at last those for others.
    fn inside(&self, at: usize) -> Vec<Item> {
        let (place, wait) = self.waits[at];
        let group = (place, wait.trace.as_str(), wait.from);
        let Some(members) = self.groups.get(&group) else {
            return Vec::new();
        };
        let own = level(&wait.part);
        let mut middle = members
            .iter()
            .filter(|it| level(&self.waits[**it].1.part) == Level::Middle);
        let next = match own {
            Level::Head => middle.next(),
            Level::Middle => middle.find(|it| **it > at),
            Level::Leaf => return Vec::new(),
        };
        match next {
            Some(next) => vec![Item::Wait(*next)],
            None => self.leaves(members).into_iter().map(Item::Wait).collect(),
        }
    }

    /// Where a group begins.
    fn enter(&self, group: &Group<'_>) -> Vec<usize> {
        let Some(members) = self.groups.get(group) else {
            return Vec::new();
        };
        let first_of = |wanted| {
            members
                .iter()
                .find(|it| level(&self.waits[**it].1.part) == wanted)
        };
        match first_of(Level::Head).or_else(|| first_of(Level::Middle)) {
            Some(first) => vec![*first],
            None => self.leaves(members),
        }
    }

    /// The waits of a group for others. A call to an NSD's node says nothing more than the wait for the NSD.
    fn leaves(&self, members: &[usize]) -> Vec<usize> {
        let part = |at: &usize| &self.waits[*at].1.part;
        let nsds_of = |it: &usize| match part(it) {
            WaitPart::ForNsd { node, .. } => *node,
            _ => None,
        };
        let with_nsds: BTreeSet<u32> = members.iter().filter_map(nsds_of).collect();
        let is_said = |at: &usize| match part(at) {
            WaitPart::ForAnswer { node, .. } => with_nsds.contains(node),
            _ => false,
        };
        let leaves = members
            .iter()
            .filter(|at| level(part(at)) == Level::Leaf && !is_said(at));
        leaves.copied().collect()
    }

    /// What another node does for a wait of this one.
    fn elsewhere(&self, node: u32, place: Place, wait: &Wait) -> Vec<Item> {
        if !self.known.answers.contains_key(&Some(node)) {
            return vec![self.absent(node)];
        }
        let group = (Some(node), wait.trace.as_str(), place);
        self.enter(&group).into_iter().map(Item::Wait).collect()
    }

    fn works(&self, place: Place, work: &str) -> Vec<Item> {
        let mut found: Vec<usize> = match work {
            STORE => self.stores(place).collect(),
            _ => {
                let found = self.works.get(&(place, work));
                // What is stored may be in a segment of several small files.
                let shared = || {
                    let is_stored = work.starts_with(STORE);
                    self.works.get(&(place, STORE)).filter(|_| is_stored)
                };
                found.or_else(shared).cloned().unwrap_or_default()
            }
        };
        found.sort_unstable();
        found.truncate(WORKS_MAX);
        found.into_iter().map(Item::Wait).collect()
    }

    /// All that is being stored on a node: whichever is first makes room.
    fn stores(&self, place: Place) -> impl Iterator<Item = usize> {
        let from = self.works.range((place, STORE)..);
        let stores = from.take_while(move |((at, key), _)| *at == place && key.starts_with(STORE));
        stores.flat_map(|(_, found)| found).copied()
    }

    fn absent(&self, node: u32) -> Item {
        match self.known.silent.contains_key(&node) {
            true => Item::Silent(node),
            false => Item::NotAsked(node),
        }
    }

    /// Why an owner's node may not answer.
    fn standing(&self, node: u32) -> Option<Item> {
        match self.known.answers.get(&Some(node)) {
            None => Some(self.absent(node)),
            Some(answer) if answer.lease_milliseconds == Some(0) => Some(Item::NoLease(node)),
            Some(_) => None,
        }
    }

    fn lease_of(&self, node: u32) -> Vec<Item> {
        let told = self.known.answers.iter();
        let mut leases = told.flat_map(|(place, answer)| {
            let manager = place.unwrap_or_default();
            answer.leases.iter().map(move |lease| (manager, lease))
        });
        let lease = leases.find(|(_, lease)| lease.node == node);
        let item = lease.map(|(manager, lease)| Item::Lease {
            manager,
            node,
            milliseconds: lease.milliseconds,
        });
        item.into_iter().collect()
    }

    fn why_no_lease(&self, node: u32) -> Vec<Item> {
        let answer = self.known.answers.get(&Some(node));
        match answer.and_then(|answer| answer.manager) {
            None => vec![Item::NoManager],
            Some(manager) => self
                .standing(manager)
                .filter(|_| manager != node)
                .into_iter()
                .collect(),
        }
    }
}
