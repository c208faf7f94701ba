//! The owner's half: grants tokens, recalls them for others, and says which session must end.
//!
//! Time passes with [`Granter::tick`], which is due twice a second. Everything that has to be said
//! to clients comes out of [`Granter::take_actions`]. Maxima: [`PIECES_OF_SESSION_MAX`],
//! [`WAITING_OF_SESSION_MAX`], both for each of the sessions that the shell has begun.

mod at_once;
mod object;
mod standing;
#[cfg(test)]
mod tests;

use crate::{Moment, Pieces, Planted};
pub use at_once::{LISTED_WAIT_MAX, Listed};
use model::owner::Tenure;
use model::token::{GrantNumber, TokenRecall, TokenReply, TokenRequest, TokenReturn, check_parts};
use model::{InodeId, Result, SessionId, TokenMode, TokenObject, TokenRange};
pub use object::RECALL_MAX;
use object::{Admitted, Object, Patience, Waiting, Who};
use standing::Standing;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Most pieces of objects that a session may hold. A piece is about 100 bytes here.
pub const PIECES_OF_SESSION_MAX: usize = 262_144;
/// A session that splits its pieces until it has more than this, ends.
const PIECES_HARD_MAX: usize = 2 * PIECES_OF_SESSION_MAX;
/// Most requests of a session, and operations run for it, that wait at the same time.
pub const WAITING_OF_SESSION_MAX: usize = 2_048;
/// How long a request waits without being asked again. Longer than the deadline of a call, so that it
/// keeps its turn.
const ASKED_AGAIN_WITHIN: Duration = Duration::from_secs(10);
/// How long sessions have to say to a new owner what they hold. Longer than tokens last, so that those
/// of a session that says nothing have run out.
pub const GRACE: Duration = Duration::from_secs(15);
/// How long an owner must have been able to answer before a session counts as silent: a client whose request got lost
/// asks again within that.
const ABLE_FOR: Duration = Duration::from_secs(4);
/// How often the end of a session is asked for.
const SAY_END_EVERY: Duration = Duration::from_secs(1);
/// Most sessions that are named of those that one request or operation waits for.
pub const WAITED_FOR_MAX: usize = 16;

/// The number of a request that nobody sends again. Clients number theirs from 1 on.
const UNNUMBERED: u64 = 0;
/// Above it are the numbers of requests that come many in a message, which the owner numbers.
const NUMBERED_HERE: u64 = 1 << 63;

/// Numbers what operations of the owner claim.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClaimNumber(pub u64);

/// What an operation of the owner needs of an object.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Need {
    /// The object.
    pub object: TokenObject,
    /// What the operation does with it.
    pub mode: TokenMode,
    /// With which parts.
    pub ranges: Vec<TokenRange>,
}

/// A session that others wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitedFor {
    /// The session.
    pub session: SessionId,
    /// Since when it is to give something back; `None`: it has yet to say what it held under the owner before.
    pub since: Option<Moment>,
    /// When its tokens have run out, unless it is answered before.
    pub runs_out: Moment,
}

/// What the owner has to do.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Answer a session's request, once everything that the grant lets it see is durable.
    Answer {
        /// Who asked.
        session: SessionId,
        /// The request's number.
        request: u64,
        /// The answer.
        reply: TokenReply,
    },
    /// Say this to a session. It comes again until the session has returned what is recalled.
    Recall {
        /// To whom.
        session: SessionId,
        /// What.
        recall: TokenRecall,
    },
    /// The operation with this claim may run. Its end is [`Granter::end_claim`].
    Run(ClaimNumber),
    /// End the session: its tokens have run out, and others wait for them. Once that is durable,
    /// say [`Granter::end_session`]. It comes again until then.
    End(SessionId),
}

/// An operation that has not all that it needs yet, or runs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Claim {
    session: SessionId,
    needs: Vec<Need>,
    /// How many of them it has.
    has: usize,
}

