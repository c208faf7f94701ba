//! An owner applies what a node asks, its answers don't arrive, and it dies: the next owner is asked the same again.

use super::{
    Lab, Told,
    faults::{Fault, under_load, until_given_up, until_whole},
    links::Lost,
    load::{Load, Pauses},
    roles::{Role, Roles},
};
use sim::by_suite;
use std::time::Duration;

/// Loads of the node that gets no answers, beside the one that all have: each program waits for one answer.
const LOADS: usize = 3;
/// A program that has waited for so long has been left without an answer; much less than a node is given up after.
const UNANSWERED: Duration = Duration::from_millis(500);
/// How often the owner dies, when there is time.
const MOVES: usize = 2;

/// What is made, renamed or removed a second time is refused, and a program of the load fails by that.
pub(super) fn operations_whose_answers_are_lost_are_done_once(lab: &Lab) -> Told {
    let nodes = lab.nodes();
    let mut pauses = Pauses::default();
    for _ in 0..by_suite(1, MOVES) {
        let roles = Roles::of(lab);
        let (owner, client) = (roles.one_with(Role::Owner), roles.one_with(Role::Client));
        assert_ne!(owner, client, "another one has fewer roles");
        let start = |_| Load::start(lab, &[client]);
        let mut loads: Vec<_> = (0..LOADS).map(start).collect();
        let strike = |load: &mut Load| {
            load.mark();
            let lost = Lost::between(lab, owner, client);
            for own in &mut loads {
                lab.until("no answer comes", || own.all_wait(&[client], UNANSWERED));
            }
            Fault::Kill.strike(lab, &[owner]);
            // When its node comes back, it is heard.
            drop(lost);
            until_given_up(lab, &[owner]);
        };
        let mend = || {
            Fault::Kill.mend(lab, &[owner]);
            until_whole(lab);
        };
        pauses.add(&under_load(lab, &[owner], strike, mend));
        for mut own in loads {
            own.gets_on(&[client], 1);
            own.end(&[client]);
            own.must_be_seen(lab, &nodes);
            own.remove(lab, client);
        }
    }
    Told::of(pauses).within(Fault::Kill.aim())
}
