//! What both bodies of the network promise.

use super::*;
use crate::sim::Simulation;
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// Runs `rule` on the real network and on the simulated one with several seeds.
fn on_both<F: Future<Output = ()>>(rule: impl Fn(World) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async { rule(World::real()).await });
    for seed in 0..20 {
        Simulation::new(seed).run(&rule).finished();
    }
}

/// Both ends of one connection: who connected, who accepted.
async fn pair(world: &World) -> (Connection, Connection) {
    let listener = world.listen(any_port()).await.unwrap();
    let deadline = Deadline::after(world, Duration::from_secs(20));
    let (connected, accepted) = futures::join!(
        world.connect(listener.address(), deadline),
        listener.accept()
    );
    (connected.unwrap(), accepted.unwrap())
}

#[test]
fn addresses_in_letters_are_resolved_and_names_only_on_a_real_machine() {
    on_both(|world| async move {
        for (host, address) in [
            ("127.0.0.1", "127.0.0.1:7"),
            ("::1", "[::1]:7"),
            ("[::1]", "[::1]:7"),
        ] {
            let found = world.resolve(host, 7).await.unwrap();
            assert_eq!(found, [address.parse().unwrap()]);
        }
        // The real machine has this name without asking anybody; a simulation has none.
        match world.resolve("localhost", 7).await {
            Ok(found) => assert!(found.iter().all(|it| it.ip().is_loopback())),
            Err(error) => {
                assert!(world.is_simulated());
                assert_eq!(error.kind(), io::ErrorKind::NotFound);
            }
        }
    });
}

#[test]
fn bytes_arrive_whole_and_in_order_in_both_directions() {
    on_both(|world| async move {
        let (connected, accepted) = pair(&world).await;
        assert_eq!(connected.peer(), accepted.local());
        assert_eq!(connected.local(), accepted.peer());
        let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 7) as u8).collect();
        let send = |mut writer: ConnectionWriter| {
            let content = content.clone();
            async move {
                let (mut sent, end) = (0, content.len());
                while sent < end {
                    let middle = end.min(sent + 100);
                    let slices = [
                        IoSlice::new(&content[sent..middle]),
                        IoSlice::new(&content[middle..]),
                    ];
                    sent += writer.write_vectored(&slices).await.unwrap();
                }
                writer.shutdown().await.unwrap();
            }
        };
        let receive = |mut reader: ConnectionReader| async move {
            let mut received = Vec::new();
            reader.read_to_end(&mut received).await.unwrap();
            received
        };
        let ((one_reader, one_writer), (other_reader, other_writer)) =
            (connected.into_split(), accepted.into_split());
        let ((), (), one, other) = futures::join!(
            send(one_writer),
            send(other_writer),
            receive(one_reader),
            receive(other_reader)
        );
        assert!(one == content && other == content);
    });
}

#[test]
fn who_wants_many_bytes_gets_them_all_and_few_when_it_wants_few() {
    on_both(|world| async move {
        let (connected, accepted) = pair(&world).await;
        let (_near_reader, mut writer) = connected.into_split();
        let (mut reader, _far_writer) = accepted.into_split();
        let content: Vec<u8> = (0..1_000_003_u32).map(|n| (n / 7) as u8).collect();

        let mut few = [0; 3];
        reader.want(content.len()).unwrap();
        writer.write_all(b"few").await.unwrap();
        reader.want(1).unwrap();
        reader.read_exact(&mut few).await.unwrap();
        assert_eq!(&few, b"few");

        let receive = async {
            let mut received = Vec::with_capacity(content.len());
            while received.len() < content.len() {
                reader.want(content.len() - received.len()).unwrap();
                let count = reader.read_buf(&mut received).await.unwrap();
                assert!(count > 0);
            }
            received
        };
        let (sent, received) = futures::join!(writer.write_all(&content), receive);
        sent.unwrap();
        assert!(received == content);

        // The end is told, however much is wanted.
        reader.want(content.len()).unwrap();
        writer.write_all(b"rest").await.unwrap();
        writer.shutdown().await.unwrap();
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"rest");
    });
}

