//! Makes a mount at a place where one of ours is dead, so that nobody gets to the directory below meanwhile: what
//! programs write there would be on the machine's own disk.

use crate::device::Device;
use crate::init::DATA_BYTES_MAX;
use crate::mounting::{self, no_device, refused};
use crate::options::MountOptions;
use crate::table::{DeviceNumber, FS_TYPE};
use model::Result;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use world::World;

/// Over the dead mount.
const ON_TOP: MoveMountFlags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
/// Where a new mount is put, best first. Under the dead mount, which still covers it, and can be taken away; before Linux
/// 6.5 on top of it, which then stays until this one ends.
const WAYS: [MoveMountFlags; 2] = [ON_TOP.union(MoveMountFlags::MOVE_MOUNT_BENEATH), ON_TOP];

/// A mount that is in no tree of files yet. The kernel ends it if it is dropped before it is attached: one that can't be
/// served leaves nothing at a place.
pub(crate) struct Unattached(OwnedFd);

impl Unattached {
    /// Makes one, with the same options as one by mount(2); the kernel's first request then waits on the device. Needs root.
    pub(crate) fn make(options: &MountOptions) -> Result<(Device, Self)> {
        let device = Device::open().map_err(|error| no_device(&error))?;
        let mount =
            unattached(&device, options).map_err(|error| refused(&error.into(), "fsconfig(2)"))?;
        Ok((device, Self(mount)))
    }

    /// Its kernel's numbers, which it keeps when it is attached. Sends it no request.
    pub(crate) fn numbers(&self) -> io::Result<Numbers> {
        // The kernel answers from what it has.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(&self.0, c"", flags, StatxFlags::empty())?;
        let id = mounting::id_of(&self.0)?;
        Ok(Numbers {
            id: id.ok_or(io::ErrorKind::Unsupported)?,
            device: DeviceNumber {
                major: found.stx_dev_major,
                minor: found.stx_dev_minor,
            },
        })
    }

    /// Mounts it where a dead mount is. Programs get that one's errors until [`uncover`], or until it is on top.
    pub(crate) fn attach(&self, path: &Path) -> Result<()> {
        self.attach_as(path, &WAYS)
    }

    fn attach_as(&self, path: &Path, ways: &[MoveMountFlags]) -> Result<()> {
        let put = |way: &MoveMountFlags| move_mount(&self.0, "", CWD, path, *way);
        let (last, better) = ways.split_last().expect("there is a way");
        if !better.iter().any(|way| put(way).is_ok()) {
            put(last).map_err(|error| refused(&error.into(), "move_mount(2)"))?;
        }
        Ok(())
    }
}

/// What the kernel calls a mount.
pub(crate) struct Numbers {
    /// The kernel's id of the mount.
    pub(crate) id: u64,
    /// Its device's.
    pub(crate) device: DeviceNumber,
}

fn unattached(device: &Device, options: &MountOptions) -> rustix::io::Result<OwnedFd> {
    let (kind, subtype) = FS_TYPE.split_once('.').expect("it has a subtype");
    let file_system = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    let (descriptor, max_read) = (device.raw_fd().to_string(), DATA_BYTES_MAX.to_string());
    for (name, value) in [
        ("source", options.name.as_str()),
        ("subtype", subtype),
        ("fd", &descriptor),
        ("rootmode", "40000"),
        ("user_id", "0"),
        ("group_id", "0"),
        ("max_read", &max_read),
    ] {
        fsconfig_set_string(&file_system, name, value)?;
    }
    for (wanted, name) in [
        (true, "default_permissions"),
        (options.allow_other, "allow_other"),
        (options.flags.read_only, "ro"),
    ] {
        if wanted {
            fsconfig_set_flag(&file_system, name)?;
        }
    }
    fsconfig_create(&file_system)?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    fsmount(&file_system, flags, options.flags.attributes())
}

/// Takes those mounts away that are on top of a place; returns those that another one covers.
pub(crate) fn uncover(place: &Path, mut dead: Vec<u64>) -> Vec<u64> {
    // Each turn takes one away.
    while let Some(at) = dead.iter().position(|id| detaches(place, *id)) {
        dead.swap_remove(at);
    }
    dead
}

/// As [`uncover`], which may block; nothing if there are none.
pub(crate) async fn uncover_soon(world: &World, place: &Path, dead: &[u64]) {
    if dead.is_empty() {
        return;
    }
    let (place, dead) = (place.to_owned(), dead.to_owned());
    world.blocking(move || uncover(&place, dead)).await;
}

