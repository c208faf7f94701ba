//! Guard blocks: the length of the redb file and its header page, two copies each.
//!
//! Guard `n` is in blocks `n % 2` and `n % 2 + 2`. The first copy is durable before the second is
//! written, so that a power cut damages at most one block of a pair.

use super::{AreaState, damaged};
use crate::checksum::{UNIT, crc32c_without};
use crate::wire::{Reader, Writer};
use std::io;

const MAGIC: &[u8; 8] = b"SHALEIDX";
const VERSION: u32 = 1;
const CRC_AT: usize = 12;
/// Offset of redb's header page in a guard block.
pub(super) const PAGE0_AT: usize = 64;

/// Content of a guard block: the storage's length and redb's header page.
pub(super) struct Guard {
    pub(super) sequence: u64,
    pub(super) length: u64,
    pub(super) page0: Box<[u8; UNIT]>,
}

/// What the two blocks of a pair contain together.
enum Pair {
    Guard(Guard),
    /// At most one block was ever written, and that write didn't complete.
    Unfinished,
    Lost,
}

/// Content found in a guard block.
pub(super) enum Found {
    Guard(Guard),
    /// Only zeros: never written since the area was made.
    Nothing,
    Damage,
}

impl Found {
    pub(super) fn in_block(block: &[u8], region: u128) -> Self {
        match Guard::decode(block, region) {
            Some(guard) => Self::Guard(guard),
            None if block.iter().all(|byte| *byte == 0) => Self::Nothing,
            None => Self::Damage,
        }
    }
}

impl Guard {
    /// The guard to continue with. `None` if a pair has no whole block: it may have held the newest
    /// guard, and pages of the older one may have been overwritten since.
    pub(super) fn newest(blocks: [Found; 4]) -> Option<Self> {
        let [a, b, c, d] = blocks;
        let (even, odd) = (Self::of_pair([a, c]), Self::of_pair([b, d]));
        match (even, odd) {
            (Pair::Guard(one), Pair::Guard(other)) => Some(if one.sequence > other.sequence {
                one
            } else {
                other
            }),
            // The second guard, the first one of its pair, was never completely written.
            (Pair::Unfinished, Pair::Guard(first)) if first.sequence == 1 => Some(first),
            _ => None,
        }
    }

    fn of_pair(pair: [Found; 2]) -> Pair {
        match pair {
            [Found::Guard(one), Found::Guard(other)] => {
                Pair::Guard(if one.sequence > other.sequence {
                    one
                } else {
                    other
                })
            }
            [Found::Guard(guard), _] | [_, Found::Guard(guard)] => Pair::Guard(guard),
            [Found::Damage, Found::Damage] => Pair::Lost,
            [Found::Nothing, _] | [_, Found::Nothing] => Pair::Unfinished,
        }
    }

    /// Refuses what this program can't have written, though the checksum fits: any program may have.
    /// `length_max`: bytes that the area has for pages.
    pub(super) fn check(&self, length_max: u64) -> io::Result<()> {
        let length = self.length;
        if length > length_max {
            return Err(damaged(format!(
                "a guard block of the index says that the index has {length} bytes, more than its area"
            )));
        }
        if self.sequence == u64::MAX {
            let text = "a guard block of the index has the last of all numbers";
            return Err(damaged(text.into()));
        }
        Ok(())
    }

    pub(super) fn of(state: &AreaState) -> Self {
        Self {
            sequence: state.sequence,
            length: state.length,
            page0: state.page0.clone(),
        }
    }

    pub(super) fn encode(&self, region: u128) -> Vec<u8> {
        let mut out = Writer::default();
        out.raw(MAGIC);
        out.u32(VERSION);
        out.u32(0);
        out.u128(region);
        out.u64(self.sequence);
        out.u64(self.length);
        out.pad_to(PAGE0_AT);
        out.raw(&self.page0[..UNIT - PAGE0_AT]);
        let mut block = out.done();
        let crc = crc32c_without(&block, CRC_AT);
        block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        block
    }

    pub(super) fn decode(block: &[u8], region: u128) -> Option<Self> {
        let mut input = Reader::new(block);
        if input.raw(8)? != MAGIC || input.u32()? != VERSION {
            return None;
        }
        if input.u32()? != crc32c_without(block, CRC_AT) || input.u128()? != region {
            return None;
        }
        let (sequence, length) = (input.u64()?, input.u64()?);
        let mut page0 = Box::new([0; UNIT]);
        page0[..UNIT - PAGE0_AT].copy_from_slice(block.get(PAGE0_AT..UNIT)?);
        Some(Self {
            sequence,
            length,
            page0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuzzing::{Memory, ROUNDS, Seen, Source, fuzz, within};

    /// Also with a checksum that was made to fit.
    #[test]
    fn any_block_is_a_guard_or_refused() {
        let read = Seen::default();
        fuzz!(ROUNDS, |input: &[u8]| {
            let mut source = Source::new(input);
            let guard = Guard {
                sequence: source.number(),
                length: source.number(),
                page0: Box::new([source.byte(); UNIT]),
            };
            let mut block = source.changed(&guard.encode(7));
            if source.chance() && block.len() > CRC_AT + 4 {
                let crc = crc32c_without(&block, CRC_AT);
                block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            }
            let found = within(Memory::SMALL, block.len(), || Guard::decode(&block, 7));
            if let Some(found) = found {
                let again = Guard::decode(&found.encode(7), 7).expect("it was read before");
                assert_eq!(
                    (again.sequence, again.length),
                    (found.sequence, found.length)
                );
                read.note();
            }
            assert!(Guard::decode(input, 7).is_none());
        });
        read.check(1, "forged guards are read");
    }
}
