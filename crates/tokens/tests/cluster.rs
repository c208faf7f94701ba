//! An owner, its clients, and messages between them: everything that can happen next is a [`Step`].
//!
//! After each step [`Cluster::check`] looks at all of them at once, which nobody in a real cluster
//! can.

use model::owner::Tenure;
use model::token::{GrantNumber, Ship, TokenRecall, TokenReply, TokenRequest, TokenReturn};
use model::{SessionId, TokenMode, TokenObject, TokenRange};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokens::granter::{self, ClaimNumber, Granter, Need};
use tokens::holder::{self, Claimed, FlushNumber, Holder, UseNumber, WaitNumber, Want};
use tokens::{Moment, Pieces, Planted, TOKEN_TIME};

/// The deadline of a call: a request that has no answer by then is sent again.
const CALL: Duration = Duration::from_secs(5);

/// A client's place in the list.
pub(crate) type At = usize;

/// A message under way. Times are by the client's clock.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Message {
    Ask {
        from: At,
        tenure: Tenure,
        request: u64,
        wants: Wants,
        sent: Moment,
    },
    Answer {
        to: At,
        tenure: Tenure,
        request: u64,
        reply: Reply,
        sent: Moment,
        span: Duration,
    },
    Recall {
        to: At,
        recall: Recall,
    },
    Return {
        from: At,
        back: Recall,
    },
    /// A request that only renews, and its answer.
    Renew {
        from: At,
        tenure: Tenure,
        sent: Moment,
    },
    Renewed {
        to: At,
        tenure: Tenure,
        sent: Moment,
        span: Duration,
    },
    /// The refusal of what was meant for an owner before.
    NewOwner {
        to: At,
        tenure: Tenure,
    },
    Ended {
        to: At,
    },
    /// What a client held under the owner before, all at once, and the new owner's answer.
    Reclaim {
        from: At,
        tenure: Tenure,
        held: Vec<Held>,
        sent: Moment,
    },
    Reclaimed {
        to: At,
        tenure: Tenure,
        numbers: Vec<(Held, Option<GrantNumber>)>,
        sent: Moment,
        span: Duration,
    },
}

type Held = (TokenObject, TokenRange, TokenMode);

/// The messages of `model` in a form that can be ordered.
pub(crate) type Wants = (TokenObject, TokenMode, Vec<TokenRange>, TokenRange, Ship);
pub(crate) type Reply = Option<(Vec<TokenRange>, TokenMode, GrantNumber)>;
pub(crate) type Recall = (TokenObject, Vec<TokenRange>, Option<TokenMode>, GrantNumber);

/// What can happen next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Step {
    Claim(At, usize),
    EndUse(At, UseNumber),
    GiveUp(At, WaitNumber),
    Release(At, usize),
    Flush(At, FlushNumber),
    Deliver(usize),
    Lose(usize),
    Repeat(usize),
    AskAgain(At, u64),
    Renew(At),
    OwnerClaims(At, usize),
    OwnerEnds(ClaimNumber),
    CommitEnd(At),
    Pass(Duration),
    TakeOver,
    ReclaimAgain(At),
}

/// How often things may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Budget {
    pub(crate) claims: u32,
    pub(crate) operations: u32,
    pub(crate) lost: u32,
    pub(crate) repeated: u32,
    pub(crate) passed: u32,
    pub(crate) renewals: u32,
    pub(crate) give_ups: u32,
    pub(crate) releases: u32,
    pub(crate) take_overs: u32,
    /// How far the clock goes in a step.
    pub(crate) tick: Duration,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Client {
    pub(crate) holder: Holder,
    /// What the client keeps of it beside its caches.
    usable: BTreeMap<TokenObject, Pieces>,
    /// The owner that it knows.
    tenure: Tenure,
    pub(crate) uses: BTreeMap<UseNumber, Want>,
    pub(crate) waits: BTreeMap<WaitNumber, Want>,
    flushing: BTreeMap<FlushNumber, (TokenObject, Vec<TokenRange>)>,
    asking: BTreeMap<u64, TokenRequest>,
    /// What was changed and isn't published, by object and place in the list of wants.
    dirty: BTreeSet<(TokenObject, TokenRange)>,
    /// What it has to say to a new owner.
    reclaiming: Option<Vec<Held>>,
    pub(crate) is_ended: bool,
    claims_left: u32,
    /// Thousandths by which its clock is faster.
    drift: i32,
}

