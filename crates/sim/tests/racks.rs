//! Nodes that fail together, for instance those of a rack: nothing is lost when all of them do.

use crate::growing::{
    begin_load, end_load, has_one_generation, ms, must_read_all, until, write_all,
};
use model::map::NsdState;
use model::{FailureGroupId, NodeId, NsdId, Scheme};
use node::{Member, ROOT_SHARD, Removal};
use sim::cluster::{ClusterScenario, Stage};
use sim::{by_suite, each_seed};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Nodes of each rack.
const RACK: usize = 2;
const SCENARIO: ClusterScenario = ClusterScenario {
    scheme: Scheme::Replicate(2),
    nodes: 3 * RACK as u32,
    ..ClusterScenario::USUAL
};
/// How long the log may take to leave an NSD, or everything its place on lost ones.
const MOVES_MAX: u32 = 600;

/// No group that takes new segments has two slots in one rack.
async fn groups_must_be_apart(member: Arc<Member>) {
    let groups = member.pool().groups();
    let map = groups.map();
    for group in map.newest().all_groups() {
        let slots = groups.members(group).iter();
        let racks: Vec<_> = slots
            .clone()
            .filter_map(|slot| rack_of(&member, slot.target()))
            .collect();
        assert_eq!(racks.len(), slots.len(), "group {group} has an empty slot");
        let different: BTreeSet<_> = racks.iter().collect();
        assert_eq!(different.len(), racks.len(), "group {group}");
    }
}

/// Every segment has all its pieces, in different racks.
async fn segments_must_be_apart(member: Arc<Member>) {
    let pool = member.pool();
    for group in pool.map().all_groups() {
        let survey = pool.survey(group, None, 100_000).await.expect("surveyed");
        for segment in survey.segments {
            let present = segment.present.iter();
            let racks: BTreeSet<_> = present.map(|(_, nsd)| rack_of(&member, *nsd)).collect();
            let width = segment.place.scheme.width();
            assert_eq!(racks.len(), width, "{segment:?}");
        }
    }
}

/// The failure group of an NSD in use, which has a name.
fn rack_of(member: &Member, nsd: NsdId) -> Option<FailureGroupId> {
    let map = member.pool().map();
    let entry = map.nsd(nsd).filter(|it| it.state != NsdState::Lost)?;
    let name = map.name_of(entry.failure_group);
    assert!(name.is_some_and(|it| it.starts_with("rack-")), "{name:?}");
    Some(entry.failure_group)
}

/// The log's copies are in different racks, and none is left elsewhere.
async fn log_is_apart(stage: &Arc<Stage>, node: usize) -> bool {
    let asked = stage.run(node, |_, member| async move {
        let record = member.roster().shards[&ROOT_SHARD].value.clone();
        let racks: Vec<_> = record
            .view
            .iter()
            .map(|nsd| rack_of(&member, *nsd))
            .collect();
        let different: BTreeSet<_> = racks.iter().flatten().collect();
        record.closed.is_empty() && different.len() == 2 && racks.len() == 2
    });
    asked.await
}

/// Would be broken if two copies of anything, of the log too, were in nodes that fail together.
#[test]
fn a_rack_may_die_once_it_has_a_name() {
    each_seed(0..by_suite(2, 30), |seed| {
        racked(seed);
    });
}

fn racked(seed: u64) -> u64 {
    Stage::play(seed, &SCENARIO, None, async |stage| {
        let dying = RACK * (seed % 3) as usize;
        let lives = RACK * ((seed + 1) % 3) as usize;
        write_all(&stage).await;
        let work = begin_load(&stage, lives);
        let named = stage.run(lives, |_, member| async move {
            let rack = |node: u32| match (node - 1) / RACK as u32 {
                0 => "rack-a",
                1 => "rack-b",
                _ => "rack-c",
            };
            let all = (1..=SCENARIO.nodes).map(|node| (NodeId(node), Some(rack(node).to_owned())));
            let all: Vec<_> = all.collect();
            member.set_failure_groups(&all).await?;
            // Nobody knows whether somebody else did it already.
            member.set_failure_groups(&all).await
        });
        named.await.expect("three racks are enough");
        stage.run(lives, |_, it| groups_must_be_apart(it)).await;
        let generations = stage.run(lives, async |_, it| it.pool().map().generations.len());
        assert_eq!(generations.await, 2, "the same names make no difference");
        // A new NSD is in the rack of its node.
        stage.add_nsd(lives, "second", SCENARIO.region_bytes).await;
        stage.run(lives, |_, it| groups_must_be_apart(it)).await;

        until(&stage, lives, "all is rewritten", has_one_generation).await;
        for step in 0.. {
            if log_is_apart(&stage, lives).await {
                break;
            }
            stage.sleep(ms(1_000)).await;
            assert!(step < MOVES_MAX, "the log is in one rack");
        }
        for node in dying..dying + RACK {
            stage.kill(node);
        }
        if dying == 0 {
            stage.move_shard(lives).await;
        }
        must_read_all(&stage, lives + 1).await;

        let removed = stage.run(lives, move |_, member| async move {
            for node in dying..dying + RACK {
                let removed = member
                    .remove_nsd(NsdId(node as u32 + 1), Removal::Gone)
                    .await;
                removed.expect("two racks are enough");
            }
        });
        removed.await;
        for step in 0.. {
            let asked = stage.run(lives, move |_, member| async move {
                let groups = member.pool().groups();
                let is_gone = |nsd: usize| groups.slots_of(NsdId(nsd as u32 + 1)).is_empty();
                (dying..dying + RACK).all(is_gone)
            });
            if asked.await {
                break;
            }
            stage.sleep(ms(1_000)).await;
            assert!(step < MOVES_MAX, "not rebuilt");
        }
        end_load(&stage, work).await;
        let settled = stage.run(if dying == 0 { lives } else { 0 }, async |_, member| {
            let metanode = member.hosted().expect("the owner");
            while metanode.run_background_once().await.expect("works").steps > 0 {}
        });
        settled.await;
        stage.run(lives, |_, it| segments_must_be_apart(it)).await;
        must_read_all(&stage, lives + 1).await;
        for node in dying..dying + RACK {
            stage.start(node).await;
        }
    })
}
