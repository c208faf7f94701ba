//! Moves the bytes of one connection: reads frames for its side, writes those that its side gives.

use crate::Fault;
use crate::channel::{Channel, Stream};
use crate::frame::{Frame, Header, Outgoing};
use crate::pulse::{Beat, SILENCE_MAX};
use crate::receive::Receiver;
use crate::seal::{Opener, Sealer};
use bytes::{Buf, Bytes};
use futures::future::{BoxFuture, Either, select};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use world::World;

/// How long a side that has nothing more to say waits until the other closes.
const LINGER_MAX: Duration = Duration::from_secs(1);

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

/// One side's state, as its connection sees it. Calls are short and never wait.
pub(crate) trait Side: Send + Sync {
    /// Judges a header before memory is taken for its frame.
    fn allow(&self, header: &Header) -> Result<(), Fault>;
    /// A frame came.
    fn arrived(&self, frame: Frame) -> Result<(), Fault>;
    /// Bytes came.
    fn heard(&self);
    /// What to do next.
    fn next(&self) -> Next;
    /// Notified when `next` may have something else to say.
    fn work(&self) -> &Notify;
}

/// Moves bytes until the connection ends, and says why it did.
pub(crate) async fn drive(world: &World, channel: Channel, side: &impl Side) -> Fault {
    let (stream, protection) = channel.into_parts();
    let (sealer, opener) = protection.unzip();
    drive_on(world, stream, sealer, Receiver::new(opener), side).await
}

/// Waits for the first frame of a side that sends nothing before it. Gives what has been received.
/// `opener` opens frames, if they are sealed.
pub(crate) async fn hear_first<S: Stream>(
    world: &World,
    stream: &mut S,
    opener: Option<Opener>,
    side: &impl Side,
) -> Result<Receiver, Fault> {
    let mut receiver = Receiver::new(opener);
    let first = async {
        loop {
            if let Some(frame) = receiver.next(|header| side.allow(header))? {
                return side.arrived(frame);
            }
            receive(stream, &mut receiver, side).await?;
        }
    };
    // Single bytes without end are no frame.
    match world.timeout(SILENCE_MAX, first).await {
        Ok(heard) => heard.map(|()| receiver),
        Err(_) => Err(Fault::new("the other side said no hello")),
    }
}

/// As [`drive`], after what has been received. `sealer` seals frames, if they are.
pub(crate) async fn drive_on<S: Stream>(
    world: &World,
    stream: S,
    sealer: Option<Sealer>,
    receiver: Receiver,
    side: &impl Side,
) -> Fault {
    let (mut read, mut write) = tokio::io::split(stream);
    let reading = pin!(read_frames(&mut read, receiver, side));
    let writing = pin!(write_frames(world, &mut write, sealer, side));
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
    read: &mut (impl AsyncRead + Unpin),
    mut receiver: Receiver,
    side: &impl Side,
) -> Fault {
    loop {
        loop {
            match receiver.next(|header| side.allow(header)) {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    if let Err(fault) = side.arrived(frame) {
                        return fault;
                    }
                }
                Err(fault) => return fault,
            }
        }
        if let Err(fault) = receive(read, &mut receiver, side).await {
            return fault;
        }
    }
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
        Err(error) => Err(Fault::new(format!("receiving failed: {error}"))),
    }
}

/// Ends without a fault once all is sent and the other side knows it.
async fn write_frames(
    world: &World,
    write: &mut (impl AsyncWrite + Unpin),
    mut sealer: Option<Sealer>,
    side: &impl Side,
) -> Result<(), Fault> {
    let mut together = Together::default();
    // One timer for many frames: what is due only gets later by them, so it is never too late, and too early at most
    // once in a second.
    let mut due: Option<BoxFuture<'_, ()>> = None;
    loop {
        let then = loop {
            match side.next() {
                Next::Send(frame) => {
                    let mut bytes = frame.encode();
                    if let Some(sealer) = &mut sealer {
                        bytes = sealer.seal(&bytes);
                    }
                    together.push(bytes);
                    if together.is_full() {
                        break None;
                    }
                }
                other => break Some(other),
            }
        };
        let has_sent = !together.is_empty();
        together.send(world, write).await?;
        match then {
            None | Some(Next::Send(_)) => {}
            // That took time, or other frames have come: how long there is to wait is another question.
            Some(Next::Wait(_)) if has_sent => {}
            // A notification that came since `next` is kept, so none is missed.
            Some(Next::Wait(time)) => {
                let sleep = due.get_or_insert_with(|| Box::pin(world.sleep(time)));
                let work = pin!(side.work().notified());
                let is_due = matches!(select(work, sleep.as_mut()).await, Either::Right(_));
                if is_due {
                    due = None;
                }
            }
            Some(Next::End(fault)) => return Err(fault),
            Some(Next::Over) => return step(world, write.shutdown()).await,
        }
    }
}

pub(crate) async fn send(
    world: &World,
    write: &mut (impl AsyncWrite + Unpin),
    frame: Outgoing,
) -> Result<(), Fault> {
    let mut alone = Together::default();
    alone.push(frame);
    alone.send(world, write).await
}

/// Most bytes of frames that leave in one call to the system, but for the last frame.
const TOGETHER_BYTES: usize = 16 * 1024;
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

    /// Sends all of it; payloads from where they lie.
    async fn send(
        &mut self,
        world: &World,
        write: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), Fault> {
        if self.is_empty() {
            return Ok(());
        }
        while !self.is_empty() {
            let mut slices = [std::io::IoSlice::new(&[]); PARTS * TOGETHER_MAX];
            let count = self.parts.len().min(slices.len());
            for (slice, part) in slices.iter_mut().zip(&self.parts) {
                *slice = std::io::IoSlice::new(part);
            }
            let sent = step(world, write.write_vectored(&slices[..count])).await?;
            if sent == 0 {
                return Err(Fault::new("the stream takes no more bytes"));
            }
            self.sent(sent);
        }
        self.bytes = 0;
        step(world, write.flush()).await
    }

    fn sent(&mut self, mut count: usize) {
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

/// One step of sending; a stream that doesn't move for long is broken.
async fn step<T>(
    world: &World,
    step: impl Future<Output = std::io::Result<T>>,
) -> Result<T, Fault> {
    match world.timeout(SILENCE_MAX, step).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(Fault::new(format!("sending failed: {error}"))),
        Err(_) => Err(Fault::new("the other node takes no bytes")),
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
