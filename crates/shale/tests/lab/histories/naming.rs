//! A program among several that make, move, remove and look at names.
//!
//! A Linux kernel that finds the same inode under both names of a rename(2) answers by itself that it is done, and it
//! looks them up one after the other. So that it never finds in the second place what another program has just moved
//! there from the first one, each name has one program that moves files to it. All of them create it, move it away,
//! remove it and look at it.

use super::clock::now;
use super::names::{Ask, Did, How, Reply, SLOTS};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use sim::action::Draw;
use std::{
    fs::{self, File},
    io,
    os::unix::fs::{DirEntryExt, MetadataExt},
    path::{Path, PathBuf},
};

/// Directories that have the names.
const DIRECTORIES: [&str; 2] = ["a", "b"];
/// Names in each.
const NAMES: usize = SLOTS / DIRECTORIES.len();
/// How often a program looks a name up again whose file went while it looked.
const STALE_MAX: u32 = 100;

/// Makes the directories for the names.
pub(super) fn prepare(directory: &Path) {
    for name in DIRECTORIES {
        fs::create_dir(directory.join(name)).unwrap();
    }
}

/// One program among several that work on the names in a directory.
pub(super) struct Names {
    pub(super) directory: PathBuf,
    /// Its number, from 0.
    pub(super) actor: usize,
    pub(super) actors: usize,
}

impl Names {
    fn path(&self, slot: usize) -> PathBuf {
        let name = format!("n{}", slot % NAMES);
        self.directory.join(DIRECTORIES[slot / NAMES]).join(name)
    }

    /// Does something.
    pub(super) fn step(&self, chance: &mut Draw) -> Vec<Did> {
        let mut below = |end: usize| chance.below(end as u64) as usize;
        let own: Vec<_> = (self.actor..SLOTS).step_by(self.actors).collect();
        let (any, place) = (below(SLOTS), below(own.len()));
        let to = own[place];
        let (from, other) = (
            (to + 1 + below(SLOTS - 1)) % SLOTS,
            own[(place + 1) % own.len()],
        );
        let rename = |from, how| Ask::Rename { from, to, how };
        let ask = match below(12) {
            0..=2 => Ask::Create(any),
            3 => Ask::Unlink(any),
            4..=5 => rename(from, How::Replace),
            6 => rename(from, How::NoReplace),
            7 => rename(other, How::Exchange),
            8 => return self.list(below(DIRECTORIES.len())),
            _ => Ask::Lookup(any),
        };
        let begun = now();
        let reply = self.perform(ask);
        vec![Did {
            begun,
            ended: now(),
            ask,
            reply,
        }]
    }

    fn perform(&self, ask: Ask) -> Reply {
        let answer = match ask {
            Ask::Create(slot) => {
                let made = File::options()
                    .write(true)
                    .create_new(true)
                    .open(self.path(slot));
                made.and_then(|file| Ok(Reply::Leads(file.metadata()?.ino())))
            }
            Ask::Unlink(slot) => fs::remove_file(self.path(slot)).map(|()| Reply::Done),
            Ask::Rename { from, to, how } => {
                let flags = match how {
                    How::Replace => RenameFlags::empty(),
                    How::NoReplace => RenameFlags::NOREPLACE,
                    How::Exchange => RenameFlags::EXCHANGE,
                };
                let renamed = renameat_with(CWD, self.path(from), CWD, self.path(to), flags);
                renamed.map(|()| Reply::Done).map_err(io::Error::from)
            }
            Ask::Lookup(slot) => self.look_up(slot).map(Reply::Leads),
        };
        match answer {
            Ok(reply) => reply,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Reply::Missing,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Reply::Exists,
            Err(error) => panic!("{ask:?}: {error}"),
        }
    }

    /// stat(2) finds the inode and then asks for its attributes. If the inode goes in between, and again when the kernel
    /// looks once more, that is ESTALE, which says nothing of the name.
    fn look_up(&self, slot: usize) -> io::Result<u64> {
        for _ in 0..STALE_MAX {
            match fs::metadata(self.path(slot)) {
                Err(error) if error.raw_os_error() == Some(libc::ESTALE) => {}
                found => return Ok(found?.ino()),
            }
        }
        panic!("name {slot} goes whenever it is looked up");
    }

    /// A listing isn't of one moment, but each name in it is, and one that isn't in it was missing at some moment.
    fn list(&self, directory: usize) -> Vec<Did> {
        let begun = now();
        let listed = fs::read_dir(self.directory.join(DIRECTORIES[directory])).unwrap();
        let listed = listed.map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), entry.ino())
        });
        let listed: Vec<_> = listed.collect();
        let ended = now();
        let look = |number: usize, reply| Did {
            begun,
            ended,
            ask: Ask::Lookup(directory * NAMES + number),
            reply,
        };
        let mut looks = Vec::new();
        for number in 0..NAMES {
            let name = format!("n{number}");
            let found = listed.iter().filter(|(listed, _)| *listed == name);
            let before = looks.len();
            looks.extend(found.map(|(_, inode)| look(number, Reply::Leads(*inode))));
            if looks.len() == before {
                looks.push(look(number, Reply::Missing));
            }
        }
        assert!(looks.len() >= listed.len(), "nobody made all of {listed:?}");
        looks
    }

    /// All names, when nobody changes them any more.
    pub(super) fn look_at_all(&self) -> Vec<Did> {
        (0..DIRECTORIES.len())
            .flat_map(|directory| self.list(directory))
            .collect()
    }
}