/// The tokens of a shard, in the memory of its owner.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Granter {
    newest: GrantNumber,
    /// The newest request that was numbered here.
    newest_listed: u64,
    /// The owner's own lease.
    own_until: Moment,
    /// Since when it has had one without a gap: in a gap it answers nobody.
    able_since: Moment,
    /// Until then sessions say what they held under the owner before; nothing is granted until all
    /// have, or have ended.
    grace: Option<Moment>,
    /// Sessions that haven't said what they held.
    unheard: BTreeSet<SessionId>,
    sessions: BTreeMap<SessionId, Standing>,
    objects: BTreeMap<TokenObject, Object>,
    claims: BTreeMap<ClaimNumber, Claim>,
    next_claim: u64,
    /// Sessions that aren't answered any more, and end.
    leaving: BTreeSet<SessionId>,
    /// Objects with somebody who waits.
    waited_for: BTreeSet<TokenObject>,
    /// When what is known of objects that nobody holds can be forgotten.
    fading: BTreeSet<(Moment, TokenObject)>,
    planted: Option<Planted>,
    actions: Vec<Action>,
}

impl Granter {
    /// An owner that takes a shard over, or makes one. Nothing is granted until all `sessions` have
    /// said what they held; those that haven't after [`GRACE`] end.
    #[must_use]
    pub fn new(tenure: Tenure, sessions: BTreeSet<SessionId>, now: Moment) -> Self {
        let inherited = Standing::inherited(now);
        let known = sessions.iter().map(|session| (*session, inherited.clone()));
        Self {
            newest: GrantNumber { tenure, count: 0 },
            newest_listed: NUMBERED_HERE,
            own_until: Moment::default(),
            able_since: Moment::default(),
            sessions: known.collect(),
            grace: (!sessions.is_empty()).then_some(now.plus(GRACE)),
            unheard: sessions,
            objects: BTreeMap::new(),
            claims: BTreeMap::new(),
            next_claim: 1,
            leaving: BTreeSet::new(),
            waited_for: BTreeSet::new(),
            fading: BTreeSet::new(),
            planted: None,
            actions: Vec::new(),
        }
    }

    /// Makes this owner do something wrong, for a test.
    pub fn plant(&mut self, fault: Planted) {
        self.planted = Some(fault);
    }

    /// What is to be done since the last call. Empty it after every other call.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// The owner's own lease lasts until then. To be said from time to time, and before each answer.
    pub fn renew(&mut self, own_until: Moment, now: Moment) {
        if self.own_until <= now && own_until > now {
            self.able_since = now;
            // Sessions may have answered recalls meanwhile, or not have heard of them.
            for object in &self.waited_for {
                let known = self.objects.get_mut(object);
                known
                    .into_iter()
                    .for_each(|it| it.excuse(self.own_until, now));
            }
        }
        self.own_until = self.own_until.max(own_until);
    }

    /// A session has been opened with this owner.
    pub fn begin_session(&mut self, session: SessionId) {
        self.sessions.entry(session).or_default();
    }

    /// Whether and with what span a session's request, of whatever kind, may be answered now: its
    /// tokens may be used for so long after it sent the request. `None`: not at all, because the
    /// owner's lease has run out or the session is about to end.
    pub fn answer(&mut self, session: SessionId, now: Moment) -> Option<Duration> {
        let own_until = self.own_until;
        let standing = self.sessions.get_mut(&session)?;
        standing.answer(own_until, now)
    }

    /// Whether operations run or wait.
    #[must_use]
    pub fn has_claims(&self) -> bool {
        !self.claims.is_empty()
    }

    /// Whether another session may be changing the attributes of an inode, or is about to.
    #[must_use]
    pub fn is_changed_by_others(&self, session: SessionId, inode: InodeId) -> bool {
        let known = self.objects.get(&TokenObject::Inode(inode));
        known.is_some_and(|known| known.is_changed_by_others(session)) || self.grace.is_some()
    }

    /// Whether a session may be changing the attributes of an inode.
    #[must_use]
    pub fn may_change(&self, session: SessionId, inode: InodeId) -> bool {
        let known = self.objects.get(&TokenObject::Inode(inode));
        let held = known.and_then(|known| known.held(session));
        held.is_some_and(|held| held.iter().any(|piece| piece.mode != TokenMode::Shared))
    }

