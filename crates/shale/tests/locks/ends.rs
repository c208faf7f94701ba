//! Locks when a mount ends, across mounts, and when a name is removed.

use super::processes::{Alone, Descriptor, WAYS, Way, fork, path_of};
use crate::fixture::own_process;
use libc::{EAGAIN, ENOLCK, F_SETLK, F_UNLCK, F_WRLCK};
use std::os::unix::fs::MetadataExt;

#[test]
fn a_forced_unmount_gives_up_locks_and_open_files() {
    own_process!();
    let alone = Alone::new();
    let node = &alone.node;
    let second = node.place("second");
    node.must(&["mount", second.to_str().unwrap()]);
    let inodes = || node.ask(&["fs", "df"])["inodes"].as_u64().unwrap();
    let before = inodes();
    for way in WAYS {
        let name = format!("{way:?}");
        let (here, there) = (path_of(&node.path(&name)), path_of(&second.join(&name)));
        let mut holder = fork(|wire| {
            let file = Descriptor::open(&there);
            wire.say(way.wait(file));
            // Still open when the mount ends, by then without a name.
            let _gone = Descriptor::open(&path_of(&second.join("gone")));
            wire.say(i32::from(
                std::fs::remove_file(second.join("gone")).is_err(),
            ));
            wire.hear()
        });
        assert_eq!((holder.wire.hear(), holder.wire.hear()), (0, 0));
        let mut waits = fork(|wire| {
            let file = Descriptor::open(&there);
            wire.say(way.wait(file));
            0
        });
        alone.until_waiting(1);
        let file = Descriptor::open(&here);
        assert_eq!(
            way.attempt(file),
            EAGAIN,
            "{way:?}: locks hold between mounts"
        );
        node.must(&["umount", second.to_str().unwrap(), "--force"]);
        assert_ne!(waits.wire.hear(), 0, "{way:?}");
        assert_eq!(way.wait(file), 0, "{way:?}");
        file.close();
        drop((holder, waits));
        std::fs::remove_file(node.path(&name)).unwrap();
        node.must(&["mount", second.to_str().unwrap()]);
    }
    crate::fixture::eventually("all that was open is released", || inodes() == before);
    node.check();
}

#[test]
fn local_locks_hold_inside_their_mount_only() {
    own_process!();
    let alone = Alone::new();
    let node = &alone.node;
    let local = node.place("local");
    node.must(&["mount", local.to_str().unwrap(), "-o", "locks=local"]);
    for way in WAYS {
        let name = format!("{way:?}");
        let (here, there) = (path_of(&node.path(&name)), path_of(&local.join(&name)));
        let (one, two) = (Descriptor::open(&here), Descriptor::open(&there));
        assert_eq!((way.attempt(one), way.attempt(two)), (0, 0), "{way:?}");
        let mut other = super::processes::attempts(way, &there);
        assert_eq!(other.ask(0), EAGAIN, "{way:?}");
        if way == Way::Posix {
            // POSIX, as always: the close of any descriptor.
            Descriptor::open(&there).close();
            assert_eq!(other.ask(0), 0);
        }
    }
    let status = node.must(&["status"]);
    assert!(status.contains("locks=local"), "{status}");
}

#[test]
fn a_process_at_the_limit_of_locks_gets_an_error_and_others_can_lock() {
    own_process!();
    let alone = Alone::new();
    let path = path_of(&alone.node.path("f"));
    let file = Descriptor::open(&path);
    // Every second byte, so that no two join.
    let mut taken: i64 = 0;
    let refused = loop {
        match file.set(F_SETLK, F_WRLCK, 2 * taken, 1) {
            0 => taken += 1,
            errno => break errno,
        }
    };
    assert_eq!(refused, ENOLCK);
    assert!(taken >= 100_000, "{taken}");
    let mut other = fork(|wire| {
        // SAFETY: no memory is involved; the process becomes an ordinary user.
        let is_other = unsafe { libc::setresuid(65534, 65534, 65534) } == 0;
        let file = std::fs::File::open(path.to_str().unwrap()).unwrap();
        let file = Descriptor(std::os::fd::AsRawFd::as_raw_fd(&file));
        let answer = file.set(F_SETLK, libc::F_RDLCK, 1, 1);
        wire.say(if is_other { answer } else { 0 });
        0
    });
    assert_eq!(other.wire.hear(), 0);
    assert_eq!(file.set(F_SETLK, F_UNLCK, 0, 0), 0);
    assert_eq!(file.set(F_SETLK, F_WRLCK, 0, 1), 0);
}

#[test]
fn fifos_and_sockets_without_a_name_live_as_long_as_they_are_open() {
    own_process!();
    let alone = Alone::new();
    let node = &alone.node;
    let inodes = || node.ask(&["fs", "df"])["inodes"].as_u64().unwrap();
    let before = inodes();
    let (fifo, socket) = (node.path("fifo"), node.path("socket"));
    // SAFETY: the path ends with 0 and is alive over the call.
    assert_eq!(unsafe { libc::mkfifo(path_of(&fifo).as_ptr(), 0o600) }, 0);
    let held = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&fifo)
        .unwrap();
    let listens = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let place = std::fs::File::options();
    let mut place = place;
    use std::os::unix::fs::OpenOptionsExt;
    let place = place
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(&socket)
        .unwrap();
    std::fs::remove_file(&fifo).unwrap();
    std::fs::remove_file(&socket).unwrap();
    for file in [&held, &place] {
        assert_eq!(file.metadata().unwrap().nlink(), 0);
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o640);
    held.set_permissions(mode).unwrap();
    assert_eq!(held.metadata().unwrap().mode() & 0o777, 0o640);
    drop((held, place, listens));
    crate::fixture::eventually("nothing is left", || inodes() == before);
    node.check();
}
