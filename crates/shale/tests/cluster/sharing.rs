//! What one node does every other one sees at once.

use super::Cluster;
use crate::fixture::{eventually, open, pattern, poll};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// What repair may read or write at each node, in bytes per second: the setting, and a number with which it can be watched.
const SPEED: &str = "repair_bytes_per_second";
const SLOWLY: u64 = 512 << 10;
/// Jobs hear a moment late that others have begun, and are faster until then: by so much together, if none of eight has heard.
const LATE: u64 = 3;
/// Bytes of which an added NSD gets its share: much more than what else is on NSDs.
const SPREAD: usize = 48 << 20;

#[test]
fn what_one_node_does_every_other_one_sees_at_once() {
    let cluster = Cluster::of(2);
    let at = |node: usize, name: &str| cluster.path(node, name);
    fs::write(at(1, "a"), "one").unwrap();
    assert_eq!(fs::read_to_string(at(2, "a")).unwrap(), "one");
    for round in 0..50 {
        let (here, there) = (1 + round % 2, 2 - round % 2);
        // A file that both have open and cached.
        fs::write(at(here, "a"), format!("round {round}")).unwrap();
        assert_eq!(
            fs::read_to_string(at(there, "a")).unwrap(),
            format!("round {round}")
        );
        assert_eq!(
            fs::metadata(at(there, "a")).unwrap().len(),
            fs::metadata(at(here, "a")).unwrap().len()
        );
        // Names that come, move and go.
        let (name, moved) = (format!("n{round}"), format!("m{round}"));
        assert!(!at(there, &name).exists());
        fs::create_dir(at(here, &name)).unwrap();
        assert!(at(there, &name).is_dir());
        fs::rename(at(there, &name), at(there, &moved)).unwrap();
        assert!(!at(here, &name).exists() && at(here, &moved).is_dir());
        fs::remove_dir(at(here, &moved)).unwrap();
        assert!(!at(there, &moved).exists());
    }
    let names = |node: usize| -> BTreeSet<_> {
        let entries = fs::read_dir(at(node, "")).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!(names(1), names(2));
    // Appends of both end up behind each other.
    let mut one = fs::File::options()
        .append(true)
        .create(true)
        .open(at(1, "log"))
        .unwrap();
    let mut two = fs::File::options().append(true).open(at(2, "log")).unwrap();
    for number in 0..40 {
        writeln!(
            if number % 2 == 0 { &mut one } else { &mut two },
            "{number:03}"
        )
        .unwrap();
    }
    let expected: String = (0..40).map(|number| format!("{number:03}\n")).collect();
    assert_eq!(fs::read_to_string(at(1, "log")).unwrap(), expected);
    assert_eq!(fs::read_to_string(at(2, "log")).unwrap(), expected);
    // Parts of one file, written on both nodes while both have it open.
    let (one, two) = (open(&at(1, "parts")), open(&at(2, "parts")));
    for block in 0..32_u64 {
        let file = if block % 2 == 0 { &one } else { &two };
        file.write_all_at(&[block as u8; 4096], block * 4096)
            .unwrap();
    }
    for file in [&one, &two] {
        let mut bytes = vec![0; 32 * 4096];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let is_right = |(at, byte): (usize, &u8)| usize::from(*byte) == at / 4096;
        assert!(bytes.iter().enumerate().all(is_right));
    }
    // An unlinked file goes on for whoever has it open on the other node.
    let mut kept = fs::File::open(at(2, "a")).unwrap();
    fs::remove_file(at(1, "a")).unwrap();
    assert!(!at(2, "a").exists());
    let mut text = String::new();
    kept.seek(SeekFrom::Start(0)).unwrap();
    kept.read_to_string(&mut text).unwrap();
    assert_eq!(text, "round 49");
}

#[test]
fn locks_are_the_whole_clusters() {
    let cluster = Cluster::of(2);
    // A counter under a lock, from both nodes at once.
    fs::write(cluster.path(1, "counter"), "0").unwrap();
    let count = |node: usize| {
        let path = cluster.path(node, "counter");
        for _ in 0..60 {
            let mut file = open(&path);
            flock(&file, FlockOperation::LockExclusive).unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            let next = text.trim().parse::<u32>().unwrap() + 1;
            file.seek(SeekFrom::Start(0)).unwrap();
            write!(file, "{next:6}").unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| count(1));
        scope.spawn(|| count(2));
    });
    let end = fs::read_to_string(cluster.path(2, "counter")).unwrap();
    assert_eq!(end.trim(), "120");
    let held = open(&cluster.path(1, "counter"));
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let other = open(&cluster.path(2, "counter"));
    flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap_err();
    drop(held);
    flock(&other, FlockOperation::LockExclusive).unwrap();
}

