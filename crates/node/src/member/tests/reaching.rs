//! Who hears whom a node can't reach, and that a node which answers is reached.

use super::*;
use model::call::Class;
use model::member::{ATTEND, Attend, HEARD, Heard, REACHES_BACK, UNREACHED, Unreached};
use model::{FileKind, InodeId};
use testkit::inodes::{name, new_inode};

/// How much longer each request to a disk takes: the first attempt to ask the owner has no answer.
const SLOW: Duration = Duration::from_secs(2);
/// Longer than it takes until a node isn't reached.
const LONG: Duration = Duration::from_secs(20);

/// What a member answers to a report of another one.
async fn told(world: &World, member: &Member, from: NodeRun, call: Call) -> Result<()> {
    let deadline = Deadline::after(world, WAIT_MAX);
    let reply = member.parts.services.serve(from, call, deadline).await;
    reply.decode::<()>()
}

#[test]
fn only_the_manager_hears_whom_a_node_cannot_reach() {
    let run = Simulation::new(1).run(|world| async move {
        let [first, second] = two_members(&world, 1).await;
        let has_manager = || first.is_manager() || second.is_manager();
        until(&world, "one of them is the manager", has_manager).await;
        let (manager, other) = match first.is_manager() {
            true => (&first, &second),
            false => (&second, &first),
        };
        let unreached = Unreached {
            runs: vec![manager.run()],
        };
        let call = Call::new(UNREACHED, Class::Lease, &unreached);
        told(&world, manager, other.run(), call.clone())
            .await
            .unwrap();
        let refused = told(&world, other, manager.run(), call).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OldEpoch);
        let garbage = Call::new(UNREACHED, Class::Lease, &u64::MAX);
        let refused = told(&world, manager, other.run(), garbage).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
        first.close().await.unwrap();
        second.close().await.unwrap();
    });
    run.finished();
}

/// Would be broken if a node that others can't call, and that reaches all, took itself for one that is reached.
#[test]
fn a_member_says_whether_it_reaches_who_asks() {
    let run = Simulation::new(3).run(|world| async move {
        let [first, second] = two_members(&world, 3).await;
        let knows = || first.roster().addresses.contains_key(&NodeId(2));
        until(&world, "the first one knows the second one", knows).await;
        let absent = NodeRun {
            node: NodeId(9),
            incarnation: 1,
        };
        for (from, expected) in [(second.run(), true), (absent, false)] {
            let call = Call::new(REACHES_BACK, Class::Lease, &());
            let deadline = Deadline::after(&world, WAIT_MAX);
            let services = &first.parts.services;
            let reply = services.serve(from, call, deadline).await;
            assert_eq!(reply.decode::<bool>().unwrap(), expected);
        }
        first.close().await.unwrap();
        second.close().await.unwrap();
    });
    run.finished();
}

/// Would be broken if a manager that answers passed for one that isn't heard, or a connection for none.
#[test]
fn a_member_hears_the_manager_that_answers_and_attends_to_it() {
    let run = Simulation::new(4).run(|world| async move {
        let [first, second] = two_members(&world, 4).await;
        let has_manager = || first.is_manager() || second.is_manager();
        until(&world, "one of them is the manager", has_manager).await;
        let (manager, other) = match first.is_manager() {
            true => (&first, &second),
            false => (&second, &first),
        };
        let hears = || other.parts.lease.heard(manager.run()).is_attended;
        until(&world, "it is attended to", hears).await;
        for (of, is_attended) in [(manager.run(), true), (other.run(), false)] {
            let call = Call::new(HEARD, Class::Lease, &of);
            let deadline = Deadline::after(&world, WAIT_MAX);
            let services = &other.parts.services;
            let reply = services.serve(manager.run(), call, deadline).await;
            let expected = Heard {
                is_unheard: false,
                is_attended,
            };
            assert_eq!(reply.decode::<Heard>().unwrap(), expected);
        }
        first.close().await.unwrap();
        second.close().await.unwrap();
    });
    run.finished();
}

/// Would be broken if a node out of order could take room from heartbeats for as long as it likes.
#[test]
fn whoever_wants_to_attend_for_ever_is_answered_all_the_same() {
    let run = Simulation::new(5).run(|world| async move {
        let [first, second] = two_members(&world, 5).await;
        let attend = Attend {
            answer_after_ms: u32::MAX,
        };
        let call = Call::new(ATTEND, Class::Lease, &attend);
        let deadline = Deadline::after(&world, WAIT_MAX);
        let begun = world.now();
        let services = &first.parts.services;
        let reply = services.serve(second.run(), call, deadline).await;
        reply.decode::<()>().unwrap();
        assert!(world.now() - begun < WAIT_MAX);
        first.close().await.unwrap();
        second.close().await.unwrap();
    });
    run.finished();
}

/// Would be broken if a node passed for one that can't be reached because calls to it have no answer in time: its disk is
/// slow.
#[test]
fn a_node_that_answers_is_reached_whatever_becomes_of_calls() {
    let simulation = Simulation::new(2);
    let faults = simulation.faults();
    let run = simulation.run(|world| async move {
        let [first, second] = two_members(&world, 2).await;
        first.create_shard().await.unwrap();
        let opened = second.open_client_of(ROOT_SHARD, ClientSettings::default());
        let client = opened.await.unwrap();
        faults.slow("nsd1", SLOW);
        let begun = world.now();
        let mut file = 0;
        while world.now() - begun < LONG {
            let made = client.create(
                InodeId::ROOT,
                name(&format!("f{file}")),
                new_inode(FileKind::File),
            );
            // Whatever becomes of it: some attempts have no answer.
            let _ = made.await;
            file += 1;
            world.sleep(Duration::from_millis(100)).await;
            for member in [&first, &second] {
                assert!(member.unreached().is_empty() && !member.waits_to_join());
            }
        }
        faults.heal("nsd1");
        let _ = client.close().await;
        for member in [first, second] {
            member.close().await.unwrap();
        }
    });
    run.finished();
}
