//! What follows from what nodes say to the steps of a stop.

use super::*;

fn members() -> [MemberLine; 3] {
    [1, 2, 3].map(|node| MemberLine {
        node,
        name: format!("n{node}"),
        is_here: node == 1,
    })
}

/// Nodes 1 to 3; the first one is asked by people.
fn three(force: bool) -> Tour {
    Tour::of(&members(), 1, force)
}

/// The same when this step is taken next, which all have come to without trouble.
fn three_at(step: StopStep, force: bool) -> Tour {
    let mut tour = three(force);
    while !matches!(tour.next(), Next::Ask(next, _) if next == step) {
        tour.take_in(all([taken(), taken(), taken()]));
    }
    tour
}

fn taken() -> Outcome {
    Outcome::Taken(StepTaken {
        run: 1,
        ..StepTaken::default()
    })
}

fn has_etcd() -> Outcome {
    Outcome::Taken(StepTaken {
        run: 1,
        has_etcd: true,
        ..StepTaken::default()
    })
}

fn refused() -> Outcome {
    Outcome::Refused("no".into())
}

fn silent() -> Outcome {
    Outcome::Silent("no answer".into())
}

/// What nodes 1 to 3 say.
fn all(said: [Outcome; 3]) -> Vec<(u32, Outcome)> {
    (1..=3).zip(said).collect()
}

fn states(stopped: &ClusterStopped) -> Vec<&str> {
    let nodes = stopped.nodes.iter();
    nodes.map(|it| it.state.as_str()).collect()
}

#[test]
fn members_of_etcd_end_after_the_others_and_the_asked_node_is_the_last_one() {
    let mut tour = three(false);
    let steps = [
        StopStep::Look,
        StopStep::Unmount,
        StopStep::Sync,
        StopStep::CloseClients,
        StopStep::CloseShards,
        StopStep::Retire,
    ];
    for step in steps {
        assert_eq!(tour.next(), Next::Ask(step, vec![1, 2, 3]));
        tour.take_in(all([has_etcd(), has_etcd(), taken()]));
    }
    for (node, said, ended) in [(3, taken(), vec![]), (2, silent(), vec![2])] {
        assert_eq!(tour.next(), Next::Ask(StopStep::End, vec![node]));
        tour.take_in(vec![(node, said)]);
        // The one that didn't answer any more has ended; the other one may have.
        assert_eq!(tour.next(), Next::Await(vec![node]));
        tour.note_ended(&ended);
    }
    assert_eq!(tour.next(), Next::Ask(StopStep::End, vec![1]));
    tour.take_in(vec![(1, taken())]);
    assert_eq!(tour.next(), Next::Over { stops: true });
    let stopped = tour.report(true, Vec::new());
    assert_eq!(states(&stopped), ["ends", "ended", "ends"]);
    assert_eq!(stopped.nodes[1].why, None);
    let remedies = stopped.nodes.iter().map(|it| it.remedy.is_some());
    assert_eq!(remedies.collect::<Vec<_>>(), [false, false, true]);
}

#[test]
fn a_mount_in_use_keeps_all_nodes_up_and_is_named() {
    let mut tour = three(false);
    let busy = Outcome::Taken(StepTaken {
        busy: vec!["cat uses /mnt".into()],
        ..StepTaken::default()
    });
    tour.take_in(all([taken(), busy, taken()]));
    assert_eq!(tour.next(), Next::Over { stops: false });
    let stopped = tour.report(false, Vec::new());
    assert!(!stopped.stops);
    assert_eq!(states(&stopped), ["up"; 3]);
    assert_eq!(stopped.nodes[1].why.as_deref(), Some("cat uses /mnt"));
}

/// Would be broken if data were lost that a slow node still writes.
#[test]
fn until_all_is_durable_a_node_that_refuses_or_is_silent_has_the_cluster_go_on_unless_forced() {
    for step in [StopStep::Unmount, StopStep::Sync] {
        for said in [refused, silent] {
            let mut tour = three_at(step, false);
            tour.take_in(all([taken(), taken(), said()]));
            // The silent one may have done it.
            let back = Next::Ask(StopStep::Resume, vec![1, 2, 3]);
            assert_eq!(tour.next(), back, "{step:?}");
            tour.take_in(all([taken(), taken(), said()]));
            assert_eq!(tour.next(), Next::Over { stops: false });
            let mut forced = three_at(step, true);
            forced.take_in(all([taken(), taken(), said()]));
            assert!(
                !matches!(forced.next(), Next::Ask(StopStep::Resume, _)),
                "{step:?}"
            );
        }
    }
    // Too late.
    for step in [
        StopStep::CloseClients,
        StopStep::CloseShards,
        StopStep::Retire,
    ] {
        let mut tour = three_at(step, false);
        tour.take_in(all([taken(), refused(), silent()]));
        while let Next::Ask(next, asked) = tour.next()
            && next != StopStep::End
        {
            assert_eq!(asked, [1, 2], "{step:?}");
            tour.take_in(vec![(1, taken()), (2, taken())]);
        }
        // Both are told to end.
        assert_eq!(tour.next(), Next::Ask(StopStep::End, vec![2, 3]));
    }
}

