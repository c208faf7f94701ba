//! The two directions of a connection: buffers, packets, what is lost and sent again.

use super::{Event, HostNumber, Network, RETRY_FIRST, RETRY_MAX};
use crate::FixedHasher;
use bytes::{Buf, Bytes};
use std::collections::{BTreeSet, VecDeque};
use std::hash::Hasher;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::task::{Poll, Waker};
use tokio::io::ReadBuf;

/// Most bytes of one direction that were sent and not yet read by the peer's program.
const WINDOW: usize = 1 << 20;

/// Read bytes after which the sender is told.
const WINDOW_STEP: usize = WINDOW / 4;

/// One end of a connection. What is said about sending concerns the direction away from it.
pub(super) struct End {
    pub(super) host: HostNumber,
    /// The process that has it; none after that ended.
    pub(super) run: Option<u64>,
    pub(super) address: SocketAddr,
    pub(super) state: State,
    /// When the other end was last known to be there.
    pub(super) reached_at: u64,
    received: VecDeque<Bytes>,
    received_bytes: usize,
    /// Bytes read since the sender was last told.
    untold: usize,
    /// The other end sends nothing more.
    is_finished: bool,
    has_reader: bool,
    reader: Option<Waker>,
    /// Bytes sent of which the other end hasn't said that they were read.
    unread: usize,
    has_writer: bool,
    /// The end of the bytes was sent.
    has_ended: bool,
    writer: Option<Waker>,
    /// When the last packet sent arrives.
    last_due: u64,
    /// Packets that were lost, and those after them, until they are sent again.
    stalled: VecDeque<Packet>,
}

/// What an end is to its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Open,
    Failed(io::ErrorKind),
    /// The program closed it or ended; its machine answers with resets.
    Closed,
    /// Its machine has lost power.
    Forgotten,
}

/// What travels in one direction.
pub(super) enum Packet {
    Data(Bytes),
    /// No more data comes.
    End,
    /// So many more bytes were read.
    Read(usize),
    /// The sender doesn't know (any longer) what the connection is.
    Reset,
}

impl End {
    pub(super) fn new(host: HostNumber, run: u64, address: SocketAddr, now: u64) -> Self {
        Self {
            host,
            run: Some(run),
            address,
            state: State::Open,
            reached_at: now,
            received: VecDeque::new(),
            received_bytes: 0,
            untold: 0,
            is_finished: false,
            has_reader: true,
            reader: None,
            unread: 0,
            has_writer: true,
            has_ended: false,
            writer: None,
            last_due: 0,
            stalled: VecDeque::new(),
        }
    }

    /// Ends it with an error, if it hasn't ended yet.
    pub(super) fn fail(&mut self, kind: io::ErrorKind, woken: &mut BTreeSet<HostNumber>) {
        if self.state == State::Open {
            self.state = State::Failed(kind);
            self.stalled.clear();
            self.wake(woken);
        }
    }

    /// Its machine lost power.
    pub(super) fn forget(&mut self) {
        self.state = State::Forgotten;
        self.run = None;
        self.received.clear();
        self.received_bytes = 0;
        self.stalled.clear();
        (self.reader, self.writer) = (None, None);
    }

    fn wake(&mut self, woken: &mut BTreeSet<HostNumber>) {
        woken.insert(self.host);
        for waker in [self.reader.take(), self.writer.take()]
            .into_iter()
            .flatten()
        {
            waker.wake();
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.state, State::Closed | State::Forgotten)
    }

    /// For messages.
    pub(super) fn describe(&self, peer: &Self) -> String {
        format!(
            "{} to {}: {:?}, {} bytes to read, {} sent and unread, {} packets lost",
            self.address,
            peer.address,
            self.state,
            self.received_bytes,
            self.unread,
            self.stalled.len()
        )
    }
}

impl Network {
    /// The addresses of a connection, own and peer's.
    pub(in crate::sim) fn addresses(&self, number: u64, end: usize) -> (SocketAddr, SocketAddr) {
        let ends = &self.connections[&number];
        (ends[end].address, ends[1 - end].address)
    }

