//! Lists a directory.

use crate::{Key, Need, POSITION_END, Record, View, transaction::Transaction, view::Step};
use model::{
    Error, ErrorKind, InodeId, Reply, limits::LISTING_ENTRIES_MAX, operation::DirectoryEntry,
};

/// Missing inodes at most this far apart are fetched as one range: per record, a scan costs a
/// seventh of a get.
const RANGE_GAP: u64 = 32;
/// A continued listing fetches missing inodes together with their neighbours: a directory takes its
/// inode numbers in runs, but lists them in the order of their names' hashes, so that later pages
/// need the neighbours.
const NEIGHBOURS: u64 = 64;

pub(crate) fn read_directory<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    after: u64,
    limit: u32,
    with_attributes: bool,
) -> Step<Reply> {
    let limit = (limit as usize).clamp(1, LISTING_ENTRIES_MAX);
    let key = |position: u64| Key::Name {
        directory,
        position,
    };
    let inode = tx.look(&Key::Inode(directory));
    // A program may seek to any number; there are no names after the last position.
    let mut from = after.saturating_add(1).min(POSITION_END);
    let mut names = tx.ask_range(&key(from), &key(POSITION_END), limit);
    tx.stop_if_missing()?;
    drop(inode);
    tx.directory(directory)?;
    let mut entries = Vec::new();
    let end = loop {
        let found = match names.take() {
            Some(found) => found,
            None => tx.range(&key(from), &key(POSITION_END), limit)?,
        };
        let full = found.len() == limit;
        for (key, record) in found {
            let (Key::Name { position, .. }, Record::Name(name)) = (key, record) else {
                continue;
            };
            from = position + 1;
            if let Some(entry) = &name.entry {
                entries.push(DirectoryEntry {
                    position,
                    name: entry.name.clone(),
                    inode: InodeId::new(directory.fileset(), entry.inode),
                    kind: entry.kind,
                    attributes: None,
                });
            }
        }
        if !full {
            break true;
        }
        // Only vacant heads so far: without an entry the caller would have no position to continue
        // from.
        if !entries.is_empty() {
            break false;
        }
    };
    if with_attributes {
        fill_attributes(tx, &mut entries, after > 0)?;
    }
    Ok(Reply::Listing { entries, end })
}

fn fill_attributes<V: View>(
    tx: &mut Transaction<'_, V>,
    entries: &mut [DirectoryEntry],
    goes_on: bool,
) -> Step<()> {
    let mut missing = Vec::new();
    for entry in entries.iter_mut() {
        match tx.known(&Key::Inode(entry.inode)) {
            Some(Some(Record::Inode(inode))) => {
                entry.attributes = Some(inode.attributes(entry.inode))
            }
            Some(_) => {
                let text = format!(
                    "name {} refers to inode {}, which doesn't exist",
                    entry.name, entry.inode
                );
                return Err(Error::new(ErrorKind::Corrupt, text).into());
            }
            None => missing.push(entry.inode),
        }
    }
    missing.sort_unstable();
    missing.dedup();
    let gap = if goes_on { NEIGHBOURS } else { RANGE_GAP };
    for run in missing.chunk_by(|a, b| b.0 - a.0 <= gap) {
        let (mut first, mut end) = (run[0].0, run[run.len() - 1].0 + 1);
        if goes_on {
            first -= first % NEIGHBOURS;
            end = end.next_multiple_of(NEIGHBOURS);
        } else if run.len() == 1 {
            tx.need(Need::Key(Key::Inode(run[0])));
            continue;
        }
        tx.need(Need::Range {
            from: Key::Inode(InodeId(first)),
            to: Key::Inode(InodeId(end)),
            limit: (end - first) as usize,
        });
    }
    tx.stop_if_missing()
}
