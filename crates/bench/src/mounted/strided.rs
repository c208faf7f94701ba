//! Two writers in one file, each writing every other record of an odd size (as IOR's "hard" case
//! does), compared with each writing a file of its own in large pieces.

use super::Mounted;
use crate::{
    ext4::Ext4,
    floor,
    measure::{Goal, Unit},
    paths,
};
use fuse::{TransportChoice, Unmount};
use model::{Result, Scheme};

/// Bytes of one run, for both writers together.
const BYTES: u64 = 2 << 30;

impl Mounted {
    /// Strided records in a shared file, beside the same bytes in separate files, the same on a file
    /// system in memory, and the same on ext4.
    pub(super) fn strided(&self) -> Result<()> {
        const STRIDED: &str = "mount: 2 writers, one file, 47,008-byte records";
        if !self.wanted(&[STRIDED]) {
            return Ok(());
        }
        let served = self.new_served(Scheme::Replicate(1), TransportChoice::Auto)?;
        let trivial = self.folder("floor")?;
        let floor_mount = floor::mount(&self.world, &trivial, true, TransportChoice::Auto)?;
        let hard = |folder: &std::path::Path| paths::write_strided(&folder.join("shared"), BYTES);
        let (ours, bytes) = (|| hard(&served.path), Unit::BytesPerSecond);
        let easy = || paths::write_separately(&served.path, BYTES);
        self.line(
            STRIDED,
            "a file each, 1 MiB",
            bytes,
            Goal::Ratio(0.6),
            ours,
            easy,
        );
        let discarding = || hard(&trivial);
        self.line(
            STRIDED,
            "our FUSE, no disk",
            bytes,
            Goal::None,
            ours,
            discarding,
        );
        match Ext4::mount(&self.dir, 2 * BYTES) {
            Ok(ext4) => {
                self.line(STRIDED, "ext4 on loop", bytes, Goal::None, ours, || {
                    hard(&ext4.path)
                });
            }
            Err(error) => println!("{STRIDED}, beside ext4: not measured: {error}"),
        }
        self.world.block_on(floor_mount.unmount(Unmount::Forced))?;
        self.end(served)
    }
}
