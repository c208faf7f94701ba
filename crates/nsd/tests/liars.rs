//! An NSD of another node that answers something else than was asked.

use crate::scene;
use bytes::Bytes;
use futures::future::BoxFuture;
use fuzzing::{ROUNDS, Source, fuzz};
use model::call::{Answer, Call, NoAnswer, Reply};
use model::nsd::{
    AddressedRequest, BlobInfo, GroupDigest, LIST_ANSWER_MAX, NsdAnswer, NsdCondition, NsdHealth,
    NsdReply, NsdRequest, NsdUsage,
};
use model::{BlobName, EntryNumber, ErrorKind, GroupId, NodeId, NodeRun, NsdId, Result};
use model::{SegmentId, SessionId, ShardEpoch, ShardId};
use nsd::Handle;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use world::World;
use world::call::{Deadline, Remote};
use world::sim::Simulation;

/// Gives the same answers to everything, one after the other, and the last one for ever.
struct Liar(Mutex<Vec<Reply>>);

impl Remote for Liar {
    fn call(&self, _: Call, _: Deadline) -> BoxFuture<'_, std::result::Result<Answer, NoAnswer>> {
        let mut replies = self.0.lock();
        let reply = match replies.len() {
            1 => replies[0].clone(),
            _ => replies.remove(0),
        };
        let run = NodeRun {
            node: NodeId(2),
            incarnation: 1,
        };
        Box::pin(async move { Ok(Answer { from: run, reply }) })
    }
}

fn answer(reply: NsdReply, payload: Bytes) -> Reply {
    let condition = NsdCondition {
        health: NsdHealth::Online,
        usage: NsdUsage::default(),
        needs_confirmation: false,
    };
    let reply = Ok(reply);
    Reply::new(&Ok(NsdAnswer { condition, reply }), payload)
}

fn blob() -> BlobName {
    name_of(1, 1)
}

fn name_of(group: u32, counter: u64) -> BlobName {
    BlobName {
        group: GroupId(group),
        segment: SegmentId {
            session: SessionId(1),
            counter,
        },
        piece: 0,
    }
}

/// Asks an NSD that lies.
fn ask<T>(replies: Vec<Reply>, question: impl AsyncFnOnce(&Handle, Deadline) -> T) -> T {
    let run = async |world: World| {
        let handle = Handle::remote(&world, NsdId(1), Arc::new(Liar(Mutex::new(replies))), None);
        let deadline = Deadline::after(&world, Duration::from_secs(10));
        question(handle.as_ref(), deadline).await
    };
    Simulation::new(1).run(run).finished()
}

fn misunderstood<T: std::fmt::Debug>(result: Result<T>) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert!(error.to_string().contains("something else"), "{error}");
}

#[test]
fn units_behind_all_units_are_no_answer_to_a_read() {
    for first in [u32::MAX, u32::MAX - 1, 1 << 20, 1] {
        let checksums = vec![0];
        let reply = answer(
            NsdReply::Units { first, checksums },
            Bytes::from(vec![0; 4096]),
        );
        misunderstood(ask(
            vec![reply],
            async |nsd: &Handle, deadline: Deadline| nsd.get(blob(), 5, 100, deadline).await,
        ));
    }
}

#[test]
fn groups_that_repeat_or_end_the_numbers_do_not_go_on_for_ever() {
    let all = |last: u32| -> Vec<GroupId> {
        (0..LIST_ANSWER_MAX as u32)
            .rev()
            .map(|before| GroupId(last - before))
            .collect()
    };
    let groups = ask(
        vec![answer(NsdReply::Groups(all(u32::MAX)), Bytes::new())],
        async |nsd: &Handle, deadline: Deadline| nsd.groups(deadline).await,
    );
    assert_eq!(groups.unwrap().len(), LIST_ANSWER_MAX);
    let same = vec![GroupId(7); LIST_ANSWER_MAX];
    misunderstood(ask(
        vec![answer(NsdReply::Groups(same), Bytes::new())],
        async |nsd: &Handle, deadline: Deadline| nsd.groups(deadline).await,
    ));
}

/// Has blobs of more groups than there can be.
struct HasMore;

impl Remote for HasMore {
    fn call(
        &self,
        call: Call,
        _: Deadline,
    ) -> BoxFuture<'_, std::result::Result<Answer, NoAnswer>> {
        let (_, request) = call.decode::<AddressedRequest>().unwrap();
        let from = match request {
            NsdRequest::Groups { from, .. } => from.0,
            _ => 0,
        };
        let end = (from + LIST_ANSWER_MAX as u32).min(1 << 23);
        let groups = (from..end).map(GroupId);
        let reply = answer(NsdReply::Groups(groups.collect()), Bytes::new());
        let from = NodeRun {
            node: NodeId(2),
            incarnation: 1,
        };
        Box::pin(async move { Ok(Answer { from, reply }) })
    }
}

