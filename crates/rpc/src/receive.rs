//! From bytes, in whatever portions they come, to frames.

use crate::Fault;
use crate::frame::{Frame, HEADER_BYTES, Header};
use crate::seal::{Opener, SEALED_HEADER_BYTES};
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use world::AlignedBuffer;

/// Bytes that are received together; small frames share one receive. A part of a frame that misses
/// at least this much is received where it belongs, without a copy.
const INBOX_BYTES: usize = 16 * 1024;

/// As many once a receive has filled that with small frames: sixteen answers of 4 KiB. Not from the beginning, because a
/// node has thousands of connections.
const INBOX_BYTES_MAX: usize = 64 * 1024;

/// So many receives in a row for which the small one would do, and it is enough again. An idle connection has one in a
/// second; on one that isn't idle a new inbox costs less than so many receives.
const LITTLE_MAX: u32 = 32;

/// Most connections that others have opened whose inboxes are large at the same time: 32 MiB. All that a node may have
/// would take 256 MiB, and whoever fills one every 32 receives keeps it.
pub(crate) const LARGE_INBOXES_MAX: usize = 512;

/// Collects bytes and cuts them into frames. Holds one frame at most, and takes memory for it only
/// after its header was allowed.
pub(crate) struct Receiver {
    /// Opens frames, if they are sealed.
    opener: Option<Opener>,
    inbox: Box<[u8]>,
    /// The part of the inbox that holds bytes.
    start: usize,
    end: usize,
    /// Receives in a row for which [`INBOX_BYTES`] would have done, or did.
    little: u32,
    /// Where there may be so many large inboxes, if that is bounded.
    room: Option<Arc<Semaphore>>,
    /// What this one takes of it while it is large.
    own_room: Option<OwnedSemaphorePermit>,
    partial: Option<Partial>,
    /// Whether the space that was last given is the partial frame's.
    is_direct: bool,
}

/// A frame that hasn't come whole.
struct Partial {
    header: Header,
    /// The encoded part, with the tags of parts if the frame is sealed.
    body: Vec<u8>,
    body_filled: usize,
    payload: Option<AlignedBuffer>,
    payload_filled: usize,
}

impl Partial {
    fn new(header: Header, opener: Option<&Opener>) -> Self {
        let body_bytes = opener.map_or(header.body_bytes, |opener| {
            opener.rest_bytes(header.body_bytes, header.payload_bytes)
        });
        Self {
            header,
            body: vec![0; body_bytes],
            body_filled: 0,
            payload: (header.payload_bytes > 0)
                .then(|| AlignedBuffer::with_any_content(header.payload_bytes)),
            payload_filled: 0,
        }
    }

    /// The part that comes next; empty if nothing is missing.
    fn missing(&mut self) -> &mut [u8] {
        if self.body_filled < self.body.len() {
            return &mut self.body[self.body_filled..];
        }
        match &mut self.payload {
            Some(payload) => &mut payload[self.payload_filled..],
            None => &mut [],
        }
    }

    /// Bytes of all parts that are missing.
    fn missing_bytes(&self) -> usize {
        let payload = self.payload.as_ref().map_or(0, |payload| payload.len());
        self.body.len() - self.body_filled + payload - self.payload_filled
    }

    fn filled(&mut self, count: usize) {
        if self.body_filled < self.body.len() {
            self.body_filled += count;
        } else {
            self.payload_filled += count;
        }
    }
}

impl Receiver {
    /// Nothing has come yet. `opener` opens frames that are sealed.
    pub(crate) fn new(opener: Option<Opener>) -> Self {
        Self {
            opener,
            inbox: vec![0; INBOX_BYTES].into(),
            start: 0,
            end: 0,
            little: LITTLE_MAX,
            room: None,
            own_room: None,
            partial: None,
            is_direct: false,
        }
    }

    /// As [`Receiver::new`], for a connection that another node opened: its inbox is large only while `room` has a permit
    /// for it.
    pub(crate) fn with_room(opener: Option<Opener>, room: &Arc<Semaphore>) -> Self {
        Self {
            room: Some(room.clone()),
            ..Self::new(opener)
        }
    }

    /// How many bytes are surely to come: what is missing of a frame, or one.
    pub(crate) fn wanted(&self) -> usize {
        self.partial.as_ref().map_or(1, Partial::missing_bytes)
    }

