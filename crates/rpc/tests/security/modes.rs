//! Every value of `cipherList` carries calls, and no node takes connections of another one.

use super::*;
use crate::scene::request;
use model::ErrorKind;
use model::call::Class;
use model::join::AUTHORITY_KEY;

#[test]
fn calls_go_over_connections_of_every_mode() {
    on_both(|world| async move {
        let cluster = Cluster::new(&world);
        for mode in modes() {
            let (server, _counter) = cluster.server(mode);
            let peer = cluster.peer(&server, mode);
            connected(&world, &peer, 1).await;
            let calls: Vec<_> = (10..50_u64)
                .map(|ticket| {
                    let (peer, world) = (peer.clone(), world.clone());
                    let mut call = request(ticket, ticket % 3);
                    call.class = Class::ALL[ticket as usize % 4];
                    call.payload = vec![ticket as u8; ticket as usize * 6000].into();
                    call.reply_bytes_max = 310_000;
                    let asking = world.clone();
                    world.spawn("ask", async move { ask_call(&asking, &peer, call).await })
                })
                .collect();
            for (ticket, call) in (10..50_u64).zip(calls) {
                let answer = call.await.unwrap_or_else(|none| panic!("{mode}: {none}"));
                assert_eq!(answer.reply.decode::<u64>(), Ok(ticket));
                let payload = vec![ticket as u8; ticket as usize * 6000];
                assert_eq!(answer.reply.payload, payload, "{mode}");
                assert!(world::is_aligned(&answer.reply.payload), "{mode}");
            }
            peer.close(Deadline::after(&world, ms(2000))).await;
            server.close(Deadline::after(&world, ms(2000))).await;
        }
    });
}

#[test]
fn a_node_takes_connections_of_its_own_mode_only() {
    Simulation::new(1)
        .run(|world| async move {
            let cluster = Cluster::new(&world);
            let suites = [
                Mode::Encrypted(Suites::only(Suite::Aes128Gcm)),
                Mode::Encrypted(Suites::only(Suite::ChaCha20Poly1305)),
            ];
            let all = [&[Mode::Off, Mode::AuthOnly][..], &suites].concat();
            let mut ticket = 0;
            for there in &all {
                let (server, counter) = cluster.server(*there);
                for here in &all {
                    ticket += 1;
                    let peer = cluster.peer(&server, *here);
                    if here == there {
                        ask(&world, &peer, ticket).await.unwrap();
                        continue;
                    }
                    let why = refusal(&world, &peer, &counter, ticket).await;
                    assert!(why.contains("cipherList"), "{here} to {there}: {why}");
                }
            }
        })
        .finished();
}

/// Would be broken if the key of an authority went over a connection that anybody can open or read.
#[test]
fn what_needs_a_proof_is_asked_over_protected_connections_only() {
    Simulation::new(1)
        .run(|world| async move {
            let cluster = Cluster::new(&world);
            for mode in modes() {
                let (server, counter) = cluster.server(mode);
                let peer = cluster.peer(&server, mode);
                let mut call = request(1, 0);
                call.method = AUTHORITY_KEY;
                let answer = ask_call(&world, &peer, call).await.unwrap();
                let answer = answer.reply.decode::<u64>();
                match mode {
                    Mode::Off => {
                        assert_eq!(answer.unwrap_err().kind(), ErrorKind::NotPermitted);
                        assert!(counter.begun.lock().is_empty());
                    }
                    _ => assert_eq!(answer, Ok(1), "{mode}"),
                }
                // The connection goes on.
                ask(&world, &peer, 2).await.unwrap();
            }
        })
        .finished();
}

/// What is changed while a connection is open counts from the next one on.
#[test]
fn suites_of_two_modes_are_taken_together() {
    Simulation::new(1)
        .run(|world| async move {
            let cluster = Cluster::new(&world);
            let text = "TLS_AES_256_GCM_SHA384 also TLS_CHACHA20_POLY1305_SHA256 also EMPTY";
            let policy: Policy = text.parse().unwrap();
            let (server, counter) = server(&world, cluster.security(ANSWERING, policy));
            for (ticket, mode) in modes().into_iter().enumerate() {
                let peer = cluster.peer(&server, mode);
                let is_taken = ![1, 2].contains(&ticket);
                if is_taken {
                    ask(&world, &peer, ticket as u64).await.unwrap();
                } else {
                    refusal(&world, &peer, &counter, ticket as u64).await;
                }
            }
        })
        .finished();
}
