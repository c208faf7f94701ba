//! Publishes extents, and reads them.

use crate::{
    Inode, View, allocated, balance::REPLACED_EXTENTS_MAX, extents, segments,
    transaction::Transaction, view::Step,
};
use bytes::{Bytes, BytesMut};
use model::{
    Error, ErrorKind, Extent, ExtentKind, InodeId, Reply,
    limits::{FILE_BYTES_MAX, INLINE_FILE_BYTES_MAX, INLINE_WRITE_BYTES_MAX, PUBLISH_EXTENTS_MAX},
    operation::Publish,
};
use std::{borrow::Cow, sync::Arc};

/// Most extents that one read returns.
const READ_EXTENTS_MAX: usize = 4096;

/// The extents that touch a range, in order.
type Old = Vec<Arc<Extent>>;

/// Publishes extents, replacing the old content of their ranges.
pub(crate) fn publish<V: View>(tx: &mut Transaction<'_, V>, publish: &Publish) -> Step<Reply> {
    let id = publish.inode;
    tx.ask_change(id);
    tx.stop_if_missing()?;
    let inode = tx.file(id)?;
    check(publish, &inode)?;
    let by_writer = publish.replaces.is_none();
    match merged_content(publish, &inode) {
        Some(content) => put_content(tx, id, content)?,
        None => put_extents(tx, publish)?,
    }
    if by_writer {
        let size = inode.size.max(publish.size_at_least);
        extents::set_size(tx, id, size)?;
        let latest = tx.now.latest;
        let inode = tx.inode_mut(id)?;
        if let Some((written, generation)) = publish.written
            && generation == inode.generation
        {
            let written = written.min(latest);
            inode.mtime = inode.mtime.after_write(inode.ctime, written);
            inode.ctime = inode.ctime.max(written);
        }
    }
    let inode = tx.inode(id)?;
    Ok(Reply::Attributes {
        attributes: inode.attributes(id),
        unfinished: inode.cutting_from.is_some(),
    })
}

/// Returns the places of a range's bytes.
pub(crate) fn read_extents<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    offset: u64,
    length: u64,
    limit: u32,
) -> Step<Reply> {
    let inode = tx.file(id)?;
    // Callers ask for "the rest" with a length that overflows.
    let to = offset.saturating_add(length).min(FILE_BYTES_MAX);
    // Extents that a truncate has yet to remove are no longer part of the file.
    let to_shown = to.min(inode.cutting_from.unwrap_or(to));
    let limit = (limit as usize).clamp(1, READ_EXTENTS_MAX);
    let found = extents::touching(tx, id, &inode, offset, to_shown, limit)?;
    let known_to = if found.known_to >= to_shown {
        to
    } else {
        found.known_to
    };
    let extents: Vec<Extent> = found
        .extents
        .iter()
        .filter_map(|extent| extent.clip(offset, to_shown.min(known_to)))
        .take(limit)
        .collect();
    // The extent across the end may exceed the limit by one.
    let cut_short = found.extents.len() > limit;
    let known_to = if cut_short {
        extents.last().map_or(offset, Extent::end)
    } else {
        known_to
    };
    Ok(Reply::Extents {
        extents,
        known_to,
        attributes: inode.attributes(id),
    })
}

fn check(publish: &Publish, inode: &Inode) -> Step<()> {
    let wrong = |why: &str| Err(Error::new(ErrorKind::InvalidArgument, why).into());
    if publish.extents.len() > PUBLISH_EXTENTS_MAX {
        return wrong("a publish carries at most 256 extents");
    }
    let mut last_end = 0;
    for extent in &publish.extents {
        let Some(end) = extent
            .offset
            .checked_add(extent.length)
            .filter(|end| *end <= FILE_BYTES_MAX)
        else {
            return Err(ErrorKind::FileTooLarge.into());
        };
        if extent.length == 0 || extent.offset < last_end {
            return wrong("extents of a publish are sorted, not empty, and don't overlap");
        }
        last_end = end;
        let fits = match &extent.kind {
            ExtentKind::Data { place, at, .. } => {
                u64::from(*at) + extent.length <= u64::from(place.length)
            }
            ExtentKind::Inline(bytes) => {
                bytes.len() as u64 == extent.length
                    && bytes.len() <= INLINE_WRITE_BYTES_MAX as usize
            }
            ExtentKind::Reserved => true,
        };
        if !fits {
            return wrong("an extent is longer than its bytes");
        }
    }
    // They are searched by bisection.
    let replaces = publish.replaces.as_deref().unwrap_or_default();
    let end = |extent: &Extent| extent.offset.saturating_add(extent.length);
    if !replaces.is_sorted_by(|first, second| end(first) <= second.offset) {
        return wrong("the extents that a publish replaces are sorted and don't overlap");
    }
    if publish.size_at_least > FILE_BYTES_MAX {
        return Err(ErrorKind::FileTooLarge.into());
    }
    if publish.replaces.is_none() && last_end > inode.size.max(publish.size_at_least) {
        return wrong("a publish reaches past the end of the file");
    }
    if inode
        .cutting_from
        .is_some_and(|cut| last_end > cut || publish.size_at_least > cut)
    {
        return Err(ErrorKind::Busy.into());
    }
    Ok(())
}

