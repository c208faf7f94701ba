//! How many locks there may be, and which user has how many of them.

use world::Map;

/// Locks held in all: 130 to 350 bytes each.
pub(super) const LOCKS_MAX: usize = 1 << 19;
/// Locks that one user may hold.
pub(super) const USER_LOCKS_MAX: usize = 1 << 17;
/// Requests that may wait in all.
pub(super) const WAITS_MAX: usize = 1 << 15;
/// Requests of one user that may wait.
pub(super) const USER_WAITS_MAX: usize = 1 << 12;

/// Locks and waits by user. Users who have none aren't remembered.
#[derive(Default)]
pub(super) struct Charges {
    users: Map<u32, Charge>,
    all: Charge,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Charge {
    held: usize,
    waiting: usize,
}

impl Charges {
    /// Whether a user may hold so many locks more: never more than half of what the others leave,
    /// so that something is left for the next one.
    pub(super) fn may_hold(&self, user: u32, more: usize) -> bool {
        let held = self.of(user).held;
        let share = LOCKS_MAX.saturating_sub(self.all.held - held) / 2;
        held + more <= share.min(USER_LOCKS_MAX)
    }

    /// Whether one request more of a user may wait; as with locks.
    pub(super) fn may_wait(&self, user: u32) -> bool {
        let waiting = self.of(user).waiting;
        let share = WAITS_MAX.saturating_sub(self.all.waiting - waiting) / 2;
        waiting < share.min(USER_WAITS_MAX)
    }

    /// Locks held and requests waiting.
    #[cfg(test)]
    pub(super) fn all(&self) -> (usize, usize) {
        (self.all.held, self.all.waiting)
    }

    pub(super) fn hold(&mut self, user: u32) {
        self.change(user, |charge| charge.held += 1);
    }

    pub(super) fn no_hold(&mut self, user: u32) {
        self.change(user, |charge| charge.held -= 1);
    }

    pub(super) fn wait(&mut self, user: u32) {
        self.change(user, |charge| charge.waiting += 1);
    }

    pub(super) fn no_wait(&mut self, user: u32) {
        self.change(user, |charge| charge.waiting -= 1);
    }

    fn of(&self, user: u32) -> Charge {
        self.users.get(&user).copied().unwrap_or_default()
    }

    fn change(&mut self, user: u32, change: impl Fn(&mut Charge)) {
        change(&mut self.all);
        let of_user = self.users.entry(user).or_default();
        change(of_user);
        if *of_user == Charge::default() {
            self.users.remove(&user);
        }
    }
}
