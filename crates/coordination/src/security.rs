//! How the nodes of a cluster believe each other and protect their connections: which authorities count, what
//! `cipher_list` is, and what each node has made of both.
//!
//! *An authority is replaced* in steps, each of which all nodes have made before the next one begins: nodes trust the next
//! authority, too, and those that certify others get its key; it certifies, and all nodes get certificates by it; the
//! old one isn't trusted any more. [`Authorities`] says which step it is, [`lacking`] who hasn't made it.

use crate::facts::{SAID, decode, said_key};
use crate::nodes::NodeFacts;
use crate::{Coordination, Versioned};
use model::{Error, ErrorKind, NodeId, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

pub(crate) const AUTHORITIES: &str = "security/authorities";
pub(crate) const CIPHERS: &str = "security/ciphers";
/// Attempts of a change that may collide with other writers.
const ATTEMPTS_MAX: usize = 16;

/// An authority's certificate.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AuthorityFact {
    /// SHA-256 of the certificate: the authority's name here.
    pub hash: [u8; 32],
    /// The certificate: X.509, DER.
    pub certificate: Vec<u8>,
}

/// The authorities that count.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Authorities {
    /// The one that certifies nodes, unless the next one does.
    pub current: AuthorityFact,
    /// The one that takes its place, while that is under way.
    pub next: Option<NextAuthority>,
}

/// An authority that takes the place of another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NextAuthority {
    /// Which.
    pub authority: AuthorityFact,
    /// It certifies nodes: all trust it.
    pub certifies: bool,
}

impl Authorities {
    /// Those whose certificates nodes take, in the order in which they list them.
    pub fn trusted(&self) -> impl Iterator<Item = &AuthorityFact> {
        let next = self.next.as_ref().map(|next| &next.authority);
        std::iter::once(&self.current).chain(next)
    }

    /// The one that certifies nodes.
    #[must_use]
    pub fn certifying(&self) -> &AuthorityFact {
        match &self.next {
            Some(next) if next.certifies => &next.authority,
            _ => &self.current,
        }
    }
}

/// What `cipher_list` is, and how far nodes have come with it. Both as text that `rpc` understands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ciphers {
    /// The mode that was asked for.
    pub wanted: String,
    /// The policy that nodes have, or take over now.
    pub policy: String,
}

/// What a node has made of the cluster's facts, as it says itself. Facts that it hasn't made durable, or that its member of
/// etcd doesn't know, aren't in it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeSecurity {
    /// The authorities that it trusts, in its order.
    pub trusts: Vec<[u8; 32]>,
    /// The one that has issued its certificate; none: it trusts that one no more.
    pub certified_by: Option<[u8; 32]>,
    /// Those whose keys it has.
    pub keys: Vec<[u8; 32]>,
    /// The policy of its connections.
    pub policy: String,
}

/// What a node hasn't made yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// It doesn't trust the next authority.
    Trust,
    /// It certifies others, and hasn't the next authority's key.
    Key,
    /// Its certificate is by another authority than the next one.
    Certificate,
    /// It still trusts an authority that has been replaced.
    Distrust,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trust => "doesn't trust the new authority yet",
            Self::Key => "hasn't the new authority's key yet",
            Self::Certificate => "has no certificate by the new authority yet",
            Self::Distrust => "still trusts the old authority",
        })
    }
}

/// The nodes that haven't made the step which the authorities are at. Those that were expelled by hand don't count: they
/// can't come back by themselves. All others do, whether they are up or not: what they haven't made they couldn't make
/// later, because they wouldn't believe those that have.
#[must_use]
pub fn lacking(
    authorities: &Authorities,
    nodes: &BTreeMap<NodeId, Versioned<NodeFacts>>,
    said: &BTreeMap<NodeId, NodeSecurity>,
) -> Vec<(NodeId, Lack)> {
    let nothing = NodeSecurity::default();
    let nodes = nodes.values().map(|it| &it.value);
    let lack = |facts: &NodeFacts| {
        let known = said.get(&facts.node);
        let own = known.unwrap_or(&nothing);
        let Some(next) = &authorities.next else {
            let current = authorities.current.hash;
            // Whoever has said nothing was certified since.
            let is_old = known.is_some() && own.trusts.iter().any(|it| *it != current);
            return is_old.then_some(Lack::Distrust);
        };
        let hash = next.authority.hash;
        if !own.trusts.contains(&hash) {
            Some(Lack::Trust)
        } else if facts.has_authority && !own.keys.contains(&hash) {
            Some(Lack::Key)
        } else if next.certifies && own.certified_by != Some(hash) {
            Some(Lack::Certificate)
        } else {
            None
        }
    };
    let counted = nodes.filter(|facts| !facts.is_barred);
    counted
        .filter_map(|facts| Some((facts.node, lack(facts)?)))
        .collect()
}

