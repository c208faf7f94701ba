//! How much fits into a pool, and whether writers may still write.

use crate::Pool;
use crate::members::Member;
use crate::room::{Room, Sharing, Taken};
use model::map::NsdState;
use model::{Error, ErrorKind, FailureGroupId, NsdId, Result, Scheme, limits};
use parking_lot::Mutex;
use placement::layout;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use world::{Deadline, Instant, Planted};

/// Segments at the ends of files are shorter than a block, and take more than their part of one: by so much
/// more is reserved in a pool that others write to as well.
const MARGIN_PART: u128 = 16;
/// Maximum age of the sum over the NSDs.
const CACHE_TIME: Duration = Duration::from_millis(100);
/// How long NSDs are waited for that have never said how much they hold.
const UNKNOWN_MAX: Duration = Duration::from_secs(20);

/// Space of a pool. User bytes are bytes before redundancy, as in a large file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PoolUsage {
    /// User bytes that fit into the empty pool, not counting the reserve.
    pub capacity: u64,
    /// User bytes that the stored pieces correspond to.
    pub used: u64,
    /// Bytes held by reservations.
    pub held: u64,
    /// Bytes that users may still write: excludes bytes used or held, and what log, compaction and
    /// deletes need ([`limits::RESERVED_PERCENT`], or a second copy of the metadata if that is
    /// more).
    pub available_to_users: u64,
    /// Bytes that fit at all, including those held or kept for log, compaction and deletes.
    pub free: u64,
    /// Total bytes of the reachable NSDs.
    pub raw_capacity: u64,
    /// NSDs for new pieces that have never said how much they hold, and were not waited for in vain: there may be
    /// more room.
    pub unknown: usize,
    /// Bytes that blobs occupy on them, redundancy included.
    pub raw_used: u64,
    /// Blobs on them.
    pub blobs: u64,
}

/// Held space; released when dropped.
pub struct Reservation {
    space: Arc<PoolSpace>,
    bytes: u64,
    /// Raw bytes that the node's room holds for them; 0 without one.
    raw: u64,
}

impl Reservation {
    /// Bytes that are still held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Releases a part, for instance because it has been written; at most all that is held.
    pub fn release(&mut self, bytes: u64) {
        drop(self.split(bytes));
    }

    /// Splits off a part, at most all that is held.
    #[must_use]
    pub fn split(&mut self, bytes: u64) -> Reservation {
        let bytes = bytes.min(self.bytes);
        let raw = match bytes == self.bytes {
            true => self.raw,
            false => part_of(self.raw, bytes, self.bytes),
        };
        self.bytes -= bytes;
        self.raw -= raw;
        Reservation {
            space: self.space.clone(),
            bytes,
            raw,
        }
    }

    /// Joins two reservations of one pool.
    pub fn join(&mut self, mut other: Reservation) {
        assert!(
            Arc::ptr_eq(&self.space, &other.space),
            "reservations of one pool"
        );
        self.bytes += std::mem::take(&mut other.bytes);
        self.raw += std::mem::take(&mut other.raw);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.space.held.fetch_sub(self.bytes, Ordering::Release);
        if let Some(room) = self.space.room().filter(|_| self.raw > 0) {
            room.put_back(self.raw);
        }
    }
}

/// Of `whole`, as much as `part` is of `all`.
fn part_of(whole: u64, part: u64, all: u64) -> u64 {
    let bytes = u128::from(whole) * u128::from(part) / u128::from(all);
    u64::try_from(bytes).expect("a part isn't more than the whole")
}

/// Space that is kept from users for log and tables of one shard; no longer when dropped.
pub struct MetadataSpace {
    space: Arc<PoolSpace>,
    /// Its part of the sum; `None` once it was given back.
    kept: Mutex<Option<u64>>,
}

impl MetadataSpace {
    /// Keeps so many plain bytes from now on, instead of as many as before.
    pub fn keep(&self, plain: u64) {
        if let Some(kept) = self.kept.lock().as_mut() {
            let before = std::mem::replace(kept, plain);
            // In one step: with both kept for a moment, who reserves space then could be refused what is there.
            let metadata = &self.space.metadata;
            match plain.checked_sub(before) {
                Some(more) => metadata.fetch_add(more, Ordering::Relaxed),
                None => metadata.fetch_sub(before - plain, Ordering::Relaxed),
            };
        }
    }

