//! The command line: names, arguments and their help texts.

use crate::options::Options;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Shale: a parallel file system that you set up in minutes.
#[derive(Parser, Debug)]
#[command(name = "shale", version, about, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Print JSON instead of text.
    #[arg(long, global = true)]
    pub json: bool,
}

/// Where the node keeps its state.
#[derive(Args, Debug, Clone)]
pub struct Dir {
    /// The node's directory: configuration, NSD regions, socket, log.
    #[arg(long, env = "SHALE_DIR", default_value = "/var/lib/shale")]
    pub dir: PathBuf,
}

impl Dir {
    /// The directory whatever the current one becomes.
    pub fn absolute(&self) -> PathBuf {
        std::path::absolute(&self.dir).unwrap_or_else(|_| self.dir.clone())
    }
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start this node: create a file system on first use, then mount it.
    Up(Up),
    /// Unmount and stop this node. Everything is durable afterwards.
    Down(Down),
    /// Run the node in the foreground (what `up` starts in the background).
    #[command(hide = true)]
    Daemon {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Mount nothing; end with the last mount that others ask for.
        #[arg(long)]
        on_demand: bool,
    },
    /// Add a mount to the running node, until it is unmounted or the node ends.
    Mount(Mount),
    /// End one mount. What was written through it is durable afterwards.
    Umount(Umount),
    /// What runs, since when, with how much memory.
    Status(Dir),
    /// What is wrong and what to do about it. Exit code 1 if anything is.
    Health(Dir),
    /// What waits now, for what, since when.
    Waiters(Dir),
    /// File systems.
    #[command(subcommand)]
    Fs(Fs),
    /// Network shared disks.
    #[command(subcommand)]
    Nsd(Nsd),
    /// Bringing lost redundancy back.
    #[command(subcommand)]
    Repair(Repair),
}

/// Arguments of `up`.
#[derive(Args, Debug)]
pub struct Up {
    /// The node's directory.
    #[command(flatten)]
    pub dir: Dir,
    /// Where to mount [default on first use: DIR/mnt; later: as before].
    #[arg(long)]
    pub mount: Option<PathBuf>,
    /// Size of each NSD's region, like 20G (first use only) [default: 20G].
    #[arg(long, value_parser = parse_size)]
    pub nsd_size: Option<u64>,
    /// How many NSDs (first use only) [default: as many as the scheme needs].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub nsds: Option<u32>,
    /// replicate(1..4) or erasure(k+m) (first use only) [default: replicate(1)].
    #[arg(long)]
    pub scheme: Option<String>,
    /// Bytes in one segment of a streamed file, 64K to 16M (first use only) [default: 4M].
    #[arg(long, value_parser = parse_size)]
    pub block_size: Option<u64>,
    /// Let other users than the one that mounts use the file system (as -o allow_other).
    #[arg(long)]
    pub allow_other: bool,
    /// Mount options: ro, noatime, nosuid, nodev, noexec, allow_other, subdir=PATH,
    /// transport=auto|fuse|io_uring, locks=cluster|local, noacl [default on first use: rw; later:
    /// as before].
    #[arg(short = 'o', value_name = "LIST")]
    pub options: Vec<String>,
}

impl Up {
    /// The mount options, if any were given.
    ///
    /// # Errors
    /// `InvalidArgument` for an option that doesn't exist.
    pub fn options(&self) -> model::Result<Option<Options>> {
        if self.options.is_empty() {
            return Ok(None);
        }
        Options::parse(&self.options.join(",")).map(Some)
    }
}

/// Arguments of `mount`.
#[derive(Args, Debug)]
pub struct Mount {
    /// The node's directory.
    #[command(flatten)]
    pub dir: Dir,
    /// An existing directory.
    pub mountpoint: PathBuf,
    /// Mount options: ro, noatime, nosuid, nodev, noexec, allow_other, subdir=PATH,
    /// transport=auto|fuse|io_uring, locks=cluster|local, noacl.
    #[arg(short = 'o', value_name = "LIST")]
    pub options: Vec<String>,
}

/// Arguments of `umount`.
#[derive(Args, Debug)]
pub struct Umount {
    /// The node's directory [default: the one that the mount table names].
    #[arg(long, env = "SHALE_DIR")]
    pub dir: Option<PathBuf>,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Take it out of the tree of files now; programs that use it go on until they close.
    #[arg(long, conflicts_with = "force")]
    pub lazy: bool,
    /// End it now, even if programs use it or the daemon doesn't answer.
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `down`.
#[derive(Args, Debug)]
pub struct Down {
    /// The node's directory.
    #[command(flatten)]
    pub dir: Dir,
    /// Unmount even if programs still use the mount; their open files fail from then on.
    #[arg(long)]
    pub force: bool,
    /// Kill a daemon that doesn't answer. What was synced is kept.
    #[arg(long, conflicts_with = "force")]
    pub kill: bool,
}

/// Commands on file systems.
#[derive(Subcommand, Debug)]
pub enum Fs {
    /// Space and inodes.
    Df(Dir),
    /// Verify everything, live: every extent readable, counters equal sums, no orphan, no leak.
    Check {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Read every piece of every segment, parity and copies included.
        #[arg(long)]
        deep: bool,
    },
    /// Make everything durable that was written or changed so far.
    Sync(Dir),
}

/// Commands on NSDs.
#[derive(Subcommand, Debug)]
pub enum Nsd {
    /// The NSDs of this node.
    List(Dir),
    /// Add an NSD. Lost slots move to it at once and are repaired.
    Add {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Size of the region, like 20G [default: as the others].
        #[arg(long, value_parser = parse_size)]
        nsd_size: Option<u64>,
        /// A block device or the path of a new region file [default: DIR/nsd/ID.region].
        #[arg(long)]
        path: Option<PathBuf>,
    },
    /// Give an NSD up for lost: its pieces are rebuilt on the others.
    Remove {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Number of the NSD.
        nsd: u32,
    },
    /// Open an NSD again that was missing or failed, now instead of within a minute.
    Open {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Number of the NSD.
        nsd: u32,
    },
    /// Read everything on the NSDs, report what doesn't fit its checksum and rebuild it.
    Scrub {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Only this NSD.
        nsd: Option<u32>,
    },
}

/// Commands on repair.
#[derive(Subcommand, Debug)]
pub enum Repair {
    /// How far repair is.
    Status(Dir),
}

/// Reads sizes like 512M, 20G, 1T, 4096 (powers of 1024).
fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size; write a number with K, M, G or T, like 20G");
    let upper = text.trim().to_ascii_uppercase();
    let upper = upper
        .strip_suffix("IB")
        .or(upper.strip_suffix('B'))
        .unwrap_or(&upper);
    let (digits, shift) = match upper.as_bytes().last() {
        Some(b'K') => (&upper[..upper.len() - 1], 10),
        Some(b'M') => (&upper[..upper.len() - 1], 20),
        Some(b'G') => (&upper[..upper.len() - 1], 30),
        Some(b'T') => (&upper[..upper.len() - 1], 40),
        _ => (upper, 0),
    };
    let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024_and_nonsense_is_refused() {
        assert_eq!(parse_size("20G"), Ok(20 << 30));
        assert_eq!(parse_size("512MiB"), Ok(512 << 20));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert!(parse_size("lots").is_err());
        assert!(parse_size("99999999T").is_err());
        assert!(parse_size("").is_err());
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
