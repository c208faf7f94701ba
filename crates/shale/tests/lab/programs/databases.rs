//! SQLite on two nodes at once, on one database, in the journal modes that work between machines: a journal that is
//! removed, and one that is cut. (A write-ahead log needs memory that both share.)

use super::{Lab, NODES};
use sim::by_suite;
use std::{fs, path::Path};

const MODES: [&str; 2] = ["delete", "truncate"];
/// Letters of a row: several fill a page.
const LETTERS: usize = 400;
/// What `sqlite3` waits for another's lock, in milliseconds.
const BUSY_MAX: u64 = 600_000;

/// Transactions of a program on a node: each adds a row, and counts it.
fn writes(mode: &str, node: u32, rows: usize) -> String {
    let transaction = |row: usize| {
        format!(
            "BEGIN IMMEDIATE;\nINSERT INTO entries VALUES({node}, {row}, printf('%0{LETTERS}d', {row}));\n\
             UPDATE tally SET n = n + 1;\nCOMMIT;\n"
        )
    };
    let transactions: String = (0..rows).map(transaction).collect();
    format!("PRAGMA journal_mode={mode};\n{transactions}")
}

/// Runs a script of SQL on a node; it must succeed.
#[track_caller]
fn sqlite(lab: &Lab, node: u32, database: &str, script: &Path) -> String {
    let line = format!(
        "sqlite3 -bail -cmd '.timeout {BUSY_MAX}' {database} < '{}'",
        script.display()
    );
    lab.exec(node, &["sh", "-c", &line])
}

/// Two nodes write, a third one reads, and all agree afterwards.
pub(super) fn sqlite_on_two_nodes_at_once_keeps_its_integrity(lab: &Lab) {
    let (rows, looks) = by_suite((10, 5), (300, 100));
    let home = tempfile::tempdir().unwrap();
    let script = |name: &str, text: &str| {
        let path = home.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let make = "CREATE TABLE entries(node INTEGER, number INTEGER, text TEXT);\n\
                CREATE INDEX numbers ON entries(number);\n\
                CREATE TABLE tally(n INTEGER);\nINSERT INTO tally VALUES(0);\n";
    let make = script("make.sql", make);
    let look = "SELECT (SELECT count(*) FROM entries) = (SELECT n FROM tally);\n";
    let look = script("look.sql", &look.repeat(looks));
    std::thread::scope(|scope| {
        for mode in MODES {
            let (script, make, look) = (&script, &make, &look);
            scope.spawn(move || {
                let database = format!("{mode}.db");
                sqlite(lab, 1, &database, make);
                let database = database.as_str();
                std::thread::scope(|scope| {
                    for node in 1..=2 {
                        let name = format!("{mode}{node}.sql");
                        let path = script(&name, &writes(mode, node, rows));
                        scope.spawn(move || {
                            let said = sqlite(lab, node, database, &path);
                            assert_eq!(said.trim(), mode, "n{node} writes {database}");
                        });
                    }
                    let said = sqlite(lab, 3, database, look);
                    assert_eq!(said, "1\n".repeat(looks), "n3 sees half a transaction");
                });
            });
        }
    });
    let counts = "PRAGMA integrity_check;\nSELECT n FROM tally;\n\
                  SELECT count(*), count(DISTINCT 1000000 * node + number), sum(length(text)) FROM entries;\n";
    let counts = script("counts.sql", counts);
    let all = 2 * rows;
    let expected = format!("ok\n{all}\n{all}|{all}|{}\n", all * LETTERS);
    for mode in MODES {
        for node in 1..=NODES {
            let said = sqlite(lab, node, &format!("{mode}.db"), &counts);
            assert_eq!(said, expected, "{mode}, on n{node}");
        }
    }
}
