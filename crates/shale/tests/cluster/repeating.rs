//! Joins that broke off, or are asked for again.

use super::{Cluster, refused};
use crate::fixture::{Node, eventually, leftovers::Leftovers};

#[test]
fn a_join_is_repeated_as_it_was_or_refused() {
    let mut cluster = Cluster::founded();
    let token = cluster.token();
    let (node, output) = cluster.try_to_join(&token, false, &["--nsds", "0", "--name", "two"]);
    assert!(output.status.success(), "{output:?}");
    let own = |cluster: &Cluster| {
        let nsds = cluster.node(1).ask(&["nsd", "list"]);
        let nsds = nsds.as_array().unwrap().iter();
        nsds.filter(|line| line["node"] == 2).count()
    };
    assert_eq!(own(&cluster), 0);
    // An attempt broke off after node.toml had the path of an NSD that the pool doesn't know.
    node.must(&["down"]);
    let id = cluster.view(1)["cluster"].as_str().unwrap().to_owned();
    let id = u128::from_str_radix(&id, 16).unwrap();
    let left = Leftovers::in_node(&node, id);
    // The same command makes up for it.
    let again = cluster.try_to_be(&node, 2, &token, false, &[]);
    assert!(again.status.success(), "{again:?}");
    assert_eq!(own(&cluster), 1);
    left.must_be_discarded();
    let again = cluster.try_to_be(&node, 2, &token, false, &[]);
    assert!(again.status.success(), "{again:?}");
    assert_eq!(own(&cluster), 1);
    // Another one is refused, whatever it differs in.
    let other = Cluster::founded();
    for (token, number, is_quorum, more, part) in [
        (&other.token(), 2, false, &[][..], "another cluster"),
        (&token, 3, false, &[], "it listens at"),
        (&token, 2, true, &[], "isn't a quorum node"),
        (&token, 2, false, &["--name", "three"], "its name is two"),
    ] {
        let output = cluster.try_to_be(&node, number, token, is_quorum, more);
        assert!(refused(&output).contains(part), "{output:?}");
    }
    cluster.nodes.push(node);
}

#[test]
fn two_commands_that_join_one_directory_make_one_node() {
    let mut cluster = Cluster::founded();
    let token = cluster.token();
    let node = Node::unstarted();
    let attempt = || cluster.try_to_be(&node, 2, &token, false, &["--nsds", "0"]);
    let outputs = std::thread::scope(|scope| {
        let both = [scope.spawn(attempt), scope.spawn(attempt)];
        both.map(|one| one.join().unwrap())
    });
    assert!(outputs.iter().any(|it| it.status.success()), "{outputs:?}");
    let again = attempt();
    assert!(again.status.success(), "{again:?}");
    let nodes = cluster.view(1)["nodes"].as_array().unwrap().len();
    assert_eq!(nodes, 2);
    cluster.nodes.push(node);
    eventually("it is up", || cluster.line(1, 2)["state"] == "up");
}
