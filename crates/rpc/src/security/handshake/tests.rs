//! Where TLS ends, no byte is lost and none is taken too many.

use super::super::{Authority, Credentials, Holder, Mode, Policy};
use super::*;
use futures::future::join;
use model::NodeId;
use tokio::io::{DuplexStream, duplex};
use world::sim::Simulation;

fn configs(world: &World, authority: &Authority, node: u32, mode: Mode) -> Configs {
    let holder = Holder {
        node: NodeId(node),
        addresses: Vec::new(),
        has_localhost: false,
    };
    let credentials = Credentials::first(authority, &holder, world.wall()).unwrap();
    Configs::new(world, &Policy::only(mode), &credentials).unwrap()
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
    let authority = Authority::found(9, world.wall()).unwrap();
    let asking = configs(world, &authority, 1, mode);
    let answering = configs(world, &authority, 2, mode);
    let (near, mut far) = duplex(64 << 10);
    let (_, config) = asking.client.unwrap();
    let name = server_name(NodeName {
        node: NodeId(2),
        cluster: 9,
    });
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
    let accepting = async {
        let first = far.read_u8().await.unwrap();
        accept(world, first, far, &answering, false).await
    };
    join(connecting, accepting).await
}

#[test]
fn bytes_behind_the_last_word_belong_to_what_comes_after_tls() {
    let scenario = async |world: World| {
        let (_tls, arrival) = met(&world, Mode::AuthOnly, &LAST_WORD, b"no TLS").await;
        let Ok(Arrival::Node(channel, shown)) = arrival else {
            panic!("it is a node");
        };
        assert_eq!(shown.name.node, NodeId(1));
        let (mut stream, protection) = channel.into_parts();
        assert!(protection.is_some(), "frames are sealed");
        let mut after = [0; 6];
        stream.read_exact(&mut after).await.unwrap();
        assert_eq!(after, *b"no TLS");
    };
    Simulation::new(1).run(scenario).finished();
}

#[test]
fn a_last_word_that_is_another_or_longer_is_refused() {
    let scenario = async |world: World| {
        for said in [&b"SHRPTLS2"[..], b"SHRPTLS1 and more", b"12345678"] {
            for mode in [Mode::AuthOnly, Mode::Encrypted(super::super::Suites::ALL)] {
                let (_tls, arrival) = met(&world, mode, said, &[]).await;
                let refusal = arrival.err().expect("it is refused");
                assert_eq!(refusal.kind, Kind::Garbage, "{refusal}");
            }
        }
    };
    Simulation::new(1).run(scenario).finished();
}

/// Both directions have keys of their own, and each connection.
#[test]
fn keys_are_the_connections_own() {
    let scenario = async |world: World| {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..2 {
            let (tls, _arrival) = met(&world, Mode::AuthOnly, &LAST_WORD, &[]).await;
            let keys = keys(tls.get_ref().1, Side::Asking).unwrap();
            seen.extend([keys.sending, keys.receiving]);
        }
        assert_eq!(seen.len(), 4);
    };
    Simulation::new(1).run(scenario).finished();
}
