//! Where TLS ends, no byte is lost and none is taken too many.

use super::super::{Authority, Credentials, Holder, Mode, Policy};
use super::*;
use futures::future::{Either, join, select};
use model::NodeId;
use rustls::ServerConfig;
use std::pin::pin;
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio_rustls::TlsAcceptor;
use world::sim::Simulation;

fn configs(world: &World, authority: &Authority, node: NodeId, mode: Mode) -> Configs {
    let holder = Holder {
        node,
        addresses: Vec::new(),
        has_localhost: false,
    };
    let credentials = Credentials::first(authority, &holder, world.wall()).unwrap();
    Configs::new(world, &Policy::only(mode), &credentials).unwrap()
}

/// The node that answers.
const ANSWERING: NodeName = NodeName {
    node: NodeId(2),
    cluster: 9,
};

/// Two nodes of a cluster: the one that asks, and [`ANSWERING`].
fn nodes(world: &World, mode: Mode) -> [Configs; 2] {
    let authority = Authority::found(ANSWERING.cluster, world.wall()).unwrap();
    [NodeId(1), ANSWERING.node].map(|node| configs(world, &authority, node, mode))
}

/// Answers the connection that somebody opened.
async fn accepted(
    world: &World,
    mut far: DuplexStream,
    answering: &Configs,
) -> Result<Arrival, Refusal> {
    let first = far.read_u8().await.unwrap();
    accept(world, first, far, answering, false).await
}

/// Both sides up to the point where the client has said its last words, `said`, and `behind` them.
async fn met(
    world: &World,
    mode: Mode,
    said: &[u8],
    behind: &[u8],
) -> (
    client::TlsStream<Records<DuplexStream>>,
    Result<Arrival, Refusal>,
) {
    let [asking, answering] = nodes(world, mode);
    let (near, far) = duplex(64 << 10);
    let (_, config) = asking.client.unwrap();
    let name = server_name(ANSWERING);
    let connecting = async {
        let connector = TlsConnector::from(config);
        let mut tls = connector
            .connect(name, Records::after(&[], near))
            .await
            .unwrap();
        // Together, and before the other side has looked at any of it.
        tls.write_all(said).await.unwrap();
        tls.flush().await.unwrap();
        tls.get_mut().0.write_all(behind).await.unwrap();
        tls
    };
    join(connecting, accepted(world, far, &answering)).await
}

#[test]
fn bytes_behind_the_last_word_belong_to_what_comes_after_tls() {
    let scenario = async |world: World| {
        for mode in [Mode::AuthOnly, Mode::Encrypted(Suites::ALL)] {
            let (_tls, arrival) = met(&world, mode, &LAST_WORD, b"no TLS").await;
            let Ok(Arrival::Node(channel, shown)) = arrival else {
                panic!("it is a node");
            };
            assert_eq!(shown.name.node, NodeId(1));
            let (mut stream, protection) = channel.into_parts();
            assert!(protection.is_some(), "frames are sealed");
            let mut after = [0; 6];
            stream.read_exact(&mut after).await.unwrap();
            assert_eq!(after, *b"no TLS");
        }
    };
    Simulation::new(1).run(scenario).finished();
}

#[test]
fn a_last_word_that_is_another_or_longer_is_refused() {
    let scenario = async |world: World| {
        for said in [&b"SHRPTLS2"[..], b"SHRPTLS1 and more", b"12345678"] {
            for mode in [Mode::AuthOnly, Mode::Encrypted(Suites::ALL)] {
                let (_tls, arrival) = met(&world, mode, said, &[]).await;
                let refusal = arrival.err().expect("it is refused");
                assert_eq!(refusal.kind, Kind::Garbage, "{refusal}");
            }
        }
    };
    Simulation::new(1).run(scenario).finished();
}

/// Both directions have keys of their own, each connection, and each way to seal.
#[test]
fn keys_are_the_connections_own() {
    let scenario = async |world: World| {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..2 {
            let (tls, _arrival) = met(&world, Mode::AuthOnly, &LAST_WORD, &[]).await;
            for hidden in [Hidden::Names, Hidden::All(&aead::AES_128_GCM)] {
                let keys = keys(tls.get_ref().1, Side::Asking, hidden).unwrap();
                seen.extend([keys.sending, keys.receiving]);
            }
        }
        assert_eq!(seen.len(), 8);
    };
    Simulation::new(1).run(scenario).finished();
}

