//! Ranges of a file: fallocate, lseek, copy_file_range.

use crate::attributes::InodeAttributes;
use crate::inode::{Inner, InodeRef};
use crate::owner::Late;
use crate::page_pool::PagePool;
use crate::pages::extents::Source;
use crate::reader::{CHANGE_WAIT, EXTENTS_AT_ONCE_MAX, ROUNDS_MAX, Reader};
use crate::session::{Session, unexpected_reply};
use crate::tokens::Uses;
use crate::types::{Allocate, ReadTraces, Seek};
use crate::write_behind::WriteBehind;
use crate::writer::Writer;
use model::operation::RangeChange;
use model::{
    Attributes, Error, ErrorKind, FileKind, InodeId, Operation, Privileges, Reply, Result, limits,
};
use pool::Pool;
use std::sync::Arc;

/// Most bytes that one copy_file_range copies; programs repeat the call.
const COPY_BYTES_MAX: u64 = 1 << 30;
/// Bytes of one step of copying by reading and writing.
const COPY_STEP_BYTES: u64 = 1 << 20;

/// The cause by which waits for NSDs are listed that haven't said how much they hold.
const KNOWN_WAIT: &str = "what NSDs of other nodes hold";

/// Pieces of a file that one seek examines before it releases the inode's lock.
const SEEK_STEPS_MAX: usize = 4096;

/// Result of one step of a seek.
enum Sought {
    /// A change of the file must end first.
    Changing,
    /// Tokens must be claimed first.
    NotHeld,
    /// The final offset.
    Found(u64),
    /// Nothing was found up to here.
    Passed(u64),
    /// Continue at the first offset; the extents between the two must be read first.
    Unknown(u64, u64),
}

/// The content of files, by ranges.
pub(crate) struct Content {
    session: Arc<Session>,
    pages: Arc<PagePool>,
    pool: Arc<Pool>,
    write_behind: Arc<WriteBehind>,
    attributes: Arc<InodeAttributes>,
    reader: Arc<Reader>,
    writer: Arc<Writer>,
}

impl Content {
    pub(crate) fn new(
        session: Arc<Session>,
        pages: Arc<PagePool>,
        pool: Arc<Pool>,
        write_behind: Arc<WriteBehind>,
        attributes: Arc<InodeAttributes>,
        reader: Arc<Reader>,
        writer: Arc<Writer>,
    ) -> Self {
        Self {
            session,
            pages,
            pool,
            write_behind,
            attributes,
            reader,
            writer,
        }
    }

    /// fallocate. Reserved space is checked against the free space now; it isn't kept from others.
    pub(crate) async fn allocate(
        &self,
        inode: InodeId,
        how: Allocate,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        if length == 0 {
            return Err(ErrorKind::InvalidArgument.into());
        }
        let end = offset
            .checked_add(length)
            .filter(|end| *end <= limits::FILE_BYTES_MAX);
        let Some(end) = end else {
            return Err(ErrorKind::FileTooLarge.into());
        };
        let (change, keep_size) = match how {
            Allocate::Reserve { keep_size } => (RangeChange::Reserve, keep_size),
            Allocate::Punch => (RangeChange::Punch, true),
            Allocate::Zero { keep_size } => (RangeChange::Zero, keep_size),
        };
        let state = self.pages.inode(inode);
        let exclusive = state.exclude_writers(&self.session, &self.pages).await?;
        self.write_behind.publish(&state).await?;
        if change != RangeChange::Punch {
            self.check_reservable(inode, offset, end).await?;
        }
        state.lock().begin_range_change(offset, end, !keep_size);
        let mut next = Some(offset);
        while let Some(at) = next {
            let length = end - at;
            let operation = Operation::ChangeRange {
                inode,
                offset: at,
                length,
                change,
                keep_size,
            };
            let asked = state.lock().held_state();
            let result = self.range_changed(&[inode], operation).await;
            let mut inner = state.lock();
            if change != RangeChange::Reserve {
                self.pages.uncache(inode, &mut inner, offset, end);
            }
            inner.forget_extents(offset, end);
            let (attributes, more) = result?;
            inner.learn(&attributes, asked);
            next = more;
        }
        state.lock().end_change();
        drop(exclusive);
        Ok(())
    }

