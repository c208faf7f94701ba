//! Nodes that prove who they are, and everybody who can't.

mod changes;
mod floods;
mod impostors;
mod joining;
mod lanes;
mod modes;
mod wire;
mod wires;

use crate::scene::{ANSWERING, ASKING, Counter, admission, identity, ms, request};
use futures::future::BoxFuture;
use model::NodeId;
use model::call::{Answer, Call, NoAnswer};
use parking_lot::Mutex;
use rcgen::KeyPair;
use rpc::security::{
    Authority, Credentials, Holder, Mode, NodeName, Policy, PrivateKey, Security, SigningRequest,
    Suite, Suites, Validity,
};
use rpc::{Addresses, Channel, Dial, Identity, Lane, Peer, Place, Server};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use world::call::Remote;
use world::sim::Simulation;
use world::{Deadline, World};

/// The cluster of `scene::identity`.
const CLUSTER: u128 = 42;

const DAY: Duration = Duration::from_secs(86_400);

/// `cipherList`'s kinds.
fn modes() -> Vec<Mode> {
    let encrypted = Suite::ALL.map(|suite| Mode::Encrypted(Suites::only(suite)));
    [&[Mode::Off, Mode::AuthOnly][..], &encrypted].concat()
}

/// Those that prove who is there.
fn protected() -> [Mode; 2] {
    [Mode::AuthOnly, Mode::Encrypted(Suites::ALL)]
}

/// A cluster's authority, in a world.
pub(crate) struct Cluster {
    world: World,
    authority: Authority,
}

impl Cluster {
    pub(crate) fn new(world: &World) -> Self {
        Self::of(world, CLUSTER)
    }

    fn of(world: &World, cluster: u128) -> Self {
        Self {
            world: world.clone(),
            authority: Authority::found(cluster, world.wall()).unwrap(),
        }
    }

    fn credentials(&self, node: NodeId) -> Credentials {
        Credentials::first(&self.authority, &holder(node), self.world.wall()).unwrap()
    }

    /// Credentials that count from and until so many days from now.
    fn credentials_in(&self, node: NodeId, from: i64, until: i64) -> Credentials {
        let at = |days: i64| {
            let seconds = self.world.wall().seconds() + days * DAY.as_secs() as i64;
            model::Timestamp::from_timespec(seconds, 0)
        };
        let validity = Validity {
            from: at(from),
            until: at(until),
        };
        let key = PrivateKey::generate().unwrap();
        let request = SigningRequest::from_der(&key.signing_request().unwrap()).unwrap();
        let issued = self.authority.issue_for(&request, &holder(node), validity);
        let authorities = vec![self.authority.certificate().clone()];
        Credentials::new(key, issued.unwrap(), authorities).unwrap()
    }

    pub(crate) fn security(&self, node: NodeId, policy: Policy) -> Arc<Security> {
        Security::new(&self.world, policy, self.credentials(node)).unwrap()
    }

    /// A server of the answering node that takes connections of this mode only.
    fn server(&self, mode: Mode) -> (Arc<Server>, Arc<Counter>) {
        server(&self.world, self.security(ANSWERING, Policy::only(mode)))
    }

    /// The asking node's way to a server.
    fn peer(&self, server: &Arc<Server>, mode: Mode) -> Arc<Peer> {
        let security = self.security(ASKING, Policy::only(mode));
        peer(&self.world, server, security, identity(ASKING, 1))
    }
}

fn holder(node: NodeId) -> Holder {
    Holder {
        node,
        addresses: vec![Ipv4Addr::LOCALHOST.into()],
        has_localhost: false,
    }
}

fn server(world: &World, security: Arc<Security>) -> (Arc<Server>, Arc<Counter>) {
    let counter = Counter::new(world);
    let name = security.name();
    let mut own = identity(name.node, 1);
    own.cluster = name.cluster;
    let server = Server::new(world, own, admission(), counter.clone());
    (Arc::new(server.with_security(security, None)), counter)
}

/// A way to the server over a network of the world's.
fn peer(
    world: &World,
    server: &Arc<Server>,
    security: Arc<Security>,
    identity: Identity,
) -> Arc<Peer> {
    let dial = Direct {
        world: world.clone(),
        addresses: Arc::new(Addresses::new(world).with_security(security)),
        server: server.clone(),
        address: Mutex::default(),
    };
    Arc::new(Peer::new(world, identity, ANSWERING, Arc::new(dial)))
}