/// Would be broken if a node that names all numbers of groups filled the memory of the manager and of whoever sweeps: there
/// are 16 GiB of them.
#[test]
fn an_nsd_that_has_blobs_of_more_groups_than_there_can_be_is_not_believed() {
    let run = async |world: World| {
        let handle = Handle::remote(&world, NsdId(1), Arc::new(HasMore), None);
        let deadline = Deadline::after(&world, Duration::from_secs(10));
        misunderstood(handle.groups(deadline).await);
    };
    Simulation::new(1).run(run).finished();
}

/// Would be broken if whoever goes through a group, behind the last blob that was listed, could be made to go round for ever:
/// repair of the group, and the manager that looks whether its slots have moved.
#[test]
fn a_listing_goes_on_behind_the_blob_that_it_was_asked_for() {
    let (group, after) = (GroupId(1), name_of(1, 5));
    let list = |names: &[(u32, u64)]| {
        let info = |(group, counter): &(u32, u64)| BlobInfo {
            name: name_of(*group, *counter),
            nonce: 1,
            header: scene::blob(1, 10).header,
            length: 10,
        };
        let infos = names.iter().map(info).collect();
        let reply = answer(NsdReply::Infos(infos), Bytes::new());
        ask(vec![reply], async |nsd: &Handle, deadline: Deadline| {
            nsd.list(group, Some(after), 3, deadline).await
        })
    };
    for wrong in [
        &[(1, 5)][..],
        &[(1, 4)],
        &[(1, 7), (1, 6)],
        &[(1, 7), (1, 7)],
        &[(1, 7), (2, 1)],
        &[(0, 7)],
        &[(1, 6), (1, 7), (1, 8), (1, 9)],
    ] {
        misunderstood(list(wrong));
    }
    assert_eq!(list(&[(1, 6), (1, 9)]).unwrap().len(), 2);
    assert_eq!(list(&[(1, 6), (1, 7), (1, 8)]).unwrap().len(), 3);
    assert!(list(&[]).unwrap().is_empty());
}

#[test]
fn entries_of_a_log_are_those_that_were_asked_for_in_order() {
    let entry = |number: u64| (ShardEpoch(1), EntryNumber(number), 1_u32);
    for numbers in [vec![4], vec![6, 5], vec![5, 5], vec![5, u64::MAX]] {
        let payload = Bytes::from(vec![0; numbers.len()]);
        let listed = numbers.iter().map(|number| entry(*number)).collect();
        misunderstood(ask(
            vec![answer(NsdReply::Entries(listed), payload)],
            async |nsd: &Handle, deadline: Deadline| {
                nsd.log_read(ShardId(1), EntryNumber(5), 10, deadline).await
            },
        ));
    }
    let reply = answer(
        NsdReply::Entries(vec![entry(5), entry(7)]),
        Bytes::from_static(b"ab"),
    );
    let read = ask(vec![reply], async |nsd: &Handle, deadline: Deadline| {
        nsd.log_read(ShardId(1), EntryNumber(5), 10, deadline).await
    });
    assert_eq!(read.unwrap().len(), 2);
}

/// Whatever comes, each question ends: with an answer, or with an error.
#[test]
fn any_answer_ends_the_question() {
    fuzz!(ROUNDS / 4, |input: &[u8]| {
        let mut source = Source::new(input);
        let mut replies = Vec::new();
        for _ in 0..=source.below(4) {
            let payload = match source.below(3) {
                0 => Bytes::new(),
                1 => source.bytes(64).into(),
                _ => vec![source.byte(); source.below(3 * 4096)].into(),
            };
            replies.push(match source.below(4) {
                0 => Reply {
                    body: source.bytes(60).into(),
                    payload,
                    payload_crc: None,
                },
                1 => match source.value::<Result<NsdAnswer>>() {
                    Some(any) => Reply::new(&any, payload),
                    None => continue,
                },
                _ => {
                    let Some(reply) = source.value::<NsdReply>() else {
                        continue;
                    };
                    let sound = answer(reply, payload);
                    match source.chance() {
                        true => sound,
                        false => Reply {
                            body: source.changed(&sound.body).into(),
                            ..sound
                        },
                    }
                }
            });
        }
        if replies.is_empty() {
            return;
        }
        let (offset, length) = (source.number() as u32, source.number() as u32);
        let from = EntryNumber(source.number());
        let which = source.below(7);
        ask(
            replies,
            async |nsd: &Handle, deadline: Deadline| match which {
                0 => {
                    let got = nsd.get(blob(), offset, length, deadline).await;
                    assert!(got.is_err() || length == 0, "no checksum fits by chance");
                }
                1 => drop(nsd.groups(deadline).await),
                2 => {
                    let listed = nsd.list(GroupId(1), None, 100, deadline).await;
                    let _: Result<Vec<BlobInfo>> = listed;
                }
                3 => {
                    if let Ok(entries) = nsd.log_read(ShardId(1), from, 10, deadline).await {
                        assert!(entries.is_sorted_by(|a, b| a.number < b.number));
                    }
                }
                4 => drop(nsd.info(blob(), deadline).await),
                5 => {
                    let _: Result<GroupDigest> = nsd.digest(GroupId(1), deadline).await;
                }
                _ => drop(nsd.ask_usage(deadline).await),
            },
        );
    });
}
