//! The NSDs of this node: opened at start, added and given up while it runs.

use super::attempts::Look;
use super::regions::{make_disk, open_disk, remove_region};
use coordination::Coordination;
use metanode::DATA_POOL;
use model::{
    Error, ErrorKind, FailureGroupId, NodeId, NsdId, Result,
    map::{NsdEntry, NsdState, PoolMap},
    nsd::{NsdHealth, NsdUsage},
};
use nsd::{Nsd, NsdIdentity, NsdServer};
use parking_lot::Mutex;
use pool::{MemberState, NsdStatus, Pool};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use world::World;
use world::host::{self, AtPath};

/// Most attempts to change the map while others change it too.
const ATTEMPTS_MAX: usize = 16;
/// How long the I/O of an NSD that was closed is waited for.
const RELEASE_MAX: Duration = Duration::from_secs(5);

/// The region of an NSD of this node.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub(super) path: PathBuf,
    /// Why it didn't open; `None` if it did.
    pub(super) refused: Option<Error>,
    /// How often its index was damaged and rebuilt since the node began to serve.
    pub(super) rebuilt: u64,
    /// When to look for it again if it doesn't serve.
    pub(super) look: Look,
}

impl Region {
    fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            refused: None,
            rebuilt: 0,
            look: Look::default(),
        }
    }
}

/// An NSD as `shale nsd list` shows it.
#[derive(Clone, Debug)]
pub struct NsdView {
    /// Its id.
    pub nsd: NsdId,
    /// Its region.
    pub path: PathBuf,
    /// The name of its failure group; `None`: that of its node, or it alone.
    pub failure_group: Option<String>,
    /// Its state in the map.
    pub state: NsdState,
    /// Its health; `None` if it didn't open.
    pub health: Option<NsdHealth>,
    /// Why it didn't open.
    pub refused: Option<Error>,
    /// Its space and blobs.
    pub usage: NsdUsage,
    /// Requests that failed, or weren't answered for half a minute, since it was opened.
    pub failures: u64,
    /// Median time of the last minutes' reads, without queueing behind each other; `None` if there
    /// were few.
    pub read_time: Option<Duration>,
    /// Time within which 99 of 100 reads of the last minutes were answered.
    pub read_latency: Option<Duration>,
    /// Damage found since it was opened.
    pub damage_found: u64,
    /// How often its index was damaged and rebuilt since the node began to serve.
    pub rebuilt: u64,
    /// Its region was removed; it serves until it is closed.
    pub is_removed: bool,
    /// Bytes of pieces that this node has read from it since it has opened it, wherever it is.
    pub bytes_read: u64,
    /// Bytes of pieces that this node has put to it since then.
    pub bytes_written: u64,
}

/// The NSDs of this node, in the pool and (in a cluster) served to other nodes.
pub struct LocalNsds {
    pub(super) world: World,
    pub(super) coordination: Coordination,
    pub(super) pool: Arc<Pool>,
    pub(super) cluster: u128,
    /// Answers other nodes; empty on a node that is alone.
    server: Arc<NsdServer>,
    /// What the failure group of each NSD is.
    failures: Failures,
    /// Paths of regions, and for those that don't serve, why they didn't open.
    pub(super) regions: Mutex<BTreeMap<NsdId, Region>>,
    /// Held while an NSD is reopened.
    pub(super) returning: tokio::sync::Mutex<()>,
}

/// How an NSD is taken out of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removal {
    /// What is on it moves to the others first. If it doesn't serve, that is rebuilt from theirs.
    Drain,
    /// It doesn't come back, or its data shall have less redundancy until there is room for it elsewhere.
    Gone,
}

/// What fails together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failures {
    /// On a node that is alone, disks fail one by one.
    ByDisk,
    /// In a cluster all NSDs of a node may fail with it.
    ByNode(NodeId),
}

/// A new NSD's entry in the map.
pub(super) fn entry(nsd: NsdId, bytes: u64, failures: Failures) -> NsdEntry {
    let failure_group = match failures {
        Failures::ByDisk => nsd.0,
        Failures::ByNode(node) => node.0,
    };
    NsdEntry {
        nsd,
        failure_group: FailureGroupId(failure_group),
        weight: u32::try_from((bytes >> 30).max(1)).unwrap_or(u32::MAX),
        state: NsdState::Active,
    }
}

/// Adds the way out to the error of an NSD that the others can't replace.
fn or_gone(error: Error, nsd: NsdId, is_needed: bool) -> Error {
    if error.kind() != ErrorKind::NoSpace || is_needed {
        return error;
    }
    let text = format!(
        "{error}; if it is gone for good, or its data may have less redundancy until an NSD is added: \
         `shale nsd remove {nsd} --gone`"
    );
    Error::new(ErrorKind::NoSpace, text)
}

