//! Requests of other nodes: what their credits must cover, how large they are, what is known of the bytes that go back, and
//! which are short work.

use crate::scene::{IDENTITY, blob, fence, name, on_disk};
use bytes::Bytes;
use futures::future::BoxFuture;
use model::call::{Answer, BODY_BYTES_MAX, Call, Class, NoAnswer, Reply};
use model::checksum::{UNIT, crc32c};
use model::nsd::{
    AddressedRequest, GroupFence, LOG_PUTS_MAX, LOG_READ_BYTES, NSD_METHOD, NsdAnswer,
    NsdCondition, NsdHealth, NsdReply, NsdRequest, NsdUsage,
};
use model::{EntryNumber, ErrorKind, NodeId, NodeRun, ShardEpoch, ShardId};
use nsd::{Handle, NsdServer};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use world::World;
use world::call::{Deadline, Remote, Service};
use world::sim::Simulation;

/// Another node's call that allows so many bytes.
fn call(request: &NsdRequest, reply_bytes_max: u32) -> Call {
    let addressed: AddressedRequest = (IDENTITY.nsd, request.clone());
    Call {
        reply_bytes_max,
        ..Call::new(NSD_METHOD, Class::Bulk, &addressed)
    }
}

/// What a server answers another node that allows so many bytes.
async fn serve(
    world: &World,
    server: &NsdServer,
    request: &NsdRequest,
    reply_bytes_max: u32,
) -> Reply {
    let from = NodeRun {
        node: NodeId(2),
        incarnation: 1,
    };
    let call = call(request, reply_bytes_max);
    let deadline = Deadline::after(world, Duration::from_secs(10));
    server.serve(from, call, deadline).await
}

/// Would be broken if bytes that their units' checksums have just proven were read once more for their frame's.
#[test]
fn an_answer_of_whole_units_knows_its_checksum() {
    const LENGTH: usize = 3 * UNIT + 5;
    on_disk(2, async |scene| {
        let nsd = scene.open().await;
        nsd.put(blob(1, LENGTH)).await.unwrap();
        let server = NsdServer::default();
        server.add(nsd);
        for (offset, length, is_known) in [
            (0, 1, true),
            (UNIT + 7, UNIT, true),
            (0, 3 * UNIT, true),
            (2 * UNIT, UNIT + 5, false),
            (0, LENGTH, false),
            (UNIT, 0, true),
        ] {
            let request = NsdRequest::Get {
                name: name(1),
                offset: offset as u32,
                length: length as u32,
            };
            let most = request.reply_bytes_max();
            let reply = serve(&scene.world, &server, &request, most).await;
            assert!(reply.payload.len() >= length);
            let crc = is_known.then(|| crc32c(&reply.payload));
            assert_eq!(reply.payload_crc, crc, "{length} bytes at {offset}");
        }
    });
}

/// Would be broken if a node could have any number of the largest pieces read at the same time, by requests that hold
/// credits for a header each.
#[test]
fn a_request_that_allows_a_smaller_answer_than_it_asks_for_is_refused_unread() {
    const LENGTH: u32 = 1 << 20;
    on_disk(1, async |scene| {
        let nsd = scene.open().await;
        nsd.put(blob(1, LENGTH as usize)).await.unwrap();
        let server = NsdServer::default();
        server.add(nsd);
        let ask = async |request: &NsdRequest, reply_bytes_max: u32| {
            let reply = serve(&scene.world, &server, request, reply_bytes_max).await;
            let answered = reply.decode::<NsdAnswer>();
            let answered = answered.and_then(|answer| answer.reply);
            (answered.map(drop).map_err(|it| it.kind()), reply.payload)
        };
        let get = NsdRequest::Get {
            name: name(1),
            offset: 0,
            length: LENGTH,
        };
        let read = NsdRequest::LogRead {
            shard: ShardId(1),
            from: EntryNumber(1),
            limit: u32::MAX,
        };
        for (request, least) in [(&get, LENGTH), (&read, LOG_READ_BYTES as u32)] {
            let (refused, payload) = ask(request, least - 1).await;
            assert_eq!(refused, Err(ErrorKind::InvalidArgument), "{request:?}");
            assert!(payload.is_empty());
            let (answered, _) = ask(request, request.reply_bytes_max()).await;
            assert_eq!(answered, Ok(()), "{request:?}");
        }
        let (_, payload) = ask(&get, get.reply_bytes_max()).await;
        assert_eq!(payload.len(), LENGTH as usize);
    });
}

