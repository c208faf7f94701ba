//! The calls of one lane: those that wait, the connections that carry them, and which takes which. No
//! I/O: time, chance and tickets are given, and what is to be done is said.
//!
//! *A call* waits in the lane, not at a connection. Of the connections that could send it at once, the
//! one with the least bytes under way is woken and takes it; one that is in the middle of a frame is no
//! candidate. If more calls wait than connections are idle, another connection is opened, up to the
//! limit. *A connection ends*: what it had sent is unknown, what waits goes over the next one. *The
//! limit sinks*: connections beyond it take no more calls, and say goodbye when theirs are over.

use crate::Fault;
use crate::attempts::Attempts;
use crate::caller::{Caller, Ended, News, Outcome, Waiting};
use crate::frame::{Frame, Header, is_sendable};
use crate::hello::Hello;
use crate::lanes::{Candidate, Occupancy, choose, needs_another};
use crate::pulse::Beat;
use crate::queue::Queue;
use model::call::{Call, Class, NoAnswer};
use model::{NodeId, NodeRun};
use std::collections::BTreeMap;
use world::{Deadline, Instant};

/// Most calls of a class that wait in a lane to be sent. Of each class, because small reads share a lane with metadata: however
/// many of those wait, a name is found.
const WAITING_MAX: usize = 1024;

/// Most bytes of calls of a lane that wait to be sent; what they may be answered takes no memory yet. Twice what a pool has
/// on its way to disks at a time (128 MiB), all of which may be for one node: an NSD to which a put is refused that only
/// waits for its turn counts as failed.
const WAITING_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Most connections of a lane that still wait for replies after the other side's goodbye.
const ENDING_MAX: usize = 4;

const TOO_LARGE: &str = "the request is larger than the other node takes";

/// What the shell has to do.
#[derive(Debug)]
#[must_use]
pub(crate) struct Todo<T> {
    /// Tell those who wait.
    pub(crate) ended: Ended<T>,
    /// These connections have something to send.
    pub(crate) wake: Vec<u64>,
    /// Drop these connections.
    pub(crate) drop: Vec<u64>,
    /// Open a connection at this place.
    pub(crate) dial: Option<usize>,
}

impl<T> Todo<T> {
    pub(crate) fn nothing() -> Self {
        Self {
            ended: Vec::new(),
            wake: Vec::new(),
            drop: Vec::new(),
            dial: None,
        }
    }
}

/// What a connection does next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Send this.
    Send(Frame),
    /// Nothing, unless [`Traffic::beat`] says so.
    Idle,
    /// It has served its purpose.
    Over,
}

/// The lane. `T` stands for who waits for a call's outcome; each is given back once.
#[derive(Debug)]
pub(crate) struct Traffic<T> {
    node: NodeId,
    waiting: Queue<Waiting<T>>,
    held: Held,
    last_id: u64,
    lines: BTreeMap<u64, Line<T>>,
    last_link: u64,
    limit: usize,
    /// The place of the connection that is being opened.
    opening: Option<usize>,
    attempts: Attempts,
    is_closed: bool,
}

/// Bytes that calls hold which wait to be sent.
#[derive(Clone, Copy, Default, Debug)]
struct Held {
    bytes: u64,
    /// Of those that may wait for others.
    apart: u64,
}

/// A connection.
#[derive(Debug)]
struct Line<T> {
    caller: Caller<T>,
    /// Its number among the lane's open connections.
    place: usize,
    /// The other side is the daemon that was meant.
    is_accepted: bool,
    /// In the middle of a frame.
    is_sending: bool,
    /// It takes no more calls, and says goodbye when its own are over ([`Traffic::renew`]).
    is_retired: bool,
}

/// A connection, for lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkView {
    /// Its number among the lane's connections, from 0.
    pub place: usize,
    /// Whether it takes calls: the other side has said hello, and nobody goodbye.
    pub is_open: bool,
    /// Requests under way.
    pub requests: usize,
    /// Bytes of credits that they hold: of requests and of the largest replies that they allow.
    pub bytes: u64,
}