impl Coordination {
    /// The authorities that count; `None`: the one that the cluster was founded with.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn authorities(&self) -> Result<Option<Versioned<Authorities>>> {
        self.fact(AUTHORITIES).await
    }

    /// Changes them (`expected` 0: says for the first time which count).
    ///
    /// # Errors
    /// `Changed`: they have another version; nothing was done. After `Unavailable` it is unknown whether it was done.
    pub async fn set_authorities(&self, expected: u64, authorities: &Authorities) -> Result<u64> {
        self.set_fact(AUTHORITIES, expected, authorities).await
    }

    /// What `cipher_list` is; `None`: nobody has set it.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn ciphers(&self) -> Result<Option<Versioned<Ciphers>>> {
        self.fact(CIPHERS).await
    }

    /// Changes it (`expected` 0: sets it for the first time).
    ///
    /// # Errors
    /// As of [`Coordination::set_authorities`].
    pub async fn set_ciphers(&self, expected: u64, ciphers: &Ciphers) -> Result<u64> {
        self.set_fact(CIPHERS, expected, ciphers).await
    }

    /// What the nodes have said.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn said_of_security(&self) -> Result<BTreeMap<NodeId, NodeSecurity>> {
        let all = self.list(SAID).await?.found.into_iter();
        all.filter_map(|(key, fact)| {
            let node = key.strip_prefix(SAID)?.parse().ok()?;
            let said = decode::<NodeSecurity>(&key, &fact.value);
            Some(said.map(|said| (NodeId(node), said)))
        })
        .collect()
    }

    /// Says what this node has made of the facts, if it hasn't said so before.
    ///
    /// # Errors
    /// Those of the store. After `Unavailable`, say it again.
    pub async fn say_security(&self, node: NodeId, own: &NodeSecurity) -> Result<()> {
        let key = said_key(node);
        for _ in 0..ATTEMPTS_MAX {
            let before = self.fact::<NodeSecurity>(&key).await?;
            let version = before.as_ref().map_or(0, |fact| fact.version);
            if before.is_some_and(|fact| fact.value == *own) {
                return Ok(());
            }
            match self.set_fact(&key, version, own).await {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Changed => {}
                Err(error) => return Err(error.while_doing("saying what this node trusts")),
            }
        }
        let text = format!("{key} was changed by others {ATTEMPTS_MAX} times");
        Err(Error::new(ErrorKind::Busy, text))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::Roster;
    use crate::simulated::Simulated;
    use world::sim::Simulation;

    const OLD: [u8; 32] = [1; 32];
    const NEW: [u8; 32] = [2; 32];

    fn authority(hash: [u8; 32]) -> AuthorityFact {
        AuthorityFact {
            hash,
            certificate: hash.to_vec(),
        }
    }

    fn at(step: Option<bool>) -> Authorities {
        Authorities {
            current: authority(OLD),
            next: step.map(|certifies| NextAuthority {
                authority: authority(NEW),
                certifies,
            }),
        }
    }

    /// Three nodes: the first certifies others, the last was expelled by hand.
    fn nodes() -> BTreeMap<NodeId, Versioned<NodeFacts>> {
        let node = |number: u32| {
            let value = NodeFacts {
                node: NodeId(number),
                name: format!("n{number}"),
                class: "default".into(),
                is_quorum: number == 1,
                has_authority: number == 1,
                is_barred: number == 3,
                etcd: None,
                address: format!("10.0.0.{number}:7311").parse().unwrap(),
                key: [0; 32],
            };
            (NodeId(number), Versioned { value, version: 1 })
        };
        (1..=3).map(node).collect()
    }

    fn said(trusts: &[[u8; 32]], by: [u8; 32], keys: &[[u8; 32]]) -> NodeSecurity {
        NodeSecurity {
            trusts: trusts.to_vec(),
            certified_by: Some(by),
            keys: keys.to_vec(),
            policy: "AUTHONLY".into(),
        }
    }

    #[test]
    fn a_step_is_made_when_every_node_that_may_run_has_made_it() {
        let (one, two) = (NodeId(1), NodeId(2));
        let lack = |step, first: NodeSecurity, second: NodeSecurity| {
            let said = BTreeMap::from([(one, first), (two, second)]);
            lacking(&at(step), &nodes(), &said)
        };
        let both = [OLD, NEW];
        let old = || said(&[OLD], OLD, &[]);
        // Nobody has said anything: a node that is down may believe nobody later.
        let unsaid = lacking(&at(Some(false)), &nodes(), &BTreeMap::new());
        assert_eq!(unsaid, [(one, Lack::Trust), (two, Lack::Trust)]);
        let trusting = lack(Some(false), said(&both, OLD, &[OLD]), old());
        assert_eq!(trusting, [(one, Lack::Key), (two, Lack::Trust)]);
        let ready = (said(&both, OLD, &both), said(&both, OLD, &[]));
        assert_eq!(lack(Some(false), ready.0.clone(), ready.1.clone()), []);
        let certified = lack(Some(true), said(&both, NEW, &both), ready.1.clone());
        assert_eq!(certified, [(two, Lack::Certificate)]);
        assert_eq!(
            lack(Some(true), said(&both, NEW, &both), said(&both, NEW, &[])),
            []
        );
        // A node that joined meanwhile as one that certifies has the new key only.
        assert_eq!(
            lack(Some(true), said(&both, NEW, &[NEW]), said(&both, NEW, &[])),
            []
        );
        let over = lack(None, said(&[OLD], OLD, &[OLD]), said(&both, OLD, &[]));
        assert_eq!(over, [(two, Lack::Distrust)]);
        assert_eq!(lacking(&at(None), &nodes(), &BTreeMap::new()), []);
    }

    #[test]
    fn the_next_authority_certifies_when_it_says_so_and_is_trusted_before() {
        let trusted = |step| -> Vec<[u8; 32]> { at(step).trusted().map(|it| it.hash).collect() };
        assert_eq!(trusted(None), [OLD]);
        for certifies in [false, true] {
            assert_eq!(trusted(Some(certifies)), [OLD, NEW]);
        }
        let certifying = |step| at(step).certifying().hash;
        assert_eq!(certifying(None), OLD);
        assert_eq!(certifying(Some(false)), OLD);
        assert_eq!(certifying(Some(true)), NEW);
    }

    #[test]
    fn what_nodes_say_is_kept_until_they_are_forgotten_and_all_know_the_steps() {
        let run = Simulation::new(1).run(|world| async move {
            let store = Simulated::new(&world, 1);
            let facts = store.connect(NodeId(1), &world);
            let first = nodes().remove(&NodeId(1)).unwrap().value;
            facts.add_first_node(&first).await.unwrap();
            assert_eq!(facts.authorities().await.unwrap(), None);
            let own = said(&[OLD], OLD, &[OLD]);
            for _ in 0..2 {
                facts.say_security(NodeId(1), &own).await.unwrap();
            }
            let all = facts.said_of_security().await.unwrap();
            assert_eq!(all, BTreeMap::from([(NodeId(1), own)]));
            let version = facts.set_authorities(0, &at(Some(false))).await.unwrap();
            let late = facts.set_authorities(0, &at(None)).await.unwrap_err();
            assert_eq!(late.kind(), ErrorKind::Changed);
            let ciphers = Ciphers {
                wanted: "EMPTY".into(),
                policy: "AUTHONLY also EMPTY".into(),
            };
            facts.set_ciphers(0, &ciphers).await.unwrap();
            let roster = Roster::read(&facts).await.unwrap();
            let known = roster.authorities.unwrap();
            assert_eq!((known.value, known.version), (at(Some(false)), version));
            assert_eq!(roster.ciphers.unwrap().value, ciphers);
            facts.forget_node(NodeId(1)).await.unwrap();
            assert!(facts.said_of_security().await.unwrap().is_empty());
        });
        run.finished();
    }
}
