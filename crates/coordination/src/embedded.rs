//! The embedded store: the whole state in one disk region, two versions with two copies each
//! (`docs/formats/coordination.md`).

use crate::{Change, STATE_BYTES_MAX, Values, Versioned};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use model::checksum::{crc32c, crc32c_without};
use model::{Error, ErrorKind, Result};
use parking_lot::RwLock;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::{Mutex, watch};
use world::{AlignedBuffer, Disk, World};

const HEADER_BYTES: usize = 4096;
const SLOT_BYTES: u64 = (HEADER_BYTES + STATE_BYTES_MAX) as u64;
/// Slots: version v is stored in slots 2 × (v mod 2) and 2 × (v mod 2) + 1.
const SLOTS: u64 = 4;
pub(crate) const REGION_BYTES: u64 = SLOTS * SLOT_BYTES;

/// A change that takes longer is answered with "unknown" and continues.
const CHANGE_DEADLINE: Duration = Duration::from_secs(60);

const MAGIC: [u8; 8] = *b"SHLCOORD";
const FORMAT: u32 = 1;
const CRC_AT: usize = 24;
const BODY_AT: usize = 32;
const UNIT: usize = 4096;

pub(crate) struct Embedded {
    world: World,
    disk: Disk,
    /// Durable state only: a fact that was read can't be lost.
    durable: RwLock<Durable>,
    /// One transaction at a time.
    writing: Mutex<LastWrite>,
    changed: watch::Sender<u64>,
}

struct Durable {
    version: u64,
    state: Values,
}

/// The last write and how far it got.
struct LastWrite {
    /// The highest version that a write has tried. If that write failed, the version may be on the
    /// disk whole or in part: no other content ever gets its number.
    version: u64,
    /// The copy that failed; 0 or 1. It may be damaged, so it is written before the other one,
    /// which is whole.
    copy: usize,
}

impl LastWrite {
    fn after(version: u64, slots: &[Slot]) -> Self {
        let [_, second] = slots_of(version + 1);
        Self {
            version,
            copy: usize::from(matches!(slots[second as usize], Slot::Damaged)),
        }
    }
}