type Lines<T> = BTreeMap<u64, Line<T>>;

impl<T> Traffic<T> {
    /// A lane to `node` without connections; it may have `limit` of them.
    pub(crate) fn new(node: NodeId, limit: usize) -> Self {
        Self {
            node,
            waiting: Queue::new(),
            held: Held::default(),
            last_id: 0,
            lines: BTreeMap::new(),
            last_link: 0,
            limit,
            opening: None,
            attempts: Attempts::default(),
            is_closed: false,
        }
    }

    /// Takes a call on, and gives the number for [`Traffic::give_up`]. Otherwise gives ticket and
    /// outcome back.
    pub(crate) fn call(
        &mut self,
        call: Call,
        deadline: Deadline,
        ticket: T,
        now: Instant,
    ) -> Result<(u64, Todo<T>), (T, NoAnswer)> {
        if let Err(none) = self.may_call(&call, now) {
            return Err((ticket, none));
        }
        self.last_id += 1;
        let waiting = Waiting::new(self.last_id, call, deadline, ticket);
        if !self.has_place(&waiting) {
            let none = NoAnswer::not_run("too many requests wait for the other node");
            return Err((waiting.ticket, none));
        }
        self.held.add(&waiting);
        match waiting.call.may_wait {
            true => self.waiting.push_apart(waiting.call.class, waiting),
            false => self.waiting.push(waiting.call.class, waiting),
        }
        Ok((self.last_id, self.plan(now)))
    }

    /// Whether a call may wait here. Those that may wait for others take half of the room at most: the rest is for what
    /// these ask for.
    fn has_place(&self, waiting: &Waiting<T>) -> bool {
        let (class, bytes) = (waiting.call.class, waiting.bytes());
        let has_place = self.waiting.len_of(class) < WAITING_MAX
            && self.held.bytes + bytes <= WAITING_BYTES_MAX;
        let has_place_apart = self.waiting.len_apart(class) < WAITING_MAX / 2
            && self.held.apart + bytes <= WAITING_BYTES_MAX / 2;
        has_place && (!waiting.call.may_wait || has_place_apart)
    }

    fn may_call(&self, call: &Call, now: Instant) -> Result<(), NoAnswer> {
        if self.is_closed {
            return Err(NoAnswer::not_run("the connection was closed here"));
        }
        if !is_sendable(call) {
            return Err(NoAnswer::not_run("the request is larger than a frame"));
        }
        if is_too_large(&self.lines, call.class, crate::frame::cost(call)) {
            return Err(NoAnswer::not_run(TOO_LARGE));
        }
        if self.is_down() && self.attempts.are_paused(now) {
            return Err(self.no_link());
        }
        Ok(())
    }

    /// Nobody waits for the call any more. Says what is known; nothing if it has ended already. A
    /// connection tells the other side, or what waited behind a call that wasn't sent goes.
    pub(crate) fn give_up(&mut self, id: u64, now: Instant) -> (Option<NoAnswer>, Todo<T>) {
        if let Some(waiting) = self.waiting.remove(|waiting| waiting.id == id) {
            self.held.remove(&waiting);
            let none = match self.lines.values().any(Line::is_usable) {
                true => "its deadline passed before the other node had room for the request",
                false => "its deadline passed before the other node said hello",
            };
            return (Some(NoAnswer::not_run(none)), self.plan(now));
        }
        let mut lines = self.lines.iter_mut();
        let found = lines.find_map(|(link, line)| Some((line.caller.give_up(id)?, *link)));
        let mut todo = Todo::nothing();
        let none = found.map(|(none, link)| {
            todo.wake.push(link);
            none
        });
        (none, todo)
    }

