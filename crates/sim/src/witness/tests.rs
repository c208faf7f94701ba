//! The witness explains honest histories, and none of the dishonest ones.

mod delegated;

use super::*;
use crate::action::Draw;
use model::CommitNumber;
use std::collections::BTreeMap;

const ROOT: InodeId = InodeId(1);
const FILE: InodeId = InodeId(10);
const OTHER: InodeId = InodeId(11);

fn rank(index: u32) -> Option<Rank> {
    Some(Rank {
        commit: CommitNumber(1),
        index,
        ..Rank::default()
    })
}

/// A history in which each operation ends before the next one begins, unless times are given.
struct Script {
    history: History,
    now: Tick,
}

impl Script {
    /// The root has a file with the name "f".
    fn new() -> Self {
        let mut script = Self {
            history: History {
                root: ROOT,
                events: Vec::new(),
                lost: BTreeSet::new(),
                over: BTreeMap::new(),
                has_right_times: false,
            },
            now: 10,
        };
        script.add(1, create("f"), made(FILE), rank(1));
        script
    }

    fn add(&mut self, client: ClientNumber, call: Call, answer: Answer, rank: Option<Rank>) {
        let (begun, ended) = (self.now, self.now + 5);
        self.now += 10;
        self.at((begun, ended), client, call, answer, rank);
    }

    fn at(
        &mut self,
        (begun, ended): (Tick, Tick),
        client: ClientNumber,
        call: Call,
        answer: Answer,
        rank: Option<Rank>,
    ) {
        self.history.events.push(Event {
            client,
            begun,
            ended,
            call,
            answer,
            rank,
            is_delegated: false,
            is_held: false,
            is_near: false,
        });
    }

    fn explained(&self) -> Explained {
        explain(&self.history).unwrap_or_else(|why| panic!("{why}"))
    }

    fn refused(&self) -> String {
        explain(&self.history).expect_err("it is a lie")
    }
}

fn create(name: &str) -> Call {
    Call::Create {
        directory: ROOT,
        name: name.to_string(),
        kind: FileKind::File,
    }
}

fn unlink(name: &str) -> Call {
    Call::Unlink {
        directory: ROOT,
        name: name.to_string(),
    }
}

fn lookup(name: &str) -> Call {
    Call::Lookup {
        directory: ROOT,
        name: name.to_string(),
    }
}

fn rename(from: &str, to: &str) -> Call {
    Call::Rename {
        from: (ROOT, from.to_string()),
        to: (ROOT, to.to_string()),
        mode: RenameMode::Replace,
    }
}

fn made(inode: InodeId) -> Answer {
    with_links(inode, 1)
}

fn with_links(inode: InodeId, links: u32) -> Answer {
    Answer::Inode(Seen {
        inode,
        kind: FileKind::File,
        mode: tree::MODE,
        links,
        owner: 0,
        cells: None,
        time: None,
        mtime: Timestamp(0),
        ctime: Timestamp(0),
    })
}

fn missing() -> Answer {
    Answer::Refused(ErrorKind::NotFound)
}

fn write(cell: usize, value: u32) -> Call {
    Call::Write {
        inode: FILE,
        cell,
        cells: 1,
        value,
    }
}

fn read(cell: usize, cells: usize) -> Call {
    Call::Read {
        inode: FILE,
        cell,
        cells,
    }
}

fn cells(cells: &[u32]) -> Answer {
    Answer::Cells(cells.to_vec())
}

#[test]
fn an_honest_history_is_explained() {
    let mut script = Script::new();
    script.add(1, write(0, 7), Answer::Done, None);
    script.add(2, read(0, 2), cells(&[7]), None);
    script.add(2, rename("f", "g"), Answer::Done, rank(2));
    script.add(1, lookup("f"), missing(), None);
    script.add(1, lookup("g"), made(FILE), rank(2));
    script.add(1, create("g"), Answer::Refused(ErrorKind::Exists), None);
    script.add(3, unlink("g"), Answer::Done, rank(5));
    script.add(1, Call::Stat { inode: FILE }, missing(), None);
    let explained = script.explained();
    assert_eq!((explained.changes, explained.made_unknown), (3, 0));
    assert!(explained.looks >= 4 && explained.content >= 3);
}

