//! This node in its cluster: the member, and the clients of the file systems that are used here. A client is opened when its
//! file system is first used (`opening`), and closed when nobody has used it for a while (`kept` decides that, `unused` does it).

mod kept;
mod opening;
mod unused;

use super::etcd_identity::EtcdIdentity;
use super::key_ring::KeyRing;
use super::next_key::NextKey;
use crate::daemon::config::ClusterConfig;
use crate::daemon::file_systems::{FileSystems, OpenFileSystem};
use crate::daemon::health::EtcdFacts;
use client::{ClientSettings, FileSystemUsage, Legacy, Losses};
use futures::future::{BoxFuture, join_all};
use kept::Kept;
use model::{Error, ErrorKind, FileSystemName, InodeId, Result};
use node::{FIRST_FILE_SYSTEM, Member, NodeFacts};
use opening::Openings;
use rpc::security::{Credentials, Fingerprint, Policy, Security};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use world::World;

/// How long a node that ends waits for the manager to give its shards to others. Without a quorum nobody does.
const LEAVE_MAX: Duration = Duration::from_secs(20);

/// How long coordination may take when people wait: less than whoever asks this daemon waits.
const READ_MAX: Duration = Duration::from_secs(3);

/// How long the clients may take, together, to make durable what was written here. With [`LEAVE_MAX`] and what else there is
/// to end it is less than `shale down` and systemd wait.
const CLIENTS_MAX: Duration = Duration::from_secs(90);

/// How long a file system that is just being opened is waited for when the whole cluster stops.
const OPENING_MAX: Duration = Duration::from_secs(20);

/// A member of a cluster with its clients.
pub struct InCluster {
    member: Arc<Member>,
    facts: NodeFacts,
    cluster: ClusterConfig,
    security: Arc<Security>,
    /// With which it certifies others, if it does.
    keys: Option<Arc<KeyRing>>,
    /// What its member of etcd has for others, if it runs one.
    etcd_identity: Option<Arc<EtcdIdentity>>,
    /// Held while the node's key, its certificate or the authorities that it trusts are changed.
    renewing: tokio::sync::Mutex<()>,
    next_key: NextKey,
    /// Why it can't do its part of a change of keys or of `cipher_list`.
    security_trouble: parking_lot::Mutex<Option<String>>,
    /// The nodes that trust an authority which was replaced.
    still_trusting: parking_lot::Mutex<Vec<String>>,
    /// Where coordination is reached.
    endpoints: parking_lot::Mutex<Vec<String>>,
    /// What its members have said last.
    etcd_seen: parking_lot::Mutex<Option<EtcdFacts>>,
    /// Why there is no new certificate although it is time for one.
    renewal_trouble: parking_lot::Mutex<Option<String>>,
    /// What they open goes to `clients`, which is locked after them.
    openings: Openings<Arc<OpenFileSystem>>,
    clients: parking_lot::Mutex<Kept<OpenFileSystem>>,
    /// By clients that are closed. Locked after them.
    lost: parking_lot::Mutex<Losses>,
    /// It goes in good order: others get its shards first.
    leaves: AtomicBool,
    /// It was expelled by hand.
    barred: watch::Sender<bool>,
}

