//! Certificates that end are replaced in time.

use super::Cluster;
use crate::fixture::eventually;
use model::{NodeId, Timestamp};
use rpc::security::{Authority, Certificate, Holder, PrivateKey, SigningRequest, Validity};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn key_file(cluster: &Cluster, number: usize, name: &str) -> PathBuf {
    cluster.node(number).dir.join("keys").join(name)
}

fn certificate(cluster: &Cluster, number: usize) -> Certificate {
    let text = key_text(cluster, number, "node.pem");
    Certificate::all_from_pem(&text, 1).unwrap().remove(0)
}

/// What a file of a node's keys says.
pub(super) fn key_text(cluster: &Cluster, number: usize, name: &str) -> String {
    fs::read_to_string(key_file(cluster, number, name)).unwrap()
}

/// A certificate of a node for this key, as the cluster's authority made it long ago; it ends in so many days.
pub(super) fn old_certificate(
    cluster: &Cluster,
    number: usize,
    key: &PrivateKey,
    days: i64,
) -> String {
    let read = |name| key_text(cluster, 1, name);
    let authority = Authority::from_pem(&read("authority.key"), &read("authority.pem"));
    let request = SigningRequest::from_der(&key.signing_request().unwrap()).unwrap();
    let address: IpAddr = cluster.address(number as u8).parse().unwrap();
    let holder = Holder {
        node: NodeId(number as u32),
        addresses: vec![address],
        has_localhost: number == 1,
    };
    let validity = Validity {
        from: in_days(-600),
        until: in_days(days),
    };
    let old = authority.unwrap().issue_for(&request, &holder, validity);
    old.unwrap().to_pem()
}

/// Gives a node that is down a certificate as it would have after most of two years.
fn age(cluster: &Cluster, number: usize) {
    let key = PrivateKey::from_pem(&key_text(cluster, number, "node.key")).unwrap();
    let old = old_certificate(cluster, number, &key, 60);
    fs::write(key_file(cluster, number, "node.pem"), old).unwrap();
}

/// So many days from now.
pub(super) fn in_days(days: i64) -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seconds = i64::try_from(now.as_secs()).unwrap();
    Timestamp::from_timespec(seconds + days * i64::try_from(DAY.as_secs()).unwrap(), 0)
}

/// Ends both nodes. The last one may say that not everything is durable: the other one's NSD is away.
#[track_caller]
fn end_both(cluster: &Cluster) {
    cluster.node(2).must(&["down"]);
    let down = cluster.node(1).run(&["down"]);
    let said = String::from_utf8_lossy(&down.stderr);
    let is_said = said.contains("not everything is durable");
    assert!(down.status.success() || is_said, "{said}");
}

#[test]
fn certificates_in_their_last_third_are_replaced_while_nodes_run() {
    let cluster = Cluster::of(2);
    end_both(&cluster);
    for number in [1, 2] {
        age(&cluster, number);
        assert!(certificate(&cluster, number).validity().until < in_days(61));
        // The first one certifies itself, the second one asks it.
        cluster.node(number).must(&["up"]);
        eventually("it has a new certificate", || {
            certificate(&cluster, number).validity().until > in_days(700)
        });
        let events = cluster.node(number).ask(&["events"]);
        let mut events = events.as_array().unwrap().iter();
        assert!(events.any(|line| line["event"] == "certificate-renewed"));
    }
    // What was stored is good for the next start, etcd's included.
    end_both(&cluster);
    for number in [1, 2] {
        cluster.node(number).must(&["up"]);
    }
    fs::write(cluster.path(1, "a"), "seen").unwrap();
    assert_eq!(fs::read_to_string(cluster.path(2, "a")).unwrap(), "seen");
}
