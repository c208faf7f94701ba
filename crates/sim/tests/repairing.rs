//! NSDs that are given up: what was on them is rebuilt on the others.

use crate::growing::{must_read_all, until, write_all};
use model::map::NsdState;
use model::{ErrorKind, NsdId, Result, Scheme};
use node::Removal;
use sim::cluster::{ClusterScenario, Stage};
use std::sync::Arc;

/// Removes an NSD on the first node, and says in which state it is then.
async fn remove(stage: &Arc<Stage>, nsd: NsdId, how: Removal) -> (Result<()>, NsdState) {
    let removed = stage.run(0, move |_, member| async move {
        let removed = member.remove_nsd(nsd, how).await;
        let entry = member.pool().map().nsd(nsd).cloned();
        (removed, entry.expect("the pool has it").state)
    });
    removed.await
}

/// Would be broken if taking an NSD out of use took copies that it still has, without being told to.
#[test]
fn an_nsd_that_the_others_cannot_replace_is_kept_unless_it_is_said_to_be_gone() {
    let scenario = ClusterScenario {
        nodes: 2,
        ..ClusterScenario::USUAL
    };
    Stage::play(1, &scenario, None, async |stage| {
        write_all(&stage).await;
        let nsd = NsdId(2);
        let (refused, state) = remove(&stage, nsd, Removal::Drain).await;
        let refused = refused.expect_err("two nodes are needed");
        assert_eq!(
            (refused.kind(), state),
            (ErrorKind::NoSpace, NsdState::Active)
        );
        let text = refused.to_string();
        assert!(
            text.contains("add an NSD") && text.contains("--gone"),
            "{text}"
        );

        let (removed, state) = remove(&stage, nsd, Removal::Gone).await;
        removed.expect("one copy is left");
        assert_eq!(state, NsdState::Lost);
        must_read_all(&stage, 1).await;
        stage.add_nsd(1, "second", scenario.region_bytes).await;
        until(&stage, 0, "two copies again", |pool| {
            pool.repair_progress().lost_slots == 0 && pool.groups().moving().is_empty()
        })
        .await;
    });
}

/// Would be broken if a wrong word took the only copy of data.
#[test]
fn an_nsd_with_the_only_copy_that_answers_is_not_gone() {
    let scenario = ClusterScenario {
        scheme: Scheme::Replicate(1),
        nodes: 2,
        first_nsds: 1,
        ..ClusterScenario::USUAL
    };
    Stage::play(1, &scenario, None, async |stage| {
        write_all(&stage).await;
        stage.add_nsd(1, "nsd", scenario.region_bytes).await;
        let nsd = NsdId(1);
        let (refused, state) = remove(&stage, nsd, Removal::Gone).await;
        let refused = refused.expect_err("it answers");
        let found = (refused.kind(), state);
        assert_eq!(found, (ErrorKind::InvalidArgument, NsdState::Active));
        let (removed, state) = remove(&stage, nsd, Removal::Drain).await;
        removed.expect("the other takes it");
        assert_eq!(state, NsdState::Draining);
        until(&stage, 0, "one NSD", |pool| {
            let map = pool.map();
            let in_use = map.nsds.iter().filter(|it| it.state != NsdState::Lost);
            in_use.count() == 1
        })
        .await;
        must_read_all(&stage, 1).await;
    });
}
