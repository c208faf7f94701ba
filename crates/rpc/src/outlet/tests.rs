//! Two kinds of senders share an outlet: all frames leave, in one order.

use super::*;
use crate::drive::{Side, drive};
use crate::frame::{Ending, Header};
use crate::receive::Receiver;
use futures::future::{Either, join, select};
use model::call::{Call, Class, Method, Reply};
use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncRead, AsyncReadExt, DuplexStream, ReadBuf, duplex};
use tokio::sync::Notify;
use world::sim::Simulation;

/// A side that has a frame of each number to send.
fn side(mut numbers: Range<u64>) -> impl FnMut() -> Next {
    move || match numbers.next() {
        Some(number) => Next::Send(Frame::Cancel { number }),
        None => Next::Wait(Duration::from_secs(1)),
    }
}

async fn received(stream: &mut DuplexStream, count: usize) -> Vec<u64> {
    let (mut receiver, mut numbers) = (Receiver::new(None), Vec::new());
    while numbers.len() < count {
        match receiver.next(|_| Ok(())).unwrap() {
            Some(Frame::Cancel { number }) => numbers.push(number),
            Some(other) => panic!("{other:?}"),
            None => {
                let count = stream.read(receiver.space()).await.unwrap();
                receiver.received(count);
            }
        }
    }
    numbers
}

fn run<F: Future<Output = ()>>(scenario: impl FnOnce(World) -> F) {
    Simulation::new(1).run(scenario).finished();
}

#[test]
fn frames_leave_without_the_task_if_the_stream_takes_them() {
    run(|_| async move {
        let (near, mut far) = duplex(1 << 16);
        let (_read, outlet) = Outlet::of(Box::new(near), None);
        assert!(outlet.send_now(side(1..4)));
        assert!(outlet.send_now(side(4..6)));
        assert_eq!(received(&mut far, 5).await, [1, 2, 3, 4, 5]);
    });
}

/// Would be broken if a sender overtook what the task still has to send, or took the task's place when the stream
/// wakes who waits for it.
#[test]
fn what_the_stream_does_not_take_is_left_to_the_task_in_its_order() {
    // A frame of 64 bytes doesn't fit, nor do two.
    for room in [10, 100] {
        run(|world| async move {
            let (near, mut far) = duplex(room);
            let (_read, outlet) = Outlet::of(Box::new(near), None);
            assert!(!outlet.send_now(side(1..4)));
            assert!(!outlet.send_now(|| panic!("it takes nothing while the task has to send")));
            // These have one part each.
            let most = PARTS * (TOGETHER_MAX - 1) + 1;
            let sending = async {
                let then = outlet.take(side(4..1000));
                assert!(then.is_none(), "they are more than one call takes");
                outlet.send(&world).await
            };
            let (sent, numbers) = join(sending, received(&mut far, most)).await;
            assert_eq!(sent, Ok(true));
            assert!(numbers.into_iter().eq(1..=most as u64));
            assert_eq!(outlet.send(&world).await, Ok(false), "nothing is left");
        });
    }
}

#[test]
fn a_stream_that_is_gone_is_told_to_the_task() {
    run(|world| async move {
        let (near, far) = duplex(100);
        let (_read, outlet) = Outlet::of(Box::new(near), None);
        drop(far);
        assert!(!outlet.send_now(side(1..2)));
        let told = outlet.send(&world).await.unwrap_err();
        assert!(told.to_string().contains("sending failed"), "{told}");
    });
}

/// Numbers of frames that wait to be sent.
type Numbers = Arc<Mutex<VecDeque<u64>>>;

fn queued(numbers: &Numbers) -> impl FnMut() -> Next {
    move || match numbers.lock().pop_front() {
        Some(number) => Next::Send(Frame::Cancel { number }),
        None => Next::Wait(Duration::from_secs(1)),
    }
}

/// A stream during whose first write somebody else has something to send.
struct Interrupted {
    stream: DuplexStream,
    interrupt: Option<Box<dyn FnOnce() + Send>>,
}

impl Stream for Interrupted {}

impl AsyncRead for Interrupted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Interrupted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(interrupt) = self.interrupt.take() {
            interrupt();
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// An outlet with three frames to send; during the first write of them there is a fourth, whose sender finds it locked.
struct Scene {
    _read: Reading,
    outlet: Arc<OnceLock<Outlet>>,
    far: DuplexStream,
    numbers: Numbers,
}

impl Scene {
    fn new() -> Self {
        let (near, far) = duplex(1 << 16);
        let numbers: Numbers = Arc::new(Mutex::new((1..4).collect()));
        let outlet: Arc<OnceLock<Outlet>> = Arc::default();
        let (other, made) = (outlet.clone(), numbers.clone());
        let interrupt = move || {
            made.lock().push_back(4);
            let other = other.get().expect("it is being used");
            let looks_again = other.send_now(|| panic!("somebody else is sending"));
            assert!(looks_again);
        };
        let stream = Interrupted {
            stream: near,
            interrupt: Some(Box::new(interrupt)),
        };
        let (read, own) = Outlet::of(Box::new(stream), None);
        assert!(outlet.set(own).is_ok());
        Self {
            _read: read,
            outlet,
            far,
            numbers,
        }
    }

