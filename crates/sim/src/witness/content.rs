//! Explains what programs read: each cell of each file, each size, and each time of a last change, is an object of
//! its own.
//!
//! That is weaker than to ask for one order of whole operations: a read of several cells isn't asked to
//! be of one moment. It is right for each cell: no read may show an older one than another read, or than
//! a write that was answered before.
//!
//! A copy gives a cell one of the values that its source had while it was under way ([`copies`]); which one shows
//! in what is read of the cell afterwards.

mod copies;
mod what;

use super::gone::Gone;
use super::order::{self, Failed};
use super::{Answer, Call, ClientNumber, Event, History, NEVER, NOW, Tick};
use model::InodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use what::What;

/// Cells of the longest file.
pub const CELLS_MAX: usize = 64;

/// An object of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Object {
    Size,
    /// When it was last changed.
    Time,
    Cell(usize),
}

/// Most places that a search for an order visits before it gives up.
const VISITS_MAX: usize = 300_000;

type Step = order::Step<What>;

/// The objects of a file, with their steps.
type File = BTreeMap<Object, Vec<Step>>;

/// Explains content and sizes. Returns how many steps that took.
pub(super) fn explain(history: &History) -> Result<usize, String> {
    let lost = Losses::of(history);
    let mut files: BTreeMap<InodeId, File> = BTreeMap::new();
    for (number, event) in history.events.iter().enumerate() {
        let Some((inode, parts)) = parts(event) else {
            continue;
        };
        // It was made when it was answered, or is gone with its client as if it had never been: it can't come later.
        let is_unknown = event.answer == Answer::Unknown;
        let may_not_be = is_unknown || lost.may_be_lost(event);
        let mut add = |inode, object, what: What, may_not_be, may_be_late| {
            let is_look = what.is_look();
            if is_look && (may_not_be || lost.shows_lost(event, inode, object, &what)) {
                return;
            }
            let file = files.entry(inode).or_default();
            file.entry(object).or_default().push(Step {
                begun: event.begun,
                ended: match may_be_late {
                    true if is_unknown => history.made_by(event.client),
                    true => NEVER,
                    false => event.ended,
                },
                is_optional: may_not_be,
                what,
                event: number,
            });
        };
        let is_store = matches!(event.call, Call::Store { .. });
        for (object, what) in parts {
            let is_time = object == Object::Time;
            let may_not_be = may_not_be || is_time && may_leave_time(&event.call);
            add(
                inode,
                object,
                what,
                may_not_be,
                is_unknown || is_time && is_store,
            );
        }
        if let Some((source, what)) = size_of_source(event) {
            add(source, Object::Size, what, is_unknown, false);
        }
        for size in sizes_between(event) {
            add(inode, Object::Size, What::Raise(size), true, is_unknown);
        }
    }
    copies::resolve(history, &mut files);
    let mut count = 0;
    for (inode, file) in files {
        for (object, steps) in file {
            count += steps.len();
            let explained = order::explain(steps.clone(), 0, VISITS_MAX);
            explained.map_err(|failed| match failed {
                Failed::At(_, events) => describe(history, inode, object, &steps, events[0]),
                Failed::GivenUp => format!(
                    "the search for an order of {object:?} of inode {inode} was given up: {} steps",
                    steps.len()
                ),
            })?;
        }
    }
    Ok(count)
}

/// What may be gone with clients that were lost.
struct Losses<'a> {
    history: &'a History,
    gone: Gone<'a>,
    synced: BTreeMap<(ClientNumber, InodeId), BTreeSet<Tick>>,
    newest_seen: BTreeMap<(ClientNumber, InodeId), Tick>,
    /// When each client began the first write to a file that may be lost, and the values of all of them.
    lost: BTreeMap<(ClientNumber, InodeId), (Tick, BTreeSet<u64>)>,
}

impl<'a> Losses<'a> {
    fn of(history: &'a History) -> Self {
        let mut losses = Self {
            history,
            gone: Gone::of(history),
            synced: syncs(history),
            newest_seen: newest_seen(history),
            lost: BTreeMap::new(),
        };
        let mut lost: BTreeMap<_, (Tick, BTreeSet<u64>)> = BTreeMap::new();
        for event in &history.events {
            if let Some((inode, value)) = written(&event.call)
                && losses.may_be_lost(event)
            {
                let (first, values) = lost
                    .entry((event.client, inode))
                    .or_insert_with(|| (event.begun, BTreeSet::new()));
                *first = event.begun.min(*first);
                values.insert(value.into());
            }
        }
        losses.lost = lost;
        losses
    }

