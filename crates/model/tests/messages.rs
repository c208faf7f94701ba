//! Fuzz targets: the messages between nodes, as `Call::decode` and `Reply::decode` read them.

use bytes::Bytes;
use fuzzing::{Format, Memory, ROUNDS, Source, Tally, check, fuzz, within};
use model::call::{Call, Class, Method, Reply};
use model::jobs::{JobsReply, JobsRequest};
use model::join::{
    AuthorityKey, AuthorityKeyRequest, JoinReply, JoinRequest, RenewReply, RenewRequest,
};
use model::member::{Attend, Heard, Heartbeat, HeartbeatReply, KnownEnd, KnownManager, Unreached};
use model::nsd::{AddressedRequest, NsdAnswer};
use model::owner::{OwnerCall, OwnerReply};
use model::space::{Statement, Told};
use model::{ErrorKind, NodeRun, Result, ShardId};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

fn received(body: &[u8]) -> Call {
    let mut call = Call::new(Method(1), Class::Bulk, &());
    call.body = Bytes::copy_from_slice(body);
    call
}

/// A type of messages. What a reply holds is a `Result`.
fn message<T>(input: &[u8], tally: &Tally)
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let format = Format {
        encode: |value: &T| Call::new(Method(1), Class::Bulk, value).body.to_vec(),
        decode: |bytes: &[u8]| received(bytes).decode::<T>().ok(),
        memory: Memory::MESSAGE,
    };
    check(input, &format, tally);
}

macro_rules! targets {
    ($(fn $name:ident() for $type:ty, $rounds:expr;)*) => {$(
        #[test]
        fn $name() {
            let tally = Tally::default();
            fuzz!($rounds, |input: &[u8]| message::<$type>(input, &tally));
            tally.check();
        }
    )*};
}

targets! {
    fn any_bytes_are_refused_or_are_a_request_to_an_owner() for OwnerCall, 2 * ROUNDS;
    fn any_bytes_are_refused_or_are_an_answer_of_an_owner() for Result<OwnerReply>, 2 * ROUNDS;
    fn any_bytes_are_refused_or_are_a_request_to_an_nsd() for AddressedRequest, ROUNDS;
    fn any_bytes_are_refused_or_are_an_answer_of_an_nsd() for Result<NsdAnswer>, ROUNDS;
    fn any_bytes_are_refused_or_are_a_heartbeat() for Heartbeat, ROUNDS;
    fn any_bytes_are_refused_or_are_an_answer_to_a_heartbeat() for Result<HeartbeatReply>, ROUNDS;
    fn any_bytes_are_refused_or_are_a_wish_for_attendance() for Attend, ROUNDS;
    fn any_bytes_are_refused_or_name_members_that_are_not_reached() for Unreached, ROUNDS;
    fn any_bytes_are_refused_or_name_the_manager() for Result<Option<KnownManager>>, ROUNDS;
    fn any_bytes_are_refused_or_ask_what_is_heard_of_a_manager() for NodeRun, ROUNDS;
    fn any_bytes_are_refused_or_say_what_is_heard_of_a_manager() for Result<Heard>, ROUNDS;
    fn any_bytes_are_refused_or_say_whether_a_node_is_reached() for Result<bool>, ROUNDS;
    fn any_bytes_are_refused_or_say_how_a_run_has_ended() for Result<Option<KnownEnd>>, ROUNDS;
    fn any_bytes_are_refused_or_say_that_it_is_done() for Result<()>, ROUNDS;
    fn any_bytes_are_refused_or_are_a_statement_of_a_holder_of_space() for Statement, ROUNDS;
    fn any_bytes_are_refused_or_are_an_entry_of_a_ledger() for Told, ROUNDS;
    fn any_bytes_are_refused_or_are_what_a_holder_of_space_says() for Result<Statement>, ROUNDS;
    fn any_bytes_are_refused_or_are_what_a_ledger_says() for Result<Told>, ROUNDS;
    fn any_bytes_are_refused_or_are_a_request_about_jobs() for JobsRequest, ROUNDS;
    fn any_bytes_are_refused_or_are_an_answer_about_jobs() for Result<JobsReply>, ROUNDS;
    fn any_bytes_are_refused_or_are_a_request_to_join() for JoinRequest, ROUNDS;
    fn any_bytes_are_refused_or_are_the_answer_to_who_joins() for Result<JoinReply>, ROUNDS;
    fn any_bytes_are_refused_or_ask_for_a_certificate() for RenewRequest, ROUNDS;
    fn any_bytes_are_refused_or_bring_a_certificate() for Result<RenewReply>, ROUNDS;
    fn any_bytes_are_refused_or_ask_for_the_key_of_an_authority() for AuthorityKeyRequest, ROUNDS;
    fn any_bytes_are_refused_or_bring_the_key_of_an_authority() for Result<AuthorityKey>, ROUNDS;
}

