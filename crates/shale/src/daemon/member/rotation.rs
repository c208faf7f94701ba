//! `shale cluster rotate-keys`: another authority takes the place of the cluster's, and all nodes get new keys and
//! certificates.
//!
//! *The steps* ([`Authorities`]): a node that has the authority's key makes the next authority, stores its key, and tells
//! coordination of it. All nodes trust it, too, their members of etcd included, and the others that certify get its key.
//! When all have said so, the manager's node has it certify: each node makes a new key and gets a certificate for it. When
//! all have one, a person finishes it: nobody trusts the old authority any more, and its key is removed.
//!
//! *A crash* or an unknown outcome at any point: all of it is in coordination and in files, and each part can be done again.
//! Nodes that are down are waited for (`waiting`), because what they haven't heard of they couldn't believe later.

mod waiting;

use super::key_ring::{KeyRing, hash_of};
use super::{InCluster, reports::standings};
use crate::admin::{RotationStep, RotationView};
use coordination::{
    Authorities, AuthorityFact, NextAuthority, NodeFacts, NodeSecurity, Versioned, lacking,
};
use model::{Error, ErrorKind, NodeId, Result};
use rpc::security::{Authority, Certificate, Fingerprint};
use std::collections::BTreeMap;
use std::sync::Arc;
use waiting::unfinished;

/// Attempts of a change that collides with others'.
const ATTEMPTS_MAX: usize = 16;

impl InCluster {
    /// `shale cluster rotate-keys --status`.
    ///
    /// # Errors
    /// Those of coordination.
    pub async fn rotation(&self) -> Result<RotationView> {
        self.read_soon(self.read_rotation()).await
    }

    async fn read_rotation(&self) -> Result<RotationView> {
        let facts = self.member().coordination();
        let Some(known) = facts.authorities().await? else {
            let own = self.credentials().issuer();
            return Ok(RotationView {
                step: "none".into(),
                current: own.map_or_else(String::new, |it| it.to_string()),
                next: None,
                old: Vec::new(),
                waits_for: Vec::new(),
                held_up: None,
            });
        };
        let known = known.value;
        let next = known.next.as_ref();
        let step = match next {
            None => "none",
            Some(next) if !next.certifies => "trust",
            Some(_) => "certify",
        };
        let waiting = self.waiting(&known).await?;
        Ok(RotationView {
            step: step.into(),
            current: Fingerprint(known.current.hash).to_string(),
            next: next.map(|it| Fingerprint(it.authority.hash).to_string()),
            old: waiting.old,
            waits_for: waiting.lines,
            held_up: waiting.held_up,
        })
    }

    /// `shale cluster rotate-keys`, with or without `--finish` or `--cancel`. Each can be asked for again. `old`: the
    /// fingerprint of the authority that is to be ended, if whoever finishes it has said which.
    ///
    /// # Errors
    /// `NotSupported`: this node hasn't the authority's key. `NotPermitted`: connections aren't protected. `Busy`: nodes
    /// that it names haven't made the step before. `InvalidArgument`: it is too late to cancel, or another authority than
    /// `old` would be ended. Those of coordination: ask again.
    pub async fn rotate(&self, step: RotationStep, old: Option<&str>) -> Result<RotationView> {
        let ended = match step {
            RotationStep::Begin => self.begin_rotation().await.map(|()| None)?,
            RotationStep::Finish => self.finish_rotation(old).await?,
            RotationStep::Cancel => self.cancel_rotation().await.map(|()| None)?,
        };
        let mut view = self.rotation().await?;
        // Nodes may not have said yet that they trust it still.
        view.old.extend(ended.filter(|it| !view.old.contains(it)));
        Ok(view)
    }

