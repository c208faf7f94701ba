//! Writes, reads and repairs segments over many NSDs.
//!
//! The shell around [`placement`]: it knows which NSDs answer, how fast and how full they are, puts
//! and gets pieces in parallel, hedges slow requests, and rebuilds lost pieces. It knows nothing of
//! files, directories or shards. Writers need no locks: a segment's name is used once, so copies of
//! a segment can't differ.

mod count;
mod deletion;
mod evenness;
mod generations;
mod members;
pub mod pack;
mod progress;
mod read;
mod read_times;
mod repair;
mod requests;
mod room;
mod segment;
mod space;
mod survey;
mod suspects;
mod write;

pub use count::Count;
pub use members::{MemberState, NsdStatus};
pub use placement::balance::{EVEN_BELOW, Uses};
pub use placement::{Groups, drop_generation, finish_moves, mark_lost};
pub use progress::RepairProgress;
pub use repair::{Depth, PieceCondition, PieceState, RepairOutcome};
pub use room::{Room, Taken};
pub use segment::{SegmentOwner, SegmentSource};
pub use space::{MetadataSpace, PoolUsage, Reservation};
pub use survey::{GroupSurvey, SurveyedSegment};
pub use suspects::{Suspect, SuspectCause};

use futures::future::join_all;
use members::Member;
use model::map::{NsdState, PoolMap};
use model::nsd::{GroupFence, NsdHealth};
use model::{Error, ErrorKind, GroupVersion, MapEpoch, NsdId, Result};
use nsd::{Handle, Nsd};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use world::World;
use world::call::{Deadline, Remote};

/// Most bytes of pieces in flight to NSDs, in total.
pub const BYTES_IN_FLIGHT_MAX: u64 = 128 * 1024 * 1024;

/// An NSD that hasn't confirmed a group's version after this time counts as away.
const FENCE_DEADLINE: Duration = Duration::from_secs(30);

/// One storage pool: its map and the NSDs that this process can reach.
pub struct Pool {
    /// For what goes on in the background.
    itself: Weak<Pool>,
    world: World,
    /// The groups of the newest map, which they contain.
    groups: RwLock<Arc<Groups>>,
    map: RwLock<Arc<PoolMap>>,
    /// Tells readers that wait for a newer map.
    newest_epoch: watch::Sender<MapEpoch>,
    members: RwLock<BTreeMap<NsdId, Arc<Member>>>,
    /// The newest map of which it is known that there is a newer one; 0: none.
    outdated_epoch: AtomicU64,
    /// Counts the NSDs that were added or removed.
    changes_of_members: AtomicU64,
    /// Cycles through the groups.
    writes: AtomicU64,
    /// What each NSD got from this process lately.
    evenness: Mutex<evenness::Evenness>,
    in_flight: Arc<Semaphore>,
    space: Arc<space::PoolSpace>,
    /// What this node may write, if others write to the pool too.
    sharing: Arc<room::Sharing>,
    suspects: Arc<suspects::Suspects>,
    progress: progress::Counters,
}

impl Pool {
    /// A pool over the NSDs that could be opened; the map's other NSDs count as unreachable until
    /// [`Pool::add_nsd`].
    #[must_use]
    pub fn new(world: World, map: PoolMap, nsds: Vec<Arc<Nsd>>) -> Arc<Self> {
        let sharing = Arc::<room::Sharing>::default();
        let pool = Arc::new_cyclic(|itself| Self {
            itself: itself.clone(),
            groups: RwLock::new(Arc::new(Groups::new(&map))),
            newest_epoch: watch::Sender::new(map.epoch),
            map: RwLock::new(Arc::new(map)),
            members: RwLock::new(BTreeMap::new()),
            outdated_epoch: AtomicU64::new(0),
            changes_of_members: AtomicU64::new(0),
            writes: AtomicU64::new(world.random_u64()),
            evenness: Mutex::default(),
            in_flight: Arc::new(Semaphore::new(write::permits(BYTES_IN_FLIGHT_MAX))),
            space: Arc::new(space::PoolSpace::new(&sharing)),
            sharing,
            suspects: Arc::default(),
            progress: progress::Counters::default(),
            world,
        });
        for nsd in nsds {
            pool.add_nsd(nsd);
        }
        pool
    }

