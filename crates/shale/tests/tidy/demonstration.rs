//! Checks that the README's five lines, the manual of labs and `make demo-cluster` show the same cluster: one on this machine
//! that survives a killed node during a copy.

use super::root;
use std::fs;

/// How the first of the README's lines begins, and the last one.
const FIRST: &str = "shale lab up --nodes 5";
const LAST: &str = "shale lab down --purge";
/// What stands between a command and what is said beside it.
const BESIDE: &str = "   ";

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The README's lines, without what is said beside them. `scripts/package/test.sh` takes the same ones.
pub(crate) fn lines_of_readme() -> Vec<String> {
    lines_of(&read("README.md"))
}

fn lines_of(readme: &str) -> Vec<String> {
    let lines = readme.lines().skip_while(|line| !line.starts_with(FIRST));
    let lines = lines.take_while(|line| *line != "```");
    let command = |line: &str| line.split(BESIDE).next().unwrap_or_default().to_owned();
    lines.map(command).collect()
}

/// What a text tells `shale lab` to do, which it calls like this. Nodes are called `n`, whichever it is.
fn steps(text: &str, called: &str) -> Vec<String> {
    let mut steps = Vec::new();
    for line in text.lines() {
        for step in line.split(called).skip(1) {
            let ends = [BESIDE, ";", " >", " &", "`"];
            let end = ends.into_iter().filter_map(|end| step.find(end)).min();
            let words = step[..end.unwrap_or(step.len())].split_whitespace();
            let name = |word| if is_node(word) { "n" } else { word };
            let words: Vec<&str> = words.map(name).collect();
            steps.push(words.join(" "));
        }
    }
    steps
}

fn is_node(word: &str) -> bool {
    let number = word.strip_prefix('n').unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// The steps of one text that another one lacks. The other one may say more.
fn lacking<'a>(steps: &'a [String], other: &[String]) -> Vec<&'a str> {
    let is_lacking = |step: &&String| {
        let longer = format!("{step} ");
        let is_it = |it: &String| it == *step || it.starts_with(&longer);
        !other.iter().any(is_it)
    };
    steps
        .iter()
        .filter(is_lacking)
        .map(String::as_str)
        .collect()
}

/// The first of these words that a text doesn't have after those before it.
fn missing<'a>(text: &str, words: &[&'a str]) -> Option<&'a str> {
    let mut rest = text;
    for &word in words {
        match rest.split_once(word) {
            Some((_, after)) => rest = after,
            None => return Some(word),
        }
    }
    None
}

/// Would be broken if one of them was changed and the others weren't, or if a node was killed after the copy.
#[test]
fn the_readme_the_manual_and_the_demonstration_show_the_same_cluster() {
    let shown = lines_of_readme();
    assert_eq!(shown.len(), 5, "{shown:?}");
    assert_eq!(shown.last().map(String::as_str), Some(LAST));
    let readme = shown.join("\n");
    let own = steps(&readme, "shale lab ");
    assert_eq!(own.len(), 3, "up, kill, down: {own:?}");

    let script = read("scripts/demo-cluster.sh");
    let none: [&str; 0] = [];
    assert_eq!(lacking(&own, &steps(&script, "\"$shale\" lab ")), none);
    let manual = read("docs/operations/lab.md");
    assert_eq!(lacking(&own, &steps(&manual, "shale lab ")), none);

    // It is killed while files are copied, which ends without an error, and what came of it is looked at.
    let killed = ["lab up", "cp -r", " &\n", "lab kill", "wait"];
    let looks = |look: &'static str| [&killed[..], &[look]].concat();
    assert_eq!(missing(&readme, &looks("diff -r")), None);
    assert_eq!(missing(&script, &looks("sha256sum --quiet -c")), None);
    // `make demo-cluster` runs that script.
    let run = ["\ndemo-cluster:", "scripts/demo-cluster.sh $(RUN_SHALE)"];
    assert_eq!(missing(&read("Makefile"), &run), None);
}

#[test]
fn planted_differences_are_found() {
    let readme = "```\nshale lab up --nodes 5 --scheme x      five\nshale lab kill n5; wait\n```\n";
    let lines = lines_of(readme);
    assert_eq!(
        lines,
        [
            "shale lab up --nodes 5 --scheme x",
            "shale lab kill n5; wait"
        ]
    );
    let own = steps(&lines.join("\n"), "shale lab ");
    assert_eq!(own, ["up --nodes 5 --scheme x", "kill n"]);
    let script = |scheme: &str| {
        let up = format!("\"$shale\" lab up --nodes 5 --scheme {scheme} --nsd-size 1G\n");
        let kill = "trap '\"$shale\" lab kill n4 > /dev/null' EXIT\n";
        steps(&(up + kill), "\"$shale\" lab ")
    };
    let none: [&str; 0] = [];
    assert_eq!(lacking(&own, &script("x")), none);
    assert_eq!(lacking(&own, &script("xy")), ["up --nodes 5 --scheme x"]);
    assert_eq!(lacking(&own, &script("x")[..1]), ["kill n"]);
    assert_eq!(missing("a b c", &["a", "c"]), None);
    assert_eq!(missing("a b c", &["c", "a"]), Some("a"));
}
