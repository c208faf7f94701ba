//! Several whole nodes from one seed: NSDs on all of them, one shard whose owner moves, one client
//! at a time on any of them, and faults of everything.
//!
//! The judge (`script`) causes the faults and gives the client its turns. A turn opens a client on a
//! node, performs random actions, and closes it; each answer must be the model's. If the client's
//! node goes down in a turn, the next client looks at everything first: every change of names,
//! permissions and attributes must be there that an owner on another node answered or that was synced, with all
//! before it, and every fsynced byte as well. The same if the client has lost its session with an owner on its node.
//! At the end all faults end, the tree must be the model's, and a deep check must find nothing.

mod crowd;
mod faults;
mod interruptions;
mod machines;
mod script;
mod shards;
mod stage;
mod turn;

pub use crowd::{Coverage, CrowdReport, CrowdScenario, Relation, run_crowd, run_crowd_with};
pub use faults::{FaultKind, Mix};
pub use machines::Machines;
pub use script::{Report, run, run_with};
pub use shards::{SeveralShards, TOGETHER_MIN, run_shards};
pub use stage::{Stage, client, client_of};

use crate::action::Sizes;
use model::Scheme;

/// A run of several nodes.
#[derive(Clone, Copy, Debug)]
pub struct ClusterScenario {
    /// The pool's scheme.
    pub scheme: Scheme,
    /// Nodes.
    pub nodes: u32,
    /// Those of them, the last ones, that aren't there when the file system is founded.
    pub late_nodes: u32,
    /// Whether each node has a member of coordination, which stops with its machine. Otherwise they run elsewhere.
    pub members: bool,
    /// Nodes that have an NSD from the beginning.
    pub first_nsds: u32,
    /// Actions of all turns together.
    pub steps: usize,
    /// Most actions of one turn.
    pub turn_steps: u64,
    /// Bounds of the random sizes.
    pub sizes: Sizes,
    /// Faults, one after the other.
    pub faults: usize,
    /// Which ones.
    pub mix: Mix,
    /// Bytes per block.
    pub block_bytes: u32,
    /// Bytes of each region.
    pub region_bytes: u64,
}

impl ClusterScenario {
    /// 10,000 actions in about a minute, and five faults of any kind.
    pub const USUAL: Self = Self {
        scheme: Scheme::Replicate(2),
        nodes: 3,
        late_nodes: 0,
        members: true,
        first_nsds: u32::MAX,
        steps: 10_000,
        turn_steps: 1_500,
        sizes: Sizes {
            names: 20,
            inodes: 80,
            file_bytes: 120_000,
            write_bytes: 30_000,
            sync_every: 100,
        },
        faults: 5,
        mix: Mix::ALL,
        block_bytes: 64 * 1024,
        region_bytes: 128 << 20,
    };

    /// No faults.
    pub const CALM: Self = Self {
        faults: 0,
        steps: 1_000,
        ..Self::USUAL
    };
}