/// Its owner keeps it while somebody may have it open, and then says that it is gone.
#[test]
fn a_removed_directory_has_no_names_as_long_as_it_is_there() {
    let directory = OTHER;
    let kind = FileKind::Directory;
    let name = || "d".to_string();
    let list = || Call::List { directory };
    let nothing = || Answer::Names(BTreeMap::new());
    let a_name = || Answer::Names(BTreeMap::from([("x".to_string(), FILE)]));
    let mut script = Script::new();
    let create = Call::Create {
        directory: ROOT,
        name: name(),
        kind,
    };
    let made = Answer::Inode(Seen {
        inode: directory,
        kind,
        mode: tree::MODE,
        links: 2,
        owner: 0,
        cells: None,
        time: None,
        mtime: Timestamp(0),
        ctime: Timestamp(0),
    });
    script.add(1, create, made, rank(2));
    let link = Call::Link {
        inode: FILE,
        directory,
        name: "x".to_string(),
    };
    script.add(1, link, Answer::Done, rank(3));
    let unlink = Call::Unlink {
        directory,
        name: "x".to_string(),
    };
    script.add(1, unlink, Answer::Done, rank(4));
    let remove = Call::RemoveDirectory {
        directory: ROOT,
        name: name(),
    };
    script.add(1, remove, Answer::Done, rank(5));
    script.add(2, list(), nothing(), rank(5));
    script.add(2, list(), Answer::Refused(ErrorKind::Stale), None);
    script.explained();
    let listing = script.history.events.len() - 2;
    // From the start of everything, so that only its rank says where it stands.
    script.history.events[listing].begun = 0;
    for (at, lists_nothing) in [(1, false), (2, true), (3, false), (4, true), (5, true)] {
        script.history.events[listing].rank = rank(at);
        script.history.events[listing].answer = nothing();
        assert_eq!(explain(&script.history).is_ok(), lists_nothing, "at {at}");
        script.history.events[listing].answer = a_name();
        assert_eq!(explain(&script.history).is_ok(), at == 3, "at {at}");
    }
}

#[test]
fn a_change_without_an_answer_was_made_or_not() {
    for is_made in [true, false] {
        let mut script = Script::new();
        let lost = (script.now, NEVER);
        script.at(lost, 3, create("x"), Answer::Unknown, None);
        script.add(1, lookup("f"), made(FILE), rank(1));
        let (found, rank_of_it) = match is_made {
            true => (made(OTHER), rank(2)),
            false => (missing(), None),
        };
        script.add(2, lookup("x"), found, rank_of_it);
        assert_eq!(script.explained().made_unknown, usize::from(is_made));
        if is_made {
            // Once it has been seen it stays.
            script.add(1, lookup("x"), missing(), None);
            script.refused();
        }
    }
}

#[test]
fn nothing_comes_of_what_a_client_asked_once_its_successor_has_a_session() {
    for (over, is_honest) in [(None, true), (Some(26), false), (Some(200), true)] {
        let mut script = Script::new();
        let begun = script.now;
        script.at((begun, NEVER), 3, unlink("f"), Answer::Unknown, None);
        script.at((begun, NEVER), 3, write(0, 7), Answer::Unknown, None);
        script.add(1, create("g"), made(OTHER), rank(4));
        script.add(1, create("h"), made(InodeId(12)), rank(5));
        script.add(1, lookup("f"), made(FILE), rank(5));
        script.add(1, read(0, 1), cells(&[]), None);
        script.history.over.extend(over.map(|tick| (3, tick)));
        script.explained();
        let before = script.history.clone();
        script.add(1, read(0, 1), cells(&[7]), None);
        assert_eq!(explain(&script.history).is_ok(), is_honest, "{over:?}");
        script.history = before;
        script.add(1, create("i"), made(InodeId(13)), rank(6));
        script.add(1, lookup("f"), missing(), None);
        assert_eq!(explain(&script.history).is_ok(), is_honest, "{over:?}");
    }
}

