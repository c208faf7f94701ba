//! The command line: names, arguments and their help texts.

pub mod lab;

use crate::options::Options;
use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Shale is a parallel file system in user space: it makes one POSIX file system of one or more
/// disks, checksums every byte, and keeps copies or parity so that disks may fail. It is a single
/// program: `shale up` creates a file system on first use and mounts it.
#[derive(Parser, Debug)]
#[command(name = "shale", version, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Print JSON instead of text. Long commands print one line of JSON per second with their
    /// progress; the last line is the answer.
    #[arg(long, global = true)]
    pub json: bool,
}

/// The commands, grouped by purpose, as the overall help shows them.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Start and stop", &["up", "down", "mount", "umount"]),
    ("Inspect", &["status", "health", "waiters", "events"]),
    ("File system and disks", &["fs", "pool", "nsd", "repair"]),
    ("Cluster", &["cluster", "node", "config"]),
    ("A cluster on this machine", &["lab"]),
    ("Shell", &["completion"]),
];

/// The command line with its help.
pub fn command() -> clap::Command {
    let command = Cli::command();
    let mut lines: Vec<(String, Vec<(String, String)>)> = Vec::new();
    for (heading, names) in GROUPS {
        let mut group = Vec::new();
        for name in names {
            let found = command.find_subcommand(name);
            list(found.expect("GROUPS names commands"), "", &mut group);
        }
        lines.push((heading.into(), group));
    }
    let widths = lines
        .iter()
        .flat_map(|(_, group)| group)
        .map(|line| line.0.len());
    let width = widths.max().unwrap_or(0);
    let mut overview = String::new();
    for (heading, group) in lines {
        overview += &format!("{heading}:\n");
        for (name, about) in group {
            overview += &format!("  {name:width$}  {about}\n");
        }
        overview.push('\n');
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{overview}Options:\n{{options}}\n\n\
         `shale COMMAND --help` says what a command takes, with units and defaults. Exit codes: 0 done, \n\
         1 refused, failed or something is wrong, 2 the command line is wrong."
    ))
}