#[test]
fn a_node_that_never_answered_is_left_out_if_that_is_forced_and_one_that_objects_is_heard() {
    let mut slow = three(false);
    slow.take_in(all([taken(), taken(), silent()]));
    // It may have something that isn't durable.
    assert_eq!(slow.next(), Next::Over { stops: false });
    let mut tour = three(true);
    tour.take_in(all([taken(), taken(), silent()]));
    while let Next::Ask(step, asked) = tour.next() {
        match step {
            StopStep::End => assert!(asked == [2] || asked.is_empty() || asked == [1]),
            _ => assert_eq!(asked, [1, 2]),
        }
        let said = asked.into_iter().map(|node| (node, taken()));
        tour.take_in(said.collect());
        if let Next::Await(nodes) = tour.next() {
            tour.note_ended(&nodes);
        }
    }
    let stopped = tour.report(true, Vec::new());
    assert_eq!(states(&stopped), ["ends", "ended", "silent"]);
    let remedy = stopped.nodes[2].remedy.as_deref().unwrap();
    assert!(remedy.contains("shale down --kill"), "{remedy}");
    // Another node stops the cluster already.
    for force in [false, true] {
        let mut tour = three(force);
        tour.take_in(all([taken(), taken(), refused()]));
        assert_eq!(tour.next(), Next::Over { stops: false });
    }
}

/// Would be broken if a daemon that was started in the meantime said for the one before that everything is durable, or ended
/// because that one was to end.
#[test]
fn a_daemon_that_was_started_meanwhile_takes_no_step_for_the_one_before() {
    for step in [StopStep::Unmount, StopStep::Sync] {
        let mut tour = three_at(step, false);
        tour.take_in(all([taken(), taken(), Outcome::Replaced]));
        // It has nothing to take back.
        assert_eq!(tour.next(), Next::Ask(StopStep::Resume, vec![1, 2]));
        tour.take_in(vec![(1, taken()), (2, taken())]);
        let stopped = tour.report(false, Vec::new());
        let why = stopped.nodes[2].why.as_deref().unwrap();
        assert!(why.contains("started again"), "{why}");
    }
    for (step, force) in [
        (StopStep::Unmount, true),
        (StopStep::CloseClients, false),
        (StopStep::Retire, false),
    ] {
        let mut tour = three_at(step, force);
        assert_eq!(tour.run_of(3), Some(1));
        tour.take_in(all([taken(), taken(), Outcome::Replaced]));
        while let Next::Ask(_, asked) = tour.next() {
            assert!(!asked.contains(&3), "{step:?}");
            let said = asked.into_iter().map(|node| (node, taken()));
            tour.take_in(said.collect());
            if let Next::Await(nodes) = tour.next() {
                tour.note_ended(&nodes);
            }
        }
        let stopped = tour.report(true, Vec::new());
        assert_eq!(states(&stopped), ["ends", "ended", "up"]);
        assert!(stopped.nodes[2].remedy.is_some());
    }
}

#[test]
fn a_stop_that_nobody_goes_on_with_is_finished_exactly_if_a_node_can_not_go_back() {
    let part = |run, takes_part, is_final| StopPart {
        run,
        takes_part,
        is_final,
        ..StopPart::default()
    };
    // Node 1 was started meanwhile.
    let parts = |is_final| {
        BTreeMap::from([
            (1, part(9, false, false)),
            (2, part(7, true, false)),
            (3, part(8, true, is_final)),
        ])
    };
    let back = Tour::going_on(&members(), 2, &parts(false));
    assert_eq!(back.next(), Next::Ask(StopStep::Resume, vec![2, 3]));
    let mut finished = Tour::going_on(&members(), 2, &parts(true));
    assert_eq!(
        finished.next(),
        Next::Ask(StopStep::CloseClients, vec![2, 3])
    );
    assert_eq!((finished.run_of(2), finished.run_of(3)), (Some(7), Some(8)));
    for _ in 0..3 {
        finished.take_in(vec![(2, taken()), (3, has_etcd())]);
    }
    assert_eq!(finished.next(), Next::Ask(StopStep::End, Vec::new()));
    finished.take_in(Vec::new());
    finished.note_ended(&[]);
    assert_eq!(finished.next(), Next::Ask(StopStep::End, vec![3]));
}
