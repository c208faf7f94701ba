//! A connection to another node: its stream of bytes, and how its frames are protected.

use crate::seal::{FrameKeys, Opener, Sealer};
use std::io;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadHalf};
use world::{Connection, ConnectionReader};

/// A stream's receiving half.
pub(crate) type Reading = Box<dyn Receive>;

/// A stream's sending half.
pub(crate) type Writing = Box<dyn AsyncWrite + Send + Unpin>;

/// Bytes that come from another node.
pub trait Receive: AsyncRead + Send + Unpin {
    /// Says how many bytes more the caller surely waits for, and hears whether it may not be told of few
    /// (`ConnectionReader::want`). What can't use that tells of all.
    ///
    /// # Errors
    /// Those of the system; the stream is of no use then.
    fn want(&mut self, _bytes: usize) -> io::Result<bool> {
        Ok(false)
    }
}

impl Receive for ConnectionReader {
    fn want(&mut self, bytes: usize) -> io::Result<bool> {
        ConnectionReader::want(self, bytes)
    }
}

impl<S: AsyncRead + Send + Unpin> Receive for ReadHalf<S> {}

impl Receive for Reading {
    fn want(&mut self, bytes: usize) -> io::Result<bool> {
        (**self).want(bytes)
    }
}

/// A stream of ordered bytes to another node.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Both halves, for the calling task, and for threads of its kind (`World::is_here`).
    ///
    /// Whatever has one state for both directions, as TLS has, is locked while one of them moves: whoever sends waits
    /// for whoever receives. A stream that isn't so gives its own halves.
    fn into_halves(self: Box<Self>) -> (Reading, Writing) {
        let (read, write) = tokio::io::split(self);
        (Box::new(read), Box::new(write))
    }
}

/// Its socket is read and written at the same time: many threads send, and none of them nor the one that receives waits
/// for another one's call to the system.
impl Stream for Connection {
    fn into_halves(self: Box<Self>) -> (Reading, Writing) {
        let (read, write) = self.into_split();
        (Box::new(read), Box::new(write))
    }
}

/// Both ends are in this process.
impl Stream for DuplexStream {}

impl Stream for Box<dyn Stream> {
    fn into_halves(self: Box<Self>) -> (Reading, Writing) {
        <dyn Stream as Stream>::into_halves(*self)
    }
}

/// A connection over which frames can go.
pub struct Channel {
    stream: Box<dyn Stream>,
    keys: Option<FrameKeys>,
}

impl Channel {
    /// Frames go over the stream as they are: nothing protects them but the stream itself.
    pub fn plain(stream: impl Stream + 'static) -> Self {
        Self {
            stream: Box::new(stream),
            keys: None,
        }
    }

    /// Frames are sealed with these keys, which only the two sides know.
    pub(crate) fn sealed(stream: impl Stream + 'static, keys: FrameKeys) -> Self {
        Self {
            stream: Box::new(stream),
            keys: Some(keys),
        }
    }

    /// The stream, and what seals and opens its frames.
    pub(crate) fn into_parts(self) -> (Box<dyn Stream>, Option<(Sealer, Opener)>) {
        (self.stream, self.keys.map(FrameKeys::into_pair))
    }
}
