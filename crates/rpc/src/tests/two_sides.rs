//! A caller and an answerer that talk in any order: each call ends once, with its own answer.

use crate::Fault;
use crate::answerer::{Answerer, Task};
use crate::caller::{Caller, Outcome};
use crate::frame::{Ending, Frame, Header, Outgoing};
use crate::hello::{Credit, Credits, Hello, Identity};
use bytes::Bytes;
use model::call::{Call, Class, Method, NoAnswer, Reply};
use model::{NodeId, NodeRun};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use world::sim::Simulation;
use world::{Deadline, Instant};

const CREDITS: Credits = [Credit {
    requests: 3,
    bytes: 400_000,
}; 4];

fn identity(node: u32) -> Identity {
    let run = NodeRun {
        node: NodeId(node),
        incarnation: 1,
    };
    Identity { cluster: 1, run }
}

fn header_of(frame: &Frame) -> Header {
    let Outgoing { header, .. } = frame.clone().encode();
    Header::decode(header.first_chunk().unwrap()).unwrap()
}

/// Both sides, and the frames between them.
struct Scene {
    now: Instant,
    caller: Caller<u32>,
    answerer: Answerer,
    there: VecDeque<Frame>,
    back: VecDeque<Frame>,
    running: BTreeMap<u64, Call>,
    /// Calls by ticket: their number for giving up.
    waiting: BTreeMap<u32, u64>,
    ended: BTreeMap<u32, Outcome>,
    tickets: u32,
    runs: BTreeMap<u32, u32>,
}

impl Scene {
    fn new(now: Instant) -> Self {
        let hello = Hello::new(identity(1), NodeId(2), Credits::default());
        Self {
            now,
            caller: Caller::new(hello, now),
            answerer: Answerer::new(identity(2), CREDITS, now),
            there: VecDeque::new(),
            back: VecDeque::new(),
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
            ended: BTreeMap::new(),
            tickets: 0,
            runs: BTreeMap::new(),
        }
    }

    fn end(&mut self, ended: Vec<(u32, Outcome)>) {
        for (ticket, outcome) in ended {
            self.waiting.remove(&ticket).expect("the call was waiting");
            let before = self.ended.insert(ticket, outcome);
            assert_eq!(before, None, "a call ends once");
        }
    }

    fn call(&mut self, class: Class, size: usize, patience_ms: u64) {
        self.tickets += 1;
        let ticket = self.tickets;
        let mut call = Call::new(Method(1), class, &ticket);
        call.payload = vec![0; size].into();
        call.reply_bytes_max = 100;
        let deadline = Deadline::at(self.now + Duration::from_millis(patience_ms));
        match self.caller.call(call, deadline, ticket) {
            Ok(id) => {
                self.waiting.insert(ticket, id);
            }
            Err((ticket, outcome)) => {
                self.ended.insert(ticket, outcome);
            }
        }
    }

    fn give_up(&mut self, which: usize) {
        let Some((&ticket, &id)) = self.waiting.iter().nth(which) else {
            return;
        };
        let none = self.caller.give_up(id).expect("it waits");
        assert_eq!(self.caller.give_up(id), None);
        self.end(vec![(ticket, Outcome::Ended(Err(none)))]);
    }

    fn send_there(&mut self) {
        self.there.extend(self.caller.next_frame(self.now));
    }

    fn send_back(&mut self) {
        self.back.extend(self.answerer.next_frame(self.now));
    }

    fn arrive_there(&mut self) -> Result<(), Fault> {
        let Some(frame) = self.there.pop_front() else {
            return Ok(());
        };
        self.answerer.allow(&header_of(&frame))?;
        match self.answerer.arrived(frame, self.now)? {
            Task::None => {}
            Task::Greet(run) => self.answerer.welcome(run),
            Task::Run(number, from, call, _) => {
                assert_eq!(from, identity(1).run);
                let runs = self.runs.entry(call.decode().unwrap()).or_default();
                *runs += 1;
                assert_eq!(*runs, 1, "a request runs once");
                self.running.insert(number, call);
            }
            Task::Stop(number) => drop(self.running.remove(&number)),
        }
        for (class, credits) in Class::ALL.into_iter().zip(CREDITS) {
            let of_class = |call: &&Call| call.class == class;
            let running: Vec<_> = self.running.values().filter(of_class).collect();
            let bytes: usize = running.iter().map(|call| call.payload.len()).sum();
            assert!(running.len() <= credits.requests as usize);
            assert!(bytes as u64 <= credits.bytes);
        }
        Ok(())
    }

    fn arrive_back(&mut self) -> Result<(), Fault> {
        let Some(frame) = self.back.pop_front() else {
            return Ok(());
        };
        self.caller.allow(&header_of(&frame))?;
        let ended = self.caller.arrived(frame)?;
        self.end(ended);
        Ok(())
    }

    fn finish(&mut self, which: usize) {
        let Some(&number) = self.running.keys().nth(which) else {
            return;
        };
        let call = self.running.remove(&number).unwrap();
        let ticket: u32 = call.decode().unwrap();
        let reply = Reply::new(&Ok(ticket), Bytes::new());
        self.answerer.finish(number, Ending::Answered(reply));
    }

