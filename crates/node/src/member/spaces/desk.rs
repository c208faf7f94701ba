//! The pool's ledger, while this run is the manager.

use super::{ANSWER_MAX, by_holder, join};
use crate::member::Parts;
use coordination::Roster;
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::FuturesUnordered;
use manager::space::{Counted, Ledger, Round, Say};
use model::call::{Call, Class};
use model::member::Membership;
use model::space::{SPACE_TELL, Statement, Told};
use model::{NodeId, NodeRun, NsdId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::Notify;
use world::Deadline;

/// How often what waits for an answer is said again.
const AGAIN_EVERY: Duration = Duration::from_millis(500);
/// How often the pool is measured: what was deleted, and what was written without room, is found then.
const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// How often the manager here is asked whether it has stored its term.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long NSDs are waited for when the pool is measured.
const COUNT_MAX: Duration = Duration::from_secs(1);
/// Most nodes that are told something at the same time; others wait for their turn.
const TELLING_MAX: usize = 256;

/// Where statements find the ledger, if it is here.
#[derive(Default)]
pub(in crate::member) struct Desk {
    ledger: Mutex<Option<Open>>,
    /// There is something to do.
    news: Notify,
}

struct Open {
    ledger: Ledger,
    /// What is to be told to others than those who asked. One entry for each holder, at most.
    outgoing: BTreeMap<NodeRun, Told>,
    /// The measuring that is wanted and hasn't begun.
    wanted: Option<Round>,
}

impl Open {
    fn take(&mut self, said: Vec<Say>) {
        for say in &said {
            if let Say::Measure(round) = say {
                self.wanted = Some(*round);
            }
        }
        for (run, told) in by_holder(self.ledger.term(), said) {
            let before = self.outgoing.get(&run).copied().unwrap_or(told);
            self.outgoing.insert(run, join(before, told));
        }
    }
}

impl Desk {
    /// The answer to a statement; `None` if the ledger isn't here.
    pub(in crate::member) fn hear(&self, from: NodeRun, statement: Statement) -> Option<Told> {
        let mut open = self.ledger.lock();
        let open = open.as_mut()?;
        let said = open.ledger.hear(from, statement);
        open.take(said);
        let told = open.outgoing.remove(&from);
        if !open.outgoing.is_empty() || open.wanted.is_some() {
            self.news.notify_one();
        }
        let term = open.ledger.term();
        Some(told.unwrap_or(Told {
            term,
            ..Told::default()
        }))
    }

    fn with(&self, change: impl FnOnce(&mut Ledger) -> Vec<Say>) {
        if let Some(open) = self.ledger.lock().as_mut() {
            let said = change(&mut open.ledger);
            open.take(said);
        }
    }

    /// What is to be told now, to holders that aren't being told something.
    fn outgoing(&self, busy: &BTreeSet<NodeRun>) -> Vec<(NodeRun, Told)> {
        let mut open = self.ledger.lock();
        let Some(open) = open.as_mut() else {
            return Vec::new();
        };
        let room = TELLING_MAX.saturating_sub(busy.len());
        let next = open.outgoing.keys().filter(|run| !busy.contains(run));
        let next: Vec<NodeRun> = next.take(room).copied().collect();
        let told = next.into_iter();
        told.filter_map(|run| open.outgoing.remove_entry(&run))
            .collect()
    }

    /// What came of a holder's answer is told to it too, unless it knows that already.
    fn tell_more(&self, run: NodeRun, told: Told, more: Told) {
        let is_new = more.granted > told.granted || more.recall.is_some() || more.full.is_some();
        if let Some(open) = self.ledger.lock().as_mut().filter(|_| is_new) {
            let before = open.outgoing.get(&run).copied().unwrap_or(more);
            open.outgoing.insert(run, join(before, more));
        }
    }

    fn wanted(&self) -> Option<Round> {
        self.ledger.lock().as_mut()?.wanted.take()
    }
}

/// Closes the desk whatever ends its ledger.
struct Closing<'a>(&'a Desk);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        *self.0.ledger.lock() = None;
    }
}

