//! `shale cluster …` and `shale node …`: shows a cluster, and changes its nodes.

use super::{
    present::{present, table_of_nodes},
    start::{ask, block_on},
    wait,
};
use crate::{
    admin::{
        ChangeNode, ClusterView, JoinTokenMade, MakeJoinToken, NodeLine, RotateKeys, RotationStep,
        RotationView, client::Admin,
    },
    cli::{Cluster, Dir, NodeCommand},
    output::{self, say},
};
use hyper::Method;
use model::{Error, ErrorKind, Result};
use std::process::ExitCode;

/// Runs a command on the cluster.
///
/// # Errors
/// What was refused and what to do.
pub fn cluster(command: Cluster, json: bool) -> Result<ExitCode> {
    match command {
        Cluster::Create(create) => super::create::create(&create, json),
        Cluster::JoinToken { dir, quorum } => {
            let body = MakeJoinToken { quorum };
            let made: JoinTokenMade = ask(&dir.absolute(), "/v1/cluster/join-token", body)?;
            match json {
                true => output::json(&made),
                false => say!("{}", made.token),
            }
            Ok(ExitCode::SUCCESS)
        }
        Cluster::RotateKeys {
            dir,
            finish,
            cancel,
            status,
        } => {
            let step = match (status, &finish, cancel) {
                (true, ..) => None,
                (_, Some(_), _) => Some(RotationStep::Finish),
                (.., true) => Some(RotationStep::Cancel),
                _ => Some(RotationStep::Begin),
            };
            let old = finish.flatten();
            rotate_keys(&dir, step.map(|step| RotateKeys { step, old }), json)
        }
        Cluster::Stop { dir, force } => super::stop::stop(&dir, force, json),
        Cluster::Show(dir) => show(&dir, json, |view| {
            say!("cluster {}", view.cluster);
            say!("coordination: {}", view.coordination.join(", "));
            table_of_nodes(&view.nodes);
            for line in &view.file_systems {
                let owner = line
                    .owner
                    .map_or("nobody".into(), |node| format!("node {node}"));
                say!(
                    "file system {}: shard {}, served by {owner}",
                    line.name,
                    line.shard
                );
            }
            ExitCode::SUCCESS
        }),
    }
}

/// Runs a command on nodes.
///
/// # Errors
/// What was refused and what to do.
pub fn node(command: NodeCommand, json: bool) -> Result<ExitCode> {
    let (dir, node, change) = match command {
        NodeCommand::Join(join) => return super::join::join(&join, json),
        NodeCommand::List(dir) => {
            return show(&dir, json, |view| {
                table_of_nodes(&view.nodes);
                ExitCode::SUCCESS
            });
        }
        NodeCommand::Drain {
            dir,
            node,
            cancel: true,
            ..
        } => return cancel_drain(&dir, &node, json),
        NodeCommand::Drain {
            dir, node, wait, ..
        } => return drain(&dir, &node, wait, json),
        NodeCommand::Remove { dir, node } => return remove(&dir, &node, json),
        NodeCommand::Expel { dir, node } => (dir, node, barred(true)),
        NodeCommand::Unexpel { dir, node } => (dir, node, barred(false)),
        NodeCommand::Class { dir, node, class } => {
            let change = ChangeNode {
                class: Some(class),
                ..ChangeNode::default()
            };
            (dir, node, change)
        }
    };
    block_on(async {
        let admin = Admin::of(&dir.absolute());
        let number = number_of(&admin, &node).await?;
        let path = format!("/v1/nodes/{number}");
        let answer: serde_json::Value = admin.ask(Method::PATCH, &path, change).await?;
        present(answer, json, output::json, |view: &ClusterView| {
            table_of_nodes(&view.nodes);
            ExitCode::SUCCESS
        })
    })?
}

/// Takes a step of a rotation of keys, or only shows how far it is.
fn rotate_keys(dir: &Dir, step: Option<RotateKeys>, json: bool) -> Result<ExitCode> {
    block_on(async {
        let admin = Admin::of(&dir.absolute());
        let path = "/v1/cluster/keys";
        let answer = match step {
            Some(step) => admin.ask(Method::POST, path, step).await?,
            None => admin.ask(Method::GET, path, ()).await?,
        };
        present(answer, json, output::json, |view: &RotationView| {
            rotation(view);
            ExitCode::SUCCESS
        })
    })?
}

fn rotation(view: &RotationView) {
    say!("authority {}", view.current);
    if let Some(next) = &view.next {
        say!("the next one {next}");
    }
    let old = view.old.join(", ");
    match (view.step.as_str(), view.waits_for.is_empty()) {
        ("none", true) if old.is_empty() => say!("no keys are being replaced"),
        ("none", true) => say!("authority {old} isn't trusted any more"),
        ("none", false) => say!("authority {old} isn't trusted any more, but by:"),
        ("trust", true) => {
            say!("all nodes trust the next authority; it certifies them in some seconds")
        }
        ("trust", false) => say!("nodes that don't trust the next authority yet:"),
        (_, true) => say!(
            "all nodes have certificates by the next authority; `shale cluster rotate-keys --finish` ends the trust in \
             authority {}",
            view.current
        ),
        (_, false) => say!("nodes that have no certificate by the next authority yet:"),
    }
    for line in &view.waits_for {
        say!(
            "  node {} ({}, {}) {}",
            line.node,
            line.name,
            line.state,
            line.lacks
        );
    }
    if let Some(why) = &view.held_up {
        say!("{why}");
    }
}

