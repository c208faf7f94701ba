//! The command line of `shale lab`.

use super::parse_size;
use clap::{ArgGroup, Args, Subcommand};
use std::{ffi::OsString, path::PathBuf};

/// Where a lab keeps everything.
#[derive(Args, Debug, Clone)]
pub struct LabDir {
    /// The lab's directory: a directory for each node, and what the lab was made of.
    #[arg(long, env = "SHALE_LAB_DIR", default_value = "/var/lib/shale-lab")]
    pub dir: PathBuf,
}

/// Nodes that a command is about.
#[derive(Args, Debug)]
pub struct LabNodes {
    /// The lab's directory.
    #[command(flatten)]
    pub dir: LabDir,
    /// Nodes, like n2 or 2.
    #[arg(required = true, value_name = "NODE")]
    pub nodes: Vec<String>,
}

/// Commands on a lab: a cluster of real daemons on this machine, to try things and break them.
#[derive(Subcommand, Debug)]
pub enum Lab {
    /// Make a cluster of several nodes on this machine, or start one that is down. Each node has a
    /// network namespace of its own, and mounts the file system at DIR/NODE/mnt. Needs root.
    Up(LabUp),
    /// Show the nodes, and what was done to them.
    Status(LabDir),
    /// Kill the daemons of nodes (SIGKILL). Programs that run there live on.
    Kill(LabNodes),
    /// Make nodes silent: their daemons get no time (SIGSTOP).
    Stop(LabNodes),
    /// Start dead nodes, let silent ones go on, and wait until they serve.
    Start(LabNodes),
    /// Cut nodes off: what is sent between them and the others is lost, and nobody gets an error.
    /// Nodes named together still reach each other.
    Partition(LabNodes),
    /// End partitions.
    Heal {
        /// The lab's directory.
        #[command(flatten)]
        dir: LabDir,
        /// Nodes, like n2 or 2 [default: all that are cut off].
        #[arg(value_name = "NODE")]
        nodes: Vec<String>,
    },
    /// Make the disks of nodes slow, from the next request on, also for nodes that start later.
    SlowDisk(LabSlowDisk),
    /// Run a command on a node: in its network, with its mount as the current directory. SHALE_DIR
    /// names the node, so that `shale status` is about it. The exit code is the command's.
    Exec {
        /// The lab's directory.
        #[command(flatten)]
        dir: LabDir,
        /// The node, like n2 or 2.
        node: String,
        /// The command and its arguments.
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// End a lab: kill all that runs on its nodes, unmount, remove the network. Its data stays, for
    /// the next `shale lab up`.
    Down {
        /// The lab's directory.
        #[command(flatten)]
        dir: LabDir,
        /// Remove the data as well.
        #[arg(long)]
        purge: bool,
    },
}

/// Arguments of `lab up`.
#[derive(Args, Debug)]
pub struct LabUp {
    /// The lab's directory.
    #[command(flatten)]
    pub dir: LabDir,
    /// Number of nodes, 1 to 16; needed the first time.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub nodes: Option<u32>,
    /// Number of NSDs of each node, 1 to 16; first time only [default: 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub nsds_per_node: Option<u32>,
    /// Bytes of each NSD, which are allocated at once: a number with K, M, G or T (powers of 1024);
    /// first time only [default: 1G].
    #[arg(long, value_parser = parse_size)]
    pub nsd_size: Option<u64>,
    /// Redundancy: replicate(N) or erasure(K+M); first time only [default: such that a node may be
    /// lost: replicate(2) for two nodes, erasure(2+1) for three to five, erasure(4+2) for more].
    #[arg(long)]
    pub scheme: Option<String>,
    /// Speed of each node's link, each way, in megabits per second; first time only [default: as
    /// fast as it is].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub link_mbit: Option<u32>,
}

/// Arguments of `lab slow-disk`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("how").required(true).multiple(true))]
pub struct LabSlowDisk {
    /// The nodes.
    #[command(flatten)]
    pub nodes: LabNodes,
    /// Each disk of them reads at most so many megabits per second.
    #[arg(long, group = "how", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub read_mbit: Option<u64>,
    /// Each disk of them writes at most so many megabits per second.
    #[arg(long, group = "how", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub write_mbit: Option<u64>,
    /// Each request to a disk takes so many milliseconds longer; 3600000 is as good as hanging.
    #[arg(long, group = "how", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub latency_ms: Option<u64>,
    /// As quick as they are.
    #[arg(long, group = "how", conflicts_with_all = ["read_mbit", "write_mbit", "latency_ms"])]
    pub off: bool,
}
