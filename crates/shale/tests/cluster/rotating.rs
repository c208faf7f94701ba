//! All keys of a cluster are replaced by command.

use super::{
    Cluster,
    expelling::until_kept_out,
    refused,
    secrets::{must_be_its_owners, without_umask},
    works_everywhere,
};
use crate::fixture::{eventually, own_process};
use model::NodeId;
use rpc::security::{Certificate, Credentials, Fingerprint, Mode, Policy, Security};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use world::{Deadline, World};

/// More than a node ever trusts.
const AUTHORITIES_MAX: usize = 8;

fn key_file(cluster: &Cluster, number: usize, name: &str) -> PathBuf {
    cluster.node(number).dir.join("keys").join(name)
}

fn text(cluster: &Cluster, number: usize, name: &str) -> String {
    fs::read_to_string(key_file(cluster, number, name)).unwrap()
}

/// The authorities that a node trusts, as it has stored them.
fn trusted(cluster: &Cluster, number: usize) -> Vec<Fingerprint> {
    let text = text(cluster, number, "authorities.pem");
    let all = Certificate::all_from_pem(&text, AUTHORITIES_MAX).unwrap();
    all.iter().map(Certificate::fingerprint).collect()
}

/// How far it is; null while coordination doesn't answer.
fn progress(cluster: &Cluster, asked: usize) -> serde_json::Value {
    let arguments = ["cluster", "rotate-keys", "--status", "--json"];
    let output = cluster.node(asked).run(&arguments);
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// Whether a step is made by all nodes but these.
fn is_at(cluster: &Cluster, asked: usize, step: &str, but: &[u64]) -> bool {
    let progress = progress(cluster, asked);
    let waits_for = progress["waits_for"].as_array();
    let waits_for = waits_for.map(|lines| lines.iter().filter_map(|line| line["node"].as_u64()));
    let waits_for = waits_for.map(|lines| lines.collect::<Vec<_>>());
    progress["step"] == step && waits_for.is_some_and(|nodes| nodes == but)
}

/// Finishes it, once all nodes have done their part; returns what is said then.
fn finish(cluster: &Cluster, asked: usize, option: &str) -> String {
    eventually("all have new certificates", || {
        is_at(cluster, asked, "certify", &[])
    });
    let said = std::cell::RefCell::new(Vec::new());
    eventually("it is finished", || {
        let output = cluster.node(asked).run(&["cluster", "rotate-keys", option]);
        said.replace(output.stdout);
        output.status.success()
    });
    String::from_utf8(said.into_inner()).unwrap()
}

/// Whether a node lets somebody in who has these files of a node.
pub(super) fn lets_in(cluster: &Cluster, to: u8, node: &[String; 3]) -> Result<(), String> {
    let [key, certificate, authorities] = node;
    let credentials = Credentials::from_pem(key, certificate, authorities).unwrap();
    let address: SocketAddr = format!("{}:7311", cluster.address(to)).parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::real();
        let deadline = Deadline::after(&world, Duration::from_secs(30));
        let policy = Policy::only(Mode::AuthOnly);
        let security = Security::new(&world, policy, credentials).unwrap();
        let stream = world.connect(address, deadline).await.unwrap();
        let connected = security.connect(stream, NodeId(to.into()), None);
        let connected = deadline.bound(&world, connected).await.unwrap();
        connected.map(drop).map_err(|error| error.to_string())
    })
}