/// Would be broken if a connection received nothing while a read's place is looked up on the disk, or while a large piece is
/// proven.
#[test]
fn only_small_reads_whose_place_is_in_memory_are_short_work() {
    const LENGTH: usize = 64 * UNIT;
    on_disk(3, async |scene| {
        let nsd = scene.open().await;
        nsd.put(blob(1, LENGTH)).await.unwrap();
        let server = NsdServer::default();
        let is_short = |request: &NsdRequest| {
            let call = call(request, request.reply_bytes_max());
            server.is_short(&call)
        };
        let get = |number, length: usize| NsdRequest::Get {
            name: name(number),
            offset: 0,
            length: length as u32,
        };
        let small = get(1, UNIT);
        assert!(!is_short(&small), "another node may serve it by now");
        server.add(nsd.clone());
        assert!(is_short(&small) && is_short(&get(1, 16 * UNIT)));
        assert!(is_short(&get(2, UNIT)), "there was none of its segment");
        for other in [get(1, LENGTH), NsdRequest::Info(name(1))] {
            assert!(!is_short(&other), "{other:?}");
        }
        let mut put = call(&small, small.reply_bytes_max());
        put.payload = vec![0; UNIT].into();
        assert!(!server.is_short(&put));

        nsd.close().await.unwrap();
        server.remove(IDENTITY.nsd);
        let nsd = scene.reopen(nsd).await;
        server.add(nsd);
        assert!(!is_short(&small), "only the index has its place");
        let most = small.reply_bytes_max();
        let reply = serve(&scene.world, &server, &small, most).await;
        assert_eq!(reply.payload.len(), UNIT);
        assert!(is_short(&small));
    });
}

/// Would be broken if an entry were cut short, or got another's bytes, because a message says other lengths than it has.
#[test]
fn log_entries_that_come_together_have_the_lengths_that_they_say() {
    on_disk(4, async |scene| {
        let nsd = scene.open().await;
        let server = NsdServer::default();
        server.add(nsd.clone());
        let numbers = |count: u64, length| -> Vec<(EntryNumber, u32)> {
            (1..=count)
                .map(|number| (EntryNumber(number), length))
                .collect()
        };
        for (entries, is_taken) in [
            (numbers(0, 0), true),
            (numbers(1, 1), false),
            (numbers(2, u32::MAX), false),
            (numbers(LOG_PUTS_MAX as u64, 0), true),
            (numbers(LOG_PUTS_MAX as u64 + 1, 0), false),
        ] {
            let count = entries.len();
            let request = NsdRequest::LogPuts {
                shard: ShardId(1),
                epoch: ShardEpoch(1),
                entries,
            };
            let most = request.reply_bytes_max();
            let reply = serve(&scene.world, &server, &request, most).await;
            let answered = reply.decode::<NsdAnswer>();
            let answered = answered.and_then(|answer| answer.reply);
            let refused = answered.err().map(|error| error.kind());
            let expected = (!is_taken).then_some(ErrorKind::InvalidArgument);
            assert_eq!(refused, expected, "{count} entries");
        }
    });
}

/// Learns what fits into a message, and counts it.
#[derive(Default)]
struct Learns {
    versions: AtomicUsize,
    requests: AtomicUsize,
}

impl Remote for Learns {
    fn call(
        &self,
        call: Call,
        _: Deadline,
    ) -> BoxFuture<'_, std::result::Result<Answer, NoAnswer>> {
        Box::pin(async move {
            if call.body.len() > BODY_BYTES_MAX {
                return Err(NoAnswer::not_run("the request is larger than a frame"));
            }
            if let Ok((_, NsdRequest::Learn(fences))) = call.decode::<AddressedRequest>() {
                self.versions.fetch_add(fences.len(), Ordering::Relaxed);
                self.requests.fetch_add(1, Ordering::Relaxed);
            }
            let from = NodeRun {
                node: NodeId(2),
                incarnation: 1,
            };
            let condition = NsdCondition {
                health: NsdHealth::Online,
                usage: NsdUsage::default(),
                needs_confirmation: false,
            };
            let reply = Ok(NsdReply::Done);
            let reply = Reply::new(&Ok(NsdAnswer { condition, reply }), Bytes::new());
            Ok(Answer { from, reply })
        })
    }
}

/// Would be broken if an NSD of another node couldn't be told the versions of all groups of a large pool with closed
/// generations: one that is drained would never be empty for sure.
#[test]
fn versions_of_however_many_groups_fit_into_messages() {
    let run = async |world: World| {
        let node = Arc::new(Learns::default());
        let handle = Handle::remote(&world, IDENTITY.nsd, node.clone(), None);
        let deadline = Deadline::after(&world, Duration::from_secs(10));
        for (count, requests) in [(0, 1), (3, 1), (262_144, 4)] {
            let fences: Vec<GroupFence> = (0..count)
                .map(|group| fence(u32::MAX - group, u32::MAX))
                .collect();
            handle.learn_groups(&fences, deadline).await.unwrap();
            let learnt = node.versions.swap(0, Ordering::Relaxed);
            assert_eq!(learnt, fences.len());
            assert_eq!(node.requests.swap(0, Ordering::Relaxed), requests);
        }
    };
    Simulation::new(1).run(run).finished();
}
