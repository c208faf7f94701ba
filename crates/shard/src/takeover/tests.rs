//! Promises of take-over: nothing acknowledged is lost, an old owner can't write, garbage after a
//! recorded end stays garbage.

use super::*;
use crate::rig::{
    COORDINATION, DISK_BYTES, SHARD, commit, frame, machine, open, open_nsd, opened_nsd, power_on,
    value,
};
use crate::takeover;
use model::nsd::LogPut;
use model::{NodeId, Scheme};
use parking_lot::Mutex;
use std::time::Duration;
use world::sim::{Cut, Outcome, Simulation};

const SINGLE: Scheme = Scheme::Replicate(1);
const THREE: Scheme = Scheme::Replicate(3);

#[test]
fn a_closed_shard_opens_with_its_rows_and_commit_numbers() {
    let machine = machine(1, SINGLE, 1);
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            assert_eq!(opened.last_commit, CommitNumber(0));
            commit(&opened, 1, &[("a", Some("1")), ("b", Some("2"))])
                .await
                .unwrap();
            commit(&opened, 2, &[("a", None), ("c", Some("3"))])
                .await
                .unwrap();
            assert_eq!(value(&opened, "a").await, None);
            opened.tree.close().await.unwrap();
        })
        .finished();
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            assert_eq!(opened.epoch, ShardEpoch(2));
            assert_eq!(opened.last_commit, CommitNumber(2));
            assert_eq!(value(&opened, "a").await, None);
            assert_eq!(value(&opened, "b").await.as_deref(), Some("2"));
            let rows = opened.tree.scan(b"a", b"z", 10).await.unwrap();
            assert_eq!(rows.len(), 2);
            opened.tree.close().await.unwrap();
        })
        .finished();
}

#[test]
fn an_owner_that_was_taken_over_can_neither_append_nor_flush() {
    machine(2, SINGLE, 1)
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let old = open(opening.clone()).await.unwrap();
            commit(&old, 1, &[("a", Some("old"))]).await.unwrap();
            let new = open(opening).await.unwrap();
            assert!(new.epoch > old.epoch);
            let refused = commit(&old, 2, &[("a", Some("zombie"))]).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::OldEpoch);
            assert!(old.tree.flush().await.is_err());
            assert_eq!(
                old.tree.failed().map(|error| error.kind()),
                Some(ErrorKind::OldEpoch)
            );
            assert_eq!(value(&new, "a").await.as_deref(), Some("old"));
            commit(&new, 2, &[("a", Some("new"))]).await.unwrap();
            assert_eq!(value(&new, "a").await.as_deref(), Some("new"));
        })
        .finished();
}

/// Would be broken if a collector, a flush or a merge that goes on under an owner that was followed took along or replaced
/// what the next owner uses.
#[test]
fn what_an_owner_collects_that_was_followed_stays_at_its_successor() {
    let machine = machine(28, SINGLE, 1);
    machine.limit_time(Duration::from_secs(3600));
    machine
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let old = open(opening.clone()).await.unwrap();
            for number in 1..=3 {
                let key = format!("k{number}");
                let large = "v".repeat(100_000);
                commit(&old, number, &[(&key, Some(&large))]).await.unwrap();
                old.tree.flush().await.unwrap();
            }
            let new = open(opening).await.unwrap();
            let names = |opened: &Opened| {
                let listed = opened.catalog.list("").into_iter();
                listed.map(|(name, _)| name).collect::<Vec<_>>()
            };
            let before = names(&new);
            assert!(before.len() > 3, "{before:?}");
            // To the old owner all of it is garbage, and its clock says that it is old.
            world.sleep(Duration::from_secs(600)).await;
            let refused = old.catalog.remove(before.clone()).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::OldEpoch);
            // What it has yet to delete of before it was followed it may delete.
            world.sleep(Duration::from_secs(600)).await;
            let now = names(&new);
            let tables = before.iter().filter(|name| name.contains("compacted"));
            let lost: Vec<_> = tables.filter(|name| !now.contains(name)).collect();
            assert!(lost.is_empty(), "{lost:?}");
            for number in 1..=3 {
                let found = value(&new, &format!("k{number}")).await;
                assert_eq!(found.map(|it| it.len()), Some(100_000));
            }
            new.tree.flush().await.unwrap();
            new.tree.close().await.unwrap();
        })
        .finished();
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            assert!(value(&opened, "k1").await.is_some());
            opened.tree.close().await.unwrap();
        })
        .finished();
}

