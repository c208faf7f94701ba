//! The cluster's own etcd: what it never forgets, whatever is lost of it.

use super::{Cluster, refused};
use std::fs;

#[test]
fn a_quorum_node_that_lost_its_etcd_is_not_started_and_founds_no_other_one() {
    let cluster = Cluster::founded();
    let one = cluster.node(1);
    fs::write(cluster.path(1, "a"), "written").unwrap();
    one.must(&["down"]);
    let (data, aside) = (one.dir.join("etcd"), one.dir.join("etcd.aside"));
    fs::rename(&data, &aside).unwrap();
    for _ in 0..2 {
        let why = refused(&one.run(&["up"]));
        assert!(
            why.contains("member of etcd") && why.contains("are gone"),
            "{why}"
        );
        assert!(!data.join("member").exists(), "it begins nothing anew");
    }
    let _ = fs::remove_dir(&data);
    fs::rename(&aside, &data).unwrap();
    one.must(&["up"]);
    assert_eq!(fs::read_to_string(cluster.path(1, "a")).unwrap(), "written");
}
