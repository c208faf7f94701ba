//! A node is cut off and expelled that has what nobody synced: written bytes, stores into a mapping, locks. Others get its
//! locks and write the same files; nothing of it may come after that.

use super::{
    Lab, Told,
    actors::{self, Actor},
    faults::{Daemons, Fault, others, under_load, until_given_up, until_whole},
    fresh,
    load::{Load, within},
    programs::locking::WAITS,
    roles::{Role, Roles},
};
use crate::{
    fixture::{open, pattern},
    mapping::{BYTES, Mapping},
};
use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::Instant,
};

pub(super) const HAS: &str = "lab::nasty::expelled::what_a_program_on_a_node_that_is_expelled_does";
/// The files: one is written, one is mapped, one has a lock.
pub(super) const WRITTEN: &str = "written";
pub(super) const MAPPED: &str = "mapped";
const LOCKED: &str = "locked";
/// Whose bytes they have: those that were synced, the expelled node's, others'.
pub(super) const SYNCED: u64 = 1;
const LOST: u64 = 2;
pub(super) const THEIRS: u64 = 3;
const PAGE: usize = 4096;
/// What a program answers: the number of an error, or its text if it has none.
fn outcome(result: io::Result<()>) -> String {
    match result.map_err(|error| (error.raw_os_error(), error)) {
        Ok(()) => "done".to_owned(),
        Err((Some(number), _)) => number.to_string(),
        Err((None, error)) => error.to_string(),
    }
}

/// Whether a program was answered what those on an expelled node are told whose daemon runs (`docs/operations/cluster.md`).
pub(super) fn is_refused(answer: &str) -> bool {
    answer == libc::EIO.to_string()
}

/// Does nothing but in a process that the story starts: has files open, and does what it is told.
#[test]
fn what_a_program_on_a_node_that_is_expelled_does() {
    let Some(words) = actors::work() else { return };
    let directory = Path::new(&words[0]);
    let written = open(&directory.join(WRITTEN));
    let mapped = open(&directory.join(MAPPED));
    let mapping = Mapping::new(&mapped, libc::MAP_SHARED);
    let write = || written.write_all_at(&pattern(LOST, BYTES), 0);
    loop {
        let answer = match actors::hear().as_str() {
            "change" => {
                (0..BYTES)
                    .step_by(PAGE)
                    .for_each(|at| mapping.store(at, LOST));
                outcome(write())
            }
            "write" => outcome(write()),
            "sync" => outcome(written.sync_all()),
            "sync the mapping" => outcome(mapping.try_sync()),
            "load" => outcome(mapping.try_read(0).map(drop)),
            "look" => {
                let is_theirs = |name| is_of(&directory.join(name), THEIRS);
                format!("{:?}", [WRITTEN, MAPPED].map(is_theirs))
            }
            _ => return,
        };
        actors::say(&answer);
    }
}

#[track_caller]
pub(super) fn asked(program: &mut Actor, what: &str) -> String {
    program.tell(what);
    program.hear()
}

pub(super) fn is_of(path: &Path, whose: u64) -> bool {
    fs::read(path).unwrap() == pattern(whose, BYTES)
}

/// Writes and syncs bytes over those that a file has.
pub(super) fn write_over(path: &Path, whose: u64) {
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap();
    file.write_all(&pattern(whose, BYTES)).unwrap();
    file.sync_all().unwrap();
}

/// What others find is what was synced, or what the node had brought out before it was cut off, page by page.
fn must_be_one_or_the_other(path: &Path) {
    let found = fs::read(path).unwrap();
    let (synced, lost) = (pattern(SYNCED, BYTES), pattern(LOST, BYTES));
    assert_eq!(found.len(), BYTES, "{}", path.display());
    for at in (0..BYTES).step_by(PAGE) {
        let page = at..at + PAGE;
        let is_known =
            found[page.clone()] == synced[page.clone()] || found[page.clone()] == lost[page];
        assert!(is_known, "{}, bytes from {at}", path.display());
    }
}

/// Another node looks at what it finds, and writes over both files.
pub(super) fn take_over(paths: [PathBuf; 2]) {
    within("others take the files", move || {
        must_be_one_or_the_other(&paths[0]);
        for path in paths {
            write_over(&path, THEIRS);
        }
    });
}

/// Its programs are told that what they had is lost, and everybody else has what came after it.
pub(super) fn what_an_expelled_node_had_not_synced_comes_over_nothing(lab: &Lab) -> Told {
    let victim = Roles::of(lab).one_with(Role::Client);
    let left = others(&lab.nodes(), &[victim]);
    let directory = fresh();
    let at = |node: u32, name: &str| lab.path(node, &directory).join(name);
    let path = |node: u32, name: &str| at(node, name).display().to_string();
    fs::create_dir(at(left[0], "")).unwrap();
    for name in [WRITTEN, MAPPED] {
        write_over(&at(left[0], name), SYNCED);
    }
    drop(open(&at(left[0], LOCKED)));

    let mut has = Actor::start(lab, victim, HAS, &[path(victim, "")]);
    // Each locks the byte with its own number, and asks for the other one's.
    let lock = |node: u32, own: u32| {
        let words = [path(node, LOCKED), own.to_string(), (1 - own).to_string()];
        Actor::start(lab, node, WAITS, &words)
    };
    let (mut holds, mut waits) = (lock(victim, 0), lock(left[0], 1));
    assert_eq!(asked(&mut holds, "hold"), "held");
    let daemon = Daemons::of(lab, &[victim]);
    let mut times = Vec::new();
    let strike = |load: &mut Load| {
        assert_eq!(asked(&mut has, "change"), "done");
        load.mark();
        let begun = Instant::now();
        Fault::Partition.strike(lab, &[victim]);
        // Once more: what it had written may have become durable before it was cut off. It may be too late for this.
        has.tell("write");
        has.tell("sync");
        assert_eq!(asked(&mut waits, "wait"), "0");
        times.push(("lock of the expelled node", begun.elapsed()));
        take_over([WRITTEN, MAPPED].map(|name| at(left[1], name)));
        times.push(("its files", begun.elapsed()));
        until_given_up(lab, &[victim]);
    };
    let mend = || {
        Fault::Partition.mend(lab, &[victim]);
        until_whole(lab);
        daemon.must_live(lab);
    };
    let mut pauses = under_load(lab, &[victim], strike, mend);
    for (what, time) in times {
        pauses.note(what, time);
    }
    let _written_or_refused = has.hear();
    let synced = has.hear();
    assert!(is_refused(&synced), "its fsync: {synced}");
    for what in ["write", "sync", "sync the mapping"] {
        let answer = asked(&mut has, what);
        assert!(is_refused(&answer), "{what}: {answer}");
    }
    let loaded = asked(&mut has, "load");
    assert_eq!(loaded, libc::EFAULT.to_string(), "what it has mapped");
    assert_eq!(asked(&mut has, "look"), "[true, true]", "opened again");
    for program in [has, holds, waits] {
        program.end();
    }
    for node in lab.nodes() {
        for name in [WRITTEN, MAPPED] {
            assert!(is_of(&at(node, name), THEIRS), "{name} on n{node}");
        }
    }
    let events = lab.ask(victim, &["events"]);
    let mut events = events.as_array().into_iter().flatten();
    assert!(
        events.any(|it| it["event"] == "node-expelled"),
        "its people are told"
    );
    Told::of(pauses).within(Fault::Partition.aim())
}
