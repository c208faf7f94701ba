//! One node: coordination, NSDs, pool, metanode, client, started in order and ended in reverse. The
//! program, the simulator and the benchmarks all start it this way.

mod attempts;
mod leftovers;
mod member;
mod nsds;
mod pools;
mod regions;
mod returning;

pub use member::{
    Commands, FIRST_FILE_SYSTEM, Founding, FoundingNsd, Member, MemberSettings, Protection, Renew,
};
pub use nsds::{Failures, LocalNsds, NsdView, Removal};
pub use pools::{GenerationView, PoolChange};
pub use returning::LOOK_EVERY;

pub use coordination::{FileSystem, NodeFacts};

use client::{Client, ClientSettings, Legacy, Owner};
use coordination::Coordination;
use metanode::{DATA_POOL, MemoryUse, Metanode, ShardMemory};
use model::{Error, ErrorKind, FamilyId, NodeRun, NsdId, Result, Scheme, ShardId};
use nsd::{Nsd, NsdIdentity};
use pool::Pool;
use regions::{make_disk, open_disk};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};
use world::{WAITERS_MAX, Waiter, World, joined_waits, longest_waits};

/// The shard of the first file system; on a node that is alone there is no other.
pub const ROOT_SHARD: ShardId = ShardId(0);
/// Its family.
pub const ROOT_FAMILY: FamilyId = FamilyId(0);

/// How long another process may use a region before that is an error.
const IN_USE_PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two attempts.
const IN_USE_PAUSE: Duration = Duration::from_millis(20);

/// Where a node's regions are.
#[derive(Clone, Debug)]
pub struct NodePaths {
    /// The region of the embedded coordination store.
    pub coordination: PathBuf,
    /// The regions of the NSDs.
    pub nsds: BTreeMap<NsdId, PathBuf>,
}

/// How a file system is created.
#[derive(Clone, Copy, Debug)]
pub struct Creation {
    /// The pool's scheme.
    pub scheme: Scheme,
    /// Bytes of each new region.
    pub nsd_bytes: u64,
    /// Bytes per block.
    pub block_bytes: u32,
}

/// A running node.
pub struct Node {
    world: World,
    coordination: Coordination,
    run: NodeRun,
    nsds: LocalNsds,
    memory: ShardMemory,
    metanode: Arc<Metanode>,
    client: Arc<Client>,
    block_bytes: u32,
}

impl Node {
    /// Makes coordination, NSDs and an empty file system. The regions must not exist.
    ///
    /// # Errors
    /// `Exists`, `NoSpace`, `InvalidArgument`, or the disk's error.
    pub async fn create(world: &World, paths: &NodePaths, creation: Creation) -> Result<()> {
        let disk = make_disk(
            world,
            &paths.coordination,
            coordination::EMBEDDED_REGION_BYTES,
        )?;
        let coordination = Coordination::embedded(world, disk).await?;
        let cluster = u128::from(world.random_u64()) << 64 | u128::from(world.random_u64());
        let mut entries = Vec::new();
        for (nsd, path) in &paths.nsds {
            let disk = make_disk(world, path, creation.nsd_bytes)?;
            let identity = NsdIdentity {
                cluster,
                nsd: *nsd,
                pool: 0,
            };
            Nsd::format(world, &disk, identity)
                .await
                .map_err(|e| e.while_doing(format!("formatting {}", path.display())))?;
            entries.push(nsds::entry(*nsd, creation.nsd_bytes, Failures::ByDisk));
        }
        let map = placement::new_pool(creation.scheme, entries, world.random_u64())?;
        coordination
            .set_config("block_bytes", 0, &creation.block_bytes.to_string())
            .await?;
        coordination.set_pool_map(DATA_POOL, 0, &map).await?;
        // Last, so that a file system with a cluster id is complete.
        coordination.set_cluster(cluster).await?;
        Ok(())
    }

