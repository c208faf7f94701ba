//! The sending half of a connection: takes frames from its side, and gives their bytes to the stream in this order.
//!
//! Two kinds of senders share it. The connection's task ([`Outlet::take`], [`Outlet::send`]) waits for the stream if it
//! must. Whoever has just made something to send may do so without the task ([`Outlet::send_now`]) while that has nothing
//! under way: to wake it would cost more than a small frame, as it means another thread, its search for work, and a
//! switch. Such a sender never waits. What the stream doesn't take is left to the task; what somebody makes while another
//! one sends leaves with that one, who looks again afterwards, so that the two don't wake a third thread.

use crate::Fault;
use crate::channel::{Reading, Stream, Writing};
use crate::frame::{Frame, Outgoing};
use crate::pulse::SILENCE_MAX;
use crate::seal::Sealer;
use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use world::World;

/// What a side does next.
pub(crate) enum Next {
    /// Send this.
    Send(Frame),
    /// Nothing for that long, unless something happens.
    Wait(Duration),
    /// The connection is broken.
    End(Fault),
    /// The connection has served its purpose.
    Over,
}

/// How often a sender looks again for what others have made meanwhile: it has something else to do.
const TURNS_MAX: u32 = 4;

/// The half.
pub(crate) struct Outlet {
    /// Locked for a call to the system, never while somebody waits.
    sending: Mutex<Sending>,
    /// Somebody has made something to send and found this locked: who locked it looks again after unlocking it.
    is_asked: AtomicBool,
}

struct Sending {
    write: Writing,
    sealer: Option<Sealer>,
    together: Together,
    /// The stream keeps nothing back of what it has taken.
    is_flushed: bool,
    /// Why the stream takes no more; the connection's task ends with it.
    fault: Option<Fault>,
}

impl Outlet {
    /// The two halves of a stream. `sealer` seals frames, if they are. Called by a task of the runtime that the
    /// connection's task is on.
    pub(crate) fn of(stream: Box<dyn Stream>, sealer: Option<Sealer>) -> (Reading, Self) {
        let (read, write) = stream.into_halves();
        let sending = Sending {
            write,
            sealer,
            together: Together::default(),
            is_flushed: true,
            fault: None,
        };
        let outlet = Self {
            sending: Mutex::new(sending),
            is_asked: AtomicBool::new(false),
        };
        (read, outlet)
    }

    /// Takes the frames of a side, as many as leave in one call to the system. Gives what the side does then; none if
    /// that wasn't asked, because they were enough. For the connection's task, which sends them.
    pub(crate) fn take(&self, next: impl FnMut() -> Next) -> Option<Next> {
        self.sending.lock().fill(next)
    }

    /// Sends all that was taken, by whomever. Says whether there was anything. For the connection's task: nobody else
    /// waits for the stream.
    pub(crate) async fn send(&self, world: &World) -> Result<bool, Fault> {
        let mut has_sent = false;
        loop {
            // Mostly the stream takes it at once, and no timer is made.
            let tried = poll_fn(|context| Poll::Ready(self.sending.lock().poll(context))).await;
            let is_all = match tried {
                Poll::Ready(is_all) => is_all,
                Poll::Pending => {
                    let waiting = poll_fn(|context| self.sending.lock().poll(context));
                    world
                        .timeout(SILENCE_MAX, waiting)
                        .await
                        .unwrap_or_else(|_| Err(stuck()))
                }
            };
            if is_all? {
                return Ok(has_sent);
            }
            has_sent = true;
        }
    }

    /// Whether somebody has found it locked since this was asked last. The connection's task asks before it waits: what
    /// that one has made may have come too late for [`Outlet::take`].
    pub(crate) fn was_asked(&self) -> bool {
        // Between unlocking and looking, as in `send_now` between asking and trying to lock: one of the two sees the
        // other.
        fence(Ordering::SeqCst);
        self.is_asked.swap(false, Ordering::SeqCst)
    }

    /// Takes the frames of a side and sends them without waiting, or has that done by whoever sends just now. False: the
    /// connection's task must be woken, because it is sending, or something is left to do. The caller is on a thread of
    /// the kind that the connection's task is on (`World::is_here`).
    pub(crate) fn send_now(&self, mut next: impl FnMut() -> Next) -> bool {
        for _ in 0..TURNS_MAX {
            self.is_asked.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let Some(mut sending) = self.sending.try_lock() else {
                return true;
            };
            self.is_asked.store(false, Ordering::SeqCst);
            let is_done = sending.send_now(&mut next);
            drop(sending);
            if !is_done {
                return false;
            }
            fence(Ordering::SeqCst);
            if !self.is_asked.load(Ordering::SeqCst) {
                return true;
            }
        }
        false
    }

    /// Says that nothing more comes.
    pub(crate) async fn shut_down(&self, world: &World) -> Result<(), Fault> {
        let shut = poll_fn(|context| {
            let mut sending = self.sending.lock();
            Pin::new(&mut sending.write).poll_shutdown(context)
        });
        step(world, shut).await
    }
}

