//! The program as mount(8) and umount(8) call it for lines of /etc/fstab: by the names
//! `mount.shale`, `mount.fuse.shale`, `umount.shale`, `umount.fuse.shale`. Where those names
//! aren't installed, libfuse's mount.fuse calls the program itself: `shale DIR MOUNTPOINT -o …`.

use super::{
    mount::{add, end, end_without_daemon},
    start::{running, start, while_passing},
};
use crate::{
    admin::How,
    daemon::{
        config::NodeConfig,
        mounts::{real_path, source_of},
    },
    directory::lock,
    options::Options,
    output::plain,
};
use model::{Error, ErrorKind, Result};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Exit codes of mount(8).
const WRONG_USE: u8 = 1;
const FAILED: u8 = 32;

/// Which helper the program was called as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CalledAs {
    /// mount(8) mounts.
    Mount,
    /// umount(8) unmounts.
    Umount,
}

impl CalledAs {
    /// Recognises the helpers' names, and the program's own name followed by a node's directory
    /// instead of a command; `None` otherwise.
    pub fn of(name: &Path, first: Option<&Path>) -> Option<Self> {
        match name.file_name()?.to_str()? {
            "mount.shale" | "mount.fuse.shale" => Some(Self::Mount),
            "umount.shale" | "umount.fuse.shale" => Some(Self::Umount),
            _ if first.is_some_and(Path::is_absolute) => Some(Self::Mount),
            _ => None,
        }
    }
}

/// The arguments of mount(8): `SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.
#[derive(Default, PartialEq, Eq, Debug)]
struct Call {
    places: Vec<PathBuf>,
    options: String,
    sloppy: bool,
    /// mount: skip the mount itself. umount: force.
    fake_or_force: bool,
    lazy: bool,
}

/// Mounts or unmounts as mount(8) or umount(8) ask, and returns their exit codes.
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
            eprintln!("{name}: {}", plain(&error.to_string()));
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
                // No mtab, verbose, read-only if busy: no effect here.
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
                _ => return Err(format!("unknown option -{letter}")),
            }
        }
    }
    Ok(call)
}

/// Starts the node if it isn't running, and mounts.
fn mount(call: &Call) -> Result<()> {
    let [dir, mountpoint] = &call.places[..] else {
        unreachable!("the caller has counted");
    };
    if call.options.split(',').any(|option| option == "remount") {
        return remount(mountpoint, &call.options);
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
    // Another line of fstab may be starting the same node, or it may be going down.
    while_passing(dir, || {
        bring_up(dir)?;
        Ok(add(dir, mountpoint, &options))
    })?;
    tell_umount(dir, mountpoint, &call.options);
    Ok(())
}

/// Changes the flags that the kernel enforces, for as long as the mount lives.
fn remount(mountpoint: &Path, list: &str) -> Result<()> {
    // mount(8) adds the options from fstab and the mount table, some of which we don't know.
    let words = list.split(',').map(str::trim);
    let words: Vec<&str> = words.filter(|word| *word != "remount").collect();
    let options = Options::parse_sloppily(&words.join(","))?;
    if words.iter().any(|word| ["acl", "noacl"].contains(word)) {
        refuse_other_lists(mountpoint, options.no_acl)?;
    }
    fuse::remount(mountpoint, options.flags)
}

/// Whether there are access control lists is agreed on with the kernel when a file system is
/// mounted; only the daemon knows what was agreed on.
fn refuse_other_lists(mountpoint: &Path, no_acl: bool) -> Result<()> {
    let place = real_path(mountpoint);
    let failed = |error: Error| error.while_doing(format!("remount {}", place.display()));
    let Some(mount) = fuse::shale_on(&place).map_err(failed)? else {
        // The remount itself will say so.
        return Ok(());
    };
    let status = running(&mount.source).map_err(failed)?;
    let mounts = status.map(|status| status.mounts).unwrap_or_default();
    // The daemon doesn't know of bind mounts, but of the mount that they show.
    let mut same = fuse::mounted_shales().map_err(failed)?;
    same.retain(|other| other.is_same_file_system(&mount));
    let is_same = |path: &str| same.iter().any(|mount| mount.mountpoint == Path::new(path));
    let Some(line) = mounts.iter().rfind(|line| is_same(&line.path)) else {
        return Ok(());
    };
    let word = |no_acl| if no_acl { "noacl" } else { "acl" };
    let mounted = Options::parse_sloppily(&line.options)?.no_acl;
    if mounted == no_acl {
        return Ok(());
    }
    let text = format!(
        "a mount with {} can't become {} while it is mounted; unmount it and mount again",
        word(mounted),
        word(no_acl)
    );
    Err(failed(Error::new(ErrorKind::NotSupported, text)))
}

/// If a helper writes the mount's line in utab, mount(8) leaves it alone. So the helper must also
/// write the words that systemd and others look for there.
fn tell_umount(dir: &Path, mountpoint: &Path, options: &str) {
    let kept = |word: &&str| *word == "_netdev" || word.starts_with("x-");
    let words: Vec<&str> = options.split(',').filter(kept).collect();
    if !words.is_empty() {
        // On failure the daemon's own line, without these words, still serves umount(8).
        let _ = fuse::tell_umount(&source_of(dir), &real_path(mountpoint), &words);
    }
}

fn bring_up(dir: &Path) -> Result<()> {
    lock::check_readable(dir)?;
    if lock::is_held(dir) {
        return Ok(());
    }
    match start(dir, true) {
        // Another process started it first.
        Err(_) if lock::is_held(dir) => Ok(()),
        started => started,
    }
}

fn umount(call: &Call) -> Result<()> {
    let how = How::of(call.lazy, call.fake_or_force);
    if how != How::IfIdle {
        // -l and -f must work without the daemon.
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
