//! One object at its owner: who holds what of it, who waits, who has been asked to give back.

use super::ClaimNumber;
use crate::pieces::{contain, joined, overlap};
use crate::{Contention, Moment, Piece, Pieces, Planted};
use model::token::{GrantNumber, Ship, TOKEN_RANGES_MAX, TokenRecall, TokenRequest, TokenReturn};
use model::{SessionId, TokenMode, TokenObject, TokenRange};
use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::time::Duration;

/// How often a recall is said.
const SAY_EVERY: Duration = Duration::from_millis(500);
/// How long a session may be silent after it was recalled, although its tokens have run out: a machine
/// that slept has the time to say something.
const SILENT_MAX: Duration = Duration::from_secs(2);
/// How long a session may neither return anything of what is recalled nor publish any of it. As long
/// as disks may take for a block of data.
const STILL_MAX: Duration = Duration::from_secs(20);
/// How long it may take to return everything. With the time in which its tokens run out that is less than
/// the minute for which programs of other clients wait: they see a pause and no error.
pub const RECALL_MAX: Duration = Duration::from_secs(45);
/// How long a recall that nobody waits for any more is remembered: whoever asks again sooner finds its
/// clock where it stood.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Most pieces of a session that are looked at for a recall: neighbours become one range of it.
const RECALLED_MAX: usize = 4 * TOKEN_RANGES_MAX;

/// Who waits, and how it learns that its turn has come.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Who {
    /// A session asks for a token.
    Request {
        /// Its number.
        number: u64,
        /// What would be useful.
        desired: TokenRange,
        /// When it is forgotten unless it is asked again.
        until: Moment,
    },
    /// The owner runs an operation.
    Claim(ClaimNumber),
}

/// Somebody who needs the object.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Waiting {
    pub(super) session: SessionId,
    pub(super) who: Who,
    pub(super) mode: TokenMode,
    pub(super) ranges: Vec<TokenRange>,
}

impl Waiting {
    /// A session that asks for a token, until then.
    pub(super) fn request(
        session: SessionId,
        number: u64,
        wants: TokenRequest,
        until: Moment,
    ) -> Self {
        Self {
            session,
            who: Who::Request {
                number,
                desired: wants.desired,
                until,
            },
            mode: wants.mode,
            ranges: wants.required,
        }
    }

    /// Whether it is this request of a session.
    pub(super) fn is_request(&self, session: SessionId, request: u64) -> bool {
        let is_it = matches!(self.who, Who::Request { number, .. } if number == request);
        is_it && self.session == session
    }

    fn is_claim(&self) -> bool {
        matches!(self.who, Who::Claim(_))
    }

    /// Whether who would have these parts has to wait for this one's end. Operations of the owner
    /// need no order: whoever runs them has one.
    fn stops(&self, other: &Waiting, parts: &[(TokenRange, TokenMode)]) -> bool {
        self.session != other.session
            && !(self.is_claim() && other.is_claim())
            && parts.iter().any(|(range, mode)| {
                !self.mode.goes_with(*mode) && overlap(&self.ranges, &[*range])
            })
    }
}

/// A session that was asked to give back.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Recalling {
    needed: Needed,
    /// What was needed at `since`. Once all of it is back, others may be needed for as long again.
    first: Vec<TokenRange>,
    since: Moment,
    /// When it last returned or published something.
    moved: Moment,
    said: Moment,
    /// Since when nobody has waited for it. That time doesn't count for the others.
    paused: Option<Moment>,
}

impl Recalling {
    /// Somebody waits for it again.
    fn go_on(&mut self, now: Moment) {
        let Some(paused) = self.paused.take() else {
            return;
        };
        self.skip(now.since(paused), now);
    }

    /// A span that has just ended doesn't count.
    fn skip(&mut self, span: Duration, now: Moment) {
        self.since = self.since.plus(span);
        self.moved = self.moved.plus(span).min(now);
    }
}

