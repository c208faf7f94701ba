//! The client's half: what the session may use now, what it asks for, and how it gives back.
//!
//! A *use* is one operation's work with cached things, from [`Holder::claim`] to
//! [`Holder::end_use`]. Operations that have no token yet wait here, each with a number; the shell
//! knows their deadlines and takes back those that are over ([`Holder::give_up`]), so there are no
//! more than programs have calls under way. The shell sends requests again until they are answered or
//! nobody waits for them.

mod asked;
mod object;
#[cfg(test)]
mod tests;

use crate::pieces::Piece;
use crate::{Moment, Pieces, Planted};
use asked::{Asked, Requests};
use model::owner::Tenure;
use model::token::{
    GrantNumber, Ship, TokenRecall, TokenReply, TokenRequest, TokenReturn, check_parts,
};
use model::{InodeId, Result, TokenMode, TokenObject, TokenRange};
use object::{Object, Taking};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a recall waits for the reply that brings what it recalls, if no request of the object can have been granted that, or
/// nobody here waits for it: what was asked for in advance, or is used already.
const OVERTAKEN_MAX: Duration = Duration::from_millis(100);
/// And if one can and somebody does: its reply leaves the owner only once what it shows is durable, which takes two commits if
/// disks are slow. Who gave it back unused before it came, and asked again, would have the same from each of those who want it in
/// turn, and never use it. A reply that was given up is taken for one that comes; so it is less than others are let wait.
const COMING_MAX: Duration = Duration::from_secs(3);

/// Most recalls of an object that are carried out at the same time. More are said again.
const TAKINGS_MAX: usize = 64;

/// Most objects of what the session has made and its owner hasn't granted. More are asked for as all others.
const BORN_MAX: usize = 1024;
/// Most of these that the owner is asked for because it hasn't granted them. It can grant nothing for seconds, and all that
/// the session asks for meanwhile waits: an eighth of what it lets wait. More are published and given back.
const UNGRANTED_MAX: usize = 128;

/// Most recalls that wait for replies; more are carried out at once.
const EARLY_MAX: usize = 1024;

/// Numbers the uses of a holder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UseNumber(pub u64);

/// Numbers the operations that wait for a token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WaitNumber(pub u64);

/// Numbers what is flushed for others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlushNumber(pub u64);

/// What an operation of this client needs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Want {
    /// Of what.
    pub object: TokenObject,
    /// To do what.
    pub mode: TokenMode,
    /// With which part.
    pub range: TokenRange,
    /// What would be useful beside it; contains the part.
    pub desired: TokenRange,
    /// When it is to be sent to the owner instead.
    pub ship: Ship,
}

/// The answer to a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claimed {
    /// Go on, and end the use.
    Begun(UseNumber),
    /// An action with this number will say how to go on.
    Waits(WaitNumber),
    /// Send the operation to the owner: others want the object.
    Ship,
}

/// What an operation waits for that has no token yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitsFor {
    /// The answer to the request with this number.
    Answer(u64),
    /// What it wants is being given back, and is asked for after that.
    Return,
    /// It has what it wants, and tokens may not be used now: any answer may renew them.
    Renewal,
}

/// What the client has to do.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Send this to the owner, again and again under this number, until it is answered
    /// ([`Holder::answered`]) or the session has a new owner.
    Ask {
        /// The number.
        request: u64,
        /// What is asked for.
        wants: TokenRequest,
    },
    /// Nobody waits for the answer any more: stop sending it, and drop an answer that comes late.
    Stop {
        /// Its number.
        request: u64,
    },
    /// The operation that waited may go on.
    Begin(WaitNumber, UseNumber),
    /// The operation that waited is to be sent to the owner.
    Ship(WaitNumber),
    /// The session holds too much: give something back, then claim again.
    TooMany(WaitNumber),
    /// Make durable what was changed there and drop what was cached, except for what `keep` allows
    /// to cache; then say [`Holder::flushed`].
    Flush {
        /// The number.
        flush: FlushNumber,
        /// Of what.
        object: TokenObject,
        /// Which parts.
        ranges: Vec<TokenRange>,
        /// What is kept.
        keep: Option<TokenMode>,
    },
    /// Say this to the owner. If it gets lost, the owner asks again.
    Return(TokenReturn),
    /// What may be used of the object without a claim is another: look at [`Holder::usable`] before
    /// the actions that follow are carried out.
    Changed(TokenObject),
    /// What was cached there is worthless, and what was changed there is lost.
    Lose {
        /// Of what.
        object: TokenObject,
        /// Which parts.
        ranges: Vec<TokenRange>,
    },
}

