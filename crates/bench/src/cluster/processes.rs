//! Processes seen from outside, in /proc: how much memory they take, which ones they have started, and where CPU time went.

use model::{Error, ErrorKind, Result};
use std::fs;

/// How much of the CPUs may be idle while CPU time is what limits.
const IDLE_SHARE: f64 = 0.1;

/// Resident bytes of a process.
///
/// # Errors
/// `Unavailable` if it has ended.
pub fn resident(pid: u32) -> Result<f64> {
    let text = read(&format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib = kib.and_then(|kib| kib.trim().parse::<f64>().ok());
    Ok(kib.unwrap_or_default() * 1024.0)
}

/// The processes of this name that a process has started.
///
/// # Errors
/// `Unavailable` if /proc can't be read.
pub fn children(parent: u32, name: &str) -> Result<Vec<u32>> {
    let entries = fs::read_dir("/proc").map_err(|e| unreadable("/proc", &e))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let all = names.filter_map(|pid| pid.to_str()?.parse::<u32>().ok());
    let is_child = |pid: &u32| {
        // One that has just ended is no child.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        Stat::of(&stat).is_some_and(|it| it.parent == parent && it.name == name)
    };
    Ok(all.filter(is_child).collect())
}

/// CPU time of the machine and of some processes, up to now.
pub struct Look {
    /// Seconds of each process and of those that it has started and waited for.
    processes: Vec<f64>,
    /// Seconds that CPUs had nothing to do, and all their seconds.
    idle: f64,
    all: f64,
}

impl Look {
    /// At these processes.
    ///
    /// # Errors
    /// `Unavailable` if one has ended.
    pub fn at(processes: &[(String, u32)]) -> Result<Self> {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let seconds = |(_, pid): &(String, u32)| {
            let path = format!("/proc/{pid}/stat");
            let stat = read(&path)?;
            let stat = Stat::of(&stat).ok_or_else(|| {
                Error::new(ErrorKind::Unavailable, format!("{path} isn't understood"))
            })?;
            Ok::<_, Error>(stat.ticks as f64 / ticks)
        };
        let (idle, all) = cpus(&read("/proc/stat")?);
        Ok(Self {
            processes: processes.iter().map(seconds).collect::<Result<_>>()?,
            idle: idle as f64 / ticks,
            all: all as f64 / ticks,
        })
    }
}

/// CPU seconds that were used while something ran, or several times.
pub struct Spent {
    /// Of each process.
    processes: Vec<f64>,
    idle: f64,
    all: f64,
}

impl Spent {
    /// Nothing yet, by so many processes.
    pub fn nothing(processes: usize) -> Self {
        Self {
            processes: vec![0.0; processes],
            idle: 0.0,
            all: 0.0,
        }
    }

    /// What these processes use while something runs, and what came of that.
    ///
    /// # Errors
    /// As [`Look::at`].
    pub fn by<T>(processes: &[(String, u32)], work: impl FnOnce() -> T) -> Result<(T, Self)> {
        let before = Look::at(processes)?;
        let done = work();
        let mut spent = Self::nothing(processes.len());
        spent.add(&before, &Look::at(processes)?);
        Ok((done, spent))
    }

    /// What was used between two looks at the same processes.
    pub fn add(&mut self, before: &Look, after: &Look) {
        let pairs = before.processes.iter().zip(&after.processes);
        for (sum, (before, after)) in self.processes.iter_mut().zip(pairs) {
            *sum += after - before;
        }
        self.idle += after.idle - before.idle;
        self.all += after.all - before.all;
    }

    /// CPU seconds of the machine that were used for anything.
    pub fn busy(&self) -> f64 {
        self.all - self.idle
    }

    /// What limits, and who has used how much.
    pub fn told(&self, processes: &[(String, u32)]) -> String {
        let seconds = |seconds: f64| format!("{seconds:.2}");
        self.told_in("seconds used", seconds, processes)
    }

    /// The same, with what each of so many operations has used.
    pub fn told_of_each(&self, operations: u64, processes: &[(String, u32)]) -> String {
        let micros = |seconds: f64| format!("{:.0}", seconds * 1e6 / operations as f64);
        self.told_in("µs used for each", micros, processes)
    }

    fn told_in(
        &self,
        unit: &str,
        show: impl Fn(f64) -> String,
        processes: &[(String, u32)],
    ) -> String {
        let share = self.idle / self.all.max(f64::MIN_POSITIVE);
        let limit = match share < IDLE_SHARE {
            true => "CPU time is what limits",
            false => {
                "CPU time isn't what limits: they wait for each other, for the disk or for connections"
            }
        };
        let used: f64 = self.processes.iter().sum();
        let others = (self.all - self.idle - used).max(0.0);
        let each = processes.iter().zip(&self.processes);
        let each = each.map(|((name, _), seconds)| format!("{name} {}", show(*seconds)));
        let each: Vec<String> = each.collect();
        format!(
            "{limit}: {:.0} % of it was idle; {unit}: {}, all else {}",
            share * 100.0,
            each.join(", "),
            show(others)
        )
    }
}

/// What /proc/PID/stat says of a process.
#[derive(PartialEq, Debug)]
struct Stat<'a> {
    name: &'a str,
    parent: u32,
    /// Of CPU time, in user and kernel mode, with ended children.
    ticks: u64,
}

