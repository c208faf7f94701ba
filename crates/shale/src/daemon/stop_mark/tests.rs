//! Who may have a node take which step of a stop, and what it undoes.

use super::*;

fn run(node: u32, incarnation: u64) -> NodeRun {
    run_of((node, incarnation))
}

/// A step of the stop of `by`.
fn step(step: StopStep, by: NodeRun) -> TakeStep {
    TakeStep {
        step,
        by: (by.node.0, by.incarnation),
        run: Some(1),
        force: false,
    }
}

/// The run whose people stop the cluster asks for a step; all live.
fn ask(mark: &StopMark, of: StopStep, by: NodeRun) -> Result<()> {
    mark.admit(&step(of, by), by, |_| false)
}

/// Another one asks for it in the place of `by`.
fn ask_for(mark: &StopMark, of: StopStep, by: NodeRun, from: NodeRun) -> Result<()> {
    mark.admit(&step(of, by), from, |_| false)
}

fn kind(result: Result<()>) -> ErrorKind {
    result.unwrap_err().kind()
}

const AFTER_UNMOUNT: [StopStep; 5] = [
    StopStep::Sync,
    StopStep::CloseClients,
    StopStep::CloseShards,
    StopStep::Retire,
    StopStep::End,
];

#[test]
fn only_one_node_stops_the_cluster_as_long_as_it_lives() {
    let mark = StopMark::default();
    ask(&mark, StopStep::Look, run(1, 1)).unwrap();
    assert_eq!(mark.now(), None);
    ask(&mark, StopStep::Unmount, run(1, 1)).unwrap();
    ask(&mark, StopStep::Sync, run(1, 1)).unwrap();
    let refused = ask(&mark, StopStep::Look, run(2, 1)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert!(refused.to_string().contains("node 1 stops"), "{refused}");
    assert_eq!(
        kind(ask(&mark, StopStep::Resume, run(2, 1))),
        ErrorKind::Busy
    );
    // Its daemon has died; its next one begins anew, or another node does.
    for next in [run(2, 1), run(1, 2)] {
        let look = step(StopStep::Look, next);
        mark.admit(&look, next, |run| run.incarnation == 1).unwrap();
        // It goes on with nothing that it hasn't begun.
        let sync = step(StopStep::Sync, next);
        let refused = mark.admit(&sync, next, |run| run.incarnation == 1);
        assert_eq!(kind(refused), ErrorKind::Busy);
    }
    mark.over();
    assert_eq!(mark.now(), None);
    ask(&mark, StopStep::Unmount, run(2, 1)).unwrap();
}

/// Would be broken if a node that has mounted again, because it took whoever stopped the cluster for gone, were closed under
/// its programs when that one goes on.
#[test]
fn a_node_that_goes_on_or_was_started_since_takes_no_further_step() {
    let (first, heir) = (run(1, 1), run(2, 1));
    let mark = StopMark::default();
    for of in AFTER_UNMOUNT {
        assert_eq!(kind(ask(&mark, of, first)), ErrorKind::Changed, "{of:?}");
    }
    // By force it ends although it has missed what came before.
    let forced = TakeStep {
        force: true,
        ..step(StopStep::End, first)
    };
    let other = StopMark::default();
    other.admit(&forced, first, |_| false).unwrap();
    assert!(other.is_final());
    ask(&mark, StopStep::Unmount, first).unwrap();
    mark.orphan(first);
    ask_for(&mark, StopStep::Resume, first, heir).unwrap();
    assert!(mark.go_on().unwrap());
    assert_eq!(mark.followed(), None);
    assert!(!mark.part(first, run(3, 1)).takes_part);
    for of in AFTER_UNMOUNT {
        ask(&mark, of, first).unwrap_err();
        ask_for(&mark, of, first, heir).unwrap_err();
    }
    // Mounts may be missing for long, and people want to stop it all the same.
    ask(&mark, StopStep::Unmount, heir).unwrap();
    assert_eq!(mark.followed(), Some(heir));
}

#[test]
fn whoever_goes_on_with_a_stop_is_heard_once_its_first_run_is_taken_for_gone() {
    let (first, heir) = (run(1, 1), run(2, 1));
    let mark = StopMark::default();
    ask(&mark, StopStep::Unmount, first).unwrap();
    for of in AFTER_UNMOUNT.into_iter().chain([StopStep::Resume]) {
        let refused = ask_for(&mark, of, first, heir);
        assert_eq!(kind(refused), ErrorKind::Busy, "{of:?}");
    }
    mark.orphan(run(3, 1));
    assert!(!mark.part(first, run(3, 1)).is_orphaned);
    mark.orphan(first);
    assert!(mark.part(first, run(3, 1)).is_orphaned);
    // What the first run has asked for before, and arrives now, could change what the other one has found.
    for of in AFTER_UNMOUNT {
        let refused = ask(&mark, of, first);
        assert_eq!(kind(refused), ErrorKind::Busy, "{of:?}");
    }
    for of in [StopStep::Look, StopStep::Unmount, StopStep::Sync] {
        let refused = ask_for(&mark, of, first, heir);
        assert_eq!(kind(refused), ErrorKind::Busy, "{of:?}");
    }
    ask_for(&mark, StopStep::CloseClients, first, heir).unwrap();
    let part = mark.part(first, run(3, 1));
    assert!(part.takes_part && part.is_final && part.is_orphaned);
    // Another stop isn't one that somebody could go on with.
    let foreign = ask_for(&mark, StopStep::End, run(4, 1), heir);
    assert_eq!(kind(foreign), ErrorKind::InvalidArgument);
}

#[test]
fn a_node_whose_clients_are_closed_does_not_go_on() {
    let mark = StopMark::default();
    let mount = || vec![(PathBuf::from("/mnt"), Options::default())];
    ask(&mark, StopStep::Unmount, run(1, 1)).unwrap();
    mark.note_unmounted(mount());
    assert!(mark.go_on().unwrap());
    assert_eq!(mark.take_unmounted(), mount());
    mark.over();
    assert!(!mark.go_on().unwrap(), "nothing is under way");
    ask(&mark, StopStep::Unmount, run(1, 1)).unwrap();
    mark.note_unmounted(mount());
    ask(&mark, StopStep::CloseClients, run(1, 1)).unwrap();
    // Another attempt to stop it changes nothing about that, nor does one that fails.
    mark.orphan(run(1, 1));
    ask(&mark, StopStep::Unmount, run(2, 1)).unwrap();
    mark.over();
    assert_eq!(mark.go_on().unwrap_err().kind(), ErrorKind::ShuttingDown);
    assert!(mark.is_final());
}

#[test]
fn a_node_has_others_take_steps_once_at_a_time() {
    let mark = StopMark::default();
    let driving = mark.drive().unwrap();
    assert!(mark.is_driven() && mark.drive().is_none());
    assert!(mark.part(run(1, 1), run(1, 1)).drives);
    drop(driving);
    assert!(!mark.is_driven() && mark.drive().is_some());
}
