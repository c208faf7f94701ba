//! Long commands report their progress, and what happens to the work after Ctrl-C.

use crate::fixture::{
    Node,
    bounded::{self, wait_until},
    pattern,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, PipeWriter, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
};

/// Replaces the daemon: reports that a check has read one of four bytes, for as long as the test
/// wants, then that no fault was found.
struct SlowDaemon {
    home: tempfile::TempDir,
    finish: Sender<()>,
}

const CLEAN: &str = r#"{"clean":true,"inodes":1,"extents":0,"segments":0,"bytes":4,
    "faults":[],"unreadable_files":0,"unreadable":[]}"#;

impl SlowDaemon {
    fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(home.path().join("daemon.sock")).unwrap();
        let (finish, finished) = channel();
        std::thread::spawn(move || serve(&listener, finished));
        Self { home, finish }
    }

    fn check(&self) -> Child {
        self.check_writing_to(Stdio::piped())
    }

    fn check_writing_to(&self, output: Stdio) -> Child {
        Command::new(env!("CARGO_BIN_EXE_shale"))
            .args(["fs", "check", "--json", "--dir"])
            .arg(self.home.path())
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

fn serve(listener: &UnixListener, finished: Receiver<()>) {
    let mut finished = Some(finished);
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let path = path_of_request(&stream);
        if path.starts_with("/v1/fs/check?work=") {
            let finished = finished.take().expect("one check");
            std::thread::spawn(move || {
                // An error: the test has ended.
                if finished.recv().is_ok() {
                    answer(&mut stream, CLEAN);
                }
            });
        } else if path.starts_with("/v1/work/") {
            let progress = r#"{"phase":"reading segments","done":1,"total":4,"unit":"bytes"}"#;
            answer(&mut stream, progress);
        } else {
            answer(&mut stream, "{}");
        }
    }
}

/// Reads a whole request: unread bytes would end the connection with an error.
fn path_of_request(stream: &UnixStream) -> String {
    let mut input = BufReader::new(stream);
    let mut head = Vec::new();
    let mut line = String::new();
    while input.read_line(&mut line).unwrap() > 2 {
        head.push(std::mem::take(&mut line).to_ascii_lowercase());
    }
    let mut lengths = head
        .iter()
        .filter_map(|line| line.strip_prefix("content-length:"));
    let length = lengths
        .next()
        .map_or(0, |text| text.trim().parse().unwrap());
    input.read_exact(&mut vec![0; length]).unwrap();
    head[0].split(' ').nth(1).unwrap().into()
}

fn answer(stream: &mut UnixStream, body: &str) {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    // The command may have ended.
    let _ = stream.write_all((head + body).as_bytes());
}

/// Replaces the daemon: answers requests at once as a script says, by their path. `None` ends the
/// connection without an answer, as if the daemon were too busy.
struct ScriptedDaemon {
    home: tempfile::TempDir,
    _lock: File,
}

impl ScriptedDaemon {
    fn start(mut script: impl FnMut(&str) -> Option<String> + Send + 'static) -> Self {
        let home = tempfile::tempdir().unwrap();
        let lock = File::create(home.path().join("daemon.lock")).unwrap();
        lock.lock().unwrap();
        let listener = UnixListener::bind(home.path().join("daemon.sock")).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                if let Some(body) = script(&path_of_request(&stream)) {
                    answer(&mut stream, &body);
                }
            }
        });
        Self { home, _lock: lock }
    }

    /// Runs a command with `--json`.
    fn run(&self, arguments: &[&str]) -> bounded::Ended {
        let command = &mut Command::new(env!("CARGO_BIN_EXE_shale"));
        let command = command.args(arguments).args(["--json", "--dir"]);
        bounded::run(command.arg(self.home.path()))
    }

    /// As [`ScriptedDaemon::run`], of a command that must succeed; returns its lines.
    fn lines(&self, arguments: &[&str]) -> Vec<serde_json::Value> {
        let ended = self.run(arguments);
        assert_eq!(ended.code, 0, "{}", ended.text);
        let lines = ended.text.lines();
        lines.map(|it| serde_json::from_str(it).unwrap()).collect()
    }
}

fn repair(state: &str, checked: u64) -> Option<String> {
    let status = serde_json::json!({
        "state": state, "segments_to_do": 0, "segments_done": 0, "bytes_done": 0,
        "segments_checked": checked, "segments_total": 8, "reason": "",
    });
    Some(status.to_string())
}

#[test]
fn waiting_outlives_a_look_that_the_daemon_misses() {
    let mut looks = 0;
    let daemon = ScriptedDaemon::start(move |_| {
        looks += 1;
        match looks {
            1 | 3 => None,
            2 => repair("running", 5),
            _ => repair("idle", 8),
        }
    });
    let lines = daemon.lines(&["repair", "status", "--wait"]);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0]["progress"]["done"], 5);
    assert_eq!(lines[1]["state"], "idle");
}