    /// Whether the regions hold a file system whose creation finished.
    ///
    /// # Errors
    /// If a region exists that can't be read: its content is unknown.
    pub async fn is_created(world: &World, paths: &NodePaths) -> Result<bool> {
        if !paths.coordination.exists() {
            return Ok(false);
        }
        let disk = open_disk(world, &paths.coordination).await?;
        match Coordination::embedded(world, disk).await {
            Ok(coordination) => Ok(coordination.cluster().await?.is_some()),
            // Torn during creation: it holds nothing.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Corrupt | ErrorKind::InvalidArgument
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens everything and recovers from a crash. NSDs that don't open are left out; the file
    /// system serves without them as long as its redundancy allows.
    ///
    /// # Errors
    /// What was attempted on which path and why it failed.
    pub async fn open(
        world: &World,
        paths: &NodePaths,
        settings: ClientSettings,
    ) -> Result<Arc<Self>> {
        let disk = open_disk(world, &paths.coordination).await?;
        let coordination = Coordination::embedded(world, disk)
            .await
            .map_err(|e| e.while_doing(format!("opening {}", paths.coordination.display())))?;
        let cluster = coordination.cluster().await?.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!(
                    "{} holds no finished file system; its creation was interrupted: remove the \
                     directory and create it again",
                    paths.coordination.display()
                ),
            )
        })?;
        let map = coordination
            .pool_map(DATA_POOL)
            .await?
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "coordination knows no storage pool"))?
            .value;
        let failures = Failures::ByDisk;
        let nsds =
            LocalNsds::open(world, &coordination, cluster, failures, map, &paths.nsds).await?;
        let pool = nsds.pool.clone();
        let block_bytes = block_bytes(&coordination, &pool).await?;
        let memory = ShardMemory::of_machine(world);
        let run = metanode::begin_alone(&coordination, ROOT_SHARD).await?;
        let opened = Metanode::open(metanode::Opening {
            world: world.clone(),
            shard: ROOT_SHARD,
            family: ROOT_FAMILY,
            coordination: coordination.clone(),
            pool: pool.clone(),
            run,
            memory: memory.clone(),
            // This process is the whole cluster.
            lease: metanode::OwnerLease::endless(),
            surveys: metanode::Surveys::Own,
            touch: Arc::new(metanode::Whole),
        });
        let metanode = opened
            .await
            .map_err(|error| nsds.blame(error.while_doing("opening the metadata")))?;
        let owner = Owner::Here(metanode.clone());
        let session = owner.open_session(world).await?;
        let settings = ClientSettings {
            block_bytes,
            ..settings
        };
        let client = Client::new(world.clone(), owner, pool, session, settings);
        Ok(Arc::new(Self {
            world: world.clone(),
            coordination,
            run,
            nsds,
            memory,
            metanode,
            client,
            block_bytes,
        }))
    }

    /// Makes everything durable and closes all parts. The node must not be used afterwards.
    ///
    /// # Errors
    /// The first thing that couldn't be made durable; the rest was closed all the same.
    pub async fn close(&self) -> Result<()> {
        // Boxed: together they nest deeper than the compiler of a program goes that closes a node.
        let mut result = Box::pin(self.client.close()).await;
        result = result.and(Box::pin(self.metanode.close()).await);
        result.and(Box::pin(self.nsds.close()).await)
    }

    /// Makes everything durable and stops the client, so that a member in this run of the node goes on with what programs have
    /// open ([`Member::open_left`]). Nobody may use the client any more; [`Node::close_left`] follows.
    ///
    /// # Errors
    /// What couldn't be made durable: the node goes on then.
    pub async fn leave(&self) -> Result<Legacy> {
        self.client.leave().await
    }

    /// Closes the other parts of a node whose client has left, and releases its regions, whoever still has a part of it.
    ///
    /// # Errors
    /// The first part that didn't end as it should; the rest was closed all the same.
    pub async fn close_left(&self) -> Result<()> {
        let result = Box::pin(self.metanode.close()).await;
        result.and(Box::pin(self.nsds.close_and_release()).await)
    }

    /// This run of the node.
    #[must_use]
    pub fn run(&self) -> NodeRun {
        self.run
    }

    /// Time, chance, disks.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The coordination store.
    pub fn coordination(&self) -> &Coordination {
        &self.coordination
    }

    /// The storage pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.nsds.pool
    }

    /// The NSDs.
    pub fn nsds(&self) -> &LocalNsds {
        &self.nsds
    }

    /// The metadata service.
    pub fn metanode(&self) -> &Arc<Metanode> {
        &self.metanode
    }

    /// The file system.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// What the memory of the metadata service is used for.
    #[must_use]
    pub fn memory_uses(&self) -> Vec<MemoryUse> {
        self.memory.uses()
    }

    /// All waits, longest first.
    #[must_use]
    pub fn waiters(&self) -> Vec<Waiter> {
        let mut waiters = self.client.waiters();
        waiters.extend(self.metanode.waiters());
        waiters.sort_by_key(|waiter| std::cmp::Reverse(waiter.since));
        waiters.truncate(WAITERS_MAX);
        waiters
    }

    /// All waits with what they wait for, longest first, and how many more found no room: for chains of waits.
    #[must_use]
    pub fn waits(&self) -> (Vec<Waiter>, usize) {
        let parts = [
            self.world.waits(),
            self.client.waits(),
            self.metanode.waits(),
        ];
        longest_waits(joined_waits(parts), usize::MAX)
    }

    /// Bytes per block.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }
}

/// Bytes per block for clients that open now.
async fn block_bytes(coordination: &Coordination, pool: &Pool) -> Result<u32> {
    if let Some(bytes) = pool.block_bytes() {
        return Ok(bytes);
    }
    let text = coordination
        .config("block_bytes")
        .await?
        .map(|fact| fact.value);
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| Error::new(ErrorKind::Corrupt, "coordination knows no block size"))
}
