//! A stream that is read one TLS record at a time, so that nobody takes bytes that aren't TLS any more.
//!
//! TLS takes what it gets, and keeps what it doesn't need yet. Where a connection leaves TLS behind, or
//! shows with its first byte that it is none, that would lose bytes. Here each read ends with a
//! record at the latest, however the bytes come.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes in front of a record: type, version, length.
const HEADER_BYTES: usize = 5;

/// Most bytes of a record behind its header (RFC 8446, 5.2).
const RECORD_BYTES_MAX: usize = (1 << 14) + 256;

/// A stream whose reads end with a record.
pub(crate) struct Records<S> {
    stream: S,
    header: [u8; HEADER_BYTES],
    /// Bytes of the header that have come.
    header_filled: usize,
    /// Bytes of the header that were given to the reader.
    header_given: usize,
    /// Bytes of the record that are still to come.
    rest: usize,
    /// Reads are passed on as they are.
    is_open: bool,
}

impl<S> Records<S> {
    /// A stream of which `first` bytes were read already.
    pub(crate) fn after(first: &[u8], stream: S) -> Self {
        let mut header = [0; HEADER_BYTES];
        header[..first.len()].copy_from_slice(first);
        Self {
            stream,
            header,
            header_filled: first.len(),
            header_given: 0,
            rest: 0,
            is_open: false,
        }
    }

    /// Whether the reader has got all of the last record, and nothing of the next one.
    pub(crate) fn is_between(&self) -> bool {
        self.header_filled == 0 && self.rest == 0
    }

    /// From here on reads take all that comes.
    pub(crate) fn open(&mut self) {
        assert!(self.is_between(), "no part of a record is kept here");
        self.is_open = true;
    }

    /// The stream, from behind the last record on.
    pub(crate) fn into_inner(self) -> S {
        assert!(self.is_between(), "no part of a record is kept here");
        self.stream
    }

    /// The stream, to close it.
    pub(crate) fn abandon(self) -> S {
        self.stream
    }
}

impl<S: AsyncRead + Unpin> Records<S> {
    /// Reads the header; false at the end of the stream.
    fn poll_header(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.header_filled < HEADER_BYTES {
            let mut missing = ReadBuf::new(&mut self.header[self.header_filled..]);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut missing))?;
            let count = missing.filled().len();
            if count == 0 {
                return Poll::Ready(Ok(false));
            }
            self.header_filled += count;
        }
        Poll::Ready(Ok(true))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Records<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.is_open {
            return Pin::new(&mut this.stream).poll_read(context, out);
        }
        if this.rest == 0 {
            if !ready!(this.poll_header(context))? {
                return Poll::Ready(Ok(()));
            }
            let bytes = usize::from(u16::from_be_bytes([this.header[3], this.header[4]]));
            if bytes == 0 || bytes > RECORD_BYTES_MAX {
                let text = "the bytes are no TLS";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
            }
            let rest = &this.header[this.header_given..];
            let count = out.remaining().min(rest.len());
            out.put_slice(&rest[..count]);
            this.header_given += count;
            if this.header_given == HEADER_BYTES {
                this.rest = bytes;
            }
            return Poll::Ready(Ok(()));
        }
        let most = this.rest.min(out.remaining());
        let mut part = ReadBuf::new(out.initialize_unfilled_to(most));
        ready!(Pin::new(&mut this.stream).poll_read(context, &mut part))?;
        let count = part.filled().len();
        out.advance(count);
        this.rest -= count;
        if this.rest == 0 {
            this.header_filled = 0;
            this.header_given = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Records<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use proptest::prelude::*;
    use tokio::io::AsyncReadExt;

    fn record(bytes: usize) -> Vec<u8> {
        let length = (bytes as u16).to_be_bytes();
        let mut out = vec![0x17, 3, 3, length[0], length[1]];
        out.resize(HEADER_BYTES + bytes, 9);
        out
    }

    proptest! {
        /// Whatever is asked for, no read goes past a record's end.
        #[test]
        fn a_read_ends_with_a_record(
            sizes in prop::collection::vec(1..2000_usize, 1..5),
            asked in 1..3000_usize,
            first in 0..5_usize,
        ) {
            let all: Vec<u8> = sizes.iter().flat_map(|bytes| record(*bytes)).collect();
            let bytes = [&all[..], b"not TLS"].concat();
            let mut records = Records::after(&bytes[..first], &bytes[first..]);
            let mut read = Vec::new();
            let mut ends = sizes.iter().scan(0, |end, bytes| {
                *end += HEADER_BYTES + bytes;
                Some(*end)
            });
            let mut end = ends.next().unwrap();
            loop {
                let mut part = vec![0; asked];
                let count = records.read(&mut part).now_or_never().unwrap().unwrap();
                prop_assert!(count > 0);
                read.extend_from_slice(&part[..count]);
                prop_assert!(read.len() <= end);
                prop_assert_eq!(records.is_between(), read.len() == end);
                if read.len() == end {
                    match ends.next() {
                        Some(next) => end = next,
                        None => break,
                    }
                }
            }
            prop_assert_eq!(read, all);
            prop_assert_eq!(records.into_inner(), b"not TLS");
        }
    }

    #[test]
    fn a_record_has_bytes_and_at_most_what_tls_allows() {
        for bytes in [0, RECORD_BYTES_MAX + 1, 65_535] {
            let header = &record(bytes)[..HEADER_BYTES];
            let mut records = Records::after(&[], header);
            let error = records
                .read(&mut [0; 100])
                .now_or_never()
                .unwrap()
                .unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