/// A recall of what hasn't come yet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Early {
    recall: TokenRecall,
    since: Moment,
}

/// The tokens of a session with one shard, in the memory of its client.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Holder {
    tenure: Tenure,
    usable_until: Moment,
    /// A new owner hasn't said yet which tokens are lost.
    is_reclaiming: bool,
    objects: BTreeMap<TokenObject, Object>,
    asked: Requests,
    /// The newest grant that has come, of whatever object.
    newest: GrantNumber,
    /// Objects of what the session has made and its owner hasn't heard of: it has them alone, and the owner's answer to
    /// what makes them is the one to this request.
    born: BTreeMap<TokenObject, u64>,
    /// Those that the owner knows by now and didn't grant: it is asked for them as for all others, or they are being given
    /// back.
    ungranted: BTreeSet<TokenObject>,
    /// The object of each wait, use and flush.
    waits: BTreeMap<WaitNumber, TokenObject>,
    uses: BTreeMap<UseNumber, TokenObject>,
    flushes: BTreeMap<FlushNumber, TokenObject>,
    early: Vec<Early>,
    /// The last number of a request, a wait, a use, or a flush.
    last: u64,
    planted: Option<Planted>,
    actions: Vec<Action>,
}

impl Holder {
    /// A session that holds nothing.
    #[must_use]
    pub fn new(tenure: Tenure) -> Self {
        Self {
            tenure,
            usable_until: Moment::default(),
            is_reclaiming: false,
            objects: BTreeMap::new(),
            asked: Requests::default(),
            newest: GrantNumber::default(),
            born: BTreeMap::new(),
            ungranted: BTreeSet::new(),
            waits: BTreeMap::new(),
            uses: BTreeMap::new(),
            flushes: BTreeMap::new(),
            early: Vec::new(),
            last: 0,
            planted: None,
            actions: Vec::new(),
        }
    }

    /// The holder of the client's next session, which holds nothing. No number of this one is used again:
    /// what ends late, of uses, waits, requests and flushes, is unknown to it.
    #[must_use]
    pub fn next_session(&self, tenure: Tenure) -> Self {
        Self {
            last: self.last,
            planted: self.planted,
            ..Self::new(tenure)
        }
    }

    /// The tenure of the owner that is asked.
    #[must_use]
    pub fn tenure(&self) -> Tenure {
        self.tenure
    }

    /// Makes this client do something wrong, for a test.
    pub fn plant(&mut self, fault: Planted) {
        self.planted = Some(fault);
    }

    /// What is to be done since the last call. Empty it after every other call.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Until when tokens may be used unless a reply comes.
    #[must_use]
    pub fn usable_until(&self) -> Moment {
        self.usable_until
    }

    /// Whether an operation that wants this could begin now.
    #[must_use]
    pub fn may_use(&self, want: &Want, now: Moment) -> bool {
        let known = self.objects.get(&want.object);
        self.is_current(now) && known.is_some_and(|known| known.may_use(want.range, want.mode))
    }

    /// What may be used of an object as long as tokens [may be used at all](Holder::usable_until), by
    /// whoever looks again before each use. A client keeps it beside what it caches, so that it needn't
    /// claim for each use.
    #[must_use]
    pub fn usable(&self, object: TokenObject) -> Pieces {
        let known = self.objects.get(&object);
        known.map_or_else(Pieces::default, Object::usable)
    }

    /// What operations use of an object, or wait for, beside which this may not be kept: everything between. A recall of some
    /// of it would wait for them.
    #[must_use]
    pub fn in_use(&self, object: TokenObject, keep: Option<TokenMode>) -> Option<TokenRange> {
        self.objects.get(&object)?.in_use(keep)
    }

    /// All operations that wait, with the object and with what each waits for now, the oldest first: for lists.
    #[must_use]
    pub fn waiting(&self) -> Vec<(WaitNumber, TokenObject, WaitsFor)> {
        let requests: BTreeMap<WaitNumber, u64> = self
            .asked
            .iter()
            .flat_map(|(request, asked)| asked.waits.iter().map(move |wait| (*wait, request)))
            .collect();
        let waiting = self.waits.iter().filter_map(|(wait, object)| {
            let want = self.objects.get(object)?.waits.get(wait)?;
            let what = match requests.get(wait) {
                Some(request) => WaitsFor::Answer(*request),
                None if self.is_taken(want) => WaitsFor::Return,
                None => WaitsFor::Renewal,
            };
            Some((*wait, *object, what))
        });
        waiting.collect()
    }

