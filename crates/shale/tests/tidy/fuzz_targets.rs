//! Checks that `make fuzz` finds every fuzz target: it selects them by how their names begin.

use super::{all_rust_files, name_of, root};
use std::fs;

/// How the names of targets begin.
const BEGINNINGS: [&str; 2] = ["any_", "whatever_"];

/// Names of the functions of a file that run a target; if a macro makes them, those that it is given.
fn targets(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fuzz!(") {
        let function = code[..at].rsplit_once("fn ").map_or("", |(_, rest)| rest);
        match function.split('(').next().unwrap_or("") {
            "$name" => found.extend(code.split("fn ").filter_map(|rest| {
                let (name, rest) = rest.split_once("()")?;
                let is_given = rest.starts_with(" for ") && !name.starts_with('$');
                is_given.then_some(name)
            })),
            name => found.push(name),
        }
    }
    found
}

#[test]
fn every_fuzz_target_is_found_by_its_name_and_its_crate() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    for beginning in BEGINNINGS {
        assert!(makefile.contains(&format!(" ::{beginning}")), "{beginning}");
    }
    let (_, crates) = makefile.split_once("CRATES ?= ").unwrap();
    let crates: Vec<&str> = crates.lines().next().unwrap().split(' ').collect();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for path in all_rust_files() {
        let name = name_of(&path);
        let of_crate = name.split('/').nth(1).unwrap();
        // The one's tests run targets that fail, and this file has them as texts.
        if of_crate == "fuzzing" || name.ends_with("tidy/fuzz_targets.rs") {
            continue;
        }
        let code = fs::read_to_string(&path).unwrap();
        for target in targets(&code) {
            seen += 1;
            let is_named = BEGINNINGS.iter().any(|it| target.starts_with(it));
            if !is_named || !crates.contains(&of_crate) {
                wrong.push(format!("{name}: {target}"));
            }
        }
    }
    assert!(seen > 80, "the walk found the targets: {seen}");
    assert!(wrong.is_empty(), "`make fuzz` runs none of {wrong:?}");
}

#[test]
fn planted_targets_are_found() {
    let code = "fn one() { x(); fuzz!(9, |_| {}) }\nmacro_rules! targets { ($(fn $name:ident() for $type:ty;)*) => { $(fn $name() { fuzz!(9, f) })* } }\n\
                targets! { fn two() for u8; fn three() for Vec<u8>; }\nfn four() {}";
    assert_eq!(targets(code), ["one", "two", "three"]);
}
