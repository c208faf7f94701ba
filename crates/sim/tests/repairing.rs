//! What is lost is rebuilt: what can lose the least first, whoever owns the shard.

use crate::growing::{ms, must_read_all, until, write_all};
use model::map::NsdState;
use model::{ErrorKind, GroupId, NsdId, Result, Scheme};
use node::Removal;
use pool::MemberState;
use sim::cluster::{ClusterScenario, Stage};
use sim::{by_suite, each_seed};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Two of its NSDs can be lost before data is.
const SCENARIO: ClusterScenario = ClusterScenario {
    scheme: Scheme::Replicate(3),
    nodes: 7,
    ..ClusterScenario::USUAL
};
/// Nodes that die at once.
const DEAD: [usize; 2] = [5, 6];
/// Their NSDs.
const LOST: [NsdId; 2] = [NsdId(6), NsdId(7)];
/// How long repair may take.
const REPAIR_MAX: u32 = 3_000;

/// For each group: how many of its slots are still to be rebuilt.
type Lacking = BTreeMap<GroupId, usize>;

async fn lacking(stage: &Arc<Stage>) -> Lacking {
    let asked = stage.run(2, |_, member| async move {
        let groups = member.pool().groups();
        let lacks = |group: &GroupId| {
            let slots = groups.members(*group).iter();
            slots.filter(|slot| LOST.contains(&slot.current)).count()
        };
        let all = groups.all().map(|group| (group, lacks(&group)));
        all.filter(|(_, lacks)| *lacks > 0).collect()
    });
    asked.await
}

/// Bytes on the NSDs that will be lost.
async fn bytes_at_risk(stage: &Arc<Stage>) -> u64 {
    let asked = stage.run(2, |_, member| async move {
        let pool = member.pool();
        let mut bytes = 0;
        for group in pool.map().all_groups() {
            let survey = pool.survey(group, None, 100_000).await.expect("surveyed");
            for segment in survey.segments {
                let place = segment.place;
                let piece = placement::layout::piece_length(place.scheme, place.length);
                let present = segment.present.iter();
                let lost = present.filter(|(_, nsd)| LOST.contains(nsd)).count();
                bytes += u64::from(piece) * lost as u64;
            }
        }
        bytes
    });
    asked.await
}

/// Repair as the manager shows it, which counts from when it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shown {
    manager: u64,
    slots_to_do: u64,
    slots_done: u64,
    bytes: u64,
    critical: u64,
}

async fn shown(stage: &Arc<Stage>, owner: usize) -> Option<Shown> {
    let asked = stage.run(owner, async |_, member| {
        let status = member.repair_status().await.ok()?;
        status.is_known.then_some(Shown {
            manager: status.term.0,
            slots_to_do: status.slots_moving,
            slots_done: status.slots_moved,
            bytes: status.rebuilt.bytes,
            critical: status.groups_critical,
        })
    });
    asked.await
}

/// Would be broken if a group that can lose one more NSD was repaired before one that can't, if that
/// was only so until an owner dies, if a new owner rebuilt again what is rebuilt, or if nobody could see
/// how far it is.
#[test]
fn groups_that_can_lose_nothing_more_are_repaired_first_also_by_the_next_owner() {
    let in_the_middle = AtomicUsize::new(0);
    each_seed(0..by_suite(4, 30), |seed| {
        in_the_middle.fetch_add(repaired(seed), Ordering::Relaxed);
    });
    let in_the_middle = in_the_middle.into_inner();
    assert!(in_the_middle > 0, "no owner died while it repaired them");
}