#[test]
fn a_taker_that_was_paused_before_it_discards_erases_nothing_of_its_successor() {
    let machine = machine(22, THREE, 3);
    machine
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let first = open(opening.clone()).await.unwrap();
            commit(&first, 1, &[("a", Some("1"))]).await.unwrap();
            let paused = settle(&opening, &mut Lineage::new(None)).await.unwrap();
            let successor = open(opening.clone()).await.unwrap();
            commit(&successor, 2, &[("a", Some("2"))]).await.unwrap();
            let refused = discard_rest(&opening, &paused).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::OldEpoch);
            commit(&successor, 3, &[("b", Some("3"))]).await.unwrap();
        })
        .finished();
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            assert_eq!(value(&opened, "a").await.as_deref(), Some("2"));
            assert_eq!(value(&opened, "b").await.as_deref(), Some("3"));
        })
        .finished();
}

#[test]
fn a_process_that_the_record_does_not_name_takes_nothing_over() {
    machine(23, SINGLE, 1)
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let coordination = opening.coordination.clone();
            let owner = open(opening.clone()).await.unwrap();
            let other = NodeRun {
                node: NodeId(2),
                incarnation: 7,
            };
            let elsewhere = Opening {
                run: other,
                ..opening.clone()
            };
            let refused = open(elsewhere.clone()).await.err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::OldEpoch, "{refused}");
            commit(&owner, 1, &[("a", Some("1"))]).await.unwrap();
            // A new run of the same node isn't named either.
            let restarted = Opening {
                run: NodeRun {
                    incarnation: 2,
                    ..opening.run
                },
                ..opening.clone()
            };
            assert!(open(restarted).await.is_err());
            coordination
                .assign_shard(SHARD, Some(opening.run), other)
                .await
                .unwrap();
            // The owner serves until the other one has begun, and can't come back by itself.
            commit(&owner, 2, &[("a", Some("2"))]).await.unwrap();
            let refused = open(opening).await.err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::OldEpoch, "{refused}");
            let successor = open(elsewhere).await.unwrap();
            assert_eq!(value(&successor, "a").await.as_deref(), Some("2"));
            assert!(commit(&owner, 3, &[("a", Some("3"))]).await.is_err());
        })
        .finished();
}

#[test]
fn an_owner_that_another_has_followed_never_goes_on_with_its_memory() {
    machine(24, SINGLE, 1)
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let coordination = opening.coordination.clone();
            let owner = open(opening.clone()).await.unwrap();
            let mut lineage = Lineage::new(Some(owner.session));
            let other = Opening {
                run: NodeRun {
                    node: NodeId(2),
                    incarnation: 7,
                },
                ..opening.clone()
            };
            let (mine, theirs) = (opening.run, other.run);
            coordination
                .assign_shard(SHARD, Some(mine), theirs)
                .await
                .unwrap();
            for _ in 0..3 {
                assert!(takeover::open(opening.clone(), &mut lineage).await.is_err());
            }
            // No other owner has begun: given back, it goes on.
            coordination
                .assign_shard(SHARD, Some(theirs), mine)
                .await
                .unwrap();
            drop(takeover::open(opening.clone(), &mut lineage).await.unwrap());
            coordination
                .assign_shard(SHARD, Some(mine), theirs)
                .await
                .unwrap();
            drop(open(other).await.unwrap());
            coordination
                .assign_shard(SHARD, Some(theirs), mine)
                .await
                .unwrap();
            for _ in 0..2 {
                let again = takeover::open(opening.clone(), &mut lineage).await;
                let refused = again.err().map(|error| error.kind());
                assert_eq!(refused, Some(ErrorKind::Superseded));
            }
            let epoch = || async {
                coordination
                    .shard(SHARD)
                    .await
                    .unwrap()
                    .unwrap()
                    .value
                    .epoch
            };
            let before = epoch().await;
            drop(
                takeover::open(opening, &mut Lineage::new(None))
                    .await
                    .unwrap(),
            );
            assert_eq!(
                epoch().await,
                before.next(),
                "the refused ones raised nothing"
            );
        })
        .finished();
}

