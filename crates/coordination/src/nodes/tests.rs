//! Tokens, what machines become with them, and nodes that are forgotten.

use super::*;
use crate::simulated::{Chances, Simulated};
use world::sim::Simulation;

fn new(name: Option<&str>, key: u8) -> NewNode {
    NewNode {
        name: name.map(str::to_owned),
        class: "default".into(),
        is_quorum: false,
        address: format!("10.0.0.{key}:7311").parse().unwrap(),
        key: [key; 32],
    }
}

/// A quorum node of a cluster with an etcd of its own.
fn first() -> NodeFacts {
    NodeFacts {
        node: NodeId(1),
        name: "n1".into(),
        class: "default".into(),
        is_quorum: true,
        has_authority: true,
        is_barred: false,
        etcd: Some("https://10.0.0.9:7312".into()),
        address: "10.0.0.9:7311".parse().unwrap(),
        key: [0; 32],
    }
}

/// Runs this with a store of its own.
fn with_facts<F: Future<Output = ()> + 'static>(test: impl FnOnce(Coordination) -> F + 'static) {
    let run = Simulation::new(1).run(|world| async move {
        let store = Simulated::new(&world, 1);
        test(store.connect(NodeId(1), &world)).await;
    });
    run.finished();
}

#[track_caller]
fn is_refused<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, part: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(part), "{error}");
}

#[test]
fn an_interrupted_join_goes_on_with_another_token_as_the_same_node() {
    with_facts(|facts| async move {
        facts.add_join_token(&[1; 32], 300, false, 0).await.unwrap();
        let made = facts
            .redeem(&[1; 32], 10, &new(Some("a"), 1))
            .await
            .unwrap();
        // The answer was lost, and the machine comes back too late for the first token.
        is_refused(
            facts.redeem(&[1; 32], 301, &new(None, 1)).await,
            ErrorKind::AccessDenied,
            "time is over",
        );
        facts
            .add_join_token(&[2; 32], 900, false, 600)
            .await
            .unwrap();
        let again = facts.redeem(&[2; 32], 601, &new(None, 1)).await.unwrap();
        assert_eq!(again, made);
        // That token is used up by it.
        is_refused(
            facts.redeem(&[2; 32], 602, &new(None, 2)).await,
            ErrorKind::AccessDenied,
            "another machine",
        );
        // Until it has run, it may become something else.
        facts
            .add_join_token(&[3; 32], 900, true, 600)
            .await
            .unwrap();
        let other = NewNode {
            is_quorum: true,
            address: "10.0.0.7:7311".parse().unwrap(),
            ..new(Some("b"), 1)
        };
        let changed = facts.redeem(&[3; 32], 603, &other).await.unwrap();
        assert_eq!((changed.node, &changed.name[..]), (made.node, "b"));
        assert!(changed.has_authority && changed.address == other.address);
        facts
            .add_join_token(&[4; 32], 900, false, 600)
            .await
            .unwrap();
        let taker = facts.redeem(&[4; 32], 604, &new(Some("a"), 4)).await;
        assert_eq!(taker.unwrap().name, "a", "the name is free again");
        // Then no more.
        facts.begin_run(made.node).await.unwrap();
        facts
            .add_join_token(&[5; 32], 900, true, 600)
            .await
            .unwrap();
        let third = NewNode {
            name: Some("c".into()),
            ..other.clone()
        };
        let same = facts.redeem(&[5; 32], 605, &third).await.unwrap();
        assert_eq!(same, changed);
        facts
            .add_join_token(&[6; 32], 900, false, 600)
            .await
            .unwrap();
        is_refused(
            facts.redeem(&[6; 32], 606, &new(None, 1)).await,
            ErrorKind::InvalidArgument,
            "another role",
        );
        assert_eq!(facts.nodes().await.unwrap().len(), 2);
    });
}

#[test]
fn a_node_that_was_expelled_by_hand_gets_nothing_for_a_token() {
    with_facts(|facts| async move {
        facts.add_join_token(&[1; 32], 300, false, 0).await.unwrap();
        let made = facts.redeem(&[1; 32], 10, &new(None, 1)).await.unwrap();
        let bar = facts.change_node(made.node, |it| {
            it.is_barred = true;
            Ok(())
        });
        bar.await.unwrap();
        is_refused(
            facts.redeem(&[1; 32], 11, &new(None, 1)).await,
            ErrorKind::NotPermitted,
            "unexpel",
        );
    });
}