    pub(in crate::sim) fn read(
        &mut self,
        now: u64,
        number: u64,
        end: usize,
        buffer: &mut ReadBuf<'_>,
        waker: &Waker,
    ) -> Poll<io::Result<()>> {
        let Some(ends) = self.connections.get_mut(&number) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        let own = &mut ends[end];
        if let Some(bytes) = own.received.front_mut() {
            let length = bytes.len().min(buffer.remaining());
            buffer.put_slice(&bytes[..length]);
            bytes.advance(length);
            if bytes.is_empty() {
                own.received.pop_front();
            }
            own.received_bytes -= length;
            own.untold += length;
            if own.untold >= WINDOW_STEP {
                let read = std::mem::take(&mut own.untold);
                self.send(now, number, end, Packet::Read(read));
            }
            return Poll::Ready(Ok(()));
        }
        match own.state {
            State::Open if own.is_finished => Poll::Ready(Ok(())),
            State::Open => {
                own.reader = Some(waker.clone());
                Poll::Pending
            }
            State::Failed(kind) => Poll::Ready(Err(kind.into())),
            State::Closed | State::Forgotten => Poll::Pending,
        }
    }

    pub(in crate::sim) fn write(
        &mut self,
        now: u64,
        number: u64,
        end: usize,
        slices: &[IoSlice<'_>],
        waker: &Waker,
    ) -> Poll<io::Result<usize>> {
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
        let Some(ends) = self.connections.get_mut(&number) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        let own = &mut ends[end];
        match own.state {
            State::Open if own.has_ended => {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            State::Open => {}
            State::Failed(kind) => return Poll::Ready(Err(kind.into())),
            State::Closed | State::Forgotten => return Poll::Pending,
        }
        if offered == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut length = offered.min(WINDOW - own.unread);
        if length == 0 {
            own.writer = Some(waker.clone());
            return Poll::Pending;
        }
        // Kernels take less than offered now and then.
        if self.random.below(8) == 0 {
            length = 1 + self.random.below(length as u64) as usize;
        }
        own.unread += length;
        let packet = Packet::Data(gather(slices, length));
        self.send(now, number, end, packet);
        Poll::Ready(Ok(length))
    }

    /// No more is written.
    pub(in crate::sim) fn shut_down(&mut self, now: u64, number: u64, end: usize) {
        if let Some(ends) = self.connections.get_mut(&number)
            && ends[end].state == State::Open
            && !ends[end].has_ended
        {
            ends[end].has_ended = true;
            self.send(now, number, end, Packet::End);
        }
    }

    /// The program dropped its reader (or else its writer).
    pub(in crate::sim) fn drop_half(&mut self, now: u64, number: u64, end: usize, reader: bool) {
        if !reader {
            self.shut_down(now, number, end);
        }
        let Some(ends) = self.connections.get_mut(&number) else {
            return;
        };
        let own = &mut ends[end];
        match reader {
            true => own.has_reader = false,
            false => own.has_writer = false,
        }
        if !own.has_reader && !own.has_writer {
            self.close(now, number, end);
        }
    }

    /// The program (or the kernel after it) closes an end. The peer reads the rest and then the end,
    /// or is told of a reset if bytes were never read.
    pub(super) fn close(&mut self, now: u64, number: u64, end: usize) {
        let Some(ends) = self.connections.get_mut(&number) else {
            return;
        };
        let own = &mut ends[end];
        if own.is_over() {
            return;
        }
        let was_open = own.state == State::Open;
        let had_unread = own.received_bytes > 0;
        own.received.clear();
        own.received_bytes = 0;
        (own.reader, own.writer) = (None, None);
        if was_open && had_unread {
            self.send_reset(now, number, end);
        } else {
            self.shut_down(now, number, end);
        }
        let own = &mut self.connections.get_mut(&number).expect("just seen")[end];
        own.state = State::Closed;
        own.run = None;
        self.drop_if_over(number);
    }

    pub(super) fn drop_if_over(&mut self, number: u64) {
        if let Some(ends) = self.connections.get(&number)
            && ends.iter().all(End::is_over)
        {
            self.connections.remove(&number);
        }
    }

    fn send(&mut self, now: u64, number: u64, from: usize, packet: Packet) {
        let Some(ends) = self.connections.get_mut(&number) else {
            return;
        };
        let hosts = (ends[from].host, ends[1 - from].host);
        if !ends[from].stalled.is_empty() {
            ends[from].stalled.push_back(packet);
            return;
        }
        let due = self.due(now, hosts.0, hosts.1, packet.bytes());
        let own = &mut self.connections.get_mut(&number).expect("just seen")[from];
        own.last_due = due.max(own.last_due);
        let due = own.last_due;
        let arrival = Event::Arrival {
            connection: number,
            from,
            packet,
        };
        self.schedule(due, arrival);
    }

    /// Sends a reset, which overtakes everything and isn't repeated when it is lost.
    fn send_reset(&mut self, now: u64, number: u64, from: usize) {
        let Some(ends) = self.connections.get(&number) else {
            return;
        };
        let due = self.due(now, ends[from].host, ends[1 - from].host, 0);
        let arrival = Event::Arrival {
            connection: number,
            from,
            packet: Packet::Reset,
        };
        self.schedule(due, arrival);
    }

    pub(super) fn arrive(&mut self, now: u64, number: u64, from: usize, packet: Packet) {
        let Some(ends) = self.connections.get_mut(&number) else {
            return;
        };
        let hosts = (ends[from].host, ends[1 - from].host);
        let is_lost = !self.links.is_open(hosts.0, hosts.1) || !self.hosts[hosts.1].powered;
        if matches!(packet, Packet::Reset) {
            if !is_lost {
                ends[1 - from].fail(io::ErrorKind::ConnectionReset, &mut self.woken);
            }
            return;
        }
        let sender = &mut ends[from];
        if is_lost || !sender.stalled.is_empty() {
            // Without power nobody sends it again.
            if sender.state == State::Forgotten {
                return;
            }
            let is_first = sender.stalled.is_empty();
            sender.stalled.push_back(packet);
            if is_first {
                self.retry_later(now, number, from, RETRY_FIRST);
            }
            return;
        }
        let own = &mut ends[1 - from];
        match (own.state, packet) {
            (State::Open, Packet::Data(bytes)) => {
                own.received_bytes += bytes.len();
                assert!(own.received_bytes <= WINDOW, "senders keep to the window");
                own.received.push_back(bytes);
                self.woken.insert(own.host);
                wake(&mut own.reader);
            }
            (State::Open, Packet::End) => {
                own.is_finished = true;
                self.woken.insert(own.host);
                wake(&mut own.reader);
            }
            (State::Open, Packet::Read(read)) => {
                own.unread -= read;
                self.woken.insert(own.host);
                wake(&mut own.writer);
            }
            (State::Failed(_) | State::Closed | State::Forgotten, Packet::Data(_)) => {
                self.send_reset(now, number, 1 - from);
            }
            _ => {}
        }
    }

    fn retry_later(&mut self, now: u64, number: u64, from: usize, pause: u64) {
        let retry = Event::Retry {
            connection: number,
            from,
            pause,
        };
        self.schedule(now + pause, retry);
    }

    pub(super) fn retry(&mut self, now: u64, number: u64, from: usize, pause: u64) {
        let Some(ends) = self.connections.get_mut(&number) else {
            return;
        };
        let hosts = (ends[from].host, ends[1 - from].host);
        if !self.links.is_open(hosts.0, hosts.1) || !self.hosts[hosts.1].powered {
            let is_waiting = !ends[from].stalled.is_empty();
            if is_waiting {
                self.retry_later(now, number, from, (pause * 2).min(RETRY_MAX));
            }
            return;
        }
        for packet in std::mem::take(&mut ends[from].stalled) {
            self.send(now, number, from, packet);
        }
    }
}

impl Packet {
    fn bytes(&self) -> usize {
        match self {
            Self::Data(bytes) => bytes.len(),
            _ => 0,
        }
    }

    pub(super) fn hash(&self, hasher: &mut FixedHasher) {
        match self {
            Self::Data(bytes) => hasher.write(bytes),
            Self::End => hasher.write_u64(1),
            Self::Read(read) => hasher.write_usize(*read),
            Self::Reset => hasher.write_u64(2),
        }
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// The first `length` bytes of `slices`.
fn gather(slices: &[IoSlice<'_>], length: usize) -> Bytes {
    let mut bytes = Vec::with_capacity(length);
    for slice in slices {
        let rest = length - bytes.len();
        bytes.extend_from_slice(&slice[..slice.len().min(rest)]);
    }
    bytes.into()
}