    /// Whether a session is known to hold at least this; `None` while sessions may hold what they haven't said
    /// yet. For those who look from outside: what a session may use, its owner must know.
    #[must_use]
    pub fn knows(
        &self,
        session: SessionId,
        object: TokenObject,
        range: TokenRange,
        mode: TokenMode,
    ) -> Option<bool> {
        if self.grace.is_some() {
            return None;
        }
        let held = self.objects.get(&object).and_then(|it| it.held(session));
        Some(held.is_some_and(|held| held.cover(range, mode)))
    }

    /// The session for which an operation waits, and the object of which it waits for its turn; `None` if it doesn't wait.
    /// For those who look from outside.
    #[must_use]
    pub fn claim_waits(&self, number: ClaimNumber) -> Option<(SessionId, TokenObject)> {
        let claim = self.claims.get(&number)?;
        let need = claim.needs.get(claim.has)?;
        Some((claim.session, need.object))
    }

    /// Whom those wait for that need an object for a session: who is to give it back, or who has yet to say whether it held
    /// it. None of them if others are before it. At most [`WAITED_FOR_MAX`]. For those who look from outside.
    #[must_use]
    pub fn waited_for(&self, object: TokenObject, by: SessionId) -> Vec<WaitedFor> {
        let of = |session: SessionId, since| {
            let standing = self.sessions.get(&session);
            WaitedFor {
                session,
                since,
                runs_out: standing.map(Standing::runs_out).unwrap_or_default(),
            }
        };
        let unheard = self.unheard.iter().filter(|_| self.grace.is_some());
        let known = self.objects.get(&object);
        let recalled = known.into_iter().flat_map(Object::recalls);
        let all = unheard
            .map(|session| of(*session, None))
            .chain(recalled.map(|(session, since)| of(session, Some(since))));
        all.filter(|it| it.session != by)
            .take(WAITED_FOR_MAX)
            .collect()
    }

    /// A session asks for a token. The answer is an [`Action::Answer`], now or later; none for a
    /// session that isn't open, or is about to end.
    ///
    /// # Errors
    /// `InvalidArgument` for what no sound daemon sends.
    pub fn ask(
        &mut self,
        session: SessionId,
        request: u64,
        wants: TokenRequest,
        now: Moment,
    ) -> Result<()> {
        wants.check()?;
        let standing = self.sessions.get(&session);
        let Some(standing) = standing.filter(|standing| !standing.is_leaving()) else {
            return Ok(());
        };
        let (pieces, waits) = (standing.pieces, standing.waiting);
        let object = wants.object;
        let ship = wants.ship;
        let until = now.plus(ASKED_AGAIN_WITHIN);
        let waiting = Waiting::request(session, request, wants, until);
        let known = self.known(object);
        // Who waits already, or has it already, costs nothing more.
        let is_new = !known.has_all(&waiting) && !known.is_waiting(session, request);
        let has_room = pieces < PIECES_OF_SESSION_MAX && waits < WAITING_OF_SESSION_MAX;
        let refusal = match is_new {
            true if !has_room => Some(TokenReply::TooMany),
            true if known.ships(&waiting, ship, now) => Some(TokenReply::Ship),
            _ => None,
        };
        if let Some(reply) = refusal {
            self.note(object, now);
            self.answer_with(session, request, reply);
            return Ok(());
        }
        self.wait(object, waiting, now);
        Ok(())
    }

    /// A request waits for its turn, which may have come.
    fn wait(&mut self, object: TokenObject, waiting: Waiting, now: Moment) {
        let session = waiting.session;
        if self.known(object).wait(waiting) {
            self.count_waiting(session, 1);
        }
        self.settle(object, now);
    }

    /// A session gives something back, because it was asked to or because it needs it no more.
    ///
    /// # Errors
    /// `InvalidArgument` for what no sound daemon sends.
    pub fn take_back(&mut self, session: SessionId, back: &TokenReturn, now: Moment) -> Result<()> {
        check_parts(back.object, back.keep, &back.ranges)?;
        let known = self.objects.get_mut(&back.object);
        if known.is_some_and(|known| known.take_back(session, back, now)) {
            self.count_pieces(session, back.object);
            self.settle(back.object, now);
        }
        Ok(())
    }

