//! How connections are protected is changed by command while nodes work.

use super::{Cluster, refused, works_everywhere};
use crate::fixture::eventually;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const TLS: &str = "TLS_AES_128_GCM_SHA256";

/// How a node protects its connections now.
fn policy(cluster: &Cluster, number: usize) -> String {
    let output = cluster.node(number).run(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let policy = status["cluster"]["cipher_list"].as_str();
    policy.unwrap_or_default().to_owned()
}

/// Sets it at one of so many nodes, and waits until all have taken it over.
pub(super) fn change(cluster: &Cluster, at: usize, nodes: usize, mode: &str) {
    cluster
        .node(at)
        .must(&["config", "set", "cipher_list", mode]);
    for number in 1..=nodes {
        eventually("a node takes it over", || policy(cluster, number) == mode);
    }
}

/// What a node says to somebody who begins a connection without protection, until it closes that.
fn said_to_a_stranger(cluster: &Cluster, number: u8) -> String {
    let address = cluster.address(number);
    let mut stream = TcpStream::connect((address.as_str(), 7311)).unwrap();
    let longest = Some(Duration::from_secs(60));
    stream.set_read_timeout(longest).unwrap();
    // Each frame begins like that.
    stream.write_all(b"S").unwrap();
    let mut said = Vec::new();
    // It may close with a reset.
    let _ = stream.read_to_end(&mut said);
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn how_connections_are_protected_is_changed_by_command_while_nodes_work() {
    let refusal = "doesn't protect its connection";
    let mut cluster = Cluster::of(2);
    assert_eq!(policy(&cluster, 1), "AUTHONLY");
    assert!(said_to_a_stranger(&cluster, 1).contains(refusal));
    works_everywhere(&cluster, 2, "authonly");
    // What isn't known is refused, and nothing has changed.
    let set = |more: &[&str]| {
        cluster
            .node(1)
            .run(&[&["config", "set", "cipher_list"][..], more].concat())
    };
    assert!(refused(&set(&["DES"])).contains(TLS));
    let why = refused(&set(&["EMPTY", "--node", "n2"]));
    assert!(why.contains("the same on all nodes"), "{why}");
    assert_eq!(policy(&cluster, 1), "AUTHONLY");
    change(&cluster, 2, 2, TLS);
    works_everywhere(&cluster, 2, "tls");
    for number in [1, 2] {
        assert!(said_to_a_stranger(&cluster, number).contains(refusal));
    }
    // A node that joins and one that starts again begin with it.
    cluster.join(false);
    cluster.node(2).must(&["down"]);
    cluster.node(2).must(&["up"]);
    for number in [2, 3] {
        assert_eq!(policy(&cluster, number), TLS);
    }
    works_everywhere(&cluster, 3, "three");
    let get = cluster.node(3).must(&["config", "get", "cipher_list"]);
    assert_eq!(get.trim(), TLS);
    change(&cluster, 1, 3, "EMPTY");
    works_everywhere(&cluster, 3, "empty");
    assert!(!said_to_a_stranger(&cluster, 1).contains(refusal));
    let health = cluster.node(1).run(&["health"]);
    let health = String::from_utf8_lossy(&health.stdout).into_owned();
    assert!(health.contains("aren't protected"), "{health}");
    // Nobody on the way may read the key of an authority.
    let why = refused(&cluster.node(1).run(&["cluster", "rotate-keys"]));
    assert!(why.contains("cipher_list AUTHONLY"), "{why}");
    // The default again.
    cluster.node(3).must(&["config", "set", "cipher_list"]);
    for number in 1..=3 {
        let is_back = || policy(&cluster, usize::from(number)) == "AUTHONLY";
        eventually("a node takes the default over", is_back);
        assert!(said_to_a_stranger(&cluster, number).contains(refusal));
    }
    works_everywhere(&cluster, 3, "again");
}