impl<'a> Stat<'a> {
    fn of(text: &'a str) -> Option<Self> {
        // The name may contain anything.
        let (name, rest) = text.split_once('(')?.1.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let times = fields.get(11..15)?.iter();
        let times: Option<Vec<u64>> = times.map(|time| time.parse().ok()).collect();
        Some(Self {
            name,
            parent: fields.get(1)?.parse().ok()?,
            ticks: times?.iter().sum(),
        })
    }
}

/// Ticks that all CPUs were idle, and all ticks, out of /proc/stat.
fn cpus(text: &str) -> (u64, u64) {
    let line = text.lines().next().unwrap_or_default();
    // Guests' time, which follows, is in the users' already.
    let fields = line.split_whitespace().skip(1).take(8);
    let ticks: Vec<u64> = fields.filter_map(|it| it.parse().ok()).collect();
    let idle = ticks.iter().skip(3).take(2).sum();
    (idle, ticks.iter().sum())
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).map_err(|e| unreadable(path, &e))
}

fn unreadable(path: &str, why: &std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("reading {path}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_process_is_understood_whatever_its_name_is() {
        let text = "77 (a) (b) S 5 77 77 0 -1 4194560 9 8 7 6 100 20 3 1 20 0 4 0 9 8 7";
        let stat = Stat {
            name: "a) (b",
            parent: 5,
            ticks: 124,
        };
        assert_eq!(Stat::of(text), Some(stat));
        assert_eq!(Stat::of("77 (a) S 5"), None);
        assert_eq!(
            cpus("cpu  10 1 5 80 4 1 1 2 7 0\ncpu0 1 2 3"),
            (84, 10 + 1 + 5 + 84 + 1 + 1 + 2)
        );
        let own = Look::at(&[("own".into(), std::process::id())]).unwrap();
        assert_eq!(own.processes.len(), 1);
        assert!(own.idle <= own.all);
    }

    #[test]
    fn what_limits_is_told_by_the_idle_share() {
        let look = |busy: f64, idle: f64| Look {
            processes: vec![busy],
            idle,
            all: 2.0 * busy + idle,
        };
        let named = [("n1".to_owned(), 1)];
        let spent = |after: Look| {
            let mut spent = Spent::nothing(1);
            spent.add(&look(0.0, 0.0), &after);
            spent
        };
        let told = |after: Look| spent(after).told(&named);
        let busy = told(look(5.0, 0.5));
        assert!(busy.starts_with("CPU time is what limits: 5 %"), "{busy}");
        assert!(busy.contains("n1 5.00, all else 5.00"), "{busy}");
        let idle = told(look(1.0, 8.0));
        assert!(idle.starts_with("CPU time isn't"), "{idle}");
        let each = spent(look(5.0, 0.5)).told_of_each(1_000_000, &named);
        assert!(
            each.contains("µs used for each: n1 5, all else 5"),
            "{each}"
        );
    }
}
