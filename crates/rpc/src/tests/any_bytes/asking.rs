//! Whatever comes to the side that asks.

use super::{CONNECTION, CREDITS, Stream, any_credits, call, hello_of};
use crate::caller::{Ended, News, Outcome};
use crate::hello::Credits;
use crate::tests::sides::now;
use crate::traffic::{Step, Traffic};
use fuzzing::{ROUNDS, Seen, Source, fuzz, within};
use model::NodeId;
use std::collections::BTreeSet;
use std::time::Duration;
use world::{Deadline, Instant};

/// The asking side with calls under way, and those that have ended.
struct Asking {
    traffic: Traffic<usize>,
    /// The numbers of the calls, by ticket.
    calls: Vec<u64>,
    ended: BTreeSet<usize>,
    /// With an answer.
    answered: u64,
}

impl Asking {
    fn new(source: &mut Source<'_>, now: Instant) -> Self {
        let mut asking = Self {
            traffic: Traffic::new(NodeId(2), 1),
            calls: Vec::new(),
            ended: BTreeSet::new(),
            answered: 0,
        };
        let deadline = Deadline::at(now + Duration::from_secs(1));
        for ticket in 0..1 + source.below(7) {
            let taken = asking.traffic.call(call(source), deadline, ticket, now);
            let (number, todo) = taken.expect("few calls are taken on");
            asking.calls.push(number);
            asking.end(todo.ended);
        }
        asking
    }

    fn end(&mut self, all: Ended<usize>) {
        for (ticket, outcome) in all {
            assert!(self.ended.insert(ticket), "a call ends once");
            self.answered += u64::from(matches!(outcome, Outcome::Ended(Ok(_))));
        }
    }

    fn give_up(&mut self, ticket: usize, now: Instant) {
        let (none, todo) = self.traffic.give_up(self.calls[ticket], now);
        // It is its caller's again unless it had ended.
        let is_new = self.ended.insert(ticket);
        assert_eq!(none.is_some(), is_new);
        self.end(todo.ended);
    }

    /// Talks over one connection until it ends; gives the reason.
    fn talk(
        &mut self,
        link: u64,
        stream: &mut Stream,
        source: &mut Source<'_>,
        now: Instant,
    ) -> &'static str {
        loop {
            let (step, todo) = self.traffic.next(link, now);
            self.end(todo.ended);
            match step {
                Step::Send(_) => continue,
                Step::Over => return "it has served its purpose",
                Step::Idle => {}
            }
            let traffic = &mut self.traffic;
            let next = stream.receiver.next(|header| traffic.allow(link, header));
            let Ok(frame) = next else {
                return "a header isn't allowed, or a frame is damaged";
            };
            let Some(frame) = frame else {
                if !stream.pass_on(source.below(5000)) {
                    return "it was closed";
                }
                continue;
            };
            let Ok((todo, news)) = self.traffic.arrived(link, frame, now) else {
                return "a frame breaks the rules";
            };
            self.end(todo.ended);
            if let News::Hello(..) = news {
                let todo = self.traffic.accepted(link, now);
                self.end(todo.ended);
            }
            if source.below(4) == 0 {
                self.give_up(source.below(self.calls.len()), now);
            }
        }
    }
}

#[test]
fn whatever_arrives_at_the_asking_side_ends_each_call_once() {
    let (now, answered) = (now(), Seen::default());
    fuzz!(2 * ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        // Often with room for calls.
        let credits = match source.chance() {
            true => CREDITS,
            false => any_credits(&mut source),
        };
        let first = hello_of(&mut source, 2, 1, credits);
        let mut stream = Stream::new(&mut source, first, true);
        within(CONNECTION, stream.bytes.len() + (64 << 10), || {
            let mut asking = Asking::new(&mut source, now);
            let mine = hello_of(&mut source, 1, 2, Credits::default());
            let link = asking.traffic.opened(mine, now);
            let link = link.expect("the first call asked for a connection");
            let why = asking.talk(link, &mut stream, &mut source, now);
            let (todo, _) = asking.traffic.ended(link, why, now, 7);
            asking.end(todo.ended);
            let todo = asking.traffic.close("the test ends");
            asking.end(todo.ended);
            assert_eq!(asking.ended.len(), asking.calls.len(), "each call ends");
            answered.add(asking.answered);
        });
    });
    answered.check(10, "replies come through");
}
