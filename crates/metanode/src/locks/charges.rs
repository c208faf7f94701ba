//! Limits the number of locks and waits, in total and per user.

use world::Map;

/// Most locks held in total: 130 to 350 bytes each.
pub(super) const LOCKS_MAX: usize = 1 << 19;
/// Most locks held by one user.
pub(super) const USER_LOCKS_MAX: usize = 1 << 17;
/// Most requests waiting in total.
pub(super) const WAITS_MAX: usize = 1 << 15;
/// Most waiting requests of one user.
pub(super) const USER_WAITS_MAX: usize = 1 << 12;

/// Locks and waits by user. Users without any aren't listed.
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
    /// Whether a user may hold this many more locks: never more than half of what the others leave,
    /// so that later users get some.
    pub(super) fn may_hold(&self, user: u32, more: usize) -> bool {
        let held = self.of(user).held;
        let share = LOCKS_MAX.saturating_sub(self.all.held - held) / 2;
        held + more <= share.min(USER_LOCKS_MAX)
    }

    /// Whether there is room for a lock that was held under the owner before: whoever had it had a share for it then, which may
    /// be less by now, and as many as waited may have got theirs without one.
    pub(super) fn may_keep(&self) -> bool {
        self.all.held < LOCKS_MAX + WAITS_MAX
    }

    /// Whether a user may have one more waiting request; shared as for locks.
    pub(super) fn may_wait(&self, user: u32) -> bool {
        let waiting = self.of(user).waiting;
        let share = WAITS_MAX.saturating_sub(self.all.waiting - waiting) / 2;
        waiting < share.min(USER_WAITS_MAX)
    }

    /// Number of locks held and of requests waiting.
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
