//! Finds and reads the live parts of mostly dead segments.

use crate::background::rewrite::Part;
use crate::background::rewrite::segment_of;
use crate::host::Host;
use bytes::{Bytes, BytesMut};
use model::{DataId, Extent, ExtentKind, InodeId, Result, SegmentId, SegmentPlace};
use namespace::{Key, Record, Segment};
use pool::pack::{self, PackEntry};
use shard::successor;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Extents per page of the search.
const PAGE: usize = 256;
/// A segment with more parts than this is read completely.
const READS_MAX: usize = 16;

/// A segment whose live parts are to be rewritten.
pub(super) struct Chosen {
    pub(super) id: SegmentId,
    pub(super) segment: Segment,
}

/// The live parts of a segment.
pub(super) struct Live {
    /// Ordered by inode and offset.
    pub(super) parts: Vec<Part>,
    /// Live bytes that weren't found, because other files share them. As long as those files point
    /// at the segment, rewriting the rest frees nothing.
    pub(super) unfound: u64,
}

impl Live {
    pub(super) fn bytes(&self) -> u64 {
        self.extents().map(|extent| extent.length).sum()
    }

    pub(super) fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.parts.iter().flat_map(|part| &part.extents)
    }

    /// How many bytes of its segment [`LiveParts::load`] reads.
    pub(super) fn bytes_to_load(&self, place: &SegmentPlace) -> u64 {
        match self.is_loaded_whole() {
            true => u64::from(place.length),
            false => self.bytes(),
        }
    }

    fn is_loaded_whole(&self) -> bool {
        self.extents().count() > READS_MAX
    }
}

/// Ranges of a file that may point at a segment: offset and end.
type Ranges = Vec<(u64, u64)>;
/// Extents of one file by their offsets.
type Found = BTreeMap<u64, Extent>;

/// Segments to find, with the live bytes of each that weren't found yet.
type Unfound = BTreeMap<SegmentId, u64>;

/// Finds them.
#[derive(Clone)]
pub(super) struct LiveParts {
    host: Arc<Host>,
}

impl LiveParts {
    pub(super) fn new(host: Arc<Host>) -> Self {
        Self { host }
    }

    /// Finds the extents that point at each of these segments: in the files that they were
    /// published for, and, if they are packed, in the files that their tables name. Extents keep
    /// their offsets, so only these ranges are searched, once for all segments.
    pub(super) async fn live_parts(&self, chosen: &[Chosen]) -> Result<Vec<Live>> {
        let mut places: BTreeMap<(InodeId, DataId), Ranges> = BTreeMap::new();
        let mut unfound = Unfound::new();
        for Chosen { id, segment, .. } in chosen {
            let length = u64::from(segment.place.length);
            unfound.insert(*id, segment.live);
            let Ok(table) = self.table_of(&segment.place).await else {
                // Unreadable data is left to repair; cleaning skips it.
                continue;
            };
            let own = (
                segment.file_offset,
                segment.file_offset.saturating_add(length),
            );
            places
                .entry((segment.inode, segment.data))
                .or_default()
                .push(own);
            for entry in table {
                let end = entry.file_offset.saturating_add(u64::from(entry.length));
                places
                    .entry((entry.inode, entry.data))
                    .or_default()
                    .push((entry.file_offset, end));
            }
        }
        let mut found: BTreeMap<(InodeId, DataId), Found> = BTreeMap::new();
        for (file, ranges) in self.existing(places).await? {
            let of_file = found.entry(file).or_default();
            self.find_in(file, ranges, of_file, &mut unfound).await?;
        }
        let mut out: BTreeMap<SegmentId, Live> = BTreeMap::new();
        for (id, unfound) in unfound {
            let parts = Vec::new();
            out.insert(id, Live { parts, unfound });
        }
        for ((inode, data), extents) in found {
            let mut of_segments: BTreeMap<SegmentId, Vec<Extent>> = BTreeMap::new();
            for extent in extents.into_values() {
                let segment = segment_of(&extent).expect("found by its segment");
                of_segments.entry(segment).or_default().push(extent);
            }
            for (id, extents) in of_segments {
                let live = out.get_mut(&id).expect("only chosen ones are found");
                for run in extents.chunk_by(|a, b| a.end() == b.offset) {
                    live.parts.push(Part {
                        inode,
                        data,
                        extents: run.to_vec(),
                        bytes: None,
                    });
                }
            }
        }
        for (id, live) in &mut out {
            // A busy file changes while it is searched: compare with the bytes that are live now.
            // Extents found and overwritten since do no harm.
            if live.unfound > 0 {
                let live_now = match self.host.shard().record(&Key::Segment(*id)).await? {
                    Some(Record::Segment(now)) => now.live,
                    _ => 0,
                };
                live.unfound = live_now.saturating_sub(live.bytes());
            }
        }
        let of = |chosen: &Chosen| out.remove(&chosen.id).expect("each is searched once");
        Ok(chosen.iter().map(of).collect())
    }

