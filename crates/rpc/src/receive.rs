//! From bytes, in whatever portions they come, to frames.

use crate::Fault;
use crate::frame::{Frame, HEADER_BYTES, Header};
use crate::seal::{Opener, SEALED_HEADER_BYTES, TAG_BYTES};
use bytes::Bytes;
use world::AlignedBuffer;

/// Bytes that are received together; small frames share one receive. A part of a frame that misses
/// at least this much is received where it belongs, without a copy.
const INBOX_BYTES: usize = 16 * 1024;

/// Collects bytes and cuts them into frames. Holds one frame at most, and takes memory for it only
/// after its header was allowed.
pub(crate) struct Receiver {
    /// Opens frames, if they are sealed.
    opener: Option<Opener>,
    inbox: Box<[u8]>,
    /// The part of the inbox that holds bytes.
    start: usize,
    end: usize,
    partial: Option<Partial>,
    /// Whether the space that was last given is the partial frame's.
    is_direct: bool,
}

/// A frame that hasn't come whole.
struct Partial {
    header: Header,
    /// The encoded part, with its tag if the frame is sealed.
    body: Vec<u8>,
    body_filled: usize,
    payload: Option<AlignedBuffer>,
    payload_filled: usize,
}

impl Partial {
    fn new(header: Header, is_sealed: bool) -> Self {
        let has_tag = is_sealed && header.body_bytes + header.payload_bytes > 0;
        let tag_bytes = if has_tag { TAG_BYTES } else { 0 };
        Self {
            header,
            body: vec![0; header.body_bytes + tag_bytes],
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
            partial: None,
            is_direct: false,
        }
    }

    /// Where the next bytes go; never empty after [`Receiver::next`] gave `None`.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.is_direct = false;
        if let Some(partial) = &mut self.partial {
            assert_eq!(self.start, self.end, "the partial frame took all");
            if partial.missing().len() >= INBOX_BYTES {
                self.is_direct = true;
                return partial.missing();
            }
        }
        self.inbox.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        &mut self.inbox[self.end..]
    }

    /// That many bytes are now in the space that was given.
    pub(crate) fn received(&mut self, count: usize) {
        match &mut self.partial {
            Some(partial) if self.is_direct => partial.filled(count),
            _ => self.end += count,
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
            self.partial = Some(Partial::new(header, self.opener.is_some()));
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
        let payload = partial
            .payload
            .map_or_else(Bytes::new, AlignedBuffer::freeze);
        match &mut self.opener {
            Some(opener) => {
                // What opens is what was sealed: its checksums would say it once more, for as much work.
                if !body.is_empty() {
                    opener.open_parts(&mut body, &payload)?;
                }
                opener.advance();
            }
            None => partial.header.check_parts(&body, &payload)?,
        }
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
