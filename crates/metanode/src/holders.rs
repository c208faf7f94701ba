//! Tracks which inodes are in use by which session, so that they outlive their last names.

use model::{Error, ErrorKind, InodeId, Result, SessionId};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use world::{Map, Set};

/// Partitions of the table, so that threads rarely contend.
const PARTS: usize = 64;

/// Inodes that a session may use at the same time: what its programs have open, and the FIFOs, sockets and devices that its
/// kernel knows. Other inodes that a kernel caches aren't used. Each costs up to 80 bytes.
const SESSION_USES_MAX: usize = 1 << 21;

/// One of so many parts of that a session may have in addition: one that has few inodes in a partition gets another one there
/// without a look at the others.
const UNCOUNTED: usize = 4;

/// Most inodes that a session uses.
pub(crate) const SESSION_USED_MAX: usize = SESSION_USES_MAX + SESSION_USES_MAX / UNCOUNTED;

/// Use counts by inode and session. Queried under the shard's lock, so its own locks are held only
/// briefly.
pub(crate) struct Holders {
    parts: [Mutex<HolderTable>; PARTS],
    /// [`SESSION_USES_MAX`], less in tests.
    session_max: usize,
    /// The number of the last operation of each slot that made an inode without a name and was
    /// answered by this owner: a copy of it that comes later makes no use.
    made: Mutex<BTreeMap<(SessionId, u8), u64>>,
    /// During the grace time: inodes without names whose last known use ended, and which weren't released because others
    /// may have uses that aren't known yet. As many as there were such uses.
    let_go: Mutex<Option<BTreeSet<InodeId>>>,
}

#[derive(Default)]
struct HolderTable {
    held: Map<InodeId, Uses>,
    /// How many inodes each session uses, of those here.
    counts: Map<SessionId, usize>,
    /// Inodes that may have no names: only these are released after their last use, so that
    /// ordinary closes don't involve the shard. Some may have got a name since.
    nameless: Set<InodeId>,
    /// Those whose last use has ended and that aren't released yet, each with the number of that end:
    /// who ends it may be given up before. At most as many as have lost their last names or uses under this owner.
    unreleased: Map<InodeId, u64>,
    /// How many last uses have ended.
    ends: u64,
}

impl HolderTable {
    /// How often a session uses an inode; to be set, if it didn't.
    fn uses_of(&mut self, session: SessionId, inode: InodeId) -> &mut u64 {
        let uses = self.held.entry(inode).or_default();
        let known = uses.iter().position(|(holder, _)| *holder == session);
        let at = known.unwrap_or_else(|| {
            *self.counts.entry(session).or_default() += 1;
            uses.push((session, 0));
            uses.len() - 1
        });
        &mut uses[at].1
    }

    fn is_used_by(&self, session: SessionId, inode: InodeId) -> bool {
        let uses = self.held.get(&inode);
        uses.is_some_and(|uses| uses.iter().any(|(holder, _)| *holder == session))
    }

    fn count_of(&self, session: SessionId) -> usize {
        self.counts.get(&session).copied().unwrap_or_default()
    }

    fn note_end(&mut self, inode: InodeId) {
        self.ends += 1;
        self.unreleased.insert(inode, self.ends);
    }
}

/// A session uses an inode less.
fn count_down(counts: &mut Map<SessionId, usize>, session: SessionId) {
    if let Some(count) = counts.get_mut(&session) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&session);
        }
    }
}

/// Nearly always those of one session.
type Uses = SmallVec<[(SessionId, u64); 1]>;

impl Default for Holders {
    fn default() -> Self {
        Self {
            parts: std::array::from_fn(|_| Mutex::default()),
            session_max: SESSION_USES_MAX,
            made: Mutex::default(),
            let_go: Mutex::new(Some(BTreeSet::new())),
        }
    }
}