#[test]
fn a_take_over_ends_within_the_sum_of_its_budgets_whatever_hangs() {
    const HOUR: Duration = Duration::from_secs(3600);
    for moment in 0..30 {
        let machine = machine(25, THREE, 3);
        let faults = machine.faults();
        machine
            .run(|world| async move {
                let opening = power_on(&world, &[]).await;
                let owner = open(opening.clone()).await.unwrap();
                for number in 1..=5 {
                    commit(&owner, number, &[("a", Some("1"))]).await.unwrap();
                }
                let hang = world.spawn("hang", {
                    let world = world.clone();
                    async move {
                        world.sleep(Duration::from_millis(moment)).await;
                        (1..=3).for_each(|nsd| faults.slow(&nsd.to_string(), HOUR));
                    }
                });
                let begun = world.now();
                let _ended = open(opening).await;
                assert!(world.now() - begun <= budgets::TAKE_MAX, "moment {moment}");
                hang.await;
            })
            .finished();
    }
}

#[test]
fn a_silent_member_costs_a_take_over_only_a_short_grace() {
    let machine = machine(26, THREE, 3);
    let faults = machine.faults();
    machine
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let owner = open(opening.clone()).await.unwrap();
            commit(&owner, 1, &[("a", Some("1"))]).await.unwrap();
            faults.slow("2", Duration::from_secs(3600));
            let mut lineage = Lineage::new(None);
            let settled = settle(&opening, &mut lineage);
            let begun = world.now();
            let settled = settled.await.unwrap();
            let took = world.now() - begun;
            assert!(took < 2 * SEAL_GRACE, "{took:?}");
            assert_eq!(settled.members.len(), 2);
        })
        .finished();
}

/// Would be broken if what is written after a take-over had fewer copies for long, because members were late for a moment.
#[test]
fn members_that_were_late_for_a_take_over_are_back_at_once() {
    const LATE: Duration = Duration::from_millis(400);
    let machine = machine(30, THREE, 3);
    let faults = machine.faults();
    machine
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let owner = open(opening.clone()).await.unwrap();
            commit(&owner, 1, &[("a", Some("1"))]).await.unwrap();
            ["2", "3"].iter().for_each(|nsd| faults.slow(nsd, LATE));
            let mut lineage = Lineage::new(None);
            let settled = settle(&opening, &mut lineage).await.unwrap();
            assert_eq!(settled.members.len(), 1);
            ["2", "3"].iter().for_each(|nsd| faults.heal(nsd));
            discard_rest(&opening, &settled).await.unwrap();
            let opened = start(&opening, settled).await.unwrap();
            let whole = async {
                while opened.log.view().len() < 3 {
                    world.sleep(Duration::from_millis(10)).await;
                }
            };
            // Less than the pause of the tree's maintenance.
            let whole = world.timeout(Duration::from_secs(1), whole).await;
            assert!(whole.is_ok(), "{:?}", opened.log.view());
        })
        .finished();
}

#[test]
fn a_take_over_with_one_member_of_three_has_everything_and_a_whole_view_again() {
    let machine = machine(3, THREE, 6);
    let view = machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            for number in 1..=20 {
                commit(&opened, number, &[(&format!("k{number}"), Some("v"))])
                    .await
                    .unwrap();
            }
            opened.log.view()
        })
        .finished();
    assert_eq!(view.len(), 3);
    machine
        .run(|world| async move {
            let dead = [view[0].0, view[1].0];
            let opened = open(power_on(&world, &dead).await).await.unwrap();
            for number in 1..=20 {
                assert!(
                    value(&opened, &format!("k{number}")).await.is_some(),
                    "k{number}"
                );
            }
            let now = opened.log.view();
            assert_eq!(now.len(), 3);
            assert!(now.contains(&view[2]) && !now.contains(&view[0]));
            commit(&opened, 21, &[("later", Some("v"))]).await.unwrap();
        })
        .finished();
}

/// Would be broken if a take-over that had an acknowledged entry from the other members left the one without it that has
/// lost it: with that one alone the next take-over would be refused.
#[test]
fn a_member_that_has_lost_an_old_entry_gets_it_from_the_others() {
    // More than may be in flight, so that nobody expects the entry to be missing anywhere.
    const COMMITS: u64 = 400;
    let machine = machine(27, THREE, 3);
    let view = machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            for number in 1..=COMMITS {
                commit(&opened, number, &[("last", Some(&number.to_string()))])
                    .await
                    .unwrap();
            }
            let view = opened.log.view();
            // Out of its journal.
            opened_nsd(view[0]).checkpoint().await.unwrap();
            view
        })
        .finished();
    let disk = view[0].to_string();
    // Its payload follows its header.
    let payload = extents(&machine, &disk)[20] + 4096;
    machine.faults().flip_bit(&disk, payload + 10);
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            assert_eq!(opened.log.view().len(), 3);
        })
        .finished();
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[view[1].0, view[2].0]).await).await;
            let last = value(&opened.unwrap(), "last").await;
            assert_eq!(last, Some(COMMITS.to_string()));
        })
        .finished();
}

