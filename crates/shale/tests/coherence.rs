//! Two clients of one file system, each with a mount of its own: what programs do through one mount, programs see at
//! once through the other, also in mappings, whatever this machine's kernel keeps.
//!
//! The clients are in this process. The programs are processes of their own: a page fault holds the lock of its address
//! space until it is answered, and who answers may need that lock.

use crate::fixture::{bounded, open};
use crate::mapping::{BYTES, Mapping};
use client::{Client, ClientSettings, Owner};
use fuse::{Door, DoorSettings, Mount, MountOptions, Unmount};
use model::Scheme;
use node::{Creation, Node, NodePaths};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use world::World;

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;
/// Programs that count.
const PROGRAMS: usize = 8;
/// No program takes longer, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// Environment variable with what a process does that these tests start: its number, the file, and another one that
/// isn't in the file system under test.
const PROGRAM: &str = "SHALE_TEST_COHERENCE";

/// A file system in this process.
struct Cluster {
    world: World,
    node: Arc<Node>,
    mounts: Vec<(Mount, PathBuf)>,
    others: Vec<Arc<Client>>,
    runtime: Runtime,
    home: tempfile::TempDir,
}

impl Cluster {
    /// With one client, which is mounted.
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .on_thread_start(fuse::run_on_all_cpus)
            .enable_all()
            .build()
            .unwrap();
        let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let at = |name: &str| home.path().join(name);
        let paths = NodePaths {
            coordination: at("coordination"),
            nsds: [(model::NsdId(1), at("nsd1"))].into(),
        };
        let creation = Creation {
            scheme: Scheme::Replicate(1),
            nsd_bytes: 512 * MIB,
            block_bytes: model::limits::BLOCK_BYTES_DEFAULT,
        };
        let (world, node) = runtime.block_on(async {
            let world = World::real();
            Node::create(&world, &paths, creation).await.unwrap();
            let node = Node::open(&world, &paths, ClientSettings::default());
            let node = node.await.unwrap();
            (world, node)
        });
        {
            let _context = runtime.enter();
            node.metanode().start_background();
        }
        let mut cluster = Self {
            world,
            node,
            mounts: Vec::new(),
            others: Vec::new(),
            runtime,
            home,
        };
        let client = cluster.node.client().clone();
        cluster.mount("one", client);
        cluster
    }

    /// One client more, with a mount.
    fn join(&mut self) {
        let owner = Owner::Here(self.node.metanode().clone());
        let (world, pool) = (self.world.clone(), self.node.pool().clone());
        let joining = async {
            let session = owner.open_session(&world).await.unwrap();
            Client::new(
                world.clone(),
                owner,
                pool,
                session,
                ClientSettings::default(),
            )
        };
        let client = self.runtime.block_on(joining);
        self.others.push(client.clone());
        self.mount("two", client);
    }

    fn mount(&mut self, name: &str, client: Arc<Client>) {
        let path = self.home.path().join(name);
        fs::create_dir(&path).unwrap();
        let mounting = async {
            let door = Door::new(client, DoorSettings::default()).await.unwrap();
            let options = MountOptions::new(&path);
            Mount::start(&self.world, Arc::new(door), &options).unwrap()
        };
        let mount = self.runtime.block_on(mounting);
        self.mounts.push((mount, path));
    }

    fn path(&self, mount: usize, name: &str) -> PathBuf {
        self.mounts[mount].1.join(name)
    }

    fn end(mut self) {
        let ending = async {
            for (mount, _) in std::mem::take(&mut self.mounts) {
                mount.unmount(Unmount::Forced).await.unwrap();
            }
            for client in &self.others {
                assert_eq!(client.losses().sessions, 0);
                client.close().await.unwrap();
            }
            self.node.close().await.unwrap();
        };
        self.runtime.block_on(ending);
    }
}

/// This program again, as one that uses the file.
fn program(number: usize, file: &Path, beside: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let work = format!("{number}:{}:{}", file.display(), beside.display());
    let only = ["--exact", "coherence::what_a_program_does", "--nocapture"];
    command.args(only).env(PROGRAM, work);
    command
}

/// Does nothing but in a process that the other tests start.
#[test]
fn what_a_program_does() {
    let Ok(work) = std::env::var(PROGRAM) else {
        return;
    };
    let mut parts = work.splitn(3, ':');
    let mut next = || parts.next().unwrap();
    let number: usize = next().parse().unwrap();
    let (file, beside) = (Path::new(next()), Path::new(next()));
    match number < PROGRAMS {
        true => count(number, file, beside),
        false => watch(file),
    }
}

/// Where a program stores the number of a round.
fn place(number: usize, round: u64) -> usize {
    (round as usize % 3) * PAGE + number * 64
}

