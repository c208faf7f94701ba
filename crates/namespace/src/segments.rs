//! Accounting of segments: how many bytes of each are still referenced.

use crate::{Dead, Key, Record, Segment, Stop, View, counts, transaction::Transaction, view::Step};
use model::{DataId, Error, ErrorKind, Extent, ExtentKind, InodeId, SegmentId, SegmentPlace};
use std::sync::Arc;

/// Asks for the accounting of the extents' segments.
pub(crate) fn ask<'e, V: View>(
    tx: &mut Transaction<'_, V>,
    extents: impl IntoIterator<Item = &'e Extent>,
) {
    for extent in extents {
        if let ExtentKind::Data { place, .. } = &extent.kind {
            tx.ask(&Key::Segment(place.segment));
        }
    }
}

/// Asks for all records that [`publish`] reads.
pub(crate) fn ask_publish<V: View>(tx: &mut Transaction<'_, V>, extents: &[Extent]) {
    for extent in extents {
        if let ExtentKind::Data { place, .. } = &extent.kind
            && tx.look(&Key::Segment(place.segment)) == Some(None)
        {
            tx.ask(&Key::Dead(place.segment));
        }
    }
}

/// Counts a published extent. The first extent creates the segment's record.
pub(crate) fn publish<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    data: DataId,
    extent: &Extent,
    by_writer: bool,
) -> Step<()> {
    let ExtentKind::Data { place, .. } = &extent.kind else {
        return Ok(());
    };
    let own = place.segment.session == tx.session;
    let key = Key::Segment(place.segment);
    let segment = match tx.get(&key)? {
        Some(Record::Segment(old)) => {
            if by_writer && !own {
                return Err(foreign(place.segment));
            }
            if old.inode.fileset().family() != id.fileset().family() {
                return Err(of_two_families(place.segment));
            }
            Segment {
                place: *place,
                live: counts::add(old.live, extent.length, place.segment, "live bytes")?,
                ..(*old).clone()
            }
        }
        _ => {
            if !own {
                return Err(foreign(place.segment));
            }
            if tx.get(&Key::Dead(place.segment))?.is_some() {
                let text = format!(
                    "segment {} is already dead: write its bytes to a new one",
                    place.segment
                );
                return Err(Error::new(ErrorKind::Stale, text).into());
            }
            let birth = tx.commit;
            Segment {
                place: *place,
                live: extent.length,
                birth,
                inode: id,
                data,
                file_offset: extent.offset,
            }
        }
    };
    tx.put(key, Record::Segment(Arc::new(segment)));
    Ok(())
}

/// Counts bytes of a known segment again (sharing).
pub(crate) fn retain<V: View>(
    tx: &mut Transaction<'_, V>,
    place: &SegmentPlace,
    bytes: u64,
) -> Step<()> {
    let segment = known(tx, place.segment)?;
    let live = counts::add(segment.live, bytes, place.segment, "live bytes")?;
    tx.put(
        Key::Segment(place.segment),
        Record::Segment(Arc::new(Segment {
            live,
            ..(*segment).clone()
        })),
    );
    Ok(())
}

/// Subtracts bytes; a segment without any left is dead.
pub(crate) fn release<V: View>(
    tx: &mut Transaction<'_, V>,
    place: &SegmentPlace,
    bytes: u64,
) -> Step<()> {
    let segment = known(tx, place.segment)?;
    let live = counts::subtract(segment.live, bytes, place.segment, "live bytes")?;
    let key = Key::Segment(place.segment);
    if live > 0 {
        tx.put(
            key,
            Record::Segment(Arc::new(Segment {
                live,
                ..(*segment).clone()
            })),
        );
        return Ok(());
    }
    tx.delete(key);
    let dead = Dead {
        place: segment.place,
        died: tx.commit,
    };
    tx.put_new(Key::Dead(place.segment), Record::Dead(Arc::new(dead)))
}

fn known<V: View>(tx: &mut Transaction<'_, V>, segment: SegmentId) -> Step<Arc<Segment>> {
    match tx.get(&Key::Segment(segment))? {
        Some(Record::Segment(record)) => Ok(record),
        _ => Err(Error::new(
            ErrorKind::Corrupt,
            format!("extents refer to segment {segment}, which has no record"),
        )
        .into()),
    }
}

/// A family moves to another shard with its segments.
fn of_two_families(segment: SegmentId) -> Stop {
    let text =
        format!("segment {segment} has data of a file of another family: a pack is of one family");
    Error::new(ErrorKind::InvalidArgument, text).into()
}

fn foreign(segment: SegmentId) -> Stop {
    let text =
        format!("segment {segment} belongs to another session: only its writer publishes it");
    Error::new(ErrorKind::InvalidArgument, text).into()
}
