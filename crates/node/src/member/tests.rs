//! Two members in one simulated process: which shards are made, and who is asked about them.

mod crowded;
mod ending;
mod file_systems;
mod giving_back;
mod going_on;
mod place;
mod reaching;
mod stopping;
mod urgent;
mod waits;

use super::*;
use crate::ROOT_FAMILY;
use bytes::Bytes;
use coordination::simulated::Simulated;
use futures::future::{BoxFuture, join};
use model::call::Call;
use model::owner::{CLASS, OWNER, OwnerCall, OwnerReply, OwnerRequest, Tenure};
use model::{Scheme, SessionId};
use nsd::{Nsd, NsdIdentity};
use std::path::Path;
use world::call::Service;
use world::sim::Simulation;

const SECOND: ShardId = ShardId(1);
const FAMILY: FamilyId = FamilyId(1);
const REGION_BYTES: u64 = 256 << 20;
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Would be broken if requests that carry the largest piece found no room on a connection, or if the
/// figures beside the credits weren't those that they give.
#[test]
fn what_a_node_can_have_under_way_here_is_as_written() {
    let largest = model::call::BODY_BYTES_MAX + model::call::PAYLOAD_BYTES_MAX;
    let both_ways = 64 + 2 * largest as u64;
    assert!(
        ADMISSION.credits[2..]
            .iter()
            .all(|it| it.bytes >= both_ways)
    );
    assert!(ADMISSION.credits[1].bytes >= both_ways);
    assert_eq!(ADMISSION.node_bytes_max(), 1_770 << 20);
    let small = Connections::default().small_threshold_bytes;
    assert!(ADMISSION.small_data.bytes >= u64::from(small));
}

fn number(text: &str) -> (NodeId, MemberSettings) {
    let node = NodeId(text.parse().unwrap());
    let nsds = BTreeMap::from([(NsdId(node.0), PathBuf::from(format!("nsd{text}")))]);
    let settings = MemberSettings {
        node,
        listen: "0.0.0.0:0".parse().unwrap(),
        nsds,
        protection: None,
    };
    (node, settings)
}

/// Two nodes with an NSD each, and an empty cluster.
async fn two_members(world: &World, seed: u64) -> [Arc<Member>; 2] {
    two_members_with(world, &Simulated::new(world, seed)).await
}

async fn two_members_with(world: &World, store: &Simulated) -> [Arc<Member>; 2] {
    let nodes = ["1", "2"].map(number);
    let founding_nsds = nodes.iter().map(|(node, _)| FoundingNsd {
        nsd: NsdId(node.0),
        node: *node,
        bytes: REGION_BYTES,
    });
    let founding = Founding {
        scheme: Scheme::Replicate(2),
        block_bytes: 64 * 1024,
        nsds: founding_nsds.collect(),
    };
    let first = store.connect(NodeId(1), world);
    Member::found(world, &first, &founding).await.unwrap();
    let mut members = Vec::new();
    for (node, settings) in nodes {
        let coordination = store.connect(node, world);
        let regions = settings.nsds.iter();
        let regions = regions.map(|(nsd, path)| (*nsd, (path.clone(), REGION_BYTES)));
        let formatted = Member::format_nsds(world, &coordination, &regions.collect()).await;
        formatted.unwrap();
        members.push(Member::start(world, coordination, settings).await.unwrap());
    }
    members.try_into().unwrap_or_else(|_| panic!("two"))
}

async fn until(world: &World, what: &str, holds: impl Fn() -> bool) {
    let deadline = Deadline::after(world, WAIT_MAX);
    while !holds() {
        assert!(!deadline.has_passed(world), "{what}");
        world.sleep(Duration::from_millis(1)).await;
    }
}

/// What a member answers to a body sent to an owner.
async fn ask(world: &World, member: &Member, body: &[u8]) -> Result<OwnerReply> {
    let mut call = Call::new(OWNER, CLASS, &());
    call.body = bytes::Bytes::copy_from_slice(body);
    let deadline = Deadline::after(world, WAIT_MAX);
    let from = NodeRun {
        node: NodeId(9),
        incarnation: 1,
    };
    let reply = member.parts.services.serve(from, call, deadline).await;
    reply.decode::<OwnerReply>()
}

fn new_session(shard: ShardId) -> Call {
    let call = OwnerCall {
        shard,
        session: SessionId::default(),
        tenure: Tenure::default(),
        order: None,
        request: OwnerRequest::NewSession,
    };
    Call::new(OWNER, CLASS, &call)
}