/// The health of an NSD that isn't here, as far as it shows: a node that doesn't answer may be back soon, so that isn't
/// called a failed disk.
fn health_of_another_nodes(member: MemberState) -> Option<NsdHealth> {
    match member {
        MemberState::Online => Some(NsdHealth::Online),
        MemberState::Full => Some(NsdHealth::Full),
        MemberState::Failed => Some(NsdHealth::Failed),
        MemberState::Suspect | MemberState::Missing => None,
    }
}

/// Opens every NSD of the map that has a region here.
async fn open_all(
    world: &World,
    coordination: &Coordination,
    cluster: u128,
    map: &PoolMap,
    paths: &BTreeMap<NsdId, PathBuf>,
) -> Result<(Vec<Arc<Nsd>>, BTreeMap<NsdId, Region>)> {
    let mut nsds = Vec::new();
    let mut regions = BTreeMap::new();
    for entry in &map.nsds {
        let Some(path) = paths.get(&entry.nsd) else {
            continue;
        };
        let mut region = Region::new(path);
        if entry.state != NsdState::Lost {
            match open_one(world, coordination, cluster, entry.nsd, path).await {
                Ok((nsd, rebuilt)) => {
                    region.rebuilt += u64::from(rebuilt);
                    nsds.push(nsd);
                }
                Err(error) => {
                    tracing::error!(nsd = entry.nsd.0, %error, "an NSD doesn't serve");
                    region.refused = Some(error);
                }
            }
        }
        regions.insert(entry.nsd, region);
    }
    Ok((nsds, regions))
}

/// Adds the NSDs that didn't open to the metadata's error: they are usually the cause.
fn blame(error: Error, regions: &BTreeMap<NsdId, Region>) -> Error {
    let refused = regions
        .iter()
        .filter_map(|(nsd, region)| Some((nsd, region.refused.as_ref()?)));
    let reasons: Vec<String> = refused
        .map(|(nsd, why)| format!("NSD {nsd} doesn't serve: {why}"))
        .collect();
    if reasons.is_empty() {
        return error;
    }
    Error::new(error.kind(), format!("{} ({error})", reasons.join("; ")))
}

/// Opens a region; returns the NSD and whether its index was damaged and had to be rebuilt. A
/// region of another NSD is refused and left unchanged.
pub(super) async fn open_one(
    world: &World,
    coordination: &Coordination,
    cluster: u128,
    id: NsdId,
    path: &Path,
) -> Result<(Arc<Nsd>, bool)> {
    let disk = open_disk(world, path).await?;
    let identity = Nsd::identify(&disk).await?;
    if identity.cluster != cluster || identity.nsd != id {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "{} holds NSD {} of {}; NSD {id} of this file system belongs there: put the \
                 right region back",
                path.display(),
                identity.nsd,
                if identity.cluster == cluster {
                    "this file system"
                } else {
                    "another file system"
                }
            ),
        ));
    }
    let mut rebuilt = false;
    let nsd = match Nsd::open(world, disk).await {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            tracing::warn!(nsd = id.0, %error, "rebuilding the index from the region");
            // The first disk holds the region's lock until its last user is gone.
            let disk = open_disk(world, path).await?;
            rebuilt = true;
            Nsd::rebuild_index(world, disk).await?
        }
        other => other?,
    };
    if nsd.needs_confirmation() {
        // A later owner seals the log before it writes, so an epoch of now is never too high.
        let epochs: Vec<_> = coordination
            .shards()
            .await?
            .iter()
            .map(|shard| (shard.shard, shard.epoch))
            .collect();
        nsd.confirm_epochs(&epochs).await?;
    }
    Ok((nsd, rebuilt))
}

impl LocalNsds {
    /// Opens the NSDs of the pool's map that have a region here.
    pub(super) async fn open(
        world: &World,
        coordination: &Coordination,
        cluster: u128,
        failures: Failures,
        map: PoolMap,
        paths: &BTreeMap<NsdId, PathBuf>,
    ) -> Result<Self> {
        let (nsds, regions) = open_all(world, coordination, cluster, &map, paths).await?;
        let server = Arc::new(NsdServer::default());
        if failures != Failures::ByDisk {
            nsds.iter().for_each(|nsd| server.add(nsd.clone()));
        }
        Ok(Self {
            world: world.clone(),
            coordination: coordination.clone(),
            pool: Pool::new(world.clone(), map, nsds),
            cluster,
            server,
            failures,
            regions: Mutex::new(regions),
            returning: tokio::sync::Mutex::default(),
        })
    }

