//! What programs did with the bytes of files, in the words of `sim`'s witness, which searches an order that explains
//! all answers.

use super::bytes::{Ask, Did, MODE, Saw};
use super::cells::{FILES, Kind};
use model::{CommitNumber, FileKind, InodeId, Timestamp, operation::Rank};
use sim::witness::{Answer, Call, Event, History, NOW, Seen};
use std::collections::{BTreeMap, BTreeSet};

/// The program that has made the files.
const MAKER: u32 = 0;

/// Where appended numbers are in the end: by file and number, which cell.
type Ends = BTreeMap<(usize, u32), usize>;

/// The history of files with these inodes: what programs did, and how all files were shown in the end.
///
/// # Panics
/// If a number that was appended isn't there in the end, or twice.
pub(super) fn history(inodes: &[u64], programs: &[Vec<Did>], shown: &[Vec<Did>]) -> History {
    let inodes: Vec<_> = inodes.iter().map(|inode| InodeId(*inode)).collect();
    let ends = ends(&shown[0]);
    let mut events: Vec<_> = (0..FILES.len())
        .flat_map(|file| made(file, inodes[file]))
        .collect();
    for (did, client) in programs.iter().chain(shown).zip(MAKER + 1..) {
        events.extend(did.iter().map(|did| event(client, did, &inodes, &ends)));
    }
    History {
        root: InodeId::ROOT,
        events,
        lost: BTreeSet::new(),
        over: BTreeMap::new(),
        // All nodes have this machine's clock.
        has_right_times: true,
    }
}

/// Where numbers are in files that only grow.
fn ends(shown: &[Did]) -> Ends {
    let mut ends = Ends::new();
    for did in shown {
        let Saw::Cells(cells) = &did.saw else {
            panic!("{did:?} shows no cells");
        };
        for (cell, value) in cells.iter().enumerate() {
            let before = ends.insert((did.file, *value), cell);
            let is_appended = FILES[did.file] == Kind::Appended;
            assert!(
                before.is_none() || !is_appended,
                "{value:x} was appended once, and is there twice: {did:?}"
            );
        }
    }
    ends
}

/// How a file was made, before all that programs did with it.
fn made(file: usize, inode: InodeId) -> Vec<Event> {
    let number = file as u64;
    let event = |ticks: u64, call, answer, rank| Event {
        client: MAKER,
        begun: 10 * number + ticks,
        ended: 10 * number + ticks + 1,
        call,
        answer,
        rank,
        is_held: true,
        is_near: false,
        is_delegated: false,
    };
    let create = Call::Create {
        directory: InodeId::ROOT,
        name: format!("f{file}"),
        kind: FileKind::File,
    };
    let rank = Rank {
        commit: CommitNumber(1),
        index: file as u32 + 1,
        ..Rank::default()
    };
    let cells = FILES[file].cells_at_first();
    let size = Call::Truncate { inode, cells };
    vec![
        event(0, create, Answer::Leads(inode), Some(rank)),
        event(5, size, Answer::Done, None),
    ]
}

fn event(client: u32, did: &Did, inodes: &[InodeId], ends: &Ends) -> Event {
    let inode = inodes[did.file];
    let call = match did.ask {
        Ask::Write { cell, cells, value } => Call::Write {
            inode,
            cell,
            cells,
            value,
        },
        Ask::Append { value } => Call::Append {
            inode,
            cells: 1,
            value,
        },
        Ask::Truncate { cells } => Call::Truncate { inode, cells },
        Ask::Punch { cell, cells } => Call::Punch { inode, cell, cells },
        Ask::Zero { cell, cells } => Call::Zero { inode, cell, cells },
        Ask::Reserve { cell, cells } => Call::Reserve { inode, cell, cells },
        Ask::Copy {
            from,
            first,
            cell,
            cells,
        } => Call::Copy {
            from: (inodes[from], first),
            inode,
            cell,
            cells,
        },
        Ask::Read { cell, cells } => Call::Read { inode, cell, cells },
        Ask::Seek { cell } => Call::Seek { inode, cell },
        Ask::Stat => Call::Stat { inode },
        Ask::Sync => Call::Fsync { inode },
        Ask::Store { cell, value } => Call::Store { inode, cell, value },
        Ask::Load { cell } => Call::Load { inode, cell },
    };
    let answer = match (&did.ask, &did.saw) {
        (Ask::Append { value }, Saw::Done) => {
            let end = ends.get(&(did.file, *value));
            Answer::At(*end.unwrap_or_else(|| panic!("{value:x} was appended, and isn't there")))
        }
        (_, Saw::Done) => Answer::Done,
        (_, Saw::Cells(cells)) => Answer::Cells(cells.clone()),
        (_, Saw::Copied(copied)) => Answer::Copied(*copied),
        (_, Saw::ZerosTo(cell)) => Answer::ZerosTo(*cell),
        (
            _,
            Saw::Attributes {
                cells,
                mtime,
                ctime,
            },
        ) => Answer::Inode(Seen {
            inode,
            kind: FileKind::File,
            mode: MODE,
            links: 1,
            owner: 0,
            cells: Some(*cells),
            time: Some(NOW),
            mtime: Timestamp::from_timespec(mtime.0, mtime.1),
            ctime: Timestamp::from_timespec(ctime.0, ctime.1),
        }),
    };
    Event {
        client,
        begun: did.begun,
        ended: did.ended,
        call,
        answer,
        rank: None,
        is_held: true,
        is_near: false,
        is_delegated: false,
    }
}
