//! Hosts the shard: hands operations to it, and takes it over again when it was given up.
//!
//! It owns the shard, its take-overs and the metanode's own session. It knows no client, no lock and
//! no background work.

mod budgets;
mod own_segments;
mod reading;
mod reopening;
mod running;

use crate::host::budgets::{LOOK_BUDGET, OWN_SESSION_BUDGET};
use crate::host::reopening::Reopening;
use crate::report::ShardStatus;
use arc_swap::{ArcSwap, Guard};
use coordination::Coordination;
use model::operation::Stamp;
use model::{Error, FamilyId, InodeId, NodeRun, Result, ShardId};
use pool::Pool;
use shard::{Holders, Opening, Shard, within};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::{Mutex, watch};
use world::World;

pub use budgets::TAKE_OVER_MAX;
pub(crate) use budgets::{FORMER_RUNS_BUDGET, RELEASE_BUDGET};
pub(crate) use own_segments::OwnSegments;
pub(crate) use running::{has_cuts, is_of_given_up};

/// The pool of data, tables and logs, by its name in coordination.
pub const DATA_POOL: &str = "data";
/// What a take-over is called where waits are listed.
pub(crate) const TAKE_OVER: &str = "a take-over";
/// Records per page of a scan.
pub(crate) const SCAN_PAGE: usize = 1024;

/// The shard in this process, from opening to close.
pub(crate) struct Host {
    opening: Opening,
    /// Loaded by every operation; loading must not write to shared memory.
    shard: ArcSwap<Shard>,
    /// Tells each shard taken over which inodes are in use.
    holders: Arc<dyn Holders>,
    /// Held by the caller that drives it.
    reopening: Mutex<Reopening>,
    /// Another owner has followed this one.
    is_superseded: watch::Sender<bool>,
    takeovers: AtomicU64,
    closed: AtomicBool,
    /// Those that fold and clean write.
    own: OwnSegments,
}

impl Host {
    /// Takes the shard over and opens it, with a session of the metanode's own; creates an empty
    /// file system if the shard doesn't exist.
    ///
    /// # Errors
    /// `Unavailable` if too few NSDs answer, `OldEpoch` if the shard is assigned to another process,
    /// and errors of coordination.
    pub(crate) async fn open(opening: Opening, holders: Arc<dyn Holders>) -> Result<Arc<Self>> {
        let (world, id) = (&opening.world, opening.shard);
        let coordination = &opening.coordination;
        let exists = async {
            match coordination.shard(id).await? {
                Some(_) => Ok(()),
                None => Shard::create(&opening).await,
            }
        };
        within(world, LOOK_BUDGET, "look for the shard's record", exists).await?;
        let shard = Box::pin(Shard::open(opening.clone())).await?;
        shard.set_holders(holders.clone());
        let session = async {
            let session = coordination.next_session().await?;
            shard.open_own_session(session).await?;
            Ok(session)
        };
        let step = "open the metanode's own session";
        let session = within(world, OWN_SESSION_BUDGET, step, session).await;
        let session = session.inspect_err(|error| shard.abandon(error))?;
        Ok(Arc::new(Self {
            opening,
            shard: ArcSwap::new(shard),
            holders,
            reopening: Mutex::default(),
            is_superseded: watch::Sender::new(false),
            takeovers: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            own: OwnSegments::new(session),
        }))
    }

    /// The shard hosted now; a different one after a take-over.
    pub(crate) fn shard(&self) -> Arc<Shard> {
        self.shard.load_full()
    }

    /// As [`Host::shard`], without writing to shared memory.
    pub(crate) fn load(&self) -> Guard<Arc<Shard>> {
        self.shard.load()
    }

    /// The machine.
    pub(crate) fn world(&self) -> &World {
        &self.opening.world
    }

    /// Stores data, tables and log.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.opening.pool
    }

    /// Epochs, sessions, maps.
    pub(crate) fn coordination(&self) -> &Coordination {
        &self.opening.coordination
    }

    /// The shard's number.
    pub(crate) fn id(&self) -> ShardId {
        self.opening.shard
    }

    /// The families whose records the shard holds.
    pub(crate) fn families(&self) -> Arc<[FamilyId]> {
        self.shard().families()
    }

    /// Whether a family's records are in the shard: only then does it know what is live of it.
    pub(crate) fn holds(&self, family: FamilyId) -> bool {
        self.families().contains(&family)
    }

    /// The run of this node.
    pub(crate) fn node_run(&self) -> NodeRun {
        self.opening.run
    }

    /// The segments that the metanode itself writes.
    pub(crate) fn own(&self) -> &OwnSegments {
        &self.own
    }

    /// The stamp of the metanode's own operations.
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp::own(self.world().wall(), self.own.session())
    }

    /// Whether an inode is in use, so that it outlives its last name.
    pub(crate) fn is_in_use(&self, inode: InodeId) -> bool {
        self.holders.is_held(inode)
    }

    /// How often the shard was taken over again.
    pub(crate) fn takeovers(&self) -> u64 {
        self.takeovers.load(Ordering::Relaxed)
    }

    /// State of the shard.
    pub(crate) fn status(&self) -> ShardStatus {
        let shard = self.shard();
        ShardStatus {
            shard: shard.id(),
            epoch: shard.epoch(),
            durable: shard.durable(),
        }
    }

    /// Ends a shard that couldn't be served.
    pub(crate) fn abandon(&self, why: &Error) {
        self.begin_close();
        self.shard().abandon(why);
    }

    /// From now on the shard isn't taken over again.
    pub(crate) fn begin_close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Whether the metanode is being closed.
    pub(crate) fn closes(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Makes everything durable and closes the tree.
    ///
    /// # Errors
    /// `Unavailable` if the last commit couldn't be made durable.
    pub(crate) async fn close(&self) -> Result<()> {
        // Nobody waits for a take-over any more.
        if let Ok(mut reopening) = self.reopening.try_lock() {
            *reopening = Reopening::Idle;
        }
        self.shard().close().await
    }
}
