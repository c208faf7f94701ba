//! Ranges: how they are specified, split, joined, shown, and which are refused.

use super::processes::{Alone, Descriptor, Process, Way, fork, path_of, range};
use crate::fixture::own_process;
use libc::{
    EAGAIN, EBADF, EINVAL, EOVERFLOW, F_OFD_GETLK, F_OFD_SETLK, F_RDLCK, F_SETLK, F_UNLCK, F_WRLCK,
};

const RD: i32 = F_RDLCK;
const WR: i32 = F_WRLCK;

/// Another process that reports the locks that conflict with its own: it is asked with a first
/// byte, and answers kind, start, length and whether the lock is its parent's.
struct Looks(Process);

impl Looks {
    fn new(path: &std::ffi::CString) -> Self {
        // SAFETY: asks for a number.
        let parent = unsafe { libc::getpid() };
        Self(fork(|wire| {
            let file = Descriptor::open(path);
            loop {
                let start = wire.hear();
                let found = file.in_the_way(WR, i64::from(start), 0);
                let (kind, start, length, pid) = found.unwrap_or((F_UNLCK, 0, 0, parent));
                for number in [kind, start as i32, length as i32, i32::from(pid == parent)] {
                    wire.say(number);
                }
            }
        }))
    }

    /// All locks of the test, as (kind, start, length).
    fn all(&mut self) -> Vec<(i32, i64, i64)> {
        let mut all = Vec::new();
        let mut from = 0;
        loop {
            self.0.wire.say(from);
            let wire = &mut self.0.wire;
            let [kind, start, length, is_ours] = std::array::from_fn(|_| wire.hear());
            assert_eq!(is_ours, 1, "F_GETLK names the process that holds it");
            if kind == F_UNLCK {
                return all;
            }
            all.push((kind, i64::from(start), i64::from(length)));
            if length == 0 {
                return all;
            }
            from = start + length;
        }
    }
}

#[test]
fn ranges_split_and_join_as_other_processes_see_them() {
    own_process!();
    let alone = Alone::new();
    let path = path_of(&alone.node.path("f"));
    let file = Descriptor::open(&path);
    let mut looks = Looks::new(&path);
    // The request, and the locks held afterwards.
    type Range = (i32, i64, i64);
    let steps: [(Range, &[Range]); 15] = [
        ((RD, 10, 10), &[(RD, 10, 10)]),
        ((RD, 20, 5), &[(RD, 10, 15)]),
        ((RD, 5, 5), &[(RD, 5, 20)]),
        ((WR, 10, 5), &[(RD, 5, 5), (WR, 10, 5), (RD, 15, 10)]),
        (
            (F_UNLCK, 12, 1),
            &[(RD, 5, 5), (WR, 10, 2), (WR, 13, 2), (RD, 15, 10)],
        ),
        ((WR, 12, 1), &[(RD, 5, 5), (WR, 10, 5), (RD, 15, 10)]),
        ((RD, 8, 10), &[(RD, 5, 20)]),
        ((WR, 0, 6), &[(WR, 0, 6), (RD, 6, 19)]),
        ((WR, 24, 6), &[(WR, 0, 6), (RD, 6, 18), (WR, 24, 6)]),
        (
            (RD, 40, 10),
            &[(WR, 0, 6), (RD, 6, 18), (WR, 24, 6), (RD, 40, 10)],
        ),
        ((F_UNLCK, 0, 45), &[(RD, 45, 5)]),
        ((RD, 60, 0), &[(RD, 45, 5), (RD, 60, 0)]),
        ((RD, 50, 10), &[(RD, 45, 0)]),
        ((WR, 100, 0), &[(RD, 45, 55), (WR, 100, 0)]),
        ((F_UNLCK, 0, 0), &[]),
    ];
    for (at, ((kind, start, length), held)) in steps.into_iter().enumerate() {
        assert_eq!(file.set(F_SETLK, kind, start, length), 0, "step {at}");
        assert_eq!(looks.all(), held, "step {at}");
    }
    // Two opens of one process still share one lock.
    let second = Descriptor::open(&path);
    assert_eq!(file.set(F_SETLK, WR, 0, 10), 0);
    assert_eq!(second.set(F_SETLK, WR, 10, 10), 0);
    assert_eq!(looks.all(), [(WR, 0, 20)]);
}

#[test]
fn ranges_are_counted_from_the_start_the_position_or_the_end() {
    own_process!();
    let alone = Alone::new();
    let path = alone.node.path("f");
    std::fs::write(&path, [7; 1000]).unwrap();
    let path = path_of(&path);
    let file = Descriptor::open(&path);
    let mut looks = Looks::new(&path);
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::lseek(file.0, 300, libc::SEEK_SET) }, 300);
    for (whence, start, length, held) in [
        (libc::SEEK_SET, 10, 5, (WR, 10, 5)),
        (libc::SEEK_CUR, 10, 5, (WR, 310, 5)),
        (libc::SEEK_CUR, -10, 5, (WR, 290, 5)),
        (libc::SEEK_END, -100, 50, (WR, 900, 50)),
        (libc::SEEK_END, 10, 0, (WR, 1010, 0)),
        // A negative length ends before the start.
        (libc::SEEK_SET, 100, -10, (WR, 90, 10)),
        (libc::SEEK_END, 0, -1000, (WR, 0, 1000)),
    ] {
        let mut lock = range(WR, start, length);
        lock.l_whence = whence as libc::c_short;
        assert_eq!(file.fcntl(F_SETLK, &mut lock), 0);
        assert_eq!(looks.all(), [held], "{whence} {start} {length}");
        assert_eq!(file.set(F_SETLK, F_UNLCK, 0, 0), 0);
    }
}

