//! The simulated network: machines with addresses, listeners, connections, links that fail.
//!
//! The path of a message: `pipe.rs` takes bytes from the sender's `poll_write` as one [`Packet`] and
//! puts it into the calendar, due after the link's latency, never before an earlier packet of the
//! same direction. [`Network::deliver`] takes due events in order of time. A packet that meets a cut
//! link stalls, and with it all later ones of its direction; they are sent again after pauses that
//! double, as TCP does. Otherwise it reaches the other end's buffer and wakes the reader.
//!
//! The path of a kill: [`Network::end_run`] closes all connections of the process, as a kernel does:
//! peers read the end, or a reset. When a machine loses power, [`Network::lose_power`] only forgets
//! its ends: nobody is told. Peers notice through probes (`Event::Probe`): after `SILENCE_MAX` without
//! a way there and back they fail with `TimedOut`; once the machine has started again, with a reset.
//!
//! Besides connections, a letter ([`Event::Letter`]) carries one piece of work to another node: the way
//! by which simulated services outside the program's own protocols are reached.

mod link;
mod pipe;

pub use link::Link;
use link::Links;
use pipe::{End, Packet, State};

use super::random::RandomStream;
use crate::net_limits::{BACKLOG_MAX, SILENCE_MAX};
use crate::{FixedHasher, World};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hasher;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::task::Waker;

/// How often each end of a connection looks whether the other is still there.
const PROBE_EVERY: u64 = SILENCE_MAX.as_nanos() as u64 / 4;

/// Pause before the first repetition of a lost packet. Each further one takes twice as long.
const RETRY_FIRST: u64 = 200_000_000;

/// Longest pause between two repetitions.
const RETRY_MAX: u64 = 5_000_000_000;

/// First port that connecting ends get.
const PORT_FIRST: u16 = 32_768;

/// Number of a machine in the network.
pub(super) type HostNumber = usize;

/// Work that a letter carries, done on the receiving node.
pub(super) type Work = Box<dyn FnOnce(&World) + Send>;

/// The network's whole state; part of the machine's.
pub(super) struct Network {
    hosts: Vec<Host>,
    listeners: BTreeMap<SocketAddr, Listening>,
    connections: BTreeMap<u64, [End; 2]>,
    /// Connections that are being made, by number.
    connecting: BTreeMap<u64, Connecting>,
    pub(super) links: Links,
    calendar: BTreeMap<(u64, u64), Event>,
    random: RandomStream,
    next_number: u64,
    /// Hash of everything sent and delivered so far.
    pub(super) trace: u64,
    /// Nodes that were woken since the last [`Network::take_woken`].
    woken: BTreeSet<HostNumber>,
    /// Letters that have arrived.
    letters: VecDeque<Letter>,
    /// Wakes the run of a single machine when an event becomes the next one.
    pub(super) on_event: Option<Waker>,
}

struct Host {
    address: IpAddr,
    powered: bool,
    /// The process that runs there.
    run: Option<u64>,
    next_port: u16,
}

/// A letter that has arrived at a machine.
pub(super) struct Letter {
    pub(super) to: HostNumber,
    /// The program that it is for.
    pub(super) run: u64,
    pub(super) work: Work,
}

struct Listening {
    run: u64,
    waiting: VecDeque<u64>,
    waker: Option<Waker>,
}

struct Connecting {
    host: HostNumber,
    run: u64,
    own: SocketAddr,
    to: SocketAddr,
    /// The connection's number, or why there is none.
    outcome: Option<io::Result<u64>>,
    waker: Option<Waker>,
}

enum Event {
    /// A request to connect arrives.
    Knock { attempt: u64, pause: u64 },
    /// The answer to it arrives.
    Answered {
        attempt: u64,
        outcome: Result<u64, io::ErrorKind>,
    },
    /// A packet from this end of a connection arrives at the other.
    Arrival {
        connection: u64,
        from: usize,
        packet: Packet,
    },
    /// Stalled packets of this end are sent again.
    Retry {
        connection: u64,
        from: usize,
        pause: u64,
    },
    /// This end looks whether the other is still there.
    Probe { connection: u64, end: usize },
    /// Work arrives at a node.
    Letter {
        from: HostNumber,
        to: HostNumber,
        run: u64,
        work: Work,
    },
}

