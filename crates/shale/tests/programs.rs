//! Everyday programs work on the mount.

use crate::fixture::{Node, must_run, pattern, repository};
use std::{fs, path::Path};

/// The sources of this workspace: a real tree of a few hundred files.
fn copy_sources(to: &Path) {
    fs::create_dir_all(to).unwrap();
    let repository = repository();
    must_run(
        &repository,
        "sh",
        &[
            "-c",
            &format!(
                "tar -cf - crates docs Cargo.toml Cargo.lock Makefile | tar -xf - -C '{}'",
                to.display()
            ),
        ],
    );
}

#[test]
fn git_commits_clones_and_finds_nothing_changed() {
    let node = Node::new();
    let origin = node.path("origin");
    copy_sources(&origin);
    must_run(&origin, "git", &["init", "-q", "-b", "main"]);
    must_run(&origin, "git", &["add", "-A"]);
    must_run(
        &origin,
        "git",
        &[
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@t",
            "commit",
            "-qm",
            "all",
        ],
    );
    must_run(
        &node.mnt,
        "git",
        &["clone", "-q", "--no-local", "origin", "clone"],
    );
    let clone = node.path("clone");
    assert_eq!(must_run(&clone, "git", &["status", "--porcelain"]), "");
    must_run(&clone, "git", &["fsck", "--strict"]);
    must_run(&clone, "git", &["gc", "-q"]);
    must_run(&clone, "git", &["checkout", "-q", "-b", "other"]);
    fs::write(clone.join("Makefile"), "changed\n").unwrap();
    assert_eq!(
        must_run(&clone, "git", &["status", "--porcelain"]),
        " M Makefile\n"
    );
    node.check();
}

#[test]
fn a_c_project_builds_with_parallel_make_and_runs() {
    let node = Node::new();
    let project = node.path("project");
    fs::create_dir(&project).unwrap();
    let mut main = String::from(
        "#include <stdio.h>\n#include \"parts.h\"\nint main(void) {\n  long sum = 0;\n",
    );
    let mut header = String::new();
    for part in 0..40 {
        let body = format!(
            "#include \"parts.h\"\n#include <stdlib.h>\n#include <string.h>\nlong part{part}(long x) {{\n  char *s = malloc(64);\n  memset(s, {part}, 64);\n  long r = 0;\n  for (int i = 0; i < 64; i++) r += s[i] * x;\n  free(s);\n  return r;\n}}\n"
        );
        fs::write(project.join(format!("part{part}.c")), body).unwrap();
        header.push_str(&format!("long part{part}(long x);\n"));
        main.push_str(&format!("  sum += part{part}({part});\n"));
    }
    main.push_str("  printf(\"%ld\\n\", sum);\n  return 0;\n}\n");
    fs::write(project.join("parts.h"), header).unwrap();
    fs::write(project.join("main.c"), main).unwrap();
    let makefile = "OBJECTS := $(patsubst %.c,%.o,$(wildcard *.c))\nCFLAGS := -O1 -g -MMD\nprogram: $(OBJECTS) libparts.a\n\t$(CC) -o $@ main.o -L. -lparts\nlibparts.a: $(filter-out main.o,$(OBJECTS))\n\t$(AR) rcs $@ $^\n-include *.d\n";
    fs::write(project.join("Makefile"), makefile).unwrap();
    must_run(&project, "make", &["-s", "-j2"]);
    let expected: i64 = (0..40).map(|p: i64| 64 * p * p).sum();
    assert_eq!(
        must_run(&project, "./program", &[]).trim(),
        expected.to_string()
    );
    assert!(
        must_run(&project, "make", &["-j2"]).contains("up to date"),
        "times on the mount are in order"
    );
    node.check();
}

#[test]
fn sqlite_keeps_its_integrity_in_both_journal_modes() {
    let node = Node::new();
    for mode in ["delete", "wal"] {
        let database = format!("{mode}.db");
        let mut script = format!(
            "PRAGMA journal_mode={mode};\nCREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT);\nCREATE INDEX i ON t(v);\n"
        );
        for row in 0..300 {
            script.push_str(&format!(
                "INSERT INTO t(v) VALUES('value {}');\n",
                row * 7919 % 1000
            ));
        }
        script.push_str("BEGIN;\n");
        for row in 0..2000 {
            script.push_str(&format!(
                "INSERT INTO t(v) VALUES(printf('%0200d', {row}));\n"
            ));
        }
        script.push_str("COMMIT;\nDELETE FROM t WHERE id % 3 = 0;\nVACUUM;\n");
        fs::write(node.path("script.sql"), &script).unwrap();
        must_run(
            &node.mnt,
            "sh",
            &["-c", &format!("sqlite3 {database} < script.sql")],
        );
        assert_eq!(
            must_run(
                &node.mnt,
                "sqlite3",
                &[&database, "PRAGMA integrity_check;"]
            )
            .trim(),
            "ok"
        );
        assert_eq!(
            must_run(
                &node.mnt,
                "sqlite3",
                &[&database, "SELECT count(*) FROM t;"]
            )
            .trim(),
            "1534"
        );
    }
    node.check();
}

#[test]
fn tar_brings_a_tree_over_and_diff_finds_no_difference() {
    let node = Node::new();
    let tree = node.path("tree");
    fs::create_dir(&tree).unwrap();
    must_run(
        Path::new("/usr"),
        "sh",
        &[
            "-c",
            &format!("tar -cf - include | tar -xf - -C '{}'", tree.display()),
        ],
    );
    must_run(
        Path::new("/usr"),
        "diff",
        &[
            "-r",
            "--no-dereference",
            "include",
            &tree.join("include").display().to_string(),
        ],
    );
    let archive = node.path("again.tar");
    must_run(
        &tree,
        "tar",
        &["-cf", &archive.display().to_string(), "include"],
    );
    must_run(&tree, "tar", &["-df", &archive.display().to_string()]);
    node.check();
    fs::remove_dir_all(&tree).unwrap();
    fs::remove_file(&archive).unwrap();
    assert_eq!(fs::read_dir(&node.mnt).unwrap().count(), 0);
    node.check();
}

#[test]
fn rsync_copies_nothing_the_second_time() {
    let node = Node::new();
    let source = node.path("source");
    copy_sources(&source);
    fs::write(source.join("large"), pattern(7, 9_000_001)).unwrap();
    std::os::unix::fs::symlink("large", source.join("link")).unwrap();
    fs::hard_link(source.join("large"), source.join("second name")).unwrap();
    let options = ["-aH", "--itemize-changes", "source/", "copy/"];
    assert!(!must_run(&node.mnt, "rsync", &options).is_empty());
    assert_eq!(
        must_run(&node.mnt, "rsync", &options),
        "",
        "the second run finds nothing to copy"
    );
    must_run(
        &node.mnt,
        "diff",
        &["-r", "--no-dereference", "source", "copy"],
    );
    // From another file system, and after a restart.
    must_run(
        &repository(),
        "rsync",
        &["-a", "crates", &format!("{}/", node.mnt.display())],
    );
    node.must(&["down"]);
    node.must(&["up"]);
    assert_eq!(
        must_run(
            &repository(),
            "rsync",
            &[
                "-a",
                "--itemize-changes",
                "crates",
                &format!("{}/", node.mnt.display())
            ]
        ),
        ""
    );
    assert_eq!(must_run(&node.mnt, "rsync", &options), "");
    node.check();
}