#[test]
fn a_lost_answer_may_have_to_come_before_what_it_explains() {
    let mut script = Script::new();
    let begun = script.now;
    script.at((begun, NEVER), 3, rename("f", "g"), Answer::Unknown, None);
    script.add(1, create("f"), made(OTHER), rank(4));
    script.add(1, unlink("g"), Answer::Done, rank(5));
    assert_eq!(script.explained().made_unknown, 1);
    // It can't have been made before it began.
    script.history.events[1].begun = script.now;
    script.refused();
}

#[test]
fn a_stale_read_is_no_explanation() {
    let mut script = Script::new();
    script.add(1, write(3, 1), Answer::Done, None);
    script.add(2, write(3, 2), Answer::Done, None);
    script.add(3, read(3, 1), cells(&[2]), None);
    script.explained();
    script.add(1, read(3, 1), cells(&[1]), None);
    assert!(script.refused().contains("Cell(3)"));
}

#[test]
fn a_read_beside_a_write_shows_either_but_never_goes_back() {
    for (first, second, is_honest) in [(1, 2, true), (1, 1, true), (2, 2, true), (2, 1, false)] {
        let mut script = Script::new();
        script.add(1, write(0, 1), Answer::Done, None);
        let now = script.now;
        script.at((now, now + 100), 1, write(0, 2), Answer::Done, None);
        script.add(2, read(0, 1), cells(&[first]), None);
        script.add(3, read(0, 1), cells(&[second]), None);
        assert_eq!(
            explain(&script.history).is_ok(),
            is_honest,
            "{first} {second}"
        );
    }
}

#[test]
fn a_lost_write_is_no_explanation() {
    let mut script = Script::new();
    script.add(1, write(0, 1), Answer::Done, None);
    script.add(1, Call::Fsync { inode: FILE }, Answer::Done, None);
    script.add(1, write(1, 5), Answer::Done, None);
    script.history.lost.insert(1);
    // What wasn't synced may be gone with its client, and is in none of the sizes then.
    script.add(2, read(0, 4), cells(&[1]), None);
    script.explained();
    let end = script.history.events.len() - 1;
    script.history.events[end].answer = cells(&[]);
    script.refused();
}

/// It is there from when it was answered, or never.
#[test]
fn a_write_that_was_lost_never_comes_back() {
    let mut script = Script::new();
    script.add(1, write(0, 1), Answer::Done, None);
    script.history.lost.insert(1);
    script.add(2, write(0, 2), Answer::Done, None);
    script.add(3, read(0, 1), cells(&[2]), None);
    script.explained();
    let end = script.history.events.len() - 1;
    script.history.events[end].answer = cells(&[1]);
    script.refused();
}

/// What else it saw is true, also if it is lost later.
#[test]
fn a_client_that_is_lost_later_may_see_only_what_it_wrote_itself() {
    for (wrote, seen, is_honest) in [(1, 1, true), (1, 5, false), (1, 0, true)] {
        let mut script = Script::new();
        script.add(2, write(1, 9), Answer::Done, None);
        script.add(2, write(0, 5), Answer::Done, None);
        script.add(
            2,
            Call::Punch {
                inode: FILE,
                cell: 0,
                cells: 1,
            },
            Answer::Done,
            None,
        );
        if seen == wrote {
            script.add(1, write(0, wrote), Answer::Done, None);
        }
        script.add(1, read(0, 1), cells(&[seen]), None);
        script.history.lost.insert(1);
        script.add(2, read(0, 1), cells(&[0]), None);
        assert_eq!(explain(&script.history).is_ok(), is_honest, "{seen}");
    }
}

#[test]
fn a_write_that_another_client_has_read_is_not_lost() {
    let mut script = Script::new();
    script.add(1, write(0, 1), Answer::Done, None);
    script.history.lost.insert(1);
    script.add(2, read(0, 1), cells(&[1]), None);
    script.explained();
    script.add(3, read(0, 1), cells(&[]), None);
    script.refused();
}