/// Repair of a cluster, with so many bytes of groups and segments left.
fn cluster_repair(state: &str, bytes: u64, segments: u64) -> Option<String> {
    let rewrite = serde_json::json!({
        "state": "running", "generations": u64::from(segments > 0), "segments_left": segments,
        "seconds_left": null,
    });
    let repair = serde_json::json!({
        "state": state, "groups": u64::from(bytes > 0), "groups_critical": 0, "groups_degraded": 0,
        "groups_unreadable": 0, "critical_bytes_left": bytes / 2, "normal_bytes_left": bytes - bytes / 2,
        "bytes_per_second": 1, "seconds_left": null, "pieces_done": 0, "bytes_done": 0,
        "slots_moving": 0, "slots_moved": 0,
    });
    let status = serde_json::json!({
        "state": state, "segments_to_do": 0, "segments_done": 0, "bytes_done": 0,
        "segments_checked": 0, "segments_total": 0, "reason": "",
        "cluster": {
            "repair": repair, "rewrite": rewrite, "balancing_shards": 0, "sweeps": 0, "scrubs": 0,
            "limit_bytes_per_second": 1000, "nodes": [],
        },
    });
    Some(status.to_string())
}

#[test]
fn waiting_for_a_cluster_shows_what_is_repaired_and_then_what_is_rewritten() {
    let mut looks = 0;
    let daemon = ScriptedDaemon::start(move |_| {
        looks += 1;
        match looks {
            1 => cluster_repair("running", 800, 70),
            2 => cluster_repair("running", 200, 70),
            3 => cluster_repair("running", 0, 70),
            4 => cluster_repair("running", 0, 20),
            _ => cluster_repair("idle", 0, 0),
        }
    });
    let lines = daemon.lines(&["repair", "status", "--wait"]);
    let shown = |line: &serde_json::Value| {
        let progress = &line["progress"];
        (progress["done"].as_u64(), progress["total"].as_u64())
    };
    let (last, before) = lines.split_last().unwrap();
    let before: Vec<_> = before.iter().map(shown).collect();
    let all: [(u64, u64); 4] = [(0, 800), (600, 800), (0, 70), (50, 70)];
    assert_eq!(before, all.map(|(done, total)| (Some(done), Some(total))));
    assert_eq!(last["state"], "idle");
}

#[test]
fn removing_an_nsd_with_wait_shows_how_much_is_moved() {
    let nsd = |state: &str, used: u64| {
        let line = serde_json::json!({
            "nsd": 1, "path": "1.region", "state": state, "health": "online", "capacity": 100,
            "used": used, "blobs": 1,
        });
        Some(serde_json::json!([line]).to_string())
    };
    let mut looks = 0;
    let daemon = ScriptedDaemon::start(move |path| match path {
        "/v1/nsds/1" => nsd("draining", 10),
        "/v1/nsds" => {
            looks += 1;
            match looks {
                1 => nsd("draining", 4),
                _ => nsd("lost", 0),
            }
        }
        _ => repair("idle", 8),
    });
    let lines = daemon.lines(&["nsd", "remove", "1", "--wait"]);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0]["progress"]["done"], 6);
    assert_eq!(lines[0]["progress"]["total"], 10);
    assert_eq!(lines[1][0]["state"], "lost");
}

/// Would be broken if whoever waits were told that it is empty.
#[test]
fn waiting_for_a_drain_that_is_taken_back_fails() {
    let nsd = |state: &str| {
        let line = serde_json::json!({
            "nsd": 1, "path": "1.region", "state": state, "health": "online", "capacity": 100,
            "used": 10, "blobs": 1,
        });
        Some(serde_json::json!([line]).to_string())
    };
    let daemon = ScriptedDaemon::start(move |path| match path {
        "/v1/nsds/1" => nsd("draining"),
        "/v1/nsds" => nsd("active"),
        _ => repair("idle", 8),
    });
    let ended = daemon.run(&["nsd", "drain", "1", "--wait"]);
    ended.refused_with(&["the drain of NSD 1 was taken back"]);
}

