//! Changes ranges without new data: punch, zero, reserve, and sharing between files.

use crate::{
    Inode, Key, View, extents, segments,
    transaction::{Transaction, touch_content},
    view::Step,
};
use model::{
    Error, ErrorKind, Extent, ExtentKind, InodeId, Reply, limits::FILE_BYTES_MAX,
    operation::RangeChange,
};
use std::sync::Arc;

/// Extents that one step of sharing reads.
const SHARED_EXTENTS: usize = extents::STEP_EXTENTS / 4;

/// Punches, zeroes or reserves; one step of bounded size.
pub(crate) fn change_range<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    offset: u64,
    length: u64,
    change: RangeChange,
    keep_size: bool,
) -> Step<Reply> {
    tx.ask_change(id);
    tx.stop_if_missing()?;
    let inode = tx.file(id)?;
    let end = range_end(offset, length)?;
    refuse_while_cutting(&inode, end)?;
    extents::spill(tx, id)?;
    let inode = tx.inode(id)?;
    // Includes the range's neighbours: reserved ones merge with the new reservation.
    let from = offset.saturating_sub(1);
    let found = extents::touching(tx, id, &inode, from, end + 1, extents::STEP_EXTENTS)?;
    let done_to = found.known_to.min(end);
    match change {
        RangeChange::Punch => extents::clear(tx, id, &found.extents, offset, done_to)?,
        RangeChange::Zero => {
            let (reserved, data): (Vec<_>, Vec<_>) =
                found.extents.into_iter().partition(|it| is_reserved(it));
            extents::clear(tx, id, &data, offset, done_to)?;
            reserve(tx, id, &reserved, offset, done_to)?;
        }
        RangeChange::Reserve => {
            let mut at = offset;
            for data in found.extents.iter().filter(|it| !is_reserved(it)) {
                let gap_end = data.offset.min(done_to);
                reserve(tx, id, &found.extents, at, gap_end)?;
                at = at.max(data.end());
            }
            reserve(tx, id, &found.extents, at, done_to)?;
        }
    }
    if !keep_size && change != RangeChange::Punch {
        extents::set_size(tx, id, inode.size.max(done_to))?;
    }
    finish(tx, id, (done_to < end).then_some(done_to))
}

/// Reserves `from..to`, which holds no data. Merges with reserved extents inside or adjacent:
/// however small the steps in which a range is reserved, it is one record.
fn reserve<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    found: &[Arc<Extent>],
    from: u64,
    to: u64,
) -> Step<()> {
    if from >= to {
        return Ok(());
    }
    let touches = |it: &&Arc<Extent>| is_reserved(it) && it.end() >= from && it.offset <= to;
    let there: Vec<Arc<Extent>> = found.iter().filter(touches).cloned().collect();
    let (start, end) = match (there.first(), there.last()) {
        (Some(first), Some(last)) => (first.offset.min(from), last.end().max(to)),
        _ => (from, to),
    };
    if there.len() == 1 && (there[0].offset, there[0].end()) == (start, end) {
        return Ok(());
    }
    extents::clear(tx, id, &there, start, end)?;
    let reserved = Extent {
        offset: start,
        length: end - start,
        kind: ExtentKind::Reserved,
        birth: tx.commit,
    };
    extents::insert(tx, id, reserved)
}

fn is_reserved(extent: &Extent) -> bool {
    matches!(extent.kind, ExtentKind::Reserved)
}

/// Makes `to` share the segments of `from`; one step of bounded size.
pub(crate) fn share<V: View>(
    tx: &mut Transaction<'_, V>,
    from: InodeId,
    from_offset: u64,
    to: InodeId,
    to_offset: u64,
    length: u64,
) -> Step<Reply> {
    if from.fileset() != to.fileset() {
        return Err(ErrorKind::OtherFileset.into());
    }
    tx.ask(&Key::Inode(from));
    tx.ask_change(to);
    tx.stop_if_missing()?;
    let source = tx.file(from)?;
    let target = tx.file(to)?;
    let asked = length;
    let end = from_offset.saturating_add(length).min(source.size);
    if from_offset >= end {
        return Ok(Reply::RangeChanged {
            attributes: target.attributes(to),
            next: (asked > 0).then_some(from_offset),
        });
    }
    let length = end - from_offset;
    let to_end = range_end(to_offset, length)?;
    if from == to && from_offset < to_end && to_offset < end {
        return Err(
            Error::new(ErrorKind::InvalidArgument, "source and destination overlap").into(),
        );
    }
    refuse_while_cutting(&target, to_end)?;
    extents::spill(tx, to)?;
    let (source, target) = (tx.inode(from)?, tx.inode(to)?);
    let found = extents::ask_touching(tx, from, &source, from_offset, end, SHARED_EXTENTS);
    let replaced = extents::ask_touching(
        tx,
        to,
        &target,
        to_offset,
        to_end,
        extents::STEP_EXTENTS - SHARED_EXTENTS,
    );
    tx.stop_if_missing()?;
    let (found, replaced) = (
        found.expect("nothing was missing"),
        replaced.expect("nothing was missing"),
    );
    let done =
        (found.known_to.min(end) - from_offset).min(replaced.known_to.min(to_end) - to_offset);
    let birth = tx.commit;
    let new: Vec<Extent> = found
        .extents
        .iter()
        .filter_map(|extent| extent.clip(from_offset, from_offset + done))
        // A reservation isn't shared: it reads as a hole does.
        .filter(|extent| !matches!(extent.kind, ExtentKind::Reserved))
        .map(|extent| Extent {
            offset: extent.offset - from_offset + to_offset,
            birth,
            ..extent
        })
        .collect();
    segments::ask(tx, &new);
    segments::ask(tx, replaced.extents.iter().map(|extent| &**extent));
    tx.stop_if_missing()?;
    for extent in &new {
        if let ExtentKind::Data { place, .. } = &extent.kind {
            segments::retain(tx, place, extent.length)?;
        }
    }
    extents::clear(tx, to, &replaced.extents, to_offset, to_offset + done)?;
    for extent in new {
        extents::insert(tx, to, extent)?;
    }
    extents::set_size(tx, to, target.size.max(to_offset + done))?;
    finish(tx, to, (done < asked).then_some(from_offset + done))
}

fn finish<V: View>(tx: &mut Transaction<'_, V>, id: InodeId, next: Option<u64>) -> Step<Reply> {
    let now = tx.now;
    let inode = tx.inode_mut(id)?;
    touch_content(inode, now);
    Ok(Reply::RangeChanged {
        attributes: inode.attributes(id),
        next,
    })
}

fn range_end(offset: u64, length: u64) -> Step<u64> {
    if length == 0 {
        return Err(ErrorKind::InvalidArgument.into());
    }
    match offset.checked_add(length) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(end),
        _ => Err(ErrorKind::FileTooLarge.into()),
    }
}

/// No new extent may reach beyond a cut that is still being removed.
fn refuse_while_cutting(inode: &Inode, end: u64) -> Step<()> {
    match inode.cutting_from {
        Some(cut) if end > cut => Err(ErrorKind::Busy.into()),
        _ => Ok(()),
    }
}
