//! Reading: dirty runs win over batches on their way, those over cached bytes, those over
//! extents.

use crate::client::{Client, misplaced};
use crate::inode::{Inner, InodeRef};
use crate::pages::extents::{Located, Source};
use crate::pages::ranges::Gaps;
use crate::types::ReadTraces;
use bytes::Bytes;
use futures::future::try_join_all;
use model::{Error, ErrorKind, FileKind, InodeId, Operation, Reply, Result, SegmentPlace, limits};
use tokio::sync::futures::Notified;
use tracing::debug;

/// How often a read starts again because something changed under it.
pub(crate) const ROUNDS_MAX: usize = 64;
/// Extents that are asked for at once.
const EXTENTS_AT_ONCE: u32 = 256;
/// How far behind a read extents are asked for, so that a stream asks rarely.
pub(crate) const EXTENTS_AHEAD: u64 = 1 << 30;

/// The zeros of all holes.
static ZEROS: [u8; 128 * 1024] = [0; 128 * 1024];

/// Pieces of an answer, not yet in order.
#[derive(Default)]
struct Answer(Vec<(u64, Bytes)>);

/// What becomes of fetched bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keep {
    /// Nothing: the reader has them.
    No,
    /// Cached: they were read.
    Read,
    /// Cached: they will be read.
    Ahead,
}

/// What an answer still needs.
enum Missing<'a> {
    /// Nothing: in order now.
    Nothing(Vec<Bytes>),
    /// Size or extents from here on must be asked for.
    Extents(u64),
    /// Somebody is fetching it.
    Arrival(Notified<'a>),
    /// These pieces of segments.
    Data(Vec<Located>),
}

impl Client {
    /// Reads; shorter than asked only at the end of the file. Pieces in order, not copied
    /// where the page pool has them.
    ///
    /// # Errors
    /// `Unavailable` or `Corrupt` (both EIO) if data can't be had or proven.
    pub async fn read(&self, inode: InodeId, offset: u64, length: usize) -> Result<Vec<Bytes>> {
        self.read_leaving(inode, offset, length, ReadTraces::default())
            .await
    }

    /// As `read`, but it says what it leaves behind.
    ///
    /// # Errors
    /// As `read`.
    pub async fn read_leaving(
        &self,
        inode: InodeId,
        offset: u64,
        length: usize,
        traces: ReadTraces,
    ) -> Result<Vec<Bytes>> {
        self.check_open()?;
        let state = self.inodes.get(inode);
        let mut fetched = Vec::new();
        let mut lost_at = None;
        // Whether the read is still to be noted, and if so, whether it moves atime.
        let mut unnoted = Some(traces.atime);
        let keep = if traces.cached { Keep::Read } else { Keep::No };
        let mut round = 0;
        while round < ROUNDS_MAX {
            let missing = self.put_together(&state, offset, length, &fetched, &mut unnoted)?;
            let wanted = match missing {
                Missing::Nothing(pieces) => return Ok(pieces),
                Missing::Arrival(arrival) => {
                    self.wait("data that is being fetched", Some(inode), arrival)
                        .await?;
                    continue;
                }
                Missing::Extents(from) => {
                    self.ask_extents(&state, from, from.saturating_add(EXTENTS_AHEAD))
                        .await?;
                    round += 1;
                    continue;
                }
                Missing::Data(wanted) => wanted,
            };
            round += 1;
            match self.fetch(&state, &wanted, keep).await {
                Ok(pieces) => fetched.extend(pieces),
                // Folded or cleaned meanwhile, perhaps: the owner knows the new places. With an
                // NSD away a segment that is gone can't be told from one that can't be read, so
                // only the same places twice are an error.
                Err(error) if lost_at.as_ref() != Some(&wanted) => {
                    debug!(%inode, %error, "looking again where the data is");
                    lost_at = Some(wanted);
                    let mut inner = state.lock();
                    inner.extents.forget_all();
                    inner.mapping += 1;
                }
                Err(error) => return Err(unreadable(inode, error)),
            }
        }
        let text =
            format!("read of {inode} at {offset}: the file changed {ROUNDS_MAX} times meanwhile");
        Err(Error::new(ErrorKind::Unavailable, text))
    }

