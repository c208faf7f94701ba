//! 4 KiB written all over a large file after a restart, when nothing of it is in memory: what
//! databases and virtual machines do.

use super::Mounted;
use crate::{
    ext4::Ext4,
    measure::{Goal, Unit, pairs_of},
    paths,
};
use fuse::TransportChoice;
use model::{Result, Scheme};
use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

const MIB: u64 = 1 << 20;
/// Bytes of the file.
const FILE: u64 = 512 * MIB;
/// For so long: several times as much as memory takes in before the disk must follow.
const TIME: Duration = Duration::from_secs(60);
/// What a waiting program may notice at most, in microseconds.
const LONGEST: f64 = 200_000.0;

impl Mounted {
    /// Speed, longest write, and a stream's speed through the file afterwards.
    pub(super) fn overwrites(&self) -> Result<()> {
        const SPEED: &str = "mount: overwrite random 4 KiB, O_DIRECT, cold";
        const WAIT: &str = "mount: the longest of these writes";
        const READ: &str = "mount: read stream of what they left, cold";
        if !self.wanted(&[SPEED, WAIT, READ]) {
            return Ok(());
        }
        let folder = self.folder("image")?;
        let image = match Ext4::mount(&folder, 2 * FILE) {
            Ok(image) => image,
            Err(why) => {
                println!("{SPEED}: not measured: {why}");
                return Ok(());
            }
        };
        let served = self.new_served(Scheme::Replicate(1), TransportChoice::Auto)?;
        let served = RefCell::new(Some(served));
        let restart = || {
            let old = served.take().expect("it serves");
            let new = self.restart(old).expect("starts");
            let path = new.path.join("large");
            served.replace(Some(new));
            path
        };
        let fresh = Cell::new(0.0);
        let theirs = image.path.join("large");
        let [speeds, waits, reads] = pairs_of(
            self.runs,
            || {
                paths::write_stream(&restart(), FILE);
                fresh.set(paths::read_stream(&restart(), FILE));
                let (speed, longest) = paths::overwrite(&restart(), FILE, TIME);
                let left = paths::read_stream(&restart(), FILE);
                [speed, longest, left]
            },
            || {
                paths::write_stream(&theirs, FILE);
                let (speed, _) = paths::overwrite(&theirs, FILE, TIME);
                [speed, LONGEST, fresh.get()]
            },
        );
        let (each, bytes) = (Unit::PerSecond, Unit::BytesPerSecond);
        self.print(SPEED, "ext4 on loop", each, Goal::Ratio(0.5), speeds);
        let most = Goal::AtMost(LONGEST);
        self.print(WAIT, "200 ms", Unit::Microseconds, most, waits);
        self.print(READ, "freshly streamed", bytes, Goal::Ratio(0.5), reads);
        self.end(served.take().expect("it serves"))
    }
}