/// Adds a command's line, or those of its own commands.
fn list(command: &clap::Command, before: &str, lines: &mut Vec<(String, String)>) {
    let name = format!("{before}{}", command.get_name());
    if command.has_subcommands() {
        for own in command.get_subcommands() {
            list(own, &format!("{name} "), lines);
        }
    } else {
        let about = command.get_about().map(ToString::to_string);
        lines.push((name, about.unwrap_or_default()));
    }
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

/// Which nodes a command asks.
#[derive(Args, Debug, Clone)]
pub struct Of {
    /// The node's directory.
    #[command(flatten)]
    pub dir: Dir,
    /// Ask this node of the cluster instead: a number or a name.
    #[arg(long, value_name = "NODE", conflicts_with = "all")]
    pub node: Option<String>,
    /// Ask all nodes of the cluster that are up.
    #[arg(long)]
    pub all: bool,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start this node: make a file system on first use, then mount it.
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
    /// Watch over a daemon of a cluster (which starts this).
    #[command(hide = true)]
    Watchdog {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
    },
    /// Add a mount to the running node, until it is unmounted or the node ends.
    Mount(Mount),
    /// End one mount. What was written through it is durable afterwards.
    Umount(Umount),
    /// Show what is running, since when, and how much memory it uses.
    Status(Of),
    /// Show problems and what to do about them. Exit code 1 if there are any.
    Health(Of),
    /// Show which operations wait, for how long and for what; with --all from node to node, down to
    /// the disk, lease or lock at the end.
    Waiters(Of),
    /// Show what happened, with times: problems that began and ended, nodes that joined and were expelled.
    Events(Of),
    /// Show, check and sync the file system.
    #[command(subcommand)]
    Fs(Fs),
    /// List, add and remove NSDs (network shared disks): the disks or files that hold the data.
    #[command(subcommand)]
    Nsd(Nsd),
    /// Show and change the storage pool: its redundancy and its block size.
    #[command(subcommand)]
    Pool(Pool),
    /// Show the progress of restoring lost redundancy.
    #[command(subcommand)]
    Repair(Repair),
    /// Make a cluster of this node, show it, let machines join it, stop it.
    #[command(subcommand)]
    Cluster(Cluster),
    /// Join a cluster; list, expel and empty its nodes.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Show and change the cluster's settings.
    #[command(subcommand)]
    Config(Config),
    /// A cluster of real daemons on this machine, to try things and break them.
    #[command(subcommand)]
    Lab(lab::Lab),
    /// Print a completion script. bash reads it from
    /// ~/.local/share/bash-completion/completions/shale.
    Completion {
        /// The shell to complete commands in.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory.
    #[command(hide = true)]
    Man {
        /// An existing directory.
        #[arg(long)]
        out: PathBuf,
    },
}

/// Arguments of `up`.
#[derive(Args, Debug)]
pub struct Up {
    /// The node's directory.
    #[command(flatten)]
    pub dir: Dir,
    /// Directory to mount at [default: DIR/mnt on first use, later as before].
    #[arg(long)]
    pub mount: Option<PathBuf>,
    /// Bytes of each NSD's region, which are allocated at once: a number with K, M, G or T (powers
    /// of 1024); first use only [default: 20G].
    #[arg(long, value_parser = parse_size)]
    pub nsd_size: Option<u64>,
    /// Number of NSDs, 1 to 64; first use only [default: as many as the scheme needs].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub nsds: Option<u32>,
    /// Redundancy: replicate(N) for N copies, 1 to 4, or erasure(K+M) for K data and M parity
    /// parts; first use only [default: replicate(1)].
    #[arg(long)]
    pub scheme: Option<String>,
    /// Bytes in one segment of a large file, 64K to 16M; first use only [default: 4M].
    #[arg(long, value_parser = parse_size)]
    pub block_size: Option<u64>,
    /// Let users other than the mounting one use the file system (as -o allow_other).
    #[arg(long)]
    pub allow_other: bool,
    /// Mount options: ro, noatime, nosuid, nodev, noexec, allow_other, subdir=PATH,
    /// transport=auto|fuse|io_uring, locks=cluster|local, noacl [default: rw on first use, later
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
    /// Mount options: ro, noatime, nosuid, nodev, noexec, allow_other, fs=NAME, subdir=PATH,
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
    /// Kill a daemon that doesn't answer. Synced data is kept.
    #[arg(long, conflicts_with = "force")]
    pub kill: bool,
}

/// Commands on file systems.
#[derive(Subcommand, Debug)]
pub enum Fs {
    /// Show space and inodes.
    Df(Dir),
    /// Verify the whole file system while it is in use, without changing anything: all files are
    /// readable, names and counters are right, no space is lost.
    Check {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Also read every copy and all parity, not only enough to verify the data once.
        #[arg(long)]
        deep: bool,
    },
    /// Make everything written so far durable.
    Sync(Dir),
    /// Make an empty file system in the cluster.
    Create {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Its name, of up to 64 visible ASCII characters without "/" and ",": mount it with `shale mount -o fs=NAME`.
        name: String,
    },
    /// Show the file systems of the cluster.
    List(Dir),
    /// Show one file system.
    Show {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Name of the file system.
        name: String,
    },
    /// Mount a file system of the cluster here, until it is unmounted or the node ends.
    Mount {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Name of the file system.
        name: String,
        /// An existing directory.
        mountpoint: PathBuf,
        /// Mount options, as for `shale mount`.
        #[arg(short = 'o', value_name = "LIST")]
        options: Vec<String>,
    },
    /// End a mount, as `shale umount`.
    Unmount {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Where it is mounted.
        mountpoint: PathBuf,
    },
}

/// Commands on NSDs.
#[derive(Subcommand, Debug)]
pub enum Nsd {
    /// Show the NSDs with their state, size and use.
    List(Dir),
    /// Add an NSD. Repair starts to rebuild lost pieces on it at once.
    Add {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// The node of the cluster that gets it: a number or a name [default: this one].
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        /// Bytes of the region, which are allocated at once: a number with K, M, G or T (powers of
        /// 1024) [default: what --nsd-size was when that node was made or joined, 20G without it].
        #[arg(long, value_parser = parse_size)]
        nsd_size: Option<u64>,
        /// A block device or the path of a new region file on this node [default: DIR/nsd/ID.region].
        #[arg(long, conflicts_with = "node")]
        path: Option<PathBuf>,
    },
    /// Say which NSDs fail together: no two pieces of anything are on NSDs of one failure group. What exists is
    /// rewritten in the background.
    #[command(group = ArgGroup::new("with").required(true))]
    Change {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Numbers of the NSDs.
        #[arg(required = true)]
        nsds: Vec<u32>,
        /// They fail with all others of this failure group, for instance those at the same controller: a name of
        /// up to 64 visible ASCII characters.
        #[arg(long, value_name = "NAME", group = "with")]
        failure_group: Option<String>,
        /// Each of them fails alone.
        #[arg(long, group = "with")]
        own_failure_group: bool,
    },
    /// Move all pieces off an NSD that answers to the others. It isn't used any more when it is empty; the same as
    /// `remove` without --gone.
    Drain {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Number of the NSD.
        nsd: u32,
        /// Wait until it is empty, and show progress.
        #[arg(long)]
        wait: bool,
        /// Take the drain back, as long as it hasn't ended: the NSD stays in use. What has moved stays where it is.
        #[arg(long, conflicts_with = "wait")]
        cancel: bool,
    },
    /// Take an NSD out of use: its pieces move to the others, or are rebuilt there if it is dead.
    Remove {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Number of the NSD.
        nsd: u32,
        /// It doesn't come back, or its data may have less redundancy until an NSD is added. Nothing is
        /// read from it any more.
        #[arg(long)]
        gone: bool,
        /// Wait until it is empty, and show progress.
        #[arg(long)]
        wait: bool,
    },
    /// Reopen an NSD that was missing or has failed, now instead of within a minute.
    Open {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Number of the NSD.
        nsd: u32,
    },
    /// Read everything on the NSDs, and rebuild data whose checksum is wrong.
    Scrub {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// The NSD to read [default: all].
        nsd: Option<u32>,
    },
}

/// Commands on the storage pool.
#[derive(Subcommand, Debug)]
pub enum Pool {
    /// Show the pool's schemes: that of new data, and older ones whose data is still being moved.
    List(Dir),
    /// Change the pool while it is in use. New data is written the new way at once; with another
    /// scheme, data that exists is rewritten in the background.
    Change {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Redundancy: replicate(N) for N copies, 1 to 4, or erasure(K+M) for K data and M parity
        /// parts.
        #[arg(long, required_unless_present = "block_size")]
        scheme: Option<String>,
        /// Bytes in one segment of a large file, 64K to 16M; data that exists stays as it is.
        #[arg(long, value_parser = parse_size)]
        block_size: Option<u64>,
    },
}

/// Commands on repair.
#[derive(Subcommand, Debug)]
pub enum Repair {
    /// Show the progress of repair.
    Status {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Wait until nothing is left to repair, and show progress. Exit code 1 if repair can't
        /// continue.
        #[arg(long)]
        wait: bool,
    },
}

/// Commands on the cluster.
#[derive(Subcommand, Debug)]
pub enum Cluster {
    /// Make this node the first one of a new cluster, with its file system and all its data. Programs that use its mounts see
    /// a pause of some seconds. An attempt that failed can be repeated, also with other arguments.
    Create(Create),
    /// Print a token with which one machine can join within five minutes: `shale node join --token-file FILE` there. It is a
    /// secret until it has been used.
    JoinToken {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// The machine becomes a quorum node: it gets the key of the cluster's authority, admits other machines, and its daemon
        /// runs a member of the cluster's etcd (if the cluster has one of its own).
        #[arg(long)]
        quorum: bool,
    },
    /// Replace the cluster's certificate authority and all nodes' keys and certificates, while they work: begins it, or shows
    /// how far it is. All nodes must be up for a while. When no node is waited for any more, --finish ends the trust in the
    /// old authority, and with it all old keys.
    RotateKeys {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Don't trust the old authority any more. Refused, with their names, as long as nodes need it. With its
        /// fingerprint, as --status shows it, also if another one would be ended.
        #[arg(
            long,
            value_name = "OLD",
            num_args = 0..=1,
            require_equals = true,
            conflicts_with_all = ["cancel", "status"]
        )]
        finish: Option<Option<String>>,
        /// Take it back, as long as no node has a certificate by the new authority.
        #[arg(long, conflicts_with = "status")]
        cancel: bool,
        /// Only show how far it is.
        #[arg(long)]
        status: bool,
    },
    /// Show the cluster: its nodes, file systems, and where its coordination is.
    Show(Dir),
    /// Stop all nodes of the cluster: unmounts everywhere, makes everything durable, then all daemons end, this node's last.
    /// Nothing moves to other nodes. If programs use a mount, all nodes stay up. `shale up` on each node starts it again.
    Stop {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Stop also if programs still use mounts, whose open files fail from then on, or if not everything can be made
        /// durable.
        #[arg(long)]
        force: bool,
    },
}

