//! A file's extents: finds those that touch a range, clears a range, inserts extents.

use crate::{
    Inode, Key, Record, View, allocated, counts, segments, transaction::Transaction, view::Step,
};
use bytes::Bytes;
use model::{CommitNumber, Extent, ExtentKind, FileKind, InodeId};
use std::sync::Arc;

/// Old extents that one step of a long change removes; with a segment and a dead record for each, a
/// step stays under `limits::OPERATION_RECORDS_MAX`. Small in tests, so that small files need
/// several steps.
pub(crate) const STEP_EXTENTS: usize = if cfg!(test) { 8 } else { 1024 };

const _: () = assert!(STEP_EXTENTS * 3 + 64 <= model::limits::OPERATION_RECORDS_MAX);

/// Extents that touch a range.
pub(crate) struct Touching {
    /// In order; the first and last may extend beyond the range.
    pub(crate) extents: Vec<Arc<Extent>>,
    /// The extents are complete up to here: the end of the range, unless the limit was reached.
    pub(crate) known_to: u64,
}

/// Finds the extents that touch `from..to`, at most about `limit`, or notes what must be fetched.
pub(crate) fn ask_touching<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    inode: &Inode,
    from: u64,
    to: u64,
    limit: usize,
) -> Option<Touching> {
    let mut found = Touching {
        extents: Vec::new(),
        known_to: to,
    };
    if let Some(content) = content_extent(inode) {
        if from < content.length && from < to {
            found.extents.push(Arc::new(content));
        }
        return Some(found);
    }
    if inode.extents == 0 || from >= inode.extents_end || from >= to {
        return Some(found);
    }
    let key = |end: u64| Key::Extent {
        fileset: id.fileset(),
        data: inode.data,
        end,
    };
    let inside = tx.ask_range(&key(from + 1), &key(to), limit);
    // The first extent that ends at the range's end or later may begin inside.
    let across = if inode.extents_end < to {
        Some(Vec::new())
    } else {
        tx.ask_range(&key(to), &key(u64::MAX), 1)
    };
    let (inside, across) = (inside?, across?);
    let full = inside.len() == limit;
    found.extents.extend(
        inside
            .into_iter()
            .filter_map(|(_, record)| extent_of(record)),
    );
    if full {
        found.known_to = found.extents.last().map_or(to, |extent| extent.end());
        return Some(found);
    }
    let across = across
        .into_iter()
        .filter_map(|(_, record)| extent_of(record));
    found
        .extents
        .extend(across.filter(|extent| extent.offset < to));
    Some(found)
}

/// Like [`ask_touching`], but stops if something is missing.
pub(crate) fn touching<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    inode: &Inode,
    from: u64,
    to: u64,
    limit: usize,
) -> Step<Touching> {
    let found = ask_touching(tx, id, inode, from, to, limit);
    tx.stop_if_missing()?;
    Ok(found.expect("nothing was missing"))
}

/// The content of a small file as an extent.
pub(crate) fn content_extent(inode: &Inode) -> Option<Extent> {
    if inode.kind != FileKind::File || inode.content.is_empty() {
        return None;
    }
    let length = inode.content.len() as u64;
    Some(Extent {
        offset: 0,
        length,
        kind: ExtentKind::Inline(inode.content.clone()),
        birth: inode.content_birth,
    })
}

