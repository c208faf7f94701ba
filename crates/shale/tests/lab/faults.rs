//! Faults of nodes under a load: how the others take them, and how all is well again.

use super::{
    fixture::Lab,
    load::{Load, Pauses},
};
use crate::fixture::poll;
use serde_json::Value;
use sim::by_suite;
use std::time::Duration;

/// After nodes are given up, each program elsewhere makes so many more files, in a long run twice as many: what was sent to a
/// silent NSD is waited for later than its node.
const FILES_AFTER: u64 = 10;
/// Nodes come back and are repaired, beside a load and other tests.
const WHOLE_MAX: Duration = Duration::from_secs(400);
/// What `shale health` tells for some time after all is well.
const TOLD_LATER: [&str; 2] = ["it failed ", "this node's client lost its session"];

/// What happens to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// Its daemon and its etcd die.
    Kill,
    /// They get no more time.
    Stop,
    /// Its packets are lost.
    Partition,
}

impl Fault {
    /// What the node is then.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Kill => "killed",
            Self::Stop => "silent",
            Self::Partition => "cut off",
        }
    }

    /// How soon others shall go on.
    pub(crate) fn aim(self) -> Duration {
        match self {
            Self::Kill => Duration::from_secs(3),
            Self::Stop | Self::Partition => Duration::from_secs(15),
        }
    }

    /// Does it to nodes, all at the same time.
    #[track_caller]
    pub(crate) fn strike(self, lab: &Lab, nodes: &[u32]) {
        let command = match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Partition => "partition",
        };
        on_nodes(lab, command, nodes);
    }

    /// Ends it. Returns once the daemons serve.
    #[track_caller]
    pub(crate) fn mend(self, lab: &Lab, nodes: &[u32]) {
        if self == Self::Partition {
            on_nodes(lab, "heal", nodes);
        }
        on_nodes(lab, "start", nodes);
    }
}

#[track_caller]
fn on_nodes(lab: &Lab, command: &str, nodes: &[u32]) {
    let names: Vec<_> = nodes.iter().map(u32::to_string).collect();
    let mut arguments = vec![command];
    arguments.extend(names.iter().map(String::as_str));
    lab.must(&arguments);
}

/// The daemons that nodes have at one time.
pub(crate) struct Daemons(Vec<(u32, i32)>);

impl Daemons {
    /// Each of these nodes must have one.
    #[track_caller]
    pub(crate) fn of(lab: &Lab, nodes: &[u32]) -> Self {
        let daemon = |node: &u32| (*node, lab.daemon(*node));
        Self(nodes.iter().map(daemon).collect())
    }

    /// They have come back by themselves: [`Fault::mend`] would have started others if they had ended.
    #[track_caller]
    pub(crate) fn must_live(&self, lab: &Lab) {
        for (node, daemon) in &self.0 {
            assert_eq!(lab.daemon(*node), *daemon, "n{node} has another daemon");
        }
    }
}

/// Nodes of a lab have a fault, all the same one, under a load on all nodes, and come back under a load on the others.
/// Nothing that was acknowledged may be lost, and programs on other nodes are told no error. Returns how long these were held
/// up by the fault.
#[track_caller]
pub(crate) fn survive(lab: &Lab, fault: Fault, victims: &[u32]) -> Pauses {
    survive_blow(lab, fault, victims, |load| {
        load.mark();
        fault.strike(lab, victims);
    })
}

/// The same, where `blow` [marks](Load::mark) the load and has the fault strike.
#[track_caller]
pub(crate) fn survive_blow(
    lab: &Lab,
    fault: Fault,
    victims: &[u32],
    blow: impl FnOnce(&mut Load),
) -> Pauses {
    let left = others(&lab.nodes(), victims);
    let daemons = Daemons::of(lab, victims);
    let strike = |load: &mut Load| {
        blow(load);
        lab.until("the others give the nodes up", || {
            load.must_be_listed(lab, &left);
            are_out(lab, left[0], victims)
        });
    };
    let mend = || {
        fault.mend(lab, victims);
        until_whole(lab);
        if fault == Fault::Partition {
            daemons.must_live(lab);
        }
    };
    under_load(lab, victims, strike, mend)
}