    /// Keeps nothing from now on, whatever is asked later: the shard isn't here any more.
    pub fn give_back(&self) {
        if let Some(kept) = self.kept.lock().take() {
            self.space.metadata.fetch_sub(kept, Ordering::Relaxed);
        }
    }
}

impl Drop for MetadataSpace {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[derive(Default)]
pub(crate) struct PoolSpace {
    held: AtomicU64,
    /// Plain bytes kept for metadata: the sum over the shards of this process.
    metadata: AtomicU64,
    cache: Mutex<Option<Cached>>,
    /// NSDs that never said how much they hold, for as long as somebody waited for them: nobody does again. No
    /// more than the map has had.
    silent: Mutex<BTreeSet<NsdId>>,
    sharing: Arc<Sharing>,
}

/// The requested bytes can't be held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Refused {
    /// Bytes that could be held.
    left: u64,
}

#[derive(Clone, Copy)]
struct Cached {
    at: Instant,
    raw_capacity: u64,
    /// The part that segments can fill: see [`fillable`].
    raw_usable: u64,
    raw_used: u64,
    /// The free part that segments can fill.
    raw_free: u64,
    blobs: u64,
    unknown: usize,
}

impl PoolSpace {
    pub(crate) fn new(sharing: &Arc<Sharing>) -> Self {
        Self {
            sharing: sharing.clone(),
            ..Self::default()
        }
    }

    fn room(&self) -> Option<&dyn Room> {
        self.sharing.room()
    }

    /// Makes the next query sum over the NSDs again.
    pub(crate) fn forget(&self) {
        *self.cache.lock() = None;
    }

    /// Holds `bytes` if they fit into the free space. Never holds them even briefly otherwise: a
    /// caller may ask for far more than is free, and that must not make other requests fail.
    fn hold(&self, bytes: u64, free: impl Fn() -> u64) -> std::result::Result<(), Refused> {
        let mut held = self.held.load(Ordering::Acquire);
        loop {
            // Read `free` after `held`: bytes written in between count twice rather than not at
            // all.
            let left = free().saturating_sub(held);
            if bytes > left {
                return Err(Refused { left });
            }
            let more = held + bytes;
            match self
                .held
                .compare_exchange(held, more, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Ok(()),
                Err(now) => held = now,
            }
        }
    }

    /// Counts pieces that the cached sum doesn't include yet.
    pub(crate) fn note_written(&self, raw: u64) {
        if let Some(cached) = self.cache.lock().as_mut() {
            // An estimate until the next sum, which may already include these pieces.
            cached.raw_used = (cached.raw_used + raw).min(cached.raw_capacity);
            cached.raw_free = cached.raw_free.saturating_sub(raw);
        }
    }
}

