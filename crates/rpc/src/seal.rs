//! Frames of a connection whose keys came out of a TLS handshake: header and encoded part encrypted,
//! the payload authenticated where it lies, or encrypted as well (`docs/formats/rpc.md`, "Sealed frames"). No I/O.
//!
//! *Copies.* A payload that is encrypted is written once more by the sender, because its own stays as it is for whoever
//! else reads it, and is opened where it was received. TLS's own records would copy it twice more on each side, and are
//! read 4 KiB at a time by `rustls`.
//!
//! Each direction has its own secret, and each frame its own nonces, which both sides count and
//! nobody sends. So a frame that was changed, left out, repeated, moved, or sent back to its sender
//! doesn't open, and the connection ends.

use crate::Fault;
use crate::frame::{HEADER_BYTES, Outgoing};
use aws_lc_rs::aead::{AES_128_GCM, Aad, Algorithm, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
use bytes::Bytes;
use world::AlignedBuffer;

/// Bytes of a tag.
pub(crate) const TAG_BYTES: usize = 16;

/// Bytes of a sealed header.
pub(crate) const SEALED_HEADER_BYTES: usize = HEADER_BYTES + TAG_BYTES;

/// Bytes of a direction's secret.
pub(crate) const SECRET_BYTES: usize = 32;

/// Bytes of the longest key.
const KEY_BYTES_MAX: usize = 32;

/// What of a frame nobody can read on the way. Whatever can be read can't be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hidden {
    /// Header and encoded part, with AES-128-GCM.
    Names,
    /// The payload, too, with this algorithm.
    All(&'static Algorithm),
}

impl Hidden {
    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::Names => &AES_128_GCM,
            Self::All(algorithm) => algorithm,
        }
    }

    /// Frames that are sealed with one key: so many that it encrypts at most 2^36 blocks of 16 bytes, and tells AES from a
    /// random permutation with a chance of at most 2^-57: what RFC 8446 (5.5) allows TLS. A frame encrypts at most
    /// 1 MiB + 64 bytes, and 16 MiB more with its payload. Nonces never come again: they count frames, up to 2^62.
    fn frames_per_key(self) -> u64 {
        match self {
            Self::Names => 1 << 20,
            Self::All(_) => 1 << 15,
        }
    }

    /// What is authenticated with the encoded part, where it lies.
    fn beside(self, payload: &[u8]) -> &[u8] {
        match self {
            Self::Names => payload,
            Self::All(_) => &[],
        }
    }

    /// Nonces that a frame may need.
    fn nonces(self) -> u64 {
        match self {
            Self::Names => 2,
            Self::All(_) => 3,
        }
    }
}

/// The secrets of a connection's two directions, as one side sees them.
pub(crate) struct FrameKeys {
    /// Of what this side sends.
    pub(crate) sending: [u8; SECRET_BYTES],
    /// Of what it receives.
    pub(crate) receiving: [u8; SECRET_BYTES],
    /// What they hide.
    pub(crate) hidden: Hidden,
}

impl FrameKeys {
    /// What seals the first frame that is sent, and opens the first that is received.
    pub(crate) fn into_pair(self) -> (Sealer, Opener) {
        let direction = |secret| Direction::new(secret, self.hidden, self.hidden.frames_per_key());
        (
            Sealer(direction(self.sending)),
            Opener(direction(self.receiving)),
        )
    }
}

/// Seals the frames of one direction, in their order.
pub(crate) struct Sealer(Direction);

/// Opens the frames of one direction, in their order.
pub(crate) struct Opener(Direction);

