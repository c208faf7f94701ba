//! A lane's asking side and the answering sides of its connections, which talk in any order: each
//! call ends once, with its own answer, over whichever connection it went.

use super::sides::{assert_within, few, hello_from_to, identity, now, taken_by};
use crate::Fault;
use crate::answerer::{Answerer, Task};
use crate::caller::{Ended, News, Outcome};
use crate::frame::{Ending, Frame, Header, Outgoing};
use crate::hello::{Credits, Hello, Lanes};
use crate::traffic::{Step as Next, Todo, Traffic};
use bytes::Bytes;
use model::NodeId;
use model::call::{Call, Class, Method, NoAnswer, Reply};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use world::{Deadline, Instant};

const CREDITS: Credits = few(400_000);

const LANES: Lanes = Lanes {
    lane: 2,
    connections: 4,
};

fn header_of(frame: &Frame) -> Header {
    let Outgoing { header, .. } = frame.clone().encode();
    Header::decode(header.first_chunk().unwrap()).unwrap()
}

/// A connection: its answering side, and the frames between both.
struct Wire {
    answerer: Answerer,
    there: VecDeque<Frame>,
    back: VecDeque<Frame>,
    running: BTreeMap<u64, Call>,
    /// The asking side takes it for over.
    is_over: bool,
}

/// The lane, its connections, and those who wait.
struct Scene {
    now: Instant,
    traffic: Traffic<u32>,
    limit: usize,
    wires: BTreeMap<u64, Wire>,
    /// Connections that were told to look what to send.
    woken: BTreeSet<u64>,
    dialing: Option<usize>,
    /// Calls by ticket: their number for giving up.
    waiting: BTreeMap<u32, u64>,
    ended: BTreeMap<u32, Outcome>,
    tickets: u32,
    runs: BTreeMap<u32, u32>,
    /// Over which connections requests went.
    carried: BTreeMap<u64, u32>,
}

impl Scene {
    fn new(now: Instant, limit: usize) -> Self {
        Self {
            now,
            traffic: Traffic::new(NodeId(2), limit),
            limit,
            wires: BTreeMap::new(),
            woken: BTreeSet::new(),
            dialing: None,
            waiting: BTreeMap::new(),
            ended: BTreeMap::new(),
            tickets: 0,
            runs: BTreeMap::new(),
            carried: BTreeMap::new(),
        }
    }

    fn end(&mut self, ended: Ended<u32>) {
        for (ticket, outcome) in ended {
            self.waiting.remove(&ticket).expect("the call was waiting");
            let before = self.ended.insert(ticket, outcome);
            assert_eq!(before, None, "a call ends once");
        }
    }

    fn perform(&mut self, todo: Todo<u32>) {
        self.end(todo.ended);
        self.woken.extend(todo.wake);
        if let Some(place) = todo.dial {
            assert!(self.dialing.is_none(), "one is opened after the other");
            let views = self.traffic.views();
            let open = views.iter().filter(|view| view.is_open);
            assert!(open.clone().count() < self.limit);
            assert!(open.clone().all(|view| view.place != place));
            self.dialing = Some(place);
        }
        for link in todo.drop {
            self.cut(link);
        }
    }

    fn call(&mut self, class: Class, size: usize, patience_ms: u64) {
        self.tickets += 1;
        let ticket = self.tickets;
        let mut call = Call::new(Method(1), class, &ticket);
        call.payload = vec![0; size].into();
        call.reply_bytes_max = 100;
        let deadline = Deadline::at(self.now + Duration::from_millis(patience_ms));
        match self.traffic.call(call, deadline, ticket, self.now) {
            Ok((id, todo)) => {
                self.waiting.insert(ticket, id);
                self.perform(todo);
            }
            Err((ticket, none)) => {
                self.ended.insert(ticket, Outcome::Ended(Err(none)));
            }
        }
    }

    fn give_up(&mut self, which: usize) {
        let Some((&ticket, &id)) = self.waiting.iter().nth(which) else {
            return;
        };
        let (none, todo) = self.traffic.give_up(id, self.now);
        let none = none.expect("it waits");
        let (again, nothing) = self.traffic.give_up(id, self.now);
        assert!(again.is_none() && nothing.wake.is_empty(), "{nothing:?}");
        self.end(vec![(ticket, Outcome::Ended(Err(none)))]);
        self.perform(todo);
    }

