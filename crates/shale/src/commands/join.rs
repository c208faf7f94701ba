//! `shale node join`: makes this machine a node of a cluster.

use super::{
    present::report,
    start::{ask, block_on, now, running, start},
};
use crate::{
    admin::{AddNsd, ClusterView, NodeLine, NsdLine, client::Admin},
    cli::Join,
    daemon::config::{NodeConfig, Plan},
    daemon::member::joining::{self, Wishes},
};
use hyper::Method;
use model::{Error, ErrorKind, Result};
use rpc::security::JoinToken;
use std::{
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};
use world::World;

/// How long a quorum node's member of etcd may take to catch up.
const VOTE_MAX: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// NSDs of a node if nothing else is said.
const NSDS_DEFAULT: u32 = 1;

/// Joins, starts the daemon, makes the NSDs. Whatever fails can be tried again with the same command.
///
/// # Errors
/// What was refused, and what to do.
pub fn join(join: &Join, json: bool) -> Result<ExitCode> {
    let dir = join.dir.absolute();
    let token = JoinToken::from_text(&join.token)?;
    let plan = Plan::of_new_member(join.mount.as_deref(), join.allow_other, join.nsd_size)?;
    let config = match NodeConfig::load_to_join(&dir)? {
        None => become_node(&dir, join, &token, &plan)?,
        Some(config) if config.cluster.is_some() => config,
        Some(_) => {
            let text = format!(
                "{} already holds a node with a file system of its own; use another --dir, or a machine that has none",
                dir.display()
            );
            return Err(Error::new(ErrorKind::Exists, text));
        }
    };
    if running(&dir)?.is_none() {
        start(&dir, false)?;
    }
    if join.quorum {
        wait_for_vote(&dir)?;
    }
    let wanted = join.nsds.unwrap_or(NSDS_DEFAULT) as usize;
    for _ in config.nsds.len()..wanted {
        let add = AddNsd {
            bytes: join.nsd_size,
            path: None,
        };
        ask::<Vec<NsdLine>>(&dir, "/v1/nsds", add)
            .map_err(|error| error.while_doing("adding an NSD to the node, which has joined"))?;
    }
    let status = running(&dir)?.ok_or_else(|| {
        Error::new(
            ErrorKind::Unavailable,
            "the daemon ended right after it started",
        )
    })?;
    report(&status, "has joined the cluster", json)
}

/// Waits until the node's member of etcd has its vote: the cluster doesn't survive more than before until then.
fn wait_for_vote(dir: &Path) -> Result<()> {
    let begun = Instant::now();
    loop {
        let view = block_on(async {
            let admin = Admin::of(dir);
            admin
                .ask::<ClusterView>(Method::GET, "/v1/cluster", ())
                .await
        })?;
        let own = NodeConfig::load(dir)?.and_then(|config| config.cluster);
        let own = own.map(|own| own.node);
        let has_vote = |line: &NodeLine| Some(line.node) == own && line.etcd.is_some();
        match view {
            Ok(view) if view.nodes.iter().any(has_vote) => return Ok(()),
            _ if begun.elapsed() > VOTE_MAX => {
                let text = format!(
                    "the node has joined, but its member of etcd has no vote after {} s: see {}, and try the same command again",
                    VOTE_MAX.as_secs(),
                    dir.join("daemon.log").display()
                );
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            _ => std::thread::sleep(LOOK_EVERY),
        }
    }
}

fn become_node(dir: &Path, join: &Join, token: &JoinToken, plan: &Plan) -> Result<NodeConfig> {
    if token.has_expired(now()?) {
        let text =
            "the join token's time is over; make another one with `shale cluster join-token`";
        return Err(Error::new(ErrorKind::AccessDenied, text));
    }
    let mut config = NodeConfig::of_new_member(dir, plan)?;
    let wishes = Wishes {
        name: join.name.clone(),
        is_quorum: join.quorum,
    };
    let cluster = block_on(async {
        let world = World::real();
        joining::become_node(&world, dir, token, join.address, &wishes).await
    })??;
    config.cluster = Some(cluster);
    config.store(dir)?;
    Ok(config)
}
