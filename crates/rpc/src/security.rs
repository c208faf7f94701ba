//! Who is a node of the cluster, and how connections between nodes are protected.
//!
//! *The authority* of a cluster certifies nodes; a node's *credentials* are its key, its certificate and
//! the authorities that it believes. [`Security`] holds those and the policy (`cipherList`), and both can
//! be replaced while it is used. *A connection*: `Addresses` or `Gate` hand the bare stream to
//! [`Security`], TLS proves both sides (`handshake`), and out comes a [`Channel`] whose frames go
//! sealed (`crate::seal`), with older builds inside TLS. *A machine that joins* has only a token (`token`, `join`).
//!
//! Random numbers for keys, serials, secrets and TLS come from the system through aws-lc, not from
//! `world`: no simulation uses this module. `docs/protocols/security.md` tells the whole story.

mod authority;
mod belief;
mod certificate;
mod configs;
mod credentials;
mod explain;
mod handshake;
mod join;
mod keys;
mod mode;
mod names;
mod outside;
mod records;
mod refusals;
mod steps;
mod token;
mod vouching;

pub use authority::{AUTHORITY_LIFE, Authority, ETCD_MEMBER, Holder, NODE_LIFE};
pub use certificate::{Certificate, Fingerprint, Validity};
pub use credentials::Credentials;
pub use join::{Admit, Joined, Newcomer, join};
pub use keys::{PrivateKey, SigningRequest};
pub use mode::{BadMode, Mode, Policy, Suite, Suites};
pub use names::{NodeName, NotANodeName};
pub use outside::client_of_others;
pub use token::{JoinToken, TOKEN_LIFE, secret_hash};

pub(crate) use handshake::Arrival;
pub(crate) use join::{ADMISSION_MAX, read_request, reply};
pub(crate) use refusals::{Kind as RefusalKind, Refusal};

use crate::channel::{Channel, Reading, Receive, Stream, Writing};
use crate::frame::{FIRST_BYTE, Frame};
use arc_swap::ArcSwap;
use configs::Configs;
use model::{Error, ErrorKind, NodeId, Result};
use parking_lot::Mutex;
use refusals::Refusals;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use world::World;

/// A node's credentials and policy, as all its connections use them. New ones count from the next
/// connection on; [`Peer::renew`](crate::Peer::renew) and [`Server::end_untaken`](crate::Server::end_untaken) end those
/// that were made before.
pub struct Security {
    world: World,
    active: ArcSwap<Active>,
    /// One change at a time.
    changing: Mutex<()>,
    /// Of connections that others opened, and that this node opened.
    taken: Refusals,
    opened: Refusals,
}

/// What counts now.
struct Active {
    policy: Policy,
    credentials: Credentials,
    configs: Configs,
}

impl Security {
    /// For the node that the credentials name.
    ///
    /// # Errors
    /// `Corrupt` if TLS can't use the credentials.
    pub fn new(world: &World, policy: Policy, credentials: Credentials) -> Result<Arc<Self>> {
        let active = Active::new(world, policy, credentials)?;
        Ok(Arc::new(Self {
            world: world.clone(),
            active: ArcSwap::from_pointee(active),
            changing: Mutex::new(()),
            taken: Refusals::default(),
            opened: Refusals::default(),
        }))
    }

    /// The node, and its cluster.
    #[must_use]
    pub fn name(&self) -> NodeName {
        self.active.load().credentials.name()
    }