    /// The connection that is wanted opens, or not.
    fn dialed(&mut self, works: bool) {
        if self.dialing.take().is_none() {
            return;
        }
        if !works {
            let todo = self.traffic.not_opened("refused", self.now, 7);
            return self.perform(todo);
        }
        let hello = hello_from_to(1, 2, Credits::default(), LANES);
        let Some(link) = self.traffic.opened(hello, self.now) else {
            return;
        };
        let wire = Wire {
            answerer: Answerer::new(identity(2), self.now),
            there: VecDeque::new(),
            back: VecDeque::new(),
            running: BTreeMap::new(),
            is_over: false,
        };
        self.wires.insert(link, wire);
        self.woken.insert(link);
    }

    fn link(&self, which: usize) -> Option<u64> {
        let count = self.wires.len().max(1);
        self.wires.keys().nth(which % count).copied()
    }

    /// A connection ends without a word.
    fn cut(&mut self, link: u64) {
        if self.wires.remove(&link).is_some() {
            self.woken.remove(&link);
            let (todo, _) = self.traffic.ended(link, "cut", self.now, 7);
            self.perform(todo);
        }
    }

    /// A connection that was woken sends its next frame.
    fn send_there(&mut self, link: u64) {
        if !self.woken.contains(&link) {
            return;
        }
        let (next, todo) = self.traffic.next(link, self.now);
        self.perform(todo);
        let Some(wire) = self.wires.get_mut(&link) else {
            return;
        };
        match next {
            Next::Send(frame) => {
                if matches!(frame, Frame::Request { .. }) {
                    *self.carried.entry(link).or_default() += 1;
                }
                wire.there.push_back(frame);
            }
            Next::Idle => drop(self.woken.remove(&link)),
            Next::Over => {
                self.woken.remove(&link);
                wire.is_over = true;
            }
        }
    }

    fn send_back(&mut self, link: u64) {
        let now = self.now;
        if let Some(wire) = self.wires.get_mut(&link) {
            wire.back.extend(wire.answerer.next_frame(now));
        }
    }

    fn arrive_there(&mut self, link: u64) -> Result<(), Fault> {
        let now = self.now;
        let Some(wire) = self.wires.get_mut(&link) else {
            return Ok(());
        };
        let Some(frame) = wire.there.pop_front() else {
            return Ok(());
        };
        wire.answerer.allow(&header_of(&frame))?;
        match wire.answerer.arrived(frame, now)? {
            Task::None | Task::Refused(_) | Task::Ending => {}
            Task::Greet(run, _) => wire.answerer.welcome(run, CREDITS, 4),
            Task::Run(number, from, call, _) => {
                assert_eq!(from, identity(1).run);
                let runs = self.runs.entry(call.decode().unwrap()).or_default();
                *runs += 1;
                assert_eq!(*runs, 1, "a request runs once");
                wire.running.insert(number, call);
            }
            Task::Stop(number) => drop(wire.running.remove(&number)),
        }
        assert_within(CREDITS, wire.running.values().map(taken_by));
        Ok(())
    }

    fn arrive_back(&mut self, link: u64) -> Result<(), Fault> {
        let Some(wire) = self.wires.get_mut(&link) else {
            return Ok(());
        };
        let Some(frame) = wire.back.pop_front() else {
            return Ok(());
        };
        self.traffic.allow(link, &header_of(&frame))?;
        let (todo, news) = self.traffic.arrived(link, frame, self.now)?;
        self.perform(todo);
        if let News::Hello(run, lanes) = news {
            assert_eq!((run, lanes), (identity(2).run, Some(LANES)));
            let todo = self.traffic.accepted(link, self.now);
            self.perform(todo);
        }
        Ok(())
    }

    fn finish(&mut self, link: u64, which: usize) {
        let Some(wire) = self.wires.get_mut(&link) else {
            return;
        };
        let Some(&number) = wire.running.keys().nth(which) else {
            return;
        };
        let call = wire.running.remove(&number).unwrap();
        let ticket: u32 = call.decode().unwrap();
        let reply = Reply::new(&Ok(ticket), Bytes::new());
        wire.answerer.finish(number, Ending::Answered(reply));
    }