/// Would be broken if a take-over read and copied its log entry by entry: a message, a read of the disk and a part of a write of
/// the journal for each of thousands, while programs wait.
#[test]
fn a_long_log_is_read_and_copied_to_a_new_member_with_few_ios() {
    const COMMITS: u64 = 1000;
    let machine = machine(31, Scheme::Replicate(2), 3);
    let view = machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            for number in 1..=COMMITS {
                commit(&opened, number, &[("last", Some(&number.to_string()))])
                    .await
                    .unwrap();
            }
            opened.log.view()
        })
        .finished();
    let ios = || machine.io_count();
    machine
        .run(async |world| {
            let opening = power_on(&world, &[view[0].0]).await;
            let before = ios();
            let settled = settle(&opening, &mut Lineage::new(None)).await.unwrap();
            let took = ios() - before;
            assert_eq!(settled.members.len(), 2);
            assert!(settled.tail.entries.len() as u64 > COMMITS);
            assert!(took < COMMITS / 8, "{took}");
        })
        .finished();
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[view[1].0]).await).await.unwrap();
            let last = value(&opened, "last").await;
            assert_eq!(
                last,
                Some(COMMITS.to_string()),
                "the new member has all of it"
            );
        })
        .finished();
}

#[test]
fn a_request_of_a_copy_has_a_limit_of_entries_and_bytes() {
    let lengths = |count: u64, bytes: usize| -> Vec<usize> {
        let entry = |number| (EntryNumber(number), Bytes::from(vec![0; bytes]));
        let entries = (1..=count).map(entry).collect();
        batches(entries).iter().map(Vec::len).collect()
    };
    assert!(lengths(0, 0).is_empty());
    assert_eq!(lengths(LOG_PUTS_MAX as u64 + 1, 10), [LOG_PUTS_MAX, 1]);
    assert_eq!(lengths(5, 400_000), [3, 2]);
    assert_eq!(lengths(2, LOG_PUTS_BYTES), [1, 1]);
}

#[test]
fn without_any_member_the_shard_is_unavailable_and_not_empty() {
    let machine = machine(4, SINGLE, 2);
    let view = machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
            opened.log.view()
        })
        .finished();
    machine
        .run(|world| async move {
            let refused = open(power_on(&world, &[view[0].0]).await)
                .await
                .err()
                .unwrap();
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            assert_eq!(value(&opened, "a").await.as_deref(), Some("1"));
        })
        .finished();
}

#[test]
fn a_log_that_lost_acknowledged_entries_is_refused_as_corrupt() {
    let machine = machine(5, SINGLE, 1);
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
            let first = opened.log.acknowledged();
            commit(&opened, 2, &[("a", Some("2"))]).await.unwrap();
            let epoch = opened.epoch;
            drop(opened);
            // Entry `first` is gone, and the one after it says that it was acknowledged.
            let _on = power_on_again(&world).await;
            let nsd = opened_nsd(NsdId(1));
            let kept = nsd.log_read(SHARD, EntryNumber(1), 1000).await.unwrap();
            nsd.log_discard(SHARD, epoch, EntryNumber(first.0 - 1))
                .await
                .unwrap();
            for entry in kept.into_iter().filter(|entry| entry.number > first) {
                let put = LogPut {
                    shard: SHARD,
                    epoch,
                    number: entry.number,
                    bytes: entry.bytes,
                };
                nsd.log_put(put).await.unwrap();
            }
        })
        .finished();
    machine
        .run(|world| async move {
            let refused = open(power_on(&world, &[]).await).await.err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        })
        .finished();
}

/// Offsets of the extents on a disk.
fn extents(machine: &Simulation, disk: &str) -> Vec<u64> {
    const CHUNK: u64 = 1 << 20;
    let medium = machine.disk(disk, DISK_BYTES);
    let mut found = Vec::new();
    for from in (0..DISK_BYTES).step_by(CHUNK as usize) {
        let bytes = medium.content(from, CHUNK as usize);
        let blocks = (from..).step_by(4096).zip(bytes.chunks(4096));
        let headers = blocks.filter(|(_, block)| block.starts_with(b"SHALEBLB"));
        found.extend(headers.map(|(at, _)| at));
    }
    found
}

