//! Fetching: extents from the owner, and bytes from the NSDs.

use super::neighbours::{Together, together};
use crate::inode::InodeRef;
use crate::page_pool::PagePool;
use crate::pages::extents::Located;
use crate::pages::memory::COPIED_MAX;
use crate::session::{Session, unexpected_reply};
use crate::tokens::Uses;
use bytes::Bytes;
use futures::future::try_join_all;
use model::{Error, ErrorKind, Operation, Reply, Result, SegmentPlace, limits};
use pool::Pool;
use std::collections::VecDeque;
use std::sync::Arc;
use tracing::debug;

/// Extents requested at once.
pub(super) const EXTENTS_AT_ONCE: u32 = 256;
/// The same for callers that need very many.
pub(crate) const EXTENTS_AT_ONCE_MAX: u32 = 4096;
/// How far beyond a read extents are requested, so that a stream asks rarely.
pub(super) const EXTENTS_AHEAD: u64 = 1 << 30;
/// Most ranges of segments that one read fetches concurrently, and their bytes, unless one has more.
/// Each takes some KiB of state, and dozens of reads may run.
const FETCHES_AT_ONCE: usize = 64;
const FETCHED_BYTES_AT_ONCE: u64 = 8 << 20;
/// The cause by which waits for disks are listed.
const NSDS_WAIT: &str = "data from the NSDs";

/// What happens to fetched bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Keep {
    /// Not cached: only the reader gets them.
    No,
    /// Cached: they were read.
    Read,
    /// Cached: they will be read.
    Ahead,
}

/// What one request for neighbours brought.
enum Neighbours<'a> {
    /// The pieces' bytes, each with its offset in the file.
    Read(Vec<(u64, Bytes)>),
    /// The request failed, perhaps only because the unneeded bytes between the pieces are damaged:
    /// each piece is to be read by itself.
    Apart(Vec<Together<'a>>),
}

/// Fetches what isn't in memory.
pub(super) struct Fetcher {
    session: Arc<Session>,
    pages: Arc<PagePool>,
    pool: Arc<Pool>,
}

impl Fetcher {
    pub(super) fn new(session: Arc<Session>, pages: Arc<PagePool>, pool: Arc<Pool>) -> Self {
        Self {
            session,
            pages,
            pool,
        }
    }

    /// Requests the extents between `from` and `to`, as far as tokens allow to keep them, and size and
    /// times, from the owner. `used_to`: what the caller has claimed, up to there.
    pub(super) async fn ask_extents(
        &self,
        state: &InodeRef,
        (from, to): (u64, u64),
        used_to: Option<(&Uses, u64)>,
        limit: u32,
    ) -> Result<()> {
        self.pages.limit_extents();
        let inode = state.id();
        let (mapping, asked, to) = {
            let inner = state.lock();
            let used_to = used_to.filter(|(uses, _)| uses.is_held(&inner));
            let held_to = used_to.map_or_else(|| inner.readable_to(from), |(_, to)| to);
            let asked = inner.held_state().if_claimed(used_to.is_some());
            (inner.mapping(), asked, to.min(held_to))
        };
        let length = to.min(limits::FILE_BYTES_MAX).saturating_sub(from).max(1);
        let operation = Operation::ReadExtents {
            inode,
            offset: from,
            length,
            limit,
        };
        match self.session.execute(operation).await? {
            Reply::Extents {
                extents,
                known_to,
                attributes,
            } => {
                let mut inner = state.lock();
                if inner.mapping() == mapping {
                    inner.learn_first(&attributes, asked);
                    if from < to {
                        inner.learn_extents(from, known_to.max(from), &extents);
                    }
                }
                Ok(())
            }
            other => unexpected_reply(&other),
        }
    }

    /// Fetches pieces of segments; caches them if requested and the file didn't change since they were
    /// located, when its mapping was this one.
    pub(super) async fn fetch(
        &self,
        state: &InodeRef,
        (wanted, mapping): (&[Located], u64),
        keep: Keep,
    ) -> Result<Vec<(u64, Bytes)>> {
        let mut pieces = Vec::with_capacity(wanted.len());
        let mut rest: VecDeque<_> = together(wanted).into();
        while !rest.is_empty() {
            let mut bytes = 0;
            let mut some = Vec::new();
            while let Some(next) = rest.front()
                && some.len() < FETCHES_AT_ONCE
                && (some.is_empty() || bytes + u64::from(next.bytes()) <= FETCHED_BYTES_AT_ONCE)
            {
                bytes += u64::from(next.bytes());
                some.extend(rest.pop_front());
            }
            let reads = some
                .into_iter()
                .map(|neighbours| self.read_together(neighbours, keep));
            for read in try_join_all(reads).await? {
                match read {
                    Neighbours::Read(read) => pieces.extend(read),
                    // With the next ones, under the same limits.
                    Neighbours::Apart(parts) => rest.extend(parts),
                }
            }
        }
        if keep == Keep::No {
            return Ok(pieces);
        }
        {
            let mut inner = state.lock();
            if inner.mapping() == mapping {
                let ahead = keep == Keep::Ahead;
                self.pages
                    .cache_read(state.id(), &mut inner, &mut pieces, ahead);
            }
        }
        self.pages.shrink(pieces.len());
        Ok(pieces)
    }

    /// Reads the pieces with one request.
    async fn read_together<'a>(&self, wanted: Together<'a>, keep: Keep) -> Result<Neighbours<'a>> {
        if let Some(piece) = wanted.single() {
            let read = self.read_segment(piece, wanted.place(), wanted.at(), keep);
            return Ok(Neighbours::Read(read.await?));
        }
        let read = {
            let _listed = self.session.list(NSDS_WAIT, None, self.session.now());
            let read = self.pool.read(wanted.place(), wanted.at(), wanted.bytes());
            read.await
        };
        match read {
            Ok(chunks) => Ok(Neighbours::Read(wanted.cut(chunks, keep != Keep::No)?)),
            // The segment is gone: its pieces are elsewhere now.
            Err(error) if error.kind() == ErrorKind::NotFound => Err(error),
            Err(error) => {
                debug!(segment = %wanted.place().segment, %error, "neighbours are read one by one");
                Ok(Neighbours::Apart(wanted.apart()))
            }
        }
    }

    async fn read_segment(
        &self,
        piece: &Located,
        place: &SegmentPlace,
        at: u32,
        keep: Keep,
    ) -> Result<Vec<(u64, Bytes)>> {
        let length = u32::try_from(piece.to - piece.from).expect("an extent lies in one segment");
        let _listed = self.session.list(NSDS_WAIT, None, self.session.now());
        let mut offset = piece.from;
        let mut out = Vec::new();
        for bytes in self.pool.read(place, at, length).await? {
            let next = offset + bytes.len() as u64;
            let bytes = if keep != Keep::No && bytes.len() <= COPIED_MAX {
                Bytes::copy_from_slice(&bytes)
            } else {
                bytes
            };
            out.push((offset, bytes));
            offset = next;
        }
        if offset != piece.to {
            let text = format!(
                "a read of segment {} returned {} bytes too few",
                place.segment,
                piece.to - offset
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(out)
    }
}