/// The written maxima of what an unknown machine sends hold for whatever was understood.
#[test]
fn whatever_joins_is_within_its_maxima_or_refused() {
    fuzz!(ROUNDS, |input: &[u8]| {
        let Some(mut request) = Source::new(input).value::<JoinRequest>() else {
            return;
        };
        if input.first().is_some_and(|byte| byte % 2 == 1) {
            request.wishes = input.to_vec();
        }
        if request.check().is_ok() {
            assert!(request.wishes.len() <= model::join::WISHES_BYTES_MAX);
            assert!(request.addresses.len() <= model::join::ADDRESSES_MAX);
            assert!(request.host.len() <= model::join::HOST_BYTES_MAX);
        }
    });
}

/// A node passes a request on to its shard by its first bytes.
#[test]
fn any_bytes_name_a_shard_or_none() {
    fuzz!(ROUNDS, |input: &[u8]| {
        let shard = within(Memory::SMALL, input.len(), || {
            OwnerCall::shard_of(&received(input))
        });
        let whole = received(input).decode::<OwnerCall>();
        match (shard, whole) {
            (Ok(shard), Ok(call)) => assert_eq!(shard, call.shard),
            (Ok(ShardId(_)), Err(_)) => {}
            (Err(error), whole) => {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                assert!(whole.is_err(), "what names no shard is no request");
            }
        }
    });
}

/// A reply that isn't understood says that the outcome is unknown.
#[test]
fn any_reply_that_is_not_understood_is_unknown() {
    fuzz!(ROUNDS, |input: &[u8]| {
        let body = Bytes::copy_from_slice(input);
        let payload = Bytes::new();
        let read = within(Memory::MESSAGE, input.len(), || {
            let reply = Reply {
                body,
                payload,
                payload_crc: None,
            };
            reply.decode::<OwnerReply>()
        });
        if received(input).decode::<Result<OwnerReply>>().is_err() {
            assert_eq!(read.unwrap_err().kind(), ErrorKind::Unknown);
        }
    });
}

/// A list of 2^60 elements, in a message that is otherwise in order: refused, and no memory is taken for
/// what the message can't hold.
#[test]
fn a_length_that_lies_takes_no_memory() {
    let request = RenewRequest {
        signing_request: vec![7; 3],
        addresses: Vec::new(),
        certificate: Vec::new(),
        voucher: Vec::new(),
    };
    let body = Call::new(Method(1), Class::Bulk, &request).body;
    assert_eq!(body[0], 3, "the length comes first");
    let mut lying = vec![0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10];
    lying.extend_from_slice(&body[1..]);
    let one_list = Memory {
        fixed: (1 << 20) + 4096,
        per_byte: 0,
    };
    let read = within(one_list, 0, || received(&lying).decode::<RenewRequest>());
    assert_eq!(read.unwrap_err().kind(), ErrorKind::InvalidArgument);
}