/// How to make a cluster.
#[derive(Args, Debug)]
pub struct Create {
    /// The node's directory.
    #[command(flatten)]
    pub dir: Dir,
    /// Where other nodes reach this one: IP address, or IP:PORT.
    #[arg(long, value_parser = parse_address, required_unless_present = "undo")]
    pub address: Option<SocketAddr>,
    /// The node's name [default: n1].
    #[arg(long)]
    pub name: Option<String>,
    /// Use this etcd (3.4 or newer), which runs already: URLs of its members, with commas between them [default: the
    /// daemon runs Debian's etcd itself].
    #[arg(long, value_delimiter = ',', value_name = "URL")]
    pub etcd: Vec<String>,
    /// For https: file (PEM) with the certificates of the authorities that have certified that etcd's members. It is copied, to
    /// the nodes that join as well.
    #[arg(long, value_name = "FILE", requires = "etcd")]
    pub etcd_ca: Option<PathBuf>,
    /// File (PEM) with the certificate that this etcd asks its clients for.
    #[arg(long, value_name = "FILE", requires = "etcd_ca", requires = "etcd_key")]
    pub etcd_cert: Option<PathBuf>,
    /// File (PEM) with that certificate's private key.
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
    /// Take an attempt back that has failed: the node is alone again, as before.
    #[arg(long, conflicts_with_all = ["address", "name", "etcd"])]
    pub undo: bool,
}

