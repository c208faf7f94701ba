//! Measures pairs of runs and prints the measured value, the floor, and the ratio with its spread.

use std::time::{Duration, Instant};

/// How often each pair runs unless `--runs` is given.
pub const RUNS_DEFAULT: usize = 5;

/// Unit of a value, and whether more or less is better.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Operations per second.
    PerSecond,
    /// Bytes per second.
    BytesPerSecond,
    /// Seconds; less is better.
    Seconds,
    /// Microseconds; less is better.
    Microseconds,
    /// A plain number; less is better.
    Times,
    /// Bytes; less is better.
    Bytes,
}

/// A line of the result.
pub struct Line {
    /// What was measured.
    pub name: String,
    /// Name of the floor.
    pub floor_name: &'static str,
    /// How to print values.
    pub unit: Unit,
    /// Values, pair by pair.
    pub measured: Vec<f64>,
    /// Values of the floor, pair by pair.
    pub floor: Vec<f64>,
    /// The ratio or absolute value to be reached.
    pub goal: Goal,
}

/// The goal of a line.
#[derive(Clone, Copy)]
pub enum Goal {
    /// Measured value over floor is at least this.
    Ratio(f64),
    /// The value itself is at least this.
    Value(f64),
    /// The value itself is at most this.
    AtMost(f64),
    /// No goal; only printed.
    None,
}

/// Runs `measured` and `floor` alternately, `runs` times after one uncounted pair.
pub fn pairs(
    runs: usize,
    mut measured: impl FnMut() -> f64,
    mut floor: impl FnMut() -> f64,
) -> (Vec<f64>, Vec<f64>) {
    let [out] = pairs_of(runs, || [measured()], || [floor()]);
    out
}

/// The same for runs that return several values: one pair of lists for each value.
pub fn pairs_of<const N: usize>(
    runs: usize,
    mut measured: impl FnMut() -> [f64; N],
    mut floor: impl FnMut() -> [f64; N],
) -> [(Vec<f64>, Vec<f64>); N] {
    let mut out = std::array::from_fn(|_| (Vec::new(), Vec::new()));
    for run in 0..=runs {
        let (a, b) = (measured(), floor());
        // The first pair pays for page tables, lazy opens and a cold CPU.
        if run > 0 {
            for (values, (a, b)) in out.iter_mut().zip(a.into_iter().zip(b)) {
                values.0.push(a);
                values.1.push(b);
            }
        }
    }
    out
}

/// Operations per second of `count` operations.
pub fn rate(count: u64, work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    per_second(count, begun.elapsed())
}

/// `count` in `time` as a rate.
pub fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64().max(1e-9)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints the heading.
pub fn heading() {
    println!(
        "{:<52} {:>12} {:>12} {:>7} {:>15}  {:<20} goal",
        "what", "measured", "floor", "ratio", "(least..most)", "floor is"
    );
}

/// Prints what explains the lines before.
pub fn note(text: &str) {
    println!("    {text}");
}

/// Measures a line in pairs and prints it.
pub fn compare(
    runs: usize,
    name: &str,
    floor_name: &'static str,
    unit: Unit,
    goal: Goal,
    measured: impl FnMut() -> f64,
    floor: impl FnMut() -> f64,
) {
    let (measured, floor) = pairs(runs, measured, floor);
    print(&Line {
        name: name.into(),
        floor_name,
        unit,
        measured,
        floor,
        goal,
    });
}

/// Prints one line immediately, so that a long run shows its progress.
pub fn print(line: &Line) {
    let ratios: Vec<f64> = line
        .measured
        .iter()
        .zip(&line.floor)
        .map(|(a, b)| a / b)
        .collect();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    let (value, ratio) = (median(&line.measured), median(&ratios));
    let verdict = |ok: bool| if ok { "met" } else { "missed" };
    let goal = match line.goal {
        Goal::Ratio(goal) => format!("ratio {goal}: {}", verdict(ratio >= goal)),
        Goal::Value(goal) => format!("{}: {}", show(goal, line.unit), verdict(value >= goal)),
        Goal::AtMost(goal) => {
            format!("{}: {}", show(goal, line.unit), verdict(value <= goal))
        }
        Goal::None => String::new(),
    };
    println!(
        "{:<52} {:>12} {:>12} {:>7.2} {:>15}  {:<20} {goal}",
        line.name,
        show(value, line.unit),
        show(median(&line.floor), line.unit),
        ratio,
        format!("({least:.2}..{most:.2})"),
        line.floor_name,
    );
}

fn show(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Seconds => format!("{value:.3} s"),
        Unit::Microseconds => format!("{value:.1} µs"),
        Unit::Times => format!("{value:.2}"),
        Unit::Bytes if value < 10.0 * 1_048_576.0 => format!("{:.0} KiB", value / 1024.0),
        Unit::Bytes => format!("{:.0} MiB", value / 1_048_576.0),
        Unit::PerSecond if value >= 10_000.0 => format!("{:.0} k/s", value / 1000.0),
        Unit::PerSecond => format!("{value:.0} /s"),
        Unit::BytesPerSecond => format!("{:.0} MiB/s", value / 1_048_576.0),
    }
}
