//! flock(2): open files, kinds, and changes of kind.

use super::processes::{Alone, Descriptor, fork, path_of};
use crate::fixture::own_process;
use libc::{EAGAIN, LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN};

#[test]
fn open_files_share_or_exclude_whatever_process_has_them() {
    own_process!();
    let alone = Alone::new();
    let path = path_of(&alone.node.path("f"));
    let (one, two) = (Descriptor::open(&path), Descriptor::open(&path));
    for (held, wanted, answer) in [
        (LOCK_SH, LOCK_SH, 0),
        (LOCK_SH, LOCK_EX, EAGAIN),
        (LOCK_EX, LOCK_SH, EAGAIN),
        (LOCK_EX, LOCK_EX, EAGAIN),
    ] {
        assert_eq!(one.flock(held | LOCK_NB), 0);
        assert_eq!(two.flock(wanted | LOCK_NB), answer, "{held} {wanted}");
        let mut other = fork(|wire| {
            let own = Descriptor::open(&path);
            wire.say(own.flock(wanted | LOCK_NB));
            // A descriptor of the same open file never conflicts.
            wire.say(one.flock(held | LOCK_NB));
            0
        });
        assert_eq!((other.wire.hear(), other.wire.hear()), (answer, 0));
        assert_eq!(other.end(), 0);
        assert_eq!((one.flock(LOCK_UN), two.flock(LOCK_UN)), (0, 0));
    }
}

#[test]
fn a_change_of_kind_gives_up_the_old_lock_as_in_linux() {
    own_process!();
    let alone = Alone::new();
    let path = path_of(&alone.node.path("f"));
    let (one, two, three) = (
        Descriptor::open(&path),
        Descriptor::open(&path),
        Descriptor::open(&path),
    );
    assert_eq!(one.flock(LOCK_SH), 0);
    assert_eq!(two.flock(LOCK_SH), 0);
    assert_eq!(one.flock(LOCK_EX | LOCK_NB), EAGAIN);
    assert_eq!(
        two.flock(LOCK_EX | LOCK_NB),
        0,
        "the first one has lost its own"
    );
    assert_eq!(three.flock(LOCK_SH | LOCK_NB), EAGAIN);
    assert_eq!(two.flock(LOCK_SH), 0);
    assert_eq!(three.flock(LOCK_SH | LOCK_NB), 0);
    // Both want it exclusively and wait: one gets it after the other.
    std::thread::scope(|scope| {
        let wants =
            |file: Descriptor| scope.spawn(move || (file.flock(LOCK_EX), file.flock(LOCK_UN)));
        let both = [wants(two), wants(three)];
        for one in both {
            assert_eq!(one.join().unwrap(), (0, 0));
        }
    });
}

#[test]
fn flock_and_fcntl_do_not_see_each_other() {
    own_process!();
    let alone = Alone::new();
    let path = path_of(&alone.node.path("f"));
    let file = Descriptor::open(&path);
    assert_eq!(file.flock(LOCK_EX), 0);
    let mut other = fork(|wire| {
        let file = Descriptor::open(&path);
        wire.say(file.set(libc::F_SETLK, libc::F_WRLCK, 0, 0));
        // Its close ends its range lock but no flock.
        file.close();
        wire.say(Descriptor::open(&path).flock(LOCK_EX | LOCK_NB));
        0
    });
    assert_eq!((other.wire.hear(), other.wire.hear()), (0, EAGAIN));
    assert_eq!(other.end(), 0);
}
