//! Checks that the crates' manifests agree with ARCHITECTURE.md and docs/dependencies.md.

use super::{crates, root};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};
use toml::Table;

fn manifest(folder: &Path) -> Table {
    let text = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    text.parse().unwrap()
}

/// The names in the table at a path; none if it doesn't exist.
fn names(manifest: &Table, path: &[&str]) -> BTreeSet<String> {
    let mut table = manifest;
    for part in path {
        match table.get(*part).and_then(toml::Value::as_table) {
            Some(inner) => table = inner,
            None => return BTreeSet::new(),
        }
    }
    table.keys().cloned().collect()
}

/// The table under "Arrows" of ARCHITECTURE.md: which crate may use which.
fn arrows(text: &str, all: &BTreeSet<String>) -> BTreeMap<String, BTreeSet<String>> {
    let words = |list: &str| -> BTreeSet<String> {
        let list = list.replace(" and ", " ").replace(',', " ");
        list.split_whitespace().map(String::from).collect()
    };
    let table = text.split("## Arrows").nth(1).unwrap_or("");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let allowed = match cells[1].strip_prefix("all but ") {
            Some(others) => all.difference(&words(others)).cloned().collect(),
            None => words(cells[1]),
        };
        (cells[0].trim_matches('`').to_owned(), allowed)
    })
    .collect()
}

/// Crates of the workspace that a manifest uses but may not.
fn forbidden(manifest: &Table, allowed: &BTreeSet<String>, all: &BTreeSet<String>) -> Vec<String> {
    let mut used = names(manifest, &["dependencies"]);
    used.extend(names(manifest, &["build-dependencies"]));
    let used = used.intersection(all);
    used.filter(|name| !allowed.contains(*name))
        .cloned()
        .collect()
}

/// Dependencies on other projects that the document doesn't list.
fn undocumented(workspace: &Table, document: &str) -> Vec<String> {
    let Some(dependencies) = workspace["workspace"]["dependencies"].as_table() else {
        panic!("the workspace has dependencies");
    };
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    let rows = document.lines().filter(|line| line.starts_with("| "));
    let known: BTreeSet<&str> = rows
        .filter_map(|row| row.split('|').nth(1))
        .flat_map(|cell| cell.split(move |letter| !is_part(letter)))
        .collect();
    let outside = dependencies
        .iter()
        .filter(|(_, value)| value.get("path").is_none());
    let missing = outside.filter(|(name, _)| !known.contains(name.as_str()));
    missing.map(|(name, _)| name.clone()).collect()
}

#[test]
fn crates_depend_only_as_the_architecture_says() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let all = crates();
    let arrows = arrows(&text, &all);
    for name in &all {
        assert!(
            text.contains(&format!("### `{name}`")),
            "ARCHITECTURE.md doesn't describe crate {name}"
        );
        let allowed = arrows.get(name);
        let allowed = allowed.unwrap_or_else(|| panic!("no row of arrows for crate {name}"));
        let manifest = manifest(&root().join("crates").join(name));
        let forbidden = forbidden(&manifest, allowed, &all);
        assert!(
            forbidden.is_empty(),
            "crate {name} must not depend on {forbidden:?} (ARCHITECTURE.md, Arrows)"
        );
    }
}

/// Crates for tests and measurements.
const NOT_IN_THE_PROGRAM: [&str; 5] = ["testkit", "fuzzing", "sim", "simkernel", "bench"];

#[test]
fn the_program_contains_no_crate_for_tests() {
    let all = crates();
    let (mut open, mut program) = (vec!["shale".to_owned()], BTreeSet::new());
    while let Some(name) = open.pop() {
        let manifest = manifest(&root().join("crates").join(&name));
        let used = names(&manifest, &["dependencies"]);
        open.extend(used.intersection(&all).cloned());
        program.insert(name);
    }
    assert!(program.len() > 10, "the walk found the program's crates");
    for name in NOT_IN_THE_PROGRAM {
        assert!(!program.contains(name), "the program contains {name}");
        assert!(all.contains(name), "there is no crate {name}");
    }
}

#[test]
fn every_dependency_has_its_line() {
    let document = fs::read_to_string(root().join("docs/dependencies.md")).unwrap();
    let missing = undocumented(&manifest(&root()), &document);
    assert!(
        missing.is_empty(),
        "docs/dependencies.md has no line for {missing:?}"
    );
}

#[test]
fn planted_dependencies_are_found() {
    let all = BTreeSet::from(["low", "high", "both"].map(String::from));
    let text = "| `none` | low |\n## Arrows\n| crate | may use |\n|---|---|\n| `low` | – |\n\
                | `high` | low |\n| `both` | all but high and both |\n";
    let arrows = arrows(text, &all);
    assert!(!arrows.contains_key("none"));
    let both: Table = "[dependencies]\nlow.workspace = true\n\n[dependencies.high]\npath = \"\"\n\
                       [dev-dependencies]\nboth.workspace = true\n"
        .parse()
        .unwrap();
    assert_eq!(forbidden(&both, &arrows["both"], &all), ["high"]);
    assert_eq!(forbidden(&both, &arrows["high"], &all), ["high"]);
    assert_eq!(forbidden(&both, &arrows["low"], &all), ["high", "low"]);
    let workspace: Table = "[workspace.dependencies]\nlow = { path = \"crates/low\" }\n\
                            serde = \"1\"\nserde_json = { version = \"1\" }\n"
        .parse()
        .unwrap();
    let document = "| what | for |\n|---|---|\n| serde, postcard | records |\n";
    assert_eq!(undocumented(&workspace, document), ["serde_json"]);
}
