//! Waiting: which waiters are woken, signals, and killed waiters.

use super::processes::{Alone, Descriptor, Process, WAYS, Way, fork, path_of};
use crate::fixture::own_process;
use libc::{EINTR, F_RDLCK, F_SETLK, F_SETLKW, F_UNLCK, F_WRLCK};
use std::ffi::CString;

extern "C" fn nothing(_: i32) {}

/// Installs a handler for a signal; interrupted calls restart if `restart`.
fn catch(signal: i32, restart: bool) {
    // SAFETY: all zeros is a valid value, and the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        action.sa_flags = if restart { libc::SA_RESTART } else { 0 };
        assert_eq!(
            libc::sigaction(signal, &raw const action, std::ptr::null_mut()),
            0
        );
    }
}

/// SIGALRM, first after this many microseconds, then periodically; 0 stops it.
fn alarm(first: i64, then: i64) {
    let microseconds = |tv_usec| libc::timeval { tv_sec: 0, tv_usec };
    let timer = libc::itimerval {
        it_interval: microseconds(then),
        it_value: microseconds(first),
    };
    // SAFETY: plain data, alive over the call.
    let set = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    assert_eq!(set, 0);
}

/// A process that waits for the lock once, reports the result, and unlocks when told.
fn waits(way: Way, path: &CString, restart: bool) -> Process {
    fork(|wire| {
        catch(libc::SIGUSR1, restart);
        let file = Descriptor::open(path);
        wire.say(way.wait(file));
        wire.hear()
    })
}

#[test]
fn a_signal_interrupts_a_wait_or_lets_it_go_on_as_the_program_wants() {
    own_process!();
    for way in WAYS {
        let alone = Alone::new();
        let path = path_of(&alone.node.path("f"));
        let file = Descriptor::open(&path);
        assert_eq!(way.wait(file), 0);
        let mut stops = waits(way, &path, false);
        alone.until_waiting(1);
        stops.signal(libc::SIGUSR1);
        assert_eq!(stops.wire.hear(), EINTR, "{way:?}");
        let mut goes_on = waits(way, &path, true);
        alone.until_waiting(1);
        for _ in 0..20 {
            goes_on.signal(libc::SIGUSR1);
        }
        assert!(goes_on.wire.is_silent());
        assert_eq!(way.unlock(file), 0);
        assert_eq!(goes_on.wire.hear(), 0, "{way:?}");
        // The interrupted waiter holds nothing.
        goes_on.wire.say(0);
        assert_eq!(goes_on.end(), 0);
        assert_eq!(way.wait(file), 0);
    }
}

#[test]
fn no_signal_is_lost_however_early_it_comes() {
    own_process!();
    let alone = Alone::new();
    for way in WAYS {
        let path = path_of(&alone.node.path("f"));
        let file = Descriptor::open(&path);
        assert_eq!(way.wait(file), 0);
        // A lost signal would leave the wait without end: later ones don't interrupt it.
        let mut child = fork(|_| {
            catch(libc::SIGALRM, false);
            let file = Descriptor::open(&path);
            for round in 0..300 {
                alarm(1 + round * 7 % 400, 1000);
                let answer = way.wait(file);
                alarm(0, 0);
                if answer != EINTR {
                    eprintln!("{way:?}, round {round}: {answer}");
                    return 1;
                }
            }
            0
        });
        assert_eq!(child.end(), 0, "{way:?}");
        file.close();
    }
}

#[test]
fn signals_that_restart_calls_change_no_answer_of_a_lock() {
    own_process!();
    let alone = Alone::new();
    let path = path_of(&alone.node.path("f"));
    let count = |way: Way| {
        fork({
            let path = &path;
            move |_| {
                catch(libc::SIGALRM, true);
                let file = Descriptor::open(path);
                alarm(500, 3000);
                for _ in 0..200 {
                    let answers = (way.wait(file), way.unlock(file));
                    if answers != (0, 0) {
                        eprintln!("{way:?}: {answers:?}");
                        return 1;
                    }
                }
                0
            }
        })
    };
    for way in WAYS {
        let mut all: Vec<_> = (0..4).map(|_| count(way)).collect();
        for process in &mut all {
            assert_eq!(process.end(), 0, "{way:?}");
        }
    }
}