    /// A session has published something of an inode. If it is to give back the inode or its bytes, that
    /// is progress.
    pub fn note_published(&mut self, session: SessionId, inode: InodeId, now: Moment) {
        for object in [TokenObject::Inode(inode), TokenObject::Bytes(inode)] {
            if let Some(known) = self.objects.get_mut(&object) {
                known.note_progress(session, now);
            }
        }
    }

    /// Something that a session had done in a directory under its delegation is durable. If it is to give back the
    /// directory, or its attributes, that is progress.
    pub fn note_streamed(&mut self, session: SessionId, directory: InodeId, now: Moment) {
        for object in [
            TokenObject::Directory(directory),
            TokenObject::Inode(directory),
        ] {
            if let Some(known) = self.objects.get_mut(&object) {
                known.note_progress(session, now);
            }
        }
    }

    /// The owner wants to run an operation for a session, which needs this. [`Action::Run`] says
    /// when it may. `None` if too much of the session waits.
    ///
    /// # Panics
    /// If a need isn't sound: the owner makes them itself.
    pub fn claim(
        &mut self,
        session: SessionId,
        mut needs: Vec<Need>,
        now: Moment,
    ) -> Option<ClaimNumber> {
        for need in &needs {
            let sound = check_parts(need.object, Some(need.mode), &need.ranges);
            assert!(sound.is_ok(), "an operation needs {need:?}: {sound:?}");
        }
        let standing = self.sessions.get(&session);
        if standing.is_some_and(|standing| standing.waiting >= WAITING_OF_SESSION_MAX) {
            return None;
        }
        let number = ClaimNumber(self.next_claim);
        self.next_claim += 1;
        // All operations take objects in the same order, so that none waits for another in a circle.
        needs.sort_by_key(|need| need.object);
        let claim = Claim {
            session,
            needs,
            has: 0,
        };
        self.claims.insert(number, claim);
        self.count_waiting(session, 1);
        self.advance(number, now);
        Some(number)
    }

    /// An operation has ended, or is given up before it ran.
    pub fn end_claim(&mut self, number: ClaimNumber, now: Moment) {
        let Some(claim) = self.claims.remove(&number) else {
            return;
        };
        let objects: BTreeSet<TokenObject> = claim.needs.iter().map(|need| need.object).collect();
        if claim.has < claim.needs.len() {
            self.count_waiting(claim.session, -1);
        }
        for object in objects {
            if let Some(known) = self.objects.get_mut(&object) {
                known.forget(|waiting| waiting.who == Who::Claim(number));
                self.settle(object, now);
            }
        }
    }

    /// A session says what it held under the owner before. The number of its grant; `None` if it has
    /// lost it: it comes too late, or others said that they hold what conflicts.
    ///
    /// # Errors
    /// `InvalidArgument` for what no sound daemon sends.
    pub fn reclaim(
        &mut self,
        session: SessionId,
        need: Need,
        now: Moment,
    ) -> Result<Option<GrantNumber>> {
        check_parts(need.object, Some(need.mode), &need.ranges)?;
        let standing = self.sessions.get(&session);
        // Requests may have brought it as much over the maximum as one may ask for.
        let may_hold =
            |standing: &Standing| !standing.is_leaving() && standing.pieces < PIECES_HARD_MAX;
        if !standing.is_some_and(may_hold) {
            return Ok(None);
        }
        let number = self.next_grant();
        let is_late = !self.unheard.contains(&session);
        let waiting = Waiting {
            session,
            who: Who::Request {
                number: 0,
                desired: TokenRange::ALL,
                until: now,
            },
            mode: need.mode,
            ranges: need.ranges,
        };
        let known = self.known(need.object);
        // A copy of what was said before adds nothing: the session may have returned it since.
        let is_free = match is_late {
            true => known.has_all(&waiting),
            false => known.reclaim(&waiting, number),
        };
        self.count_pieces(session, need.object);
        self.note(need.object, now);
        Ok(is_free.then_some(number))
    }

