//! Long commands report their progress, and what happens to the work after Ctrl-C.

use crate::fixture::{Node, bounded, pattern};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
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
        Command::new(env!("CARGO_BIN_EXE_shale"))
            .args(["fs", "check", "--json", "--dir"])
            .arg(self.home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
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
    let interrupt = ["-INT", &command.id().to_string()];
    assert!(
        Command::new("kill")
            .args(interrupt)
            .status()
            .unwrap()
            .success()
    );
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
    let (last, before) = lines.split_last().unwrap();
    assert_eq!(last[0]["state"], "lost", "{said}");
    for line in before {
        assert!(line["progress"]["phase"].is_string(), "{line}");
    }
    assert_eq!(node.ask(&["repair", "status"])["state"], "idle");
    // There is nothing left to wait for.
    let ended = bounded::shale(&node, &["repair", "status", "--wait"]);
    assert_eq!(ended.code, 0, "{}", ended.text);
    for file in 0..20 {
        let content = fs::read(node.path(&format!("{file}"))).unwrap();
        assert_eq!(content, pattern(file, 1 << 20));
    }
}
