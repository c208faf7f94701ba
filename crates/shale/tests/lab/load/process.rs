//! The process in which a node's programs run.
//!
//! It isn't the test's: whoever starts a process closes in it what is open here, and closing a file waits for its node's
//! daemon, which may be stopped. The test couldn't let it go on then.

use super::{
    journal::{self, Entry, Stage},
    program::Program,
};
use crate::fixture::poll;
use serde_json::{Value, json};
use std::{
    fs,
    io::{self, Write},
    path::Path,
    sync::Arc,
    time::Duration,
};

/// Environment variable that makes a process of `TEST`: the node's number, and the load's directory in its mount.
pub(crate) const NAME: &str = "SHALE_TEST_LOAD";
/// The test that is such a process if it is told so.
pub(crate) const TEST: &str = concat!(
    "lab::load::process::",
    "a_load_tells_what_was_lost_what_changed_and_what_came_back"
);
/// What each answer begins with; a test program says other things as well.
pub(crate) const ANSWER: &str = "the load says ";

/// Two programs of a node: one in a directory of its own, one among those of all nodes.
fn start(node: &str, place: &Path) -> Vec<Arc<Program>> {
    vec![
        Program::start(place, &format!("n{node}"), format!("n{node}-alone")),
        Program::start(place, "shared", format!("n{node}-among-others")),
    ]
}

fn entries_of(programs: &[Arc<Program>]) -> Vec<Entry> {
    programs.iter().flat_map(|it| it.entries()).collect()
}

/// Runs programs, and answers lines with commands, until there are no more.
fn serve(spec: &str) {
    let (node, place) = spec.split_once(' ').expect("a number and a path");
    let programs = start(node, Path::new(place));
    for command in io::stdin().lines().map_while(Result::ok) {
        match command.as_str() {
            "mark" => programs.iter().for_each(|it| it.mark()),
            "end" => programs.iter().for_each(|it| it.end()),
            _ => {}
        }
        let answer: Value = match command.as_str() {
            "files" => json!(entries_of(&programs)),
            _ => programs.iter().map(|it| it.report()).collect(),
        };
        // Whoever asked may have ended since.
        let _ = writeln!(io::stdout(), "{ANSWER}{answer}");
    }
}

#[test]
fn a_load_tells_what_was_lost_what_changed_and_what_came_back() {
    if let Ok(spec) = std::env::var(NAME) {
        return serve(&spec);
    }
    let home = tempfile::tempdir().unwrap();
    let place = home.path();
    let programs = start("1", place);
    let until = |what: &str, program: &Program, is_so: &dyn Fn(&Value) -> bool| {
        poll::until(what, Duration::from_secs(60), || {
            let report = program.report();
            is_so(&report)
                .then_some(())
                .ok_or_else(|| report.to_string())
        });
    };
    for program in &programs {
        until("files are made", program, &|it| {
            it["files"].as_u64() >= Some(5)
        });
        program.end();
        until("it ends", program, &|it| it["ended"] == true);
        assert!(program.report()["failed"].is_null());
    }
    let entries = entries_of(&programs);
    let check = || journal::check(place, &entries);
    let must_find = |words: &str| {
        let found = check().unwrap_err();
        assert!(found.contains(words), "{words:?} isn't in: {found}");
    };
    let second = |stage: Stage| {
        let entry = entries.iter().find(|it| it.stage == stage);
        entry.expect("files of both kinds were made").second(place)
    };
    let (kept, removed) = (second(Stage::Renamed), second(Stage::Removed));
    check().unwrap();
    let bytes = fs::read(&kept).unwrap();
    let mut changed = bytes.clone();
    changed[bytes.len() / 2] ^= 1;
    fs::write(&kept, changed).unwrap();
    must_find("other bytes");
    fs::remove_file(&kept).unwrap();
    must_find("Renamed");
    fs::write(&kept, &bytes).unwrap();
    check().unwrap();
    fs::write(&removed, "it is back").unwrap();
    must_find("Removed");
    fs::rename(&removed, place.join("shared/strange")).unwrap();
    must_find("nobody made");
}