fn barred(barred: bool) -> ChangeNode {
    ChangeNode {
        barred: Some(barred),
        ..ChangeNode::default()
    }
}

fn drain(dir: &Dir, node: &str, waits: bool, json: bool) -> Result<ExitCode> {
    block_on(async {
        let admin = Admin::of(&dir.absolute());
        let number = number_of(&admin, node).await?;
        if waits {
            return wait::for_empty_node(&admin, number, json).await;
        }
        let path = format!("/v1/nodes/{number}/drain");
        let answer: serde_json::Value = admin.ask(Method::POST, &path, ()).await?;
        let is_empty = answer["nsds"].as_array().is_some_and(Vec::is_empty);
        match json {
            true => output::json(&answer),
            false if is_empty => say!(
                "node {number} is already empty: it has no NSD in use; `shale down` there ends it"
            ),
            false => say!(
                "node {number} is being emptied; `shale nsd list` shows how far, and calls its NSDs lost when they are \
                 empty; then `shale down` there"
            ),
        }
        Ok(ExitCode::SUCCESS)
    })?
}

fn cancel_drain(dir: &Dir, node: &str, json: bool) -> Result<ExitCode> {
    block_on(async {
        let admin = Admin::of(&dir.absolute());
        let number = number_of(&admin, node).await?;
        let path = format!("/v1/nodes/{number}/drain");
        let answer: serde_json::Value = admin.ask(Method::DELETE, &path, ()).await?;
        match json {
            true => output::json(&answer),
            false => say!(
                "node {number} isn't emptied any more: its NSDs that `shale nsd list` calls active take new data again, and \
                 what has moved stays where it is"
            ),
        }
        Ok(ExitCode::SUCCESS)
    })?
}

fn remove(dir: &Dir, node: &str, json: bool) -> Result<ExitCode> {
    block_on(async {
        let admin = Admin::of(&dir.absolute());
        let number = number_of(&admin, node).await?;
        let path = format!("/v1/nodes/{number}");
        let answer: serde_json::Value = admin.ask(Method::DELETE, &path, ()).await?;
        present(answer, json, output::json, |view: &ClusterView| {
            say!("node {number} is removed");
            table_of_nodes(&view.nodes);
            ExitCode::SUCCESS
        })
    })?
}

fn show(dir: &Dir, json: bool, print: impl FnOnce(&ClusterView) -> ExitCode) -> Result<ExitCode> {
    block_on(async {
        let admin = Admin::of(&dir.absolute());
        let answer = admin.ask(Method::GET, "/v1/cluster", ()).await?;
        present(answer, json, output::json, print)
    })?
}

/// The number of a node that is given by number or name.
///
/// # Errors
/// `NotFound`, with the nodes that there are.
pub(crate) async fn number_of(admin: &Admin, node: &str) -> Result<u32> {
    let view: ClusterView = admin.ask(Method::GET, "/v1/cluster", ()).await?;
    found(&view.nodes, node).ok_or_else(|| {
        let names = view
            .nodes
            .iter()
            .map(|it| format!("{} ({})", it.node, it.name));
        let names: Vec<_> = names.collect();
        let text = format!(
            "the cluster has no node {node:?}; there are: {}",
            names.join(", ")
        );
        Error::new(ErrorKind::NotFound, text)
    })
}

/// The node that is meant. Of an earlier build one may have a name that is another one's number: then the number is meant.
fn found(nodes: &[NodeLine], node: &str) -> Option<u32> {
    let number = node.parse::<u32>().ok();
    let numbered = nodes.iter().find(|it| Some(it.node) == number);
    let named = || nodes.iter().find(|it| it.name == node);
    numbered.or_else(named).map(|it| it.node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_nodes_number_before_it_is_a_name() {
        let line = |node: u32, name: &str| NodeLine {
            node,
            name: name.into(),
            class: "default".into(),
            quorum: false,
            authority: false,
            etcd: None,
            state: "up".into(),
            cause: None,
            address: None,
            manager: false,
            shards: Vec::new(),
            nsds: Vec::new(),
        };
        let nodes = [line(1, "2"), line(2, "n2"), line(3, "9")];
        let meant = [("1", 1), ("2", 2), ("n2", 2), ("9", 3)];
        for (node, number) in meant {
            assert_eq!(found(&nodes, node), Some(number), "{node}");
        }
        assert_eq!(found(&nodes, "n9"), None);
    }
}
