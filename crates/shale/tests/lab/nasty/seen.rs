//! What programs have seen of others stays so: the owner dies, and with it a program on its node whose changes it had in
//! memory only.

use super::{
    Lab, Told,
    actors::{self, Actor},
    faults::{Fault, others, under_load, until_given_up, until_whole},
    fresh,
    load::{Load, within},
    roles::{Role, Roles},
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    path::Path,
    sync::atomic::Ordering,
};

const WRITES: &str = "lab::nasty::seen::what_a_program_that_syncs_nothing_does";
const LOOKS: &str = "lab::nasty::seen::what_a_program_that_looks_at_others_does";
/// Bytes by which a file grows at once.
const BLOCK: usize = 4096;
/// Most names that a program makes.
const NAMES_MAX: u64 = 50_000;
/// The owner dies when so many names of each program were seen.
const ENOUGH: u64 = 30;
/// What the one who looks says then.
const IS_ENOUGH: &str = "enough";
/// What the programs are called that make names: the first one's node dies.
const OWN: [&str; 2] = ["dies", "lives"];

/// What was seen of one program's names and of its file that grows.
#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize)]
struct Seen {
    names: u64,
    bytes: u64,
}

fn name(own: &str, number: u64) -> String {
    format!("{own}-{number}")
}

fn growing(own: &str) -> String {
    format!("{own}.grows")
}

/// Makes a name and lets a file grow, again and again.
fn write(directory: &Path, own: &str, is_over: impl Fn() -> bool) -> io::Result<()> {
    let mut grows = File::create_new(directory.join(growing(own)))?;
    for number in 0..NAMES_MAX {
        if is_over() {
            break;
        }
        File::create_new(directory.join(name(own, number)))?;
        grows.write_all(&[7; BLOCK])?;
    }
    Ok(())
}

/// Does nothing but in a process that the story starts: changes things, and never asks whether they are durable.
#[test]
fn what_a_program_that_syncs_nothing_does() {
    let Some(words) = actors::work() else { return };
    let [directory, own] = &words[..] else {
        panic!("{words:?}");
    };
    actors::ready_and_go();
    let is_over = actors::is_over();
    let done = write(Path::new(directory), own, || {
        is_over.load(Ordering::Relaxed)
    });
    // One whose node dies ends with an error, the other one never sees one.
    assert!(done.is_ok() || own == OWN[0], "{done:?}");
}

/// Whether a name is there.
fn is_there(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

fn bytes_of(path: &Path) -> u64 {
    match fs::metadata(path) {
        Ok(found) => found.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => 0,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Does nothing but in a process that the story starts: looks for the next names of others and at the sizes of their
/// files until it is told to say what it has seen.
#[test]
fn what_a_program_that_looks_at_others_does() {
    let Some(words) = actors::work() else { return };
    let (directory, all) = words.split_first().expect("a directory, then names");
    let directory = Path::new(directory);
    let mut seen = vec![Seen::default(); all.len()];
    actors::ready_and_go();
    let is_over = actors::is_over();
    let mut is_told = false;
    while !is_over.load(Ordering::Relaxed) {
        for (own, seen) in all.iter().zip(&mut seen) {
            if is_there(&directory.join(name(own, seen.names))) {
                seen.names += 1;
            }
            let bytes = bytes_of(&directory.join(growing(own)));
            assert!(bytes >= seen.bytes, "{own} had {seen:?}, now {bytes}");
            seen.bytes = bytes;
        }
        if !is_told && seen.iter().all(|it| it.names >= ENOUGH) {
            is_told = true;
            actors::say(IS_ENOUGH);
        }
    }
    actors::say(&serde_json::to_string(&seen).unwrap());
}

/// What isn't as it was seen.
fn missing(directory: &Path, own: &str, seen: Seen) -> Option<String> {
    let gone = (0..seen.names).find(|number| !is_there(&directory.join(name(own, *number))));
    let bytes = bytes_of(&directory.join(growing(own)));
    match gone {
        Some(number) => Some(format!("{} of {seen:?} is gone", name(own, number))),
        None if bytes < seen.bytes => Some(format!("{own}: {seen:?}, now {bytes} bytes")),
        None => None,
    }
}

/// A program on the owner's node and one on another node change what a third one looks at; the owner dies.
pub(super) fn what_was_seen_stays_though_owner_and_writer_die(lab: &Lab) -> Told {
    let roles = Roles::of(lab);
    let owner = roles.one_with(Role::Owner);
    let left = others(&lab.nodes(), &[owner]);
    let (writer, reader) = (left[0], left[1]);
    let directory = fresh();
    let at = |node: u32| lab.path(node, &directory).display().to_string();
    fs::create_dir(at(reader)).unwrap();
    let words = |node: u32, own: &[&str]| {
        let own = own.iter().map(|own| (*own).to_owned());
        std::iter::once(at(node)).chain(own).collect::<Vec<_>>()
    };
    let mut seen: Vec<Seen> = Vec::new();
    let strike = |load: &mut Load| {
        let all = [
            (reader, LOOKS, words(reader, &OWN)),
            (owner, WRITES, words(owner, &OWN[..1])),
            (writer, WRITES, words(writer, &OWN[1..])),
        ];
        let mut all = all.map(|(node, test, words)| Actor::start(lab, node, test, &words));
        for program in &mut all {
            assert_eq!(program.hear(), "ready");
        }
        for program in &mut all {
            program.tell("go");
        }
        assert_eq!(all[0].hear(), IS_ENOUGH);
        load.mark();
        Fault::Kill.strike(lab, &[owner]);
        until_given_up(lab, &[owner]);
        // An empty line says that it is over.
        all[0].tell("");
        seen = serde_json::from_str(&all[0].hear()).unwrap();
        all.into_iter().for_each(Actor::end);
    };
    let mend = || {
        Fault::Kill.mend(lab, &[owner]);
        until_whole(lab);
    };
    let pauses = under_load(lab, &[owner], strike, mend);
    for node in lab.nodes() {
        let directory = lab.path(node, &directory);
        let seen = seen.clone();
        let missing = within("looking for what was seen", move || {
            let pairs = OWN.into_iter().zip(seen);
            let missing = pairs.map(|(own, seen)| missing(&directory, own, seen));
            missing.flatten().collect::<Vec<_>>()
        });
        assert!(missing.is_empty(), "on n{node}: {missing:?}");
    }
    Told::of(pauses)
        .within(Fault::Kill.aim())
        .with(format!("{seen:?}"))
}
