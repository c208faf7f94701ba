//! Machines that join with a token, and those that may not.

use super::*;
use model::checksum::crc32c;
use model::join::{JoinReply, JoinRequest};
use model::{Error, ErrorKind};
use rpc::security::{Admit, JoinToken, Newcomer, join, secret_hash};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// When a token ends, and the key and node that used it.
struct Record {
    expires: model::Timestamp,
    used: Option<([u8; 32], NodeId)>,
}

/// The cluster's side: tokens by their hash, and who used them.
struct Office {
    world: World,
    cluster: Arc<Cluster>,
    tokens: Mutex<BTreeMap<[u8; 32], Record>>,
    last_node: Mutex<u32>,
    asked: Mutex<u32>,
    /// How long a decision takes, and how many were under way at the same time.
    takes: Mutex<Duration>,
    busy: Mutex<(u32, u32)>,
}

impl Office {
    fn new(world: &World, cluster: &Arc<Cluster>) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            cluster: cluster.clone(),
            tokens: Mutex::default(),
            last_node: Mutex::new(ASKING.0 - 1),
            asked: Mutex::default(),
            takes: Mutex::default(),
            busy: Mutex::default(),
        })
    }

    fn token(&self, addresses: Vec<SocketAddr>) -> JoinToken {
        let authority = self.cluster.authority.certificate().fingerprint();
        let token = JoinToken::new(addresses, authority, self.world.wall()).unwrap();
        let record = Record {
            expires: token.expires,
            used: None,
        };
        self.tokens.lock().insert(secret_hash(token.secret), record);
        token
    }

    fn judge(&self, request: &JoinRequest) -> model::Result<JoinReply> {
        let denied = |why: &str| Error::new(ErrorKind::AccessDenied, why);
        let mut tokens = self.tokens.lock();
        let token = tokens.get_mut(&secret_hash(request.secret));
        let token = token.ok_or_else(|| denied("no such token"))?;
        if self.world.wall() >= token.expires {
            return Err(denied("the token has expired"));
        }
        let signing = SigningRequest::from_der(&request.signing_request)?;
        let node = match token.used {
            Some((by, node)) if by == signing.key_hash() => node,
            Some(_) => return Err(denied("the token was used")),
            None => {
                let mut last = self.last_node.lock();
                *last += 1;
                NodeId(*last)
            }
        };
        token.used = Some((signing.key_hash(), node));
        let authority = &self.cluster.authority;
        let certificate = authority.issue(&signing, &holder(node), self.world.wall())?;
        Ok(JoinReply {
            cluster: authority.cluster(),
            node,
            certificate: certificate.der().to_vec(),
            authorities: vec![authority.certificate().der().to_vec()],
            more: format!("{} wishes {:?}", request.host, request.wishes).into_bytes(),
        })
    }
}

impl Admit for Office {
    fn admit(
        &self,
        request: JoinRequest,
        _: Option<IpAddr>,
    ) -> BoxFuture<'_, model::Result<JoinReply>> {
        Box::pin(async move {
            *self.asked.lock() += 1;
            {
                let mut busy = self.busy.lock();
                busy.0 += 1;
                busy.1 = busy.1.max(busy.0);
            }
            let takes = *self.takes.lock();
            self.world.sleep(takes).await;
            self.busy.lock().0 -= 1;
            self.judge(&request)
        })
    }
}

/// A server that lets machines join.
struct Scene {
    world: World,
    cluster: Arc<Cluster>,
    office: Arc<Office>,
    server: Arc<Server>,
    counter: Arc<Counter>,
    address: SocketAddr,
}

impl Scene {
    async fn new(world: &World) -> Self {
        let cluster = Arc::new(Cluster::new(world));
        let office = Office::new(world, &cluster);
        let policy = Policy::only(Mode::AuthOnly);
        let security = cluster.security(ANSWERING, policy);
        let counter = Counter::new(world);
        let server = Server::new(world, identity(ANSWERING, 1), admission(), counter.clone());
        let server = Arc::new(server.with_security(security, Some(office.clone())));
        let listener = world.listen(any_port()).await.unwrap();
        let address = listener.address();
        server.listen(listener);
        Self {
            world: world.clone(),
            cluster,
            office,
            server,
            counter,
            address,
        }
    }

    fn newcomer(&self) -> Newcomer {
        Newcomer {
            key: PrivateKey::generate().unwrap(),
            addresses: vec![([10, 0, 0, 9], 7100).into()],
            host: "storage9".into(),
            wishes: vec![1, 2],
        }
    }

