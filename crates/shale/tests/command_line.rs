//! The command line as a new user sees it: answers, refusals, exit codes.

use crate::fixture::{Node, bounded};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

fn code(node: &Node, arguments: &[&str]) -> (i32, String) {
    let output = node.run(arguments);
    (
        output.status.code().unwrap(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn up_use_down_up_keeps_everything() {
    let node = Node::new();
    fs::create_dir(node.path("folder")).unwrap();
    fs::write(node.path("folder/file"), "content").unwrap();
    node.must(&["down"]);
    assert!(!node.path("folder").exists(), "unmounted");
    node.must(&["up"]);
    assert_eq!(
        fs::read_to_string(node.path("folder/file")).unwrap(),
        "content"
    );
}

#[test]
fn up_twice_is_one_node_and_down_twice_is_no_error() {
    let node = Node::new();
    let pid = node.pid();
    node.must(&["up"]);
    assert_eq!(node.pid(), pid);
    node.must(&["down"]);
    node.must(&["down"]);
}

#[test]
fn an_unread_answer_ends_a_command_without_a_crash() {
    let node = Node::new();
    let answer_to = |stdout: Stdio, arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_shale"))
            .args(arguments)
            .arg("--dir")
            .arg(&node.dir)
            .stdout(stdout)
            .output()
            .unwrap()
    };
    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["fs", "df"],
        &["nsd", "list"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = answer_to(writer.into(), arguments);
        assert_eq!(output.status.code(), Some(141), "{arguments:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = answer_to(full.into(), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("writing the answer"), "{arguments:?}: {said}");
    }
}

#[test]
fn every_answer_can_be_json() {
    let node = Node::new();
    fs::write(node.path("file"), vec![1; 100_000]).unwrap();
    node.must(&["fs", "sync"]);
    assert_eq!(node.ask(&["status"])["scheme"], "replicate(1)");
    assert_eq!(node.ask(&["health"])["state"], "healthy");
    let df = node.ask(&["fs", "df"]);
    assert_eq!(df["inodes"], 2);
    assert_eq!(df["logical"], 100_000);
    assert!(df["available"].as_u64().unwrap() > 1 << 30);
    assert_eq!(node.ask(&["fs", "check"])["clean"], true);
    assert_eq!(node.ask(&["nsd", "list"])[0]["health"], "online");
    assert_eq!(node.ask(&["nsd", "scrub"])[0]["damaged"], 0);
    let repair = node.ask(&["repair", "status"]);
    assert!(
        repair["state"] == "idle" || repair["state"] == "running",
        "{repair}"
    );
    assert!(node.ask(&["waiters"]).as_array().is_some());
}

#[test]
fn wrong_use_is_exit_code_2_and_refusals_are_1_with_a_remedy() {
    let node = Node::unstarted();
    assert_eq!(code(&node, &["fly"]).0, 2);
    assert_eq!(code(&node, &["up", "--nsds", "none"]).0, 2);
    assert_eq!(code(&node, &["up", "--nsd-size", "much"]).0, 2);
    let (exit, text) = code(&node, &["status"]);
    assert_eq!(exit, 1);
    assert!(text.contains("shale up"), "says what to do: {text}");
    let (exit, text) = code(&node, &["up", "--scheme", "raid5"]);
    assert_eq!(exit, 1);
    assert!(text.contains("erasure(4+2)"), "gives an example: {text}");
    let (exit, text) = code(&node, &["up", "--scheme", "erasure(4+2)", "--nsds", "3"]);
    assert_eq!(exit, 1);
    assert!(text.contains("needs 6 NSDs"), "{text}");
    let (exit, text) = code(&node, &["up", "--nsd-size", "1M"]);
    assert_eq!(exit, 1);
    assert!(text.contains("512M"), "{text}");
}

#[test]
fn a_used_directory_is_not_taken() {
    let node = Node::unstarted();
    fs::create_dir_all(&node.dir).unwrap();
    fs::write(node.dir.join("thesis.txt"), "years of work").unwrap();
    let (exit, text) = code(&node, &["up"]);
    assert_eq!(exit, 1);
    assert!(text.contains("empty or new directory"), "{text}");
    assert_eq!(
        fs::read_to_string(node.dir.join("thesis.txt")).unwrap(),
        "years of work"
    );
}

#[test]
fn a_directory_whose_path_is_too_long_for_a_socket_is_refused_before_anything_is_made() {
    let node = Node::unstarted();
    let long = node.dir.join("x".repeat(110));
    let program = env!("CARGO_BIN_EXE_shale");
    let ended = bounded::run(Command::new(program).args(["up", "--dir"]).arg(&long));
    ended.refused_with(&["path of the node's directory", "at most 95"]);
    assert!(!long.exists());
}

#[test]
fn other_settings_for_an_existing_file_system_are_refused() {
    let node = Node::new();
    let (exit, text) = code(&node, &["up", "--scheme", "replicate(2)"]);
    assert_eq!(exit, 1, "{text}");
    for other in [
        ["--nsds", "3"],
        ["--nsd-size", "77G"],
        ["--block-size", "8M"],
    ] {
        let (exit, text) = code(&node, &[&["up"], &other[..]].concat());
        assert_eq!(exit, 1, "{text}");
        assert!(text.contains("already holds") && text.contains("shale nsd add"));
    }
    node.must(&["up", "--nsds", "1"]);
    node.must(&["down"]);
    let (exit, text) = code(&node, &["up", "--scheme", "replicate(2)"]);
    assert_eq!(exit, 1);
    assert!(text.contains("already holds"), "{text}");
    node.must(&["up"]);
}

#[test]
fn a_second_daemon_on_the_directory_is_refused() {
    let node = Node::new();
    let output = Command::new(env!("CARGO_BIN_EXE_shale"))
        .args(["daemon", "--dir"])
        .arg(&node.dir)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(said.contains("another daemon"), "{said}");
    node.must(&["status"]);
}

#[test]
fn a_busy_mount_is_not_torn_away_unless_forced() {
    let node = Node::new();
    let file = fs::File::create(node.path("open")).unwrap();
    let (exit, text) = code(&node, &["down"]);
    assert_eq!(exit, 1);
    assert!(text.contains("--force"), "{text}");
    node.must(&["status"]);
    drop(file);
    node.must(&["down"]);
}

#[test]
fn a_stale_mount_of_a_killed_daemon_is_cleared_by_up() {
    let node = Node::new();
    fs::write(node.path("file"), "x").unwrap();
    node.must(&["fs", "sync"]);
    node.kill();
    node.must(&["up"]);
    assert_eq!(fs::read_to_string(node.path("file")).unwrap(), "x");
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    let home = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str], place: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shale"));
        let ended = bounded::run(command.args(arguments).current_dir(place));
        assert_eq!(ended.code, 0, "{}", ended.text);
        ended.text
    };
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completion", shell], home.path());
        assert!(script.contains("scrub"), "{shell}: {script}");
    }
    run(&["man", "--out", "."], home.path());
    for page in [
        "shale.1",
        "shale-up.1",
        "shale-fs-check.1",
        "shale-nsd-scrub.1",
    ] {
        let text = fs::read_to_string(home.path().join(page)).unwrap();
        assert!(
            text.starts_with(".ie") || text.contains(".TH"),
            "{page}: {text}"
        );
    }
    // Commands hidden from the help have no page either.
    assert!(!home.path().join("shale-daemon.1").exists());
}
