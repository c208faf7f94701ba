//! The asking side of a connection: which frames to send, and how each call ends. No I/O: bytes,
//! time and tickets are given.

use crate::Fault;
use crate::frame::{Ending, Frame, Header, Kind, class_index, cost, is_sendable};
use crate::hello::{Credits, Hello};
use crate::pulse::{Beat, Pulse};
use crate::queue::Queue;
use model::NodeRun;
use model::call::{Answer, Call, NoAnswer};
use std::collections::{BTreeMap, VecDeque};
use world::{Deadline, Instant};

/// Most calls that wait to be sent on one connection.
const WAITING_MAX: usize = 1024;

/// Most bytes of calls that wait to be sent on one connection.
const WAITING_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// How a call ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// With a reply, or with knowledge about the request.
    Ended(Result<Answer, NoAnswer>),
    /// The connection ended before the call was sent; it may go over another one.
    Unsent(Call),
}

/// A call that isn't sent yet.
#[derive(Debug)]
struct Waiting<T> {
    id: u64,
    call: Call,
    deadline: Deadline,
    ticket: T,
}

/// A request that was sent and not yet answered.
#[derive(Debug)]
struct Flight<T> {
    id: u64,
    /// What it holds of its class's credits.
    cost: u64,
    class: usize,
    reply_bytes_max: u32,
    /// Who waits; nobody after the call was given up. The credits stay taken until the reply.
    ticket: Option<T>,
}

/// The asking side. `T` stands for who waits for a call's outcome; each is given back once.
#[derive(Debug)]
pub(crate) struct Caller<T> {
    hello: Hello,
    pulse: Pulse,
    /// The other daemon, once its hello has come.
    other: Option<NodeRun>,
    granted: Credits,
    used: Credits,
    control: VecDeque<Frame>,
    waiting: Queue<Waiting<T>>,
    waiting_bytes: u64,
    flights: BTreeMap<u64, Flight<T>>,
    last_id: u64,
    last_number: u64,
    /// Why no more calls go over this connection.
    ending: Option<String>,
}

impl<T> Caller<T> {
    /// A connection was opened.
    pub(crate) fn new(hello: Hello, now: Instant) -> Self {
        Self {
            hello,
            pulse: Pulse::new(now),
            other: None,
            granted: Credits::default(),
            used: Credits::default(),
            control: VecDeque::from([Frame::Hello(hello)]),
            waiting: Queue::new(),
            waiting_bytes: 0,
            flights: BTreeMap::new(),
            last_id: 0,
            last_number: 0,
            ending: None,
        }
    }

    /// The other daemon, once it has said hello.
    pub(crate) fn other(&self) -> Option<NodeRun> {
        self.other
    }

    /// Whether calls can still go over this connection.
    pub(crate) fn is_open(&self) -> bool {
        self.ending.is_none()
    }

    /// Why no more calls go over this connection; the first reason, which a goodbye knows best.
    pub(crate) fn why_ended(&self) -> Option<&str> {
        self.ending.as_deref()
    }

    /// Whether all is over that a goodbye left to do.
    pub(crate) fn is_over(&self) -> bool {
        !self.is_open() && self.flights.is_empty() && self.control.is_empty()
    }

    /// Takes a call on, and gives the number for [`Caller::give_up`]. Otherwise gives ticket and
    /// outcome back.
    pub(crate) fn call(
        &mut self,
        call: Call,
        deadline: Deadline,
        ticket: T,
    ) -> Result<u64, (T, Outcome)> {
        if !self.is_open() {
            return Err((ticket, Outcome::Unsent(call)));
        }
        let refused = |ticket, text: &str| {
            let none = NoAnswer::not_run(text);
            Err((ticket, Outcome::Ended(Err(none))))
        };
        if !is_sendable(&call) {
            return refused(ticket, "the request is larger than a frame");
        }
        let bytes = cost(&call);
        if self.other.is_some() && bytes > self.granted[class_index(call.class)].bytes {
            return refused(ticket, "the request is larger than the other node takes");
        }
        if self.waiting.len() >= WAITING_MAX || self.waiting_bytes + bytes > WAITING_BYTES_MAX {
            return refused(ticket, "too many requests wait for the other node");
        }
        self.last_id += 1;
        self.waiting_bytes += bytes;
        let waiting = Waiting {
            id: self.last_id,
            call,
            deadline,
            ticket,
        };
        self.waiting.push(waiting.call.class, waiting);
        Ok(self.last_id)
    }