impl Sending {
    /// Nothing that was taken is left, and nobody waits for the stream.
    fn is_idle(&self) -> bool {
        self.together.is_empty() && self.is_flushed && self.fault.is_none()
    }

    /// See [`Outlet::send_now`].
    fn send_now(&mut self, next: impl FnMut() -> Next) -> bool {
        // The task waits for the stream, which wakes only the last one who asked.
        if !self.is_idle() {
            return false;
        }
        let then = self.fill(next);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match self.poll(&mut context) {
                Poll::Ready(Ok(false)) => {}
                Poll::Ready(Ok(true)) => return matches!(then, Some(Next::Wait(_))),
                Poll::Ready(Err(fault)) => {
                    self.fault = Some(fault);
                    return false;
                }
                Poll::Pending => return false,
            }
        }
    }

    fn fill(&mut self, mut next: impl FnMut() -> Next) -> Option<Next> {
        while !self.together.is_full() {
            match next() {
                Next::Send(frame) => {
                    let mut bytes = frame.encode();
                    if let Some(sealer) = &mut self.sealer {
                        bytes = sealer.seal(&bytes);
                    }
                    self.together.push(bytes);
                }
                other => return Some(other),
            }
        }
        None
    }

    /// Gives the stream what it takes. True: it has all, and keeps nothing back.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, Fault>> {
        if let Some(fault) = &self.fault {
            return Poll::Ready(Err(fault.clone()));
        }
        let is_all = ready!(self.poll_stream(context));
        Poll::Ready(is_all.map_err(|error| failed(&error)))
    }

    fn poll_stream(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.together.is_empty() {
            if !self.is_flushed {
                ready!(Pin::new(&mut self.write).poll_flush(context))?;
                self.is_flushed = true;
            }
            return Poll::Ready(Ok(true));
        }
        // Parts are sent from where they lie.
        let mut slices = [IoSlice::new(&[]); PARTS * TOGETHER_MAX];
        let count = self.together.slices(&mut slices);
        self.is_flushed = false;
        let write = Pin::new(&mut self.write);
        let sent = ready!(write.poll_write_vectored(context, &slices[..count]))?;
        if sent == 0 {
            let text = "the stream takes no more bytes";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::WriteZero, text)));
        }
        self.together.sent(sent);
        Poll::Ready(Ok(false))
    }
}

/// Most bytes of frames that leave in one call to the system, but for the last frame: sixteen answers of 4 KiB. Whoever
/// makes more at a time gives the other side something to do meanwhile.
const TOGETHER_BYTES: usize = 64 * 1024;
/// Most such frames.
const TOGETHER_MAX: usize = 16;
/// Parts of a frame.
const PARTS: usize = 3;

/// Frames that wait at the same time and leave in one call to the system, which costs more than a small frame.
#[derive(Default)]
struct Together {
    parts: VecDeque<Bytes>,
    bytes: usize,
}

impl Together {
    fn push(&mut self, frame: Outgoing) {
        for part in [frame.header, frame.body, frame.payload] {
            self.bytes += part.len();
            if !part.is_empty() {
                self.parts.push_back(part);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn is_full(&self) -> bool {
        self.bytes >= TOGETHER_BYTES || self.parts.len() > PARTS * (TOGETHER_MAX - 1)
    }

    /// Puts the first parts into `slices`; says how many.
    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            *slice = IoSlice::new(part);
        }
        self.parts.len().min(slices.len())
    }

    fn sent(&mut self, mut count: usize) {
        self.bytes -= count;
        while let Some(part) = self.parts.front_mut() {
            let taken = count.min(part.len());
            part.advance(taken);
            count -= taken;
            if !part.is_empty() {
                return;
            }
            self.parts.pop_front();
        }
    }
}

/// Sends one frame over a stream that isn't a connection yet.
pub(crate) async fn send(
    world: &World,
    write: &mut (impl AsyncWrite + Unpin),
    frame: Outgoing,
) -> Result<(), Fault> {
    let bytes: Vec<u8> = [frame.header, frame.body, frame.payload].concat();
    let mut bytes = Bytes::from(bytes);
    while !bytes.is_empty() {
        let sent = step(world, write.write_buf(&mut bytes)).await?;
        if sent == 0 {
            return Err(Fault::new("the stream takes no more bytes"));
        }
    }
    step(world, write.flush()).await
}

/// One step of sending; a stream that doesn't move for long is broken.
async fn step<T>(world: &World, step: impl Future<Output = io::Result<T>>) -> Result<T, Fault> {
    match world.timeout(SILENCE_MAX, step).await {
        Ok(done) => done.map_err(|error| failed(&error)),
        Err(_) => Err(stuck()),
    }
}

fn failed(error: &io::Error) -> Fault {
    Fault::new(format!("sending failed: {error}"))
}

fn stuck() -> Fault {
    Fault::new("the other node takes no bytes")
}

#[cfg(test)]
mod tests;
