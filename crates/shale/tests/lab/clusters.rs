//! Labs of real daemons: up, broken, mended, down, up again.

use super::fixture::Lab;
use crate::fixture::{bounded::run_within, pattern, repository};
use crate::tidy::demonstration::lines_of_readme;
use sim::by_suite;
use std::{env, fs, path::Path, process::Command, time::Duration};

const MIB: usize = 1 << 20;
/// The demonstration copies and reads tens of thousands of files.
const DEMONSTRATION_MAX: Duration = Duration::from_secs(1_800);

/// Writes a file through one node; its bytes must be durable then.
fn write(lab: &Lab, node: u32, name: &str, bytes: &[u8]) {
    fs::write(lab.path(node, name), bytes).unwrap();
    lab.exec(node, &["sync", name]);
}

/// Waits until a node shows these bytes: others may have to be given up first.
#[track_caller]
fn must_show(lab: &Lab, node: u32, name: &str, bytes: &[u8]) {
    lab.until(&format!("n{node} shows {name}"), || {
        let found = fs::read(lab.path(node, name)).map_err(|error| error.to_string())?;
        (found == bytes)
            .then_some(())
            .ok_or_else(|| format!("{} other bytes", found.len()))
    });
}

#[test]
fn a_lab_keeps_its_data_while_it_is_down_and_leaves_nothing_when_purged() {
    let shape = ["--nodes", "3", "--scheme", "erasure(2+1)"];
    let nsds = ["--nsds-per-node", "2", "--nsd-size", "512M"];
    let Some(lab) = Lab::with(&[shape, nsds].concat()) else {
        return;
    };
    let bytes = pattern(1, 8 * MIB);
    write(&lab, 1, "file", &bytes);
    for node in 2..=3 {
        must_show(&lab, node, "file", &bytes);
    }
    for node in 1..=3 {
        let state = lab.state(node);
        assert_eq!(state["state"], "running", "{state}");
        assert_eq!(
            (&state["mounted"], &state["nsds"]),
            (&true.into(), &2.into()),
            "{state}"
        );
        let here = lab.exec(node, &["pwd"]);
        assert_eq!(
            here.trim(),
            lab.path(node, "").to_str().unwrap().trim_end_matches('/')
        );
    }
    let said = lab.must(&["up", "--nodes", "3"]);
    assert!(said.contains("was up already"), "{said}");
    lab.run(&["up", "--nodes", "4"])
        .refused_with(&["has --nodes 3"]);
    lab.run(&["up", "--nsds-per-node", "1"])
        .refused_with(&["has --nsds-per-node 2"]);

    lab.must(&["down"]);
    assert!(!lab.path(1, "file").exists());
    assert_eq!(lab.state(1)["state"], "dead");
    lab.must(&["up"]);
    for node in 1..=3 {
        must_show(&lab, node, "file", &bytes);
    }
    lab.must(&["down", "--purge"]);
    assert!(!lab.dir.exists());
}

#[test]
fn a_cluster_goes_on_without_a_node_however_it_went_and_takes_it_back() {
    // Over links with a speed, as a real network's.
    let shape = ["--nodes", "4", "--scheme", "erasure(2+1)"];
    let Some(lab) = Lab::with(&[&shape[..], &["--link-mbit", "1000"]].concat()) else {
        return;
    };
    let bytes = pattern(2, 4 * MIB);
    write(&lab, 1, "before", &bytes);

    lab.must(&["kill", "n4"]);
    assert_eq!(lab.state(4)["state"], "dead");
    must_show(&lab, 2, "before", &bytes);
    write(&lab, 2, "killed", &bytes);
    lab.must(&["start", "n4"]);
    must_show(&lab, 4, "killed", &bytes);

    lab.must(&["stop", "n4"]);
    assert_eq!(lab.state(4)["state"], "silent");
    must_show(&lab, 1, "killed", &bytes);
    write(&lab, 1, "silent", &bytes);
    lab.must(&["start", "n4"]);
    assert_eq!(lab.state(4)["state"], "running");
    must_show(&lab, 4, "silent", &bytes);

    lab.must(&["partition", "n4"]);
    must_show(&lab, 3, "silent", &bytes);
    write(&lab, 3, "apart", &bytes);
    lab.must(&["heal"]);
    lab.must(&["start", "n4"]);
    must_show(&lab, 4, "apart", &bytes);

    lab.must(&["slow-disk", "n4", "--latency-ms", "50"]);
    write(&lab, 4, "slow", &bytes);
    lab.must(&["slow-disk", "n4", "--off"]);
    must_show(&lab, 1, "slow", &bytes);
}

/// What `make demo-cluster` runs. It takes minutes.
#[test]
fn the_demonstration_of_a_cluster_shows_what_it_is_to_show() {
    if by_suite(true, false) {
        return;
    }
    let Some(lab) = Lab::unmade() else { return };
    let mut script = Command::new(repository().join("scripts/demo-cluster.sh"));
    script.arg(env!("CARGO_BIN_EXE_shale")).arg(&lab.dir);
    let ended = run_within(&mut script, DEMONSTRATION_MAX);
    assert_eq!(ended.code, 0, "{}", ended.text);
    for words in ["n4: killed", "every checksum right", "n4: up"] {
        assert!(ended.text.contains(words), "{words}: {}", ended.text);
    }
    assert!(!lab.dir.exists(), "nothing is left of it");
}

/// The README's lines, as they stand there: only where the lab is differs. It takes minutes.
#[test]
fn the_five_lines_of_the_readme_survive_a_killed_node_during_a_copy() {
    if by_suite(true, false) {
        return;
    }
    let Some(lab) = Lab::unmade() else { return };
    let lines = lines_of_readme().join("\n");
    let lines = lines.replace("/var/lib/shale-lab", lab.dir.to_str().unwrap());
    let program = Path::new(env!("CARGO_BIN_EXE_shale")).parent().unwrap();
    let path = format!("{}:{}", program.display(), env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell.args(["-ec", &lines]);
    shell.env("PATH", path).env("SHALE_LAB_DIR", &lab.dir);
    let ended = run_within(&mut shell, DEMONSTRATION_MAX);
    assert_eq!(ended.code, 0, "{}", ended.text);
    let has_all = ended.text.lines().any(|it| it == "node 2 has all of it");
    assert!(has_all, "{}", ended.text);
    assert!(!lab.dir.exists(), "nothing is left of it");
}
