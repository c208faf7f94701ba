//! pjdfstest on one node, while a program on another one changes what is beside the suite's own files, and looks at
//! them.

use super::{Lab, actors};
use crate::{
    fixture::forget_mounts,
    suites::{Pjdfstest, WORK},
};
use sim::{action::Draw, by_suite};
use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::atomic::Ordering,
};

const PROGRAM: &str = "lab::programs::neighbours::what_a_neighbour_does";
/// Names of the neighbour's files begin so.
const OWN: &str = "neighbour";
/// How many there are.
const NAMES: u64 = 20;

/// Does nothing but in a process that the test starts: changes files of its own beside those of others, which it looks
/// at, until it is told to end.
#[test]
fn what_a_neighbour_does() {
    let Some(words) = actors::work() else { return };
    let directory = Path::new(&words[0]);
    let path = |number: u64| directory.join(format!("{OWN}{number}"));
    let content = |number: u64| number.to_string().repeat(100);
    let mut chance = Draw::new(1);
    // What each of its files holds.
    let mut own: BTreeMap<u64, u64> = BTreeMap::new();
    actors::ready_and_go();
    let is_over = actors::is_over();
    let (mut steps, mut looks) = (0, 0);
    while !is_over.load(Ordering::Relaxed) {
        steps += 1;
        let (number, other) = (chance.below(NAMES), chance.below(NAMES));
        match chance.below(6) {
            0..=1 => {
                fs::write(path(number), content(steps)).unwrap();
                own.insert(number, steps);
            }
            2 if number != other && own.contains_key(&number) => {
                fs::rename(path(number), path(other)).unwrap();
                let held = own.remove(&number).unwrap();
                own.insert(other, held);
            }
            3 if own.contains_key(&number) => {
                fs::remove_file(path(number)).unwrap();
                own.remove(&number);
            }
            4 if own.contains_key(&number) => {
                let mode = 0o600 + chance.below(0o100) as u32;
                fs::set_permissions(path(number), Permissions::from_mode(mode)).unwrap();
                let found = fs::metadata(path(number)).unwrap();
                assert_eq!(found.permissions().mode() & 0o7777, mode);
            }
            5 => {
                let mut seen = 0;
                for entry in fs::read_dir(directory).unwrap() {
                    let entry = entry.unwrap();
                    let name = entry.file_name();
                    let is_own = name.as_encoded_bytes().starts_with(OWN.as_bytes());
                    seen += usize::from(is_own);
                    // Others' may be gone by now.
                    let found = entry.metadata();
                    assert!(found.is_ok() || !is_own, "{entry:?}: {found:?}");
                    looks += u32::from(!is_own && found.is_ok());
                }
                assert_eq!(seen, own.len(), "names are missing");
            }
            _ => {}
        }
    }
    for (number, held) in &own {
        let found = fs::read_to_string(path(*number)).unwrap();
        assert!(found == content(*held), "{OWN}{number}");
    }
    let enough = by_suite(20, 100);
    assert!(steps > enough && looks > 0, "{steps} steps, {looks} looks");
}

/// The suite on n1, the neighbour on n2. In `make test` what it says of rename: that concerns names, what they name, and two
/// directories.
pub(super) fn pjdfstest_finds_no_fault_beside_a_neighbour(lab: &Lab) {
    // A socket's address holds 108 bytes, and the suite appends names of about 60.
    let short = tempfile::tempdir().unwrap();
    let mnt = |node| lab.node(node).join("mnt");
    let bound = format!(
        "mount --bind '{}' '{}'",
        mnt(1).display(),
        short.path().display()
    );
    let suite = Pjdfstest {
        config: lab.dir.with_file_name("pjdfstest.toml"),
        mnt: short.path(),
        before: format!("{}; {bound}", forget_mounts(&mnt(1))),
    };
    fs::create_dir(mnt(1).join(WORK)).unwrap();
    // On a busy machine the neighbour may list so seldom that none of the suite's files is there just then.
    fs::write(mnt(1).join(WORK).join("stays"), "").unwrap();
    let words = vec![mnt(2).join(WORK).display().to_string()];
    let neighbours = actors::start_all(lab, PROGRAM, [(2, words)]);
    let said = suite.run(by_suite("rename::", ""), false);
    neighbours.into_iter().for_each(actors::Actor::end);
    assert_eq!(said.of("FAILED"), Vec::<&str>::new(), "{}", said.text);
    let skipped = said.of("skipped");
    let others: Vec<_> = skipped
        .into_iter()
        .filter(|name| !name.contains("erofs"))
        .collect();
    // The reason is in docs/semantics.md.
    let expected = by_suite(&[][..], &["link::link_count_max"][..]);
    assert_eq!(others, expected, "{}", said.text);
    let ok = said.of(" ok").len();
    assert!(ok >= by_suite(59, 384), "{}", said.text);
}