impl Embedded {
    pub(crate) async fn open(world: World, disk: Disk) -> Result<Arc<Self>> {
        if disk.bytes() < REGION_BYTES {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the coordination region has {} bytes but needs {REGION_BYTES}",
                    disk.bytes()
                ),
            ));
        }
        let mut slots = Vec::new();
        for slot in 0..SLOTS {
            slots.push(read_slot(&disk, slot).await?);
        }
        // A power cut tears at most one copy, which the next opening mends. Two damaged copies of a
        // version therefore mean a disk fault. The other pair may be older, and using it would
        // issue epochs and sessions a second time.
        if slots
            .chunks(2)
            .any(|pair| matches!(pair, [Slot::Damaged, Slot::Damaged]))
        {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "both copies of a version of the coordination state are damaged; restore the \
                 region from a backup made after the last start (it was left as it is)",
            ));
        }
        let newest = slots.iter().filter_map(Slot::version).max();
        // From the second version on, each pair has been written.
        let is_gone = |pair: &[Slot]| pair.iter().all(|slot| slot.version().is_none());
        if newest >= Some(2) && slots.chunks(2).any(is_gone) {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "both copies of a version of the coordination state are missing; restore the region \
                 from a backup made after the last start (it was left as it is)",
            ));
        }
        let last_write = LastWrite::after(newest.unwrap_or(0), &slots);
        let whole: Vec<bool> = slots
            .iter()
            .map(|slot| newest.is_some() && slot.version() == newest)
            .collect();
        let (version, state) = match newest {
            Some(version) => {
                let state = slots
                    .into_iter()
                    .find_map(|slot| match slot {
                        Slot::Whole(v, state) if v == version => Some(state),
                        _ => None,
                    })
                    .expect("the newest version was found in a slot");
                (version, state)
            }
            // Version 1 is the first one written, to slots 2 and 3 in turn: a power cut during the
            // first format leaves at most slot 2 torn.
            None if matches!(slots[..], [Slot::Blank, Slot::Blank, _, Slot::Blank]) => {
                (0, Values::new())
            }
            None => {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    "there is no undamaged copy of the coordination state; restore the region from a backup",
                ));
            }
        };
        let store = Arc::new(Self {
            world,
            disk,
            durable: RwLock::new(Durable { version, state }),
            writing: Mutex::new(last_write),
            changed: watch::Sender::new(version),
        });
        store.settle(&whole).await?;
        Ok(store)
    }

    /// Completes the state that was read: a copy of the newest version may be torn or damaged, and
    /// a version that one more fault could lose must not be used. A new region gets two versions,
    /// so that no later fault can make it look blank.
    async fn settle(&self, whole: &[bool]) -> Result<()> {
        let (version, state) = {
            let durable = self.durable.read();
            (durable.version, durable.state.clone())
        };
        if version > 0 {
            let slot = encode(version, &state)?;
            for copy in slots_of(version) {
                if !whole[usize::try_from(copy).expect("there are 4 slots")] {
                    self.write_slot(copy, version, slot.clone()).await?;
                }
            }
        }
        let mut last_write = self.writing.lock().await;
        for version in version + 1..=2 {
            self.write(version, &state, &mut last_write).await?;
            self.durable.write().version = version;
            self.changed.send_replace(version);
        }
        Ok(())
    }

    pub(crate) fn get(&self, key: &str) -> Option<Versioned<Bytes>> {
        self.durable.read().state.get(key).cloned()
    }

    pub(crate) fn list(&self, prefix: &str) -> Vec<(String, Versioned<Bytes>)> {
        let durable = self.durable.read();
        durable
            .state
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Runs in its own task, so that a write is finished even if its caller goes away.
    pub(crate) async fn transaction(self: &Arc<Self>, changes: Vec<Change>) -> Result<u64> {
        let store = Arc::clone(self);
        let (answer, wait) = tokio::sync::oneshot::channel();
        self.world
            .spawn("coordination", async move {
                let result = store.commit(changes).await;
                let _gone = answer.send(result);
            })
            .detach();
        let late = |_| {
            let text = format!(
                "the disk of the coordination region hasn't answered for {} s",
                CHANGE_DEADLINE.as_secs()
            );
            Error::new(ErrorKind::Unavailable, text)
        };
        let answer = self.world.timeout(CHANGE_DEADLINE, wait).await;
        answer.map_err(late)?.map_err(|_| {
            Error::new(
                ErrorKind::ShuttingDown,
                "coordination was shut down during a change",
            )
        })?
    }

    async fn commit(&self, changes: Vec<Change>) -> Result<u64> {
        let mut last_write = self.writing.lock().await;
        let (durable, mut state) = {
            let durable = self.durable.read();
            (durable.version, durable.state.clone())
        };
        // Always goes to the slots that don't hold the durable version.
        let version = match last_write.version {
            failed if failed > durable => failed + 2,
            _ => durable + 1,
        };
        for Change {
            key,
            expected,
            value,
        } in changes
        {
            let found = state.get(&key).map_or(0, |value| value.version);
            if found != expected {
                return Err(Error::new(
                    ErrorKind::Changed,
                    format!("fact {key:?} is at version {found}, not at {expected}"),
                ));
            }
            match value {
                Some(value) => state.insert(key, Versioned { value, version }),
                None => state.remove(&key),
            };
        }
        self.write(version, &state, &mut last_write).await?;
        *self.durable.write() = Durable { version, state };
        self.changed.send_replace(version);
        Ok(version)
    }

    /// Writes both copies, one after the other. At every moment the pair of the durable version and
    /// one copy of this pair are whole, and after the first copy a torn write can no longer lose
    /// this version.
    async fn write(&self, version: u64, state: &Values, last_write: &mut LastWrite) -> Result<()> {
        let bytes = encode(version, state)?;
        last_write.version = version;
        let slots = slots_of(version);
        for copy in [last_write.copy, 1 - last_write.copy] {
            last_write.copy = copy;
            self.write_slot(slots[copy], version, bytes.clone()).await?;
        }
        last_write.copy = 0;
        Ok(())
    }

    async fn write_slot(&self, slot: u64, version: u64, bytes: Bytes) -> Result<()> {
        self.disk
            .write_durable(slot * SLOT_BYTES, bytes)
            .await
            .map_err(|error| {
                Error::new(
                    ErrorKind::Unavailable,
                    format!("writing coordination state {version}: {error}"),
                )
            })
    }
}

