//! `shale waiters --all`: what a program on one node waits for, over the others to the lease or lock at the end.

use super::{Cluster, three_nodes};
use crate::fixture::{
    chains::{self, Link},
    open, poll,
    signals::signal,
};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::time::Duration;

/// All that a node says of all; the exit code is 1 if one of them is silent.
pub(super) fn waiters(cluster: &Cluster, asked: usize) -> Value {
    let output = cluster.node(asked).run(&["waiters", "--all", "--json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

#[test]
fn a_program_that_waits_for_a_stopped_node_shows_with_the_lease_at_the_end() {
    let cluster = three_nodes();
    let owner = cluster.owner(1).unwrap();
    let (holder, reader) = (1 + owner % 3, 1 + (owner + 1) % 3);
    fs::write(cluster.path(holder, "held"), "written").unwrap();
    let pid = cluster.node(holder).pid();
    let manager = cluster.view(owner)["manager"].as_u64();
    signal(pid, Signal::STOP);
    let path = cluster.path(reader, "held");
    let program = std::thread::spawn(move || fs::read(path));
    let silent = format!("no answer from n{holder} within 2 s");
    let returns = format!("to be given back by n{holder}, whose tokens");
    let is_it = |way: &Vec<Link>| {
        let mut links = way.iter();
        let is_called = |link: &Link| {
            link.node == Some(owner as u64) && link.text.contains(&format!("a call of n{reader}"))
        };
        links.any(is_called)
            && links.any(|link| link.text.contains(&returns))
            && links.any(|link| link.text == silent)
    };
    // Its tokens last for seconds, and the command waits two for it.
    let way = poll::until("the chain is shown", Duration::from_secs(60), || {
        let said = waiters(&cluster, owner);
        let ways = chains::from(&said, reader as u64);
        ways.into_iter().find(is_it).ok_or_else(|| said.to_string())
    });
    let first = &way[0];
    assert!(first.text.contains("process"), "{way:?}");
    let last = way.last().unwrap();
    assert!(last.remedy.is_some(), "{way:?}");
    // Unless the manager is the one that is stopped.
    if manager != Some(holder as u64) {
        let lease = format!("for the lease of n{holder}, which lasts");
        assert!(last.text.contains(&lease), "{way:?}");
    }
    assert_eq!(program.join().unwrap().unwrap(), b"written");
    signal(pid, Signal::CONT);
    // When all is well nothing is left, and a node tells of itself without asking others.
    poll::until("nothing waits", Duration::from_secs(60), || {
        let said = waiters(&cluster, reader);
        let entries = said.as_array().ok_or("no answer")?;
        let is_well = |entry: &Value| entry["answer"].as_array().is_some_and(Vec::is_empty);
        match entries.len() == 3 && entries.iter().all(is_well) {
            true => Ok(()),
            false => Err(said.to_string()),
        }
    });
    let said = cluster.node(reader).must(&["waiters"]);
    assert!(said.starts_with("nothing"), "{said}");
}

/// Would be broken if somebody whose program hangs weren't told on which node the program is that has the lock, be the owner
/// here or there.
#[test]
fn a_program_that_waits_for_a_lock_shows_with_whoever_has_it_at_the_end() {
    let cluster = Cluster::of(2);
    let owner = cluster.owner(1).unwrap() as u64;
    for (holder, waiter) in [(1, 2), (2, 1)] {
        let locked = |node: usize| open(&cluster.path(node, "locked"));
        let (held, waits) = (locked(holder), locked(waiter));
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let program = std::thread::spawn(move || flock(&waits, FlockOperation::LockExclusive));
        let has_it = format!(" on n{holder} has");
        let is_it = |way: &Vec<Link>| {
            let last = way.last().unwrap();
            let is_lock = last.text.starts_with("waits for the lock of inode ");
            last.node == Some(owner) && is_lock && last.text.ends_with(&has_it)
        };
        let way = poll::until("the chain is shown", Duration::from_secs(60), || {
            let said = waiters(&cluster, waiter);
            let ways = chains::from(&said, waiter as u64);
            ways.into_iter().find(is_it).ok_or_else(|| said.to_string())
        });
        let remedy = way.last().and_then(|last| last.remedy.as_deref());
        assert!(
            remedy.is_some_and(|it| it.contains("its locks end with it")),
            "{way:?}"
        );
        drop(held);
        program.join().unwrap().unwrap();
    }
}
