//! Which of two members goes that can't reach each other although the manager hears both.
//!
//! *A node reports* the members that it needs and has asked in vain for long ([`Apart::hear`]). When the first report is
//! [`GATHER`] old, so that others have had time for theirs, one run is chosen ([`View::choose`]): of all that anybody
//! misses, those that most others are apart from; of these the least important one that may go. Its lease is renewed no
//! more; when that has ended by every clock the run is expelled like one that was silent, for [`Cause::Apart`].
//! *The two reach each other before that*: its lease is renewed again, and nothing has happened.
//!
//! One goes at a time, and nobody for [`HOLD_OFF`] afterwards. Who had to go lately goes again, so that a link that comes
//! and goes doesn't cost each of its two ends in turn. Several that had to go lately because of the same node count against
//! that one, also when they are back.
//!
//! *The manager counts itself* as it does the others, as the most important one of those that are apart from as many. It can't
//! expel itself: if it is the one that goes, it gives its place up, and its successor hears the same reports.

use model::member::{Cause, Membership, NODE_LEASE, Standing, UNREACHED_MAX};
use model::{FailureGroupId, Moment, NodeId, NodeRun};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a report counts that isn't repeated.
const REPORT_LASTS: Duration = NODE_LEASE;
/// How long others are waited for once a first report has come: nodes ask the servers of their NSDs every two seconds.
const GATHER: Duration = Duration::from_secs(4);
/// Time from one decision to the next.
const HOLD_OFF: Duration = Duration::from_secs(30);
/// For so long it is known who had to go.
const REMEMBERED: Duration = Duration::from_secs(3_600);

/// What nodes are for the cluster, beside owners of shards.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Roles {
    /// The quorum nodes.
    pub quorum: BTreeSet<NodeId>,
    /// The nodes that have NSDs in use, with the failure groups of these.
    pub servers: BTreeMap<NodeId, BTreeSet<FailureGroupId>>,
    /// So many failure groups may be away at the same time without that data can't be read.
    pub tolerance: usize,
    /// The nodes that don't come back by themselves: expelled by hand, or removed.
    pub barred: BTreeSet<NodeId>,
    /// The nodes that were removed, for ever.
    pub removed: BTreeSet<NodeId>,
}

impl Roles {
    /// The run has ended for the cluster: the membership says so, or its node was removed, and it isn't a member. Another one may
    /// have its node's place there, and a daemon that started while its node was being removed doesn't get that back.
    pub(crate) fn has_ended(&self, record: &Membership, run: NodeRun) -> bool {
        let is_removed = || self.removed.contains(&run.node) && !record.is_member(run);
        record.has_ended(run) || is_removed()
    }
}

/// What a run says.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Report {
    /// When it said it last.
    at: Moment,
    /// Whom it doesn't reach, and when this manager heard that first.
    first: BTreeMap<NodeRun, Moment>,
}

/// The reports, and what was decided.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Apart {
    reports: BTreeMap<NodeRun, Report>,
    /// The run that goes, and one that it is apart from.
    going: Option<(NodeRun, NodeRun)>,
    /// When a run of these nodes had to go last, and from which node it was apart.
    went: BTreeMap<NodeId, (Moment, NodeId)>,
    /// Nobody has to go before.
    not_before: Moment,
}

/// What a decision depends on beside reports.
pub(crate) struct View<'a> {
    /// The manager's own run.
    pub(crate) own: NodeRun,
    pub(crate) record: &'a Membership,
    pub(crate) roles: &'a Roles,
    /// Members whose leases last, and that nothing is known against.
    pub(crate) living: BTreeMap<NodeId, NodeRun>,
    /// The runs that shards are assigned to.
    pub(crate) owners: BTreeSet<NodeRun>,
}

/// Members that can't reach each other, as far as anybody says.
#[derive(Default)]
struct Pairs {
    /// From whom each is apart.
    apart: BTreeMap<NodeRun, BTreeSet<NodeRun>>,
    /// Who says so.
    reporters: BTreeSet<NodeRun>,
    /// When that was heard first.
    first: Option<Moment>,
}

impl Apart {
    /// Of a new manager. It doesn't know when the one before decided, if that did.
    pub(crate) fn begin(record: &Membership, now: Moment) -> Self {
        let mut members = record.members.values();
        let has_decided = members.any(|member| apart_from(member.standing).is_some());
        Self {
            not_before: match has_decided {
                true => now.plus(HOLD_OFF),
                false => now,
            },
            ..Self::default()
        }
    }

    /// A member says whom it can't reach: all of them, each time.
    pub(crate) fn hear(&mut self, from: NodeRun, unreached: Vec<NodeRun>, now: Moment) {
        let before = self.reports.remove(&from);
        if unreached.is_empty() {
            return;
        }
        let known = |run: &NodeRun| before.as_ref()?.first.get(run).copied();
        let named = unreached.into_iter().take(UNREACHED_MAX);
        let first = named.map(|run| (run, known(&run).unwrap_or(now))).collect();
        self.reports.insert(from, Report { at: now, first });
    }

    /// There is nothing to decide, and nobody goes.
    pub(crate) fn is_calm(&self) -> bool {
        self.reports.is_empty() && self.going.is_none()
    }

    /// The run that goes: its lease is renewed no more.
    pub(crate) fn is_going(&self, run: NodeRun) -> bool {
        self.going() == Some(run)
    }

    /// That run.
    pub(crate) fn going(&self) -> Option<NodeRun> {
        self.going.map(|(run, _)| run)
    }