    /// All that may be used now, but for what its owner can't know yet ([`Holder::born`]).
    #[must_use]
    pub fn usable_now(&self, now: Moment) -> Vec<(TokenObject, TokenRange, TokenMode)> {
        let objects = self.objects.iter().filter(|_| self.is_current(now));
        let pieces = objects.flat_map(|(object, known)| {
            let is_granted = |it: &Piece| it.number.count > 0;
            let usable: Vec<_> = known.usable().iter().filter(is_granted).collect();
            usable.into_iter().map(|it| (*object, it.range, it.mode))
        });
        pieces.collect()
    }

    /// An operation wants to use something.
    ///
    /// # Panics
    /// If what is wanted isn't sound: the client makes it itself.
    pub fn claim(&mut self, want: Want, now: Moment) -> Claimed {
        let sound = check_parts(want.object, Some(want.mode), &[want.range]);
        assert!(sound.is_ok(), "an operation wants {want:?}: {sound:?}");
        if self.may_use(&want, now) {
            return Claimed::Begun(self.begin(&want));
        }
        let is_taken = self.is_taken(&want);
        if is_taken && want.ship != Ship::Never {
            return Claimed::Ship;
        }
        let wait = WaitNumber(self.next());
        let known = self.known(want.object);
        known.waits.insert(wait, want);
        self.waits.insert(wait, want.object);
        // What is being given back is asked for once that is done. Until then the owner would only
        // say that the session has it.
        if !is_taken {
            self.ask(wait, want);
        }
        Claimed::Waits(wait)
    }

    /// Whether the token of an operation under way has been good all the time.
    #[must_use]
    pub fn counts(&self, number: UseNumber, now: Moment) -> bool {
        let known = self
            .uses
            .get(&number)
            .and_then(|object| self.objects.get(object));
        let begun = known.and_then(|known| known.uses.get(&number));
        begun.is_some_and(|begun| !begun.is_void) && self.is_current(now)
    }

    /// The operation has ended. True if its token was good all the time: then what it read is true
    /// and what it changed counts. If not, it must be done again, or fails.
    pub fn end_use(&mut self, number: UseNumber, now: Moment) -> bool {
        let counts = self.counts(number, now);
        if let Some(object) = self.uses.remove(&number) {
            if let Some(known) = self.objects.get_mut(&object) {
                known.uses.remove(&number);
            }
            self.take(object);
        }
        counts
    }

    /// An operation waits no longer.
    pub fn give_up(&mut self, wait: WaitNumber) {
        if let Some(object) = self.end_wait(wait) {
            self.stop_asking(wait);
            self.tidy(object);
        }
    }

    /// The owner of this tenure has answered a request that was sent at this time, whatever it was
    /// about: all tokens may be used for the span that came with the answer. The client asks for
    /// something every two seconds while it holds or wants tokens. Between [`Holder::begin_tenure`] and
    /// [`Holder::end_reclaim`] answers renew nothing: the new owner may have granted to others what
    /// this client doesn't know yet to be lost.
    pub fn renewed(&mut self, tenure: Tenure, sent: Moment, span: Duration, now: Moment) {
        let is_lost = self.is_reclaiming && self.planted != Some(Planted::RenewLost);
        if is_lost || tenure != self.tenure {
            return;
        }
        self.usable_until = self.usable_until.max(sent.plus(span));
        let waited_for: BTreeSet<TokenObject> = self.waits.values().copied().collect();
        for object in waited_for {
            self.go_on(object, now);
        }
    }