    /// Answers other nodes for them.
    pub(super) fn server(&self) -> &Arc<NsdServer> {
        &self.server
    }

    /// Takes an opened NSD into use, here and for other nodes.
    pub(super) fn use_opened(&self, nsd: Arc<Nsd>) {
        if self.failures != Failures::ByDisk {
            self.server.add(nsd.clone());
        }
        self.pool.add_nsd(nsd);
    }

    /// Closes those that serve.
    ///
    /// # Errors
    /// The first of an NSD that didn't fail before: a failed one can't be closed cleanly, and its
    /// loss is known.
    pub(super) async fn close(&self) -> Result<()> {
        let mut result = Ok(());
        for standing in self.pool.nsd_states() {
            if let Some(nsd) = self.pool.nsd(standing.entry.nsd) {
                self.server.remove(standing.entry.nsd);
                let closed = nsd.close().await;
                if nsd.health() != NsdHealth::Failed {
                    result = result.and(closed);
                }
            }
        }
        result
    }

    /// As [`LocalNsds::close`]. Releases the regions, so that this process can open them again, whoever still has these.
    ///
    /// # Errors
    /// As [`LocalNsds::close`].
    pub(super) async fn close_and_release(&self) -> Result<()> {
        let states = self.pool.nsd_states();
        let all = states.iter();
        let all: Vec<_> = all.filter_map(|it| self.pool.nsd(it.entry.nsd)).collect();
        let result = self.close().await;
        for nsd in all {
            // One that hangs is missing then, as after a start.
            let released = self.world.timeout(RELEASE_MAX, nsd.release());
            if released.await.is_err() {
                tracing::warn!("an NSD has I/O under way that doesn't end");
            }
        }
        result
    }

    /// Adds the NSDs that didn't open to the metadata's error: they are usually the cause.
    pub(super) fn blame(&self, error: Error) -> Error {
        blame(error, &self.regions.lock())
    }

    /// All NSDs of the map.
    #[must_use]
    pub fn views(&self) -> Vec<NsdView> {
        let (standings, map) = (self.pool.nsd_states(), self.pool.map());
        let regions = self.regions.lock();
        let view = |standing: &NsdStatus| {
            let entry = &standing.entry;
            let region = regions.get(&entry.nsd);
            let nsd = self.pool.nsd(entry.nsd);
            let checked = nsd.as_ref().map(|nsd| nsd.check_region());
            NsdView {
                nsd: entry.nsd,
                path: region.map(|region| region.path.clone()).unwrap_or_default(),
                failure_group: map.name_of(entry.failure_group).map(str::to_owned),
                state: entry.state,
                health: match &nsd {
                    Some(nsd) => Some(nsd.health()),
                    None => health_of_another_nodes(standing.member),
                },
                refused: region.and_then(|region| region.refused.clone()),
                usage: standing.usage,
                failures: standing.failures,
                read_time: standing.read_time,
                read_latency: standing.read_latency,
                is_removed: matches!(
                    checked,
                    Some(Err(error)) if error.kind() == ErrorKind::NotFound
                ),
                damage_found: nsd.as_ref().map_or(0, |nsd| nsd.damage_found()),
                rebuilt: region.map_or(0, |region| region.rebuilt),
                bytes_read: standing.bytes_read,
                bytes_written: standing.bytes_written,
            }
        };
        standings.iter().map(view).collect()
    }

