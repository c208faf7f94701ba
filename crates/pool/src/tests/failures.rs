//! Writes continue when NSDs fail, but never with less redundancy than promised.

use super::*;
use crate::MemberState;
use futures::future::BoxFuture;
use model::ErrorKind;
use model::call::{Answer, Call, NoAnswer, Reply};
use model::nsd::{AddressedRequest, BlobInfo, GroupFence, NsdAnswer, NsdReply, NsdRequest};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use world::Deadline;
use world::call::Remote;

#[test]
fn writes_get_narrower_when_nsds_die_and_stop_before_redundancy_is_lost() {
    with_pool(WIDE, 6, DISK_BYTES, async |rig| {
        let bytes = plain(MIB, 1);
        let mut places = vec![rig.write(&bytes).await];
        for (dead, scheme) in [
            (2, Scheme::Erasure { k: 3, m: 2 }),
            (5, Scheme::Erasure { k: 2, m: 2 }),
            (1, Scheme::Replicate(3)),
        ] {
            if dead == 1 {
                // With a third NSD gone, wide segments can't be read for now.
                places.clear();
            }
            rig.faults.fail(&dead.to_string());
            let place = rig.write(&bytes).await;
            assert_eq!(
                (place.scheme, place.missing),
                (scheme, 0),
                "with NSD {dead} dead"
            );
            assert!(rig.pool.is_narrow(&place));
            places.push(place);
            for place in &places {
                assert_eq!(rig.read(place).await, bytes);
            }
        }
        rig.faults.fail("3");
        let error = rig
            .pool
            .write(&rig.source, OWNER, bytes)
            .await
            .expect_err("two are left");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    });
}

#[test]
fn a_failed_write_leaves_nothing_in_the_group_that_it_gave_up() {
    with_pool(WIDE, 6, DISK_BYTES, async |rig| {
        rig.faults.fail("4");
        let place = rig.write(&plain(MIB, 1)).await;
        rig.world.sleep(Duration::from_secs(1)).await;
        for group in (0..192).map(GroupId).filter(|group| *group != place.group) {
            assert_eq!(
                rig.pool
                    .survey(group, None, 16)
                    .await
                    .expect("members answer")
                    .segments,
                []
            );
        }
    });
}

#[test]
fn a_slow_nsd_does_not_hold_a_write_up_and_its_piece_is_named_missing() {
    with_pool(WIDE, 6, DISK_BYTES, async |rig| {
        rig.faults.slow("4", Duration::from_secs(8));
        let bytes = plain(MIB, 1);
        let started = rig.world.now();
        let place = rig.write(&bytes).await;
        assert!(rig.world.now() - started < Duration::from_secs(2));
        assert_eq!(place.missing.count_ones(), 1);
        assert_eq!(
            rig.holder(&place, place.missing.trailing_zeros() as u8),
            NsdId(4)
        );
        assert_eq!(rig.read(&place).await, bytes);
        // The slow NSD hasn't answered by now, so the next segments avoid it.
        rig.world.sleep(Duration::from_secs(3)).await;
        let next = rig.write(&bytes).await;
        assert_eq!(
            (next.missing, next.scheme),
            (0, Scheme::Erasure { k: 3, m: 2 })
        );
        // The straggler arrives after all, and repair finds nothing to do.
        rig.world.sleep(Duration::from_secs(60)).await;
        let suspect = rig.pool.take_suspects(9, |_| true)[0];
        let outcome = rig
            .pool
            .repair_segment(&suspect.place, Depth::Bytes)
            .await
            .expect("all pieces are there");
        assert_eq!((outcome.rebuilt, outcome.missing), (0, 0));
    });
}

#[test]
fn two_slow_nsds_are_waited_for_because_one_more_loss_must_be_survived() {
    with_pool(WIDE, 6, DISK_BYTES, async |rig| {
        rig.faults.slow("4", Duration::from_secs(3));
        rig.faults.slow("5", Duration::from_secs(3));
        let place = rig.write(&plain(MIB, 1)).await;
        assert!(place.missing.count_ones() <= 1, "{place:?}");
    });
}

#[test]
fn an_nsd_that_knows_a_newer_group_version_refuses_and_another_group_is_taken() {
    with_pool(Scheme::Replicate(2), 4, DISK_BYTES, async |rig| {
        let fenced = rig.write(&plain(10, 1)).await.group;
        let version = model::GroupVersion(9);
        for nsd in 1..=4 {
            let nsd = rig.nsd(NsdId(nsd));
            nsd.learn_group(GroupFence {
                group: fenced,
                version,
            })
            .await
            .expect("newer");
        }
        let mut groups = BTreeSet::new();
        for seed in 0..300 {
            groups.insert(rig.write(&plain(10, seed)).await.group);
        }
        assert_eq!((groups.len(), groups.contains(&fenced)), (127, false));
        assert_eq!(
            rig.pool
                .nsd_states()
                .iter()
                .filter(|state| state.member == MemberState::Online)
                .count(),
            4
        );
    });
}