    /// The ranges in files that still exist, by their current data.
    async fn existing(
        &self,
        places: BTreeMap<(InodeId, DataId), Ranges>,
    ) -> Result<BTreeMap<(InodeId, DataId), Ranges>> {
        let mut out: BTreeMap<(InodeId, DataId), Ranges> = BTreeMap::new();
        for ((inode, data), ranges) in places {
            let Some(record) = self.host.inode_record(inode).await? else {
                continue;
            };
            // Clients don't know data ids when they pack; only extents that point here now count.
            if data == DataId(0) || record.data == data {
                out.entry((inode, record.data)).or_default().extend(ranges);
            }
        }
        Ok(out)
    }

    /// Adds the extents in these ranges of a file that point at one of the segments.
    async fn find_in(
        &self,
        (inode, data): (InodeId, DataId),
        mut ranges: Ranges,
        found: &mut Found,
        unfound: &mut Unfound,
    ) -> Result<()> {
        let shard = self.host.shard();
        let fileset = inode.fileset();
        let to = Key::Extent {
            fileset,
            data: data.next(),
            end: 0,
        };
        ranges.sort_unstable();
        // Everything that ends up to here was examined.
        let mut looked_to = 0;
        let mut incomplete = unfound.values().filter(|bytes| **bytes > 0).count();
        for (offset, end) in ranges {
            let mut from = Key::Extent {
                fileset,
                data,
                end: offset.max(looked_to).saturating_add(1),
            };
            while looked_to < end && incomplete > 0 {
                let page = shard.scan(&from, &to, PAGE).await?;
                for (_, record) in &page {
                    if let Record::Extent(extent) = record
                        && let Some(segment) = segment_of(extent)
                        && let Some(bytes) = unfound.get_mut(&segment)
                        && found.insert(extent.offset, (**extent).clone()).is_none()
                        && *bytes > 0
                    {
                        *bytes = bytes.saturating_sub(extent.length);
                        incomplete -= usize::from(*bytes == 0);
                    }
                }
                match page.last() {
                    Some((last, Record::Extent(extent))) if page.len() == PAGE => {
                        looked_to = extent.end();
                        from = successor(last);
                    }
                    _ => looked_to = u64::MAX,
                }
            }
        }
        Ok(())
    }

    /// The table of a packed segment; empty if it isn't packed, whatever its bytes look like.
    async fn table_of(&self, place: &SegmentPlace) -> Result<Vec<PackEntry>> {
        let Some(footer_at) = place.length.checked_sub(pack::FOOTER_BYTES as u32) else {
            return Ok(Vec::new());
        };
        let footer = self.read_part(place, footer_at, pack::FOOTER_BYTES as u32);
        let Some(table_at) = pack::table_at(&footer.await?, footer_at) else {
            return Ok(Vec::new());
        };
        let tail = self.read_part(place, table_at, place.length - table_at);
        let table = pack::decode_tail(&tail.await?, table_at);
        Ok(table.unwrap_or_default().unwrap_or_default())
    }

    /// Reads the bytes of the parts.
    pub(super) async fn load(&self, place: &SegmentPlace, live: &mut Live) -> Result<()> {
        let whole = if live.is_loaded_whole() {
            Some(self.host.pool().read_whole(place).await?)
        } else {
            None
        };
        for part in &mut live.parts {
            let length: u64 = part.extents.iter().map(|extent| extent.length).sum();
            let mut bytes = BytesMut::with_capacity(usize::try_from(length).unwrap_or_default());
            for extent in &part.extents {
                let ExtentKind::Data { at, .. } = extent.kind else {
                    unreachable!("live parts lie in a segment")
                };
                let length =
                    u32::try_from(extent.length).expect("an extent lies inside one segment");
                match &whole {
                    // Copied, so that the part doesn't keep the whole segment in memory.
                    Some(whole) => {
                        bytes.extend_from_slice(&whole[at as usize..][..length as usize]);
                    }
                    None => bytes.extend_from_slice(&self.read_part(place, at, length).await?),
                }
            }
            part.bytes = Some(bytes.freeze());
        }
        Ok(())
    }

    async fn read_part(&self, place: &SegmentPlace, at: u32, length: u32) -> Result<Bytes> {
        let mut chunks = self.host.pool().read(place, at, length).await?;
        if chunks.len() == 1 {
            return Ok(chunks.remove(0));
        }
        Ok(chunks.concat().into())
    }
}