    /// The connection that was asked for is open; gives its number. None: it isn't wanted any more.
    pub(crate) fn opened(&mut self, hello: Hello, now: Instant) -> Option<u64> {
        let place = self.opening.take().filter(|_| !self.is_closed)?;
        self.last_link += 1;
        let line = Line {
            caller: Caller::new(hello, now),
            place,
            is_accepted: false,
            is_sending: false,
            is_retired: false,
        };
        self.lines.insert(self.last_link, line);
        Some(self.last_link)
    }

    /// The connection that was asked for couldn't be opened. If there is no other one, calls don't
    /// wait for a second attempt: whoever asks has other nodes to turn to.
    pub(crate) fn not_opened(&mut self, why: &str, now: Instant, random: u64) -> Todo<T> {
        self.opening = None;
        self.attempts.failed(why, now, random);
        self.plan(now)
    }

    /// The daemon that said hello is the one that is meant.
    pub(crate) fn accepted(&mut self, link: u64, now: Instant) -> Todo<T> {
        if let Some(line) = self.lines.get_mut(&link) {
            line.is_accepted = true;
            self.attempts.succeeded();
        }
        self.plan_anew(now)
    }

    /// A connection has ended. Gives the first reason, which a goodbye knows best.
    pub(crate) fn ended(
        &mut self,
        link: u64,
        why: &str,
        now: Instant,
        random: u64,
    ) -> (Todo<T>, String) {
        let Some(mut line) = self.lines.remove(&link) else {
            return (self.plan(now), why.into());
        };
        let ended = line.caller.end(why);
        let why = line.caller.why_ended().unwrap_or(why);
        match line.is_accepted {
            true => self.attempts.ended(why),
            false => self.attempts.failed(why, now, random),
        }
        let why = why.to_owned();
        let mut todo = self.plan_anew(now);
        todo.ended.extend(ended);
        (todo, why)
    }

    /// What the connection does next.
    pub(crate) fn next(&mut self, link: u64, now: Instant) -> (Step, Todo<T>) {
        let is_surplus = is_surplus(&self.lines, self.limit, link);
        let Some(line) = self.lines.get_mut(&link) else {
            return (Step::Over, self.plan(now));
        };
        line.is_sending = false;
        let is_needed = !is_surplus && !line.is_retired;
        if !is_needed && line.is_accepted && line.caller.requests() == 0 {
            line.caller.close("the connection isn't needed any more");
        }
        let mut frame = line.caller.next_control(now);
        if frame.is_none() {
            let (lines, limit) = (&self.lines, self.limit);
            let may_go = |it: &Waiting<T>| taker(lines, limit, it) == Some(link);
            let waiting = self.waiting.pop(may_go);
            if let (Some(waiting), Some(line)) = (waiting, self.lines.get_mut(&link)) {
                self.held.remove(&waiting);
                frame = Some(line.caller.send(waiting, now));
            }
        }
        let line = self.lines.get_mut(&link);
        let step = match (frame, line) {
            (Some(frame), Some(line)) => {
                line.is_sending = true;
                Step::Send(frame)
            }
            (None, Some(line)) if !line.caller.is_over() => Step::Idle,
            _ => Step::Over,
        };
        (step, self.plan(now))
    }

    /// What is due of a connection that has no frame to send.
    pub(crate) fn beat(&mut self, link: u64, now: Instant) -> Result<Beat, Fault> {
        self.line(link)?.caller.beat(now)
    }

    /// Bytes came.
    pub(crate) fn heard(&mut self, link: u64, now: Instant) {
        if let Some(line) = self.lines.get_mut(&link) {
            line.caller.heard(now);
        }
    }

    /// Judges a header before memory is taken for its frame.
    pub(crate) fn allow(&mut self, link: u64, header: &Header) -> Result<(), Fault> {
        self.line(link)?.caller.allow(header)
    }

