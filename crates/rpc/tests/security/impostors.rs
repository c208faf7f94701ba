//! Nodes of other clusters, with certificates that don't count, and with another's name.

use super::*;
use rcgen::{CertificateParams, Issuer, PKCS_ECDSA_P256_SHA256};

/// A call to a server with these credentials from a node with those, in every mode that proves them.
fn refusals(
    server_has: impl Fn(&World) -> Credentials + Copy,
    client_has: impl Fn(&World) -> Credentials + Copy,
    why: &str,
) -> String {
    warnings(|| {
        Simulation::new(1)
            .run(|world| async move {
                for mode in protected() {
                    let policy = Policy::only(mode);
                    let security = |has| Security::new(&world, policy.clone(), has).unwrap();
                    let (server, counter) = server(&world, security(server_has(&world)));
                    let asking = security(client_has(&world));
                    let peer = peer(&world, &server, asking, identity(ASKING, 1));
                    let text = refusal(&world, &peer, &counter, 1).await;
                    assert!(text.contains(why), "{mode}: {text}");
                    // The server reads on for a moment before it says why it refused.
                    world.sleep(ms(1000)).await;
                }
            })
            .finished();
    })
}

thread_local! {
    /// The same authority for both sides of a test.
    static OURS: std::cell::OnceCell<[String; 2]> = const { std::cell::OnceCell::new() };
}

/// The cluster of both sides, in this world.
fn ours(world: &World) -> Cluster {
    let [key, certificate] = OURS.with(|ours| {
        let made = || {
            let authority = Cluster::new(world).authority;
            [authority.key_pem(), authority.certificate().to_pem()]
        };
        ours.get_or_init(made).clone()
    });
    Cluster {
        world: world.clone(),
        authority: Authority::from_pem(&key, &certificate).unwrap(),
    }
}

fn good(node: NodeId) -> impl Fn(&World) -> Credentials + Copy {
    move |world| ours(world).credentials(node)
}

fn foreign(node: NodeId) -> impl Fn(&World) -> Credentials + Copy {
    move |world| Cluster::of(world, CLUSTER + 1).credentials(node)
}

fn in_days(node: NodeId, from: i64, until: i64) -> impl Fn(&World) -> Credentials + Copy {
    move |world| ours(world).credentials_in(node, from, until)
}

#[test]
fn nodes_of_other_clusters_are_refused_by_both_sides() {
    let log = refusals(
        good(ANSWERING),
        foreign(ASKING),
        "no authority that is trusted",
    );
    assert!(log.contains("another cluster"), "{log}");
    let log = refusals(
        foreign(ANSWERING),
        good(ASKING),
        "belongs to another cluster",
    );
    assert!(log.contains("belongs to another cluster"), "{log}");
    // The same number for another cluster doesn't help.
    let same = |world: &World| Cluster::new(world).credentials(ASKING);
    refusals(good(ANSWERING), same, "no authority that is trusted");
}

#[test]
fn certificates_that_have_ended_or_dont_count_yet_are_refused() {
    let log = refusals(
        good(ANSWERING),
        in_days(ASKING, -9, -3),
        "it has ended or doesn't count",
    );
    assert!(log.contains("ended 3 days ago"), "{log}");
    refusals(in_days(ANSWERING, -9, -3), good(ASKING), "ended 3 days ago");
    let early = "it has ended or doesn't count";
    let log = refusals(good(ANSWERING), in_days(ASKING, 5, 9), early);
    assert!(log.contains("counts only in 5 days"), "{log}");
    refusals(
        in_days(ANSWERING, 5, 9),
        good(ASKING),
        "counts only in 5 days",
    );
}

#[test]
fn a_server_that_isnt_the_node_that_is_wanted_is_refused() {
    let log = refusals(good(NodeId(7)), good(ASKING), "another node's");
    assert!(log.contains("another node's"), "{log}");
}

/// A member's certificate is no right to be another member.
#[test]
fn a_hello_that_claims_another_node_than_the_certificate_is_refused() {
    let log = warnings(|| {
        Simulation::new(1)
            .run(|world| async move {
                let cluster = Cluster::new(&world);
                for mode in protected() {
                    let (server, counter) = cluster.server(mode);
                    let three = cluster.security(NodeId(3), Policy::only(mode));
                    let as_three = peer(&world, &server, three.clone(), identity(NodeId(4), 1));
                    let why = refusal(&world, &as_three, &counter, 1).await;
                    assert!(why.contains("certificate is node 3's"), "{mode}: {why}");
                    // It has pushed nobody out: node 4 hasn't called yet.
                    let asking = cluster.peer(&server, mode);
                    ask(&world, &asking, 2).await.unwrap();
                }
            })
            .finished();
    });
    assert!(
        log.contains("certificate is node 3's, the hello is 4.1's"),
        "{log}"
    );
}

/// A certificate that the authority's key signed for something else, such as etcd.
fn signed_for(cluster: &Cluster, key: &KeyPair, names: &[String]) -> CertificateDer<'static> {
    let signer = KeyPair::from_pem(&cluster.authority.key_pem()).unwrap();
    let authority = CertificateDer::from(cluster.authority.certificate().der());
    let issuer = Issuer::from_ca_cert_der(&authority, signer).unwrap();
    let mut params = CertificateParams::new(names.to_vec()).unwrap();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    params.signed_by(key, &issuer).unwrap().der().clone()
}

#[test]
fn whoever_has_no_certificate_of_a_node_is_refused() {
    Simulation::new(1)
        .run(|world| async move {
            let cluster = Cluster::new(&world);
            let (server, _counter) = cluster.server(Mode::AuthOnly);
            let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
            let name = |node| {
                let name = NodeName {
                    node: NodeId(node),
                    cluster: CLUSTER,
                };
                name.to_string()
            };
            let of = |names: &[String]| Some((signed_for(&cluster, &key, names), &key));
            let ours = b"shale-authonly/1".as_slice();
            let good = tls_of_others(&cluster, stranger(&server), of(&[name(1)]), Some(ours)).await;
            good.unwrap();
            let elsewhere = NodeName {
                node: NodeId(1),
                cluster: CLUSTER + 1,
            };
            for (own, purpose) in [
                (None, Some(ours)),
                (of(&["localhost".into()]), Some(ours)),
                (of(&[name(1), name(2)]), Some(ours)),
                (of(&[elsewhere.to_string()]), Some(ours)),
                (of(&[name(1)]), None),
                (of(&[name(1)]), Some(b"h2")),
                (of(&[name(1)]), Some(b"shale/1")),
                (of(&[name(1)]), Some(b"shale/2")),
                (of(&[name(1)]), Some(b"shale-join/1")),
            ] {
                let answer = tls_of_others(&cluster, stranger(&server), own, purpose).await;
                assert!(answer.is_err(), "{purpose:?}");
            }
        })
        .finished();
}
