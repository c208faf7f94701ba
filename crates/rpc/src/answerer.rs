//! The answering side of a connection: which requests to run, which replies to send. No I/O.

use crate::Fault;
use crate::frame::{Ending, Frame, Header, Kind, class_index};
use crate::hello::{Credits, Hello, Identity, Lanes};
use crate::lanes::Lane;
use crate::pulse::{Beat, Pulse};
use crate::queue::Queue;
use model::NodeRun;
use model::call::{BODY_BYTES_MAX, Call, Class, PAYLOAD_BYTES_MAX};
use std::collections::{BTreeMap, VecDeque};
use world::{Deadline, Instant};

/// What the shell has to do about a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Task {
    /// Nothing.
    None,
    /// Judge whether this daemon may call over a connection for this lane, or for all classes:
    /// [`Answerer::welcome`] or [`Answerer::drain`].
    Greet(NodeRun, Option<Lane>),
    /// Say somewhere that the other side was refused for its hello: it is told why, and the connection ends.
    Refused(Fault),
    /// Run a request of this daemon, and hand over its ending.
    Run(u64, NodeRun, Call, Deadline),
    /// Stop running this request; its ending is seen to.
    Stop(u64),
    /// The other side has said goodbye.
    Ending,
}

/// A request that was taken on and whose reply isn't on the way yet.
#[derive(Debug)]
struct Work {
    class: Class,
    cost: u64,
    reply_bytes_max: u32,
    deadline: Deadline,
    /// Its reply waits to be sent.
    has_ended: bool,
}

/// The answering side.
#[derive(Debug)]
pub(crate) struct Answerer {
    identity: Identity,
    pulse: Pulse,
    /// The other daemon, once it was welcomed.
    other: Option<NodeRun>,
    /// What the other side's hello said of lanes, once it has come.
    greeted: Option<Option<Lanes>>,
    granted: Credits,
    used: Credits,
    control: VecDeque<Frame>,
    work: BTreeMap<u64, Work>,
    endings: Queue<(u64, Ending)>,
    last_number: u64,
    is_ending: bool,
}

impl Answerer {
    /// A connection came.
    pub(crate) fn new(identity: Identity, now: Instant) -> Self {
        Self {
            identity,
            pulse: Pulse::new(now),
            other: None,
            greeted: None,
            granted: Credits::default(),
            used: Credits::default(),
            control: VecDeque::new(),
            work: BTreeMap::new(),
            endings: Queue::new(),
            last_number: 0,
            is_ending: false,
        }
    }

    /// Judges a header before memory is taken for its frame.
    pub(crate) fn allow(&self, header: &Header) -> Result<(), Fault> {
        match header.kind {
            Kind::Hello if self.greeted.is_none() => Ok(()),
            Kind::Request | Kind::Cancel | Kind::Goodbye | Kind::Alive
                if self.greeted.is_none() =>
            {
                Err(Fault::new("the other side began without hello"))
            }
            Kind::Request if self.other.is_none() => {
                Err(Fault::new("a request came before its side was let in"))
            }
            Kind::Request => {
                if self.is_ending {
                    // It was on its way when the goodbye left; it isn't run and holds nothing.
                    return Ok(());
                }
                if header.number <= self.last_number {
                    return Err(Fault::new("a request's number was used before"));
                }
                let class = class_index(header.class);
                let (used, granted) = (self.used[class], self.granted[class]);
                if used.requests >= granted.requests || used.bytes + header.cost() > granted.bytes {
                    return Err(Fault::new("a request came without credits"));
                }
                Ok(())
            }
            Kind::Cancel if header.number > self.last_number && !self.is_ending => {
                Err(Fault::new("a cancel came before its request"))
            }
            Kind::Cancel | Kind::Goodbye | Kind::Alive => Ok(()),
            Kind::Hello | Kind::Reply | Kind::Connections => Err(Fault::new(
                "the answering side got a frame of the other kind",
            )),
        }
    }

    /// A frame came whose header was allowed.
    pub(crate) fn arrived(&mut self, frame: Frame, now: Instant) -> Result<Task, Fault> {
        match frame {
            Frame::Hello(hello) => {
                self.greeted = Some(hello.lanes);
                self.pulse.greeted();
                let mine = self.hello(hello.from.run, 0);
                match mine.check(&hello).and_then(|()| hello.lane()) {
                    Ok(lane) => Ok(Task::Greet(hello.from.run, lane)),
                    Err(fault) => {
                        self.drain(&fault.to_string());
                        Ok(Task::Refused(fault))
                    }
                }
            }
            Frame::Request {
                number,
                budget,
                call,
            } => Ok(self.request(number, Deadline::at(now + budget), call)),
            Frame::Cancel { number } => Ok(self.cancel(number)),
            Frame::Goodbye { .. } => {
                self.is_ending = true;
                Ok(Task::Ending)
            }
            Frame::Alive => Ok(Task::None),
            Frame::Reply { .. } | Frame::Connections { .. } => {
                unreachable!("the header wasn't allowed")
            }
        }
    }