    /// The newest map that this process knows.
    #[must_use]
    pub fn map(&self) -> Arc<PoolMap> {
        self.map.read().clone()
    }

    /// The groups of the newest map.
    #[must_use]
    pub fn groups(&self) -> Arc<Groups> {
        self.groups.read().clone()
    }

    /// Starts to use a newer map and fences the groups that it changes, so that a writer with an
    /// older map can't put into them unnoticed. Ignores an older map.
    ///
    /// # Errors
    /// `Unavailable` if a reachable member of a changed group did not confirm; the map is in use
    /// anyway. Members learn the version from the next put or delete, or when this map is set again. A former
    /// member isn't asked again: a piece that a writer with an older map puts there counts as
    /// missing, and repair rebuilds it.
    pub async fn set_map(&self, map: PoolMap) -> Result<()> {
        let fences = self.use_map(map);
        let told = fences
            .iter()
            .map(async |(nsd, fences)| self.fence(*nsd, fences).await);
        join_all(told).await.into_iter().collect()
    }

    /// Starts to use a newer map, as [`Pool::set_map`], and returns what its NSDs have to be told with [`Pool::fence`]:
    /// nothing if the map is an older one. One that doesn't answer holds up nothing else then.
    #[must_use]
    pub fn use_map(&self, map: PoolMap) -> BTreeMap<NsdId, Vec<GroupFence>> {
        let (before, now, fences) = {
            let mut current = self.map.write();
            let before = self.groups();
            if map.epoch < current.epoch {
                return BTreeMap::new();
            }
            let is_again = map.epoch == current.epoch;
            let fences: Vec<GroupFence> = map
                .all_groups()
                .map(|group| GroupFence {
                    group,
                    version: map.version(group),
                })
                .filter(|fence| fence.version != GroupVersion::FIRST)
                .filter(|fence| is_again || current.version(fence.group) != fence.version)
                .collect();
            let now = Arc::new(Groups::new(&map));
            *self.groups.write() = now.clone();
            // With the map locked, so that it never goes back.
            self.newest_epoch.send_replace(map.epoch);
            *current = Arc::new(map);
            (before, now, fences)
        };
        self.space.forget();
        by_nsd(&before, &now, &fences)
    }

    /// Tells an NSD versions of groups, unless it is lost or can't be read.
    ///
    /// # Errors
    /// `Unavailable` if it didn't confirm.
    pub async fn fence(&self, nsd: NsdId, fences: &[GroupFence]) -> Result<()> {
        // An unreachable NSD can't get puts either; the fence it misses is found when it is back.
        if self.member(nsd).is_none_or(|member| !member.is_readable()) {
            return Ok(());
        }
        let told = self.tell(nsd, fences).await;
        // A lost NSD may never answer, and its pieces don't count.
        let map = self.map();
        let entry = map.nsd(nsd);
        let is_lost = entry.is_none_or(|entry| entry.state == NsdState::Lost);
        if is_lost { Ok(()) } else { told }
    }

    /// Tells an NSD the versions of all groups, as this node knows them: it refuses what is put by older maps from then on.
    ///
    /// # Errors
    /// `Unavailable` if it is away or didn't confirm.
    pub async fn fence_all(&self, nsd: NsdId) -> Result<()> {
        let map = self.map();
        let fences = map.all_groups().map(|group| GroupFence {
            group,
            version: map.version(group),
        });
        let changed = fences.filter(|fence| fence.version != GroupVersion::FIRST);
        self.tell(nsd, &changed.collect::<Vec<_>>()).await
    }

