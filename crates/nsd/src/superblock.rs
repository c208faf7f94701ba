//! The superblock ring: the region's identity, its layout, and sealed logs.

use crate::checksum::{UNIT, crc32c_without};
use crate::wire::{Reader, Writer};
use crate::{FormatOptions, NsdIdentity};
use model::{Error, ErrorKind, NsdId, Result, ShardEpoch, ShardId};
use std::collections::BTreeMap;
use world::{AlignedBuffer, Disk};

const MAGIC: &[u8; 8] = b"SHALENSD";
const VERSION: u32 = 1;
const CRC_AT: usize = 12;
const BLOCK: u64 = UNIT as u64;
/// Copies at the start of the region, and again at its end.
const RING: u64 = 4;
/// Most seals stored here; the index and the journal hold the others.
const SEALS_MAX: usize = 240;
const MIB: u64 = 1 << 20;

/// The index grows in steps of this size once it is large; see [`crate::area::Area::capacity`].
const INDEX_STEP: u64 = 4 << 30;

/// The smallest region.
pub(crate) const REGION_BYTES_MIN: u64 = 8 * MIB;
/// The smallest journal.
pub(crate) const JOURNAL_BYTES_MIN: u64 = 256 * 1024;
/// The largest journal: opening reads all of it into memory.
const JOURNAL_BYTES_MAX: u64 = 1024 * MIB;
/// How often a region can be opened: [`crate::state::CoreState`] puts the incarnation above its birth
/// counter.
const INCARNATION_MAX: u64 = 1 << 23;

/// The index was rebuilt: log puts wait for confirmed epochs, and absence isn't proven.
pub(crate) const FLAG_UNCONFIRMED: u32 = 1;
/// The index is being rebuilt or is known to be damaged: opening is refused.
pub(crate) const FLAG_INDEX_LOST: u32 = 2;

/// Where the parts of the region are, in bytes; all multiples of 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) region_bytes: u64,
    pub(crate) journal_start: u64,
    pub(crate) journal_bytes: u64,
    pub(crate) index_start: u64,
    pub(crate) index_bytes: u64,
    pub(crate) data_start: u64,
    pub(crate) data_units: u64,
}