    /// The owner has answered this request for a token. [`Holder::renewed`] comes after it.
    ///
    /// # Errors
    /// `InvalidArgument` for what no sound daemon answers; then the request has no answer yet.
    pub fn answered(&mut self, request: u64, reply: TokenReply, now: Moment) -> Result<()> {
        let Some(asked) = self.asked.get(request) else {
            return Ok(());
        };
        let object = asked.wants.object;
        if let TokenReply::Granted { ranges, mode, .. } = &reply {
            check_parts(object, Some(*mode), ranges)?;
        }
        match reply {
            TokenReply::Waits => {
                let wants = asked.wants.clone();
                self.actions.push(Action::Ask { request, wants });
                return Ok(());
            }
            TokenReply::Granted {
                ranges,
                mode,
                number,
            } => {
                if number.tenure == self.tenure {
                    self.newest = self.newest.max(number);
                    let known = self.known(object);
                    known.grant(&ranges, mode, number);
                    self.actions.push(Action::Changed(object));
                }
                if mode == TokenMode::Exclusive {
                    self.ungranted.remove(&object);
                }
                self.asked.remove(request);
            }
            TokenReply::Ship | TokenReply::TooMany => {
                if self.ungranted.contains(&object) {
                    self.release(object, TokenRange::ALL);
                }
                let waits = self.asked.remove(request).map(|asked| asked.waits);
                for wait in waits.unwrap_or_default() {
                    self.end_wait(wait);
                    self.actions.push(match reply {
                        TokenReply::Ship => Action::Ship(wait),
                        _ => Action::TooMany(wait),
                    });
                }
            }
        }
        self.go_on(object, now);
        self.recall_early(now);
        self.tidy(object);
        Ok(())
    }

    /// The shell is about to ask for shared tokens of these inodes in one message, for nobody who waits. Each
    /// that isn't known yet gets the number of a request, for [`Holder::answered`] or [`Holder::unanswered`].
    #[must_use]
    pub fn ask_to_know(&mut self, inodes: &[InodeId]) -> Vec<(u64, InodeId)> {
        if self.is_reclaiming {
            return Vec::new();
        }
        let mut asked = Vec::new();
        for inode in inodes {
            let object = TokenObject::Inode(*inode);
            if self.objects.contains_key(&object) {
                continue;
            }
            let request = self.next();
            let wants = TokenRequest::to_look_at(object);
            self.asked.insert(request, self.new_request(wants));
            asked.push((request, *inode));
        }
        asked
    }

    /// Whether [`Holder::born`] may be said of these. If not, they are asked for as all others: something of them is known
    /// already, or the session has as many of these as it may.
    #[must_use]
    pub fn may_be_born(&self, objects: [TokenObject; 2]) -> bool {
        let is_known = objects
            .iter()
            .any(|object| self.objects.contains_key(object));
        let has_room = self.born.len() + self.ungranted.len() < BORN_MAX;
        !self.is_reclaiming && !is_known && has_room
    }

    /// The session makes something of which nobody else can know before the owner does: it has these objects alone from now
    /// on, and gets the grants with the owner's answer ([`Holder::born_answered`]). A recall that comes before that waits for
    /// it a moment, as one that overtakes any grant.
    pub fn born(&mut self, objects: [TokenObject; 2]) {
        for object in objects {
            let request = self.next();
            let wants = TokenRequest {
                object,
                mode: TokenMode::Exclusive,
                required: vec![TokenRange::ALL],
                desired: TokenRange::ALL,
                ship: Ship::Never,
            };
            self.asked.insert(request, self.new_request(wants));
            self.born.insert(object, request);
            // Before all grants of the tenure.
            let number = GrantNumber {
                tenure: self.tenure,
                count: 0,
            };
            let known = self.known(object);
            known.grant(&[TokenRange::ALL], TokenMode::Exclusive, number);
            self.actions.push(Action::Changed(object));
        }
    }

    /// The owner knows of what was made, and has granted the object that came with it. If not, it is asked for, and the
    /// session goes on having it, or publishes what was written and gives it back: nobody else may learn of what was made as
    /// long as [`Holder::has_ungranted`].
    pub fn born_answered(&mut self, object: TokenObject, grant: Option<GrantNumber>, now: Moment) {
        let Some(request) = self.born.remove(&object) else {
            return;
        };
        match grant {
            Some(number) => {
                let granted = TokenReply::Granted {
                    ranges: vec![TokenRange::ALL],
                    mode: TokenMode::Exclusive,
                    number,
                };
                let answered = self.answered(request, granted, now);
                assert!(answered.is_ok(), "a whole object: {answered:?}");
            }
            None => {
                let wants = self.asked.get(request).map(|asked| asked.wants.clone());
                let known = self.objects.get(&object);
                let is_held = known.is_some_and(Object::is_exclusive);
                let has_room = self.ungranted.len() < UNGRANTED_MAX;
                if is_held {
                    self.ungranted.insert(object);
                }
                match wants.filter(|_| is_held && has_room) {
                    Some(wants) => self.actions.push(Action::Ask { request, wants }),
                    None => {
                        self.unanswered(request, now);
                        self.release(object, TokenRange::ALL);
                    }
                }
            }
        }
    }

