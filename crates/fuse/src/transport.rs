//! Which way requests take from the kernel to a mount, and why.

use crate::ring_entry::may_run_on;
use std::fmt;
use std::fs;

/// Whether the kernel's FUSE may use io_uring; root writes Y or N.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// CPUs that may ever be plugged in, as `0-3,8`.
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";
/// CPUs that are on.
const ONLINE_CPUS: &str = "/sys/devices/system/cpu/online";
/// The protocol that brought FUSE over io_uring (Linux 6.14).
const MINOR_OF_IO_URING: u32 = 42;

/// Which transport a mount should use.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum TransportChoice {
    /// io_uring if it can be had, else /dev/fuse.
    #[default]
    Auto,
    /// /dev/fuse, which every kernel has.
    Classic,
    /// io_uring; mounting fails where it can't be had.
    IoUring,
}

/// The transport that a mount uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Transport {
    /// FUSE over io_uring: one system call per request, answered on the CPU of who asked.
    IoUring,
    /// /dev/fuse.
    Classic {
        /// Why io_uring isn't used, and what would change that.
        why: String,
    },
}

impl Transport {
    /// Whether requests come through io_uring.
    #[must_use]
    pub fn is_io_uring(&self) -> bool {
        matches!(self, Self::IoUring)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IoUring => f.write_str("io_uring"),
            Self::Classic { why } => write!(f, "/dev/fuse (not io_uring: {why})"),
        }
    }
}

/// Why a kernel that speaks protocol 7.`minor` doesn't offer io_uring.
pub(crate) fn why_not_offered(minor: u32) -> String {
    if minor < MINOR_OF_IO_URING {
        return "kernel older than 6.14".to_owned();
    }
    match fs::read_to_string(SWITCH) {
        Ok(value) if value.trim() == "Y" => {
            "it was off in the kernel when this was mounted; mount again".to_owned()
        }
        Ok(_) => format!(
            "off in the kernel: echo Y > {SWITCH} as root, before mounting \
             (options fuse enable_uring=Y in /etc/modprobe.d/fuse.conf keeps it)"
        ),
        Err(_) => "the kernel was built without CONFIG_FUSE_IO_URING".to_owned(),
    }
}

/// How many queues the kernel makes: one per CPU that may ever be plugged in. An error if this
/// process may not run where programs do: a queue is served on its own CPU.
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

/// The numbers in a list like `0-3,8`.
fn cpus(list: &str) -> Option<Vec<u16>> {
    let mut cpus = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        (first <= last).then(|| cpus.extend(first..=last))?;
    }
    Some(cpus)
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
    fn old_kernels_are_told_from_those_that_have_it_off() {
        assert_eq!(why_not_offered(41), "kernel older than 6.14");
        assert!(why_not_offered(45).len() > 20);
        let shown = Transport::Classic {
            why: why_not_offered(31),
        };
        assert_eq!(
            shown.to_string(),
            "/dev/fuse (not io_uring: kernel older than 6.14)"
        );
    }
}