#[test]
fn copies_in_a_pool_of_two_go_on_with_one_and_are_repaired() {
    with_pool(Scheme::Replicate(2), 2, DISK_BYTES, async |rig| {
        let bytes = plain(MIB, 1);
        let away = rig.disconnect(NsdId(2));
        let place = rig.write(&bytes).await;
        assert_eq!(place.scheme, Scheme::Replicate(1));
        rig.connect(away).await;
        assert!(
            rig.pool.is_narrow(&place),
            "repair widens it by writing it again"
        );
        assert_eq!(rig.read(&place).await, bytes);
    });
}

#[test]
fn a_log_view_has_different_failure_groups_and_avoids_what_failed() {
    with_pool(WIDE, 6, DISK_BYTES, async |rig| {
        let view = rig.pool.log_view(3).expect("six are there");
        assert_eq!(view.iter().collect::<BTreeSet<_>>().len(), 3);
        rig.disconnect(view[0]);
        let replacement = rig
            .pool
            .log_replacement(&view, view[0])
            .expect("three others");
        assert!(!view.contains(&replacement));
        let next = rig.pool.log_view(3).expect("five are there");
        assert!(!next.contains(&view[0]));
        for nsd in 1..=6 {
            if ![next[0], view[0]].contains(&NsdId(nsd)) {
                rig.disconnect(NsdId(nsd));
            }
        }
        assert_eq!(
            rig.pool.log_view(3).expect_err("one is left").kind(),
            ErrorKind::Unavailable
        );
        assert_eq!(rig.pool.log_view(1).expect("one is enough"), [next[0]]);
    });
}

/// Another node that is down.
struct Down;

impl Remote for Down {
    fn call(&self, _: Call, _: Deadline) -> BoxFuture<'_, Result<Answer, NoAnswer>> {
        Box::pin(async { Err(NoAnswer::not_run("it is down")) })
    }
}

#[test]
fn a_node_that_was_never_heard_of_is_away_and_not_full() {
    with_pool(Scheme::Replicate(3), 3, DISK_BYTES, async |rig| {
        rig.pool.remove_nsd(NsdId(2));
        rig.pool.add_remote_nsd(NsdId(2), Arc::new(Down));
        let bytes = plain(MIB, 1);
        for _ in 0..8 {
            let place = rig.write(&bytes).await;
            assert_eq!(place.scheme, Scheme::Replicate(2));
            assert_eq!(rig.read(&place).await, bytes);
        }
    });
}

/// A way to a node on which puts are lost: their connection breaks. All else arrives.
struct BreaksPuts {
    node: Arc<Loopback>,
    puts: AtomicU64,
}

fn is_put(call: &Call) -> bool {
    let asked = call.decode::<AddressedRequest>();
    matches!(asked, Ok((_, NsdRequest::Put { .. })))
}

impl Remote for BreaksPuts {
    fn call(&self, call: Call, deadline: Deadline) -> BoxFuture<'_, Result<Answer, NoAnswer>> {
        if !is_put(&call) {
            return self.node.call(call, deadline);
        }
        self.puts.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Err(NoAnswer::unknown("the connection ended")) })
    }
}

/// Would be broken if `shale health` sent people to look at a disk because its node had died.
#[test]
fn requests_that_do_not_reach_an_nsds_node_are_no_faults_of_the_nsd() {
    with_pool(Scheme::Replicate(2), 3, DISK_BYTES, async |rig| {
        rig.server.add(rig.nsd(NsdId(2)));
        let node = Loopback::new(&rig.world, rig.server.clone(), Duration::from_millis(1));
        let breaks = Arc::new(BreaksPuts {
            node: node.clone(),
            puts: AtomicU64::new(0),
        });
        rig.reach(NsdId(2), breaks.clone()).await;
        for seed in 0..20 {
            rig.write(&plain(MIB, seed)).await;
            // Nobody puts to it for a while after each failure.
            rig.world.sleep(Duration::from_secs(6)).await;
        }
        assert!(breaks.puts.load(Ordering::Relaxed) > 2);
        assert_eq!(rig.failures(), [0, 0, 0]);
        // Its node answers, and only its disk doesn't.
        rig.reach(NsdId(2), node.clone()).await;
        let _held = node.hold(is_put);
        for seed in 0..20 {
            rig.write(&plain(MIB, seed)).await;
            rig.world.sleep(Duration::from_secs(6)).await;
        }
        let failures = rig.failures();
        assert!(failures[1] > 2, "{failures:?}");
        assert_eq!((failures[0], failures[2]), (0, 0));
    });
}

