//! The messages of etcd's JSON gateway (etcd 3.4 to 3.6): what is sent and what is read of answers.
//!
//! Bytes are base64, 64-bit numbers are strings, and what is zero, false or empty is left out.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::de::{self, DeserializeOwned, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

pub(super) const RANGE: &str = "/v3/kv/range";
pub(super) const TRANSACTION: &str = "/v3/kv/txn";
pub(super) const COMPACTION: &str = "/v3/kv/compaction";
pub(super) const WATCH: &str = "/v3/watch";
pub(super) const GRANT: &str = "/v3/lease/grant";
pub(super) const KEEP_ALIVE: &str = "/v3/lease/keepalive";
pub(super) const REVOKE: &str = "/v3/lease/revoke";
pub(super) const MEMBERS: &str = "/v3/cluster/member/list";
pub(super) const MEMBER_ADD: &str = "/v3/cluster/member/add";
pub(super) const MEMBER_PROMOTE: &str = "/v3/cluster/member/promote";
pub(super) const MEMBER_REMOVE: &str = "/v3/cluster/member/remove";
pub(super) const STATUS: &str = "/v3/maintenance/status";
pub(super) const ALARM: &str = "/v3/maintenance/alarm";
pub(super) const DEFRAGMENT: &str = "/v3/maintenance/defragment";
pub(super) const TRANSFER: &str = "/v3/maintenance/transfer-leadership";

/// An answer, or one message of a stream.
pub(super) trait Answer: DeserializeOwned {
    /// The error that it is instead, if it is one.
    fn failure(&self) -> Option<Failure> {
        None
    }

    /// The revision of the store that it shows, if it shows no older one than any request that was answered before.
    fn revision(&self) -> Option<u64> {
        None
    }
}

/// A 64-bit number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Number(pub(super) u64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Letters;

        impl Visitor<'_> for Letters {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number that isn't negative")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Number, E> {
                Ok(Number(number))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
                text.parse().map(Number).map_err(E::custom)
            }
        }
        from.deserialize_any(Letters)
    }
}

/// Bytes: a key or a value.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Base64(pub(super) Bytes);

impl Base64 {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self(text.into().into_bytes().into())
    }
}

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        let bytes = STANDARD.decode(text.as_bytes());
        Ok(Self(bytes.map_err(de::Error::custom)?.into()))
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

// What is sent.

/// Nothing more than the path says.
#[derive(Serialize)]
pub(super) struct Nothing {}

#[derive(Clone, Serialize, Default)]
pub(super) struct Range {
    pub(super) key: Base64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) range_end: Option<Base64>,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) keys_only: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) count_only: bool,
}

#[derive(Serialize, Default)]
pub(super) struct Transaction {
    pub(super) compare: Vec<Compare>,
    pub(super) success: Vec<Operation>,
    pub(super) failure: Vec<Operation>,
}

/// True if the key, or each key of a range, has this revision; 0 if there is none.
#[derive(Serialize)]
pub(super) struct Compare {
    pub(super) key: Base64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) range_end: Option<Base64>,
    pub(super) target: &'static str,
    pub(super) result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mod_revision: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) create_revision: Option<Number>,
}

impl Compare {
    /// The key was written by this revision; 0: it doesn't exist.
    pub(super) fn version(key: Base64, version: u64) -> Self {
        Self {
            key,
            range_end: None,
            target: "MOD",
            result: "EQUAL",
            mod_revision: Some(Number(version)),
            create_revision: None,
        }
    }

    /// There is no key in the range.
    pub(super) fn is_empty(key: Base64, range_end: Base64) -> Self {
        Self {
            key,
            range_end: Some(range_end),
            target: "CREATE",
            result: "EQUAL",
            mod_revision: None,
            create_revision: Some(Number(0)),
        }
    }
}

#[derive(Serialize)]
pub(super) enum Operation {
    #[serde(rename = "request_range")]
    Range(Range),
    #[serde(rename = "request_put")]
    Put(Put),
    #[serde(rename = "request_delete_range")]
    Delete(Delete),
}

