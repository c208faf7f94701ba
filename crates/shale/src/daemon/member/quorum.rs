//! The members of the cluster's etcd, as this node sees them: who answers, what they complain of, and whether one can be
//! done without.

use super::{InCluster, joining::etcd_settings};
use crate::daemon::config::ClusterConfig;
use crate::daemon::health::EtcdFacts;
use coordination::etcd::{Etcd, EtcdAlarm, EtcdEndpoint, EtcdStatus};
use coordination::{NodeFacts, Versioned};
use model::{Error, ErrorKind, NodeId, Result};
use rpc::security::Credentials;
use std::collections::{BTreeMap, BTreeSet};
use world::{Deadline, World};

/// Of so many voting members of etcd one can be away.
pub(super) const VOTERS_TO_SPARE: usize = 3;

/// What the members at all endpoints say.
type Statuses = Vec<(EtcdEndpoint, Result<EtcdStatus>)>;

impl InCluster {
    /// Asks all members of etcd how they are, for `shale health`. Takes some seconds if one doesn't answer. Whoever leads
    /// etcd mends what can be mended: `tending` of the daemon.
    ///
    /// # Errors
    /// `Unavailable`: no member says how etcd is.
    pub async fn look_at_etcd(&self) -> Result<()> {
        let etcd = self.etcd_at(self.endpoints())?;
        let statuses = etcd.status().await;
        let mut seen = facts_of(&statuses);
        // Before its alarms, which nobody tells if most members are away.
        self.set_etcd_seen(seen.clone());
        let alarms = etcd.alarms().await?;
        seen.is_full = alarms.iter().any(|it| matches!(it, EtcdAlarm::NoSpace(_)));
        let complaints = alarms
            .iter()
            .filter_map(|alarm| complaint_of(alarm, &statuses));
        seen.complaints = complaints.collect();
        self.set_etcd_seen(seen);
        Ok(())
    }

    /// Whether coordination goes on without this node's member of etcd.
    ///
    /// # Errors
    /// `Busy`: it doesn't; what to do first. `Unavailable`: etcd doesn't say who its members are.
    pub async fn check_can_do_without(&self, node: NodeId) -> Result<()> {
        match self.voters_without(node).await? {
            Some((voters, others)) => can_do_without(node, voters, others),
            None => Ok(()),
        }
    }

    /// Whether this node's member of etcd may be away for some seconds: the others go on meanwhile, or there are so few that
    /// they can't without any of them.
    ///
    /// # Errors
    /// As [`InCluster::check_can_do_without`].
    pub async fn check_may_start_again(&self) -> Result<()> {
        let node = self.member().run().node;
        match self.voters_without(node).await? {
            Some((voters, others)) if voters >= VOTERS_TO_SPARE => {
                can_do_without(node, voters, others)
            }
            _ => Ok(()),
        }
    }

    /// Waits until this node's member of etcd works; nothing if it has none.
    ///
    /// # Errors
    /// `Unavailable` at the deadline, with what it said last.
    pub async fn until_own_etcd_works(&self, deadline: Deadline) -> Result<()> {
        let Some(own) = self.own_endpoint() else {
            return Ok(());
        };
        let etcd = self.etcd_at(vec![own])?;
        etcd.until_ready(0, deadline).await.map(drop)
    }

    async fn voters_without(&self, node: NodeId) -> Result<Option<(usize, usize)>> {
        let nodes = self.member().coordination().nodes().await?;
        voters_without(node, &nodes, |endpoints| self.etcd_at(endpoints)).await
    }

    fn etcd_at(&self, endpoints: Vec<String>) -> Result<Etcd> {
        let world = self.member().world();
        etcd_at(world, self.cluster(), &self.credentials(), endpoints)
    }
}

