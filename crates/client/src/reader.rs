//! Reading: dirty runs take precedence over batches in flight, those over cached bytes, those over
//! extents.
//!
//! [`Reader`] puts an answer together and asks `fetch` for what is missing; `ahead` fetches what will
//! be read next.

mod ahead;
mod answer;
mod fetch;
mod neighbours;

pub(crate) use fetch::EXTENTS_AT_ONCE_MAX;

use crate::atime::Accesses;
use crate::inode::InodeRef;
use crate::page_pool::PagePool;
use crate::pages::extents::{Located, Source};
use crate::pages::ranges::Gaps;
use crate::session::Session;
use crate::tokens::{Filling, Tokens, Uses};
use crate::types::ReadTraces;
use ahead::ReadAhead;
use answer::Answer;
use bytes::Bytes;
use fetch::{EXTENTS_AHEAD, EXTENTS_AT_ONCE, Fetcher, Keep};
use model::{Error, ErrorKind, FileKind, InodeId, Result, TokenMode};
use pool::Pool;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::futures::Notified;
use tracing::debug;
use world::Work;

/// Most restarts of a read because the file changed meanwhile.
pub(crate) const ROUNDS_MAX: usize = 64;
/// After this many rounds a read uses the extents known so far instead of requiring all of them:
/// there may be more than are remembered.
const ROUNDS_WHOLE_MAX: usize = 4;
/// The cause by which waits for a change of the same client are listed.
pub(crate) const CHANGE_WAIT: &str = "a change of the same file";
/// The cause by which waits for nodes that are away are listed.
const NODES_WAIT: &str = "nodes that hold the data";
/// How often a read looks again for data whose nodes are away.
const NODES_LOOK_EVERY: Duration = Duration::from_millis(100);

/// What is missing for an answer.
enum Missing<'a> {
    /// Nothing: the pieces in order.
    Nothing(Vec<Bytes>),
    /// A change of the same bytes is under way.
    Change,
    /// Tokens must be claimed first.
    Tokens,
    /// Size, or extents from this offset on, must be requested.
    Extents(u64),
    /// Another task is fetching the data.
    Arrival(Notified<'a>),
    /// The pieces of segments to fetch, and the mapping that says so; and pieces available now, kept
    /// because they may be evicted before the rest arrives.
    Data(Vec<Located>, u64, Vec<(u64, Bytes)>),
}

/// Reads files.
pub(crate) struct Reader {
    session: Arc<Session>,
    pages: Arc<PagePool>,
    accesses: Arc<Accesses>,
    tokens: Arc<Tokens>,
    fetcher: Arc<Fetcher>,
    ahead: ReadAhead,
}

impl Reader {
    /// A reader that gets at most `ahead_bytes_max` ahead of sequential readers.
    pub(crate) fn new(
        session: Arc<Session>,
        pages: Arc<PagePool>,
        pool: Arc<Pool>,
        accesses: Arc<Accesses>,
        tokens: Arc<Tokens>,
        ahead_bytes_max: u64,
    ) -> Self {
        let fetcher = Arc::new(Fetcher::new(session.clone(), pages.clone(), pool));
        Self {
            ahead: ReadAhead::new(
                session.clone(),
                pages.clone(),
                fetcher.clone(),
                ahead_bytes_max,
            ),
            session,
            pages,
            accesses,
            tokens,
            fetcher,
        }
    }

