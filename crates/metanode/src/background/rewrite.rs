//! Rewrites parts of files into packed segments, and publishes them only if the parts haven't
//! changed. Fold and clean differ only in their choice of parts.

use crate::background::counts::{Counts, count};
use crate::host::Host;
use bytes::{Bytes, BytesMut};
use model::operation::Publish;
use model::{
    DataId, ErrorKind, Extent, ExtentKind, InodeId, InodeNumber, Operation, Result, SegmentId,
    SegmentPlace, limits,
};
use namespace::Key;
use pool::SegmentOwner;
use pool::pack::{PackEntry, PackWriter};
use std::sync::Arc;
use world::Point;

/// Most plain bytes of a packed segment.
const PACK_BYTES_MAX: u32 = limits::BLOCK_BYTES_DEFAULT;
/// Blocks that a packed segment may hold: in a pool with small blocks packs are small as well, so that
/// a little data spreads over all NSDs.
const PACK_BLOCKS: u32 = 16;
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

/// Writes packs and publishes them.
#[derive(Clone)]
pub(super) struct Rewriter {
    host: Arc<Host>,
    counts: Arc<Counts>,
}

impl Rewriter {
    pub(super) fn new(host: Arc<Host>, counts: Arc<Counts>) -> Self {
        Self { host, counts }
    }

    /// Plain bytes of a packed segment.
    fn pack_bytes(&self) -> u32 {
        let block = self.host.pool().block_bytes();
        let blocks = block.map(|block| block.saturating_mul(PACK_BLOCKS));
        blocks.map_or(PACK_BYTES_MAX, |bytes| bytes.min(PACK_BYTES_MAX))
    }

    /// Rewrites the parts in order. Concurrent changes by others win.
    pub(super) async fn rewrite(&self, parts: Vec<Part>) -> Result<Rewritten> {
        let _under_way = self.host.own().begin();
        let mut done = Rewritten::default();
        let pack_bytes = self.pack_bytes();
        let mut pack = PackWriter::new(pack_bytes);
        let mut packed = Vec::new();
        let mut family = None;
        for part in parts {
            // A pack is of one family.
            let other = part.inode.fileset().family();
            if family.replace(other).is_some_and(|before| before != other) {
                let full = std::mem::replace(&mut pack, PackWriter::new(pack_bytes));
                done.replaced += self.publish_pack(full, std::mem::take(&mut packed)).await?;
            }
            for extent in &part.extents {
                let mut rest = extent.clone();
                while let Some(room) = room_for(&pack, pack_bytes, rest.length) {
                    if room == 0 {
                        let full = std::mem::replace(&mut pack, PackWriter::new(pack_bytes));
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
                match self.host.pool().read(place, *at, length).await {
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
            // What was packed fits again.
            pack = PackWriter::new(PACK_BYTES_MAX);
            packed = refused;
            for Packed { entry, .. } in &mut packed {
                let at = entry.at as usize;
                let range = bytes.slice(at..at + entry.length as usize);
                *entry = pack.add(entry.inode, entry.data, entry.file_offset, &range);
            }
        }
        if !packed.is_empty() {
            count(&self.counts.publishes_void, 1);
        }
        Ok(replaced)
    }

    /// Writes a pack and publishes it. Returns the number of extents replaced, and the ranges that
    /// were refused because the pack was dead already.
    async fn publish_packed(&self, bytes: Bytes, packed: &[Packed]) -> Result<(u64, Vec<Packed>)> {
        let owner = SegmentOwner {
            family: packed[0].entry.inode.fileset().family(),
            inode: InodeNumber(0),
            data: DataId(0),
            file_offset: 0,
        };
        let place = self
            .host
            .pool()
            .write(self.host.own().source(), owner, bytes)
            .await?;
        self.host.world().at(Point::SegmentRewritten).await;
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
                match self.host.run_own(&Operation::Publish(publish)).await {
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
                        let file = self.host.inode_record(entry.inode).await?;
                        let is_there = file.is_some_and(|file| file.data == entry.data);
                        if is_there && self.host.shard().record(&of_pack).await?.is_none() {
                            refused.extend_from_slice(batch);
                        } else {
                            count(&self.counts.publishes_void, 1);
                        }
                    }
                    // Changed, truncated or removed meanwhile: no effect.
                    Err(error) if is_overtaken(error.kind()) => {
                        count(&self.counts.publishes_void, 1);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        if replaced == 0 {
            // Only a commit condemns it: a publish may have taken effect although its answer was lost
            // with the shard's last epoch, and then the pack is live.
            self.host.condemn(vec![place]).await?;
        }
        Ok((replaced, refused))
    }
}

/// Whether the second range can be published with the first: it is of the same file and after it.
/// They overlap if the file changed during the search; then one of them is outdated.
fn goes_on(first: &Packed, second: &Packed) -> bool {
    let end = first.entry.file_offset + u64::from(first.entry.length);
    first.entry.inode == second.entry.inode && end <= second.entry.file_offset
}

/// How many of `length` bytes fit into the pack now; 0 if it is full. `None` for no bytes.
fn room_for(pack: &PackWriter, pack_bytes: u32, length: u64) -> Option<u64> {
    if length == 0 {
        return None;
    }
    let length = usize::try_from(length)
        .unwrap_or(usize::MAX)
        .min(pack_bytes as usize / 2);
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

/// The segment that an extent points at.
pub(super) fn segment_of(extent: &Extent) -> Option<SegmentId> {
    match &extent.kind {
        ExtentKind::Data { place, .. } => Some(place.segment),
        _ => None,
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
