//! Those who aren't known and don't want to be: bounded memory, bounded time, and room for members.

use super::joining::frame;
use super::*;
use model::checksum::crc32c;
use rustls::ClientConnection;

/// More than the node reads of anybody whom it doesn't know.
const UNKNOWN_BYTES_MAX: usize = 300 << 10;

/// Sends `bytes` again and again until the server takes no more; gives how many it took, and what it said.
async fn poured(world: &World, server: &Server, first: &[u8], again: &[u8]) -> (usize, Vec<u8>) {
    let (read, mut write) = tokio::io::split(stranger(server));
    let pouring = async {
        let mut taken = 0;
        let mut next = first;
        loop {
            match write.write(next).await {
                Ok(count) if count > 0 => {
                    taken += count;
                    next = &next[count..];
                }
                _ => return taken,
            }
            if next.is_empty() {
                next = again;
            }
            if next.is_empty() || taken > 4 << 20 {
                return taken;
            }
        }
    };
    let mut answer = Vec::new();
    let mut read = read.take(1 << 20);
    let reading = read.read_to_end(&mut answer);
    let both = futures::future::join(pouring, reading);
    let (taken, _) = world
        .timeout(ms(10_000), both)
        .await
        .expect("it is cut off");
    (taken, answer)
}

/// A ClientHello of the TLS library, with all its bytes.
fn client_hello() -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let mut tls = ClientConnection::new(Arc::new(config), "n2.shale".try_into().unwrap()).unwrap();
    let mut bytes = Vec::new();
    tls.write_tls(&mut bytes).unwrap();
    bytes
}

/// What an old client says: TLS 1.2 at most, one cipher, no extensions.
fn old_hello() -> Vec<u8> {
    let mut hello = vec![3, 3];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]);
    let mut out = vec![
        0x16,
        3,
        1,
        0,
        hello.len() as u8 + 4,
        1,
        0,
        0,
        hello.len() as u8,
    ];
    out.extend(hello);
    out
}

#[test]
fn garbage_costs_little_and_others_are_served() {
    let log = warnings(|| {
        Simulation::new(3)
            .run(|world| async move {
                let cluster = Cluster::new(&world);
                for mode in protected() {
                    let (server, _counter) = cluster.server(mode);
                    let peer = cluster.peer(&server, mode);
                    ask(&world, &peer, 1).await.unwrap();
                    let random: Vec<u8> = (0..5000).map(|_| world.random_u64() as u8).collect();
                    let hello = client_hello();
                    let half = &hello[..hello.len() / 2];
                    // A handshake message that says it has 16 MiB, in records of the largest size.
                    let huge = [
                        &[0x16, 3, 3, 0x40, 0, 1, 0xff, 0xff, 0xff][..],
                        &[0; 16_380],
                    ]
                    .concat();
                    let more = [&[0x16, 3, 3, 0x40, 0][..], &[0; 16_384]].concat();
                    let too_long = [&[0x16, 3, 3, 0xff, 0xff][..], &random].concat();
                    let plain = [&b"SHRP\0\x01\0\0"[..], &[0xff; 56]].concat();
                    let old = old_hello();
                    let cases: [(&str, &[u8], &[u8]); 10] = [
                        ("nothing", &[], &[]),
                        ("a byte", &[0x16], &[]),
                        ("random", &random, &random),
                        ("a request of HTTP", b"GET / HTTP/1.1\r\n\r\n", b"\r\n"),
                        ("half a hello", half, &[]),
                        ("a hello twice", &hello, &hello),
                        ("a huge message", &huge, &more),
                        ("a record that is too long", &too_long, &random),
                        ("a frame", &plain, &random),
                        ("an old version", &old, &[]),
                    ];
                    for (ticket, (name, first, again)) in cases.into_iter().enumerate() {
                        let (taken, _) = poured(&world, &server, first, again).await;
                        assert!(taken <= UNKNOWN_BYTES_MAX, "{mode}, {name}: {taken} bytes");
                        ask(&world, &peer, 100 + ticket as u64).await.unwrap();
                        // So that each kind gets its line.
                        world.sleep(ms(10_000)).await;
                    }
                }
            })
            .finished();
    });
    for words in ["breaks the rules of TLS", "no TLS", "in time", "cipherList"] {
        assert!(log.contains(words), "{words}: {log}");
    }
    assert!(log.lines().count() < 40, "{log}");
}

