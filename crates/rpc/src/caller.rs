//! The asking side of a connection: which requests are under way, and how each ends. No I/O: bytes,
//! time and tickets are given.

use crate::Fault;
use crate::frame::{Ending, Frame, Header, Kind, class_index, cost};
use crate::hello::{Credit, Credits, Hello, Lanes};
use crate::pulse::{Beat, Pulse};
use model::NodeRun;
use model::call::{Answer, Call, Class, NoAnswer};
use std::collections::{BTreeMap, VecDeque};
use world::{Deadline, Instant};

/// Of the credits of a class so much of the whole is kept from calls that may wait for what others do: 12 MiB of those for
/// metadata, and 128 requests.
const KEPT_PART: u32 = 8;

/// How a call ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// With a reply, or with knowledge about the request.
    Ended(Result<Answer, NoAnswer>),
    /// It wasn't sent, and another lane takes it.
    Unsent(Call),
}

/// A call that isn't sent yet.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    pub(crate) id: u64,
    pub(crate) call: Call,
    /// What it takes of its class's credits.
    pub(crate) cost: u64,
    pub(crate) deadline: Deadline,
    pub(crate) ticket: T,
}

impl<T> Waiting<T> {
    pub(crate) fn new(id: u64, call: Call, deadline: Deadline, ticket: T) -> Self {
        Self {
            id,
            cost: cost(&call),
            call,
            deadline,
            ticket,
        }
    }

    /// Bytes that it holds until it is sent.
    pub(crate) fn bytes(&self) -> u64 {
        (self.call.body.len() + self.call.payload.len()) as u64
    }
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

/// What a frame brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum News {
    /// Nothing but calls' ends.
    None,
    /// The other daemon said hello.
    Hello(NodeRun, Option<Lanes>),
    /// It wants so many counted connections from now on.
    Connections(u8),
}

/// Calls that ended, by who waits for them.
pub(crate) type Ended<T> = Vec<(T, Outcome)>;

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
    flights: BTreeMap<u64, Flight<T>>,
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
            flights: BTreeMap::new(),
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

    /// Requests under way.
    pub(crate) fn requests(&self) -> usize {
        self.flights.len()
    }

    /// Bytes of credits that they hold.
    pub(crate) fn bytes(&self) -> u64 {
        self.used.iter().map(|credit| credit.bytes).sum()
    }

    /// Whether the other side has room for such a call now. One that may wait for others leaves some to what these ask for,
    /// unless nothing is under way that could be in its way.
    pub(crate) fn has_room(&self, waiting: &Waiting<T>) -> bool {
        let class = class_index(waiting.call.class);
        let (granted, used) = (self.granted[class], self.used[class]);
        let kept = match waiting.call.may_wait && used.requests > 0 {
            true => Credit {
                requests: granted.requests / KEPT_PART,
                bytes: granted.bytes / u64::from(KEPT_PART),
            },
            false => Credit::default(),
        };
        used.requests + kept.requests < granted.requests
            && used.bytes + waiting.cost + kept.bytes <= granted.bytes
    }

    /// Whether the other side ever has room for such a call.
    pub(crate) fn takes(&self, class: Class, cost: u64) -> bool {
        let granted = self.granted[class_index(class)];
        granted.requests > 0 && cost <= granted.bytes
    }

    /// Nobody waits for the call any more. Says what is known; `None` if it isn't under way here.
    pub(crate) fn give_up(&mut self, id: u64) -> Option<NoAnswer> {
        let mut flights = self.flights.iter_mut();
        let (number, flight) = flights.find(|(_, flight)| flight.id == id)?;
        flight.ticket.take()?;
        let number = *number;
        self.control.push_back(Frame::Cancel { number });
        Some(NoAnswer::unknown(
            "the deadline passed before the reply came",
        ))
    }

    /// Says goodbye when all that was taken on has been answered.
    pub(crate) fn close(&mut self, why: &str) {
        if self.is_open() {
            self.end_calls(why);
            self.control.push_back(Frame::Goodbye {
                taken: 0,
                why: why.into(),
            });
        }
    }

    fn end_calls(&mut self, why: &str) {
        self.ending.get_or_insert_with(|| why.into());
    }

    /// The next frame that is no request.
    pub(crate) fn next_control(&mut self, now: Instant) -> Option<Frame> {
        let frame = self.control.pop_front()?;
        self.pulse.sent(now);
        Some(frame)
    }

    /// Sends a call for which there is room.
    pub(crate) fn send(&mut self, waiting: Waiting<T>, now: Instant) -> Frame {
        assert!(
            self.is_open() && self.has_room(&waiting),
            "a call is sent where there is room for it"
        );
        let class = class_index(waiting.call.class);
        self.used[class].requests += 1;
        self.used[class].bytes += waiting.cost;
        self.last_number += 1;
        let flight = Flight {
            id: waiting.id,
            cost: waiting.cost,
            class,
            reply_bytes_max: waiting.call.reply_bytes_max,
            ticket: Some(waiting.ticket),
        };
        self.flights.insert(self.last_number, flight);
        self.pulse.sent(now);
        Frame::Request {
            number: self.last_number,
            budget: waiting.deadline.time().since(now),
            call: waiting.call,
        }
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
            Kind::Connections if self.other.is_some() => Ok(()),
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
            Kind::Hello | Kind::Connections | Kind::Request | Kind::Cancel => {
                Err(Fault::new("the asking side got a frame of the other kind"))
            }
        }
    }

    /// A frame came whose header was allowed. Gives the calls that it ends.
    pub(crate) fn arrived(&mut self, frame: Frame) -> Result<(Ended<T>, News), Fault> {
        match frame {
            Frame::Hello(hello) => {
                self.hello.check(&hello)?;
                if hello.from.run.node != self.hello.to {
                    return Err(Fault::new("another node answered than was called"));
                }
                self.other = Some(hello.from.run);
                self.pulse.greeted();
                self.granted = hello.credits;
                Ok((Vec::new(), News::Hello(hello.from.run, hello.lanes)))
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
                Ok((ended.into_iter().collect(), News::None))
            }
            Frame::Goodbye { taken, why } => {
                self.end_calls(&why);
                let not_taken = self.flights.split_off(&taken.saturating_add(1));
                let none = NoAnswer::not_run(format!("the other node said goodbye: {why}"));
                Ok((ended(not_taken, &none), News::None))
            }
            Frame::Connections { most } => Ok((Vec::new(), News::Connections(most))),
            Frame::Alive => Ok((Vec::new(), News::None)),
            Frame::Request { .. } | Frame::Cancel { .. } => {
                unreachable!("the header wasn't allowed")
            }
        }
    }

    /// The connection ended. Gives all calls that were under way.
    pub(crate) fn end(&mut self, why: &str) -> Ended<T> {
        self.end_calls(why);
        self.control.clear();
        let none = NoAnswer::unknown(format!("the connection ended: {why}"));
        ended(std::mem::take(&mut self.flights), &none)
    }
}

fn ended<T>(flights: BTreeMap<u64, Flight<T>>, none: &NoAnswer) -> Ended<T> {
    let tickets = flights.into_values().filter_map(|flight| flight.ticket);
    tickets
        .map(|ticket| (ticket, Outcome::Ended(Err(none.clone()))))
        .collect()
}