    fn outlet(&self) -> &Outlet {
        self.outlet.get().expect("it was made with the scene")
    }
}

#[test]
fn what_is_made_while_somebody_sends_leaves_with_that_one() {
    run(|_| async move {
        let mut scene = Scene::new();
        assert!(scene.outlet().send_now(queued(&scene.numbers)));
        assert_eq!(received(&mut scene.far, 4).await, [1, 2, 3, 4]);
        assert!(!scene.outlet().was_asked(), "nobody else needs to look");
    });
}

#[test]
fn the_task_hears_of_what_is_made_while_it_sends() {
    run(|world| async move {
        let mut scene = Scene::new();
        let then = scene.outlet().take(queued(&scene.numbers));
        assert!(matches!(then, Some(Next::Wait(_))));
        assert!(!scene.outlet().was_asked());
        assert_eq!(scene.outlet().send(&world).await, Ok(true));
        assert_eq!(received(&mut scene.far, 3).await, [1, 2, 3]);
        assert!(scene.outlet().was_asked());
        assert!(!scene.outlet().was_asked(), "it is told once");
    });
}

/// A side that has something to send just after it was asked.
struct Late {
    numbers: Numbers,
    outlet: OnceLock<Outlet>,
    was_late: AtomicBool,
    work: Notify,
}

impl Side for Late {
    fn allow(&self, _: &Header) -> Result<(), Fault> {
        Ok(())
    }

    fn arrived(&self, _: Frame) -> Result<(), Fault> {
        Ok(())
    }

    fn heard(&self) {}

    fn next(&self) -> Next {
        let next = queued(&self.numbers)();
        if matches!(next, Next::Wait(_)) && !self.was_late.swap(true, Ordering::SeqCst) {
            self.numbers.lock().push_back(1);
            let outlet = self.outlet.get().expect("the task uses it");
            assert!(outlet.send_now(|| panic!("the task looks again")));
        }
        next
    }

    fn work(&self) -> &Notify {
        &self.work
    }
}

/// Would be late by a second if the task waited without another look.
#[test]
fn what_is_made_just_after_the_task_has_looked_does_not_wait() {
    run(|world| async move {
        let (near, mut far) = duplex(1 << 16);
        let (read, outlet) = Outlet::of(Box::new(near), None);
        let side = Late {
            numbers: Numbers::default(),
            outlet: outlet.into(),
            was_late: AtomicBool::new(false),
            work: Notify::new(),
        };
        let outlet = side.outlet.get().expect("it was just given");
        let began = world.now();
        let driving = pin!(drive(&world, read, Receiver::new(None), outlet, &side));
        let receiving = pin!(received(&mut far, 1));
        let Either::Right((numbers, _)) = select(driving, receiving).await else {
            panic!("the connection has ended");
        };
        assert_eq!(numbers, [1]);
        assert!(world.now() - began < Duration::from_secs(1));
    });
}

/// Of a node that reads 4 KiB for each of sixteen threads.
#[test]
fn sixteen_small_answers_leave_in_one_call() {
    let mut together = Together::default();
    for number in 1..=16 {
        assert!(!together.is_full());
        let answer = Frame::Reply {
            number,
            class: Class::Bulk,
            ending: Ending::Answered(Reply::new(&Ok(number), vec![7; 4096].into())),
        };
        together.push(answer.encode());
    }
    let mut slices = [IoSlice::new(&[]); PARTS * TOGETHER_MAX];
    let count = together.slices(&mut slices);
    let bytes: usize = slices[..count].iter().map(|slice| slice.len()).sum();
    assert_eq!(together.bytes, bytes);
    assert!(together.is_full());
}

/// Would be broken if frames that leave together were copied to one place.
#[test]
fn the_stream_is_given_a_payload_where_it_lies() {
    let payload = Bytes::from(vec![7; 100_000]);
    let call = Call {
        payload: payload.clone(),
        ..Call::new(Method(1), Class::Bulk, &"text")
    };
    let mut together = Together::default();
    let request = Frame::Request {
        number: 1,
        budget: Duration::from_secs(1),
        call,
    };
    for frame in [Frame::Alive, request] {
        together.push(frame.encode());
    }
    let mut slices = [IoSlice::new(&[]); PARTS * TOGETHER_MAX];
    let count = together.slices(&mut slices);
    let last = &slices[count - 1];
    assert_eq!(
        (last.as_ptr(), last.len()),
        (payload.as_ptr(), payload.len())
    );
}
