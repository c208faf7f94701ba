//! The index: a redb table from key to entry, changed only at checkpoints.

use crate::area::Area;
use crate::entry::IndexEntry;
use crate::key::Key;
use crate::ledger::Ledger;
use crate::wire::Reader;
use model::{Error, ErrorKind, Result};
use redb::{Database, ReadableDatabase, TableDefinition};
use std::collections::BTreeMap;
use std::sync::Arc;

const ENTRIES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("entries");
const STATE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state");
/// redb's page cache in bytes.
pub(crate) const CACHE_BYTES: usize = 64 << 20;

/// Changes of one checkpoint; `None` removes the key.
pub(crate) type Changes = BTreeMap<Key, Option<Arc<IndexEntry>>>;

/// Entries found in a range.
pub(crate) type Found = Vec<(Key, Arc<IndexEntry>)>;

/// The redb database. Its calls block.
#[derive(Debug)]
pub(crate) struct Index {
    database: Database,
    area: Area,
}

/// The index as of one checkpoint; any thread may read it.
pub(crate) struct Snapshot {
    entries: redb::ReadOnlyTable<&'static [u8], &'static [u8]>,
}

fn refused(what: &str, error: &redb::Error) -> Error {
    let kind = match error {
        redb::Error::Io(io) if io.kind() == std::io::ErrorKind::InvalidData => ErrorKind::Corrupt,
        redb::Error::Io(_) | redb::Error::PreviousIo => ErrorKind::Unavailable,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, format!("{what}: {error}"))
}

fn unchecked(error: std::io::Error) -> Error {
    let text = format!("checking the index: {error}");
    Error::new(ErrorKind::Unavailable, text)
}

/// Converts redb's errors to ours.
trait Attempt<T> {
    fn attempt(self, what: &str) -> Result<T>;
}

impl<T, E: Into<redb::Error>> Attempt<T> for std::result::Result<T, E> {
    fn attempt(self, what: &str) -> Result<T> {
        self.map_err(|error| refused(what, &error.into()))
    }
}

fn decode(key: &Key, bytes: &[u8]) -> Result<Arc<IndexEntry>> {
    let mut input = Reader::new(bytes);
    let entry = IndexEntry::decode(&mut input).filter(|_| input.rest().is_empty());
    entry.map(Arc::new).ok_or_else(|| {
        Error::new(
            ErrorKind::Corrupt,
            format!("the index has an invalid entry for {key}"),
        )
    })
}

impl Index {
    /// Opens or makes the database in an area.
    pub(crate) fn open(area: Area) -> Result<Self> {
        Self::open_with(area, CACHE_BYTES)
    }

    /// As [`Index::open`], with so many bytes of its pages in memory.
    pub(crate) fn open_with(area: Area, cache_bytes: usize) -> Result<Self> {
        let database = Database::builder()
            .set_cache_size(cache_bytes)
            .create_with_backend(area.clone())
            .attempt("opening the index")?;
        Ok(Self { database, area })
    }

    /// Runs `work`, during which whoever needs a page that redb hasn't in memory hangs.
    #[cfg(test)]
    pub(crate) fn hang_during<R>(&self, work: impl FnOnce() -> R) -> R {
        self.area.hang_during(work)
    }

    /// Applies a checkpoint's changes, durably. Returns the index after them.
    pub(crate) fn commit(&self, changes: &Changes, ledger: &Ledger) -> Result<Snapshot> {
        const WHAT: &str = "committing the index";
        let mut transaction = self.database.begin_write().attempt(WHAT)?;
        transaction.set_quick_repair(true);
        {
            let mut entries = transaction.open_table(ENTRIES).attempt(WHAT)?;
            for (key, entry) in changes {
                let key = &key.bytes()[..];
                match entry {
                    Some(entry) => {
                        entries
                            .insert(key, &entry.encode()[..])
                            .attempt(WHAT)
                            .map(|_| ())?;
                    }
                    None => entries.remove(key).attempt(WHAT).map(|_| ())?,
                }
            }
            let mut state = transaction.open_table(STATE).attempt(WHAT)?;
            state
                .insert("ledger", &ledger.encode()[..])
                .attempt(WHAT)
                .map(|_| ())?;
        }
        transaction.commit().attempt(WHAT)?;
        self.snapshot()
    }

