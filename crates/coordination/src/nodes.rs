//! The nodes of a cluster, whether their daemons run or not, and the tokens that machines join with.
//!
//! *A machine joins*: a member makes a secret and stores its hash with the time until which it is good
//! ([`Coordination::add_join_token`]). Whoever shows the secret gets a node: [`Coordination::redeem`] marks the
//! token as used and stores the new node in one change, so that of two machines with one token one becomes a node.
//! A machine whose answer was lost shows the same secret and the same key again, and is told the same node; so is one that
//! comes with another token, because the first one's time was over.

use crate::facts::{address_key, decode, encode, incarnations_key, said_key};
use crate::{Change, Coordination, Versioned};
use model::member::MEMBERS_MAX;
use model::{Error, ErrorKind, NodeId, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;

pub(crate) const NODES: &str = "nodes/";
/// Which node has each name, so that no two have the same.
const NAMES: &str = "node_names/";
const TOKENS: &str = "join/";
/// Settings for one node.
const SETTINGS: &str = "config_of/node/";
/// Attempts of a change that may collide with other writers.
const ATTEMPTS_MAX: usize = 64;
/// Most tokens that are kept at the same time, used ones and those included whose time has been over for less than
/// [`CLOCKS_DIFFER_MAX`].
pub const JOIN_TOKENS_MAX: usize = 1024;
/// Tokens are kept that much longer than they are good: the clock of the node that removes them may be ahead of that of
/// the node that made them.
pub const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(3600);
/// Most bytes of a node's name.
pub const NODE_NAME_BYTES_MAX: usize = 64;

/// A node of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Its number.
    pub node: NodeId,
    /// What people call it; no two nodes have the same.
    pub name: String,
    /// Its node class: settings can be made for all nodes of a class.
    pub class: String,
    /// It runs a member of the cluster's own etcd, or shall.
    pub is_quorum: bool,
    /// It has the key of the cluster's authority: it admits machines that join.
    pub has_authority: bool,
    /// Nobody may start it: it was expelled by hand.
    pub is_barred: bool,
    /// Where its member of the cluster's own etcd answers clients, as `https://host:port`.
    pub etcd: Option<String>,
    /// Where it listens, as it said when it joined.
    pub address: SocketAddr,
    /// Names the key that it joined with.
    pub key: [u8; 32],
}

impl NodeFacts {
    /// What is left of a node that was forgotten. It has no name, which no other node lacks.
    fn forgotten(node: NodeId) -> Self {
        Self {
            node,
            name: String::new(),
            class: String::new(),
            is_quorum: false,
            has_authority: false,
            is_barred: true,
            etcd: None,
            address: SocketAddr::from(([0; 4], 0)),
            key: [0; 32],
        }
    }

    pub(crate) fn is_forgotten(&self) -> bool {
        self.name.is_empty()
    }
}

/// A one-time token, as coordination keeps it: nothing of it says what the secret is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct JoinToken {
    /// Good until then, in seconds since 1970 by the clock of whoever redeems it.
    until: u64,
    /// The node that it became.
    used_for: Option<NodeId>,
    /// It makes a node with the key of the cluster's authority.
    makes_quorum: bool,
}

/// What a new node wants to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewNode {
    /// Its name; `None`: one is made of its number.
    pub name: Option<String>,
    /// Its class.
    pub class: String,
    /// It wants to be a quorum node; the token must say so, too.
    pub is_quorum: bool,
    /// Where it will listen.
    pub address: SocketAddr,
    /// Names its key.
    pub key: [u8; 32],
}

impl Coordination {
    /// The nodes by their numbers.
    ///
    /// # Errors
    /// `Unavailable`: no answer; ask again. `Corrupt` or `NotSupported`: a fact can't be read.
    pub async fn nodes(&self) -> Result<BTreeMap<NodeId, Versioned<NodeFacts>>> {
        let all = self.list(NODES).await?;
        let read = |(key, fact): (String, Versioned<bytes::Bytes>)| {
            let value: NodeFacts = decode(&key, &fact.value)?;
            let version = fact.version;
            Ok((value.node, Versioned { value, version }))
        };
        let all = all.found.into_iter().map(read);
        all.filter(|it| !matches!(it, Ok((_, facts)) if facts.value.is_forgotten()))
            .collect()
    }

    /// A node.
    ///
    /// # Errors
    /// As [`Coordination::nodes`].
    pub async fn node_facts(&self, node: NodeId) -> Result<Option<Versioned<NodeFacts>>> {
        let facts = self.fact::<NodeFacts>(&node_key(node)).await?;
        Ok(facts.filter(|it| !it.value.is_forgotten()))
    }