#[test]
fn a_call_goes_to_the_shard_that_it_names_or_is_refused() {
    let simulation = Simulation::new(1);
    let run = simulation.run(|world| async move {
        let [first, second] = two_members(&world, 1).await;
        first.create_shard().await.unwrap();
        first.create_shard_of(SECOND, FAMILY).await.unwrap();
        let both = [ROOT_SHARD, SECOND];
        until(&world, "both are served", || first.hosted_shards() == both).await;
        let to = async |member: &Member, shard| {
            let call = new_session(shard);
            ask(&world, member, &call.body).await
        };
        for shard in both {
            let answer = to(&first, shard).await.unwrap();
            assert!(matches!(answer, OwnerReply::NewSession(_)), "{answer:?}");
            let elsewhere = to(&second, shard).await.unwrap_err();
            assert_eq!(elsewhere.kind(), ErrorKind::OldEpoch);
        }
        let unknown = to(&first, ShardId(5)).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::OldEpoch);
        let root_then_nonsense = [0, 0xff, 0xff, 0xff];
        for body in [&[][..], &[0xff; 9], &root_then_nonsense] {
            let bad = ask(&world, &first, body).await.unwrap_err();
            assert_eq!(bad.kind(), ErrorKind::InvalidArgument, "{body:?}");
        }
        // Each shard is moved by itself, and its clients find it.
        let there = second.run();
        let coordination = &first.parts.coordination;
        let moved = coordination.assign_shard(SECOND, Some(first.run()), there);
        moved.await.unwrap();
        until(&world, "one has moved", || {
            first.hosted_shards() == [ROOT_SHARD] && second.hosted_shards() == [SECOND]
        })
        .await;
        assert_eq!(
            to(&first, SECOND).await.unwrap_err().kind(),
            ErrorKind::OldEpoch
        );
        for (shard, family) in [(ROOT_SHARD, ROOT_FAMILY), (SECOND, FAMILY)] {
            for member in [&first, &second] {
                let opened = member.open_client_of(shard, ClientSettings::default());
                let client = opened.await.unwrap();
                let root = client.get_attributes(family.root()).await.unwrap();
                assert_eq!(root.inode, family.root());
                client.close().await.unwrap();
            }
        }
        first.close().await.unwrap();
        second.close().await.unwrap();
    });
    run.finished();
}

/// Would be broken if a node with a fault could have its work done on the thread that leases need.
#[test]
fn only_what_members_say_to_each_other_is_answered_where_leases_are() {
    use model::call::Class;
    let run = Simulation::new(4).run(|world| async move {
        let [first, second] = two_members(&world, 4).await;
        first.create_shard().await.unwrap();
        until(&world, "it is served", || {
            first.hosted_shards() == [ROOT_SHARD]
        })
        .await;
        let serve = async |call: Call, class| {
            let call = Call { class, ..call };
            let deadline = Deadline::after(&world, WAIT_MAX);
            let services = &first.parts.services;
            let reply = services.serve(second.run(), call, deadline).await;
            let answer = reply.decode::<OwnerReply>();
            answer.map(drop).map_err(|error| error.kind())
        };
        let served = serve(new_session(ROOT_SHARD), Class::Metadata).await;
        assert_eq!(served, Ok(()));
        let nsd = Call::new(model::nsd::NSD_METHOD, Class::Bulk, &());
        let command = Call::new(commands::COMMAND, Class::Metadata, &());
        for call in [new_session(ROOT_SHARD), nsd, command] {
            let method = call.method;
            let refused = serve(call, Class::Lease).await;
            assert_eq!(refused, Err(ErrorKind::InvalidArgument), "{method:?}");
        }
        first.close().await.unwrap();
        second.close().await.unwrap();
    });
    run.finished();
}

#[test]
fn a_family_is_in_one_shard_whoever_asks_at_the_same_time() {
    for seed in 0..20 {
        let run = Simulation::new(seed).run(move |world| async move {
            let [first, second] = two_members(&world, seed).await;
            first.create_shard().await.unwrap();
            // One after the other.
            let taken = second.create_shard_of(SECOND, ROOT_FAMILY).await;
            let taken = taken.unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::Exists);
            let text = taken.to_string();
            assert!(text.contains("family 0 is in shard 0: choose"), "{text}");
            let taken = second.create_shard_of(ROOT_SHARD, FAMILY).await;
            assert_eq!(taken.unwrap_err().kind(), ErrorKind::Exists);
            let none = FamilyId(FamilyId::COUNT);
            let none = second.create_shard_of(SECOND, none).await;
            assert_eq!(none.unwrap_err().kind(), ErrorKind::InvalidArgument);
            // At the same time: two shards for one family, then one shard for two families.
            for (one, other) in [
                ((SECOND, FAMILY), (ShardId(2), FAMILY)),
                ((ShardId(3), FamilyId(2)), (ShardId(3), FamilyId(3))),
            ] {
                let made = join(
                    first.create_shard_of(one.0, one.1),
                    second.create_shard_of(other.0, other.1),
                );
                let made: [Result<()>; 2] = made.await.into();
                let refused: Vec<_> = made.iter().filter_map(|made| made.as_ref().err()).collect();
                assert_eq!(refused.len(), 1, "seed {seed}: {made:?}");
                assert_eq!(
                    refused[0].kind(),
                    ErrorKind::Exists,
                    "seed {seed}: {made:?}"
                );
            }
            let shards = first.parts.coordination.shards().await.unwrap();
            let mut families: Vec<_> = shards
                .iter()
                .flat_map(|shard| shard.families.clone())
                .collect();
            families.sort_unstable();
            families.dedup();
            assert_eq!((shards.len(), families.len()), (3, 3), "seed {seed}");
            // The loser's own number and the winner's family are as free as before.
            let again = first.create_shard_of(ShardId(4), FamilyId(9)).await;
            again.unwrap();
            first.close().await.unwrap();
            second.close().await.unwrap();
        });
        run.finished();
    }
}