#[test]
fn draining_a_node_with_wait_ends_when_all_its_nsds_are_empty() {
    let nsds = |first: &str, second: &str, used: u64| {
        let line = |nsd: u64, state: &str, used: u64| {
            serde_json::json!({
                "nsd": nsd, "node": 2, "path": "", "state": state, "health": "online", "capacity": 100,
                "used": used, "blobs": 1,
            })
        };
        let lines = [
            line(1, "active", 50),
            line(3, first, used),
            line(4, second, used),
        ];
        Some(serde_json::json!(lines).to_string())
    };
    let mut looks = 0;
    let daemon = ScriptedDaemon::start(move |path| match path {
        "/v1/cluster" => {
            let node = serde_json::json!({
                "node": 2, "name": "n2", "class": "default", "quorum": false, "authority": false, "etcd": null,
                "state": "up", "cause": null, "address": null, "manager": false, "shards": [], "nsds": [3, 4],
            });
            let view = serde_json::json!({
                "cluster": "0", "manager": 1, "coordination": [], "nodes": [node], "file_systems": [],
            });
            Some(view.to_string())
        }
        "/v1/nodes/2/drain" => Some(r#"{"nsds": [3, 4]}"#.to_string()),
        "/v1/nsds" => {
            looks += 1;
            match looks {
                1 => nsds("draining", "draining", 10),
                2 => nsds("draining", "draining", 4),
                3 => nsds("lost", "draining", 3),
                _ => nsds("lost", "lost", 0),
            }
        }
        _ => cluster_repair("idle", 0, 0),
    });
    let lines = daemon.lines(&["node", "drain", "n2", "--wait"]);
    let (last, before) = lines.split_last().unwrap();
    let done: Vec<_> = before
        .iter()
        .map(|it| it["progress"]["done"].as_u64())
        .collect();
    assert_eq!(done, [Some(12), Some(17)], "{lines:?}");
    assert_eq!(last[2]["state"], "lost");
}

/// A pipe in which no byte has room.
fn full_pipe() -> (impl Read, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[0]).is_ok() {}
    // Its other users share this flag.
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

#[test]
fn ctrl_c_ends_a_command_whose_reader_has_stopped_reading() {
    for is_answered in [false, true] {
        let daemon = SlowDaemon::start();
        let (_reader, writer) = full_pipe();
        if is_answered {
            daemon.finish.send(()).unwrap();
        }
        let mut command = daemon.check_writing_to(writer.into());
        wait_until("it waits for its reader", || {
            let call = fs::read_to_string(format!("/proc/{}/syscall", command.id())).unwrap();
            let is_output = call.starts_with(&format!("{} 0x1 ", libc::SYS_write));
            is_output.then_some(()).ok_or(call)
        });
        interrupt(&command);
        let status = wait_until("it ends", || {
            let status = command.try_wait().unwrap();
            status.ok_or_else(|| "it runs".into())
        });
        assert_eq!(status.code(), Some(130));
        let mut said = String::new();
        let mut errors = command.stderr.take().unwrap();
        errors.read_to_string(&mut said).unwrap();
        let tells = said.contains("it has changed nothing");
        assert_eq!(tells, !is_answered, "{said}");
    }
}

fn interrupt(command: &Child) {
    let pid = command.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status().unwrap();
    assert!(sent.success());
}

fn first_line(command: &mut Child) -> (serde_json::Value, impl BufRead + use<>) {
    let mut output = BufReader::new(command.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    (serde_json::from_str(&line).unwrap(), output)
}

#[test]
fn json_is_a_stream_of_progress_that_ends_with_the_answer() {
    let daemon = SlowDaemon::start();
    let mut command = daemon.check();
    let (line, mut output) = first_line(&mut command);
    assert_eq!(line["progress"]["phase"], "reading segments");
    assert_eq!(line["progress"]["done"], 1);
    assert_eq!(line["progress"]["total"], 4);
    daemon.finish.send(()).unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    let last: serde_json::Value = serde_json::from_str(rest.lines().last().unwrap()).unwrap();
    assert_eq!(last["clean"], true);
    assert!(command.wait().unwrap().success());
}

#[test]
fn ctrl_c_ends_the_command_and_says_what_becomes_of_the_work() {
    let daemon = SlowDaemon::start();
    let mut command = daemon.check();
    let (line, _output) = first_line(&mut command);
    assert_eq!(line["progress"]["done"], 1);
    interrupt(&command);
    let mut said = String::new();
    let mut errors = command.stderr.take().unwrap();
    errors.read_to_string(&mut said).unwrap();
    assert_eq!(command.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.contains("it has changed nothing"), "{said}");
}

#[test]
fn removing_an_nsd_with_wait_ends_when_nothing_is_left_on_it() {
    let node = Node::with(&["--nsd-size", "1G"]);
    for file in 0..20 {
        fs::write(node.path(&format!("{file}")), pattern(file, 1 << 20)).unwrap();
    }
    node.must(&["nsd", "add"]);
    let said = node.must(&["nsd", "remove", "1", "--wait", "--json"]);
    let lines: Vec<serde_json::Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    assert_eq!(lines.last().unwrap()[0]["state"], "lost", "{said}");
    assert_eq!(node.ask(&["repair", "status"])["state"], "idle");
    // There is nothing left to wait for.
    let ended = bounded::shale(&node, &["repair", "status", "--wait"]);
    assert_eq!(ended.code, 0, "{}", ended.text);
    for file in 0..20 {
        let content = fs::read(node.path(&format!("{file}"))).unwrap();
        assert_eq!(content, pattern(file, 1 << 20));
    }
}