/// Commands on nodes.
#[derive(Subcommand, Debug)]
pub enum NodeCommand {
    /// Make this machine a node of a cluster, with NSDs of its own, and mount the first file system.
    Join(Join),
    /// Show the nodes of the cluster.
    List(Dir),
    /// Expel a node: its programs get errors, its daemon waits, and it can't come back until it is let in again.
    Expel {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Number or name of the node.
        node: String,
    },
    /// Let a node that was expelled by hand join again: by itself, if its daemon runs.
    Unexpel {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Number or name of the node.
        node: String,
    },
    /// Forget a node that is gone, or that never ran: its name, address and settings, its member of etcd. Refused while it is
    /// up or has NSDs in use. It can't come back; its machine joins anew.
    Remove {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Number or name of the node.
        node: String,
    },
    /// Move all data off a node's NSDs, so that it can leave.
    Drain {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Number or name of the node.
        node: String,
        /// Wait until they are empty, and show progress.
        #[arg(long)]
        wait: bool,
        /// Take the drain back: NSDs whose drain hasn't ended stay in use. What has moved stays where it is.
        #[arg(long, conflicts_with = "wait")]
        cancel: bool,
    },
    /// Put a node into a class: settings can be made for all nodes of a class.
    Class {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Number or name of the node.
        node: String,
        /// Name of the class.
        class: String,
    },
}

/// Arguments of `node join`.
#[derive(Args, Debug)]
pub struct Join {
    /// What `shale cluster join-token` printed on a node of the cluster; `-` reads it from standard input. A token that is
    /// an argument can be seen by all users of this machine while the command runs.
    #[arg(required_unless_present = "token_file", conflicts_with = "token_file")]
    pub token: Option<String>,
    /// File with the token.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The node's directory; must be empty or new.
    #[command(flatten)]
    pub dir: Dir,
    /// Where other nodes reach this one: IP address, or IP:PORT.
    #[arg(long, value_parser = parse_address)]
    pub address: SocketAddr,
    /// The node's name [default: n and its number].
    #[arg(long)]
    pub name: Option<String>,
    /// Directory to mount at [default: DIR/mnt].
    #[arg(long)]
    pub mount: Option<PathBuf>,
    /// Bytes of each NSD's region, which are allocated at once: a number with K, M, G or T (powers of 1024)
    /// [default: 20G].
    #[arg(long, value_parser = parse_size)]
    pub nsd_size: Option<u64>,
    /// Number of NSDs, 0 to 64 [default: 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub nsds: Option<u32>,
    /// The node becomes a quorum node; its token must be for one (`shale cluster join-token --quorum`). Its daemon runs a
    /// member of the cluster's etcd: a cluster needs three or five of them to survive the loss of one or two.
    #[arg(long)]
    pub quorum: bool,
    /// Let users other than the mounting one use the file system (as -o allow_other).
    #[arg(long)]
    pub allow_other: bool,
}