/// Whether etcd goes on without the member of this node, which was expelled by hand: the others that answer and stay are enough.
/// Takes some seconds if one doesn't answer.
///
/// # Errors
/// `Unavailable`: etcd doesn't say who its members are.
pub async fn goes_on_without(
    world: &World,
    (cluster, credentials): (&ClusterConfig, &Credentials),
    nodes: &BTreeMap<NodeId, Versioned<NodeFacts>>,
) -> Result<bool> {
    let node = NodeId(cluster.node);
    let etcd_at = |endpoints| etcd_at(world, cluster, credentials, endpoints);
    let counted = voters_without(node, nodes, etcd_at).await?;
    Ok(counted.is_none_or(|(voters, others)| can_do_without(node, voters, others).is_ok()))
}

/// How many voting members etcd has, and how many of them answer and stay besides the node's; nothing if that has none.
async fn voters_without(
    node: NodeId,
    nodes: &BTreeMap<NodeId, Versioned<NodeFacts>>,
    etcd_at: impl Fn(Vec<String>) -> Result<Etcd>,
) -> Result<Option<(usize, usize)>> {
    let Some(own) = nodes.get(&node).and_then(|facts| facts.value.etcd.as_ref()) else {
        return Ok(None);
    };
    // One that has just got its vote counts.
    let all = nodes.values().filter_map(|it| it.value.etcd.clone());
    let all: BTreeSet<String> = all.collect();
    let etcd = etcd_at(all.into_iter().collect())?;
    let members = etcd.members().await?;
    let voters = members.iter().filter(|it| !it.is_learner).count();
    let others = others_that_stay(own, nodes, &etcd.status().await);
    Ok(Some((voters, others)))
}

fn etcd_at(
    world: &World,
    cluster: &ClusterConfig,
    credentials: &Credentials,
    endpoints: Vec<String>,
) -> Result<Etcd> {
    let there = ClusterConfig {
        coordination: endpoints,
        ..cluster.clone()
    };
    Etcd::new(world, &etcd_settings(world, &there, credentials)?)
}

/// How many members of etcd answer and stay, besides that at `own`. Those of nodes that were expelled by hand end, if they
/// haven't yet, until the nodes are let in.
fn others_that_stay(
    own: &str,
    nodes: &BTreeMap<NodeId, Versioned<NodeFacts>>,
    statuses: &Statuses,
) -> usize {
    let staying = nodes.values().filter(|it| !it.value.is_barred);
    let staying = staying.filter_map(|it| it.value.etcd.as_deref());
    let staying: BTreeSet<&str> = staying.filter(|endpoint| *endpoint != own).collect();
    let others = statuses.iter().filter(|(endpoint, status)| {
        let works = |it: &EtcdStatus| !it.is_learner && it.leader.is_some();
        staying.contains(endpoint.to_string().as_str()) && status.as_ref().is_ok_and(works)
    });
    others.count()
}

/// Whether of so many voters, of which so many others than the node's answer and stay, enough are left without it.
fn can_do_without(node: NodeId, voters: usize, others: usize) -> Result<()> {
    let needed = voters / 2 + 1;
    if others >= needed {
        return Ok(());
    }
    let text = format!(
        "node {node} runs one of the {voters} voting members of the cluster's etcd, and {others} of the others answer, without \
         those of nodes that were expelled: without it there are fewer than the {needed} that are needed, so that nothing \
         could be changed in the cluster any more, this included. Start the quorum nodes that are away, let in those that were \
         expelled (`shale node unexpel`) or remove them (`shale node remove`), or let others join with \
         `shale node join --quorum`"
    );
    Err(Error::new(ErrorKind::Busy, text))
}

fn facts_of(statuses: &Statuses) -> EtcdFacts {
    let trouble = |status: &Result<EtcdStatus>| match status {
        Err(error) => Some(error.to_string()),
        Ok(status) if status.leader.is_none() => Some("it knows of no leader".into()),
        Ok(_) => None,
    };
    let members = statuses.iter();
    EtcdFacts {
        members: members
            .map(|(endpoint, status)| (endpoint.to_string(), trouble(status)))
            .collect(),
        ..EtcdFacts::default()
    }
}

