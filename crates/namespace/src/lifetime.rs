//! How inodes and their records end: orphans, release, reclaim, dead segments.

use crate::{
    Dead, Key, Orphan, Reclaim, Record, View, counts, extents, numbers, segments,
    transaction::{Transaction, touch},
    view::Step,
};
use bytes::Bytes;
use model::{
    Attributes, CommitNumber, DataId, Error, ErrorKind, Extent, ExtentKind, FileKind, FilesetId,
    InodeId, Reply, SegmentId, SegmentPlace, limits::OPERATION_RECORDS_MAX,
};
use std::sync::Arc;

/// Removes one of an inode's names, in this directory; a directory loses all its links. Returns the
/// new attributes and whether the inode stays as an orphan.
pub(crate) fn drop_link<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    id: InodeId,
) -> Step<(Attributes, bool)> {
    numbers::return_run(tx, directory, id)?;
    let now = tx.now;
    let inode = tx.inode_mut(id)?;
    touch(inode, now);
    let left = counts::subtract(inode.links, 1, id, "links")?;
    inode.links = if inode.kind == FileKind::Directory {
        0
    } else {
        left
    };
    let (attributes, links) = (inode.attributes(id), inode.links);
    if links > 0 {
        return Ok((attributes, false));
    }
    if tx.is_held(id) {
        let orphan = Record::Orphan(Orphan { linkable: false });
        tx.put_new(Key::Orphan(id), orphan)?;
        return Ok((attributes, true));
    }
    destroy(tx, id)?;
    Ok((attributes, false))
}

/// Handles the last holder's release.
pub(crate) fn release<V: View>(tx: &mut Transaction<'_, V>, id: InodeId) -> Step<Reply> {
    let orphan = tx.look(&Key::Orphan(id));
    tx.ask_change(id);
    tx.stop_if_missing()?;
    if orphan.flatten().is_none() {
        return Ok(Reply::Done);
    }
    // Another session holds it again: its later release counts.
    if tx.is_held(id) {
        return Ok(Reply::Progress { more: true });
    }
    let inode = tx.child(id)?;
    if inode.links > 0 || inode.entries > 0 {
        let text = format!(
            "inode {id} has {} links and {} entries, but an orphan record says that it has none",
            inode.links, inode.entries
        );
        return Err(counts::damaged(text));
    }
    tx.delete(Key::Orphan(id));
    destroy(tx, id)?;
    Ok(Reply::Done)
}

/// Gives the file a fresh, empty data id; the old one is reclaimed in the background. O(1).
pub(crate) fn drop_data<V: View>(tx: &mut Transaction<'_, V>, id: InodeId) -> Step<()> {
    let old = tx.inode(id)?;
    if old.allocated > 0 {
        let fileset = id.fileset();
        let counters = tx.counters_mut(fileset)?;
        counters.allocated = counts::subtract(
            counters.allocated,
            old.allocated.into(),
            fileset,
            "allocated bytes",
        )?;
    }
    let mut data = old.data;
    if old.extents > 0 {
        data = numbers::take_data(tx, id.fileset())?;
        queue(tx, id, old.data, false)?;
    }
    drop_marks(tx, id)?;
    let inode = tx.inode_mut(id)?;
    inode.data = data;
    inode.extents = 0;
    inode.inline_extents = 0;
    inode.extents_end = 0;
    inode.cutting_from = None;
    inode.allocated = 0;
    inode.content = Bytes::new();
    inode.content_birth = CommitNumber(0);
    Ok(())
}

