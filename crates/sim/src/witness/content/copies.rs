//! Which values a copy may have brought: those that a cell of its source may have had at some moment while it was
//! under way.
//!
//! These are the values of all changes of the source's cell that had begun when the copy ended, but those that
//! another change had certainly replaced before the copy began. What was itself copied there may be any of the
//! values that the earlier copy may have brought.

use super::{File, Object, Step, What};
use crate::witness::{Call, History};
use model::InodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// A cell that a copy changes: the event, and the cell of its target.
type Copied = (usize, usize);

/// Fills in the values of all copies.
pub(super) fn resolve(history: &History, files: &mut BTreeMap<InodeId, File>) {
    let mut brought: BTreeMap<Copied, BTreeSet<u64>> = BTreeMap::new();
    // What one copy may have brought another one may have copied from there; the sets only grow.
    loop {
        let mut has_grown = false;
        for (number, event) in history.events.iter().enumerate() {
            let Call::Copy {
                from: (source, first),
                cell,
                cells,
                ..
            } = event.call
            else {
                continue;
            };
            for at in 0..cells {
                let steps = files
                    .get(&source)
                    .and_then(|file| file.get(&Object::Cell(first + at)));
                let steps = steps.map_or(&[][..], Vec::as_slice);
                let values = values_during(steps, (event.begun, event.ended), &|step: &Step| {
                    brought.get(&(step.event, first + at))
                });
                let known = brought.entry((number, cell + at)).or_default();
                let before = known.len();
                known.extend(values);
                has_grown |= known.len() > before;
            }
        }
        if !has_grown {
            break;
        }
    }
    for file in files.values_mut() {
        for (object, steps) in file {
            let Object::Cell(cell) = object else { continue };
            keep_what_shows(steps, |step| brought.get(&(step.event, *cell)));
        }
    }
}

/// The values that a cell may have had between two moments.
fn values_during<'a>(
    steps: &[Step],
    (begun, ended): (u64, u64),
    brought: &dyn Fn(&Step) -> Option<&'a BTreeSet<u64>>,
) -> BTreeSet<u64> {
    let is_change = |step: &&Step| matches!(step.what, What::Set(_) | What::OneOf(_));
    let changes = || steps.iter().filter(is_change);
    // The begin of the newest one that was there for certain before the copy.
    let certain = changes().filter(|step| !step.is_optional && step.ended < begun);
    let newest = certain.map(|step| step.begun).max();
    let mut values = BTreeSet::new();
    if newest.is_none() {
        values.insert(0);
    }
    for step in changes() {
        let is_replaced = newest.is_some_and(|newest| step.ended < newest);
        if step.begun > ended || is_replaced {
            continue;
        }
        match &step.what {
            What::Set(value) => drop(values.insert(*value)),
            _ => values.extend(brought(step).into_iter().flatten()),
        }
    }
    values
}

/// Leaves a copy the values that somebody has seen there, and one of the others: they are all the same to a search.
fn keep_what_shows<'a>(steps: &mut [Step], brought: impl Fn(&Step) -> Option<&'a BTreeSet<u64>>) {
    let seen: BTreeSet<u64> = steps
        .iter()
        .filter_map(|step| match step.what {
            What::Is(value) => Some(value),
            _ => None,
        })
        .collect();
    for step in steps {
        let all = brought(step);
        if let What::OneOf(values) = &mut step.what {
            let all = all.into_iter().flatten();
            let (shown, others): (Vec<u64>, Vec<u64>) = all.partition(|it| seen.contains(it));
            *values = shown
                .into_iter()
                .chain(others.into_iter().take(1))
                .collect::<Rc<[u64]>>();
        }
    }
}
