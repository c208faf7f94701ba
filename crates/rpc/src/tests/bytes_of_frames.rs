//! Frames as bytes: what is sent arrives, and nothing else does.

use crate::Fault;
use crate::frame::{Ending, Frame, HEADER_BYTES, Header, Outgoing};
use crate::hello::{Credit, Hello, Identity, Lanes};
use crate::lanes::Lane;
use crate::receive::Receiver;
use bytes::Bytes;
use model::call::{Call, Class, Method, Reply};
use model::checksum::crc32c;
use model::{NodeId, NodeRun};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

fn whole(frame: Frame) -> Vec<u8> {
    let Outgoing {
        header,
        body,
        payload,
    } = frame.encode();
    [header, body, payload].concat()
}

fn hello() -> Hello {
    let run = NodeRun {
        node: NodeId(3),
        incarnation: 7,
    };
    let credit = |requests| Credit {
        requests,
        bytes: u64::from(requests) << 20,
    };
    let credits = [credit(1), credit(2), credit(3), credit(4)];
    let lanes = Lanes {
        lane: 3,
        connections: 5,
    };
    Hello::new(Identity { cluster: 9, run }, NodeId(4), credits, lanes)
}

/// Feeds bytes in portions; gives the frames, or the fault.
fn received(bytes: &[u8], mut portions: impl Iterator<Item = usize>) -> Result<Vec<Frame>, Fault> {
    let (mut receiver, mut frames, mut rest) = (Receiver::new(None), Vec::new(), bytes);
    loop {
        while let Some(frame) = receiver.next(|_| Ok(()))? {
            frames.push(frame);
        }
        if rest.is_empty() {
            return Ok(frames);
        }
        let space = receiver.space();
        assert!(!space.is_empty());
        let portion = portions.next().unwrap_or(usize::MAX).max(1);
        let count = portion.min(space.len()).min(rest.len());
        space[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        receiver.received(count);
    }
}

/// A change of these bytes is a change of the format: raise the version.
#[test]
fn frames_have_the_documented_bytes() {
    let call = Call {
        method: Method(0x0102),
        class: Class::Bulk,
        trace: 0x1112_1314_1516_1718,
        body: Bytes::from_static(b"body"),
        payload: Bytes::from_static(b"payload"),
        payload_crc: None,
        reply_bytes_max: 0x2122,
        may_wait: false,
    };
    let known = Call {
        payload_crc: Some(crc32c(b"payload")),
        ..call.clone()
    };
    let [request, of_known] = [call, known].map(|call| Frame::Request {
        number: 5,
        budget: Duration::from_millis(0x3132),
        call,
    });
    let mut wanted = b"SHRP\x01\x02\x02\x00".to_vec();
    wanted.extend([5, 0, 0, 0, 0, 0, 0, 0]);
    wanted.extend([0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
    wanted.extend([0x32, 0x31, 0, 0, 0x02, 0x01, 0, 0]);
    wanted.extend([4, 0, 0, 0, 7, 0, 0, 0, 0x22, 0x21, 0, 0]);
    wanted.extend(crc32c(b"body").to_le_bytes());
    wanted.extend(crc32c(b"payload").to_le_bytes());
    wanted.extend([0; 8]);
    wanted.extend(crc32c(&wanted).to_le_bytes());
    wanted.extend(b"bodypayload");
    assert_eq!(whole(request), wanted);
    assert_eq!(whole(of_known), wanted, "whoever knows a checksum");

    let hello = whole(Frame::Hello(hello()));
    assert_eq!(hello[..8], *b"SHRP\0\x01\0\0");
    let mut wanted = vec![1, 0, 1, 0, 3, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
    wanted.extend(9_u128.to_le_bytes());
    wanted.extend([4, 0, 0, 0, 0, 0, 0, 0]);
    for requests in 1..=4_u32 {
        wanted.extend(requests.to_le_bytes());
        wanted.extend((u64::from(requests) << 20).to_le_bytes());
    }
    wanted.extend([3, 5, 0, 0]);
    assert_eq!(hello[HEADER_BYTES..], wanted);

    let connections = whole(Frame::Connections { most: 6 });
    assert_eq!(connections[..8], *b"SHRP\x01\x07\0\0");
    assert_eq!(connections[HEADER_BYTES..], [6, 0, 0, 0]);

    let dropped = Frame::Reply {
        number: 1,
        class: Class::Repair,
        ending: Ending::Dropped("why".into()),
    };
    assert_eq!(whole(dropped)[..8], *b"SHRP\x01\x03\x03\x02");
    assert_eq!(whole(Frame::Alive)[..8], *b"SHRP\x01\x06\0\0");
}

/// Would be broken if file data were copied on its way out.
#[test]
fn a_payload_of_a_plain_frame_is_sent_from_where_it_lies() {
    let payload = Bytes::from(vec![7; 100_000]);
    let request = |payload_crc| Frame::Request {
        number: 1,
        budget: Duration::from_millis(1),
        call: Call {
            payload: payload.clone(),
            payload_crc,
            ..Call::new(Method(1), Class::Bulk, &())
        },
    };
    let reply = |payload_crc| Frame::Reply {
        number: 1,
        class: Class::Bulk,
        ending: Ending::Answered(Reply {
            body: Bytes::new(),
            payload: payload.clone(),
            payload_crc,
        }),
    };
    let known = Some(crc32c(&payload));
    let frames = [request(None), request(known), reply(None), reply(known)];
    assert_eq!(whole(reply(None)), whole(reply(known)));
    for frame in frames {
        let sent = frame.encode().payload;
        let place = |bytes: &Bytes| (bytes.as_ptr(), bytes.len());
        assert_eq!(place(&sent), place(&payload));
    }
}

/// So that a later build's hello is understood by this one.
#[test]
fn fields_that_a_later_hello_appends_are_ignored() {
    let mut longer = hello().encode().to_vec();
    longer.extend([1; 100]);
    assert_eq!(Hello::decode(&longer), Ok(hello()));
    assert!(Hello::decode(&longer[..87]).is_err());
}

/// Builds from before there were lanes send 88 bytes.
#[test]
fn a_hello_that_says_nothing_of_lanes_is_for_all_classes() {
    let older = Hello {
        lanes: None,
        ..hello()
    };
    assert_eq!(older.encode(), hello().encode()[..88]);
    assert_eq!(Hello::decode(&hello().encode()[..88]), Ok(older));
    assert_eq!(older.lane(), Ok(None));
    let lane = |lane| {
        let lanes = Lanes {
            lane,
            connections: 1,
        };
        let hello = Hello {
            lanes: Some(lanes),
            ..hello()
        };
        hello.lane()
    };
    assert_eq!(lane(0), Ok(None));
    assert_eq!(lane(1), Ok(Some(Lane::Lease)));
    assert_eq!(lane(2), Ok(Some(Lane::Small)));
    assert_eq!(lane(3), Ok(Some(Lane::Bulk)));
    assert!(lane(4).is_err() && lane(255).is_err());
}

#[test]
fn builds_talk_if_they_share_a_version() {
    let here = hello();
    let mut there = hello();
    there.to = here.from.run.node;
    assert_eq!(here.check(&there), Ok(()));
    let newer = |oldest, newest| Hello {
        oldest,
        newest,
        ..there
    };
    assert_eq!(here.check(&newer(1, 2)), Ok(()), "the next build");
    assert!(here.check(&newer(2, 3)).is_err(), "the one after it");
    let mut foreign = there;
    foreign.from.cluster += 1;
    assert!(here.check(&foreign).is_err());
    let mut misled = there;
    misled.to = NodeId(99);
    assert!(here.check(&misled).is_err());
}

fn some_bytes(most: usize) -> impl Strategy<Value = Bytes> {
    let small = vec(any::<u8>(), 0..300).prop_map(Bytes::from);
    let large = (0..most, any::<u8>()).prop_map(|(size, byte)| vec![byte; size].into());
    prop_oneof![4 => small, 1 => large]
}

fn some_class() -> impl Strategy<Value = Class> {
    (0..4_usize).prop_map(|class| Class::ALL[class])
}

fn some_frame() -> impl Strategy<Value = Frame> {
    let number = 1..u64::MAX;
    let call = (
        any::<u16>(),
        some_class(),
        any::<u64>(),
        some_bytes(100_000),
        some_bytes(200_000),
    );
    let request = (number.clone(), 1..100_000_u64, call, 0..1_000_000_u32);
    let request = request.prop_map(|(number, budget, call, reply_bytes_max)| Frame::Request {
        number,
        budget: Duration::from_millis(budget),
        call: Call {
            method: Method(call.0),
            class: call.1,
            trace: call.2,
            body: call.3,
            payload: call.4,
            payload_crc: None,
            reply_bytes_max,
            may_wait: false,
        },
    });
    let answered = (some_bytes(100_000), some_bytes(200_000)).prop_map(|(body, payload)| {
        Ending::Answered(Reply {
            body,
            payload,
            payload_crc: None,
        })
    });
    let ending = prop_oneof![
        answered,
        "[a-z]{0,20}".prop_map(Ending::NotRun),
        "[a-z]{0,20}".prop_map(Ending::Dropped),
    ];
    let reply = (number.clone(), some_class(), ending);
    let reply = reply.prop_map(|(number, class, ending)| Frame::Reply {
        number,
        class,
        ending,
    });
    prop_oneof![
        4 => request,
        4 => reply,
        1 => number.prop_map(|number| Frame::Cancel { number }),
        1 => (any::<u64>(), "[a-z]{0,20}").prop_map(|(taken, why)| Frame::Goodbye { taken, why }),
        1 => Just(Frame::Alive),
        1 => any::<u8>().prop_map(|most| Frame::Connections { most }),
        1 => Just(Frame::Hello(hello())),
    ]
}

proptest! {
    #[test]
    fn frames_arrive_as_sent_in_whatever_portions(
        frames in vec(some_frame(), 1..8),
        portions in vec(1..40_000_usize, 1..50),
    ) {
        let bytes: Vec<u8> = frames.iter().cloned().flat_map(whole).collect();
        prop_assert_eq!(received(&bytes, portions.into_iter().cycle()), Ok(frames.clone()));
        let short = bytes.len() - 1;
        let got = received(&bytes[..short], std::iter::empty()).unwrap();
        prop_assert_eq!(&got[..], &frames[..frames.len() - 1], "the last one is cut off");
    }

    #[test]
    fn a_changed_bit_is_noticed(
        frame in some_frame(),
        at in any::<prop::sample::Index>(),
        bit in 0..8_u32,
    ) {
        let mut bytes = whole(frame);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(received(&bytes, std::iter::empty()).is_err());
    }

    #[test]
    fn garbage_is_no_frame(bytes in vec(any::<u8>(), HEADER_BYTES..2000)) {
        prop_assert!(received(&bytes, std::iter::empty()).is_err());
    }

    /// Right magic and checksum, any fields: refused, or within the written maxima.
    #[test]
    fn a_forged_header_takes_no_more_memory_than_a_frame(
        fields in prop::array::uniform32(any::<u8>()),
        sizes in prop::array::uniform3(any::<u32>()),
        clear in any::<bool>(),
    ) {
        let mut bytes = [0_u8; HEADER_BYTES];
        bytes[..4].copy_from_slice(b"SHRP");
        bytes[4] = fields[0] % 2;
        bytes[5] = fields[1] % 9;
        bytes[6] = fields[2] % 5;
        bytes[7] = fields[3] % 4;
        bytes[8..32].copy_from_slice(&fields[8..32]);
        bytes[30..32].fill(0);
        if clear {
            bytes[16..30].fill(0);
        }
        for (at, size) in [32, 36, 40].into_iter().zip(sizes) {
            // Of each magnitude.
            let size = size >> (fields[4] % 32);
            bytes[at..at + 4].copy_from_slice(&size.to_le_bytes());
        }
        let crc = crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(header) = Header::decode(&bytes) {
            prop_assert!(header.body_bytes <= model::call::BODY_BYTES_MAX);
            prop_assert!(header.payload_bytes <= model::call::PAYLOAD_BYTES_MAX);
        }
    }
}

#[test]
fn memory_is_taken_only_after_the_header_was_allowed() {
    let call = Call::new(Method(1), Class::Bulk, &"text");
    let request = Frame::Request {
        number: 1,
        budget: Duration::from_millis(1),
        call,
    };
    let bytes = whole(request);
    let mut receiver = Receiver::new(None);
    receiver.space()[..HEADER_BYTES].copy_from_slice(&bytes[..HEADER_BYTES]);
    receiver.received(HEADER_BYTES);
    let refused = receiver.next(|_| Err(Fault::new("no credits")));
    assert_eq!(refused, Err(Fault::new("no credits")));
}

/// Receives these bytes at once; gives the number of frames that are whole then.
fn take_in(receiver: &mut Receiver, bytes: &[u8]) -> usize {
    receiver.space()[..bytes.len()].copy_from_slice(bytes);
    receiver.received(bytes.len());
    let mut frames = 0;
    while receiver.next(|_| Ok(())).unwrap().is_some() {
        frames += 1;
    }
    frames
}

/// So that many small frames share a receive, and thousands of idle connections don't take memory for that.
#[test]
fn an_inbox_is_large_while_small_frames_fill_it() {
    let alive = whole(Frame::Alive);
    let mut receiver = Receiver::new(None);
    let small = receiver.space().len();
    let count = small / alive.len();
    let filling = alive.repeat(count);
    assert_eq!(take_in(&mut receiver, &filling[alive.len()..]), count - 1);
    assert_eq!(receiver.space().len(), small, "there was room");
    assert_eq!(take_in(&mut receiver, &filling), count);
    let large = receiver.space().len();
    assert_eq!(large, 4 * small);
    let count = large / alive.len();
    let filling = alive.repeat(count);
    for _ in 0..3 {
        for _ in 0..31 {
            assert_eq!(take_in(&mut receiver, &alive), 1);
        }
        assert_eq!(receiver.space().len(), large, "it is needed now and then");
        assert_eq!(take_in(&mut receiver, &filling), count);
    }
    for _ in 0..32 {
        assert_eq!(take_in(&mut receiver, &alive), 1);
    }
    assert_eq!(receiver.space().len(), small, "it is idle");
}

/// Would be broken if all thousands of connections of a node could have a large inbox at the same time.
#[test]
fn so_many_inboxes_are_large_at_the_same_time_and_not_more() {
    let alive = whole(Frame::Alive);
    let room = Arc::new(Semaphore::new(1));
    let new = || Receiver::with_room(None, &room);
    let (mut one, mut other) = (new(), new());
    let small = one.space().len();
    let size_after_filling = |receiver: &mut Receiver| {
        let count = receiver.space().len() / alive.len();
        assert_eq!(take_in(receiver, &alive.repeat(count)), count);
        receiver.space().len()
    };
    let large = size_after_filling(&mut one);
    assert_eq!(large, 4 * small);
    assert_eq!(size_after_filling(&mut other), small, "there is no room");
    assert_eq!(size_after_filling(&mut one), large, "it has its room");
    for _ in 0..32 {
        assert_eq!(take_in(&mut one, &alive), 1);
    }
    assert_eq!(one.space().len(), small);
    assert_eq!(size_after_filling(&mut other), large, "the other is idle");
    assert_eq!(size_after_filling(&mut one), small);
    drop(other);
    assert_eq!(size_after_filling(&mut one), large, "its connection ended");
}

/// A request with 100,000 bytes beside it.
fn large_request() -> Frame {
    let mut call = Call::new(Method(1), Class::Bulk, &());
    call.payload = vec![7; 100_000].into();
    Frame::Request {
        number: 1,
        budget: Duration::from_millis(1),
        call,
    }
}

/// Would be broken if a large inbox took bytes that have another place.
#[test]
fn large_payloads_make_no_inbox_large() {
    let bytes = whole(large_request());
    let mut receiver = Receiver::new(None);
    let small = receiver.space().len();
    for _ in 0..3 {
        let (first, rest) = bytes.split_at(small);
        assert_eq!(take_in(&mut receiver, first), 0);
        assert_eq!(receiver.space().len(), rest.len(), "where it belongs");
        assert_eq!(take_in(&mut receiver, rest), 1);
        assert_eq!(receiver.space().len(), small);
    }
}

/// A large payload is received where it stays: aligned, so that a disk can write it.
#[test]
fn a_received_payload_is_aligned_for_disks() {
    let frames = received(&whole(large_request()), std::iter::empty()).unwrap();
    let Frame::Request { call, .. } = &frames[0] else {
        panic!("{frames:?}");
    };
    assert!(world::is_aligned(&call.payload));
}