/// Copies bytes for a record. Callers often pass a small part of a large buffer, which would
/// otherwise live as long as the record, counted in no budget or in another's.
pub(crate) fn owned(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn with_own_bytes(extent: Extent) -> Extent {
    match &extent.kind {
        ExtentKind::Inline(bytes) => Extent {
            kind: ExtentKind::Inline(owned(bytes)),
            ..extent
        },
        ExtentKind::Data { .. } | ExtentKind::Reserved => extent,
    }
}

/// Moves a small file's content from the inode into an extent record, so that ranges of it can
/// change separately.
pub(crate) fn spill<V: View>(tx: &mut Transaction<'_, V>, id: InodeId) -> Step<()> {
    let inode = tx.inode(id)?;
    let Some(extent) = content_extent(&inode) else {
        return Ok(());
    };
    let inode = tx.inode_mut(id)?;
    inode.content = Bytes::new();
    inode.content_birth = CommitNumber(0);
    inode.extents = 1;
    inode.inline_extents = 1;
    inode.extents_end = extent.length;
    let data = inode.data;
    let key = Key::Extent {
        fileset: id.fileset(),
        data,
        end: extent.length,
    };
    tx.put_new(key, Record::Extent(Arc::new(extent)))?;
    tx.put_new(Key::Fold(id), Record::Mark)
}

/// Makes `from..to` a hole. `touching`: what [`touching`] found there.
pub(crate) fn clear<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    touching: &[Arc<Extent>],
    from: u64,
    to: u64,
) -> Step<()> {
    let data = tx.inode(id)?.data;
    segments::ask(tx, touching.iter().map(|extent| &**extent));
    tx.stop_if_missing()?;
    let key = |end: u64| Key::Extent {
        fileset: id.fileset(),
        data,
        end,
    };
    // Bytes of removed extents and of the pieces of them that stay; then the number of inline ones.
    let (mut removed, mut gone_extents, mut kept_extents) = (0, 0, 0);
    let (mut gone_inline, mut kept_inline) = (0, 0);
    let mut last_end = 0;
    for extent in touching {
        if extent.offset < last_end {
            let text = format!("extents of inode {id} overlap at byte {}", extent.offset);
            return Err(counts::damaged(text));
        }
        last_end = extent.end();
        let Some(gone) = extent.clip(from, to) else {
            continue;
        };
        let is_inline = u64::from(matches!(extent.kind, ExtentKind::Inline(_)));
        gone_extents += 1;
        gone_inline += is_inline;
        tx.delete_known(key(extent.end()), Record::Extent(extent.clone()));
        for kept in [extent.clip(0, from), extent.clip(to, u64::MAX)]
            .into_iter()
            .flatten()
        {
            kept_extents += 1;
            kept_inline += is_inline;
            let kept = with_own_bytes(kept);
            tx.put_new(key(kept.end()), Record::Extent(Arc::new(kept)))?;
        }
        removed += gone.length;
        if let ExtentKind::Data { place, .. } = &gone.kind {
            segments::release(tx, place, gone.length)?;
        }
    }
    if removed == 0 {
        return Ok(());
    }
    let inode = tx.inode_mut(id)?;
    inode.extents = counts::subtract(inode.extents, gone_extents, id, "extents")? + kept_extents;
    let had_inline = inode.inline_extents > 0;
    let inline = counts::subtract(inode.inline_extents, gone_inline, id, "inline extents")?;
    inode.inline_extents = inline + kept_inline;
    let has_inline = inode.inline_extents > 0;
    allocated::take_allocated(tx, id, removed)?;
    if had_inline && !has_inline {
        tx.delete_known(Key::Fold(id), Record::Mark);
    }
    Ok(())
}

/// Inserts an extent into a hole. The caller has counted the segment's bytes.
pub(crate) fn insert<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    extent: Extent,
) -> Step<()> {
    let is_inline = matches!(extent.kind, ExtentKind::Inline(_));
    let (length, end) = (extent.length, extent.end());
    let inode = tx.inode_mut(id)?;
    inode.extents += 1;
    inode.extents_end = inode.extents_end.max(end);
    let data = inode.data;
    let first_inline = is_inline && inode.inline_extents == 0;
    inode.inline_extents += u64::from(is_inline);
    allocated::add_allocated(tx, id, length)?;
    let key = Key::Extent {
        fileset: id.fileset(),
        data,
        end,
    };
    let extent = with_own_bytes(extent);
    tx.put_new(key, Record::Extent(Arc::new(extent)))?;
    if first_inline {
        tx.put_new(Key::Fold(id), Record::Mark)?;
    }
    Ok(())
}

/// Sets the size of a regular file and updates the fileset's sum.
pub(crate) fn set_size<V: View>(tx: &mut Transaction<'_, V>, id: InodeId, size: u64) -> Step<()> {
    let inode = tx.inode_mut(id)?;
    let old = std::mem::replace(&mut inode.size, size);
    if size != old {
        let counters = tx.counters_mut(id.fileset())?;
        let others =
            counts::subtract(counters.logical, old.into(), id.fileset(), "bytes of files")?;
        counters.logical = counts::add(others, size.into(), id.fileset(), "bytes of files")?;
    }
    Ok(())
}

fn extent_of(record: Record) -> Option<Arc<Extent>> {
    match record {
        Record::Extent(extent) => Some(extent),
        _ => None,
    }
}