    /// A frame came whose header was allowed. It wakes its connection only if that has something to send
    /// then: a task that is woken while it runs is run once more, and another thread is woken to take it.
    pub(crate) fn arrived(
        &mut self,
        link: u64,
        frame: Frame,
        now: Instant,
    ) -> Result<(Todo<T>, News), Fault> {
        let line = self.line(link)?;
        let was_open = line.caller.is_open();
        let (ended, news) = line.caller.arrived(frame)?;
        let is_leaving = !line.is_open();
        let mut todo = match was_open == line.caller.is_open() {
            true => self.plan(now),
            false => self.plan_anew(now),
        };
        // One that is to go says so, or is over, when its last call has ended.
        if is_leaving || is_surplus(&self.lines, self.limit, link) {
            todo.wake.push(link);
        }
        todo.ended.extend(ended);
        Ok((todo, news))
    }

    fn line(&mut self, link: u64) -> Result<&mut Line<T>, Fault> {
        let line = self.lines.get_mut(&link);
        line.ok_or_else(|| Fault::new("the connection was dropped"))
    }

    /// The lane may have so many connections from now on.
    pub(crate) fn set_limit(&mut self, limit: usize, now: Instant) -> Todo<T> {
        self.limit = limit;
        let mut todo = self.plan(now);
        let surplus = |link: &u64| is_surplus(&self.lines, limit, *link);
        todo.wake.extend(self.lines.keys().copied().filter(surplus));
        todo
    }

    /// Connections to daemons older than `run`.
    pub(crate) fn older_than(&self, run: NodeRun) -> Vec<u64> {
        let is_older = |line: &Line<T>| line.caller.other().is_some_and(|other| other < run);
        let lines = self.lines.iter();
        lines
            .filter(|(_, line)| is_older(line))
            .map(|(link, _)| *link)
            .collect()
    }

    /// The connections that there are take no more calls, and end after theirs; the one that is being opened isn't wanted.
    /// Calls that wait go over new ones. They say no goodbye before theirs are over: the other side closes connections of which
    /// too many have said so at once.
    pub(crate) fn renew(&mut self, now: Instant) -> Todo<T> {
        self.opening = None;
        // What failed before may have failed for what has changed.
        self.attempts.succeeded();
        for line in self.lines.values_mut() {
            line.is_retired |= line.caller.is_open();
        }
        let mut todo = self.plan(now);
        todo.wake.extend(self.lines.keys());
        todo
    }

    /// Another lane carries this one's calls: those that wait are given back, and the connections end
    /// after theirs.
    pub(crate) fn redirect(&mut self, why: &str) -> Todo<T> {
        let mut todo = self.say_goodbye(why);
        let waiting = self.waiting.drain();
        let unsent = waiting.map(|it| (it.ticket, Outcome::Unsent(it.call)));
        todo.ended.extend(unsent);
        self.held = Held::default();
        todo
    }

    /// Takes on no more calls, and says goodbye when those under way are over.
    pub(crate) fn close(&mut self, why: &str) -> Todo<T> {
        self.is_closed = true;
        self.opening = None;
        let mut todo = self.say_goodbye(why);
        let none = NoAnswer::not_run("the connection was closed here");
        todo.ended.extend(self.end_waiting(&none));
        todo
    }

    fn say_goodbye(&mut self, why: &str) -> Todo<T> {
        for line in self.lines.values_mut() {
            line.caller.close(why);
        }
        let mut todo = Todo::nothing();
        todo.wake.extend(self.lines.keys());
        todo
    }

    fn end_waiting(&mut self, none: &NoAnswer) -> Ended<T> {
        self.held = Held::default();
        let waiting = self.waiting.drain();
        waiting
            .map(|it| (it.ticket, Outcome::Ended(Err(none.clone()))))
            .collect()
    }

    /// Neither is there a connection, nor is one being opened.
    fn is_down(&self) -> bool {
        self.opening.is_none() && !self.lines.values().any(Line::is_open)
    }

    fn no_link(&self) -> NoAnswer {
        let why = self.attempts.last_fault();
        let why = why.unwrap_or("the deadline passed before there was one");
        NoAnswer::not_run(format!("no connection to node {}: {why}", self.node))
    }

