//! The worst of several runs, as a table.

use super::load::Pauses;
use crate::fixture::figure;
use std::{collections::BTreeMap, fmt, time::Duration};

/// The longest pauses of all runs, row by row. It is a figure when it is dropped, so that a test that fails shows what came
/// before.
pub(crate) struct Worst {
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

impl Worst {
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
        cell.pauses.add(pauses);
        cell.runs += 1;
        cell.aim = aim;
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
impl fmt::Display for Worst {
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

impl Drop for Worst {
    fn drop(&mut self) {
        if !self.rows.is_empty() {
            figure(&self.to_string());
        }
    }
}

#[test]
fn the_worst_of_several_runs_is_shown_row_by_row() {
    let took = |operation: &str, milliseconds: u64| {
        let mut pauses = Pauses::default();
        pauses.note(operation, Duration::from_millis(milliseconds));
        pauses
    };
    let aim = Some(Duration::from_secs(3));
    let mut worst = Worst::new(["lab: the node was", "killed", "silent"]);
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