    fn put_together<'a>(
        &self,
        state: &'a InodeRef,
        offset: u64,
        length: usize,
        fetched: &[(u64, Bytes)],
        unnoted: &mut Option<bool>,
    ) -> Result<Missing<'a>> {
        let mut inner = state.lock();
        let (Some(known), Some(size)) = (inner.known, inner.size()) else {
            return Ok(Missing::Extents(offset));
        };
        match known.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(ErrorKind::IsDirectory.into()),
            _ => return Err(ErrorKind::InvalidArgument.into()),
        }
        let end = offset.saturating_add(length as u64).min(size);
        if let Some(moves_atime) = unnoted.take() {
            // POSIX: each read of more than 0 bytes, also one that finds the end of the file.
            if moves_atime && length > 0 {
                self.note_access(state, &mut inner);
            }
            if offset < end {
                self.note_read(state, &mut inner, offset, end, size);
            }
        }
        if offset >= end {
            return Ok(Missing::Nothing(Vec::new()));
        }
        let mut answer = Answer::default();
        let mut gaps = Gaps::new(offset, end);
        self.take_from_memory(&mut inner, &mut gaps, &mut answer);
        answer.take_fetched(&mut gaps, fetched);
        let mut wanted = Vec::new();
        for (from, to) in gaps.iter() {
            for piece in inner.extents.locate(from, to) {
                match &piece.source {
                    Source::Zeros => answer.add_zeros(piece.from, piece.to),
                    Source::Inline(bytes) => answer.0.push((piece.from, bytes.clone())),
                    Source::Unknown => return Ok(Missing::Extents(piece.from)),
                    Source::Segment(..) => wanted.push(piece),
                }
            }
        }
        if wanted.is_empty() {
            return Ok(Missing::Nothing(answer.in_order()));
        }
        let is_coming = |piece: &Located| {
            inner
                .fetches
                .iter()
                .any(|(from, to)| *from < piece.to && piece.from < *to)
        };
        if wanted.iter().any(is_coming) {
            return Ok(Missing::Arrival(state.changed.notified()));
        }
        Ok(Missing::Data(wanted))
    }

    fn take_from_memory(&self, inner: &mut Inner, gaps: &mut Gaps, answer: &mut Answer) {
        if !inner.dirty.is_empty() {
            gaps.fill(|from, to, found| {
                inner.dirty.visit(from, to, |at, bytes| {
                    answer.0.push((at, Bytes::copy_from_slice(bytes)));
                    found(at, at + bytes.len() as u64);
                });
            });
        }
        for batch in inner.flushing.iter().rev() {
            gaps.fill(|from, to, found| {
                for run in batch
                    .runs
                    .iter()
                    .filter(|run| run.offset < to && run.end() > from)
                {
                    let (from, to) = (run.offset.max(from), run.end().min(to));
                    answer.0.push((from, run.slice(from, to)));
                    found(from, to);
                }
            });
        }
        if inner.clean.is_empty() {
            return;
        }
        let mut used_ahead = 0;
        gaps.fill(|from, to, found| {
            used_ahead += inner.clean.visit(from, to, |at, bytes| {
                found(at, at + bytes.len() as u64);
                answer.0.push((at, bytes));
            });
        });
        self.pages.note_ahead(used_ahead, 0);
    }

    /// Asks the owner for extents between `from` and `to`, and for size and times.
    pub(crate) async fn ask_extents(&self, state: &InodeRef, from: u64, to: u64) -> Result<()> {
        let inode = state.id;
        let mapping = state.lock().mapping;
        let length = to.min(limits::FILE_BYTES_MAX).saturating_sub(from).max(1);
        let operation = Operation::ReadExtents {
            inode,
            offset: from,
            length,
            limit: EXTENTS_AT_ONCE,
        };
        let reply = match self.execute(&operation).await {
            Ok(reply) => reply,
            // Not a file: its attributes say what to answer.
            Err(error) if error.kind() != ErrorKind::NotFound => {
                let attributes = self.attributes_of_owner(inode).await?;
                if attributes.kind == FileKind::File {
                    return Err(error);
                }
                state.lock().learn(&attributes);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        match reply {
            Reply::Extents {
                extents,
                known_to,
                attributes,
            } => {
                let mut inner = state.lock();
                if inner.mapping != mapping {
                    return Ok(());
                }
                if inner.known.is_none() {
                    inner.learn(&attributes);
                }
                inner.extents.learn(from, known_to.max(from), &extents);
                Ok(())
            }
            other => misplaced(&other),
        }
    }

    /// Fetches pieces of segments and keeps them if asked and the file didn't change meanwhile.
    pub(crate) async fn fetch(
        &self,
        state: &InodeRef,
        wanted: &[Located],
        keep: Keep,
    ) -> Result<Vec<(u64, Bytes)>> {
        let mapping = state.lock().mapping;
        let reads = wanted.iter().filter_map(|piece| match piece.source {
            Source::Segment(place, at) => Some(self.read_segment(piece, place, at)),
            _ => None,
        });
        let mut pieces = try_join_all(reads).await?.concat();
        if keep == Keep::No {
            return Ok(pieces);
        }
        {
            let mut inner = state.lock();
            if inner.mapping == mapping {
                for (at, bytes) in &mut pieces {
                    let (counted, memory) = self.blocks.counted(std::mem::take(bytes));
                    bytes.clone_from(&counted);
                    let piece = (counted, memory);
                    let ahead = keep == Keep::Ahead;
                    self.pages.cache(state.id, &mut inner, *at, piece, ahead);
                }
            }
        }
        if self.pages.is_over_budget() {
            self.pages.shrink(&self.inodes);
        }
        Ok(pieces)
    }

    async fn read_segment(
        &self,
        piece: &Located,
        place: SegmentPlace,
        at: u32,
    ) -> Result<Vec<(u64, Bytes)>> {
        let length = u32::try_from(piece.to - piece.from).expect("an extent lies in one segment");
        let _listed = self
            .waiters
            .enter("data from the NSDs", None, self.world.now());
        let mut offset = piece.from;
        let mut out = Vec::new();
        for bytes in self.pool.read(&place, at, length).await? {
            let next = offset + bytes.len() as u64;
            out.push((offset, bytes));
            offset = next;
        }
        if offset != piece.to {
            let text = format!(
                "segment {} answered {} bytes too few",
                place.segment,
                piece.to - offset
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(out)
    }
}

impl Answer {
    fn add_zeros(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let length = (to - at).min(ZEROS.len() as u64);
            self.0
                .push((at, Bytes::from_static(&ZEROS[..length as usize])));
            at += length;
        }
    }

    fn take_fetched(&mut self, gaps: &mut Gaps, fetched: &[(u64, Bytes)]) {
        for (start, bytes) in fetched {
            let end = start + bytes.len() as u64;
            gaps.fill(|from, to, found| {
                let (a, b) = (from.max(*start), to.min(end));
                if a < b {
                    self.0
                        .push((a, bytes.slice((a - start) as usize..(b - start) as usize)));
                    found(a, b);
                }
            });
        }
    }

    fn in_order(mut self) -> Vec<Bytes> {
        self.0.sort_by_key(|(at, _)| *at);
        self.0.into_iter().map(|(_, bytes)| bytes).collect()
    }
}

/// What a program gets for data that can't be had: EIO, whatever the cause's own errno.
fn unreadable(inode: InodeId, error: Error) -> Error {
    let error = error.while_doing(format!("read of inode {inode}"));
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Unavailable | ErrorKind::ShuttingDown => error,
        _ => Error::new(ErrorKind::Unavailable, error.to_string()),
    }
}