/// Something happens to nodes of a lab under a load on all nodes, and ends under a load on the others. Nothing that was
/// acknowledged may be lost, and programs on other nodes are told no error; while they wait, `waiters` there tells of them.
///
/// `strike` begins it and returns when the others shall go on; what they feel counts from when it [marks](Load::mark) the
/// load. `mend` ends it and returns once all nodes serve. Returns how long the others were held up.
#[track_caller]
pub(crate) fn under_load(
    lab: &Lab,
    victims: &[u32],
    strike: impl FnOnce(&mut Load),
    mend: impl FnOnce(),
) -> Pauses {
    let nodes = lab.nodes();
    let others = others(&nodes, victims);
    let mut load = Load::start(lab, &nodes);
    strike(&mut load);
    let look = |load: &mut Load| load.must_be_listed(lab, &others);
    load.gets_on_while(&others, by_suite(FILES_AFTER, 2 * FILES_AFTER), look);
    let pauses = load.pauses(&others);
    load.end(&others);
    load.must_be_seen(lab, &others);

    let mut meanwhile = Load::start(lab, &others);
    mend();
    meanwhile.end(&others);
    load.end_whatever_happened(victims);
    for mut load in [load, meanwhile] {
        load.must_be_seen(lab, &nodes);
        load.remove(lab, others[0]);
    }
    pauses
}

/// The nodes that aren't among the victims.
pub(crate) fn others(nodes: &[u32], victims: &[u32]) -> Vec<u32> {
    let is_other = |node: &u32| !victims.contains(node);
    nodes.iter().copied().filter(is_other).collect()
}

/// Waits until the others have given these nodes up.
#[track_caller]
pub(crate) fn until_given_up(lab: &Lab, victims: &[u32]) {
    let asked = others(&lab.nodes(), victims)[0];
    lab.until("the others give the nodes up", || {
        are_out(lab, asked, victims)
    });
}

/// Whether these nodes are no members any more, as another one tells.
///
/// # Errors
/// How they are.
pub(crate) fn are_out(lab: &Lab, asked: u32, nodes: &[u32]) -> Result<(), String> {
    let view = lab.ask(asked, &["cluster", "show"]);
    let lines = view["nodes"].as_array().ok_or("coordination is away")?;
    let is_in = |line: &Value| nodes.iter().any(|it| line["node"] == *it) && line["state"] == "up";
    match lines.iter().find(|line| is_in(line)) {
        Some(line) => Err(line.to_string()),
        None => Ok(()),
    }
}

/// Waits until all nodes of a lab are members, serve, and nothing is left to be repaired.
#[track_caller]
pub(crate) fn until_whole(lab: &Lab) {
    let nodes = lab.nodes();
    poll::until("all nodes are back and repaired", WHOLE_MAX, || {
        whole(lab, &nodes)
    });
}

fn whole(lab: &Lab, nodes: &[u32]) -> Result<(), String> {
    let view = lab.ask(nodes[0], &["cluster", "show"]);
    let lines = view["nodes"].as_array().ok_or("coordination is away")?;
    if lines.len() != nodes.len() || lines.iter().any(|line| line["state"] != "up") {
        return Err(view["nodes"].to_string());
    }
    let repair = lab.ask(nodes[0], &["repair", "status"]);
    let pools = lab.ask(nodes[0], &["pool", "list"]);
    if repair["state"] != "idle" || pools.as_array().is_none_or(|all| all.len() != 1) {
        return Err(format!("{repair} {pools}"));
    }
    for node in nodes {
        let status = lab.ask(*node, &["status"]);
        let mut mounts = status["mounts"].as_array().into_iter().flatten();
        let has_lease = status["cluster"]["lease_milliseconds"].as_u64() > Some(0);
        if !has_lease || !mounts.any(|mount| mount["state"] == "mounted") {
            return Err(format!("n{node}: {status}"));
        }
    }
    Ok(())
}

/// Waits until no node of a lab complains of anything that is still so.
#[track_caller]
pub(crate) fn until_well(lab: &Lab) {
    for node in lab.nodes() {
        poll::until("a node is healthy", WHOLE_MAX, || {
            let health = lab.ask(node, &["health"]);
            let events = health["events"].as_array().ok_or("it doesn't answer")?;
            let is_over = |event: &Value| {
                let message = event["message"].as_str().unwrap_or_default();
                let is_told_later = TOLD_LATER.iter().any(|it| message.starts_with(it));
                is_told_later || event["severity"] == "hint"
            };
            match events.iter().find(|event| !is_over(event)) {
                Some(event) => Err(format!("n{node}: {event}")),
                None => Ok(()),
            }
        });
    }
}

/// Whether `shale health` of a node tells this of a subject, with this remedy: parts of each.
///
/// # Errors
/// What it tells instead.
pub(crate) fn tells(
    lab: &Lab,
    node: u32,
    [subject, message, remedy]: [&str; 3],
) -> Result<(), String> {
    let health = lab.ask(node, &["health"]);
    let mut events = health["events"].as_array().into_iter().flatten();
    let is_told = events.any(|event| {
        let says = |field: &str, text: &str| {
            let said = event[field].as_str();
            said.is_some_and(|said| said.contains(text))
        };
        says("subject", subject) && says("message", message) && says("remedy", remedy)
    });
    is_told.then_some(()).ok_or_else(|| health.to_string())
}
