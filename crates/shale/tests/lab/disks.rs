//! Disks of their own for the nodes of a lab: each node's directory is on a small one, which a test can fill.
//!
//! They are images in files beside the lab. Whoever removes the lab unmounts them ([`fixture`](super::fixture)).

use super::fixture::{IMAGES, Lab};
use crate::fixture::{bounded::run, must_run};
use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};
use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::Path,
    process::Command,
};

/// Bytes of a disk: the NSD's, and so many that what a node keeps beside it leaves it healthy.
const BYTES: u64 = 2 << 30;
/// The file that takes all that is left.
const FILLER: &str = "filler";

/// Moves the directories of all nodes of a lab to disks of their own. The lab is down meanwhile.
///
/// # Errors
/// Why this machine has no such disks; the lab is of no more use then.
#[track_caller]
pub(crate) fn give(lab: &Lab) -> Result<(), String> {
    let nodes = lab.nodes();
    lab.must(&["down"]);
    let images = lab.dir.with_file_name(IMAGES);
    fs::create_dir(&images).unwrap();
    for node in nodes {
        give_one(lab, &images, node)?;
    }
    lab.must(&["up"]);
    Ok(())
}

fn give_one(lab: &Lab, images: &Path, node: u32) -> Result<(), String> {
    let (dir, image) = (lab.node(node), images.join(format!("n{node}")));
    let place = dir.display().to_string();
    File::create(&image).unwrap().set_len(BYTES).unwrap();
    let image = image.display().to_string();
    must_run(images, "mkfs.ext4", &["-q", &image]);
    let before = images.join(format!("n{node}.before"));
    fs::rename(&dir, &before).unwrap();
    fs::create_dir(&dir).unwrap();
    let mounted = run(Command::new("mount").args(["-o", "loop", &image, &place]));
    if mounted.code != 0 {
        return Err(format!("no loop devices here ({})", mounted.text.trim()));
    }
    // With the rights of the directory itself.
    let all = format!("{}/.", before.display());
    must_run(images, "cp", &["-a", &all, &place]);
    allocate_as(&before, &dir);
    fs::remove_dir_all(before).unwrap();
    Ok(())
}

/// Gives copies the room that their originals have: where nothing was written a copy has a hole, for which a full disk would
/// have no room.
fn allocate_as(originals: &Path, copies: &Path) {
    /// Bytes of what the system counts.
    const BLOCK: u64 = 512;
    for entry in fs::read_dir(originals).unwrap() {
        let entry = entry.unwrap();
        let (original, copy) = (entry.path(), copies.join(entry.file_name()));
        let found = entry.metadata().unwrap();
        if found.is_dir() {
            allocate_as(&original, &copy);
        } else if found.is_file() && found.len() > 0 && found.blocks() * BLOCK >= found.len() {
            let file = File::options().write(true).open(&copy).unwrap();
            fallocate(&file, FallocateFlags::empty(), 0, found.len()).unwrap();
        }
    }
}

/// Takes all room that is left on the disk of a node.
#[track_caller]
pub(crate) fn fill(lab: &Lab, node: u32) {
    let filler = File::create(lab.node(node).join(FILLER)).unwrap();
    let mut taken = 0;
    // What doesn't fit as a whole fits in part.
    for step in [64_u64 << 20, 1 << 20, 4 << 10] {
        loop {
            match fallocate(&filler, FallocateFlags::empty(), taken, step) {
                Ok(()) => taken += step,
                Err(Errno::NOSPC) => break,
                Err(Errno::INTR) => {}
                Err(error) => panic!("filling the disk of n{node}: {error}"),
            }
        }
    }
}

/// Gives it back.
#[track_caller]
pub(crate) fn make_room(lab: &Lab, node: u32) {
    fs::remove_file(lab.node(node).join(FILLER)).unwrap();
}