#[test]
fn a_truncate_between_two_reads_explains_zeros_and_sizes() {
    let mut script = Script::new();
    script.add(1, write(4, 9), Answer::Done, None);
    let inode = FILE;
    script.add(2, Call::Truncate { inode, cells: 2 }, Answer::Done, None);
    script.add(1, read(0, 8), cells(&[0, 0]), None);
    script.add(
        1,
        Call::Append {
            inode,
            cells: 1,
            value: 8,
        },
        Answer::At(2),
        None,
    );
    script.add(2, read(0, 8), cells(&[0, 0, 8]), None);
    script.explained();
    script.add(2, read(4, 1), cells(&[9]), None);
    script.refused();
}

fn copy(from: InodeId, first: usize, to: InodeId, cells: usize) -> Call {
    Call::Copy {
        from: (from, first),
        inode: to,
        cell: 0,
        cells,
    }
}

fn read_of(inode: InodeId, cells: usize) -> Call {
    Call::Read {
        inode,
        cell: 0,
        cells,
    }
}

#[test]
fn a_copy_brings_what_its_source_had_meanwhile() {
    for (seen, is_honest) in [(1, false), (2, true), (3, true), (4, false)] {
        let mut script = Script::new();
        script.add(1, create("g"), made(OTHER), rank(2));
        script.add(1, write(5, 1), Answer::Done, None);
        script.add(2, write(5, 2), Answer::Done, None);
        let now = script.now;
        script.at(
            (now, now + 30),
            3,
            copy(FILE, 5, OTHER, 1),
            Answer::Copied(1),
            None,
        );
        script.at((now + 1, now + 2), 2, write(5, 3), Answer::Done, None);
        script.now += 40;
        script.add(2, write(5, 4), Answer::Done, None);
        script.add(1, read_of(OTHER, 2), cells(&[seen]), None);
        assert_eq!(explain(&script.history).is_ok(), is_honest, "{seen}");
        // It is one value for everybody.
        let other = if seen == 2 { 3 } else { 2 };
        script.add(2, read_of(OTHER, 2), cells(&[other]), None);
        script.refused();
    }
}

#[test]
fn a_copy_of_a_copy_brings_the_same() {
    for (seen, is_honest) in [(1, true), (2, true), (0, false), (3, false)] {
        let mut script = Script::new();
        script.add(1, create("g"), made(OTHER), rank(2));
        script.add(1, write(0, 1), Answer::Done, None);
        let now = script.now;
        script.at(
            (now, now + 30),
            3,
            copy(FILE, 0, OTHER, 1),
            Answer::Copied(1),
            None,
        );
        script.at((now, now + 30), 2, write(0, 2), Answer::Done, None);
        script.now += 40;
        script.add(2, write(0, 3), Answer::Done, None);
        let back = Call::Copy {
            from: (OTHER, 0),
            inode: FILE,
            cell: 1,
            cells: 1,
        };
        script.add(3, back, Answer::Copied(1), None);
        script.add(1, read_of(FILE, 2), cells(&[3, seen]), None);
        assert_eq!(explain(&script.history).is_ok(), is_honest, "{seen}");
    }
}

#[test]
fn a_copy_ends_where_its_source_does() {
    for (copied, is_honest) in [(0, false), (1, false), (2, true), (3, false)] {
        let mut script = Script::new();
        script.add(1, create("g"), made(OTHER), rank(2));
        script.add(1, write(1, 1), Answer::Done, None);
        script.add(2, copy(FILE, 0, OTHER, 3), Answer::Copied(copied), None);
        assert_eq!(explain(&script.history).is_ok(), is_honest, "{copied}");
    }
    // What became of one without an answer shows later, or never.
    for seen in [&[][..], &[0], &[0, 1]] {
        let mut script = Script::new();
        script.add(1, create("g"), made(OTHER), rank(2));
        script.add(1, write(1, 1), Answer::Done, None);
        let now = script.now;
        script.at(
            (now, NEVER),
            2,
            copy(FILE, 0, OTHER, 2),
            Answer::Unknown,
            None,
        );
        script.add(1, read_of(OTHER, 3), cells(seen), None);
        script.explained();
    }
}

