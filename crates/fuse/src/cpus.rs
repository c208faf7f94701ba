//! The machine's CPUs, and binding threads to them: FUSE over io_uring has a queue per CPU.

use rustix::process::getpid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;

/// CPUs that may ever be plugged in, such as `0-3,8`.
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";
/// CPUs that are online.
const ONLINE_CPUS: &str = "/sys/devices/system/cpu/online";

/// The kernel's number of queues: one per CPU that may ever be plugged in. Fails if this process
/// may not run on an online CPU, because each queue is served on its own CPU.
pub(crate) fn queues() -> Result<u16, String> {
    let list = |path| {
        let text = fs::read_to_string(path).map_err(|error| format!("reading {path}: {error}"))?;
        cpus(text.trim()).ok_or_else(|| format!("{path} says {text:?}"))
    };
    let online: Vec<u16> = list(ONLINE_CPUS)?;
    if let Some(cpu) = online.into_iter().find(|cpu| !may_run_on(*cpu)) {
        return Err(format!(
            "this process may not run on CPU {cpu} (cpuset, taskset), but each request is \
             answered on the CPU that it was made on"
        ));
    }
    let possible = list(POSSIBLE_CPUS)?.len();
    u16::try_from(possible).map_err(|_| format!("{possible} CPUs are too many"))
}

/// Parses a list of CPUs such as `0-3,8`.
fn cpus(list: &str) -> Option<Vec<u16>> {
    let mut cpus = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        (first <= last).then(|| cpus.extend(first..=last))?;
    }
    Some(cpus)
}

/// Whether the calling thread may run on a CPU, which can be offline, or excluded by a cpuset or
/// `taskset`.
pub(crate) fn may_run_on(cpu: u16) -> bool {
    usize::from(cpu) < CpuSet::MAX_CPU
        && sched_getaffinity(None).is_ok_and(|allowed| allowed.is_set(cpu.into()))
}

/// Lets the calling thread run wherever the process may. A thread that serves requests from
/// io_uring is bound to a CPU, and threads that it starts inherit that: runtimes that start threads
/// on demand call this in each (`on_thread_start`).
pub fn run_on_all_cpus() {
    // The first thread is never bound, so its set is the process's.
    if let Ok(allowed) = sched_getaffinity(Some(getpid())) {
        // A thread that stays bound still works, only slower.
        let _ = sched_setaffinity(None, &allowed);
    }
}

/// Binds the calling thread to a CPU. False if it may not run there, or the CPU is offline.
pub(crate) fn run_on(cpu: u16) -> bool {
    if !may_run_on(cpu) {
        return false;
    }
    let mut only = CpuSet::new();
    only.set(cpu.into());
    sched_setaffinity(None, &only).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_listed_over_all_ranges() {
        for (list, expected) in [
            ("0", vec![0]),
            ("0-1", vec![0, 1]),
            ("0-2,8-9", vec![0, 1, 2, 8, 9]),
            ("0,2,5-5", vec![0, 2, 5]),
        ] {
            assert_eq!(cpus(list), Some(expected), "{list}");
        }
        for nonsense in ["", "a", "3-1", "0-70000"] {
            assert_eq!(cpus(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_thread_can_be_bound_to_a_cpu_and_set_free_again() {
        let bound = || {
            let Some(cpu) = (0..1024).find(|cpu| may_run_on(*cpu)) else {
                panic!("a thread runs somewhere");
            };
            assert!(run_on(cpu) && may_run_on(cpu) && !may_run_on(cpu + 1));
            run_on_all_cpus();
            (0..1024).filter(|cpu| may_run_on(*cpu)).count()
        };
        let cpus = std::thread::spawn(bound).join().expect("no panic");
        assert_eq!(cpus, (0..1024).filter(|cpu| may_run_on(*cpu)).count());
    }
}