#[derive(Serialize)]
pub(super) struct Put {
    pub(super) key: Base64,
    pub(super) value: Base64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease: Option<Number>,
}

#[derive(Serialize)]
pub(super) struct Delete {
    pub(super) key: Base64,
}

#[derive(Serialize)]
pub(super) struct Grant {
    #[serde(rename = "TTL")]
    pub(super) ttl: Number,
}

/// Names a lease or a member.
#[derive(Serialize)]
pub(super) struct Id {
    #[serde(rename = "ID")]
    pub(super) id: Number,
}

impl Id {
    pub(super) fn of(id: u64) -> Self {
        Self { id: Number(id) }
    }
}

#[derive(Serialize)]
pub(super) struct Watch {
    pub(super) create_request: WatchCreate,
}

#[derive(Serialize)]
pub(super) struct WatchCreate {
    pub(super) key: Base64,
    pub(super) range_end: Base64,
    pub(super) start_revision: Number,
    /// Events of more bytes than a request may have come in several messages.
    pub(super) fragment: bool,
}

#[derive(Serialize)]
pub(super) struct Compaction {
    pub(super) revision: Number,
    /// Answered when it is done on the disk.
    pub(super) physical: bool,
}

#[derive(Serialize)]
pub(super) struct MemberAdd<'a> {
    #[serde(rename = "peerURLs")]
    pub(super) peer_urls: &'a [String],
    #[serde(rename = "isLearner")]
    pub(super) is_learner: bool,
}

/// To the member that leads.
#[derive(Serialize)]
pub(super) struct Transfer {
    #[serde(rename = "targetID")]
    pub(super) target: Number,
}

#[derive(Serialize)]
pub(super) struct AlarmRequest {
    pub(super) action: &'static str,
    #[serde(rename = "memberID", skip_serializing_if = "Option::is_none")]
    pub(super) member: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) alarm: Option<String>,
}

