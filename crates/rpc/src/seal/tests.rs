//! What is sealed is opened once, in its place, by the other side, and nothing else is.

use super::*;
use crate::frame::{Frame, Header};
use crate::receive::Receiver;
use aws_lc_rs::aead::{AES_256_GCM, CHACHA20_POLY1305};
use model::call::{BODY_BYTES_MAX, Call, Class, Method, PAYLOAD_BYTES_MAX};
use proptest::collection::vec;
use proptest::prelude::*;
use std::time::Duration;

/// All that frames can hide.
const HIDDEN: [Hidden; 4] = [
    Hidden::Names,
    Hidden::All(&AES_128_GCM),
    Hidden::All(&AES_256_GCM),
    Hidden::All(&CHACHA20_POLY1305),
];

fn some_hidden() -> impl Strategy<Value = Hidden> {
    prop::sample::select(&HIDDEN[..])
}

/// Both sides of a connection with these secrets.
fn sides(hidden: Hidden, there: u8, back: u8) -> [(Sealer, Opener); 2] {
    let keys = |sending, receiving| FrameKeys {
        sending: [sending; SECRET_BYTES],
        receiving: [receiving; SECRET_BYTES],
        hidden,
    };
    [keys(there, back), keys(back, there)].map(FrameKeys::into_pair)
}

fn request(number: u64, body: usize, payload: usize) -> Frame {
    let mut call = Call::new(Method(7), Class::Bulk, &());
    call.body = vec![1; body].into();
    call.payload = vec![2; payload].into();
    Frame::Request {
        number,
        budget: Duration::from_secs(1),
        call,
    }
}

fn bytes(frame: Outgoing) -> Vec<u8> {
    [frame.header, frame.body, frame.payload].concat()
}

