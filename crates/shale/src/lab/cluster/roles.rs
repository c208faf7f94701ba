//! Which of a node's processes are Shale's, told by their command lines.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

/// What a process is to its node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// The daemon.
    Daemon,
    /// The coordination store that a quorum node's daemon supervises.
    Etcd,
    /// The process that ends the mount of a daemon that no longer runs.
    Watchdog,
    /// Anything else: users' programs.
    Program,
}

impl Role {
    /// Of a process with this command line.
    pub fn of(arguments: &[OsString]) -> Self {
        let mut words = arguments.iter().map(OsString::as_os_str);
        let program = words.next().and_then(|path| Path::new(path).file_name());
        let first = words.next();
        let is = |word: Option<&OsStr>, name: &str| word == Some(OsStr::new(name));
        match () {
            () if is(program, "etcd") => Self::Etcd,
            () if is(program, "shale") && is(first, "daemon") => Self::Daemon,
            () if is(program, "shale") && is(first, "watchdog") => Self::Watchdog,
            () => Self::Program,
        }
    }

    /// Whether it belongs to the node itself: it dies with it.
    pub fn is_shale(self) -> bool {
        self != Self::Program
    }

    /// Whether it falls silent with the node. The watchdog doesn't: it is what is left of a node
    /// whose daemon hangs.
    pub fn falls_silent(self) -> bool {
        matches!(self, Self::Daemon | Self::Etcd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(line: &str) -> Role {
        let words: Vec<_> = line.split(' ').map(OsString::from).collect();
        Role::of(&words)
    }

    #[test]
    fn shales_processes_are_told_from_users_programs() {
        assert_eq!(role("/usr/bin/shale daemon --dir /srv/n1"), Role::Daemon);
        assert_eq!(role("/usr/bin/etcd --name n1"), Role::Etcd);
        assert_eq!(role("target/debug/shale watchdog 7"), Role::Watchdog);
        for program in [
            "shale up --dir /srv/n1",
            "etcdctl get x",
            "cp daemon shale",
            "",
        ] {
            assert_eq!(role(program), Role::Program, "{program}");
        }
    }
}