#[test]
fn a_port_without_a_listener_refuses_and_one_with_a_listener_is_taken() {
    on_both(|world| async move {
        let listener = world.listen(any_port()).await.unwrap();
        let address = listener.address();
        let second = world.listen(address).await.unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        let deadline = Deadline::after(&world, Duration::from_secs(20));
        let refused = world.connect(address, deadline).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        world.listen(address).await.unwrap();
    });
}

#[test]
fn a_dropped_connection_gives_the_rest_and_then_ends() {
    on_both(|world| async move {
        let (mut connected, mut accepted) = pair(&world).await;
        connected.write_all(b"the rest").await.unwrap();
        drop(connected);
        let mut rest = Vec::new();
        accepted.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"the rest");
        // The first bytes reach a closed end, which answers with a reset.
        let failed = loop {
            match accepted.write(b"too late").await {
                Ok(_) => world.sleep(Duration::from_millis(1)).await,
                Err(error) => break error.kind(),
            }
        };
        assert!(matches!(
            failed,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
        ));
    });
}

#[test]
fn closing_with_unread_bytes_ends_or_resets_the_peers_reads() {
    on_both(|world| async move {
        let (mut connected, mut accepted) = pair(&world).await;
        accepted.write_all(b"never read").await.unwrap();
        connected.write_all(b"x").await.unwrap();
        accepted.read_u8().await.unwrap();
        world.sleep(Duration::from_millis(20)).await;
        drop(connected);
        // A kernel may send the end before the reset.
        match accepted.read(&mut [0; 10]).await {
            Ok(length) => assert_eq!(length, 0),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
        }
    });
}

#[test]
fn a_sender_waits_when_nobody_reads() {
    on_both(|world| async move {
        let (mut connected, mut accepted) = pair(&world).await;
        let block = vec![7; 1 << 20];
        let mut sent = 0;
        let patience = Duration::from_millis(100);
        while let Ok(written) = world.timeout(patience, connected.write(&block)).await {
            sent += written.unwrap();
            assert!(sent < 1 << 28, "what is in flight is bounded");
        }
        let reading = async {
            let mut buffer = vec![0; sent];
            accepted.read_exact(&mut buffer).await.unwrap();
        };
        let ((), written) = futures::join!(reading, connected.write(b"more"));
        assert!(written.unwrap() > 0);
    });
}

#[test]
fn a_connection_comes_from_the_port_that_was_chosen() {
    on_both(|world| async move {
        let deadline = Deadline::after(&world, Duration::from_secs(20));
        let listener = world.listen(any_port()).await.unwrap();
        let to = listener.address();
        let own = world.address_towards(to.ip()).unwrap();
        assert_eq!(own, to.ip(), "one machine");
        // Whatever this connection got is a port that others may use.
        let (first, _accepted) = futures::join!(world.connect(to, deadline), listener.accept());
        let port = first.unwrap().local().port();
        assert!(world.ephemeral_ports().contains(&port));

        let other = world.listen(any_port()).await.unwrap();
        let taken = world.connect_from(other.address(), to, deadline).await;
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let ports = world.ephemeral_ports();
        let mut chosen = None;
        for port in ports {
            let local = SocketAddr::new(own, port);
            if let Ok(connection) = world.connect_from(local, to, deadline).await {
                assert_eq!(connection.local(), local);
                chosen = Some(connection);
                break;
            }
        }
        let chosen = chosen.expect("some port is free").local();
        let accepted = listener.accept().await.unwrap();
        assert_eq!(accepted.peer(), chosen);

        let foreign = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 40_000);
        let refused = world.connect_from(foreign, to, deadline).await;
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::AddrNotAvailable);
    });
}
