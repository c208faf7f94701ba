//! The owner and one other node don't reach each other; both reach everybody else, coordination and the manager too, unless
//! the owner itself is the manager.

use super::{
    Lab, Told,
    faults::{Fault, under_load, until_whole},
    links::Lost,
    load::Load,
    roles::{Role, Roles},
};
use std::{cell::RefCell, time::Duration};

/// For longer than the owner waits for a node whose tokens others want.
const APART: Duration = Duration::from_secs(12);

/// The node loses its session and what it hadn't synced, or is expelled; others go on with its files, and it comes back by
/// itself.
pub(super) fn others_go_on_without_a_node_that_the_owner_alone_cannot_reach(lab: &Lab) -> Told {
    let roles = Roles::of(lab);
    let (owner, apart) = (roles.one_with(Role::Owner), roles.one_with(Role::Client));
    assert_ne!(owner, apart, "another one has fewer roles");
    let lost = RefCell::new(Vec::new());
    let strike = |load: &mut Load| {
        load.mark();
        let between = [(owner, apart), (apart, owner)];
        let cut = between.map(|(from, to)| Lost::between(lab, from, to));
        lost.borrow_mut().extend(cut);
        lab.until("its programs wait", || load.none_gets_on(&[apart], APART));
    };
    let mend = || {
        lost.borrow_mut().clear();
        // If it was expelled, it joins again.
        lab.must(&["start", &apart.to_string()]);
        until_whole(lab);
    };
    let told = Told::of(under_load(lab, &[apart], strike, mend));
    told.within(Fault::Partition.aim())
        .with(format!("the owner was {}", roles.names(owner)))
}
