//! Strangers at a node's port: garbage, broken and forged frames, connections that say nothing, certificates of another
//! authority, or whose time is over. `crates/rpc/tests/security` has more of them; here is what a real daemon makes of it.

use super::{
    Cluster,
    ciphers::change,
    renewing::{in_days, key_text, old_certificate},
    rotating::lets_in,
    works_everywhere,
};
use crate::fixture::{Node, bounded, eventually, pattern};
use model::NodeId;
use model::checksum::crc32c;
use rpc::security::{Authority, Credentials, Holder, PrivateKey};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// More connections than a node holds whose other side it doesn't know.
const SILENT: usize = 200;
/// Bytes that are offered on one connection.
const POURED_MAX: usize = 32 << 20;
/// What all of them together may cost of the daemon's memory: much less than what is offered.
const GROWTH_MAX: u64 = 64 << 20;
/// Longer than the node waits for anybody.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a stranger begins with, and what it goes on with.
struct Attack(&'static str, Vec<u8>, Vec<u8>);

/// A frame with this encoded part, which it says to have so many bytes (`docs/formats/rpc.md`).
fn frame(version: u8, kind: u8, part: &[u8], bytes: u32) -> Vec<u8> {
    let mut out = b"SHRP".to_vec();
    out.extend([version, kind, 0, 0]);
    out.extend([0; 24]);
    out.extend(bytes.to_le_bytes());
    out.extend([0; 8]);
    out.extend(crc32c(part).to_le_bytes());
    out.extend([0; 12]);
    out.extend(crc32c(&out).to_le_bytes());
    out.extend(part);
    out
}

/// The encoded part of a hello to node 1 by a node that isn't there, whose build speaks versions 7 to 9.
fn hello(cluster: u128) -> Vec<u8> {
    let mut part = vec![7, 0, 9, 0, 99, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    part.extend(cluster.to_le_bytes());
    part.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    part.extend([0; 48]);
    part.extend([2, 8, 0, 0]);
    part
}

fn attacks(cluster: u128) -> Vec<Attack> {
    let random = pattern(1, 60_000);
    let hello = hello(cluster);
    // A handshake message that says it has 16 MiB, in records of the largest size.
    let huge: Vec<u8> = [
        &[0x16, 3, 3, 0x40, 0, 1, 0xff, 0xff, 0xff][..],
        &[0; 16_380],
    ]
    .concat();
    let more: Vec<u8> = [&[0x16, 3, 3, 0x40, 0][..], &[0; 16_384]].concat();
    let too_long = [&[0x16, 3, 3, 0xff, 0xff][..], &random].concat();
    // TLS 1.2 at most, one cipher, no extensions.
    let mut old = vec![0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3];
    old.extend([7; 32]);
    old.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]);
    let http = b"GET / HTTP/1.1\r\n\r\n".to_vec();
    vec![
        Attack("nothing", Vec::new(), Vec::new()),
        Attack("random", random.clone(), random.clone()),
        Attack("a request of HTTP", http, b"\r\n".to_vec()),
        Attack("half a TLS hello", old[..20].to_vec(), Vec::new()),
        Attack("an old TLS", old, random.clone()),
        Attack("a huge message of TLS", huge, more),
        Attack("a record that is too long", too_long, random.clone()),
        Attack(
            "half a frame",
            frame(0, 1, &hello, 92)[..70].to_vec(),
            Vec::new(),
        ),
        Attack("a huge frame", frame(0, 1, b"", u32::MAX), random.clone()),
        Attack(
            "a frame of a later version",
            frame(9, 6, b"", 0),
            random.clone(),
        ),
        Attack(
            "a hello of later versions",
            frame(0, 1, &hello, 92),
            random.clone(),
        ),
        Attack("no hello", frame(1, 6, b"", 0), random),
    ]
}