#[test]
fn two_appends_at_one_place_are_a_lie() {
    let mut script = Script::new();
    let append = |value| Call::Append {
        inode: FILE,
        cells: 1,
        value,
    };
    let now = script.now;
    script.at((now, now + 50), 1, append(1), Answer::At(0), None);
    script.at((now, now + 50), 2, append(2), Answer::At(1), None);
    script.explained();
    script.history.events[2].answer = Answer::At(0);
    script.refused();
}

#[test]
fn a_doubled_create_is_a_lie() {
    let mut script = Script::new();
    script.add(2, create("f"), made(OTHER), rank(2));
    assert!(script.refused().contains("can't have succeeded"));
}

#[test]
fn a_reordered_rename_is_a_lie() {
    let mut script = Script::new();
    script.add(2, rename("f", "g"), Answer::Done, rank(3));
    script.add(1, create("f"), made(OTHER), rank(2));
    assert!(script.refused().contains("contradicts the clock"));
    // With the true order in the ranks there is nothing to say.
    script.history.events[1].rank = rank(2);
    script.history.events[2].rank = rank(3);
    script.explained();
}

/// An owner in its client's process notes nothing of it: it has the rank of what was newest, as a look before it.
#[test]
fn what_changes_nothing_has_the_rank_of_what_a_look_before_it_has_shown() {
    let mut script = Script::new();
    script.add(2, lookup("f"), made(FILE), rank(1));
    let set = Call::SetMode {
        inode: OTHER,
        mode: 0o600,
    };
    script.add(2, set, Answer::Refused(ErrorKind::Stale), None);
    script.add(2, rename("f", "f"), Answer::Done, rank(1));
    script
        .history
        .events
        .iter_mut()
        .for_each(|it| it.is_near = true);
    script.explained();
}

#[test]
fn a_resurrected_name_is_a_lie() {
    let mut script = Script::new();
    script.add(2, unlink("f"), Answer::Done, rank(2));
    script.explained();
    script.add(1, lookup("f"), made(FILE), rank(2));
    assert!(script.refused().contains("nothing explains"));
}

#[test]
fn an_answer_of_a_former_owner_is_a_lie() {
    let mut script = Script::new();
    let mut later = rank(1);
    later.as_mut().expect("it has one").epoch = model::ShardEpoch(1);
    script.add(2, unlink("f"), Answer::Done, later);
    script.add(1, lookup("f"), made(FILE), rank(1));
    assert!(script.refused().contains("contradicts the clock"));
}

#[test]
fn a_former_owner_may_show_what_nobody_has_changed_since() {
    let mut script = Script::new();
    let mut later = rank(1);
    later.as_mut().expect("it has one").epoch = model::ShardEpoch(1);
    script.add(2, lookup("f"), made(FILE), later);
    script.add(1, lookup("f"), made(FILE), rank(1));
    script.explained();
}

#[test]
fn a_name_and_the_attributes_that_were_asked_for_later_are_both_true() {
    let mut script = Script::new();
    script.add(2, rename("f", "g"), Answer::Done, rank(2));
    script.add(1, lookup("g"), Answer::Leads(FILE), rank(2));
    script.explained();
    let last = script.history.events.len() - 1;
    script.history.events[last].answer = Answer::Leads(OTHER);
    script.refused();
}

/// The change isn't answered yet, but somebody has seen it.
#[test]
fn a_cache_shows_nothing_older_than_what_the_owner_has_answered_another() {
    for (is_seen, is_honest) in [(false, true), (true, false)] {
        let mut script = Script::new();
        let now = script.now;
        script.at((now, now + 900), 1, unlink("f"), Answer::Done, rank(5));
        if is_seen {
            let names = Answer::Names(BTreeMap::new());
            script.add(2, Call::List { directory: ROOT }, names, rank(6));
        }
        script.add(3, lookup("f"), made(FILE), None);
        assert_eq!(explain(&script.history).is_ok(), is_honest, "{is_seen}");
    }
}

