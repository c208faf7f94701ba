//! Frames as bytes (`docs/formats/rpc.md`).

use crate::Fault;
use crate::hello::{Hello, VERSION};
use bytes::Bytes;
use model::call::{BODY_BYTES_MAX, Call, Class, Method, PAYLOAD_BYTES_MAX, Reply};
use model::checksum::crc32c;
use std::time::Duration;

/// Bytes of a frame's header.
pub(crate) const HEADER_BYTES: usize = 64;

/// The version of hello and goodbye, which every build reads: the others' version follows from hello.
const LASTING_VERSION: u8 = 0;

const MAGIC: [u8; 4] = *b"SHRP";

/// The first byte of every frame that isn't sealed. A connection of TLS begins with 0x16.
pub(crate) const FIRST_BYTE: u8 = MAGIC[0];

/// Longest explanation in a frame, and longest hello, in bytes.
const WORDS_BYTES_MAX: usize = 1024;

/// Bytes that a request takes besides its parts.
const REQUEST_BYTES: u64 = HEADER_BYTES as u64;

/// Largest reply that a request may allow.
const REPLY_BYTES_MAX: usize = BODY_BYTES_MAX + PAYLOAD_BYTES_MAX;

/// A frame's meaning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Frame {
    /// The first of each side.
    Hello(Hello),
    /// A request and the time left until its deadline.
    Request {
        /// Its number.
        number: u64,
        /// Time left, in whole milliseconds.
        budget: Duration,
        /// What is asked.
        call: Call,
    },
    /// The end of a request.
    Reply {
        /// The request's number.
        number: u64,
        /// Its class.
        class: Class,
        /// How it ended.
        ending: Ending,
    },
    /// The caller doesn't wait any more.
    Cancel {
        /// The request's number.
        number: u64,
    },
    /// No more requests.
    Goodbye {
        /// The highest number that is taken on.
        taken: u64,
        /// Why.
        why: String,
    },
    /// The side is there.
    Alive,
    /// The answering side wants so many counted connections from now on.
    Connections {
        /// As in [`Lanes::connections`](crate::hello::Lanes).
        most: u8,
    },
}

/// How a request ended on the node that was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// With a reply.
    Answered(Reply),
    /// It didn't begin.
    NotRun(String),
    /// It began; nobody knows how far it came.
    Dropped(String),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Hello = 1,
    Request,
    Reply,
    Cancel,
    Goodbye,
    Alive,
    Connections,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Answered,
    NotRun,
    Dropped,
}

/// A header that keeps the format's rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) class: Class,
    status: Status,
    pub(crate) number: u64,
    trace: u64,
    budget_ms: u32,
    method: u16,
    pub(crate) body_bytes: usize,
    pub(crate) payload_bytes: usize,
    reply_bytes_max: u32,
    body_crc: u32,
    payload_crc: u32,
}

/// A frame's bytes, in the order of sending.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) header: Bytes,
    pub(crate) body: Bytes,
    pub(crate) payload: Bytes,
}

impl Header {
    fn new(kind: Kind, number: u64, body: &[u8], payload: &[u8]) -> Self {
        Self::with_crc(kind, number, body, payload, None)
    }

    /// As `new`, of a payload whose checksum may be known.
    fn with_crc(
        kind: Kind,
        number: u64,
        body: &[u8],
        payload: &[u8],
        payload_crc: Option<u32>,
    ) -> Self {
        debug_assert!(
            payload_crc.is_none_or(|crc| crc == crc32c(payload)),
            "of a {kind:?} of {} bytes",
            payload.len()
        );
        let payload_crc = payload_crc.unwrap_or_else(|| crc32c(payload));
        Self {
            kind,
            class: Class::Lease,
            status: Status::Answered,
            number,
            trace: 0,
            budget_ms: 0,
            method: 0,
            body_bytes: body.len(),
            payload_bytes: payload.len(),
            reply_bytes_max: 0,
            body_crc: crc32c(body),
            payload_crc,
        }
    }

    fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend(MAGIC);
        out.push(match self.kind {
            Kind::Hello | Kind::Goodbye => LASTING_VERSION,
            _ => VERSION,
        });
        out.extend([self.kind as u8, class_number(self.class), self.status as u8]);
        out.extend(self.number.to_le_bytes());
        out.extend(self.trace.to_le_bytes());
        out.extend(self.budget_ms.to_le_bytes());
        out.extend(self.method.to_le_bytes());
        out.extend([0; 2]);
        out.extend((self.body_bytes as u32).to_le_bytes());
        out.extend((self.payload_bytes as u32).to_le_bytes());
        out.extend(self.reply_bytes_max.to_le_bytes());
        out.extend(self.body_crc.to_le_bytes());
        out.extend(self.payload_crc.to_le_bytes());
        out.extend([0; 8]);
        out.extend(crc32c(&out).to_le_bytes());
        assert_eq!(out.len(), HEADER_BYTES);
        out.into()
    }

    /// Reads a header, and refuses one that breaks a rule of the format.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Fault> {
        if bytes[..4] != MAGIC {
            return Err(Fault::new("the bytes are no frame"));
        }
        if crc32c(&bytes[..60]) != u32_at(bytes, 60) {
            return Err(Fault::new("a header's checksum is wrong"));
        }
        let kind = kind_of(bytes[5])?;
        let wanted = match kind {
            Kind::Hello | Kind::Goodbye => LASTING_VERSION,
            _ => VERSION,
        };
        if bytes[4] != wanted {
            return Err(Fault::new(format!("a frame has version {}", bytes[4])));
        }
        let header = Self {
            kind,
            class: *Class::ALL
                .get(usize::from(bytes[6]))
                .ok_or_else(|| Fault::new("a frame's class is unknown"))?,
            status: *[Status::Answered, Status::NotRun, Status::Dropped]
                .get(usize::from(bytes[7]))
                .ok_or_else(|| Fault::new("a frame's status is unknown"))?,
            number: u64_at(bytes, 8),
            trace: u64_at(bytes, 16),
            budget_ms: u32_at(bytes, 24),
            method: u16::from_le_bytes([bytes[28], bytes[29]]),
            body_bytes: u32_at(bytes, 32) as usize,
            payload_bytes: u32_at(bytes, 36) as usize,
            reply_bytes_max: u32_at(bytes, 40),
            body_crc: u32_at(bytes, 44),
            payload_crc: u32_at(bytes, 48),
        };
        if bytes[30..32] != [0; 2] || bytes[52..60] != [0; 8] {
            return Err(Fault::new("a frame uses fields of a later version"));
        }
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<(), Fault> {
        let is_request = self.kind == Kind::Request;
        let is_reply = self.kind == Kind::Reply;
        let is_numbered = matches!(self.kind, Kind::Request | Kind::Reply | Kind::Cancel);
        let is_answer = self.is_answer();
        let body_bytes_max = match self.kind {
            Kind::Request => BODY_BYTES_MAX,
            Kind::Reply if is_answer => BODY_BYTES_MAX,
            Kind::Cancel | Kind::Alive => 0,
            Kind::Hello | Kind::Goodbye | Kind::Reply | Kind::Connections => WORDS_BYTES_MAX,
        };
        let payload_bytes_max = if is_request || is_answer {
            PAYLOAD_BYTES_MAX
        } else {
            0
        };
        let rules = [
            (
                self.body_bytes <= body_bytes_max,
                "encoded part is too large",
            ),
            (
                self.payload_bytes <= payload_bytes_max,
                "payload is too large",
            ),
            (
                self.reply_bytes_max as usize <= REPLY_BYTES_MAX,
                "reply would be too large",
            ),
            (
                is_numbered == (self.number > 0) || self.kind == Kind::Goodbye,
                "number doesn't fit its kind",
            ),
            (
                is_request == (self.budget_ms > 0),
                "budget doesn't fit its kind",
            ),
            (
                is_request || self.method == 0 && self.reply_bytes_max == 0,
                "method doesn't fit its kind",
            ),
            (
                is_reply || self.status == Status::Answered,
                "status doesn't fit its kind",
            ),
            (
                is_request || is_reply || self.class == Class::Lease,
                "class doesn't fit its kind",
            ),
            (is_request || self.trace == 0, "trace doesn't fit its kind"),
        ];
        match rules.iter().find(|(keeps, _)| !keeps) {
            None => Ok(()),
            Some((_, text)) => Err(Fault::new(format!("a frame's {text}"))),
        }
    }

    /// Whether it is a reply that carries what the method answered.
    pub(crate) fn is_answer(&self) -> bool {
        self.kind == Kind::Reply && self.status == Status::Answered
    }

    /// What a request takes of its class's bytes.
    pub(crate) fn cost(&self) -> u64 {
        REQUEST_BYTES
            + (self.body_bytes + self.payload_bytes) as u64
            + u64::from(self.reply_bytes_max)
    }

    /// Whether the parts that followed the header are those that were sent with it.
    pub(crate) fn check_parts(&self, body: &[u8], payload: &[u8]) -> Result<(), Fault> {
        if crc32c(body) != self.body_crc || crc32c(payload) != self.payload_crc {
            return Err(Fault::new("a frame's checksum is wrong"));
        }
        Ok(())
    }

    /// The frame, from the parts that followed the header.
    pub(crate) fn frame(&self, body: Bytes, payload: Bytes) -> Result<Frame, Fault> {
        let number = self.number;
        Ok(match self.kind {
            Kind::Hello => Frame::Hello(Hello::decode(&body)?),
            Kind::Request => Frame::Request {
                number,
                budget: Duration::from_millis(self.budget_ms.into()),
                call: Call {
                    method: Method(self.method),
                    class: self.class,
                    trace: self.trace,
                    body,
                    payload,
                    payload_crc: None,
                    reply_bytes_max: self.reply_bytes_max,
                    may_wait: false,
                },
            },
            Kind::Reply => Frame::Reply {
                number,
                class: self.class,
                ending: match self.status {
                    Status::Answered => Ending::Answered(Reply {
                        body,
                        payload,
                        payload_crc: None,
                    }),
                    Status::NotRun => Ending::NotRun(words(&body)),
                    Status::Dropped => Ending::Dropped(words(&body)),
                },
            },
            Kind::Cancel => Frame::Cancel { number },
            Kind::Goodbye => Frame::Goodbye {
                taken: number,
                why: words(&body),
            },
            Kind::Alive => Frame::Alive,
            Kind::Connections => Frame::Connections {
                most: *body
                    .first()
                    .ok_or_else(|| Fault::new("a number of connections is missing"))?,
            },
        })
    }
}