/// What a member complains of beside a full database.
fn complaint_of(alarm: &EtcdAlarm, statuses: &Statuses) -> Option<String> {
    let (member, what) = match alarm {
        EtcdAlarm::NoSpace(_) => return None,
        EtcdAlarm::Corrupt(member) => (member, "its data differ from those of the other members"),
        EtcdAlarm::Other(member, what) => (member, what.as_str()),
    };
    let is_it = |status: &Result<EtcdStatus>| status.as_ref().is_ok_and(|it| it.member == *member);
    let found = statuses.iter().find(|(_, status)| is_it(status));
    let place = found.map_or_else(
        || format!("member {member}"),
        |(endpoint, _)| endpoint.to_string(),
    );
    Some(format!("{place}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coordination::etcd::EtcdMemberId;

    #[test]
    fn a_node_is_done_without_only_if_most_voters_are_left() {
        let is_fine = |voters, others| can_do_without(NodeId(3), voters, others).is_ok();
        // The voters, and how many others must answer.
        for (voters, needed) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)] {
            assert!(is_fine(voters, needed), "{voters}");
            assert!(!is_fine(voters, needed - 1), "{voters}");
        }
        let why = can_do_without(NodeId(3), 2, 1).unwrap_err().to_string();
        assert!(why.contains("node join --quorum"), "{why}");
    }

    /// Would be broken if of three quorum nodes two could be expelled one right after the other: etcd of the first one ends some
    /// seconds later.
    #[test]
    fn members_of_etcd_that_are_about_to_end_are_not_counted() {
        let url = |number: u32| format!("https://10.0.0.{number}:7312");
        let nodes = |barred: Option<u32>| {
            let node = |number: u32| {
                let value = NodeFacts {
                    node: NodeId(number),
                    name: format!("n{number}"),
                    class: "default".into(),
                    is_quorum: true,
                    has_authority: true,
                    is_barred: barred == Some(number),
                    etcd: Some(url(number)),
                    address: format!("10.0.0.{number}:7311").parse().unwrap(),
                    key: [0; 32],
                };
                (NodeId(number), Versioned { value, version: 1 })
            };
            (1..=3).map(node).collect::<BTreeMap<_, _>>()
        };
        let works = EtcdStatus {
            cluster: 1,
            member: EtcdMemberId(1),
            version: "3.5.16".into(),
            leader: Some(EtcdMemberId(1)),
            is_learner: false,
            revision: 1,
            term: 1,
            index: 1,
            applied: 1,
            database_bytes: 0,
            used_bytes: 0,
            errors: Vec::new(),
        };
        let said = |number: u32| {
            let endpoint: EtcdEndpoint = url(number).parse().unwrap();
            (endpoint, Ok(works.clone()))
        };
        let mut statuses: Statuses = (1..=3).map(said).collect();
        let others = |barred, statuses: &Statuses| {
            let nodes = nodes(barred);
            others_that_stay(&url(3), &nodes, statuses)
        };
        assert_eq!(others(None, &statuses), 2);
        assert_eq!(others(Some(2), &statuses), 1);
        assert_eq!(others(Some(3), &statuses), 2, "it is the one that goes");
        statuses[0].1 = Err(ErrorKind::Unavailable.into());
        assert_eq!(others(None, &statuses), 1);
        assert_eq!(others(Some(2), &statuses), 0);
    }

    #[test]
    fn what_etcd_complains_of_names_the_member() {
        let away = Error::new(ErrorKind::Unavailable, "nobody listens");
        let endpoint: EtcdEndpoint = "https://10.0.0.1:7312".parse().unwrap();
        let statuses = vec![(endpoint, Err(away))];
        let seen = facts_of(&statuses);
        let (place, trouble) = &seen.members[0];
        assert_eq!(place, "https://10.0.0.1:7312");
        assert!(trouble.as_ref().unwrap().contains("nobody listens"));
        let corrupt = complaint_of(&EtcdAlarm::Corrupt(EtcdMemberId(0xab)), &statuses).unwrap();
        assert!(
            corrupt.starts_with("member ab: its data differ"),
            "{corrupt}"
        );
        assert_eq!(
            complaint_of(&EtcdAlarm::NoSpace(EtcdMemberId(1)), &statuses),
            None
        );
    }
}
