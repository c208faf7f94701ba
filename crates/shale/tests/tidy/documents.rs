//! Checks that tests, promises and files that documents and comments refer to exist.

use super::{all_rust_files, name_of, root};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// An identifier in a document with at least this many words is a test's name.
const TEST_WORDS_MIN: usize = 4;

fn documents() -> Vec<PathBuf> {
    let mut folders = vec![root().join("docs")];
    let mut documents: Vec<PathBuf> = fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                documents.push(path);
            }
        }
    }
    documents.sort();
    assert!(documents.len() > 10, "the walk found the documents");
    documents
}

/// The parts of a text that consist of certain characters.
fn words(text: &str, is_part: fn(char) -> bool) -> impl Iterator<Item = &str> {
    text.split(move |letter| !is_part(letter))
        .filter(|word| !word.is_empty())
}

/// Functions that a Rust file defines.
fn functions(code: &str) -> impl Iterator<Item = &str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    code.split("fn ")
        .skip(1)
        .filter_map(move |rest| words(rest, is_part).next())
}

/// Identifiers in backticks that look like names of tests.
fn tests_named(text: &str) -> impl Iterator<Item = &str> {
    let is_part =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter(move |word| word.chars().all(is_part))
        .filter(|word| word.split('_').count() >= TEST_WORDS_MIN)
}

/// Comments of a Rust file.
fn comments(code: &str) -> String {
    let comment = |line: &str| Some(line.split_once("//")?.1.to_owned() + "\n");
    code.lines().filter_map(comment).collect()
}

/// Files of the tree that a text names by their path from its root.
fn paths_named(text: &str) -> impl Iterator<Item = String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "_./{},-".contains(letter);
    words(text, is_part)
        .filter(|word| {
            ["docs/", "crates/", "scripts/"]
                .iter()
                .any(|top| word.starts_with(top))
        })
        .flat_map(|word| alternatives(word.trim_end_matches(['.', ',', '/', '-'])))
}

/// `a/{b,c}.rs` is two paths.
fn alternatives(path: &str) -> Vec<String> {
    let parts = path
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match parts {
        None => vec![path.to_owned()],
        Some((before, (inside, after))) => inside
            .split(',')
            .map(|one| format!("{before}{one}{after}"))
            .collect(),
    }
}

/// References in a text to something that doesn't exist. `promises`: the defined ones.
fn dangling(
    text: &str,
    promises: &BTreeSet<String>,
    is_there: impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut wrong: Vec<String> = paths_named(text).filter(|path| !is_there(path)).collect();
    for word in words(text, |letter| letter.is_ascii_alphanumeric()) {
        let number = word.strip_prefix('P').unwrap_or("");
        let is_promise = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        if word == "DESIGN" || is_promise && !promises.contains(word) {
            wrong.push(word.to_owned());
        }
    }
    wrong
}

/// Promises are defined by headings.
fn promises() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("docs/promises.md")).unwrap();
    let heading = |line: &str| {
        line.strip_prefix("## ")?
            .split(' ')
            .next()
            .map(str::to_owned)
    };
    text.lines().filter_map(heading).collect()
}

#[test]
fn tests_that_documents_name_exist() {
    let mut known = BTreeSet::new();
    for path in all_rust_files() {
        let code = fs::read_to_string(path).unwrap();
        known.extend(functions(&code).map(str::to_owned));
    }
    let (mut wrong, mut found) = (Vec::new(), 0);
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for test in tests_named(&text) {
            found += 1;
            if !known.contains(test) {
                wrong.push(format!("{} names {test}", name_of(&path)));
            }
        }
    }
    assert!(found > 50, "documents name tests");
    assert!(wrong.is_empty(), "no such test:\n{}", wrong.join("\n"));
}

#[test]
fn documents_and_comments_refer_to_what_is_there() {
    let promises = promises();
    assert!(promises.contains("P1") && promises.contains("P10"));
    let is_there = |path: &str| root().join(path).exists();
    let mut wrong = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        let missing = dangling(&text, &promises, is_there);
        wrong.extend(
            missing
                .iter()
                .map(|what| format!("{}: {what}", name_of(&path))),
        );
    }
    for path in all_rust_files() {
        let text = comments(&fs::read_to_string(&path).unwrap());
        let missing = dangling(&text, &promises, is_there);
        wrong.extend(
            missing
                .iter()
                .map(|what| format!("{}: {what}", name_of(&path))),
        );
    }
    assert!(wrong.is_empty(), "not in the tree:\n{}", wrong.join("\n"));
}

#[test]
fn links_in_documents_lead_somewhere() {
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let dead = dead_links(&text, document.parent().unwrap());
        assert!(
            dead.is_empty(),
            "{} links to {dead:?}, which isn't there",
            name_of(&document)
        );
    }
}

fn dead_links<'a>(text: &'a str, folder: &Path) -> Vec<&'a str> {
    text.split("](")
        .skip(1)
        .map(|part| part.split([')', '#']).next().unwrap())
        .filter(|target| !target.is_empty() && !target.contains("://") && !target.contains(' '))
        .filter(|target| !folder.join(target).exists())
        .collect()
}

#[test]
fn planted_references_are_found() {
    let promises = BTreeSet::from(["P1".to_owned()]);
    let is_there = |path: &str| ["docs/one.md", "crates/a/b.rs"].contains(&path);
    let fine = "See docs/one.md, `crates/a/b.rs` (P1), https://host/docs/other.md; SP8 and P1b.";
    assert_eq!(dangling(fine, &promises, is_there), [""; 0]);
    let planted = "as P8 and DESIGN say: docs/two.md and crates/a/{b,c}.rs.";
    let found = ["docs/two.md", "crates/a/c.rs", "P8", "DESIGN"];
    assert_eq!(dangling(planted, &promises, is_there), found);
    let code = [
        "let a = \"docs/none.md\"; /",
        "/ docs/two.md\nfn a_b() {}\n",
    ]
    .concat();
    assert_eq!(
        paths_named(&comments(&code)).collect::<Vec<_>>(),
        ["docs/two.md"]
    );
    assert_eq!(functions(&code).collect::<Vec<_>>(), ["a_b"]);
    let text = "`a_test_that_went` and `two_words`, not a_word_without_ticks or `A_B_C_D`";
    assert_eq!(tests_named(text).collect::<Vec<_>>(), ["a_test_that_went"]);
    let text = "[one](tidy.rs) [two](nowhere.md#part) [three](https://example.com)";
    let here = root().join("crates/shale/tests");
    assert_eq!(dead_links(text, &here), ["nowhere.md"]);
}
