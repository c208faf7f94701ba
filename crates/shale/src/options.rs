//! Mount options as they stand behind `-o` and in /etc/fstab: what each means to a mount here.

use fuse::{KernelFlags, LockScope, TransportChoice};
use model::{Error, ErrorKind, FileSystemName, Result};
use std::{fmt, path::PathBuf};

/// Options of a mount; read and written as the list given to `-o`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What the kernel obeys: ro (every change is EROFS), noatime, nosuid, nodev, noexec.
    pub flags: KernelFlags,
    /// Others than the mounting user may use the mount.
    pub allow_other: bool,
    /// The file system; none: the first one.
    pub file_system: Option<FileSystemName>,
    /// The directory of the file system that is the root of the mount.
    pub subdir: Option<PathBuf>,
    /// Which way requests take from the kernel.
    pub transport: TransportChoice,
    /// Whose file locks are: the file system's, or the kernel's.
    pub locks: LockScope,
    /// No access control lists: the kernel asks for none and obeys none.
    pub no_acl: bool,
}

/// The supported options, for the message that refuses others.
const OBEYED: &str = "ro, rw, noatime, atime, relatime, nosuid, suid, nodev, dev, noexec, exec, \
     allow_other, fs=NAME, subdir=PATH, transport=auto|fuse|io_uring, locks=cluster|local, acl, \
     noacl";
/// Meant for mount(8), systemd and people; nothing to do for a mount itself.
const IGNORED: [&str; 20] = [
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "nouser",
    "async",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "nostrictatime",
    "silent",
    "loud",
    "noiversion",
    "nomand",
    // What every mount of ours has anyway.
    "default_permissions",
    "nonempty",
    "uhelper",
    "helper",
];

impl Options {
    /// Reads a list like `ro,noatime,subdir=projects/a`. Later options win.
    ///
    /// # Errors
    /// `InvalidArgument` with what exists.
    pub fn parse(list: &str) -> Result<Self> {
        Self::read(list, false)
    }

    /// As `parse`, but unknown options are ignored (`mount -s`).
    ///
    /// # Errors
    /// `InvalidArgument` for a known option that can't be had.
    pub fn parse_sloppily(list: &str) -> Result<Self> {
        Self::read(list, true)
    }

    fn read(list: &str, sloppy: bool) -> Result<Self> {
        let mut options = Self::default();
        for option in list.split(',').map(str::trim) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            match (name, value) {
                ("", None) => {}
                ("ro", None) => options.flags.read_only = true,
                ("rw", None) => options.flags.read_only = false,
                ("noatime", None) => options.flags.no_atime = true,
                ("nosuid", None) => options.flags.no_suid = true,
                ("suid", None) => options.flags.no_suid = false,
                ("nodev", None) => options.flags.no_dev = true,
                ("dev", None) => options.flags.no_dev = false,
                ("noexec", None) => options.flags.no_exec = true,
                ("exec", None) => options.flags.no_exec = false,
                ("allow_other", None) => options.allow_other = true,
                ("fs", Some(name)) => options.file_system = Some(name.parse()?),
                ("subdir", Some(path)) if !path.is_empty() => {
                    options.subdir = Some(PathBuf::from(path));
                }
                ("transport", Some(which)) => options.transport = transport(which)?,
                ("locks", Some(whose)) => options.locks = locks(whose)?,
                ("noacl", None) => options.no_acl = true,
                ("acl", None) => options.no_acl = false,
                // As mount(8) says: users who may mount get no setuid, devices, programs,
                // unless a later option says otherwise.
                ("user" | "users", _) => {
                    options.flags.no_suid = true;
                    options.flags.no_dev = true;
                    options.flags.no_exec = true;
                }
                ("owner" | "group", None) => {
                    options.flags.no_suid = true;
                    options.flags.no_dev = true;
                }
                ("strictatime" | "norelatime", None) => {
                    return Err(cannot(
                        name,
                        "reads move atime as relatime says, or with noatime not at all",
                    ));
                }
                ("sync" | "dirsync", None) => {
                    return Err(cannot(
                        name,
                        "programs call fsync, or open files with O_SYNC",
                    ));
                }
                ("remount", None) => {
                    return Err(cannot(
                        name,
                        "mount(8) does it: mount -o remount,ro MOUNTPOINT",
                    ));
                }
                ("atime" | "relatime", None) => options.flags.no_atime = false,
                ("comment", Some(_)) => {}
                (name, _) if name.starts_with("x-") || name.starts_with("X-") => {}
                (name, _) if IGNORED.contains(&name) => {}
                _ if sloppy => {}
                _ => {
                    let text = format!(
                        "there is no mount option {option:?}; there are: {OBEYED}; those of fstab (defaults, noauto, nofail, _netdev, user, users, x-…) are accepted"
                    );
                    return Err(Error::new(ErrorKind::InvalidArgument, text));
                }
            }
        }
        Ok(options)
    }
}

