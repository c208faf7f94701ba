//! Locks between programs on several nodes: what they count under each kind of lock comes out exact, whichever way to
//! the bytes they take, and who would wait for each other is told.

use super::{Lab, NODES, actors};
use crate::{
    fixture::open,
    locks::processes::{Descriptor, WAYS, Way},
    mapping::Mapping,
};
use libc::{EDEADLK, F_SETLK, F_SETLKW, F_UNLCK, F_WRLCK};
use sim::by_suite;
use std::{
    fs::{self, File, OpenOptions},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::Path,
    time::{Duration, Instant},
};

const COUNTS: &str = "lab::programs::locking::what_a_counting_program_does";
/// A program that locks a byte of a file and waits for another one's, as it is told.
pub(crate) const WAITS: &str = "lab::programs::locking::what_a_waiting_program_does";
/// Bytes of a counter's file, which O_DIRECT reads and writes together.
const PAGE: usize = 4096;
/// Each program counts at least as far, however long that takes.
const LEAST: u64 = 3;

/// How a program reads and writes a counter.
#[derive(Clone, Copy, Debug)]
enum Through {
    Calls,
    Direct,
    Mapping,
    /// One after the other.
    All,
}

const THROUGH: [Through; 4] = [
    Through::Calls,
    Through::Direct,
    Through::Mapping,
    Through::All,
];

/// The file of a counter.
fn name(way: Way, through: Through) -> String {
    format!("{way:?}{through:?}")
}

/// Memory for O_DIRECT.
#[repr(align(4096))]
struct Page([u8; PAGE]);

/// A counter as a program has it open.
struct Counter {
    file: File,
    direct: File,
    mapping: Mapping,
}

impl Counter {
    fn open(path: &Path) -> Self {
        let file = open(path);
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        Self {
            direct: options.open(path).unwrap(),
            mapping: Mapping::new(&file, libc::MAP_SHARED),
            file,
        }
    }

    /// Counts by one; `turn` says which way is next, if it takes all.
    fn add(&self, through: Through, turn: u64) {
        match through {
            Through::Calls => {
                let mut count = [0; 8];
                self.file.read_exact_at(&mut count, 0).unwrap();
                let count = u64::from_ne_bytes(count) + 1;
                self.file.write_all_at(&count.to_ne_bytes(), 0).unwrap();
            }
            Through::Direct => {
                let mut page = Box::new(Page([0; PAGE]));
                self.direct.read_exact_at(&mut page.0, 0).unwrap();
                let count = count_in(&page.0) + 1;
                page.0[..8].copy_from_slice(&count.to_ne_bytes());
                self.direct.write_all_at(&page.0, 0).unwrap();
            }
            Through::Mapping => self.mapping.store(0, self.mapping.load(0) + 1),
            Through::All => self.add(THROUGH[turn as usize % 3], turn),
        }
    }
}

fn count_in(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes[..8].try_into().unwrap())
}

/// Counts under a lock for this time; returns how far.
fn count(path: &Path, way: Way, through: Through, time: Duration) -> u64 {
    let counter = Counter::open(path);
    let locked = Descriptor(counter.file.as_raw_fd());
    let begun = Instant::now();
    let mut counted = 0;
    while counted < LEAST || begun.elapsed() < time {
        assert_eq!(way.wait(locked), 0, "{way:?}");
        counter.add(through, counted);
        assert_eq!(way.unlock(locked), 0, "{way:?}");
        counted += 1;
    }
    counted
}

/// Does nothing but in a process that the tests here start.
#[test]
fn what_a_counting_program_does() {
    let Some(words) = actors::work() else { return };
    let [directory, way, milliseconds] = &words[..] else {
        panic!("{words:?}");
    };
    let way = WAYS[way.parse::<usize>().unwrap()];
    let time = Duration::from_millis(milliseconds.parse().unwrap());
    actors::ready_and_go();
    for through in THROUGH {
        let path = Path::new(directory).join(name(way, through));
        let counted = count(&path, way, through, time);
        actors::say(&counted.to_string());
    }
}

/// A program on each node counts under each kind of lock, in each way to the bytes.
pub(super) fn counters_come_out_exact(lab: &Lab) {
    let nodes: Vec<u32> = (1..=NODES).collect();
    let time = by_suite(Duration::from_secs(1), Duration::from_secs(30));
    count_together(lab, &nodes, "counters", time, || {});
}

