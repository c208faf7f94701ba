//! Random operations from several mounts on the same names and files: one order of all of them explains what each
//! program saw. All nodes of a lab have one clock, which says what was over before something else began.

mod bytes;
mod cells;
mod clock;
mod history;
mod names;
mod naming;

use super::{actors, fixture::Lab};
use crate::fixture::figure;
use names::Reply;
use naming::Names;
use serde::{Deserialize, Serialize};
use sim::{action::Draw, by_suite, witness};
use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

/// What the programs run.
const PROGRAM: &str = "lab::histories::what_a_program_does";
/// Most steps of a program in a round: a search takes longer than they do together.
const STEPS_MAX: usize = 3_000;
/// What a program says when it has done half of its work.
const HALF: &str = "half";

/// What a program did and saw.
#[derive(Serialize, Deserialize)]
struct Seen {
    names: Vec<names::Did>,
    bytes: Vec<bytes::Did>,
}

/// What a program is told.
#[derive(Serialize, Deserialize)]
struct Work {
    /// Where the names and files are, in its mount.
    directory: PathBuf,
    actor: usize,
    actors: usize,
    seed: u64,
    time: Duration,
    /// Where it writes down what it saw.
    seen: PathBuf,
}

/// Does nothing but in a process that the other test starts.
#[test]
fn what_a_program_does() {
    let Some(words) = actors::work() else { return };
    let work: Work = serde_json::from_str(&words[0]).unwrap();
    let mut files = bytes::Files::open(&work.directory, work.actor, work.actors);
    let names = Names {
        directory: work.directory,
        actor: work.actor,
        actors: work.actors,
    };
    let mut chance = Draw::new(work.seed);
    let mut seen = Seen {
        names: Vec::new(),
        bytes: Vec::new(),
    };
    actors::ready_and_go();
    let begun = Instant::now();
    let mut is_told = false;
    for step in 0..STEPS_MAX {
        let passed = begun.elapsed();
        if !is_told && (2 * passed >= work.time || 2 * step >= STEPS_MAX) {
            is_told = true;
            actors::say(HALF);
        }
        if passed >= work.time {
            break;
        }
        match chance.below(2) {
            0 => seen.names.extend(names.step(&mut chance)),
            _ => seen.bytes.push(files.step(&mut chance)),
        }
    }
    fs::write(work.seen, serde_json::to_vec(&seen).unwrap()).unwrap();
    actors::say("done");
}

/// How much programs had to do with each other.
#[derive(Default, Debug)]
pub(super) struct Met {
    operations: usize,
    /// Names that led to what another program had made.
    names: usize,
    /// Numbers in files that another program had written.
    numbers: usize,
}

impl Met {
    /// Whether so many programs met often enough to show something.
    pub(super) fn is_of_use(&self, programs: usize) -> bool {
        self.operations > 50 * programs && self.names > 10 && self.numbers > 10
    }

    fn of(seen: &[Seen]) -> Self {
        let mut makers = BTreeMap::new();
        for (actor, seen) in seen.iter().enumerate() {
            for did in &seen.names {
                if let (names::Ask::Create(_), Reply::Leads(inode)) = (did.ask, did.reply) {
                    makers.insert(inode, actor);
                }
            }
        }
        let mut met = Self::default();
        for (actor, seen) in seen.iter().enumerate() {
            met.operations += seen.names.len() + seen.bytes.len();
            for did in &seen.names {
                if let Reply::Leads(inode) = did.reply {
                    met.names += usize::from(makers.get(&inode).is_some_and(|it| *it != actor));
                }
            }
            for did in &seen.bytes {
                if let bytes::Saw::Cells(cells) = &did.saw {
                    let makers = cells.iter().filter_map(|value| cells::actor_of(*value));
                    met.numbers += makers.filter(|maker| *maker != actor).count();
                }
            }
        }
        met
    }
}

/// Lets a program on each of these nodes work for a time, in a new directory, and searches an order. `meanwhile` is called
/// when each has done half of its work; it may take the nodes on which there is no program.
pub(super) fn play(
    lab: &Lab,
    nodes: &[u32],
    name: &str,
    seed: u64,
    time: Duration,
    meanwhile: impl FnOnce(),
) -> Met {
    let mounts = nodes.len();
    let at = |actor: usize| lab.path(nodes[actor], name);
    fs::create_dir(at(0)).unwrap();
    naming::prepare(&at(0));
    let inodes = bytes::prepare(&at(0));
    let home = tempfile::tempdir().unwrap();
    let log = |actor: usize| home.path().join(actor.to_string());
    let programs = (0..mounts).map(|actor| {
        let work = Work {
            directory: at(actor),
            actor,
            actors: mounts,
            seed: seed + actor as u64,
            time,
            seen: log(actor),
        };
        let words = vec![serde_json::to_string(&work).unwrap()];
        (nodes[actor], words)
    });
    let mut programs = actors::start_all(lab, PROGRAM, programs);
    for program in &mut programs {
        assert_eq!(program.hear(), HALF);
    }
    meanwhile();
    for program in &mut programs {
        assert_eq!(program.hear(), "done");
    }
    programs.into_iter().for_each(actors::Actor::end);
    let read = |actor| serde_json::from_slice(&fs::read(log(actor)).unwrap()).unwrap();
    let seen: Vec<Seen> = (0..mounts).map(read).collect();
    let met = Met::of(&seen);

    // Afterwards all mounts show the same.
    let all_names = |actor| {
        let names = Names {
            directory: at(actor),
            actor,
            actors: mounts,
        };
        names.look_at_all()
    };
    let shown: Vec<_> = (0..mounts).flat_map(all_names).collect();
    let names = seen.iter().flat_map(|seen| &seen.names).chain(&shown);
    if let Err(why) = names::explain(names.copied()) {
        panic!("names in {name}: {why}");
    }
    let shown: Vec<_> = (0..mounts)
        .map(|actor| bytes::look_at_all(&at(actor)))
        .collect();
    let done: Vec<_> = seen.into_iter().map(|seen| seen.bytes).collect();
    let history = history::history(&inodes, &done, &shown);
    if let Err(why) = witness::explain(&history) {
        panic!("files in {name}: {why}");
    }
    met
}

#[test]
fn what_programs_see_from_two_and_from_five_mounts_has_one_order() {
    let Some(lab) = Lab::up(5, "erasure(2+1)") else {
        return;
    };
    let (rounds, time) = by_suite((1, Duration::from_secs(4)), (40, Duration::from_secs(8)));
    for mounts in [2, 5] {
        let nodes: Vec<u32> = (1..=mounts).collect();
        let all = (0..rounds).map(|round| {
            let (name, seed) = (format!("round{round}of{mounts}"), 1_000 * round);
            let seed = seed + 10 * u64::from(mounts);
            play(&lab, &nodes, &name, seed, time, || {})
        });
        let met = all.fold(Met::default(), |sum, met| Met {
            operations: sum.operations + met.operations,
            names: sum.names + met.names,
            numbers: sum.numbers + met.numbers,
        });
        figure(&format!(
            "what programs saw from {mounts} mounts has one order: {met:?}"
        ));
        assert!(met.is_of_use(nodes.len()), "from {mounts} mounts: {met:?}");
    }
}
