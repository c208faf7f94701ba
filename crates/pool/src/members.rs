//! The pool's record of each NSD: whether it answers, how fast it is, how full it is.

use crate::read_times::ReadTimes;
use crate::room::Sharing;
use model::map::{NsdEntry, NsdState};
use model::nsd::{NsdHealth, NsdUsage};
use model::{Error, ErrorKind};
use nsd::Handle;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use world::{Instant, World};

/// For how long an NSD that failed or was very late gets no new pieces if others can take them.
const AVOID_TIME: Duration = Duration::from_secs(5);
/// Consecutive hedged reads after which an NSD is avoided.
const LATE_MAX: u32 = 3;
/// Latencies remembered per NSD.
const SAMPLES: usize = 128;
/// Shortest and longest time before a read is hedged.
const HEDGE_MIN: Duration = Duration::from_millis(20);
const HEDGE_MAX: Duration = Duration::from_secs(1);
/// Free bytes below which an NSD gets no new pieces: leaves room for deletes and its index.
const FREE_MIN: u64 = 4 * 1024 * 1024;

/// Whether this process can use an NSD of the map.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MemberState {
    /// Reads and writes.
    Online,
    /// Failed or was very late in the last seconds, or is on another node and hasn't answered for
    /// some: avoided for new pieces.
    Suspect,
    /// Reads and deletes only.
    Full,
    /// Its disk failed.
    Failed,
    /// Neither opened by this process nor known to be on another node.
    Missing,
}

/// State of an NSD in the map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NsdStatus {
    /// Its entry in the map.
    pub entry: NsdEntry,
    /// Whether it can be used.
    pub member: MemberState,
    /// How much it holds; zeros if it is missing.
    pub usage: NsdUsage,
    /// Free share of its capacity in 1/65,536.
    pub free_share: u32,
    /// Requests that it failed or didn't answer since this process opened it; not those that didn't reach its node.
    pub failures: u64,
    /// Median read time in the last minutes, not counting the time that reads waited for each
    /// other; `None` if there were few.
    pub read_time: Option<Duration>,
    /// Time within which 99 % of reads were answered in the last minutes; `None` if there were few.
    pub read_latency: Option<Duration>,
    /// Bytes of pieces that this process has read from it.
    pub bytes_read: u64,
    /// Bytes of pieces that this process has put to it.
    pub bytes_written: u64,
}

impl NsdStatus {
    /// Whether it takes new pieces and log entries.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.entry.state == NsdState::Active
            && matches!(self.member, MemberState::Online | MemberState::Suspect)
    }
}

/// An NSD that can be asked.
pub(crate) struct Member {
    pub(crate) nsd: Arc<Handle>,
    sharing: Arc<Sharing>,
    record: Mutex<Record>,
    /// Requests under way.
    requests: AtomicUsize,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

#[derive(Default)]
struct Record {
    avoid_until: Option<Instant>,
    failures: u64,
    /// Consecutive hedged reads.
    late: u32,
    reads: Latency,
    read_times: ReadTimes,
}

/// The latest latencies in a ring, and their 99th percentile.
#[derive(Default)]
struct Latency {
    ring: Vec<u32>,
    at: usize,
    p99_micros: u32,
}

/// Free bytes that new pieces leave on an NSD.
pub(crate) fn kept_free(usage: &NsdUsage) -> u64 {
    FREE_MIN.min(usage.capacity / 64)
}

impl Member {
    pub(crate) fn new(nsd: Arc<Handle>, sharing: Arc<Sharing>) -> Self {
        Self {
            nsd,
            sharing,
            record: Mutex::default(),
            requests: AtomicUsize::new(0),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
        }
    }

    /// Counts bytes of a piece that was read.
    pub(crate) fn count_read(&self, bytes: u64) {
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes of a piece that was put.
    pub(crate) fn count_written(&self, bytes: u64) {
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
        self.sharing.note_put(bytes);
    }

    /// Whether it can serve reads and deletes.
    pub(crate) fn is_readable(&self) -> bool {
        self.nsd.health() != NsdHealth::Failed
    }

    pub(crate) fn state(&self, now: Instant) -> MemberState {
        match self.nsd.health() {
            NsdHealth::Failed => MemberState::Failed,
            NsdHealth::Full => MemberState::Full,
            NsdHealth::Online if self.is_avoided(now) || !self.nsd.is_heard() => {
                MemberState::Suspect
            }
            NsdHealth::Online => MemberState::Online,
        }
    }

    /// Whether its node doesn't answer. Nodes come back; an NSD that says that it failed doesn't.
    pub(crate) fn is_unreached(&self, now: Instant) -> bool {
        self.nsd.opened().is_none()
            && self.nsd.health() != NsdHealth::Failed
            && (self.is_avoided(now) || !self.nsd.is_heard())
    }

    fn is_avoided(&self, now: Instant) -> bool {
        self.record
            .lock()
            .avoid_until
            .is_some_and(|until| now < until)
    }

    /// Whether a piece of `bytes` fits and still leaves room for deletes. An NSD that never said how
    /// much it holds may be away, but nothing says that it is full.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        if !self.nsd.is_known() {
            return true;
        }
        let usage = self.nsd.usage();
        self.nsd.health() == NsdHealth::Online && usage.available >= bytes + kept_free(&usage)
    }

