//! Waits for file locks, ended by INTERRUPT: their number, and how a wait learns that it must end, or is broken off for a while
//! (`gate.rs`).

use model::LockKind;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::oneshot;
use world::Map;

/// Most concurrent lock waits of one mount; further ones get ENOLCK.
pub(crate) const WAITS_MAX: usize = 4096;
/// Interrupts remembered for lock requests that another thread has read but not begun yet.
const EARLY_MAX: usize = 256;

/// Who manages a mount's file locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LockScope {
    /// The file system: locks apply across all mounts. Each close(2) is a request, since it ends
    /// locks.
    #[default]
    Cluster,
    /// The kernel: locks apply among the users of this mount only, and cost no requests.
    Local,
}

/// Completes when a signal interrupts the program that waits for a lock, or its mount ends.
#[derive(Debug)]
pub struct Interrupted(oneshot::Receiver<()>);

impl Future for Interrupted {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // An error means that the mount has ended.
        Pin::new(&mut self.0).poll(context).map(drop)
    }
}

/// The lock waits of one mount, by the number of their request.
#[derive(Debug, Default)]
pub(crate) struct LockWaits {
    state: Mutex<WaitsState>,
}

#[derive(Debug, Default)]
struct WaitsState {
    waits: Map<u64, Wait>,
    /// The number of waits of each user.
    users: Map<u32, usize>,
    /// An INTERRUPT can overtake its request when two threads read them. Request numbers are never
    /// reused, so a stale one does no harm here.
    early: VecDeque<u64>,
    /// Requests that may begin to wait, and whether each was interrupted: the kernel says it once, and other requests'
    /// interrupts would push it out of `early`.
    asking: Map<u64, bool>,
    /// All are broken off, and those that begin.
    breaks_off: bool,
    /// The mount has ended.
    closed: bool,
}

#[derive(Debug)]
struct Wait {
    user: u32,
    /// None once it was sent.
    interrupt: Option<oneshot::Sender<()>>,
    /// It was sent although nothing has interrupted the program.
    is_broken_off: bool,
}

impl Wait {
    /// Has the wait end, and begin again.
    fn break_off(&mut self) {
        if let Some(interrupt) = self.interrupt.take() {
            self.is_broken_off = true;
            // The receiver is gone if the wait has just ended.
            let _ = interrupt.send(());
        }
    }
}

/// A request that is asked for without waiting first; may begin to wait until this is dropped.
#[derive(Debug)]
pub(crate) struct Asking<'a> {
    waits: &'a LockWaits,
    unique: u64,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.waits.state.lock().asking.remove(&self.unique);
    }
}

/// Why a wait can't begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoWait {
    Interrupted,
    TooMany,
}

impl LockWaits {
    /// A request is about to be asked for, and waits if its lock isn't free: an interrupt that comes meanwhile is kept for it.
    pub(crate) fn ask(&self, unique: u64) -> Asking<'_> {
        let mut state = self.state.lock();
        let early = state.early.iter().position(|early| *early == unique);
        if let Some(at) = early {
            state.early.remove(at);
        }
        state.asking.insert(unique, early.is_some());
        Asking {
            waits: self,
            unique,
        }
    }

    /// Ends the wait of a request. Other requests continue: they end on their own.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        if let Some(wait) = state.waits.get_mut(&unique) {
            wait.is_broken_off = false;
            // The receiver is gone if the wait has just ended.
            let _ = wait.interrupt.take().map(|interrupt| interrupt.send(()));
            return;
        }
        if let Some(is_interrupted) = state.asking.get_mut(&unique) {
            *is_interrupted = true;
            return;
        }
        if state.early.len() == EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(unique);
    }

    /// Ends all waits and refuses new ones: no program is left to be answered.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        for wait in state.waits.values_mut() {
            wait.interrupt = None;
        }
    }

    /// Breaks all waits off, and those that begin until [`LockWaits::go_on`]: as if they were interrupted, but they may begin
    /// again.
    pub(crate) fn break_off(&self) {
        let mut state = self.state.lock();
        state.breaks_off = true;
        state.waits.values_mut().for_each(Wait::break_off);
    }

    /// Waits aren't broken off any more.
    pub(crate) fn go_on(&self) {
        self.state.lock().breaks_off = false;
    }

    /// A wait has ended as interrupted: it begins again if it was only broken off. To be asked for by who may be inside the
    /// mount's gate only after that.
    pub(crate) fn again(&self, unique: u64) -> Option<Interrupted> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        let wait = state.waits.get_mut(&unique)?;
        if !std::mem::take(&mut wait.is_broken_off) {
            return None;
        }
        let (interrupt, interrupted) = oneshot::channel();
        wait.interrupt = Some(interrupt);
        Some(Interrupted(interrupted))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().waits.len()
    }

    /// `waits_max`: of all users together. A user may have at most two thirds of what the others
    /// leave, so that later users get some.
    pub(crate) fn begin(
        &self,
        unique: u64,
        user: u32,
        waits_max: usize,
    ) -> Result<Interrupted, NoWait> {
        let mut state = self.state.lock();
        if let Some(at) = state.early.iter().position(|early| *early == unique) {
            state.early.remove(at);
            return Err(NoWait::Interrupted);
        }
        if state.closed || state.asking.get(&unique) == Some(&true) {
            return Err(NoWait::Interrupted);
        }
        let own = state.users.get(&user).copied().unwrap_or_default();
        let others = state.waits.len() - own;
        if own >= (waits_max.saturating_sub(others) * 2).div_ceil(3) {
            return Err(NoWait::TooMany);
        }
        let (interrupt, interrupted) = oneshot::channel();
        let mut wait = Wait {
            user,
            interrupt: Some(interrupt),
            is_broken_off: false,
        };
        if state.breaks_off {
            wait.break_off();
        }
        state.waits.insert(unique, wait);
        state.users.insert(user, own + 1);
        Ok(Interrupted(interrupted))
    }

    pub(crate) fn end(&self, unique: u64) {
        let mut state = self.state.lock();
        let wait = state.waits.remove(&unique).expect("each wait ends once");
        let own = state
            .users
            .get_mut(&wait.user)
            .expect("the users of waits are counted");
        *own -= 1;
        if *own == 0 {
            state.users.remove(&wait.user);
        }
    }
}