    async fn begin_rotation(&self) -> Result<()> {
        let facts = self.member().coordination();
        let Some(keys) = self.keys() else {
            let nodes = facts.nodes().await?;
            let nodes = nodes.values().map(|it| &it.value);
            let names = nodes
                .filter(|it| it.has_authority)
                .map(|it| it.name.clone());
            let names: Vec<_> = names.collect();
            let text = format!(
                "this node hasn't the key of the cluster's authority; run the command on one that has it: {}",
                names.join(", ")
            );
            return Err(Error::new(ErrorKind::NotSupported, text));
        };
        if self.policy().takes_plain() {
            let text = "connections between nodes aren't protected (cipher_list is EMPTY, or was until now), and the new key goes \
                        over them: `shale config set cipher_list AUTHONLY` first";
            return Err(Error::new(ErrorKind::NotPermitted, text));
        }
        for _ in 0..ATTEMPTS_MAX {
            let known = facts.authorities().await?;
            if let Some(known) = &known {
                if known.value.next.is_some() {
                    // It may be the one that this node has offered, also for somebody else who has asked at the same time.
                    keys.withdraw_unknown(&known.value);
                    return Ok(());
                }
                // What is left of one that was finished.
                keys.keep(&known.value)?;
            }
            let (version, next) = self.next_authorities(keys, known)?;
            match facts.set_authorities(version, &next).await {
                Ok(_) => {
                    tracing::info!("the cluster gets a new authority");
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Changed => {}
                // It may be told all the same, or by somebody else who has asked: the key is kept.
                Err(error) => return Err(error),
            }
        }
        Err(contended())
    }

    /// The authorities that are to count next, and the version that they must have now.
    fn next_authorities(
        &self,
        keys: &Arc<KeyRing>,
        known: Option<Versioned<Authorities>>,
    ) -> Result<(u64, Authorities)> {
        let (version, current) = match known {
            Some(known) => (known.version, known.value.current),
            None => (0, fact_of(&keys.main())),
        };
        let offered = keys.offer(self.member().world().wall())?;
        let next = fact_of(&offered);
        assert_ne!(next.hash, current.hash, "an authority has a key of its own");
        let next = NextAuthority {
            authority: next,
            certifies: false,
        };
        let authorities = Authorities {
            current,
            next: Some(next),
        };
        Ok((version, authorities))
    }

    /// Returns the fingerprint of the authority that isn't trusted any more; `None`: that was done before, and nobody has
    /// named it.
    async fn finish_rotation(&self, old: Option<&str>) -> Result<Option<String>> {
        let facts = self.member().coordination();
        for _ in 0..ATTEMPTS_MAX {
            let Some((version, current, next)) = self.under_way(old).await? else {
                return Ok(old.map(str::to_lowercase));
            };
            let ended = Fingerprint(current.hash).to_string();
            let finished = Authorities {
                current: next.authority,
                next: None,
            };
            match facts.set_authorities(version, &finished).await {
                Ok(_) => {
                    tracing::info!(%ended, "the cluster's old authority isn't trusted any more");
                    return Ok(Some(ended));
                }
                Err(error) if error.kind() == ErrorKind::Changed => {}
                Err(error) => return Err(error),
            }
        }
        Err(contended())
    }

    /// The authority that counts, and the one that can take its place now; `None`: it has.
    async fn under_way(
        &self,
        old: Option<&str>,
    ) -> Result<Option<(u64, AuthorityFact, NextAuthority)>> {
        let known = self.member().coordination().authorities().await?;
        let Some(known) = known else {
            let text = "no keys are being replaced; `shale cluster rotate-keys` begins it";
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        check_is_meant(&known.value, old)?;
        let Some(next) = known.value.next.clone() else {
            return Ok(None);
        };
        let waiting = self.waiting(&known.value).await?;
        if !waiting.lines.is_empty() {
            return Err(Error::new(ErrorKind::Busy, unfinished(&waiting)));
        }
        if !next.certifies {
            let text = "all nodes trust the new authority, and get their certificates by it in some seconds; try again then";
            return Err(Error::new(ErrorKind::Busy, text));
        }
        Ok(Some((known.version, known.value.current, next)))
    }

    async fn cancel_rotation(&self) -> Result<()> {
        let facts = self.member().coordination();
        for _ in 0..ATTEMPTS_MAX {
            let known = facts.authorities().await?;
            let Some(known) = known.filter(|it| it.value.next.is_some()) else {
                return Ok(());
            };
            if known.value.next.is_some_and(|next| next.certifies) {
                let text = "nodes have certificates by the new authority already: finish it (`shale cluster rotate-keys \
                            --finish`), and begin another one if need be";
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
            let cancelled = Authorities {
                current: known.value.current,
                next: None,
            };
            match facts.set_authorities(known.version, &cancelled).await {
                Err(error) if error.kind() == ErrorKind::Changed => {}
                other => return other.map(drop),
            }
        }
        Err(contended())
    }

    /// Has the next authority certify, if all nodes have said that they trust it. For the manager's node; it does no harm if
    /// several do it.
    ///
    /// # Errors
    /// Those of coordination.
    pub async fn lead_rotation(&self, known: &Versioned<Authorities>) -> Result<()> {
        let Some(next) = known.value.next.clone().filter(|next| !next.certifies) else {
            return Ok(());
        };
        let facts = self.member().coordination();
        let (nodes, said) = (facts.nodes().await?, facts.said_of_security().await?);
        if !lacking(&known.value, &nodes, &said).is_empty() {
            return Ok(());
        }
        tracing::info!(
            "all nodes trust the cluster's new authority: it certifies them from now on"
        );
        let certifies = Authorities {
            current: known.value.current.clone(),
            next: Some(NextAuthority {
                certifies: true,
                ..next
            }),
        };
        match facts.set_authorities(known.version, &certifies).await {
            // Somebody else has, or has cancelled it.
            Err(error) if error.kind() == ErrorKind::Changed => Ok(()),
            other => other.map(drop),
        }
    }

    /// Drops keys of authorities that aren't trusted any more, and gets those that this node certifies with or will.
    ///
    /// # Errors
    /// `Unavailable`: no node gives one; try again. The system's error.
    pub async fn follow_keys(&self, authorities: &Authorities) -> Result<()> {
        let Some(keys) = self.keys() else {
            return Ok(());
        };
        keys.keep(authorities)?;
        let next = authorities.next.as_ref().map(|next| &next.authority);
        for fact in std::iter::once(authorities.certifying()).chain(next) {
            if keys.of(&fact.hash).is_none() {
                keys.add(self.fetch(fact).await?)?;
                keys.keep(authorities)?;
            }
        }
        Ok(())
    }

    async fn fetch(&self, fact: &AuthorityFact) -> Result<Authority> {
        let own = self.member().run().node;
        let wanted = Certificate::from_der(&fact.certificate)?;
        let said = self.member().coordination().said_of_security().await?;
        let mut why = Error::new(
            ErrorKind::Unavailable,
            "no node says that it has the key of the new authority",
        );
        for (node, said) in said {
            if node == own || !said.keys.contains(&fact.hash) {
                continue;
            }
            match self.fetch_authority(node, &wanted).await {
                Ok(authority) => return Ok(authority),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Whether this node's member of etcd is the next one to be started again, so that not several are away at once.
    ///
    /// # Errors
    /// Those of coordination.
    pub async fn is_turn_of_etcd(&self) -> Result<bool> {
        let facts = self.member().coordination();
        let (nodes, said) = (facts.nodes().await?, facts.said_of_security().await?);
        let standings = standings(&self.member().roster());
        let own = self.member().run().node;
        let trusted = self.credentials();
        let trusted: Vec<_> = trusted
            .authorities()
            .iter()
            .map(|it| it.fingerprint().0)
            .collect();
        let is_up = |node: NodeId| standings.get(&node).is_some_and(|it| it.is_member());
        Ok(is_turn(own, &trusted, (&nodes, &said), is_up))
    }
}

/// Whether all members of etcd at nodes with lower numbers that are up believe these authorities.
fn is_turn(
    own: NodeId,
    trusted: &[[u8; 32]],
    (nodes, said): (
        &BTreeMap<NodeId, Versioned<NodeFacts>>,
        &BTreeMap<NodeId, NodeSecurity>,
    ),
    is_up: impl Fn(NodeId) -> bool,
) -> bool {
    let before = nodes.range(..own).map(|(_, it)| &it.value);
    let mut before = before.filter(|it| it.etcd.is_some() && !it.is_barred && is_up(it.node));
    before.all(|it| {
        said.get(&it.node)
            .is_some_and(|said| said.trusts == trusted)
    })
}

fn fact_of(authority: &Authority) -> AuthorityFact {
    AuthorityFact {
        hash: hash_of(authority),
        certificate: authority.certificate().der().to_vec(),
    }
}

/// Whether the authority that would be ended is the one that a person has named, if they have: somebody else may have begun
/// another rotation meanwhile. Nothing is left to do if it was ended before.
fn check_is_meant(known: &Authorities, old: Option<&str>) -> Result<()> {
    let Some(old) = old else {
        return Ok(());
    };
    let current = Fingerprint(known.current.hash).to_string();
    let is_current = old.eq_ignore_ascii_case(&current);
    if is_current == known.next.is_some() {
        return Ok(());
    }
    let text = match is_current {
        true => format!("authority {current} counts, and no other takes its place"),
        false => format!(
            "the authority that is being replaced is {current}, not {old}; `shale cluster rotate-keys --status` shows both"
        ),
    };
    Err(Error::new(ErrorKind::InvalidArgument, text))
}

fn contended() -> Error {
    let text = format!("others changed the authorities {ATTEMPTS_MAX} times; try again");
    Error::new(ErrorKind::Busy, text)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A node, which is a quorum node or none, and may have been expelled by hand.
    pub(in crate::daemon::member::rotation) fn facts_of(
        number: u32,
        is_quorum: bool,
        is_barred: bool,
    ) -> (NodeId, Versioned<NodeFacts>) {
        let value = NodeFacts {
            node: NodeId(number),
            name: format!("n{number}"),
            class: "default".into(),
            is_quorum,
            has_authority: is_quorum,
            is_barred,
            etcd: is_quorum.then(|| format!("https://10.0.0.{number}:7312")),
            address: format!("10.0.0.{number}:7311").parse().unwrap(),
            key: [0; 32],
        };
        (NodeId(number), Versioned { value, version: 1 })
    }

    #[test]
    fn the_authority_that_is_ended_is_the_one_that_was_named() {
        let fact = |byte: u8| AuthorityFact {
            hash: [byte; 32],
            certificate: Vec::new(),
        };
        let known = |current: u8, next: Option<u8>| Authorities {
            current: fact(current),
            next: next.map(|byte| NextAuthority {
                authority: fact(byte),
                certifies: true,
            }),
        };
        let (first, second) = ("01".repeat(32), "02".repeat(32));
        let is_meant = |known: Authorities, old: &str| check_is_meant(&known, Some(old)).is_ok();
        check_is_meant(&known(1, Some(2)), None).unwrap();
        assert!(is_meant(known(1, Some(2)), &first));
        assert!(!is_meant(known(1, Some(2)), &second), "it is the next one");
        // Done already.
        assert!(is_meant(known(2, None), &first));
        assert!(!is_meant(known(2, None), &second), "it counts");
        // Somebody has begun another one meanwhile.
        assert!(!is_meant(known(2, Some(3)), &first));
        assert!(is_meant(known(0xab, Some(3)), &"AB".repeat(32)));
    }

    /// Would be broken if two members of three were away at once: nothing could be changed in the cluster meanwhile.
    #[test]
    fn members_of_etcd_are_started_again_one_after_the_other() {
        let node = |number: u32, has_etcd: bool| facts_of(number, has_etcd, false);
        let nodes = BTreeMap::from([node(1, true), node(2, false), node(3, true), node(4, true)]);
        let trusted = [[1; 32], [2; 32]];
        let said = |trusting: &[u32]| -> BTreeMap<NodeId, NodeSecurity> {
            let said = |node: u32| {
                let trusts = match trusting.contains(&node) {
                    true => trusted.to_vec(),
                    false => trusted[..1].to_vec(),
                };
                let said = NodeSecurity {
                    trusts,
                    ..NodeSecurity::default()
                };
                (NodeId(node), said)
            };
            [1, 3, 4].map(said).into_iter().collect()
        };
        let turns = |trusting: &[u32], down: &[u32]| -> Vec<u32> {
            let said = said(trusting);
            let is_turn = |node: &u32| {
                let is_up = |node: NodeId| !down.contains(&node.0);
                is_turn(NodeId(*node), &trusted, (&nodes, &said), is_up)
            };
            [1, 3, 4].into_iter().filter(is_turn).collect()
        };
        assert_eq!(turns(&[], &[]), [1]);
        assert_eq!(turns(&[1], &[]), [1, 3]);
        assert_eq!(turns(&[1, 3], &[]), [1, 3, 4]);
        assert_eq!(
            turns(&[1], &[3]),
            [1, 3, 4],
            "one that is down is away already"
        );
        assert_eq!(turns(&[], &[1]), [1, 3]);
    }
}
