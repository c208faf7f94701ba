//! `shale cluster stop`: has all nodes of the cluster end, and says of each what became of it.

use super::{down::Ending, progress::UntilInterrupted, start::ask};
use crate::{
    admin::stopping::{ClusterStopped, StopCluster, StoppedNode},
    cli::Dir,
    output::{self, say},
};
use model::Result;
use std::process::ExitCode;

/// Stops the cluster. The exit code is 0 if all its members have ended with everything durable.
///
/// # Errors
/// `NotSupported` on a node that is alone; `Unavailable` if the daemon here doesn't answer.
pub fn stop(dir: &Dir, force: bool, json: bool) -> Result<ExitCode> {
    let dir = dir.absolute();
    let running = UntilInterrupted::tell("the daemons go on to stop the cluster");
    let ending = Ending::of(&dir);
    let mut stopped: ClusterStopped = ask(&dir, "/v1/cluster/stop", StopCluster { force })?;
    if stopped.stops {
        let ended = ending.wait();
        for node in stopped.nodes.iter_mut().filter(|it| it.is_here) {
            note_end_here(node, &ended);
        }
    }
    drop(running);
    match json {
        true => output::json(&stopped),
        false => lines(&stopped).iter().for_each(|line| say!("{line}")),
    }
    Ok(match is_done(&stopped) {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(1),
    })
}

/// This node ends after its daemon has answered.
fn note_end_here(node: &mut StoppedNode, ended: &Result<()>) {
    match ended {
        Ok(()) if node.state == "ends" => node.state = "ended".into(),
        Ok(()) => {}
        Err(error) => node.why = Some(error.to_string()),
    }
}

/// Whether all members have ended, and nothing is wrong with what they had.
fn is_done(stopped: &ClusterStopped) -> bool {
    let is_well = |node: &StoppedNode| match node.state.as_str() {
        "ended" => node.why.is_none(),
        // It was no member.
        "away" => true,
        _ => false,
    };
    stopped.stops && stopped.nodes.iter().all(is_well)
}

fn lines(stopped: &ClusterStopped) -> Vec<String> {
    let mut lines = Vec::new();
    if !stopped.stops {
        lines.push("the cluster isn't stopped, and all its nodes go on:".into());
    }
    for node in &stopped.nodes {
        // Nothing is to be said of those that go on because of others.
        if stopped.stops || node.why.is_some() {
            lines.extend(lines_of(node));
        }
    }
    if is_done(stopped) {
        lines.push(
            "the cluster is stopped, and everything is durable; `shale up` on each node starts it again"
                .into(),
        );
    }
    lines
}

fn lines_of(node: &StoppedNode) -> Vec<String> {
    let name = match node.name.is_empty() {
        true => format!("node {}", node.node),
        false => node.name.clone(),
    };
    let here = if node.is_here { " (this node)" } else { "" };
    let state = match node.state.as_str() {
        "ended" => "has ended",
        "ends" => "was told to end, and it isn't known whether it has",
        "silent" => "gives no answer",
        "away" => "was no member of the cluster",
        _ => "is up",
    };
    let why = node.why.as_ref().map(|why| format!(": {why}"));
    let mut lines = vec![format!("{name}{here} {state}{}", why.unwrap_or_default())];
    lines.extend(node.remedy.iter().map(|remedy| format!("  {remedy}")));
    let left = node.left.iter();
    lines.extend(left.map(|place| {
        format!("  {place} still shows the file system, which is dead there: unmount it")
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u32, state: &str, why: Option<&str>) -> StoppedNode {
        StoppedNode {
            node: number,
            name: format!("n{number}"),
            is_here: number == 1,
            state: state.into(),
            why: why.map(str::to_owned),
            remedy: None,
            left: Vec::new(),
        }
    }

    #[test]
    fn each_node_is_said_to_have_ended_once_it_has() {
        let mut stopped = ClusterStopped {
            stops: true,
            nodes: vec![node(1, "ends", None), node(2, "ended", None)],
        };
        assert!(!is_done(&stopped));
        note_end_here(&mut stopped.nodes[0], &Ok(()));
        assert!(is_done(&stopped));
        let said = lines(&stopped);
        assert_eq!(said[..2], ["n1 (this node) has ended", "n2 has ended"]);
        assert!(said[2].contains("`shale up` on each node"), "{said:?}");
        stopped.nodes.push(node(3, "away", Some("it was expelled")));
        assert!(is_done(&stopped));
        // Data that are lost are told.
        stopped.nodes[1].why = Some("not all is durable".into());
        assert!(!is_done(&stopped));
        let said = lines(&stopped);
        assert_eq!(said[1], "n2 has ended: not all is durable");
        assert_eq!(said.len(), 3, "{said:?}");
    }

    #[test]
    fn a_cluster_that_goes_on_says_who_holds_it_up() {
        let busy = node(2, "up", Some("programs still use /mnt: cat (process 7)"));
        let stopped = ClusterStopped {
            stops: false,
            nodes: vec![node(1, "up", None), busy],
        };
        assert!(!is_done(&stopped));
        let said = lines(&stopped);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[1].starts_with("n2 is up: programs still use /mnt: cat"));
    }

    #[test]
    fn what_is_left_and_what_can_be_done_is_below_its_node() {
        let silent = StoppedNode {
            name: String::new(),
            remedy: Some("`shale down` there".into()),
            left: vec!["the bind mount at /b".into()],
            ..node(3, "silent", Some("no answer"))
        };
        let said = lines_of(&silent);
        let expected = [
            "node 3 gives no answer: no answer",
            "  `shale down` there",
            "  the bind mount at /b still shows the file system, which is dead there: unmount it",
        ];
        assert_eq!(said, expected);
    }
}
