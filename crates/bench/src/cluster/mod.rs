//! Measurements of clusters of real daemons on this machine: `make bench-cluster`.
//!
//! The floor of each line is the same work on one node alone, on the same disk, in the same run: what is measured is
//! what a cluster costs. All nodes share this machine's processors, so that lines in which several nodes work say
//! more about CPU time than about networks.

mod daemons;
mod memory;
mod processes;

use crate::measure::{Goal, Line, Unit, pairs, pairs_of, per_second, print};
use crate::paths;
use crate::workers::{WORKERS, crowd};
use daemons::{Cluster, Daemon};
use model::{Error, ErrorKind, Result};
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

const GIB: u64 = 1 << 30;
/// Files of the metadata lines, for all workers together.
const FILES: u64 = 20_000;
/// Bytes of a stream.
const STREAM: u64 = GIB;
/// Number of random reads, and how many at once.
const READS: u64 = 20_000;
const DEPTH: u64 = 16;
/// Files fsynced one by one.
const SYNCED: u64 = 300;
/// Size of each NSD of small clusters, and of those with six.
const NSD: &str = "6G";
const NSD_OF_SIX: &str = "2G";
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
        "owner's mount: ls -l, cold, entries",
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
        "owner's mount: read random 4 KiB, depth 16",
        Unit::PerSecond,
        Goal::Ratio(0.9),
    ),
};

const REMOTE: Compared = Compared {
    create: (
        "remote mount: create+close",
        Unit::PerSecond,
        Goal::Value(8_000.0),
    ),
    unlink: ("remote mount: unlink", Unit::PerSecond, Goal::None),
    list: (
        "remote mount: ls -l of 20,000 files, cold, entries",
        Unit::PerSecond,
        Goal::Value(25_000.0),
    ),
    write: (
        "remote mount: write stream 1 MiB, fsync",
        Unit::BytesPerSecond,
        Goal::Ratio(0.6),
    ),
    read: (
        "remote mount: read stream 1 MiB, cold",
        Unit::BytesPerSecond,
        Goal::Ratio(0.6),
    ),
    random: (
        "remote mount: read random 4 KiB, depth 16",
        Unit::PerSecond,
        Goal::Ratio(0.5),
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

    fn print(&self, (name, unit, goal): Wanted, (measured, floor): (Vec<f64>, Vec<f64>)) {
        if self.wanted(&[name]) {
            print(&Line {
                name: name.into(),
                floor_name: ONE_NODE,
                unit,
                measured,
                floor,
                goal,
            });
        }
    }

    /// The only mount of a cluster, on its owner's node.
    fn owners_mount(&self) -> Result<()> {
        if !self.wanted(&OWNERS.names()) {
            return Ok(());
        }
        let dir = self.folder("owner")?;
        let alone = Daemon::alone(&dir.join("alone"), ONE_COPY, 1, NSD)?;
        let cluster = Cluster::of(&dir, 1, ONE_COPY, NSD)?;
        let mount = cluster.first().mount();
        self.compare(&OWNERS, (&mount, &mount), &alone.mount());
        Ok(())
    }

    /// Mounts of nodes that don't own the file system.
    fn remote_mount(&self) -> Result<()> {
        const SYNCED_CREATE: Wanted = (
            "remote mount: create, write 4 KiB, fsync; longer by",
            Unit::Microseconds,
            Goal::AtMost(300.0),
        );
        const TOGETHER: Wanted = (
            "three mounts: create+close, own directories",
            Unit::PerSecond,
            Goal::Ratio(2.0),
        );
        let own = [SYNCED_CREATE.0, TOGETHER.0];
        if !self.wanted(&[&REMOTE.names()[..], &own].concat()) {
            return Ok(());
        }
        let dir = self.folder("remote")?;
        let alone = Daemon::alone(&dir.join("alone"), ONE_COPY, 1, NSD)?;
        let cluster = Cluster::of(&dir, 3, ONE_COPY, NSD)?;
        let (owner, others) = cluster.owner_and_others()?;
        let (remote, third) = (others[0].mount(), others[1].mount());
        // The one that lists hasn't seen the files before.
        self.compare(&REMOTE, (&remote, &third), &alone.mount());
        if self.wanted(&[SYNCED_CREATE.0]) {
            let each = |root: &Path| 1e6 / paths::synced_files(&self.fresh(root), SYNCED);
            let (remote, local) = pairs(self.runs, || each(&remote), || each(&owner.mount()));
            let longer = remote.iter().zip(&local).map(|(a, b)| a - b).collect();
            self.print(SYNCED_CREATE, (longer, local));
        }
        if self.wanted(&[TOGETHER.0]) {
            let mounts: Vec<PathBuf> = cluster.nodes().iter().map(Daemon::mount).collect();
            let create = |mounts: &[PathBuf]| {
                let folders: Vec<PathBuf> = mounts.iter().map(|it| self.fresh(it)).collect();
                let folders: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
                let each = FILES / 4;
                let made = crowd("create", &folders, each).expect("works");
                per_second(each * folders.len() as u64, made.wall)
            };
            let values = pairs(self.runs, || create(&mounts), || create(&mounts[..1]));
            if self.wanted(&[TOGETHER.0]) {
                print(&Line {
                    name: TOGETHER.0.into(),
                    floor_name: "one mount",
                    unit: TOGETHER.1,
                    measured: values.0,
                    floor: values.1,
                    goal: TOGETHER.2,
                });
            }
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
        Ok(())
    }

    /// All lines of a mount beside one of a node alone. Files are listed through the second mount.
    fn compare(&self, lines: &Compared, (mount, lister): (&Path, &Path), alone: &Path) {
        let [create, unlink, list] = pairs_of(
            self.runs,
            || self.life_of_files(mount, lister),
            || self.life_of_files(alone, alone),
        );
        self.print(lines.create, create);
        self.print(lines.unlink, unlink);
        self.print(lines.list, list);
        if !self.wanted(&[lines.write.0, lines.read.0, lines.random.0]) {
            return;
        }
        let [write, read] = self.streams(mount, alone);
        self.print(lines.write, write);
        self.print(lines.read, read);
        let random = |root: &Path| paths::read_random(&root.join("stream"), STREAM, READS, DEPTH);
        let random = pairs(self.runs, || random(mount), || random(alone));
        self.print(lines.random, random);
    }

    /// Create and unlink by two processes, each in its own folder, and a listing of the files of both.
    fn life_of_files(&self, root: &Path, lister: &Path) -> [f64; 3] {
        let folders: Vec<PathBuf> = (0..WORKERS).map(|_| self.fresh(root)).collect();
        let folders: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
        let run = |what| crowd(what, &folders, FILES / WORKERS).expect("works");
        let created = run("create").wall;
        paths::settle(root);
        paths::drop_kernel_caches();
        let begun = Instant::now();
        for folder in &folders {
            let name = folder.file_name().expect("it has a name");
            paths::scan(&lister.join(name));
        }
        let listed = begun.elapsed();
        let removed = run("unlink").wall;
        [created, removed, listed].map(|time| per_second(FILES, time))
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