/// Would be broken if nobody heard of it who looks why nodes of two builds, or one with a fault, don't come together: they have
/// proven who they are, or have nothing to prove.
#[test]
fn frames_that_break_the_rules_are_logged() {
    let log = warnings(|| {
        Simulation::new(1)
            .run(|world| async move {
                let cluster = Cluster::new(&world);
                let (server, _counter) = cluster.server(Mode::Off);
                let peer = cluster.peer(&server, Mode::Off);
                let request = frame(2, 0x0101, b"", [0, 0]);
                let mut later = request.clone();
                later[4] = 9;
                let crc = crc32c(&later[..60]);
                later[60..].copy_from_slice(&crc.to_le_bytes());
                // Versions 7 to 9, and the rest as it should be.
                let mut hello = vec![7, 0, 9, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
                hello.extend(CLUSTER.to_le_bytes());
                hello.extend(ANSWERING.0.to_le_bytes());
                hello.extend([0; 4 + 48]);
                hello.extend([2, 8, 0, 0]);
                let cases = [
                    [&b"SHRP\0\x01\0\0"[..], &[0xff; 56]].concat(),
                    frame(1, 0, b"", [u32::MAX, 0]),
                    frame(1, 0, &hello, [92, 0]),
                    request[..20].to_vec(),
                    request,
                    later,
                ];
                for (ticket, bytes) in (1..).zip(cases) {
                    let mut stream = stranger(&server);
                    stream.write_all(&bytes).await.unwrap();
                    let mut answer = Vec::new();
                    let reading = stream.read_to_end(&mut answer);
                    let _ = world
                        .timeout(ms(10_000), reading)
                        .await
                        .expect("it is cut off");
                    ask(&world, &peer, ticket).await.unwrap();
                    // So that each gets its line.
                    world.sleep(ms(10_000)).await;
                }
            })
            .finished();
    });
    for words in [
        "somebody who has proven nothing",
        "a header's checksum is wrong",
        "encoded part is too large",
        "speaks versions 7 to 9",
        "said no hello",
        "began without hello",
        "a frame has version 9",
    ] {
        assert!(log.contains(words), "{words}: {log}");
    }
}

#[test]
fn half_open_connections_keep_no_member_out() {
    for mode in protected() {
        Simulation::new(1)
            .run(|world| async move {
                let cluster = Cluster::new(&world);
                let (server, _counter) = cluster.server(mode);
                let mut half_open: Vec<_> = (0..500).map(|_| stranger(&server)).collect();
                for stream in &mut half_open {
                    let _ = stream.write_all(&client_hello()[..100]).await;
                }
                for ticket in 1..=20 {
                    let peer = cluster.peer(&server, mode);
                    ask(&world, &peer, ticket).await.unwrap();
                    peer.close(Deadline::after(&world, ms(500))).await;
                    half_open.extend((0..30).map(|_| stranger(&server)));
                }
                let mut open = 0;
                for stream in &mut half_open {
                    let mut byte = [0];
                    let reading = stream.read(&mut byte);
                    open += usize::from(world.timeout(ms(1), reading).await.is_err());
                }
                assert!((1..=128).contains(&open), "{open} are open");
                world.sleep(ms(5000)).await;
                for mut stream in half_open {
                    let mut rest = Vec::new();
                    let reading = stream.read_to_end(&mut rest);
                    let _ = world
                        .timeout(ms(1), reading)
                        .await
                        .expect("closed after 4 s");
                }
            })
            .finished();
    }
}

/// A byte now and then is a sign of life, but no proof.
#[test]
fn a_handshake_has_an_end() {
    Simulation::new(1)
        .run(|world| async move {
            let cluster = Cluster::new(&world);
            let (server, _counter) = cluster.server(Mode::AuthOnly);
            let mut stream = stranger(&server);
            let begun = world.now();
            for byte in client_hello() {
                if stream.write_all(&[byte]).await.is_err() {
                    break;
                }
                world.sleep(ms(100)).await;
            }
            let lasted = world.now().since(begun);
            assert!(lasted <= ms(4200), "{lasted:?}");
        })
        .finished();
}

/// A node that says nothing after it took the connection.
#[test]
fn a_silent_server_is_given_up() {
    Simulation::new(1)
        .run(|world| async move {
            let cluster = Cluster::new(&world);
            let security = cluster.security(ASKING, Policy::only(Mode::AuthOnly));
            let addresses = Addresses::new(&world).with_security(security);
            let listener = world.listen(any_port()).await.unwrap();
            addresses.set(ANSWERING, listener.address());
            let _silent = world.spawn("silent", async move {
                let _kept = listener.accept().await;
                std::future::pending::<()>().await;
            });
            let begun = world.now();
            let deadline = Deadline::after(&world, ms(700));
            let place = Place {
                lane: Lane::Small,
                number: 0,
            };
            let error = addresses
                .dial(ANSWERING, place, deadline)
                .await
                .err()
                .unwrap();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(
                error.to_string().contains("didn't say who it is"),
                "{error}"
            );
            assert!(world.now().since(begun) <= ms(705));
        })
        .finished();
}
