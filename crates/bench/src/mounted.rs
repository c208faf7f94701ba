//! Measurements through the kernel and a mount, as programs see the file system.
//!
//! The floor of metadata is a file system in memory on the same FUSE layer and transport; that of
//! data is the lower of the disk's and of FUSE's own speed; that of durable work is ext4 on the
//! same disk.

mod cold;
mod million;
mod overwrites;
mod strided;

use crate::{
    disk, floor,
    measure::{Goal, Line, Unit, compare, pairs, pairs_of, per_second, print},
    paths,
    start::{new_node, open_node},
    workers::{Cost, WORKERS, crowd, own_cpu},
};
use fuse::{Door, DoorSettings, Mount, MountOptions, TransportChoice, Unmount};
use model::{Error, ErrorKind, Result, Scheme};
use node::Node;
use std::{
    cell::Cell,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use world::World;

const GIB: u64 = 1 << 30;
/// Files of the metadata lines, for all workers together.
const FILES: u64 = 200_000;
/// Files in a shared directory.
const SHARED_FILES: u64 = 20_000;
/// Bytes of a stream.
const STREAM: u64 = 2 * GIB;
/// Number of random reads, and how many at once.
const READS: u64 = 200_000;
const DEPTH: u64 = 16;
/// Files fsynced one by one.
const SYNCED: u64 = 1_000;
/// Transactions of the SQLite line.
const TRANSACTIONS: u64 = 5_000;
/// The scheme of the erasure-coded lines.
const ERASURE: Scheme = Scheme::Erasure { k: 4, m: 2 };

/// All lines.
///
/// # Errors
/// The error of the mount or start.
pub fn lines(world: &World, dir: &Path, runs: usize, only: &str) -> Result<()> {
    let bench = Mounted {
        world: world.clone(),
        dir: dir.join("mounted"),
        runs,
        only: only.to_owned(),
        next: Cell::new(0),
    };
    bench.metadata()?;
    bench.scan_after_restart()?;
    bench.cold_names()?;
    bench.million_files()?;
    bench.transports()?;
    bench.data()?;
    bench.strided()?;
    bench.overwrites()?;
    bench.durable()?;
    bench.idle()?;
    bench.erasure()
}

/// Lists a folder; entries per second.
type Scan = fn(&Path) -> f64;

/// Unmounts what an interrupted run left mounted, so that its directory can be removed.
pub fn detach_stale_mounts(dir: &Path) {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    // If something is left, creating the directory will report it.
    for left in fuse::mounted_shales().into_iter().flatten() {
        if left.mountpoint.starts_with(&dir) {
            let _ = fuse::unmount_foreign(&left.mountpoint, Unmount::Lazy);
        }
    }
}

struct Mounted {
    world: World,
    dir: PathBuf,
    runs: usize,
    only: String,
    /// Folder names are never reused, so that no run profits from another.
    next: Cell<u64>,
}

/// A mounted node.
struct Served {
    node: Arc<Node>,
    mount: Mount,
    path: PathBuf,
}

impl Mounted {
    fn wanted(&self, names: &[&str]) -> bool {
        names.iter().any(|name| name.contains(&self.only))
    }

    fn fresh(&self) -> String {
        self.next.set(self.next.get() + 1);
        format!("run{}", self.next.get())
    }

    fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        fs::create_dir_all(&path).map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))?;
        Ok(path)
    }

    fn serve(&self, node: Arc<Node>, transport: TransportChoice) -> Result<Served> {
        let path = self.folder("mnt")?;
        let mount = self.mount(&node, &path, transport)?;
        Ok(Served { node, mount, path })
    }

    fn mount(&self, node: &Node, path: &Path, transport: TransportChoice) -> Result<Mount> {
        self.mount_with(node, path, transport, false)
    }

    fn mount_with(
        &self,
        node: &Node,
        path: &Path,
        transport: TransportChoice,
        no_acl: bool,
    ) -> Result<Mount> {
        let settings = DoorSettings {
            no_acl,
            selinux: fuse::node_has_selinux(),
            ..DoorSettings::default()
        };
        let door = Door::new(node.client().clone(), settings);
        let door = self.world.block_on(door)?;
        let options = MountOptions {
            transport,
            no_acl,
            ..MountOptions::new(path)
        };
        Mount::start(&self.world, Arc::new(door), &options)
    }

    fn new_served(&self, scheme: Scheme, transport: TransportChoice) -> Result<Served> {
        let home = self.folder("node")?;
        let node = new_node(&self.world, &home, scheme, 12 * GIB / scheme.width() as u64)?;
        self.serve(node, transport)
    }

    fn end(&self, served: Served) -> Result<()> {
        self.world.block_on(served.mount.unmount(Unmount::Forced))?;
        self.world.block_on(served.node.close())?;
        drop(served);
        let _ = fs::remove_dir_all(self.dir.join("node"));
        Ok(())
    }

    fn print(
        &self,
        name: &str,
        floor_name: &'static str,
        unit: Unit,
        goal: Goal,
        values: (Vec<f64>, Vec<f64>),
    ) {
        if self.wanted(&[name]) {
            print(&Line {
                name: name.into(),
                floor_name,
                unit,
                measured: values.0,
                floor: values.1,
                goal,
            });
        }
    }

    /// Measures and prints a line, if it was asked for.
    fn line(
        &self,
        name: &str,
        floor_name: &'static str,
        unit: Unit,
        goal: Goal,
        measured: impl FnMut() -> f64,
        floor: impl FnMut() -> f64,
    ) {
        if self.wanted(&[name]) {
            compare(self.runs, name, floor_name, unit, goal, measured, floor);
        }
    }

    /// Create, stat and unlink by two processes, each in its own folder.
    fn metadata(&self) -> Result<()> {
        const CREATE: &str = "mount: create+close, until idle";
        const CPU: &str = "mount: own CPU per create, beyond the floor's";
        const STAT: &str = "mount: stat, kernel caches dropped";
        const UNLINK: &str = "mount: unlink, until idle";
        const SHARED: &str = "mount: shared directory, 3,901 bytes to empty";
        if !self.wanted(&[CREATE, CPU, STAT, UNLINK, SHARED]) {
            return Ok(());
        }
        let served = self.new_served(Scheme::Replicate(1), TransportChoice::Auto)?;
        let trivial = self.folder("floor")?;
        let floor_mount = floor::mount(&self.world, &trivial, false, TransportChoice::Auto)?;
        if self.wanted(&[CREATE, CPU, STAT, UNLINK]) {
            let through = |root: &Path| {
                let made = self.life_of_files(root);
                self.world
                    .block_on(served.node.client().sync_all())
                    .expect("syncs");
                made
            };
            let [create, cpu, stat, unlink] =
                pairs_of(self.runs, || through(&served.path), || through(&trivial));
            let memory = "memory on our FUSE";
            self.print(CREATE, memory, Unit::PerSecond, Goal::Ratio(0.75), create);
            // The kernel's and the transport's share of the daemon's CPU time is in the floor as
            // well.
            let own = cpu.0.iter().zip(&cpu.1).map(|(ours, floor)| ours - floor);
            let own = (own.collect(), cpu.1.clone());
            self.print(CPU, memory, Unit::Microseconds, Goal::AtMost(15.0), own);
            self.print(STAT, memory, Unit::PerSecond, Goal::Ratio(0.8), stat);
            self.print(UNLINK, memory, Unit::PerSecond, Goal::Ratio(0.7), unlink);
        }
        if self.wanted(&[SHARED]) {
            let ours = |what| self.shared_directory(&served.path, what);
            let times = pairs(self.runs, || ours("write-small"), || ours("write-empty"));
            let cost: Vec<f64> = times.0.iter().zip(&times.1).map(|(a, b)| a / b).collect();
            let one = vec![1.0; cost.len()];
            self.print(
                SHARED,
                "empty files",
                Unit::Times,
                Goal::AtMost(1.5),
                (cost, one),
            );
        }
        self.world.block_on(floor_mount.unmount(Unmount::Forced))?;
        self.end(served)
    }

    fn life_of_files(&self, root: &Path) -> [f64; 4] {
        let folders: Vec<PathBuf> = (0..WORKERS).map(|_| root.join(self.fresh())).collect();
        let folders: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
        let run = |what| crowd(what, &folders, FILES / WORKERS).expect("works");
        let created = run("create");
        paths::drop_kernel_caches();
        let stated = run("stat");
        let removed = run("unlink");
        [
            per_second(FILES, created.until_idle),
            created.cpu.as_secs_f64() * 1e6 / FILES as f64,
            per_second(FILES, stated.wall),
            per_second(FILES, removed.until_idle),
        ]
    }

    /// Write, read and remove by two processes in one folder; seconds.
    fn shared_directory(&self, root: &Path, write: &str) -> f64 {
        let folder = root.join(self.fresh());
        fs::create_dir(&folder).expect("the folder is new");
        let folders = vec![folder.as_path(); WORKERS as usize];
        let run = |what| -> Cost { crowd(what, &folders, SHARED_FILES / WORKERS).expect("works") };
        let mut seconds = run(write).wall.as_secs_f64();
        paths::drop_kernel_caches();
        seconds += run("read-small").wall.as_secs_f64();
        seconds += run("remove-small").wall.as_secs_f64();
        fs::remove_dir(&folder).expect("the folder is empty");
        seconds
    }

    /// Listing a large directory on a node that has just started.
    fn scan_after_restart(&self) -> Result<()> {
        const SCAN: &str = "mount: ls -l after a restart, entries";
        const BIRTHS: &str = "mount: the same with times of birth (statx each)";
        if !self.wanted(&[SCAN, BIRTHS]) {
            return Ok(());
        }
        let served = self.new_served(Scheme::Replicate(1), TransportChoice::Auto)?;
        paths::create(&served.path.join("large"), FILES);
        let mut served = Some(served);
        let trivial = self.folder("floor")?;
        let floor_mount = floor::mount(&self.world, &trivial, false, TransportChoice::Auto)?;
        paths::create(&trivial.join("large"), FILES);
        let lines: [(&str, Scan, Goal); 2] = [
            (SCAN, paths::scan, Goal::Value(50_000.0)),
            (BIRTHS, paths::scan_with_births, Goal::None),
        ];
        for (name, scan, goal) in lines {
            let restarted = || {
                served = Some(
                    self.restart(served.take().expect("the node is running"))
                        .expect("starts"),
                );
                let mount = &served.as_ref().expect("the node is running").path;
                scan(&mount.join("large"))
            };
            let memory = "memory on our FUSE";
            self.line(name, memory, Unit::PerSecond, goal, restarted, || {
                paths::drop_kernel_caches();
                scan(&trivial.join("large"))
            });
        }
        self.world.block_on(floor_mount.unmount(Unmount::Forced))?;
        self.end(served.take().expect("the node is running"))
    }

    /// The same file system on a node with empty caches.
    fn restart(&self, served: Served) -> Result<Served> {
        let Served { node, mount, .. } = served;
        self.world.block_on(mount.unmount(Unmount::Forced))?;
        drop(mount);
        self.world.block_on(node.close())?;
        drop(node);
        let home = self.dir.join("node");
        let node = open_node(&self.world, &home, Scheme::Replicate(1))?;
        self.serve(node, TransportChoice::Auto)
    }

    /// io_uring compared with /dev/fuse: for the trivial file system, and for Shale.
    fn transports(&self) -> Result<()> {
        const TRIVIAL: &str = "transport: create+close, memory on our FUSE";
        const OURS: &str = "transport: create+close, Shale";
        if !self.wanted(&[TRIVIAL, OURS]) {
            return Ok(());
        }
        let create = |root: &Path| {
            let folders: Vec<PathBuf> = (0..WORKERS).map(|_| root.join(self.fresh())).collect();
            let folders: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
            let run = |what| crowd(what, &folders, FILES / 4 / WORKERS).expect("works");
            let speed = per_second(FILES / 4, run("create").wall);
            run("unlink");
            speed
        };
        let (one, other) = (self.folder("floor")?, self.folder("floor2")?);
        let ring = match floor::mount(&self.world, &one, false, TransportChoice::IoUring) {
            Ok(mount) => mount,
            Err(error) => {
                println!("{TRIVIAL}: not measured: {error}");
                return Ok(());
            }
        };
        let device = floor::mount(&self.world, &other, false, TransportChoice::Classic)?;
        let values = pairs(self.runs, || create(&one), || create(&other));
        self.print(
            TRIVIAL,
            "/dev/fuse",
            Unit::PerSecond,
            Goal::Ratio(1.6),
            values,
        );
        for mount in [ring, device] {
            self.world.block_on(mount.unmount(Unmount::Forced))?;
        }
        let served = self.new_served(Scheme::Replicate(1), TransportChoice::IoUring)?;
        let classic = self.mount(&served.node, &other, TransportChoice::Classic)?;
        let values = pairs(self.runs, || create(&served.path), || create(&other));
        self.print(OURS, "/dev/fuse", Unit::PerSecond, Goal::Ratio(1.4), values);
        self.world.block_on(classic.unmount(Unmount::Forced))?;
        self.end(served)
    }

    /// Streams and random reads.
    fn data(&self) -> Result<()> {
        const WRITE: &str = "mount: write stream 1 MiB, fsync";
        const READ: &str = "mount: read stream 1 MiB, cold";
        const RANDOM: &str = "mount: read random 4 KiB, O_DIRECT, depth 16";
        if !self.wanted(&[WRITE, READ, RANDOM]) {
            return Ok(());
        }
        let served = self.new_served(Scheme::Replicate(1), TransportChoice::Auto)?;
        let trivial = self.folder("floor")?;
        let nothing = floor::mount(&self.world, &trivial, true, TransportChoice::Auto)?;
        let (disk, world) = (
            disk::floor(&self.world, &self.folder("disk")?, STREAM)?,
            &self.world,
        );
        let (ours, theirs) = (served.path.join("stream"), trivial.join("stream"));
        let write = |file: &Path| paths::write_stream(file, STREAM);
        let read = |file: &Path| paths::read_stream(file, STREAM);
        let random = |file: &Path| paths::read_random(file, STREAM, READS, DEPTH);
        // The reads need these files, whichever lines were asked for.
        write(&ours);
        write(&theirs);
        let (bytes, each) = (Unit::BytesPerSecond, Unit::PerSecond);
        let (streams, lower) = (Goal::Ratio(0.85), "disk, our FUSE");
        self.line(
            WRITE,
            lower,
            bytes,
            streams,
            || write(&ours),
            || disk::write(world, &disk, STREAM).min(write(&theirs)),
        );
        self.line(
            READ,
            lower,
            bytes,
            streams,
            || read(&ours),
            || disk::read(world, &disk, STREAM).min(read(&theirs)),
        );
        self.line(
            RANDOM,
            lower,
            each,
            Goal::Ratio(0.7),
            || random(&ours),
            || {
                let of_fuse = random(&theirs);
                disk::read_random(world, &disk, STREAM, READS, DEPTH).min(of_fuse)
            },
        );
        self.world.block_on(nothing.unmount(Unmount::Forced))?;
        // Both floors combined: the speed left when FUSE and the disk share the CPUs.
        let through = floor::mount_on(world, &trivial, &disk)?;
        write(&theirs);
        let (none, both) = (Goal::None, "disk under our FUSE");
        self.line(WRITE, both, bytes, none, || write(&ours), || write(&theirs));
        self.line(READ, both, bytes, none, || read(&ours), || read(&theirs));
        self.line(
            RANDOM,
            both,
            each,
            none,
            || random(&ours),
            || random(&theirs),
        );
        self.world.block_on(through.unmount(Unmount::Forced))?;
        self.end(served)
    }

    /// Work that waits for the disk every time, compared with ext4.
    fn durable(&self) -> Result<()> {
        const FSYNC: &str = "mount: create, write 4 KiB, fsync";
        const SQLITE: &str = "mount: SQLite, single-row transactions";
        if !self.wanted(&[FSYNC, SQLITE]) {
            return Ok(());
        }
        let served = self.new_served(Scheme::Replicate(1), TransportChoice::Auto)?;
        let ext4 = self.folder("ext4")?;
        let (each, goal) = (Unit::PerSecond, Goal::Ratio(0.6));
        let files = |root: &Path| paths::synced_files(&root.join(self.fresh()), SYNCED);
        self.line(
            FSYNC,
            "ext4",
            each,
            goal,
            || files(&served.path),
            || files(&ext4),
        );
        let database = |root: &Path| paths::sqlite(&root.join(self.fresh()), TRANSACTIONS);
        self.line(
            SQLITE,
            "ext4",
            each,
            goal,
            || database(&served.path),
            || database(&ext4),
        );
        self.end(served)
    }

    /// The cost of an unused mounted file system.
    fn idle(&self) -> Result<()> {
        const IDLE: &str = "mount: idle daemon, CPU per second";
        const WATCHED: Duration = Duration::from_secs(10);
        if !self.wanted(&[IDLE]) {
            return Ok(());
        }
        let served = self.new_served(Scheme::Replicate(1), TransportChoice::Auto)?;
        paths::create(&served.path.join("some"), 1000);
        crowd("scan", &[&served.path.join("some")], 1)?;
        let before = own_cpu();
        std::thread::sleep(WATCHED);
        let used = (own_cpu() - before).as_secs_f64() / WATCHED.as_secs_f64() * 1e6;
        let one_percent = vec![1e4];
        self.print(
            IDLE,
            "1 % of a core",
            Unit::Microseconds,
            Goal::AtMost(1e4),
            (vec![used], one_percent),
        );
        self.end(served)
    }

    /// Streams on erasure(4+2) over six NSDs of one disk; measured in bytes of pieces, so that
    /// parity counts as work done.
    fn erasure(&self) -> Result<()> {
        const WRITE: &str = "mount: erasure(4+2), write stream, pieces";
        const READ: &str = "mount: erasure(4+2), read stream, cold, pieces";
        if !self.wanted(&[WRITE, READ]) {
            return Ok(());
        }
        let served = self.new_served(ERASURE, TransportChoice::Auto)?;
        let (disk, world) = (
            disk::floor(&self.world, &self.folder("disk")?, STREAM)?,
            &self.world,
        );
        let file = served.path.join("stream");
        let values = pairs(
            self.runs,
            || paths::write_stream(&file, STREAM) * 1.5,
            || disk::write(world, &disk, STREAM),
        );
        self.print(
            WRITE,
            "disk, io_uring",
            Unit::BytesPerSecond,
            Goal::Ratio(0.8),
            values,
        );
        let values = pairs(
            self.runs,
            || paths::read_stream(&file, STREAM),
            || disk::read(world, &disk, STREAM),
        );
        self.print(
            READ,
            "disk, io_uring",
            Unit::BytesPerSecond,
            Goal::Ratio(0.8),
            values,
        );
        self.end(served)
    }
}
