//! Who says of a run that it has ended.

use super::*;
use model::call::Class;
use model::member::{HAS_ENDED, KnownEnd};

/// What a member answers to a run that asks whether it has ended.
pub(super) async fn end_of(world: &World, member: &Member, run: NodeRun) -> Option<KnownEnd> {
    let call = Call::new(HAS_ENDED, Class::Lease, &());
    let deadline = Deadline::after(world, WAIT_MAX);
    let reply = member.parts.services.serve(run, call, deadline).await;
    reply.decode::<Option<KnownEnd>>().unwrap()
}

/// Would be broken if a run that has ended weren't told so, if one that is a member were, or if somebody said so who may know
/// less than others.
#[test]
fn a_member_says_of_a_run_that_it_has_ended_as_long_as_it_has_its_lease() {
    let run = Simulation::new(6).run(|world| async move {
        let store = Simulated::new(&world, 6);
        let [first, second] = two_members_with(&world, &store).await;
        let before = NodeRun {
            incarnation: second.run().incarnation - 1,
            ..second.run()
        };
        let stranger = NodeRun {
            node: NodeId(9),
            incarnation: 1,
        };
        let knows = || first.parts.services.known_end(before).is_some();
        until(&world, "the second one is a member", knows).await;
        let told = end_of(&world, &first, before).await;
        assert!(told.is_some_and(|end| !end.has_left));
        for run in [second.run(), stranger] {
            assert_eq!(end_of(&world, &first, run).await, None, "{run}");
        }
        store.lose_quorum();
        let is_over = || first.lease_ends() <= world.now();
        until(&world, "its lease is over", is_over).await;
        assert_eq!(end_of(&world, &first, before).await, None);
    });
    run.finished();
}