    /// Tells an NSD versions of groups.
    ///
    /// # Errors
    /// `Unavailable` if it is away or didn't confirm.
    async fn tell(&self, nsd: NsdId, fences: &[GroupFence]) -> Result<()> {
        let away = || {
            let text = format!("fence {} groups on NSD {nsd}: it is away", fences.len());
            Error::new(ErrorKind::Unavailable, text)
        };
        let member = self
            .member(nsd)
            .filter(|member| member.is_readable())
            .ok_or_else(away)?;
        let deadline = Deadline::after(&self.world, FENCE_DEADLINE);
        let learnt = member.nsd.learn_groups(fences, deadline).await;
        learnt.map_err(|error| {
            let text = format!("fence {} groups on NSD {nsd}", fences.len());
            Error::new(ErrorKind::Unavailable, error.to_string()).while_doing(text)
        })
    }

    /// An NSD of the pool, if this process has opened it.
    #[must_use]
    pub fn nsd(&self, nsd: NsdId) -> Option<Arc<Nsd>> {
        self.handle(nsd).and_then(|handle| handle.opened().cloned())
    }

    /// The way to an NSD of the pool, on this node or another.
    #[must_use]
    pub fn handle(&self, nsd: NsdId) -> Option<Arc<Handle>> {
        self.member(nsd).map(|member| member.nsd.clone())
    }

    /// Adds an opened or reopened NSD. The map decides whether it gets pieces.
    pub fn add_nsd(&self, nsd: Arc<Nsd>) {
        self.add(Handle::local(&self.world, nsd));
    }

    /// Adds an NSD of another node, or that NSD on a node where it is now. The map decides whether
    /// it gets pieces.
    pub fn add_remote_nsd(&self, nsd: NsdId, node: Arc<dyn Remote>) {
        let before = self.handle(nsd);
        self.add(Handle::remote(&self.world, nsd, node, before.as_deref()));
    }

    fn add(&self, nsd: Arc<Handle>) {
        self.members
            .write()
            .insert(nsd.id(), Arc::new(Member::new(nsd, self.sharing.clone())));
        self.changes_of_members.fetch_add(1, Ordering::Relaxed);
        self.space.forget();
    }

    /// New segments of this process go where little is, by these uses and what it has put since.
    pub fn fill_evenly(&self, uses: &Uses) {
        self.evenness.lock().begin_from(&self.map(), uses);
    }

    /// Whether NSDs of other nodes don't answer now. What can't be read or written without them may
    /// be possible later.
    #[must_use]
    pub fn misses_nodes(&self) -> bool {
        let now = self.world.now();
        let map = self.map();
        let counted = map
            .nsds
            .iter()
            .filter(|entry| entry.state != NsdState::Lost);
        let mut members = counted.filter_map(|entry| self.member(entry.nsd));
        members.any(|member| member.is_unreached(now))
    }

    /// Whether it can't be found out now what an NSD holds: nobody knows where it is, or its node hasn't answered for some
    /// seconds. Both may pass. An NSD that says that it failed isn't away.
    #[must_use]
    pub fn is_away(&self, nsd: NsdId) -> bool {
        let handle = self.handle(nsd);
        handle.is_none_or(|handle| handle.health() != NsdHealth::Failed && !handle.is_heard())
    }

    /// Changes whenever an NSD is added or removed: conclusions about redundancy made under another
    /// number may now be wrong.
    #[must_use]
    pub fn changes_of_members(&self) -> u64 {
        self.changes_of_members.load(Ordering::Relaxed)
    }

    /// Removes an NSD that was drained or taken away. Returns it if this process has opened it.
    pub fn remove_nsd(&self, nsd: NsdId) -> Option<Arc<Nsd>> {
        self.space.forget();
        self.changes_of_members.fetch_add(1, Ordering::Relaxed);
        self.members
            .write()
            .remove(&nsd)
            .and_then(|member| member.nsd.opened().cloned())
    }

    fn member(&self, nsd: NsdId) -> Option<Arc<Member>> {
        self.members.read().get(&nsd).cloned()
    }

    /// The state of all NSDs in the map, in the map's order.
    #[must_use]
    pub fn nsd_states(&self) -> Vec<NsdStatus> {
        let now = self.world.now();
        let map = self.map();
        map.nsds
            .iter()
            .map(|entry| members::status_of(entry, self.member(entry.nsd).as_deref(), now))
            .collect()
    }