    /// Why a call whose deadline has passed wasn't sent.
    pub(crate) fn too_late(&self) -> NoAnswer {
        self.no_link()
    }

    /// As [`Traffic::plan`], after a connection has come or gone.
    fn plan_anew(&mut self, now: Instant) -> Todo<T> {
        let ended = self.end_too_large();
        let mut todo = self.plan(now);
        todo.ended.extend(ended);
        todo
    }

    /// What there is to do now, whatever has happened.
    fn plan(&mut self, now: Instant) -> Todo<T> {
        let mut todo = Todo::nothing();
        if self.is_closed {
            return todo;
        }
        let takers = self.waiting.fronts();
        let takers = takers.filter_map(|it| taker(&self.lines, self.limit, it));
        todo.wake.extend(takers);
        if needs_another(self.occupancy(), self.limit) {
            match self.attempts.are_paused(now) {
                true if self.is_down() => {
                    let none = self.no_link();
                    todo.ended.extend(self.end_waiting(&none));
                }
                true => {}
                false => todo.dial = self.open_another(&mut todo.drop),
            }
        }
        todo
    }

    fn occupancy(&self) -> Occupancy {
        let open = || self.lines.values().filter(|line| line.is_open());
        let is_idle =
            |line: &&Line<T>| line.is_accepted && !line.is_sending && line.caller.requests() == 0;
        Occupancy {
            open: open().count(),
            idle: open().filter(is_idle).count(),
            is_opening: self.opening.is_some() || open().any(|line| !line.is_accepted),
            waiting: self.waiting.len(),
        }
    }

    /// The place of a new connection. If too many end slowly, it is opened only if it is the only
    /// one, and the oldest of them makes room. Those that were left all at once don't count.
    fn open_another(&mut self, dropped: &mut Vec<u64>) -> Option<usize> {
        let ends = |line: &Line<T>| !line.caller.is_open() && !line.is_retired;
        let ending = self.lines.iter().filter(|(_, line)| ends(line));
        let ending: Vec<u64> = ending.map(|(link, _)| *link).collect();
        if ending.len() >= ENDING_MAX {
            if !self.is_down() {
                return None;
            }
            dropped.extend(&ending[..=ending.len() - ENDING_MAX]);
        }
        let open = || self.lines.values().filter(|line| line.is_open());
        let is_free = |place: &usize| open().all(|line| line.place != *place);
        self.opening = (0..self.limit).find(is_free);
        self.opening
    }

    /// Ends calls for which no connection that is there will ever have room.
    fn end_too_large(&mut self) -> Ended<T> {
        let mut ended = Vec::new();
        let lines = &self.lines;
        while let Some(waiting) = self
            .waiting
            .remove(|it| is_too_large(lines, it.call.class, it.cost))
        {
            self.held.remove(&waiting);
            let none = NoAnswer::not_run(TOO_LARGE);
            ended.push((waiting.ticket, Outcome::Ended(Err(none))));
        }
        ended
    }

    /// Calls that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The connections.
    pub(crate) fn views(&self) -> Vec<LinkView> {
        let lines = self.lines.values();
        lines
            .map(|line| LinkView {
                place: line.place,
                is_open: line.is_usable(),
                requests: line.caller.requests(),
                bytes: line.caller.bytes(),
            })
            .collect()
    }
}

impl Held {
    fn add<T>(&mut self, waiting: &Waiting<T>) {
        self.bytes += waiting.bytes();
        if waiting.call.may_wait {
            self.apart += waiting.bytes();
        }
    }

    fn remove<T>(&mut self, waiting: &Waiting<T>) {
        self.bytes -= waiting.bytes();
        if waiting.call.may_wait {
            self.apart -= waiting.bytes();
        }
    }
}

impl<T> Line<T> {
    /// Whether it is one of those that the lane counts on.
    fn is_open(&self) -> bool {
        self.caller.is_open() && !self.is_retired
    }

