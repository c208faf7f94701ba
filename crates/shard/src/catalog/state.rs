//! The catalog's content: how changes apply to it, and its encoding.

use bytes::Bytes;
use model::{EntryNumber, Error, ErrorKind, Result, SegmentPlace, Timestamp};
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// First byte of every change and snapshot.
const FORMAT: u8 = 1;
/// Most segments waiting for deletion; further ones are left to the sweep.
pub(crate) const DEAD_MAX: usize = 65_536;

/// An object of the tree: a table or a manifest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Object {
    pub(crate) content: Content,
    pub(crate) size: u64,
    /// The entry that put it; the e-tag.
    pub(crate) version: EntryNumber,
    pub(crate) modified: Timestamp,
    /// Attributes by the object store's names.
    pub(crate) attributes: Vec<(String, String)>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Content {
    Inline(Bytes),
    /// In order; no segment belongs to two objects.
    Segments(Vec<SegmentPlace>),
}

impl Content {
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Segments(places) => places.iter().map(|place| u64::from(place.length)).sum(),
        }
    }

    pub(crate) fn into_segments(self) -> Vec<SegmentPlace> {
        match self {
            Self::Inline(_) => Vec::new(),
            Self::Segments(places) => places,
        }
    }
}

/// One change, stored as one log entry.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Change {
    Put {
        name: String,
        content: Content,
        attributes: Vec<(String, String)>,
        time: Timestamp,
    },
    Remove {
        names: Vec<String>,
        time: Timestamp,
    },
    /// The oldest dead segments have been deleted from the pool.
    Forget {
        segments: u32,
        time: Timestamp,
    },
}

impl Change {
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct CatalogState {
    pub(crate) marker: u128,
    pub(crate) objects: BTreeMap<String, Object>,
    /// Segments of removed objects, not deleted from the pool yet; oldest first.
    pub(crate) dead: VecDeque<SegmentPlace>,
    /// Time of the newest change.
    time: Timestamp,
}

#[derive(Serialize, Deserialize)]
struct Snapshot {
    marker: u128,
    time: Timestamp,
    objects: Vec<(String, Object)>,
    dead: Vec<SegmentPlace>,
}

impl CatalogState {
    pub(crate) fn new(marker: u128) -> Self {
        Self {
            marker,
            ..Self::default()
        }
    }

    /// Applies a change that is durable in the log.
    pub(crate) fn apply(&mut self, number: EntryNumber, change: Change) {
        match change {
            Change::Put {
                name,
                content,
                attributes,
                time,
            } => {
                self.time = self.time.max(time);
                let size = content.size();
                let object = Object {
                    content,
                    size,
                    version: number,
                    modified: time,
                    attributes,
                };
                // A repeated put replaces itself.
                let new = object.content.clone();
                if let Some(replaced) = self.objects.insert(name, object)
                    && replaced.content != new
                {
                    self.bury(replaced.content.into_segments());
                }
            }
            Change::Remove { names, time } => {
                self.time = self.time.max(time);
                for name in names {
                    if let Some(object) = self.objects.remove(&name) {
                        self.bury(object.content.into_segments());
                    }
                }
            }
            Change::Forget { segments, time } => {
                self.time = self.time.max(time);
                let count = usize::try_from(segments)
                    .unwrap_or(usize::MAX)
                    .min(self.dead.len());
                self.dead.drain(..count);
            }
        }
    }

    /// Queues segments for deletion. Replay does the same, so a take-over forgets none.
    pub(crate) fn bury(&mut self, places: Vec<SegmentPlace>) {
        for place in places {
            if self.dead.len() < DEAD_MAX {
                self.dead.push_back(place);
            }
        }
    }

    pub(crate) fn segments(&self) -> Vec<SegmentPlace> {
        let live = self
            .objects
            .values()
            .filter_map(|object| match &object.content {
                Content::Segments(places) => Some(places),
                Content::Inline(_) => None,
            });
        live.flatten().chain(&self.dead).copied().collect()
    }

    /// The latest time in the catalog.
    pub(crate) fn newest_time(&self) -> Timestamp {
        self.objects
            .values()
            .map(|object| object.modified)
            .fold(self.time, Timestamp::max)
    }