impl Pool {
    /// Space of the pool; at most 100 ms old.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        let Cached {
            raw_capacity,
            raw_usable,
            raw_used,
            raw_free,
            blobs,
            unknown,
            ..
        } = self.raw_usage();
        let held = self.space.held.load(Ordering::Relaxed);
        // More may be held than is free: an NSD can leave, or metadata can grow.
        PoolUsage {
            capacity: self.plain(raw_usable - reserve(raw_usable)),
            used: self.plain(raw_used),
            held,
            available_to_users: self.free_to_users().saturating_sub(held),
            free: self.plain(raw_free),
            raw_capacity,
            unknown,
            raw_used,
            blobs,
        }
    }

    /// Holds space for `bytes` of users. Call it before accepting bytes that will be written.
    ///
    /// # Errors
    /// `NoSpace` if no user space is left; `Unavailable` if no NSD serves. `Busy` in a pool that other nodes
    /// write to, if room for it was asked for: try again when [`Pool::room`] tells.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation> {
        match self.room_to_ask() {
            Some(room) => self.reserve_from(room, bytes),
            None => self.reserve_alone(bytes),
        }
    }

    fn room_to_ask(&self) -> Option<&dyn Room> {
        let asks = !self.world.has_planted(Planted::TakeUnasked);
        self.space.room().filter(|_| asks)
    }

    /// Other nodes write to it too.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.space.room().is_some()
    }

    /// Whether `bytes` of users would fit now; nothing is held.
    ///
    /// # Errors
    /// `NoSpace` and `Unavailable`, as for [`Pool::reserve`].
    pub fn check_room(&self, bytes: u64) -> Result<()> {
        self.reserve_alone(bytes).map(drop)
    }

    fn reserve_from(&self, room: &dyn Room, bytes: u64) -> Result<Reservation> {
        let raw = self.raw_of(bytes);
        match room.take(raw) {
            Taken::Yes => Ok(self.hold(bytes, raw)),
            Taken::Asked => {
                let text = format!("hold {bytes} bytes of space: this node has asked for more");
                Err(Error::new(ErrorKind::Busy, text))
            }
            Taken::Full => {
                let text = format!("hold {bytes} bytes of space: the pool is full");
                Err(Error::new(ErrorKind::NoSpace, text))
            }
        }
    }

    fn hold(&self, bytes: u64, raw: u64) -> Reservation {
        let lost = u64::from(self.world.has_planted(Planted::KeepSpace));
        self.space.held.fetch_add(bytes + lost, Ordering::AcqRel);
        Reservation {
            space: self.space.clone(),
            bytes,
            raw,
        }
    }

    /// By what this process holds, and what its NSDs say.
    fn reserve_alone(&self, bytes: u64) -> Result<Reservation> {
        let mut hold = self.space.hold(bytes, || self.free_to_users());
        if hold.is_err() {
            // Bytes written since the last sum may be counted twice: in the NSDs' usage and as
            // stored since then.
            self.refresh();
            hold = self.space.hold(bytes, || self.free_to_users());
        }
        let refused = match hold {
            Ok(()) => {
                if self.world.has_planted(Planted::KeepSpace) {
                    let _ = self.space.hold(1, || self.free_to_users());
                }
                return Ok(Reservation {
                    space: self.space.clone(),
                    bytes,
                    raw: 0,
                });
            }
            Err(refused) => refused,
        };
        if self.raw_usage().raw_capacity == 0 {
            let text = format!("hold {bytes} bytes of space: no NSD of the pool serves");
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        let text = format!(
            "hold {bytes} bytes of space: {} are left for users",
            refused.left
        );
        Err(Error::new(ErrorKind::NoSpace, text))
    }

    /// Waits until all NSDs for new pieces have said how much they hold, for as long as a node may take to start: before
    /// that little may seem to be left. At most 20 s, and only once in the life of the process for each NSD that says
    /// nothing: what is retried doesn't wait anew.
    pub async fn until_known(&self) {
        let deadline = Deadline::after(&self.world, UNKNOWN_MAX);
        while self.usage().unknown > 0 {
            if deadline.has_passed(&self.world) {
                let unknown = self.unknown_nsds();
                self.space.silent.lock().extend(unknown);
                self.refresh();
                return;
            }
            self.world.sleep(CACHE_TIME).await;
        }
    }

    /// The NSDs for new pieces that have never said how much they hold. Where other nodes have NSDs too, the process
    /// may not have come to open one yet.
    fn unknown_nsds(&self) -> Vec<NsdId> {
        let (map, silent) = (self.map(), self.space.silent.lock());
        let active = map.nsds.iter();
        let active = active.filter(|it| it.state == NsdState::Active && !silent.contains(&it.nsd));
        let is_unknown = |nsd| match self.member(nsd) {
            Some(member) => member.is_readable() && !member.nsd.is_known(),
            None => self.is_shared(),
        };
        let all = active.map(|entry| entry.nsd);
        all.filter(|nsd| is_unknown(*nsd)).collect()
    }

    /// Whoever wanted room doesn't wait any more.
    pub fn give_up_room(&self) {
        if let Some(room) = self.space.room() {
            room.give_up();
        }
    }

    /// Something was freed: who found no room may ask again.
    pub fn ask_anew(&self) {
        self.refresh();
        if let Some(room) = self.space.room() {
            room.ask_anew();
        }
    }

    /// Makes the next query ask the NSDs, so that no caller is refused because of an old sum.
    pub fn refresh(&self) {
        self.space.forget();
    }

    /// User bytes that fit, including those held.
    fn free_to_users(&self) -> u64 {
        let raw = self.raw_usage();
        // The space that NSDs keep for their logs isn't part of `raw_free`.
        let kept = self.metadata_reserve().max(reserve(raw.raw_usable));
        // Users may exceed their share when the reserve grows or NSDs leave.
        self.plain(raw.raw_free.saturating_sub(kept))
    }

    /// For log and tables of one more shard of this process. What all of them keep is kept from
    /// users, if it is more than the usual reserve.
    #[must_use]
    pub fn metadata_space(&self) -> MetadataSpace {
        MetadataSpace {
            space: self.space.clone(),
            kept: Mutex::new(Some(0)),
        }
    }

    /// Plain bytes that the shards of this process keep for log and tables.
    #[must_use]
    pub fn kept_for_metadata(&self) -> u64 {
        self.space.metadata.load(Ordering::Relaxed)
    }

    /// Raw bytes that metadata needs. Logs have one copy more than the losses that the pool
    /// tolerates; tables take no more than that.
    pub(crate) fn metadata_reserve(&self) -> u64 {
        let copies = self.map().scheme().tolerance() as u64 + 1;
        self.kept_for_metadata().saturating_mul(copies)
    }

    /// User bytes that fit into `raw` bytes, as large segments are written now.
    fn plain(&self, raw: u64) -> u64 {
        let scheme = self.scheme_of_large();
        let plain = u128::from(raw) * scheme.data_pieces() as u128 / scheme.width() as u128;
        u64::try_from(plain).expect("plain bytes are not more than raw ones")
    }

    /// Raw bytes that so many user bytes take at most, in segments of a block with what describes their pieces;
    /// with a margin for segments that are shorter. What isn't needed is given back when they are written.
    fn raw_of(&self, plain: u64) -> u64 {
        let block = self.block_bytes().or(self.sharing.block_bytes());
        let block = block.unwrap_or(limits::BLOCK_BYTES_DEFAULT);
        let scheme = self.groups().whole_scheme(block);
        let scheme = scheme.unwrap_or_else(|| self.map().scheme());
        let piece = nsd::blob_bytes(layout::piece_length(scheme, block).into());
        let whole = u128::from(piece) * scheme.width() as u128;
        let raw = (u128::from(plain) * whole).div_ceil(u128::from(block));
        u64::try_from(raw + raw / MARGIN_PART).unwrap_or(u64::MAX)
    }

    /// Raw bytes that segments can fill, those in use included.
    pub(crate) fn raw_usable(&self) -> u64 {
        self.raw_usage().raw_usable
    }

    pub(crate) fn scheme_of_large(&self) -> Scheme {
        let groups = self.groups();
        groups
            .whole_scheme(limits::SEGMENT_BYTES_MAX)
            .unwrap_or(groups.map().scheme())
    }

    fn raw_usage(&self) -> Cached {
        let now = self.world.now();
        let mut cache = self.space.cache.lock();
        if let Some(cached) = cache.as_ref().filter(|cached| now - cached.at < CACHE_TIME) {
            return *cached;
        }
        let map = self.map();
        let mut cached = Cached {
            at: now,
            raw_capacity: 0,
            raw_usable: 0,
            raw_used: 0,
            raw_free: 0,
            blobs: 0,
            unknown: self.unknown_nsds().len(),
        };
        let mut capacity: BTreeMap<FailureGroupId, u64> = BTreeMap::new();
        let mut free: BTreeMap<FailureGroupId, u64> = BTreeMap::new();
        for entry in map
            .nsds
            .iter()
            .filter(|entry| entry.state != NsdState::Lost)
        {
            let member = self.member(entry.nsd);
            let Some(member) = member.filter(|member: &Arc<Member>| member.is_readable()) else {
                continue;
            };
            let usage = member.nsd.usage();
            cached.blobs += usage.blobs;
            cached.raw_used += usage.used;
            // A draining NSD's free space takes no new pieces.
            if entry.state == NsdState::Active {
                *capacity.entry(entry.failure_group).or_default() += usage.capacity;
                *free.entry(entry.failure_group).or_default() += usage.available;
                cached.raw_capacity += usage.capacity;
            } else {
                cached.raw_capacity += usage.used;
                cached.raw_usable += usage.used;
            }
        }
        let scheme = self.scheme_of_large();
        cached.raw_usable += fillable(scheme, capacity.into_values().collect());
        cached.raw_free = fillable(scheme, free.into_values().collect());
        *cache = Some(cached);
        cached
    }

    /// Counts a written segment until the NSDs are asked again.
    pub(crate) fn note_stored(&self, scheme: model::Scheme, length: u32) {
        self.space
            .note_written(layout::stored_bytes(scheme, length));
    }
}

