//! A cluster whose etcd others run, with certificates of their own.

use super::{
    Cluster, free_net, refused,
    secrets::{must_be_its_owners, without_umask},
    waiting::waiters,
    works_everywhere,
};
use crate::fixture::{
    Node,
    chains::{self, Link},
    eventually, own_process, poll,
};
use model::{NodeId, Timestamp};
use rpc::security::{Authority, Credentials, Holder};
use serde_json::Value;
use sim::by_suite;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Leases end in seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running etcd; killed when dropped.
struct Outside {
    command: Command,
    process: Child,
    url: String,
}

impl Outside {
    /// It is gone at once. Its data stays.
    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// It runs again, with its data.
    fn start_again(&mut self) {
        self.process = self.command.spawn().unwrap();
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An etcd that asks its clients for certificates. Its files are in the folder.
fn start(folder: &Path, address: &str) -> Outside {
    // Any authority will do: this one makes another cluster's.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = Timestamp::from_timespec(now.as_secs().cast_signed(), 0);
    let authority = Authority::found(9, now).unwrap();
    let holder = Holder {
        node: NodeId(1),
        addresses: vec![address.parse().unwrap()],
        has_localhost: true,
    };
    let server = Credentials::first(&authority, &holder, now).unwrap();
    let client = Credentials::first(&authority, &holder, now).unwrap();
    let file = |name: &str, text: String| {
        fs::write(folder.join(name), text).unwrap();
        folder.join(name)
    };
    let ca = file("ca.pem", authority.certificate().to_pem());
    let certificate = file("own.pem", server.certificate_pem());
    let key = file("own.key", server.key_pem());
    file("client.pem", client.certificate_pem());
    file("client.key", client.key_pem());
    let (client, peer) = (
        format!("https://{address}:7412"),
        format!("http://{address}:7413"),
    );
    let mut command = Command::new("etcd");
    let pairs = [
        ("--name", "outside"),
        ("--listen-client-urls", &client),
        ("--advertise-client-urls", &client),
        ("--listen-peer-urls", &peer),
        ("--initial-advertise-peer-urls", &peer),
        ("--initial-cluster", &format!("outside={peer}")),
    ];
    for (flag, value) in pairs {
        command.arg(format!("{flag}={value}"));
    }
    for (flag, value) in [
        ("--data-dir", &folder.join("data")),
        ("--trusted-ca-file", &ca),
        ("--cert-file", &certificate),
        ("--key-file", &key),
    ] {
        command.arg(flag).arg(value);
    }
    command
        .arg("--client-cert-auth")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Outside {
        process: command.spawn().unwrap(),
        command,
        url: client,
    }
}

/// For how long a node may serve still, in milliseconds.
fn lease(node: &Node) -> Option<u64> {
    let output = node.run(&["status", "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    status["cluster"]["lease_milliseconds"].as_u64()
}

/// Whether somebody whose program hangs is told that it waits for coordination, and what helps.
fn tells_why(way: &[Link]) -> bool {
    let causes = [
        "it has no lease: ",
        "the cluster has no manager: ",
        "waits for coordination",
    ];
    let (first, last) = (&way[0], &way[way.len() - 1]);
    let is_cause = causes.iter().any(|cause| last.text.starts_with(cause));
    let remedy = last.remedy.as_deref().unwrap_or_default();
    first.text.contains(" of process ") && is_cause && remedy.contains("an etcd of your own")
}

/// etcd is away until no node has a lease, and comes back with what it knew: a program waits meanwhile, and goes on then.
#[track_caller]
fn all_wait_for(cluster: &Cluster, outside: &mut Outside) {
    let nodes = cluster.nodes.len();
    outside.kill();
    poll::until("no node has a lease", PATIENCE, || {
        let has_one = |number: &usize| lease(cluster.node(*number)) != Some(0);
        let other = (1..=nodes).find(has_one);
        other.map_or(Ok(()), |number| Err(format!("node {number}")))
    });
    let path = cluster.path(2, "waited");
    let program = std::thread::spawn(move || fs::write(path, "written"));
    poll::until("a program is told why it waits", PATIENCE, || {
        let said = waiters(cluster, 2);
        let ways = chains::from(&said, 2);
        let is_told = ways.iter().any(|way| tells_why(way));
        is_told.then_some(()).ok_or_else(|| said.to_string())
    });
    assert!(!program.is_finished(), "nobody answers without a lease");
    outside.start_again();
    poll::eventually("it goes on", PATIENCE, || program.is_finished());
    program.join().unwrap().unwrap();
    works_everywhere(cluster, nodes, "back");
}

#[test]
fn a_cluster_whose_etcd_others_run_takes_machines() {
    own_process!();
    without_umask();
    let node = Node::unstarted();
    node.must(&["up", "--nsd-size", "1G"]);
    fs::write(node.path("old"), "kept").unwrap();
    let folder = node.place("outside");
    let net = free_net();
    let mut cluster = Cluster {
        nodes: vec![node],
        net,
    };
    let address = cluster.address(1);
    let mut outside = start(&folder, &address);
    let place = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (ca, certificate, key) = (place("ca.pem"), place("client.pem"), place("client.key"));
    let create = |more: &[&str]| {
        let first = [
            "cluster",
            "create",
            "--address",
            &address,
            "--etcd",
            &outside.url,
        ];
        cluster.node(1).run(&[&first[..], more].concat())
    };
    let blind = create(&[]);
    assert!(refused(&blind).contains("--etcd-ca"), "{blind:?}");
    let nobody = create(&["--etcd-ca", &ca]);
    assert!(
        refused(&nobody).contains("the node is as it was"),
        "{nobody:?}"
    );
    let secured = [
        "--etcd-ca",
        &ca,
        "--etcd-cert",
        &certificate,
        "--etcd-key",
        &key,
    ];
    eventually("etcd runs and the cluster is made", || {
        create(&secured).status.success()
    });
    // Each node has a copy.
    fs::remove_file(&key).unwrap();
    cluster.join(false);
    cluster.join_with(true, &["--nsds", "0"]);
    for number in 2..=3 {
        let text = fs::read_to_string(cluster.path(number, "old")).unwrap();
        assert_eq!(text, "kept");
        let dir = &cluster.node(number).dir;
        assert!(!dir.join("etcd").exists(), "none of them runs an etcd");
        assert_eq!(dir.join("keys/authority.key").exists(), number == 3);
    }
    // Another node that has the authority admits machines, too.
    let token = cluster.node(3).must(&["cluster", "join-token"]);
    let more = ["--nsds", "0", "--name", "four"];
    let (fourth, output) = cluster.try_to_join(&token, false, &more);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(cluster.line(1, 4)["name"], "four");
    cluster.nodes.push(fourth);
    for number in 1..=4 {
        must_be_its_owners(&cluster, number, &["node.key", "etcd-client.key"]);
    }
    // It takes as long as leases last.
    if by_suite(false, true) {
        all_wait_for(&cluster, &mut outside);
    }
}
