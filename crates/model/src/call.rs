//! A request from one node to another and its reply, as the network carries them: which method, an
//! encoded part, raw bytes beside it, and what is known when no reply comes.
//!
//! The contracts (`model::nsd`, the owner's) say which types the encoded parts hold.

use crate::{Error, ErrorKind, NodeRun, Result};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use std::fmt;

/// What a request asks for. The contract that it belongs to gives the number
/// (`docs/formats/rpc.md` lists the ranges); a number is never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Method(pub u16);

/// The kind of work that a request is. Each class has its own credits, so that none can take all of
/// a connection; of what waits, the earlier class here is sent first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Leases and heartbeats.
    Lease,
    /// Names, attributes, log entries: small, and a program waits.
    Metadata,
    /// File data.
    Bulk,
    /// Repair, moving pieces, scrub.
    Repair,
}

impl Class {
    /// All classes, in the order in which they are sent.
    pub const ALL: [Class; 4] = [Class::Lease, Class::Metadata, Class::Bulk, Class::Repair];
}

/// Largest encoded part of a request or reply in bytes. A delete with the most names takes about
/// 300 KiB.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;

/// Largest raw part of a request or reply in bytes: a piece of the largest segment.
pub const PAYLOAD_BYTES_MAX: usize = crate::limits::SEGMENT_BYTES_MAX as usize;

/// Bytes of a reply unless the request says otherwise; enough for names and attributes.
const REPLY_BYTES_DEFAULT: u32 = 64 * 1024;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// What is asked for.
    pub method: Method,
    /// Whose credits it takes.
    pub class: Class,
    /// The same number in all requests that serve one request of a program.
    pub trace: u64,
    /// The encoded part.
    pub body: Bytes,
    /// Raw bytes, neither encoded nor copied.
    pub payload: Bytes,
    /// CRC-32C of the payload, if whoever made it knows it: it isn't computed once more then. A wrong one costs the
    /// connection.
    pub payload_crc: Option<u32>,
    /// Largest reply that the caller takes, both parts together. Both sides hold room for it while
    /// the request is under way.
    pub reply_bytes_max: u32,
    /// The answer may wait for what other nodes do. Not sent: whoever calls keeps some of the credits from all such requests
    /// together, so that what they wait for finds room.
    pub may_wait: bool,
}

impl Call {
    /// A request without raw bytes, whose reply is small.
    ///
    /// # Panics
    /// If `request` can't be encoded: it has parts that only their own formats understand.
    #[must_use]
    pub fn new<T: Serialize>(method: Method, class: Class, request: &T) -> Self {
        Self {
            method,
            class,
            trace: 0,
            body: encode(request),
            payload: Bytes::new(),
            payload_crc: None,
            reply_bytes_max: REPLY_BYTES_DEFAULT,
            may_wait: false,
        }
    }

    /// The encoded part as what it holds.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes are no `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        decode(&self.body).ok_or_else(|| {
            let text = format!("the request of method {} isn't understood", self.method.0);
            Error::new(ErrorKind::InvalidArgument, text)
        })
    }
}

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The encoded part: a `Result` of what the method answers.
    pub body: Bytes,
    /// Raw bytes.
    pub payload: Bytes,
    /// As [`Call::payload_crc`].
    pub payload_crc: Option<u32>,
}

impl Reply {
    /// A reply that carries a method's result.
    ///
    /// # Panics
    /// As [`Call::new`].
    #[must_use]
    pub fn new<T: Serialize>(result: &Result<T>, payload: Bytes) -> Self {
        Self {
            body: encode(result),
            payload,
            payload_crc: None,
        }
    }

    /// The method's result.
    ///
    /// # Errors
    /// The method's own error; `Unknown` if the bytes are no result of a `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        decode(&self.body).unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::Unknown,
                "the reply isn't understood, so the outcome is unknown",
            ))
        })
    }
}

/// A reply and the daemon that gave it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The daemon. If its incarnation changed, it has forgotten what it only had in memory.
    pub from: NodeRun,
    /// Its reply.
    pub reply: Reply,
}

/// Why there is no reply, by what it says about the request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoAnswer {
    /// The request certainly didn't run: it never left, or the other node refused it unread. Asking
    /// again is safe.
    NotRun(Error),
    /// The request may have run, may be running, and may still run later.
    Unknown(Error),
}

impl NoAnswer {
    /// Never left, or refused unread.
    #[must_use]
    pub fn not_run(cause: impl Into<String>) -> Self {
        Self::NotRun(Error::new(ErrorKind::Unavailable, cause))
    }

    /// May have run.
    #[must_use]
    pub fn unknown(cause: impl Into<String>) -> Self {
        Self::Unknown(Error::new(ErrorKind::Unknown, cause))
    }
}

impl From<NoAnswer> for Error {
    /// `Unavailable` if the request certainly didn't run, otherwise `Unknown`.
    fn from(none: NoAnswer) -> Self {
        match none {
            NoAnswer::NotRun(error) | NoAnswer::Unknown(error) => error,
        }
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRun(error) => write!(f, "the request didn't run: {error}"),
            Self::Unknown(error) => write!(f, "whether the request ran is unknown: {error}"),
        }
    }
}

impl std::error::Error for NoAnswer {}

fn encode<T: Serialize>(value: &T) -> Bytes {
    postcard::to_stdvec(value)
        .expect("the contracts' types can be encoded")
        .into()
}

/// All of `bytes` as a `T`; `None` also if bytes are left over.
fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeId, NsdId};

    #[test]
    fn what_was_encoded_is_decoded_and_nothing_else() {
        let call = Call::new(Method(7), Class::Bulk, &(NsdId(3), "name"));
        assert_eq!(
            call.decode::<(NsdId, String)>(),
            Ok((NsdId(3), "name".into()))
        );
        let error = call.decode::<NsdId>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "bytes are left");

        let reply = Reply::new(&Ok(NodeId(4)), Bytes::new());
        assert_eq!(reply.decode::<NodeId>(), Ok(NodeId(4)));
        let refusal = Reply::new::<NodeId>(&Err(ErrorKind::NoSpace.into()), Bytes::new());
        assert_eq!(
            refusal.decode::<NodeId>(),
            Err(Error::from(ErrorKind::NoSpace))
        );
        let garbage = Reply {
            body: Bytes::from_static(&[9, 9]),
            payload: Bytes::new(),
            payload_crc: None,
        };
        let error = garbage.decode::<NodeId>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown);
    }

    #[test]
    fn an_error_tells_whether_the_request_can_have_run() {
        let kind = |none: NoAnswer| Error::from(none).kind();
        assert_eq!(kind(NoAnswer::not_run("no route")), ErrorKind::Unavailable);
        assert_eq!(kind(NoAnswer::unknown("cut")), ErrorKind::Unknown);
    }
}
