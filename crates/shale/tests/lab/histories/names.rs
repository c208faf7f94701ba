//! Names that several programs make, move and remove at the same time: which answers one order of all of it explains.

use serde::{Deserialize, Serialize};
use sim::witness::order::{self, Failed, Operation, Step};

/// How many names there are; they have numbers.
pub(super) const SLOTS: usize = 12;
/// Most operations that are shown of those near one that nothing explains.
const NEAR: usize = 60;
/// Most places that a search for an order visits before it gives up.
const VISITS_MAX: usize = 2_000_000;
/// The inode of a name that isn't there.
const NOBODY: u64 = 0;

/// The inodes of all names.
type Slots = [u64; SLOTS];

/// Kinds of rename.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum How {
    Replace,
    NoReplace,
    Exchange,
}

/// What a program does with names, which have numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    Create(usize),
    Unlink(usize),
    Rename { from: usize, to: usize, how: How },
    Lookup(usize),
}

impl Ask {
    fn names(self) -> [usize; 2] {
        match self {
            Self::Create(slot) | Self::Unlink(slot) | Self::Lookup(slot) => [slot; 2],
            Self::Rename { from, to, .. } => [from, to],
        }
    }

    fn shares_a_name(self, other: Self) -> bool {
        self.names().iter().any(|name| other.names().contains(name))
    }
}

/// What it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Done,
    /// The inode made or found.
    Leads(u64),
    Exists,
    Missing,
}

/// An operation with its answer; times as of [`super::clock::now`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Did {
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) ask: Ask,
    pub(super) reply: Reply,
}

/// What an operation with this answer makes of the names; `None` if it can't be answered so there.
fn after(slots: &Slots, did: &Did) -> Option<Slots> {
    let is_there = |slot: usize| slots[slot] != NOBODY;
    let mut next = *slots;
    let is_so = match (did.ask, did.reply) {
        (Ask::Create(slot), Reply::Leads(inode)) => {
            next[slot] = inode;
            !is_there(slot) && !slots.contains(&inode)
        }
        (Ask::Create(slot), Reply::Exists) => is_there(slot),
        (Ask::Lookup(slot), Reply::Leads(inode)) => slots[slot] == inode,
        (Ask::Lookup(slot) | Ask::Unlink(slot), Reply::Missing) => !is_there(slot),
        (Ask::Unlink(slot), Reply::Done) => {
            next[slot] = NOBODY;
            is_there(slot)
        }
        (Ask::Rename { from, to, how }, Reply::Done) => {
            next[to] = slots[from];
            next[from] = match how {
                How::Exchange => slots[to],
                How::Replace | How::NoReplace => NOBODY,
            };
            let fits = match how {
                How::Replace => true,
                How::NoReplace => !is_there(to),
                How::Exchange => is_there(to),
            };
            fits && is_there(from)
        }
        (Ask::Rename { from, to, how }, Reply::Missing) => {
            !is_there(from) || (how == How::Exchange && !is_there(to))
        }
        (
            Ask::Rename {
                to,
                how: How::NoReplace,
                ..
            },
            Reply::Exists,
        ) => is_there(to),
        _ => false,
    };
    is_so.then_some(next)
}

impl Operation for Did {
    type State = Slots;

    fn leaves(&self, slots: &Slots) -> bool {
        after(slots, self).is_some_and(|next| next == *slots)
    }

    fn changes(&self, slots: &Slots, each: impl FnMut(Slots)) {
        let next = after(slots, self).filter(|next| next != slots);
        next.into_iter().for_each(each);
    }
}

