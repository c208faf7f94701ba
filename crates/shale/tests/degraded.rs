//! erasure(4+2) on six NSDs: losing two causes only a pause, and flipped bits are repaired.

use crate::fixture::{
    Node, eventually,
    leftovers::{Leftovers, cluster_of},
    pattern, poll,
};
use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::{fs::FileExt, net::UnixStream},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

fn six() -> Node {
    Node::with(&["--scheme", "erasure(4+2)", "--nsd-size", "1G"])
}

fn write_files(node: &Node, folder: &str, count: u64) {
    fs::create_dir_all(node.path(folder)).unwrap();
    for number in 0..count {
        fs::write(node.path(&format!("{folder}/{number}")), content(number)).unwrap();
    }
}

fn content(number: u64) -> Vec<u8> {
    pattern(
        number,
        [100, 5_000, 90_000, 700_000, 5_000_000][(number % 5) as usize],
    )
}

fn verify_files(node: &Node, folder: &str, count: u64) {
    for number in 0..count {
        assert!(
            fs::read(node.path(&format!("{folder}/{number}"))).unwrap() == content(number),
            "{folder}/{number}"
        );
    }
}

/// Asks until the answer fits. The time limit only matters if it never does.
fn wait_for(
    node: &Node,
    what: &[&str],
    fits: impl Fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    poll::until(&format!("{what:?}"), Duration::from_secs(300), || {
        let answer = node.ask(what);
        if fits(&answer) {
            Ok(answer)
        } else {
            Err(answer.to_string())
        }
    })
}

#[test]
fn two_of_six_nsds_may_be_lost_under_load_and_repair_completes_with_new_ones() {
    let node = six();
    write_files(&node, "before", 40);
    node.must(&["fs", "sync"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                write_files(&node, "during", 20);
                verify_files(&node, "before", 20);
                rounds += 1;
            }
            rounds
        });
        // One region is truncated under the daemon, another NSD is removed.
        let region = OpenOptions::new()
            .write(true)
            .open(node.dir.join("nsd/2.region"))
            .unwrap();
        region.set_len(0).unwrap();
        verify_files(&node, "before", 40);
        // Six are needed, and this one can be read.
        let refused = node.run(&["nsd", "remove", "5"]);
        assert_eq!(refused.status.code(), Some(1));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            said.contains("add an NSD") && said.contains("--gone"),
            "{said}"
        );
        node.must(&["nsd", "remove", "5", "--gone"]);
        verify_files(&node, "before", 40);
        stop.store(true, Ordering::Relaxed);
        assert!(load.join().unwrap() > 0);
    });
    verify_files(&node, "during", 20);
    write_files(&node, "after", 40);
    node.must(&["fs", "sync"]);
    verify_files(&node, "after", 40);

    // A restart finds neither region and still serves.
    node.must(&["down"]);
    for nsd in [2, 5] {
        fs::remove_file(node.dir.join(format!("nsd/{nsd}.region"))).unwrap();
    }
    node.must(&["up"]);
    assert_ne!(node.ask(&["health"])["state"], "healthy");
    for folder in ["before", "after"] {
        verify_files(&node, folder, 40);
    }

    node.must(&["nsd", "remove", "2"]);
    node.must(&["nsd", "add"]);
    node.must(&["nsd", "add"]);
    wait_for(&node, &["repair", "status"], |repair| {
        repair["state"] == "idle" && repair["segments_to_do"] == 0
    });
    node.must(&["fs", "check", "--deep"]);

    // Now two others may be lost.
    node.must(&["down"]);
    fs::remove_file(node.dir.join("nsd/1.region")).unwrap();
    fs::remove_file(node.dir.join("nsd/4.region")).unwrap();
    node.must(&["up"]);
    for folder in ["before", "after"] {
        verify_files(&node, folder, 40);
    }
}

fn online(nsds: &serde_json::Value) -> usize {
    let nsds = nsds.as_array().unwrap().iter();
    nsds.filter(|nsd| nsd["health"] == "online").count()
}

#[test]
fn nsds_that_are_added_at_the_same_time_all_serve_after_a_restart() {
    let node = Node::with(&["--nsd-size", "512M"]);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| node.must(&["nsd", "add"]));
        }
    });
    assert_eq!(online(&node.ask(&["nsd", "list"])), 4);
    write_files(&node, "files", 10);
    node.must(&["down"]);
    node.must(&["up"]);
    assert_eq!(online(&node.ask(&["nsd", "list"])), 4);
    verify_files(&node, "files", 10);
    node.check();
}