    /// A reservation must fit into the free space now, and together with the file's data into the
    /// pool: it isn't kept from others, but it must be possible.
    async fn check_reservable(&self, inode: InodeId, from: u64, to: u64) -> Result<()> {
        let (mut at, mut missing) = (from, to - from);
        let allocated = loop {
            let operation = Operation::ReadExtents {
                inode,
                offset: at,
                length: to - at,
                limit: EXTENTS_AT_ONCE_MAX,
            };
            match self.session.execute(operation).await? {
                Reply::Extents {
                    extents,
                    known_to,
                    attributes,
                } => {
                    missing -= extents.iter().map(|extent| extent.length).sum::<u64>();
                    if known_to >= to {
                        break attributes.allocated;
                    }
                    at = known_to;
                }
                other => unexpected_reply(&other),
            }
        };
        if missing == 0 {
            return Ok(());
        }
        let fits = || {
            let capacity = self.pool.usage().capacity;
            allocated.saturating_add(missing) <= capacity && self.pool.check_room(missing).is_ok()
        };
        if self.pool.usage().unknown > 0 && !fits() {
            let known = self.pool.until_known();
            self.session.wait(KNOWN_WAIT, Some(inode), known).await?;
        }
        let capacity = self.pool.usage().capacity;
        if allocated.saturating_add(missing) > capacity {
            let text = format!("reserve {missing} bytes more in a pool of {capacity}");
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        self.pool.check_room(missing)
    }

    /// SEEK_DATA and SEEK_HOLE. Reserved space is a hole.
    pub(crate) async fn seek(&self, inode: InodeId, offset: u64, what: Seek) -> Result<u64> {
        let state = self.pages.inode(inode);
        // Parts already passed aren't examined again, even if their extents are forgotten
        // meanwhile, so the number of steps is bounded by the number of extents.
        let mut at = offset;
        let mut rounds = 0;
        let mut uses: Option<Uses> = None;
        let mut _turn = None;
        while rounds < ROUNDS_MAX {
            let step = seek_in(&state.lock(), uses.as_ref(), offset, at, what)?;
            let next = match step {
                Sought::Changing => {
                    // The owner may have to wait for others that wait for this client.
                    uses = None;
                    _turn = None;
                    let waiting = self
                        .session
                        .wait_for_change(CHANGE_WAIT, inode, state.turn());
                    _turn = Some(Box::pin(waiting).await?);
                    continue;
                }
                Sought::Found(found) if uses.take().is_none_or(Uses::end) => return Ok(found),
                Sought::Found(_) => {
                    rounds += 1;
                    continue;
                }
                Sought::NotHeld => {
                    drop(uses.take());
                    let claimed = self.reader.claim(&state, offset);
                    uses = Some(Box::pin(claimed).await?);
                    rounds += 1;
                    continue;
                }
                Sought::Passed(next) => next,
                Sought::Unknown(from, to) => {
                    self.reader
                        .ask_extents(&state, uses.as_ref(), (from, to), EXTENTS_AT_ONCE_MAX)
                        .await?;
                    from
                }
            };
            rounds = if next > at { 0 } else { rounds + 1 };
            at = next;
        }
        let text =
            format!("seek in {inode} at {at}: the file changed {ROUNDS_MAX} times meanwhile");
        Err(Error::new(ErrorKind::Unavailable, text))
    }

    /// copy_file_range: shares extents inside a fileset, copies across filesets. Returns the
    /// bytes done, 0 at the end of the source; at most 1 GiB per call.
    pub(crate) async fn copy_range(
        &self,
        from: InodeId,
        from_offset: u64,
        to: InodeId,
        to_offset: u64,
        length: u64,
    ) -> Result<u64> {
        self.pages.check_lost(from)?;
        self.pages.check_lost(to)?;
        let source = self.pages.inode(from);
        self.write_behind.publish(&source).await?;
        let size = self.attributes.get(from).await?.size;
        let length = length
            .min(COPY_BYTES_MAX)
            .min(size.saturating_sub(from_offset));
        if length == 0 {
            return Ok(0);
        }
        let to_end = to_offset
            .checked_add(length)
            .filter(|end| *end <= limits::FILE_BYTES_MAX);
        let Some(to_end) = to_end else {
            return Err(ErrorKind::FileTooLarge.into());
        };
        if from == to && from_offset < to_end && to_offset < from_offset + length {
            return Err(ErrorKind::InvalidArgument.into());
        }
        let target = self.pages.inode(to);
        match self
            .share(&target, from, from_offset, to_offset, length)
            .await
        {
            Err(error) if error.kind() == ErrorKind::OtherFileset => {
                self.copy_bytes(from, from_offset, to, to_offset, length)
                    .await
            }
            other => other,
        }
    }

    async fn share(
        &self,
        target: &InodeRef,
        from: InodeId,
        from_offset: u64,
        to_offset: u64,
        length: u64,
    ) -> Result<u64> {
        let to = target.id();
        let exclusive = target.exclude_writers(&self.session, &self.pages).await?;
        self.write_behind.publish(target).await?;
        let end = from_offset + length;
        let mut at = from_offset;
        let to_end = to_offset + length;
        target.lock().begin_range_change(to_offset, to_end, true);
        loop {
            let operation = Operation::Share {
                from,
                from_offset: at,
                to,
                to_offset: at - from_offset + to_offset,
                length: end - at,
            };
            let asked = target.lock().held_state();
            let result = self.range_changed(&[from, to], operation).await;
            let mut inner = target.lock();
            self.pages
                .uncache(to, &mut inner, to_offset, to_offset + length);
            inner.forget_extents(to_offset, to_offset + length);
            let (attributes, next) = match result {
                // Extents shared so far stay; the program asks for the rest.
                Err(_) if at > from_offset => break,
                other => other?,
            };
            inner.learn(&attributes, asked);
            match next {
                Some(next) if next > at => {
                    at = next;
                    continue;
                }
                // The source was truncated meanwhile and ends here.
                Some(_) => {}
                None => at = end,
            }
            inner.end_change();
            break;
        }
        drop(exclusive);
        Ok(at - from_offset)
    }

    async fn copy_bytes(
        &self,
        from: InodeId,
        from_offset: u64,
        to: InodeId,
        to_offset: u64,
        length: u64,
    ) -> Result<u64> {
        let mut done = 0;
        while done < length {
            let step = (length - done).min(COPY_STEP_BYTES) as usize;
            let at = from_offset + done;
            let traces = ReadTraces::default();
            let pieces = match self.reader.read(from, at, step, traces).await {
                // Bytes copied so far stay; the program asks for the rest.
                Err(_) if done > 0 => break,
                other => other?,
            };
            if pieces.is_empty() {
                break;
            }
            for piece in pieces {
                let at = Some(to_offset + done);
                match self.writer.write(to, at, &piece, Privileges::Keep).await {
                    Err(_) if done > 0 => return Ok(done),
                    other => drop(other?),
                }
                done += piece.len() as u64;
            }
        }
        Ok(done)
    }

    /// Changes a range of the last of these files, unless something that programs did before with one of them is lost.
    async fn range_changed(
        &self,
        files: &[InodeId],
        operation: Operation,
    ) -> Result<(Attributes, Option<u64>)> {
        let may = || {
            files
                .iter()
                .try_for_each(|file| self.pages.check_lost(*file))
        };
        let changed = files.last().expect("one is changed");
        let unheard = self.attributes.begin_change(*changed, Late::Bytes);
        let done = self.session.execute_if(operation, may).await;
        unheard.hear(&done);
        match done? {
            Reply::RangeChanged { attributes, next } => Ok((attributes, next)),
            other => Err(Error::new(
                ErrorKind::Unavailable,
                format!("unexpected reply from the owner: {other:?}"),
            )),
        }
    }
}

/// Continues a seek from `offset` at `at`, as far as extents are known here.
fn seek_in(inner: &Inner, uses: Option<&Uses>, offset: u64, at: u64, what: Seek) -> Result<Sought> {
    inner.check_lost()?;
    if inner.is_changing(offset, u64::MAX) {
        return Ok(Sought::Changing);
    }
    let is_held = match uses {
        // What is lost is claimed again.
        Some(uses) => uses.is_held(inner),
        None => inner.may_read(offset, u64::MAX),
    };
    if !is_held {
        return Ok(Sought::NotHeld);
    }
    let (Some(known), Some(size)) = (inner.known(), inner.size()) else {
        return Ok(Sought::Unknown(at, at.saturating_add(1)));
    };
    match known.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(ErrorKind::IsDirectory.into()),
        _ => return Err(ErrorKind::InvalidArgument.into()),
    }
    if offset >= size {
        return Err(ErrorKind::NoSuchDeviceOrAddress.into());
    }
    let mut at = at;
    let mut unpublished = inner.unpublished();
    for _ in 0..SEEK_STEPS_MAX {
        if at >= size {
            return match what {
                Seek::Data => Err(ErrorKind::NoSuchDeviceOrAddress.into()),
                Seek::Hole => Ok(Sought::Found(size)),
            };
        }
        let mut until = size;
        if let Some((from, to)) = unpublished.from(at) {
            if from == at && what == Seek::Data {
                return Ok(Sought::Found(at));
            }
            if from == at {
                at = to;
                continue;
            }
            until = until.min(from);
        }
        let piece = inner.extents().first(at, until);
        let is_data = match piece.source {
            Source::Unknown => return Ok(Sought::Unknown(at, size)),
            Source::Zeros => false,
            Source::Inline(_) | Source::Segment(..) => true,
        };
        if is_data == (what == Seek::Data) {
            return Ok(Sought::Found(at));
        }
        at = piece.to;
    }
    Ok(Sought::Passed(at))
}
