//! The command line: names, arguments and their help texts.

use crate::options::Options;
use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand};
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
const GROUPS: [(&str, &[&str]); 4] = [
    ("Start and stop", &["up", "down", "mount", "umount"]),
    ("Inspect", &["status", "health", "waiters"]),
    ("File system and disks", &["fs", "pool", "nsd", "repair"]),
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
    /// Add a mount to the running node, until it is unmounted or the node ends.
    Mount(Mount),
    /// End one mount. What was written through it is durable afterwards.
    Umount(Umount),
    /// Show what is running, since when, and how much memory it uses.
    Status(Dir),
    /// Show problems and what to do about them. Exit code 1 if there are any.
    Health(Dir),
    /// Show which operations are waiting, for what, and for how long.
    Waiters(Dir),
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
        /// Bytes of the region, which are allocated at once: a number with K, M, G or T (powers of
        /// 1024) [default: as the others].
        #[arg(long, value_parser = parse_size)]
        nsd_size: Option<u64>,
        /// A block device or the path of a new region file [default: DIR/nsd/ID.region].
        #[arg(long)]
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