/// The `F_*` number of a kind; `None` is `F_UNLCK`.
pub(crate) fn number_of(kind: Option<LockKind>) -> u32 {
    (match kind {
        Some(LockKind::Shared) => libc::F_RDLCK,
        Some(LockKind::Exclusive) => libc::F_WRLCK,
        None => libc::F_UNLCK,
    }) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn has_ended(interrupted: &mut Interrupted) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        Pin::new(interrupted).poll(&mut context).is_ready()
    }

    #[test]
    fn no_user_can_take_all_waits() {
        let waits = LockWaits::default();
        let mut unique = 0;
        let mut fill = |user| {
            let before = unique;
            while waits.begin(unique, user, 192).is_ok() {
                unique += 1;
            }
            unique - before
        };
        let taken = [1, 2, 3, 4, 5, 6].map(&mut fill);
        assert_eq!(taken, [128, 43, 14, 5, 2, 0]);
        assert_eq!(fill(1), 0);
        for of_first in 0..128 {
            waits.end(of_first);
        }
        assert!(fill(6) > 80);
    }

    #[test]
    fn an_interrupt_ends_its_wait_also_if_it_comes_first() {
        let waits = LockWaits::default();
        let mut one = waits.begin(1, 0, 10).expect("there is room");
        let mut two = waits.begin(2, 0, 10).expect("there is room");
        assert!(!has_ended(&mut one));
        waits.interrupt(1);
        waits.interrupt(3);
        assert!(has_ended(&mut one));
        assert!(!has_ended(&mut two));
        assert_eq!(waits.begin(3, 0, 10).err(), Some(NoWait::Interrupted));
        waits.end(1);
        waits.close();
        assert!(has_ended(&mut two));
        assert_eq!(waits.begin(4, 0, 10).err(), Some(NoWait::Interrupted));
        waits.end(2);
    }

    /// Would be broken if a program waited no more for its lock because what answers it was exchanged, or if it went on waiting
    /// although a signal has interrupted it.
    #[test]
    fn a_wait_that_is_broken_off_begins_again_unless_it_is_interrupted() {
        let waits = LockWaits::default();
        let mut begun = [1, 2, 3].map(|unique| waits.begin(unique, 0, 100).expect("there is room"));
        assert!(waits.again(1).is_none(), "nothing has ended it");
        waits.interrupt(1);
        waits.break_off();
        waits.interrupt(2);
        assert!(begun.iter_mut().all(has_ended));
        for unique in [1, 2] {
            assert!(waits.again(unique).is_none(), "a signal has ended it");
        }
        // One whose request was inside already.
        let mut late = waits.begin(4, 0, 100).expect("there is room");
        assert!(has_ended(&mut late));
        let mut again = waits.again(3).expect("it goes on");
        assert!(!has_ended(&mut again));
        waits.go_on();
        assert!(!has_ended(&mut again));
        let mut late = waits.again(4).expect("it goes on");
        let mut new = waits.begin(5, 0, 100).expect("there is room");
        assert!(!has_ended(&mut late) && !has_ended(&mut new));
        waits.interrupt(3);
        assert!(has_ended(&mut again) && waits.again(3).is_none());
        waits.break_off();
        waits.close();
        assert!(has_ended(&mut late) && waits.again(4).is_none());
    }

    /// Would be broken if a request that asks for its lock lost its interrupt to those of others: the kernel sends no other one.
    #[test]
    fn no_interrupts_of_others_push_out_that_of_a_request_that_asks() {
        let waits = LockWaits::default();
        waits.interrupt(1);
        let asking = [1, 2, 3].map(|unique| waits.ask(unique));
        waits.interrupt(2);
        let others = 10..10 + 2 * EARLY_MAX as u64;
        others.for_each(|other| waits.interrupt(other));
        for unique in [1, 2] {
            assert_eq!(waits.begin(unique, 0, 10).err(), Some(NoWait::Interrupted));
        }
        let mut begun = waits.begin(3, 0, 10).expect("there is room");
        assert!(!has_ended(&mut begun));
        waits.interrupt(3);
        assert!(has_ended(&mut begun));
        waits.end(3);
        drop(asking);
        assert!(waits.state.lock().asking.is_empty());
    }
}
