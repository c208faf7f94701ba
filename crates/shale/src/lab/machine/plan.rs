//! What `ip` and `tc` are told to make, cut, join and shape a lab's network: lines of text, decided
//! without touching the machine.
//!
//! Each node has one link, `eth0`. Its other end is a port of a bridge in the hub, a namespace of
//! its own. All ports are on the bridge `lan` unless nodes are cut off: their ports then move to a
//! bridge of their own. What they send to others ends there without an answer. Nobody gets an error:
//! the links stay up, and hardware addresses are known in advance, so that none has to be asked for.

use super::names::{Names, NodeNumber};
use std::collections::BTreeMap;

/// The bridge of all nodes that aren't cut off.
pub const LAN: &str = "lan";
/// A node's end of its link.
const LINK: &str = "eth0";
/// How the names of bridges of cut-off nodes begin.
const CUT: &str = "cut";

/// Bytes that a shaped link sends at once, at least: one packet as the kernel hands it over.
const BURST_BYTES_MIN: u64 = 64 << 10;
/// Bytes that wait for a shaped link, at least.
const QUEUE_BYTES_MIN: u64 = 256 << 10;

/// A program of iproute2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tool {
    /// Links, addresses, namespaces.
    Ip,
    /// Speeds.
    Tc,
}

/// Lines for one run of a tool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Who reads them.
    pub tool: Tool,
    /// The namespace in which they apply; none: that of the caller.
    pub namespace: Option<String>,
    /// The commands, without the tool's name.
    pub lines: Vec<String>,
}

/// Makes namespaces, links and speeds. `link_mbit`: megabits per second of each link, each way.
pub fn build(names: &Names, nodes: u32, link_mbit: Option<u32>) -> Vec<Batch> {
    let all = NodeNumber::all(nodes);
    let mut namespaces = vec![names.hub()];
    namespaces.extend(all.clone().map(|node| names.node(node)));
    let mut batches = vec![Batch {
        tool: Tool::Ip,
        namespace: None,
        lines: namespaces
            .iter()
            .map(|name| format!("netns add {name}"))
            .collect(),
    }];
    let mut lines = vec!["link set lo up".to_owned()];
    lines.extend(bridge(LAN));
    for node in all.clone() {
        lines.push(format!(
            "link add {node} type veth peer name {LINK} address {} netns {}",
            node.hardware_address(),
            names.node(node)
        ));
        lines.push(format!("link set {node} addrgenmode none master {LAN} up"));
    }
    batches.push(ip(names.hub(), lines));
    for node in all.clone() {
        let mut lines = vec![
            "link set lo up".to_owned(),
            format!("link set {LINK} addrgenmode none up"),
            format!("address add {}/24 dev {LINK}", node.address()),
        ];
        for other in all.clone().filter(|other| *other != node) {
            lines.push(format!(
                "neighbour add {} lladdr {} dev {LINK} nud permanent",
                other.address(),
                other.hardware_address()
            ));
        }
        batches.push(ip(names.node(node), lines));
    }
    if let Some(mbit) = link_mbit {
        batches.extend(shape(names, nodes, mbit));
    }
    batches
}

fn ip(namespace: String, lines: Vec<String>) -> Batch {
    Batch {
        tool: Tool::Ip,
        namespace: Some(namespace),
        lines,
    }
}

fn bridge(name: &str) -> [String; 2] {
    [
        format!("link add {name} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"),
        format!("link set {name} addrgenmode none up"),
    ]
}

/// Both ends of each link send at most `mbit` megabits per second.
fn shape(names: &Names, nodes: u32, mbit: u32) -> Vec<Batch> {
    let bytes_per_second = u64::from(mbit) * 1_000_000 / 8;
    // The kernel's clock ticks at least a hundred times a second.
    let burst = BURST_BYTES_MIN.max(bytes_per_second / 100);
    // Up to 50 ms of waiting, as in a switch with ordinary buffers.
    let queue = QUEUE_BYTES_MIN.max(bytes_per_second / 20);
    let line = |device: &str| {
        format!("qdisc add dev {device} root tbf rate {mbit}mbit burst {burst} limit {queue}")
    };
    let tc = |namespace: String, lines| Batch {
        tool: Tool::Tc,
        namespace: Some(namespace),
        lines,
    };
    let all = NodeNumber::all(nodes);
    let ports = all.clone().map(|node| line(&node.to_string())).collect();
    let mut batches = vec![tc(names.hub(), ports)];
    batches.extend(all.map(|node| tc(names.node(node), vec![line(LINK)])));
    batches
}

/// The bridge that each node's port is on.
pub type Bridges = BTreeMap<NodeNumber, String>;

/// The other nodes that a cut-off node still reaches; `None` if it isn't cut off.
pub fn company(bridges: &Bridges, node: NodeNumber) -> Option<Vec<NodeNumber>> {
    let own = bridges.get(&node)?;
    let others = bridges
        .iter()
        .filter(|(other, bridge)| **other != node && *bridge == own);
    (own != LAN).then(|| others.map(|(other, _)| *other).collect())
}

