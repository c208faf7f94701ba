//! Changing ranges without data: punch, zero, reserve, and sharing between files.

use crate::{
    Inode, Key, View, extents, segments,
    transaction::{Step, Transaction, touch_content},
};
use model::{
    Error, ErrorKind, Extent, ExtentKind, InodeId, Reply, limits::FILE_BYTES_MAX,
    operation::RangeChange,
};

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
    tx.settle()?;
    let inode = tx.file(id)?;
    let end = range_end(offset, length)?;
    still(&inode, end)?;
    extents::spill(tx, id)?;
    let inode = tx.inode(id)?;
    let found = extents::touching(tx, id, &inode, offset, end, extents::STEP_EXTENTS)?;
    let done_to = found.known_to.min(end);
    let reserved = |from: u64, to: u64, birth| Extent {
        offset: from,
        length: to - from,
        kind: ExtentKind::Reserved,
        birth,
    };
    let birth = tx.commit;
    match change {
        RangeChange::Punch => extents::clear(tx, id, &found.extents, offset, done_to)?,
        RangeChange::Zero => {
            extents::clear(tx, id, &found.extents, offset, done_to)?;
            extents::insert(tx, id, reserved(offset, done_to, birth))?;
        }
        RangeChange::Reserve => {
            let mut at = offset;
            for extent in &found.extents {
                if extent.offset > at {
                    extents::insert(tx, id, reserved(at, extent.offset, birth))?;
                }
                at = extent.end();
            }
            if at < done_to {
                extents::insert(tx, id, reserved(at, done_to, birth))?;
            }
        }
    }
    if !keep_size && change != RangeChange::Punch {
        extents::set_size(tx, id, inode.size.max(done_to))?;
    }
    finish(tx, id, (done_to < end).then_some(done_to))
}

/// Lets `to` point at the segments of `from`; one step of bounded size.
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
    tx.settle()?;
    let source = tx.file(from)?;
    let target = tx.file(to)?;
    let end = from_offset.saturating_add(length).min(source.size);
    if from_offset >= end {
        return Ok(Reply::RangeChanged {
            attributes: target.attributes(to),
            next: None,
        });
    }
    let length = end - from_offset;
    let to_end = range_end(to_offset, length)?;
    if from == to && from_offset < to_end && to_offset < end {
        return Err(
            Error::new(ErrorKind::InvalidArgument, "source and destination overlap").into(),
        );
    }
    still(&target, to_end)?;
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
    tx.settle()?;
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
    tx.settle()?;
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
    finish(tx, to, (done < length).then_some(from_offset + done))
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

/// Nothing may come to lie where a truncate still removes.
fn still(inode: &Inode, end: u64) -> Step<()> {
    match inode.cutting_from {
        Some(cut) if end > cut => Err(ErrorKind::Busy.into()),
        _ => Ok(()),
    }
}