#[test]
fn an_nsd_is_added_to_the_end_though_its_asker_goes_away() {
    let node = Node::with(&["--nsd-size", "512M"]);
    let mut asker = UnixStream::connect(node.dir.join("daemon.sock")).unwrap();
    let body = r#"{"bytes":null,"path":null}"#;
    write!(
        asker,
        "POST /v1/nsds HTTP/1.1\r\nhost: shale\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let region = node.dir.join("nsd/2.region");
    eventually("the region is made", || region.exists());
    drop(asker);
    let both = |nsds: &serde_json::Value| online(nsds) == 2;
    wait_for(&node, &["nsd", "list"], both);
    node.must(&["down"]);
    // If the daemon dies meanwhile, nothing that nobody knows of stays allocated.
    let left = Leftovers::in_node(&node, cluster_of(&node));
    node.must(&["up"]);
    left.must_be_discarded();
    assert!(both(&node.ask(&["nsd", "list"])));
    node.check();
}

#[test]
fn the_only_nsd_is_replaced_and_its_region_may_go() {
    let node = Node::with(&["--nsd-size", "1G"]);
    write_files(&node, "files", 40);
    node.must(&["fs", "sync"]);
    let refused = node.run(&["nsd", "remove", "1"]);
    assert_eq!(refused.status.code(), Some(1), "nothing else could hold it");
    node.must(&["nsd", "add"]);
    node.must(&["nsd", "remove", "1"]);
    let is_given_up = |nsds: &serde_json::Value| nsds[0]["state"] == "lost";
    wait_for(&node, &["nsd", "list"], is_given_up);
    wait_for(&node, &["repair", "status"], |repair| {
        repair["state"] == "idle"
    });
    node.must(&["down"]);
    fs::remove_file(node.dir.join("nsd/1.region")).unwrap();
    node.must(&["up"]);
    verify_files(&node, "files", 40);
    node.must(&["fs", "check", "--deep"]);
}

#[test]
fn flipped_bytes_in_a_region_are_found_and_mended() {
    let node = six();
    write_files(&node, "files", 40);
    node.must(&["down"]);
    let path = node.dir.join("nsd/3.region");
    let region: File = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let length = region.metadata().unwrap().len();
    let mut flipped = 0;
    let mut unit = vec![0; 4096];
    // Every 16th non-empty page of the whole region.
    let mut used = 0;
    for page in 0..length / 4096 {
        if !holds_data(&region, page * 4096) {
            continue;
        }
        region.read_exact_at(&mut unit, page * 4096).unwrap();
        if unit.iter().all(|byte| *byte == 0) {
            continue;
        }
        used += 1;
        if used % 16 == 0 {
            let at = (page * 977 % 4096) as usize;
            unit[at] ^= 1 << (page % 8);
            region.write_all_at(&unit, page * 4096).unwrap();
            flipped += 1;
        }
    }
    assert!(
        flipped > 20,
        "the region holds enough to damage: {used} pages"
    );
    drop(region);
    node.must(&["up"]);
    verify_files(&node, "files", 40);
    node.must(&["nsd", "scrub"]);
    node.must(&["fs", "check", "--deep"]);
    let again = node.ask(&["nsd", "scrub"]);
    assert!(
        again
            .as_array()
            .unwrap()
            .iter()
            .all(|line| line["damaged"] == 0),
        "{again}"
    );
}

#[test]
fn files_that_are_lost_make_health_critical_by_name_until_they_are_deleted() {
    let node = six();
    write_files(&node, "files", 20);
    node.must(&["down"]);
    // Two NSDs are lost, and a third has damage where it stores large files; which one does is random.
    let large: Vec<(u64, Vec<u8>)> = (0..4).map(|n| n * 5 + 4).map(|n| (n, content(n))).collect();
    let mut lost = std::collections::BTreeSet::new();
    let mut nsds = 1..=6;
    let damaged = nsds.find(|nsd| {
        let path = node.dir.join(format!("nsd/{nsd}.region"));
        let options = OpenOptions::new().read(true).write(true).open(&path);
        let region: File = options.unwrap();
        let mut unit = vec![0; 4096];
        for page in 0..region.metadata().unwrap().len() / 4096 {
            if !holds_data(&region, page * 4096) {
                continue;
            }
            region.read_exact_at(&mut unit, page * 4096).unwrap();
            let owner = large
                .iter()
                .find(|(_, content)| content[..4 << 20].chunks(4096).any(|part| part == unit));
            if let Some((number, _)) = owner {
                region.write_all_at(&[0xa5; 4096], page * 4096).unwrap();
                lost.insert(format!("/files/{number}"));
            }
        }
        !lost.is_empty()
    });
    let damaged = damaged.expect("some NSD holds data of large files");
    for nsd in (1..=6).filter(|nsd| *nsd != damaged).take(2) {
        fs::remove_file(node.dir.join(format!("nsd/{nsd}.region"))).unwrap();
    }
    node.must(&["up"]);
    for number in 0..20 {
        let read = fs::read(node.path(&format!("files/{number}")));
        match read {
            Ok(bytes) => assert!(bytes == content(number), "file {number}"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EIO));
                assert!(lost.contains(&format!("/files/{number}")), "file {number}");
            }
        }
    }
    let data = |health: &serde_json::Value| {
        let events = health["events"].as_array().unwrap().iter();
        let mut data = events.filter(|event| event["subject"] == "data");
        data.next()
            .map(|event| event["message"].as_str().unwrap().to_string())
    };
    let names = |message: &str| lost.iter().all(|name| message.contains(name.as_str()));
    let health = wait_for(&node, &["health"], |health| {
        data(health).is_some_and(|message| names(&message))
    });
    assert_eq!(health["state"], "critical");
    let check = node.ask(&["fs", "check"]);
    assert_eq!(check["unreadable"], serde_json::json!(lost), "{check}");
    let faults = check["faults"].as_array().unwrap();
    assert!(faults.len() < 10, "summed up: {check}");
    let scrub = node.ask(&["nsd", "scrub", &damaged.to_string()]);
    assert!(scrub[0]["lost"].as_u64().unwrap() > 0, "{scrub}");
    assert_eq!(node.ask(&["health"])["state"], "critical");
    for name in &lost {
        fs::remove_file(node.path(&name[1..])).unwrap();
    }
    let health = wait_for(&node, &["health"], |health| data(health).is_none());
    assert_eq!(health["state"], "degraded", "NSDs are missing: {health}");
}