#[test]
fn what_a_cache_answers_is_true_at_some_time_while_it_is_asked() {
    let mut script = Script::new();
    let now = script.now;
    // Beside the unlink: either is true.
    script.at((now, now + 30), 1, lookup("f"), made(FILE), None);
    script.add(2, unlink("f"), Answer::Done, rank(2));
    script.explained();
    script.history.events[1].begun = now + 6;
    script.refused();
}

#[test]
fn a_file_that_is_held_open_never_goes() {
    let mut script = Script::new();
    script.add(2, unlink("f"), Answer::Done, rank(2));
    script.add(1, read(0, 1), missing(), None);
    script.explained();
    let last = script.history.events.len() - 1;
    script.history.events[last].is_held = true;
    script.refused();
}

fn stat_of(cells: usize, time: u32, owner: u32, links: u32) -> Answer {
    Answer::Inode(Seen {
        inode: FILE,
        kind: FileKind::File,
        mode: tree::MODE,
        links,
        owner,
        cells: Some(cells),
        time: Some(time),
        mtime: Timestamp(0),
        ctime: Timestamp(0),
    })
}

#[test]
fn times_never_go_back_and_each_change_moves_them() {
    let shown = |ctime| {
        let Answer::Inode(seen) = stat_of(0, NOW, 0, 1) else {
            unreachable!("a stat shows an inode")
        };
        Answer::Inode(Seen {
            ctime: Timestamp(ctime),
            ..seen
        })
    };
    let stat = Call::Stat { inode: FILE };
    let chmod = Call::SetMode {
        inode: FILE,
        mode: tree::MODE,
    };
    for (before, after, is_honest) in [(5, 6, true), (5, 5, false), (5, 4, false)] {
        let mut script = Script::new();
        script.history.has_right_times = true;
        script.add(1, stat.clone(), shown(before), None);
        script.add(2, stat.clone(), shown(before), None);
        script.explained();
        script.add(1, chmod.clone(), Answer::Done, rank(2));
        script.add(2, stat.clone(), shown(after), None);
        assert_eq!(explain(&script.history).is_ok(), is_honest, "{after}");
        script.history.has_right_times = false;
        script.explained();
    }
}

/// A publish that overtakes utimes(2), or undoes it, would show the clock's time.
#[test]
fn a_time_that_a_program_has_set_stays_until_the_next_change() {
    let stat = Call::Stat { inode: FILE };
    let set = Call::SetTime {
        inode: FILE,
        time: 9,
    };
    let mut script = Script::new();
    script.add(1, write(0, 7), Answer::Done, None);
    script.add(2, set, Answer::Done, None);
    script.add(1, stat.clone(), stat_of(1, 9, 0, 1), None);
    script.explained();
    let mut undone = Script { ..script };
    undone.add(1, stat.clone(), stat_of(1, NOW, 0, 1), None);
    assert!(undone.refused().contains("Time"));
    undone.history.events.pop();
    undone.add(2, write(0, 8), Answer::Done, None);
    undone.add(1, stat, stat_of(1, NOW, 0, 1), None);
    undone.explained();
}

/// A page that is written back sets the time, whenever that is.
#[test]
fn what_is_stored_in_a_mapping_is_there_at_once_and_may_set_the_time_later() {
    let stat = || Call::Stat { inode: FILE };
    let store = Call::Store {
        inode: FILE,
        cell: 0,
        value: 8,
    };
    let load = Call::Load {
        inode: FILE,
        cell: 0,
    };
    let set = Call::SetTime {
        inode: FILE,
        time: 9,
    };
    let mut script = Script::new();
    script.add(1, write(0, 7), Answer::Done, None);
    script.add(1, store, Answer::Done, None);
    script.add(2, load.clone(), cells(&[8]), None);
    script.add(2, set, Answer::Done, None);
    script.add(1, stat(), stat_of(1, 9, 0, 1), None);
    script.add(1, stat(), stat_of(1, NOW, 0, 1), None);
    script.explained();
    script.add(2, load, cells(&[7]), None);
    assert!(script.refused().contains("Cell(0)"));
}

