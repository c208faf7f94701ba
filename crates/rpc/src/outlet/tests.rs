//! Two kinds of senders share an outlet: all frames leave, in one order.

use super::*;
use crate::frame::Ending;
use crate::receive::Receiver;
use futures::future::join;
use model::call::{Call, Class, Method, Reply};
use std::ops::Range;
use tokio::io::{AsyncReadExt, DuplexStream, duplex};
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