/// Unreadable entries aren't mistaken for the end of the log; none is lost once readable.
fn refused_until_healed(machine: &Simulation, commits: u64) {
    machine
        .run(|world| async move {
            let refused = open(power_on(&world, &[]).await).await.err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        })
        .finished();
    machine.faults().heal("1");
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            let last = value(&opened, "last").await;
            assert_eq!(last, Some(commits.to_string()));
        })
        .finished();
}

/// A shard on one NSD whose log has this many commits, all outside the NSD's journal.
fn with_commits(seed: u64, commits: u64) -> Simulation {
    let machine = machine(seed, SINGLE, 1);
    machine
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let opened = open(opening.clone()).await.unwrap();
            for number in 1..=commits {
                commit(&opened, number, &[("last", Some(&number.to_string()))])
                    .await
                    .unwrap();
            }
            opened_nsd(NsdId(1)).checkpoint().await.unwrap();
        })
        .finished();
    machine
}

#[test]
fn a_log_that_cannot_be_read_to_its_end_is_refused_and_not_cut_short() {
    // More entries are unreadable than a take-over skips.
    const COMMITS: u64 = 1200;
    let machine = with_commits(8, COMMITS);
    let extents = extents(&machine, "1");
    assert!(extents.len() > 1100, "{}", extents.len());
    let unreadable = extents[20];
    machine
        .faults()
        .read_error("1", unreadable..DISK_BYTES - (1 << 20));
    refused_until_healed(&machine, COMMITS);
}

#[test]
fn a_newest_entry_that_is_damaged_everywhere_is_refused_and_not_forgotten() {
    const COMMITS: u64 = 10;
    let machine = with_commits(9, COMMITS);
    // They leave the journal in order: the newest is the last one. Its payload follows its header.
    let newest = *extents(&machine, "1").last().unwrap() + 4096;
    machine.faults().read_error("1", newest..newest + 4096);
    refused_until_healed(&machine, COMMITS);
}

#[test]
fn the_only_nsd_of_a_log_may_be_slow_to_take_it_over() {
    let machine = machine(18, SINGLE, 1);
    let faults = machine.faults();
    machine
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let opened = open(opening.clone()).await.unwrap();
            commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
            faults.slow("1", Duration::from_secs(8));
            let opened = open(opening).await.unwrap();
            assert_eq!(value(&opened, "a").await.as_deref(), Some("1"));
        })
        .finished();
}

/// The shard's record, and the NSDs of its view.
async fn record_and_members(opening: &Opening) -> (ShardRecord, Vec<Arc<Handle>>) {
    let record = opening.coordination.shard(SHARD).await.unwrap();
    let record = record.unwrap().value;
    let members = record.view.iter().map(|nsd| opening.pool.handle(*nsd));
    let members = members.map(Option::unwrap).collect();
    (record, members)
}

#[test]
fn a_member_that_answers_no_more_after_the_seal_holds_up_no_take_over() {
    const COMMITS: u64 = 100;
    let machine = machine(19, THREE, 3);
    let faults = machine.faults();
    machine
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let opened = open(opening.clone()).await.unwrap();
            for number in 1..=COMMITS {
                commit(&opened, number, &[("a", Some("1"))]).await.unwrap();
            }
            opened.log.end(ErrorKind::ShuttingDown.into());
            let end = opened.log.acknowledged();
            let (record, members) = record_and_members(&opening).await;
            for member in &members {
                opened_nsd(member.id()).checkpoint().await.unwrap();
            }
            faults.slow(&members[0].id().to_string(), Duration::from_secs(86_400));
            let read = tail::read(
                &opening,
                &record,
                &members,
                Deadline::after(&world, READ_BUDGET),
            );
            let read = world.timeout(Duration::from_secs(120), read).await.unwrap();
            let tail = read.unwrap();
            assert!(tail.end >= end, "{} of {end}", tail.end);
            // It is unknown which entries that member has.
            assert_eq!(tail.missing_on(members[0].id()).len(), tail.entries.len());
        })
        .finished();
}

