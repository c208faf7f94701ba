//! How long a killed node takes to serve again.
//!
//! Each run is its own process, ended by SIGKILL: nothing is closed, and the kernel releases the
//! regions as after a crash.

use crate::{
    library::Library,
    measure::{Goal, Line, Unit, pairs, print},
};
use client::ClientSettings;
use model::{Error, ErrorKind, NsdId, Result, Scheme};
use node::{Creation, Node, NodePaths};
use rustix::process::Signal;
use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Instant,
};
use world::World;

const REGION_BYTES: u64 = 6 << 30;
/// Files per folder.
const FOLDER: u64 = 10_000;

/// Files of the file system whose start is measured.
const FILES: u64 = 1_000_000;

/// Paths of a node with `count` NSDs in `dir`.
fn node_paths(dir: &Path, count: u32) -> NodePaths {
    NodePaths {
        coordination: dir.join("coordination.region"),
        nsds: (1..=count)
            .map(|nsd| (NsdId(nsd), dir.join(format!("{nsd}.region"))))
            .collect::<BTreeMap<_, _>>(),
    }
}

/// Makes an empty file system in `dir`, on as many NSDs as the scheme needs, and runs it.
pub fn new_node(world: &World, dir: &Path, scheme: Scheme, nsd_bytes: u64) -> Result<Arc<Node>> {
    let paths = node_paths(dir, scheme.width() as u32);
    let creation = Creation {
        scheme,
        nsd_bytes,
        block_bytes: model::limits::BLOCK_BYTES_DEFAULT,
    };
    world.block_on(Node::create(world, &paths, creation))?;
    open_node(world, dir, scheme)
}

/// Runs the file system that [`new_node`] made.
pub fn open_node(world: &World, dir: &Path, scheme: Scheme) -> Result<Arc<Node>> {
    let paths = node_paths(dir, scheme.width() as u32);
    let node = world.block_on(Node::open(world, &paths, ClientSettings::default()))?;
    node.metanode().start_background();
    Ok(node)
}

/// Start time after SIGKILL and memory use with many files, compared with an empty file system.
pub fn lines(dir: &Path, runs: usize, only: &str) -> Result<()> {
    const START: &str = "start after kill -9, a million files";
    const MEMORY: &str = "memory with a million small files, resident";
    if !START.contains(only) && !MEMORY.contains(only) {
        return Ok(());
    }
    let folder = |name: &str, files: u64| -> Result<(String, f64)> {
        let path = dir.join(name).display().to_string();
        let said = in_a_child(&["--dir", &path, "--fill", &files.to_string()])?;
        Ok((path, said.parse().expect("the child prints its memory")))
    };
    let ((full, with_files), (empty, without)) = (folder("full", FILES)?, folder("empty", 0)?);
    let time = |dir: &str| {
        let said = in_a_child(&["--dir", dir, "--start"]).expect("starts");
        said.parse().expect("the child prints the seconds")
    };
    if START.contains(only) {
        let (measured, floor) = pairs(runs, || time(&full), || time(&empty));
        print(&Line {
            name: START.into(),
            floor_name: "an empty one",
            unit: Unit::Seconds,
            measured,
            floor,
            goal: Goal::AtMost(3.0),
        });
    }
    print(&Line {
        name: MEMORY.into(),
        floor_name: "an empty one",
        unit: Unit::Bytes,
        measured: vec![with_files],
        floor: vec![without],
        goal: Goal::AtMost(1.5 * f64::from(1 << 30)),
    });
    Ok(())
}

/// Largest resident size of this process so far, in bytes.
fn resident_most() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Makes a file system with `files` empty files in `dir`, prints its resident size, and dies.
pub fn fill(world: &World, dir: &Path, files: u64) -> Result<()> {
    let node = new_node(world, dir, Scheme::Replicate(1), REGION_BYTES)?;
    let library = Library {
        world,
        client: node.client(),
    };
    for folder in 0..files.div_ceil(FOLDER) {
        let made = library.folder(&format!("folder{folder}"));
        library.create(made, FOLDER.min(files - folder * FOLDER));
    }
    world.block_on(node.client().sync_all())?;
    println!("{}", resident_most());
    die()
}

/// Opens it, prints the seconds until the first answer, and dies.
pub fn start(world: &World, dir: &Path) -> Result<()> {
    let begun = Instant::now();
    let node = world.block_on(Node::open(
        world,
        &node_paths(dir, 1),
        ClientSettings::default(),
    ))?;
    world.block_on(node.client().get_attributes(model::InodeId::ROOT))?;
    println!("{}", begun.elapsed().as_secs_f64());
    die()
}

fn die() -> Result<()> {
    let killed = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    panic!("SIGKILL can't be survived: {killed:?}")
}

/// Runs this program as a child process that kills itself; returns its output.
pub fn in_a_child(arguments: &[&str]) -> Result<String> {
    let failed = |what: String| Error::new(ErrorKind::Unavailable, what);
    let program = std::env::current_exe().map_err(|e| failed(e.to_string()))?;
    let output = Command::new(program)
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| failed(e.to_string()))?;
    if output.status.code().is_some() {
        return Err(failed(format!("{arguments:?} ended before it was killed")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