/// Commands on settings.
#[derive(Subcommand, Debug)]
pub enum Config {
    /// Show all settings as this node, another one or those of a class have them, with their units and ranges.
    List {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Whose.
        #[command(flatten)]
        of: SettingsOf,
    },
    /// Show one setting.
    Get {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Name of the setting.
        name: String,
        /// Whose.
        #[command(flatten)]
        of: SettingsOf,
    },
    /// Change a setting for the whole cluster, for one node or for a class of nodes.
    Set {
        /// The node's directory.
        #[command(flatten)]
        dir: Dir,
        /// Name of the setting.
        name: String,
        /// Its value; leave it out to have the default again.
        value: Option<String>,
        /// For this node only: a number or a name.
        #[arg(long, conflicts_with = "class")]
        node: Option<String>,
        /// For the nodes of this class only.
        #[arg(long)]
        class: Option<String>,
    },
}

/// Whose settings are shown.
#[derive(Args, Debug)]
pub struct SettingsOf {
    /// As this node of the cluster has them: a number or a name [default: the node that is asked].
    #[arg(long, value_name = "NODE", conflicts_with = "class")]
    pub node: Option<String>,
    /// As a node of this class has them that has none of its own.
    #[arg(long)]
    pub class: Option<String>,
}

/// The port at which nodes listen for each other if none is given.
pub const PORT: u16 = 7311;

/// Reads `IP` or `IP:PORT`.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let with_port = text.parse::<SocketAddr>();
    let address = with_port.or_else(|_| text.parse().map(|ip: IpAddr| SocketAddr::new(ip, PORT)));
    match address {
        Ok(address) if !address.ip().is_unspecified() && address.port() != 0 => Ok(address),
        _ => Err(format!(
            "{text:?} is no address at which other nodes can reach this one; write an IP address, or IP:PORT"
        )),
    }
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
    fn any_text_is_a_size_and_an_address_or_refused() {
        fuzzing::fuzz!(fuzzing::ROUNDS, |input: &[u8]| {
            let mut source = fuzzing::Source::new(input);
            let units = ["", "K", "mib", "G", " T", "b", "IB", "ü"];
            let size = format!("{}{}", source.number(), units[source.below(units.len())]);
            let address = source.changed(b"[2001:db8::1]:7311");
            let address = String::from_utf8_lossy(&address).into_owned();
            for text in [size, address, String::from_utf8_lossy(input).into_owned()] {
                if let Ok(bytes) = parse_size(&text) {
                    assert_eq!(parse_size(&bytes.to_string()), Ok(bytes));
                }
                if let Ok(address) = parse_address(&text) {
                    assert_eq!(parse_address(&address.to_string()), Ok(address));
                }
            }
        });
    }

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn the_overall_help_says_what_shale_is_and_lists_every_command_once() {
        let help = command().render_help().to_string();
        assert!(
            help.starts_with("Shale is a parallel file system"),
            "{help}"
        );
        let mut all = Vec::new();
        for visible in command().get_subcommands().filter(|it| !it.is_hide_set()) {
            list(visible, "", &mut all);
        }
        assert!(all.len() > 14, "{all:?}");
        for (name, about) in all {
            assert!(about.len() > 10, "{name} has no text");
            let lines = help
                .lines()
                .filter(|line| line.trim_start().starts_with(&format!("{name} ")));
            assert_eq!(lines.count(), 1, "{name} in: {help}");
        }
    }

    #[test]
    fn every_argument_has_a_text() {
        fn walk(command: &clap::Command) {
            for argument in command.get_arguments() {
                let text = argument
                    .get_help()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                assert!(
                    text.len() > 10,
                    "{}: {}",
                    command.get_name(),
                    argument.get_id()
                );
            }
            command.get_subcommands().for_each(walk);
        }
        walk(&command());
    }
}