/// The whole.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Cluster {
    pub(crate) owner: Granter,
    tenure: Tenure,
    pub(crate) clients: Vec<Client>,
    /// In order, so that the same messages in another order are the same state.
    pub(crate) net: Vec<Message>,
    pub(crate) now: Moment,
    pub(crate) wants: Vec<Want>,
    running: BTreeMap<ClaimNumber, (At, usize, bool)>,
    /// Requests that the owner has and hasn't answered, and when they were sent.
    unanswered: BTreeMap<(At, u64), Moment>,
    ending: BTreeSet<At>,
    /// Sessions with a record that they have ended.
    pub(crate) ended: BTreeSet<At>,
    planted: Option<Planted>,
    /// What somebody did that is wrong whatever the others do.
    wrong: Option<String>,
    pub(crate) budget: Budget,
}

fn session(at: At) -> SessionId {
    SessionId(at as u64 + 1)
}

impl Cluster {
    pub(crate) fn new(clients: usize, wants: Vec<Want>, budget: Budget, drift: &[i32]) -> Self {
        let mut owner = Granter::new(Tenure(1), BTreeSet::new(), Moment::default());
        owner.renew(Moment(Duration::from_secs(1_000_000)), Moment::default());
        let clients = (0..clients).map(|at| {
            owner.begin_session(session(at));
            let mut holder = Holder::new(Tenure(1));
            let span = owner.answer(session(at), Moment::default());
            let (start, span) = (Moment::default(), span.expect("it is open"));
            holder.renewed(Tenure(1), start, span, start);
            Client {
                holder,
                usable: BTreeMap::new(),
                tenure: Tenure(1),
                uses: BTreeMap::new(),
                waits: BTreeMap::new(),
                flushing: BTreeMap::new(),
                asking: BTreeMap::new(),
                dirty: BTreeSet::new(),
                reclaiming: None,
                is_ended: false,
                claims_left: budget.claims,
                drift: drift.get(at).copied().unwrap_or(0),
            }
        });
        let clients = clients.collect();
        Self {
            owner,
            tenure: Tenure(1),
            clients,
            net: Vec::new(),
            now: Moment::default(),
            wants,
            running: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            ending: BTreeSet::new(),
            ended: BTreeSet::new(),
            planted: None,
            wrong: None,
            budget,
        }
    }

    /// Makes all machines do something wrong.
    pub(crate) fn plant(&mut self, fault: Planted) {
        self.planted = Some(fault);
        self.owner.plant(fault);
        for client in &mut self.clients {
            client.holder.plant(fault);
        }
    }

    /// A client's clock.
    fn clock(&self, at: At) -> Moment {
        let nanos = self.now.0.as_nanos() as i128;
        let own = nanos + nanos * i128::from(self.clients[at].drift) / 1000;
        Moment(Duration::from_nanos(own as u64))
    }

