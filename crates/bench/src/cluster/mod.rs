//! Measurements of clusters of real daemons on this machine: `make bench-cluster`.
//!
//! The floor of each line is the same work on one node alone, on the same disk, in the same run: what is measured is
//! what a cluster costs. All nodes share this machine's processors, so that lines in which several nodes work say
//! more about CPU time than about networks.

mod daemons;
mod loopback;
mod memory;
mod processes;
mod rebuild;
mod remote;

use crate::measure::{Goal, Line, Unit, note, pairs, pairs_of, per_second, print};
use crate::paths;
use crate::workers::{WORKERS, crowd};
use daemons::{Cluster, Daemon};
use model::{Error, ErrorKind, Result};
use remote::{Streamed, limits_of_streams, processes};
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};

const GIB: u64 = 1 << 30;
/// Files of the metadata lines, for all workers together.
const FILES: u64 = 20_000;
/// Bytes of a stream.
const STREAM: u64 = GIB;
/// Bytes of another file, which take the place of the stream's in a client's memory: more than its page pool has.
const OTHER: u64 = GIB / 2;
/// Number of random reads, and how many at once.
const READS: u64 = 20_000;
const DEPTH: u64 = 16;
/// Files fsynced one by one: some tenths of a second, so that a moment in which the machine is busy isn't all of a run.
const SYNCED_FILES: u64 = 1_000;
/// Size of each NSD of small clusters, and of those with six.
const NSD: &str = "6G";
const NSD_OF_SIX: &str = "2G";
/// NSDs of the nodes of which only the owner's mounts: all data is where it is in one node alone, so that what differs is the
/// cluster.
const NSDS_OF_OWNERS: [u32; 3] = [1, 0, 0];
/// Where the nodes are, in the working directory.
const FOLDER: &str = "clusters";
const ONE_COPY: &str = "replicate(1)";
const ERASURE: &str = "erasure(4+2)";

/// What the lines have in common.
pub struct Clusters {
    dir: PathBuf,
    runs: usize,
    only: String,
    /// Folder names are never reused, so that no run profits from another.
    next: Cell<u64>,
}

