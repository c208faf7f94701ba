//! How long a node takes to serve again after it was killed.
//!
//! Each life is a process of its own, ended by SIGKILL: nothing is closed, and the kernel lets
//! the regions go as it does after a crash.

use crate::{
    library::Library,
    sections::{new_node, node_paths},
};
use client::ClientSettings;
use model::{Error, ErrorKind, Result};
use shale::node::Node;
use std::{
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};
use world::World;

const REGION_BYTES: u64 = 6 << 30;
/// Files per folder.
const FOLDER: u64 = 10_000;

/// Makes a file system with `files` empty files in `dir` and dies.
pub fn fill(world: &World, dir: &Path, files: u64) -> Result<()> {
    let node = new_node(world, dir, REGION_BYTES)?;
    let library = Library {
        world,
        client: node.client(),
    };
    for folder in 0..files.div_ceil(FOLDER) {
        let made = library.folder(&format!("folder{folder}"));
        library.create(made, FOLDER.min(files - folder * FOLDER));
    }
    world.block_on(node.client().sync_all())?;
    die()
}

/// Opens it, says how many seconds that took until the first answer, and dies.
pub fn start(world: &World, dir: &Path) -> Result<()> {
    let begun = Instant::now();
    let node = world.block_on(Node::open(
        world,
        &node_paths(dir),
        ClientSettings::default(),
    ))?;
    world.block_on(node.client().get_attributes(model::InodeId::ROOT))?;
    println!("{}", begun.elapsed().as_secs_f64());
    die()
}

fn die() -> Result<()> {
    // SAFETY: kill takes plain numbers.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    unreachable!("SIGKILL can't be survived")
}

/// Runs this program as a child that dies by itself; its output.
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
