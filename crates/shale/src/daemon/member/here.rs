//! This node in its cluster: the member, and the clients of the file systems that are used here.

use crate::daemon::config::ClusterConfig;
use crate::daemon::file_systems::FileSystems;
use crate::daemon::health::EtcdFacts;
use client::{Client, ClientSettings};
use futures::future::BoxFuture;
use model::{FileSystemName, InodeId, Result};
use node::{FIRST_FILE_SYSTEM, Member, NodeFacts};
use rpc::security::{Credentials, Security};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a node that ends waits for the manager to give its shards to others. Without a quorum nobody does.
const LEAVE_MAX: Duration = Duration::from_secs(20);

/// A client of a file system, and its root directory.
type Opened = (Arc<Client>, InodeId);

/// A member of a cluster with its clients.
pub struct InCluster {
    member: Arc<Member>,
    facts: NodeFacts,
    cluster: ClusterConfig,
    security: Arc<Security>,
    /// Where coordination is reached.
    endpoints: parking_lot::Mutex<Vec<String>>,
    /// What its members have said last.
    etcd_seen: parking_lot::Mutex<Option<EtcdFacts>>,
    /// Of each file system one, opened when it is first used. Held while one is opened, so that it is opened once.
    opened: tokio::sync::Mutex<()>,
    clients: parking_lot::Mutex<BTreeMap<FileSystemName, Opened>>,
    /// It goes in good order: others get its shards first.
    leaves: AtomicBool,
}

impl InCluster {
    /// A member that has joined.
    pub fn new(
        member: Arc<Member>,
        facts: NodeFacts,
        cluster: &ClusterConfig,
        security: Arc<Security>,
    ) -> Self {
        Self {
            member,
            facts,
            cluster: cluster.clone(),
            security,
            endpoints: parking_lot::Mutex::new(cluster.coordination.clone()),
            etcd_seen: parking_lot::Mutex::default(),
            opened: tokio::sync::Mutex::default(),
            clients: parking_lot::Mutex::default(),
            leaves: AtomicBool::new(true),
        }
    }

    /// The member.
    pub fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// The node as it was when its daemon started.
    pub fn facts(&self) -> &NodeFacts {
        &self.facts
    }

    /// The cluster, as 32 hex digits.
    pub fn cluster_text(&self) -> String {
        self.cluster.id.clone()
    }

    /// What this node proves itself with.
    pub fn credentials(&self) -> Credentials {
        self.security.credentials()
    }

    /// Where coordination is.
    pub fn endpoints(&self) -> Vec<String> {
        self.endpoints.lock().clone()
    }

    /// Coordination is there from now on.
    pub fn set_endpoints(&self, endpoints: &[String]) {
        *self.endpoints.lock() = endpoints.to_vec();
    }

    /// The node's place in the cluster, as it was when this run joined.
    pub(super) fn cluster(&self) -> &ClusterConfig {
        &self.cluster
    }

    /// What the members of etcd have said last; `None`: they weren't asked yet.
    pub fn etcd_seen(&self) -> Option<EtcdFacts> {
        self.etcd_seen.lock().clone()
    }

    pub(super) fn set_etcd_seen(&self, seen: EtcdFacts) {
        *self.etcd_seen.lock() = Some(seen);
    }

    /// Where this node's own member of etcd answers, if it has one.
    pub fn own_endpoint(&self) -> Option<String> {
        let own = self.cluster.etcd.as_ref()?;
        Some(super::founding::endpoint(own.client))
    }

    /// The run has ended for the cluster: nothing can be handed over any more.
    pub fn was_expelled(&self) {
        self.leaves.store(false, Ordering::Relaxed);
    }

    /// Closes the clients, hands the shards over, and ends.
    ///
    /// # Errors
    /// The first thing that couldn't be made durable; the rest was closed all the same.
    pub async fn close(&self) -> Result<()> {
        self.member.refuse_commands();
        let clients = std::mem::take(&mut *self.clients.lock());
        let mut result = Ok(());
        for (client, _) in clients.values() {
            result = result.and(client.close().await);
        }
        if self.leaves.load(Ordering::Relaxed) {
            let left = self.member.world().timeout(LEAVE_MAX, self.member.leave());
            // Others take over as after a kill.
            match left.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the node ends without having left the cluster")
                }
                Err(_) => {
                    tracing::warn!("no manager has let the node go in time: it ends all the same")
                }
            }
        }
        result.and(self.member.close().await)
    }

    fn known(&self, name: &FileSystemName) -> Option<Opened> {
        self.clients.lock().get(name).cloned()
    }
}

impl FileSystems for InCluster {
    fn open<'a>(&'a self, name: Option<&'a FileSystemName>) -> BoxFuture<'a, Result<Opened>> {
        Box::pin(async move {
            let name = match name {
                Some(name) => name.clone(),
                None => FIRST_FILE_SYSTEM.parse()?,
            };
            if let Some(known) = self.known(&name) {
                return Ok(known);
            }
            let _alone = self.opened.lock().await;
            if let Some(known) = self.known(&name) {
                return Ok(known);
            }
            let settings = ClientSettings {
                page_pool_bytes: self.page_pool_bytes().await?,
                ..ClientSettings::default()
            };
            let opened = self
                .member
                .open_client_of_file_system(&name, settings)
                .await?;
            self.clients.lock().insert(name, opened.clone());
            Ok(opened)
        })
    }

    fn clients(&self) -> Vec<Arc<Client>> {
        let clients = self.clients.lock();
        clients.values().map(|(client, _)| client.clone()).collect()
    }
}