/// A line with its goal.
type Wanted = (&'static str, Unit, Goal);

/// The lines of a mount compared with one of a node alone.
struct Compared {
    create: Wanted,
    unlink: Wanted,
    list: Wanted,
    write: Wanted,
    read: Wanted,
    random: Wanted,
}

const OWNERS: Compared = Compared {
    create: (
        "owner's mount: create+close",
        Unit::PerSecond,
        Goal::Ratio(0.9),
    ),
    unlink: ("owner's mount: unlink", Unit::PerSecond, Goal::Ratio(0.9)),
    list: (
        "owner's mount: ls -l of 20,000 files, cold",
        Unit::PerSecond,
        Goal::Ratio(0.9),
    ),
    write: (
        "owner's mount: write stream 1 MiB, fsync",
        Unit::BytesPerSecond,
        Goal::Ratio(0.9),
    ),
    read: (
        "owner's mount: read stream 1 MiB, cold",
        Unit::BytesPerSecond,
        Goal::Ratio(0.9),
    ),
    random: (
        "owner's mount: read random 4 KiB, depth 16, cold",
        Unit::PerSecond,
        Goal::Ratio(0.9),
    ),
};

/// Ends what an interrupted run left running in `dir`.
pub fn end_stale(dir: &Path) {
    daemons::end_stale(&dir.join(FOLDER));
}

/// All lines.
///
/// # Errors
/// A daemon that doesn't start or a cluster that doesn't come together.
pub fn lines(dir: &Path, runs: usize, only: &str) -> Result<()> {
    let clusters = Clusters {
        dir: dir.join(FOLDER),
        runs,
        only: only.to_owned(),
        next: Cell::new(0),
    };
    clusters.owners_mount()?;
    clusters.remote_mount()?;
    clusters.erasure()?;
    clusters.rebuild()?;
    clusters.memory()
}

const ONE_NODE: &str = "one node";

impl Clusters {
    fn wanted(&self, names: &[&str]) -> bool {
        names.iter().any(|name| name.contains(&self.only))
    }

    fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        let made = fs::create_dir_all(&path);
        made.map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))?;
        Ok(path)
    }

    fn fresh(&self, root: &Path) -> PathBuf {
        self.next.set(self.next.get() + 1);
        root.join(format!("run{}", self.next.get()))
    }

    fn print(&self, line: Wanted, values: (Vec<f64>, Vec<f64>)) {
        self.print_beside(ONE_NODE, line, values);
    }

    fn print_beside(
        &self,
        floor_name: &'static str,
        (name, unit, goal): Wanted,
        (measured, floor): (Vec<f64>, Vec<f64>),
    ) {
        if self.wanted(&[name]) {
            print(&Line {
                name: name.into(),
                floor_name,
                unit,
                measured,
                floor,
                goal,
            });
        }
    }

    /// The only mount of a cluster of three nodes, on its owner's node.
    fn owners_mount(&self) -> Result<()> {
        const SYNCED: Wanted = (
            "owner's mount: create, write 4 KiB, fsync",
            Unit::PerSecond,
            Goal::Ratio(0.9),
        );
        if !self.wanted(&[&OWNERS.names()[..], &[SYNCED.0]].concat()) {
            return Ok(());
        }
        let dir = self.folder("owner")?;
        let alone = Daemon::alone(&dir.join("alone"), ONE_COPY, 1, NSD)?;
        let cluster = Cluster::with(&dir, &NSDS_OF_OWNERS, ONE_COPY, NSD)?;
        let (owner, others) = cluster.owner_and_others()?;
        if !std::ptr::eq(owner, cluster.first()) {
            note("the owner isn't the node that has the data");
        }
        for other in others {
            other.unmount()?;
        }
        // They stay for a quarter of a minute, and the owner's mount works under tokens as long as others could ask for them.
        cluster.wait("other nodes' clients aren't closed", |_| {
            Ok(owner.ask(&["status"])?["shards"][0]["sessions"] == 1)
        })?;
        let (mount, alone) = (owner.mount(), alone.mount());
        self.compare(&OWNERS, (&mount, &mount), &alone);
        if self.wanted(&[SYNCED.0]) {
            let synced = |root: &Path| paths::synced_files(&self.fresh(root), SYNCED_FILES);
            let values = pairs(self.runs, || synced(&mount), || synced(&alone));
            self.print(SYNCED, values);
        }
        Ok(())
    }

    /// Six nodes with an NSD each, beside one node with six NSDs.
    fn erasure(&self) -> Result<()> {
        const WRITE: Wanted = (
            "erasure(4+2) on six nodes: write stream, fsync",
            Unit::BytesPerSecond,
            Goal::Ratio(0.7),
        );
        const READ: Wanted = (
            "erasure(4+2) on six nodes: read stream, cold",
            Unit::BytesPerSecond,
            Goal::Ratio(0.7),
        );
        if !self.wanted(&[WRITE.0, READ.0]) {
            return Ok(());
        }
        let dir = self.folder("six")?;
        let alone = Daemon::alone(&dir.join("alone"), ERASURE, 6, NSD_OF_SIX)?;
        let cluster = Cluster::of(&dir, 6, ERASURE, NSD_OF_SIX)?;
        let (owner, _) = cluster.owner_and_others()?;
        let [write, read] = self.streams(&owner.mount(), &alone.mount());
        self.print(WRITE, write);
        self.print(READ, read);
        limits_of_streams("six nodes", &owner.mount(), &processes(&cluster)?)?;
        let one = limits_of_streams("one node", &alone.mount(), &alone.processes()?)?;
        note_best_of_six(&one)
    }

    /// All lines of a mount beside one of a node alone. Files are listed through the second mount.
    fn compare(&self, lines: &Compared, (mount, lister): (&Path, &Path), alone: &Path) {
        if self.wanted(&[lines.create.0, lines.unlink.0]) {
            let both = |root: &Path| self.create_and_unlink(root);
            let [create, unlink] = pairs_of(self.runs, || both(mount), || both(alone));
            self.print(lines.create, create);
            self.print(lines.unlink, unlink);
        }
        if self.wanted(&[lines.list.0]) {
            let remote = || self.list(mount, lister);
            let values = pairs(self.runs, remote, || self.list(alone, alone));
            self.print(lines.list, values);
        }
        if !self.wanted(&[lines.write.0, lines.read.0, lines.random.0]) {
            return;
        }
        let [write, read] = self.streams(mount, alone);
        self.print(lines.write, write);
        self.print(lines.read, read);
        if self.wanted(&[lines.random.0]) {
            for root in [mount, alone] {
                paths::write_stream(&root.join("other"), OTHER);
            }
            let values = pairs(self.runs, || read_random(mount), || read_random(alone));
            self.print(lines.random, values);
        }
    }

    /// Create and unlink by two processes, each in its own folder.
    fn create_and_unlink(&self, root: &Path) -> [f64; 2] {
        let folders: Vec<PathBuf> = (0..WORKERS).map(|_| self.fresh(root)).collect();
        let folders: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
        let run = |what| crowd(what, &folders, FILES / WORKERS).expect("works");
        let created = run("create").wall;
        paths::settle(root);
        let removed = run("unlink").wall;
        [created, removed].map(|time| per_second(FILES, time))
    }

    /// `ls -l` of one folder with all files, through a mount that may be another one than made them; entries per second.
    fn list(&self, root: &Path, lister: &Path) -> f64 {
        let folder = self.fresh(root);
        paths::create(&folder, FILES);
        paths::settle(root);
        paths::drop_kernel_caches();
        let name = folder.file_name().expect("it has a name");
        let listed = paths::scan(&lister.join(name));
        paths::unlink(&folder, FILES);
        listed
    }

    fn streams(&self, mount: &Path, alone: &Path) -> [(Vec<f64>, Vec<f64>); 2] {
        let both = |root: &Path| {
            let file = root.join("stream");
            let written = paths::write_stream(&file, STREAM);
            [written, paths::read_stream(&file, STREAM)]
        };
        pairs_of(self.runs, || both(mount), || both(alone))
    }
}

/// What a stream to six nodes could be at best on this machine: one node's CPU time for it, and that for the way of the
/// pieces over the loopback, with nothing for daemons, MACs and disks of the other nodes.
fn note_best_of_six(one_node: &Streamed) -> Result<()> {
    // One piece of six stays on its node.
    let moved = STREAM * 6 / 4 * 5 / 6;
    let way = loopback::seconds_used(moved)?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let least = (one_node.busy + way) / cpus as f64;
    note(&format!(
        "the write stream's pieces over the loopback, without daemons: {way:.2} seconds of CPU time; beside the {:.2} that one \
         node needs for the stream that is at most {:.2} of its speed on {cpus} CPUs",
        one_node.busy,
        one_node.wall / least
    ));
    Ok(())
}

/// Random reads of the stream, none of which the client has in memory; a second.
fn read_random(root: &Path) -> f64 {
    // It keeps what was read last; each run reads at the same places as the one before.
    paths::read_stream(&root.join("other"), OTHER);
    paths::read_random(&root.join("stream"), STREAM, READS, DEPTH)
}

impl Compared {
    fn names(&self) -> [&'static str; 6] {
        let Self {
            create,
            unlink,
            list,
            write,
            read,
            random,
        } = self;
        [create.0, unlink.0, list.0, write.0, read.0, random.0]
    }
}