fn slots_of(version: u64) -> [u64; 2] {
    let first = version % 2 * 2;
    [first, first + 1]
}

enum Slot {
    /// Never written.
    Blank,
    /// Torn or damaged.
    Damaged,
    Whole(u64, Values),
}

impl Slot {
    fn version(&self) -> Option<u64> {
        match self {
            Self::Whole(version, _) => Some(*version),
            Self::Blank | Self::Damaged => None,
        }
    }
}

async fn read_slot(disk: &Disk, slot: u64) -> Result<Slot> {
    // An unreadable unit counts as damage of this copy only.
    let Ok(header) = disk.read(slot * SLOT_BYTES, HEADER_BYTES).await else {
        return Ok(Slot::Damaged);
    };
    if header.iter().all(|byte| *byte == 0) {
        return Ok(Slot::Blank);
    }
    let body = u32::from_le_bytes(header[12..16].try_into().expect("four bytes"));
    let length = (BODY_AT + body as usize).next_multiple_of(UNIT);
    let bytes = match length {
        HEADER_BYTES => header,
        length if length as u64 <= SLOT_BYTES => match disk.read(slot * SLOT_BYTES, length).await {
            Ok(bytes) => bytes,
            Err(_) => return Ok(Slot::Damaged),
        },
        _ => return Ok(Slot::Damaged),
    };
    Ok(decode(&bytes)?.map_or(Slot::Damaged, |(version, state)| {
        Slot::Whole(version, state)
    }))
}

fn encode(version: u64, state: &Values) -> Result<Bytes> {
    let mut out = BytesMut::new();
    out.put_slice(&MAGIC);
    out.put_u32_le(FORMAT);
    out.put_u32_le(0); // body bytes, filled in below
    out.put_u64_le(version);
    out.put_u32_le(0); // checksum, filled in below
    out.put_u32_le(u32::try_from(state.len()).expect("1 MiB holds less than 2^32 keys"));
    for (key, value) in state {
        out.put_u16_le(u16::try_from(key.len()).expect("keys are at most 256 bytes long"));
        out.put_u32_le(u32::try_from(value.value.len()).unwrap_or(u32::MAX));
        out.put_u64_le(value.version);
        out.put_slice(key.as_bytes());
        out.put_slice(&value.value);
    }
    if out.len() - BODY_AT > STATE_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "the coordination state would have {} bytes; the maximum is {STATE_BYTES_MAX}",
                out.len() - BODY_AT
            ),
        ));
    }
    let body = u32::try_from(out.len() - BODY_AT).expect("checked above");
    out[12..16].copy_from_slice(&body.to_le_bytes());
    let crc = crc32c(&out);
    out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    let mut aligned = AlignedBuffer::zeroed(out.len().next_multiple_of(UNIT));
    aligned[..out.len()].copy_from_slice(&out);
    Ok(aligned.freeze())
}

/// The version and state in a slot, or `None` if its checksum doesn't match.
fn decode(slot: &Bytes) -> Result<Option<(u64, Values)>> {
    let mut input = slot.clone();
    if input.split_to(8)[..] != MAGIC {
        return Ok(None);
    }
    let format = input.get_u32_le();
    let length = BODY_AT + input.get_u32_le() as usize;
    let version = input.get_u64_le();
    let crc = input.get_u32_le();
    let count = input.get_u32_le();
    if length > slot.len() {
        return Ok(None);
    }
    if crc32c_without(&slot[..length], CRC_AT) != crc {
        return Ok(None);
    }
    if format != FORMAT {
        return Err(Error::new(
            ErrorKind::NotSupported,
            format!(
                "the coordination state was written by a newer Shale (format {format}, this program knows {FORMAT}); upgrade this node (the region was left as it is)"
            ),
        ));
    }
    let mut state = BTreeMap::new();
    for _ in 0..count {
        let (key, value) = (usize::from(input.get_u16_le()), input.get_u32_le() as usize);
        let version = input.get_u64_le();
        let key = String::from_utf8(input.split_to(key).to_vec())
            .expect("the checksum matches, so keys are as written");
        state.insert(
            key,
            Versioned {
                value: Bytes::copy_from_slice(&input.split_to(value)),
                version,
            },
        );
    }
    Ok(Some((version, state)))
}