/// The merged content of a file that stays small enough to live in the inode.
fn merged_content(publish: &Publish, inode: &Inode) -> Option<Bytes> {
    let size = inode.size.max(publish.size_at_least);
    let eligible = inode.extents == 0
        && publish.replaces.is_none()
        && !publish.extents.is_empty()
        && size <= u64::from(INLINE_FILE_BYTES_MAX)
        && publish
            .extents
            .iter()
            .all(|extent| matches!(extent.kind, ExtentKind::Inline(_)));
    if !eligible {
        return None;
    }
    if let [extent] = publish.extents.as_slice()
        && let ExtentKind::Inline(bytes) = &extent.kind
        && extent.offset == 0
        && bytes.len() >= inode.content.len()
    {
        return Some(extents::owned(bytes));
    }
    let mut content = BytesMut::from(&inode.content[..]);
    for extent in &publish.extents {
        let ExtentKind::Inline(bytes) = &extent.kind else {
            return None;
        };
        let from = usize::try_from(extent.offset).ok()?;
        if from > content.len() {
            // A hole in between would be lost in contiguous content.
            return None;
        }
        let to = from + bytes.len();
        if to > content.len() {
            content.resize(to, 0);
        }
        content[from..to].copy_from_slice(bytes);
    }
    Some(content.freeze())
}

fn put_content<V: View>(tx: &mut Transaction<'_, V>, id: InodeId, content: Bytes) -> Step<()> {
    let commit = tx.commit;
    let inode = tx.inode_mut(id)?;
    let (old, new) = (inode.content.len() as u64, content.len() as u64);
    inode.content = content;
    inode.content_birth = commit;
    allocated::take_allocated(tx, id, old)?;
    allocated::add_allocated(tx, id, new)
}

fn put_extents<V: View>(tx: &mut Transaction<'_, V>, publish: &Publish) -> Step<()> {
    if publish.extents.is_empty() {
        return Ok(());
    }
    let id = publish.inode;
    extents::spill(tx, id)?;
    let inode = tx.inode(id)?;
    let asked = ranges(&publish.extents);
    segments::ask_publish(tx, &publish.extents);
    let found: Option<Vec<Old>> = {
        let found: Vec<Option<Old>> = asked
            .iter()
            .map(|(from, to)| {
                let found = extents::ask_touching(tx, id, &inode, *from, *to, REPLACED_EXTENTS_MAX);
                found.map(|touching| touching.extents)
            })
            .collect();
        found.into_iter().collect()
    };
    tx.stop_if_missing()?;
    let mut found = found.expect("nothing was missing");
    if found.iter().map(Vec::len).sum::<usize>() >= REPLACED_EXTENTS_MAX {
        let text = "a publish replaces too many extents at once: publish smaller ranges";
        return Err(Error::new(ErrorKind::Overflow, text).into());
    }
    let mut extents = Cow::Borrowed(&publish.extents[..]);
    let mut cleared = asked;
    if let Some(replaces) = &publish.replaces {
        let holds = |extent: &&Extent| holds_exactly(extent, &cleared, &found, replaces);
        let unchanged: Vec<Extent> = extents.iter().filter(holds).cloned().collect();
        if unchanged.is_empty() {
            return Err(ErrorKind::Changed.into());
        }
        let is_less = unchanged.len() < extents.len();
        // Only now: one of many ranges that changed must not keep the others out.
        extents = Cow::Owned(Extent::joined(unchanged));
        if is_less {
            let fewer = ranges(&extents);
            found = fewer
                .iter()
                .map(|range| touched(*range, &cleared, &found).to_vec())
                .collect();
            cleared = fewer;
        }
    }
    // Counts new bytes before releasing old ones, so that a segment in both never looks dead in
    // between.
    segments::ask(
        tx,
        found
            .iter()
            .flat_map(|old| old.iter().map(|extent| &**extent)),
    );
    tx.stop_if_missing()?;
    for extent in &*extents {
        segments::publish(tx, id, inode.data, extent, publish.replaces.is_none())?;
    }
    let mut rest: Option<Extent> = None;
    for ((from, to), mut old) in cleared.iter().zip(found) {
        // If several ranges touch one old extent, the first range has already cut it.
        if let (Some(rest), Some(first)) = (rest.take(), old.first_mut())
            && rest.end() == first.end()
        {
            *first = Arc::new(rest);
        }
        extents::clear(tx, id, &old, *from, *to)?;
        rest = old.last().and_then(|last| last.clip(*to, u64::MAX));
    }
    let birth = tx.commit;
    for extent in &*extents {
        extents::insert(
            tx,
            id,
            Extent {
                birth,
                ..extent.clone()
            },
        )?;
    }
    Ok(())
}

/// The ranges that sorted extents cover, neighbours joined.
fn ranges(extents: &[Extent]) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for extent in extents {
        match ranges.last_mut() {
            Some((_, to)) if *to == extent.offset => *to = extent.end(),
            _ => ranges.push((extent.offset, extent.end())),
        }
    }
    ranges
}

/// Those of the extents found in `ranges` that touch a part of one of them.
fn touched<'f>(
    (from, to): (u64, u64),
    ranges: &[(u64, u64)],
    found: &'f [Old],
) -> &'f [Arc<Extent>] {
    let old = &found[ranges.partition_point(|(_, end)| *end <= from)];
    let first = old.partition_point(|extent| extent.end() <= from);
    let end = old.partition_point(|extent| extent.offset < to);
    &old[first..end.max(first)]
}

/// Whether a new extent's range contains exactly what the publisher expects.
fn holds_exactly(
    extent: &Extent,
    ranges: &[(u64, u64)],
    found: &[Old],
    replaces: &[Extent],
) -> bool {
    let (from, to) = (extent.offset, extent.end());
    let now = touched((from, to), ranges, found);
    let now = now.iter().filter_map(|old| old.clip(from, to));
    let believed = &replaces[replaces.partition_point(|old| old.end() <= from)..];
    now.eq(believed.iter().map_while(|old| old.clip(from, to)))
}
