//! `shale cluster create`: makes a node that is alone the first one of a cluster.
//!
//! All that can be known before is checked first. *A daemon that runs* does the rest itself, and programs on its mounts see a
//! pause (`daemon/cluster/growing.rs`). *If none runs*, or one that had begun has died, the command has the directory's lock
//! until the new plan is in node.toml, so that no daemon starts with half of it, and then starts the daemon.

use super::{
    present::report,
    start::{ask, block_on, now, running, start},
};
use crate::{
    admin::Status,
    cli::Create,
    daemon::config::{ClusterConfig, EtcdConfig, NodeConfig},
    daemon::member::{checks, etcd_members, founding, outside::OutsideTls},
    directory::lock::{self, DirectoryLock},
    output::{self, say},
};
use coordination::etcd::{EtcdEndpoint, EtcdSettings};
use coordination::{Coordination, check_node_name};
use model::{Error, ErrorKind, Result};
use std::{
    net::SocketAddr,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};
use world::World;

/// Attempts to have the directory alone while others start its daemon.
const ATTEMPTS_MAX: usize = 3;
/// How long a daemon is waited for that has begun to become a cluster's, and how often it is asked.
const GROW_MAX: Duration = Duration::from_secs(300);
const GROW_PAUSE: Duration = Duration::from_millis(100);

/// What the user wants, checked as far as it can be.
struct Wanted {
    name: String,
    address: SocketAddr,
    etcd: Vec<String>,
    outside: Option<OutsideTls>,
}

/// Makes the cluster; goes on with an attempt that broke off, or replaces it if other arguments are given.
///
/// # Errors
/// What was refused, and what to do.
pub fn create(create: &Create, json: bool) -> Result<ExitCode> {
    let dir = &create.dir.absolute();
    let Some(address) = create.address else {
        return undo(dir, json);
    };
    to_found(dir)?;
    // A daemon that doesn't answer is what the user must hear of first.
    let status = running(dir)?;
    let wanted = wanted(create, address)?;
    if status.is_some_and(|status| status.cluster.is_none()) {
        let status = grow(dir, &wanted).map_err(|error| or_undo(dir, error))?;
        return report(&status, "is the first node of a cluster", json);
    }
    let lock = take_place(dir)?;
    let mut config = to_found(dir)?;
    let planned = plan(dir, &wanted, cluster_of(dir)?)?;
    if config.cluster.as_ref().is_some_and(|it| *it != planned) {
        take_back(dir, &mut config)?;
    }
    if let Some(outside) = &wanted.outside {
        outside.store(dir)?;
    }
    if config.cluster.is_none() {
        founding::make_keys(dir, &planned, now()?)?;
        config.cluster = Some(planned);
        config.store(dir)?;
    }
    drop(lock);
    if let Err(error) = start(dir, false)
        // Somebody else may have started it meanwhile.
        && running(dir)?.is_none()
    {
        return Err(or_undo(dir, error));
    }
    let status = running(dir)?.ok_or_else(|| {
        Error::new(
            ErrorKind::Unavailable,
            "the daemon ended right after it started",
        )
    })?;
    if status.cluster.is_none() {
        let text = "another command has changed the node meanwhile, and it belongs to no cluster; try again";
        return Err(Error::new(ErrorKind::Busy, text));
    }
    report(&status, "is the first node of a cluster", json)
}

/// The configuration of a node of which a cluster can be made.
fn to_found(dir: &Path) -> Result<NodeConfig> {
    let config = NodeConfig::load(dir)?.filter(|config| config.created);
    let config = config.ok_or_else(|| {
        let text = format!(
            "{} holds no node; start one with `shale up --dir {0}`, then make a cluster of it",
            dir.display()
        );
        Error::new(ErrorKind::NotFound, text)
    })?;
    match &config.cluster {
        Some(cluster) if !cluster.founding => {
            let text = format!(
                "this node is node {} of cluster {} already; other machines join it with `shale node join`",
                cluster.node, cluster.id
            );
            Err(Error::new(ErrorKind::Exists, text))
        }
        _ => Ok(config),
    }
}

fn wanted(create: &Create, address: SocketAddr) -> Result<Wanted> {
    let name = create.name.clone().unwrap_or_else(|| "n1".into());
    check_node_name(&name)?;
    let etcd = create.etcd.iter().map(|it| it.parse::<EtcdEndpoint>());
    let etcd = etcd.collect::<Result<Vec<_>>>()?;
    block_on(async {
        let world = World::real();
        if etcd.is_empty() {
            checks::check_etcd()?;
        }
        checks::check_place(&world, address, etcd.is_empty()).await?;
        let outside = create.etcd_ca.as_deref().map(|authority| {
            let (certificate, key) = (create.etcd_cert.as_deref(), create.etcd_key.as_deref());
            OutsideTls::from_files(&world, authority, certificate.zip(key))
        });
        let outside = outside.transpose()?;
        if !etcd.is_empty() {
            ask_etcd(&world, &etcd, outside.as_ref()).await?;
        }
        Ok(Wanted {
            name,
            address,
            etcd: etcd.iter().map(EtcdEndpoint::to_string).collect(),
            outside,
        })
    })?
}

