//! What a running node learns from the cluster's facts: that it was expelled by hand, where coordination is now, because
//! quorum nodes have come or gone, and how it is to be connected to others. And how the members of etcd are.

use crate::daemon::config::{ClusterConfig, NodeConfig};
use crate::daemon::member::endpoints::moved;
use crate::daemon::member::{InCluster, joining::etcd_settings};
use crate::daemon::serving::Serving;
use model::Result;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often the facts are read. Reading them costs coordination one list of the nodes.
const READ_EVERY: Duration = Duration::from_secs(5);

/// How often it is looked whether settings have changed that count at once; what they are is known without asking.
const SETTINGS_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked whether the node needs a new certificate; there are months for it.
const RENEW_EVERY: Duration = Duration::from_secs(3600);
/// Pause after an attempt to get one that failed.
const RENEW_AGAIN: Duration = Duration::from_secs(60);
/// How often the members of etcd are asked how they are.
const ETCD_EVERY: Duration = Duration::from_secs(30);

/// Ends the run when the node was expelled by hand, keeps node.toml's list of endpoints, its connections and the certificate up to
/// date, and looks how etcd is. Never returns.
pub(crate) async fn keep(serving: Arc<Serving>, here: Arc<InCluster>) {
    futures::join!(
        keep_facts(&serving, &here),
        keep_connections(&here),
        look_at_etcd(&here),
        renew_certificate(&serving, &here),
    );
}

async fn renew_certificate(serving: &Serving, here: &InCluster) {
    loop {
        let renewed = here.renew_certificate(serving.dir()).await;
        let pause = match &renewed {
            Ok(false) => RENEW_EVERY,
            Ok(true) => {
                tracing::info!("this node has a new certificate");
                serving.events.tell(
                    "certificate-renewed",
                    "this node",
                    "its certificate was in its last third; it has a new one",
                );
                RENEW_EVERY
            }
            Err(error) => {
                tracing::warn!(%error, "this node's certificate couldn't be renewed");
                RENEW_AGAIN
            }
        };
        here.set_renewal_trouble(renewed.err().map(|error| error.to_string()));
        here.member().world().sleep(pause).await;
    }
}

async fn keep_connections(here: &InCluster) {
    let mut used = None;
    loop {
        let wanted = here.network();
        if used != Some(wanted) {
            match here.member().set_connections(wanted.connections) {
                Ok(()) => {
                    here.member().set_bond_links(wanted.bond_links);
                    let (connections, bond_links) = (wanted.connections, wanted.bond_links);
                    tracing::info!(
                        ?connections,
                        bond_links,
                        "the node is connected in this way to others"
                    );
                    used = Some(wanted);
                }
                Err(error) => tracing::error!(%error, "the settings of connections can't be used"),
            }
        }
        here.member().world().sleep(SETTINGS_EVERY).await;
    }
}

async fn look_at_etcd(here: &InCluster) {
    loop {
        if let Err(error) = here.look_at_etcd().await {
            tracing::debug!(%error, "etcd doesn't say how it is");
        }
        here.member().world().sleep(ETCD_EVERY).await;
    }
}

async fn keep_facts(serving: &Serving, here: &InCluster) {
    loop {
        here.member().world().sleep(READ_EVERY).await;
        match keep_once(serving, here).await {
            Ok(()) => {}
            Err(error) => tracing::debug!(%error, "the cluster's nodes couldn't be read"),
        }
    }
}

async fn keep_once(serving: &Serving, here: &InCluster) -> Result<()> {
    let nodes = here.member().coordination().nodes().await?;
    let own = nodes.get(&here.member().run().node);
    // Or it was removed while it started: the next run isn't let in.
    if own.is_none_or(|own| own.value.is_barred) {
        here.note_barred();
        return Ok(());
    }
    let Some(known) = serving.config.lock().cluster.clone() else {
        return Ok(());
    };
    // Its own first: it answers soonest.
    let first = here.own_endpoint();
    let Some(next) = moved(&known, first.as_deref(), &nodes) else {
        return Ok(());
    };
    let world = here.member().world();
    let settings = etcd_settings(world, &next, &here.credentials())?;
    here.member().coordination().reach(&settings)?;
    here.set_endpoints(&next.coordination);
    tracing::info!(endpoints = %next.coordination.join(", "), "coordination is reached there from now on");
    replace(&mut serving.config.lock(), next, serving.dir())
}

/// Stores the node's place in the cluster. What couldn't be stored isn't known either, and is stored next time.
fn replace(config: &mut NodeConfig, next: ClusterConfig, dir: &Path) -> Result<()> {
    let changed = NodeConfig {
        cluster: Some(next),
        ..config.clone()
    };
    changed.store(dir)?;
    *config = changed;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::config::Plan;

    #[test]
    fn a_place_in_the_cluster_that_could_not_be_stored_is_stored_next_time() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("node");
        let plan = Plan::of_new_member(None, false, None).unwrap();
        let mut config = NodeConfig::of_new_member(&dir, &plan).unwrap();
        let cluster = ClusterConfig {
            id: "0".repeat(32),
            node: 1,
            name: "n1".into(),
            address: "10.0.0.1:7311".parse().unwrap(),
            coordination: vec!["https://10.0.0.1:7312".into()],
            etcd_id: None,
            prefix: "/shale/".into(),
            etcd: None,
            outside: None,
            founding: false,
        };
        let away = home.path().join("away");
        std::fs::rename(&dir, &away).unwrap();
        replace(&mut config, cluster.clone(), &dir).unwrap_err();
        assert!(config.cluster.is_none());
        std::fs::rename(&away, &dir).unwrap();
        replace(&mut config, cluster.clone(), &dir).unwrap();
        assert_eq!(config.cluster, Some(cluster));
    }
}
