//! What is said of a link of a chain, and what can be done where a chain ends. Pure.

use super::chains::{Chains, Item, Known, Link, Place};
use crate::admin::{BECOMES_FIRST, BECOMES_FIRST_REMEDY, Wait, WaitPart};
use serde::Serialize;
use world::SPACE_WAIT;

/// A call that its node knows nothing of for so long isn't one whose answer is on its way.
const UNHEARD_MILLISECONDS: u64 = 2_000;

/// A link as it is shown.
#[derive(Serialize, PartialEq, Eq, Debug)]
pub(super) struct Shown {
    /// The node; `None`: it is alone.
    pub(super) node: Option<u32>,
    /// What waits there for what.
    pub(super) text: String,
    /// For how long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) milliseconds: Option<u64>,
    /// What can be done, if nothing else is waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
    /// What that waits for.
    pub(super) links: Vec<Shown>,
}

/// What a node is called.
pub(super) fn name(known: &Known, node: u32) -> String {
    match known.names.get(&node).filter(|name| !name.is_empty()) {
        Some(name) => name.clone(),
        None => format!("node {node}"),
    }
}

/// A chain in words.
pub(super) fn shown(chains: &Chains<'_>, known: &Known, link: &Link) -> Shown {
    let of_wait = |at: usize| {
        let (place, wait) = chains.wait(at);
        (place, Some(wait.milliseconds), of_wait(known, place, wait))
    };
    let named = |node: u32| name(known, node);
    let (node, milliseconds, text) = match link.item {
        Item::Wait(at) => of_wait(at),
        Item::Circle(at) => {
            let (place, milliseconds, text) = of_wait(at);
            (place, milliseconds, format!("{text}: a circle, see above"))
        }
        Item::Silent(node) => {
            let why = known.silent.get(&node).cloned();
            (Some(node), None, why.unwrap_or_default())
        }
        Item::NotAsked(node) => {
            let text = "it wasn't asked: `shale waiters --all` asks all nodes that are up";
            (Some(node), None, text.into())
        }
        Item::NoLease(node) => {
            let text = "it has no lease: it answers nobody until the manager has renewed it";
            (Some(node), None, text.into())
        }
        Item::NoManager => {
            let text = "the cluster has no manager: coordination has no quorum or doesn't answer, or has just lost the one before";
            (None, None, text.into())
        }
        Item::Lease {
            manager,
            node,
            milliseconds,
        } => {
            let text = format!(
                "waits, as the manager, for the lease of {}, which lasts {} still",
                named(node),
                seconds(milliseconds)
            );
            (Some(manager), None, text)
        }
        Item::More => (None, None, "and more".into()),
    };
    let links: Vec<Shown> = link
        .links
        .iter()
        .map(|link| shown(chains, known, link))
        .collect();
    let remedy = match links.is_empty() {
        true => remedy(chains, known, link.item),
        false => None,
    };
    Shown {
        node,
        text,
        milliseconds,
        remedy,
        links,
    }
}