    /// Starts a request; it ends when the returned value is dropped.
    pub(crate) fn begin<'a>(&'a self, world: &'a World) -> Request<'a> {
        Request {
            member: self,
            world,
            started: world.now(),
            requests: self.requests.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    /// Gives it no new pieces for a while, because it failed a request or is late. Being late isn't a failure, since load
    /// alone can cause it.
    pub(crate) fn avoid(&self, now: Instant) {
        self.record.lock().avoid_until = Some(now + AVOID_TIME);
    }

    /// Records that a reader stopped waiting and asked other NSDs. An NSD that is late every time
    /// is avoided, so that readers no longer wait for it.
    pub(crate) fn note_late(&self, now: Instant) {
        let mut record = self.record.lock();
        record.late += 1;
        if record.late >= LATE_MAX {
            record.avoid_until = Some(now + AVOID_TIME);
        }
    }

    /// How long a reader waits for the NSD before it asks others.
    pub(crate) fn hedge_delay(&self) -> Duration {
        let micros = self.record.lock().reads.p99_micros;
        (Duration::from_micros(u64::from(micros)) * 2).clamp(HEDGE_MIN, HEDGE_MAX)
    }
}

/// A request under way on an NSD.
pub(crate) struct Request<'a> {
    member: &'a Member,
    world: &'a World,
    started: Instant,
    /// Requests under way on the NSD when this one began, including itself.
    requests: usize,
}

impl Request<'_> {
    /// Records an answered read.
    pub(crate) fn note_read(self) {
        let now = self.world.now();
        let took = now - self.started;
        let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        let mut record = self.member.record.lock();
        record.late = 0;
        record.reads.note(micros);
        record.read_times.note(now, took, self.requests);
    }

    /// Records that the request failed. That counts against the NSD only if it is the NSD's own trouble: not if its node
    /// couldn't be reached, or ends in good order.
    pub(crate) fn note_failed(&self, error: &Error) {
        let is_trouble = is_nsd_failure(error) && error.kind() != ErrorKind::ShuttingDown;
        if is_trouble && !self.member.nsd.was_unreached_since(self.started) {
            self.member.record.lock().failures += 1;
        }
    }

    /// Records a read whose answer is no longer awaited. It counts against the NSD only if it was
    /// late.
    pub(crate) fn note_unanswered(&self) {
        let now = self.world.now();
        let took = now - self.started;
        if took >= self.member.hedge_delay() {
            let mut record = self.member.record.lock();
            record.read_times.note(now, took, self.requests);
        }
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.member.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Latency {
    fn note(&mut self, micros: u32) {
        if self.ring.len() < SAMPLES {
            self.ring.push(micros);
        } else {
            self.ring[self.at] = micros;
        }
        self.at = (self.at + 1) % SAMPLES;
        if self.at.is_multiple_of(32) {
            let mut sorted = self.ring.clone();
            sorted.sort_unstable();
            self.p99_micros = sorted[sorted.len() * 99 / 100];
        }
    }
}

/// Whether an error means trouble on the NSD rather than a wrong request.
pub(crate) fn is_nsd_failure(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::ShuttingDown
    )
}

/// Free share of a capacity in 1/65,536.
pub(crate) fn free_share(usage: &NsdUsage) -> u32 {
    let free = u128::from(usage.available);
    ((free << 16) / u128::from(usage.capacity.max(1))) as u32
}

pub(crate) fn status_of(entry: &NsdEntry, member: Option<&Member>, now: Instant) -> NsdStatus {
    let usage = member.map(|member| member.nsd.usage()).unwrap_or_default();
    let (failures, read_time, read_latency) = member.map_or((0, None, None), |member| {
        let record = &mut *member.record.lock();
        let read_times = &mut record.read_times;
        (record.failures, read_times.median(now), read_times.p99(now))
    });
    NsdStatus {
        entry: entry.clone(),
        member: member.map_or(MemberState::Missing, |member| member.state(now)),
        usage,
        free_share: free_share(&usage),
        failures,
        read_time,
        read_latency,
        bytes_read: member.map_or(0, |member| member.bytes_read.load(Ordering::Relaxed)),
        bytes_written: member.map_or(0, |member| member.bytes_written.load(Ordering::Relaxed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_p99_follows_the_latest_reads() {
        let mut latency = Latency::default();
        (0..256).for_each(|_| latency.note(1000));
        assert_eq!(latency.p99_micros, 1000);
        (0..128).for_each(|_| latency.note(50));
        assert_eq!(latency.p99_micros, 50);
    }
}
