//! The program as mount(8) and umount(8) call it for lines of /etc/fstab: by the names
//! `mount.shale`, `mount.fuse.shale`, `umount.shale`, `umount.fuse.shale`. Where those names
//! aren't installed, libfuse's mount.fuse calls the program itself: `shale DIR MOUNTPOINT -o …`.

use super::{
    mount::{add, end, end_without_daemon},
    start::start,
};
use crate::{
    admin::How,
    daemon::{
        config::NodeConfig,
        lock,
        mounts::{real_path, source_of},
    },
    options::Options,
};
use model::{Error, ErrorKind, Result};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

/// Exit codes of mount(8).
const WRONG_USE: u8 = 1;
const FAILED: u8 = 32;

/// A node that is just going down, or coming up for another line of fstab, gets so long.
const COME_UP_MAX: Duration = Duration::from_secs(60);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// What the program was called as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CalledAs {
    /// mount(8) wants a mount.
    Mount,
    /// umount(8) wants one ended.
    Umount,
}

impl CalledAs {
    /// Knows the names, and the program's own with a node's directory in place of a command;
    /// `None` otherwise.
    pub fn of(name: &Path, first: Option<&Path>) -> Option<Self> {
        match name.file_name()?.to_str()? {
            "mount.shale" | "mount.fuse.shale" => Some(Self::Mount),
            "umount.shale" | "umount.fuse.shale" => Some(Self::Umount),
            _ if first.is_some_and(Path::is_absolute) => Some(Self::Mount),
            _ => None,
        }
    }
}

/// What mount(8) says: `SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.
#[derive(Default, PartialEq, Eq, Debug)]
struct Call {
    places: Vec<PathBuf>,
    options: String,
    sloppy: bool,
    /// mount: do everything but mount. umount: by force.
    fake_or_force: bool,
    lazy: bool,
}

/// Does what mount(8) or umount(8) asks for and answers with their exit codes.
pub fn run(called_as: CalledAs, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let (name, usage) = match called_as {
        CalledAs::Mount => (
            "mount.shale",
            "NODE-DIRECTORY MOUNTPOINT [-sfnv] [-o OPTIONS]",
        ),
        CalledAs::Umount => ("umount.shale", "MOUNTPOINT [-flnrv]"),
    };
    let result = match (called_as, read(arguments)) {
        (CalledAs::Mount, Ok(call)) if call.places.len() == 2 => mount(&call),
        (CalledAs::Umount, Ok(call)) if call.places.len() == 1 => umount(&call),
        (_, wrong) => {
            let why = wrong.err().map_or(String::new(), |why| format!("{why}; "));
            eprintln!("{name}: {why}usage: {name} {usage}");
            return ExitCode::from(WRONG_USE);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::from(FAILED)
        }
    }
}

fn read(arguments: impl Iterator<Item = OsString>) -> std::result::Result<Call, String> {
    let mut call = Call::default();
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let letters = match argument.to_str().and_then(|text| text.strip_prefix('-')) {
            Some(letters) if !letters.is_empty() => letters.to_string(),
            _ => {
                call.places.push(PathBuf::from(argument));
                continue;
            }
        };
        for (at, letter) in letters.char_indices() {
            match letter {
                's' => call.sloppy = true,
                'f' => call.fake_or_force = true,
                'l' => call.lazy = true,
                // No mtab, verbose, read-only instead of busy: nothing to do here.
                'n' | 'v' | 'r' => {}
                'o' | 't' | 'N' => {
                    // The value is the rest of the word or the next one.
                    let rest = &letters[at + 1..];
                    let value = if rest.is_empty() {
                        let next = arguments.next().and_then(|next| next.into_string().ok());
                        next.ok_or(format!("-{letter} needs a value"))?
                    } else {
                        rest.to_string()
                    };
                    if letter == 'o' {
                        call.options = [call.options.as_str(), &value].join(",");
                    }
                    break;
                }
                _ => return Err(format!("there is no -{letter}")),
            }
        }
    }
    Ok(call)
}