/// The frames that a side makes of these bytes, in portions.
fn received(
    opener: Opener,
    bytes: &[u8],
    mut portions: impl Iterator<Item = usize>,
) -> Result<Vec<Frame>, Fault> {
    let (mut receiver, mut frames, mut rest) = (Receiver::new(Some(opener)), Vec::new(), bytes);
    loop {
        while let Some(frame) = receiver.next(|_: &Header| Ok(()))? {
            frames.push(frame);
        }
        if rest.is_empty() {
            return Ok(frames);
        }
        let space = receiver.space();
        let count = portions.next().unwrap_or(usize::MAX).max(1);
        let count = count.min(space.len()).min(rest.len());
        space[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        receiver.received(count);
    }
}

fn some_frame() -> impl Strategy<Value = Frame> {
    let size = prop_oneof![Just(0), 1..200_usize, 1..40_000_usize];
    let request = (1..9_u64, 0..300_usize, size)
        .prop_map(|(number, body, payload)| request(number, body, payload));
    let cancel = (1..9_u64).prop_map(|number| Frame::Cancel { number });
    prop_oneof![4 => request, 1 => Just(Frame::Alive), 1 => cancel]
}

proptest! {
    #[test]
    fn sealed_frames_arrive_in_whatever_portions(
        hidden in some_hidden(),
        frames in vec(some_frame(), 1..6),
        portions in vec(1..5000_usize, 0..40),
        one_by_one in any::<bool>(),
    ) {
        let [(mut sealer, _), (_, opener)] = sides(hidden, 1, 2);
        let sent: Vec<u8> = frames
            .iter()
            .flat_map(|frame| bytes(sealer.seal(&frame.clone().encode())))
            .collect();
        let portions = portions.into_iter().chain(std::iter::repeat_n(1, if one_by_one { sent.len() } else { 0 }));
        prop_assert_eq!(received(opener, &sent, portions).unwrap(), frames);
    }

    /// Header, encoded part, their tags, payload: no bit of any can be changed.
    #[test]
    fn a_changed_bit_anywhere_ends_the_connection(
        hidden in some_hidden(),
        body in 0..100_usize,
        payload in 0..5000_usize,
        at in any::<prop::sample::Index>(),
        bit in 0..8_u32,
    ) {
        let [(mut sealer, _), (_, opener)] = sides(hidden, 1, 2);
        let mut sent = bytes(sealer.seal(&request(1, body, payload).encode()));
        let at = at.index(sent.len());
        sent[at] ^= 1 << bit;
        let fault = received(opener, &sent, std::iter::empty()).unwrap_err();
        prop_assert!(fault.to_string().contains("isn't what the other side sealed"), "{}", fault);
    }

    #[test]
    fn frames_that_are_left_out_repeated_or_moved_end_the_connection(
        hidden in some_hidden(),
        first in 0..5_usize,
        second in 0..5_usize,
    ) {
        prop_assume!(first != second);
        let [(mut sealer, _), (_, opener)] = sides(hidden, 1, 2);
        let mut frames: Vec<Vec<u8>> = (1..=5)
            .map(|number| bytes(sealer.seal(&request(number, 10, 10).encode())))
            .collect();
        frames[first] = frames[second].clone();
        let faults = received(opener, &frames.concat(), std::iter::empty());
        prop_assert!(faults.is_err());
    }

    /// The parts of two frames have the same lengths, so only their places tell them apart.
    #[test]
    fn parts_of_two_frames_cant_change_places(
        hidden in some_hidden(),
        body in 1..100_usize,
        payload in 1..3000_usize,
    ) {
        let [(mut sealer, _), (_, opener)] = sides(hidden, 1, 2);
        let mut frames = [1, 2].map(|_| bytes(sealer.seal(&request(1, body, payload).encode())));
        let (first, second) = frames.split_at_mut(1);
        first[0][SEALED_HEADER_BYTES..].swap_with_slice(&mut second[0][SEALED_HEADER_BYTES..]);
        prop_assert!(received(opener, &frames.concat(), std::iter::empty()).is_err());
    }

    #[test]
    fn garbage_is_no_sealed_frame(
        hidden in some_hidden(),
        bytes in vec(any::<u8>(), SEALED_HEADER_BYTES..2000),
    ) {
        let [_, (_, opener)] = sides(hidden, 1, 2);
        prop_assert!(received(opener, &bytes, std::iter::empty()).is_err());
    }
}

#[test]
fn a_frame_that_is_sent_back_to_its_sender_isnt_opened() {
    for hidden in HIDDEN {
        let [(mut sealer, own_opener), _] = sides(hidden, 1, 2);
        let sent = bytes(sealer.seal(&Frame::Alive.encode()));
        assert!(received(own_opener, &sent, std::iter::empty()).is_err());
    }
}

#[test]
fn frames_of_another_connection_arent_opened() {
    for hidden in HIDDEN {
        let [(mut sealer, _), _] = sides(hidden, 1, 2);
        let [_, (_, opener)] = sides(hidden, 3, 4);
        let sent = bytes(sealer.seal(&Frame::Alive.encode()));
        assert!(received(opener, &sent, std::iter::empty()).is_err());
    }
}

/// A request that names a path and carries a file's data.
fn with_names_and_data() -> Outgoing {
    let mut call = Call::new(Method(7), Class::Bulk, &"/home/secret");
    call.payload = b"file data".to_vec().into();
    let frame = Frame::Request {
        number: 1,
        budget: Duration::from_secs(1),
        call,
    };
    frame.encode()
}

fn has(sent: &[u8], words: &[u8]) -> bool {
    sent.windows(words.len()).any(|part| part == words)
}

/// The part that names paths and tokens can't be read on the way; the payload can, and lies where it
/// lay.
#[test]
fn the_encoded_part_is_hidden_and_the_payload_isnt_copied() {
    let [(mut sealer, _), _] = sides(Hidden::Names, 1, 2);
    let plain = with_names_and_data();
    let sealed = sealer.seal(&plain);
    assert_eq!(sealed.payload.as_ptr(), plain.payload.as_ptr());
    let sent = bytes(sealed);
    assert!(!has(&sent, b"secret") && !has(&sent, b"SHRP") && has(&sent, b"file data"));
    assert_eq!(
        sent.len(),
        HEADER_BYTES + 2 * TAG_BYTES + plain.body.len() + 9
    );
}

/// With a cipher nothing can be read on the way; whoever else holds the payload still reads it.
#[test]
fn the_payload_is_hidden_with_a_cipher_and_stays_as_it_is_for_others() {
    for hidden in &HIDDEN[1..] {
        let [(mut sealer, _), (_, opener)] = sides(*hidden, 1, 2);
        let plain = with_names_and_data();
        let sent = bytes(sealer.seal(&plain));
        assert_eq!(plain.payload, b"file data"[..]);
        for words in [&b"secret"[..], b"SHRP", b"data"] {
            assert!(!has(&sent, words), "{hidden:?}");
        }
        assert_eq!(
            sent.len(),
            HEADER_BYTES + 3 * TAG_BYTES + plain.body.len() + 9
        );
        let frames = received(opener, &sent, std::iter::empty()).unwrap();
        let [Frame::Request { call, .. }] = &frames[..] else {
            panic!("it is the request: {frames:?}");
        };
        assert_eq!(call.payload, plain.payload);
        assert!(world::is_aligned(&call.payload));
    }
}

/// Would need twice the memory, and time for fresh memory, if a payload were opened into another place.
#[test]
fn a_payload_is_opened_where_it_was_received() {
    for hidden in HIDDEN {
        let [(mut sealer, _), (_, opener)] = sides(hidden, 1, 2);
        let sealed = sealer.seal(&with_names_and_data());
        let mut rest = sealed.header[SEALED_HEADER_BYTES..].to_vec();
        let payload = AlignedBuffer::copy_of(&sealed.payload);
        let place = payload.as_ptr();
        let opened = opener.open_parts(&mut rest, Some(payload)).unwrap();
        assert_eq!(opened, b"file data"[..], "{hidden:?}");
        assert_eq!(opened.as_ptr(), place, "{hidden:?}");
    }
}

/// 2^36 blocks and a little more, however large a frame is: see `Hidden::frames_per_key`.
#[test]
fn a_key_encrypts_no_more_than_it_may() {
    for hidden in HIDDEN {
        let payload_bytes = match hidden {
            Hidden::Names => 0,
            Hidden::All(_) => PAYLOAD_BYTES_MAX,
        };
        let frame_bytes = (HEADER_BYTES + BODY_BYTES_MAX + payload_bytes) as u64;
        let bytes = frame_bytes * hidden.frames_per_key();
        assert!((bytes / 16).ilog2() <= 36, "{hidden:?}");
    }
}

/// So that both sides change keys at the same frame, and no nonce comes twice with a key.
#[test]
fn keys_change_after_so_many_frames() {
    for hidden in HIDDEN {
        let mut sealing = Direction::new([9; SECRET_BYTES], hidden, 3);
        let mut opening = Direction::new([9; SECRET_BYTES], hidden, 3);
        let mut secrets = Vec::new();
        for frame in 0..10 {
            secrets.push(sealing.secret);
            assert_eq!(sealing.frame, frame);
            let mut bytes = b"0123".to_vec();
            let tag = sealing.seal(Part::Rest, b"beside", &mut bytes);
            bytes.extend(tag);
            opening.open(Part::Rest, b"beside", &mut bytes).unwrap();
            assert_eq!(bytes[..4], *b"0123");
            let (sealed, tag) = sealing.seal_apart(b"4567");
            let mut payload = sealed.to_vec();
            opening.open_payload(&mut payload, &tag).unwrap();
            assert_eq!(payload, *b"4567");
            sealing.advance();
            opening.advance();
        }
        secrets.dedup();
        assert_eq!(secrets.len(), 4, "in 10 frames, a key for 3 of them");
    }
}

/// No nonce comes twice with a key, whatever the frames consist of.
#[test]
fn each_part_of_each_frame_has_a_nonce_of_its_own() {
    for hidden in HIDDEN {
        let mut direction = Direction::new([9; SECRET_BYTES], hidden, u64::MAX);
        let parts = match hidden {
            Hidden::Names => &[Part::Header, Part::Rest][..],
            Hidden::All(_) => &[Part::Header, Part::Rest, Part::Payload],
        };
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..300 {
            for part in parts {
                let nonce: [u8; NONCE_LEN] = *direction.nonce(*part).as_ref();
                assert!(seen.insert(nonce), "{hidden:?}");
            }
            direction.advance();
        }
    }
}

fn hex(bytes: Vec<u8>) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A change of these bytes is a change of the format.
#[test]
fn sealed_frames_have_the_documented_bytes() {
    let [(mut sealer, _), _] = sides(Hidden::Names, 1, 2);
    let alive = hex(bytes(sealer.seal(&Frame::Alive.encode())));
    let full = hex(bytes(sealer.seal(&request(1, 4, 3).encode())));
    // Of another implementation: HKDF by Python's hmac, AES-GCM by OpenSSL.
    assert_eq!(
        alive,
        "89fdcba13f014589a3584355159c28d18b41c4582dd6523fe7edfbf3caf0e28f7f7a44fa4981d329c26526258de\
         a95427201df6f4dd11f297d5d405093b0adf728e6c2e4867a2366c8e323ba50956046"
    );
    assert_eq!(
        full,
        "822775d9c082af1d11ac9cfc3dd8bf51a8c31f408235e8c8e63f1f1020636803d85d284ae43b6c0a0926a4e6aba\
         bb3b364ad8d6410d75c1bf9e7f097420f7b179a0594e655148c9de09bc1f4ba6a965d942391a5b71d216b9174d6\
         68c0942f39f7cc5cd3020202"
    );
}

/// As above, with a payload that is hidden.
#[test]
fn frames_that_are_hidden_wholly_have_the_documented_bytes() {
    // Of another implementation, as above.
    let wanted = [
        (
            Hidden::All(&AES_128_GCM),
            "c66ac2f42f35b4aca5baaf43d1757a518a7c8448bd8f4adca1488909acba0a4f6715e9ff2e976de52466c01111\
             d6247efdd916e7f933d4af312b1da05fad946bccd0c16c58a13d1445e613be01304d18aa4fab10dea227d8b44e\
             6b728b47f0ae17ef055279594e303ebdebc8f5f96a880b28b340b7d8f0",
        ),
        (
            Hidden::All(&AES_256_GCM),
            "2826c76ef7906b3baff7cb1d73823f3c6c185c20daa3f1c94a4c4bc6348190f87650ceab4b53c2c8df2b008d26\
             5b44484379fe50aa0d9abf236cb65dcdd941dc86d4717dceb05f070542c9e3dca26a3bb4f143ccaac57a8dc449\
             576ecf9eec069995070d6c7f118e0b750a39378733fba9ac6aeed14492",
        ),
        (
            Hidden::All(&CHACHA20_POLY1305),
            "ce0ba8152116b9089c7891a28867f4c135633d4f3305bba642124fd380ff2261c47b6540c07f0fee4ef285085e\
             7d2b7ea4b5c2b2e08e96b718bc2ab24898bfb3383eb0aa05964918a87ff78b6d998ad2aefe19344ff760920b7c\
             83675e1b86e11b17bc506e8e4bde20f33f5da13ff02ab78a589656997e",
        ),
    ];
    for (hidden, wanted) in wanted {
        let [(mut sealer, _), _] = sides(hidden, 1, 2);
        sealer.seal(&Frame::Alive.encode());
        let full = hex(bytes(sealer.seal(&request(1, 4, 3).encode())));
        assert_eq!(full, wanted, "{hidden:?}");
    }
}