/// Stores the number of each round in pages that all programs share, most of them in a mapping, and looks at what the
/// others have stored. Which that is they say in a file beside: when they have begun with a round, and have done it.
fn count(number: usize, path: &Path, beside: &Path) {
    let said = Mapping::new(&open(beside), libc::MAP_SHARED);
    let file = open(path);
    let mapping = Mapping::new(&file, libc::MAP_SHARED);
    let is_mapped = number < PROGRAMS - 2;
    let (begun, done) = (|number| number * 128, |number| number * 128 + 64);
    for round in 3..ROUNDS {
        said.store(begun(number), round);
        let at = place(number, round);
        match is_mapped {
            true => mapping.store(at, round),
            false => file.write_all_at(&round.to_ne_bytes(), at as u64).unwrap(),
        }
        said.store(done(number), round);
        let other = (number + round as usize) % PROGRAMS;
        let least = said.load(done(other));
        if least < 3 {
            continue;
        }
        let at = place(other, least);
        let seen = match is_mapped {
            true => mapping.load(at),
            false => {
                let mut bytes = [0; 8];
                file.read_exact_at(&mut bytes, at as u64).unwrap();
                u64::from_ne_bytes(bytes)
            }
        };
        let most = said.load(begun(other));
        assert!(
            least <= seen && seen <= most,
            "{number} saw {seen} of {other}, which had stored {least} to {most}"
        );
    }
}

const ROUNDS: u64 = 400;

#[test]
fn programs_of_two_clients_count_in_pages_that_they_share() {
    let mut cluster = Cluster::new();
    cluster.join();
    open(&cluster.path(0, "f")).set_len(BYTES as u64).unwrap();
    let beside = cluster.home.path().join("beside");
    open(&beside).set_len(BYTES as u64).unwrap();
    let programs = (0..PROGRAMS).map(|number| {
        let mut command = program(number, &cluster.path(number % 2, "f"), &beside);
        std::thread::spawn(move || bounded::run_within(&mut command, PATIENCE))
    });
    let programs: Vec<_> = programs.collect();
    for ended in programs {
        let ended = ended.join().unwrap();
        assert_eq!(ended.code, 0, "{}", ended.text);
    }
    for mount in 0..2 {
        let file = open(&cluster.path(mount, "f"));
        for number in 0..PROGRAMS {
            for round in ROUNDS - 3..ROUNDS {
                let mut bytes = [0; 8];
                let at = place(number, round) as u64;
                file.read_exact_at(&mut bytes, at).unwrap();
                assert_eq!(u64::from_ne_bytes(bytes), round, "of {number}, in {mount}");
            }
        }
    }
    cluster.end();
}

/// Maps a file that has ones, stores some twos, says so, and waits until another has written threes over a part.
fn watch(path: &Path) {
    let (file, reader) = (open(path), File::open(path).unwrap());
    let stores = Mapping::new(&file, libc::MAP_SHARED);
    let loads = Mapping::new(&reader, libc::MAP_PRIVATE);
    let mut cached = vec![0; BYTES];
    reader.read_exact_at(&mut cached, 0).unwrap();
    stores.write(5_000, &[2; 10]);
    assert_eq!(loads.read(5_000, 10), [2; 10]);
    std::io::stdout().write_all(b"stored\n").unwrap();
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let there = [vec![2; 5], vec![3; 10], vec![1]].concat();
    assert_eq!(loads.read(5_000, 16), there);
    assert_eq!(stores.read(5_000, 16), there);
    let mut read = [0; 16];
    reader.read_exact_at(&mut read, 5_000).unwrap();
    assert_eq!(read.to_vec(), there);
}

#[test]
fn pages_that_were_mapped_while_a_client_was_alone_show_what_the_next_one_writes() {
    let mut cluster = Cluster::new();
    let path = cluster.path(0, "f");
    open(&path).write_all_at(&[1; BYTES], 0).unwrap();
    let mut command = program(PROGRAMS, &path, &path);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut watcher = command.spawn().unwrap();
    let mut said = String::new();
    let out = watcher.stdout.as_mut().unwrap();
    while !said.contains("stored") {
        let mut byte = [0];
        out.read_exact(&mut byte).unwrap();
        said.push(byte[0].into());
    }
    cluster.join();
    // What was only stored is there.
    let other = open(&cluster.path(1, "f"));
    let mut seen = [0; 12];
    other.read_exact_at(&mut seen, 4_999).unwrap();
    assert_eq!(seen, [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
    other.write_all_at(&[3; 10], 5_005).unwrap();
    watcher.stdin.take().unwrap().write_all(b"1").unwrap();
    let ended = watcher.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    drop(other);
    cluster.end();
}