/// Cuts nodes off from all others; they still reach each other.
pub fn cut(names: &Names, bridges: &Bridges, nodes: &[NodeNumber]) -> Batch {
    let is_free = |name: &String| !bridges.values().any(|used| used == name);
    let own = (1..).map(|number| format!("{CUT}{number}"));
    let own = own
        .into_iter()
        .find(is_free)
        .expect("there is always one more number");
    let mut lines = bridge(&own).to_vec();
    lines.extend(move_ports(bridges, nodes, &own));
    ip(names.hub(), lines)
}

/// Brings nodes back to those that aren't cut off.
pub fn join(names: &Names, bridges: &Bridges, nodes: &[NodeNumber]) -> Batch {
    ip(names.hub(), move_ports(bridges, nodes, LAN))
}

/// Moves ports to a bridge, and removes bridges that nobody uses any more.
fn move_ports(bridges: &Bridges, nodes: &[NodeNumber], to: &str) -> Vec<String> {
    let mut lines: Vec<_> = nodes
        .iter()
        .map(|node| format!("link set {node} master {to}"))
        .collect();
    let mut left: Vec<&String> = nodes.iter().filter_map(|node| bridges.get(node)).collect();
    left.sort();
    left.dedup();
    for bridge in left {
        let stays = bridges
            .iter()
            .any(|(node, on)| on == bridge && !nodes.contains(node));
        if !stays && bridge != LAN && bridge != to {
            lines.push(format!("link delete {bridge}"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names::with_id("00c0ffee")
    }

    fn nodes(numbers: &[u32]) -> Vec<NodeNumber> {
        numbers.iter().map(|number| NodeNumber(*number)).collect()
    }

    fn bridges(on: &[&str]) -> Bridges {
        let numbers = NodeNumber::all(on.len() as u32);
        numbers.zip(on.iter().map(|it| (*it).to_owned())).collect()
    }

    #[test]
    fn every_node_has_a_link_to_the_hub_and_knows_all_others() {
        let batches = build(&names(), 3, None);
        assert_eq!(batches.len(), 5);
        let begun = [
            "netns add shale-lab-00c0ffee-hub",
            "netns add shale-lab-00c0ffee-n1",
            "netns add shale-lab-00c0ffee-n2",
            "netns add shale-lab-00c0ffee-n3",
        ];
        assert_eq!(batches[0].lines, begun);
        assert_eq!(batches[0].namespace, None);
        let links = batches[1].lines.iter().filter(|it| it.contains("veth"));
        assert_eq!(links.count(), 3);
        let of_second = [
            "link set lo up",
            "link set eth0 addrgenmode none up",
            "address add 10.83.0.2/24 dev eth0",
            "neighbour add 10.83.0.1 lladdr 02:53:68:61:6c:01 dev eth0 nud permanent",
            "neighbour add 10.83.0.3 lladdr 02:53:68:61:6c:03 dev eth0 nud permanent",
        ];
        assert_eq!(batches[3].lines, of_second);
        assert!(batches.iter().all(|batch| batch.tool == Tool::Ip));
    }

    #[test]
    fn both_ends_of_each_link_are_shaped() {
        let of_tc = |mbit| {
            let mut batches = build(&names(), 2, Some(mbit));
            batches.retain(|batch| batch.tool == Tool::Tc);
            batches
        };
        let slow = of_tc(10);
        let line = "qdisc add dev n1 root tbf rate 10mbit burst 65536 limit 262144";
        assert_eq!(slow[0].namespace.as_deref(), Some("shale-lab-00c0ffee-hub"));
        assert_eq!(slow[0].lines[0], line);
        assert_eq!(slow[0].lines.len(), 2);
        assert_eq!(slow[2].lines, [line.replace("n1", "eth0")]);
        let fast = "qdisc add dev eth0 root tbf rate 10000mbit burst 12500000 limit 62500000";
        assert_eq!(of_tc(10_000)[1].lines, [fast]);
    }

    #[test]
    fn nodes_cut_off_together_share_a_bridge() {
        let before = bridges(&["lan", "lan", "lan"]);
        let batch = cut(&names(), &before, &nodes(&[1, 3]));
        assert_eq!(batch.namespace.as_deref(), Some("shale-lab-00c0ffee-hub"));
        let moves = ["link set n1 master cut1", "link set n3 master cut1"];
        assert_eq!(batch.lines[2..], moves);
        let after = bridges(&["cut1", "lan", "cut1"]);
        assert_eq!(company(&after, NodeNumber(1)), Some(nodes(&[3])));
        assert_eq!(company(&after, NodeNumber(2)), None);
    }

    #[test]
    fn a_bridge_goes_with_its_last_port() {
        let apart = bridges(&["cut1", "lan", "cut1", "cut2"]);
        let one = cut(&names(), &apart, &nodes(&[1]));
        assert!(one.lines[0].starts_with("link add cut3 "), "{one:?}");
        assert_eq!(one.lines[2..], ["link set n1 master cut3"]);
        let healed = join(&names(), &apart, &nodes(&[1, 3]));
        let lines = [
            "link set n1 master lan",
            "link set n3 master lan",
            "link delete cut1",
        ];
        assert_eq!(healed.lines, lines);
        let all = join(&names(), &apart, &nodes(&[1, 2, 3, 4]));
        assert_eq!(all.lines[4..], ["link delete cut1", "link delete cut2"]);
    }
}