/// What others need of what a session holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Needed {
    ranges: Vec<TokenRange>,
    keep: Option<TokenMode>,
    /// The newest grant of it.
    up_to: GrantNumber,
}

impl Needed {
    /// Also needed by somebody with whose mode `keep` goes.
    fn also(&mut self, piece: Piece, keep: Option<TokenMode>) {
        self.ranges.push(piece.range);
        self.up_to = self.up_to.max(piece.number);
        if self.keep != keep {
            self.keep = None;
        }
    }

    fn tidy(&mut self) {
        self.ranges = joined(std::mem::take(&mut self.ranges));
        self.ranges.truncate(TOKEN_RANGES_MAX);
    }
}

/// What a recalled session may still expect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Patience {
    /// Time to answer.
    Fresh,
    /// Time to return what it has, if it isn't silent.
    Waits,
    /// Nothing: it has had its time.
    Over,
}

/// Whose turn has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Admitted {
    pub(super) waiting: Waiting,
    /// What was granted, of a request.
    pub(super) granted: Option<Granted>,
}

/// A grant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Granted {
    pub(super) ranges: Vec<TokenRange>,
    pub(super) number: GrantNumber,
}

/// The state of an object.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Object {
    held: BTreeMap<SessionId, Pieces>,
    queue: VecDeque<Waiting>,
    /// Operations of the owner that are running.
    running: Vec<Waiting>,
    recalls: BTreeMap<SessionId, Recalling>,
    /// Recalls until now: for a while after one no more is granted than is required.
    contention: Contention,
    /// For whom alone it was, if it was one recall; `None`: for several, or for several times.
    wanted_by: Option<SessionId>,
    planted: Option<Planted>,
}

impl Object {
    pub(super) fn new(planted: Option<Planted>) -> Self {
        Self {
            planted,
            ..Self::default()
        }
    }

    /// Whether nothing of it need be remembered.
    pub(super) fn is_idle(&self, now: Moment) -> bool {
        self.held.is_empty()
            && self.queue.is_empty()
            && self.running.is_empty()
            && self.contention.fades() <= now
    }

    /// When an object of which only contention is remembered can be forgotten.
    pub(super) fn fades(&self) -> Option<Moment> {
        let is_free = self.held.is_empty() && self.queue.is_empty() && self.running.is_empty();
        is_free.then(|| self.contention.fades())
    }

    /// What a session holds.
    pub(super) fn held(&self, session: SessionId) -> Option<&Pieces> {
        self.held.get(&session)
    }

    /// Whether another session has more than a shared token, or waits for more.
    pub(super) fn is_changed_by_others(&self, session: SessionId) -> bool {
        let is_change = |mode| mode != TokenMode::Shared;
        let mut held = self.held.iter().filter(|(holder, _)| **holder != session);
        let mut queue = self.queue.iter();
        held.any(|(_, pieces)| pieces.iter().any(|piece| is_change(piece.mode)))
            || queue
                .any(|other| other.session != session && !other.is_claim() && is_change(other.mode))
    }

