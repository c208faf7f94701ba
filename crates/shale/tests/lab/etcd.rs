//! The members of a lab's etcd: who leads it, who shall lead it, and their processes.

use super::fixture::Lab;
use crate::{cluster::child_of, fixture::bounded::Ended};
use serde_json::Value;
use std::collections::BTreeMap;

/// etcd's own program, which knows nothing of Shale.
const TOOL: &str = "etcdctl";
/// The key of what [`write`] stores: none of Shale's ...
const KEY: &str = "written by a test";
/// ... and the bytes of each value; about as many fit into a word of a command.
const VALUE_BYTES: usize = 100_000;

/// Where the members answer, by their nodes.
fn endpoints(lab: &Lab) -> Result<BTreeMap<u32, String>, String> {
    let view = lab.ask(1, &["cluster", "show"]);
    let lines = view["nodes"].as_array().ok_or("coordination is away")?;
    let known = lines.iter().filter_map(|line| {
        let node = u32::try_from(line["node"].as_u64()?).ok()?;
        Some((node, line["etcd"].as_str()?.to_owned()))
    });
    Ok(known.collect())
}

/// Runs etcd's program on a node.
#[track_caller]
fn run(lab: &Lab, endpoints: &BTreeMap<u32, String>, arguments: &[&str]) -> Ended {
    let node = endpoints.keys().next().expect("a cluster has members");
    let keys = lab.node(*node).join("keys");
    let file = |name: &str| keys.join(name).display().to_string();
    let (certificate, key) = (file("node.pem"), file("node.key"));
    let authorities = file("authorities.pem");
    let all: Vec<_> = endpoints.values().map(String::as_str).collect();
    let (node, all) = (node.to_string(), all.join(","));
    let tool = ["exec", &node, "--", TOOL, "--endpoints", &all];
    let keys = ["--cert", &certificate, "--key", &key];
    let rest = [
        "--cacert",
        &authorities,
        "--dial-timeout=1s",
        "--command-timeout=3s",
    ];
    let ended = lab.run(&[&tool[..], &keys[..], &rest[..], arguments].concat());
    let is_missing = ended.text.contains(&format!("running {TOOL}"));
    assert!(!is_missing, "{}; `make test-deps` installs it", ended.text);
    ended
}

/// How the members are that answer, by their nodes.
fn statuses(lab: &Lab) -> Result<BTreeMap<u32, Value>, String> {
    let endpoints = endpoints(lab)?;
    let ended = run(lab, &endpoints, &["endpoint", "status", "-w", "json"]);
    // Those that don't answer are complained of after it.
    let line = ended.text.lines().next().unwrap_or_default();
    let answers: Vec<Value> =
        serde_json::from_str(line).map_err(|error| format!("{error}: {}", ended.text))?;
    let of_node = |(node, endpoint): (&u32, &String)| {
        let answer = answers.iter().find(|it| it["Endpoint"] == *endpoint)?;
        Some((*node, answer["Status"].clone()))
    };
    Ok(endpoints.iter().filter_map(of_node).collect())
}

/// The node whose member leads.
///
/// # Errors
/// What the members say, if none does.
pub(crate) fn leader(lab: &Lab) -> Result<u32, String> {
    let statuses = statuses(lab)?;
    // One that was cut off may believe in an earlier term that it leads.
    let leads = |status: &Value| status["leader"] == status["header"]["member_id"];
    let leaders = statuses.iter().filter(|(_, status)| leads(status));
    let newest = leaders.max_by_key(|(_, status)| status["raftTerm"].as_u64());
    let newest = newest.map(|(node, _)| *node);
    newest.ok_or_else(|| format!("no member leads: {statuses:?}"))
}

/// Has a node's member lead; returns once it does. All members must answer.
#[track_caller]
pub(crate) fn lead(lab: &Lab, node: u32) {
    lab.until("another member of etcd leads", || {
        if leader(lab)? == node {
            return Ok(());
        }
        let statuses = statuses(lab)?;
        let status = statuses.get(&node).ok_or("its member doesn't answer")?;
        let id = status["header"]["member_id"].as_u64().unwrap_or(0);
        let moved = run(lab, &endpoints(lab)?, &["move-leader", &format!("{id:x}")]);
        Err(moved.text)
    });
}

/// Has etcd store a value, through this node's member. All values take room until etcd forgets its history.
///
/// # Errors
/// It may not have been stored, and why.
pub(crate) fn write(lab: &Lab, node: u32) -> Result<(), String> {
    let endpoint = endpoints(lab)?.remove(&node).ok_or("it has no member")?;
    let own = BTreeMap::from([(node, endpoint)]);
    let ended = run(lab, &own, &["put", KEY, &"x".repeat(VALUE_BYTES)]);
    (ended.code == 0).then_some(()).ok_or(ended.text)
}

/// The revision that a node's member has reached.
///
/// # Errors
/// Why that isn't known.
pub(crate) fn revision(lab: &Lab, node: u32) -> Result<u64, String> {
    let mut statuses = statuses(lab)?;
    let status = statuses.remove(&node).ok_or("its member doesn't answer")?;
    let revision = status["header"]["revision"].as_u64();
    revision.ok_or_else(|| status.to_string())
}

/// The process of a node's member, if it runs at this moment.
pub(crate) fn process_now(lab: &Lab, node: u32) -> Option<i32> {
    let daemon = lab.state(node)["pid"].as_i64()?;
    child_of(daemon as i32, "etcd")
}

/// The process of a node's member.
#[track_caller]
pub(crate) fn process(lab: &Lab, node: u32) -> i32 {
    process_now(lab, node).expect("its daemon runs a member of etcd")
}
