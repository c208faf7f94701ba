//! The embedded store: the whole state in one disk region, two versions with two copies each
//! (`docs/formats/coordination.md`).

use crate::export::{self, EXPORTED, Export};
use crate::{
    Change, Facts, Lease, LeaseId, News, Reading, STATE_BYTES_MAX, Versioned,
    history::{Batch, History, Next},
    state::{State, Stored, lease_ended},
};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use model::checksum::{crc32c, crc32c_without};
use model::{Error, ErrorKind, Result};
use parking_lot::RwLock;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::{Mutex, watch};
use world::{AlignedBuffer, Disk, Instant, World};

const HEADER_BYTES: usize = 4096;
const SLOT_BYTES: u64 = (HEADER_BYTES + STATE_BYTES_MAX) as u64;
const _: () = assert!(
    BODY_AT + LEASE_COUNT_BYTES <= HEADER_BYTES,
    "the largest state fits in a slot"
);
/// Slots: version v is stored in slots 2 × (v mod 2) and 2 × (v mod 2) + 1.
const SLOTS: u64 = 4;
pub(crate) const REGION_BYTES: u64 = SLOTS * SLOT_BYTES;

/// A change that takes longer is answered with "unknown" and continues.
const CHANGE_DEADLINE: Duration = Duration::from_secs(60);
/// Pause after an attempt to end a lease that the disk refused.
const END_AGAIN: Duration = Duration::from_secs(1);

const MAGIC: [u8; 8] = *b"SHLCOORD";
const FORMAT: u32 = 2;
const CRC_AT: usize = 24;
const BODY_AT: usize = 32;
/// At the body's begin: how many leases there are.
const LEASE_COUNT_BYTES: usize = 4;
/// The lease of a key that has none.
const NO_LEASE: u64 = 0;
const UNIT: usize = 4096;

pub(crate) struct Embedded {
    world: World,
    disk: Disk,
    /// Durable state only: a fact that was read can't be lost.
    durable: RwLock<Durable>,
    /// When each lease ends. Not stored: after a restart each has its full TTL.
    ends: RwLock<BTreeMap<LeaseId, Instant>>,
    /// One transaction at a time.
    writing: Mutex<LastWrite>,
    changed: watch::Sender<u64>,
}

struct Durable {
    version: u64,
    state: State,
    history: History,
}

