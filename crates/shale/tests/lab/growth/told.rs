//! What nodes of a growing cluster tell of its pool: how far repair and rewriting are, and how much each NSD holds.

use super::CHANGE_MAX;
use crate::cluster::Cluster;
use crate::fixture::poll;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// So many groups are repaired at once at most where all nodes take part in each.
const AT_ONCE: u64 = 8;

/// What a command answers on a node; null if it says something else, perhaps because another node becomes the manager.
pub(super) fn ask(cluster: &Cluster, node: u32, command: &[&str]) -> Value {
    let output = cluster
        .node(node as usize)
        .run(&[command, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// An NSD in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct InUse {
    pub(super) node: u32,
    pub(super) nsd: u64,
    /// Bytes that it holds.
    pub(super) used: u64,
}

/// The NSDs in use, as a node tells.
pub(super) fn in_use(cluster: &Cluster, asked: u32) -> Vec<InUse> {
    let nsds = ask(cluster, asked, &["nsd", "list"]);
    let lines = nsds.as_array().into_iter().flatten();
    let active = lines.filter(|line| line["state"] == "active");
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let nsd = |line: &Value| InUse {
        node: number(&line["node"]) as u32,
        nsd: number(&line["nsd"]),
        used: number(&line["used"]),
    };
    active.map(nsd).collect()
}

/// The number of a node's first NSD.
#[track_caller]
pub(super) fn first_nsd(cluster: &Cluster, node: u32) -> u64 {
    let all = in_use(cluster, 1);
    let own = all.iter().find(|it| it.node == node);
    own.expect("it has an NSD in use").nsd
}

/// Waits until none of the NSDs in use that are meant holds less than half of their mean. Returns how much one differs
/// from it at most, as a part of it.
#[track_caller]
pub(super) fn until_even(cluster: &Cluster, is_meant: impl Fn(u32) -> bool) -> f64 {
    poll::until("data is spread over the NSDs", CHANGE_MAX, || {
        let all = in_use(cluster, 1);
        let meant = all.iter().filter(|it| is_meant(it.node));
        let bytes: Vec<f64> = meant.map(|it| it.used as f64).collect();
        let mean = bytes.iter().sum::<f64>() / bytes.len().max(1) as f64;
        let least = bytes.iter().copied().fold(f64::INFINITY, f64::min);
        let most = bytes.iter().copied().fold(0.0, f64::max);
        match bytes.len() > 1 && least >= mean / 2.0 {
            true => Ok((mean - least).max(most - mean) / mean),
            false => Err(format!("{all:?}")),
        }
    })
}

/// What `shale repair status` has told while something was waited for.
#[derive(Default)]
pub(super) struct Told {
    last: Value,
    /// Data was being rewritten.
    pub(super) is_rewriting: bool,
    /// Bytes that repairs still had to look at, each number once.
    pub(super) left: BTreeSet<u64>,
    /// The most bytes in groups that lose data with the next NSD.
    pub(super) critical: u64,
    /// Groups that lacked two slots, and those that lacked one, when both NSDs were seen to be lost.
    lacked: Option<(u64, u64)>,
    /// How often most of the former still did, and how many of the latter didn't any more then, at most.
    looks: usize,
    early: u64,
    /// How fast repair might be, while it ran.
    pub(super) limits: BTreeSet<u64>,
    /// An end was expected.
    pub(super) has_end: bool,
    /// What each node has rebuilt, as it was told last.
    pub(super) pieces: BTreeMap<u64, u64>,
    /// Nodes that have rebuilt something meanwhile.
    pub(super) rebuilding: BTreeSet<u64>,
}

impl Told {
    fn note(&mut self, status: Value) {
        let cluster = &status["cluster"];
        let (repair, rewrite) = (&cluster["repair"], &cluster["rewrite"]);
        self.is_rewriting |= rewrite["generations"].as_u64() > Some(0);
        if repair["state"] == "running" && repair["groups"].as_u64() > Some(0) {
            let bytes = |what: &str| repair[what].as_u64().unwrap_or_default();
            let critical = bytes("critical_bytes_left");
            self.left.insert(critical + bytes("normal_bytes_left"));
            self.critical = self.critical.max(critical);
            self.limits
                .extend(cluster["limit_bytes_per_second"].as_u64());
            self.has_end |= repair["seconds_left"].as_u64() > Some(0);
            self.look_at_order(repair);
        }
        for part in cluster["nodes"].as_array().into_iter().flatten() {
            let number = |what: &str| part[what].as_u64().unwrap_or_default();
            let (node, pieces) = (number("node"), number("pieces_done"));
            let before = self.pieces.insert(node, pieces);
            if before.is_some_and(|before| before < pieces) {
                self.rebuilding.insert(node);
            }
        }
        self.last = status;
    }

    /// Counts groups that lack two slots and one, by what is told of all of them.
    fn look_at_order(&mut self, repair: &Value) {
        let number = |what: &str| repair[what].as_u64().unwrap_or_default();
        let degraded = number("groups_degraded");
        // Where one slot is lacking one moves, and where two are two do.
        let two = number("slots_moving").saturating_sub(degraded);
        // One more node that is given up for a while would count, too: what lacks two can't be read then.
        if two == 0 || number("groups_unreadable") > 0 {
            return;
        }
        let one = degraded.saturating_sub(two);
        let (twos, ones) = *self.lacked.get_or_insert((two, one));
        if two > twos / 2 {
            self.looks += 1;
            self.early = self.early.max(ones.saturating_sub(one));
        }
    }

    /// NSDs were lost: groups that lack two slots come first, and those that lack one keep their places meanwhile. A group that
    /// couldn't be repaired waits for its next try and holds nobody up then, so this is so only as long as most of them are
    /// left. Returns what was seen.
    #[track_caller]
    pub(super) fn must_be_in_order(&self) -> String {
        let (Some((two, one)), early, looks) = (self.lacked, self.early, self.looks) else {
            return String::new();
        };
        assert!(
            early <= AT_ONCE,
            "{early} of {one} groups were repaired when most of {two} that had lost more weren't"
        );
        format!(" ({two} groups before {one} that had lost less, as {looks} looks showed)")
    }
}

/// Waits until all of a pool has this scheme and nothing is left to be done to it. All nodes are asked in turn; the one
/// by which it was changed knows of that first.
#[track_caller]
pub(super) fn until_idle(cluster: &Cluster, nodes: u32, by: u32, scheme: &str) -> Told {
    let mut told = Told::default();
    let mut turn = 0;
    poll::until("the pool's change comes to its end", CHANGE_MAX, || {
        turn += 1;
        let asked = match turn % 2 {
            1 => by,
            _ => turn / 2 % nodes + 1,
        };
        told.note(ask(cluster, asked, &["repair", "status"]));
        let pools = ask(cluster, asked, &["pool", "list"]);
        let is_one = pools.as_array().is_some_and(|all| all.len() == 1);
        let is_over = is_one && pools[0]["scheme"] == scheme && told.last["state"] == "idle";
        (asked == by && is_over)
            .then_some(())
            .ok_or_else(|| format!("node {asked}: {} {pools}", told.last))
    });
    told
}
