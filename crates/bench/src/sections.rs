//! Measurements without the kernel: the client as a library.

use crate::{
    disk,
    library::Library,
    measure::{Goal, Unit, compare},
    paths,
    start::new_node,
};
use model::{Error, ErrorKind, Result, Scheme};
use node::Node;
use std::{cell::Cell, path::PathBuf, sync::Arc};
use world::{Disk, World};

const GIB: u64 = 1 << 30;
/// Files of the metadata lines; a burst, so that the tree's compaction falls into the next lines.
const FILES: u64 = 50_000;
/// Bytes of a stream.
const STREAM: u64 = 2 * GIB;
/// Random reads.
const READS: u64 = 20_000;
/// Files fsynced one by one.
const SYNCED: u64 = 1_000;

/// A node on the disk, and the disk as its floor.
pub struct Bench {
    world: World,
    dir: PathBuf,
    runs: usize,
    only: String,
    node: Arc<Node>,
    /// The floor of streams and reads.
    disk: Disk,
    /// Folder names are never reused, so that no run profits from another.
    next: Cell<u64>,
}

impl Bench {
    /// Makes a file system on one NSD and a region of the same size beside it.
    pub fn new(world: World, dir: PathBuf, runs: usize, only: String) -> Result<Self> {
        std::fs::create_dir_all(&dir)
            .map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))?;
        let node = new_node(&world, &dir, Scheme::Replicate(1), 12 * GIB)?;
        let disk = disk::floor(&world, &dir, STREAM)?;
        Ok(Self {
            world,
            dir,
            runs,
            only,
            node,
            disk,
            next: Cell::new(0),
        })
    }

    /// Closes the node.
    pub fn end(self) -> Result<()> {
        self.world.block_on(self.node.close())
    }

    fn fresh(&self) -> String {
        self.next.set(self.next.get() + 1);
        format!("run{}", self.next.get())
    }

    fn settle(&self) {
        self.world
            .block_on(self.node.client().sync_all())
            .expect("syncs");
    }

    fn line(
        &self,
        name: &str,
        floor_name: &'static str,
        unit: Unit,
        goal: Goal,
        measured: impl FnMut() -> f64,
        floor: impl FnMut() -> f64,
    ) {
        if name.contains(&self.only) {
            compare(self.runs, name, floor_name, unit, goal, measured, floor);
        }
    }

    /// All lines.
    pub fn through_the_library(&self) -> Result<()> {
        let library = Library {
            world: &self.world,
            client: self.node.client(),
        };
        self.library_metadata(&library);
        self.library_data(&library);
        Ok(())
    }

    fn library_metadata(&self, library: &Library<'_>) {
        // One folder at a time goes through all three lines. The floor is ext4 on the same disk
        // with the kernel's caches warm, which no user-space file system is expected to reach.
        let folder = |label: &str| self.dir.join(label);
        let create = |label: &str| {
            let made = library.folder(label);
            let speed = library.create(made, FILES);
            (made, speed)
        };
        let remove = |label: &str, made| {
            let speed = library.unlink(made, FILES);
            library.remove_folder(label);
            self.settle();
            speed
        };
        let floor = |which: usize| {
            let path = folder("ext4");
            let created = paths::create(&path, FILES);
            let stated = if which == 1 {
                paths::stat(&path, FILES)
            } else {
                0.0
            };
            let removed = paths::unlink(&path, FILES);
            paths::settle(&self.dir);
            [created, stated, removed][which]
        };
        self.line(
            "library: create empty files, 1 thread",
            "ext4 through the kernel",
            Unit::PerSecond,
            Goal::Value(100_000.0),
            || {
                let label = self.fresh();
                let (made, speed) = create(&label);
                remove(&label, made);
                speed
            },
            || floor(0),
        );
        self.line(
            "library: stat",
            "ext4 through the kernel",
            Unit::PerSecond,
            Goal::None,
            || {
                let label = self.fresh();
                let (made, _) = create(&label);
                let speed = library.stat(made, FILES);
                remove(&label, made);
                speed
            },
            || floor(1),
        );
        self.line(
            "library: unlink",
            "ext4 through the kernel",
            Unit::PerSecond,
            Goal::None,
            || {
                let label = self.fresh();
                let (made, _) = create(&label);
                remove(&label, made)
            },
            || floor(2),
        );
    }

    fn library_data(&self, library: &Library<'_>) {
        let (world, floor) = (&self.world, &self.disk);
        let file = Cell::new(None);
        self.line(
            "library: write stream 1 MiB, fsync",
            "disk, io_uring",
            Unit::BytesPerSecond,
            Goal::Ratio(0.85),
            || {
                let (made, speed) = library.write_stream("stream", STREAM);
                file.set(Some(made));
                speed
            },
            || disk::write(world, floor, STREAM),
        );
        let stream = || {
            file.get().unwrap_or_else(|| {
                let (made, _) = library.write_stream("stream", STREAM);
                file.set(Some(made));
                made
            })
        };
        self.line(
            "library: read stream 1 MiB, cold",
            "disk, io_uring",
            Unit::BytesPerSecond,
            Goal::Ratio(0.85),
            || {
                let made = stream();
                library.read_stream(made, STREAM)
            },
            || disk::read(world, floor, STREAM),
        );
        for depth in [1, 16] {
            let name = format!("library: read random 4 KiB, depth {depth}");
            self.line(
                &name,
                "disk, io_uring",
                Unit::PerSecond,
                Goal::None,
                || {
                    let made = stream();
                    library.read_random(made, STREAM, READS, depth)
                },
                || disk::read_random(world, floor, STREAM, READS, depth),
            );
        }
        self.line(
            "library: create, write 4 KiB, fsync",
            "ext4",
            Unit::PerSecond,
            Goal::Ratio(0.5),
            || {
                let label = self.fresh();
                let made = library.folder(&label);
                let speed = library.synced_files(made, SYNCED);
                library.unlink(made, SYNCED);
                library.remove_folder(&label);
                speed
            },
            || paths::synced_files(&self.dir.join("ext4-synced"), SYNCED),
        );
    }
}
