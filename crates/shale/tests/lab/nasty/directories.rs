//! Two nodes move two directories into each other at the same time, also while the owner dies: one of them is moved.

use super::{
    Lab, Told,
    actors::{self, Actor},
    faults::{Fault, others, under_load, until_given_up, until_whole},
    fresh,
    load::{Load, within},
    roles::{Role, Roles},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

const MOVES: &str = "lab::nasty::directories::what_a_program_that_moves_a_directory_does";
/// The directories.
const NAMES: [&str; 2] = ["a", "b"];
/// How often they are moved before the owner dies, and from then on.
const BEFORE: usize = 10;
const AFTER: usize = 30;
/// How often a program tries again whose name was moved while it was looked up.
const STALE_MAX: usize = 100;
/// What a program answers.
const MOVED: &str = "moved";
const REFUSED: &str = "refused";

/// Moves one into the other; false if that one isn't there any more, or is inside the first.
fn attempt(from: &Path, to: &Path) -> io::Result<bool> {
    for _ in 0..STALE_MAX {
        let moved = fs::rename(from, to);
        let Err(error) = moved else { return Ok(true) };
        match error.raw_os_error() {
            Some(libc::ESTALE) => {}
            Some(libc::ENOENT | libc::EINVAL) => return Ok(false),
            _ => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ESTALE))
}

/// Does nothing but in a process that the story starts: moves a directory into another one and back, as it is told.
#[test]
fn what_a_program_that_moves_a_directory_does() {
    let Some(words) = actors::work() else { return };
    let [place, own, other] = &words[..] else {
        panic!("{words:?}");
    };
    let (outside, inside) = (
        Path::new(place).join(own),
        Path::new(place).join(other).join(own),
    );
    actors::ready_and_go();
    loop {
        let answer = match actors::hear().as_str() {
            "move" => match attempt(&outside, &inside).unwrap() {
                true => MOVED,
                false => REFUSED,
            },
            "move back" => {
                fs::rename(&inside, &outside).unwrap();
                MOVED
            }
            _ => return,
        };
        actors::say(answer);
    }
}

/// Which paths are there: each directory outside, each inside the other.
fn shown(place: PathBuf) -> [bool; 4] {
    within("looking for the directories", move || {
        let [a, b] = NAMES;
        let paths = [
            a.to_owned(),
            b.to_owned(),
            format!("{b}/{a}"),
            format!("{a}/{b}"),
        ];
        paths.map(|path| place.join(path).try_exists().unwrap())
    })
}

/// Both move at the same time; one of them has moved then, as a third node shows too. It is moved back.
#[track_caller]
fn move_both(programs: &mut [Actor], looks: &Path) {
    for program in programs.iter_mut() {
        program.tell("move");
    }
    let answers: Vec<String> = programs.iter_mut().map(Actor::hear).collect();
    let found = shown(looks.to_owned());
    let expected = match [&answers[0][..], &answers[1][..]] {
        [MOVED, REFUSED] => [false, true, true, false],
        [REFUSED, MOVED] => [true, false, false, true],
        _ => panic!("one of them is moved, not {answers:?}; there is {found:?}"),
    };
    assert_eq!(found, expected, "{answers:?}");
    let moved = usize::from(answers[1] == MOVED);
    programs[moved].tell("move back");
    assert_eq!(programs[moved].hear(), MOVED);
    assert_eq!(shown(looks.to_owned()), [true, true, false, false]);
}

/// A move that were checked before the other one and done after it would leave a loop that nobody can reach.
pub(super) fn directories_that_move_into_each_other_make_no_loop_though_the_owner_dies(
    lab: &Lab,
) -> Told {
    let owner = Roles::of(lab).one_with(Role::Owner);
    let left = others(&lab.nodes(), &[owner]);
    let directory = fresh();
    let at = |node: u32| lab.path(node, &directory);
    let looks = at(left[2]);
    fs::create_dir(&looks).unwrap();
    for name in NAMES {
        fs::create_dir(looks.join(name)).unwrap();
    }
    let [a, b] = NAMES;
    let words = |node: u32, own: &str, other: &str| {
        let place = at(node).display().to_string();
        (node, vec![place, own.to_owned(), other.to_owned()])
    };
    let both = [words(left[0], a, b), words(left[1], b, a)];
    let mut programs = actors::start_all(lab, MOVES, both);
    for _ in 0..BEFORE {
        move_both(&mut programs, &looks);
    }
    let strike = |load: &mut Load| {
        load.mark();
        std::thread::scope(|scope| {
            let kills = scope.spawn(|| Fault::Kill.strike(lab, &[owner]));
            for _ in 0..AFTER {
                move_both(&mut programs, &looks);
            }
            kills.join().unwrap();
        });
        until_given_up(lab, &[owner]);
    };
    let mend = || {
        Fault::Kill.mend(lab, &[owner]);
        until_whole(lab);
    };
    let pauses = under_load(lab, &[owner], strike, mend);
    programs.into_iter().for_each(Actor::end);
    for node in lab.nodes() {
        assert_eq!(shown(at(node)), [true, true, false, false], "on n{node}");
    }
    Told::of(pauses).within(Fault::Kill.aim())
}
