//! ext4 with a journal on a fresh image, to compare with.

use model::{Error, ErrorKind, Result};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A mounted image; unmounted and removed when dropped.
pub struct Ext4 {
    image: PathBuf,
    /// Where it is mounted.
    pub path: PathBuf,
}

impl Ext4 {
    /// Makes an image of so many bytes in `dir` and mounts it beside it.
    ///
    /// # Errors
    /// The program that failed: making and mounting need root and e2fsprogs.
    pub fn mount(dir: &Path, bytes: u64) -> Result<Self> {
        let (image, path) = (dir.join("ext4.image"), dir.join("ext4.mounted"));
        let made = fs::create_dir_all(&path).and_then(|()| fs::File::create(&image));
        made.and_then(|file| file.set_len(bytes))
            .map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))?;
        let ext4 = Self { image, path };
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
            .arg(&ext4.image))?;
        run(Command::new("mount")
            .args(["-o", "loop"])
            .args([&ext4.image, &ext4.path]))?;
        Ok(ext4)
    }

    /// Mounts it again, so that nothing of it is in memory.
    ///
    /// # Errors
    /// As [`Ext4::mount`].
    pub fn remount(&self) -> Result<()> {
        run(Command::new("umount").arg(&self.path))?;
        run(Command::new("mount")
            .args(["-o", "loop"])
            .args([&self.image, &self.path]))
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        // If it wasn't mounted, there is nothing to unmount.
        let _ = Command::new("umount").arg(&self.path).output();
        let _ = fs::remove_file(&self.image);
    }
}

fn run(command: &mut Command) -> Result<()> {
    let why = match command.output() {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let text = format!("{command:?}: {why}");
    Err(Error::new(ErrorKind::Unavailable, text))
}