#[test]
fn what_a_node_becomes_is_the_tokens_choice_not_the_machines() {
    with_facts(|facts| async move {
        let wants = |is_quorum, key| NewNode {
            is_quorum,
            ..new(None, key)
        };
        facts.add_join_token(&[1; 32], 300, false, 0).await.unwrap();
        is_refused(
            facts.redeem(&[1; 32], 10, &wants(true, 1)).await,
            ErrorKind::InvalidArgument,
            "join-token --quorum",
        );
        // It isn't used up by that.
        let plain = facts.redeem(&[1; 32], 10, &wants(false, 1)).await.unwrap();
        assert!(!plain.has_authority && !plain.is_quorum);
        facts.add_join_token(&[2; 32], 300, true, 0).await.unwrap();
        is_refused(
            facts.redeem(&[2; 32], 10, &wants(false, 2)).await,
            ErrorKind::InvalidArgument,
            "with --quorum",
        );
        // No node runs a member of etcd here: others run it.
        let outside = facts.redeem(&[2; 32], 10, &wants(true, 2)).await.unwrap();
        assert!(outside.has_authority && !outside.is_quorum);
        facts.add_first_node(&first()).await.unwrap();
        facts.add_join_token(&[3; 32], 300, true, 0).await.unwrap();
        let quorum = facts.redeem(&[3; 32], 10, &wants(true, 3)).await.unwrap();
        assert!(quorum.has_authority && quorum.is_quorum);
    });
}

#[test]
fn a_node_whose_clock_is_ahead_removes_no_token_that_is_good() {
    with_facts(|facts| async move {
        facts.add_join_token(&[1; 32], 300, false, 0).await.unwrap();
        // Half an hour ahead.
        facts
            .add_join_token(&[2; 32], 2_100, false, 1_800)
            .await
            .unwrap();
        facts.redeem(&[1; 32], 10, &new(None, 1)).await.unwrap();
    });
}

#[test]
fn nothing_is_left_of_a_node_that_is_forgotten_but_its_numbers() {
    with_facts(|facts| async move {
        facts.add_first_node(&first()).await.unwrap();
        facts.add_join_token(&[1; 32], 300, false, 0).await.unwrap();
        let made = facts
            .redeem(&[1; 32], 10, &new(Some("a"), 1))
            .await
            .unwrap();
        let run = facts.begin_run(made.node).await.unwrap();
        let address = made.address;
        facts
            .set_address(crate::NodeAddress { run, address })
            .await
            .unwrap();
        for at in 0..STALE_AT_ONCE_MAX as u32 + 3 {
            facts.set_home(model::NsdId(at), made.node).await.unwrap();
        }
        facts.set_home(model::NsdId(100), NodeId(1)).await.unwrap();
        let own = format!("{}pagepool_bytes", settings_of_node(made.node));
        facts
            .compare_and_set(&own, 0, Some("1".into()))
            .await
            .unwrap();
        facts.forget_node(made.node).await.unwrap();
        // Done again, it changes nothing.
        facts.forget_node(made.node).await.unwrap();
        let left = facts.list("").await.unwrap().found.into_iter();
        let left: Vec<String> = left.map(|(key, _)| key).collect();
        let number = format!("{:010}", made.node.0);
        let of_it = left.iter().filter(|key| key.contains(&number));
        let of_it: Vec<_> = of_it.collect();
        let kept = [format!("node/{number}"), format!("nodes/{number}")];
        assert_eq!(of_it, kept.iter().collect::<Vec<_>>(), "{left:?}");
        // Its machine may still have the certificate: whoever looks finds that nobody may start it.
        let rest: Versioned<NodeFacts> = facts.fact(&kept[1]).await.unwrap().unwrap();
        assert!(rest.value.is_barred && !rest.value.has_authority);
        assert!(facts.node_facts(made.node).await.unwrap().is_none());
        assert_eq!(facts.nodes().await.unwrap().len(), 1);
        let unbar = facts.change_node(made.node, |it| {
            it.is_barred = false;
            Ok(())
        });
        is_refused(unbar.await, ErrorKind::NotFound, "no node");
        assert!(!left.contains(&"node_names/a".to_owned()), "{left:?}");
        assert!(left.contains(&"home/0000000100".to_owned()), "{left:?}");
        // Its name is free, its number isn't.
        facts.add_join_token(&[2; 32], 300, false, 0).await.unwrap();
        let next = facts
            .redeem(&[2; 32], 10, &new(Some("a"), 2))
            .await
            .unwrap();
        assert!(next.node > made.node);
    });
}

/// Would be broken if a machine became a node for which there is no place among the members, and waited for one without a
/// word; or if nodes that were removed counted for ever.
#[test]
fn a_machine_is_refused_at_once_if_there_are_as_many_nodes_as_can_be() {
    with_facts(|facts| async move {
        let numbers = 1_001..=1_000 + MEMBERS_MAX as u32;
        let node = |number| NodeFacts {
            node: NodeId(number),
            name: format!("n{number}"),
            ..first()
        };
        let made = numbers.flat_map(|number| new_node(&node(number)));
        let made: Vec<Change> = made.collect();
        for some in made.chunks(64) {
            facts.transaction(some.to_vec()).await.unwrap();
        }
        facts.add_join_token(&[1; 32], 300, false, 0).await.unwrap();
        let redeem = || async { facts.redeem(&[1; 32], 10, &new(None, 1)).await };
        is_refused(redeem().await, ErrorKind::NotSupported, "shale node remove");
        facts.forget_node(NodeId(1_001)).await.unwrap();
        let made = redeem().await.unwrap();
        // There are as many again, and it is one of them.
        assert_eq!(redeem().await.unwrap(), made);
        facts.add_join_token(&[2; 32], 300, false, 0).await.unwrap();
        let another = facts.redeem(&[2; 32], 10, &new(None, 2)).await;
        is_refused(another, ErrorKind::NotSupported, "4096 nodes");
    });
}

