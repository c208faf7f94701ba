//! Rewrites parts of files into packed segments, and publishes them only if the parts haven't
//! changed. Fold and clean differ only in their choice of parts.

use crate::background::count;
use crate::metanode::{Metanode, SCAN_PAGE};
use bytes::{Bytes, BytesMut};
use model::operation::Publish;
use model::{
    DataId, ErrorKind, Extent, ExtentKind, InodeId, InodeNumber, Operation, Result, SegmentPlace,
    limits,
};
use namespace::{Key, Record};
use parking_lot::Mutex;
use pool::pack::{PackEntry, PackWriter};
use pool::{SegmentOwner, SegmentSource};
use shard::successor;

/// Plain bytes of a packed segment.
const PACK_BYTES: u32 = limits::BLOCK_BYTES_DEFAULT;
/// Most pages of extents searched for one inode.
const PAGES_MAX: usize = 1024;

/// Neighbouring extents of a file, to be merged into one.
pub(super) struct Part {
    pub(super) inode: InodeId,
    pub(super) data: DataId,
    /// Without gaps; no reserved ones.
    pub(super) extents: Vec<Extent>,
    /// The bytes of all of them, if loaded; otherwise they are read when packed.
    pub(super) bytes: Option<Bytes>,
}

impl Part {
    /// Its inode, and its offset in the file.
    pub(super) fn place(&self) -> (InodeId, u64) {
        (
            self.inode,
            self.extents.first().map_or(0, |extent| extent.offset),
        )
    }

    /// The bytes of one piece, if loaded.
    fn bytes_of(&self, piece: &Extent) -> Option<Bytes> {
        let from = usize::try_from(piece.offset - self.extents[0].offset).ok()?;
        let length = usize::try_from(piece.length).ok()?;
        Some(self.bytes.as_ref()?.slice(from..from + length))
    }
}

/// Tracks which of the metanode's own segments may still be published: those numbered after the
/// start of the oldest running rewrite.
#[derive(Default)]
pub(crate) struct Unpublished {
    /// The last counter given out before each running rewrite.
    begun: Mutex<Vec<u64>>,
}

/// A running rewrite.
struct Rewriting<'a> {
    of: &'a Unpublished,
    after: u64,
}

impl Unpublished {
    fn begin(&self, source: &SegmentSource) -> Rewriting<'_> {
        let mut begun = self.begun.lock();
        let after = source.last_counter();
        begun.push(after);
        Rewriting { of: self, after }
    }

    /// The counter up to which all segments are published or given up.
    pub(crate) fn settled(&self, source: &SegmentSource) -> u64 {
        let begun = self.begun.lock();
        let oldest = begun.iter().min().copied();
        oldest.unwrap_or_else(|| source.last_counter())
    }
}

impl Drop for Rewriting<'_> {
    fn drop(&mut self) {
        let mut begun = self.of.begun.lock();
        let own = begun.iter().position(|after| *after == self.after);
        begun.swap_remove(own.expect("it was noted when it began"));
    }
}

/// Packs that one rewrite writes for the same ranges, because the pack before died with those that
/// were published first. More than two need a file that loses all of a publish's ranges at once,
/// again and again.
const PACKS_MAX: usize = 4;

/// A packed range and the extents that it replaces.
#[derive(Clone)]
struct Packed {
    entry: PackEntry,
    replaces: Vec<Extent>,
}

/// Result of a rewrite.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Rewritten {
    /// Number of extents replaced.
    pub(super) replaced: u64,
}