    /// Why a run is expelled whose lease has ended.
    pub(crate) fn cause_of(&self, run: NodeRun) -> Cause {
        match self.going {
            Some((going, other)) if going == run => Cause::Apart(other.node),
            _ => Cause::Silent,
        }
    }

    /// Decides who goes, or that nobody has to any more. Returns whether it is the manager itself.
    #[must_use]
    pub(crate) fn advance(&mut self, view: &View<'_>, now: Moment) -> bool {
        self.reports
            .retain(|_, report| now < report.at.plus(REPORT_LASTS));
        self.went.retain(|_, (at, _)| now < at.plus(REMEMBERED));
        let pairs = self.pairs(view);
        // They reach each other again, or one of them is gone.
        self.going = self.going.filter(|(run, other)| {
            let apart = pairs.apart.get(run);
            apart.is_some_and(|apart| apart.contains(other))
        });
        let is_due = pairs.first.is_some_and(|first| now >= first.plus(GATHER));
        if !is_due || self.going.is_some() || now < self.not_before {
            return false;
        }
        let Some((run, other)) = view.choose(&pairs, &self.went) else {
            return false;
        };
        if run == view.own {
            return true;
        }
        self.going = Some((run, other));
        self.went.insert(run.node, (now, other.node));
        self.not_before = now.plus(HOLD_OFF);
        false
    }

    fn pairs(&self, view: &View<'_>) -> Pairs {
        let mut pairs = Pairs::default();
        for (from, report) in self.reports.iter().filter(|(from, _)| view.lives(**from)) {
            for (to, first) in &report.first {
                if to == from || !view.lives(*to) {
                    continue;
                }
                for (one, other) in [(from, to), (to, from)] {
                    pairs.apart.entry(*one).or_default().insert(*other);
                }
                pairs.reporters.insert(*from);
                pairs.first = Some(pairs.first.map_or(*first, |earliest| earliest.min(*first)));
            }
        }
        pairs
    }
}

/// The node that a run was apart from, if it was expelled for that.
fn apart_from(standing: Standing) -> Option<NodeId> {
    match standing {
        Standing::Expelled(Cause::Apart(other)) => Some(other),
        _ => None,
    }
}

impl View<'_> {
    fn lives(&self, run: NodeRun) -> bool {
        self.living.get(&run.node) == Some(&run)
    }

    /// Who goes, and one that it is apart from; nobody if each may be needed. The same whoever asks, and in which order
    /// reports came.
    fn choose(
        &self,
        pairs: &Pairs,
        went: &BTreeMap<NodeId, (Moment, NodeId)>,
    ) -> Option<(NodeRun, NodeRun)> {
        let missed = |run: &NodeRun| {
            let mut all = self.gone_for(run.node);
            // Also those that are back: whoever is broken, or lies, would cost one node after the other.
            let lately = went.iter().filter(|(_, (_, other))| *other == run.node);
            all.extend(lately.map(|(node, _)| *node));
            all.extend(pairs.apart[run].iter().map(|other| other.node));
            all.len()
        };
        let most = pairs.apart.keys().map(missed).max()?;
        let mut candidates: Vec<NodeRun> = pairs.apart.keys().copied().collect();
        candidates.retain(|run| missed(run) == most);
        candidates.sort_by_key(|run| {
            (
                *run == self.own,
                !went.contains_key(&run.node),
                self.roles.quorum.contains(&run.node),
                self.roles.servers.contains_key(&run.node),
                self.owners.contains(run),
                !pairs.reporters.contains(run),
                Reverse(run.node),
            )
        });
        let run = candidates.into_iter().find(|run| self.may_go(*run))?;
        let other = pairs.apart[&run].first()?;
        Some((run, *other))
    }

    /// The nodes that had to go, aren't back and will be, with those that they were apart from.
    fn gone(&self) -> impl Iterator<Item = (NodeId, NodeId)> {
        let members = self.record.members.iter();
        let gone = members.filter_map(|(node, it)| Some((*node, apart_from(it.standing)?)));
        gone.filter(|(node, _)| !self.roles.barred.contains(node))
    }

    /// The nodes that had to go because they were apart from this one, and aren't back.
    fn gone_for(&self, node: NodeId) -> BTreeSet<NodeId> {
        let gone = self.gone().filter(|(_, other)| *other == node);
        gone.map(|(gone, _)| gone).collect()
    }

    /// The cluster goes on without the run, as far as the manager knows.
    fn may_go(&self, run: NodeRun) -> bool {
        self.leaves_most_nodes() && self.leaves_a_quorum(run.node) && self.leaves_all_data(run.node)
    }

    /// One more can go, and most are left of those that are there and those that had to go already.
    fn leaves_most_nodes(&self) -> bool {
        let living = self.living.len();
        living.saturating_sub(1) * 2 > living + self.gone().count()
    }

    fn leaves_a_quorum(&self, without: NodeId) -> bool {
        let quorum = &self.roles.quorum;
        let stay = quorum
            .iter()
            .filter(|node| **node != without && self.living.contains_key(*node));
        !quorum.contains(&without) || stay.count() * 2 > quorum.len()
    }

    fn leaves_all_data(&self, without: NodeId) -> bool {
        let servers = &self.roles.servers;
        let away = servers
            .iter()
            .filter(|(node, _)| **node == without || !self.living.contains_key(*node));
        let away: BTreeSet<FailureGroupId> = away.flat_map(|(_, groups)| groups).copied().collect();
        !servers.contains_key(&without) || away.len() <= self.roles.tolerance
    }
}

#[cfg(test)]
mod tests;
