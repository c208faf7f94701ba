//! The operations that publish batches, as small as the owner needs them. Pure.

use crate::inode::Batch;
use model::operation::Publish;
use model::{Extent, InodeId, limits};

/// The operations that publish a batch whose data is stored, or the one that publishes several: of those the extents
/// are few enough, and don't overlap. They make the file as long as the largest of them says, and are dated as the last
/// one: its write was the last.
pub(super) fn publishes(inode: InodeId, batches: &[&Batch]) -> Vec<Publish> {
    let newest = batches.last().expect("something is published").pending();
    let written = Some((newest.written, newest.generation));
    let sizes = batches.iter().map(|batch| batch.pending().size);
    let size = sizes.max().unwrap_or(newest.size);
    let stored = batches.iter().flat_map(|batch| {
        let stored = batch.ready().expect("a written batch has its place");
        &stored.extents
    });
    let mut extents: Vec<&Extent> = stored.collect();
    extents.sort_unstable_by_key(|extent| extent.offset);
    let steps = extents.chunks(limits::PUBLISH_EXTENTS_MAX);
    let last = steps.len().saturating_sub(1);
    let publish = |(step, extents): (usize, &[&Extent])| Publish {
        inode,
        extents: extents.iter().copied().cloned().collect(),
        size_at_least: match extents.last() {
            Some(extent) if step < last => extent.end(),
            _ => size,
        },
        written,
        replaces: None,
    };
    steps.enumerate().map(publish).collect()
}

/// Splits a publish in two: its extents, or the bytes of a single extent. `None` for a single byte,
/// which overlaps only one old extent: so every publish can be split until its parts replace few
/// enough.
pub(super) fn halved(step: &Publish) -> Option<[Publish; 2]> {
    let (low, high) = match step.extents.as_slice() {
        [] => return None,
        [one] if one.length < 2 => return None,
        [one] => {
            let unit = u64::from(limits::UNIT_BYTES);
            let middle = one.offset + one.length / 2;
            let aligned = middle / unit * unit;
            let middle = if aligned > one.offset {
                aligned
            } else {
                middle
            };
            let part = |from, to| one.clip(from, to).into_iter().collect();
            (part(one.offset, middle), part(middle, one.end()))
        }
        several => {
            let (low, high) = several.split_at(several.len() / 2);
            (low.to_vec(), high.to_vec())
        }
    };
    let size = low.last().map(Extent::end)?;
    Some([
        Publish {
            extents: low,
            size_at_least: size,
            ..step.clone()
        },
        Publish {
            extents: high,
            ..step.clone()
        },
    ])
}