/// Brings the node up if it isn't, and mounts.
fn mount(call: &Call) -> Result<()> {
    let [dir, mountpoint] = &call.places[..] else {
        unreachable!("the caller has counted");
    };
    if call.options.split(',').any(|option| option == "remount") {
        // mount(8) adds what stands in the mount table, which knows more words than we do.
        let others = call.options.split(',').filter(|it| *it != "remount");
        let options = Options::parse_sloppily(&others.collect::<Vec<_>>().join(","))?;
        // What the kernel itself obeys, for as long as the mount lives.
        return fuse::remount(mountpoint, options.flags);
    }
    let options = if call.sloppy {
        Options::parse_sloppily(&call.options)?
    } else {
        Options::parse(&call.options)?
    };
    let dir = &std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
    if NodeConfig::load(dir)?.is_none() {
        let text = format!(
            "{} holds no Shale node; create one with `shale up --dir {0}`, then `shale down --dir {0}`",
            dir.display()
        );
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    if call.fake_or_force {
        return Ok(());
    }
    let begun = Instant::now();
    loop {
        bring_up(dir)?;
        match add(dir, mountpoint, &options) {
            // Another line of fstab starts the same node at this moment, or it is going down.
            Err(error)
                if begun.elapsed() < COME_UP_MAX
                    && (error.kind() == ErrorKind::ShuttingDown
                        || error.kind() == ErrorKind::Unavailable && is_passing(dir)) =>
            {
                std::thread::sleep(PAUSE);
            }
            done => {
                done?;
                tell_umount(dir, mountpoint, &call.options);
                return Ok(());
            }
        }
    }
}

/// mount(8) leaves the line about a mount to us if we write one, also those of its own words
/// that systemd and others read there.
fn tell_umount(dir: &Path, mountpoint: &Path, options: &str) {
    let kept = |word: &&str| *word == "_netdev" || word.starts_with("x-");
    let words: Vec<&str> = options.split(',').filter(kept).collect();
    if !words.is_empty() {
        // The daemon has written a line without them, which is enough for umount(8).
        let _ = fuse::tell_umount(&source_of(dir), &real_path(mountpoint), &words);
    }
}

fn bring_up(dir: &Path) -> Result<()> {
    if lock::is_held(dir) {
        return Ok(());
    }
    match start(dir, true) {
        // Somebody else was faster.
        Err(_) if lock::is_held(dir) => Ok(()),
        started => started,
    }
}

/// Whether the daemon is on its way up or down: nobody has the directory any more, or who has
/// it isn't stopped and no socket listens.
fn is_passing(dir: &Path) -> bool {
    let socket = dir.join(crate::admin::client::SOCKET);
    let listens = std::os::unix::net::UnixStream::connect(socket).is_ok();
    !listens && !lock::is_holder_stopped(dir)
}

fn umount(call: &Call) -> Result<()> {
    let how = How::of(call.lazy, call.fake_or_force);
    if how != How::IfIdle {
        // Whoever says -l or -f doesn't want to depend on a daemon.
        return end_without_daemon(&call.places[0], how);
    }
    end(None, &call.places[0], how)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> std::result::Result<Call, String> {
        read(line.split(' ').map(OsString::from))
    }

    #[test]
    fn the_words_of_mount_8_are_understood() {
        let whole = call("/srv/shale /mnt/a -sv -t fuse.shale -o ro,noatime -onodev").unwrap();
        assert_eq!(whole.places, [Path::new("/srv/shale"), Path::new("/mnt/a")]);
        assert_eq!(whole.options, ",ro,noatime,nodev");
        assert!(whole.sloppy && !whole.fake_or_force);
        assert!(call("/mnt -fl").unwrap().lazy);
        assert!(call("/mnt -x").is_err() && call("/mnt -o").is_err());
    }

    #[test]
    fn only_the_names_of_mount_8_are_not_the_program_itself() {
        assert_eq!(
            CalledAs::of(Path::new("/sbin/mount.shale"), None),
            Some(CalledAs::Mount)
        );
        assert_eq!(
            CalledAs::of(Path::new("umount.fuse.shale"), None),
            Some(CalledAs::Umount)
        );
        let own = |first| CalledAs::of(Path::new("/usr/bin/shale"), Some(Path::new(first)));
        assert_eq!(own("up"), None);
        assert_eq!(own("/var/lib/shale"), Some(CalledAs::Mount));
    }
}