impl Sealer {
    /// The next frame as it is sent. The payload stays where it is, unless it is hidden: then it is encrypted into memory
    /// of its own.
    pub(crate) fn seal(&mut self, frame: &Outgoing) -> Outgoing {
        let rest_bytes = self.0.rest_bytes(frame.body.len(), frame.payload.len());
        let mut out = Vec::with_capacity(SEALED_HEADER_BYTES + rest_bytes);
        out.extend_from_slice(&frame.header);
        let tag = self.0.seal(Part::Header, &[], &mut out);
        out.extend_from_slice(&tag);
        let beside = self.0.hidden.beside(&frame.payload);
        if !frame.body.is_empty() || !beside.is_empty() {
            out.extend_from_slice(&frame.body);
            let body = &mut out[SEALED_HEADER_BYTES..];
            let tag = self.0.seal(Part::Rest, beside, body);
            out.extend_from_slice(&tag);
        }
        let payload = match self.0.hidden {
            Hidden::All(_) if !frame.payload.is_empty() => {
                let (sealed, tag) = self.0.seal_apart(&frame.payload);
                out.extend_from_slice(&tag);
                sealed
            }
            _ => frame.payload.clone(),
        };
        self.0.advance();
        assert_eq!(out.len(), SEALED_HEADER_BYTES + rest_bytes);
        Outgoing {
            header: out.into(),
            body: Bytes::new(),
            payload,
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

    /// Bytes that come between a sealed header and the payload, if the header says that the parts have so many.
    pub(crate) fn rest_bytes(&self, body_bytes: usize, payload_bytes: usize) -> usize {
        self.0.rest_bytes(body_bytes, payload_bytes)
    }

    /// Opens the parts of the frame whose header was opened last: `rest` holds what came between header and payload,
    /// and the encoded part afterwards. Gives the payload.
    pub(crate) fn open_parts(
        &self,
        rest: &mut Vec<u8>,
        mut payload: Option<AlignedBuffer>,
    ) -> Result<Bytes, Fault> {
        if let (Hidden::All(_), Some(payload)) = (self.0.hidden, &mut payload) {
            let tag_at = rest.len() - TAG_BYTES;
            self.0.open_payload(payload, &rest[tag_at..])?;
            rest.truncate(tag_at);
        }
        let payload = payload.map_or_else(Bytes::new, AlignedBuffer::freeze);
        if !rest.is_empty() {
            let beside = self.0.hidden.beside(&payload);
            self.0.open(Part::Rest, beside, rest)?;
            rest.truncate(rest.len() - TAG_BYTES);
        }
        Ok(payload)
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
    /// The encoded part, and with it a payload that isn't hidden.
    Rest = 1,
    /// A hidden payload.
    Payload = 2,
}

/// One direction's key now, and how its next one is made.
struct Direction {
    hidden: Hidden,
    secret: [u8; SECRET_BYTES],
    key: LessSafeKey,
    nonce: [u8; NONCE_LEN],
    /// The frame that is sealed or opened next, from 0.
    frame: u64,
    frames_per_key: u64,
}

impl Direction {
    fn new(secret: [u8; SECRET_BYTES], hidden: Hidden, frames_per_key: u64) -> Self {
        let (key, nonce) = key_of(&secret, hidden.algorithm());
        Self {
            hidden,
            secret,
            key,
            nonce,
            frame: 0,
            frames_per_key,
        }
    }

    /// See [`Opener::rest_bytes`].
    fn rest_bytes(&self, body_bytes: usize, payload_bytes: usize) -> usize {
        let tags = match self.hidden {
            Hidden::Names => usize::from(body_bytes + payload_bytes > 0),
            Hidden::All(_) => usize::from(body_bytes > 0) + usize::from(payload_bytes > 0),
        };
        body_bytes + tags * TAG_BYTES
    }

    fn nonce(&self, part: Part) -> Nonce {
        let count = self.frame * self.hidden.nonces() + part as u64;
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

    /// Encrypts a payload into other memory; gives its tag, too.
    fn seal_apart(&self, payload: &[u8]) -> (Bytes, [u8; TAG_BYTES]) {
        let mut out = AlignedBuffer::with_any_content(payload.len());
        let mut tag = [0; TAG_BYTES];
        let nonce = self.nonce(Part::Payload);
        let none = Aad::empty();
        let sealed =
            self.key
                .seal_out_of_place_scatter(nonce, none, payload, &mut out, &[], &mut tag);
        sealed.expect("a frame is far smaller than what AES-GCM seals at once");
        (out.freeze(), tag)
    }

    fn open(&self, part: Part, beside: &[u8], bytes: &mut [u8]) -> Result<(), Fault> {
        let nonce = self.nonce(part);
        let opened = self.key.open_in_place(nonce, Aad::from(beside), bytes);
        opened.map(drop).map_err(|_| not_sealed())
    }

    /// Decrypts a payload where it lies.
    fn open_payload(&self, bytes: &mut [u8], tag: &[u8]) -> Result<(), Fault> {
        let (nonce, aad) = (self.nonce(Part::Payload), Aad::empty());
        let opened = self.key.open_in_place_separate_tag(nonce, aad, tag, bytes);
        opened.map(drop).map_err(|_| not_sealed())
    }

    fn advance(&mut self) {
        self.frame += 1;
        if self.frame.is_multiple_of(self.frames_per_key) {
            self.secret = derived(&self.secret, b"shale frames: next secret");
            (self.key, self.nonce) = key_of(&self.secret, self.hidden.algorithm());
        }
    }
}

fn not_sealed() -> Fault {
    Fault::new("a frame isn't what the other side sealed; something on the way changes bytes")
}

fn key_of(
    secret: &[u8; SECRET_BYTES],
    algorithm: &'static Algorithm,
) -> (LessSafeKey, [u8; NONCE_LEN]) {
    // A shorter key is the beginning of a longer one: so HKDF-Expand is made.
    let key: [u8; KEY_BYTES_MAX] = derived(secret, b"shale frames: key");
    let key = UnboundKey::new(algorithm, &key[..algorithm.key_len()]);
    let key = key.expect("the key has the algorithm's length");
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