fn detaches(place: &Path, id: u64) -> bool {
    mounting::detach_from(place, id).unwrap_or_else(|error| {
        tracing::warn!(%error, place = %place.display(), "a dead mount couldn't be taken away");
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Received;
    use crate::options::Unmount;
    use crate::table::{self, mount_on};
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn mount_as(path: &Path, options: &MountOptions, ways: &[MoveMountFlags]) -> Result<Device> {
        let (device, new) = Unattached::make(options)?;
        new.attach_as(path, ways)?;
        Ok(device)
    }

    /// Ends the thread that looks, also if the test fails.
    struct Over<'a>(&'a AtomicBool);

    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    /// The ids of the mounts at a place.
    fn ids_at(place: &Path) -> Vec<u64> {
        let lines = table::read().unwrap().into_iter();
        let there = lines.filter(|line| line.mountpoint == place);
        there.map(|line| line.id).collect()
    }

    #[test]
    fn a_place_is_never_bare_while_its_dead_mount_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let bare = std::fs::metadata(directory.path()).unwrap().dev();
        let path = std::fs::canonicalize(directory.path()).unwrap();
        let mut options = MountOptions::new(&path);
        options.name = "/srv/a node".to_owned();
        options.flags.no_exec = true;
        drop(mounting::mount(&path, &options).unwrap());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                let mut looks = 0_u32;
                while !is_over.load(Ordering::Acquire) {
                    // A live one doesn't answer here, and isn't asked after all.
                    match std::fs::metadata(&path) {
                        Ok(found) => assert_ne!(found.dev(), bare),
                        // One that dies before it has answered the kernel's first request refuses
                        // for a moment: the kernel ends requests before the connection.
                        Err(error) => assert!(
                            matches!(
                                error.raw_os_error(),
                                Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECONNREFUSED)
                            ),
                            "{error}"
                        ),
                    }
                    looks += 1;
                }
                looks
            });
            let over = Over(&is_over);
            // As this kernel can do it, and as older ones do.
            for ways in [&WAYS[..], &[ON_TOP]].into_iter().cycle().take(40) {
                let place = mounting::prepare(&path, None).unwrap();
                assert_eq!(place.path, path);
                let before = ids_at(&path);
                assert!(!before.is_empty() && place.dead == before);
                let device = mount_as(&place.path, &options, ways).unwrap();
                let top = mount_on(&path).unwrap().unwrap();
                assert!(!before.contains(&top.id) && top.source == Path::new(&options.name));
                let covered = uncover(&path, place.dead);
                assert!(covered.iter().all(|id| before.contains(id)), "{covered:?}");
                assert_eq!(ids_at(&path).len(), covered.len() + 1);
                // It is the one that programs reach: the kernel's first request is there.
                let mut buffer = vec![0; DATA_BYTES_MAX as usize + 4096];
                assert!(matches!(
                    device.receive(&mut buffer).unwrap(),
                    Received::Request(_)
                ));
                // It dies.
                drop(device);
            }
            drop(over);
            assert!(looks.join().unwrap() > 0);
        });
        // Those that could only be covered come to light, one after the other, and go.
        let last = mount_on(&path).unwrap().unwrap();
        let rest = ids_at(&path);
        assert!(rest.len() > 1, "{rest:?}");
        mounting::unmount(&path, Unmount::Lazy, None).unwrap();
        assert_eq!(uncover(&path, rest), [last.id]);
        assert_eq!(std::fs::metadata(&path).unwrap().dev(), bare);
    }

    /// Would be broken if each attempt to make a dead mount again that fails left another dead mount there.
    #[test]
    fn one_that_is_never_attached_leaves_nothing_and_has_the_numbers_that_it_will_have() {
        let directory = tempfile::tempdir().unwrap();
        let path = std::fs::canonicalize(directory.path()).unwrap();
        let options = MountOptions::new(&path);
        drop(mounting::mount(&path, &options).unwrap());
        let dead = ids_at(&path);
        for _ in 0..3 {
            let (_device, new) = Unattached::make(&options).unwrap();
            assert!(!dead.contains(&new.numbers().unwrap().id));
            drop(new);
            assert_eq!(ids_at(&path), dead);
        }
        let (device, new) = Unattached::make(&options).unwrap();
        let numbers = new.numbers().unwrap();
        new.attach(&path).unwrap();
        let covered = uncover(&path, dead);
        let line = mount_on(&path).unwrap().unwrap();
        assert_eq!((line.id, line.number), (numbers.id, numbers.device));
        drop(device);
        mounting::unmount(&path, Unmount::Lazy, None).unwrap();
        uncover(&path, covered);
        assert!(mount_on(&path).unwrap().is_none());
    }

    #[test]
    fn a_mount_that_replaces_another_has_the_options_of_a_usual_one() {
        let line_of = |path: &Path| {
            let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            let mut lines = table.lines().rev();
            let line = lines.find(|line| line.split(' ').nth(4) == path.to_str());
            // Without what differs: ids, the device, the place, the group of a shared mount.
            let words = line.unwrap().split(' ').skip(5);
            let words = words.filter(|word| !word.starts_with("shared:"));
            words.map(str::to_owned).collect::<Vec<_>>()
        };
        for read_only in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let path = std::fs::canonicalize(directory.path()).unwrap();
            let mut options = MountOptions::new(&path);
            options.flags.read_only = read_only;
            options.flags.no_suid = true;
            options.flags.no_atime = read_only;
            drop(mounting::mount(&path, &options).unwrap());
            let usual = line_of(&path);
            let dead = mounting::prepare(&path, None).unwrap().dead;
            let device = mount_as(&path, &options, &WAYS).unwrap();
            let covered = uncover(&path, dead);
            assert_eq!(line_of(&path), usual);
            drop(device);
            mounting::unmount(&path, Unmount::Lazy, None).unwrap();
            uncover(&path, covered);
            assert!(mount_on(&path).unwrap().is_none());
        }
    }
}