/// Pages go in any order, so another client may see the newer of two stores only.
#[test]
fn a_store_that_is_lost_with_its_client_need_not_be_the_newest() {
    let store = |cell, value| Call::Store {
        inode: FILE,
        cell,
        value,
    };
    let mut script = Script::new();
    let two_cells = Call::Truncate {
        inode: FILE,
        cells: 2,
    };
    script.add(3, two_cells, Answer::Done, None);
    script.add(1, store(0, 7), Answer::Done, None);
    script.add(1, store(1, 8), Answer::Done, None);
    script.add(2, read(1, 1), cells(&[8]), None);
    script.add(
        2,
        Call::Load {
            inode: FILE,
            cell: 0,
        },
        cells(&[0]),
        None,
    );
    assert!(explain(&script.history).is_err());
    script.history.lost.insert(1);
    script.explained();
}

#[test]
fn a_file_without_a_name_can_get_one_and_has_an_owner() {
    let link = |name: &str| Call::Link {
        inode: OTHER,
        directory: ROOT,
        name: name.to_string(),
    };
    let chown = Call::SetOwner {
        inode: FILE,
        owner: 5,
    };
    let mut script = Script::new();
    let unnamed = Call::CreateUnnamed { directory: ROOT };
    script.add(1, unnamed, with_links(OTHER, 0), rank(2));
    script.add(1, link("o"), Answer::Done, rank(3));
    script.add(2, lookup("o"), made(OTHER), rank(3));
    script.add(2, unlink("o"), Answer::Done, rank(4));
    script.add(1, link("o"), missing(), None);
    script.add(2, chown, Answer::Done, rank(5));
    script.add(1, Call::Stat { inode: FILE }, stat_of(0, NOW, 5, 1), None);
    script.explained();
    let mut named_twice = Script { ..script };
    named_twice.add(1, link("o"), Answer::Done, rank(6));
    named_twice.refused();
    named_twice.history.events.pop();
    named_twice.add(1, Call::Stat { inode: FILE }, stat_of(0, NOW, 0, 1), None);
    named_twice.refused();
}

/// The next owner makes one before all sessions have said what they hold, while the former one still answers.
#[test]
fn a_file_without_a_name_has_no_place_among_what_others_see() {
    let unnamed = || Call::CreateUnnamed { directory: ROOT };
    let mut script = Script::new();
    script.add(1, unnamed(), with_links(OTHER, 0), rank(9));
    script.add(2, lookup("f"), made(FILE), rank(1));
    script.add(2, create("g"), made(InodeId(12)), rank(8));
    script.explained();
    let link = Call::Link {
        inode: OTHER,
        directory: ROOT,
        name: "o".to_string(),
    };
    script.add(1, link, Answer::Done, rank(10));
    script.add(2, lookup("g"), made(InodeId(12)), rank(8));
    assert!(script.refused().contains("contradicts the clock"));
}

#[test]
fn a_seek_passes_zeros_only() {
    let seek = || Call::Seek {
        inode: FILE,
        cell: 0,
    };
    let mut script = Script::new();
    script.add(1, write(3, 7), Answer::Done, None);
    script.add(2, seek(), Answer::ZerosTo(3), None);
    script.explained();
    script.add(2, seek(), Answer::ZerosTo(content::CELLS_MAX), None);
    assert!(script.refused().contains("Cell(3)"));
}

#[test]
fn links_are_counted_and_content_is_that_of_the_file() {
    let mut script = Script::new();
    let link = Call::Link {
        inode: FILE,
        directory: ROOT,
        name: "g".to_string(),
    };
    script.add(1, link, Answer::Done, rank(2));
    script.add(2, lookup("g"), with_links(FILE, 2), rank(2));
    script.add(2, unlink("f"), Answer::Done, rank(3));
    script.add(1, lookup("g"), made(FILE), rank(3));
    script.explained();
    let last = script.history.events.len() - 1;
    script.history.events[last].answer = with_links(FILE, 2);
    script.refused();
}