impl Layout {
    /// Lays out a region. Defaults: journal 1/64 (16..256 MiB, at most 1/8 of the region); index
    /// 1/16 up to 1 GiB, then 1/64 (at least 64 MiB, at most 1/4 of the region), rounded down to a
    /// size that the index can use: powers of two, then multiples of 4 GiB.
    pub(crate) fn plan(region_bytes: u64, options: FormatOptions) -> Result<Self> {
        let region_bytes = region_bytes / BLOCK * BLOCK;
        if region_bytes < REGION_BYTES_MIN {
            let text = format!("a region of {region_bytes} bytes is below the minimum of 8 MiB");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let journal = (region_bytes / 64)
            .clamp(16 * MIB, 256 * MIB)
            .min(region_bytes / 8);
        let index = (region_bytes / 16)
            .clamp(64 * MIB, 1024 * MIB)
            .max(region_bytes / 64)
            .min(region_bytes / 4);
        let index = match index {
            large if large >= INDEX_STEP => large / INDEX_STEP * INDEX_STEP,
            small => 1 << small.ilog2(),
        };
        let index = crate::area::Area::bytes_for(index);
        let journal_bytes = options.journal_bytes.unwrap_or(journal) / BLOCK * BLOCK;
        let index_bytes = options.index_bytes.unwrap_or(index) / BLOCK * BLOCK;
        let journal_start = RING * BLOCK;
        let index_start = journal_start + journal_bytes;
        let data_start = index_start + index_bytes;
        let data_end = region_bytes - RING * BLOCK;
        let journals = JOURNAL_BYTES_MIN..=JOURNAL_BYTES_MAX;
        if !journals.contains(&journal_bytes) || index_bytes < MIB || data_start >= data_end {
            let text = format!(
                "a journal of {journal_bytes} and an index of {index_bytes} bytes don't fit into a \
                 region of {region_bytes} bytes"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Ok(Self {
            region_bytes,
            journal_start,
            journal_bytes,
            index_start,
            index_bytes,
            data_start,
            data_units: (data_end - data_start) / BLOCK,
        })
    }

    /// Whether the parts follow each other within the region, and the region fits on the disk. The
    /// numbers can't be trusted: any program may have written them.
    fn is_sound(&self, disk_bytes: u64) -> bool {
        let lengths = [
            Some(RING * BLOCK),
            Some(self.journal_bytes),
            Some(self.index_bytes),
            self.data_units.checked_mul(BLOCK),
            Some(RING * BLOCK),
        ];
        let mut end = 0u64;
        let ends = lengths.map(|length| {
            end = end.checked_add(length?)?;
            Some(end)
        });
        self.region_bytes <= disk_bytes
            && (JOURNAL_BYTES_MIN..=JOURNAL_BYTES_MAX).contains(&self.journal_bytes)
            && self.index_bytes >= MIB
            && ends
                == [
                    Some(self.journal_start),
                    Some(self.index_start),
                    Some(self.data_start),
                    self.region_bytes.checked_sub(RING * BLOCK),
                    Some(self.region_bytes),
                ]
            && ends.iter().flatten().all(|end| end.is_multiple_of(BLOCK))
    }
}

/// The content of a superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Superblock {
    /// Counts the superblocks written.
    pub(crate) sequence: u64,
    /// Random, drawn on formatting: old blocks of other regions never match.
    pub(crate) region: u128,
    pub(crate) identity: NsdIdentity,
    pub(crate) flags: u32,
    /// Counts the times the region was opened.
    pub(crate) incarnation: u64,
    pub(crate) layout: Layout,
    pub(crate) seals: BTreeMap<ShardId, ShardEpoch>,
}

impl Superblock {
    pub(crate) fn encode(&self) -> AlignedBuffer {
        let mut out = Writer::default();
        out.raw(MAGIC);
        out.u32(VERSION);
        out.u32(0);
        out.u64(self.sequence);
        out.u128(self.region);
        out.u128(self.identity.cluster);
        out.u32(self.identity.nsd.0);
        out.u32(self.identity.pool);
        out.u32(self.flags);
        out.u32(u32::try_from(self.seals.len().min(SEALS_MAX)).expect("at most 240"));
        out.u64(self.incarnation);
        let layout = &self.layout;
        for field in [
            layout.region_bytes,
            layout.journal_start,
            layout.journal_bytes,
            layout.index_start,
            layout.index_bytes,
            layout.data_start,
            layout.data_units,
        ] {
            out.u64(field);
        }
        for (shard, epoch) in self.seals.iter().take(SEALS_MAX) {
            out.u32(shard.0);
            out.u32(0);
            out.u64(epoch.0);
        }
        out.pad_to(UNIT);
        let mut block = AlignedBuffer::copy_of(&out.done());
        let crc = crc32c_without(&block, CRC_AT);
        block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Decodes one copy; `None` if it isn't one, is damaged, or has another version or region size.
    pub(crate) fn decode(block: &[u8], disk_bytes: u64) -> Option<Self> {
        match Copy::decode(block) {
            Some(Copy::Known(superblock)) => superblock.is_sound(disk_bytes).then_some(*superblock),
            Some(Copy::Newer(_)) | None => None,
        }
    }

    fn is_sound(&self, disk_bytes: u64) -> bool {
        let is_countable = self.sequence < u64::MAX && self.incarnation < INCARNATION_MAX;
        is_countable && self.layout.is_sound(disk_bytes)
    }

    /// Decodes the fields after magic, version and checksum.
    fn decode_fields(mut input: Reader<'_>) -> Option<Self> {
        let sequence = input.u64()?;
        let region = input.u128()?;
        let identity = NsdIdentity {
            cluster: input.u128()?,
            nsd: NsdId(input.u32()?),
            pool: input.u32()?,
        };
        let flags = input.u32()?;
        let seal_count = input.u32()?;
        let incarnation = input.u64()?;
        let layout = Layout {
            region_bytes: input.u64()?,
            journal_start: input.u64()?,
            journal_bytes: input.u64()?,
            index_start: input.u64()?,
            index_bytes: input.u64()?,
            data_start: input.u64()?,
            data_units: input.u64()?,
        };
        if seal_count as usize > SEALS_MAX {
            return None;
        }
        let mut seals = BTreeMap::new();
        for _ in 0..seal_count {
            let shard = ShardId(input.u32()?);
            input.u32()?;
            seals.insert(shard, ShardEpoch(input.u64()?));
        }
        Some(Self {
            sequence,
            region,
            identity,
            flags,
            incarnation,
            layout,
            seals,
        })
    }

    /// Writes this superblock with the next sequence number, one copy in the front ring, then one
    /// in the back ring. Durable when it returns.
    pub(crate) async fn store(&mut self, disk: &Disk) -> std::io::Result<()> {
        self.sequence += 1;
        let block = self.encode().freeze();
        for offset in self.places() {
            disk.write_durable(offset, block.clone()).await?;
        }
        Ok(())
    }

    /// Offsets of the two copies with this sequence number.
    fn places(&self) -> [u64; 2] {
        let slot = self.sequence % RING * BLOCK;
        [slot, self.layout.region_bytes - RING * BLOCK + slot]
    }

    /// Rewrites copies that are unreadable or wrong. Returns descriptions of the repairs.
    pub(crate) async fn mend(&self, disk: &Disk) -> std::io::Result<Vec<String>> {
        let mut mended = Vec::new();
        let newest = self.encode().freeze();
        for slot in slots(self.layout.region_bytes) {
            let found = disk.read(slot, UNIT).await.ok();
            let copy = found
                .as_ref()
                .and_then(|block| Self::decode(block, disk.bytes()));
            let good = match &copy {
                None => self.sequence < RING && is_blank(found.as_deref()),
                Some(copy) if self.places().contains(&slot) => copy == self,
                Some(copy) => copy.region == self.region,
            };
            if !good {
                disk.write_durable(slot, newest.clone()).await?;
                mended.push(format!("superblock copy at byte {slot} rewritten"));
            }
        }
        Ok(mended)
    }
}

/// A copy with a correct checksum.
enum Copy {
    /// This program's version.
    Known(Box<Superblock>),
    /// A version that this program doesn't know. Magic, version and checksum have the same place in
    /// all versions.
    Newer(u32),
}

impl Copy {
    fn decode(block: &[u8]) -> Option<Self> {
        let mut input = Reader::new(block);
        if input.raw(8)? != MAGIC {
            return None;
        }
        let version = input.u32()?;
        if input.u32()? != crc32c_without(block, CRC_AT) {
            return None;
        }
        if version != VERSION {
            return Some(Self::Newer(version));
        }
        Superblock::decode_fields(input).map(|superblock| Self::Known(Box::new(superblock)))
    }
}

/// Offsets of all copies.
fn slots(region_bytes: u64) -> impl Iterator<Item = u64> {
    let back = region_bytes - RING * BLOCK;
    (0..RING)
        .map(|slot| slot * BLOCK)
        .chain((0..RING).map(move |slot| back + slot * BLOCK))
}

/// A copy that was never written.
fn is_blank(block: Option<&[u8]>) -> bool {
    block.is_some_and(|block| block.iter().all(|byte| *byte == 0))
}

/// Whether no superblock was ever written: all places where one could be have zeros, and of a region that is too small for one
/// all bytes are. What can't be read may be one, and so may what is torn.
pub(crate) async fn is_never_written(disk: &Disk) -> bool {
    let disk_bytes = disk.bytes() / BLOCK * BLOCK;
    let places: Vec<u64> = match disk_bytes < REGION_BYTES_MIN {
        true => (0..disk_bytes).step_by(UNIT).collect(),
        false => slots(disk_bytes).collect(),
    };
    for place in places {
        let found = disk.read(place, UNIT).await.ok();
        if !is_blank(found.as_deref()) {
            return false;
        }
    }
    true
}

/// Overwrites all copies of the superblock of this NSD, so that a region is none any more. Another NSD's stays.
pub(crate) async fn erase(disk: &Disk, identity: NsdIdentity) -> Result<()> {
    let Some(found) = load(disk).await?.filter(|it| it.identity == identity) else {
        return Ok(());
    };
    // The newest ones last: no older one counts, whenever the power is cut.
    let newest = found.places();
    let (last, first): (Vec<u64>, Vec<u64>) =
        slots(found.layout.region_bytes).partition(|slot| newest.contains(slot));
    let zeros = AlignedBuffer::zeroed(UNIT).freeze();
    for slot in first.into_iter().chain(last) {
        let erased = disk.write_durable(slot, zeros.clone()).await;
        erased.map_err(|error| {
            let text = format!("erasing the superblock of {disk:?}: {error}");
            Error::new(ErrorKind::Unavailable, text)
        })?;
    }
    Ok(())
}

/// The newest valid superblock, if there is any. A caller that gets `None` may format the disk, so
/// a region that a newer Shale wrote or that was truncated is an error.
pub(crate) async fn load(disk: &Disk) -> Result<Option<Superblock>> {
    let mut newest: Option<Superblock> = None;
    let mut failures = 0;
    let mut cut_short = None;
    let disk_bytes = disk.bytes() / BLOCK * BLOCK;
    if disk_bytes < REGION_BYTES_MIN {
        return Ok(None);
    }
    for slot in slots(disk_bytes) {
        let Ok(block) = disk.read(slot, UNIT).await else {
            failures += 1;
            continue;
        };
        match Copy::decode(&block) {
            Some(Copy::Newer(version)) => {
                let text = format!(
                    "{disk:?} was written by a newer Shale (superblock version {version}, this \
                     program knows {VERSION}); upgrade this node (the region was left as it is)"
                );
                return Err(Error::new(ErrorKind::NotSupported, text));
            }
            Some(Copy::Known(copy)) => {
                if !copy.is_sound(disk.bytes()) {
                    cut_short = Some(copy.layout.region_bytes);
                } else if newest.as_ref().is_none_or(|n| n.sequence < copy.sequence) {
                    newest = Some(*copy);
                }
            }
            None => {}
        }
    }
    if let (None, Some(bytes)) = (&newest, cut_short) {
        let text = format!(
            "{disk:?} was cut short: its superblock says {bytes} bytes, or makes no sense; bring the \
             whole region back, or remove the NSD with `shale nsd remove`"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    if newest.is_none() && failures > 0 {
        let text = format!("{failures} superblock copies of {disk:?} can't be read");
        return Err(Error::new(ErrorKind::Unavailable, text));
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            sequence: 6,
            region: 7,
            identity: NsdIdentity {
                cluster: 1,
                nsd: NsdId(2),
                pool: 0,
            },
            flags: FLAG_UNCONFIRMED,
            incarnation: 3,
            layout: Layout::plan(64 * MIB, FormatOptions::default()).unwrap(),
            seals: BTreeMap::from([(ShardId(1), ShardEpoch(9))]),
        }
    }

    #[test]
    fn superblocks_read_back_and_any_flipped_byte_shows() {
        let block = superblock().encode();
        assert_eq!(Superblock::decode(&block, 64 * MIB), Some(superblock()));
        assert_eq!(Superblock::decode(&block, 63 * MIB), None);
        for at in 0..UNIT {
            let mut damaged = AlignedBuffer::copy_of(&block);
            damaged[at] ^= 0x10;
            assert_eq!(Superblock::decode(&damaged, 64 * MIB), None, "byte {at}");
        }
    }

    #[test]
    fn a_newer_version_is_distinguished_from_damage() {
        let mut block = superblock().encode();
        block[8] = 9;
        assert!(Copy::decode(&block).is_none(), "one flipped byte is damage");
        let crc = crc32c_without(&block, CRC_AT);
        block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(Copy::decode(&block), Some(Copy::Newer(9))));
        assert_eq!(Superblock::decode(&block, 64 * MIB), None);
    }

    #[test]
    fn no_size_that_a_disk_may_claim_is_taken_on_trust() {
        let good = superblock();
        for number in [0, 1, 4095, 1 << 33, 1 << 63, u64::MAX - 4095, u64::MAX] {
            let changes: [fn(&mut Superblock) -> &mut u64; 9] = [
                |block| &mut block.layout.region_bytes,
                |block| &mut block.layout.journal_start,
                |block| &mut block.layout.journal_bytes,
                |block| &mut block.layout.index_start,
                |block| &mut block.layout.index_bytes,
                |block| &mut block.layout.data_start,
                |block| &mut block.layout.data_units,
                |block| &mut block.sequence,
                |block| &mut block.incarnation,
            ];
            for (field, change) in changes.iter().enumerate() {
                let mut hostile = good.clone();
                *change(&mut hostile) = number;
                let taken = Superblock::decode(&hostile.encode(), u64::MAX);
                let harmless =
                    field >= 7 && number < INCARNATION_MAX || field == 7 && number < u64::MAX;
                assert_eq!(taken.is_some(), harmless, "field {field} is {number}");
            }
        }
        // All fields are consistent, but no disk could hold this journal.
        let mut large = good;
        let layout = &mut large.layout;
        layout.journal_bytes += 1 << 50;
        layout.index_start += 1 << 50;
        layout.data_start += 1 << 50;
        layout.region_bytes += 1 << 50;
        assert_eq!(Superblock::decode(&large.encode(), u64::MAX), None);
    }

    #[test]
    fn every_region_size_has_a_sound_layout() {
        for bytes in [8 * MIB, 9 * MIB + 5, 100 * MIB, 20 << 30, 64 << 40] {
            let layout = Layout::plan(bytes, FormatOptions::default()).unwrap();
            assert!(layout.is_sound(bytes));
            assert!(layout.data_units * BLOCK > layout.region_bytes / 2);
        }
        assert!(Layout::plan(MIB, FormatOptions::default()).is_err());
    }
}