    async fn join(&self, token: &JoinToken) -> model::Result<rpc::security::Joined> {
        let deadline = Deadline::after(&self.world, ms(60_000));
        join(&self.world, token, &self.newcomer(), deadline).await
    }

    async fn error(&self, token: &JoinToken) -> Error {
        self.join(token).await.expect_err("it may not join")
    }
}

#[test]
fn a_machine_joins_with_a_token_and_is_a_node() {
    on_both(|world| async move {
        let scene = Scene::new(&world).await;
        let text = scene.office.token(vec![scene.address]).to_text();
        let token = JoinToken::from_text(&text).unwrap();
        let joined = scene.join(&token).await.unwrap();
        let name = joined.credentials.name();
        assert_eq!((name.node, name.cluster), (ASKING, CLUSTER));
        assert_eq!(joined.more, b"storage9 wishes [1, 2]");

        let policy = Policy::only(Mode::AuthOnly);
        let security = Security::new(&world, policy, joined.credentials).unwrap();
        let addresses = Arc::new(Addresses::new(&world).with_security(security));
        addresses.set(ANSWERING, scene.address);
        let peer = Peer::new(&world, identity(ASKING, 1), ANSWERING, addresses);
        connected(&world, &peer, 1).await;

        let error = scene.error(&token).await;
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
        assert!(error.to_string().contains("was used"), "{error}");
    });
}

#[test]
fn wrong_and_old_tokens_are_refused_and_logged() {
    let log = warnings(|| {
        Simulation::new(1)
            .run(|world| async move {
                let scene = Scene::new(&world).await;
                let good = scene.office.token(vec![scene.address]);
                let mut wrong = good.clone();
                wrong.secret.0[3] ^= 1;
                let error = scene.error(&wrong).await;
                assert!(error.to_string().contains("no such token"), "{error}");
                let used = scene.office.token(vec![scene.address]);
                scene.join(&used).await.unwrap();
                // So that each gets its line.
                world.sleep(ms(10_000)).await;
                let error = scene.error(&used).await;
                assert!(error.to_string().contains("was used"), "{error}");
                world.sleep(ms(5 * 60 * 1000)).await;
                assert!(good.has_expired(world.wall()));
                let error = scene.error(&good).await;
                assert!(error.to_string().contains("has expired"), "{error}");
                assert_eq!(error.kind(), ErrorKind::AccessDenied);
                // The server says so after it has answered.
                world.sleep(ms(1000)).await;
            })
            .finished();
    });
    for why in [
        "no such token",
        "the token was used",
        "the token has expired",
    ] {
        let line = format!("a machine wasn't admitted: {why}");
        assert!(log.contains(&line), "{line}: {log}");
    }
}

/// The secret is shown to nobody but the cluster.
#[test]
fn a_machine_tells_its_secret_to_no_other_cluster() {
    Simulation::new(1)
        .run(|world| async move {
            let (ours, other) = (Scene::new(&world).await, Scene::new(&world).await);
            let token = ours.office.token(vec![other.address]);
            let error = ours.error(&token).await;
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(
                error.to_string().contains("no authority that is trusted"),
                "{error}"
            );
            assert_eq!(*other.office.asked.lock(), 0);
        })
        .finished();
}

#[test]
fn a_node_that_cant_be_reached_doesnt_matter_if_another_can() {
    Simulation::new(1)
        .run(|world| async move {
            let scene = Scene::new(&world).await;
            let nobody = ([127, 0, 0, 1], 9).into();
            let token = scene.office.token(vec![nobody, scene.address]);
            scene.join(&token).await.unwrap();
            let token = scene.office.token(vec![nobody]);
            let error = scene.error(&token).await.to_string();
            assert!(error.contains("127.0.0.1:9: "), "{error}");
        })
        .finished();
}

/// Its answer was lost, or its node died meanwhile: it asks again with the same key.
#[test]
fn a_machine_that_asks_again_is_the_same_node() {
    Simulation::new(1)
        .run(|world| async move {
            let scene = Scene::new(&world).await;
            let token = scene.office.token(vec![scene.address]);
            let newcomer = scene.newcomer();
            let deadline = Deadline::after(&world, ms(100_000));
            let first = join(&world, &token, &newcomer, deadline).await.unwrap();
            let again = join(&world, &token, &newcomer, deadline).await.unwrap();
            assert_eq!(first.credentials.name(), again.credentials.name());
            scene.error(&token).await;
        })
        .finished();
}