    /// Makes the first node of a cluster; nothing if it is there already.
    ///
    /// # Errors
    /// Those of the store. After `Unavailable`, make it again.
    pub async fn add_first_node(&self, facts: &NodeFacts) -> Result<()> {
        match self.transaction(new_node(facts).into()).await {
            Err(error) if error.kind() == ErrorKind::Changed => Ok(()),
            other => other.map(drop),
        }
    }

    /// Changes a node's facts by `change`, which may be called several times.
    ///
    /// # Errors
    /// `NotFound`: there is no such node. What `change` refuses. `Exists`: another node has the name. After
    /// `Unavailable`, change them again.
    pub async fn change_node(
        &self,
        node: NodeId,
        change: impl Fn(&mut NodeFacts) -> Result<()>,
    ) -> Result<NodeFacts> {
        for _ in 0..ATTEMPTS_MAX {
            let mut all = self.nodes().await?;
            let Some(known) = all.remove(&node) else {
                return Err(no_node(node));
            };
            let mut next = known.value.clone();
            change(&mut next)?;
            if next == known.value {
                return Ok(next);
            }
            // One that it has already was taken by an earlier build, perhaps.
            if next.name != known.value.name {
                check_name(&next.name, &all)?;
            }
            match self.set_fact(&node_key(node), known.version, &next).await {
                Ok(_) => return Ok(next),
                Err(error) if error.kind() == ErrorKind::Changed => {}
                Err(error) => return Err(error.while_doing(format!("changing node {node}"))),
            }
        }
        let text = format!("node {node} was changed by others {ATTEMPTS_MAX} times; try again");
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Keeps a token whose secret has this hash, until `until` (seconds since 1970). `makes_quorum`: the machine that comes
    /// with it gets the key of the cluster's authority. Tokens that have been over for [`CLOCKS_DIFFER_MAX`] at `now` are
    /// removed.
    ///
    /// # Errors
    /// `Busy`: there are [`JOIN_TOKENS_MAX`] already. After `Unavailable`, make another one.
    pub async fn add_join_token(
        &self,
        hash: &[u8; 32],
        until: u64,
        makes_quorum: bool,
        now: u64,
    ) -> Result<()> {
        let all = self.list(TOKENS).await?.found;
        let mut kept = 0;
        for (key, fact) in all {
            let token: JoinToken = decode(&key, &fact.value)?;
            if token.until.saturating_add(CLOCKS_DIFFER_MAX.as_secs()) >= now {
                kept += 1;
                continue;
            }
            // Another member may have removed it.
            match self.compare_and_set(&key, fact.version, None).await {
                Err(error) if error.kind() != ErrorKind::Changed => return Err(error),
                _ => {}
            }
        }
        if kept >= JOIN_TOKENS_MAX {
            let text = format!(
                "{kept} tokens were made in the last hour; use those, or wait until they are forgotten"
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let token = JoinToken {
            until,
            used_for: None,
            makes_quorum,
        };
        self.set_fact(&token_key(hash), 0, &token).await.map(drop)
    }

    /// Makes a node for whoever has shown the secret with this hash, or tells the node that the same key has: one that has
    /// never run becomes what is asked for now, another one stays as it is. `now`: seconds since 1970.
    ///
    /// # Errors
    /// `AccessDenied`: no such token, or its time is over, or it was used by another machine. `InvalidArgument`: the
    /// token is for another role than the machine wants. `NotPermitted`: the machine's node was expelled by hand.
    /// `Exists`: another node has the name. `NotSupported`: there are [`MEMBERS_MAX`] nodes already. After `Unavailable`, redeem
    /// it again.
    pub async fn redeem(&self, hash: &[u8; 32], now: u64, new: &NewNode) -> Result<NodeFacts> {
        for _ in 0..ATTEMPTS_MAX {
            let key = token_key(hash);
            let Some(token) = self.fact::<JoinToken>(&key).await? else {
                return Err(refused(
                    "no such join token: it was never made in this cluster, or its time has been over for long",
                ));
            };
            let mut others = self.nodes().await?;
            let same_key = |it: &&Versioned<NodeFacts>| it.value.key == new.key;
            let own = others.values().find(same_key).map(|it| it.value.node);
            let own = own.and_then(|node| others.remove(&node));
            token.value.check(own.as_ref(), now, new)?;
            if own.is_none() && others.len() >= MEMBERS_MAX {
                return Err(Error::new(ErrorKind::NotSupported, too_many()));
            }
            let has_run = match &own {
                Some(own) => self.has_run(own.value.node).await?,
                None => false,
            };
            let runs_etcd = new.is_quorum && others.values().any(|it| it.value.is_quorum);
            let before = own.as_ref().map(|it| &it.value);
            let facts = match before {
                Some(known) if has_run => known.clone(),
                Some(known) => new.node(known.node, Some(known), runs_etcd),
                None => new.node(self.next_node().await?, None, runs_etcd),
            };
            if facts.has_authority != new.is_quorum {
                return Err(Error::new(ErrorKind::InvalidArgument, OTHER_ROLE));
            }
            if before.is_none_or(|it| it.name != facts.name) {
                check_name(&facts.name, &others)?;
            }
            let mut changes = self.changed_name(before, &facts).await?;
            if before != Some(&facts) {
                let version = own.as_ref().map_or(0, |it| it.version);
                let node = Change::put(node_key(facts.node), version, encode(&facts));
                changes.push(node);
            }
            if token.value.used_for != Some(facts.node) {
                let used = JoinToken {
                    used_for: Some(facts.node),
                    ..token.value
                };
                changes.push(Change::put(key, token.version, encode(&used)));
            }
            if changes.is_empty() {
                return Ok(facts);
            }
            match self.transaction(changes).await {
                Ok(_) => return Ok(facts),
                Err(error) if error.kind() == ErrorKind::Changed => {}
                Err(error) => return Err(error.while_doing("making a node")),
            }
        }
        let text = format!("others were first {ATTEMPTS_MAX} times; try again");
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Whether the node's daemon was ever started.
    ///
    /// # Errors
    /// As [`Coordination::nodes`].
    pub async fn has_run(&self, node: NodeId) -> Result<bool> {
        let incarnation = self.fact::<u64>(&incarnations_key(node)).await?;
        Ok(incarnation.is_some())
    }

    /// What gives a node its name: nothing if it has it.
    async fn changed_name(
        &self,
        before: Option<&NodeFacts>,
        facts: &NodeFacts,
    ) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        if before.is_some_and(|it| it.name == facts.name) {
            return Ok(changes);
        }
        if let Some(before) = before {
            changes.extend(self.free_name(before).await?);
        }
        changes.push(Change::put(name_key(&facts.name), 0, encode(&facts.node)));
        Ok(changes)
    }

    /// What takes its name from a node, if it has it.
    async fn free_name(&self, facts: &NodeFacts) -> Result<Option<Change>> {
        let key = name_key(&facts.name);
        let known = self.fact::<NodeId>(&key).await?;
        let own = known.filter(|it| it.value == facts.node);
        Ok(own.map(|own| Change::remove(key, own.version)))
    }

    /// Forgets a node: its name, where it listens, its settings, the homes of NSDs that no pool has any more. Its number
    /// and the incarnations of its daemon are never used again, and its facts say for ever that nobody may start it: its
    /// machine may still have the certificate. Whether it may be forgotten is the caller's to judge. Nothing
    /// if there is no such node.
    ///
    /// # Errors
    /// `Busy`: others change it all the time. After `Unavailable`, forget it again.
    pub async fn forget_node(&self, node: NodeId) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let Some(known) = self.node_facts(node).await? else {
                return Ok(());
            };
            let mut stale = self.list(&settings_of_node(node)).await?.found;
            stale.extend(self.unused_homes(node).await?);
            stale.extend(self.list(&said_key(node)).await?.found);
            let stale = stale.into_iter();
            let mut changes: Vec<_> = stale
                .map(|(key, fact)| Change::remove(key, fact.version))
                .collect();
            changes.truncate(STALE_AT_ONCE_MAX);
            let is_last = changes.len() < STALE_AT_ONCE_MAX;
            if is_last {
                // The node itself last: until then it is forgotten again from the beginning.
                changes.extend(self.free_name(&known.value).await?);
                let address = self.get(&address_key(node)).await?.found;
                changes.extend(address.map(|it| Change::remove(address_key(node), it.version)));
                let forgotten = encode(&NodeFacts::forgotten(node));
                changes.push(Change::put(node_key(node), known.version, forgotten));
            }
            match self.transaction(changes).await {
                Ok(_) if is_last => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Changed => {}
                Err(error) => return Err(error.while_doing(format!("forgetting node {node}"))),
            }
        }
        let text = format!("node {node} was changed by others {ATTEMPTS_MAX} times; try again");
        Err(Error::new(ErrorKind::Busy, text))
    }
}

/// Most facts of a node that are removed in one transaction, besides the node: an etcd that others run takes 128
/// operations.
const STALE_AT_ONCE_MAX: usize = 64;

const OTHER_ROLE: &str = "this machine is a node already, with another role than the token gives: a node becomes a quorum \
                          node, or ceases to be one, only by joining anew with an empty directory";

impl NewNode {
    /// The node that it becomes, with what it is already.
    fn node(&self, node: NodeId, known: Option<&NodeFacts>, runs_etcd: bool) -> NodeFacts {
        let name = self.name.clone();
        let name = name.or_else(|| known.map(|it| it.name.clone()));
        NodeFacts {
            node,
            name: name.unwrap_or_else(|| format!("n{node}")),
            class: known.map_or_else(|| self.class.clone(), |it| it.class.clone()),
            is_quorum: runs_etcd,
            has_authority: self.is_quorum,
            is_barred: false,
            etcd: None,
            address: self.address,
            key: self.key,
        }
    }
}

impl JoinToken {
    /// Whether a machine may use it. `own`: the node that the machine is already.
    fn check(&self, own: Option<&Versioned<NodeFacts>>, now: u64, new: &NewNode) -> Result<()> {
        let node = own.map(|it| it.value.node);
        if self.used_for.is_some() && self.used_for != node {
            return Err(refused("the join token was used by another machine"));
        }
        if self.until < now {
            return Err(refused(
                "the join token's time is over by this node's clock, or the clocks of the cluster's nodes differ",
            ));
        }
        if let Some(own) = own.filter(|it| it.value.is_barred) {
            let text = format!(
                "this machine is node {0}, which was expelled by hand; `shale node unexpel {0}` on another node lets it in",
                own.value.node
            );
            return Err(Error::new(ErrorKind::NotPermitted, text));
        }
        let text = match (self.makes_quorum, new.is_quorum) {
            (false, true) => {
                "the join token doesn't make a quorum node; make one that does with `shale cluster join-token --quorum`, or \
                 join without --quorum"
            }
            (true, false) => {
                "the join token makes a quorum node, which gets the key of the cluster's authority; join with --quorum, or make \
                 another token with `shale cluster join-token`"
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }
}

fn too_many() -> String {
    format!(
        "the cluster has {MEMBERS_MAX} nodes, and can't have more: remove one that is needed no more with `shale node remove` \
         (`shale node list` shows them), then join again"
    )
}

fn refused(why: &str) -> Error {
    let text = format!("{why}; make another one with `shale cluster join-token`");
    Error::new(ErrorKind::AccessDenied, text)
}

/// What makes a node.
fn new_node(facts: &NodeFacts) -> [Change; 2] {
    [
        Change::put(node_key(facts.node), 0, encode(facts)),
        Change::put(name_key(&facts.name), 0, encode(&facts.node)),
    ]
}

/// Whether a node can have this name.
///
/// # Errors
/// `InvalidArgument`, with what a name is made of.
pub fn check_node_name(name: &str) -> Result<()> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    // Commands take nodes by name or number: nobody may mean one and expel the other.
    let is_number = name.bytes().all(|it| it.is_ascii_digit());
    if is_number || name.len() > NODE_NAME_BYTES_MAX || !name.chars().all(is_fine) {
        let text = format!(
            "a node's name has 1 to {NODE_NAME_BYTES_MAX} letters, digits, '-', '_' or '.', not digits alone, not {name:?}"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    Ok(())
}

/// Whether a node may have this name beside the others.
fn check_name(name: &str, others: &BTreeMap<NodeId, Versioned<NodeFacts>>) -> Result<()> {
    check_node_name(name)?;
    match others.values().find(|other| other.value.name == name) {
        Some(other) => {
            let text = format!(
                "node {} has the name {name:?} already; choose another one with --name",
                other.value.node
            );
            Err(Error::new(ErrorKind::Exists, text))
        }
        None => Ok(()),
    }
}

fn no_node(node: NodeId) -> Error {
    let text = format!("the cluster has no node {node}; `shale node list` shows its nodes");
    Error::new(ErrorKind::NotFound, text)
}

/// What the keys of a node's own settings begin with.
#[must_use]
pub fn settings_of_node(node: NodeId) -> String {
    format!("{SETTINGS}{:010}/", node.0)
}

fn node_key(node: NodeId) -> String {
    format!("{NODES}{:010}", node.0)
}

fn name_key(name: &str) -> String {
    format!("{NAMES}{name}")
}

fn token_key(hash: &[u8; 32]) -> String {
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{TOKENS}{hex}")
}
