//! Checks the rules of STYLE.md and ARCHITECTURE.md that a machine can check.

mod cycles;
pub(crate) mod demonstration;
mod documents;
mod fuzz_targets;
mod makefile;
mod manifests;
mod sources;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// A longer file must be split.
const LINES_MAX: usize = 1000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// A path from the root of the tree.
fn name_of(path: &Path) -> String {
    let name = path.strip_prefix(root()).unwrap();
    name.to_str().unwrap().to_owned()
}

fn all_rust_files() -> Vec<PathBuf> {
    let mut out = Vec::new();
    rust_files(&root().join("crates"), &mut out);
    out.sort();
    assert!(out.len() > 50, "the walk found the sources");
    out
}

fn crates() -> BTreeSet<String> {
    fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn every_file_begins_with_its_responsibility_and_none_is_too_long() {
    let mut wrong = Vec::new();
    for path in all_rust_files() {
        let text = fs::read_to_string(&path).unwrap();
        let first = text
            .lines()
            .find(|line| !line.trim().is_empty() && !line.starts_with("#!["));
        if !first.is_some_and(|line| line.starts_with("//! ")) {
            wrong.push(format!("{}: no `//!` sentence on top", path.display()));
        }
        let lines = text.lines().count();
        if lines > LINES_MAX {
            wrong.push(format!(
                "{}: {lines} lines, at most {LINES_MAX}",
                path.display()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A file in `tests` that no `mod` names isn't compiled, and its tests never run.
#[test]
fn every_file_of_tests_is_part_of_its_crates_test_program() {
    let mut programs = 0;
    for name in crates() {
        let tests = root().join("crates").join(&name).join("tests");
        let Ok(entries) = fs::read_dir(&tests) else {
            continue;
        };
        programs += 1;
        let main = fs::read_to_string(tests.join("main.rs")).unwrap();
        for entry in entries {
            let path = entry.unwrap().path();
            let module = path.file_stem().unwrap().to_str().unwrap().to_string();
            assert!(
                module == "main" || main.contains(&format!("\nmod {module};\n")),
                "{}: no `mod {module};` in main.rs beside it",
                path.display()
            );
        }
        let manifest = tests.with_file_name("Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap();
        assert!(
            manifest.contains("autotests = false") && manifest.matches("[[test]]").count() == 1,
            "crate {name} has one test program, so that it is linked once"
        );
    }
    assert!(programs > 4, "the walk found the tests");
    // A filter that fits no test passes.
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let makefile = makefile.replace("\\\n", " ");
    let lines = makefile.lines();
    let lists = lines.filter_map(|line| line.split_once("MOUNT_TESTS := "));
    let lists: Vec<&str> = lists.map(|(_, list)| list).collect();
    assert_eq!(lists.len(), 2, "one for make test, one for make test-all");
    for filter in lists.iter().flat_map(|list| list.split_whitespace()) {
        let (module, test) = filter.split_once("::").expect("a module's");
        let file = root().join("crates/shale/tests").join(module);
        let files = [file.with_extension("rs"), file.join("mod.rs")];
        let code = files.iter().find_map(|it| fs::read_to_string(it).ok());
        let has_test = |code: &str| test.is_empty() || code.contains(&format!("\nfn {test}()"));
        assert!(
            code.is_some_and(|code| has_test(&code)),
            "MOUNT_TESTS names {filter}"
        );
    }
}

#[test]
fn files_and_folders_are_named_after_things() {
    let forbidden = [
        "common", "util", "utils", "helper", "helpers", "manager", "misc", "stuff",
    ];
    for path in all_rust_files() {
        let relative = path.strip_prefix(root()).unwrap();
        // The crate of the cluster manager, which is a thing.
        let inside = relative.strip_prefix("crates/manager").unwrap_or(relative);
        for part in inside.iter() {
            let name = part.to_str().unwrap().trim_end_matches(".rs");
            assert!(
                !forbidden.contains(&name),
                "{} is named {name}",
                path.display()
            );
        }
    }
}

#[test]
fn rules_have_no_input_or_output_and_no_crate_uses_side_doors() {
    let doors = [
        "std::time::Instant::now",
        "SystemTime::now",
        "std::thread::spawn",
        "tokio::spawn(",
        "tokio::time::sleep",
        "std::fs::",
        "std::net::Tcp",
        "std::net::Udp",
        "std::net::{",
        "tokio::net::",
    ];
    let free = ["world", "fuse", "shale", "bench"];
    for path in all_rust_files() {
        let relative = path
            .strip_prefix(root().join("crates"))
            .unwrap()
            .to_path_buf();
        let name = relative
            .iter()
            .next()
            .unwrap()
            .to_str()
            .unwrap()
            .to_string();
        let text = fs::read_to_string(&path).unwrap();
        let in_tests = relative
            .iter()
            .any(|part| part == "tests" || part == "benches" || part == "tests.rs");
        if !free.contains(&name.as_str()) && !in_tests {
            let code = text.split("#[cfg(test)]").next().unwrap();
            for door in doors {
                assert!(
                    !code.contains(door),
                    "{} uses {door}; take it from `world`",
                    path.display()
                );
            }
        }
        if ["placement", "namespace", "model", "manager"].contains(&name.as_str()) && !in_tests {
            for word in ["async fn", ".await", "HashMap"] {
                let code = text.split("#[cfg(test)]").next().unwrap();
                let used = code
                    .lines()
                    .any(|line| !line.trim_start().starts_with("//") && line.contains(word));
                assert!(!used, "{}: rules have no {word}", path.display());
            }
        }
    }
}

/// The test code of a file: all of it, or the part from its `mod tests` on.
fn test_code(path: &Path, text: &str) -> Option<String> {
    let in_tests = path
        .iter()
        .any(|part| part == "tests" || part == "tests.rs");
    if in_tests {
        return Some(text.into());
    }
    let (_, tests) = text.split_once("#[cfg(test)]")?;
    Some(tests.into())
}

/// What tests must not contain, with the only files that may. The words are assembled here, so that
/// this file doesn't contain them.
fn bans() -> Vec<(String, &'static str, &'static [&'static str])> {
    vec![
        (
            ["#[ign", "ore"].concat(),
            "a test that never runs proves nothing",
            &[],
        ),
        (
            ["thread::sl", "eep("].concat(),
            "wait for a condition: fixture/poll.rs",
            &["crates/shale/tests/fixture/poll.rs"],
        ),
        (
            ["tokio::time::sl", "eep("].concat(),
            "wait for a condition: fixture/poll.rs",
            // A library's own timers, under simulated time.
            &["crates/world/src/sim/cluster/tests/repeats.rs"],
        ),
        (
            ["thread::yield_", "now("].concat(),
            "a loop of looks takes the CPU from what it waits for: fixture/poll.rs",
            &[],
        ),
        (
            ["eprintln!(\"sk", "ipped"].concat(),
            "skipped tests are counted: fixture/noted.rs",
            &["crates/shale/tests/fixture/noted.rs"],
        ),
        (
            ["should_", "panic]"].concat(),
            "any panic passes: expect the words of the one that is meant",
            &[],
        ),
    ]
}

#[test]
fn no_test_is_ignored_sleeps_or_skips_in_silence() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for path in all_rust_files() {
        let text = fs::read_to_string(&path).unwrap();
        let Some(code) = test_code(path.strip_prefix(root()).unwrap(), &text) else {
            continue;
        };
        seen += 1;
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap();
        for (ban, why, allowed) in bans() {
            if code.contains(&ban) && !allowed.contains(&name) {
                wrong.push(format!("{name} contains {ban}: {why}"));
            }
        }
    }
    assert!(seen > 50, "the walk found the tests");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