fn transport(which: &str) -> Result<TransportChoice> {
    match which {
        "auto" => Ok(TransportChoice::Auto),
        "fuse" => Ok(TransportChoice::Classic),
        "io_uring" => Ok(TransportChoice::IoUring),
        _ => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("there is no transport {which:?}; there are auto, fuse and io_uring"),
        )),
    }
}

fn locks(whose: &str) -> Result<LockScope> {
    match whose {
        "cluster" => Ok(LockScope::Cluster),
        "local" => Ok(LockScope::Local),
        _ => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("file locks are never {whose:?}; locks=cluster and locks=local can be had"),
        )),
    }
}

fn cannot(name: &str, instead: &str) -> Error {
    let text = format!("mount option {name} isn't offered: {instead}");
    Error::new(ErrorKind::InvalidArgument, text)
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.flags.read_only { "ro" } else { "rw" })?;
        for (is_set, word) in [
            (self.flags.no_atime, ",noatime"),
            (self.flags.no_suid, ",nosuid"),
            (self.flags.no_dev, ",nodev"),
            (self.flags.no_exec, ",noexec"),
            (self.allow_other, ",allow_other"),
        ] {
            if is_set {
                f.write_str(word)?;
            }
        }
        match self.transport {
            TransportChoice::Auto => {}
            TransportChoice::Classic => f.write_str(",transport=fuse")?,
            TransportChoice::IoUring => f.write_str(",transport=io_uring")?,
        }
        if self.locks == LockScope::Local {
            f.write_str(",locks=local")?;
        }
        if self.no_acl {
            f.write_str(",noacl")?;
        }
        if let Some(name) = &self.file_system {
            write!(f, ",fs={name}")?;
        }
        match &self.subdir {
            Some(path) => write!(f, ",subdir={}", path.display()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_fstab_are_accepted_and_obeyed_where_they_mean_something() {
        let list = "defaults,_netdev,nofail,noauto,x-systemd.requires=a.service,comment=mine";
        assert_eq!(Options::parse(list).unwrap(), Options::default());
        let all = "ro,noatime,nosuid,nodev,noexec,allow_other,transport=io_uring,locks=local,\
                   noacl,fs=scratch,subdir=projects/a";
        assert_eq!(Options::parse(all).unwrap().to_string(), all);
        assert_eq!(Options::parse("ro,rw").unwrap(), Options::default());
        let default = Options::parse("locks=local,locks=cluster").unwrap();
        assert_eq!(default, Options::default());
        assert_eq!(Options::parse("noacl,acl").unwrap(), default);
        let user = Options::parse("user,exec").unwrap();
        assert!(user.flags.no_suid && user.flags.no_dev && !user.flags.no_exec);
        assert_eq!(Options::parse(&user.to_string()).unwrap(), user);
    }

    #[test]
    fn any_list_of_options_is_read_or_refused() {
        fuzzing::fuzz!(fuzzing::ROUNDS, |input: &[u8]| {
            let list = "ro,noatime,allow_other,transport=io_uring,locks=local,fs=a,subdir=b";
            let changed = fuzzing::Source::new(input).changed(list.as_bytes());
            for list in [input, &changed] {
                let list = String::from_utf8_lossy(list);
                if let Ok(options) = Options::parse(&list) {
                    assert_eq!(Options::parse(&options.to_string()), Ok(options));
                }
                let _ = Options::parse_sloppily(&list);
            }
        });
    }

    #[test]
    fn an_unknown_option_is_refused_with_those_that_exist() {
        let text = Options::parse("ro,compress=zstd").unwrap_err().to_string();
        assert!(
            text.contains("compress=zstd") && text.contains("noatime"),
            "{text}"
        );
        assert!(
            Options::parse_sloppily("ro,compress=zstd")
                .unwrap()
                .flags
                .read_only
        );
        assert!(
            Options::parse("strictatime")
                .unwrap_err()
                .to_string()
                .contains("relatime")
        );
        assert!(Options::parse("subdir=").is_err());
        assert!(Options::parse("fs=").is_err());
        assert!(Options::parse("transport=pigeon").is_err());
        assert!(Options::parse("locks=mine").is_err());
        assert!(Options::parse("noacl=yes").is_err());
    }
}