/// Has the ledger for as long as this is polled, from when the manager here has stored its term.
pub(in crate::member) async fn lend(parts: &Parts) {
    let desk = &parts.desk;
    let mut roster = parts.roster.subscribe();
    let (term, mut holders, version) = loop {
        if let Some(begun) = parts.office.established() {
            break begun;
        }
        parts.world.sleep(LOOK_EVERY).await;
    };
    let _closing = Closing(desk);
    *desk.ledger.lock() = Some(Open {
        ledger: Ledger::new(term, holders.iter().copied()),
        outgoing: BTreeMap::new(),
        wanted: None,
    });
    desk.with(Ledger::measure);
    let mut counting: FuturesUnordered<BoxFuture<'_, (Round, Option<Counted>)>> =
        FuturesUnordered::new();
    let mut telling: FuturesUnordered<BoxFuture<'_, NodeRun>> = FuturesUnordered::new();
    let mut busy = BTreeSet::new();
    let mut next_again = parts.world.now() + AGAIN_EVERY;
    let mut next_measure = parts.world.now() + MEASURE_EVERY;
    loop {
        let known = roster.borrow_and_update().clone();
        if let Some(fact) = known.membership.as_ref().filter(|it| it.version >= version) {
            follow(desk, &mut holders, &fact.value);
        }
        if counting.is_empty()
            && let Some(round) = desk.wanted()
        {
            counting.push(count(parts, round));
        }
        for (run, told) in desk.outgoing(&busy) {
            busy.insert(run);
            telling.push(tell(parts, run, told));
        }
        let now = parts.world.now();
        tokio::select! {
            () = desk.news.notified() => {}
            Some((round, counted)) = counting.next() => {
                desk.with(|ledger| {
                    let said = ledger.measured(round, counted);
                    tracing::debug!(?counted, given = ?ledger.given(), "the pool was measured");
                    said
                });
            }
            Some(run) = telling.next() => drop(busy.remove(&run)),
            changed = roster.changed() => if changed.is_err() {
                return;
            },
            () = parts.world.sleep(next_again - now) => {}
        }
        let now = parts.world.now();
        if now >= next_measure {
            next_measure = now + MEASURE_EVERY;
            desk.with(Ledger::measure);
        }
        if now >= next_again {
            next_again = now + AGAIN_EVERY;
            // A measuring that is under way ends by itself.
            let is_told = |say: &Say| !matches!(say, Say::Measure(_));
            desk.with(|ledger| ledger.again().into_iter().filter(is_told).collect());
        }
    }
}

/// Members are holders from when they are, until they have ended.
fn follow(desk: &Desk, holders: &mut BTreeSet<NodeRun>, membership: &Membership) {
    let members = membership.members.values();
    let members = members.filter(|it| it.standing.is_member());
    let members: BTreeSet<NodeRun> = members.map(|it| it.run).collect();
    for run in holders.difference(&members) {
        desk.with(|ledger| ledger.end(*run));
    }
    for run in members.difference(holders) {
        desk.with(|ledger| {
            // There are fewer members than a ledger has holders.
            ledger.begin(*run);
            Vec::new()
        });
    }
    *holders = members;
}

fn count(parts: &Parts, round: Round) -> BoxFuture<'_, (Round, Option<Counted>)> {
    async move {
        let deadline = Deadline::after(&parts.world, COUNT_MAX);
        let ended = of_ended(&parts.roster.borrow());
        let is_away = |nsd: NsdId| ended.contains(&nsd);
        let count = parts.nsds.pool.count(deadline, is_away).await;
        let counted = count.map(|count| Counted {
            used: count.used,
            capacity: count.capacity,
            reserve: count.reserve,
        });
        (round, counted)
    }
    .boxed()
}

/// The NSDs of nodes that are members no more: writes that lack room needn't wait until these don't answer.
fn of_ended(roster: &Roster) -> BTreeSet<NsdId> {
    let members = roster.membership.as_ref().map(|it| &it.value.members);
    let has_ended = |node: &NodeId| {
        let member = members.and_then(|members| members.get(node));
        member.is_some_and(|it| !it.standing.is_member())
    };
    let homes = roster.homes.iter();
    let of_ended = homes.filter(|(_, node)| has_ended(node));
    of_ended.map(|(nsd, _)| *nsd).collect()
}

/// Tells a holder something; its answer is a statement.
fn tell(parts: &Parts, run: NodeRun, told: Told) -> BoxFuture<'_, NodeRun> {
    async move {
        let deadline = Deadline::after(&parts.world, ANSWER_MAX);
        let call = Call::new(SPACE_TELL, Class::Lease, &told);
        let answer = parts.way_to(run).call(call, deadline).await;
        let statement = answer.ok().filter(|it| it.from == run);
        let statement = statement.and_then(|it| it.reply.decode::<Statement>().ok());
        // One that doesn't answer hears it again, or ends.
        if let Some(statement) = statement
            && let Some(more) = parts.desk.hear(run, statement)
        {
            parts.desk.tell_more(run, told, more);
        }
        run
    }
    .boxed()
}
