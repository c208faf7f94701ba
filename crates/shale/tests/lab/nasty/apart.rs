//! The owner and one other node don't reach each other; both reach everybody else, coordination and the manager too, unless
//! the owner itself is the manager. Or a node reaches one other node only, and hears from it that it was expelled.

use super::{
    Lab, Told,
    faults::{Daemons, Fault, under_load, until_whole},
    links::Lost,
    load::Load,
    roles::{Role, Roles},
};
use std::{cell::RefCell, fs, time::Duration};

/// For longer than the owner waits for a node whose tokens others want.
const APART: Duration = Duration::from_secs(12);

/// The node loses its session and what it hadn't synced, or is expelled; others go on with its files, and it comes back by
/// itself.
pub(super) fn others_go_on_without_a_node_that_the_owner_alone_cannot_reach(lab: &Lab) -> Told {
    let roles = Roles::of(lab);
    let (owner, apart) = (roles.one_with(Role::Owner), roles.one_with(Role::Client));
    assert_ne!(owner, apart, "another one has fewer roles");
    let daemon = Daemons::of(lab, &[apart]);
    let lost = RefCell::new(Vec::new());
    let strike = |load: &mut Load| {
        load.mark();
        let cut = Lost::both_ways(lab, owner, apart);
        lost.borrow_mut().extend(cut);
        lab.until("its programs wait", || load.none_gets_on(&[apart], APART));
    };
    let mend = || {
        lost.borrow_mut().clear();
        // If it was expelled, it joins again.
        until_whole(lab);
        daemon.must_live(lab);
    };
    let told = Told::of(under_load(lab, &[apart], strike, mend));
    told.within(Fault::Partition.aim())
        .with(format!("the owner was {}", roles.names(owner)))
}

/// Its programs are told errors although it hears neither of etcd nor of the manager, and it comes back by itself.
pub(super) fn an_expelled_node_is_told_by_the_only_one_that_it_reaches(lab: &Lab) -> Told {
    let roles = Roles::of(lab);
    let (nodes, is) = (lab.nodes(), |node: u32, role| roles.has(node, role));
    let mut others = nodes.iter().copied();
    let reached = others.find(|node| !is(*node, Role::EtcdMember) && !is(*node, Role::Manager));
    let reached = reached.expect("two nodes have no member of etcd");
    // One without a member of etcd, if there is another one: those have the last numbers.
    let mut others = nodes.iter().copied().rev();
    let victim = others.find(|node| *node != reached && !is(*node, Role::Manager));
    let victim = victim.expect("a lab has more than two nodes");
    let before = expulsions(lab, victim);
    let daemon = Daemons::of(lab, &[victim]);
    let lost = RefCell::new(Vec::new());
    let strike = |load: &mut Load| {
        load.mark();
        for other in &nodes {
            if ![victim, reached].contains(other) {
                let cut = Lost::both_ways(lab, *other, victim);
                lost.borrow_mut().extend(cut);
            }
        }
        lab.until("it is told", || match expulsions(lab, victim) > before {
            true => Ok(()),
            false => Err(format!("n{victim} isn't expelled, as far as it knows")),
        });
    };
    let mend = || {
        lost.borrow_mut().clear();
        until_whole(lab);
        daemon.must_live(lab);
    };
    let told = Told::of(under_load(lab, &[victim], strike, mend));
    told.within(Fault::Partition.aim())
        .with(format!("the node was {}", roles.names(victim)))
}

/// How often a node's people were told that it was expelled.
fn expulsions(lab: &Lab, node: u32) -> usize {
    // Until it has joined again, its daemon answers nothing that is asked for them.
    let events = fs::read_to_string(lab.node(node).join("events.jsonl"));
    let told = events.unwrap_or_default();
    told.matches("\"node-expelled\"").count()
}