/// A way to a node that says of its NSDs what isn't true.
struct Lies<F> {
    node: Arc<Loopback>,
    lie: F,
}

impl<F: Fn(&mut NsdAnswer) + Send + Sync> Remote for Lies<F> {
    fn call(&self, call: Call, deadline: Deadline) -> BoxFuture<'_, Result<Answer, NoAnswer>> {
        let answered = self.node.call(call, deadline);
        Box::pin(async move {
            let mut answer = answered.await?;
            if let Ok(mut said) = answer.reply.decode::<NsdAnswer>() {
                (self.lie)(&mut said);
                answer.reply.body = Reply::new(&Ok(said), Bytes::new()).body;
            }
            Ok(answer)
        })
    }
}

/// NSD 1 changes what it says of each blob in this way, from now on.
async fn lie_of_blobs(rig: &Rig, change: fn(&mut BlobInfo)) {
    let node = Loopback::new(&rig.world, rig.server.clone(), Duration::from_millis(1));
    let lie = move |answer: &mut NsdAnswer| {
        if let Ok(NsdReply::Infos(infos)) = &mut answer.reply {
            infos.iter_mut().for_each(change);
        }
    };
    rig.reach(NsdId(1), Arc::new(Lies { node, lie })).await;
}

/// Would be broken if whoever surveys a group computed with any description of a segment: one of more pieces than slots
/// ended the daemon, and so did the length of the pieces of one that is too long.
#[test]
fn a_survey_leaves_out_what_no_segment_can_be() {
    with_pool(Scheme::Replicate(2), 3, DISK_BYTES, async |rig| {
        for seed in 0..30 {
            rig.write(&plain(10, seed)).await;
        }
        rig.server.add(rig.nsd(NsdId(1)));
        let wrong: [fn(&mut BlobInfo); 2] = [
            |info| info.header.skipped_slots = u32::MAX,
            |info| info.header.segment_bytes = u32::MAX,
        ];
        for change in wrong {
            lie_of_blobs(&rig, change).await;
            let mut found = 0;
            for group in rig.pool.groups().all() {
                let survey = rig.pool.survey(group, None, 100).await;
                let segments = survey.expect("surveyed").segments;
                assert!(segments.iter().all(|it| it.place.length == 10));
                found += segments.len();
            }
            assert_eq!(found, 30, "the others have a copy of each");
        }
    });
}

/// Would be broken if repair believed the first NSD of a group whose segments there are, and of what: it would rebuild nothing
/// that the others lack, and say that all is there.
#[test]
fn an_nsd_that_lies_alone_of_a_segment_is_not_believed() {
    with_pool(WIDE, 6, DISK_BYTES, async |rig| {
        let place = rig.write(&plain(MIB, 1)).await;
        rig.server.add(rig.nsd(NsdId(1)));
        let wrong: [fn(&mut BlobInfo); 2] = [
            |info| info.header.family = FamilyId(999),
            |info| info.header.scheme = Scheme::Erasure { k: 5, m: 1 },
        ];
        for change in wrong {
            lie_of_blobs(&rig, change).await;
            let survey = rig.pool.survey(place.group, None, 100).await;
            let segments = survey.expect("surveyed").segments;
            assert_eq!(segments.len(), 1);
            assert_eq!((segments[0].place, segments[0].owner), (place, OWNER));
        }
    });
}

/// Would be broken if the sums over all NSDs had no place in 64 bits: the daemon of each node that adds them up ended, for
/// what a single one said.
#[test]
fn nodes_that_say_any_numbers_of_their_space_do_no_harm() {
    with_pool(Scheme::Replicate(2), 3, DISK_BYTES, async |rig| {
        let most = model::nsd::NsdUsage {
            capacity: u64::MAX,
            used: u64::MAX,
            available: u64::MAX,
            blobs: u64::MAX,
            log_entries: u64::MAX,
            log_bytes: u64::MAX,
        };
        let free = model::nsd::NsdUsage { used: 0, ..most };
        for usage in [most, free] {
            for nsd in [1, 2].map(NsdId) {
                rig.server.add(rig.nsd(nsd));
                let node = Loopback::new(&rig.world, rig.server.clone(), Duration::from_millis(1));
                let lie = move |answer: &mut NsdAnswer| answer.condition.usage = usage;
                rig.reach(nsd, Arc::new(Lies { node, lie })).await;
            }
            let deadline = Deadline::after(&rig.world, Duration::from_secs(5));
            let count = rig.pool.count(deadline, |_| false).await;
            let count = count.expect("all answer");
            assert!(count.used <= count.capacity && count.reserve <= count.capacity);
            let sums = rig.pool.usage();
            assert!(sums.raw_used <= sums.raw_capacity);
        }
        let bytes = plain(MIB, 1);
        assert_eq!(rig.read(&rig.write(&bytes).await).await, bytes);
    });
}