    /// Reads; shorter than requested only at the end of the file. Pieces are contiguous, and not
    /// copied if the page pool has them.
    pub(crate) async fn read(
        &self,
        inode: InodeId,
        offset: u64,
        length: usize,
        traces: ReadTraces,
    ) -> Result<Vec<Bytes>> {
        self.session.check_open()?;
        let state = self.pages.inode(inode);
        let mut fetched = Vec::new();
        let mut lost_at = None;
        let mut unreadable_since = None;
        // Whether the read still has to be noted, and if so, whether it moves atime.
        let mut unnoted = Some(traces.atime);
        let keep = if traces.cached { Keep::Read } else { Keep::No };
        let mut round = 0;
        let mut in_parts = false;
        let mut uses: Option<Uses> = None;
        let mut _turn = None;
        let fill = match traces.kept {
            // Boxed because only pages of kernels need it: every read's future would be larger.
            Some(kept) => {
                let begun = self.tokens.begin_fill(&state, offset, length, kept);
                Some(Box::pin(begun).await?)
            }
            None => None,
        };
        while round < ROUNDS_MAX {
            in_parts |= round >= ROUNDS_WHOLE_MAX;
            let have = (&fetched[..], in_parts);
            let held = (uses.as_ref(), fill.as_ref());
            let missing = self.put_together(&state, offset, length, held, have, &mut unnoted)?;
            // A kernel keeps what it is answered, so that must be the newest by then: it is fetched under a use.
            let is_unused = fill.is_some() && uses.is_none();
            let missing = match missing {
                Missing::Data(..) if is_unused && !state.lock().has_all() => Missing::Tokens,
                missing => missing,
            };
            let (wanted, mapping, known) = match missing {
                // What was read under a token that is lost may be old.
                Missing::Nothing(pieces) => match uses.take().is_none_or(Uses::end) {
                    true => return Ok(pieces),
                    false => {
                        fetched.clear();
                        round += 1;
                        continue;
                    }
                },
                Missing::Change => {
                    // The owner may have to wait for others that wait for this client.
                    uses = None;
                    _turn = None;
                    fetched.clear();
                    // Boxed because it is rare: every read's future would be larger.
                    let waiting = Box::pin(state.turn());
                    let waiting = self.session.wait_for_change(CHANGE_WAIT, inode, waiting);
                    _turn = Some(Box::pin(waiting).await?);
                    continue;
                }
                Missing::Tokens => {
                    // What was fetched before may be old by now.
                    fetched.clear();
                    drop(uses.take());
                    let _waits = match &fill {
                        Some(fill) => fill.begin_wait(&self.tokens)?,
                        None => None,
                    };
                    let (from, to, mode) = match &fill {
                        Some(fill) => fill.wants(),
                        None => (offset, end_of(offset, length), TokenMode::Shared),
                    };
                    let claimed = self.tokens.claim_read(&state, from, to, mode);
                    // Boxed because it is rare: every read's future would be larger.
                    uses = Some(Box::pin(claimed).await?);
                    round += 1;
                    continue;
                }
                Missing::Arrival(arrival) => {
                    let (cause, fetching) = ("data that is being fetched", Work::Fetch(inode));
                    self.session
                        .wait_for_work(cause, inode, fetching, arrival)
                        .await?;
                    continue;
                }
                Missing::Extents(from) => {
                    let to = from.saturating_add(EXTENTS_AHEAD);
                    let used_to = uses.as_ref().map(|uses| (uses, end_of(offset, length)));
                    let limit = if in_parts {
                        EXTENTS_AT_ONCE_MAX
                    } else {
                        EXTENTS_AT_ONCE
                    };
                    let asked = self.fetcher.ask_extents(&state, (from, to), used_to, limit);
                    asked.await?;
                    round += 1;
                    continue;
                }
                Missing::Data(wanted, mapping, known) => (wanted, mapping, known),
            };
            // Each available part makes the rest smaller.
            round = if known.is_empty() { round + 1 } else { 0 };
            fetched.extend(known);
            fetched.sort_unstable_by_key(|(at, _)| *at);
            let located = (&wanted[..], mapping);
            let changes = self.session.standing().changes();
            match self.fetcher.fetch(&state, located, keep).await {
                // The client has everything no longer, or again.
                Ok(_) if is_unused && self.session.standing().changes() != changes => {
                    fetched.clear();
                }
                Ok(pieces) => {
                    fetched.extend(pieces);
                    fetched.sort_unstable_by_key(|(at, _)| *at);
                    if in_parts {
                        round = 0;
                    }
                }
                // The data may have been folded or cleaned meanwhile; the owner knows the new
                // places. While an NSD is away, a deleted segment can't be distinguished from an
                // unreadable one, so only the same places twice are an error.
                Err(error) if lost_at.as_ref() != Some(&wanted) => {
                    debug!(%inode, %error, "looking up the data's place again");
                    lost_at = Some(wanted);
                    state.lock().forget_all_extents();
                }
                Err(error) => {
                    let now = self.session.now();
                    let since = *unreadable_since.get_or_insert(now);
                    let is_wanted = !self.session.world().is_given_up();
                    if !(is_wanted && self.session.is_pause(&error, since)) {
                        return Err(unreadable(inode, error));
                    }
                    uses = None;
                    _turn = None;
                    fetched.clear();
                    let _listed = self.session.list(NODES_WAIT, Some(inode), since);
                    // Boxed because it is rare: every read's future would be larger.
                    Box::pin(self.session.world().sleep(NODES_LOOK_EVERY)).await;
                    (lost_at, round) = (None, 0);
                }
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
        (uses, fill): (Option<&Uses>, Option<&Filling>),
        (fetched, in_parts): (&[(u64, Bytes)], bool),
        unnoted: &mut Option<bool>,
    ) -> Result<Missing<'a>> {
        let mut inner = state.lock();
        if let Some(fill) = fill {
            fill.begins_again(&mut inner);
        }
        inner.check_lost()?;
        if inner.is_changing(offset, end_of(offset, length)) {
            return Ok(Missing::Change);
        }
        let end = end_of(offset, length);
        let is_held = uses.is_some_and(|uses| uses.is_held(&inner));
        let may_go = match fill {
            Some(fill) => fill.may_go(&inner, is_held),
            None => is_held || inner.may_read(offset, end),
        };
        // What is lost is claimed again: what was fetched under it may be old.
        if !may_go || is_held != uses.is_some() {
            return Ok(Missing::Tokens);
        }
        let Some(known) = inner.known() else {
            return Ok(Missing::Extents(offset));
        };
        let size = inner.size_of(known);
        match known.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(ErrorKind::IsDirectory.into()),
            _ => return Err(ErrorKind::InvalidArgument.into()),
        }
        let end = end.min(size);
        if let Some(moves_atime) = unnoted.take() {
            // POSIX: each read of more than 0 bytes, even at the end of the file.
            if moves_atime && length > 0 {
                self.accesses.note(state.id(), &mut inner);
            }
            if offset < end {
                self.ahead.note_read(state, &mut inner, (offset, end), size);
            }
        }
        if offset >= end {
            fill.inspect(|fill| fill.filled(&mut inner));
            return Ok(Missing::Nothing(Vec::new()));
        }
        let mut answer = Answer::default();
        let mut gaps = Gaps::new(offset, end);
        let used_ahead = answer.take_from_memory(&mut inner, &mut gaps);
        self.pages.note_used_ahead(used_ahead);
        answer.take_fetched(&mut gaps, fetched);
        let mut wanted = Vec::new();
        let mut known = Answer::default();
        let mut unknown = None;
        'gaps: for (from, to) in gaps.iter() {
            for piece in inner.extents().locate(from, to) {
                match &piece.source {
                    Source::Zeros => known.add_zeros(piece.from, piece.to),
                    Source::Inline(bytes) => known.0.push((piece.from, bytes.clone())),
                    Source::Segment(..) => wanted.push(piece),
                    Source::Unknown => {
                        unknown = Some(piece.from);
                        break 'gaps;
                    }
                }
            }
        }
        let has_part = in_parts && !(wanted.is_empty() && known.0.is_empty());
        match unknown {
            Some(from) if !has_part => return Ok(Missing::Extents(from)),
            Some(_) => {}
            None if wanted.is_empty() => {
                answer.0.append(&mut known.0);
                fill.inspect(|fill| fill.filled(&mut inner));
                return Ok(Missing::Nothing(answer.in_order()));
            }
            None => known.0.clear(),
        }
        let is_coming = |piece: &Located| inner.is_fetching(piece.from, piece.to);
        if wanted.iter().any(is_coming) {
            return Ok(Missing::Arrival(state.changed()));
        }
        Ok(Missing::Data(wanted, inner.mapping(), known.0))
    }

    /// Claims what it needs to look at the bytes from `from` on.
    pub(crate) async fn claim(&self, state: &InodeRef, from: u64) -> Result<Uses> {
        let (to, mode) = (u64::MAX, TokenMode::Shared);
        self.tokens.claim_read(state, from, to, mode).await
    }

    /// Requests the extents of a range, and size and times, from the owner. `uses`: what
    /// [was claimed](Reader::claim) for everything behind its beginning.
    pub(crate) async fn ask_extents(
        &self,
        state: &InodeRef,
        uses: Option<&Uses>,
        range: (u64, u64),
        limit: u32,
    ) -> Result<()> {
        let used_to = uses.map(|uses| (uses, u64::MAX));
        let asked = self.fetcher.ask_extents(state, range, used_to, limit);
        asked.await.map(drop)
    }
}

fn end_of(offset: u64, length: usize) -> u64 {
    offset.saturating_add(length as u64)
}

/// The error for unreadable data: EIO, whatever the cause's own errno.
fn unreadable(inode: InodeId, error: Error) -> Error {
    let error = error.while_doing(format!("read of inode {inode}"));
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Unavailable | ErrorKind::ShuttingDown => error,
        _ => Error::new(ErrorKind::Unavailable, error.to_string()),
    }
}