/// An NSD is added on the second node, of which the first one is asked. Would be broken if data stayed where it was
/// written, moved for ever or faster than it may, or if nobody were told how far that is.
fn an_added_nsd_gets_its_share(cluster: &Cluster) {
    let (one, two) = (cluster.node(1), cluster.node(2));
    // Small segments, which can be spread evenly.
    one.must(&["pool", "change", "--block-size", "64K"]);
    let mut file = fs::File::create_new(cluster.path(1, "spread")).unwrap();
    file.write_all(&pattern(1, SPREAD)).unwrap();
    file.sync_all().unwrap();
    eventually("the manager knows the limit", || {
        one.ask(&["repair", "status"])["cluster"]["limit_bytes_per_second"] == SLOWLY
    });
    let rebuilt = |status: &Value| status["cluster"]["repair"]["bytes_done"].as_u64();
    let before = rebuilt(&one.ask(&["repair", "status"])).unwrap();
    let begun = Instant::now();
    one.must(&["nsd", "add", "--node", "n2", "--nsd-size", "1G"]);
    let (mut left, mut has_end) = (BTreeSet::new(), false);
    let shown = "progress and an expected end are shown";
    poll::eventually(shown, Duration::from_secs(60), || {
        let status = one.ask(&["repair", "status"]);
        // A piece is read and written, and the new NSD's node has a part in each. Another manager counts anew.
        let done = rebuilt(&status).unwrap_or(0).saturating_sub(before);
        let seconds = begun.elapsed().as_secs() + 1;
        assert!(
            done <= LATE * SLOWLY / 2 * seconds,
            "{done} bytes in {seconds} s: {status}"
        );
        let repair = &status["cluster"]["repair"];
        let number = |what: &str| repair[what].as_u64().unwrap_or_default();
        if repair["state"] == "running" && number("groups") > 0 {
            left.insert(number("critical_bytes_left") + number("normal_bytes_left"));
            has_end |= number("seconds_left") > 0;
        }
        left.len() > 2 && has_end
    });
    one.must(&["config", "set", SPEED]);
    eventually("it has its share, and nothing moves any more", || {
        let status = two.ask(&["repair", "status"]);
        let is_over = status["state"] == "idle" && status["cluster"]["balancing_shards"] == 0;
        let nsds = two.ask(&["nsd", "list"]);
        let lines = nsds.as_array().unwrap().iter();
        let used: Vec<u64> = lines.map(|line| line["used"].as_u64().unwrap()).collect();
        let mean = used.iter().sum::<u64>() / used.len() as u64;
        // A tenth, and as much for logs and tables, which nobody spreads.
        let is_even = |used: &u64| used.abs_diff(mean) <= mean / 5;
        is_over && used.iter().all(is_even)
    });
    assert!(fs::read(cluster.path(2, "spread")).unwrap() == pattern(1, SPREAD));
}

#[test]
fn a_cluster_has_several_file_systems_and_any_node_runs_commands_for_another() {
    let cluster = Cluster::of(2);
    let (one, two) = (cluster.node(1), cluster.node(2));
    // Known to the manager when it is needed.
    one.must(&["config", "set", SPEED, &SLOWLY.to_string()]);
    two.must(&["fs", "create", "scratch"]);
    let again = one.run(&["fs", "create", "scratch"]);
    assert!(
        String::from_utf8_lossy(&again.stderr).contains("choose another name"),
        "{again:?}"
    );
    let places = [one.place("scratch"), two.place("scratch")];
    for (node, place) in [one, two].into_iter().zip(&places) {
        node.must(&["fs", "mount", "scratch", place.to_str().unwrap()]);
    }
    fs::write(places[0].join("x"), "in scratch").unwrap();
    assert_eq!(
        fs::read_to_string(places[1].join("x")).unwrap(),
        "in scratch"
    );
    assert!(!cluster.path(1, "x").exists(), "it is another file system");
    let missing = one.run(&["mount", places[0].to_str().unwrap(), "-o", "fs=nothing"]);
    assert!(
        String::from_utf8_lossy(&missing.stderr).contains("there are: data, scratch"),
        "{missing:?}"
    );
    for (node, place) in [one, two].into_iter().zip(&places) {
        node.must(&["fs", "unmount", place.to_str().unwrap()]);
    }
    an_added_nsd_gets_its_share(&cluster);
    let nsds = one.ask(&["nsd", "list"]);
    let of_two = nsds
        .as_array()
        .unwrap()
        .iter()
        .filter(|line| line["node"] == 2);
    assert_eq!(of_two.clone().count(), 2, "{nsds}");
    let address = format!("{}:7311", cluster.address(2));
    for line in of_two {
        assert_eq!(line["node_name"], "n2", "{nsds}");
        assert_eq!(line["address"], address.as_str(), "{nsds}");
    }
    let table = one.must(&["nsd", "list"]);
    assert!(
        table.lines().next().unwrap().contains("served by"),
        "{table}"
    );
    let served = format!("n2 ({address})");
    assert_eq!(table.matches(&served).count(), 2, "{table}");
    assert_eq!(one.ask(&["status", "--node", "2"])["cluster"]["node"], 2);
    let all = two.ask(&["status", "--all"]);
    assert_eq!(all.as_array().unwrap().len(), 2, "{all}");
    let nobody = one.run(&["status", "--node", "n7"]);
    assert!(
        String::from_utf8_lossy(&nobody.stderr).contains("1 (n1), 2 (n2)"),
        "{nobody:?}"
    );
    // Settings.
    two.must(&[
        "config",
        "set",
        "pagepool_bytes",
        "100000000",
        "--node",
        "n1",
    ]);
    assert_eq!(
        one.must(&["config", "get", "pagepool_bytes"]).trim(),
        "100000000"
    );
    assert_eq!(
        two.must(&["config", "get", "pagepool_bytes"]).trim(),
        "268435456"
    );
    // One that counts at once.
    let more = ["config", "set", "max_tcp_conns_per_node_conn", "5"];
    two.must(&[&more[..], &["--node", "n1"]].concat());
    let log = |node: &crate::fixture::Node| fs::read_to_string(node.dir.join("daemon.log"));
    eventually("the node takes it over", || {
        log(one).is_ok_and(|log| log.contains("Connections { max: 5,"))
    });
    assert!(!log(two).unwrap().contains("Connections { max: 5,"));
    let small = two.run(&["config", "set", "pagepool_bytes", "5"]);
    assert!(
        String::from_utf8_lossy(&small.stderr).contains("16777216"),
        "{small:?}"
    );
}
