//! What comes before anybody has proven who it is.

use super::{CONNECTION, hello, sent};
use crate::frame::Frame;
use crate::hello::Hello;
use crate::security::read_request;
use futures::FutureExt;
use fuzzing::{Memory, ROUNDS, Seen, Source, fuzz, within};
use model::call::{Call, Class};
use model::join::{JOIN, JoinRequest};
use std::time::Duration;

#[test]
fn any_bytes_are_a_hello_or_refused() {
    /// What follows is reserved, and left out.
    const IDENTITIES_BYTES: usize = 36;
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let hello = hello(&mut source);
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Ok(hello));
        let changed = source.changed(&bytes);
        for bytes in [input, &changed] {
            let found = within(Memory::SMALL, bytes.len(), || Hello::decode(bytes));
            if let Ok(found) = found {
                let again = found.encode();
                assert_eq!(Hello::decode(&again), Ok(found));
                assert_eq!(again[..IDENTITIES_BYTES], bytes[..IDENTITIES_BYTES]);
                let _ = (hello.check(&found), found.lane());
            }
        }
    });
}

/// Nobody knows who opens a connection to join.
#[test]
fn whatever_a_machine_that_joins_sends_is_a_request_within_its_maxima_or_refused() {
    let read = Seen::default();
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let bytes = match source.value::<JoinRequest>() {
            Some(request) if source.below(8) > 0 => {
                let mut call = Call::new(JOIN, Class::Metadata, &request);
                if source.below(3) == 0 {
                    call.body = source.changed(&call.body).into();
                }
                let frame = Frame::Request {
                    number: match source.below(8) {
                        0 => source.number().max(1),
                        _ => 1,
                    },
                    budget: Duration::from_secs(1),
                    call,
                };
                sent(&mut source, frame, None)
            }
            _ => source.rest().to_vec(),
        };
        let mut stream = tokio::io::join(&bytes[..], tokio::io::sink());
        let request = within(CONNECTION, bytes.len(), || {
            read_request(&mut stream).now_or_never()
        });
        if let Ok(request) = request.expect("all bytes are here") {
            assert_eq!(request.check(), Ok(()));
            read.note();
        }
    });
    read.check(30, "requests come through");
}