    /// Makes a new region (or takes an empty block device) and adds it to the pool under an id of
    /// [`LocalNsds::next_id`]; lost slots move there first. Repair starts without being asked.
    ///
    /// # Errors
    /// `Exists`, `NoSpace`, or the disk's error; the pool is unchanged then, and no region is left, nor an NSD on a device.
    /// `Unknown`: coordination hasn't said whether the pool has it now; the region must be kept, and is found with the next
    /// start if it has.
    pub async fn add(&self, id: NsdId, path: &Path, bytes: u64) -> Result<()> {
        let is_device = host::at_path(path) == AtPath::Other;
        let disk = if is_device {
            open_disk(&self.world, path).await?
        } else {
            make_disk(&self.world, path, bytes)?
        };
        let identity = self.identity(id);
        let formatted = Nsd::format(&self.world, &disk, identity).await;
        // An NSD that is there already stays, even if it has this number, as it may after a restore of coordination.
        let is_kept = formatted
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Exists);
        let opened = match formatted {
            Ok(()) => Nsd::open(&self.world, disk.clone()).await,
            Err(error) => Err(error),
        };
        let added = match opened {
            Ok(nsd) => self.add_opened(nsd, path, disk.bytes()).await,
            Err(error) => Err(error.while_doing(format!("preparing {}", path.display()))),
        };
        if let Err(error) = &added
            && error.kind() != ErrorKind::Unknown
            && !is_kept
        {
            // Nobody would ever use it: a file is allocated, and a device couldn't be added again.
            let undone = match is_device {
                true => Nsd::unformat(&disk, identity).await,
                false => remove_region(path),
            };
            if let Err(error) = undone {
                tracing::warn!(nsd = id.0, %error, "the region of an NSD that wasn't added stays");
            }
        }
        added
    }

    /// Adds an NSD that was made just now to the pool. If that is refused, it isn't used any more.
    async fn add_opened(&self, nsd: Arc<Nsd>, path: &Path, bytes: u64) -> Result<()> {
        let id = nsd.id();
        self.use_opened(nsd.clone());
        self.regions.lock().insert(id, Region::new(path));
        let entry = entry(id, bytes, self.failures);
        let added = |map: &PoolMap| NsdEntry {
            failure_group: self.failure_group_here(map, &entry),
            ..entry.clone()
        };
        let changed = self.change_map(|map| placement::add_nsd(map, added(map)));
        if let Err(error) = changed.await {
            if error.kind() == ErrorKind::Unavailable {
                let text = format!("whether the pool has NSD {id} now isn't known: {error}");
                return Err(Error::new(ErrorKind::Unknown, text));
            }
            self.give_back(nsd).await;
            return Err(error);
        }
        tracing::info!(nsd = id.0, path = %path.display(), "NSD added");
        Ok(())
    }

    /// How an NSD of this node is marked.
    pub(super) fn identity(&self, nsd: NsdId) -> NsdIdentity {
        NsdIdentity {
            cluster: self.cluster,
            nsd,
            pool: 0,
        }
    }

    /// No longer uses an NSD that the pool hasn't taken.
    async fn give_back(&self, nsd: Arc<Nsd>) {
        let id = nsd.id();
        self.server.remove(id);
        self.pool.remove_nsd(id);
        self.regions.lock().remove(&id);
        // It holds nothing.
        let _ = nsd.close().await;
    }

    /// The failure group of a new NSD: that of the node's others, which may have a name.
    fn failure_group_here(&self, map: &PoolMap, new: &NsdEntry) -> FailureGroupId {
        if self.failures == Failures::ByDisk {
            return new.failure_group;
        }
        let regions = self.regions.lock();
        let here = |it: &&NsdEntry| it.nsd != new.nsd && regions.contains_key(&it.nsd);
        let others = map.nsds.iter().filter(here);
        let newest = others.max_by_key(|it| (it.state != NsdState::Lost, it.nsd));
        newest.map_or(new.failure_group, |it| it.failure_group)
    }

    /// Takes an NSD out of use: its contents move to the others, or are rebuilt there.
    ///
    /// # Errors
    /// `NotFound`. `NoSpace`: it can be read, and the others can't take what it has; [`Removal::Gone`] does it
    /// all the same. `InvalidArgument`: it is said to be gone, but answers and may have the only copy of data.
    pub async fn remove(&self, nsd: NsdId, removal: Removal) -> Result<()> {
        if self
            .pool
            .map()
            .nsd(nsd)
            .is_none_or(|entry| entry.state == NsdState::Lost)
        {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("there is no NSD {nsd} in use; `shale nsd list` shows them"),
            ));
        }
        // Readable data is moved away first, so that it never loses redundancy. One on a node that
        // doesn't answer now may come back with it.
        let standings = self.pool.nsd_states();
        let standing = standings.iter().find(|it| it.entry.nsd == nsd);
        let member = standing.map_or(MemberState::Missing, |it| it.member);
        let is_readable = !matches!(member, MemberState::Failed | MemberState::Missing);
        let answers = matches!(member, MemberState::Online | MemberState::Full);
        // By the map that is changed: somebody else may give up another one meanwhile.
        let is_needed = |map: &PoolMap| self.pool.is_needed(map, nsd);
        let give_up = |map: &PoolMap| match removal {
            Removal::Drain if is_readable => {
                placement::drain(map, nsd).map_err(|error| or_gone(error, nsd, is_needed(map)))
            }
            Removal::Gone if answers && is_needed(map) => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "give up NSD {nsd}: it answers, and may have the only copy of data: remove it \
                         without saying that it is gone, so that what it has moves to the others first"
                ),
            )),
            Removal::Drain | Removal::Gone => placement::mark_lost(map, nsd),
        };
        self.change_map(give_up).await?;
        tracing::info!(nsd = nsd.0, ?removal, "NSD given up");
        Ok(())
    }

    /// Takes back the drain of an NSD: what has moved stays where it is, what was written meanwhile comes to it,
    /// and it takes new segments again.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument`: it isn't being drained, or its drain has ended. `Unavailable`: it doesn't
    /// serve. Those of coordination.
    pub async fn cancel_drain(&self, nsd: NsdId) -> Result<()> {
        self.cancel_drains(|_| Ok(vec![nsd])).await.map(drop)
    }

    /// As [`LocalNsds::cancel_drain`], of all NSDs that are chosen by the map. Returns them.
    pub(super) async fn cancel_drains(
        &self,
        choose: impl Fn(&PoolMap) -> Result<Vec<NsdId>>,
    ) -> Result<Vec<NsdId>> {
        let chosen = Mutex::default();
        let keep = |map: &PoolMap| {
            let nsds = choose(map)?;
            let next = placement::cancel_drain(map, &nsds)?;
            let standings = self.pool.nsd_states();
            let members = standings.iter().map(|it| (it.entry.nsd, it.member));
            must_serve(members, &nsds)?;
            *chosen.lock() = nsds;
            Ok(next)
        };
        self.change_map(keep).await?;
        let nsds: Vec<NsdId> = chosen.into_inner();
        tracing::info!(?nsds, "the drain of NSDs was taken back");
        Ok(nsds)
    }

    /// A number for a new NSD, which no other gets, also if this one isn't added in the end.
    ///
    /// # Errors
    /// Those of coordination.
    pub async fn next_id(&self) -> Result<NsdId> {
        let map = self.pool.map();
        let highest = map.nsds.iter().map(|entry| entry.nsd).max();
        self.coordination
            .next_nsd(highest.unwrap_or(NsdId(0)))
            .await
    }

    /// Changes the map in coordination, then here.
    pub(super) async fn change_map(
        &self,
        change: impl Fn(&PoolMap) -> Result<PoolMap>,
    ) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let now = self
                .coordination
                .pool_map(DATA_POOL)
                .await?
                .ok_or_else(|| {
                    Error::new(ErrorKind::Corrupt, "coordination knows no storage pool")
                })?;
            let next = change(&now.value)?;
            match self
                .coordination
                .set_pool_map(DATA_POOL, now.version, &next)
                .await
            {
                Ok(_) => {
                    // It is changed, whoever has heard of it.
                    if let Err(error) = self.pool.set_map(next).await {
                        tracing::warn!(%error, "not every NSD knows the new group versions yet; writers will tell them");
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Changed => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::new(
            ErrorKind::Busy,
            "the map is being changed by others; try again",
        ))
    }
}