    /// Where the next bytes go; never empty after [`Receiver::next`] gave `None`.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        let missing = match &mut self.partial {
            Some(partial) => {
                assert_eq!(self.start, self.end, "the partial frame took all");
                partial.missing().len()
            }
            None => 0,
        };
        self.is_direct = missing >= INBOX_BYTES;
        if !self.is_direct {
            self.make_room();
        }
        match &mut self.partial {
            Some(partial) if self.is_direct => partial.missing(),
            _ => &mut self.inbox[self.end..],
        }
    }

    /// Moves what is there to the front of an inbox that is as large as it should be now.
    fn make_room(&mut self) {
        let here = self.start..self.end;
        let little = self.little;
        let bytes = match little {
            0 if self.may_be_large() => INBOX_BYTES_MAX,
            LITTLE_MAX.. if here.is_empty() => INBOX_BYTES,
            _ => self.inbox.len(),
        };
        self.start = 0;
        self.end = here.len();
        if bytes == self.inbox.len() {
            self.inbox.copy_within(here, 0);
        } else {
            let mut inbox: Box<[u8]> = vec![0; bytes].into();
            inbox[..here.len()].copy_from_slice(&self.inbox[here]);
            self.inbox = inbox;
            if bytes == INBOX_BYTES {
                self.own_room = None;
            }
        }
    }

    /// Takes room for a large inbox, unless it has that. Whoever gets none receives more often.
    fn may_be_large(&mut self) -> bool {
        let Some(room) = &self.room else {
            return true;
        };
        if self.own_room.is_none() {
            self.own_room = room.clone().try_acquire_owned().ok();
        }
        self.own_room.is_some()
    }

    /// That many bytes are now in the space that was given.
    pub(crate) fn received(&mut self, count: usize) {
        match &mut self.partial {
            // A large inbox would only have taken bytes that must be copied then.
            Some(partial) if self.is_direct => {
                partial.filled(count);
                self.little = self.little.saturating_add(1);
            }
            _ => {
                self.end += count;
                self.little = match self.end < INBOX_BYTES {
                    true => self.little.saturating_add(1),
                    false => 0,
                };
            }
        }
    }

    /// The next whole frame, if there is one. `allow` judges its header before memory is taken.
    pub(crate) fn next(
        &mut self,
        allow: impl FnOnce(&Header) -> Result<(), Fault>,
    ) -> Result<Option<Frame>, Fault> {
        if self.partial.is_none() {
            let Some(bytes) = self.header_bytes()? else {
                return Ok(None);
            };
            let header = Header::decode(&bytes)?;
            allow(&header)?;
            self.partial = Some(Partial::new(header, self.opener.as_ref()));
        }
        let Some(mut partial) = self.partial.take() else {
            return Ok(None);
        };
        while !partial.missing().is_empty() {
            let here = &self.inbox[self.start..self.end];
            let missing = partial.missing();
            let count = here.len().min(missing.len());
            if count == 0 {
                self.partial = Some(partial);
                return Ok(None);
            }
            missing[..count].copy_from_slice(&here[..count]);
            partial.filled(count);
            self.start += count;
        }
        let mut body = partial.body;
        let payload = match &mut self.opener {
            Some(opener) => {
                // What opens is what was sealed: its checksums would say it once more, for as much work.
                let payload = opener.open_parts(&mut body, partial.payload)?;
                opener.advance();
                payload
            }
            None => {
                let payload = partial.payload;
                let payload = payload.map_or_else(Bytes::new, AlignedBuffer::freeze);
                partial.header.check_parts(&body, &payload)?;
                payload
            }
        };
        partial.header.frame(body.into(), payload).map(Some)
    }

    /// Takes the next header out of the inbox, if it is there.
    fn header_bytes(&mut self) -> Result<Option<[u8; HEADER_BYTES]>, Fault> {
        let here = &mut self.inbox[self.start..self.end];
        match &self.opener {
            None => {
                let bytes = here.first_chunk::<HEADER_BYTES>().copied();
                self.start += bytes.map_or(0, |bytes| bytes.len());
                Ok(bytes)
            }
            Some(opener) => {
                let Some(sealed) = here.first_chunk_mut::<SEALED_HEADER_BYTES>() else {
                    return Ok(None);
                };
                self.start += SEALED_HEADER_BYTES;
                opener.open_header(sealed).map(Some)
            }
        }
    }
}
