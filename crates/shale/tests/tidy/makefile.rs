//! Checks that the Makefile's variables have values where others use them, and that etcd is installed in one way.

use super::root;
use std::collections::BTreeSet;
use std::fs;

/// The Makefile's lines without comments; those that go on in the next one are joined.
fn lines(makefile: &str) -> Vec<String> {
    let whole = makefile.replace("\\\n", " ");
    let lines = whole.lines().filter(|line| !line.starts_with('#'));
    lines.map(String::from).collect()
}

/// The variable that a line gives a value to, the value, and whether make looks at once what that names.
fn assigned(line: &str) -> Option<(&str, &str, bool)> {
    // Recipes have variables of the shell.
    if line.starts_with('\t') {
        return None;
    }
    let (name, value) = line.split_once('=')?;
    let is_at_once = name.ends_with(':');
    let name = name.trim_end_matches([':', '?', '+']).trim();
    // Those of one target have its name before theirs.
    let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
    (!name.is_empty() && name.chars().all(is_name)).then_some((name, value, is_at_once))
}

/// The variables that a value names.
fn named(value: &str) -> impl Iterator<Item = &str> {
    let parts = value.split("$(").skip(1);
    parts.filter_map(|part| part.split_once(')').map(|(name, _)| name))
}

/// Variables that others use before they have a value: make takes them as empty, and says nothing.
fn used_too_early(makefile: &str) -> Vec<String> {
    let lines = lines(makefile);
    let assigned: Vec<_> = lines.iter().filter_map(|line| assigned(line)).collect();
    let all: BTreeSet<&str> = assigned.iter().map(|(name, ..)| *name).collect();
    let mut known = BTreeSet::<&str>::new();
    let mut wrong = Vec::new();
    for (name, value, is_at_once) in assigned {
        if is_at_once {
            let own = named(value).filter(|used| all.contains(used));
            let early = own.filter(|used| !known.contains(used));
            wrong.extend(early.map(|used| format!("{name} uses {used}")));
        }
        known.insert(name);
    }
    assert!(!known.is_empty(), "the variables were found");
    wrong
}

fn makefile() -> String {
    fs::read_to_string(root().join("Makefile")).unwrap()
}

#[test]
fn variables_of_the_makefile_have_values_before_others_use_them() {
    let wrong = used_too_early(&makefile());
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Would be broken if a machine with systemd ran an etcd afterwards that nobody needs: only `install_etcd` ends it.
#[test]
fn etcd_is_installed_in_one_way() {
    let lines = lines(&makefile());
    let has_etcd = |value: &str| value.split_whitespace().any(|it| it == "etcd-server");
    let lists = lines.iter().filter_map(|line| assigned(line));
    let lists = lists.filter(|(_, value, _)| has_etcd(value));
    let lists: Vec<&str> = lists.map(|(name, ..)| name).collect();
    assert_eq!(lists, ["ETCD_PACKAGES"]);
}

#[test]
fn planted_uses_before_the_value_are_found() {
    let makefile = "A := 1 \\\n\t$(B) $(C)\nB := $(A)\nC = $(D)\nD := $(shell x)\nt: E := $(A)\n";
    assert_eq!(used_too_early(makefile), ["A uses B", "A uses C"]);
}