    /// Whether it may be given calls.
    fn is_usable(&self) -> bool {
        self.is_accepted && self.is_open()
    }
}

/// The connection that takes a call at once, if there is one.
fn taker<T>(lines: &Lines<T>, limit: usize, waiting: &Waiting<T>) -> Option<u64> {
    let usable = lines.iter().filter(|(link, line)| {
        line.is_usable()
            && !line.is_sending
            && line.caller.has_room(waiting)
            && !is_surplus(lines, limit, **link)
    });
    choose(usable.map(|(link, line)| Candidate {
        link: *link,
        bytes: line.caller.bytes(),
    }))
}

/// Whether the connection is one more than there may be: those with the lowest places stay.
fn is_surplus<T>(lines: &Lines<T>, limit: usize, link: u64) -> bool {
    if lines.len() <= limit {
        return false;
    }
    let Some(own) = lines.get(&link) else {
        return false;
    };
    let before = lines
        .iter()
        .filter(|(other, line)| line.is_open() && (line.place, **other) < (own.place, link));
    before.count() >= limit
}

/// Whether there are connections of which none ever has room for such a call.
fn is_too_large<T>(lines: &Lines<T>, class: Class, cost: u64) -> bool {
    let mut usable = lines.values().filter(|line| line.is_usable()).peekable();
    usable.peek().is_some() && usable.all(|line| !line.caller.takes(class, cost))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use model::call::Method;
    use std::time::Duration;
    use world::World;
    use world::sim::Simulation;

    /// Would be broken if one of them were refused: the NSD would be avoided, and others get narrower segments.
    #[test]
    fn all_that_a_client_writes_and_reads_at_a_time_may_wait_for_one_node() {
        let now = Simulation::new(1).run(async |world: World| world.now());
        let now = now.finished();
        let deadline = Deadline::at(now + Duration::from_secs(30));
        let mut traffic = Traffic::new(NodeId(2), 2);
        let call = || Call::new(Method(1), Class::Bulk, &());
        let block = Bytes::from(vec![0; 4 << 20]);
        // As many blocks as there may be on their way, and four for which others hurry.
        for ticket in 0..36 {
            let put = Call {
                payload: block.clone(),
                ..call()
            };
            let taken = traffic.call(put, deadline, ticket, now);
            assert!(taken.is_ok(), "put {ticket}");
        }
        for ticket in 36..500 {
            let get = Call {
                reply_bytes_max: 4 << 20,
                ..call()
            };
            let taken = traffic.call(get, deadline, ticket, now);
            assert!(taken.is_ok(), "get {ticket}");
        }
    }

    /// Would be broken if programs that read much of a node had names refused there, again and again until their deadlines:
    /// both wait in the lane for small messages.
    #[test]
    fn calls_of_other_classes_take_no_places_of_those_that_may_wait_for_others() {
        let now = Simulation::new(1).run(async |world: World| world.now());
        let now = now.finished();
        let deadline = Deadline::at(now + Duration::from_secs(30));
        let mut traffic = Traffic::new(NodeId(2), 1);
        let block = Bytes::from(vec![0; 256 * 1024]);
        for ticket in 0..WAITING_MAX {
            // Six in ten write.
            let payload = match ticket % 10 < 6 {
                true => block.clone(),
                false => Bytes::new(),
            };
            let small = Call {
                payload,
                ..Call::new(Method(1), Class::Bulk, &())
            };
            let taken = traffic.call(small, deadline, ticket, now);
            assert!(taken.is_ok(), "small data {ticket}");
        }
        for may_wait in [true, false] {
            let name = Call {
                may_wait,
                ..Call::new(Method(1), Class::Metadata, &())
            };
            let taken = traffic.call(name, deadline, WAITING_MAX, now);
            assert!(taken.is_ok(), "may wait: {may_wait}");
        }
    }
}