#[test]
fn wrong_ranges_kinds_and_modes_are_refused() {
    own_process!();
    let alone = Alone::new();
    let path = alone.node.path("f");
    let name = path_of(&path);
    let file = Descriptor::open(&name);
    let mut odd_whence = range(WR, 0, 1);
    odd_whence.l_whence = 77;
    for (mut lock, errno) in [
        (range(WR, -1, 10), EINVAL),
        (range(WR, 10, -11), EINVAL),
        (range(77, 0, 1), EINVAL),
        (odd_whence, EINVAL),
        (range(WR, i64::MAX, 2), EOVERFLOW),
        (range(WR, i64::MAX, 1), 0),
        (range(WR, i64::MAX - 10, 0), 0),
        (range(F_UNLCK, 0, i64::MAX), 0),
    ] {
        let asked = (lock.l_type, lock.l_start, lock.l_len);
        assert_eq!(file.fcntl(F_SETLK, &mut lock), errno, "{asked:?}");
    }
    // Open file description locks name no process.
    let mut lock = range(WR, 0, 1);
    lock.l_pid = 1;
    assert_eq!(file.fcntl(F_OFD_SETLK, &mut lock), EINVAL);
    assert_eq!(file.fcntl(F_OFD_GETLK, &mut lock), EINVAL);
    // An exclusive lock needs write access, a shared one read access. flock needs neither.
    use std::os::fd::AsRawFd;
    let reads = std::fs::File::open(&path).unwrap();
    let writes = std::fs::File::options().write(true).open(&path).unwrap();
    let (reads, writes) = (
        Descriptor(reads.as_raw_fd()),
        Descriptor(writes.as_raw_fd()),
    );
    assert_eq!(reads.set(F_SETLK, WR, 0, 1), EBADF);
    assert_eq!(reads.set(F_SETLK, RD, 0, 1), 0);
    assert_eq!(writes.set(F_SETLK, RD, 0, 1), EBADF);
    assert_eq!(writes.set(F_SETLK, WR, 0, 1), 0);
    assert_eq!(reads.flock(libc::LOCK_EX), 0);
    assert_eq!(reads.flock(77), EINVAL);
    assert_eq!(Descriptor(-1).flock(libc::LOCK_EX), EBADF);
}

#[test]
fn processes_and_descriptions_exclude_each_other() {
    own_process!();
    let alone = Alone::new();
    let path = path_of(&alone.node.path("f"));
    let (one, two) = (Descriptor::open(&path), Descriptor::open(&path));
    for (own, others, fits) in [
        (RD, RD, true),
        (RD, WR, false),
        (WR, RD, false),
        (WR, WR, false),
    ] {
        let expected = if fits { 0 } else { EAGAIN };
        assert_eq!(one.set(F_SETLK, own, 0, 10), 0);
        assert_eq!(
            two.set(F_OFD_SETLK, others, 5, 10),
            expected,
            "{own} {others}"
        );
        assert_eq!(two.set(F_OFD_SETLK, others, 10, 10), 0);
        // Releasing one's own leaves the other's.
        assert_eq!(one.set(F_SETLK, F_UNLCK, 0, 0), 0);
        let back = if others == RD { 0 } else { EAGAIN };
        assert_eq!(one.set(F_SETLK, RD, 0, 0), back);
        assert_eq!(one.set(F_SETLK, F_UNLCK, 0, 0), 0);
        assert_eq!(two.set(F_OFD_SETLK, F_UNLCK, 0, 0), 0);
    }
    assert_eq!(one.set(F_OFD_SETLK, WR, 0, 10), 0);
    assert_eq!(
        two.set(F_OFD_SETLK, WR, 0, 10),
        EAGAIN,
        "one process, two descriptions"
    );
    assert_eq!(
        one.set(F_SETLK, RD, 0, 10),
        EAGAIN,
        "one descriptor, two kinds of owner"
    );
}

#[test]
fn threads_that_lock_as_process_and_as_descriptions_write_whole_records() {
    own_process!();
    const RECORD: usize = 512;
    let alone = Alone::new();
    let path = path_of(&alone.node.path("f"));
    // Each pair of threads shares a record: one locks it for its description, one for the process.
    // Threads of a process don't exclude each other, so each pair has only one of those.
    for round in 0..3 {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|number| {
                    let path = &path;
                    scope.spawn(move || {
                        let way = [Way::Ofd, Way::Posix][number % 2];
                        let command = [libc::F_OFD_SETLKW, libc::F_SETLKW][number % 2];
                        let start = (number / 2 * RECORD) as i64;
                        let file = Descriptor::open(path);
                        for turn in 0..50 {
                            let locked = file.set(command, WR, start, RECORD as i64);
                            assert_eq!(locked, 0, "{way:?} {round} {turn}");
                            let mark = (number * 50 + turn) as u8;
                            let written = [mark; RECORD];
                            let mut read = [0; RECORD];
                            // SAFETY: both calls stay within the arrays.
                            unsafe {
                                let (from, to) = (written.as_ptr(), read.as_mut_ptr());
                                libc::pwrite(file.0, from.cast(), RECORD, start);
                                libc::pread(file.0, to.cast(), RECORD, start);
                            }
                            assert!(
                                read == written,
                                "{way:?} {round} {turn}: another thread wrote"
                            );
                            assert_eq!(file.set(command, F_UNLCK, start, RECORD as i64), 0);
                        }
                        file
                    })
                })
                .collect();
            // As in POSIX, a close by one thread would end the locks of the others.
            let files: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
            files.into_iter().for_each(Descriptor::close);
        });
    }
}
