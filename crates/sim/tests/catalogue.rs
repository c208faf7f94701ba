//! `docs/planted-faults.md` lists all planted faults and all points of interruption, and the program has
//! each of them.

#![allow(
    clippy::disallowed_methods,
    reason = "the sources and documents of this tree are read, outside of any simulation"
)]

use std::fs;
use std::path::{Path, PathBuf};
use world::{Planted, Point};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The sources of the program: neither the simulations and tests nor what declares the names.
fn sources(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let is_other = ["world/src", "crates/sim", "tests"];
        let is_other = is_other.iter().any(|other| path.ends_with(other));
        match path.is_dir() {
            true if !is_other => sources(&path, all),
            false if path.extension().is_some_and(|it| it == "rs") => {
                all.push_str(&fs::read_to_string(&path).expect("a source"));
            }
            _ => {}
        }
    }
}

/// What is wrong with the names of a kind, as the text of the documents and of the sources has them.
fn wrong(kind: &str, names: &[String], listed: &str, sources: &str, once: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for name in names {
        if !listed.contains(&format!("\n| `{name}` |")) {
            wrong.push(format!("{kind}::{name} isn't listed"));
        }
        let used = format!("{kind}::{name}");
        let uses = sources.match_indices(&used);
        let uses = uses.filter(|(at, _)| {
            let after = sources[at + used.len()..].chars().next();
            !after.is_some_and(|it| it.is_alphanumeric())
        });
        match uses.count() {
            0 => wrong.push(format!("{used} isn't in the program")),
            1 => {}
            count if once => wrong.push(format!("{used} is in the program {count} times")),
            _ => {}
        }
    }
    wrong
}

/// The row of a fault in the documents.
fn row(planted: Planted) -> Option<String> {
    let listed = fs::read_to_string(root().join("docs/planted-faults.md")).expect("the list");
    let mut rows = listed.lines();
    let row = rows.find(|row| row.starts_with(&format!("| `{planted:?}` |")));
    row.map(str::to_owned)
}

/// Whether the documents say that no simulation finds a fault yet.
pub(crate) fn is_not_found_yet(planted: Planted) -> bool {
    row(planted).is_some_and(|row| row.contains("| not yet |"))
}

#[test]
fn every_point_and_every_planted_fault_is_in_the_catalogue() {
    let listed = fs::read_to_string(root().join("docs/planted-faults.md")).unwrap();
    let mut all = String::new();
    sources(&root().join("crates"), &mut all);
    let points: Vec<_> = Point::ALL.iter().map(|it| format!("{it:?}")).collect();
    let planted: Vec<_> = Planted::ALL.iter().map(|it| format!("{it:?}")).collect();
    let mut found = wrong("Point", &points, &listed, &all, true);
    found.extend(wrong("Planted", &planted, &listed, &all, false));
    // What is listed exists: the rows of the last table.
    let rows = listed.split("| point |").nth(1).unwrap().lines();
    let rows = rows.filter_map(|row| row.strip_prefix("| `")?.split('`').next());
    for row in rows.filter(|row| !points.iter().any(|it| it == row)) {
        found.push(format!("there is no point {row}"));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    let names = ["A".to_string(), "B".to_string()];
    let text = "Point::A, Point::A, Point::BC";
    assert_eq!(wrong("Point", &names, "\n| `A` |", text, true).len(), 3);
}