impl Frame {
    /// The frame's bytes. The parts must keep the format's limits, as those of a call that
    /// [`is_sendable`] allowed do.
    pub(crate) fn encode(self) -> Outgoing {
        let none = Bytes::new;
        let (header, body, payload) = match self {
            Self::Hello(hello) => {
                let body = hello.encode();
                (Header::new(Kind::Hello, 0, &body, &[]), body, none())
            }
            Self::Request {
                number,
                budget,
                call,
            } => {
                let (body, payload, crc) = (&call.body, &call.payload, call.payload_crc);
                let mut header = Header::with_crc(Kind::Request, number, body, payload, crc);
                header.class = call.class;
                header.trace = call.trace;
                header.budget_ms = u32::try_from(budget.as_millis()).unwrap_or(u32::MAX).max(1);
                header.method = call.method.0;
                header.reply_bytes_max = call.reply_bytes_max;
                (header, call.body, call.payload)
            }
            Self::Reply {
                number,
                class,
                ending,
            } => {
                let (status, body, payload, crc) = match ending {
                    Ending::Answered(reply) => {
                        let crc = reply.payload_crc;
                        (Status::Answered, reply.body, reply.payload, crc)
                    }
                    Ending::NotRun(why) => (Status::NotRun, short(&why), none(), None),
                    Ending::Dropped(why) => (Status::Dropped, short(&why), none(), None),
                };
                let mut header = Header::with_crc(Kind::Reply, number, &body, &payload, crc);
                header.class = class;
                header.status = status;
                (header, body, payload)
            }
            Self::Cancel { number } => {
                (Header::new(Kind::Cancel, number, &[], &[]), none(), none())
            }
            Self::Goodbye { taken, why } => {
                let body = short(&why);
                let header = Header::new(Kind::Goodbye, taken, &body, &[]);
                (header, body, none())
            }
            Self::Alive => (Header::new(Kind::Alive, 0, &[], &[]), none(), none()),
            Self::Connections { most } => {
                let body = Bytes::copy_from_slice(&[most, 0, 0, 0]);
                let header = Header::new(Kind::Connections, 0, &body, &[]);
                (header, body, none())
            }
        };
        debug_assert_eq!(header.check(), Ok(()), "{header:?}");
        Outgoing {
            header: header.encode(),
            body,
            payload,
        }
    }
}

/// What a call takes of its class's bytes.
pub(crate) fn cost(call: &Call) -> u64 {
    let parts = call.body.len() + call.payload.len();
    REQUEST_BYTES + parts as u64 + u64::from(call.reply_bytes_max)
}

/// Whether a call fits into a frame.
pub(crate) fn is_sendable(call: &Call) -> bool {
    call.body.len() <= BODY_BYTES_MAX
        && call.payload.len() <= PAYLOAD_BYTES_MAX
        && call.reply_bytes_max as usize <= REPLY_BYTES_MAX
}

fn class_number(class: Class) -> u8 {
    class_index(class) as u8
}

/// A class's place in tables with one entry per class.
pub(crate) fn class_index(class: Class) -> usize {
    match class {
        Class::Lease => 0,
        Class::Metadata => 1,
        Class::Bulk => 2,
        Class::Repair => 3,
    }
}

fn kind_of(number: u8) -> Result<Kind, Fault> {
    Ok(match number {
        1 => Kind::Hello,
        2 => Kind::Request,
        3 => Kind::Reply,
        4 => Kind::Cancel,
        5 => Kind::Goodbye,
        6 => Kind::Alive,
        7 => Kind::Connections,
        _ => return Err(Fault::new(format!("a frame's kind is {number}"))),
    })
}

/// An explanation, cut to what a frame may carry.
fn short(text: &str) -> Bytes {
    let end = text.floor_char_boundary(WORDS_BYTES_MAX);
    Bytes::copy_from_slice(&text.as_bytes()[..end])
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