    /// Whether there is something that the session has made and has alone, and that the owner would give to others as well.
    #[must_use]
    pub fn has_ungranted(&self) -> bool {
        !self.ungranted.is_empty()
    }

    /// A request has no answer and isn't sent again. If the owner has granted what it asked for, it hears
    /// that this session doesn't have it when it wants it back.
    pub fn unanswered(&mut self, request: u64, now: Moment) {
        let Some(asked) = self.asked.remove(request) else {
            return;
        };
        self.actions.push(Action::Stop { request });
        self.go_on(asked.wants.object, now);
        self.recall_early(now);
        self.tidy(asked.wants.object);
    }

    /// The owner asks for something back.
    ///
    /// # Errors
    /// `InvalidArgument` for what no sound daemon asks.
    pub fn recalled(&mut self, recall: TokenRecall, now: Moment) -> Result<()> {
        check_parts(recall.object, recall.keep, &recall.ranges)?;
        if recall.up_to.tenure != self.tenure {
            return Ok(());
        }
        let known = self.objects.get(&recall.object);
        let newest = known.map_or(GrantNumber::default(), |known| known.newest);
        if recall.up_to > newest && self.is_asked(recall.object) {
            // Said again: it waits no longer than the first one, and for nothing that was granted since: an owner may grant the
            // same again each time that it is asked again, and takes back nothing that is newer than what is returned.
            let is_same = |early: &&mut Early| {
                let known = &early.recall;
                (known.object, known.keep) == (recall.object, recall.keep)
                    && known.ranges == recall.ranges
            };
            if let Some(early) = self.early.iter_mut().find(is_same) {
                early.recall.up_to = early.recall.up_to.max(recall.up_to);
                return Ok(());
            }
            if self.early.len() < EARLY_MAX {
                self.early.push(Early { recall, since: now });
                return Ok(());
            }
        }
        self.give_back(recall);
        Ok(())
    }

    /// Gives something back that the client doesn't need any more.
    pub fn release(&mut self, object: TokenObject, range: TokenRange) {
        if let Some(known) = self.objects.get(&object) {
            let up_to = known.newest;
            self.give_back(TokenRecall {
                object,
                ranges: vec![range],
                keep: None,
                up_to,
            });
        }
    }

    /// What was to be flushed is durable and no longer cached.
    pub fn flushed(&mut self, flush: FlushNumber, now: Moment) {
        let Some(object) = self.flushes.remove(&flush) else {
            return;
        };
        let is_asked = self.is_asked(object);
        let Some(known) = self.objects.get_mut(&object) else {
            return;
        };
        if let Some(taken) = known.take_out(flush) {
            let back = known.returned(object, taken, is_asked);
            if !known.is_exclusive() {
                self.ungranted.remove(&object);
            }
            self.actions.push(Action::Changed(object));
            self.actions.push(Action::Return(back));
        }
        self.go_on(object, now);
        self.tidy(object);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Moment) {
        self.recall_early(now);
    }

    /// The shard has a new owner, which must be told what the session holds: returns that.
    /// Requests are asked again of the new one after [`Holder::end_reclaim`].
    pub fn begin_tenure(&mut self, tenure: Tenure) -> Vec<(TokenObject, TokenRange, TokenMode)> {
        self.tenure = tenure;
        self.is_reclaiming = true;
        self.early.clear();
        // Said with all that is held.
        self.born.clear();
        self.ungranted.clear();
        let mut dropped = Vec::new();
        for (request, asked) in self.asked.take() {
            self.actions.push(Action::Stop { request });
            if asked.waits.is_empty() {
                dropped.push(asked.wants.object);
                continue;
            }
            let request = self.next();
            self.asked.insert(request, asked);
        }
        dropped.into_iter().for_each(|object| self.tidy(object));
        let objects = self.objects.iter();
        let pieces = objects.flat_map(|(object, known)| {
            known
                .pieces
                .iter()
                .map(|piece| (*object, piece.range, piece.mode))
        });
        pieces.collect()
    }