#[test]
fn a_killed_waiter_leaves_nothing_behind() {
    own_process!();
    for way in WAYS {
        let alone = Alone::new();
        let path = path_of(&alone.node.path("f"));
        let file = Descriptor::open(&path);
        assert_eq!(way.wait(file), 0);
        let mut killed: Vec<_> = (0..8).map(|_| waits(way, &path, true)).collect();
        alone.until_waiting(8);
        for process in &mut killed {
            process.signal(libc::SIGKILL);
            assert_eq!(process.end(), 128 + libc::SIGKILL);
        }
        alone.until_waiting(0);
        assert_eq!(way.unlock(file), 0);
        assert_eq!(way.wait(file), 0);
    }
}

#[test]
fn each_of_eight_waiters_gets_the_lock_in_turn() {
    own_process!();
    for way in WAYS {
        let alone = Alone::new();
        let path = path_of(&alone.node.path("f"));
        let file = Descriptor::open(&path);
        assert_eq!(way.wait(file), 0);
        let mut waiters = Vec::new();
        for already in 0..8 {
            waiters.push(waits(way, &path, true));
            alone.until_waiting(already + 1);
        }
        assert_eq!(way.unlock(file), 0);
        for turn in 0..8 {
            assert_eq!(waiters[turn].wire.hear(), 0, "{way:?}, turn {turn}");
            let silent = waiters[turn + 1..]
                .iter()
                .all(|other| other.wire.is_silent());
            assert!(silent, "{way:?}: two have it in turn {turn}");
            waiters[turn].wire.say(0);
            assert_eq!(waiters[turn].end(), 0);
        }
    }
}

#[test]
fn readers_come_in_together_and_a_writer_when_the_last_is_gone() {
    own_process!();
    let alone = Alone::new();
    let path = path_of(&alone.node.path("f"));
    let file = Descriptor::open(&path);
    assert_eq!(file.set(F_SETLK, F_WRLCK, 0, 100), 0);
    let locks = |kind: i32, start: i64, length: i64| {
        let path = &path;
        fork(move |wire| {
            let file = Descriptor::open(path);
            wire.say(file.set(F_SETLKW, kind, start, length));
            wire.hear()
        })
    };
    let mut readers: Vec<_> = (0..4).map(|at| locks(F_RDLCK, at * 10, 50)).collect();
    alone.until_waiting(4);
    // A lock that becomes shared lets them in.
    assert_eq!(file.set(F_SETLK, F_RDLCK, 0, 100), 0);
    for reader in &mut readers {
        assert_eq!(reader.wire.hear(), 0);
    }
    let mut writer = locks(F_WRLCK, 5, 70);
    alone.until_waiting(1);
    assert_eq!(file.set(F_SETLK, F_UNLCK, 0, 0), 0);
    for reader in &mut readers {
        assert!(writer.wire.is_silent());
        reader.wire.say(0);
        assert_eq!(reader.end(), 0);
    }
    assert_eq!(writer.wire.hear(), 0);
}

#[test]
fn a_close_leaves_a_wait_of_the_same_process_alone() {
    own_process!();
    let alone = Alone::new();
    let path = path_of(&alone.node.path("f"));
    let mut holder = fork(|wire| {
        let file = Descriptor::open(&path);
        wire.say(Way::Posix.wait(file));
        wire.hear()
    });
    assert_eq!(holder.wire.hear(), 0);
    let (waits, closes) = (Descriptor::open(&path), Descriptor::open(&path));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| Way::Posix.wait(waits));
        alone.until_waiting(1);
        closes.close();
        assert_eq!(alone.waiting(), 1);
        holder.wire.say(0);
        assert_eq!(waiting.join().unwrap(), 0);
    });
    waits.close();
}