/// Returns 1 if the owner died when some critical groups were repaired and others weren't.
#[allow(clippy::print_stdout, reason = "says how the progress was shown")]
fn repaired(seed: u64) -> usize {
    let in_the_middle = Arc::new(AtomicUsize::new(0));
    let note = in_the_middle.clone();
    Stage::play(seed, &SCENARIO, None, async |stage| {
        write_all(&stage).await;
        let at_risk = bytes_at_risk(&stage).await;
        for node in DEAD {
            stage.kill(node);
        }
        let removed = stage.run(2, |_, member| async move {
            for nsd in LOST {
                member
                    .remove_nsd(nsd, Removal::Gone)
                    .await
                    .expect("it was in use");
            }
        });
        removed.await;
        until(&stage, 0, "the owner knows", |pool| {
            let map = pool.map();
            let state = |nsd| map.nsd(nsd).map(|entry| entry.state);
            LOST.iter().all(|nsd| state(*nsd) == Some(NsdState::Lost))
        })
        .await;
        let before = lacking(&stage).await;
        let is_critical = |group: &GroupId| before.get(group) == Some(&2);
        let critical = before.keys().filter(|it| is_critical(it)).count();
        assert!(critical > 10 && before.len() > 3 * critical, "{before:?}");

        let mut owner = 0;
        // What was shown while each of them owned the shard.
        let mut seen: [Vec<Shown>; 2] = Default::default();
        let mut to_do: usize = before.values().sum();
        for step in 0..REPAIR_MAX {
            let now = lacking(&stage).await;
            let left = now.keys().filter(|it| is_critical(it)).count();
            let is_repaired = |group: &&GroupId| !is_critical(group) && !now.contains_key(group);
            let others = before.keys().filter(is_repaired).count();
            assert!(
                left == 0 || others == 0,
                "{others} groups were repaired before {left} that can lose nothing more"
            );
            let sum = now.values().sum();
            assert!(sum <= to_do, "{sum} slots are to be done after {to_do}");
            to_do = sum;
            // The manager may not have heard of it yet when that is looked at first.
            let said = shown(&stage, owner).await;
            let is_late = |said: &Shown| seen[0].is_empty() && said.slots_to_do < to_do as u64;
            if let Some(now) = said.filter(|said| !is_late(said)) {
                let seen = &mut seen[usize::from(owner != 0)];
                if let Some(before) = seen.last() {
                    let grows = now.slots_done >= before.slots_done && now.bytes >= before.bytes;
                    let is_new = now.manager > before.manager;
                    assert!(
                        (grows || is_new) && now.slots_to_do <= before.slots_to_do,
                        "{seen:?}"
                    );
                }
                if seen.last() != Some(&now) {
                    seen.push(now);
                }
            }
            if to_do == 0 {
                break;
            }
            // When something is done, and something isn't.
            if owner == 0 && now.len() < before.len() {
                note.store(usize::from(left > 0), Ordering::Relaxed);
                stage.kill(0);
                stage.start(0).await;
                owner = 3;
                stage.move_shard(owner).await;
            }
            stage.sleep(ms(50)).await;
            assert!(step + 1 < REPAIR_MAX, "{to_do} slots are left: {seen:?}");
        }
        assert_eq!(owner, 3, "the first owner did it all: {seen:?}");
        let [first, second] = &seen;
        let last = |seen: &[Shown]| *seen.last().expect("an owner was asked");
        println!(
            "seed {seed}: {critical} of {} groups could lose nothing more; shown first {:?} to {:?}, then {:?} to {:?}, {at_risk} bytes were lost",
            before.len(),
            first.first(),
            last(first),
            second.first(),
            last(second)
        );
        // The last word of each manager.
        let all = first.iter().chain(second);
        let said: BTreeMap<u64, u64> = all.map(|it| (it.manager, it.bytes)).collect();
        let done = last(first).bytes;
        let rest = said.values().sum::<u64>() - done;
        assert!(done > at_risk / 20, "{done} of {at_risk}");
        // Its own tables are moved as well.
        assert!(
            done + rest < at_risk + at_risk / 20,
            "{done} and {rest} bytes were rebuilt for {at_risk}"
        );
        assert!(second.len() > 2, "no progress was shown: {seen:?}");
        must_read_all(&stage, 4).await;
        for node in DEAD {
            stage.start(node).await;
        }
        until(&stage, 4, "all is repaired", |pool| {
            pool.critical_groups() == 0 && pool.groups().moving().is_empty()
        })
        .await;
    });
    in_the_middle.load(Ordering::Relaxed)
}

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
        for how in [Removal::Drain, Removal::Gone] {
            let (refused, state) = remove(&stage, NsdId(1), how).await;
            let refused = refused.expect_err("it has the last copy").to_string();
            assert_eq!(state, NsdState::Active);
            assert!(!refused.contains("--gone"), "{refused}");
        }
        stage.add_nsd(1, "second", scenario.region_bytes).await;
        until(&stage, 0, "two copies again", |pool| {
            pool.repair_progress().lost_slots == 0 && pool.groups().moving().is_empty()
        })
        .await;
    });
}

/// Would be broken if two commands at once each counted on the NSD that the other one gives up.
#[test]
fn of_two_nsds_that_are_given_up_at_once_one_is_kept() {
    Stage::play(1, &ClusterScenario::USUAL, None, async |stage| {
        write_all(&stage).await;
        let nodes = [1, 2];
        for node in nodes {
            until(&stage, node, "all NSDs answer", |pool| {
                let states = pool.nsd_states();
                states.iter().all(|it| it.member == MemberState::Online)
            })
            .await;
        }
        let give_up = |node: usize| {
            stage.start_task(node, move |_, member| async move {
                let own = NsdId(node as u32 + 1);
                member.remove_nsd(own, Removal::Gone).await
            })
        };
        let mut removed = 0;
        for task in nodes.map(give_up) {
            match stage.end_of(task).await {
                Ok(()) => removed += 1,
                Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument),
            }
        }
        assert_eq!(removed, 1);
        must_read_all(&stage, 0).await;
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