/// Lets the server listen when it is first dialed.
struct Direct {
    world: World,
    addresses: Arc<Addresses>,
    server: Arc<Server>,
    address: Mutex<Option<SocketAddr>>,
}

impl Dial for Direct {
    fn dial(
        &self,
        node: NodeId,
        place: Place,
        deadline: Deadline,
    ) -> BoxFuture<'_, io::Result<Channel>> {
        Box::pin(async move {
            if self.address.lock().is_none() {
                let listener = self.world.listen(any_port()).await?;
                let address = listener.address();
                self.server.listen(listener);
                self.addresses.set(node, address);
                *self.address.lock() = Some(address);
            }
            self.addresses.dial(node, place, deadline).await
        })
    }
}

fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// A connection to the server, of which nobody knows who opened it.
fn stranger(server: &Server) -> DuplexStream {
    let (near, far) = duplex(64 << 10);
    server.accept(far);
    near
}

/// The world's clock, for TLS as others make it.
#[derive(Debug)]
struct Clock(World);

impl rustls::time_provider::TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = self.0.wall().seconds() as u64;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

/// TLS as others make it: with this certificate or none, and this purpose; up to the last words.
async fn tls_of_others(
    cluster: &Cluster,
    stream: DuplexStream,
    own: Option<(CertificateDer<'static>, &KeyPair)>,
    purpose: Option<&[u8]>,
) -> io::Result<TlsStream<DuplexStream>> {
    let mut roots = RootCertStore::empty();
    let authority = cluster.authority.certificate().der().to_vec();
    roots.add(authority.into()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let clock = Arc::new(Clock(cluster.world.clone()));
    let builder = ClientConfig::builder_with_details(provider, clock)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let key = PrivatePkcs8KeyDer::from(key.serialize_der());
            builder
                .with_client_auth_cert(vec![certificate], key.into())
                .unwrap()
        }
    };
    config.alpn_protocols = purpose.map(<[u8]>::to_vec).into_iter().collect();
    let name = NodeName {
        node: ANSWERING,
        cluster: CLUSTER,
    };
    let name = ServerName::try_from(name.to_string()).unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let mut tls = connector.connect(name, stream).await?;
    tls.write_all(b"SHRPTLS1").await?;
    let mut answer = [0; 8];
    tls.read_exact(&mut answer).await?;
    assert_eq!(answer, *b"SHRPTLS1");
    Ok(tls)
}

async fn ask(world: &World, peer: &Peer, ticket: u64) -> Result<Answer, NoAnswer> {
    ask_call(world, peer, request(ticket, 0)).await
}

async fn ask_call(world: &World, peer: &Peer, call: Call) -> Result<Answer, NoAnswer> {
    peer.call(call, Deadline::after(world, ms(20_000))).await
}

/// Asks until there is a connection: on a busy machine an attempt can take too long, and in the pause
/// after it calls are refused.
async fn connected(world: &World, peer: &Peer, ticket: u64) {
    let deadline = Deadline::after(world, ms(60_000));
    loop {
        match ask(world, peer, ticket).await {
            Err(NoAnswer::NotRun(_)) if !deadline.has_passed(world) => world.sleep(ms(5)).await,
            answer => return drop(answer.unwrap()),
        }
    }
}

/// Why the request of this ticket certainly didn't run.
async fn refusal(world: &World, peer: &Peer, counter: &Counter, ticket: u64) -> String {
    let none = ask(world, peer, ticket).await.unwrap_err();
    assert!(matches!(none, NoAnswer::NotRun(_)), "{none}");
    assert!(!counter.begun.lock().contains_key(&ticket));
    none.to_string()
}

/// Runs `rule` in simulation and over TCP.
fn on_both<F: Future<Output = ()>>(rule: impl Fn(World) -> F) {
    Simulation::new(7).run(&rule).finished();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async { rule(World::real()).await });
}

/// What a program that runs in one thread logs as WARN.
fn warnings(work: impl FnOnce()) -> String {
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);
    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, work);
    let bytes = log.0.lock().clone();
    String::from_utf8(bytes).unwrap()
}
