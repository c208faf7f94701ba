//! NSDs that come and go while programs run: two nodes add theirs, one of which joins the cluster before, and
//! another one's is emptied.

use super::Crowd;
use crate::action::Draw;
use model::{ErrorKind, NsdId};
use node::Removal;
use std::time::Duration;

/// Nodes that have an NSD from the beginning; those after them add theirs.
pub(super) const FIRST: u32 = 3;
/// How long one change of the pool may take.
const CHANGE_MAX: Duration = Duration::from_secs(60);
/// How long its pieces may take to their new places once nothing is broken.
const MOVES_MAX: Duration = Duration::from_secs(600);

impl Crowd<'_> {
    /// The nodes without an NSD join if they haven't, and add theirs, one after the other, before the first fault.
    pub(super) async fn add_storage(&self) {
        if !self.scenario.storage_changes {
            return;
        }
        let mut draw = Draw::new(self.seed ^ 0xADD);
        let bytes = self.scenario.cluster.region_bytes;
        for machine in &self.machines.nodes[FIRST as usize..] {
            let pause = Duration::from_millis(draw.below(800));
            self.judge.sleep(pause).await;
            if machine.member().is_none() {
                machine.start();
                machine.is_up(self.judge).await;
            }
            let added = machine.add_nsd("nsd", bytes).done();
            let added = self.judge.within("an NSD is added", CHANGE_MAX, added);
            added.await.expect("an NSD is added");
        }
    }

    /// One of the first NSDs is emptied, whatever breaks meanwhile.
    pub(super) async fn empty_storage(&self) {
        if !self.scenario.storage_changes {
            return;
        }
        let mut draw = Draw::new(self.seed ^ 0xD2A1);
        let nsd = NsdId(1 + draw.below(u64::from(FIRST)) as u32);
        loop {
            let pause = Duration::from_millis(draw.below(1_500));
            self.judge.sleep(pause).await;
            let machine = self.machines.any(&mut draw);
            machine.is_up(self.judge).await;
            let asked = machine.run("empties an NSD", move |_, member| async move {
                member.remove_nsd(nsd, Removal::Drain).await
            });
            match self
                .judge
                .within("an NSD is given up", CHANGE_MAX, asked)
                .await
            {
                Some(Ok(())) => return,
                // It was done, and nobody heard of it.
                Some(Err(error)) if error.kind() == ErrorKind::NotFound => return,
                Some(Err(error)) => tracing::info!(%error, %nsd, "isn't given up yet"),
                None => {}
            }
        }
    }

    /// Waits until every piece is where the map wants it.
    pub(super) async fn pieces_are_there(&self) {
        if !self.scenario.storage_changes {
            return;
        }
        let first = &self.machines.nodes[0];
        let is_done = || {
            let member = first.member();
            member.is_some_and(|it| it.pool().groups().moving().is_empty())
        };
        self.judge
            .until("all pieces are moved", MOVES_MAX, is_done)
            .await;
    }
}