    /// Chooses the members of a log's view: `count` writable NSDs in different failure groups,
    /// preferring those that answer reliably, then those with the most free space. Returns fewer if
    /// there are too few failure groups, but a single one only in pools of at most two failure
    /// groups or if `count` is 1.
    ///
    /// # Errors
    /// `Unavailable` if there are too few.
    pub fn log_view(&self, count: usize) -> Result<Vec<NsdId>> {
        let view = self.log_candidates(&[], count);
        let degraded = self.groups().allows_degraded_writes();
        if view.len() < if degraded { 1 } else { count.min(2) } {
            let text = format!(
                "choose {count} NSDs for a log: only {} failure groups have writable NSDs",
                view.len()
            );
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        Ok(view)
    }

    /// Whether an NSD can hold log entries: in use and not failed.
    #[must_use]
    pub fn takes_log(&self, nsd: NsdId) -> bool {
        let states = self.nsd_states();
        let mut found = states.iter().filter(|state| state.entry.nsd == nsd);
        found.any(|state| {
            state.entry.state == model::map::NsdState::Active
                && !matches!(state.member, MemberState::Failed | MemberState::Missing)
        })
    }

    /// Members of a log's view that are in the failure group of one before them, since that has got a name.
    #[must_use]
    pub fn log_together(&self, view: &[NsdId]) -> Vec<NsdId> {
        let map = self.map();
        let mut used = BTreeSet::new();
        let known = view.iter().filter_map(|nsd| map.nsd(*nsd));
        let found = known.filter(|entry| !used.insert(entry.failure_group));
        found.map(|entry| entry.nsd).collect()
    }

    /// An NSD to replace `failed` in a log's view, in a failure group that the others don't use;
    /// `None` if there is none now.
    #[must_use]
    pub fn log_replacement(&self, view: &[NsdId], failed: NsdId) -> Option<NsdId> {
        let rest: Vec<NsdId> = view.iter().copied().filter(|nsd| *nsd != failed).collect();
        let candidates = self.log_candidates(&rest, rest.len() + 2);
        candidates.into_iter().find(|nsd| *nsd != failed)
    }

    /// Up to `count` NSDs in failure groups different from each other's and from those of `rest`.
    fn log_candidates(&self, rest: &[NsdId], count: usize) -> Vec<NsdId> {
        let map = self.map();
        let mut used: BTreeSet<_> = rest
            .iter()
            .filter_map(|nsd| map.nsd(*nsd))
            .map(|entry| entry.failure_group)
            .collect();
        let mut states: Vec<NsdStatus> = self.nsd_states();
        states.retain(NsdStatus::is_writable);
        states.sort_by_key(|state| {
            (
                state.member != MemberState::Online,
                std::cmp::Reverse(state.free_share / 4096),
            )
        });
        let mut out = Vec::new();
        for state in states {
            if out.len() < count && used.insert(state.entry.failure_group) {
                out.push(state.entry.nsd);
            }
        }
        out
    }
}

/// What members and former members of groups have to be told, each with its groups. A piece that a former member accepted
/// under the old map would be deleted along with the slot's old pieces.
fn by_nsd(
    before: &Groups,
    now: &Groups,
    fences: &[GroupFence],
) -> BTreeMap<NsdId, Vec<GroupFence>> {
    let mut by_nsd: BTreeMap<NsdId, Vec<GroupFence>> = BTreeMap::new();
    for fence in fences {
        let both = [before, now];
        let both = both.iter().filter(|groups| groups.contains(fence.group));
        let slots = both.flat_map(|groups| groups.members(fence.group));
        let members: BTreeSet<NsdId> = slots.flat_map(|slot| slot.in_reading_order()).collect();
        for nsd in members {
            by_nsd.entry(nsd).or_default().push(*fence);
        }
    }
    by_nsd
}

#[cfg(test)]
mod tests;

/// The same tests with all NSDs on another node.
#[cfg(test)]
#[allow(clippy::duplicate_mod, reason = "the same tests, a second time")]
#[path = "tests.rs"]
mod tests_by_call;
