//! The worst of several runs, alone or as a table.

use super::load::Pauses;
use crate::fixture::figure;
use std::{collections::BTreeMap, fmt, time::Duration};

/// The longest pauses of all runs of one kind. They are a figure when this is dropped, so that a test that fails shows what
/// came before.
pub(crate) struct Worst {
    /// What happens in each run.
    name: String,
    aim: Duration,
    cell: Cell,
}

impl Worst {
    /// Without runs. `aim`: how soon others shall go on.
    pub(crate) fn new(name: &str, aim: Duration) -> Self {
        Self {
            name: name.to_owned(),
            aim,
            cell: Cell::default(),
        }
    }

    /// What others felt in one more run.
    pub(crate) fn note(&mut self, pauses: &Pauses) {
        self.cell.note(pauses, Some(self.aim));
    }
}

impl fmt::Display for Worst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.cell)
    }
}

impl Drop for Worst {
    fn drop(&mut self) {
        if self.cell.runs > 0 {
            figure(&self.to_string());
        }
    }
}

/// The same, row by row. It is a figure when it is dropped, for the same reason.
pub(crate) struct Table {
    /// What the rows are, then what happens in each column.
    heading: Vec<String>,
    /// In the order in which they came; cells by their column.
    rows: Vec<(String, BTreeMap<usize, Cell>)>,
}

/// What others felt in all runs of one kind.
#[derive(Default)]
struct Cell {
    pauses: Pauses,
    runs: usize,
    /// How soon others shall go on.
    aim: Option<Duration>,
}

impl Cell {
    fn note(&mut self, pauses: &Pauses, aim: Option<Duration>) {
        self.pauses.add(pauses);
        self.runs += 1;
        self.aim = aim;
    }
}

impl Table {
    /// Without runs.
    pub(crate) fn new<S: Into<String>>(heading: impl IntoIterator<Item = S>) -> Self {
        Self {
            heading: heading.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// What others felt in one more run; columns count from 1, as the heading does.
    pub(crate) fn note(
        &mut self,
        row: &str,
        column: usize,
        pauses: &Pauses,
        aim: Option<Duration>,
    ) {
        let known = self.rows.iter().position(|(name, _)| name == row);
        let at = known.unwrap_or_else(|| {
            self.rows.push((row.to_owned(), BTreeMap::new()));
            self.rows.len() - 1
        });
        let cell = self.rows[at].1.entry(column).or_default();
        cell.note(pauses, aim);
    }

    fn lines(&self) -> Vec<Vec<String>> {
        let mut lines = vec![self.heading.clone()];
        for (name, cells) in &self.rows {
            let columns = 1..self.heading.len();
            let mut line = vec![name.clone()];
            line.extend(columns.map(|column| match cells.get(&column) {
                Some(cell) => cell.to_string(),
                None => "-".to_owned(),
            }));
            lines.push(line);
        }
        lines
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, worst of {}", self.pauses.shortly(), self.runs)?;
        match self.aim {
            Some(aim) if self.pauses.longest() > aim => {
                write!(f, ", OVER the aim of {} s", aim.as_secs())
            }
            _ => Ok(()),
        }
    }
}

/// Each column is as wide as its widest cell.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.lines();
        let width = |column: usize| {
            let cells = lines.iter().map(|line| line[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.heading.len()).map(width).collect();
        for (number, line) in lines.iter().enumerate() {
            let cells = line.iter().zip(&widths);
            let cells: Vec<_> = cells
                .map(|(cell, &width)| format!("{cell:width$}"))
                .collect();
            let end = if number == 0 { "" } else { "\n" };
            write!(f, "{end}{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if !self.rows.is_empty() {
            figure(&self.to_string());
        }
    }
}

fn took(operation: &str, milliseconds: u64) -> Pauses {
    let mut pauses = Pauses::default();
    pauses.note(operation, Duration::from_millis(milliseconds));
    pauses
}

#[test]
fn the_worst_of_several_runs_is_one_line() {
    let mut worst = Worst::new("lab: the owner was killed", Duration::from_secs(3));
    worst.note(&took("create", 2_000));
    let within = worst.to_string();
    worst.note(&took("sync", 3_100));
    let over = worst.to_string();
    // The figures of this test are nobody's.
    worst.cell.runs = 0;
    assert_eq!(
        within,
        "lab: the owner was killed: 2.0 s (create), worst of 1"
    );
    assert_eq!(
        over,
        "lab: the owner was killed: 3.1 s (sync), worst of 2, OVER the aim of 3 s"
    );
}

#[test]
fn the_worst_of_several_runs_is_shown_row_by_row() {
    let aim = Some(Duration::from_secs(3));
    let mut worst = Table::new(["lab: the node was", "killed", "silent"]);
    worst.note("owner", 1, &took("create", 2_000), aim);
    worst.note("owner", 1, &took("sync", 1_000), aim);
    worst.note("etcd member", 1, &took("sync", 3_100), aim);
    worst.note("owner", 2, &took("read", 9_000), None);
    let shown = worst.to_string();
    let expected = "lab: the node was  killed                                         silent\n\
                    owner              2.0 s (create), worst of 2                     9.0 s (read), worst of 1\n\
                    etcd member        3.1 s (sync), worst of 1, OVER the aim of 3 s  -";
    // The figures of this test are nobody's.
    worst.rows.clear();
    assert_eq!(shown, expected);
}