/// Would be broken if a daemon forgot the region of an NSD that the pool has, because nobody answered whether it has.
#[test]
fn an_nsd_that_may_have_been_added_is_not_said_to_be_refused() {
    let run = Simulation::new(2).run(|world| async move {
        let store = Simulated::new(&world, 2);
        let [member, _other] = two_members_with(&world, &store).await;
        let nsd = member.next_nsd().await.unwrap();
        let silence = async {
            // From then on only the pool's map is to be changed.
            let is_open = || member.pool().nsd(nsd).is_some();
            until(&world, "its region is open", is_open).await;
            store.lose_quorum();
        };
        let adding = member.add_nsd(nsd, Path::new("second"), REGION_BYTES);
        let (added, ()) = join(adding, silence).await;
        let unknown = added.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unknown, "{unknown}");
        assert!(
            member.pool().nsd(nsd).is_some(),
            "it serves if it was added"
        );
    });
    run.finished();
}

/// Would be broken if a region that the pool has refused stayed in use, and its space allocated, with nobody who knows of it.
#[test]
fn a_region_that_the_pool_does_not_take_is_used_no_more() {
    let run = Simulation::new(5).run(|world| async move {
        let [member, _other] = two_members(&world, 5).await;
        // The pool has this number, on the other node: a refusal that is certain, as one when others change the map all the
        // time.
        let taken = NsdId(2);
        let path = Path::new("a region that the pool does not take");
        let refused = member.parts.nsds.add(taken, path, REGION_BYTES).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Exists, "{refused}");
        assert!(member.pool().nsd(taken).is_none());
        assert!(!member.parts.nsds.regions.lock().contains_key(&taken));
    });
    run.finished();
}

/// Would be broken if a device that the pool has refused were an NSD from then on, which is never overwritten: the same command
/// would be refused for that reason for ever. Or if an NSD that is there already were taken for one of those.
#[test]
fn a_device_that_the_pool_does_not_take_can_be_added_again() {
    // For the host they are devices, too, which decides whether a region is to be made.
    const DEVICES: [&str; 2] = ["/dev/null", "/dev/zero"];
    let simulation = Simulation::new(7);
    for device in DEVICES {
        simulation.disk(device, REGION_BYTES);
    }
    let run = simulation.run(|world| async move {
        let [member, _other] = two_members(&world, 7).await;
        let [own, anothers] = DEVICES.map(Path::new);
        let refused = member.parts.nsds.add(NsdId(2), own, REGION_BYTES).await;
        let refused = refused.unwrap_err();
        assert!(refused.to_string().contains("the pool has"), "{refused}");
        let nsd = member.next_nsd().await.unwrap();
        member.add_nsd(nsd, own, REGION_BYTES).await.unwrap();

        // Of an NSD that is there already, whatever it holds, nothing is taken back: not even if it has the number that this one
        // would get.
        let nsd = member.next_nsd().await.unwrap();
        let there = member.parts.nsds.identity(nsd);
        let disk = world.open_disk(anothers).unwrap();
        Nsd::format(&world, &disk, there).await.unwrap();
        drop(disk);
        let refused = member.add_nsd(nsd, anothers, REGION_BYTES).await;
        let refused = refused.unwrap_err();
        assert!(refused.to_string().contains("already NSD"), "{refused}");
        let disk = world.open_disk(anothers).unwrap();
        assert_eq!(Nsd::identify(&disk).await.unwrap(), there);
    });
    run.finished();
}

