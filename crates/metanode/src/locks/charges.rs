//! Limits the number of locks and waits: in total, per session, and per user of a session.
//!
//! Who its users are is a session's own word, so they share what their session may have: one that names many, or those of
//! other sessions, takes nothing from the others.

use model::SessionId;
use world::Map;

/// Most locks held in total: 130 to 350 bytes each.
pub(super) const LOCKS_MAX: usize = 1 << 19;
/// Most locks held by one user of a session.
pub(super) const USER_LOCKS_MAX: usize = 1 << 17;
/// Most requests waiting in total.
pub(super) const WAITS_MAX: usize = 1 << 15;
/// Most waiting requests of one user of a session.
pub(super) const USER_WAITS_MAX: usize = 1 << 12;

/// Most locks that a session may hold of so many that the others leave: it may be the only one, and have several users.
const fn session_locks(left: usize) -> usize {
    left / 4 * 3
}

/// Most waiting requests that a session may have of so many that the others leave.
const fn session_waits(left: usize) -> usize {
    left / 2
}

/// Most locks that a session can have: its waiting requests may be granted when it has its share.
const SESSION_LOCKS_MAX: usize = session_locks(LOCKS_MAX) + session_waits(WAITS_MAX);

/// Locks and waits by session and user. Sessions and users without any aren't listed.
#[derive(Default)]
pub(super) struct Charges {
    sessions: Map<SessionId, OfSession>,
    all: Charge,
}

#[derive(Default)]
struct OfSession {
    users: Map<u32, Charge>,
    all: Charge,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Charge {
    held: usize,
    waiting: usize,
}

impl Charges {
    /// Whether a user may hold this many more locks: never more than half of what the other users leave of its session's share,
    /// so that later users get some.
    pub(super) fn may_hold(&self, session: SessionId, user: u32, more: usize) -> bool {
        let (of_session, of_user) = self.of(session, user);
        let left = LOCKS_MAX.saturating_sub(self.all.held - of_session.held);
        let left = session_locks(left).saturating_sub(of_session.held - of_user.held);
        of_user.held + more <= USER_LOCKS_MAX.min(left / 2)
    }

    /// Whether there is room for a lock that a session held under the owner before: whoever had it had a share for it then, which
    /// may be less by now, and as many as waited may have got theirs without one.
    pub(super) fn may_keep(&self, session: SessionId) -> bool {
        let of_session = self.sessions.get(&session).map_or(0, |it| it.all.held);
        of_session < SESSION_LOCKS_MAX && self.all.held < LOCKS_MAX + WAITS_MAX
    }

    /// Whether a user may have one more waiting request; shared as for locks.
    pub(super) fn may_wait(&self, session: SessionId, user: u32) -> bool {
        let (of_session, of_user) = self.of(session, user);
        let left = WAITS_MAX.saturating_sub(self.all.waiting - of_session.waiting);
        let left = session_waits(left).saturating_sub(of_session.waiting - of_user.waiting);
        of_user.waiting < USER_WAITS_MAX.min(left / 2)
    }

    /// Number of locks held and of requests waiting.
    #[cfg(test)]
    pub(super) fn all(&self) -> (usize, usize) {
        (self.all.held, self.all.waiting)
    }

    pub(super) fn hold(&mut self, session: SessionId, user: u32) {
        self.change(session, user, |charge| charge.held += 1);
    }

    pub(super) fn no_hold(&mut self, session: SessionId, user: u32) {
        self.change(session, user, |charge| charge.held -= 1);
    }

    pub(super) fn wait(&mut self, session: SessionId, user: u32) {
        self.change(session, user, |charge| charge.waiting += 1);
    }

    pub(super) fn no_wait(&mut self, session: SessionId, user: u32) {
        self.change(session, user, |charge| charge.waiting -= 1);
    }

    /// What is charged to a session, and to its user.
    fn of(&self, session: SessionId, user: u32) -> (Charge, Charge) {
        let Some(of_session) = self.sessions.get(&session) else {
            return (Charge::default(), Charge::default());
        };
        let of_user = of_session.users.get(&user).copied();
        (of_session.all, of_user.unwrap_or_default())
    }

    fn change(&mut self, session: SessionId, user: u32, change: impl Fn(&mut Charge)) {
        change(&mut self.all);
        let of_session = self.sessions.entry(session).or_default();
        change(&mut of_session.all);
        let of_user = of_session.users.entry(user).or_default();
        change(of_user);
        if *of_user == Charge::default() {
            of_session.users.remove(&user);
        }
        if of_session.users.is_empty() {
            self.sessions.remove(&session);
        }
    }
}