    /// Everything that can happen.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let mut out = Vec::new();
        for (at, client) in self.clients.iter().enumerate() {
            out.extend(client.uses.keys().map(|number| Step::EndUse(at, *number)));
            out.extend(client.flushing.keys().map(|flush| Step::Flush(at, *flush)));
            if client.is_ended {
                continue;
            }
            let wants = 0..self.wants.len();
            if client.claims_left > 0 {
                out.extend(wants.clone().map(|want| Step::Claim(at, want)));
            }
            if self.budget.operations > 0 {
                out.extend(wants.clone().map(|want| Step::OwnerClaims(at, want)));
            }
            if self.budget.releases > 0 {
                out.extend(wants.map(|want| Step::Release(at, want)));
            }
            if self.budget.give_ups > 0 {
                out.extend(client.waits.keys().map(|wait| Step::GiveUp(at, *wait)));
            }
            // The client's retry place: it asks again when an answer is overdue, and a new owner
            // only once it has said what it holds.
            if client.reclaiming.is_none() {
                let asking = client.asking.keys();
                let quiet = asking.filter(|request| !self.is_under_way(at, **request));
                out.extend(quiet.map(|request| Step::AskAgain(at, *request)));
            } else if !self.reclaim_is_under_way(at) {
                out.push(Step::ReclaimAgain(at));
            }
        }
        let running = self.running.iter().filter(|(_, (_, _, runs))| *runs);
        out.extend(running.map(|(number, _)| Step::OwnerEnds(*number)));
        out.extend(self.ending.iter().map(|at| Step::CommitEnd(*at)));
        let messages = 0..self.net.len();
        out.extend(messages.clone().map(Step::Deliver));
        if self.budget.lost > 0 {
            out.extend(messages.clone().map(Step::Lose));
        }
        if self.budget.repeated > 0 {
            out.extend(messages.map(Step::Repeat));
        }
        if self.budget.passed > 0 {
            out.push(Step::Pass(self.budget.tick));
        }
        if self.budget.renewals > 0 {
            let clients = 0..self.clients.len();
            let open = clients.filter(|at| !self.clients[*at].is_ended);
            out.extend(open.filter(|at| !self.renews(*at)).map(Step::Renew));
        }
        if self.budget.take_overs > 0 {
            out.push(Step::TakeOver);
        }
        out
    }

    fn is_under_way(&self, client: At, number: u64) -> bool {
        let unanswered = self.unanswered.get(&(client, number));
        unanswered.is_some_and(|sent| self.clock(client) < sent.plus(CALL))
            || self.net.iter().any(|message| match message {
                Message::Ask { from, request, .. } => (*from, *request) == (client, number),
                Message::Answer { to, request, .. } => (*to, *request) == (client, number),
                _ => false,
            })
    }

    fn reclaim_is_under_way(&self, client: At) -> bool {
        self.net.iter().any(|message| match message {
            Message::Reclaim { from, .. } => *from == client,
            Message::Reclaimed { to, .. } => *to == client,
            _ => false,
        })
    }

    fn renews(&self, client: At) -> bool {
        self.net.iter().any(|message| match message {
            Message::Renew { from, .. } => *from == client,
            Message::Renewed { to, .. } => *to == client,
            _ => false,
        })
    }

    fn send(&mut self, message: Message) {
        let at = self.net.partition_point(|other| *other < message);
        self.net.insert(at, message);
    }

    /// Lets something happen.
    pub(crate) fn take(&mut self, step: Step) {
        match step {
            Step::Claim(at, want) => {
                let (want, now) = (self.wants[want], self.clock(at));
                let client = &mut self.clients[at];
                client.claims_left -= 1;
                match client.holder.claim(want, now) {
                    Claimed::Begun(number) => {
                        client.uses.insert(number, want);
                    }
                    Claimed::Waits(wait) => {
                        client.waits.insert(wait, want);
                    }
                    Claimed::Ship => {}
                }
            }
            Step::EndUse(at, number) => {
                let now = self.clock(at);
                let client = &mut self.clients[at];
                let want = client.uses.remove(&number).expect("it is under way");
                if client.holder.end_use(number, now) && want.mode != TokenMode::Shared {
                    client.dirty.insert((want.object, want.range));
                }
            }
            Step::GiveUp(at, wait) => {
                self.budget.give_ups -= 1;
                self.clients[at].waits.remove(&wait);
                self.clients[at].holder.give_up(wait);
            }
            Step::Release(at, want) => {
                self.budget.releases -= 1;
                let want = self.wants[want];
                self.clients[at].holder.release(want.object, want.range);
            }
            Step::Flush(at, flush) => self.flush(at, flush),
            Step::Deliver(at) => {
                let message = self.net.remove(at);
                self.deliver(message);
            }
            Step::Lose(at) => {
                self.budget.lost -= 1;
                self.net.remove(at);
            }
            Step::Repeat(at) => {
                self.budget.repeated -= 1;
                let message = self.net[at].clone();
                self.send(message);
            }
            Step::AskAgain(at, request) => {
                let wants = ordered(&self.clients[at].asking[&request]);
                let (sent, tenure) = (self.clock(at), self.clients[at].tenure);
                self.send(Message::Ask {
                    from: at,
                    tenure,
                    request,
                    wants,
                    sent,
                });
            }
            Step::Renew(from) => {
                self.budget.renewals = self.budget.renewals.saturating_sub(1);
                let (sent, tenure) = (self.clock(from), self.clients[from].tenure);
                self.send(Message::Renew { from, tenure, sent });
            }
            Step::OwnerClaims(at, want) => {
                self.budget.operations -= 1;
                let Want {
                    object,
                    mode,
                    range,
                    ..
                } = self.wants[want];
                let need = Need {
                    object,
                    mode,
                    ranges: vec![range],
                };
                let number = self.owner.claim(session(at), vec![need], self.now);
                let number = number.expect("few wait");
                self.running.insert(number, (at, want, false));
            }
            Step::OwnerEnds(number) => {
                self.running.remove(&number);
                self.owner.end_claim(number, self.now);
            }
            Step::CommitEnd(at) => {
                self.ending.remove(&at);
                self.ended.insert(at);
                self.owner.end_session(session(at), self.now);
                self.send(Message::Ended { to: at });
            }
            Step::Pass(time) => {
                self.budget.passed = self.budget.passed.saturating_sub(1);
                self.now = self.now.plus(time);
                self.owner.tick(self.now);
                for at in 0..self.clients.len() {
                    let now = self.clock(at);
                    self.clients[at].holder.tick(now);
                }
            }
            Step::TakeOver => self.take_over(),
            Step::ReclaimAgain(from) => {
                let held = self.clients[from].reclaiming.clone().expect("it has to");
                let (sent, tenure) = (self.clock(from), self.clients[from].tenure);
                self.send(Message::Reclaim {
                    from,
                    tenure,
                    held,
                    sent,
                });
            }
        }
        self.act();
    }

    fn flush(&mut self, at: At, flush: FlushNumber) {
        let now = self.clock(at);
        let client = &mut self.clients[at];
        let (object, ranges) = client.flushing.remove(&flush).expect("it is under way");
        client.dirty.retain(|(of, range)| {
            *of != object || !ranges.iter().any(|flushed| flushed.overlaps(*range))
        });
        client.holder.flushed(flush, now);
    }

    /// The owner's process dies, and another one takes the shard over.
    fn take_over(&mut self) {
        self.budget.take_overs -= 1;
        self.tenure = Tenure(self.tenure.0 + 1);
        let open = (0..self.clients.len()).filter(|at| !self.ended.contains(at));
        let open: BTreeSet<SessionId> = open.map(session).collect();
        self.owner = Granter::new(self.tenure, open, self.now);
        self.planted
            .into_iter()
            .for_each(|fault| self.owner.plant(fault));
        self.owner
            .renew(Moment(Duration::from_secs(1_000_000)), Moment::default());
        self.running.clear();
        self.unanswered.clear();
        self.ending.clear();
    }

    fn deliver(&mut self, message: Message) {
        match message {
            // The owner refuses sessions that have ended.
            Message::Ask { from, .. }
            | Message::Renew { from, .. }
            | Message::Reclaim { from, .. }
                if self.ended.contains(&from) =>
            {
                let refusal = Message::Ended { to: from };
                if !self.net.contains(&refusal) {
                    self.send(refusal);
                }
            }
            // And requests that were meant for an owner before.
            Message::Ask { from, tenure, .. }
            | Message::Renew { from, tenure, .. }
            | Message::Reclaim { from, tenure, .. }
                if tenure != self.tenure =>
            {
                let refusal = Message::NewOwner {
                    to: from,
                    tenure: self.tenure,
                };
                if !self.net.contains(&refusal) {
                    self.send(refusal);
                }
            }
            Message::NewOwner { to, tenure } => {
                let client = &mut self.clients[to];
                if tenure > client.tenure && !client.is_ended {
                    client.tenure = tenure;
                    client.reclaiming = Some(client.holder.begin_tenure(tenure));
                }
            }
            Message::Ask {
                from,
                request,
                wants,
                sent,
                ..
            } => {
                // A client asks a new owner only after it has said what it holds.
                if self.clients[from].reclaiming.is_none() {
                    let wants = request_of(wants);
                    // The call before may be over; then only this one can be answered.
                    let now = self.clock(from);
                    let known = self.unanswered.entry((from, request)).or_insert(sent);
                    if known.plus(CALL) <= now {
                        *known = sent;
                    }
                    let asked = self.owner.ask(session(from), request, wants, self.now);
                    self.refused(asked);
                }
            }
            Message::Answer {
                to,
                tenure,
                request,
                reply,
                sent,
                span,
            } => {
                let now = self.clock(to);
                let client = &mut self.clients[to];
                if client.asking.contains_key(&request) && !client.is_ended {
                    client.asking.remove(&request);
                    let answered = client.holder.answered(request, reply_of(reply), now);
                    client.holder.renewed(tenure, sent, span, now);
                    self.refused(answered);
                }
            }
            Message::Recall { to, recall } => {
                let now = self.clock(to);
                if !self.clients[to].is_ended {
                    let heard = self.clients[to].holder.recalled(recall_of(recall), now);
                    self.refused(heard);
                }
            }
            Message::Return { from, back } => {
                let (object, ranges, keep, up_to) = back;
                let back = TokenReturn {
                    object,
                    ranges,
                    keep,
                    up_to,
                };
                let taken = self.owner.take_back(session(from), &back, self.now);
                self.refused(taken);
            }
            Message::Renew { from, sent, .. } => {
                if let Some(span) = self.owner.answer(session(from), self.now) {
                    let tenure = self.tenure;
                    self.send(Message::Renewed {
                        to: from,
                        tenure,
                        sent,
                        span,
                    });
                }
            }
            Message::Renewed {
                to,
                tenure,
                sent,
                span,
            } => {
                let now = self.clock(to);
                let client = &mut self.clients[to];
                if !client.is_ended {
                    client.holder.renewed(tenure, sent, span, now);
                }
            }
            Message::Ended { to } => {
                let client = &mut self.clients[to];
                client.is_ended = true;
                client.asking.clear();
                client.reclaiming = None;
                client.waits.clear();
                client.dirty.clear();
                client.holder.lose_all();
            }
            Message::Reclaim {
                from, held, sent, ..
            } => self.reclaim(from, held, sent),
            Message::Reclaimed {
                to,
                tenure,
                numbers,
                sent,
                span,
            } => {
                let now = self.clock(to);
                let client = &mut self.clients[to];
                // An answer of the owner before comes too late.
                if tenure == client.tenure && client.reclaiming.take().is_some() {
                    for ((object, range, _), number) in numbers {
                        client.holder.reclaimed(object, range, number);
                    }
                    client.holder.end_reclaim();
                    client.holder.renewed(tenure, sent, span, now);
                }
            }
        }
    }

    /// Nobody here says what no sound daemon says.
    fn refused(&mut self, result: model::Result<()>) {
        if let Err(error) = result {
            self.wrong = Some(error.to_string());
        }
    }

    fn reclaim(&mut self, from: At, held: Vec<Held>, sent: Moment) {
        let numbers = held.into_iter().map(|held| {
            let (object, range, mode) = held;
            let need = Need {
                object,
                mode,
                ranges: vec![range],
            };
            let number = self.owner.reclaim(session(from), need, self.now);
            (held, number.expect("it is sound"))
        });
        let numbers = numbers.collect();
        self.owner.end_reclaim(session(from), self.now);
        if let Some(span) = self.owner.answer(session(from), self.now) {
            let tenure = self.tenure;
            self.send(Message::Reclaimed {
                to: from,
                tenure,
                numbers,
                sent,
                span,
            });
        }
    }

    fn answer(&mut self, to: At, request: u64, reply: TokenReply) {
        let Some(sent) = self.unanswered.remove(&(to, request)) else {
            return;
        };
        if let Some(span) = self.owner.answer(session(to), self.now) {
            let reply = match reply {
                TokenReply::Granted {
                    ranges,
                    mode,
                    number,
                } => Some((ranges, mode, number)),
                TokenReply::Ship => None,
                TokenReply::Waits | TokenReply::TooMany => unreachable!("few are held"),
            };
            let tenure = self.tenure;
            self.send(Message::Answer {
                to,
                tenure,
                request,
                reply,
                sent,
                span,
            });
        }
    }

    fn owner_acts(&mut self, action: granter::Action) {
        match action {
            granter::Action::Answer {
                session,
                request,
                reply,
            } => self.answer(session.0 as usize - 1, request, reply),
            granter::Action::Recall { session, recall } => {
                let to = session.0 as usize - 1;
                let TokenRecall {
                    object,
                    ranges,
                    keep,
                    up_to,
                } = recall;
                let recall = (object, ranges, keep, up_to);
                let message = Message::Recall { to, recall };
                if !self.net.contains(&message) {
                    self.send(message);
                }
            }
            granter::Action::Run(number) => {
                self.running.get_mut(&number).expect("it was claimed").2 = true;
            }
            granter::Action::End(session) => {
                self.ending.insert(session.0 as usize - 1);
            }
        }
    }

    /// Does what the machines want done.
    fn act(&mut self) {
        for action in self.owner.take_actions() {
            self.owner_acts(action);
        }
        for at in 0..self.clients.len() {
            for action in self.clients[at].holder.take_actions() {
                self.client_acts(at, action);
            }
        }
    }

    fn client_acts(&mut self, at: At, action: holder::Action) {
        let sent = self.clock(at);
        let client = &mut self.clients[at];
        match action {
            holder::Action::Ask { request, wants } => {
                client.asking.insert(request, wants.clone());
                // Who is told to wait asks again later: the retry place's work.
                if client.reclaiming.is_none() && !self.is_under_way(at, request) {
                    let wants = ordered(&wants);
                    let tenure = self.clients[at].tenure;
                    self.send(Message::Ask {
                        from: at,
                        tenure,
                        request,
                        wants,
                        sent,
                    });
                }
            }
            holder::Action::Stop { request } => {
                client.asking.remove(&request);
            }
            holder::Action::Changed(object) => {
                let usable = client.holder.usable(object);
                match usable.is_empty() {
                    true => client.usable.remove(&object),
                    false => client.usable.insert(object, usable),
                };
            }
            holder::Action::Begin(wait, number) => {
                if let Some(want) = client.waits.remove(&wait) {
                    client.uses.insert(number, want);
                }
            }
            holder::Action::Ship(wait) | holder::Action::TooMany(wait) => {
                client.waits.remove(&wait);
            }
            holder::Action::Flush {
                flush,
                object,
                ranges,
                ..
            } => {
                client.flushing.insert(flush, (object, ranges));
            }
            holder::Action::Return(back) => {
                let TokenReturn {
                    object,
                    ranges,
                    keep,
                    up_to,
                } = back;
                // Those who write at the same time may have changed what the others haven't seen.
                if keep.is_none_or(|keep| keep == TokenMode::Shared) && !client.is_ended {
                    let dirty = client.dirty.iter();
                    let mut left = dirty.filter(|(of, range)| {
                        *of == object && ranges.iter().any(|back| back.overlaps(*range))
                    });
                    if let Some(left) = left.next() {
                        self.wrong = Some(format!("returned {left:?} before it was durable"));
                    }
                }
                let back = (object, ranges, keep, up_to);
                self.send(Message::Return { from: at, back });
            }
            holder::Action::Lose { object, ranges } => client.dirty.retain(|(of, range)| {
                *of != object || !ranges.iter().any(|lost| lost.overlaps(*range))
            }),
        }
    }

    /// What must be true at every moment; the reason why it isn't.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        for (at, client) in self.clients.iter().enumerate() {
            for want in &self.wants {
                let kept = client.usable.get(&want.object).cloned();
                if kept.unwrap_or_default() != client.holder.usable(want.object) {
                    return Err(format!("{at} doesn't know what it may use of {want:?}"));
                }
            }
            for want in self.wants.iter().filter(|want| self.can_use(at, want)) {
                for (other, _) in self.clients.iter().enumerate().filter(|(o, _)| *o != at) {
                    let conflicting = self.wants.iter().filter(|theirs| {
                        theirs.object == want.object
                            && theirs.range.overlaps(want.range)
                            && !theirs.mode.goes_with(want.mode)
                    });
                    for theirs in conflicting {
                        if self.can_use(other, theirs) {
                            return Err(format!("{at} has {want:?}, {other} has {theirs:?}"));
                        }
                    }
                }
                for (owner_runs_for, need, _) in self.running.values().filter(|(_, _, runs)| *runs)
                {
                    let need = &self.wants[*need];
                    if *owner_runs_for != at
                        && need.object == want.object
                        && need.range.overlaps(want.range)
                        && !need.mode.goes_with(want.mode)
                    {
                        return Err(format!("{at} has {want:?} while {need:?} runs"));
                    }
                }
            }
            // What a client changed is seen by nobody before it is published.
            for (object, range) in &client.dirty {
                let is_counted = self.clock(at) < client.holder.usable_until();
                for (other, _) in self.clients.iter().enumerate().filter(|(o, _)| *o != at) {
                    let seen = self.wants.iter().any(|want| {
                        want.object == *object
                            && want.mode == TokenMode::Shared
                            && want.range.overlaps(*range)
                            && self.can_use(other, want)
                    });
                    if is_counted && seen {
                        return Err(format!("{other} reads {object:?} behind {at}'s back"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a client uses this or could begin to.
    fn can_use(&self, at: At, want: &Want) -> bool {
        let (client, now) = (&self.clients[at], self.clock(at));
        let mut used = client.uses.iter();
        let is_used = used.any(|(number, used)| used == want && client.holder.counts(*number, now));
        client.holder.may_use(want, now) || is_used
    }

    /// Lets everything take its course, without faults: then nobody may wait any more.
    pub(crate) fn come_to_rest(&mut self) -> Result<(), String> {
        self.budget = Budget::default();
        for client in &mut self.clients {
            client.claims_left = 0;
        }
        for _ in 0..200 {
            for turn in 0..500 {
                let steps = self.steps();
                let Some(step) = steps.get(turn % steps.len().max(1)).copied() else {
                    break;
                };
                self.take(step);
                self.check()?;
            }
            let waits = self
                .clients
                .iter()
                .map(|client| client.waits.len())
                .sum::<usize>();
            if waits == 0 && self.running.is_empty() && self.net.is_empty() {
                return Ok(());
            }
            for at in 0..self.clients.len() {
                if !self.clients[at].is_ended {
                    self.take(Step::Renew(at));
                }
            }
            self.take(Step::Pass(TOKEN_TIME / 12));
        }
        Err(format!("somebody waits for ever: {self:?}"))
    }
}

fn ordered(wants: &TokenRequest) -> Wants {
    (
        wants.object,
        wants.mode,
        wants.required.clone(),
        wants.desired,
        wants.ship,
    )
}

fn request_of((object, mode, required, desired, ship): Wants) -> TokenRequest {
    TokenRequest {
        object,
        mode,
        required,
        desired,
        ship,
    }
}

fn reply_of(reply: Reply) -> TokenReply {
    match reply {
        Some((ranges, mode, number)) => TokenReply::Granted {
            ranges,
            mode,
            number,
        },
        None => TokenReply::Ship,
    }
}

fn recall_of((object, ranges, keep, up_to): Recall) -> TokenRecall {
    TokenRecall {
        object,
        ranges,
        keep,
        up_to,
    }
}