#[test]
fn what_an_earlier_view_wrote_is_read_from_members_that_answer() {
    let machine = machine(21, THREE, 4);
    let faults = machine.faults();
    machine
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let opened = open(opening.clone()).await.unwrap();
            commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
            let silent = opened.log.view()[0];
            let silent_nsd = opened_nsd(silent);
            silent_nsd.checkpoint().await.unwrap();
            faults.slow(&silent.to_string(), Duration::from_secs(86_400));
            commit(&opened, 2, &[("b", Some("2"))]).await.unwrap();
            opened.log.end(ErrorKind::ShuttingDown.into());
            let end = opened.log.acknowledged();
            let (record, members) = record_and_members(&opening).await;
            assert_eq!(record.closed.len(), 1);
            assert_eq!(record.closed[0].view[0], silent);
            let begun = world.now();
            let tail = tail::read(
                &opening,
                &record,
                &members,
                Deadline::after(&world, READ_BUDGET),
            )
            .await
            .unwrap();
            assert!(world.now() - begun < Duration::from_secs(1));
            assert!(tail.end >= end, "{} of {end}", tail.end);
        })
        .finished();
}

#[test]
fn take_overs_that_write_nothing_make_the_record_no_longer() {
    let machine = machine(20, SINGLE, 1);
    machine
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let opened = open(opening.clone()).await.unwrap();
            commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
            let end = opened.log.acknowledged();
            let mut ended = Vec::new();
            for _ in 0..5 {
                let mut lineage = Lineage::new(None);
                let (_, _, record) = raise_epoch(&opening, &mut lineage).await.unwrap();
                let record = record_end(&opening, record, &[], end).await.unwrap();
                ended.push(record.value.ended);
            }
            assert_eq!(ended[4].len(), ended[0].len());
            let newest = EndedEpoch {
                epoch: ShardEpoch(opened.epoch.0 + 4),
                last: end,
            };
            assert_eq!(ended[4].last(), Some(&newest));
        })
        .finished();
}

#[test]
fn a_view_whose_record_may_or_may_not_be_written_acknowledges_nothing_more() {
    let machine = machine(10, Scheme::Replicate(2), 2);
    let faults = machine.faults();
    machine
        .run(|world| async move {
            let opening = power_on(&world, &[2]).await;
            let opened = open(opening.clone()).await.unwrap();
            commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
            opening.pool.add_nsd(open_nsd(&world, 2).await);
            faults.fail(COORDINATION);
            assert!(opened.log.widen(2).await.is_err());
            // A take-over may count NSD 2 as a member, and it doesn't have this entry.
            assert!(commit(&opened, 2, &[("a", Some("2"))]).await.is_err());
        })
        .finished();
    machine.faults().heal(COORDINATION);
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            assert_eq!(value(&opened, "a").await.as_deref(), Some("1"));
        })
        .finished();
}

async fn power_on_again(world: &World) -> Opening {
    world.sleep(Duration::from_secs(1)).await;
    power_on(world, &[]).await
}

#[test]
fn unacknowledged_entries_of_a_dead_owner_stay_dead_once_an_end_is_recorded() {
    // The entry reaches one of two members while the other is silent; a take-over that reaches only
    // the other one records an end without it. When the first member returns, the entry is garbage.
    let machine = machine(6, Scheme::Replicate(2), 2);
    let simulated = machine.faults();
    machine
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let opened = open(opening.clone()).await.unwrap();
            commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
            let number = opened.log.acknowledged().next();
            let record = opening
                .coordination
                .shard(SHARD)
                .await
                .unwrap()
                .unwrap()
                .value;
            drop(opened);
            let only_here = crate::frame::seal_entry(
                {
                    let mut body = bytes::BytesMut::zeroed(crate::frame::HEADER_BYTES);
                    frame(2, &[("a", Some("never"))]).encode_into(&mut body);
                    body
                },
                &crate::frame::Header {
                    kind: EntryKind::Commit,
                    part: 0,
                    parts: 1,
                    shard: SHARD,
                    epoch: record.epoch,
                    number,
                    acknowledged: EntryNumber(number.0 - 1),
                    time: world.wall(),
                    commit: CommitNumber(2),
                },
            );
            let put = LogPut {
                shard: SHARD,
                epoch: record.epoch,
                number,
                bytes: only_here,
            };
            opened_nsd(NsdId(1)).log_put(put).await.unwrap();
        })
        .finished();
    let _ = simulated;
    machine
        .run(|world| async move {
            let opening = power_on(&world, &[1]).await;
            let opened = open(opening.clone()).await.unwrap();
            assert_eq!(value(&opened, "a").await.as_deref(), Some("1"));
            assert_eq!(opened.log.view(), [NsdId(2)]);
            // The first one is back: it joins the view and its garbage is discarded.
            opening.pool.add_nsd(open_nsd(&world, 1).await);
            commit(&opened, 2, &[("b", Some("2"))]).await.unwrap();
            opened.log.widen(2).await.unwrap();
            assert_eq!(opened.log.view().len(), 2);
            commit(&opened, 3, &[("c", Some("3"))]).await.unwrap();
        })
        .finished();
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[2]).await).await;
            // Commit 2's entry is on NSD 2 alone: the shard stays closed rather than lose it.
            assert_eq!(opened.err().unwrap().kind(), ErrorKind::Corrupt);
            let opened = open(power_on_again(&world).await).await.unwrap();
            assert_eq!(value(&opened, "a").await.as_deref(), Some("1"));
            assert_eq!(value(&opened, "b").await.as_deref(), Some("2"));
            assert_eq!(value(&opened, "c").await.as_deref(), Some("3"));
        })
        .finished();
}