    fn request(&mut self, number: u64, deadline: Deadline, call: Call) -> Task {
        let Some(from) = self.other.filter(|_| !self.is_ending) else {
            // The goodbye said that it doesn't run.
            return Task::None;
        };
        self.last_number = number;
        let work = Work {
            class: call.class,
            cost: crate::frame::cost(&call),
            reply_bytes_max: call.reply_bytes_max,
            deadline,
            has_ended: false,
        };
        let used = &mut self.used[class_index(work.class)];
        used.requests += 1;
        used.bytes += work.cost;
        self.work.insert(number, work);
        Task::Run(number, from, call, deadline)
    }

    fn cancel(&mut self, number: u64) -> Task {
        // Whether it has begun is known only where it runs; "dropped" is true in both cases.
        let ending = Ending::Dropped("it was cancelled".into());
        if self.finish(number, ending) {
            Task::Stop(number)
        } else {
            Task::None
        }
    }

    /// This side's hello to a daemon, with the counted connections that it wants.
    fn hello(&self, other: NodeRun, connections: u8) -> Hello {
        let lanes = Lanes {
            lane: self.greeted.flatten().map_or(0, |lanes| lanes.lane),
            connections,
        };
        Hello::new(self.identity, other.node, self.granted, lanes)
    }

    /// The daemon on the other side may call, and is granted so much; this side wants so many
    /// counted connections.
    pub(crate) fn welcome(&mut self, other: NodeRun, granted: Credits, connections: u8) {
        self.other = Some(other);
        self.granted = granted;
        let hello = self.hello(other, connections);
        self.control.push_back(Frame::Hello(hello));
    }

    /// This side wants so many counted connections from now on.
    pub(crate) fn want(&mut self, most: u8) {
        let knows_lanes = self.greeted.is_some_and(|lanes| lanes.is_some());
        if self.other.is_some() && knows_lanes && !self.is_ending {
            // What wasn't sent yet isn't true any more.
            self.control
                .retain(|frame| !matches!(frame, Frame::Connections { .. }));
            self.control.push_back(Frame::Connections { most });
        }
    }

    /// A request ended. False if it had ended before; the first ending counts.
    pub(crate) fn finish(&mut self, number: u64, ending: Ending) -> bool {
        let Some(work) = self.work.get_mut(&number) else {
            return false;
        };
        if std::mem::replace(&mut work.has_ended, true) {
            return false;
        }
        let ending = match ending {
            Ending::Answered(reply)
                if reply.body.len() + reply.payload.len() > work.reply_bytes_max as usize
                    || reply.body.len() > BODY_BYTES_MAX
                    || reply.payload.len() > PAYLOAD_BYTES_MAX =>
            {
                Ending::Dropped("the reply is larger than the request allowed".into())
            }
            other => other,
        };
        self.endings.push(work.class, (number, ending));
        true
    }

    /// Takes on no more requests. Those under way are still answered.
    pub(crate) fn drain(&mut self, why: &str) {
        if self.is_ending {
            return;
        }
        self.is_ending = true;
        self.control.push_back(Frame::Goodbye {
            taken: self.last_number,
            why: why.into(),
        });
    }

    /// Whether all was answered after a goodbye.
    pub(crate) fn is_over(&self) -> bool {
        self.is_ending && self.work.is_empty() && self.control.is_empty()
    }

    /// The next frame to send. A reply's credits are free from here on: its request's memory is the
    /// frame's, and few leave together (`outlet`).
    pub(crate) fn next_frame(&mut self, now: Instant) -> Option<Frame> {
        let frame = self.control.pop_front().or_else(|| self.ended(now))?;
        self.pulse.sent(now);
        Some(frame)
    }

    fn ended(&mut self, now: Instant) -> Option<Frame> {
        let (number, mut ending) = self.endings.pop(|_| true)?;
        let work = self.work.remove(&number);
        let work = work.expect("a request that ended is kept until its reply is sent");
        let used = &mut self.used[class_index(work.class)];
        used.requests -= 1;
        used.bytes -= work.cost;
        // The caller has given up: what the reply says may not be true any more when it comes.
        if work.deadline.time() <= now && matches!(ending, Ending::Answered(_)) {
            ending = Ending::Dropped("the deadline passed".into());
        }
        Some(Frame::Reply {
            number,
            class: work.class,
            ending,
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
}