    /// All that the sides still have to say to each other.
    fn settle(&mut self) -> Result<(), Fault> {
        for _ in 0..1000 {
            self.send_there();
            self.arrive_there()?;
            self.finish(0);
            self.send_back();
            self.arrive_back()?;
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), Fault> {
        match *step {
            Step::Call(class, size, patience) => self.call(Class::ALL[class], size, patience),
            Step::GiveUp(which) => self.give_up(which),
            Step::SendThere => self.send_there(),
            Step::ArriveThere => self.arrive_there()?,
            Step::Finish(which) => self.finish(which),
            Step::SendBack => self.send_back(),
            Step::ArriveBack => self.arrive_back()?,
            Step::Pass(ms) => self.now = self.now + Duration::from_millis(ms),
            Step::Drain => self.answerer.drain("closing"),
        }
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
    SendThere,
    ArriveThere,
    Finish(usize),
    SendBack,
    ArriveBack,
    Pass(u64),
    Drain,
}

fn some_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4_usize, 0..250_000_usize, 1..200_u64)
            .prop_map(|(class, size, patience)| Step::Call(class, size, patience)),
        2 => (0..5_usize).prop_map(Step::GiveUp),
        8 => Just(Step::SendThere),
        8 => Just(Step::ArriveThere),
        4 => (0..5_usize).prop_map(Step::Finish),
        8 => Just(Step::SendBack),
        8 => Just(Step::ArriveBack),
        2 => (1..100_u64).prop_map(Step::Pass),
    ]
}

fn with_time<T>(scenario: impl FnOnce(Instant) -> T) -> T {
    let outcome = Simulation::new(1).run(|world| async move { scenario(world.now()) });
    match outcome {
        world::sim::Outcome::Finished(value) => value,
        world::sim::Outcome::Crashed => unreachable!("no power cut was asked for"),
    }
}

proptest! {
    #[test]
    fn each_call_ends_once_with_its_own_answer(
        steps in vec(some_step(), 1..150),
        drain_at in proptest::option::of(0..150_usize),
        cut in any::<bool>(),
    ) {
        with_time(|now| {
            let mut scene = Scene::new(now);
            for (at, step) in steps.iter().enumerate() {
                scene.step(step).unwrap();
                if drain_at == Some(at) {
                    scene.step(&Step::Drain).unwrap();
                }
            }
            if cut {
                let ended = scene.caller.end("cut");
                scene.end(ended);
            } else {
                scene.settle().unwrap();
            }
            assert!(scene.waiting.is_empty(), "every call ended: {:?}", scene.waiting);
            scene.judge();
            if drain_at.is_some_and(|at| at < steps.len()) && !cut {
                assert!(scene.answerer.is_over() && scene.caller.is_over());
            }
        });
    }
}

/// A scene whose sides have said hello.
fn greeted(now: Instant) -> Scene {
    let mut scene = Scene::new(now);
    scene.settle().unwrap();
    scene
}

#[test]
fn a_caller_without_credits_is_cut_off_before_memory_is_taken() {
    with_time(|now| {
        let mut scene = greeted(now);
        let request = |number| Frame::Request {
            number,
            budget: Duration::from_secs(1),
            call: Call::new(Method(1), Class::Lease, &number),
        };
        for number in 1..=3 {
            scene.answerer.allow(&header_of(&request(number))).unwrap();
            scene.answerer.arrived(request(number), now).unwrap();
        }
        assert!(scene.answerer.allow(&header_of(&request(4))).is_err());
        let mut large = Call::new(Method(1), Class::Bulk, &());
        large.payload = vec![0; 400_000].into();
        let large = Frame::Request {
            number: 5,
            budget: Duration::from_secs(1),
            call: large,
        };
        assert!(scene.answerer.allow(&header_of(&large)).is_err());
        assert!(
            scene.answerer.allow(&header_of(&request(3))).is_err(),
            "a number is used once"
        );
    });
}

#[test]
fn replies_that_nobody_asked_for_end_the_connection() {
    with_time(|now| {
        let mut scene = greeted(now);
        let reply = |number, class, size| Frame::Reply {
            number,
            class,
            ending: Ending::Answered(Reply {
                body: vec![0; size].into(),
                payload: Bytes::new(),
            }),
        };
        let forged = header_of(&reply(1, Class::Lease, 0));
        assert!(scene.caller.allow(&forged).is_err());
        scene.call(Class::Lease, 0, 100);
        scene.send_there();
        let judged = |scene: &Scene, frame| scene.caller.allow(&header_of(&frame));
        assert_eq!(judged(&scene, reply(1, Class::Lease, 100)), Ok(()));
        assert!(judged(&scene, reply(1, Class::Lease, 101)).is_err());
        assert!(judged(&scene, reply(1, Class::Bulk, 0)).is_err());
        assert!(judged(&scene, reply(2, Class::Lease, 0)).is_err());
        scene.settle().unwrap();
        assert!(
            judged(&scene, reply(1, Class::Lease, 0)).is_err(),
            "a second reply"
        );
    });
}

#[test]
fn a_reply_after_its_deadline_is_dropped() {
    with_time(|now| {
        let mut scene = greeted(now);
        scene.call(Class::Metadata, 0, 10);
        scene.send_there();
        scene.arrive_there().unwrap();
        scene.finish(0);
        scene.step(&Step::Pass(10)).unwrap();
        scene.settle().unwrap();
        let Some(Outcome::Ended(Err(NoAnswer::Unknown(_)))) = scene.ended.get(&1) else {
            panic!("{:?}", scene.ended);
        };
    });
}

#[test]
fn no_frame_comes_before_hello() {
    with_time(|now| {
        let scene = Scene::new(now);
        for frame in [Frame::Alive, Frame::Cancel { number: 1 }] {
            assert!(scene.answerer.allow(&header_of(&frame)).is_err());
        }
        let hello = Frame::Hello(Hello::new(identity(1), NodeId(2), CREDITS));
        let mut scene = greeted(now);
        assert!(scene.answerer.allow(&header_of(&hello)).is_err(), "twice");
        scene.step(&Step::Drain).unwrap();
    });
}