fn of_wait(known: &Known, place: Place, wait: &Wait) -> String {
    let of = |node: Option<u32>| match node {
        Some(node) if Some(node) != place => format!(" of {}", name(known, node)),
        _ => String::new(),
    };
    match &wait.part {
        WaitPart::Program => wait.what.clone(),
        WaitPart::Wait | WaitPart::ForWork { .. } => {
            format!("{} waits for {}", wait.what, wait.cause)
        }
        WaitPart::ForAnswer { node, of } => {
            format!("waits for the answer of {}: {of}", name(known, *node))
        }
        WaitPart::ForOwner { shard, node } => match node {
            Some(node) => format!(
                "waits for the owner of shard {shard}, {}",
                name(known, *node)
            ),
            None => format!("waits for an owner of shard {shard}: no node serves it"),
        },
        WaitPart::ForNsd { nsd, node } => format!("waits for NSD {nsd}{}", of(*node)),
        WaitPart::ForCoordination => "waits for coordination".into(),
        WaitPart::ForToken {
            inode,
            node,
            runs_out_milliseconds,
        } => {
            let holder = node.map_or("another client".into(), |node| name(known, node));
            let rest = match runs_out_milliseconds {
                0 => "whose tokens have run out".into(),
                rest => format!("whose tokens last {} still", seconds(*rest)),
            };
            format!("waits for inode {inode} to be given back by {holder}, {rest}")
        }
        WaitPart::ForLock { inode, node, pid } => {
            let program = match pid {
                0 => "a program".into(),
                pid => format!("process {pid}"),
            };
            let on = node.map_or(String::new(), |node| format!(" on {}", name(known, node)));
            format!("waits for the lock of inode {inode} that {program}{on} has")
        }
        WaitPart::Work { work } => match work.split_once(' ') {
            Some(("commit" | "take-over", shard)) => format!("{}, shard {shard}", wait.what),
            Some((_, inode)) => format!("{}, inode {inode}", wait.what),
            None => wait.what.clone(),
        },
        WaitPart::Call { of } => {
            let caller = wait
                .from
                .map_or("another node".into(), |node| name(known, node));
            format!("works on a call of {caller}: {of}")
        }
    }
}

/// What can be done about a wait that waits for nothing else that is known.
fn remedy(chains: &Chains<'_>, known: &Known, item: Item) -> Option<String> {
    let at = match item {
        Item::Wait(at) => at,
        Item::Silent(node) => {
            let text = format!(
                "see whether the daemon of {} runs and the network reaches it (`shale node list`); if not, others go on \
                 without it when its lease is over",
                name(known, node)
            );
            return Some(text);
        }
        Item::NoLease(_) | Item::NoManager => {
            let text = "see that most of the quorum nodes run and reach each other, with an etcd of your own most of its \
                        members: `shale health --all`";
            return Some(text.into());
        }
        Item::Lease { .. } => return Some("nothing: others go on without it then".into()),
        Item::Circle(_) | Item::NotAsked(_) | Item::More => return None,
    };
    let (place, wait) = chains.wait(at);
    match &wait.part {
        WaitPart::ForNsd { nsd, node } => {
            let there = node
                .or(place)
                .map_or("here".into(), |node| format!("on {}", name(known, node)));
            Some(format!(
                "look at its disk {there} (`iostat -x 1`, `smartctl -a`, `dmesg`); if it stays slow, replace it: `shale nsd \
                 add`, then `shale nsd remove {nsd}`"
            ))
        }
        WaitPart::ForAnswer { node, .. } if wait.milliseconds >= UNHEARD_MILLISECONDS => {
            let asked = name(known, *node);
            let here = place.map_or("this node".into(), |node| name(known, node));
            Some(format!(
                "{asked} knows nothing of that call: if it stays so, what {here} sends there is lost on the way; `shale \
                 health --all` names nodes that don't reach each other"
            ))
        }
        WaitPart::ForCoordination => Some(
            "see that most of the quorum nodes run, with an etcd of your own most of its members: `shale health --all`"
                .into(),
        ),
        WaitPart::ForToken { .. } => Some(
            "nothing: it is asked for it, and loses its session if it gives nothing back in time"
                .into(),
        ),
        WaitPart::ForLock { .. } => {
            Some("nothing if that program works; end it if it hangs: its locks end with it".into())
        }
        WaitPart::ForOwner { .. } => {
            Some("wait some seconds; if it stays so, see `shale health --all`".into())
        }
        WaitPart::Wait if wait.cause == SPACE_WAIT => {
            Some("delete files, or add an NSD with `shale nsd add`".into())
        }
        WaitPart::Wait if wait.cause.starts_with(BECOMES_FIRST) => {
            Some(BECOMES_FIRST_REMEDY.into())
        }
        _ => None,
    }
}

/// Milliseconds for people.
pub(super) fn seconds(milliseconds: u64) -> String {
    format!("{}.{} s", milliseconds / 1_000, milliseconds % 1_000 / 100)
}
