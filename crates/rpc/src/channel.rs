//! A connection to another node: its stream of bytes, and how its frames are protected.

use crate::seal::{FrameKeys, Opener, Sealer};
use tokio::io::{AsyncRead, AsyncWrite};

/// A stream of ordered bytes to another node.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

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
