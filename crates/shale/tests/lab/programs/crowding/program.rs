//! A program of a crowd: one of its threads makes, renames, removes, lists and maps files in a directory of all, the
//! others sync files of their own.

use crate::{lab::actors, mapping::Mapping};
use sim::action::Draw;
use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// The test that is such a program.
pub(super) const PROGRAM: &str =
    "lab::programs::crowding::program::what_a_program_in_the_crowd_does";
/// Names that all programs share.
const NAMES: u64 = 24;
/// Bytes of every file that has such a name.
pub(super) const BYTES: usize = 8192;
/// The number at its begin.
pub(super) const MARK: u64 = 0x6D61_726B_6564_2121;
/// Bytes between the numbers that programs store in a file.
const STRIDE: usize = 64;
/// What a program counts: files made, renamed, removed, mapped and not there, listings, and what it [synced](SYNCED).
pub(super) const COUNTS: usize = 7;
/// Where it counts how often it synced a file of its own.
pub(super) const SYNCED: usize = 6;

/// What a program is to do.
pub(super) struct Task {
    /// All programs work there.
    pub(super) directory: PathBuf,
    /// Its own files are made there. Programs of one node share it.
    pub(super) own: PathBuf,
    /// Its number.
    pub(super) actor: usize,
    /// For how long.
    pub(super) time: Duration,
    /// Threads that sync files of their own.
    pub(super) syncing: usize,
}

impl Task {
    /// As [`actors::start_all`] takes it.
    pub(super) fn words(&self) -> Vec<String> {
        vec![
            self.directory.display().to_string(),
            self.own.display().to_string(),
            self.actor.to_string(),
            self.time.as_millis().to_string(),
            self.syncing.to_string(),
        ]
    }

    fn of(words: &[String]) -> Self {
        let [directory, own, actor, milliseconds, syncing] = words else {
            panic!("{words:?}");
        };
        Self {
            directory: directory.into(),
            own: own.into(),
            actor: actor.parse().unwrap(),
            time: Duration::from_millis(milliseconds.parse().unwrap()),
            syncing: syncing.parse().unwrap(),
        }
    }
}

/// The thread among those of all programs.
struct InCrowd<'a> {
    directory: &'a Path,
    actor: usize,
    chance: Draw,
    /// How many numbers it has stored.
    stored: u64,
    counts: [u64; COUNTS],
}

impl InCrowd<'_> {
    fn name(&mut self) -> PathBuf {
        let number = self.chance.below(NAMES);
        self.directory.join(format!("f{number}"))
    }

    fn step(&mut self) {
        let (name, other) = (self.name(), self.name());
        let what = match self.chance.below(8) {
            0..=2 => self.make(&name),
            3 if name != other => was_there(fs::rename(&name, &other), 1),
            4 => was_there(fs::remove_file(&name), 2),
            5 => self.list(),
            _ => self.map(&name),
        };
        self.counts[what] += 1;
    }

    /// Replaces a file by a new one, which is whole when others find it.
    fn make(&self, name: &Path) -> usize {
        let new = self.directory.join(format!("new{}", self.actor));
        let mut bytes = vec![0; BYTES];
        bytes[..8].copy_from_slice(&MARK.to_ne_bytes());
        fs::write(&new, bytes).unwrap();
        fs::rename(&new, name).unwrap();
        0
    }

    /// Stores numbers in its own place of a file, which is there as long as it is open.
    fn map(&mut self, name: &Path) -> usize {
        let file = match File::options().read(true).write(true).open(name) {
            Ok(file) => file,
            Err(error) if is_gone(&error) => return 4,
            Err(error) => panic!("{}: {error}", name.display()),
        };
        let mapping = Mapping::new(&file, libc::MAP_SHARED);
        assert_eq!(mapping.load(0), MARK, "{}", name.display());
        let at = STRIDE * (1 + self.actor);
        assert!(at < BYTES);
        for _ in 0..4 {
            self.stored += 1;
            mapping.store(at, self.stored);
            assert_eq!(mapping.load(at), self.stored, "{}", name.display());
        }
        let mut read = [0; 8];
        file.read_exact_at(&mut read, at as u64).unwrap();
        assert_eq!(u64::from_ne_bytes(read), self.stored, "{}", name.display());
        assert_eq!(mapping.load(at), self.stored, "{}", name.display());
        3
    }

    fn list(&self) -> usize {
        for entry in fs::read_dir(self.directory).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(name.starts_with('f') || name.starts_with("new"), "{name}");
        }
        5
    }
}

/// What a program counts if a name was there, or wasn't.
fn was_there(result: io::Result<()>, then: usize) -> usize {
    match result {
        Ok(()) => then,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 4,
        Err(error) => panic!("{error}"),
    }
}

/// Whether a file went before it was open: it may have been found before, and then it is stale.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESTALE)
}

/// Counts in a file, which is synced after each number, until the end; returns the last number. Each sync holds one of the
/// mount's places for requests that wait until it is durable.
fn sync_until(end: Instant, file: &File) -> u64 {
    let mut number: u64 = 0;
    loop {
        number += 1;
        file.write_all_at(&number.to_ne_bytes(), 0).unwrap();
        file.sync_all().unwrap();
        if Instant::now() >= end {
            return number;
        }
    }
}

/// Does nothing but in a process that the test starts.
#[test]
fn what_a_program_in_the_crowd_does() {
    let Some(words) = actors::work() else { return };
    let task = Task::of(&words);
    let mut program = InCrowd {
        directory: &task.directory,
        actor: task.actor,
        chance: Draw::new(task.actor as u64),
        stored: 0,
        counts: [0; COUNTS],
    };
    let make = |number: usize| {
        let name = format!("{}-{number}", task.actor);
        File::create_new(task.own.join(name)).unwrap()
    };
    let own: Vec<File> = (0..task.syncing).map(make).collect();
    actors::ready_and_go();
    let end = Instant::now() + task.time;
    program.counts[SYNCED] = thread::scope(|scope| {
        let sync = |file| scope.spawn(move || sync_until(end, file));
        let threads: Vec<_> = own.iter().map(sync).collect();
        while Instant::now() < end {
            program.step();
        }
        let ended = threads.into_iter().map(|thread| thread.join().unwrap());
        ended.sum::<u64>()
    });
    actors::say(&format!("{:?}", program.counts));
}
