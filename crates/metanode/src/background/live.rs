//! Finds and reads the live parts of a mostly dead segment.

use crate::background::rewrite::Part;
use crate::metanode::Metanode;
use crate::pack::{self, PackEntry};
use bytes::{Bytes, BytesMut};
use model::{DataId, Extent, ExtentKind, InodeId, Result, SegmentId, SegmentPlace};
use namespace::{Key, Record, Segment};
use shard::successor;
use std::collections::BTreeMap;

/// Extents per page of the search.
const PAGE: usize = 256;
/// A segment with more parts than this is read completely.
const READS_MAX: usize = 16;

/// The live parts of a segment.
pub(super) struct Live {
    /// Ordered by inode and offset.
    pub(super) parts: Vec<Part>,
    /// Live bytes that weren't found, because other files share them. As long as those files point
    /// at the segment, rewriting the rest frees nothing.
    pub(super) unfound: u64,
}

impl Live {
    fn nothing(segment: &Segment) -> Self {
        Self {
            parts: Vec::new(),
            unfound: segment.live,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.extents().map(|extent| extent.length).sum()
    }

    pub(super) fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.parts.iter().flat_map(|part| &part.extents)
    }
}

/// Ranges of a file that may point at a segment: offset and end.
type Ranges = Vec<(u64, u64)>;
/// Extents of one file by their offsets.
type Found = BTreeMap<u64, Extent>;

impl Metanode {
    /// Finds the extents that point at a segment: in the file that it was published for, and, if it
    /// is packed, in the files that its table names. Extents keep their offsets, so only these
    /// ranges are searched.
    pub(super) async fn live_parts(&self, id: SegmentId, segment: &Segment) -> Result<Live> {
        let mut places: BTreeMap<(InodeId, DataId), Ranges> = BTreeMap::new();
        let length = u64::from(segment.place.length);
        let own = (
            segment.file_offset,
            segment.file_offset.saturating_add(length),
        );
        places
            .entry((segment.inode, segment.data))
            .or_default()
            .push(own);
        let Ok(table) = self.table_of(&segment.place).await else {
            // Unreadable data is left to repair; cleaning skips it.
            return Ok(Live::nothing(segment));
        };
        for entry in table {
            let end = entry.file_offset.saturating_add(u64::from(entry.length));
            places
                .entry((entry.inode, entry.data))
                .or_default()
                .push((entry.file_offset, end));
        }
        let mut live = Live::nothing(segment);
        let mut seen: BTreeMap<(InodeId, DataId), Found> = BTreeMap::new();
        for ((inode, data), ranges) in places {
            if live.unfound == 0 {
                break;
            }
            let Some(record) = self.inode_record(inode).await? else {
                continue;
            };
            // Clients don't know data ids when they pack; only extents that point here now count.
            if data != DataId(0) && record.data != data {
                continue;
            }
            let found = seen.entry((inode, record.data)).or_default();
            self.find_in(id, (inode, record.data), ranges, found, &mut live.unfound)
                .await?;
        }
        // A busy file changes while it is searched: compare with the bytes that are live now.
        // Extents found and overwritten since do no harm.
        if live.unfound > 0 {
            let found = seen.values().flat_map(Found::values);
            let found: u64 = found.map(|extent| extent.length).sum();
            let live_now = match self.shard().record(&Key::Segment(id)).await? {
                Some(Record::Segment(now)) => now.live,
                _ => 0,
            };
            live.unfound = live_now.saturating_sub(found);
        }
        for ((inode, data), extents) in seen {
            let extents: Vec<Extent> = extents.into_values().collect();
            for run in extents.chunk_by(|a, b| a.end() == b.offset) {
                live.parts.push(Part {
                    inode,
                    data,
                    extents: run.to_vec(),
                    bytes: None,
                });
            }
        }
        Ok(live)
    }

    /// Adds the extents in these ranges of a file that point at the segment.
    async fn find_in(
        &self,
        id: SegmentId,
        (inode, data): (InodeId, DataId),
        mut ranges: Ranges,
        found: &mut Found,
        unfound: &mut u64,
    ) -> Result<()> {
        let shard = self.shard();
        let fileset = inode.fileset();
        let to = Key::Extent {
            fileset,
            data: data.next(),
            end: 0,
        };
        ranges.sort_unstable();
        // Everything that ends up to here was examined.
        let mut looked_to = 0;
        for (offset, end) in ranges {
            let mut from = Key::Extent {
                fileset,
                data,
                end: offset.max(looked_to).saturating_add(1),
            };
            while looked_to < end && *unfound > 0 {
                let page = shard.scan(&from, &to, PAGE).await?;
                for (_, record) in &page {
                    let Record::Extent(extent) = record else {
                        continue;
                    };
                    if points_at(extent, id)
                        && found.insert(extent.offset, (**extent).clone()).is_none()
                    {
                        *unfound = unfound.saturating_sub(extent.length);
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
        let whole = if live.extents().count() > READS_MAX {
            Some(self.pool.read_whole(place).await?)
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
        let mut chunks = self.pool.read(place, at, length).await?;
        if chunks.len() == 1 {
            return Ok(chunks.remove(0));
        }
        Ok(chunks.concat().into())
    }
}

fn points_at(extent: &Extent, segment: SegmentId) -> bool {
    matches!(&extent.kind, ExtentKind::Data { place, .. } if place.segment == segment)
}