/// How many of the failure groups' bytes can be filled, given as what the plain bytes would take in
/// whole segments. A segment never has two pieces in the same failure group, so a group larger than
/// all others together can't be filled. Failure groups that are away aren't in the list; until they
/// are back there are fewer copies.
pub(crate) fn fillable(scheme: Scheme, mut groups: Vec<u64>) -> u64 {
    let all: u64 = groups.iter().sum();
    let filled = match scheme {
        Scheme::Replicate(copies) => {
            let now = usize::from(copies).min(groups.len());
            u128::from(fill(&mut groups, now)) * u128::from(copies)
        }
        // Segments can't be written until some groups are back, but not for lack of space.
        Scheme::Erasure { m, .. } if groups.len() <= usize::from(m) => return all,
        Scheme::Erasure { k, m } => {
            let mut plain = 0;
            loop {
                groups.retain(|bytes| *bytes > 0);
                // Segments become narrower as groups fill up, down to one data piece.
                let width = scheme.width().min(groups.len());
                let data = width.saturating_sub(usize::from(m));
                let piece = if data == 0 {
                    0
                } else {
                    fill(&mut groups, width)
                };
                if piece == 0 {
                    break;
                }
                plain += u128::from(piece) * data as u128;
            }
            plain * scheme.width() as u128 / u128::from(k)
        }
    };
    u64::try_from(filled).map_or(all, |filled| filled.min(all))
}