/// Offers bytes until nobody takes them; the node must end the connection.
fn pour(address: &str, Attack(name, first, again): &Attack) {
    let mut stream = TcpStream::connect((address, 7311)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let (mut next, mut offered) = (&first[..], 0);
    while !next.is_empty() && offered < POURED_MAX {
        let Ok(count) = stream.write(next) else { break };
        offered += count;
        next = match &next[count..] {
            [] => &again[..],
            rest => rest,
        };
    }
    match stream.read_to_end(&mut Vec::new()) {
        // It was closed with bytes unread.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{name} is let in: {error}"),
        Ok(_) => {}
    }
}

/// The most memory that a node's daemon has ever had.
fn peak(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() << 10
}

/// Key, certificate and authorities of node 2, as another authority makes them that calls itself this cluster's.
fn forged(cluster: &Cluster, id: u128) -> [String; 3] {
    let now = in_days(0);
    let authority = Authority::found(id, now).unwrap();
    let holder = Holder {
        node: NodeId(2),
        addresses: vec![cluster.address(2).parse().unwrap()],
        has_localhost: true,
    };
    let forged = Credentials::first(&authority, &holder, now).unwrap();
    let authorities = key_text(cluster, 2, "authorities.pem") + &forged.authorities_pem();
    [forged.key_pem(), forged.certificate_pem(), authorities]
}

/// Those of node 1, as this cluster's authority makes them, for a time that is over.
fn expired(cluster: &Cluster) -> [String; 3] {
    let key = PrivateKey::generate().unwrap();
    let expired = old_certificate(cluster, 1, &key, -3);
    let authorities = key_text(cluster, 1, "authorities.pem");
    [key.to_pem(), expired, authorities]
}

#[test]
fn strangers_are_refused_and_told_of_and_cost_a_node_little_while_its_cluster_works() {
    let cluster = Cluster::of(2);
    let (one, two) = (cluster.node(1), cluster.node(2));
    let (pid, address) = (one.pid(), cluster.address(1));
    let address = address.as_str();
    let id = cluster.view(1)["cluster"].as_str().unwrap().to_owned();
    let id = u128::from_str_radix(&id, 16).unwrap();
    works_everywhere(&cluster, 2, "before");
    let before = peak(one);
    let attacks = attacks(id);
    let is_told = |node: &Node, words: &str| {
        let log = fs::read_to_string(node.dir.join("daemon.log")).unwrap();
        let mut lines = log.lines();
        lines.any(|line| line.contains("a connection was refused") && line.contains(words))
    };
    for (mode, words) in [
        ("AUTHONLY", "from no authority that is trusted here"),
        (
            "EMPTY",
            "somebody who has proven nothing sends what isn't taken",
        ),
    ] {
        change(&cluster, 2, 2, mode);
        if mode == "AUTHONLY" {
            lets_in(&cluster, 1, &forged(&cluster, id)).unwrap_err();
            // At the other node: this one's next line of certificates comes some seconds later.
            let refused = lets_in(&cluster, 2, &expired(&cluster)).unwrap_err();
            assert!(refused.contains("has ended"), "{refused}");
            eventually("it is told of", || is_told(two, "ended 3 days ago"));
        }
        let silent = (0..SILENT).map(|number| {
            let mut stream = TcpStream::connect((address, 7311)).unwrap();
            if number.is_multiple_of(2) {
                // As TLS begins; unless it was closed for another one.
                let _ = stream.write_all(&[0x16]);
            }
            stream
        });
        let silent: Vec<TcpStream> = silent.collect();
        std::thread::scope(|scope| {
            for attack in &attacks {
                scope.spawn(move || pour(address, attack));
            }
            // A member comes anew meanwhile.
            two.must(&["down"]);
            two.must(&["up"]);
            works_everywhere(&cluster, 2, mode);
        });
        drop(silent);
        eventually("it is told of", || is_told(one, words));
    }
    let grown = peak(one).saturating_sub(before);
    assert!(grown <= GROWTH_MAX, "{grown} bytes");
    assert_eq!(one.pid(), pid);
    bounded::must_be_sound(one);
    works_everywhere(&cluster, 2, "after");
}
