//! Frames of a connection whose keys came out of a TLS handshake: header and encoded part encrypted,
//! the payload authenticated where it lies (`docs/formats/rpc.md`, "Sealed frames"). No I/O.
//!
//! Each direction has its own secret, and each frame its own nonces, which both sides count and
//! nobody sends. So a frame that was changed, left out, repeated, moved, or sent back to its sender
//! doesn't open, and the connection ends.

use crate::Fault;
use crate::frame::{HEADER_BYTES, Outgoing};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
use bytes::Bytes;

/// Bytes of a tag.
pub(crate) const TAG_BYTES: usize = 16;

/// Bytes of a sealed header.
pub(crate) const SEALED_HEADER_BYTES: usize = HEADER_BYTES + TAG_BYTES;

/// Bytes of a direction's secret.
pub(crate) const SECRET_BYTES: usize = 32;

/// Bytes of an AES-128 key.
const KEY_BYTES: usize = 16;

/// Frames that are sealed with one key. A frame encrypts at most 1 MiB + 64 bytes, so a key encrypts
/// at most 2^36 blocks of 16 bytes, and tells AES from a random permutation with a chance of at most
/// 2^-57: what RFC 8446 (5.5) allows TLS. Nonces never come again: they count frames, up to 2^63.
const FRAMES_PER_KEY: u64 = 1 << 20;

/// The secrets of a connection's two directions, as one side sees them.
pub(crate) struct FrameKeys {
    /// Of what this side sends.
    pub(crate) sending: [u8; SECRET_BYTES],
    /// Of what it receives.
    pub(crate) receiving: [u8; SECRET_BYTES],
}

impl FrameKeys {
    /// What seals the first frame that is sent, and opens the first that is received.
    pub(crate) fn into_pair(self) -> (Sealer, Opener) {
        let sealer = Sealer(Direction::new(self.sending, FRAMES_PER_KEY));
        (
            sealer,
            Opener(Direction::new(self.receiving, FRAMES_PER_KEY)),
        )
    }
}

/// Seals the frames of one direction, in their order.
pub(crate) struct Sealer(Direction);

/// Opens the frames of one direction, in their order.
pub(crate) struct Opener(Direction);

impl Sealer {
    /// The next frame as it is sent. The payload stays where it is.
    pub(crate) fn seal(&mut self, frame: &Outgoing) -> Outgoing {
        let has_parts = !frame.body.is_empty() || !frame.payload.is_empty();
        let parts_bytes = if has_parts {
            frame.body.len() + TAG_BYTES
        } else {
            0
        };
        let mut out = Vec::with_capacity(SEALED_HEADER_BYTES + parts_bytes);
        out.extend_from_slice(&frame.header);
        let tag = self.0.seal(Part::Header, &[], &mut out);
        out.extend_from_slice(&tag);
        if has_parts {
            out.extend_from_slice(&frame.body);
            let body = &mut out[SEALED_HEADER_BYTES..];
            let tag = self.0.seal(Part::Rest, &frame.payload, body);
            out.extend_from_slice(&tag);
        }
        self.0.advance();
        Outgoing {
            header: out.into(),
            body: Bytes::new(),
            payload: frame.payload.clone(),
        }
    }
}

impl Opener {
    /// Opens the next frame's header.
    pub(crate) fn open_header(
        &self,
        sealed: &mut [u8; SEALED_HEADER_BYTES],
    ) -> Result<[u8; HEADER_BYTES], Fault> {
        self.0.open(Part::Header, &[], sealed)?;
        let header = sealed.first_chunk::<HEADER_BYTES>();
        Ok(*header.expect("a sealed header is longer than a header"))
    }

    /// Opens the encoded part of the frame whose header was opened last: `body` holds it with its tag,
    /// and what was encoded afterwards.
    pub(crate) fn open_parts(&self, body: &mut Vec<u8>, payload: &[u8]) -> Result<(), Fault> {
        self.0.open(Part::Rest, payload, body)?;
        body.truncate(body.len() - TAG_BYTES);
        Ok(())
    }

    /// The frame is complete; what comes is the next one.
    pub(crate) fn advance(&mut self) {
        self.0.advance();
    }
}

/// What is sealed with a nonce of its own.
#[derive(Clone, Copy)]
enum Part {
    Header = 0,
    /// The encoded part, and with it the payload.
    Rest = 1,
}

/// One direction's key now, and how its next one is made.
struct Direction {
    secret: [u8; SECRET_BYTES],
    key: LessSafeKey,
    nonce: [u8; NONCE_LEN],
    /// The frame that is sealed or opened next, from 0.
    frame: u64,
    frames_per_key: u64,
}

impl Direction {
    fn new(secret: [u8; SECRET_BYTES], frames_per_key: u64) -> Self {
        let (key, nonce) = key_of(&secret);
        Self {
            secret,
            key,
            nonce,
            frame: 0,
            frames_per_key,
        }
    }

    fn nonce(&self, part: Part) -> Nonce {
        let count = self.frame * 2 + part as u64;
        let mut nonce = self.nonce;
        for (byte, count) in nonce[NONCE_LEN - 8..].iter_mut().zip(count.to_be_bytes()) {
            *byte ^= count;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    fn seal(&self, part: Part, beside: &[u8], bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        let sealed =
            self.key
                .seal_in_place_separate_tag(self.nonce(part), Aad::from(beside), bytes);
        let tag = sealed.expect("a frame is far smaller than what AES-GCM seals at once");
        tag.as_ref().try_into().expect("a tag has 16 bytes")
    }

    fn open(&self, part: Part, beside: &[u8], bytes: &mut [u8]) -> Result<(), Fault> {
        let opened = self
            .key
            .open_in_place(self.nonce(part), Aad::from(beside), bytes);
        match opened {
            Ok(_) => Ok(()),
            Err(_) => Err(Fault::new(
                "a frame isn't what the other side sealed; something on the way changes bytes",
            )),
        }
    }

    fn advance(&mut self) {
        self.frame += 1;
        if self.frame.is_multiple_of(self.frames_per_key) {
            self.secret = derived(&self.secret, b"shale frames: next secret");
            (self.key, self.nonce) = key_of(&self.secret);
        }
    }
}

fn key_of(secret: &[u8; SECRET_BYTES]) -> (LessSafeKey, [u8; NONCE_LEN]) {
    let key: [u8; KEY_BYTES] = derived(secret, b"shale frames: key");
    let key = UnboundKey::new(&AES_128_GCM, &key).expect("the key has AES-128's length");
    let nonce = derived(secret, b"shale frames: nonce");
    (LessSafeKey::new(key), nonce)
}

/// `N` bytes by HKDF-Expand with SHA-256 (RFC 5869).
fn derived<const N: usize>(secret: &[u8; SECRET_BYTES], label: &[u8]) -> [u8; N] {
    struct Length(usize);
    impl KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let mut out = [0; N];
    let secret = Prk::new_less_safe(HKDF_SHA256, secret);
    let info = [label];
    let filled = secret
        .expand(&info, Length(N))
        .and_then(|key| key.fill(&mut out));
    filled.expect("HKDF gives up to 8,160 bytes");
    out
}

#[cfg(test)]
mod tests;
