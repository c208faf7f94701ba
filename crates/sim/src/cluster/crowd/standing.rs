//! What must hold at every moment, seen from outside: no two clients may use what conflicts, and no two
//! processes own a shard in one epoch.

use super::Crowd;
use super::known::{Known, Shared, lock};
use crate::witness::ClientNumber;
use client::Client;
use model::{NodeId, NodeRun, ShardEpoch, ShardId, TokenMode, TokenObject, TokenRange};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked at: no message goes there and back in less.
const LOOK_EVERY: Duration = Duration::from_millis(2);

impl Crowd<'_> {
    /// Looks for ever.
    pub(super) async fn watch(&self) {
        let mut owners = vec![BTreeMap::new(); self.known.len()];
        let mut stood_still = BTreeSet::new();
        loop {
            for (known, owners) in self.known.iter().zip(&mut owners) {
                note_lost_sessions(known);
                let shard = lock(known).shard();
                let wrong = self
                    .wrong_owner(shard, owners)
                    .or_else(|| self.wrong_tokens(known, &stood_still))
                    .or_else(|| self.unknown_token(known, owners, &stood_still));
                if let Some(wrong) = wrong {
                    lock(known).breaks(format!("{wrong}, after {:?}", self.judge.now()));
                    std::future::pending::<()>().await;
                }
            }
            // The clock of one that goes on is late until its first step.
            let machines = self.machines.nodes.iter();
            let paused = machines.filter(|it| it.node.is_paused());
            stood_still = paused.map(|it| it.id).collect();
            self.judge.sleep(LOOK_EVERY).await;
        }
    }

    /// Two processes that own the shard in one epoch.
    fn wrong_owner(
        &self,
        shard: ShardId,
        owners: &mut BTreeMap<ShardEpoch, NodeRun>,
    ) -> Option<String> {
        let members = self.machines.nodes.iter().filter_map(|it| it.member());
        for member in members {
            let Some(metanode) = member.hosted_of(shard) else {
                continue;
            };
            let (epoch, run) = (metanode.shard_status().epoch, member.run());
            let first = *owners.entry(epoch).or_insert(run);
            if first != run {
                return Some(format!(
                    "runs {first} and {run} own the shard in epoch {epoch}"
                ));
            }
        }
        None
    }

    /// Two clients that may use what conflicts.
    fn wrong_tokens(&self, known: &Shared, stood_still: &BTreeSet<NodeId>) -> Option<String> {
        let known = &*lock(known);
        let mut held: BTreeMap<TokenObject, Vec<(u32, TokenRange, TokenMode)>> = BTreeMap::new();
        for (number, client) in self.clients_there(known, stood_still) {
            for (object, range, mode) in client.usable() {
                held.entry(object).or_default().push((number, range, mode));
            }
        }
        held.iter().find_map(|(object, pieces)| {
            let pairs = pieces.iter().enumerate();
            let mut pairs =
                pairs.flat_map(|(at, one)| pieces[at + 1..].iter().map(move |it| (one, it)));
            let two = pairs.find(|(one, other)| {
                let overlaps = one.1.start < other.1.end && other.1.start < one.1.end;
                let is_alone = |mode| mode == TokenMode::Exclusive;
                one.0 != other.0 && overlaps && (one.2 != other.2 || is_alone(one.2))
            })?;
            Some(format!("two clients have {object:?}: {two:?}"))
        })
    }

    /// A client that may use what the owner doesn't know of.
    fn unknown_token(
        &self,
        known: &Shared,
        seen: &BTreeMap<ShardEpoch, NodeRun>,
        stood_still: &BTreeSet<NodeId>,
    ) -> Option<String> {
        let known = &*lock(known);
        let members = self.machines.nodes.iter().filter_map(|it| it.member());
        let mut owners = members.filter_map(|member| member.hosted_of(known.shard()));
        // An earlier one doesn't know what its successor grants.
        let newest = seen.last_key_value().map(|(epoch, _)| *epoch);
        let owner = owners.find(|owner| Some(owner.shard_status().epoch) == newest)?;
        for (number, client) in self.clients_there(known, stood_still) {
            let session = client.session();
            for (object, range, mode) in client.usable() {
                if owner.knows_token(session, object, range, mode) == Some(false) {
                    return Some(format!(
                        "the owner of epoch {} doesn't know that client {number}, session {session}, has \
                         {object:?}, {range:?}, {mode:?}",
                        owner.shard_status().epoch
                    ));
                }
            }
        }
        None
    }

    /// The clients of daemons that run, and whose clocks can be trusted.
    fn clients_there(
        &self,
        known: &Known,
        stood_still: &BTreeSet<NodeId>,
    ) -> Vec<(ClientNumber, Arc<Client>)> {
        let is_there = |node| {
            let mut nodes = self.machines.nodes.iter();
            let machine = nodes.find(|it| it.id == node);
            machine.is_some_and(|it| {
                let is_still = it.node.is_paused() || stood_still.contains(&it.id);
                it.node.is_running() && !is_still
            })
        };
        let open = known.open_clients();
        let open = open.filter(|(number, it)| known.is_used(*number) && is_there(it.0));
        open.filter_map(|(number, client)| Some((number, client.1.upgrade()?)))
            .collect()
    }
}

/// A client goes on by itself after it has lost its session, and a program needn't hear of what it has
/// written before, if it has closed the file.
fn note_lost_sessions(known: &Shared) {
    let known = &mut *lock(known);
    let has_lost = |client: &Arc<Client>| client.losses().sessions > 0;
    let lost = known.open_clients().filter(|(number, client)| {
        !known.is_lost(*number) && client.1.upgrade().is_some_and(|it| has_lost(&it))
    });
    let lost: Vec<_> = lost.map(|(number, _)| number).collect();
    lost.into_iter()
        .for_each(|number| known.lose_client(number));
}
