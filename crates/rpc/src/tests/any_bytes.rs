//! Fuzz targets: whatever comes over a connection, also from somebody who has its keys and whose
//! checksums fit.

mod answering;
mod asking;
mod strangers;

use super::sides::{NO_LANES, bytes_of, few, hello_from_to};
use crate::frame::{Ending, Frame, HEADER_BYTES};
use crate::hello::{Credit, Credits, Hello, Lanes};
use crate::receive::Receiver;
use crate::seal::{FrameKeys, Hidden, SECRET_BYTES, Sealer};
use fuzzing::{Memory, Source};
use model::call::{BODY_BYTES_MAX, Call, Class, Method, Reply};
use model::checksum::crc32c;
use std::time::Duration;

const CREDITS: Credits = few(300_000);

/// What a connection may take: its inbox, one frame's encoded part, and its payload, which is counted
/// below 2 MiB. Credits bound payloads, but those of requests that cross a goodbye hold none.
const CONNECTION: Memory = Memory {
    fixed: BODY_BYTES_MAX as u64 + (2 << 20) + (256 << 10),
    per_byte: 16,
};

/// Mostly the same one, so that replies are of their requests' classes.
fn class(source: &mut Source<'_>) -> Class {
    match source.below(4) {
        0 => Class::ALL[source.below(4)],
        _ => Class::Metadata,
    }
}

fn payload(source: &mut Source<'_>) -> Vec<u8> {
    let length = match source.chance() {
        true => source.below(3000),
        false => 0,
    };
    vec![source.byte(); length]
}

fn call(source: &mut Source<'_>) -> Call {
    Call {
        method: Method(source.number() as u16),
        class: class(source),
        trace: source.number(),
        body: source.bytes(60).into(),
        payload: payload(source).into(),
        payload_crc: None,
        reply_bytes_max: match source.below(4) {
            0 => source.number() as u32 % 100_000,
            _ => 60_000,
        },
        may_wait: false,
    }
}

/// Known lanes and others, or nothing of lanes, as older builds say.
fn lanes(source: &mut Source<'_>) -> Option<Lanes> {
    let lanes = Lanes {
        lane: match source.below(4) {
            0 => source.byte(),
            _ => source.byte() % 4,
        },
        connections: source.byte(),
    };
    (source.below(4) > 0).then_some(lanes)
}

fn hello_of(source: &mut Source<'_>, from: u32, to: u32, credits: Credits) -> Hello {
    let mut hello = hello_from_to(from, to, credits, NO_LANES);
    hello.lanes = lanes(source);
    hello
}

fn any_credits(source: &mut Source<'_>) -> Credits {
    std::array::from_fn(|_| Credit {
        requests: source.number() as u32,
        bytes: source.number(),
    })
}

fn hello(source: &mut Source<'_>) -> Hello {
    let (from, to) = match source.below(8) {
        0 => (source.number() as u32, source.number() as u32),
        1..5 => (1, 2),
        _ => (2, 1),
    };
    let credits = any_credits(source);
    hello_of(source, from, to, credits)
}

/// A frame that a sound build could send, though not now; mostly a reply, or mostly a request.
fn frame(source: &mut Source<'_>, is_of_answerer: bool) -> Frame {
    let number = match source.below(4) {
        0 => source.number().max(1),
        _ => 1 + source.below(5) as u64,
    };
    let kind = match (source.below(3), is_of_answerer) {
        (0, _) => source.below(13),
        (_, true) => 12,
        (_, false) => 5,
    };
    match kind {
        0 | 1 => Frame::Hello(hello(source)),
        2 => Frame::Cancel { number },
        3 if source.chance() => Frame::Goodbye {
            taken: source.number(),
            why: source.text(),
        },
        3 | 4 => Frame::Alive,
        5..9 => Frame::Request {
            number,
            budget: Duration::from_millis(source.number() & 0xffff_ffff)
                .max(Duration::from_millis(1)),
            call: call(source),
        },
        9 => Frame::Connections {
            most: source.byte(),
        },
        _ => {
            let ending = match source.below(3) {
                0 => Ending::NotRun(source.text()),
                1 => Ending::Dropped(source.text()),
                _ => Ending::Answered(Reply {
                    body: source.bytes(60).into(),
                    payload: payload(source).into(),
                    payload_crc: None,
                }),
            };
            Frame::Reply {
                number,
                class: class(source),
                ending,
            }
        }
    }
}

/// The frame's bytes, perhaps changed so that its checksums still fit.
fn sent(source: &mut Source<'_>, frame: Frame, sealer: Option<&mut Sealer>) -> Vec<u8> {
    let mut out = frame.encode();
    if source.below(4) == 0 {
        let mut header = source.changed(&out.header);
        header.resize(HEADER_BYTES, 0);
        if source.chance() {
            out.body = source.changed(&out.body).into();
            header[32..36].copy_from_slice(&(out.body.len() as u32).to_le_bytes());
            header[44..48].copy_from_slice(&crc32c(&out.body).to_le_bytes());
        }
        let crc = crc32c(&header[..60]);
        header[60..].copy_from_slice(&crc.to_le_bytes());
        out.header = header.into();
    }
    bytes_of(match sealer {
        Some(sealer) => sealer.seal(&out),
        None => out,
    })
}

/// A stream of such frames, in portions, to the one who opens them.
struct Stream {
    receiver: Receiver,
    bytes: Vec<u8>,
}

impl Stream {
    /// `first`: the hello that lets the stream go on. `is_of_answerer`: of the side that replies.
    fn new(source: &mut Source<'_>, first: Hello, is_of_answerer: bool) -> Self {
        let hidden = match source.chance() {
            true => Hidden::Names,
            false => Hidden::All(&aws_lc_rs::aead::AES_256_GCM),
        };
        let keys = |sending, receiving| FrameKeys {
            sending: [sending; SECRET_BYTES],
            receiving: [receiving; SECRET_BYTES],
            hidden,
        };
        let is_sealed = source.below(3) == 0;
        let (mut sealer, _) = keys(1, 2).into_pair();
        let (_, opener) = keys(2, 1).into_pair();
        let mut bytes = Vec::new();
        for at in 0..=source.below(12) {
            let frame = match at {
                0 if source.below(8) > 0 => Frame::Hello(first),
                _ => frame(source, is_of_answerer),
            };
            let sealer = is_sealed.then_some(&mut sealer);
            bytes.extend(sent(source, frame, sealer));
        }
        if source.below(4) == 0 {
            bytes.extend(source.bytes(200));
        }
        Self {
            receiver: Receiver::new(is_sealed.then_some(opener)),
            bytes,
        }
    }

    /// Gives the receiver more; false if there is nothing more.
    fn pass_on(&mut self, portion: usize) -> bool {
        let space = self.receiver.space();
        assert!(!space.is_empty(), "a receiver that waits has room");
        let count = portion.max(1).min(space.len()).min(self.bytes.len());
        space[..count].copy_from_slice(&self.bytes[..count]);
        self.bytes.drain(..count);
        self.receiver.received(count);
        count > 0
    }
}
