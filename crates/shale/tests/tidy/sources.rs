//! Checks which crates contain `unsafe`, and how large tracked files are.

use super::{all_rust_files, name_of, root};
use std::fs;

/// A tracked file above this isn't source.
const TRACKED_BYTES_MAX: u64 = 1 << 20;
/// Crates that call the kernel or a C library directly. Tests do what C programs do.
const UNSAFE_CRATES: [&str; 3] = ["world", "placement", "fuse"];

/// Lines with the keyword outside comments.
fn unsafe_lines(code: &str) -> Vec<usize> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let has_keyword = |line: &str| {
        let code = line.split("//").next().unwrap_or("");
        code.split(|letter| !is_part(letter))
            .any(|word| word == "unsafe")
    };
    let lines = code.lines().enumerate();
    lines
        .filter(|(_, line)| has_keyword(line))
        .map(|(number, _)| number + 1)
        .collect()
}

/// Whether a file may contain it.
fn may_be_unsafe(path: &str) -> bool {
    let mut parts = path.split('/').skip(1);
    let name = parts.next().unwrap_or("");
    UNSAFE_CRATES.contains(&name) || parts.next() == Some("tests")
}

fn too_large<'a>(files: impl Iterator<Item = (&'a str, u64)>) -> Vec<String> {
    files
        .filter(|(_, bytes)| *bytes > TRACKED_BYTES_MAX)
        .map(|(name, bytes)| format!("{name} has {bytes} bytes"))
        .collect()
}

#[test]
fn unsafe_stays_in_its_crates() {
    let mut wrong = Vec::new();
    for path in all_rust_files() {
        let name = name_of(&path);
        if !may_be_unsafe(&name) {
            let lines = unsafe_lines(&fs::read_to_string(&path).unwrap());
            wrong.extend(lines.iter().map(|line| format!("{name}:{line}")));
        }
    }
    assert!(wrong.is_empty(), "unsafe in {}", wrong.join(", "));
}

#[test]
fn no_large_file_is_tracked() {
    let listed = std::process::Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let names = String::from_utf8(listed.stdout).unwrap();
    let names: Vec<&str> = names.split('\0').filter(|name| !name.is_empty()).collect();
    assert!(names.len() > 200, "git lists the files");
    // A removed file is listed until the removal is committed.
    let sizes = names.iter().filter_map(|name| {
        let metadata = fs::symlink_metadata(root().join(name)).ok()?;
        Some((*name, metadata.len()))
    });
    let large = too_large(sizes);
    assert!(large.is_empty(), "at most {TRACKED_BYTES_MAX}: {large:?}");
}

#[test]
fn planted_faults_in_sources_are_found() {
    let code = "// unsafe in words\nfn a() {}\nlet b = unsafe { c() }; // SAFETY\nunsafe impl D {}\n\
                let unsafe_code = 1;\n";
    assert_eq!(unsafe_lines(code), [3, 4]);
    assert!(may_be_unsafe("crates/world/src/buffer.rs"));
    assert!(may_be_unsafe("crates/shale/tests/locks/main.rs"));
    assert!(!may_be_unsafe("crates/shale/src/main.rs"));
    assert!(!may_be_unsafe("crates/pool/src/tests.rs"));
    let files = [("core", 158 << 20), ("README.md", 1 << 20)];
    assert_eq!(too_large(files.into_iter()), ["core has 165675008 bytes"]);
}