/// Refuses to keep NSDs in use whose contents are rebuilt elsewhere, because they don't serve. `members`: those of the pool.
fn must_serve(
    mut members: impl Iterator<Item = (NsdId, MemberState)>,
    kept: &[NsdId],
) -> Result<()> {
    let away = members.find(|(nsd, member)| {
        kept.contains(nsd) && matches!(member, MemberState::Failed | MemberState::Missing)
    });
    let Some((nsd, _)) = away else {
        return Ok(());
    };
    let text = format!(
        "take back the drain of NSD {nsd}: it doesn't serve, and what it has is rebuilt on the others: bring it or its \
         node back first (`shale nsd list` shows both; a node that was expelled by hand: `shale node unexpel`)"
    );
    Err(Error::new(ErrorKind::Unavailable, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would be broken if new data were put to an NSD that nobody reaches, and that others are to replace.
    #[test]
    fn the_drain_of_an_nsd_that_does_not_serve_is_not_taken_back() {
        let (one, two) = (NsdId(1), NsdId(2));
        for (member, serves) in [
            (MemberState::Online, true),
            (MemberState::Suspect, true),
            (MemberState::Full, true),
            (MemberState::Failed, false),
            (MemberState::Missing, false),
        ] {
            let members = [(one, MemberState::Online), (two, member)];
            let kept = |nsds: &[NsdId]| must_serve(members.into_iter(), nsds);
            assert_eq!(kept(&[one, two]).is_ok(), serves, "{member:?}");
            assert_eq!(kept(&[one]), Ok(()), "the other one isn't asked for");
            if let Err(refused) = kept(&[two]) {
                assert_eq!(refused.kind(), ErrorKind::Unavailable);
                assert!(refused.to_string().contains("of NSD 2"), "{refused}");
            }
        }
    }
}
