//! Clusters of real daemons on this machine, each at a loopback address of its own, with Debian's etcd and TLS between
//! them.

mod breaking;
mod ciphers;
mod commands;
mod coordination;
mod expelling;
mod founding;
mod freezing;
mod growing;
mod joining;
mod outside;
mod removing;
mod renewing;
mod repeating;
mod rotating;
mod secrets;
mod sharing;
mod starting;
mod stopping;
mod strangers;
mod waiting;

use crate::fixture::{Node, alive, eventually};
use ::coordination::etcd::{Etcd, EtcdSettings};
use rpc::security::Credentials;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};
use world::World;

/// Bytes of each node's NSD.
pub(crate) const NSD: &str = "1G";
/// Bytes of one file of the load.
const FILE_BYTES: usize = 300_000;

/// A cluster, whose nodes are numbered from 1; killed and removed when dropped.
pub(crate) struct Cluster {
    nodes: Vec<Node>,
    /// The first three bytes of the nodes' addresses.
    net: [u8; 3],
}

impl Cluster {
    /// So many nodes with an NSD each; the first three are quorum nodes if there are so many.
    pub(crate) fn of(count: u8) -> Self {
        let mut cluster = Self::founded();
        for _ in 1..count {
            cluster.join(count >= 3 && cluster.nodes.len() < 3);
        }
        cluster
    }

