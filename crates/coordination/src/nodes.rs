//! The nodes of a cluster, whether their daemons run or not, and the tokens that machines join with.
//!
//! *A machine joins*: a member makes a secret and stores its hash with the time until which it is good
//! ([`Coordination::add_join_token`]). Whoever shows the secret gets a node: [`Coordination::redeem`] marks the
//! token as used and stores the new node in one change, so that of two machines with one token one becomes a node.
//! A machine whose answer was lost shows the same secret and the same key again, and is told the same node.

use crate::facts::{decode, encode};
use crate::{Change, Coordination, Versioned};
use model::{Error, ErrorKind, NodeId, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub(crate) const NODES: &str = "nodes/";
/// Which node has each name, so that no two have the same.
const NAMES: &str = "node_names/";
const TOKENS: &str = "join/";
/// Attempts of a change that may collide with other writers.
const ATTEMPTS_MAX: usize = 64;
/// Most tokens that are kept at the same time, used ones included until their time is over.
pub const JOIN_TOKENS_MAX: usize = 256;
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
    /// It runs a member of the cluster's own etcd, and has the key of the cluster's authority.
    pub is_quorum: bool,
    /// Nobody may start it: it was expelled by hand.
    pub is_barred: bool,
    /// Where its member of the cluster's own etcd answers clients, as `https://host:port`.
    pub etcd: Option<String>,
    /// Names the key that it joined with.
    pub key: [u8; 32],
}

/// A one-time token, as coordination keeps it: nothing of it says what the secret is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct JoinToken {
    /// Good until then, in seconds since 1970 by the clock of whoever redeems it.
    until: u64,
    /// The node that it became.
    used_for: Option<NodeId>,
}