/// What a change did.
enum Done<T> {
    /// Nothing that has to be stored.
    Nothing(T),
    Changed(T, Batch),
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
                (0, State::default())
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
            durable: RwLock::new(Durable {
                version,
                state,
                history: History::new(version),
            }),
            ends: RwLock::default(),
            writing: Mutex::new(last_write),
            changed: watch::Sender::new(version),
        });
        store.settle(&whole).await?;
        store.follow(&store.durable.read().state);
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
            let slot = encode(version, &state);
            for copy in slots_of(version) {
                if !whole[usize::try_from(copy).expect("there are 4 slots")] {
                    self.write_slot(copy, version, slot.clone()).await?;
                }
            }
        }
        let mut last_write = self.writing.lock().await;
        for version in version + 1..=2 {
            self.write(version, &state, &mut last_write).await?;
            let mut durable = self.durable.write();
            durable.version = version;
            durable.history.compact(version);
            self.changed.send_replace(version);
        }
        Ok(())
    }

    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    pub(crate) fn get(&self, key: &str) -> Reading<Option<Versioned<Bytes>>> {
        let durable = self.durable.read();
        Reading {
            revision: durable.version,
            found: durable.state.get(key),
        }
    }

    pub(crate) fn list(&self, prefix: &str) -> Reading<Facts> {
        let durable = self.durable.read();
        Reading {
            revision: durable.version,
            found: durable.state.list(prefix),
        }
    }

    pub(crate) async fn news(&self, prefix: &str, after: &mut u64, patience: Duration) -> News {
        let mut changed = self.changed.subscribe();
        let deadline = self.world.now() + patience;
        loop {
            changed.mark_unchanged();
            match self.durable.read().history.next(prefix, *after) {
                Next::Forgotten => return News::Lost,
                Next::Batch(batch) => {
                    *after = batch.revision;
                    return batch.into();
                }
                Next::Nothing(told) => *after = told,
            }
            let left = deadline - self.world.now();
            if left.is_zero() || self.world.timeout(left, changed.changed()).await.is_err() {
                return News::Quiet;
            }
        }
    }

    pub(crate) async fn transaction(self: &Arc<Self>, changes: Vec<Change>) -> Result<u64> {
        self.change(move |state, now, next| {
            takes_changes(state)?;
            state.check(&changes)?;
            if !State::is_changed_by(&changes) {
                return Ok(Done::Nothing(now));
            }
            Ok(Done::Changed(next, state.apply(changes, next)))
        })
        .await
    }

    pub(crate) async fn grant(self: &Arc<Self>, ttl: Duration) -> Result<Lease> {
        self.change(move |state, _, next| {
            takes_changes(state)?;
            // Versions aren't reused, so neither are these names.
            let id = LeaseId(next);
            state.grant(id, ttl)?;
            let nothing = Batch {
                revision: next,
                events: Vec::new(),
            };
            Ok(Done::Changed(Lease { id, ttl }, nothing))
        })
        .await
    }

    pub(crate) async fn keep_alive(self: &Arc<Self>, lease: LeaseId) -> Result<Duration> {
        let ttl = self.durable.read().state.leases.get(&lease).copied();
        let ttl = ttl.ok_or_else(|| lease_ended(lease))?;
        let now = self.world.now();
        if let Some(end) = self.ends.write().get_mut(&lease)
            && *end > now
        {
            *end = now + ttl;
            return Ok(ttl);
        }
        // Its time is over: the answer waits until its keys are gone.
        self.revoke(lease).await?;
        Err(lease_ended(lease))
    }

    pub(crate) async fn revoke(self: &Arc<Self>, lease: LeaseId) -> Result<()> {
        self.change(move |state, _, next| Ok(Done::Changed((), state.end(lease, next)?)))
            .await
    }

    pub(crate) async fn export(self: &Arc<Self>) -> Result<Export> {
        let new = u128::from(self.world.random_u64()) << 64 | u128::from(self.world.random_u64());
        self.change(move |state, _, next| {
            if let Some(id) = exported(state)? {
                return Ok(Done::Nothing(export_of(state, id)));
            }
            let change = Change::put(EXPORTED, 0, export::mark(new));
            state.check(std::slice::from_ref(&change))?;
            let batch = state.apply(vec![change], next);
            Ok(Done::Changed(export_of(state, new), batch))
        })
        .await
    }

    pub(crate) fn exported(&self) -> Option<u128> {
        exported(&self.durable.read().state).ok().flatten()
    }

    pub(crate) async fn cancel_export(self: &Arc<Self>, id: u128) -> Result<()> {
        self.change(move |state, _, next| {
            let found = exported(state)?;
            if found != Some(id) {
                let text = format!("export {id:x} isn't the store's export");
                return Err(Error::new(ErrorKind::Changed, text));
            }
            let version = state.keys[EXPORTED].version;
            let batch = state.apply(vec![Change::remove(EXPORTED, version)], next);
            Ok(Done::Changed((), batch))
        })
        .await
    }

    /// Starts the clocks of new leases, and forgets those of leases that have ended.
    fn follow(self: &Arc<Self>, state: &State) {
        let mut ends = self.ends.write();
        ends.retain(|lease, _| state.leases.contains_key(lease));
        for (lease, ttl) in &state.leases {
            if !ends.contains_key(lease) {
                ends.insert(*lease, self.world.now() + *ttl);
                self.end_in_time(*lease, *ttl);
            }
        }
    }

    fn end_in_time(self: &Arc<Self>, lease: LeaseId, ttl: Duration) {
        let (world, store) = (self.world.clone(), Arc::downgrade(self));
        let mut pause = ttl;
        let watch = async move {
            loop {
                world.sleep(pause).await;
                let Some(store) = store.upgrade() else { break };
                let Some(end) = store.ends.read().get(&lease).copied() else {
                    break;
                };
                pause = end - world.now();
                if !pause.is_zero() {
                    continue;
                }
                // Once its time is over it can't be kept alive any more.
                match store.revoke(lease).await {
                    Err(error) if error.kind() == ErrorKind::Unavailable => pause = END_AGAIN,
                    _ => break,
                }
            }
        };
        self.world.spawn("coordination lease", watch).detach();
    }

    /// Changes the state and stores it. Runs in its own task, so that a write is finished even if
    /// its caller goes away. `rule` gets the state, its version and the version of the change.
    async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        rule: impl FnOnce(&mut State, u64, u64) -> Result<Done<T>> + Send + 'static,
    ) -> Result<T> {
        let store = Arc::clone(self);
        let (answer, wait) = tokio::sync::oneshot::channel();
        self.world
            .spawn("coordination", async move {
                let result = store.commit(rule).await;
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

    async fn commit<T>(
        self: &Arc<Self>,
        rule: impl FnOnce(&mut State, u64, u64) -> Result<Done<T>>,
    ) -> Result<T> {
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
        let (answer, batch) = match rule(&mut state, durable, version)? {
            Done::Nothing(answer) => return Ok(answer),
            Done::Changed(answer, batch) => (answer, batch),
        };
        self.write(version, &state, &mut last_write).await?;
        // First the clock: a lease without one would seem to be over.
        self.follow(&state);
        {
            let mut durable = self.durable.write();
            durable.version = version;
            durable.state = state;
            durable.history.push(batch);
        }
        self.changed.send_replace(version);
        Ok(answer)
    }

    /// Writes both copies, one after the other. At every moment the pair of the durable version and
    /// one copy of this pair are whole, and after the first copy a torn write can no longer lose
    /// this version.
    async fn write(&self, version: u64, state: &State, last_write: &mut LastWrite) -> Result<()> {
        let bytes = encode(version, state);
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

/// The export of the store, if there was one.
fn exported(state: &State) -> Result<Option<u128>> {
    let mark = state.keys.get(EXPORTED);
    mark.map(|mark| export::id_of(EXPORTED, &mark.value))
        .transpose()
}

/// Refuses changes after an export.
fn takes_changes(state: &State) -> Result<()> {
    match exported(state)? {
        Some(id) => Err(export::is_moving(id)),
        None => Ok(()),
    }
}

fn export_of(state: &State, id: u128) -> Export {
    let facts = state.keys.iter();
    let facts = facts.filter(|(key, stored)| stored.lease.is_none() && !export::is_mark(key));
    Export {
        id,
        facts: facts
            .map(|(key, stored)| (key.clone(), stored.value.clone()))
            .collect(),
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
    Whole(u64, State),
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

fn encode(version: u64, state: &State) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(&MAGIC);
    out.put_u32_le(FORMAT);
    out.put_u32_le(0); // body bytes, filled in below
    out.put_u64_le(version);
    out.put_u32_le(0); // checksum, filled in below
    out.put_u32_le(u32::try_from(state.keys.len()).expect("1 MiB holds less than 2^32 keys"));
    out.put_u32_le(u32::try_from(state.leases.len()).expect("there are at most LEASES_MAX"));
    for (lease, ttl) in &state.leases {
        out.put_u64_le(lease.0);
        out.put_u32_le(u32::try_from(ttl.as_secs()).expect("it is at most LEASE_TTL_MAX"));
    }
    for (key, stored) in &state.keys {
        out.put_u16_le(u16::try_from(key.len()).expect("keys are at most 256 bytes long"));
        out.put_u32_le(u32::try_from(stored.value.len()).expect("the state has at most 1 MiB"));
        out.put_u64_le(stored.version);
        out.put_u64_le(stored.lease.map_or(NO_LEASE, |lease| lease.0));
        out.put_slice(key.as_bytes());
        out.put_slice(&stored.value);
    }
    assert!(
        out.len() - BODY_AT <= STATE_BYTES_MAX + LEASE_COUNT_BYTES,
        "a state that is too large was refused before"
    );
    let body = u32::try_from(out.len() - BODY_AT).expect("checked above");
    out[12..16].copy_from_slice(&body.to_le_bytes());
    let crc = crc32c(&out);
    out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    let mut aligned = AlignedBuffer::zeroed(out.len().next_multiple_of(UNIT));
    aligned[..out.len()].copy_from_slice(&out);
    aligned.freeze()
}

/// The version and state in a slot, or `None` if its checksum doesn't match.
fn decode(slot: &Bytes) -> Result<Option<(u64, State)>> {
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
        let (writer, advice) = if format > FORMAT {
            ("a newer Shale", "upgrade this node")
        } else {
            ("an older Shale", "run that one")
        };
        return Err(Error::new(
            ErrorKind::NotSupported,
            format!(
                "the coordination state was written by {writer} (format {format}, this program knows {FORMAT}); {advice} (the region was left as it is)"
            ),
        ));
    }
    // The checksum fits, but any program may have written the region: a copy whose fields say more than
    // there is has no state.
    let state = decode_body(slot.slice(BODY_AT..length), count);
    Ok(state.map(|state| (version, state)))
}

/// The leases, then `count` keys.
fn decode_body(mut input: Bytes, count: u32) -> Option<State> {
    let mut state = State::default();
    for _ in 0..input.try_get_u32_le().ok()? {
        let lease = LeaseId(input.try_get_u64_le().ok()?);
        let ttl = Duration::from_secs(u64::from(input.try_get_u32_le().ok()?));
        state.leases.insert(lease, ttl);
    }
    let take =
        |input: &mut Bytes, length: usize| (length <= input.len()).then(|| input.split_to(length));
    for _ in 0..count {
        let key = usize::from(input.try_get_u16_le().ok()?);
        let value = input.try_get_u32_le().ok()? as usize;
        let version = input.try_get_u64_le().ok()?;
        let lease = Some(input.try_get_u64_le().ok()?).filter(|lease| *lease != NO_LEASE);
        let key = String::from_utf8(take(&mut input, key)?.to_vec()).ok()?;
        let stored = Stored {
            value: Bytes::copy_from_slice(&take(&mut input, value)?),
            version,
            lease: lease.map(LeaseId),
        };
        state.keys.insert(key, stored);
    }
    Some(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuzzing::{Memory, ROUNDS, Seen, Source, fuzz, within};

    /// What is read again is the same state.
    fn same(one: &State, other: &State) -> bool {
        let shown = |state: &State| {
            let keys = state.keys.iter();
            let keys = keys.map(|(key, it)| (key.clone(), it.value.clone(), it.version, it.lease));
            (keys.collect::<Vec<_>>(), state.leases.clone())
        };
        shown(one) == shown(other)
    }

    fn state(source: &mut Source<'_>) -> State {
        let leases = (0..source.below(3)).map(|_| {
            let ttl = Duration::from_secs(source.number() & 0xffff);
            (LeaseId(source.number()), ttl)
        });
        let leases = leases.collect();
        let keys = (0..source.below(5)).map(|_| {
            let lease = source.number();
            let stored = Stored {
                value: source.bytes(40).into(),
                version: source.number(),
                lease: (source.chance() && lease != NO_LEASE).then_some(LeaseId(lease)),
            };
            (source.text(), stored)
        });
        let keys = keys.collect();
        State { keys, leases }
    }

    /// Also with a checksum that was made to fit.
    #[test]
    fn any_copy_is_a_state_or_damaged() {
        let read = Seen::default();
        fuzz!(ROUNDS, |input: &[u8]| {
            let mut source = Source::new(input);
            let state = state(&mut source);
            let slot = encode(9, &state);
            let (version, found) = decode(&slot).unwrap().unwrap();
            assert!(version == 9 && same(&found, &state));
            // Most of the copy is padding.
            let used = BODY_AT + u32::from_le_bytes(slot[12..16].try_into().unwrap()) as usize;
            let mut changed = source.changed(&slot[..used]);
            if source.chance() && changed.len() > BODY_AT {
                let body = (changed.len() - BODY_AT) as u32;
                changed[12..16].copy_from_slice(&body.to_le_bytes());
            }
            if changed.len() > CRC_AT + 4 {
                let crc = crc32c_without(&changed, CRC_AT);
                changed[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            }
            changed.resize(changed.len().next_multiple_of(UNIT).max(UNIT), 0);
            let changed = Bytes::from(changed);
            let found = within(Memory::MESSAGE, changed.len(), || decode(&changed));
            if let Ok(Some((_, found))) = found {
                let again = decode(&encode(1, &found)).unwrap().unwrap();
                assert!(same(&again.1, &found));
                read.note();
            }
            let mut garbage = input.to_vec();
            garbage.resize(garbage.len().next_multiple_of(UNIT).max(UNIT), 0);
            assert!(!matches!(decode(&garbage.into()), Ok(Some(_))));
        });
        read.check(1, "forged copies are read");
    }
}