/// Would be broken if slots waited half a minute for an NSD that has no part in their move, one group after the other.
#[test]
fn a_slot_has_arrived_whatever_hangs_beside_it() {
    with_pool(Scheme::Replicate(3), 4, DISK_BYTES, async |rig| {
        let (leaves, hangs) = (NsdId(2), NsdId(3));
        for seed in 0..40 {
            rig.write(&plain(10, seed)).await;
        }
        rig.set_map(placement::drain(&rig.pool.map(), leaves).expect("three others"))
            .await;
        rig.mend_all().await;
        rig.server.add(rig.nsd(hangs));
        let node = Loopback::new(&rig.world, rig.server.clone(), Duration::from_millis(1));
        rig.reach(hangs, node.clone()).await;
        let _held = node.hold(|_| true);
        let groups = rig.pool.groups();
        let mut looked_at = 0;
        for (group, slot) in groups.moving() {
            let members = groups.members(group);
            let is_beside = members.iter().any(|slot| slot.current == hangs);
            if !is_beside || members[usize::from(slot)].next == Some(hangs) {
                continue;
            }
            let look = rig.pool.arrived_slots(group);
            let arrived = rig.world.timeout(Duration::from_secs(1), look).await;
            let arrived = arrived.expect("nobody waits for the third one");
            assert_eq!(arrived.expect("both answer"), [slot]);
            looked_at += 1;
        }
        assert!(looked_at > 10, "{looked_at}");
    });
}

/// Would be broken if an NSD that hangs held up what the others do about slots that have left them: the space there would
/// return half a minute later, after each that hangs.
#[test]
fn an_nsd_that_hangs_holds_up_no_other_one_that_slots_have_left() {
    with_pool(Scheme::Replicate(1), 3, DISK_BYTES, async |rig| {
        let (hangs, answers) = (NsdId(1), NsdId(2));
        for seed in 0..40 {
            rig.write(&plain(10, seed)).await;
        }
        let drained = placement::drain_all(&rig.pool.map(), &[hangs, answers]);
        rig.set_map(drained.expect("the third one takes all")).await;
        rig.mend_all().await;
        rig.server.add(rig.nsd(hangs));
        let node = Loopback::new(&rig.world, rig.server.clone(), Duration::from_millis(1));
        rig.reach(hangs, node.clone()).await;
        let _held = node.hold(|_| true);
        let groups = rig.pool.groups();
        let moving = groups.moving();
        let left = moving.iter().map(|(group, slot)| {
            let members = groups.members(*group)[usize::from(*slot)];
            (members.current, *group)
        });
        let left: Vec<_> = left.collect();
        let next = placement::finish_moves(&rig.pool.map(), &moving);
        let fences = rig.pool.use_map(next);
        let leaving = rig.pool.leave_slots(&fences, &left);
        let is_over = rig.world.timeout(Duration::from_secs(10), leaving).await;
        assert!(is_over.is_err(), "one of them hangs");
        assert_eq!(rig.nsd(answers).usage().blobs, 0);
        assert!(rig.nsd(hangs).usage().blobs > 0);
    });
}

impl Rig {
    /// Does what repair does, but switches no slots.
    async fn mend_all(&self) {
        for group in self.pool.groups().all() {
            let survey = self.pool.survey(group, None, 100).await;
            for segment in &survey.expect("members answer").segments {
                self.mend_or_sweep(segment, true).await;
            }
        }
    }

    /// Reaches an NSD in another way from now on.
    async fn reach(&self, nsd: NsdId, way: Arc<dyn Remote>) {
        self.pool.remove_nsd(nsd);
        self.pool.add_remote_nsd(nsd, way);
        let handle = self.pool.handle(nsd).expect("just added");
        let heard = async {
            while !handle.is_heard() {
                self.world.sleep(Duration::from_millis(1)).await;
            }
        };
        let heard = self.world.timeout(Duration::from_secs(10), heard).await;
        heard.expect("it says how it is");
    }

    /// Of each NSD, the requests that it failed.
    fn failures(&self) -> Vec<u64> {
        let states = self.pool.nsd_states().into_iter();
        states.map(|state| state.failures).collect()
    }
}