/// Background: removes the next records of a data id queued for reclaim.
pub(crate) fn reclaim<V: View>(
    tx: &mut Transaction<'_, V>,
    fileset: FilesetId,
    data: DataId,
) -> Step<Reply> {
    let key = Key::Reclaim { fileset, data };
    let Some(Record::Reclaim(queued)) = tx.get(&key)? else {
        return Ok(Reply::Progress { more: false });
    };
    let extent_key = |end: u64| Key::Extent { fileset, data, end };
    let found = tx.range(&extent_key(0), &extent_key(u64::MAX), extents::STEP_EXTENTS)?;
    let full = found.len() == extents::STEP_EXTENTS;
    let extents: Vec<(Key, Arc<Extent>)> = found
        .into_iter()
        .filter_map(|(key, record)| match record {
            Record::Extent(extent) => Some((key, extent)),
            _ => None,
        })
        .collect();
    segments::ask(tx, extents.iter().map(|(_, extent)| &**extent));
    tx.stop_if_missing()?;
    for (key, extent) in extents {
        if let ExtentKind::Data { place, .. } = &extent.kind {
            segments::release(tx, place, extent.length)?;
        }
        tx.delete_known(key, Record::Extent(extent));
    }
    if full {
        return Ok(Reply::Progress { more: true });
    }
    if queued.xattrs {
        let inode = InodeId::new(fileset, queued.inode);
        let (from, to) = crate::xattrs::key_range(inode);
        let found = tx.range(&from, &to, extents::STEP_EXTENTS)?;
        let full = found.len() == extents::STEP_EXTENTS;
        for (key, record) in found {
            tx.delete_known(key, record);
        }
        if full {
            return Ok(Reply::Progress { more: true });
        }
    }
    tx.delete(key);
    Ok(Reply::Progress { more: false })
}

/// Background: nothing points at these segments, and nothing ever will.
pub(crate) fn condemn<V: View>(
    tx: &mut Transaction<'_, V>,
    places: &[SegmentPlace],
) -> Step<Reply> {
    if places.len() > OPERATION_RECORDS_MAX {
        let text = format!("at most {OPERATION_RECORDS_MAX} segments can be condemned at once");
        return Err(Error::new(ErrorKind::InvalidArgument, text).into());
    }
    for place in places {
        tx.ask(&Key::Segment(place.segment));
        tx.ask(&Key::Dead(place.segment));
    }
    tx.stop_if_missing()?;
    for place in places {
        let (live, dead) = (Key::Segment(place.segment), Key::Dead(place.segment));
        if tx.get(&live)?.is_some() || tx.get(&dead)?.is_some() {
            continue;
        }
        let died = tx.commit;
        let record = Dead {
            place: *place,
            died,
        };
        tx.put(dead, Record::Dead(Arc::new(record)));
    }
    Ok(Reply::Done)
}

/// Background: the blobs of these segments have been deleted.
pub(crate) fn forget_dead<V: View>(
    tx: &mut Transaction<'_, V>,
    segments: &[SegmentId],
) -> Step<Reply> {
    if segments.len() > OPERATION_RECORDS_MAX {
        let text = format!("at most {OPERATION_RECORDS_MAX} segments can be forgotten at once");
        return Err(Error::new(ErrorKind::InvalidArgument, text).into());
    }
    for segment in segments {
        tx.forget(Key::Dead(*segment));
    }
    Ok(Reply::Done)
}

/// Ends an inode: takes it off the counters and queues its other records for reclaim.
fn destroy<V: View>(tx: &mut Transaction<'_, V>, id: InodeId) -> Step<()> {
    let inode = tx.inode(id)?;
    let fileset = id.fileset();
    let counters = tx.counters_mut(fileset)?;
    let subtract = |have, by: u64, what| counts::subtract(have, u128::from(by), fileset, what);
    counters.inodes = counts::subtract(counters.inodes, 1, fileset, "inodes")?;
    counters.allocated = subtract(counters.allocated, inode.allocated, "allocated bytes")?;
    if inode.kind == FileKind::File {
        counters.logical = subtract(counters.logical, inode.size, "bytes of files")?;
    }
    if inode.extents > 0 || inode.xattr_bytes > 0 {
        queue(tx, id, inode.data, inode.xattr_bytes > 0)?;
    }
    drop_marks(tx, id)?;
    tx.delete(Key::Inode(id));
    Ok(())
}

fn queue<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    data: DataId,
    xattrs: bool,
) -> Step<()> {
    let key = Key::Reclaim {
        fileset: id.fileset(),
        data,
    };
    let inode = id.number();
    tx.put_new(key, Record::Reclaim(Reclaim { inode, xattrs }))
}

fn drop_marks<V: View>(tx: &mut Transaction<'_, V>, id: InodeId) -> Step<()> {
    let inode = tx.inode(id)?;
    if inode.inline_extents > 0 {
        tx.delete_known(Key::Fold(id), Record::Mark);
    }
    if inode.cutting_from.is_some() {
        tx.delete_known(Key::Cut(id), Record::Mark);
    }
    Ok(())
}