impl Network {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            hosts: Vec::new(),
            listeners: BTreeMap::new(),
            connections: BTreeMap::new(),
            connecting: BTreeMap::new(),
            links: Links::default(),
            calendar: BTreeMap::new(),
            random: RandomStream::new(seed, 4),
            next_number: 0,
            trace: seed,
            woken: BTreeSet::new(),
            letters: VecDeque::new(),
            on_event: None,
        }
    }

    /// A network in the same state. Only while no machine runs a program.
    pub(super) fn fork(&self) -> Self {
        assert!(
            self.hosts.iter().all(|host| host.run.is_none()),
            "a network is copied between runs"
        );
        Self {
            hosts: self.hosts.iter().map(Host::copy).collect(),
            links: self.links.clone(),
            random: self.random.clone(),
            next_number: self.next_number,
            trace: self.trace,
            ..Self::new(0)
        }
    }

    /// Adds a machine with an address of its own.
    pub(super) fn add_host(&mut self) -> HostNumber {
        let number = self.hosts.len();
        let [high, low] = u16::try_from(number + 1)
            .expect("a simulation has few nodes")
            .to_be_bytes();
        self.hosts.push(Host {
            address: IpAddr::V4(Ipv4Addr::new(10, 0, high, low)),
            powered: false,
            run: None,
            next_port: PORT_FIRST,
        });
        number
    }

    pub(super) fn address(&self, host: HostNumber) -> IpAddr {
        self.hosts[host].address
    }

    /// A program starts on a machine.
    pub(super) fn begin_run(&mut self, host: HostNumber, run: u64) {
        let host = &mut self.hosts[host];
        host.powered = true;
        host.run = Some(run);
    }

    /// A process ended: its connections are closed by the kernel.
    pub(super) fn end_run(&mut self, now: u64, host: HostNumber) {
        let Some(run) = self.hosts[host].run.take() else {
            return;
        };
        self.listeners.retain(|_, listening| listening.run != run);
        self.connecting
            .retain(|_, connecting| connecting.run != run);
        for number in self.connections_of(run) {
            for end in 0..2 {
                let ends = self.connections.get(&number);
                if ends.is_some_and(|ends| ends[end].run == Some(run)) {
                    self.close(now, number, end);
                }
            }
        }
    }

    /// A machine lost power: its connections are forgotten, and nobody is told.
    pub(super) fn lose_power(&mut self, host: HostNumber) {
        self.hosts[host].powered = false;
        let Some(run) = self.hosts[host].run.take() else {
            return;
        };
        self.listeners.retain(|_, listening| listening.run != run);
        self.connecting
            .retain(|_, connecting| connecting.run != run);
        for number in self.connections_of(run) {
            let ends = self.connections.get_mut(&number).expect("just listed");
            for end in ends.iter_mut().filter(|end| end.run == Some(run)) {
                end.forget();
            }
            self.drop_if_over(number);
        }
    }

    fn connections_of(&self, run: u64) -> Vec<u64> {
        let of_run = |ends: &[End; 2]| ends.iter().any(|end| end.run == Some(run));
        let all = self.connections.iter();
        all.filter(|(_, ends)| of_run(ends))
            .map(|(number, _)| *number)
            .collect()
    }

    /// Breaks all connections between two machines: both sides are told.
    pub(super) fn reset(&mut self, one: HostNumber, other: HostNumber) {
        for ends in self.connections.values_mut() {
            let hosts = [ends[0].host, ends[1].host];
            if hosts == [one, other] || hosts == [other, one] {
                for end in ends {
                    end.fail(io::ErrorKind::ConnectionReset, &mut self.woken);
                }
            }
        }
    }

    /// A machine is told from now on that nobody listens at another one, and the connections end that it has opened to there.
    pub(super) fn refuse(&mut self, from: HostNumber, host: HostNumber) {
        self.links.refusing.insert((from, host));
        for ends in self.connections.values_mut() {
            // The second end is the one that listened.
            if (ends[0].host, ends[1].host) == (from, host) {
                for end in ends {
                    end.fail(io::ErrorKind::ConnectionReset, &mut self.woken);
                }
            }
        }
    }

    /// When the next event is due.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.calendar.first_key_value().map(|((due, _), _)| *due)
    }

    /// Nodes that something has arrived for since the last call.
    pub(super) fn take_woken(&mut self) -> BTreeSet<HostNumber> {
        std::mem::take(&mut self.woken)
    }

    /// The next letter that has arrived. Its work is done without the machine's lock.
    pub(super) fn take_letter(&mut self) -> Option<Letter> {
        self.letters.pop_front()
    }

    /// Puts letters back that nobody could take.
    pub(super) fn keep_letters(&mut self, letters: Vec<Letter>) {
        self.letters.extend(letters);
    }

    /// Lets everything happen that is due, in order of time.
    pub(super) fn deliver(&mut self, now: u64) {
        while let Some((&(due, number), _)) = self.calendar.first_key_value()
            && due <= now
        {
            let event = self.calendar.remove(&(due, number)).expect("just found");
            self.note(due, number, &event);
            self.happen(due, event);
        }
    }

    fn happen(&mut self, now: u64, event: Event) {
        match event {
            Event::Knock { attempt, pause } => self.knock(now, attempt, pause),
            Event::Answered { attempt, outcome } => self.answered(now, attempt, outcome),
            Event::Arrival {
                connection,
                from,
                packet,
            } => self.arrive(now, connection, from, packet),
            Event::Retry {
                connection,
                from,
                pause,
            } => self.retry(now, connection, from, pause),
            Event::Probe { connection, end } => self.probe(now, connection, end),
            Event::Letter {
                from,
                to,
                run,
                work,
            } => {
                if self.hosts[to].run == Some(run) && self.links.is_open(from, to) {
                    self.woken.insert(to);
                    self.letters.push_back(Letter { to, run, work });
                }
            }
        }
    }

    /// Sends a letter; it is lost if the link is cut or the program there ends before it arrives.
    pub(super) fn send_letter(&mut self, now: u64, from: HostNumber, to: HostNumber, work: Work) {
        let Some(run) = self.hosts[to].run else {
            return;
        };
        let due = self.due(now, from, to, 0);
        let due = self.links.in_order(from, to, due);
        let letter = Event::Letter {
            from,
            to,
            run,
            work,
        };
        self.schedule(due, letter);
    }

    /// Starts to listen; returns the address.
    pub(super) fn listen(
        &mut self,
        host: HostNumber,
        run: u64,
        address: SocketAddr,
    ) -> io::Result<SocketAddr> {
        let mut address = self.own_address(host, address)?;
        if address.port() == 0 {
            address.set_port(self.take_port(host));
        }
        if self.listeners.contains_key(&address) {
            let text = format!("{address} is in use");
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        let listening = Listening {
            run,
            waiting: VecDeque::new(),
            waker: None,
        };
        self.listeners.insert(address, listening);
        Ok(address)
    }

    /// An address of a machine as the network knows it.
    fn own_address(&self, host: HostNumber, address: SocketAddr) -> io::Result<SocketAddr> {
        let own = self.hosts[host].address;
        if !address.ip().is_unspecified() && !address.ip().is_loopback() && address.ip() != own {
            let text = format!("{address} is not an address of this machine ({own})");
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text));
        }
        Ok(SocketAddr::new(own, address.port()))
    }

    /// Stops listening; connections that nobody accepted are closed.
    pub(super) fn stop_listening(&mut self, now: u64, run: u64, address: SocketAddr) {
        if self
            .listeners
            .get(&address)
            .is_some_and(|listening| listening.run == run)
        {
            let listening = self.listeners.remove(&address).expect("just seen");
            for number in listening.waiting {
                self.close(now, number, 1);
            }
        }
    }

    /// A connection that waits at a listener, or `None` and the waker is kept.
    pub(super) fn accept(&mut self, address: SocketAddr, waker: &Waker) -> Option<u64> {
        let listening = self.listeners.get_mut(&address)?;
        let waiting = listening.waiting.pop_front();
        if waiting.is_none() {
            listening.waker = Some(waker.clone());
        }
        waiting
    }

    /// Starts to connect, from `local` if it names a port; returns the attempt's number.
    pub(super) fn connect(
        &mut self,
        now: u64,
        host: HostNumber,
        run: u64,
        mut to: SocketAddr,
        local: Option<SocketAddr>,
    ) -> io::Result<u64> {
        if to.ip().is_loopback() || to.ip().is_unspecified() {
            to.set_ip(self.hosts[host].address);
        }
        let own = match local {
            Some(local) if local.port() != 0 => {
                let own = self.own_address(host, local)?;
                if self.is_taken(own, to) {
                    let text = format!("{own} is in use");
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
                }
                own
            }
            _ => SocketAddr::new(self.hosts[host].address, self.take_port(host)),
        };
        let attempt = self.take_number();
        let connecting = Connecting {
            host,
            run,
            own,
            to,
            outcome: None,
            waker: None,
        };
        self.connecting.insert(attempt, connecting);
        let due = match self.host_at(to) {
            Some(other) => self.due(now, host, other, 0),
            None => now,
        };
        let pause = RETRY_FIRST;
        self.schedule(due, Event::Knock { attempt, pause });
        Ok(attempt)
    }

    /// Whether a listener has the address, or a connection to the same peer.
    fn is_taken(&self, own: SocketAddr, to: SocketAddr) -> bool {
        let mut connecting = self.connecting.values();
        let mut connections = self.connections.values();
        let is_pair = |ends: &[End; 2]| (ends[0].address, ends[1].address) == (own, to);
        self.listeners.contains_key(&own)
            || connecting.any(|it| it.own == own && it.to == to)
            || connections.any(is_pair)
    }

    /// How an attempt to connect ended, or `None` and the waker is kept.
    pub(super) fn connected(&mut self, attempt: u64, waker: &Waker) -> Option<io::Result<u64>> {
        let connecting = self.connecting.get_mut(&attempt)?;
        match connecting.outcome.take() {
            Some(outcome) => {
                self.connecting.remove(&attempt);
                Some(outcome)
            }
            None => {
                connecting.waker = Some(waker.clone());
                None
            }
        }
    }

    /// The caller doesn't wait any longer. A connection that was made meanwhile is closed.
    pub(super) fn stop_connecting(&mut self, now: u64, attempt: u64) {
        let made = self.connecting.remove(&attempt);
        if let Some(Some(Ok(number))) = made.map(|made| made.outcome) {
            self.close(now, number, 0);
        }
    }

    fn knock(&mut self, now: u64, attempt: u64, pause: u64) {
        let Some(connecting) = self.connecting.get(&attempt) else {
            return;
        };
        let (host, run, own, to) = (
            connecting.host,
            connecting.run,
            connecting.own,
            connecting.to,
        );
        let reached = self.host_at(to).filter(|other| {
            self.hosts[*other].powered && self.links.is_open_both_ways(host, *other)
        });
        let Some(other) = reached else {
            return self.knock_again(now, attempt, pause);
        };
        let back = self.due(now, other, host, 0);
        let is_refused = self.links.refusing.contains(&(host, other));
        let listening = self.listeners.get_mut(&to).filter(|_| !is_refused);
        let Some(listening) = listening else {
            let outcome = Err(io::ErrorKind::ConnectionRefused);
            return self.schedule(back, Event::Answered { attempt, outcome });
        };
        if listening.waiting.len() == BACKLOG_MAX {
            return self.knock_again(now, attempt, pause);
        }
        self.next_number += 1;
        let number = self.next_number;
        listening.waiting.push_back(number);
        let ends = [
            End::new(host, run, own, now),
            End::new(other, listening.run, to, now),
        ];
        self.woken.insert(other);
        if let Some(waker) = listening.waker.take() {
            waker.wake();
        }
        self.connections.insert(number, ends);
        if host != other {
            for end in 0..2 {
                let connection = number;
                self.schedule(now + PROBE_EVERY, Event::Probe { connection, end });
            }
        }
        let outcome = Ok(number);
        self.schedule(back, Event::Answered { attempt, outcome });
    }

    /// The request was lost and will be sent again.
    fn knock_again(&mut self, now: u64, attempt: u64, pause: u64) {
        let due = now + pause;
        let pause = (pause * 2).min(RETRY_MAX);
        self.schedule(due, Event::Knock { attempt, pause });
    }

    fn answered(&mut self, now: u64, attempt: u64, outcome: Result<u64, io::ErrorKind>) {
        match self.connecting.get_mut(&attempt) {
            Some(connecting) => {
                self.woken.insert(connecting.host);
                let to = connecting.to;
                connecting.outcome = Some(
                    outcome.map_err(|kind| io::Error::new(kind, format!("nobody listens at {to}"))),
                );
                if let Some(waker) = connecting.waker.take() {
                    waker.wake();
                }
            }
            // The caller has given up or is gone.
            None => {
                if let Ok(number) = outcome {
                    self.close(now, number, 0);
                }
            }
        }
    }

    fn probe(&mut self, now: u64, number: u64, end: usize) {
        let Some(ends) = self.connections.get_mut(&number) else {
            return;
        };
        let (own, other) = (&ends[end], &ends[1 - end]);
        if own.state != State::Open {
            return;
        }
        let (host, peer) = (own.host, other.host);
        let is_reached = self.hosts[peer].powered && self.links.is_open_both_ways(host, peer);
        if !is_reached {
            if now - own.reached_at >= SILENCE_MAX.as_nanos() as u64 {
                ends[end].fail(io::ErrorKind::TimedOut, &mut self.woken);
                return;
            }
        } else if other.state == State::Forgotten {
            // The machine started again and doesn't know the connection.
            ends[end].fail(io::ErrorKind::ConnectionReset, &mut self.woken);
            return;
        } else {
            ends[end].reached_at = now;
        }
        let connection = number;
        self.schedule(now + PROBE_EVERY, Event::Probe { connection, end });
    }

    fn host_at(&self, address: SocketAddr) -> Option<HostNumber> {
        self.hosts
            .iter()
            .position(|host| host.address == address.ip())
    }

    fn take_port(&mut self, host: HostNumber) -> u16 {
        let host = &mut self.hosts[host];
        let port = host.next_port;
        host.next_port = port.checked_add(1).unwrap_or(PORT_FIRST);
        port
    }

    fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// When `bytes` sent now arrive.
    fn due(&mut self, now: u64, from: HostNumber, to: HostNumber, bytes: usize) -> u64 {
        self.links.arrival(now, from, to, bytes, &mut self.random)
    }

    fn schedule(&mut self, due: u64, event: Event) {
        let number = self.take_number();
        let is_next = self.next_due().is_none_or(|next| due < next);
        self.calendar.insert((due, number), event);
        if is_next && let Some(waker) = self.on_event.take() {
            waker.wake();
        }
    }

    /// What waits, for messages: connections and attempts of one node.
    pub(super) fn describe(&self, host: HostNumber) -> String {
        let connections = self.connections.values().filter_map(|ends| {
            let end = ends.iter().position(|end| end.host == host)?;
            Some(ends[end].describe(&ends[1 - end]))
        });
        let connecting = self.connecting.values();
        let attempts = connecting
            .filter(|attempt| attempt.host == host)
            .map(|attempt| format!("connecting to {}", attempt.to));
        let all: Vec<_> = connections.chain(attempts).collect();
        format!("{all:?}")
    }

    fn note(&mut self, due: u64, number: u64, event: &Event) {
        let mut hasher = FixedHasher::default();
        for word in [self.trace, due, number] {
            hasher.write_u64(word);
        }
        match event {
            Event::Knock { attempt, .. } => hash_words(&mut hasher, [1, *attempt]),
            Event::Answered { attempt, outcome } => {
                hash_words(&mut hasher, [2 + u64::from(outcome.is_ok()), *attempt]);
            }
            Event::Arrival {
                connection,
                from,
                packet,
            } => {
                hash_words(&mut hasher, [4 + *from as u64, *connection]);
                packet.hash(&mut hasher);
            }
            Event::Retry {
                connection, from, ..
            } => hash_words(&mut hasher, [6 + *from as u64, *connection]),
            Event::Probe { connection, end } => {
                hash_words(&mut hasher, [8 + *end as u64, *connection]);
            }
            Event::Letter { from, to, .. } => {
                hash_words(&mut hasher, [10, (*from as u64) << 32 | *to as u64]);
            }
        }
        self.trace = hasher.finish();
    }
}

impl Host {
    fn copy(&self) -> Self {
        Self {
            address: self.address,
            powered: self.powered,
            run: None,
            next_port: self.next_port,
        }
    }
}

fn hash_words(hasher: &mut FixedHasher, words: [u64; 2]) {
    words.into_iter().for_each(|word| hasher.write_u64(word));
}
