//! Programs on two nodes that make, rename, remove and map files in one directory, more at once than the mounts have
//! threads: nobody waits for long, and no store is lost.

use super::{Lab, NODES, actors, figure};
use crate::{fixture::bounded, mapping::Mapping};
use sim::{action::Draw, by_suite};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

const PROGRAM: &str = "lab::programs::crowding::what_a_program_in_the_crowd_does";
/// No request may wait for longer.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Pause between two looks at what waits.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Names that all programs share.
const NAMES: u64 = 24;
/// Bytes of every file that has such a name.
const BYTES: usize = 8192;
/// The number at its begin.
const MARK: u64 = 0x6D61_726B_6564_2121;
/// Bytes between the numbers that programs store in a file.
const STRIDE: usize = 64;
/// What a program counts: files made, renamed, removed, mapped and not there, and listings.
const COUNTS: usize = 6;

/// One program of the crowd.
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

/// Does nothing but in a process that the test starts.
#[test]
fn what_a_program_in_the_crowd_does() {
    let Some(words) = actors::work() else { return };
    let [directory, actor, milliseconds] = &words[..] else {
        panic!("{words:?}");
    };
    let actor = actor.parse::<usize>().unwrap();
    let time = Duration::from_millis(milliseconds.parse().unwrap());
    let mut program = InCrowd {
        directory: Path::new(directory),
        actor,
        chance: Draw::new(actor as u64),
        stored: 0,
        counts: [0; COUNTS],
    };
    actors::ready_and_go();
    let begun = Instant::now();
    while begun.elapsed() < time {
        program.step();
    }
    actors::say(&format!("{:?}", program.counts));
}

/// The longest wait on any node at this moment, with what waits.
fn longest_wait(lab: &Lab) -> (Duration, String) {
    let mut longest = (Duration::ZERO, String::new());
    for node in 1..=NODES {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shale"));
        command
            .args(["waiters", "--json", "--dir"])
            .arg(lab.node(node));
        let ended = bounded::run(&mut command);
        assert_eq!(ended.code, 0, "{}", ended.text);
        // What it says of problems follows.
        let mut answers = serde_json::Deserializer::from_str(&ended.text).into_iter();
        let waiters: serde_json::Value = answers.next().unwrap().unwrap();
        for waiter in waiters.as_array().unwrap() {
            let since = Duration::from_millis(waiter["milliseconds"].as_u64().unwrap());
            if since >= longest.0 {
                longest = (since, format!("n{node}: {waiter}"));
            }
        }
    }
    longest
}

/// Fills one directory with programs of two nodes, and looks at what waits, until they are done.
pub(super) fn nobody_waits_for_long_in_a_crowd(lab: &Lab) {
    let (time, each) = by_suite((Duration::from_secs(8), 6), (Duration::from_secs(600), 16));
    let at = |node| lab.path(node, "crowd");
    fs::create_dir(at(1)).unwrap();
    let programs = (0..2 * each).map(|actor: u32| {
        let node = 1 + actor % 2;
        let directory = at(node).display().to_string();
        let milliseconds = time.as_millis().to_string();
        (node, vec![directory, actor.to_string(), milliseconds])
    });
    let mut programs = actors::start_all(lab, PROGRAM, programs);
    let begun = Instant::now();
    let (mut longest, mut looks) = ((Duration::ZERO, String::new()), 0);
    let first = loop {
        let found = longest_wait(lab);
        assert!(
            found.0 <= WAIT_MAX,
            "it waits for {:?}: {}",
            found.0,
            found.1
        );
        longest = longest.max(found);
        looks += 1;
        if let Some(said) = programs[0].hear_within(LOOK_EVERY) {
            break said;
        }
        assert!(begun.elapsed() < time + actors::PATIENCE, "programs hang");
    };
    let others = programs[1..].iter_mut().map(actors::Actor::hear);
    let mut counts = [0_u64; COUNTS];
    for said in std::iter::once(first).chain(others) {
        let counted: [u64; COUNTS] = serde_json::from_str(&said).unwrap();
        for (sum, counted) in counts.iter_mut().zip(counted) {
            *sum += counted;
        }
    }
    programs.into_iter().for_each(actors::Actor::end);
    figure(&format!(
        "in a crowd on two nodes ({counts:?}), {looks} looks found this longest wait: {longest:?}"
    ));
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");

    // Afterwards all nodes show the same, and nothing else is left.
    let names = |node| {
        let listed = fs::read_dir(at(node)).unwrap();
        let listed = listed.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = listed.collect();
        names.sort();
        names
    };
    let all = names(1);
    assert!(all.iter().all(|name| name.starts_with('f')), "{all:?}");
    for node in 2..=NODES {
        assert_eq!(names(node), all, "on n{node}");
    }
    for name in &all {
        let bytes = |node| fs::read(at(node).join(name)).unwrap();
        let first = bytes(1);
        assert_eq!((first.len(), &first[..8]), (BYTES, &MARK.to_ne_bytes()[..]));
        assert!((2..=NODES).all(|node| bytes(node) == first), "{name}");
    }
}