    /// The new owner has taken down what was said of an object, or refused it.
    pub fn reclaimed(
        &mut self,
        object: TokenObject,
        range: TokenRange,
        number: Option<GrantNumber>,
    ) {
        let Some(known) = self.objects.get_mut(&object) else {
            return;
        };
        match number {
            Some(number) if number.tenure == self.tenure => {
                known.renumber(range, number);
                self.actions.push(Action::Changed(object));
            }
            Some(_) => {}
            None => {
                known.lose(range);
                let ranges = vec![range];
                self.actions.push(Action::Changed(object));
                self.actions.push(Action::Lose { object, ranges });
                self.take(object);
            }
        }
    }

    /// The new owner has answered everything that was said of what is held. Now it is asked for more.
    pub fn end_reclaim(&mut self) {
        self.is_reclaiming = false;
        for (request, asked) in self.asked.iter() {
            self.actions.push(Action::Ask {
                request,
                wants: asked.wants.clone(),
            });
        }
    }

    /// The session has ended: nothing is held any more. Operations that wait are to be given up.
    pub fn lose_all(&mut self) {
        self.usable_until = Moment::default();
        // What the owner has said before, and comes only now, grants nothing.
        self.born.clear();
        self.ungranted.clear();
        for (object, known) in &mut self.objects {
            let ranges: Vec<TokenRange> = known.pieces.iter().map(|piece| piece.range).collect();
            known.lose(TokenRange::ALL);
            if !ranges.is_empty() {
                let object = *object;
                self.actions.push(Action::Changed(object));
                self.actions.push(Action::Lose { object, ranges });
            }
        }
    }

    fn known(&mut self, object: TokenObject) -> &mut Object {
        let planted = self.planted;
        let known = self.objects.entry(object);
        known.or_insert_with(|| Object::new(planted))
    }