/// Commits and flushes until the machine stops; remembers acknowledged commits.
async fn busy_life(world: World, acknowledged: Arc<Mutex<u64>>, commits: u64) {
    let opened = open(power_on(&world, &[]).await).await.unwrap();
    let first = opened.last_commit.0 + 1;
    for number in first..first + commits {
        let (key, value) = (format!("k{:04}", number % 10), format!("v{number}"));
        commit(
            &opened,
            number,
            &[(&key, Some(&value)), ("last", Some(&number.to_string()))],
        )
        .await
        .unwrap();
        *acknowledged.lock() = number;
        if number % 4 == 0 {
            opened.tree.flush().await.unwrap();
        }
        if number % 8 == 0 {
            opened.catalog.append_snapshot().await.unwrap();
            opened
                .log
                .trim(
                    opened
                        .catalog
                        .snapshot()
                        .min(EntryNumber(opened.log.acknowledged().0)),
                )
                .await
                .ok();
        }
    }
    opened.tree.close().await.unwrap();
}

#[test]
fn every_acknowledged_commit_survives_a_power_cut_at_any_io() {
    const COMMITS: u64 = 7;
    let probe = machine(70, SINGLE, 1);
    let before = probe.io_count();
    probe
        .run(|world| busy_life(world, Arc::default(), COMMITS))
        .finished();
    let ios = probe.io_count() - before;
    // Cutting at every I/O would take too long in an ordinary run; the stride differs by kind of
    // cut.
    let stride = std::env::var("CUT_STRIDE")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(13);
    for (cut, offset) in [(Cut::Before, 0), (Cut::After, 4), (Cut::Torn, 8)] {
        for at in (0..ios).skip(offset).step_by(stride) {
            let machine = machine(70, SINGLE, 1);
            machine.faults().cut_at_io(machine.io_count() + at, cut);
            let acknowledged = Arc::new(Mutex::new(0));
            let seen = acknowledged.clone();
            let outcome = machine.run(|world| busy_life(world, seen, COMMITS));
            if matches!(outcome, Outcome::Finished(())) {
                continue;
            }
            machine.faults().no_cut();
            let acknowledged = *acknowledged.lock();
            machine
                .run(|world| async move {
                    let opened = open(power_on(&world, &[]).await).await.unwrap();
                    let last: u64 = value(&opened, "last")
                        .await
                        .map_or(0, |text| text.parse().unwrap());
                    assert!(
                        last >= acknowledged,
                        "cut {cut:?} at {at}: {last} of {acknowledged}"
                    );
                    assert!(
                        last <= acknowledged + 1,
                        "cut {cut:?} at {at}: {last} was never asked for"
                    );
                    assert!(
                        opened.last_commit.0 >= last,
                        "cut {cut:?} at {at}: commit numbers go back"
                    );
                    for number in last.saturating_sub(9).max(1)..=last {
                        let found = value(&opened, &format!("k{:04}", number % 10)).await;
                        assert_eq!(found, Some(format!("v{number}")), "cut {cut:?} at {at}");
                    }
                    // And it can continue.
                    commit(&opened, opened.last_commit.0 + 1, &[("more", Some("x"))])
                        .await
                        .unwrap();
                    opened.tree.flush().await.unwrap();
                })
                .finished();
        }
    }
}