/// Whether the byte is data, so that holes of a sparse region are skipped quickly.
fn holds_data(file: &File, offset: u64) -> bool {
    use std::os::fd::AsRawFd;
    // SAFETY: lseek takes a descriptor that `file` keeps open, and no memory.
    let next = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, libc::SEEK_DATA) };
    next == offset as i64
}

#[test]
fn two_nsds_of_a_shelf_may_be_lost_at_once_after_it_got_a_name() {
    let node = Node::with(&[
        "--nsds",
        "4",
        "--scheme",
        "replicate(2)",
        "--nsd-size",
        "1G",
    ]);
    write_files(&node, "files", 40);
    node.must(&["fs", "sync"]);
    let refused = |arguments: &[&str], code: i32, word: &str| {
        let refused = node.run(arguments);
        assert_eq!(refused.status.code(), Some(code), "{arguments:?}");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains(word), "{said}");
    };
    let with = |name| ["nsd", "change", "1", "2", "3", "4", "--failure-group", name];
    refused(&with("shelf-a"), 1, "add NSDs");
    refused(&with("shelf a"), 1, "visible ASCII");
    refused(
        &["nsd", "change", "9", "--failure-group", "a"],
        1,
        "no NSD 9",
    );
    refused(&["nsd", "change", "1"], 2, "--failure-group");
    node.must(&["nsd", "change", "1", "2", "--failure-group", "shelf-a"]);
    wait_for(&node, &["repair", "status"], |repair| {
        repair["state"] == "idle"
    });
    let listed = node.ask(&["nsd", "list"]);
    let names: Vec<_> = (0..4)
        .map(|at| listed[at]["failure_group"].as_str())
        .collect();
    assert_eq!(names, [Some("shelf-a"), Some("shelf-a"), None, None]);
    node.must(&["down"]);
    for nsd in [1, 2] {
        fs::remove_file(node.dir.join(format!("nsd/{nsd}.region"))).unwrap();
    }
    node.must(&["up"]);
    verify_files(&node, "files", 40);
    for nsd in ["1", "2"] {
        node.must(&["nsd", "remove", nsd]);
    }
    wait_for(&node, &["repair", "status"], |repair| {
        repair["state"] == "idle"
    });
    node.must(&["fs", "check", "--deep"]);
}