    /// Does something with what is at a port of a node's etcd, with the key and the certificate of these names that another
    /// one has.
    fn with_etcd_at<T>(
        &self,
        (number, port): (u8, u16),
        from: usize,
        [key, certificate]: [&str; 2],
        run: impl AsyncFnOnce(Etcd, World) -> T,
    ) -> T {
        let endpoint = format!("https://{}:{port}", self.address(number));
        let keys = self.node(from).dir.join("keys");
        let [key, certificate, authorities] = [key, certificate, "authorities.pem"]
            .map(|name| fs::read_to_string(keys.join(name)).unwrap());
        let credentials = Credentials::from_pem(&key, &certificate, &authorities).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let world = World::real();
            let settings = EtcdSettings {
                endpoints: vec![endpoint.parse().unwrap()],
                prefix: "/test/".into(),
                tls: Some(credentials.etcd_client(&world).unwrap()),
                cluster: None,
            };
            run(Etcd::new(&world, &settings).unwrap(), world.clone()).await
        })
    }

    /// One node that was alone.
    pub(crate) fn founded() -> Self {
        Self::founded_after(|_| {})
    }

    /// One node that was alone, where this was done before.
    pub(crate) fn founded_after(work: impl FnOnce(&Node)) -> Self {
        let first = Node::unstarted();
        first.must(&["up", "--nsd-size", NSD]);
        work(&first);
        let cluster = Self {
            nodes: vec![first],
            net: free_net(),
        };
        let address = cluster.address(1);
        cluster
            .node(1)
            .must(&["cluster", "create", "--address", &address]);
        cluster
    }

    /// A new node joins.
    pub(crate) fn join(&mut self, is_quorum: bool) {
        self.join_with(is_quorum, &[]);
    }

    /// A new node joins, with more arguments.
    pub(crate) fn join_with(&mut self, is_quorum: bool, more: &[&str]) {
        let token = self.token_for(is_quorum);
        let (node, output) = self.try_to_join(&token, is_quorum, more);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        self.nodes.push(node);
    }

    /// A machine tries to join with a token, at the next free address.
    pub(crate) fn try_to_join(
        &self,
        token: &str,
        is_quorum: bool,
        more: &[&str],
    ) -> (Node, Output) {
        let node = Node::unstarted();
        let output = self.try_to_be(&node, self.nodes.len() + 1, token, is_quorum, more);
        (node, output)
    }

    /// A directory tries to join with a token, at the address with this number.
    pub(crate) fn try_to_be(
        &self,
        node: &Node,
        number: usize,
        token: &str,
        is_quorum: bool,
        more: &[&str],
    ) -> Output {
        let address = self.address(number as u8);
        let file = node.dir.with_extension("token");
        std::fs::write(&file, token).unwrap();
        let file = file.to_str().unwrap();
        let mut arguments = vec!["node", "join", "--token-file", file, "--nsd-size", NSD];
        arguments.extend(["--address", &address]);
        if is_quorum {
            arguments.push("--quorum");
        }
        arguments.extend(more);
        node.run(&arguments)
    }

    /// A token, as `shale cluster join-token` prints it.
    pub(crate) fn token(&self) -> String {
        self.token_for(false)
    }

    /// A token for an ordinary node, or for a quorum node.
    pub(crate) fn token_for(&self, is_quorum: bool) -> String {
        let mut arguments = vec!["cluster", "join-token"];
        if is_quorum {
            arguments.push("--quorum");
        }
        self.node(1).must(&arguments).trim().to_owned()
    }

    /// A node by its number, from 1.
    pub(crate) fn node(&self, number: usize) -> &Node {
        &self.nodes[number - 1]
    }

    /// A path in a node's mount.
    pub(crate) fn path(&self, number: usize, name: &str) -> PathBuf {
        self.node(number).path(name)
    }

    /// The line of `shale node list` for a node, as another one tells it.
    pub(crate) fn line(&self, asked: usize, number: usize) -> serde_json::Value {
        let view = self.view(asked);
        let nodes = view["nodes"].as_array();
        let found = nodes.and_then(|nodes| nodes.iter().find(|line| line["node"] == number));
        found.cloned().unwrap_or_default()
    }

    /// `shale cluster show` of a node; null while coordination doesn't answer.
    pub(crate) fn view(&self, asked: usize) -> serde_json::Value {
        let output = self.node(asked).run(&["cluster", "show", "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Whether all lost redundancy is restored, as a node tells it.
    pub(crate) fn is_repaired(&self, asked: usize) -> bool {
        let repaired = self.node(asked).ask(&["repair", "status"])["state"] == "idle";
        let generations = self.node(asked).ask(&["pool", "list"]);
        repaired && generations.as_array().unwrap().len() == 1
    }

    /// The node that serves the file system.
    pub(crate) fn owner(&self, asked: usize) -> Option<usize> {
        let view = self.view(asked);
        view["file_systems"][0]["owner"]
            .as_u64()
            .map(|node| node as usize)
    }

    fn address(&self, number: u8) -> String {
        let [a, b, c] = self.net;
        Ipv4Addr::new(a, b, c, number).to_string()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // In good order each would wait for others that are gone.
        for node in &self.nodes {
            let _ = node.run(&["down", "--kill"]);
        }
    }
}

/// What a command said that must have been refused.
#[track_caller]
pub(crate) fn refused(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Each of so many nodes writes, and all see it.
#[track_caller]
pub(crate) fn works_everywhere(cluster: &Cluster, nodes: usize, name: &str) {
    let file = |number: usize| format!("{name}-{number}");
    for number in 1..=nodes {
        fs::write(cluster.path(number, &file(number)), name).unwrap();
    }
    for reads in 1..=nodes {
        for wrote in 1..=nodes {
            let read = fs::read_to_string(cluster.path(reads, &file(wrote)));
            assert_eq!(
                read.unwrap(),
                name,
                "node {wrote} wrote, node {reads} reads"
            );
        }
    }
}

pub(crate) fn content(number: u32) -> Vec<u8> {
    (0..FILE_BYTES as u32)
        .map(|at| (at.wrapping_mul(31) ^ number) as u8)
        .collect()
}

/// Three nodes with `erasure(2+1)`, grown out of one that was alone with data in it.
pub(crate) fn three_nodes() -> Cluster {
    let mut cluster = Cluster::founded();
    for number in 0..10 {
        fs::write(cluster.path(1, &format!("old{number}")), content(number)).unwrap();
    }
    cluster.join(true);
    cluster.join(true);
    cluster
        .node(2)
        .must(&["pool", "change", "--scheme", "erasure(2+1)"]);
    eventually("all has the new scheme", || cluster.is_repaired(1));
    until_all_know_coordination(&cluster);
    cluster
}

/// Waits until three nodes know all three members of etcd: until then each depends on those that it knows.
fn until_all_know_coordination(cluster: &Cluster) {
    let knows_all = |node| {
        let view = cluster.view(node);
        view["coordination"]
            .as_array()
            .is_some_and(|all| all.len() == 3)
    };
    eventually("all know where coordination is", || (1..=3).all(knows_all));
}

/// The process of this name that a daemon has started.
pub(crate) fn child_of(daemon: i32, name: &str) -> Option<i32> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let name = entry.unwrap().file_name();
        name.to_str()?.parse::<i32>().ok()
    });
    let mut processes = processes.filter(|pid| {
        // `pid (name) state parent ...`; one that has ended meanwhile has none.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.split_once(&format!("({name}) "));
        let parent = rest.and_then(|(_, rest)| {
            let mut fields = rest.split(' ').skip(1);
            fields.next()?.parse::<i32>().ok()
        });
        parent == Some(daemon) && alive(*pid)
    });
    processes.next()
}

/// Loopback addresses that no other test uses: their last byte is the node's number.
fn free_net() -> [u8; 3] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mixed = (std::process::id().wrapping_mul(2_654_435_761)).wrapping_add(number * 7_919);
        let net = [127, (mixed >> 8) as u8 | 1, mixed as u8];
        let first = IpAddr::V4(Ipv4Addr::new(net[0], net[1], net[2], 1));
        let is_free = |port: u16| TcpListener::bind((first, port)).is_ok();
        if (7311..=7313).all(is_free) {
            return net;
        }
    }
}
