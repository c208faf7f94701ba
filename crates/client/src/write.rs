//! Writing: one copy into the page pool, with memory and disk space claimed before.

use crate::client::Client;
use crate::inode::{InodeRef, Pending};
use crate::page_pool::Claim;
use model::{ErrorKind, FileKind, InodeId, Result, limits};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// A larger write goes in as several.
const PART_BYTES_MAX: usize = 8 * 1024 * 1024;

enum Attempt<'a> {
    /// Done, at this offset.
    Done(u64),
    /// Size and generation must be asked for first.
    Unknown,
    /// A truncate or the like is running.
    Excluded(Notified<'a>),
}

impl Client {
    /// Writes all of `data` into the page pool.
    ///
    /// # Errors
    /// `NoSpace` now, never later; `FileTooLarge`; `Unavailable` if no memory became free
    /// because nothing can be written to the NSDs.
    pub async fn write(&self, inode: InodeId, offset: u64, data: &[u8]) -> Result<()> {
        self.check_open()?;
        check_end(offset, data)?;
        let state = self.inodes.get(inode);
        let mut at = offset;
        for part in data.chunks(PART_BYTES_MAX) {
            self.write_part(&state, Some(at), part).await?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// O_APPEND: writes at the end, which it finds atomically; returns where that was.
    ///
    /// # Errors
    /// As `write`.
    pub async fn append(&self, inode: InodeId, data: &[u8]) -> Result<u64> {
        self.check_open()?;
        let state = self.inodes.get(inode);
        let mut parts = data.chunks(PART_BYTES_MAX);
        let first = self
            .write_part(&state, None, parts.next().unwrap_or_default())
            .await?;
        let mut at = first + data.len().min(PART_BYTES_MAX) as u64;
        for part in parts {
            self.write_part(&state, Some(at), part).await?;
            at += part.len() as u64;
        }
        Ok(first)
    }

    async fn write_part(&self, state: &InodeRef, at: Option<u64>, data: &[u8]) -> Result<u64> {
        let mut claim = self.claim(state.id, data.len() as u64).await?;
        loop {
            match self.try_write(state, at, data, &mut claim)? {
                Attempt::Done(offset) => {
                    if self.pages.is_short() {
                        self.flusher.press();
                    }
                    if self.pages.is_over_budget() {
                        self.pages.shrink(&self.inodes);
                    }
                    return Ok(offset);
                }
                Attempt::Unknown => self.learn(state).await?,
                Attempt::Excluded(over) => {
                    self.wait("a truncate of the same file", Some(state.id), over)
                        .await?;
                }
            }
        }
    }

    /// Memory and space for `bytes`; waits for memory.
    async fn claim(&self, inode: InodeId, bytes: u64) -> Result<Claim<'_>> {
        let mut has_made_room = false;
        loop {
            let room = Notify::notified(&self.pages.room);
            match self.pages.claim(bytes) {
                Ok(Some(claim)) => return Ok(claim),
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::NoSpace && !has_made_room => {
                    has_made_room = true;
                    // Boxed: rare and large, and every write's future would carry it.
                    let freeing = Box::pin(self.metanode.make_room());
                    self.wait("space that removed data holds", Some(inode), freeing)
                        .await??;
                    continue;
                }
                Err(error) => return Err(error),
            }
            let failure = self.pages.failure();
            if let Some(error) = failure.filter(|error| error.kind() == ErrorKind::NoSpace) {
                // What waits in memory has its space reserved, but the NSDs are fuller than
                // the pool knew: nothing more can be taken in.
                return Err(error.while_doing("make room for more dirty data"));
            }
            if !self.pages.is_moving() || self.pages.is_short() {
                self.flusher.press();
            }
            let waited = self.wait("memory for dirty data", Some(inode), room).await;
            if let Err(late) = waited {
                return Err(self.pages.failure().unwrap_or(late));
            }
        }
    }

    fn try_write<'a>(
        &self,
        state: &'a InodeRef,
        at: Option<u64>,
        data: &[u8],
        claim: &mut Claim<'_>,
    ) -> Result<Attempt<'a>> {
        let now = self.world.wall();
        let mut inner = state.lock();
        if inner.exclusive {
            return Ok(Attempt::Excluded(state.changed.notified()));
        }
        let Some(known) = inner.known else {
            return Ok(Attempt::Unknown);
        };
        match known.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(ErrorKind::IsDirectory.into()),
            _ => return Err(ErrorKind::InvalidArgument.into()),
        }
        let size = inner.size().expect("the size is known, as seen above");
        let offset = at.unwrap_or(size);
        check_end(offset, data)?;
        if data.is_empty() {
            return Ok(Attempt::Done(offset));
        }
        let end = offset + data.len() as u64;
        claim.used(inner.dirty.write(offset, data));
        self.pages.uncache(state.id, &mut inner, offset, end);
        let last_change = inner.pending.map_or(known.mtime, |pending| pending.written);
        inner.pending = Some(Pending {
            size: size.max(end),
            written: now.max(last_change),
            generation: known.generation,
        });
        let now = self.world.now();
        inner.last_write = Some(now);
        if inner.first_dirty.is_none() {
            inner.first_dirty = Some(now);
            self.flusher.note_dirty(state.id);
        }
        let full = inner.dirty.take_full_blocks(offset, end);
        let jobs = full
            .into_iter()
            .map(|block| self.freeze(state, &mut inner, vec![block]));
        let jobs: Vec<_> = jobs.collect();
        if !jobs.is_empty() {
            // What is dirty now is young; a stream isn't cut in the middle of a block.
            inner.first_dirty = (!inner.dirty.is_empty()).then_some(now);
        }
        drop(inner);
        for job in jobs {
            self.spawn_store(vec![job]);
        }
        Ok(Attempt::Done(offset))
    }
}

fn check_end(offset: u64, data: &[u8]) -> Result<()> {
    match offset.checked_add(data.len() as u64) {
        Some(end) if end <= limits::FILE_BYTES_MAX => Ok(()),
        _ => Err(ErrorKind::FileTooLarge.into()),
    }
}
