//! Locks of ranges by programs on several nodes: readers share, a writer waits for all of them, and what overlaps splits.

use super::{
    Lab, NODES,
    actors::{self, Actor},
};
use crate::{fixture::open, locks::processes::Descriptor};
use libc::{EAGAIN, F_RDLCK, F_SETLK, F_SETLKW, F_UNLCK, F_WRLCK};
use sim::by_suite;
use std::{
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::Path,
};

/// A program that locks ranges of a file as it is told.
const LOCKS: &str = "lab::programs::ranges::what_a_range_locking_program_does";
const NAME: &str = "ranges";
/// Each program leaves a mark in the file at the number of its node.
const MARKS: usize = NODES as usize + 1;

/// A lock, as F_GETLK tells it: its kind, start and length.
type Held = (i32, i64, i64);

/// Does nothing but in a process that the tests here start.
#[test]
fn what_a_range_locking_program_does() {
    let Some(words) = actors::work() else { return };
    let [path, node] = &words[..] else {
        panic!("{words:?}");
    };
    let (file, node): (_, u64) = (open(Path::new(path)), node.parse().unwrap());
    let locked = Descriptor(file.as_raw_fd());
    loop {
        let told = actors::hear();
        let words: Vec<&str> = told.split(' ').collect();
        let answer = match words[..] {
            ["set", command, kind, start, length] => {
                let [command, kind] = [command, kind].map(|it| it.parse::<i32>().unwrap());
                let [start, length] = [start, length].map(|it| it.parse::<i64>().unwrap());
                let answer = locked.set(command, kind, start, length);
                // Whoever gets the lock looks at once.
                let mut marks = [0; MARKS];
                file.read_exact_at(&mut marks, 0).unwrap();
                format!("{answer} {marks:?}")
            }
            ["mark", mark] => {
                let mark: u8 = mark.parse().unwrap();
                file.write_all_at(&[mark], node).unwrap();
                "marked".to_owned()
            }
            ["look"] => format!("{:?}", all_held(locked)),
            _ => return,
        };
        actors::say(&answer);
    }
}

/// All locks of others.
fn all_held(file: Descriptor) -> Vec<Held> {
    let (mut all, mut from) = (Vec::new(), 0);
    while let Some((kind, start, length, _)) = file.in_the_way(F_WRLCK, from, 0) {
        all.push((kind, start, length));
        if length == 0 {
            break;
        }
        from = start + length;
    }
    all
}

/// Such a program, on a node.
struct Program(Actor);

impl Program {
    fn start(lab: &Lab, node: u32) -> Self {
        let path = lab.path(node, NAME).display().to_string();
        Self(Actor::start(lab, node, LOCKS, &[path, node.to_string()]))
    }

    #[track_caller]
    fn ask(&mut self, words: &str) -> String {
        self.0.tell(words);
        self.0.hear()
    }

    /// Locks or unlocks without waiting; 0, or the errno.
    #[track_caller]
    fn set(&mut self, kind: i32, start: i64, length: i64) -> i32 {
        self.begin(F_SETLK, kind, start, length);
        self.answer().0
    }

    #[track_caller]
    fn begin(&mut self, command: i32, kind: i32, start: i64, length: i64) {
        let words = format!("set {command} {kind} {start} {length}");
        self.0.tell(&words);
    }

    /// What the call that has begun returned, and the marks that it has seen then.
    #[track_caller]
    fn answer(&mut self) -> (i32, String) {
        let said = self.0.hear();
        let (answer, marks) = said.split_once(' ').expect("two things are said");
        (answer.parse().unwrap(), marks.to_owned())
    }

    #[track_caller]
    fn must_see(&mut self, held: &[Held]) {
        assert_eq!(self.ask("look"), format!("{held:?}"));
    }
}

/// Whether a program on a node waits for a lock.
fn waits(lab: &Lab, node: u32) -> Result<(), String> {
    let waiters = lab.ask(node, &["waiters"]);
    let mut lines = waiters.as_array().into_iter().flatten();
    lines
        .any(|line| line["cause"] == "a file lock")
        .then_some(())
        .ok_or_else(|| waiters.to_string())
}

/// All programs read the same range at once; one of them wants to write a part and more, and gets that when the last of the
/// others is gone.
fn readers_share_and_a_writer_waits_for_all(lab: &Lab, programs: &mut [Program], mark: u8) {
    for program in programs.iter_mut() {
        assert_eq!(program.set(F_RDLCK, 0, 100), 0);
    }
    let (writer, readers) = programs.split_last_mut().expect("there are some");
    assert_eq!(writer.set(F_WRLCK, 50, 100), EAGAIN);
    writer.begin(F_SETLKW, F_WRLCK, 50, 100);
    lab.until("the writer waits", || waits(lab, NODES));
    let mut marks = [0; MARKS];
    for (node, reader) in (1_usize..).zip(readers.iter_mut()) {
        assert_eq!(reader.ask(&format!("mark {mark}")), "marked");
        assert_eq!(reader.set(F_UNLCK, 0, 100), 0);
        marks[node] = mark;
    }
    assert_eq!(writer.answer(), (0, format!("{marks:?}")));
    // It has what it has read before still, as a reader.
    for reader in readers.iter_mut() {
        assert_eq!(reader.set(F_RDLCK, 149, 1), EAGAIN);
        assert_eq!(reader.set(F_WRLCK, 49, 1), EAGAIN);
        assert_eq!(reader.set(F_RDLCK, 0, 50), 0);
    }
}

/// What is locked anew, or unlocked, splits what a program has: each part is another one's to get, or not.
fn what_overlaps_splits(programs: &mut [Program]) {
    let [first, second, third, fourth] = programs else {
        panic!("there are four");
    };
    assert_eq!(first.set(F_WRLCK, 0, 100), 0);
    assert_eq!(first.set(F_RDLCK, 40, 20), 0);
    fourth.must_see(&[(F_WRLCK, 0, 40), (F_RDLCK, 40, 20), (F_WRLCK, 60, 40)]);
    assert_eq!(second.set(F_RDLCK, 39, 2), EAGAIN);
    assert_eq!(second.set(F_RDLCK, 40, 20), 0);
    assert_eq!(third.set(F_WRLCK, 40, 20), EAGAIN);
    assert_eq!(first.set(F_UNLCK, 20, 60), 0);
    assert_eq!(third.set(F_WRLCK, 20, 21), EAGAIN);
    assert_eq!(third.set(F_WRLCK, 20, 20), 0);
    fourth.must_see(&[
        (F_WRLCK, 0, 20),
        (F_WRLCK, 20, 20),
        (F_RDLCK, 40, 20),
        (F_WRLCK, 80, 20),
    ]);
}

/// A program on each node locks ranges of one file.
pub(super) fn ranges_are_shared_waited_for_and_split(lab: &Lab) {
    open(&lab.path(1, NAME)).set_len(MARKS as u64).unwrap();
    let programs = (1..=NODES).map(|node| Program::start(lab, node));
    let mut programs: Vec<_> = programs.collect();
    for round in 1..=by_suite(1, 20) {
        readers_share_and_a_writer_waits_for_all(lab, &mut programs, round);
        unlock_all(&mut programs);
        what_overlaps_splits(&mut programs);
        unlock_all(&mut programs);
    }
    programs.into_iter().for_each(|program| program.0.end());
}

#[track_caller]
fn unlock_all(programs: &mut [Program]) {
    for program in programs {
        assert_eq!(program.set(F_UNLCK, 0, 0), 0);
    }
}