    pub(crate) fn encode_snapshot(&self) -> Vec<u8> {
        encode(&Snapshot {
            marker: self.marker,
            time: self.time,
            objects: self
                .objects
                .iter()
                .map(|(name, object)| (name.clone(), object.clone()))
                .collect(),
            dead: self.dead.iter().copied().collect(),
        })
    }
}

pub(crate) fn decode_change(payload: &[u8]) -> Result<Change> {
    let change: Change = decode(payload, "catalog change")?;
    if let Change::Put { name, .. } = &change {
        check_name(name)?;
    }
    Ok(change)
}

/// The tree's objects are found by paths.
fn check_name(name: &str) -> Result<()> {
    Path::parse(name).map(drop).map_err(|error| {
        let text = format!("the catalog names an object {name:?}: {error}");
        Error::new(ErrorKind::Corrupt, text)
    })
}

pub(crate) fn decode_snapshot(payload: &[u8]) -> Result<CatalogState> {
    let Snapshot {
        marker,
        time,
        objects,
        dead,
    } = decode(payload, "catalog snapshot")?;
    for (name, object) in &objects {
        check_name(name)?;
        let size = object.content.size();
        if object.size != size {
            let text = format!(
                "object {name:?} of the catalog has {size} bytes, not the {} that it is said to have",
                object.size
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
    }
    Ok(CatalogState {
        marker,
        objects: objects.into_iter().collect(),
        dead: dead.into(),
        time,
    })
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_extend(value, vec![FORMAT])
        .expect("the catalog is plain data, postcard writes it all")
}

fn decode<T: for<'a> Deserialize<'a>>(payload: &[u8], what: &str) -> Result<T> {
    match payload.split_first() {
        Some((&FORMAT, rest)) => postcard::from_bytes(rest).map_err(|error| {
            Error::new(
                ErrorKind::Corrupt,
                format!("a {what} can't be read: {error}"),
            )
        }),
        other => Err(Error::new(
            ErrorKind::NotSupported,
            format!(
                "a {what} has format {:?}, this program reads {FORMAT}",
                other.map(|(format, _)| *format)
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{GroupId, Scheme, SegmentId, SessionId};

    fn place(counter: u64) -> SegmentPlace {
        SegmentPlace {
            segment: SegmentId {
                session: SessionId(1),
                counter,
            },
            group: GroupId(0),
            scheme: Scheme::Replicate(1),
            skipped_slots: 0,
            missing: 0,
            length: 10,
            crc: 0,
        }
    }

    fn put(name: &str, content: Content) -> Change {
        Change::Put {
            name: name.into(),
            content,
            attributes: vec![("m:a".into(), "b".into())],
            time: Timestamp(7),
        }
    }

    #[test]
    fn a_snapshot_is_the_same_as_the_changes_before_it() {
        let mut state = CatalogState {
            marker: 5,
            ..CatalogState::default()
        };
        state.apply(
            EntryNumber(2),
            put("a", Content::Segments(vec![place(1), place(2)])),
        );
        state.apply(
            EntryNumber(3),
            put("b", Content::Inline(Bytes::from_static(b"x"))),
        );
        state.apply(EntryNumber(4), put("a", Content::Inline(Bytes::new())));
        state.apply(
            EntryNumber(5),
            Change::Remove {
                names: vec!["b".into(), "c".into()],
                time: Timestamp(9),
            },
        );
        state.apply(
            EntryNumber(6),
            Change::Forget {
                segments: 1,
                time: Timestamp(8),
            },
        );
        assert_eq!(state.dead, [place(2)]);
        assert_eq!(state.segments(), [place(2)]);
        assert_eq!(state.newest_time(), Timestamp(9));
        assert_eq!(decode_snapshot(&state.encode_snapshot()).unwrap(), state);
    }

    #[test]
    fn a_change_reads_back() {
        let change = put("a", Content::Segments(vec![place(1)]));
        assert_eq!(decode_change(&change.encode()).unwrap(), change);
        assert!(decode_change(&[]).is_err());
        assert!(decode_change(&[9, 9]).is_err());
    }
}