    /// Sessions that are asked to give back, and for which somebody waits.
    pub(super) fn recalled(&self) -> impl Iterator<Item = SessionId> + '_ {
        let recalls = self.recalls.iter();
        let waited_for = recalls.filter(|(_, recall)| recall.paused.is_none());
        waited_for.map(|(session, _)| *session)
    }

    /// The same, with since when they are asked.
    pub(super) fn recalls(&self) -> impl Iterator<Item = (SessionId, Moment)> + '_ {
        let recalls = self.recalls.iter();
        let waited_for = recalls.filter(|(_, recall)| recall.paused.is_none());
        waited_for.map(|(session, recall)| (*session, recall.since))
    }

    /// A session has published some of what it has to publish before it returns anything.
    pub(super) fn note_progress(&mut self, session: SessionId, now: Moment) {
        if let Some(recall) = self.recalls.get_mut(&session) {
            recall.moved = recall.moved.max(now);
        }
    }

    /// From then until now the owner could answer nobody: that doesn't count against those that are recalled.
    pub(super) fn excuse(&mut self, from: Moment, now: Moment) {
        for recall in self.recalls.values_mut().filter(|it| it.paused.is_none()) {
            recall.skip(now.since(from.max(recall.since)), now);
        }
    }

    /// Whether anybody waits.
    pub(super) fn has_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether anybody waits until something of it is given back, or has lately.
    pub(super) fn is_contended(&self, now: Moment) -> bool {
        self.contention.is_on(now) || self.recalled().next().is_some()
    }

    /// The same of others than this session: what it has just got back for one thing, it may have for the next, once.
    pub(super) fn is_contended_by_others(&self, session: SessionId, now: Moment) -> bool {
        self.wanted_by != Some(session) && self.is_contended(now)
    }

    /// Somebody begins to wait for something that is to be given back.
    fn begin_contention(&mut self, now: Moment) {
        let mut waiting = self.queue.iter().map(|waiting| waiting.session);
        let first = waiting.next();
        let sole = first.filter(|first| waiting.all(|other| other == *first));
        // Who wants it back once more has had it, and left it to others: it goes round, as often as its pauses allow.
        self.wanted_by = sole.filter(|_| self.contention.fades() <= now);
        self.contention.begin(now);
    }

    /// Whether the owner runs an operation rather than grant a token for it.
    pub(super) fn ships(&self, waiting: &Waiting, ship: Ship, now: Moment) -> bool {
        match ship {
            Ship::Never => false,
            Ship::IfContended if !self.has_waiting() => {
                self.is_contended_by_others(waiting.session, now)
            }
            Ship::IfContended | Ship::IfHeld => self.is_wanted_by_others(waiting, now),
        }
    }

    /// Whether others have or want what doesn't go with this, or have waited for something of it lately.
    pub(super) fn is_wanted_by_others(&self, waiting: &Waiting, now: Moment) -> bool {
        self.is_contended_by_others(waiting.session, now)
            || self.must_wait(waiting, self.queue.iter())
    }

    /// Whether the session holds all that is asked for, so that the answer changes nothing.
    pub(super) fn has_all(&self, waiting: &Waiting) -> bool {
        self.held.get(&waiting.session).is_some_and(|pieces| {
            let mut ranges = waiting.ranges.iter();
            ranges.all(|range| pieces.cover(*range, waiting.mode))
        })
    }

    /// Whether a request waits.
    pub(super) fn is_waiting(&self, session: SessionId, request: u64) -> bool {
        let mut queue = self.queue.iter();
        queue.any(|waiting| waiting.is_request(session, request))
    }

    /// Takes a request or claim into the queue, or notes that it is still wanted. False if it
    /// waited already.
    pub(super) fn wait(&mut self, waiting: Waiting) -> bool {
        if let Who::Request { number, until, .. } = &waiting.who {
            let same = self
                .queue
                .iter_mut()
                .find_map(|other| match &mut other.who {
                    Who::Request {
                        number: n,
                        until: u,
                        ..
                    } if (other.session, *n) == (waiting.session, *number) => Some(u),
                    _ => None,
                });
            if let Some(same) = same {
                *same = (*same).max(*until);
                return false;
            }
        }
        self.queue.push_back(waiting);
        true
    }

    /// Takes everything out of the queue and out of what runs for which this holds; returns what
    /// waited.
    pub(super) fn forget(&mut self, is_over: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        self.running.retain(|running| !is_over(running));
        let (over, kept) = std::mem::take(&mut self.queue)
            .into_iter()
            .partition(is_over);
        self.queue = kept;
        over.into()
    }

    /// Takes back what a session returned. True if it changed anything.
    pub(super) fn take_back(
        &mut self,
        session: SessionId,
        back: &TokenReturn,
        now: Moment,
    ) -> bool {
        let Some(pieces) = self.held.get_mut(&session) else {
            return false;
        };
        let up_to = match self.planted {
            Some(Planted::ForgetNewer) => GrantNumber {
                count: u64::MAX,
                ..back.up_to
            },
            _ => back.up_to,
        };
        let keep = back
            .keep
            .filter(|_| self.planted != Some(Planted::ForgetKept));
        let mut any = false;
        for range in &back.ranges {
            any |= pieces.reduce(*range, keep, up_to);
        }
        if pieces.is_empty() {
            self.held.remove(&session);
        }
        if any {
            self.note_progress(session, now);
        }
        any
    }

    /// Forgets a session that has ended, and what it asked for.
    pub(super) fn end_session(&mut self, session: SessionId) {
        self.held.remove(&session);
        self.recalls.remove(&session);
        self.forget(|waiting| waiting.session == session && !waiting.is_claim());
    }

    /// Takes down what a session held under the owner before. False if others hold what conflicts.
    pub(super) fn reclaim(&mut self, waiting: &Waiting, number: GrantNumber) -> bool {
        let is_free = self.is_free(waiting, &mut std::iter::empty());
        if is_free {
            self.hold(waiting, &waiting.ranges, number);
        }
        is_free
    }

    /// Admits those whose turn has come, in order; grants get numbers from `number`. Unless the
    /// owner `is_open`, that is only who asks for what it has.
    pub(super) fn admit(
        &mut self,
        is_open: bool,
        mut number: impl FnMut() -> GrantNumber,
        now: Moment,
    ) -> Vec<Admitted> {
        let mut admitted = Vec::new();
        let mut at = 0;
        while let Some(next) = self.queue.get(at) {
            let is_stuck = !is_open && !self.has_all(next);
            if is_stuck || self.must_wait(next, self.queue.range(..at)) {
                at += 1;
                continue;
            }
            let Some(next) = self.queue.remove(at) else {
                break;
            };
            let granted = match next.who {
                Who::Claim(_) => {
                    self.running.push(next.clone());
                    None
                }
                Who::Request { desired, .. } => {
                    // What others held under the owner before isn't known yet.
                    let ranges = match is_open {
                        true => self.generous(&next, desired, now),
                        false => next.ranges.clone(),
                    };
                    let number = number();
                    self.hold(&next, &ranges, number);
                    Some(Granted { ranges, number })
                }
            };
            admitted.push(Admitted {
                waiting: next,
                granted,
            });
        }
        admitted
    }

    /// What must be said to whom: recalls that are new, need more than before, or were said a while
    /// ago.
    pub(super) fn recall(
        &mut self,
        object: TokenObject,
        now: Moment,
    ) -> Vec<(SessionId, TokenRecall)> {
        let needed = self.needed();
        let goes_on = self.recalled().next().is_some();
        self.pause_recalls(&needed, now);
        let (mut begins, mut out) = (false, Vec::new());
        for (session, needed) in needed {
            let recall = self.recalls.entry(session);
            let mut is_due = matches!(recall, Entry::Vacant(_));
            begins |= is_due;
            let recall = recall.or_insert_with(|| Recalling {
                needed: needed.clone(),
                first: needed.ranges.clone(),
                since: now,
                moved: now,
                said: now,
                paused: None,
            });
            begins |= recall.paused.is_some();
            recall.go_on(now);
            is_due |= recall.said.plus(SAY_EVERY) <= now || !recall.needed.contains(&needed);
            recall.needed = needed;
            if !overlap(&recall.first, &recall.needed.ranges) {
                begins = true;
                recall.first = recall.needed.ranges.clone();
                recall.since = now;
                recall.moved = now;
            }
            if is_due {
                recall.said = now;
                let said = TokenRecall {
                    object,
                    ranges: recall.needed.ranges.clone(),
                    keep: recall.needed.keep,
                    up_to: recall.needed.up_to,
                };
                out.push((session, said));
            }
        }
        if begins {
            self.begin_contention(now);
        } else if goes_on {
            // Also if it has ended just now.
            self.contention.go_on(now);
        }
        out
    }

    /// Of the recalls for which nobody waits, forgets those that have been answered. The others keep
    /// their clocks for a while: those who waited may have given up and ask again.
    fn pause_recalls(&mut self, needed: &BTreeMap<SessionId, Needed>, now: Moment) {
        let held = &self.held;
        self.recalls.retain(|session, recall| {
            let is_old = |paused: Moment| now.since(paused) >= PAUSE_MAX;
            if recall.paused.is_some_and(is_old) {
                return false;
            }
            if needed.contains_key(session) {
                return true;
            }
            recall.paused.get_or_insert(now);
            let keep = recall.needed.keep;
            held.get(session).is_some_and(|pieces| {
                let ranges = recall.needed.ranges.iter();
                let mut recalled = ranges.flat_map(|range| pieces.within(*range));
                recalled.any(|piece| piece.mode.at_most(keep) != Some(piece.mode))
            })
        });
    }

    /// What a recalled session may still expect.
    pub(super) fn patience(&self, session: SessionId, now: Moment) -> Patience {
        let Some(recall) = self.recalls.get(&session) else {
            return Patience::Fresh;
        };
        if recall.moved.plus(STILL_MAX) <= now || recall.since.plus(RECALL_MAX) <= now {
            Patience::Over
        } else if recall.since.plus(SILENT_MAX) <= now {
            Patience::Waits
        } else {
            Patience::Fresh
        }
    }

    fn hold(&mut self, waiting: &Waiting, ranges: &[TokenRange], number: GrantNumber) {
        let pieces = self.held.entry(waiting.session).or_default();
        for range in ranges {
            pieces.grant(*range, waiting.mode, number);
        }
    }

    /// Whether this has to wait for holders, for what runs, or for those that came `earlier`.
    fn must_wait<'a>(
        &'a self,
        waiting: &Waiting,
        earlier: impl Iterator<Item = &'a Waiting>,
    ) -> bool {
        // Who has it already takes nothing from anybody. This also lets operations that a holder
        // sends while it is recalled go first.
        if self.has_all(waiting) {
            return false;
        }
        // Others may wait for what this session gives back only after its operation.
        let is_recalled = waiting.is_claim() && self.recalls.contains_key(&waiting.session);
        let mut earlier = earlier.filter(|_| !is_recalled);
        !self.is_free(waiting, &mut earlier)
    }

    /// Whether no holder, nothing that runs, and none of these is in the way.
    fn is_free<'a>(
        &'a self,
        waiting: &Waiting,
        earlier: &mut dyn Iterator<Item = &'a Waiting>,
    ) -> bool {
        let parts = self.parts(waiting);
        if self.planted == Some(Planted::GrantTwice) {
            return true;
        }
        let is_held = parts.iter().any(|(range, mode)| {
            let mut others = self.holders_in_the_way(waiting.session, *range, *mode);
            others.next().is_some()
        });
        let running = self.running.iter();
        let running = running.filter(|_| self.planted != Some(Planted::IgnoreRunning));
        let mut others = running.chain(earlier);
        !is_held && !others.any(|other| other.stops(waiting, &parts))
    }

    /// The modes in which a session would have the parts of what it asks for. An operation of the
    /// owner adds nothing to what the session holds.
    fn parts(&self, waiting: &Waiting) -> Vec<(TokenRange, TokenMode)> {
        let own = self.held.get(&waiting.session);
        let own = own.filter(|_| !waiting.is_claim());
        let mut parts = Vec::new();
        for range in &waiting.ranges {
            let mut at = range.start;
            for piece in own.into_iter().flat_map(|own| own.within(*range)) {
                if let Some(gap) = TokenRange::new(at, piece.range.start) {
                    parts.push((gap, waiting.mode));
                }
                parts.push((piece.range, piece.mode.or(waiting.mode)));
                at = piece.range.end;
            }
            if let Some(rest) = TokenRange::new(at, range.end) {
                parts.push((rest, waiting.mode));
            }
        }
        parts
    }

    /// Parts that other sessions hold in a mode that doesn't go with this one.
    fn holders_in_the_way(
        &self,
        session: SessionId,
        range: TokenRange,
        mode: TokenMode,
    ) -> impl Iterator<Item = Piece> + '_ {
        let others = self.held.keys().filter(move |other| **other != session);
        others.flat_map(move |other| self.pieces_in_the_way(*other, range, mode))
    }

    /// Parts that a session holds in a mode that doesn't go with this one.
    fn pieces_in_the_way(
        &self,
        holder: SessionId,
        range: TokenRange,
        mode: TokenMode,
    ) -> impl Iterator<Item = Piece> + '_ {
        let is_short = self.planted == Some(Planted::OneByteShort);
        let range = TokenRange {
            end: range.end - u64::from(is_short),
            ..range
        };
        let pieces = self.held.get(&holder).into_iter();
        let pieces = pieces.flat_map(move |pieces| pieces.within(range));
        pieces.filter(move |piece| !piece.mode.goes_with(mode))
    }

    /// What each session has to give back for those that wait, as much as a message holds.
    fn needed(&self) -> BTreeMap<SessionId, Needed> {
        let mut needed: BTreeMap<SessionId, Needed> = BTreeMap::new();
        for waiting in &self.queue {
            for (range, mode) in self.parts(waiting) {
                let keep = mode.goes_with(mode).then_some(mode);
                let holders = self.held.keys().filter(|other| **other != waiting.session);
                for session in holders {
                    let known = needed.get(session).map_or(0, |needed| needed.ranges.len());
                    let pieces = self.pieces_in_the_way(*session, range, mode);
                    for piece in pieces.take(RECALLED_MAX.saturating_sub(known)) {
                        let entry = needed.entry(*session).or_insert_with(|| Needed {
                            ranges: Vec::new(),
                            keep,
                            up_to: piece.number,
                        });
                        entry.also(piece, keep);
                    }
                }
            }
        }
        needed.values_mut().for_each(Needed::tidy);
        needed
    }

    /// What is granted: what is required and, if nobody else wants the object, as much around it as
    /// is desired and free.
    fn generous(&self, waiting: &Waiting, desired: TokenRange, now: Moment) -> Vec<TokenRange> {
        let [required] = waiting.ranges[..] else {
            return waiting.ranges.clone();
        };
        if self.is_contended(now) {
            return vec![required];
        }
        let (session, mode) = (waiting.session, waiting.mode);
        let own = self.held.get(&session);
        let own = own.into_iter().flat_map(|own| own.within(desired));
        // Of the session's own, what would become more than was asked for.
        let own = own.filter(|piece| !mode.covers(piece.mode) && !piece.mode.covers(mode));
        let held = self.holders_in_the_way(session, desired, mode);
        let others = self.running.iter().chain(&self.queue);
        let others = others.filter(|other| other.session != session && !other.mode.goes_with(mode));
        let taken = held
            .chain(own)
            .map(|piece| piece.range)
            .chain(others.flat_map(|other| other.ranges.iter().copied()));
        let mut granted = desired;
        for range in taken {
            if range.end <= required.start {
                granted.start = granted.start.max(range.end);
            } else if range.start >= required.end {
                granted.end = granted.end.min(range.start);
            }
        }
        vec![TokenRange {
            start: granted.start.min(required.start),
            end: granted.end.max(required.end),
        }]
    }
}

impl Needed {
    /// Whether who gives this back has given back the other as well.
    fn contains(&self, other: &Needed) -> bool {
        (self.keep == other.keep || self.keep.is_none())
            && other
                .ranges
                .iter()
                .all(|range| contain(&self.ranges, *range))
    }
}