    /// Connections that both sides have left close.
    fn close_those_that_are_over(&mut self) {
        let over = self.wires.iter().filter(|(_, wire)| wire.is_over);
        let over: Vec<u64> = over.map(|(link, _)| *link).collect();
        for link in over {
            let wire = &self.wires[&link];
            if wire.there.is_empty() && wire.back.is_empty() && wire.answerer.is_over() {
                self.cut(link);
            }
        }
    }

    /// All that the sides still have to say to each other.
    fn settle(&mut self) -> Result<(), Fault> {
        for _ in 0..1000 {
            self.dialed(true);
            for link in self.wires.keys().copied().collect::<Vec<_>>() {
                while self.woken.contains(&link) {
                    self.send_there(link);
                }
                self.arrive_there(link)?;
                self.finish(link, 0);
                self.send_back(link);
                self.arrive_back(link)?;
            }
            self.close_those_that_are_over();
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), Fault> {
        let link = |which: usize| self.link(which);
        match *step {
            Step::Call(class, size, patience) => self.call(Class::ALL[class], size, patience),
            Step::GiveUp(which) => self.give_up(which),
            Step::Dialed(works) => self.dialed(works),
            Step::SendThere(which) => link(which).into_iter().for_each(|it| self.send_there(it)),
            Step::ArriveThere(which) => {
                if let Some(link) = link(which) {
                    self.arrive_there(link)?;
                }
            }
            Step::Finish(which, request) => {
                if let Some(link) = link(which) {
                    self.finish(link, request);
                }
            }
            Step::SendBack(which) => link(which).into_iter().for_each(|it| self.send_back(it)),
            Step::ArriveBack(which) => {
                if let Some(link) = link(which) {
                    self.arrive_back(link)?;
                }
            }
            Step::Pass(ms) => self.now = self.now + Duration::from_millis(ms),
            Step::Drain(which) => {
                if let Some(wire) = link(which).and_then(|link| self.wires.get_mut(&link)) {
                    wire.answerer.drain("closing");
                }
            }
            Step::Cut(which) => link(which).into_iter().for_each(|it| self.cut(it)),
            Step::Limit(limit) => {
                self.limit = limit;
                let todo = self.traffic.set_limit(limit, self.now);
                self.perform(todo);
            }
            Step::Renew => {
                // Whoever dials hears of it.
                self.dialing = None;
                let todo = self.traffic.renew(self.now);
                assert!(self.traffic.views().iter().all(|view| !view.is_open));
                self.perform(todo);
            }
        }
        self.close_those_that_are_over();
        Ok(())
    }

    /// What must hold of each call that ended.
    fn judge(&self) {
        for (ticket, outcome) in &self.ended {
            let has_run = self.runs.contains_key(ticket);
            match outcome {
                Outcome::Ended(Ok(answer)) => {
                    assert!(has_run);
                    assert_eq!(answer.from, identity(2).run);
                    assert_eq!(answer.reply.decode::<u32>(), Ok(*ticket), "its own answer");
                }
                Outcome::Ended(Err(NoAnswer::NotRun(error))) => assert!(!has_run, "{error}"),
                Outcome::Unsent(_) => assert!(!has_run, "it wasn't sent"),
                Outcome::Ended(Err(NoAnswer::Unknown(_))) => {}
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Call(usize, usize, u64),
    GiveUp(usize),
    Dialed(bool),
    SendThere(usize),
    ArriveThere(usize),
    Finish(usize, usize),
    SendBack(usize),
    ArriveBack(usize),
    Pass(u64),
    Drain(usize),
    Cut(usize),
    Limit(usize),
    Renew,
}

fn some_step() -> impl Strategy<Value = Step> {
    let which = 0..8_usize;
    prop_oneof![
        8 => (0..4_usize, 0..250_000_usize, 1..200_u64)
            .prop_map(|(class, size, patience)| Step::Call(class, size, patience)),
        2 => (0..5_usize).prop_map(Step::GiveUp),
        4 => any::<bool>().prop_map(Step::Dialed),
        16 => which.clone().prop_map(Step::SendThere),
        16 => which.clone().prop_map(Step::ArriveThere),
        8 => (which.clone(), 0..5_usize).prop_map(|(link, request)| Step::Finish(link, request)),
        16 => which.clone().prop_map(Step::SendBack),
        16 => which.clone().prop_map(Step::ArriveBack),
        3 => (1..100_u64).prop_map(Step::Pass),
        1 => which.clone().prop_map(Step::Drain),
        1 => which.prop_map(Step::Cut),
        1 => (1..9_usize).prop_map(Step::Limit),
        1 => Just(Step::Renew),
    ]
}

fn with_time<T>(scenario: impl FnOnce(Instant) -> T) -> T {
    scenario(now())
}

proptest! {
    #[test]
    fn each_call_ends_once_with_its_own_answer_over_whichever_connection(
        steps in vec(some_step(), 1..300),
        limit in 1..9_usize,
    ) {
        with_time(|now| {
            let mut scene = Scene::new(now, limit);
            for step in &steps {
                scene.step(step).unwrap();
            }
            // Nobody is left waiting although a connection has room: only those are driven on that
            // were woken.
            scene.settle().unwrap();
            assert!(scene.waiting.is_empty(), "every call ended: {:?}", scene.waiting);
            assert_eq!(scene.traffic.waiting(), 0);
            let views = scene.traffic.views();
            assert!(views.len() <= scene.limit, "superfluous connections ended: {views:?}");
            assert!(views.iter().all(|view| view.requests == 0 && view.bytes == 0));
            scene.judge();
        });
    }

    #[test]
    fn a_closed_lane_answers_what_is_under_way_and_ends_all_else(
        steps in vec(some_step(), 1..150),
        cut in any::<bool>(),
    ) {
        with_time(|now| {
            let mut scene = Scene::new(now, 3);
            for step in &steps {
                scene.step(step).unwrap();
            }
            let todo = scene.traffic.close("closing");
            scene.dialing = None;
            scene.perform(todo);
            if cut {
                for link in scene.wires.keys().copied().collect::<Vec<_>>() {
                    scene.cut(link);
                }
            } else {
                scene.settle().unwrap();
            }
            assert!(scene.waiting.is_empty(), "every call ended: {:?}", scene.waiting);
            assert!(scene.wires.is_empty() && scene.dialing.is_none());
            scene.judge();
        });
    }
}

/// A lane with as many connections as there may be, whose sides have said hello.
fn greeted(now: Instant, connections: usize) -> Scene {
    let mut scene = Scene::new(now, connections);
    while scene.wires.len() < connections {
        // Another one is opened while all others have calls under way.
        scene.call(Class::Bulk, 0, 1000);
        scene.dialed(true);
        for link in scene.wires.keys().copied().collect::<Vec<_>>() {
            for _ in 0..3 {
                scene.send_there(link);
                scene.arrive_there(link).unwrap();
                scene.send_back(link);
                scene.arrive_back(link).unwrap();
            }
        }
    }
    scene.settle().unwrap();
    assert_eq!(scene.wires.len(), connections);
    (scene.ended, scene.runs, scene.carried) = Default::default();
    scene
}

#[test]
fn equal_calls_are_spread_evenly_and_a_stuck_connection_gets_none() {
    with_time(|now| {
        let mut scene = greeted(now, 3);
        for _ in 0..6 {
            scene.call(Class::Bulk, 100_000, 1000);
        }
        for _ in 0..4 {
            for link in 1..=3 {
                scene.send_there(link);
            }
        }
        assert_eq!(scene.carried, BTreeMap::from([(1, 2), (2, 2), (3, 2)]));
        scene.settle().unwrap();

        // The second one is in the middle of a frame for long.
        scene.carried.clear();
        for _ in 0..3 {
            scene.call(Class::Bulk, 100_000, 1000);
        }
        for link in 1..=3 {
            scene.send_there(link);
        }
        assert_eq!(scene.carried.values().sum::<u32>(), 3);
        for _ in 0..4 {
            scene.call(Class::Bulk, 10_000, 1000);
            scene.send_there(1);
            scene.send_there(3);
            scene.send_there(1);
            scene.send_there(3);
        }
        assert_eq!(scene.carried[&2], 1, "no call waits behind that frame");
        assert_eq!(scene.traffic.waiting(), 0);
    });
}

/// Would be broken if what waits behind a call that there is no room for waited on although nobody wants that one any more:
/// until a reply came, which may take as long as its request may.
#[test]
fn a_call_goes_at_once_when_the_one_before_it_is_given_up() {
    with_time(|now| {
        let mut scene = greeted(now, 1);
        for size in [200_000, 300_000, 1_000] {
            scene.call(Class::Bulk, size, 1000);
        }
        while scene.woken.contains(&1) {
            scene.send_there(1);
        }
        assert_eq!(scene.traffic.waiting(), 2, "the second one finds no room");
        scene.give_up(1);
        assert!(scene.woken.contains(&1));
        scene.send_there(1);
        assert_eq!(scene.traffic.waiting(), 0);
        scene.settle().unwrap();
        scene.judge();
        assert_eq!(scene.runs.len(), 2);
    });
}

#[test]
fn connections_are_opened_when_calls_wait_and_go_when_they_are_too_many() {
    with_time(|now| {
        let mut scene = Scene::new(now, 4);
        scene.call(Class::Bulk, 0, 1000);
        assert_eq!(scene.dialing, Some(0));
        scene.settle().unwrap();
        for _ in 0..10 {
            scene.call(Class::Bulk, 0, 1000);
            scene.settle().unwrap();
        }
        assert_eq!(
            scene.wires.len(),
            1,
            "one call at a time needs one connection"
        );
        let mut scene = greeted(now, 4);
        scene.call(Class::Bulk, 100_000, 1000);
        scene.send_there(1);
        for _ in 0..3 {
            scene.call(Class::Bulk, 1000, 1000);
        }
        for link in 2..=4 {
            scene.send_there(link);
        }
        scene.step(&Step::Limit(1)).unwrap();
        assert_eq!(scene.wires.len(), 4, "their calls are under way");
        scene.settle().unwrap();
        assert_eq!(scene.wires.keys().copied().collect::<Vec<_>>(), [1]);
        let answered = |outcome: &Outcome| matches!(outcome, Outcome::Ended(Ok(_)));
        assert!(scene.ended.len() == 4 && scene.ended.values().all(answered));
    });
}

#[test]
fn a_broken_connection_ends_only_what_it_had_sent() {
    with_time(|now| {
        let mut scene = greeted(now, 2);
        for _ in 0..2 {
            scene.call(Class::Bulk, 1000, 1000);
        }
        scene.send_there(1);
        scene.send_there(2);
        for _ in 0..3 {
            scene.call(Class::Bulk, 300_000, 1000);
        }
        scene.cut(1);
        assert_eq!(scene.ended.len(), 1);
        scene.settle().unwrap();
        let unknown = |outcome: &&Outcome| matches!(outcome, Outcome::Ended(Err(_)));
        assert_eq!(scene.ended.values().filter(unknown).count(), 1);
        assert_eq!(scene.ended.len(), 5);
    });
}

#[test]
fn calls_that_wait_for_the_first_connection_end_with_its_attempt_and_later_ones_do_not() {
    with_time(|now| {
        let mut scene = Scene::new(now, 2);
        for _ in 0..3 {
            scene.call(Class::Bulk, 0, 1000);
        }
        scene.dialed(false);
        assert_eq!(scene.ended.len(), 3);
        scene.call(Class::Bulk, 0, 1000);
        assert_eq!(scene.ended.len(), 4, "refused in the pause");
        assert_eq!(scene.dialing, None);
        // A second connection that can't be opened is no reason to fail.
        let mut scene = greeted(now, 1);
        scene.step(&Step::Limit(2)).unwrap();
        for _ in 0..2 {
            scene.call(Class::Bulk, 0, 1000);
        }
        scene.send_there(1);
        assert_eq!(scene.dialing, Some(1));
        scene.dialed(false);
        assert!(scene.ended.is_empty());
        scene.settle().unwrap();
        scene.judge();
        assert_eq!(scene.runs.len(), 2);
    });
}

#[test]
fn a_caller_without_credits_is_cut_off_before_memory_is_taken() {
    with_time(|now| {
        let mut scene = greeted(now, 1);
        let answerer = &mut scene.wires.get_mut(&1).unwrap().answerer;
        let request = |number| Frame::Request {
            number,
            budget: Duration::from_secs(1),
            call: Call::new(Method(1), Class::Lease, &number),
        };
        for number in 2..=4 {
            answerer.allow(&header_of(&request(number))).unwrap();
            answerer.arrived(request(number), now).unwrap();
        }
        assert!(answerer.allow(&header_of(&request(5))).is_err());
        let mut large = Call::new(Method(1), Class::Bulk, &());
        large.payload = vec![0; 400_000].into();
        let large = Frame::Request {
            number: 6,
            budget: Duration::from_secs(1),
            call: large,
        };
        assert!(answerer.allow(&header_of(&large)).is_err());
        assert!(
            answerer.allow(&header_of(&request(4))).is_err(),
            "a number is used once"
        );
    });
}

#[test]
fn replies_that_nobody_asked_for_end_the_connection() {
    with_time(|now| {
        let mut scene = greeted(now, 1);
        let reply = |number, class, size| Frame::Reply {
            number,
            class,
            ending: Ending::Answered(Reply {
                body: vec![0; size].into(),
                payload: Bytes::new(),
                payload_crc: None,
            }),
        };
        let judged = |scene: &mut Scene, frame: Frame| scene.traffic.allow(1, &header_of(&frame));
        assert!(judged(&mut scene, reply(2, Class::Lease, 0)).is_err());
        scene.call(Class::Lease, 0, 100);
        scene.send_there(1);
        assert_eq!(judged(&mut scene, reply(2, Class::Lease, 100)), Ok(()));
        assert!(judged(&mut scene, reply(2, Class::Lease, 101)).is_err());
        assert!(judged(&mut scene, reply(2, Class::Bulk, 0)).is_err());
        assert!(judged(&mut scene, reply(3, Class::Lease, 0)).is_err());
        scene.settle().unwrap();
        let second = judged(&mut scene, reply(2, Class::Lease, 0));
        assert!(second.is_err(), "a second reply");
    });
}

#[test]
fn a_reply_after_its_deadline_is_dropped() {
    with_time(|now| {
        let mut scene = greeted(now, 1);
        let ticket = scene.tickets + 1;
        scene.call(Class::Metadata, 0, 10);
        scene.send_there(1);
        scene.arrive_there(1).unwrap();
        scene.finish(1, 0);
        scene.step(&Step::Pass(10)).unwrap();
        scene.settle().unwrap();
        let Some(Outcome::Ended(Err(NoAnswer::Unknown(_)))) = scene.ended.get(&ticket) else {
            panic!("{:?}", scene.ended);
        };
    });
}

#[test]
fn no_frame_comes_before_hello() {
    with_time(|now| {
        let stranger = Answerer::new(identity(2), now);
        for frame in [Frame::Alive, Frame::Cancel { number: 1 }] {
            assert!(stranger.allow(&header_of(&frame)).is_err());
        }
        let hello = Frame::Hello(hello_from_to(1, 2, CREDITS, LANES));
        let mut scene = greeted(now, 1);
        let wire = scene.wires.get_mut(&1).unwrap();
        assert!(wire.answerer.allow(&header_of(&hello)).is_err(), "twice");
        assert!(scene.traffic.allow(1, &header_of(&hello)).is_err(), "twice");
        // The asking side says how many connections it wants in its hello only.
        let most = header_of(&Frame::Connections { most: 3 });
        let wire = scene.wires.get_mut(&1).unwrap();
        assert!(wire.answerer.allow(&most).is_err());
        assert_eq!(scene.traffic.allow(1, &most), Ok(()));
    });
}

/// Before it was let in nobody can make this node take memory.
#[test]
fn a_side_that_was_not_let_in_is_granted_nothing() {
    with_time(|now| {
        let mut answerer = Answerer::new(identity(2), now);
        let mut foreign = identity(1);
        foreign.cluster += 1;
        let hello = Hello::new(foreign, NodeId(2), Credits::default(), LANES);
        answerer.arrived(Frame::Hello(hello), now).unwrap();
        let goodbye = answerer.next_frame(now);
        assert!(matches!(goodbye, Some(Frame::Goodbye { taken: 0, .. })));
        let request = Frame::Request {
            number: 1,
            budget: Duration::from_secs(1),
            call: Call::new(Method(1), Class::Lease, &()),
        };
        assert!(answerer.allow(&header_of(&request)).is_err());
    });
}