#[test]
fn keys_of_all_nodes_are_replaced_by_command_while_they_work() {
    own_process!();
    without_umask();
    let mut cluster = Cluster::of(3);
    let old = trusted(&cluster, 1);
    let key = |cluster: &Cluster, number| text(cluster, number, "node.key");
    let keys: Vec<_> = (1..=3).map(|number| key(&cluster, number)).collect();
    let (stolen_key, stolen_certificate) = (keys[2].clone(), text(&cluster, 3, "node.pem"));
    works_everywhere(&cluster, 3, "before");
    cluster.node(2).must(&["cluster", "rotate-keys"]);
    eventually("all have new certificates", || {
        is_at(&cluster, 1, "certify", &[])
    });
    works_everywhere(&cluster, 3, "during");
    for number in 1..=3 {
        assert_ne!(key(&cluster, number), keys[number - 1]);
        assert_eq!(trusted(&cluster, number).len(), 2);
    }
    // A machine joins while both authorities are trusted.
    cluster.join(false);
    // The founder of the cluster, quorum nodes that joined it, and another one.
    for number in 1..=3 {
        let secrets = [
            "authority.next.pem",
            "authority.key",
            "node.key",
            "etcd.key",
        ];
        must_be_its_owners(&cluster, number, &secrets);
        must_be_its_owners(&cluster, number, &["keys", "etcd", "node.toml", "etcd.log"]);
    }
    must_be_its_owners(&cluster, 4, &["node.key", "authorities.pem"]);
    // Whoever has an old key is let in still.
    let both = text(&cluster, 1, "authorities.pem");
    let stolen = [stolen_key, stolen_certificate, both];
    lets_in(&cluster, 1, &stolen).unwrap();
    let new = trusted(&cluster, 4)[1];
    assert_ne!(old, [new]);
    let shown = cluster
        .node(4)
        .must(&["cluster", "rotate-keys", "--status"]);
    for authority in [old[0], new] {
        assert!(shown.contains(&authority.to_string()), "{shown}");
    }
    // Whoever names the authority that is to be ended doesn't end another one.
    let other = format!("--finish={new}");
    let why = refused(&cluster.node(3).run(&["cluster", "rotate-keys", &other]));
    assert!(why.contains(&format!("is {}, not {new}", old[0])), "{why}");
    let said = finish(&cluster, 3, &format!("--finish={}", old[0]));
    let ended = format!("authority {} isn't trusted any more", old[0]);
    assert!(said.contains(&ended), "{said}");
    for number in 1..=4 {
        let is_left = || trusted(&cluster, number) == [new];
        eventually("a node trusts the new authority only", is_left);
    }
    // Those that certify others have the new key, and no old one.
    for number in 1..=3 {
        let is_alone = || {
            let own = text(&cluster, number, "authority.pem");
            let own = Certificate::all_from_pem(&own, 1).unwrap().remove(0);
            own.fingerprint() == new && !key_file(&cluster, number, "authority.next.pem").exists()
        };
        eventually("a node has the new key only", is_alone);
        let same = text(&cluster, 1, "authority.key") == text(&cluster, number, "authority.key");
        assert!(same, "{number}");
        // Their members of etcd have certificates by it for each other.
        let [key, certificate] = ["etcd.key", "etcd.pem"].map(|name| text(&cluster, number, name));
        let trusted = text(&cluster, number, "authorities.pem");
        let member = Credentials::from_pem(&key, &certificate, &trusted).unwrap();
        assert_eq!(member.issuer(), Some(new));
    }
    assert!(!key_file(&cluster, 4, "authority.key").exists());
    eventually("nobody trusts the old one", || {
        is_at(&cluster, 2, "none", &[])
    });
    for to in [1, 4] {
        let refused = lets_in(&cluster, to, &stolen).unwrap_err();
        assert!(
            refused.contains("no authority that is trusted"),
            "{refused}"
        );
    }
    works_everywhere(&cluster, 4, "after");
    // What is stored is good for the next start, etcd's included, and for the next machine.
    for number in 1..=4 {
        cluster.node(number).must(&["down"]);
        cluster.node(number).must(&["up"]);
    }
    cluster.join(false);
    works_everywhere(&cluster, 5, "again");
    for number in 1..=5 {
        must_be_its_owners(&cluster, number, &["node.key"]);
    }
}

