//! What is sealed is opened once, in its place, by the other side, and nothing else is.

use super::*;
use crate::frame::{Frame, Header};
use crate::receive::Receiver;
use model::call::{Call, Class, Method};
use proptest::collection::vec;
use proptest::prelude::*;
use std::time::Duration;

/// Both sides of a connection with these secrets.
fn sides(there: u8, back: u8) -> [(Sealer, Opener); 2] {
    let keys = |sending, receiving| FrameKeys {
        sending: [sending; SECRET_BYTES],
        receiving: [receiving; SECRET_BYTES],
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
        frames in vec(some_frame(), 1..6),
        portions in vec(1..5000_usize, 0..40),
        one_by_one in any::<bool>(),
    ) {
        let [(mut sealer, _), (_, opener)] = sides(1, 2);
        let sent: Vec<u8> = frames
            .iter()
            .flat_map(|frame| bytes(sealer.seal(&frame.clone().encode())))
            .collect();
        let portions = portions.into_iter().chain(std::iter::repeat_n(1, if one_by_one { sent.len() } else { 0 }));
        prop_assert_eq!(received(opener, &sent, portions).unwrap(), frames);
    }

    /// Header, tag, encoded part, its tag, payload: no bit of any can be changed.
    #[test]
    fn a_changed_bit_anywhere_ends_the_connection(
        body in 0..100_usize,
        payload in 0..5000_usize,
        at in any::<prop::sample::Index>(),
        bit in 0..8_u32,
    ) {
        let [(mut sealer, _), (_, opener)] = sides(1, 2);
        let mut sent = bytes(sealer.seal(&request(1, body, payload).encode()));
        let at = at.index(sent.len());
        sent[at] ^= 1 << bit;
        let fault = received(opener, &sent, std::iter::empty()).unwrap_err();
        prop_assert!(fault.to_string().contains("isn't what the other side sealed"), "{}", fault);
    }

    #[test]
    fn frames_that_are_left_out_repeated_or_moved_end_the_connection(
        first in 0..5_usize,
        second in 0..5_usize,
    ) {
        prop_assume!(first != second);
        let [(mut sealer, _), (_, opener)] = sides(1, 2);
        let mut frames: Vec<Vec<u8>> = (1..=5)
            .map(|number| bytes(sealer.seal(&request(number, 10, 10).encode())))
            .collect();
        frames[first] = frames[second].clone();
        let faults = received(opener, &frames.concat(), std::iter::empty());
        prop_assert!(faults.is_err());
    }

    #[test]
    fn garbage_is_no_sealed_frame(bytes in vec(any::<u8>(), SEALED_HEADER_BYTES..2000)) {
        let [_, (_, opener)] = sides(1, 2);
        prop_assert!(received(opener, &bytes, std::iter::empty()).is_err());
    }
}

#[test]
fn a_frame_that_is_sent_back_to_its_sender_isnt_opened() {
    let [(mut sealer, own_opener), _] = sides(1, 2);
    let sent = bytes(sealer.seal(&Frame::Alive.encode()));
    assert!(received(own_opener, &sent, std::iter::empty()).is_err());
}

#[test]
fn frames_of_another_connection_arent_opened() {
    let [(mut sealer, _), _] = sides(1, 2);
    let [_, (_, opener)] = sides(3, 4);
    let sent = bytes(sealer.seal(&Frame::Alive.encode()));
    assert!(received(opener, &sent, std::iter::empty()).is_err());
}

/// The part that names paths and tokens can't be read on the way; the payload can, and lies where it
/// lay.
#[test]
fn the_encoded_part_is_hidden_and_the_payload_isnt_copied() {
    let [(mut sealer, _), _] = sides(1, 2);
    let mut call = Call::new(Method(7), Class::Bulk, &"/home/secret");
    call.payload = b"file data".to_vec().into();
    let frame = Frame::Request {
        number: 1,
        budget: Duration::from_secs(1),
        call,
    };
    let plain = frame.encode();
    let sealed = sealer.seal(&plain);
    assert_eq!(sealed.payload.as_ptr(), plain.payload.as_ptr());
    let sent = bytes(sealed);
    let has = |words: &[u8]| sent.windows(words.len()).any(|part| part == words);
    assert!(!has(b"secret") && !has(b"SHRP") && has(b"file data"));
    assert_eq!(
        sent.len(),
        HEADER_BYTES + 2 * TAG_BYTES + plain.body.len() + 9
    );
}

/// So that both sides change keys at the same frame, and no nonce comes twice with a key.
#[test]
fn keys_change_after_so_many_frames() {
    let mut sealing = Direction::new([9; SECRET_BYTES], 3);
    let mut opening = Direction::new([9; SECRET_BYTES], 3);
    let mut secrets = Vec::new();
    for frame in 0..10 {
        secrets.push(sealing.secret);
        assert_eq!(sealing.frame, frame);
        let mut bytes = b"0123".to_vec();
        let tag = sealing.seal(Part::Rest, b"beside", &mut bytes);
        bytes.extend(tag);
        opening.open(Part::Rest, b"beside", &mut bytes).unwrap();
        assert_eq!(bytes[..4], *b"0123");
        sealing.advance();
        opening.advance();
    }
    secrets.dedup();
    assert_eq!(secrets.len(), 4, "in 10 frames, a key for 3 of them");
}

/// A change of these bytes is a change of the format.
#[test]
fn sealed_frames_have_the_documented_bytes() {
    let [(mut sealer, _), _] = sides(1, 2);
    let hex =
        |bytes: Vec<u8>| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let alive = hex(bytes(sealer.seal(&Frame::Alive.encode())));
    let request = hex(bytes(sealer.seal(&request(1, 4, 3).encode())));
    // Of another implementation: HKDF by Python's hmac, AES-GCM by OpenSSL.
    assert_eq!(
        alive,
        "89fdcba13f014589a3584355159c28d18b41c4582dd6523fe7edfbf3caf0e28f7f7a44fa4981d329c26526258de\
         a95427201df6f4dd11f297d5d405093b0adf728e6c2e4867a2366c8e323ba50956046"
    );
    assert_eq!(
        request,
        "822775d9c082af1d11ac9cfc3dd8bf51a8c31f408235e8c8e63f1f1020636803d85d284ae43b6c0a0926a4e6aba\
         bb3b364ad8d6410d75c1bf9e7f097420f7b179a0594e655148c9de09bc1f4ba6a965d942391a5b71d216b9174d6\
         68c0942f39f7cc5cd3020202"
    );
}
