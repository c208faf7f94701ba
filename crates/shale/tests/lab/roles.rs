//! What each node of a lab is to its cluster.

use super::{
    etcd,
    faults::{Fault, are_out, until_whole},
    fixture::Lab,
};
use std::collections::{BTreeMap, BTreeSet};

/// Attempts to bring the manager and the shard together, or apart. Most succeed at the second.
const GATHERINGS_MAX: usize = 20;
/// What the daemon of a manager's node notes when it has given the lead of etcd to another member.
const GIVEN_AWAY: &str = "another member leads etcd, because the manager is here";
/// The shard of the first file system.
const SHARD: u64 = 0;

/// What a node can be; most are several things.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Role {
    /// Has mounted the file system, as each node of a lab has.
    Client,
    /// Has an NSD in use.
    NsdServer,
    /// Runs a member of etcd, ...
    EtcdMember,
    /// ... which leads.
    EtcdLeader,
    /// The cluster's manager.
    Manager,
    /// Owns the shard.
    Owner,
}

impl Role {
    /// All of them.
    pub(crate) const ALL: [Self; 6] = [
        Self::EtcdMember,
        Self::EtcdLeader,
        Self::Manager,
        Self::Owner,
        Self::NsdServer,
        Self::Client,
    ];

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::NsdServer => "NSD server",
            Self::EtcdMember => "etcd member",
            Self::EtcdLeader => "etcd leader",
            Self::Manager => "manager",
            Self::Owner => "owner",
        }
    }
}

/// The roles of all nodes, at one time.
pub(crate) struct Roles(BTreeMap<u32, BTreeSet<Role>>);

impl Roles {
    /// Waits until each role is somebody's.
    #[track_caller]
    pub(crate) fn of(lab: &Lab) -> Self {
        lab.until("each role is somebody's", || Self::look(lab))
    }

    fn look(lab: &Lab) -> Result<Self, String> {
        let mut roles = BTreeMap::<u32, BTreeSet<Role>>::new();
        let mut note = |node: u32, role: Role| {
            roles.entry(node).or_default().insert(role);
        };
        let number = |value: &serde_json::Value| value.as_u64().map(|it| it as u32);
        let view = lab.ask(1, &["cluster", "show"]);
        let lines = view["nodes"].as_array().ok_or("coordination is away")?;
        for line in lines {
            let node = number(&line["node"]).ok_or("a node has a number")?;
            note(node, Role::Client);
            let mut shards = line["shards"].as_array().into_iter().flatten();
            let owns = shards.any(|shard| *shard == SHARD);
            let found = [
                (Role::EtcdMember, line["etcd"].is_string()),
                (Role::Manager, line["manager"] == true),
                (Role::Owner, owns),
            ];
            for (role, _) in found.iter().filter(|(_, is_so)| *is_so) {
                note(node, *role);
            }
        }
        let nsds = lab.ask(1, &["nsd", "list"]);
        let nsds = nsds.as_array().ok_or("NSDs aren't listed")?;
        for nsd in nsds.iter().filter(|nsd| nsd["state"] == "active") {
            note(
                number(&nsd["node"]).ok_or("it has no node")?,
                Role::NsdServer,
            );
        }
        note(etcd::leader(lab)?, Role::EtcdLeader);
        let roles = Self(roles);
        match Role::ALL.iter().find(|role| roles.with(**role).is_empty()) {
            Some(role) => Err(format!("no node is the {}", role.name())),
            None => Ok(roles),
        }
    }

    /// The nodes that have a role.
    fn with(&self, role: Role) -> Vec<u32> {
        let nodes = self.0.iter().filter(|(_, roles)| roles.contains(&role));
        nodes.map(|(node, _)| *node).collect()
    }

    /// Whether a node has a role.
    pub(crate) fn has(&self, node: u32, role: Role) -> bool {
        self.0[&node].contains(&role)
    }

    /// A node that has a role, and as few others as possible.
    pub(crate) fn one_with(&self, role: Role) -> u32 {
        let nodes = self.with(role).into_iter();
        let plainest = nodes.min_by_key(|node| self.0[node].len());
        plainest.expect("each role is somebody's")
    }

    /// All that a node is.
    pub(crate) fn names(&self, node: u32) -> String {
        let names: Vec<_> = self.0[&node].iter().map(|role| role.name()).collect();
        names.join(", ")
    }
}

/// Brings the manager and the shard together on a node that has a member of etcd.
#[track_caller]
pub(crate) fn gather(lab: &Lab) -> u32 {
    for _ in 0..GATHERINGS_MAX {
        let roles = Roles::of(lab);
        let (manager, owner) = (roles.one_with(Role::Manager), roles.one_with(Role::Owner));
        let may_lead = roles.has(manager, Role::EtcdMember);
        if manager == owner && may_lead {
            return manager;
        }
        // The shard of a node that is gone goes to the first one that is there.
        let next = lab.nodes().into_iter().find(|node| *node != owner);
        let loser = match may_lead && next == Some(manager) {
            true => owner,
            false => manager,
        };
        let other = lab.nodes().into_iter().find(|node| *node != loser);
        Fault::Kill.strike(lab, &[loser]);
        lab.until("others have its roles", || {
            are_out(lab, other.expect("it isn't alone"), &[loser])
        });
        Fault::Kill.mend(lab, &[loser]);
        until_whole(lab);
    }
    panic!("the manager and the shard don't come together");
}

/// Has the manager and the shard be on two nodes; returns the roles of all.
#[track_caller]
pub(crate) fn part(lab: &Lab) -> Roles {
    for _ in 0..GATHERINGS_MAX {
        let roles = Roles::of(lab);
        let (manager, owner) = (roles.one_with(Role::Manager), roles.one_with(Role::Owner));
        if manager != owner {
            return roles;
        }
        let other = lab.nodes().into_iter().find(|node| *node != owner);
        Fault::Kill.strike(lab, &[owner]);
        lab.until("others have its roles", || {
            are_out(lab, other.expect("it isn't alone"), &[owner])
        });
        Fault::Kill.mend(lab, &[owner]);
        until_whole(lab);
    }
    panic!("the manager and the shard stay together");
}

/// How often the daemon of a node has given the lead of etcd away.
#[track_caller]
pub(crate) fn leads_given_away(lab: &Lab, node: u32) -> usize {
    lab.noted(node, GIVEN_AWAY)
}

/// Has a node's member of etcd lead, while the node is the manager and owns the shard. Returns how often it has
/// [given the lead away](leads_given_away): as long as that is so, it leads.
#[track_caller]
pub(crate) fn lead_too(lab: &Lab, node: u32) -> usize {
    let roles = Roles::of(lab);
    let is = |role| roles.has(node, role);
    let names = roles.names(node);
    assert!(is(Role::Manager) && is(Role::Owner), "n{node} is: {names}");
    // A manager's node looks every few seconds whether it leads. Right after it has given the lead away it keeps it for longest.
    let before = leads_given_away(lab, node);
    etcd::lead(lab, node);
    let given = lab.until("it gives the lead away", || {
        match leads_given_away(lab, node) {
            more if more > before => Ok(more),
            same => Err(format!("{same} times until now")),
        }
    });
    etcd::lead(lab, node);
    given
}
