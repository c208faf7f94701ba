//! For how long a manager that doesn't get to its work keeps its place, and that it gives it up if others don't hear it.

use super::*;
use crate::member::managing::IDLE_MAX;
use coordination::{Doubt, PLACE_LEASE};
use model::member::Term;
use world::Point;

/// Until coordination notices that the place isn't kept any more, and another node has taken it.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(2);

/// Two members that have leases, the manager first.
async fn settled(world: &World, seed: u64) -> [Arc<Member>; 2] {
    let [first, second] = two_members(world, seed).await;
    let both_serve = || serves(world, &first) && serves(world, &second);
    until(world, "both have leases", both_serve).await;
    match first.is_manager() {
        true => [first, second],
        false => [second, first],
    }
}

fn serves(world: &World, member: &Member) -> bool {
    member.lease_ends() > world.now()
}

/// The term of the manager that is there, once it is stored.
fn term(member: &Member) -> Option<Term> {
    member.parts.office.established().map(|(term, ..)| term)
}

/// Would be broken if the place were kept by whoever does the manager's work.
#[test]
fn a_manager_that_is_held_up_for_longer_than_its_place_lasts_keeps_it() {
    let simulation = Simulation::new(11);
    let interrupted = &simulation;
    let run = simulation.run(|world| async move {
        let [manager, other] = settled(&world, 11).await;
        let before = term(&manager);
        assert!(before.is_some());
        let held_up = PLACE_LEASE + Duration::from_secs(3);
        assert!(held_up < IDLE_MAX);
        interrupted.hold_up(Point::ManagerDecided, 0, held_up);
        let begun = world.now();
        while world.now() - begun < held_up + PLACE_LEASE {
            assert!(serves(&world, &manager) && serves(&world, &other));
            assert_eq!(term(&manager), before);
            world.sleep(Duration::from_millis(1)).await;
        }
        for member in [manager, other] {
            member.close().await.unwrap();
        }
    });
    run.finished();
}

/// Would be broken if a manager that hangs kept its place for ever: it answers heartbeats, and nobody is expelled and no
/// shard gets another owner.
#[test]
fn another_node_takes_the_place_of_a_manager_that_hangs_and_nobody_else_pauses() {
    let simulation = Simulation::new(12);
    let interrupted = &simulation;
    let run = simulation.run(|world| async move {
        let [hung, other] = settled(&world, 12).await;
        let before = term(&hung);
        assert!(before.is_some());
        interrupted.hold_up(Point::ManagerDecided, 0, 4 * IDLE_MAX);
        let begun = world.now();
        while !other.is_manager() {
            assert!(serves(&world, &other));
            assert!(world.now() - begun < IDLE_MAX + PLACE_LEASE + FOLLOWS_WITHIN);
            world.sleep(Duration::from_millis(1)).await;
        }
        assert!(world.now() - begun > IDLE_MAX);
        let has_stored = || term(&other) > before;
        until(&world, "its term is stored", has_stored).await;
        let after = term(&other);
        // The other tasks of that node are well, and nobody takes it for dead.
        until(&world, "it has a lease", || serves(&world, &hung)).await;
        let goes_on = || !hung.is_manager();
        until(&world, "it goes on, and finds another manager", goes_on).await;
        assert!(serves(&world, &hung) && serves(&world, &other));
        assert_eq!(term(&other), after);
        for member in [hung, other] {
            member.close().await.unwrap();
        }
    });
    run.finished();
}

/// Would be broken if a manager that most don't hear gave its place up only when its loop comes round, if its node lost the
/// lease of the next manager when the loop hears of that, or if it took the place again.
#[test]
fn a_manager_that_is_held_up_and_that_most_do_not_hear_gives_its_place_up_at_once() {
    let simulation = Simulation::new(13);
    let interrupted = &simulation;
    let run = simulation.run(|world| async move {
        let [unheard, other] = settled(&world, 13).await;
        let before = term(&unheard);
        assert!(before.is_some());
        let held_up = PLACE_LEASE + Duration::from_secs(3);
        assert!(held_up < IDLE_MAX);
        interrupted.hold_up(Point::ManagerDecided, 0, held_up);
        let begun = world.now();
        // By then it is.
        world.sleep(Duration::from_millis(500)).await;
        let facts = &other.parts.coordination;
        let place = facts.manager().await.unwrap().unwrap();
        assert_eq!(place.value.run, unheard.run());
        facts.doubt_place(&place, Doubt::OfMost).await.unwrap();
        until(&world, "another one follows", || other.is_manager()).await;
        assert!(!unheard.is_manager());
        let has_stored = || term(&other) > before;
        until(&world, "its term is stored", has_stored).await;
        let after = term(&other);
        let both_serve = || serves(&world, &unheard) && serves(&world, &other);
        until(&world, "both have leases", both_serve).await;
        assert!(
            world.now() - begun < held_up,
            "its loop had nothing to do with that"
        );
        while world.now() - begun < held_up + PLACE_LEASE {
            assert!(both_serve() && !unheard.is_manager());
            assert_eq!(term(&other), after);
            world.sleep(Duration::from_millis(1)).await;
        }
        for member in [unheard, other] {
            member.close().await.unwrap();
        }
    });
    run.finished();
}
