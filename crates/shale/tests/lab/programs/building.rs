//! A repository that is cloned on one node and built and changed on others.

use super::Lab;
use crate::fixture::{must_run, repository};
use sim::by_suite;
use std::{fs, path::Path};

/// Identity for commits.
const IDENTITY: [&str; 4] = ["-c", "user.name=t", "-c", "user.email=t@t"];

/// A program in C of so many parts, which prints a sum.
fn write_program(directory: &Path, parts: u64) {
    let write = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
    let (mut header, mut sum) = (String::new(), String::new());
    for part in 0..parts {
        let text = format!(
            "#include \"parts.h\"\n#include <stdlib.h>\nlong part{part}(long x) {{\n  \
             return labs(-x) * {part};\n}}\n"
        );
        write(&format!("part{part}.c"), &text);
        header += &format!("long part{part}(long x);\n");
        sum += &format!("  sum += part{part}({part});\n");
    }
    let main = format!(
        "#include <stdio.h>\n#include \"parts.h\"\nint main(void) {{\n  long sum = 0;\n{sum}  \
         printf(\"%ld\\n\", sum);\n  return 0;\n}}\n"
    );
    write("parts.h", &header);
    write("main.c", &main);
    let makefile = "OBJECTS := $(patsubst %.c,%.o,$(wildcard *.c))\nCFLAGS := -O1 -g -MMD\n\
                    program: $(OBJECTS)\n\t$(CC) -o $@ $^\n-include *.d\n";
    write("Makefile", makefile);
    write(".gitignore", "*.o\n*.d\nprogram\n");
}

/// Clones on n1; n2 finds nothing changed and builds; n3 runs what was built and commits a change; n1 sees all of it.
pub(super) fn a_clone_is_built_and_changed_on_other_nodes(lab: &Lab) {
    let (parts, trees) = by_suite((8, &["docs"][..]), (40, &["docs", "crates", "scripts"][..]));
    let home = tempfile::tempdir().unwrap();
    let origin = home.path().join("origin");
    let project = origin.join("project");
    fs::create_dir_all(&project).unwrap();
    write_program(&project, parts);
    let to = origin.to_str().unwrap();
    for &tree in trees {
        must_run(&repository(), "cp", &["-r", tree, to]);
    }
    must_run(&origin, "git", &["init", "-q", "-b", "main"]);
    must_run(&origin, "git", &["add", "-A"]);
    let commit = [&IDENTITY[..], &["commit", "-qm", "all"]].concat();
    must_run(&origin, "git", &commit);

    lab.exec(1, &["git", "clone", "-q", "--no-local", to, "clone"]);
    let git = |node, arguments: &[&str]| {
        let command = [&["git", "-C", "clone"][..], arguments].concat();
        lab.exec(node, &command)
    };
    assert_eq!(git(2, &["status", "--porcelain"]), "");
    git(2, &["fsck", "--strict"]);
    lab.exec(2, &["make", "-s", "-j2", "-C", "clone/project"]);
    let sum: u64 = (0..parts).map(|part| part * part).sum();
    let said = lab.exec(3, &["sh", "-c", "clone/project/program"]);
    assert_eq!(said.trim(), sum.to_string());
    let again = lab.exec(1, &["make", "-C", "clone/project"]);
    assert!(
        again.contains("up to date"),
        "times are in order on all nodes: {again}"
    );

    fs::write(lab.path(3, "clone/project/part1.c"), "changed\n").unwrap();
    let changed = " M project/part1.c\n";
    assert_eq!(git(1, &["status", "--porcelain"]), changed);
    git(3, &[&IDENTITY[..], &["commit", "-qam", "changed"]].concat());
    assert_eq!(git(1, &["status", "--porcelain"]), "");
    assert_eq!(git(1, &["log", "-1", "--format=%s"]), "changed\n");
    git(4, &["gc", "-q"]);
    git(1, &["fsck", "--strict"]);
    git(1, &["checkout", "-q", "HEAD~1"]);
    assert_eq!(git(2, &["status", "--porcelain"]), "");
}
