//! A real machine whose threads all wait for a disk, say.

use super::*;
use coordination::PLACE_LEASE;
use model::call::Class;
use model::member::{
    ATTEND, Attend, HEARTBEAT, Heartbeat, HeartbeatReply, KnownManager, Role, WHO_MANAGES,
};
use rpc::security::{Authority, Credentials, Holder, Mode, Policy};
use world::{Blocked, Instant};

/// Threads of the runtime.
const WORKERS: usize = 2;
/// How often all threads are blocked until a lease is found renewed meanwhile.
const ATTEMPTS: usize = 30;
const BLOCKED_MAX: Duration = Duration::from_secs(1);
/// A manager that nobody keeps in its place has lost it by then.
const BLOCKED_LONG: Duration = Duration::from_secs(PLACE_LEASE.as_secs() + 2);
const SMALL_REGION: u64 = 64 << 20;

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(WORKERS).enable_all();
    builder.build().unwrap()
}

fn protection(world: &World, authority: &Authority, node: NodeId, mode: Mode) -> Protection {
    let holder = Holder {
        node,
        addresses: Vec::new(),
        has_localhost: false,
    };
    let credentials = Credentials::first(authority, &holder, world.wall()).unwrap();
    let security = Security::new(world, Policy::only(mode), credentials).unwrap();
    let admit = None;
    Protection { security, admit }
}

async fn real_members(
    world: &World,
    directory: &std::path::Path,
    mode: Option<Mode>,
) -> [Arc<Member>; 2] {
    let path = directory.join("coordination");
    let disk = world.create_disk(&path, coordination::EMBEDDED_REGION_BYTES);
    let facts = Coordination::embedded(world, disk.unwrap()).await.unwrap();
    let nodes = [NodeId(1), NodeId(2)];
    let founding = Founding {
        scheme: Scheme::Replicate(2),
        block_bytes: 64 * 1024,
        nsds: nodes
            .map(|node| FoundingNsd {
                nsd: NsdId(node.0),
                node,
                bytes: SMALL_REGION,
            })
            .to_vec(),
    };
    Member::found(world, &facts, &founding).await.unwrap();
    let cluster = facts.cluster().await.unwrap().unwrap();
    let authority = Authority::found(cluster, world.wall()).unwrap();
    let mut members = Vec::new();
    for node in nodes {
        let path = directory.join(format!("nsd{node}"));
        let regions = BTreeMap::from([(NsdId(node.0), (path.clone(), SMALL_REGION))]);
        Member::format_nsds(world, &facts, &regions).await.unwrap();
        let settings = MemberSettings {
            node,
            listen: "127.0.0.1:0".parse().unwrap(),
            nsds: BTreeMap::from([(NsdId(node.0), path)]),
            protection: mode.map(|mode| protection(world, &authority, node, mode)),
        };
        let started = Member::start(world, facts.clone(), settings).await;
        members.push(started.unwrap());
    }
    members.try_into().unwrap_or_else(|_| panic!("two"))
}

fn manager_and_other(members: &[Arc<Member>; 2]) -> [&Arc<Member>; 2] {
    match members[0].is_manager() {
        true => [&members[0], &members[1]],
        false => [&members[1], &members[0]],
    }
}

/// Asks another node; any answer will do.
async fn answered<Q, A>(from: &Member, to: &Member, method: model::call::Method, request: &Q)
where
    Q: serde::Serialize,
    A: serde::de::DeserializeOwned,
{
    let call = Call::new(method, Class::Lease, request);
    let way = from.parts.peers.to(to.run().node);
    let deadline = Deadline::after(&from.parts.world, WAIT_MAX);
    let answer = way.call(call, deadline).await.unwrap();
    assert_eq!(answer.from, to.run());
    let _ = answer.reply.decode::<A>();
}

/// Would be broken if threads that wait for slow disks cost a node its lease.
#[test]
fn leases_are_renewed_and_heartbeats_answered_while_all_other_threads_block() {
    for mode in [None, Some(Mode::AuthOnly)] {
        leases_go_on(mode);
    }
}

fn leases_go_on(mode: Option<Mode>) {
    runtime().block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let world = World::real();
        let urgent = world.urgent();
        let members = real_members(&world, directory.path(), mode).await;
        let serves = |member: &Member| member.parts.lease.ends() > world.now();
        let all_serve = || members.iter().all(|member| serves(member));
        until(&world, "both have leases", all_serve).await;
        let [manager, other] = manager_and_other(&members);
        let mut was_renewed = false;
        for _ in 0..ATTEMPTS {
            let blocked = Blocked::new(&world);
            let heartbeat = Heartbeat {
                role: Role::Owner,
                is_leaving: false,
                knows: other.roster().revision,
                hosts: std::iter::empty().collect(),
            };
            for (from, to) in [(other, manager), (manager, other)] {
                answered::<_, HeartbeatReply>(from, to, HEARTBEAT, &heartbeat).await;
                answered::<_, Option<KnownManager>>(from, to, WHO_MANAGES, &()).await;
                let attend = Attend { answer_after_ms: 1 };
                answered::<_, ()>(from, to, ATTEND, &attend).await;
            }
            // News are told at once, if there is a manager that may answer.
            let ends = other.parts.lease.ends();
            other.parts.lease.gave_up(SECOND);
            let start: Instant = world.now();
            while !was_renewed && world.now() - start < BLOCKED_MAX {
                urgent.sleep(Duration::from_millis(1)).await;
                was_renewed = other.parts.lease.ends() > ends;
            }
            drop(blocked);
            if was_renewed {
                break;
            }
            until(&world, "it has its lease again", all_serve).await;
        }
        assert!(was_renewed);
        for member in &members {
            member.close().await.unwrap();
        }
    });
}

/// Would be broken if threads that wait for slow disks cost everybody the manager. One that doesn't get to its work is
/// followed in the end (`place.rs` beside this).
#[test]
fn the_manager_stays_while_all_other_threads_block_for_longer_than_its_place_lasts() {
    runtime().block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let world = World::real();
        let urgent = world.urgent();
        let members = real_members(&world, directory.path(), None).await;
        let all_serve = || members.iter().all(|it| it.lease_ends() > world.now());
        until(&world, "both have leases", all_serve).await;
        let [manager, other] = manager_and_other(&members);
        let term = || manager.parts.office.established().map(|(term, ..)| term);
        let before = term();
        assert!(before.is_some());
        let blocked = Blocked::new(&world);
        let begun = world.now();
        while world.now() - begun < BLOCKED_LONG {
            urgent.sleep(Duration::from_millis(10)).await;
        }
        assert!(all_serve());
        drop(blocked);
        // Only a manager that does its work lets a member go.
        other.leave().await.unwrap();
        assert_eq!(term(), before, "it is the same one");
        for member in &members {
            member.close().await.unwrap();
        }
    });
}