#[test]
fn a_token_makes_one_node_whoever_comes_with_it() {
    for seed in 0..20 {
        let run = Simulation::new(seed).run(move |world| async move {
            let store = Simulated::new(&world, seed);
            store.set_chances(Chances::HARSH);
            let members = [1, 2].map(|node| store.connect(NodeId(node), &world));
            let hash = [7; 32];
            loop {
                match members[0].add_join_token(&hash, 300, false, 0).await {
                    Err(error) if error.kind() == ErrorKind::Unavailable => {}
                    // An attempt with an unknown outcome has made it.
                    _ => break,
                }
            }
            let redeem = async |at: usize, key: u8| loop {
                match members[at].redeem(&hash, 10, &new(None, key)).await {
                    Err(error) if error.kind() == ErrorKind::Unavailable => {}
                    other => return other,
                }
            };
            let (one, other) = tokio::join!(redeem(0, 1), redeem(1, 2));
            assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
            let (won, key) = match one {
                Ok(facts) => (facts, 1),
                Err(_) => (other.unwrap(), 2),
            };
            store.set_chances(Chances::NONE);
            // Its answer was lost: the same machine is told the same node, another one is refused.
            assert_eq!(redeem(0, key).await.unwrap(), won);
            let refused = redeem(0, 9).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::AccessDenied);
            assert_eq!(members[1].nodes().await.unwrap().len(), 1);
        });
        run.finished();
    }
}

#[test]
fn tokens_end_and_names_are_unique() {
    let run = Simulation::new(1).run(|world| async move {
        let store = Simulated::new(&world, 1);
        let facts = store.connect(NodeId(1), &world);
        facts.add_join_token(&[1; 32], 300, false, 0).await.unwrap();
        let late = facts.redeem(&[1; 32], 301, &new(None, 1)).await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::AccessDenied);
        let unknown = facts.redeem(&[2; 32], 1, &new(None, 1)).await;
        assert_eq!(unknown.unwrap_err().kind(), ErrorKind::AccessDenied);
        let first = facts.redeem(&[1; 32], 300, &new(Some("a"), 1)).await;
        assert_eq!(first.unwrap().name, "a");
        // The one that is over for long goes when the next is made.
        let now = 301 + CLOCKS_DIFFER_MAX.as_secs();
        let until = now + 299;
        facts
            .add_join_token(&[2; 32], until, false, now)
            .await
            .unwrap();
        assert_eq!(facts.list(TOKENS).await.unwrap().found.len(), 1);
        for bad in ["a", "", "a b", "ä", "1", "007"] {
            let refused = facts.redeem(&[2; 32], 301, &new(Some(bad), 2)).await;
            let refused = refused.unwrap_err().kind();
            assert!(matches!(
                refused,
                ErrorKind::Exists | ErrorKind::InvalidArgument
            ));
        }
        let second = facts.redeem(&[2; 32], 301, &new(None, 2)).await.unwrap();
        assert_eq!(second.name, format!("n{}", second.node));
        let taken = facts.change_node(second.node, |it| {
            it.name = "a".into();
            Ok(())
        });
        assert_eq!(taken.await.unwrap_err().kind(), ErrorKind::Exists);
    });
    run.finished();
}

#[test]
fn the_bytes_of_a_node_and_of_a_token_are_those_of_the_format_table() {
    let facts = NodeFacts {
        node: NodeId(300),
        name: "a".into(),
        class: "b".into(),
        is_quorum: true,
        has_authority: true,
        is_barred: false,
        etcd: Some("c".into()),
        address: "10.0.0.1:300".parse().unwrap(),
        key: [9; 32],
    };
    let mut bytes = vec![3, 0xac, 2, 1, b'a', 1, b'b', 1, 1, 0, 1, 1, b'c'];
    bytes.extend([0, 10, 0, 0, 1, 0xac, 2]);
    bytes.extend([9; 32]);
    assert_eq!(encode(&facts)[..], bytes);
    let token = JoinToken {
        until: 300,
        used_for: Some(NodeId(5)),
        makes_quorum: true,
    };
    assert_eq!(encode(&token)[..], [3, 0xac, 2, 1, 5, 1]);
}
