//! Moves the bytes of one connection: reads frames for its side, writes those that its side gives.

use crate::Fault;
use crate::channel::{Reading, Receive, Stream};
use crate::frame::{Frame, Header};
use crate::outlet::{Next, Outlet};
use crate::pulse::{Beat, SILENCE_MAX};
use crate::receive::Receiver;
use futures::future::{BoxFuture, Either, select};
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::Notify;
use world::World;

/// How long a side that has nothing more to say waits until the other closes.
const LINGER_MAX: Duration = Duration::from_secs(1);

/// How long many bytes of a frame are waited for before those are taken that have come.
const TOGETHER_MAX: Duration = Duration::from_secs(1);

/// One side's state, as its connection sees it. Calls are short and never wait.
pub(crate) trait Side: Send + Sync {
    /// Judges a header before memory is taken for its frame.
    fn allow(&self, header: &Header) -> Result<(), Fault>;
    /// A frame came.
    fn arrived(&self, frame: Frame) -> Result<(), Fault>;
    /// Bytes came.
    fn heard(&self);
    /// The connection ends because the other side sent what breaks the rules, or didn't begin in time. Of use to whoever is
    /// asked; who asks has it as an error.
    fn broken(&self, _fault: &Fault) {}
    /// Goes on with what the side does on the connection's task, whenever that runs. True: there may be something to send
    /// because of it.
    fn go_on(&self, _context: &mut Context<'_>) -> bool {
        false
    }
    /// What to do next.
    fn next(&self) -> Next;
    /// Notified when `next` may have something else to say.
    fn work(&self) -> &Notify;
}

/// Waits for the first frame of a side that sends nothing before it. Gives what has been received.
pub(crate) async fn hear_first<S: Stream>(
    world: &World,
    stream: &mut S,
    mut receiver: Receiver,
    side: &impl Side,
) -> Result<Receiver, Fault> {
    let first = async {
        loop {
            if let Some(frame) = next_frame(&mut receiver, side)? {
                return side.arrived(frame);
            }
            receive(stream, &mut receiver, side).await?;
        }
    };
    // Single bytes without end are no frame.
    match world.timeout(SILENCE_MAX, first).await {
        Ok(heard) => heard.map(|()| receiver),
        Err(_) => {
            let fault = Fault::new("the other side said no hello");
            side.broken(&fault);
            Err(fault)
        }
    }
}

/// The next frame that has come whole.
fn next_frame(receiver: &mut Receiver, side: &impl Side) -> Result<Option<Frame>, Fault> {
    let next = receiver.next(|header| side.allow(header));
    next.inspect_err(|fault| side.broken(fault))
}

/// Moves bytes until the connection ends, and says why it did. `receiver` holds what has been received before.
pub(crate) async fn drive(
    world: &World,
    mut read: Reading,
    receiver: Receiver,
    outlet: &Outlet,
    side: &impl Side,
) -> Fault {
    let has_made = AtomicBool::new(false);
    let mut frames = pin!(read_frames(world, &mut read, receiver, side));
    // What has come begins, and what ends is sent, before the task waits again: it doesn't wake itself for that. A task
    // that is woken while it runs is run once more, and another thread is woken to take it.
    let reading = poll_fn(|context| {
        let read = frames.as_mut().poll(context);
        if side.go_on(context) {
            has_made.store(true, Ordering::Relaxed);
        }
        read
    });
    let writing = pin!(write_frames(world, outlet, side, &has_made));
    match select(reading, writing).await {
        Either::Left((fault, _)) => fault,
        Either::Right((Err(fault), _)) => fault,
        Either::Right((Ok(()), reading)) => {
            // To close while bytes arrive would reset the connection, and the other side could lose
            // what it hasn't read.
            let rest = world.timeout(LINGER_MAX, reading).await;
            rest.unwrap_or_else(|_| Fault::new("the other side keeps the connection open"))
        }
    }
}

/// Ends with the connection; silence is noticed by [`write_frames`].
async fn read_frames(
    world: &World,
    read: &mut Reading,
    mut receiver: Receiver,
    side: &impl Side,
) -> Fault {
    loop {
        loop {
            match next_frame(&mut receiver, side) {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    if let Err(fault) = side.arrived(frame) {
                        return fault;
                    }
                }
                Err(fault) => return fault,
            }
        }
        if let Err(fault) = receive_wanted(world, read, &mut receiver, side).await {
            return fault;
        }
    }
}

/// Receives what is missing of a frame, many bytes at a time if they are many.
async fn receive_wanted(
    world: &World,
    read: &mut Reading,
    receiver: &mut Receiver,
    side: &impl Side,
) -> Result<(), Fault> {
    let waits_for_many = read.want(receiver.wanted());
    if waits_for_many.map_err(|error| failed(&error))? {
        let many = receive(read, receiver, side);
        if let Ok(received) = world.timeout(TOGETHER_MAX, many).await {
            return received;
        }
        // Few come on a slow connection, and say that the other side is there.
        read.want(1).map_err(|error| failed(&error))?;
    }
    receive(read, receiver, side).await
}

async fn receive(
    read: &mut (impl AsyncRead + Unpin),
    receiver: &mut Receiver,
    side: &impl Side,
) -> Result<(), Fault> {
    match read.read(receiver.space()).await {
        Ok(0) => Err(Fault::new("the other side closed the connection")),
        Ok(count) => {
            receiver.received(count);
            side.heard();
            Ok(())
        }
        Err(error) => Err(failed(&error)),
    }
}

fn failed(error: &io::Error) -> Fault {
    Fault::new(format!("receiving failed: {error}"))
}

/// Ends without a fault once all is sent and the other side knows it. `has_made`: the same task has made something to send.
async fn write_frames(
    world: &World,
    outlet: &Outlet,
    side: &impl Side,
    has_made: &AtomicBool,
) -> Result<(), Fault> {
    // One timer for many frames: what is due only gets later by them, so it is never too late, and too early at most
    // once in a second.
    let mut due: Option<BoxFuture<'_, ()>> = None;
    loop {
        has_made.store(false, Ordering::Relaxed);
        let then = outlet.take(|| side.next());
        let has_sent = outlet.send(world).await?;
        match then {
            None | Some(Next::Send(_)) => {}
            // That took time, or other frames have come: how long there is to wait is another question.
            Some(Next::Wait(_)) if has_sent || outlet.was_asked() => {}
            // A notification that came since `next` is kept, so none is missed.
            Some(Next::Wait(time)) => {
                let sleep = due.get_or_insert_with(|| Box::pin(world.sleep(time)));
                let mut notified = pin!(side.work().notified());
                let work = poll_fn(|context| match has_made.load(Ordering::Relaxed) {
                    true => Poll::Ready(()),
                    false => notified.as_mut().poll(context),
                });
                let is_due = matches!(select(work, sleep.as_mut()).await, Either::Right(_));
                if is_due {
                    due = None;
                }
            }
            Some(Next::End(fault)) => return Err(fault),
            Some(Next::Over) => return outlet.shut_down(world).await,
        }
    }
}

/// The next step of a side that has no frame to send.
pub(crate) fn idle(beat: Result<Beat, Fault>) -> Next {
    match beat {
        Ok(Beat::Alive) => Next::Send(Frame::Alive),
        Ok(Beat::Wait(time)) => Next::Wait(time),
        Err(fault) => Next::End(fault),
    }
}