    /// Whether tokens may be used at all.
    fn is_current(&self, now: Moment) -> bool {
        now < self.usable_until || self.planted == Some(Planted::UseExpired)
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// One for which nobody waits yet.
    fn new_request(&self, wants: TokenRequest) -> Asked {
        Asked {
            wants,
            waits: BTreeSet::new(),
            after: self.newest,
        }
    }

    fn begin(&mut self, want: &Want) -> UseNumber {
        let number = UseNumber(self.next());
        self.uses.insert(number, want.object);
        let known = self.known(want.object);
        known.begin(number, want.range, want.mode);
        number
    }

    fn is_asked_for(&self, wait: WaitNumber) -> bool {
        self.asked
            .iter()
            .any(|(_, asked)| asked.waits.contains(&wait))
    }

    /// Whether what is wanted is being given back.
    fn is_taken(&self, want: &Want) -> bool {
        let known = self.objects.get(&want.object);
        known.is_some_and(|known| known.is_taken(want.range, want.mode))
    }

    /// Whether what is wanted is held, whatever the time.
    fn holds(&self, want: &Want) -> bool {
        let known = self.objects.get(&want.object);
        known.is_some_and(|known| known.may_use(want.range, want.mode))
    }

    fn is_asked(&self, object: TokenObject) -> bool {
        self.asked.concern(object)
    }

    /// Whether the session has made this, and the owner hasn't granted it.
    fn is_made(&self, object: TokenObject) -> bool {
        self.born.contains_key(&object) || self.ungranted.contains(&object)
    }

    /// Waits for the answer of a request that asks for enough, or makes one.
    fn ask(&mut self, wait: WaitNumber, want: Want) {
        let same = self.asked.waits_mut().find(|(_, wants, _)| {
            wants.object == want.object
                && wants.mode.covers(want.mode)
                && wants.ship == want.ship
                && crate::pieces::contain(&wants.required, want.range)
        });
        if let Some((_, _, waits)) = same {
            waits.insert(wait);
            return;
        }
        let request = self.next();
        let wants = TokenRequest {
            object: want.object,
            mode: want.mode,
            required: vec![want.range],
            desired: want.desired,
            ship: want.ship,
        };
        let mut asked = self.new_request(wants.clone());
        asked.waits.insert(wait);
        self.asked.insert(request, asked);
        if !self.is_reclaiming {
            self.actions.push(Action::Ask { request, wants });
        }
    }

    /// Forgets an operation that waited; of what it was.
    fn end_wait(&mut self, wait: WaitNumber) -> Option<TokenObject> {
        let object = self.waits.remove(&wait)?;
        if let Some(known) = self.objects.get_mut(&object) {
            known.waits.remove(&wait);
        }
        Some(object)
    }

    /// An operation waits for no answer any more; stops requests for which nobody does.
    fn stop_asking(&mut self, wait: WaitNumber) {
        let mut idle = Vec::new();
        for (request, _, waits) in self.asked.waits_mut() {
            if waits.remove(&wait) && waits.is_empty() {
                idle.push(request);
            }
        }
        // What was made is held whether or not anybody waits for it.
        idle.retain(|request| {
            let asked = self.asked.get(*request);
            asked.is_some_and(|asked| !self.is_made(asked.wants.object))
        });
        for request in idle {
            let object = self.asked.remove(request).map(|asked| asked.wants.object);
            self.actions.push(Action::Stop { request });
            object.into_iter().for_each(|object| self.tidy(object));
        }
    }

    /// Lets those begin that can, and asks again for those whose request was answered in vain:
    /// others wanted it back at once.
    fn go_on(&mut self, object: TokenObject, now: Moment) {
        let Some(known) = self.objects.get(&object) else {
            return;
        };
        let waits: Vec<(WaitNumber, Want)> = known
            .waits
            .iter()
            .map(|(number, want)| (*number, *want))
            .collect();
        for (wait, want) in waits {
            if self.may_use(&want, now) {
                self.end_wait(wait);
                let number = self.begin(&want);
                self.actions.push(Action::Begin(wait, number));
                // The answer is still waited for: it may bring a grant.
                for (_, _, waits) in self.asked.waits_mut() {
                    waits.remove(&wait);
                }
            } else if self.is_asked_for(wait) {
                // Its answer will say.
            } else if self.is_taken(&want) {
                if want.ship != Ship::Never {
                    self.end_wait(wait);
                    self.actions.push(Action::Ship(wait));
                }
            } else if !self.holds(&want) {
                self.ask(wait, want);
            }
            // What it has and may not use for lack of time, the next answer renews.
        }
    }

    /// Carries recalls out that needn't wait for replies any more.
    fn recall_early(&mut self, now: Moment) {
        for early in std::mem::take(&mut self.early) {
            let known = self.objects.get(&early.recall.object);
            let has_come = known.is_some_and(|known| known.newest >= early.recall.up_to);
            let asked_after = self.asked.oldest_after(early.recall.object);
            let is_waited_for = known.is_some_and(|known| !known.waits.is_empty());
            let patience = match asked_after {
                Some(after) if is_waited_for && after < early.recall.up_to => COMING_MAX,
                _ => OVERTAKEN_MAX,
            };
            let is_over = early.since.plus(patience) <= now;
            if is_over || has_come || asked_after.is_none() {
                self.give_back(early.recall);
            } else {
                self.early.push(early);
            }
        }
    }

    /// Begins to give back what is recalled, unless that is under way.
    fn give_back(&mut self, recall: TokenRecall) {
        let object = recall.object;
        let is_asked = self.is_asked(object);
        let known = self.known(object);
        if known.is_taking(&recall) {
            return;
        }
        if known.takings.len() >= TAKINGS_MAX {
            return;
        }
        if known.has_more_than(&recall.ranges, recall.keep) {
            known.takings.push(Taking::new(recall));
            self.actions.push(Action::Changed(object));
            self.take(object);
        } else {
            let back = known.returned(object, recall, is_asked);
            self.actions.push(Action::Return(back));
        }
        self.tidy(object);
    }

    /// Flushes what is recalled and no longer in use.
    fn take(&mut self, object: TokenObject) {
        let Some(known) = self.objects.get_mut(&object) else {
            return;
        };
        while let Some(taking) = known.next_to_flush() {
            self.last += 1;
            let flush = FlushNumber(self.last);
            taking.flush = Some(flush);
            self.flushes.insert(flush, object);
            self.actions.push(Action::Flush {
                flush,
                object,
                ranges: taking.recall.ranges.clone(),
                keep: taking.recall.keep,
            });
        }
        self.tidy(object);
    }

    /// Forgets what needn't be remembered of an object.
    fn tidy(&mut self, object: TokenObject) {
        let is_asked = self.is_asked(object);
        if let Some(known) = self.objects.get_mut(&object) {
            if !is_asked {
                known.returned.clear();
            }
            if known.is_idle() && !is_asked {
                self.objects.remove(&object);
            }
        }
    }
}