#[test]
fn a_rotation_waits_for_nodes_that_are_down_and_goes_on_after_crashes() {
    let cluster = Cluster::of(2);
    let (one, two) = (cluster.node(1), cluster.node(2));
    let old = trusted(&cluster, 1);
    let why = refused(&two.run(&["cluster", "rotate-keys"]));
    assert!(
        why.contains("run the command on one that has it: n1"),
        "{why}"
    );
    let why = refused(&one.run(&["cluster", "rotate-keys", "--finish"]));
    assert!(why.contains("no keys are being replaced"), "{why}");
    two.must(&["down"]);
    one.must(&["cluster", "rotate-keys"]);
    eventually("the other node is waited for", || {
        is_at(&cluster, 1, "trust", &[2])
    });
    let why = refused(&one.run(&["cluster", "rotate-keys", "--finish"]));
    assert!(why.contains("node 2 (n2, down) doesn't trust"), "{why}");
    one.kill();
    one.must(&["up"]);
    eventually("it goes on", || is_at(&cluster, 1, "trust", &[2]));
    one.must(&["cluster", "rotate-keys", "--cancel"]);
    eventually("nothing is left of it", || {
        let next = key_file(&cluster, 1, "authority.next.pem");
        trusted(&cluster, 1) == old && !next.exists() && is_at(&cluster, 1, "none", &[])
    });
    // Another one, with a crash right after it has begun, and with one in the end.
    let keys = [1, 2].map(|number| text(&cluster, number, "node.key"));
    one.must(&["cluster", "rotate-keys"]);
    one.kill();
    one.must(&["up"]);
    two.must(&["up"]);
    eventually("all have new certificates", || {
        is_at(&cluster, 2, "certify", &[])
    });
    let why = refused(&one.run(&["cluster", "rotate-keys", "--cancel"]));
    assert!(why.contains("--finish"), "{why}");
    finish(&cluster, 2, "--finish");
    one.kill();
    one.must(&["up"]);
    eventually("nobody trusts the old one", || {
        is_at(&cluster, 2, "none", &[])
    });
    let new = trusted(&cluster, 1);
    assert_eq!(new.len(), 1);
    assert_ne!(new, old);
    assert_eq!(trusted(&cluster, 2), new);
    for (number, before) in [1, 2].into_iter().zip(keys) {
        assert_ne!(text(&cluster, number, "node.key"), before);
    }
    works_everywhere(&cluster, 2, "after");
}

/// Would be broken if a rotation stood still and nobody were told why: all that are waited for are up.
#[test]
fn an_expelled_quorum_node_holds_a_rotation_up_and_the_status_says_so() {
    let cluster = Cluster::of(3);
    let old = trusted(&cluster, 1);
    cluster.node(1).must(&["node", "expel", "n3"]);
    until_kept_out(&cluster, 3);
    cluster.node(1).must(&["cluster", "rotate-keys"]);
    eventually(
        "the status says why it stands still, and what to do",
        || {
            let held_up = progress(&cluster, 2)["held_up"].clone();
            let why = held_up.as_str().unwrap_or_default();
            why.contains("1 of the 3 members of etcd are away")
                && why.contains("shale node remove n3")
        },
    );
    let why = refused(&cluster.node(1).run(&["cluster", "rotate-keys", "--finish"]));
    assert!(why.contains("shale node unexpel n3"), "{why}");
    // As it says: its daemon runs, and has etcd run again.
    cluster.node(1).must(&["node", "unexpel", "n3"]);
    eventually("its mount is served again", || {
        fs::metadata(&cluster.node(3).mnt).is_ok()
    });
    finish(&cluster, 1, "--finish");
    eventually("nobody trusts the old one", || {
        is_at(&cluster, 2, "none", &[]) && (1..=3).all(|number| trusted(&cluster, number) != old)
    });
    assert!(progress(&cluster, 2)["held_up"].is_null());
    works_everywhere(&cluster, 3, "after");
}