impl InCluster {
    /// A member that has joined.
    pub fn new(
        member: Arc<Member>,
        facts: NodeFacts,
        cluster: &ClusterConfig,
        security: Arc<Security>,
        (keys, etcd_identity): (Option<Arc<KeyRing>>, Option<Arc<EtcdIdentity>>),
    ) -> Self {
        Self {
            member,
            facts,
            cluster: cluster.clone(),
            security,
            keys,
            etcd_identity,
            renewing: tokio::sync::Mutex::default(),
            next_key: NextKey::default(),
            security_trouble: parking_lot::Mutex::default(),
            still_trusting: parking_lot::Mutex::default(),
            endpoints: parking_lot::Mutex::new(cluster.coordination.clone()),
            etcd_seen: parking_lot::Mutex::default(),
            renewal_trouble: parking_lot::Mutex::default(),
            openings: Openings::default(),
            clients: parking_lot::Mutex::default(),
            lost: parking_lot::Mutex::default(),
            leaves: AtomicBool::new(true),
            barred: watch::Sender::new(false),
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

    /// Its place in the cluster, as it was when this run joined.
    pub fn cluster(&self) -> &ClusterConfig {
        &self.cluster
    }

    /// What this node proves itself with.
    pub fn credentials(&self) -> Credentials {
        self.security.credentials()
    }

    /// The keys of the authority that this node has, if it certifies others.
    pub fn keys(&self) -> Option<&Arc<KeyRing>> {
        self.keys.as_ref()
    }

    /// Makes what the node's member of etcd has for other members anew, if it is time for it, or it is to be `by` another
    /// authority; `None`: by the one that has certified the node. Whether it did.
    ///
    /// # Errors
    /// As [`EtcdIdentity::renew`].
    pub fn renew_etcd_identity(&self, by: Option<[u8; 32]>) -> Result<bool> {
        let own = self.credentials();
        let by = by.map(Fingerprint).or_else(|| own.issuer());
        match (&self.etcd_identity, by) {
            (Some(identity), Some(by)) => identity.renew(&own, by, self.member.world().wall()),
            _ => Ok(false),
        }
    }

    /// How connections are protected here.
    pub fn policy(&self) -> Policy {
        self.security.policy()
    }

    /// Connections are protected in this way from the next one on.
    ///
    /// # Errors
    /// `Corrupt` if TLS can't use it; the policy before stays.
    pub fn set_policy(&self, policy: Policy) -> Result<()> {
        self.security.set_policy(policy)
    }

    /// While this is held, nobody else changes what the node proves itself with, or whom it trusts.
    pub(super) async fn renewing(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.renewing.lock().await
    }

    /// The key that takes the place of the node's.
    pub(super) fn next_key(&self) -> &NextKey {
        &self.next_key
    }

    /// Why the node can't do its part of a change of keys or of `cipher_list`.
    pub fn security_trouble(&self) -> Option<String> {
        self.security_trouble.lock().clone()
    }

    /// Remembers that, for `shale health`; `None`: it can.
    pub fn set_security_trouble(&self, why: Option<String>) {
        *self.security_trouble.lock() = why;
    }

    /// The nodes that trust an authority which was replaced, in words.
    pub(super) fn known_still_trusting(&self) -> Vec<String> {
        self.still_trusting.lock().clone()
    }

    /// Remembers those, for `shale health`.
    pub fn set_still_trusting(&self, nodes: Vec<String>) {
        *self.still_trusting.lock() = nodes;
    }

    /// This node proves itself with these from now on.
    pub(super) fn use_credentials(&self, credentials: Credentials) -> Result<()> {
        self.security.set_credentials(credentials)
    }

    /// Why there is no new certificate although it is time for one.
    pub(super) fn renewal_trouble(&self) -> Option<String> {
        self.renewal_trouble.lock().clone()
    }

    /// Remembers why there is no new certificate, for `shale health`; `None`: there is one.
    pub fn set_renewal_trouble(&self, why: Option<String>) {
        *self.renewal_trouble.lock() = why;
    }

    /// Where coordination is.
    pub fn endpoints(&self) -> Vec<String> {
        self.endpoints.lock().clone()
    }

    /// Coordination is there from now on.
    pub fn set_endpoints(&self, endpoints: &[String]) {
        *self.endpoints.lock() = endpoints.to_vec();
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

    /// Reads from coordination for people, who are told soon that it doesn't answer.
    ///
    /// # Errors
    /// `Unavailable` if it doesn't answer; those of `read`.
    pub(super) async fn read_soon<T>(&self, read: impl Future<Output = Result<T>>) -> Result<T> {
        let read = self.member.world().timeout(READ_MAX, read).await;
        read.unwrap_or_else(|_| {
            let text = "coordination doesn't answer: most of the quorum nodes must run, or of the members of an etcd of \
                        your own, and the network must reach them; try again";
            Err(Error::new(ErrorKind::Unavailable, text))
        })
    }

    /// The run has ended for the cluster: nothing can be handed over any more.
    pub fn was_expelled(&self) {
        self.leaves.store(false, Ordering::Relaxed);
    }

    /// The node was expelled by hand, as coordination says: it is to leave in good order.
    pub fn note_barred(&self) {
        self.barred.send_replace(true);
    }

    /// Whether it was, as far as is known.
    pub fn is_barred(&self) -> bool {
        *self.barred.borrow()
    }

    /// Returns when the run is to serve no more: the cluster doesn't count on it, or the node was expelled by hand.
    pub async fn over(&self) {
        let mut barred = self.barred.subscribe();
        tokio::select! {
            () = self.member.ended() => {}
            // The sender is here.
            _ = barred.wait_for(|barred| *barred) => {}
        }
    }

    /// Closes the clients; none is opened any more. For a stop of the whole cluster, in which the mounts have ended. Takes up
    /// to two minutes.
    ///
    /// # Errors
    /// The first thing that couldn't be made durable; the rest was closed all the same.
    pub async fn close_clients(&self) -> Result<()> {
        // Those that are being opened just now are closed with the others.
        let opened = self.openings.end();
        let in_time = self.member.world().timeout(OPENING_MAX, opened).await;
        if in_time.is_err() {
            tracing::warn!("a file system can't be opened in time, and that is given up");
        }
        self.close_open().await
    }

    async fn close_open(&self) -> Result<()> {
        self.openings.give_up().await;
        let clients = self.clients.lock().take_all();
        let close = |open: Arc<OpenFileSystem>| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move { open.close().await })
        };
        let closing: Vec<_> = clients.into_iter().map(close).collect();
        all_within(self.member.world(), CLIENTS_MAX, closing).await
    }

    /// The whole cluster stops: nobody is the manager any more, and there is nobody to whom something could be handed
    /// over.
    pub async fn retire(&self) {
        self.leaves.store(false, Ordering::Relaxed);
        self.member.retire().await;
    }

    /// Closes the clients, hands the shards over, and ends.
    ///
    /// # Errors
    /// The first thing that couldn't be made durable; the rest was closed all the same.
    pub async fn close(&self) -> Result<()> {
        self.member.refuse_commands();
        let result = self.close_open().await;
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

    /// How full the first file system is. Nothing is opened for that, unless its owner is of an earlier build.
    ///
    /// # Errors
    /// `Unavailable` if no owner answers within a client's patience.
    pub async fn usage_of_first(self: &Arc<Self>) -> Result<FileSystemUsage> {
        match self.member.usage_of_first().await {
            Err(error) if error.kind() == ErrorKind::SessionEnded => {
                let first = self.clone().open(None).await?;
                first.client.usage(first.root).await
            }
            usage => usage,
        }
    }

    fn known(&self, name: &FileSystemName) -> Option<Arc<OpenFileSystem>> {
        self.clients.lock().find(name)
    }

    /// Opens the first file system through a client that goes on with what one has left which the node had when it was alone.
    ///
    /// # Errors
    /// As [`Member::open_left`].
    pub async fn open_left(&self, legacy: Legacy) -> Result<Arc<OpenFileSystem>> {
        // Were etcd asked, and away, programs would lose all that they have.
        let settings = ClientSettings {
            page_pool_bytes: self.known_page_pool_bytes(),
            ..ClientSettings::default()
        };
        let client = self.member.open_left(legacy, settings).await?;
        let open = OpenFileSystem::new(client, InodeId::ROOT);
        let name = FIRST_FILE_SYSTEM.parse()?;
        self.clients.lock().insert(name, open.clone());
        Ok(open)
    }

    /// Opens a client; it is known when this returns.
    async fn open_new(self: Arc<Self>, name: FileSystemName) -> Result<Arc<OpenFileSystem>> {
        let settings = ClientSettings {
            page_pool_bytes: self.page_pool_bytes().await?,
            ..ClientSettings::default()
        };
        let opened = self.member.open_client_of_file_system(&name, settings);
        let (client, root) = opened.await?;
        let open = OpenFileSystem::new(client, root);
        self.clients.lock().insert(name, open.clone());
        Ok(open)
    }
}

/// Closes all at once.
///
/// # Errors
/// The first one's; `Unavailable` if they aren't all closed after so long.
async fn all_within(
    world: &World,
    most: Duration,
    closing: impl IntoIterator<Item = impl Future<Output = Result<()>>>,
) -> Result<()> {
    match world.timeout(most, join_all(closing)).await {
        Ok(closed) => closed.into_iter().collect(),
        Err(_) => {
            let text = format!(
                "what was written here isn't all durable after {} s, because owners of file systems or NSDs don't answer: \
                 what wasn't synced is lost",
                most.as_secs()
            );
            Err(Error::new(ErrorKind::Unavailable, text))
        }
    }
}

impl FileSystems for InCluster {
    fn open<'a>(
        self: Arc<Self>,
        name: Option<&'a FileSystemName>,
    ) -> BoxFuture<'a, Result<Arc<OpenFileSystem>>> {
        Box::pin(async move {
            let name = match name {
                Some(name) => name.clone(),
                None => FIRST_FILE_SYSTEM.parse()?,
            };
            let find = || self.known(&name);
            let open = || self.clone().open_new(name.clone());
            let world = self.member.world();
            self.openings.get(world, &name, find, open).await
        })
    }

