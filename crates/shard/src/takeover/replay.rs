//! Turns log entries into the catalog and the commits that the tree may lack.

use super::tail::{Tail, TailEntry};
use crate::catalog::{self, CatalogState};
use crate::frame::{EntryKind, Header};
use crate::tree::ReplayCommit;
use bytes::{Bytes, BytesMut};
use model::{CommitNumber, EntryNumber, Error, ErrorKind, Result, ShardId, Timestamp};

/// Result of reading the tail.
pub(super) struct Replayed {
    pub(super) catalog: CatalogState,
    /// The first entry of the newest snapshot; 0 for none.
    pub(super) snapshot: EntryNumber,
    pub(super) commits: Vec<ReplayCommit>,
    /// 0 for none.
    pub(super) last_commit: CommitNumber,
    pub(super) newest_time: Timestamp,
}

/// Reads the tail. `marker` 0: the shard is new and the tail empty.
pub(super) fn replay(shard: ShardId, marker: u128, tail: Tail) -> Result<Replayed> {
    let mut out = Replayed {
        catalog: CatalogState::default(),
        snapshot: EntryNumber(0),
        commits: Vec::new(),
        last_commit: CommitNumber(0),
        newest_time: Timestamp(0),
    };
    // Changes before the first snapshot are contained in it.
    let mut has_catalog = false;
    for (
        number,
        Header {
            kind,
            time,
            commit,
            parts,
            ..
        },
        payload,
    ) in payloads(tail.entries)
    {
        out.newest_time = out.newest_time.max(time);
        out.last_commit = out.last_commit.max(commit);
        match kind {
            EntryKind::Commit => {
                out.commits.push(ReplayCommit {
                    number,
                    time,
                    frame: payload,
                });
            }
            EntryKind::CatalogChange if has_catalog => {
                out.catalog.apply(number, catalog::decode_change(&payload)?);
            }
            EntryKind::CatalogChange => {}
            EntryKind::CatalogSnapshot => {
                // A later snapshot only repeats the result of the changes before it.
                out.catalog = catalog::decode_snapshot(&payload)?;
                out.snapshot = EntryNumber(number.0 + 1 - u64::from(parts));
                has_catalog = true;
            }
            EntryKind::Marker => {
                let bytes: [u8; 16] = payload[..]
                    .try_into()
                    .map_err(|_| wrong(shard, "its marker has a wrong length"))?;
                out.catalog = CatalogState::new(u128::from_le_bytes(bytes));
                has_catalog = true;
            }
        }
    }
    if marker != 0 && !has_catalog {
        return Err(wrong(shard, "it has no catalog snapshot"));
    }
    if out.catalog.marker != marker {
        return Err(wrong(
            shard,
            "its marker differs from coordination's: it is another shard's or cluster's log",
        ));
    }
    out.newest_time = out.newest_time.max(out.catalog.newest_time());
    Ok(out)
}

fn wrong(shard: ShardId, why: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("the log of shard {shard} can't be replayed: {why}"),
    )
}

/// Complete payloads with the number of their last part; incomplete ones are left out.
fn payloads(entries: Vec<TailEntry>) -> impl Iterator<Item = (EntryNumber, Header, Bytes)> {
    let mut parts = BytesMut::new();
    let mut next_part = 0;
    entries.into_iter().filter_map(
        move |TailEntry {
                  header, payload, ..
              }| {
            if header.parts == 1 {
                return Some((header.number, header, payload));
            }
            if header.part == 0 {
                parts.clear();
                next_part = 0;
            }
            if header.part != next_part {
                return None;
            }
            parts.extend_from_slice(&payload);
            next_part += 1;
            (next_part == header.parts).then(|| (header.number, header, parts.split().freeze()))
        },
    )
}