    /// A session has said all that it held.
    pub fn end_reclaim(&mut self, session: SessionId, now: Moment) {
        self.unheard.remove(&session);
        let standing = self.sessions.get_mut(&session);
        standing.into_iter().for_each(|it| it.note_heard(now));
        self.end_grace_if_over(now);
    }

    /// A session has ended, and that is durable: nothing that it held counts any more.
    pub fn end_session(&mut self, session: SessionId, now: Moment) {
        let Some(standing) = self.sessions.remove(&session) else {
            return;
        };
        self.leaving.remove(&session);
        let mut objects = self.waited_for.clone();
        objects.extend(standing.objects.keys());
        for object in objects {
            if let Some(known) = self.objects.get_mut(&object) {
                known.end_session(session);
                self.settle(object, now);
            }
        }
        self.end_reclaim(session, now);
    }

    /// The cluster has expelled a session's daemon, which uses no token any more: the session is ended at
    /// once.
    pub fn expel(&mut self, session: SessionId, now: Moment) {
        if let Some(standing) = self.sessions.get_mut(&session) {
            standing.run_out();
            standing.refuse();
            // Again and again until the owner may decide something: a new one has no lease yet.
            self.leaving.insert(session);
            self.end_if_late(session, Patience::Over, now);
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Moment) {
        self.end_grace_if_over(now);
        let mut late = BTreeSet::new();
        for object in self.waited_for.clone() {
            let Some(known) = self.objects.get_mut(&object) else {
                continue;
            };
            let over = known.forget(|waiting| match waiting.who {
                Who::Request { until, .. } => until <= now,
                Who::Claim(_) => false,
            });
            for waiting in over {
                self.count_waiting(waiting.session, -1);
            }
            self.settle(object, now);
            if let Some(known) = self.objects.get(&object) {
                let recalled = known.recalled();
                late.extend(recalled.map(|session| (session, known.patience(session, now))));
            }
        }
        if self.is_able(now) && self.grace.is_some_and(|until| until <= now) {
            self.leaving.extend(&self.unheard);
        }
        // Who isn't answered any more ends, even if nobody waits for its tokens by now.
        late.extend(
            self.leaving
                .iter()
                .map(|session| (*session, Patience::Over)),
        );
        for (session, patience) in late {
            self.end_if_late(session, patience, now);
        }
        while let Some((at, object)) = self.fading.first().copied().filter(|(at, _)| *at <= now) {
            self.fading.remove(&(at, object));
            self.note(object, now);
        }
    }

    /// A session whose tokens others wait for: ends it once they have run out.
    fn end_if_late(&mut self, session: SessionId, patience: Patience, now: Moment) {
        let is_able = self.is_able(now);
        let Some(standing) = self.sessions.get_mut(&session) else {
            return;
        };
        // It may have asked, and the owner couldn't answer, or is cut off.
        let is_silent = is_able && standing.is_silent(self.own_until);
        match patience {
            Patience::Fresh => return,
            // An owner whose lease is over decides nothing.
            _ if self.own_until <= now => return,
            Patience::Waits if !(is_silent || standing.is_gone()) => return,
            Patience::Waits => {}
            Patience::Over => {
                standing.refuse();
                self.leaving.insert(session);
            }
        }
        let is_due = standing
            .end_said
            .is_none_or(|said| said.plus(SAY_END_EVERY) <= now);
        let has_run_out = standing.has_run_out(now) || self.planted == Some(Planted::EndEarly);
        if has_run_out && is_due {
            standing.end_said = Some(now);
            self.leaving.insert(session);
            self.actions.push(Action::End(session));
        }
    }

    /// The owner has its lease, and has had it for as long as a client needs to ask again.
    fn is_able(&self, now: Moment) -> bool {
        self.own_until > now && now >= self.able_since.plus(ABLE_FOR)
    }

    fn end_grace_if_over(&mut self, now: Moment) {
        if self.grace.is_some() && self.unheard.is_empty() {
            self.grace = None;
            for object in self.waited_for.clone() {
                self.settle(object, now);
            }
        }
    }

    /// Admits who can be admitted, and recalls what the others wait for.
    fn settle(&mut self, object: TokenObject, now: Moment) {
        let Some(known) = self.objects.get_mut(&object) else {
            return;
        };
        let is_open = self.grace.is_none() || self.planted == Some(Planted::GrantInGrace);
        let newest = &mut self.newest;
        let admitted = known.admit(is_open, || next(newest), now);
        let recalls = match is_open && self.planted != Some(Planted::DropRecall) {
            true => known.recall(object, now),
            false => Vec::new(),
        };
        let mut claims = Vec::new();
        for Admitted { waiting, granted } in admitted {
            match (waiting.who, granted) {
                (Who::Request { number, .. }, Some(granted)) => {
                    self.count_waiting(waiting.session, -1);
                    self.count_pieces(waiting.session, object);
                    let reply = TokenReply::Granted {
                        ranges: granted.ranges,
                        mode: waiting.mode,
                        number: granted.number,
                    };
                    self.answer_with(waiting.session, number, reply);
                }
                (Who::Claim(number), _) => claims.push(number),
                (Who::Request { .. }, None) => {}
            }
        }
        // After the answers, so that a grant that others need at once has the head start.
        for (session, recall) in recalls {
            self.actions.push(Action::Recall { session, recall });
        }
        self.note(object, now);
        for number in claims {
            if let Some(claim) = self.claims.get_mut(&number) {
                claim.has += 1;
                self.advance(number, now);
            }
        }
    }

    /// Queues an operation for the next object that it needs, or lets it run.
    fn advance(&mut self, number: ClaimNumber, now: Moment) {
        let Some(claim) = self.claims.get(&number) else {
            return;
        };
        let session = claim.session;
        let Some(need) = claim.needs.get(claim.has) else {
            self.count_waiting(session, -1);
            self.actions.push(Action::Run(number));
            return;
        };
        let object = need.object;
        let waiting = Waiting {
            session,
            who: Who::Claim(number),
            mode: need.mode,
            ranges: need.ranges.clone(),
        };
        self.known(object).wait(waiting);
        self.settle(object, now);
    }

    fn known(&mut self, object: TokenObject) -> &mut Object {
        let planted = self.planted;
        let known = self.objects.entry(object);
        known.or_insert_with(|| Object::new(planted))
    }

    fn next_grant(&mut self) -> GrantNumber {
        next(&mut self.newest)
    }

    fn answer_with(&mut self, session: SessionId, request: u64, reply: TokenReply) {
        self.actions.push(Action::Answer {
            session,
            request,
            reply,
        });
    }

    fn count_waiting(&mut self, session: SessionId, change: isize) {
        if let Some(standing) = self.sessions.get_mut(&session) {
            standing.waiting = standing.waiting.saturating_add_signed(change);
        }
    }

    /// Brings the session's index up to date after its pieces of an object have changed.
    fn count_pieces(&mut self, session: SessionId, object: TokenObject) {
        let known = self.objects.get(&object);
        let held = known.and_then(|known| known.held(session));
        let pieces = held.map_or(0, Pieces::len);
        if let Some(standing) = self.sessions.get_mut(&session) {
            standing.count(object, pieces);
            if standing.pieces > PIECES_HARD_MAX {
                standing.refuse();
                self.leaving.insert(session);
            }
        }
    }

    /// Brings the indices of objects up to date; forgets one of which nothing is known.
    fn note(&mut self, object: TokenObject, now: Moment) {
        let Some(known) = self.objects.get(&object) else {
            return;
        };
        if known.has_waiting() {
            self.waited_for.insert(object);
        } else {
            self.waited_for.remove(&object);
        }
        if known.is_idle(now) {
            self.objects.remove(&object);
        } else if let Some(at) = known.fades() {
            self.fading.insert((at, object));
        }
    }
}

fn next(newest: &mut GrantNumber) -> GrantNumber {
    newest.count += 1;
    *newest
}