#[test]
fn a_cluster_that_decides_nothing_is_given_up() {
    Simulation::new(1)
        .run(|world| async move {
            let scene = Scene::new(&world).await;
            let token = scene.office.token(vec![scene.address, scene.address]);
            *scene.office.takes.lock() = ms(31_000);
            let begun = world.now();
            let error = scene.error(&token).await;
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("needed too long"), "{error}");
            assert_eq!(*scene.office.asked.lock(), 2, "both addresses were asked");
            assert!(world.now().since(begun) <= ms(60_010));
        })
        .finished();
}

/// A header that says it is followed by parts of these sizes, and an encoded part.
pub(super) fn frame(kind: u8, method: u16, body: &[u8], sizes: [u32; 2]) -> Vec<u8> {
    let is_request = kind == 2;
    let mut out = b"SHRP".to_vec();
    out.extend([u8::from(is_request), kind, u8::from(is_request), 0]);
    out.extend(u64::from(is_request).to_le_bytes());
    out.extend([0; 8]);
    out.extend((1000 * u32::from(is_request)).to_le_bytes());
    out.extend(method.to_le_bytes());
    out.extend([0; 2]);
    out.extend(sizes.into_iter().flat_map(u32::to_le_bytes));
    out.extend((64 * u32::from(is_request)).to_le_bytes());
    out.extend(crc32c(body).to_le_bytes());
    out.extend([0; 12]);
    out.extend(crc32c(&out).to_le_bytes());
    out.extend(body);
    out
}

/// A connection for joining is good for one small request, and for nothing else.
#[test]
fn a_machine_that_isnt_a_node_gets_nothing_else() {
    let log = warnings(|| {
        Simulation::new(1)
            .run(|world| async move {
                let scene = Scene::new(&world).await;
                let cases = [
                    ("an NSD's method", frame(2, 0x0101, b"", [0, 0])),
                    ("renewal", frame(2, 0x0501, b"", [0, 0])),
                    ("a large request", frame(2, 0x0500, b"", [1 << 20, 0])),
                    ("a hello", frame(1, 0, b"", [88, 0])),
                    ("a payload", frame(2, 0x0500, b"", [0, 10])),
                    ("garbage", vec![7; 200]),
                    ("garbage inside", frame(2, 0x0500, &[0xff; 300], [300, 0])),
                    ("silence", Vec::new()),
                ];
                for (name, bytes) in cases {
                    let mut tls = tls_of_others(
                        &scene.cluster,
                        stranger(&scene.server),
                        None,
                        Some(b"shale-join/1"),
                    )
                    .await
                    .unwrap();
                    tls.write_all(&bytes).await.unwrap();
                    tls.flush().await.unwrap();
                    let mut answer = Vec::new();
                    let reading = tls.read_to_end(&mut answer);
                    let begun = world.now();
                    let _ = world.timeout(ms(5000), reading).await.expect(name);
                    assert!(answer.is_empty(), "{name}: {answer:?}");
                    assert!(world.now().since(begun) <= ms(4010), "{name}");
                    world.sleep(ms(10_000)).await;
                }
                assert_eq!(*scene.office.asked.lock(), 0);
                assert!(scene.counter.begun.lock().is_empty());
            })
            .finished();
    });
    for words in [
        "asked for more than to join",
        "one small request",
        "isn't understood",
    ] {
        assert!(log.contains(words), "{words}: {log}");
    }
}

#[test]
fn few_machines_are_admitted_at_the_same_time() {
    Simulation::new(1)
        .run(|world| async move {
            let scene = Arc::new(Scene::new(&world).await);
            *scene.office.takes.lock() = ms(100);
            let joins: Vec<_> = (0..12)
                .map(|_| {
                    let scene = scene.clone();
                    let token = scene.office.token(vec![scene.address]);
                    let world = world.clone();
                    world.spawn("join", async move { scene.join(&token).await })
                })
                .collect();
            for join in joins {
                join.await.unwrap();
            }
            assert_eq!(scene.office.busy.lock().1, 4);
            // Members aren't kept out meanwhile, nor afterwards.
            let peer = scene.cluster.peer(&scene.server, Mode::AuthOnly);
            ask(&world, &peer, 1).await.unwrap();
        })
        .finished();
}

#[test]
fn a_node_that_lets_nobody_join_says_so() {
    Simulation::new(1)
        .run(|world| async move {
            let scene = Scene::new(&world).await;
            let (server, _counter) = scene.cluster.server(Mode::AuthOnly);
            let listener = world.listen(any_port()).await.unwrap();
            let token = scene.office.token(vec![listener.address()]);
            server.listen(listener);
            let error = scene.error(&token).await.to_string();
            assert!(error.contains("it lets no machines join"), "{error}");
        })
        .finished();
}
