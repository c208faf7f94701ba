//! `shale cluster …` and `shale node …`: makes a cluster of a node, shows it, and changes its nodes.

use super::{
    present::{present, report, table_of_nodes},
    start::{ask, block_on, now, running, start},
};
use crate::{
    admin::{ChangeNode, ClusterView, JoinTokenMade, Stopping, client::Admin},
    cli::{Cluster, Dir, NodeCommand},
    daemon::config::{ClusterConfig, EtcdConfig, NodeConfig},
    daemon::member::{founding, joining},
    directory::lock,
    output::{self, say},
};
use hyper::Method;
use model::{Error, ErrorKind, Result};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Runs a command on the cluster.
///
/// # Errors
/// What was refused and what to do.
pub fn cluster(command: Cluster, json: bool) -> Result<ExitCode> {
    match command {
        Cluster::Create {
            dir,
            address,
            name,
            etcd,
        } => create(&dir.absolute(), address, name, etcd, json),
        Cluster::JoinToken(dir) => {
            let made: JoinTokenMade = ask(&dir.absolute(), "/v1/cluster/join-token", ())?;
            match json {
                true => output::json(&made),
                false => say!("{}", made.token),
            }
            Ok(ExitCode::SUCCESS)
        }
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
        NodeCommand::Drain { dir, node } => return drain(&dir, &node, json),
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

fn barred(barred: bool) -> ChangeNode {
    ChangeNode {
        barred: Some(barred),
        ..ChangeNode::default()
    }
}

fn drain(dir: &Dir, node: &str, json: bool) -> Result<ExitCode> {
    block_on(async {
        let admin = Admin::of(&dir.absolute());
        let number = number_of(&admin, node).await?;
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
pub async fn number_of(admin: &Admin, node: &str) -> Result<u32> {
    let view: ClusterView = admin.ask(Method::GET, "/v1/cluster", ()).await?;
    let number = node.parse::<u32>().ok();
    let is_meant = |it: &&crate::admin::NodeLine| it.name == node || Some(it.node) == number;
    let found = view.nodes.iter().find(is_meant).map(|it| it.node);
    found.ok_or_else(|| {
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

/// `shale cluster create`.
fn create(
    dir: &Path,
    address: SocketAddr,
    name: Option<String>,
    etcd: Vec<String>,
    json: bool,
) -> Result<ExitCode> {
    let config = NodeConfig::load(dir)?.filter(|config| config.created);
    let Some(mut config) = config else {
        let text = format!(
            "{} holds no node; start one with `shale up --dir {0}`, then make a cluster of it",
            dir.display()
        );
        return Err(Error::new(ErrorKind::NotFound, text));
    };
    match &config.cluster {
        Some(cluster) if !cluster.founding => {
            let text = format!(
                "this node is node {} of cluster {} already; other machines join it with `shale node join`",
                cluster.node, cluster.id
            );
            return Err(Error::new(ErrorKind::Exists, text));
        }
        // An attempt that broke off goes on as it began.
        Some(_) => {}
        None => {
            if running(dir)?.is_some() {
                let how = serde_json::json!({ "force": false });
                ask::<Stopping>(dir, "/v1/shutdown", how)
                    .map_err(|error| error.while_doing("ending the node's mount for a moment"))?;
                super::down::wait_for_end(dir)?;
            }
            let planned = plan(dir, address, name, etcd)?;
            founding::make_keys(dir, &planned, now()?)?;
            config.cluster = Some(planned);
            config.store(dir)?;
        }
    }
    if running(dir)?.is_none() {
        start(dir, false)?;
    }
    let status = running(dir)?.ok_or_else(|| {
        Error::new(
            ErrorKind::Unavailable,
            "the daemon ended right after it started",
        )
    })?;
    report(&status, "is the first node of a cluster", json)
}

/// The node's place in its new cluster.
fn plan(
    dir: &Path,
    address: SocketAddr,
    name: Option<String>,
    etcd: Vec<String>,
) -> Result<ClusterConfig> {
    let id = cluster_of(dir)?;
    let (own, coordination) = match etcd.is_empty() {
        true => {
            let (client, peer) = joining::etcd_ports(address)?;
            let own = EtcdConfig {
                client,
                peer,
                joins: Vec::new(),
            };
            (Some(own), vec![founding::endpoint(client)])
        }
        false => (None, etcd),
    };
    for endpoint in &coordination {
        endpoint.parse::<coordination::etcd::EtcdEndpoint>()?;
    }
    Ok(ClusterConfig {
        prefix: format!("/shale/{id}/"),
        id,
        node: 1,
        name: name.unwrap_or_else(|| "n1".into()),
        address,
        coordination,
        etcd: own,
        founding: true,
    })
}

/// The id of the node's file system, which becomes the cluster's, as 32 hex digits.
fn cluster_of(dir: &Path) -> Result<String> {
    // Nobody else may use the store meanwhile.
    let _lock = lock::take(dir)?;
    let store: PathBuf = founding::own_store(dir);
    let id = block_on(async {
        let world = world::World::real();
        founding::open_store(&world, &store).await?.cluster().await
    })??;
    let id = id.ok_or_else(|| {
        let text = format!("{} holds no finished file system", store.display());
        Error::new(ErrorKind::NotFound, text)
    })?;
    Ok(format!("{id:032x}"))
}