    /// Nobody waits for the call any more. Says what is known; `None` if it has ended already.
    pub(crate) fn give_up(&mut self, id: u64) -> Option<NoAnswer> {
        if let Some(waiting) = self.waiting.remove(|waiting| waiting.id == id) {
            self.waiting_bytes -= cost(&waiting.call);
            return Some(NoAnswer::not_run(match self.other {
                Some(_) => "its deadline passed before the other node had room for the request",
                None => "its deadline passed before the other node said hello",
            }));
        }
        let mut flights = self.flights.iter_mut();
        let (number, flight) = flights.find(|(_, flight)| flight.id == id)?;
        flight.ticket.take()?;
        let number = *number;
        self.control.push_back(Frame::Cancel { number });
        Some(NoAnswer::unknown(
            "the deadline passed before the reply came",
        ))
    }

    /// Says goodbye when all that was taken on has been answered. Calls that aren't sent are given
    /// back.
    pub(crate) fn close(&mut self, why: &str) -> Vec<(T, Outcome)> {
        self.end_calls(why);
        self.control.push_back(Frame::Goodbye {
            taken: 0,
            why: why.into(),
        });
        self.unsent()
    }

    fn end_calls(&mut self, why: &str) {
        self.ending.get_or_insert_with(|| why.into());
    }

    /// The next frame to send.
    pub(crate) fn next_frame(&mut self, now: Instant) -> Option<Frame> {
        let frame = self.control.pop_front().or_else(|| self.request(now))?;
        self.pulse.sent(now);
        Some(frame)
    }

    fn request(&mut self, now: Instant) -> Option<Frame> {
        self.other?;
        let (granted, used) = (self.granted, self.used);
        let waiting = self.waiting.pop(|waiting| {
            let class = class_index(waiting.call.class);
            used[class].requests < granted[class].requests
                && used[class].bytes + cost(&waiting.call) <= granted[class].bytes
        })?;
        let bytes = cost(&waiting.call);
        let class = class_index(waiting.call.class);
        self.waiting_bytes -= bytes;
        self.used[class].requests += 1;
        self.used[class].bytes += bytes;
        self.last_number += 1;
        let flight = Flight {
            id: waiting.id,
            cost: bytes,
            class,
            reply_bytes_max: waiting.call.reply_bytes_max,
            ticket: Some(waiting.ticket),
        };
        self.flights.insert(self.last_number, flight);
        Some(Frame::Request {
            number: self.last_number,
            budget: waiting.deadline.time().since(now),
            call: waiting.call,
        })
    }

    /// What is due when there is no frame to send.
    pub(crate) fn beat(&mut self, now: Instant) -> Result<Beat, Fault> {
        self.pulse.beat(now)
    }