/// That an etcd which others run answers.
async fn ask_etcd(
    world: &World,
    endpoints: &[EtcdEndpoint],
    outside: Option<&OutsideTls>,
) -> Result<()> {
    let secured = endpoints.iter().find(|it| it.has_tls);
    if let (Some(secured), None) = (secured, outside) {
        let text = format!(
            "{secured} has a certificate: say with --etcd-ca FILE whose (and with --etcd-cert and --etcd-key what it asks \
             clients for)"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    // Of no cluster, since this one's isn't known while its daemon runs.
    let prefix = "/shale/";
    let settings = match outside {
        Some(outside) => outside.settings(world, endpoints.to_vec(), prefix, None)?,
        None => EtcdSettings {
            endpoints: endpoints.to_vec(),
            prefix: prefix.into(),
            tls: None,
            cluster: None,
        },
    };
    let asked = Coordination::etcd(world, &settings)?.cluster().await;
    asked.map(drop).map_err(|error| {
        error.while_doing("asking the etcd that --etcd names; the node is as it was")
    })
}

/// Has the daemon that runs do it. Returns when it serves as the cluster's node.
fn grow(dir: &Path, wanted: &Wanted) -> Result<Status> {
    // The daemon knows what the cluster is called.
    let planned = plan(dir, wanted, String::new())?;
    if let Some(outside) = &wanted.outside {
        outside.store(dir)?;
    }
    ask::<serde_json::Value>(dir, "/v1/cluster", &planned)?;
    let begun = Instant::now();
    loop {
        // Between the two it has no status to tell.
        match running(dir) {
            Ok(Some(status)) if status.cluster.is_some() => return Ok(status),
            Ok(None) => {
                let text = "the daemon ended before it served as the cluster's node; `shale up` has the next one go on";
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            Err(error) if begun.elapsed() >= GROW_MAX => return Err(error),
            Ok(Some(_)) if begun.elapsed() >= GROW_MAX => {
                let text =
                    "the daemon doesn't come to it; `shale waiters` may say what it waits for";
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            Ok(Some(_)) | Err(_) => std::thread::sleep(GROW_PAUSE),
        }
    }
}

/// Takes the place of the daemon, which doesn't run.
fn take_place(dir: &Path) -> Result<DirectoryLock> {
    let mut attempts = 0;
    loop {
        if running(dir)?.is_some() {
            // Another command was first: its daemon goes on.
            to_found(dir)?;
            let text = "another command makes a cluster of this node, or has started it; see how it ends, and try again";
            return Err(Error::new(ErrorKind::Busy, text));
        }
        attempts += 1;
        match lock::take(dir) {
            // systemd, or another command.
            Err(error) if error.kind() == ErrorKind::Busy && attempts < ATTEMPTS_MAX => {}
            taken => return taken,
        }
    }
}

/// The node's place in its new cluster, which has this id.
fn plan(dir: &Path, wanted: &Wanted, id: String) -> Result<ClusterConfig> {
    let (own, coordination) = match wanted.etcd.is_empty() {
        true => {
            let (client, peer) = etcd_members::ports(wanted.address)?;
            let own = EtcdConfig {
                client,
                peer,
                joins: Vec::new(),
                began: false,
            };
            (Some(own), vec![founding::endpoint(client)])
        }
        false => (None, wanted.etcd.clone()),
    };
    Ok(ClusterConfig {
        prefix: format!("/shale/{id}/"),
        id,
        node: 1,
        name: wanted.name.clone(),
        address: wanted.address,
        coordination,
        etcd_id: None,
        etcd: own,
        outside: wanted.outside.as_ref().map(|it| it.places(dir)),
        founding: true,
    })
}

/// The id of the node's file system, which becomes the cluster's, as 32 hex digits. The caller has the directory's lock.
fn cluster_of(dir: &Path) -> Result<String> {
    let store = founding::own_store(dir);
    let id = block_on(async {
        let world = World::real();
        founding::open_store(&world, &store).await?.cluster().await
    })??;
    let id = id.ok_or_else(|| {
        let text = format!("{} holds no finished file system", store.display());
        Error::new(ErrorKind::NotFound, text)
    })?;
    Ok(format!("{id:032x}"))
}

fn take_back(dir: &Path, config: &mut NodeConfig) -> Result<()> {
    let taken = block_on(async { founding::take_back(&World::real(), dir, config).await })?;
    taken.map_err(|error| error.while_doing("taking the attempt before back"))
}

/// `shale cluster create --undo`.
fn undo(dir: &Path, json: bool) -> Result<ExitCode> {
    let is_alone = |config: &NodeConfig| config.cluster.is_none();
    let undone = match is_alone(&to_found(dir)?) {
        true => false,
        false => {
            running(dir)?;
            let _lock = lock::take(dir)?;
            let mut config = to_found(dir)?;
            take_back(dir, &mut config)?;
            true
        }
    };
    match (json, undone) {
        (true, _) => output::json(&serde_json::json!({ "undone": undone })),
        (_, true) => say!("the node is alone again; `shale up` mounts it"),
        (_, false) => say!("there is nothing to take back: the node is alone"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Adds the ways out to the error of an attempt that has failed.
fn or_undo(dir: &Path, error: Error) -> Error {
    let is_founding = |config: &NodeConfig| config.cluster.as_ref().is_some_and(|it| it.founding);
    let config = NodeConfig::load(dir).ok().flatten();
    if !config.as_ref().is_some_and(is_founding) {
        return error;
    }
    let text = format!(
        "{error}; nothing is lost: try again, with the same or other arguments, or go back to the node as it was with `shale \
         cluster create --undo`"
    );
    Error::new(error.kind(), text)
}