/// What a build says that knows no sealed frames with a cipher.
fn older_names() -> Vec<Vec<u8>> {
    vec![INSIDE_TLS.to_vec()]
}

/// Says a word inside TLS on the one end, and hears it on the other.
async fn is_heard_inside_tls(from: Channel, mut to: impl Stream) {
    let (mut from, protection) = from.into_parts();
    assert!(protection.is_none(), "frames aren't sealed");
    from.write_all(b"word").await.unwrap();
    from.flush().await.unwrap();
    let mut heard = [0; 4];
    to.read_exact(&mut heard).await.unwrap();
    assert_eq!(heard, *b"word");
}

/// A node is updated before the others: both ways round the two still talk, inside TLS.
#[test]
fn an_older_build_talks_inside_tls() {
    let scenario = async |world: World| {
        let [asking, answering] = nodes(&world, Mode::Encrypted(Suites::ALL));
        let (purpose, config) = asking.client.unwrap();

        let mut older = ClientConfig::clone(&config);
        older.alpn_protocols = older_names();
        let older = Arc::new(older);
        let (near, far) = duplex(64 << 10);
        let connecting = connect_tls(near, purpose, &older, server_name(ANSWERING));
        let (tls, arrival) = join(connecting, accepted(&world, far, &answering)).await;
        let Ok(Arrival::Node(channel, _)) = arrival else {
            panic!("it is a node");
        };
        let mut tls = tls.unwrap_or_else(|refusal| panic!("{refusal}"));
        tls.get_mut().0.open();
        is_heard_inside_tls(channel, tls).await;

        let config_there = answering.server(Purpose::Encrypted).unwrap();
        let mut older = ServerConfig::clone(config_there);
        older.alpn_protocols = older_names();
        let (near, far) = duplex(64 << 10);
        let connecting = connect(near, purpose, &config, ANSWERING);
        let accepting = async {
            let acceptor = TlsAcceptor::from(Arc::new(older));
            let mut tls = acceptor.accept(Records::after(&[], far)).await.unwrap();
            let mut word = [0; LAST_WORD.len()];
            tls.read_exact(&mut word).await.unwrap();
            tls.write_all(&LAST_WORD).await.unwrap();
            tls.flush().await.unwrap();
            tls.get_mut().0.open();
            tls
        };
        let (channel, tls) = join(connecting, accepting).await;
        let channel = channel.unwrap_or_else(|refusal| panic!("{refusal}"));
        is_heard_inside_tls(channel, tls).await;
    };
    Simulation::new(1).run(scenario).finished();
}

/// Would be broken if somebody on the way could make two nodes take the older of the ways that both know.
#[test]
fn a_name_that_is_taken_away_on_the_way_ends_the_handshake() {
    let scenario = async |world: World| {
        let [asking, answering] = nodes(&world, Mode::Encrypted(Suites::ALL));
        let (purpose, config) = asking.client.unwrap();
        for is_changed in [false, true] {
            let (near, mut near_wire) = duplex(64 << 10);
            let (mut far_wire, far) = duplex(64 << 10);
            let connecting = connect(near, purpose, &config, ANSWERING);
            let accepting = accepted(&world, far, &answering);
            let relaying = async move {
                let mut header = [0_u8; 5];
                near_wire.read_exact(&mut header).await.unwrap();
                let length = u16::from_be_bytes([header[3], header[4]]);
                let mut hello = vec![0; usize::from(length)];
                near_wire.read_exact(&mut hello).await.unwrap();
                let best = &b"shale/2"[..];
                let at = hello.windows(best.len()).position(|part| part == best);
                let last = at.expect("names go in the clear") + best.len() - 1;
                if is_changed {
                    hello[last] = b'9';
                }
                far_wire.write_all(&header).await.unwrap();
                far_wire.write_all(&hello).await.unwrap();
                // Either end may be gone; then the other one hears of it.
                let _ = copy_bidirectional(&mut near_wire, &mut far_wire).await;
                drop((near_wire, far_wire));
                std::future::pending::<()>().await;
            };
            let both = pin!(join(connecting, accepting));
            let relaying = pin!(relaying);
            let Either::Left(((channel, arrival), _)) = select(both, relaying).await else {
                panic!("the wire has no end");
            };
            assert_eq!(channel.is_err(), is_changed);
            assert_eq!(arrival.is_err(), is_changed);
        }
    };
    Simulation::new(1).run(scenario).finished();
}