    /// Bytes came.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.pulse.heard(now);
    }

    /// Judges a header before memory is taken for its frame.
    pub(crate) fn allow(&self, header: &Header) -> Result<(), Fault> {
        match header.kind {
            Kind::Hello if self.other.is_none() => Ok(()),
            Kind::Goodbye | Kind::Alive => Ok(()),
            Kind::Reply => {
                let flight = self.flights.get(&header.number);
                let flight =
                    flight.ok_or_else(|| Fault::new("a reply came to no request under way"))?;
                let parts = header.body_bytes + header.payload_bytes;
                // An explanation may come instead of any reply.
                if header.is_answer() && parts > flight.reply_bytes_max as usize {
                    return Err(Fault::new("a reply is larger than its request allowed"));
                }
                if class_index(header.class) != flight.class {
                    return Err(Fault::new("a reply has another class than its request"));
                }
                Ok(())
            }
            Kind::Hello | Kind::Request | Kind::Cancel => {
                Err(Fault::new("the asking side got a frame of the other kind"))
            }
        }
    }

    /// A frame came whose header was allowed. Gives the calls that it ends.
    pub(crate) fn arrived(&mut self, frame: Frame) -> Result<Vec<(T, Outcome)>, Fault> {
        match frame {
            Frame::Hello(hello) => {
                self.hello.check(&hello)?;
                if hello.from.run.node != self.hello.to {
                    return Err(Fault::new("another node answered than was called"));
                }
                self.other = Some(hello.from.run);
                self.pulse.greeted();
                self.granted = hello.credits;
                Ok(self.refuse_too_large())
            }
            Frame::Reply { number, ending, .. } => {
                let from = self
                    .other
                    .ok_or_else(|| Fault::new("a reply before hello"))?;
                let flight = self.flights.remove(&number);
                let flight = flight.expect("a reply is allowed only to a request under way");
                self.used[flight.class].requests -= 1;
                self.used[flight.class].bytes -= flight.cost;
                let ended = match ending {
                    Ending::Answered(reply) => Ok(Answer { from, reply }),
                    Ending::NotRun(why) => Err(NoAnswer::not_run(why)),
                    Ending::Dropped(why) => Err(NoAnswer::unknown(why)),
                };
                let ended = flight.ticket.map(|ticket| (ticket, Outcome::Ended(ended)));
                Ok(ended.into_iter().collect())
            }
            Frame::Goodbye { taken, why } => {
                self.end_calls(&why);
                let not_taken = self.flights.split_off(&taken.saturating_add(1));
                let mut ended = self.unsent();
                for flight in not_taken.into_values() {
                    let none = NoAnswer::not_run(format!("the other node said goodbye: {why}"));
                    ended.extend(
                        flight
                            .ticket
                            .map(|ticket| (ticket, Outcome::Ended(Err(none)))),
                    );
                }
                Ok(ended)
            }
            Frame::Alive => Ok(Vec::new()),
            Frame::Request { .. } | Frame::Cancel { .. } => {
                unreachable!("the header wasn't allowed")
            }
        }
    }

    /// Calls that came before the hello, and for which the other node never has room.
    fn refuse_too_large(&mut self) -> Vec<(T, Outcome)> {
        let granted = self.granted;
        let is_too_large = |waiting: &Waiting<T>| {
            cost(&waiting.call) > granted[class_index(waiting.call.class)].bytes
        };
        let refused = std::iter::from_fn(|| self.waiting.remove(is_too_large));
        let refused: Vec<_> = refused.collect();
        let mut ended = Vec::with_capacity(refused.len());
        for waiting in refused {
            self.waiting_bytes -= cost(&waiting.call);
            let none = NoAnswer::not_run("the request is larger than the other node takes");
            ended.push((waiting.ticket, Outcome::Ended(Err(none))));
        }
        ended
    }

    fn unsent(&mut self) -> Vec<(T, Outcome)> {
        self.waiting_bytes = 0;
        let waiting = self.waiting.drain();
        waiting
            .map(|waiting| (waiting.ticket, Outcome::Unsent(waiting.call)))
            .collect()
    }

    /// The connection ended. Gives all calls that waited for it.
    pub(crate) fn end(&mut self, why: &str) -> Vec<(T, Outcome)> {
        self.end_calls(why);
        self.control.clear();
        let mut ended = self.unsent();
        for flight in std::mem::take(&mut self.flights).into_values() {
            let none = NoAnswer::unknown(format!("the connection ended: {why}"));
            ended.extend(
                flight
                    .ticket
                    .map(|ticket| (ticket, Outcome::Ended(Err(none)))),
            );
        }
        ended
    }
}
