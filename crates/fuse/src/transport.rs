//! The path of requests from the kernel to a mount, and the reason for the choice.

use std::fmt;
use std::fs;

/// Whether the kernel allows FUSE over io_uring; root writes Y or N.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// The protocol version that introduced FUSE over io_uring (Linux 6.14).
const MINOR_OF_IO_URING: u32 = 42;

/// Which transport a mount should use.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum TransportChoice {
    /// io_uring if available, otherwise /dev/fuse.
    #[default]
    Auto,
    /// /dev/fuse, available on every kernel.
    Classic,
    /// io_uring; mounting fails without it.
    IoUring,
}

/// The transport that a mount uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Transport {
    /// FUSE over io_uring: one system call per request, answered on the caller's CPU.
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

#[cfg(test)]
mod tests {
    use super::*;

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