// What is answered.

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(super) struct Header {
    pub(super) cluster_id: Number,
    pub(super) member_id: Number,
    pub(super) revision: Number,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(super) struct KeyValue {
    pub(super) key: Base64,
    pub(super) value: Base64,
    pub(super) mod_revision: Number,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(super) struct RangeAnswer {
    pub(super) header: Header,
    pub(super) kvs: Vec<KeyValue>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(super) struct TransactionAnswer {
    pub(super) header: Header,
    pub(super) succeeded: bool,
    pub(super) responses: Vec<OperationAnswer>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(super) struct OperationAnswer {
    pub(super) response_range: Option<RangeAnswer>,
}

#[derive(Deserialize, Debug)]
pub(super) struct GrantAnswer {
    #[serde(rename = "ID")]
    pub(super) id: Number,
    #[serde(rename = "TTL")]
    pub(super) ttl: Number,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(super) struct KeepAliveAnswer {
    /// 0: the lease has ended.
    #[serde(rename = "TTL")]
    pub(super) ttl: Number,
}

/// An answer of which nothing is read.
#[derive(Deserialize, Debug)]
pub(super) struct Done {}

/// A message of a stream.
#[derive(Deserialize, Debug)]
pub(super) struct Streamed<T> {
    pub(super) result: Option<T>,
    pub(super) error: Option<Failure>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(super) struct WatchAnswer {
    pub(super) created: bool,
    pub(super) canceled: bool,
    pub(super) compact_revision: Number,
    pub(super) cancel_reason: String,
    /// More events of the same revisions follow in the next message.
    pub(super) fragment: bool,
    pub(super) events: Vec<WatchEvent>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(super) struct WatchEvent {
    /// `DELETE`, or left out for a put.
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) kv: KeyValue,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(super) struct StatusAnswer {
    pub(super) header: Header,
    pub(super) version: String,
    #[serde(rename = "dbSize")]
    pub(super) db_size: Number,
    #[serde(rename = "dbSizeInUse")]
    pub(super) db_size_in_use: Number,
    pub(super) leader: Number,
    #[serde(rename = "raftTerm")]
    pub(super) raft_term: Number,
    #[serde(rename = "raftIndex")]
    pub(super) raft_index: Number,
    #[serde(rename = "raftAppliedIndex")]
    pub(super) raft_applied_index: Number,
    #[serde(rename = "isLearner")]
    pub(super) is_learner: bool,
    pub(super) errors: Vec<String>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(super) struct Member {
    #[serde(rename = "ID")]
    pub(super) id: Number,
    pub(super) name: String,
    #[serde(rename = "peerURLs")]
    pub(super) peer_urls: Vec<String>,
    #[serde(rename = "clientURLs")]
    pub(super) client_urls: Vec<String>,
    #[serde(rename = "isLearner")]
    pub(super) is_learner: bool,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(super) struct MembersAnswer {
    pub(super) members: Vec<Member>,
}

#[derive(Deserialize, Debug)]
pub(super) struct MemberAddAnswer {
    pub(super) member: Member,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(super) struct AlarmsAnswer {
    pub(super) alarms: Vec<Alarm>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(super) struct Alarm {
    #[serde(rename = "memberID")]
    pub(super) member: Number,
    pub(super) alarm: String,
}

/// An error: with gRPC's code, and its text in the one or the other field, as the gateway's version has it.
#[derive(Clone, Deserialize, Default, Debug)]
#[serde(default)]
pub(super) struct Failure {
    pub(super) code: u32,
    pub(super) grpc_code: u32,
    pub(super) message: String,
    pub(super) error: String,
}

impl Answer for RangeAnswer {
    fn revision(&self) -> Option<u64> {
        Some(self.header.revision.0)
    }
}

impl Answer for TransactionAnswer {
    fn revision(&self) -> Option<u64> {
        Some(self.header.revision.0)
    }
}

impl Answer for GrantAnswer {}
impl Answer for Done {}
impl Answer for StatusAnswer {}
impl Answer for MembersAnswer {}
impl Answer for MemberAddAnswer {}
impl Answer for AlarmsAnswer {}

impl<T: DeserializeOwned> Answer for Streamed<T> {
    fn failure(&self) -> Option<Failure> {
        self.error.clone()
    }
}

/// The first key after all keys that begin with `prefix`, which isn't empty.
pub(super) fn end_of(prefix: &str) -> Base64 {
    let mut end = prefix.as_bytes().to_vec();
    let last = end.last_mut().expect("a prefix isn't empty");
    // No byte of UTF-8 is 255.
    *last += 1;
    Base64(end.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_letters_and_bytes_are_base64() {
        let put = Put {
            key: Base64::text("a"),
            value: Base64(Bytes::from_static(&[0, 255])),
            lease: Some(Number(u64::MAX >> 1)),
        };
        let letters = serde_json::to_string(&put).unwrap();
        assert_eq!(
            letters,
            r#"{"key":"YQ==","value":"AP8=","lease":"9223372036854775807"}"#
        );
        let answer =
            r#"{"header":{"revision":"7"},"kvs":[{"key":"YQ==","mod_revision":5}],"new":1}"#;
        let answer: RangeAnswer = serde_json::from_str(answer).unwrap();
        assert_eq!(
            (answer.header.revision, answer.kvs[0].mod_revision),
            (Number(7), Number(5))
        );
        assert_eq!(answer.kvs[0].value, Base64::default());
        for wrong in [
            r#"{"kvs":[{"key":"Y"}]}"#,
            r#"{"header":{"revision":"-1"}}"#,
        ] {
            serde_json::from_str::<RangeAnswer>(wrong).unwrap_err();
        }
    }

    #[test]
    fn the_end_of_a_prefix_comes_right_after_its_keys() {
        assert_eq!(end_of("a/"), Base64::text("a0"));
        let end = end_of("é");
        assert!(
            end.0[..] > *"é\u{10ffff}".as_bytes() && end.0[..] < *"ê".as_bytes()
                || end == Base64::text("ê")
        );
    }
}