/// Fills the groups with pieces, `width` different groups for each segment, as far as possible, and
/// subtracts the pieces from the groups' bytes. Returns the bytes of one piece.
fn fill(groups: &mut [u64], width: usize) -> u64 {
    groups.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    let mut rest: u64 = groups.iter().sum();
    let mut piece = u64::MAX;
    // The largest groups hold one piece of everything; the others share the remaining pieces.
    for (largest, bytes) in groups.iter().take(width).enumerate() {
        piece = piece.min(rest / (width - largest) as u64);
        rest -= bytes;
    }
    groups
        .iter_mut()
        .for_each(|bytes| *bytes -= piece.min(*bytes));
    piece
}

/// Space that ordinary writes leave to log, compaction and deletes.
pub(crate) fn reserve(raw_capacity: u64) -> u64 {
    raw_capacity / 100 * limits::RESERVED_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_reservation_never_takes_space_from_others() {
        const FREE: u64 = 1000;
        let space = PoolSpace::default();
        // Another caller asks in between.
        let meanwhile = || {
            assert_eq!(space.hold(FREE, || FREE), Ok(()));
            space.held.fetch_sub(FREE, Ordering::Release);
            FREE
        };
        assert_eq!(space.hold(u64::MAX, meanwhile), Err(Refused { left: FREE }));
        assert_eq!(space.held.load(Ordering::Acquire), 0);
        assert_eq!(space.hold(FREE, || FREE), Ok(()));
        assert_eq!(space.hold(1, || FREE), Err(Refused { left: 0 }));
    }

    #[test]
    fn copies_fill_what_different_failure_groups_have() {
        let filled = |copies, groups: &[u64]| fillable(Scheme::Replicate(copies), groups.to_vec());
        assert_eq!(filled(2, &[100, 100]), 200);
        assert_eq!(filled(2, &[100, 0]), 0);
        assert_eq!(filled(2, &[20, 100]), 40);
        assert_eq!(filled(2, &[50, 100, 30]), 160);
        assert_eq!(filled(2, &[50, 100, 70]), 220);
        assert_eq!(filled(3, &[10, 100, 100, 5]), 45);
        assert_eq!(filled(1, &[7, 0]), 7);
        assert_eq!(filled(2, &[100]), 100, "the other is away");
        assert_eq!(filled(3, &[100, 40]), 120, "one is away");
        assert_eq!(filled(2, &[]), 0);
    }

    #[test]
    fn erasure_coded_segments_fill_what_enough_failure_groups_have() {
        let wide = Scheme::Erasure { k: 4, m: 2 };
        let filled = |groups: &[u64]| fillable(wide, groups.to_vec());
        assert_eq!(filled(&[100; 6]), 600);
        assert_eq!(filled(&[100; 9]), 900);
        assert_eq!(filled(&[500, 0, 0, 0, 0, 0]), 0, "a segment needs three");
        assert_eq!(filled(&[500, 500, 0, 0, 0, 0]), 0);
        // One data and two parity pieces: 40 plain bytes, which count as 60 in whole segments.
        assert_eq!(filled(&[500, 40, 40, 0, 0, 0]), 60);
        // Whole segments first, then narrow ones in the four groups that are larger.
        assert_eq!(filled(&[90, 90, 90, 90, 40, 40]), (40 * 4 + 50 * 2) * 6 / 4);
        // The largest group is in each segment, and the six others share five pieces.
        assert_eq!(filled(&[1000, 10, 10, 10, 10, 5, 5]), 60);
        assert_eq!(filled(&[100, 100]), 200, "four are away");
        assert_eq!(filled(&[1, 1, 1, 1, 1, 0]), 4, "nothing is divided by zero");
        assert_eq!(filled(&[]), 0);
    }

    #[test]
    fn each_shard_keeps_space_of_its_own_and_takes_it_with_it() {
        let space = Arc::new(PoolSpace::default());
        let shard = || MetadataSpace {
            space: space.clone(),
            kept: Mutex::new(Some(0)),
        };
        let kept = || space.metadata.load(Ordering::Relaxed);
        let (first, second) = (shard(), shard());
        first.keep(100);
        second.keep(20);
        assert_eq!(kept(), 120, "one doesn't replace the other's");
        first.keep(70);
        assert_eq!(kept(), 90);
        first.give_back();
        first.keep(5);
        assert_eq!(kept(), 20, "a shard that has left keeps nothing");
        drop(first);
        drop(second);
        assert_eq!(kept(), 0);
    }

    /// Would be broken if both were kept while one follows the other: what is left for users would be less for a moment.
    #[test]
    fn no_more_is_kept_while_a_shard_keeps_another_amount() {
        const CHANGES: u64 = 200_000;
        const MOST: u64 = 1 << 30;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let _context = runtime.enter();
        let world = world::World::real();
        let space = Arc::new(PoolSpace::default());
        let shard = MetadataSpace {
            space: space.clone(),
            kept: Mutex::new(Some(0)),
        };
        shard.keep(MOST);
        let changing = world.spawn_thread("keeps", move || {
            for change in 0..CHANGES {
                shard.keep(MOST - change % 2);
            }
        });
        while !changing.is_finished() {
            let kept = space.metadata.load(Ordering::Relaxed);
            assert!(kept <= MOST, "{kept}");
        }
        changing.join().expect("it has no faults");
    }

    #[test]
    fn space_taken_during_a_reservation_counts() {
        let space = PoolSpace::default();
        let others = std::cell::Cell::new(true);
        let meanwhile = || {
            if others.take() {
                assert_eq!(space.hold(600, || 1000), Ok(()));
            }
            1000
        };
        assert_eq!(space.hold(600, meanwhile), Err(Refused { left: 400 }));
        assert_eq!(space.held.load(Ordering::Acquire), 600);
    }
}