/// An honest file system of names and cells whose operations take effect at a random moment between their
/// begin and their end; some answers are lost.
fn honest(seed: u64, steps: usize) -> History {
    let mut draw = Draw::new(seed);
    let mut events: Vec<Event> = Vec::new();
    let (mut names, mut inodes) = (BTreeMap::<String, InodeId>::new(), 100);
    let (mut content, mut size) = ([0_u32; 4], 0_usize);
    let mut index = 0;
    for step in 0..steps {
        // The moments grow; begins and ends lie around them.
        let moment = 1_000 * (step as u64 + 1);
        let (begun, ended) = (
            moment - draw.below(4_000).min(moment),
            moment + draw.below(4_000),
        );
        let name = ["a", "b", "c"][draw.below(3) as usize].to_string();
        let is_lost = draw.below(12) == 0;
        let is_there = names.contains_key(&name);
        let call = match draw.below(5) {
            0 => create(&name),
            1 => unlink(&name),
            2 => write(draw.below(4) as usize, step as u32 + 1),
            3 => read(0, 4),
            _ => lookup(&name),
        };
        let mut is_change = false;
        let answer = match &call {
            Call::Create { .. } if is_there => Answer::Refused(ErrorKind::Exists),
            Call::Create { .. } => {
                inodes += 1;
                is_change = true;
                names.insert(name, InodeId(inodes));
                made(InodeId(inodes))
            }
            Call::Unlink { .. } if is_there => {
                is_change = true;
                names.remove(&name);
                Answer::Done
            }
            Call::Lookup { .. } if is_there => made(names[&name]),
            Call::Unlink { .. } | Call::Lookup { .. } => missing(),
            Call::Write { cell, value, .. } => {
                content[*cell] = *value;
                size = size.max(cell + 1);
                Answer::Done
            }
            _ => cells(&content[..size]),
        };
        index += u32::from(is_change);
        let is_unknown = is_lost && !matches!(answer, Answer::Refused(_));
        let is_ranked =
            is_change || matches!((&call, &answer), (Call::Lookup { .. }, Answer::Inode(_)));
        events.push(Event {
            client: step as u32,
            begun,
            ended: if is_unknown { NEVER } else { ended },
            call,
            answer: if is_unknown { Answer::Unknown } else { answer },
            rank: if is_ranked && !is_unknown {
                rank(index)
            } else {
                None
            },
            is_delegated: false,
            is_held: false,
            is_near: false,
        });
    }
    History {
        root: ROOT,
        events,
        lost: BTreeSet::new(),
        over: BTreeMap::new(),
        has_right_times: false,
    }
}

#[test]
fn random_honest_histories_are_explained() {
    for seed in 0..300 {
        let history = honest(seed, 60);
        explain(&history).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// One answer of an honest history is replaced by what was true long before or after.
#[test]
fn a_single_lie_in_a_random_history_is_found() {
    let (mut told, mut found) = (0, 0);
    for seed in 0..300 {
        let mut history = honest(seed, 60);
        let mut draw = Draw::new(seed ^ 0xBAD);
        let looks: Vec<_> = (0..history.events.len())
            .filter(|at| {
                matches!(
                    history.events[*at].call,
                    Call::Read { .. } | Call::Lookup { .. }
                )
            })
            .filter(|at| history.events[*at].answer != Answer::Unknown)
            .collect();
        let (Some(one), Some(other)) = (draw.one_of(&looks), draw.one_of(&looks)) else {
            continue;
        };
        let (lie, call) = (&history.events[*other], &history.events[*one].call);
        let is_far = one.abs_diff(*other) > 12;
        if lie.call != *call || lie.answer == history.events[*one].answer || !is_far {
            continue;
        }
        let answer = lie.answer.clone();
        let is_ranked = matches!((call, &answer), (Call::Lookup { .. }, Answer::Inode(_)));
        let event = &mut history.events[*one];
        event.answer = answer;
        if !is_ranked {
            event.rank = None;
        } else if event.rank.is_none() {
            continue;
        }
        told += 1;
        found += usize::from(explain(&history).is_err());
    }
    assert!(told >= 20 && found * 10 >= told * 9, "{found} of {told}");
}
