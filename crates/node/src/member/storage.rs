//! The cluster's storage as a node changes it: NSDs that come and go, a node that is emptied, the
//! pool's scheme. Each change is one compare-and-set of the map, so it is done or not, whatever
//! happens to this node; what follows from it is done in the background, wherever the shards are.

use super::Member;
use crate::nsds::Removal;
use crate::pools::{GenerationView, PoolChange, fails_with};
use model::map::{NsdState, PoolMap};
use model::{Error, ErrorKind, NodeId, NsdId, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

impl Member {
    /// A number for a new NSD of this node, which no other gets. Whoever starts the node's daemon
    /// notes it with the region's path before [`Member::add_nsd`], so that the next run opens it
    /// whatever becomes of this one.
    ///
    /// # Errors
    /// Those of coordination.
    pub async fn next_nsd(&self) -> Result<NsdId> {
        self.parts.nsds.next_id().await
    }

    /// Makes a region on this node and adds it to the pool under a number of [`Member::next_nsd`].
    /// Others reach it at once. If it is refused, nothing of it is left.
    ///
    /// # Errors
    /// As [`crate::LocalNsds::add`].
    pub async fn add_nsd(&self, nsd: NsdId, path: &Path, bytes: u64) -> Result<()> {
        let parts = &self.parts;
        // Before the map names it: writers look for it there as soon as it does.
        let added = match parts.coordination.set_home(nsd, parts.run.node).await {
            Ok(()) => parts.nsds.add(nsd, path, bytes).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &added
            && error.kind() != ErrorKind::Unknown
            && let Err(error) = parts.coordination.remove_home(nsd, parts.run.node).await
        {
            tracing::warn!(%nsd, %error, "it stays noted which node has an NSD that wasn't added");
        }
        added
    }

    /// As [`crate::LocalNsds::discard_leftovers`].
    ///
    /// # Errors
    /// As [`crate::LocalNsds::discard_leftovers`].
    pub async fn discard_leftovers(
        &self,
        noted: &BTreeMap<NsdId, PathBuf>,
        own: &Path,
    ) -> Result<Vec<NsdId>> {
        let parts = &self.parts;
        let discarded = parts.nsds.discard_leftovers(noted, own).await?;
        for nsd in &discarded {
            parts.coordination.remove_home(*nsd, parts.run.node).await?;
        }
        Ok(discarded)
    }

    /// Reopens an NSD of this node that was missing or failed and takes it into use.
    ///
    /// # Errors
    /// As [`crate::LocalNsds::reopen`].
    pub async fn reopen_nsd(&self, nsd: NsdId) -> Result<()> {
        self.parts.nsds.reopen(nsd).await
    }

    /// The pool's generations, oldest first.
    #[must_use]
    pub fn generations(&self) -> Vec<GenerationView> {
        self.parts.nsds.generations()
    }

    /// Puts each of this node's NSDs into a failure group of its own, with names. For nodes whose pool has a scheme
    /// that the cluster's nodes can't carry yet.
    ///
    /// # Errors
    /// As [`crate::LocalNsds::set_failure_groups`].
    pub async fn name_failure_groups(&self, which: &[(NsdId, Option<String>)]) -> Result<()> {
        self.parts.nsds.set_failure_groups(which).await
    }

    /// Takes an NSD of any node out of use, as [`crate::LocalNsds::remove`].
    ///
    /// # Errors
    /// As [`crate::LocalNsds::remove`].
    pub async fn remove_nsd(&self, nsd: NsdId, removal: Removal) -> Result<()> {
        self.parts.nsds.remove(nsd, removal).await
    }

    /// Moves all data off the NSDs of a node, so that it may leave. Returns them: none if it has none in use, because it is
    /// empty already.
    ///
    /// # Errors
    /// `Busy`: this node doesn't know yet where an NSD is. `NoSpace`: the others' failure groups can't carry the pool's
    /// scheme. Those of coordination.
    pub async fn drain_node(&self, node: NodeId) -> Result<Vec<NsdId>> {
        let nsds = &self.parts.nsds;
        let drained = Mutex::default();
        let drain = |map: &PoolMap| {
            let own = nsds_of(map, &self.parts.roster.borrow().homes, node)?;
            if own.is_empty() {
                return Err(nothing_in_use(node));
            }
            let next = placement::drain_all(map, &own)?;
            *drained.lock() = own;
            Ok(next)
        };
        match nsds.change_map(drain).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            changed => changed?,
        }
        Ok(drained.into_inner())
    }

    /// Takes back the drain of an NSD of any node, as [`crate::LocalNsds::cancel_drain`].
    ///
    /// # Errors
    /// As [`crate::LocalNsds::cancel_drain`].
    pub async fn cancel_drain(&self, nsd: NsdId) -> Result<()> {
        self.parts.nsds.cancel_drain(nsd).await
    }

    /// Takes back the drain of a node: of all its NSDs that can still stay in use. Returns them.
    ///
    /// # Errors
    /// `Busy`: this node doesn't know yet where an NSD is. As [`crate::LocalNsds::cancel_drain`].
    pub async fn cancel_drain_of_node(&self, node: NodeId) -> Result<Vec<NsdId>> {
        let draining = |map: &PoolMap| {
            let own = nsds_of(map, &self.parts.roster.borrow().homes, node)?;
            may_stay(map, own, node)
        };
        self.parts.nsds.cancel_drains(draining).await
    }

    /// Puts all NSDs of nodes together with all others of the failure group with a name, for instance that
    /// of their rack; `None`: each node's are in their own again. An NSD that such a node gets later goes
    /// with the node's others. Data is rewritten in the background, so that no two pieces of a segment are
    /// in one failure group. Racks that are named in one call are one change of the pool.
    ///
    /// # Errors
    /// `NotFound`: a node has no NSD in use. `Busy`: this node doesn't know yet where an NSD is. Those of
    /// [`crate::LocalNsds::set_failure_groups`].
    pub async fn set_failure_groups(&self, nodes: &[(NodeId, Option<String>)]) -> Result<()> {
        let which = |map: &PoolMap| {
            let homes = &self.parts.roster.borrow().homes;
            let mut which = Vec::new();
            for (node, name) in nodes {
                let own = nsds_of(map, homes, *node)?;
                if own.is_empty() {
                    return Err(nothing_in_use(*node));
                }
                let own = own.into_iter();
                which.extend(own.map(|nsd| (nsd, fails_with(name, node.0))));
            }
            Ok(which)
        };
        self.parts.nsds.fail_together(which).await
    }

    /// As [`crate::LocalNsds::change_pool`].
    ///
    /// # Errors
    /// As [`crate::LocalNsds::change_pool`].
    pub async fn change_pool(&self, change: PoolChange) -> Result<()> {
        self.parts.nsds.change_pool(change).await
    }
}

/// The NSDs of a node that are in use.
///
/// # Errors
/// `Busy`: where one is isn't known; it could be the node's.
fn nsds_of(map: &PoolMap, homes: &BTreeMap<NsdId, NodeId>, node: NodeId) -> Result<Vec<NsdId>> {
    let in_use = map.nsds.iter().filter(|it| it.state != NsdState::Lost);
    let in_use: Vec<NsdId> = in_use.map(|entry| entry.nsd).collect();
    if let Some(nsd) = in_use.iter().find(|nsd| !homes.contains_key(nsd)) {
        let text = format!("where NSD {nsd} is isn't known here yet; try again");
        return Err(Error::new(ErrorKind::Busy, text));
    }
    let is_own = |nsd: &NsdId| homes.get(nsd) == Some(&node);
    Ok(in_use.into_iter().filter(is_own).collect())
}

/// Those of a node's NSDs in use whose drain is taken back: with places for new data, if any has one.
///
/// # Errors
/// `InvalidArgument`: none is being drained.
fn may_stay(map: &PoolMap, own: Vec<NsdId>, node: NodeId) -> Result<Vec<NsdId>> {
    let refused = |why: &str| {
        let text = format!("take back the drain of node {node}: {why}");
        Err(Error::new(ErrorKind::InvalidArgument, text))
    };
    if own.is_empty() {
        return refused("it has no NSD in use; `shale nsd add` adds one");
    }
    let is_draining = |nsd: &NsdId| {
        let entry = map.nsd(*nsd);
        entry.is_some_and(|it| it.state == NsdState::Draining)
    };
    let draining: Vec<NsdId> = own.into_iter().filter(is_draining).collect();
    if draining.is_empty() {
        return refused("none of its NSDs is being drained");
    }
    let groups = placement::Groups::new(map);
    let takes_new = |nsd: &NsdId| groups.takes_new(*nsd);
    let (kept, leaving): (Vec<NsdId>, Vec<NsdId>) = draining.into_iter().partition(takes_new);
    Ok(match kept.is_empty() {
        true => leaving,
        false => kept,
    })
}

fn nothing_in_use(node: NodeId) -> Error {
    let text = format!("node {node} has no NSD in use");
    Error::new(ErrorKind::NotFound, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nsds::{Failures, entry};

    #[test]
    fn the_nsds_of_a_node_are_those_in_use_and_all_must_be_known() {
        let entries = (1..=3).map(|nsd| {
            let node = NodeId(nsd.min(2));
            entry(NsdId(nsd), 1 << 30, Failures::ByNode(node))
        });
        let scheme = model::Scheme::Replicate(1);
        let mut map = placement::new_pool(scheme, entries.collect(), 1).unwrap();
        let mut homes: BTreeMap<_, _> = [(1, 1), (2, 2)]
            .map(|(nsd, node)| (NsdId(nsd), NodeId(node)))
            .into();
        let unknown = nsds_of(&map, &homes, NodeId(2)).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Busy, "it may be node 2's");
        homes.insert(NsdId(3), NodeId(2));
        assert_eq!(
            nsds_of(&map, &homes, NodeId(2)).unwrap(),
            [NsdId(2), NsdId(3)]
        );
        for entry in &mut map.nsds {
            entry.state = NsdState::Lost;
        }
        assert!(nsds_of(&map, &homes, NodeId(2)).unwrap().is_empty());
    }

    #[test]
    fn the_drain_of_a_node_is_taken_back_where_it_has_not_ended() {
        let entries = (1..=4).map(|nsd| {
            let node = NodeId(nsd.min(3));
            entry(NsdId(nsd), 1 << 30, Failures::ByNode(node))
        });
        let scheme = model::Scheme::Replicate(1);
        let map = placement::new_pool(scheme, entries.collect(), 1).unwrap();
        let (node, own) = (NodeId(3), [NsdId(3), NsdId(4)]);
        let refused = |map: &PoolMap, own: &[NsdId]| {
            let error = may_stay(map, own.to_vec(), node).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            error.to_string()
        };
        assert!(refused(&map, &own).contains("none of its NSDs is being drained"));
        assert!(refused(&map, &[]).contains("it has no NSD in use"));
        let draining = placement::drain_all(&map, &own).unwrap();
        let kept = |map: &PoolMap| may_stay(map, own.to_vec(), node).unwrap();
        assert_eq!(kept(&draining), own);
        let groups = placement::Groups::new(&draining);
        let ended = placement::finish_moves(&draining, &groups.slots_of(NsdId(3)));
        assert_eq!(kept(&ended), [NsdId(4)]);
        // All have moved: the map's rule says why it is too late.
        let ended = placement::finish_moves(&draining, &groups.moving());
        assert_eq!(kept(&ended), own);
        assert!(placement::cancel_drain(&ended, &own).is_err());
    }
}
