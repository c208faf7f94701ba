//! Small files whose records are in no cache, and `ls -l`, compared with the same work on ext4 and
//! on a file system in memory on our FUSE.

use super::{GIB, Mounted, Served, million::seconds};
use crate::{
    ext4::Ext4,
    floor,
    measure::{Goal, Unit, per_second},
    paths,
    workers::{WORKERS, crowd},
};
use fuse::{TransportChoice, Unmount};
use model::{Result, Scheme};
use std::{fs, path::Path};

/// Files with content in their inodes, in one directory.
const SMALL_FILES: u64 = 4_000;
/// Empty files of the directory that `ls -l` lists.
const LISTED_FILES: u64 = 20_000;

const STAT: &str = "mount: cold stat, 3,901 bytes, shared directory";
const READ: &str = "mount: cold read, 3,901 bytes, shared directory";
const COLD: &str = "mount: ls -l of 20,000, cold";
const WARM: &str = "mount: ls -l of 20,000, warm";
const COLD_NOACL: &str = "mount: ls -l of 20,000, cold, noacl";
const WARM_NOACL: &str = "mount: ls -l of 20,000, warm, noacl";

impl Mounted {
    /// All lines of this file.
    pub(super) fn cold_names(&self) -> Result<()> {
        if !self.wanted(&[STAT, READ, COLD, WARM, COLD_NOACL, WARM_NOACL]) {
            return Ok(());
        }
        let served = self.new_served(Scheme::Replicate(1), TransportChoice::Auto)?;
        let trivial = self.folder("floor")?;
        let floor_mount = floor::mount(&self.world, &trivial, false, TransportChoice::Auto)?;
        let ext4 = Ext4::mount(&self.dir, 2 * GIB);
        let mut places = vec![served.path.as_path(), trivial.as_path()];
        match &ext4 {
            Ok(ext4) => places.push(&ext4.path),
            Err(error) => println!("lines beside ext4: not measured: {error}"),
        }
        for place in places {
            let folder = place.join("small");
            fs::create_dir(&folder).expect("the folder is new");
            crowd("write-small", &shared(&folder), SMALL_FILES / WORKERS)?;
            paths::create(&place.join("listed"), LISTED_FILES);
        }
        let mut served = self.small_files(served, &trivial, ext4.as_ref().ok())?;
        for (cold, warm, no_acl, goals) in [
            (COLD, WARM, false, (0.5, 0.38)),
            (COLD_NOACL, WARM_NOACL, true, (0.3, 0.23)),
        ] {
            served = self.remount(served, no_acl)?;
            let (at, second) = (served.path.join("listed"), Unit::Seconds);
            let floors = [("memory on our FUSE", Some(trivial.as_path()))]
                .into_iter()
                .chain([("ext4", ext4.as_ref().ok().map(|ext4| ext4.path.as_path()))]);
            for (name, floor) in floors {
                let Some(floor) = floor.map(|floor| floor.join("listed")) else {
                    continue;
                };
                let long_list = |folder: &Path| seconds("ls", &["-l"], folder);
                let listed = |folder: &Path| {
                    paths::drop_kernel_caches();
                    long_list(folder)
                };
                let goal = Goal::AtMost(goals.0);
                self.line(cold, name, second, goal, || listed(&at), || listed(&floor));
                let goal = Goal::AtMost(goals.1);
                self.line(
                    warm,
                    name,
                    second,
                    goal,
                    || long_list(&at),
                    || long_list(&floor),
                );
            }
        }
        drop(ext4);
        self.world.block_on(floor_mount.unmount(Unmount::Forced))?;
        self.end(served)
    }

    /// Stats and reads by two processes right after a restart.
    fn small_files(&self, served: Served, floor: &Path, ext4: Option<&Ext4>) -> Result<Served> {
        let mut served = Some(served);
        let work = |what: &str, place: &Path| {
            let folder = place.join("small");
            let cost = crowd(what, &shared(&folder), SMALL_FILES / WORKERS).expect("works");
            per_second(SMALL_FILES, cost.wall)
        };
        for (name, what, goal) in [
            (STAT, "stat-small", Goal::Value(25_000.0)),
            (READ, "read-small", Goal::Value(15_000.0)),
        ] {
            let mut cold = || {
                let before = served.take().expect("it serves");
                let after = served.insert(self.restart(before).expect("starts"));
                paths::drop_kernel_caches();
                work(what, &after.path)
            };
            self.line(
                name,
                "memory on our FUSE",
                Unit::PerSecond,
                goal,
                &mut cold,
                || {
                    paths::drop_kernel_caches();
                    work(what, floor)
                },
            );
            let Some(ext4) = ext4 else { continue };
            self.line(name, "ext4", Unit::PerSecond, goal, &mut cold, || {
                ext4.remount().expect("it was mounted before");
                work(what, &ext4.path)
            });
        }
        Ok(served.expect("it serves"))
    }

    /// The same node under a new mount.
    fn remount(&self, served: Served, no_acl: bool) -> Result<Served> {
        let Served { node, mount, path } = served;
        self.world.block_on(mount.unmount(Unmount::Forced))?;
        drop(mount);
        let mount = self.mount_with(&node, &path, TransportChoice::Auto, no_acl)?;
        Ok(Served { node, mount, path })
    }
}

/// The same folder, once for each worker.
fn shared(folder: &Path) -> Vec<&Path> {
    vec![folder; WORKERS as usize]
}