    fn opened(&self) -> Vec<Arc<OpenFileSystem>> {
        self.clients.lock().opened()
    }

    fn losses(&self) -> Losses {
        let clients = self.clients.lock();
        let lost = *self.lost.lock();
        let all = clients.all().map(|open| open.client.losses());
        all.fold(lost, |sum, more| sum + more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use world::sim::Simulation;

    #[test]
    fn many_clients_that_hang_take_no_longer_than_one() {
        let run = Simulation::new(1).run(async |world: World| {
            let begun = world.now();
            let hang = (0..5).map(|_| std::future::pending());
            let ended = all_within(&world, CLIENTS_MAX, hang).await;
            assert_eq!(ended.unwrap_err().kind(), ErrorKind::Unavailable);
            assert_eq!(world.now() - begun, CLIENTS_MAX);
            let refused = || Err(Error::new(ErrorKind::Corrupt, "the disk fails"));
            let results = [Ok(()), refused(), Ok(())].map(std::future::ready);
            let ended = all_within(&world, CLIENTS_MAX, results).await;
            assert_eq!(ended.unwrap_err().kind(), ErrorKind::Corrupt);
        });
        run.finished();
        assert!(CLIENTS_MAX + LEAVE_MAX + Duration::from_secs(30) < crate::daemon::END_MAX);
    }
}