impl Metanode {
    /// Rewrites the parts in order. Concurrent changes by others win.
    pub(super) async fn rewrite(&self, parts: Vec<Part>) -> Result<Rewritten> {
        let _under_way = self.unpublished.begin(&self.segments);
        let mut done = Rewritten::default();
        let mut pack = PackWriter::new(PACK_BYTES);
        let mut packed = Vec::new();
        for part in parts {
            for extent in &part.extents {
                let mut rest = extent.clone();
                while let Some(room) = room_for(&pack, rest.length) {
                    if room == 0 {
                        let full = std::mem::replace(&mut pack, PackWriter::new(PACK_BYTES));
                        done.replaced +=
                            self.publish_pack(full, std::mem::take(&mut packed)).await?;
                        continue;
                    }
                    let end = rest.offset + room;
                    let piece = rest.clip(rest.offset, end).expect("a part of the extent");
                    let bytes = match part.bytes_of(&piece) {
                        Some(bytes) => Some(bytes),
                        None => self.bytes_of(&piece).await?,
                    };
                    if let Some(bytes) = bytes {
                        let entry = pack.add(part.inode, part.data, piece.offset, &bytes);
                        packed.push(Packed {
                            entry,
                            replaces: vec![piece],
                        });
                    }
                    match rest.clip(end, u64::MAX) {
                        Some(behind) => rest = behind,
                        None => break,
                    }
                }
            }
        }
        done.replaced += self.publish_pack(pack, packed).await?;
        Ok(done)
    }