/// What a new node wants to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewNode {
    /// Its name; `None`: one is made of its number.
    pub name: Option<String>,
    /// Its class.
    pub class: String,
    /// It becomes a quorum node.
    pub is_quorum: bool,
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
        all.found.into_iter().map(read).collect()
    }

    /// A node.
    ///
    /// # Errors
    /// As [`Coordination::nodes`].
    pub async fn node_facts(&self, node: NodeId) -> Result<Option<Versioned<NodeFacts>>> {
        self.fact(&node_key(node)).await
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
            check_name(&next.name, &all)?;
            match self.set_fact(&node_key(node), known.version, &next).await {
                Ok(_) => return Ok(next),
                Err(error) if error.kind() == ErrorKind::Changed => {}
                Err(error) => return Err(error.while_doing(format!("changing node {node}"))),
            }
        }
        let text = format!("node {node} was changed by others {ATTEMPTS_MAX} times; try again");
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Keeps a token whose secret has this hash, until `until` (seconds since 1970). Tokens that are over at `now`
    /// are removed.
    ///
    /// # Errors
    /// `Busy`: there are [`JOIN_TOKENS_MAX`] already. After `Unavailable`, make another one.
    pub async fn add_join_token(&self, hash: &[u8; 32], until: u64, now: u64) -> Result<()> {
        let all = self.list(TOKENS).await?.found;
        let mut kept = 0;
        for (key, fact) in all {
            let token: JoinToken = decode(&key, &fact.value)?;
            if token.until >= now {
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
                "{kept} tokens were made in the last minutes; use those, or wait until they are over"
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let token = JoinToken {
            until,
            used_for: None,
        };
        self.set_fact(&token_key(hash), 0, &token).await.map(drop)
    }

    /// Makes a node for whoever has shown the secret with this hash, or tells the node that was made for it and
    /// the same key before. `now`: seconds since 1970.
    ///
    /// # Errors
    /// `AccessDenied`: no such token, or its time is over, or it was used by another machine. `Exists`: another node
    /// has the name. After `Unavailable`, redeem it again.
    pub async fn redeem(&self, hash: &[u8; 32], now: u64, new: &NewNode) -> Result<NodeFacts> {
        let refused = |text: &str| Err(Error::new(ErrorKind::AccessDenied, text));
        for _ in 0..ATTEMPTS_MAX {
            let key = token_key(hash);
            let Some(token) = self.fact::<JoinToken>(&key).await? else {
                return refused(
                    "no such join token: it was never made here, or its time is over; make another one with \
                     `shale cluster join-token`",
                );
            };
            let all = self.nodes().await?;
            if let Some(node) = token.value.used_for {
                return match all.get(&node) {
                    Some(known) if known.value.key == new.key && known.value.is_barred => {
                        refused(
                            "the node that this machine became was expelled by hand; `shale node unexpel` on another node \
                             lets it in again",
                        )
                    }
                    Some(known) if known.value.key == new.key => Ok(known.value.clone()),
                    _ => refused(
                        "the join token was used by another machine; make another one with `shale cluster join-token`",
                    ),
                };
            }
            if token.value.until < now {
                return refused(
                    "the join token's time is over; make another one with `shale cluster join-token`",
                );
            }
            let node = self.next_node().await?;
            let name = new.name.clone().unwrap_or_else(|| format!("n{node}"));
            check_name(&name, &all)?;
            let facts = NodeFacts {
                node,
                name,
                class: new.class.clone(),
                is_quorum: new.is_quorum,
                is_barred: false,
                etcd: None,
                key: new.key,
            };
            let used = JoinToken {
                used_for: Some(node),
                ..token.value
            };
            let used = Change::put(key, token.version, encode(&used));
            let changes = new_node(&facts).into_iter().chain([used]);
            match self.transaction(changes.collect()).await {
                Ok(_) => return Ok(facts),
                Err(error) if error.kind() == ErrorKind::Changed => {}
                Err(error) => return Err(error.while_doing("making a node")),
            }
        }
        let text = format!("others were first {ATTEMPTS_MAX} times; try again");
        Err(Error::new(ErrorKind::Busy, text))
    }
}

/// What makes a node.
fn new_node(facts: &NodeFacts) -> [Change; 2] {
    [
        Change::put(node_key(facts.node), 0, encode(facts)),
        Change::put(name_key(&facts.name), 0, encode(&facts.node)),
    ]
}

/// Whether a node may have this name beside the others.
fn check_name(name: &str, others: &BTreeMap<NodeId, Versioned<NodeFacts>>) -> Result<()> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NODE_NAME_BYTES_MAX || !name.chars().all(is_fine) {
        let text = format!(
            "a node's name has 1 to {NODE_NAME_BYTES_MAX} letters, digits, '-', '_' or '.', not {name:?}"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::simulated::{Chances, Simulated};
    use world::sim::Simulation;

    fn new(name: Option<&str>, key: u8) -> NewNode {
        NewNode {
            name: name.map(str::to_owned),
            class: "default".into(),
            is_quorum: false,
            key: [key; 32],
        }
    }

    #[test]
    fn a_token_makes_one_node_whoever_comes_with_it() {
        for seed in 0..20 {
            let run = Simulation::new(seed).run(move |world| async move {
                let store = Simulated::new(&world, seed);
                store.set_chances(Chances::HARSH);
                let members = [1, 2].map(|node| store.connect(NodeId(node), &world));
                let hash = [7; 32];
                loop {
                    match members[0].add_join_token(&hash, 300, 0).await {
                        Err(error) if error.kind() == ErrorKind::Unavailable => {}
                        // An attempt with an unknown outcome has made it.
                        _ => break,
                    }
                }
                let redeem = async |at: usize, key: u8| loop {
                    match members[at].redeem(&hash, 10, &new(None, key)).await {
                        Err(error) if error.kind() == ErrorKind::Unavailable => {}
                        other => return other,
                    }
                };
                let (one, other) = tokio::join!(redeem(0, 1), redeem(1, 2));
                assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
                let (won, key) = match one {
                    Ok(facts) => (facts, 1),
                    Err(_) => (other.unwrap(), 2),
                };
                store.set_chances(Chances::NONE);
                // Its answer was lost: the same machine is told the same node, another one is refused.
                assert_eq!(redeem(0, key).await.unwrap(), won);
                let refused = redeem(0, 9).await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::AccessDenied);
                assert_eq!(members[1].nodes().await.unwrap().len(), 1);
            });
            run.finished();
        }
    }

    #[test]
    fn tokens_end_and_names_are_unique() {
        let run = Simulation::new(1).run(|world| async move {
            let store = Simulated::new(&world, 1);
            let facts = store.connect(NodeId(1), &world);
            facts.add_join_token(&[1; 32], 300, 0).await.unwrap();
            let late = facts.redeem(&[1; 32], 301, &new(None, 1)).await;
            assert_eq!(late.unwrap_err().kind(), ErrorKind::AccessDenied);
            let unknown = facts.redeem(&[2; 32], 1, &new(None, 1)).await;
            assert_eq!(unknown.unwrap_err().kind(), ErrorKind::AccessDenied);
            let first = facts.redeem(&[1; 32], 300, &new(Some("a"), 1)).await;
            assert_eq!(first.unwrap().name, "a");
            // The one that is over goes when the next is made.
            facts.add_join_token(&[2; 32], 600, 301).await.unwrap();
            assert_eq!(facts.list(TOKENS).await.unwrap().found.len(), 1);
            for bad in ["a", "", "a b", "ä"] {
                let refused = facts.redeem(&[2; 32], 301, &new(Some(bad), 2)).await;
                let refused = refused.unwrap_err().kind();
                assert!(matches!(
                    refused,
                    ErrorKind::Exists | ErrorKind::InvalidArgument
                ));
            }
            let second = facts.redeem(&[2; 32], 301, &new(None, 2)).await.unwrap();
            assert_eq!(second.name, format!("n{}", second.node));
            let taken = facts.change_node(second.node, |it| {
                it.name = "a".into();
                Ok(())
            });
            assert_eq!(taken.await.unwrap_err().kind(), ErrorKind::Exists);
            // One that was expelled by hand isn't certified anew by the token that it has used.
            let expel = facts.change_node(second.node, |it| {
                it.is_barred = true;
                Ok(())
            });
            expel.await.unwrap();
            let again = facts.redeem(&[2; 32], 301, &new(None, 2)).await;
            let refused = again.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::AccessDenied);
            assert!(refused.to_string().contains("unexpel"), "{refused}");
        });
        run.finished();
    }

    #[test]
    fn the_bytes_of_a_node_and_of_a_token_are_those_of_the_format_table() {
        let facts = NodeFacts {
            node: NodeId(300),
            name: "a".into(),
            class: "b".into(),
            is_quorum: true,
            is_barred: false,
            etcd: Some("c".into()),
            key: [9; 32],
        };
        let mut bytes = vec![3, 0xac, 2, 1, b'a', 1, b'b', 1, 0, 1, 1, b'c'];
        bytes.extend([9; 32]);
        assert_eq!(encode(&facts)[..], bytes);
        let token = JoinToken {
            until: 300,
            used_for: Some(NodeId(5)),
        };
        assert_eq!(encode(&token)[..], [3, 0xac, 2, 1, 5]);
    }
}