/// A program on each of these nodes counts under each kind of lock, in each way to the bytes for this time, in a new
/// directory; nothing may be counted twice, or lost. `meanwhile` is called when each has counted in one way; it may take the
/// nodes on which there is no program.
pub(crate) fn count_together(
    lab: &Lab,
    nodes: &[u32],
    directory: &str,
    time: Duration,
    meanwhile: impl FnOnce(),
) {
    let at = |node: u32| lab.path(node, directory);
    fs::create_dir(at(nodes[0])).unwrap();
    for way in WAYS {
        for through in THROUGH {
            let file = open(&at(nodes[0]).join(name(way, through)));
            file.set_len(PAGE as u64).unwrap();
        }
    }
    let time = time.as_millis().to_string();
    let programs = (0..WAYS.len()).flat_map(|way| {
        let (at, time) = (&at, &time);
        nodes.iter().map(move |node| {
            let directory = at(*node).display().to_string();
            (*node, vec![directory, way.to_string(), time.clone()])
        })
    });
    let mut programs = actors::start_all(lab, COUNTS, programs);
    let mut sums = [[0_u64; THROUGH.len()]; WAYS.len()];
    let mut hear = |programs: &mut [actors::Actor], through: usize| {
        for (number, program) in programs.iter_mut().enumerate() {
            let counted: u64 = program.hear().parse().unwrap();
            sums[number / nodes.len()][through] += counted;
        }
    };
    hear(&mut programs, 0);
    meanwhile();
    for through in 1..THROUGH.len() {
        hear(&mut programs, through);
    }
    programs.into_iter().for_each(actors::Actor::end);
    for (way, sums) in WAYS.into_iter().zip(sums) {
        for (through, sum) in THROUGH.into_iter().zip(sums) {
            for node in nodes {
                let bytes = fs::read(at(*node).join(name(way, through))).unwrap();
                assert_eq!(count_in(&bytes), sum, "{way:?} {through:?}, on n{node}");
            }
        }
    }
}

/// Does nothing but in a process that the tests here start: locks a byte of its own when it is told to, then waits for
/// another one's, in the same file or in another one, and says what it was answered.
#[test]
fn what_a_waiting_program_does() {
    let Some(words) = actors::work() else { return };
    let (path, own, others, there) = match &words[..] {
        [path, own, others] => (path, own, others, path),
        [path, own, others, there] => (path, own, others, there),
        _ => panic!("{words:?}"),
    };
    let files = [path, there].map(|path| open(Path::new(path)));
    let [here, there] = [0, 1].map(|at: usize| Descriptor(files[at].as_raw_fd()));
    let lock = |file: Descriptor, command, byte: &str| {
        file.set(command, F_WRLCK, byte.parse().unwrap(), 1)
    };
    loop {
        match actors::hear().as_str() {
            "hold" => {
                assert_eq!(lock(here, F_SETLK, own), 0);
                actors::say("held");
            }
            "wait" => {
                let answer = lock(there, F_SETLKW, others);
                // Whoever waits for this one gets its lock, whatever the answer is.
                for file in [here, there] {
                    assert_eq!(file.set(F_SETLK, F_UNLCK, 0, 0), 0);
                }
                actors::say(&answer.to_string());
            }
            _ => return,
        }
    }
}

/// Programs on nodes each hold a lock and wait for the next one's, all in one file or each in a file of its own: one of them
/// is refused, and the others get theirs.
pub(super) fn who_would_wait_in_a_circle_is_told(lab: &Lab) {
    let circles = [&[1, 2][..], &[2, 4, 3], &[4, 3, 2, 1]];
    let circles = circles.map(|nodes| [(nodes, false), (nodes, true)]);
    for (number, (nodes, has_own)) in circles.into_iter().flatten().enumerate() {
        let name = |own: usize| match has_own {
            true => format!("circle{number}-{own}"),
            false => format!("circle{number}"),
        };
        for own in 0..nodes.len() {
            drop(open(&lab.path(1, &name(own))));
        }
        let programs = nodes.iter().enumerate().map(|(own, node)| {
            let path = |own: usize| lab.path(*node, &name(own)).display().to_string();
            let next = (own + 1) % nodes.len();
            let words = vec![path(own), own.to_string(), next.to_string(), path(next)];
            actors::Actor::start(lab, *node, WAITS, &words)
        });
        let mut programs: Vec<_> = programs.collect();
        for round in 0..by_suite(3, 100) {
            for program in &mut programs {
                program.tell("hold");
                assert_eq!(program.hear(), "held");
            }
            programs.iter_mut().for_each(|program| program.tell("wait"));
            let answers = programs.iter_mut().map(actors::Actor::hear);
            let mut answers: Vec<i32> = answers.map(|it| it.parse().unwrap()).collect();
            answers.sort_unstable();
            let mut expected = vec![0; nodes.len() - 1];
            expected.push(EDEADLK);
            assert_eq!(
                answers, expected,
                "on {nodes:?}, own files: {has_own}, round {round}"
            );
        }
        programs.into_iter().for_each(actors::Actor::end);
    }
}
