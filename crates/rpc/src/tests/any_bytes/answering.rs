//! Whatever comes to the side that answers.

use super::{CONNECTION, CREDITS, Stream, hello_of};
use crate::answerer::{Answerer, Task};
use crate::frame::Ending;
use crate::hello::Credits;
use crate::tests::sides::{assert_within, identity, now, taken_by};
use bytes::Bytes;
use fuzzing::{ROUNDS, Seen, Source, fuzz, within};
use model::call::{Class, Reply};
use std::collections::BTreeMap;

#[test]
fn whatever_arrives_at_the_answering_side_ends_the_connection_or_is_within_its_credits() {
    let (now, ran) = (now(), Seen::default());
    fuzz!(2 * ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let first = hello_of(&mut source, 1, 2, Credits::default());
        let mut stream = Stream::new(&mut source, first, false);
        within(CONNECTION, stream.bytes.len(), || {
            let mut answerer = Answerer::new(identity(2), now);
            let mut running: BTreeMap<u64, (Class, u64)> = BTreeMap::new();
            let mut greeted = None;
            loop {
                let next = stream.receiver.next(|header| answerer.allow(header));
                let Ok(frame) = next else { break };
                let Some(frame) = frame else {
                    if !stream.pass_on(source.below(5000)) {
                        break;
                    }
                    continue;
                };
                match answerer.arrived(frame, now) {
                    Err(_) => break,
                    Ok(Task::None | Task::Refused(_) | Task::Ending) => {}
                    Ok(Task::Greet(..)) if source.below(16) == 0 => answerer.drain("not now"),
                    Ok(Task::Greet(run, _)) => {
                        greeted = Some(run);
                        answerer.welcome(run, CREDITS, source.byte());
                    }
                    Ok(Task::Run(number, from, call, _)) => {
                        assert_eq!(Some(from), greeted, "who was let in asks");
                        let before = running.insert(number, taken_by(&call));
                        assert_eq!(before, None, "a number is used once");
                        ran.note();
                    }
                    Ok(Task::Stop(number)) => drop(running.remove(&number)),
                }
                assert_within(CREDITS, running.values().copied());
                if source.chance()
                    && let Some((number, _)) = running.pop_first()
                {
                    let reply = Reply {
                        body: source.bytes(40).into(),
                        payload: Bytes::new(),
                        payload_crc: None,
                    };
                    answerer.finish(number, Ending::Answered(reply));
                }
                if source.below(8) == 0 {
                    answerer.want(source.byte());
                }
                while source.chance() && answerer.next_frame(now).is_some() {}
            }
        });
    });
    ran.check(100, "requests come through");
}