impl Holders {
    fn part(&self, inode: InodeId) -> MutexGuard<'_, HolderTable> {
        self.parts[inode.0 as usize % PARTS].lock()
    }

    /// Inodes that are used.
    pub(crate) fn count(&self) -> usize {
        let parts = self.parts.iter();
        parts.map(|part| part.lock().held.len()).sum()
    }

    /// How many inodes a session uses.
    fn count_of(&self, session: SessionId) -> usize {
        let parts = self.parts.iter();
        parts.map(|part| part.lock().count_of(session)).sum()
    }

    /// Whether a session may use an inode: it does, or doesn't use too many others. What it makes, or has said to use under the
    /// owner before, counts too.
    ///
    /// # Errors
    /// `TooManyOpens`.
    pub(crate) fn check_room(&self, session: SessionId, inode: InodeId) -> Result<()> {
        let has_few = {
            let table = self.part(inode);
            let few = self.session_max / PARTS / UNCOUNTED;
            table.count_of(session) < few || table.is_used_by(session, inode)
        };
        if has_few || self.count_of(session) < self.session_max {
            return Ok(());
        }
        let text = format!(
            "a node has at most {} files of a file system in use",
            self.session_max
        );
        Err(Error::new(ErrorKind::TooManyOpens, text))
    }

    /// Whether a session may say that it uses so many inodes more: twice as many as it may use, since attempts to say it that
    /// were given up count until one is complete.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(crate) fn check_said(&self, session: SessionId, more: usize) -> Result<()> {
        if self.count_of(session) + more <= 2 * self.session_max {
            return Ok(());
        }
        let text = "a session doesn't use as many inodes as it says";
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }

    /// Adds a use.
    pub(crate) fn hold(&self, session: SessionId, inode: InodeId) {
        let mut table = self.part(inode);
        let count = table.uses_of(session, inode);
        // A faulty client may have said that there are very many.
        *count = count.saturating_add(1);
    }

    /// A session says to a new owner how often it uses an inode, which may have no names. The same
    /// again changes nothing.
    pub(crate) fn reclaim(&self, session: SessionId, inode: InodeId, count: u64) {
        if count == 0 {
            return;
        }
        let mut table = self.part(inode);
        *table.uses_of(session, inode) = count;
        table.nameless.insert(inode);
    }

    /// A session has made an inode under the owner before, and holds it once more than it says to this one,
    /// because it hasn't heard of that. `has_said`: what is known of the session's uses of the inode is what it has
    /// said since; otherwise it has said that there are none, and what is known is older.
    pub(crate) fn reclaim_made(&self, session: SessionId, inode: InodeId, has_said: bool) {
        let mut table = self.part(inode);
        let count = table.uses_of(session, inode);
        *count = match has_said {
            true => count.saturating_add(1),
            false => 1,
        };
        table.nameless.insert(inode);
    }

    /// Removes a use. True if it was the last one and the inode must be released; then
    /// [`Holders::released`] is to follow.
    pub(crate) fn unhold(&self, session: SessionId, inode: InodeId) -> bool {
        let mut table = self.part(inode);
        let HolderTable { held, counts, .. } = &mut *table;
        if let Some(uses) = held.get_mut(&inode) {
            if let Some(at) = uses.iter().position(|(holder, _)| *holder == session) {
                uses[at].1 -= 1;
                if uses[at].1 == 0 {
                    uses.swap_remove(at);
                    count_down(counts, session);
                }
            }
            if !uses.is_empty() {
                return false;
            }
            held.remove(&inode);
        }
        let is_last = table.nameless.remove(&inode);
        if is_last {
            table.note_end(inode);
            self.note_let_go(inode);
        }
        is_last
    }

    fn note_let_go(&self, inode: InodeId) {
        if let Some(let_go) = &mut *self.let_go.lock() {
            let_go.insert(inode);
        }
    }

    /// Whether the last known use of the inode ended during the grace time: nobody needs it for not having heard of it.
    pub(crate) fn is_let_go(&self, inode: InodeId) -> bool {
        let let_go = self.let_go.lock();
        let_go
            .as_ref()
            .is_some_and(|let_go| let_go.contains(&inode))
    }

    /// The grace time is over, and what nobody uses is released.
    pub(crate) fn end_grace(&self) {
        *self.let_go.lock() = None;
    }

    /// A session of another node made an inode without a name, by the operation `number` of a slot,
    /// and uses it from then on. The same again changes nothing, also when the use has ended.
    pub(crate) fn hold_made(&self, session: SessionId, slot: u8, number: u64, inode: InodeId) {
        let mut made = self.made.lock();
        let last = made.entry((session, slot)).or_default();
        if *last >= number {
            return;
        }
        *last = number;
        if let Some(let_go) = &mut *self.let_go.lock() {
            let_go.remove(&inode);
        }
        let mut table = self.part(inode);
        let count = table.uses_of(session, inode);
        *count = (*count).max(1);
        table.nameless.insert(inode);
    }

    /// An inode was made without a name; its maker, on this node, will hold it next.
    pub(crate) fn made_nameless(&self, inode: InodeId) {
        self.part(inode).nameless.insert(inode);
    }

    /// An inode in use lost its last name. True if it isn't used any more and must be released now; then
    /// [`Holders::released`] is to follow.
    pub(crate) fn lost_names(&self, inode: InodeId) -> bool {
        let mut table = self.part(inode);
        let is_held = table.held.contains_key(&inode);
        match is_held {
            true => {
                table.nameless.insert(inode);
                table.unreleased.remove(&inode);
            }
            false => table.note_end(inode),
        }
        !is_held
    }

    /// The number of the end of the last use of an inode that isn't released yet.
    pub(crate) fn last_end(&self, inode: InodeId) -> Option<u64> {
        self.part(inode).unreleased.get(&inode).copied()
    }

    /// An inode was released, or needn't be, and nobody has used it since that end of its last use.
    pub(crate) fn released(&self, inode: InodeId, end: Option<u64>) {
        let mut table = self.part(inode);
        if end.is_some() && table.unreleased.get(&inode).copied() == end {
            table.unreleased.remove(&inode);
        }
    }

    /// Some of the inodes whose last use has ended and that aren't released yet, in order.
    pub(crate) fn unreleased(&self, max: usize) -> Vec<InodeId> {
        let mut inodes = Vec::new();
        for part in &self.parts {
            let table = part.lock();
            inodes.extend(table.unreleased.keys().take(max - inodes.len()));
        }
        inodes.sort_unstable();
        inodes
    }

    /// Ends all uses of a session. Returns the unused inodes that must be released, in order.
    pub(crate) fn end_session(&self, session: SessionId) -> Vec<InodeId> {
        self.forget_made(session);
        self.end_uses(|holder, _| holder == session)
    }

    fn forget_made(&self, session: SessionId) {
        let mut made = self.made.lock();
        made.retain(|(maker, _), _| *maker != session);
    }

    fn end_uses(&self, ends: impl Fn(SessionId, InodeId) -> bool) -> Vec<InodeId> {
        let mut free = Vec::new();
        for part in &self.parts {
            let mut table = part.lock();
            let HolderTable {
                held,
                nameless,
                counts,
                ..
            } = &mut *table;
            let before = free.len();
            held.retain(|inode, uses| {
                uses.retain(|(holder, _)| {
                    let goes = ends(*holder, *inode);
                    if goes {
                        count_down(counts, *holder);
                    }
                    !goes
                });
                if uses.is_empty() && nameless.remove(inode) {
                    free.push(*inode);
                }
                !uses.is_empty()
            });
            for inode in &free[before..] {
                table.note_end(*inode);
            }
        }
        free.sort_unstable();
        free
    }

    /// Ends all uses of a session except those of these inodes. Returns the unused inodes that must be
    /// released, in order.
    pub(crate) fn keep_only(&self, session: SessionId, kept: &BTreeSet<InodeId>) -> Vec<InodeId> {
        self.forget_made(session);
        self.end_uses(|holder, inode| holder == session && !kept.contains(&inode))
    }

    /// Whether any session uses the inode.
    pub(crate) fn is_held(&self, inode: InodeId) -> bool {
        self.part(inode).held.contains_key(&inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_without_names_is_released_after_its_last_user() {
        let holders = Holders::default();
        let inode = InodeId(7);
        holders.hold(SessionId(1), inode);
        holders.hold(SessionId(1), inode);
        holders.hold(SessionId(2), inode);
        assert!(!holders.unhold(SessionId(1), inode));
        assert!(!holders.lost_names(inode));
        assert!(!holders.unhold(SessionId(1), inode));
        assert!(holders.is_held(inode));
        assert!(holders.unhold(SessionId(2), inode));
        assert!(!holders.is_held(inode));
    }

    #[test]
    fn what_nobody_has_released_is_remembered_by_its_newest_end() {
        let (holders, session, inode) = (Holders::default(), SessionId(1), InodeId(7));
        let ends = || {
            holders.hold(session, inode);
            assert!(!holders.lost_names(inode));
            assert!(holders.unhold(session, inode));
            holders.last_end(inode)
        };
        let first = ends();
        let second = ends();
        holders.released(inode, first);
        assert_eq!(holders.unreleased(9), [inode]);
        holders.released(inode, second);
        assert!(holders.unreleased(9).is_empty());
        ends();
        holders.hold(session, inode);
        assert!(!holders.lost_names(inode), "its next last use releases it");
        assert!(holders.unreleased(9).is_empty());
        assert_eq!(holders.end_session(session), [inode]);
        assert_eq!(holders.unreleased(9), [inode]);
    }

    #[test]
    fn a_close_of_an_inode_with_names_asks_nothing() {
        let holders = Holders::default();
        holders.hold(SessionId(1), InodeId(7));
        assert!(!holders.unhold(SessionId(1), InodeId(7)));
        assert!(!holders.is_held(InodeId(7)));
    }

    #[test]
    fn names_that_go_between_the_last_close_and_the_note_are_noticed() {
        let holders = Holders::default();
        holders.hold(SessionId(1), InodeId(7));
        assert!(!holders.unhold(SessionId(1), InodeId(7)));
        assert!(holders.lost_names(InodeId(7)));
    }

    #[test]
    fn an_inode_made_without_a_name_is_released_by_the_first_last_close() {
        let holders = Holders::default();
        holders.made_nameless(InodeId(7));
        holders.hold(SessionId(1), InodeId(7));
        assert!(holders.unhold(SessionId(1), InodeId(7)));
    }

    #[test]
    fn a_late_copy_of_what_made_an_inode_without_a_name_uses_nothing() {
        let holders = Holders::default();
        let (session, inode) = (SessionId(1), InodeId(7));
        for _ in 0..2 {
            holders.hold_made(session, 3, 1, inode);
        }
        assert!(holders.unhold(session, inode));
        holders.hold_made(session, 3, 1, inode);
        assert!(!holders.is_held(inode));
        // Nor does one of another number or slot count as a copy.
        holders.hold_made(session, 3, 2, InodeId(8));
        holders.hold_made(session, 4, 1, InodeId(9));
        assert!(holders.is_held(InodeId(8)) && holders.is_held(InodeId(9)));
        assert_eq!(holders.end_session(session), [InodeId(8), InodeId(9)]);
        assert!(holders.made.lock().is_empty());
    }

    #[test]
    fn what_a_session_has_made_unheard_counts_once_beside_what_it_says() {
        let (holders, session) = (Holders::default(), SessionId(1));
        let (opened, unopened) = (InodeId(7), InodeId(8));
        // The second attempt replaces the first one, and the session says the same again.
        for attempt in 0..2 {
            holders.reclaim(session, opened, 2);
            holders.reclaim_made(session, opened, true);
            holders.reclaim_made(session, unopened, attempt == 0);
        }
        for inode in [opened, opened] {
            assert!(!holders.unhold(session, inode));
        }
        for inode in [opened, unopened] {
            assert!(holders.unhold(session, inode), "its last use");
        }
    }

    #[test]
    fn a_session_that_names_its_inodes_again_lets_the_others_go() {
        let holders = Holders::default();
        for inode in [InodeId(7), InodeId(8)] {
            holders.reclaim(SessionId(1), inode, 2);
            holders.reclaim(SessionId(2), inode, 1);
        }
        holders.reclaim(SessionId(1), InodeId(9), 1);
        let kept = BTreeSet::from([InodeId(7)]);
        assert_eq!(holders.keep_only(SessionId(1), &kept), [InodeId(9)]);
        assert!(holders.unhold(SessionId(2), InodeId(8)));
        assert!(!holders.unhold(SessionId(2), InodeId(7)));
        assert!(holders.is_held(InodeId(7)));
    }

    fn with_most(session_max: usize) -> Holders {
        Holders {
            session_max,
            ..Holders::default()
        }
    }

    /// Would be broken if a faulty daemon could make an owner remember uses without end, of inodes that needn't exist.
    #[test]
    fn a_session_uses_only_so_many_inodes_wherever_they_are() {
        const MOST: usize = 8 * PARTS;
        let session = SessionId(1);
        let fill = |holders: &Holders, step: u64| {
            for inode in (0..2 * MOST as u64).map(|at| InodeId(step * at)) {
                if holders.check_room(session, inode).is_ok() {
                    holders.hold(session, inode);
                }
            }
            holders.count_of(session)
        };
        let holders = with_most(MOST);
        assert_eq!(fill(&holders, 1), MOST);
        let further = InodeId(MOST as u64);
        let refused = holders.check_room(session, further).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooManyOpens);
        // One that it uses already, or that another uses.
        holders.check_room(session, InodeId(0)).unwrap();
        holders.check_room(SessionId(2), further).unwrap();
        holders.unhold(session, InodeId(1));
        holders.check_room(session, further).unwrap();
        // What it makes is there, and counts.
        holders.hold_made(session, 3, 1, further);
        assert!(holders.check_room(session, InodeId(1)).is_err());
        holders.end_session(session);
        assert_eq!(holders.count_of(session), 0);
        // All in one partition; in the others it gets a few more.
        assert_eq!(fill(&holders, PARTS as u64), MOST);
        let all = fill(&holders, 1);
        assert!(MOST < all && all <= MOST + MOST / UNCOUNTED, "{all}");
    }

    /// Would be broken if what attempts say that replace each other, and are never complete, piled up.
    #[test]
    fn a_session_says_only_so_much_whatever_it_begins_anew() {
        const MOST: usize = 100;
        let (holders, session) = (with_most(MOST), SessionId(1));
        let say = |inodes: std::ops::Range<u64>| {
            holders.check_said(session, inodes.clone().count())?;
            inodes.for_each(|inode| holders.reclaim(session, InodeId(inode), 1));
            Ok::<_, Error>(())
        };
        // Twice all that it may use, of which nothing is the same.
        say(0..100).unwrap();
        say(100..200).unwrap();
        let refused = say(200..201).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        let kept: BTreeSet<_> = (100..200).map(InodeId).collect();
        holders.keep_only(session, &kept);
        assert_eq!(holders.count_of(session), MOST);
        say(200..201).unwrap();
    }

    #[test]
    fn a_session_that_ends_frees_what_only_it_held() {
        let holders = Holders::default();
        for inode in [InodeId(7), InodeId(8), InodeId(9)] {
            holders.hold(SessionId(1), inode);
        }
        holders.hold(SessionId(2), InodeId(8));
        assert!(!holders.lost_names(InodeId(7)) && !holders.lost_names(InodeId(8)));
        assert_eq!(holders.end_session(SessionId(1)), [InodeId(7)]);
        assert!(holders.is_held(InodeId(8)) && !holders.is_held(InodeId(7)));
        assert!(holders.unhold(SessionId(2), InodeId(8)));
    }
}
