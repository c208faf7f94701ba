//! What programs on several nodes do and see at the same time, while the owner dies that decides in which order it happens.

use super::{
    Lab, Told,
    faults::{Fault, others, until_given_up, until_whole},
    fresh, histories,
    load::Pauses,
    programs::locking,
    roles::{Role, Roles},
};
use std::time::Duration;

/// How long programs work; the owner dies in the middle of it.
const TIME: Duration = Duration::from_secs(8);
/// How long programs count in each way.
const COUNTING: Duration = Duration::from_secs(3);

/// Has programs work on all nodes but the owner's, which dies meanwhile.
#[track_caller]
fn without_the_owner<T>(lab: &Lab, work: impl FnOnce(&[u32], &dyn Fn()) -> T) -> T {
    let owner = Roles::of(lab).one_with(Role::Owner);
    let left = others(&lab.nodes(), &[owner]);
    let done = work(&left, &|| {
        Fault::Kill.strike(lab, &[owner]);
        until_given_up(lab, &[owner]);
    });
    Fault::Kill.mend(lab, &[owner]);
    until_whole(lab);
    done
}

/// One order of all operations on names and bytes explains every answer, those before the owner's death and after it.
pub(super) fn what_programs_see_has_one_order_though_the_owner_dies(lab: &Lab) -> Told {
    let directory = fresh();
    let met = without_the_owner(lab, |nodes, owner_dies| {
        let met = histories::play(lab, nodes, &directory, 7_000, TIME, owner_dies);
        assert!(met.is_of_use(nodes.len()), "{met:?}");
        met
    });
    Told::of(Pauses::default()).with(format!("{met:?}"))
}

/// What programs count under locks comes out exact: nobody has a lock that another one has, before and after the owner's
/// death.
pub(super) fn counters_under_locks_come_out_exact_though_the_owner_dies(lab: &Lab) -> Told {
    let directory = fresh();
    without_the_owner(lab, |nodes, owner_dies| {
        locking::count_together(lab, nodes, &directory, COUNTING, owner_dies);
    });
    Told::of(Pauses::default())
}