    /// Whether it may be gone with its client, as if it had never been: it was written behind, and neither made
    /// durable nor seen by another client.
    fn may_be_lost(&self, event: &Event) -> bool {
        let Some((inode, _)) = written(&event.call) else {
            // What was sent to an owner in its own process may be gone as well.
            return event.is_near && self.gone.may_be(event);
        };
        let of_file = (event.client, inode);
        let is_durable = || {
            let fsyncs = self.synced.get(&of_file);
            fsyncs.is_some_and(|fsyncs| fsyncs.range(event.ended..).next().is_some())
        };
        // What a client writes to a file is kept in its order: what another one has seen isn't there
        // without what was written before. What programs store in mappings is written back in any order.
        let is_store = matches!(event.call, Call::Store { .. });
        let is_before_seen = || {
            let newest = self.newest_seen.get(&of_file);
            !is_store && newest.is_some_and(|newest| event.ended < *newest)
        };
        self.history.lost.contains(&event.client) && !is_durable() && !is_before_seen()
    }

    /// Whether a look may show what its own client has written and lost afterwards.
    fn shows_lost(&self, event: &Event, inode: InodeId, object: Object, what: &What) -> bool {
        if self.gone.may_be(event) {
            return true;
        }
        let Some((first, values)) = self.lost.get(&(event.client, inode)) else {
            return false;
        };
        match (object, what) {
            (Object::Cell(_), What::Is(value)) => values.contains(value),
            _ => *first < event.ended,
        }
    }
}

/// What a client writes behind: which file, and the value.
fn written(call: &Call) -> Option<(InodeId, u32)> {
    match call {
        Call::Write { inode, value, .. }
        | Call::Append { inode, value, .. }
        | Call::Store { inode, value, .. } => Some((*inode, *value)),
        _ => None,
    }
}

/// Whether a change of a file may leave its time: if it changes nothing, or, of a store, until its page is written back.
fn may_leave_time(call: &Call) -> bool {
    matches!(
        call,
        Call::Store { .. } | Call::Reserve { .. } | Call::Punch { .. }
    )
}

/// When each client began the fsyncs of a file that succeeded.
fn syncs(history: &History) -> BTreeMap<(ClientNumber, InodeId), BTreeSet<Tick>> {
    let mut synced: BTreeMap<_, BTreeSet<Tick>> = BTreeMap::new();
    for event in &history.events {
        if let (Call::Fsync { inode }, Answer::Done) = (&event.call, &event.answer) {
            let of_file = synced.entry((event.client, *inode)).or_default();
            of_file.insert(event.begun);
        }
    }
    synced
}

/// When each client began the last of its writes to a file that another client has read.
fn newest_seen(history: &History) -> BTreeMap<(ClientNumber, InodeId), Tick> {
    let mut written_by = BTreeMap::new();
    for event in &history.events {
        if let Some((inode, value)) = written(&event.call) {
            written_by.insert((inode, value), (event.client, event.begun));
        }
    }
    let mut newest: BTreeMap<_, Tick> = BTreeMap::new();
    for event in &history.events {
        let (Call::Read { inode, .. } | Call::Load { inode, .. }, Answer::Cells(cells)) =
            (&event.call, &event.answer)
        else {
            continue;
        };
        for cell in cells {
            if let Some((client, begun)) = written_by.get(&(*inode, *cell))
                && *client != event.client
            {
                let known = newest.entry((*client, *inode)).or_default();
                *known = (*known).max(*begun);
            }
        }
    }
    newest
}

type Part = (Object, What);