    /// The index now.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        const WHAT: &str = "reading the index";
        let transaction = self.database.begin_read().attempt(WHAT)?;
        let entries = transaction.open_table(ENTRIES).attempt(WHAT)?;
        Ok(Snapshot { entries })
    }

    /// The ledger stored beside the entries.
    pub(crate) fn ledger(&self) -> Result<Ledger> {
        const WHAT: &str = "reading the index";
        let transaction = self.database.begin_read().attempt(WHAT)?;
        let state = transaction.open_table(STATE).attempt(WHAT)?;
        let bytes = state.get("ledger").attempt(WHAT)?;
        bytes
            .and_then(|bytes| Ledger::decode(bytes.value()))
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "the index has no readable ledger"))
    }

    /// Bytes of entries ([`Ledger::index_bytes`]) that certainly fit: trees are two thirds full, a
    /// commit may copy all of them, and the previous copies are freed one commit later.
    pub(crate) fn entry_bytes_max(&self) -> u64 {
        self.area.capacity() / 5
    }

    /// Reads every page from the medium. Returns the pages that don't match their checksum, for
    /// [`Index::finish_check`], and descriptions of the repairs. Checkpoints may run concurrently,
    /// because the check may take minutes and the journal would fill up.
    pub(crate) fn check_pages(&self) -> Result<(Vec<u64>, Vec<String>)> {
        let (mismatches, rewritten) = self.area.check_pages().map_err(unchecked)?;
        let mended = (rewritten > 0)
            .then(|| format!("{rewritten} pages of the index rewritten from memory"));
        Ok((mismatches, mended.into_iter().collect()))
    }

    /// Completes a check: checks the mismatched pages again, and whether the index needs them.
    /// Returns (whether the index itself is damaged, descriptions of the repairs). No checkpoint
    /// may run concurrently.
    pub(crate) fn finish_check(&self, mismatches: Vec<u64>) -> Result<(bool, Vec<String>)> {
        let (mismatches, mut mended) = self.area.finish_check(mismatches).map_err(unchecked)?;
        if mismatches.is_empty() {
            return Ok((false, mended));
        }
        if !self.scratch_is_whole() {
            return Ok((true, mended));
        }
        // Unreferenced pages left by a transaction that a power cut interrupted.
        self.area.forget(&mismatches);
        mended.push(format!(
            "{} unused pages of the index forgotten",
            mismatches.len()
        ));
        Ok((false, mended))
    }

    /// Whether a copy-on-write view of the last commit passes redb's own check, which reads every
    /// page in use.
    fn scratch_is_whole(&self) -> bool {
        let opened = Database::builder()
            .set_cache_size(1 << 20)
            .create_with_backend(self.area.scratch());
        let Ok(mut database) = opened else {
            return false;
        };
        database.check_integrity().is_ok()
    }
}

impl Snapshot {
    /// The entry of a key. May block for a disk read.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Arc<IndexEntry>>> {
        let found = self
            .entries
            .get(&key.bytes()[..])
            .attempt("reading the index")?;
        found.map(|bytes| decode(key, bytes.value())).transpose()
    }

    /// Calls `each` with the entries in `from..=to`, in order, until it returns `false`.
    pub(crate) fn scan(
        &self,
        from: &Key,
        to: &Key,
        mut each: impl FnMut(Key, Arc<IndexEntry>) -> bool,
    ) -> Result<()> {
        const WHAT: &str = "scanning the index";
        if from > to {
            return Ok(());
        }
        let range = self
            .entries
            .range(&from.bytes()[..]..=&to.bytes()[..])
            .attempt(WHAT)?;
        for row in range {
            let (key, value) = row.attempt(WHAT)?;
            let key = Key::parse(key.value())
                .ok_or_else(|| Error::new(ErrorKind::Corrupt, "the index has an invalid key"))?;
            if !each(key, decode(&key, value.value())?) {
                break;
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Snapshot")
    }
}

#[cfg(test)]
mod tests;