/// Would be broken if a device stayed an NSD, and so couldn't be added, because its node's daemon had ended meanwhile.
#[test]
fn a_device_whose_adding_broke_off_is_free_after_the_next_start() {
    const DEVICE: &str = "/dev/null";
    let simulation = Simulation::new(9);
    simulation.disk(DEVICE, REGION_BYTES);
    let run = simulation.run(|world| async move {
        let [member, _other] = two_members(&world, 9).await;
        let (device, own) = (Path::new(DEVICE), Path::new("own"));
        let nsd = member.next_nsd().await.unwrap();
        let leave = async |identity: NsdIdentity| {
            let disk = world.open_disk(device).unwrap();
            Nsd::format(&world, &disk, identity).await.unwrap();
        };
        let discard = async || {
            let noted = BTreeMap::from([(nsd, device.to_path_buf())]);
            member.discard_leftovers(&noted, own).await.unwrap()
        };
        let identity = member.parts.nsds.identity(nsd);
        leave(identity).await;
        assert_eq!(discard().await, [nsd]);
        // A device that had an NSD would be refused.
        let anothers = NsdIdentity {
            cluster: 9,
            ..identity
        };
        leave(anothers).await;
        assert!(discard().await.is_empty(), "it is another cluster's");
    });
    run.finished();
}

/// Would be broken if coordination said for ever that a node has an NSD which there isn't.
#[test]
fn an_nsd_that_is_not_added_has_no_home() {
    let run = Simulation::new(8).run(|world| async move {
        let [member, _other] = two_members(&world, 8).await;
        let homes = async || {
            let roster = Roster::read(&member.parts.coordination).await;
            roster.unwrap().homes
        };
        let before = homes().await;
        assert_eq!(before.len(), 2);
        let nsd = member.next_nsd().await.unwrap();
        // The region of another one is there.
        let refused = member.add_nsd(nsd, Path::new("nsd1"), REGION_BYTES).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Exists, "{refused}");
        assert_eq!(homes().await, before);
    });
    run.finished();
}

/// It has time to end in good order. Its daemon may be of any mind: then nobody answers it, and it loses what it had.
#[test]
fn a_node_that_was_expelled_by_hand_is_answered_by_nobody_and_ends() {
    struct Echo;
    impl Commands for Echo {
        fn run(&self, _: NodeRun, command: Bytes) -> BoxFuture<'_, Result<Bytes>> {
            Box::pin(std::future::ready(Ok(command)))
        }
    }
    let simulation = Simulation::new(3);
    let run = simulation.run(|world| async move {
        let [first, second] = two_members(&world, 3).await;
        first.create_shard().await.unwrap();
        first.answer_commands(Arc::new(Echo));
        let now = || world.now();
        until(&world, "both have a lease", || {
            first.lease_ends() > now() && second.lease_ends() > now()
        })
        .await;
        let minute = Duration::from_secs(60);
        let asked = second.command(NodeId(1), Bytes::from("a"), minute).await;
        assert_eq!(asked.unwrap(), "a");
        // A run that is no member isn't listened to.
        let stranger = NodeRun {
            node: NodeId(9),
            incarnation: 1,
        };
        let call = Call::new(commands::COMMAND, model::call::Class::Metadata, &());
        let deadline = Deadline::after(&world, WAIT_MAX);
        let reply = first.parts.services.serve(stranger, call, deadline).await;
        let refused = reply.decode::<()>().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotPermitted);
        let facts = coordination::NodeFacts {
            node: NodeId(2),
            name: "n2".into(),
            class: "default".into(),
            is_quorum: false,
            has_authority: false,
            is_barred: true,
            etcd: None,
            key: [0; 32],
            address: "127.0.0.1:7311".parse().unwrap(),
        };
        first.coordination().add_first_node(&facts).await.unwrap();
        let knows = || first.roster().barred.contains(&NodeId(2));
        until(&world, "its expulsion is known", knows).await;
        let asked = second.command(NodeId(1), Bytes::from("a"), minute).await;
        let refused = asked.unwrap_err();
        assert!(refused.to_string().contains("unexpel 2"), "{refused}");
        let is_out = || {
            let roster = first.roster();
            let members = roster.membership.as_ref().unwrap();
            members.value.has_ended(second.run())
        };
        until(&world, "its run is expelled", is_out).await;
        second.ended().await;
        // A daemon that doesn't hear of it from coordination would go on asking, and is told so much.
        let knows = || first.parts.services.known_end(second.run()).is_some();
        until(&world, "it has a lease, and knows the end", knows).await;
        let told = ending::end_of(&world, &first, second.run()).await;
        assert!(told.is_some_and(|end| !end.has_left));
        let call = Call::new(model::member::WHO_MANAGES, model::call::Class::Lease, &());
        let deadline = Deadline::after(&world, WAIT_MAX);
        let services = &first.parts.services;
        let reply = services.serve(second.run(), call, deadline).await;
        let refused = reply.decode::<OwnerReply>().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotPermitted);
        for member in [first, second] {
            member.close().await.unwrap();
        }
    });
    run.finished();
}