/// What an event does to the objects of a file, or says of them.
fn parts(event: &Event) -> Option<(InodeId, Vec<Part>)> {
    if matches!(event.answer, Answer::Refused(_)) {
        return None;
    }
    let is_unknown = event.answer == Answer::Unknown;
    let set = |cell: usize, cells: usize, value: u32| {
        (cell..cell + cells).map(move |cell| (Object::Cell(cell), What::Set(value.into())))
    };
    let now = (Object::Time, What::Set(NOW.into()));
    let mut parts = Vec::new();
    let inode = match &event.call {
        Call::Write {
            inode,
            cell,
            cells,
            value,
        } => {
            parts.push((Object::Size, What::Raise((cell + cells) as u64)));
            parts.extend(set(*cell, *cells, *value));
            parts.push(now);
            *inode
        }
        Call::Store { inode, cell, value } => {
            parts.push(now);
            // Behind the end it changes the page and nothing of the file, but the page is written back.
            if event.answer == Answer::Done {
                parts.extend(set(*cell, 1, *value));
                parts.push((Object::Size, What::AtLeast(*cell as u64 + 1)));
            }
            *inode
        }
        Call::SetTime { inode, time } => {
            parts.push((Object::Time, What::Set((*time).into())));
            *inode
        }
        Call::Append {
            inode,
            cells,
            value,
        } => {
            match event.answer {
                Answer::At(at) => {
                    let (from, to) = (at as u64, (at + cells) as u64);
                    parts.push((Object::Size, What::Move(from, to)));
                    parts.extend(set(at, *cells, *value));
                }
                _ => {
                    parts.push((Object::Size, What::Grow(*cells as u64)));
                    // Anywhere.
                    parts.extend(set(0, CELLS_MAX, *value));
                }
            }
            parts.push(now);
            *inode
        }
        Call::Truncate { inode, cells } => {
            parts.push((Object::Size, What::Set(*cells as u64)));
            parts.extend(set(*cells, CELLS_MAX - cells, 0));
            parts.push(now);
            *inode
        }
        Call::Punch { inode, cell, cells } => {
            parts.extend(set(*cell, *cells, 0));
            parts.push(now);
            *inode
        }
        Call::Zero { inode, cell, cells } => {
            parts.push((Object::Size, What::Raise((cell + cells) as u64)));
            parts.extend(set(*cell, *cells, 0));
            parts.push(now);
            *inode
        }
        Call::Reserve { inode, cell, cells } => {
            parts.push((Object::Size, What::Raise((cell + cells) as u64)));
            parts.push(now);
            *inode
        }
        Call::Copy { inode, cell, .. } => {
            let end = cell + copied_at_most(event);
            if end > *cell {
                parts.push((Object::Size, What::Raise(end as u64)));
                parts.push(now);
            }
            let copied = (*cell..end).map(|cell| (Object::Cell(cell), What::OneOf(Rc::default())));
            parts.extend(copied);
            *inode
        }
        Call::Read { inode, cell, cells } if !is_unknown => {
            let Answer::Cells(read) = &event.answer else {
                return None;
            };
            let at = |number: usize| read.get(number).copied().unwrap_or(0);
            for number in 0..*cells {
                parts.push((Object::Cell(cell + number), What::Is(at(number).into())));
            }
            // It ended there, or before: the file had no more.
            let end = (cell + read.len()) as u64;
            let size = match read.len() {
                0 => What::AtMost(end),
                all if all == *cells => What::AtLeast(end),
                _ => What::Is(end),
            };
            parts.push((Object::Size, size));
            *inode
        }
        Call::Load { inode, cell } if !is_unknown => {
            let Answer::Cells(read) = &event.answer else {
                return None;
            };
            let value = *read.first()?;
            parts.push((Object::Cell(*cell), What::Is(value.into())));
            parts.push((Object::Size, What::AtLeast(*cell as u64 + 1)));
            *inode
        }
        Call::Seek { inode, cell } if !is_unknown => {
            let Answer::ZerosTo(data) = event.answer else {
                return None;
            };
            let zeros = *cell..data;
            parts.extend(zeros.map(|cell| (Object::Cell(cell), What::Is(0))));
            *inode
        }
        Call::Stat { inode } if !is_unknown => {
            let Answer::Inode(seen) = &event.answer else {
                return None;
            };
            parts.push((Object::Size, What::Is(seen.cells? as u64)));
            parts.push((Object::Time, What::Is(seen.time?.into())));
            *inode
        }
        _ => return None,
    };
    Some((inode, parts))
}

/// Cells that a copy may have changed.
fn copied_at_most(event: &Event) -> usize {
    match (&event.call, &event.answer) {
        (_, Answer::Copied(copied)) => *copied,
        (Call::Copy { cells, .. }, _) => *cells,
        _ => 0,
    }
}

/// The sizes that a copy may have given its target on the way: it goes in steps.
fn sizes_between(event: &Event) -> impl Iterator<Item = u64> + use<> {
    let cell = match event.call {
        Call::Copy { cell, .. } => cell,
        _ => 0,
    };
    (1..copied_at_most(event)).map(move |copied| (cell + copied) as u64)
}

/// What a copy says of the size of its source.
fn size_of_source(event: &Event) -> Option<(InodeId, What)> {
    let (
        Call::Copy {
            from: (source, first),
            cells,
            ..
        },
        Answer::Copied(copied),
    ) = (&event.call, &event.answer)
    else {
        return None;
    };
    let end = (first + copied) as u64;
    let what = match copied < cells {
        true => What::AtMost(end),
        false => What::AtLeast(end),
    };
    Some((*source, what))
}

fn describe(
    history: &History,
    inode: InodeId,
    object: Object,
    steps: &[Step],
    event: usize,
) -> String {
    let mut around: Vec<_> = steps.iter().collect();
    around.sort_by_key(|step| step.begun);
    let at = around.iter().position(|step| step.event == event);
    let from = at.unwrap_or(0).saturating_sub(12);
    let near = around.iter().skip(from).take(20);
    let near: Vec<_> = near
        .map(|step| {
            let of = &history.events[step.event];
            let (client, begun, ended) = (of.client, of.begun, of.ended);
            let optional = if step.is_optional { "?" } else { "" };
            format!("{:?}{optional} by {client} {begun}..{ended}", step.what)
        })
        .collect();
    format!(
        "no order explains {object:?} of inode {inode}, with {:?}; near it: {near:#?}",
        history.events[event]
    )
}
