//! Where nodes listen, and connections to there.

use crate::bond::ports_for_link;
use crate::channel::Channel;
use crate::dial::{Dial, Place};
use crate::lanes::Lane;
use crate::security::Security;
use futures::future::BoxFuture;
use model::NodeId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use world::{Connection, Deadline, Instant, World};

/// Most addresses of a node.
pub const ADDRESSES_MAX: usize = 8;

/// How long an address to which no connection could be opened is tried after the others.
const FAILED_FOR: Duration = Duration::from_secs(10);

/// Most source ports that are tried until the kernel may choose one.
const PORTS_MAX: usize = 16;

/// The addresses of the cluster's nodes, as far as this node knows them.
pub struct Addresses {
    world: World,
    /// Where the lane for leases is.
    urgent: World,
    security: Option<Arc<Security>>,
    table: Mutex<BTreeMap<NodeId, Vec<Known>>>,
    bond_links: AtomicU8,
}

/// An address of a node.
#[derive(Clone, Copy, Debug)]
struct Known {
    address: SocketAddr,
    /// When no connection to it could be opened last, unless one was since.
    failed: Option<Instant>,
}

impl Addresses {
    /// No node is known yet.
    ///
    /// # Panics
    /// As `World::urgent`.
    #[must_use]
    pub fn new(world: &World) -> Self {
        Self {
            world: world.clone(),
            urgent: world.urgent(),
            security: None,
            table: Mutex::default(),
            bond_links: AtomicU8::new(0),
        }
    }

    /// Proves who is there, and protects the connections, as `security` says from each to the next.
    #[must_use]
    pub fn with_security(mut self, security: Arc<Security>) -> Self {
        self.security = Some(security);
        self
    }

    /// The node listens at this address from now on, and at no other. Open connections stay.
    pub fn set(&self, node: NodeId, address: SocketAddr) {
        self.set_all(node, &[address]);
    }

    /// The node listens at these addresses from now on, on different networks, say. The first
    /// [`ADDRESSES_MAX`] count: connections are spread over them, and each is tried when those before
    /// it don't answer. Open connections stay.
    pub fn set_all(&self, node: NodeId, addresses: &[SocketAddr]) {
        let mut table = self.table.lock();
        let before = table.remove(&node).unwrap_or_default();
        let failed = |address: &SocketAddr| {
            let before = before.iter().find(|known| known.address == *address);
            before.and_then(|known| known.failed)
        };
        let addresses = addresses.iter().take(ADDRESSES_MAX);
        let known = addresses.map(|address| Known {
            address: *address,
            failed: failed(address),
        });
        table.insert(node, known.collect());
    }

    /// The node isn't part of the cluster any more.
    pub fn remove(&self, node: NodeId) {
        self.table.lock().remove(&node);
    }

    /// This machine's network is a bond of so many links with `xmit_hash_policy=layer3+4`: source
    /// ports of connections from now on are chosen so that those to a node are spread over the links
    /// evenly. 0 or 1: ports aren't chosen.
    pub fn set_bond_links(&self, links: u8) {
        self.bond_links.store(links, Ordering::Relaxed);
    }

    async fn connect(
        &self,
        world: &World,
        address: SocketAddr,
        link: usize,
        deadline: Deadline,
    ) -> io::Result<Connection> {
        let links = self.bond_links.load(Ordering::Relaxed);
        if links > 1 {
            let own = world.address_towards(address.ip())?;
            let link = (link % usize::from(links)) as u8;
            let ports = world.ephemeral_ports();
            let random = world.random_u64();
            let ports = ports_for_link(own, address, (link, links), ports, random);
            for port in ports.take(PORTS_MAX) {
                let local = SocketAddr::new(own, port);
                let connected = world.connect_from(local, address, deadline).await;
                if !connected.as_ref().is_err_and(is_taken) {
                    return connected;
                }
            }
        }
        world.connect(address, deadline).await
    }

    /// A connection of which it is known that the node is on the other side, unless nothing is
    /// protected.
    async fn open(
        &self,
        world: &World,
        node: NodeId,
        address: SocketAddr,
        link: usize,
        deadline: Deadline,
    ) -> io::Result<Channel> {
        let connection = self.connect(world, address, link, deadline).await?;
        let Some(security) = &self.security else {
            return Ok(Channel::plain(connection));
        };
        let protected = security.connect(connection, node, Some(address.ip()));
        let protected = deadline.bound(world, protected).await;
        protected.unwrap_or_else(|_| {
            let text =
                format!("node {node} at {address} took the connection but didn't say who it is");
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        })
    }

    async fn dial_in_turn(
        &self,
        node: NodeId,
        place: Place,
        deadline: Deadline,
    ) -> io::Result<Channel> {
        let world = match place.lane {
            Lane::Lease => &self.urgent,
            Lane::Small | Lane::Bulk => &self.world,
        };
        let known = self.table.lock().get(&node).cloned().unwrap_or_default();
        if known.is_empty() {
            let text = format!("the address of node {node} isn't known");
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        // Connections with the same address are spread over the links.
        let link = place.number / known.len();
        let order = in_turn(&known, place.number, world.now());
        let mut errors = Vec::new();
        for (tried, address) in order.iter().enumerate() {
            // One that is silent leaves the others their share of the time.
            let left = (order.len() - tried) as u32;
            let share = Deadline::after(world, deadline.rest(world) / left);
            match self.open(world, node, *address, link, share).await {
                Ok(channel) => {
                    self.note(node, *address, None);
                    return Ok(channel);
                }
                Err(error) => {
                    self.note(node, *address, Some(world.now()));
                    errors.push((address, error));
                }
            }
        }
        let texts: Vec<_> = errors
            .iter()
            .map(|(address, error)| format!("{address}: {error}"))
            .collect();
        Err(io::Error::new(errors[0].1.kind(), texts.join("; ")))
    }

    fn note(&self, node: NodeId, address: SocketAddr, failed: Option<Instant>) {
        let mut table = self.table.lock();
        let known = table.get_mut(&node).into_iter().flatten();
        for known in known.filter(|known| known.address == address) {
            known.failed = failed;
        }
    }
}

/// Whether the source port is another socket's.
fn is_taken(error: &io::Error) -> bool {
    let kind = error.kind();
    matches!(
        kind,
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
    )
}

/// In which order a lane's connection with this number tries the addresses: each begins with another
/// one, and those that failed lately come last.
fn in_turn(known: &[Known], number: usize, now: Instant) -> Vec<SocketAddr> {
    let first = number % known.len();
    let turned = known[first..].iter().chain(&known[..first]);
    let has_failed = |known: &&Known| {
        known
            .failed
            .is_some_and(|failed| now.since(failed) < FAILED_FOR)
    };
    let (failed, good): (Vec<&Known>, Vec<&Known>) = turned.partition(has_failed);
    let order = good.into_iter().chain(failed);
    order.map(|known| known.address).collect()
}

impl Dial for Addresses {
    fn dial(
        &self,
        node: NodeId,
        place: Place,
        deadline: Deadline,
    ) -> BoxFuture<'_, io::Result<Channel>> {
        Box::pin(self.dial_in_turn(node, place, deadline))
    }
}