    /// The policy that counts now.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.active.load().policy.clone()
    }

    /// The credentials that count now.
    #[must_use]
    pub fn credentials(&self) -> Credentials {
        self.active.load().credentials.clone()
    }

    /// Another `cipherList`. Connections that are open go on as they were made.
    ///
    /// # Errors
    /// `Corrupt` if TLS can't use it; the policy before stays.
    pub fn set_policy(&self, policy: Policy) -> Result<()> {
        self.change(|active| (policy, active.credentials.clone()))
    }

    /// Renewed credentials, or other authorities. Connections that are open go on as they were made.
    ///
    /// # Errors
    /// `InvalidArgument` if they are another node's; `Corrupt` if TLS can't use them. Those before stay.
    pub fn set_credentials(&self, credentials: Credentials) -> Result<()> {
        let (own, other) = (self.name(), credentials.name());
        if own != other {
            let text = format!("they are for {other}, this is {own}");
            let error = Error::new(ErrorKind::InvalidArgument, text);
            return Err(error.while_doing("replacing the node's credentials"));
        }
        self.change(|active| (active.policy.clone(), credentials))
    }

    fn change(&self, change: impl FnOnce(&Active) -> (Policy, Credentials)) -> Result<()> {
        let _one = self.changing.lock();
        let (policy, credentials) = change(&self.active.load());
        let active = Active::new(&self.world, policy, credentials)?;
        self.active.store(Arc::new(active));
        Ok(())
    }

    /// Whether a connection would be taken now of which this is known.
    pub(crate) fn takes(&self, proof: &Proof) -> bool {
        let active = self.active.load();
        let mut authorities = active.configs.authorities.iter();
        let is_trusted = |by: Fingerprint| authorities.any(|it| it.fingerprint() == by);
        active.policy.takes_mode(proof.mode) && proof.authority.is_none_or(is_trusted)
    }

    /// Makes a stream that was just opened to a node into a channel: shows the credentials, and takes
    /// only this node for an answer, unless the policy opens connections without protection. Waits for
    /// the other side, so the caller bounds the time. `to` is for the log.
    ///
    /// # Errors
    /// `PermissionDenied` with the reason if there is no proof, or it isn't taken;
    /// `ConnectionAborted` if the connection broke meanwhile.
    pub async fn connect(
        &self,
        stream: impl Stream + 'static,
        node: NodeId,
        to: Option<IpAddr>,
    ) -> io::Result<Channel> {
        let active = self.active.load_full();
        let Some((purpose, config)) = &active.configs.client else {
            return Ok(Channel::plain(stream));
        };
        let name = NodeName {
            node,
            cluster: active.configs.name.cluster,
        };
        let connected = handshake::connect(stream, *purpose, config, name).await;
        connected.map_err(|refusal| {
            self.opened.opened(&self.world, to, &refusal);
            let text = format!("no protected connection to node {node}: {refusal}");
            let kind = match refusal.kind {
                RefusalKind::Unfinished => io::ErrorKind::ConnectionAborted,
                _ => io::ErrorKind::PermissionDenied,
            };
            io::Error::new(kind, text)
        })
    }

    /// Finds out who opened a stream that comes from there. The caller bounds the time.
    pub(crate) async fn accept(
        &self,
        mut stream: impl Stream + 'static,
        from: Option<IpAddr>,
        takes_joins: bool,
    ) -> std::result::Result<Proven, Refusal> {
        let mut first = [0];
        if stream.read_exact(&mut first).await.is_err() {
            // Somebody looked whether a node listens, as the manager does before it expels one.
            return Ok(Proven::Gone);
        }
        let active = self.active.load_full();
        let [first] = first;
        if first != FIRST_BYTE {
            let configs = &active.configs;
            let accepted = handshake::accept(&self.world, first, stream, configs, takes_joins);
            let (channel, shown) = match accepted.await? {
                Arrival::Node(channel, shown) => (channel, shown),
                Arrival::Joining(stream) => return Ok(Proven::Joining(stream)),
            };
            let proof = Proof {
                node: Some(shown.name.node),
                mode: shown.mode,
                authority: shown.authority,
                from,
            };
            return Ok(Proven::Node(channel, proof));
        }
        if active.policy.takes_plain() {
            let first = Some(first);
            let channel = Channel::plain(Begun { first, stream });
            let proof = Proof {
                from,
                ..Proof::NONE
            };
            return Ok(Proven::Node(channel, proof));
        }
        let why = format!(
            "the other side doesn't protect its connection; cipherList is {} here",
            active.policy
        );
        let goodbye = Frame::Goodbye {
            taken: 0,
            why: why.clone(),
        };
        let bytes = goodbye.encode();
        // Whoever was refused may be gone already.
        let _ = stream.write_all(&[bytes.header, bytes.body].concat()).await;
        handshake::linger(&self.world, stream).await;
        Err(Refusal::new(RefusalKind::Mode, why))
    }

    /// Counts a refused connection that somebody else opened, and logs it now and then.
    pub(crate) fn refused(&self, from: Option<IpAddr>, refusal: &Refusal) {
        self.taken.taken(&self.world, from, refusal);
    }
}

impl Active {
    fn new(world: &World, policy: Policy, credentials: Credentials) -> Result<Self> {
        Ok(Self {
            configs: Configs::new(world, &policy, &credentials)?,
            policy,
            credentials,
        })
    }
}

/// Who opened a connection.
pub(crate) enum Proven {
    /// A node.
    Node(Channel, Proof),
    /// A machine that wants to join.
    Joining(Box<dyn Stream>),
    /// Nobody: the connection was closed before it said anything.
    Gone,
}

/// What is known of a connection that another node has opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Proof {
    /// Which node it is; nobody knows if the connection isn't protected.
    pub(crate) node: Option<NodeId>,
    /// How the connection is protected; encrypted: with the one suite.
    mode: Mode,
    /// The authority that has certified the node.
    authority: Option<Fingerprint>,
    /// Where it comes from, for the log.
    pub(crate) from: Option<IpAddr>,
}

impl Proof {
    /// The connection isn't protected.
    pub(crate) const NONE: Self = Self {
        node: None,
        mode: Mode::Off,
        authority: None,
        from: None,
    };
}

/// A stream whose first byte was looked at.
struct Begun<S> {
    first: Option<u8>,
    stream: S,
}

impl<S: Stream> Stream for Begun<S> {
    fn into_halves(self: Box<Self>) -> (Reading, Writing) {
        let Self { first, stream } = *self;
        let (read, write) = S::into_halves(Box::new(stream));
        match first {
            None => (read, write),
            Some(_) => {
                let stream = read;
                (Box::new(Begun { first, stream }), write)
            }
        }
    }
}

impl<S: Receive> Receive for Begun<S> {
    fn want(&mut self, bytes: usize) -> io::Result<bool> {
        self.stream.want(bytes)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if out.remaining() > 0
            && let Some(first) = self.first.take()
        {
            out.put_slice(&[first]);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, out)
    }
}

impl<S: Stream> AsyncWrite for Begun<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
