//! Explains what programs read: each cell of each file, each size, and each time of a last change, is an object of
//! its own.
//!
//! That is weaker than to ask for one order of whole operations: a read of several cells isn't asked to
//! be of one moment. It is right for each cell: no read may show an older one than another read, or than
//! a write that was answered before.

use super::linear::{self, Step, What};
use super::{Answer, Call, ClientNumber, Event, History, NEVER, NOW, Tick};
use model::InodeId;
use std::collections::{BTreeMap, BTreeSet};

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

/// The objects of a file, with their steps.
type File = BTreeMap<Object, Vec<Step>>;

/// Explains content and sizes. Returns how many steps that took.
pub(super) fn explain(history: &History) -> Result<usize, String> {
    let synced = syncs(history);
    let newest_seen = newest_seen(history);
    let mut files: BTreeMap<InodeId, File> = BTreeMap::new();
    for (number, event) in history.events.iter().enumerate() {
        let Some((inode, parts)) = parts(event) else {
            continue;
        };
        let file = files.entry(inode).or_default();
        let is_lost = history.lost.contains(&event.client);
        let is_durable = || {
            let fsyncs = synced.get(&(event.client, inode));
            fsyncs.is_some_and(|fsyncs| fsyncs.range(event.ended..).next().is_some())
        };
        // What programs store in mappings is written back in any order.
        let is_store = matches!(event.call, Call::Store { .. });
        let is_write = is_store || matches!(event.call, Call::Write { .. } | Call::Append { .. });
        // What a client writes to a file is kept in its order: what another one has seen isn't there
        // without what was written before.
        let is_before_seen = || {
            let newest = newest_seen.get(&(event.client, inode));
            !is_store && newest.is_some_and(|newest| event.ended < *newest)
        };
        // It may be gone with its client, as if it had never been.
        let may_be_lost = is_write && is_lost && !is_durable() && !is_before_seen();
        // A program may have seen what is lost with it.
        let sees_lost = is_lost && !is_write && event.answer != Answer::Done;
        let is_optional = may_be_lost || sees_lost || event.answer == Answer::Unknown;
        for (object, what) in parts {
            let is_optional = is_optional || object == Object::Time && may_leave_time(&event.call);
            file.entry(object).or_default().push(Step {
                begun: event.begun,
                ended: if is_optional { NEVER } else { event.ended },
                is_optional,
                what,
                event: number,
            });
        }
    }
    let mut count = 0;
    for (inode, file) in files {
        for (object, steps) in file {
            count += steps.len();
            linear::explain(steps.clone(), 0)
                .map_err(|event| describe(history, inode, object, &steps, event))?;
        }
    }
    Ok(count)
}

/// Whether a change of a file may leave its time, or set it later: when a page is written back.
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
    let mut written = BTreeMap::new();
    for event in &history.events {
        if let Call::Write { inode, value, .. }
        | Call::Append { inode, value, .. }
        | Call::Store { inode, value, .. } = &event.call
        {
            written.insert((*inode, *value), (event.client, event.begun));
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
            if let Some((client, begun)) = written.get(&(*inode, *cell))
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
            parts.extend(set(*cell, 1, *value));
            parts.push(now);
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
        Call::Copy {
            inode,
            cell,
            cells,
            first,
            ..
        } => {
            parts.push((Object::Size, What::Raise((cell + cells) as u64)));
            let copied = (*cell..cell + cells).zip(*first..);
            parts.push(now);
            parts.extend(copied.map(|(cell, value)| (Object::Cell(cell), What::Set(value.into()))));
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
            if read.len() < *cells {
                // It ended there, or before: the file had no more.
                let end = cell + read.len();
                parts.push((
                    Object::Size,
                    match read.is_empty() {
                        true => What::AtMost(end as u64),
                        false => What::Is(end as u64),
                    },
                ));
            }
            *inode
        }
        Call::Load { inode, cell } if !is_unknown => {
            let Answer::Cells(read) = &event.answer else {
                return None;
            };
            let value = *read.first()?;
            parts.push((Object::Cell(*cell), What::Is(value.into())));
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
