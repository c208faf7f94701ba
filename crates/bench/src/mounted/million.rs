//! A directory with a million files right after a restart: `ls -l`, then `rm -r`.

use super::Mounted;
use crate::{
    ext4::Ext4,
    measure::{Goal, Unit},
    paths,
};
use fuse::TransportChoice;
use model::{Result, Scheme};
use std::{
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

const FILES: u64 = 1_000_000;
/// Sparse; mkfs makes an inode for each 16 KiB.
const IMAGE: u64 = 20 << 30;

impl Mounted {
    /// Both, in seconds, beside ext4.
    pub(super) fn million_files(&self) -> Result<()> {
        const LIST: &str = "mount: ls -l of a million files, cold";
        const REMOVE: &str = "mount: rm -r of a million files";
        if !self.wanted(&[LIST, REMOVE]) {
            return Ok(());
        }
        let ext4 = match Ext4::mount(&self.dir, IMAGE) {
            Ok(ext4) => ext4,
            Err(error) => {
                println!("{LIST}: not measured: {error}");
                return Ok(());
            }
        };
        let served = self.new_served(Scheme::Replicate(1), TransportChoice::Auto)?;
        let theirs = ext4.path.join("million");
        let life = |folder: &Path| {
            [
                seconds("ls", &["-l"], folder),
                seconds("rm", &["-r"], folder),
            ]
        };
        // One pair, which takes minutes.
        paths::create(&served.path.join("million"), FILES);
        let served = self.restart(served)?;
        paths::drop_kernel_caches();
        let [list, removal] = life(&served.path.join("million"));
        paths::create(&theirs, FILES);
        ext4.remount()?;
        let [their_list, their_removal] = life(&theirs);
        let lists = (vec![list], vec![their_list]);
        let removals = (vec![removal], vec![their_removal]);
        let goals = [Goal::AtMost(25.0), Goal::AtMost(60.0)];
        self.print(LIST, "ext4 on loop", Unit::Seconds, goals[0], lists);
        self.print(REMOVE, "ext4 on loop", Unit::Seconds, goals[1], removals);
        drop(ext4);
        self.end(served)
    }
}

/// How long a command takes on a folder.
pub(super) fn seconds(command: &str, options: &[&str], folder: &Path) -> f64 {
    let begun = Instant::now();
    let mut command = Command::new(command);
    let status = command
        .args(options)
        .arg(folder)
        .stdout(Stdio::null())
        .status();
    assert!(status.is_ok_and(|status| status.success()), "it failed");
    begun.elapsed().as_secs_f64()
}