    /// The bytes of an extent; `None` if its segment died meanwhile.
    async fn bytes_of(&self, extent: &Extent) -> Result<Option<Bytes>> {
        match &extent.kind {
            ExtentKind::Inline(bytes) => Ok(Some(bytes.clone())),
            ExtentKind::Reserved => Ok(None),
            ExtentKind::Data { place, at, .. } => {
                let length =
                    u32::try_from(extent.length).expect("an extent lies inside one segment");
                match self.pool.read(place, *at, length).await {
                    Ok(chunks) => Ok(Some(joined(chunks))),
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Writes the segment, then publishes its ranges file by file. Returns the number of extents
    /// replaced, or a few more: those that change meanwhile are left as they are.
    ///
    /// A range that changed meanwhile leaves dead bytes in the pack, so a pack may be dead before
    /// its last range is published: if all that was published of it was overwritten. Its record
    /// stays that long and refuses the others, which go into another pack.
    async fn publish_pack(&self, mut pack: PackWriter, mut packed: Vec<Packed>) -> Result<u64> {
        let mut replaced = 0;
        for _ in 0..PACKS_MAX {
            if pack.is_empty() {
                break;
            }
            // A publish needs its extents in the file's order, whatever segments they came from.
            packed.sort_by_key(|packed| (packed.entry.inode, packed.entry.file_offset));
            let (bytes, _) = pack.finish();
            let (done, refused) = self.publish_packed(bytes.clone(), &packed).await?;
            replaced += done;
            pack = PackWriter::new(PACK_BYTES);
            packed = refused;
            for Packed { entry, .. } in &mut packed {
                let at = entry.at as usize;
                let range = bytes.slice(at..at + entry.length as usize);
                *entry = pack.add(entry.inode, entry.data, entry.file_offset, &range);
            }
        }
        if !packed.is_empty() {
            count(&self.background.counts.publishes_void, 1);
        }
        Ok(replaced)
    }

    /// Writes a pack and publishes it. Returns the number of extents replaced, and the ranges that
    /// were refused because the pack was dead already.
    async fn publish_packed(&self, bytes: Bytes, packed: &[Packed]) -> Result<(u64, Vec<Packed>)> {
        let owner = SegmentOwner {
            family: self.family,
            inode: InodeNumber(0),
            data: DataId(0),
            file_offset: 0,
        };
        let place = self.pool.write(&self.segments, owner, bytes).await?;
        let mut replaced = 0;
        let mut refused = Vec::new();
        for group in packed.chunk_by(goes_on) {
            let mut batches: Vec<&[Packed]> = group.chunks(limits::PUBLISH_EXTENTS_MAX).collect();
            while let Some(batch) = batches.pop() {
                let old: Vec<Extent> = batch
                    .iter()
                    .flat_map(|packed| packed.replaces.clone())
                    .collect();
                let publish = Publish {
                    inode: batch[0].entry.inode,
                    extents: batch
                        .iter()
                        .map(|packed| extent_of(&packed.entry, place))
                        .collect(),
                    size_at_least: 0,
                    written: None,
                    replaces: Some(old),
                };
                match self
                    .execute(&Operation::Publish(publish), &self.stamp())
                    .await
                {
                    Ok(_) => replaced += batch.len() as u64,
                    // So much of it was overwritten that it takes several steps.
                    Err(error) if error.kind() == ErrorKind::Overflow && batch.len() > 1 => {
                        let (first, second) = batch.split_at(batch.len() / 2);
                        batches.extend([first, second]);
                    }
                    // The file is gone, or the pack.
                    Err(error) if error.kind() == ErrorKind::Stale && replaced > 0 => {
                        let of_pack = Key::Segment(place.segment);
                        let entry = &batch[0].entry;
                        let file = self.inode_record(entry.inode).await?;
                        let is_there = file.is_some_and(|file| file.data == entry.data);
                        if is_there && self.shard().record(&of_pack).await?.is_none() {
                            refused.extend_from_slice(batch);
                        } else {
                            count(&self.background.counts.publishes_void, 1);
                        }
                    }
                    // Changed, truncated or removed meanwhile: no effect.
                    Err(error) if is_overtaken(error.kind()) => {
                        count(&self.background.counts.publishes_void, 1);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        if replaced == 0 {
            // No extent ever pointed at it.
            self.pool.delete(&[place]).await?;
        }
        Ok((replaced, refused))
    }

    /// Visits the extents of a data id from `offset` on, in order, as long as `more` returns true.
    pub(super) async fn each_extent(
        &self,
        inode: InodeId,
        data: DataId,
        offset: u64,
        mut more: impl FnMut(&Extent) -> bool,
    ) -> Result<()> {
        let shard = self.shard();
        let fileset = inode.fileset();
        let mut from = Key::Extent {
            fileset,
            data,
            end: offset.saturating_add(1),
        };
        let to = Key::Extent {
            fileset,
            data: data.next(),
            end: 0,
        };
        for _ in 0..PAGES_MAX {
            let page = shard.scan(&from, &to, SCAN_PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok(());
            };
            from = successor(last);
            for (_, record) in &page {
                if let Record::Extent(extent) = record
                    && !more(extent)
                {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The record of an inode.
    pub(super) async fn inode_record(
        &self,
        inode: InodeId,
    ) -> Result<Option<std::sync::Arc<namespace::Inode>>> {
        Ok(match self.shard().record(&Key::Inode(inode)).await? {
            Some(Record::Inode(record)) => Some(record),
            _ => None,
        })
    }
}

/// Whether the second range can be published with the first: it is of the same file and after it.
/// They overlap if the file changed during the search; then one of them is outdated.
fn goes_on(first: &Packed, second: &Packed) -> bool {
    let end = first.entry.file_offset + u64::from(first.entry.length);
    first.entry.inode == second.entry.inode && end <= second.entry.file_offset
}

/// How many of `length` bytes fit into the pack now; 0 if it is full. `None` for no bytes.
fn room_for(pack: &PackWriter, length: u64) -> Option<u64> {
    if length == 0 {
        return None;
    }
    let length = usize::try_from(length)
        .unwrap_or(usize::MAX)
        .min(PACK_BYTES as usize / 2);
    Some(if pack.has_room(length) {
        length as u64
    } else {
        0
    })
}

/// The extent that a range becomes.
fn extent_of(entry: &PackEntry, place: SegmentPlace) -> Extent {
    Extent {
        offset: entry.file_offset,
        length: u64::from(entry.length),
        kind: ExtentKind::Data {
            place,
            at: entry.at,
            codec: 0,
            key_id: 0,
        },
        birth: model::CommitNumber(0),
    }
}

fn is_overtaken(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Changed
            | ErrorKind::NotFound
            | ErrorKind::Stale
            | ErrorKind::Busy
            | ErrorKind::Overflow
    )
}

fn joined(mut chunks: Vec<Bytes>) -> Bytes {
    if chunks.len() == 1 {
        return chunks.remove(0);
    }
    let mut out = BytesMut::with_capacity(chunks.iter().map(Bytes::len).sum());
    for chunk in chunks {
        out.extend_from_slice(&chunk);
    }
    out.freeze()
}
