//! Calls that may wait for what others do leave room for what these ask for, however many there are.

use super::sides::{NO_LANES, hello_from_to, now};
use crate::frame::{Frame, cost};
use crate::hello::{Credit, Credits};
use crate::traffic::{Step, Traffic};
use model::NodeId;
use model::call::{Call, Class, Method};
use std::time::Duration;
use world::{Deadline, Instant};

/// So many calls fit, and an eighth of them is kept.
const FIT: u32 = 32;
const KEPT: u32 = 4;
/// More than is ever used.
const PLENTY: u32 = 1 << 20;

fn call(may_wait: bool) -> Call {
    Call {
        may_wait,
        ..Call::new(Method(1), Class::Metadata, &())
    }
}

/// A lane with one connection, whose other side answers nothing.
struct Lane {
    traffic: Traffic<u32>,
    link: u64,
    now: Instant,
    last: u32,
}

impl Lane {
    /// The other side has said hello, and granted so much of each class. One call waits that may wait for others.
    fn greeted(credit: Credit) -> Self {
        let now = now();
        let mut traffic = Traffic::new(NodeId(2), 1);
        let deadline = Deadline::at(now + Duration::from_secs(1));
        let (_, todo) = traffic.call(call(true), deadline, 0, now).unwrap();
        assert_eq!(todo.dial, Some(0));
        let own = hello_from_to(1, 2, Credits::default(), NO_LANES);
        let link = traffic.opened(own, now).unwrap();
        let hello = hello_from_to(2, 1, [credit; 4], NO_LANES);
        let (_, _) = traffic.arrived(link, Frame::Hello(hello), now).unwrap();
        let _todo = traffic.accepted(link, now);
        Self {
            traffic,
            link,
            now,
            last: 0,
        }
    }

    /// Whether a call is taken on.
    fn takes(&mut self, may_wait: bool) -> bool {
        self.last += 1;
        let deadline = Deadline::at(self.now + Duration::from_secs(1));
        let called = self
            .traffic
            .call(call(may_wait), deadline, self.last, self.now);
        called.is_ok()
    }

    /// Sends what can be sent; how many requests that were.
    fn send(&mut self) -> u32 {
        let mut sent = 0;
        loop {
            let (step, _todo) = self.traffic.next(self.link, self.now);
            match step {
                Step::Send(Frame::Request { .. }) => sent += 1,
                Step::Send(_) => {}
                Step::Idle | Step::Over => return sent,
            }
        }
    }
}

#[test]
fn calls_that_may_wait_for_others_leave_credits_for_what_these_ask_for() {
    let bytes = u64::from(FIT) * cost(&call(true));
    let by_bytes = Credit {
        requests: PLENTY,
        bytes,
    };
    let by_requests = Credit {
        requests: FIT,
        bytes: u64::from(PLENTY) * cost(&call(true)),
    };
    for credit in [by_bytes, by_requests] {
        let mut lane = Lane::greeted(credit);
        for _ in 0..2 * FIT {
            assert!(lane.takes(true));
        }
        assert_eq!(lane.send(), FIT - KEPT);
        for _ in 0..2 * KEPT {
            assert!(lane.takes(false));
        }
        assert_eq!(lane.send(), KEPT, "they don't wait behind the others");
    }
}

#[test]
fn what_may_wait_for_others_goes_if_nothing_else_is_under_way() {
    let bytes = cost(&call(true));
    let mut lane = Lane::greeted(Credit { requests: 1, bytes });
    assert_eq!(lane.send(), 1);
}

/// Would be broken if what is published or unlocked found no place among what waits to be sent.
#[test]
fn calls_that_may_wait_for_others_and_are_not_sent_leave_places_for_others() {
    let mut lane = Lane::greeted(Credit {
        requests: FIT,
        bytes: u64::from(FIT) * cost(&call(true)),
    });
    let mut taken = 0;
    while lane.takes(true) {
        lane.send();
        taken += 1;
    }
    assert!(taken > FIT, "some wait to be sent");
    for _ in 0..FIT {
        assert!(lane.takes(false));
    }
}