/// Searches one order of all that programs did, beginning without names.
///
/// # Errors
/// What no order explains.
pub(super) fn explain(all: impl IntoIterator<Item = Did>) -> Result<(), String> {
    let mut all: Vec<Did> = all.into_iter().collect();
    all.sort_by_key(|did| did.begun);
    let steps = all.iter().enumerate().map(|(event, did)| Step {
        begun: did.begun,
        ended: did.ended,
        is_optional: false,
        what: *did,
        event,
    });
    let explained = order::explain(steps.collect(), [NOBODY; SLOTS], VISITS_MAX);
    explained.map_err(|failed| match failed {
        Failed::GivenUp => format!("the search was given up: {} steps", all.len()),
        Failed::At(slots, open) => {
            let names: Vec<_> = open.iter().map(|event| all[*event].ask).collect();
            let is_near = |did: &Did| names.iter().any(|ask| ask.shares_a_name(did.ask));
            // What is under way at the same time began before or after it.
            let first = open.iter().min().expect("something couldn't come next");
            let until = (first + NEAR / 2).min(all.len());
            let near = all[..until].iter().rev().copied();
            let mut near: Vec<_> = near.filter(is_near).take(NEAR).collect();
            near.reverse();
            let lines = |all: Vec<Did>| {
                let lines = all.iter().map(|did| format!("\n  {did:?}"));
                lines.collect::<String>()
            };
            let open = open.iter().map(|event| all[*event]).collect();
            let (open, near) = (lines(open), lines(near));
            format!(
                "with {slots:?}, none of these can come next: {open}\nwith the same names: {near}"
            )
        }
    })
}

fn did(begun: u64, ended: u64, ask: Ask, reply: Reply) -> Did {
    Did {
        begun,
        ended,
        ask,
        reply,
    }
}

#[test]
fn names_that_were_made_moved_and_removed_are_explained() {
    let rename = |from, to, how| Ask::Rename { from, to, how };
    let honest = [
        did(0, 10, Ask::Create(0), Reply::Leads(7)),
        did(1, 9, Ask::Create(0), Reply::Exists),
        did(11, 20, Ask::Create(1), Reply::Leads(8)),
        did(21, 30, rename(0, 1, How::NoReplace), Reply::Exists),
        did(31, 40, rename(0, 1, How::Exchange), Reply::Done),
        did(41, 50, Ask::Lookup(0), Reply::Leads(8)),
        did(51, 99, rename(0, 1, How::Replace), Reply::Done),
        did(52, 60, Ask::Lookup(1), Reply::Leads(7)),
        did(61, 70, Ask::Lookup(1), Reply::Leads(8)),
        did(100, 110, rename(0, 1, How::Replace), Reply::Missing),
        did(111, 120, Ask::Unlink(1), Reply::Done),
        did(121, 130, Ask::Unlink(1), Reply::Missing),
    ];
    assert_eq!(explain(honest), Ok(()));
}

#[test]
fn names_that_nobody_can_have_seen_so_are_found() {
    let made = did(0, 10, Ask::Create(0), Reply::Leads(7));
    let to_one = Ask::Rename {
        from: 0,
        to: 1,
        how: How::Replace,
    };
    let moved = did(20, 30, to_one, Reply::Done);
    let lies: [&[Did]; 6] = [
        // Two programs have made one name.
        &[made, did(5, 15, Ask::Create(0), Reply::Leads(8))],
        // It is shown no more, or still.
        &[made, did(20, 30, Ask::Lookup(0), Reply::Missing)],
        &[made, moved, did(40, 50, Ask::Lookup(0), Reply::Leads(7))],
        // It was in both places, or in none.
        &[
            made,
            moved,
            did(21, 22, Ask::Lookup(1), Reply::Leads(7)),
            did(23, 24, Ask::Lookup(0), Reply::Leads(7)),
        ],
        &[
            made,
            moved,
            did(21, 22, Ask::Lookup(0), Reply::Missing),
            did(23, 24, Ask::Lookup(1), Reply::Missing),
        ],
        // Two programs have moved it.
        &[made, moved, did(25, 35, Ask::Unlink(0), Reply::Done)],
    ];
    for lie in lies {
        explain(lie.iter().copied()).expect_err("no order explains it");
    }
}
