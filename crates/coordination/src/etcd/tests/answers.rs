//! Fuzz targets: what whoever claims to be an etcd answers.

use crate::etcd::client::{decode, version};
use crate::etcd::decode::{Decoder, Ended, Lines};
use crate::etcd::gateway::{
    AlarmsAnswer, Answer, Done, GrantAnswer, Header, KeepAliveAnswer, MemberAddAnswer,
    MembersAnswer, Number, RangeAnswer, StatusAnswer, Streamed, TransactionAnswer,
};
use crate::etcd::members::successor;
use crate::etcd::refusal::Refusal;
use crate::etcd::{EtcdEndpoint, EtcdStatus};
use bytes::Bytes;
use fuzzing::{Memory, ROUNDS, Seen, Source, fuzz, within};
use std::fmt::Write;

/// Names of fields in etcd's answers.
const NAMES: [&str; 33] = [
    "header",
    "cluster_id",
    "member_id",
    "revision",
    "kvs",
    "key",
    "value",
    "mod_revision",
    "kv",
    "succeeded",
    "responses",
    "response_range",
    "ID",
    "TTL",
    "result",
    "error",
    "events",
    "type",
    "fragment",
    "created",
    "canceled",
    "compact_revision",
    "cancel_reason",
    "version",
    "dbSize",
    "members",
    "member",
    "alarms",
    "message",
    "code",
    "leader",
    "raftAppliedIndex",
    "isLearner",
];

/// Answers as etcd gives them.
const WHOLE: [&str; 8] = [
    r#"{"header":{"cluster_id":"7","member_id":"1","revision":"5"},"kvs":[{"key":"L3AvYQ==","create_revision":"2","mod_revision":"3","version":"1","value":"eA=="}],"count":"1"}"#,
    r#"{"header":{"revision":"6"},"succeeded":true,"responses":[{"response_range":{"header":{"revision":"6"},"kvs":[{"key":"L3AvYQ=="}]}},{"response_put":{"header":{"revision":"6"}}}]}"#,
    r#"{"header":{"revision":"6"},"ID":"7587862094","TTL":"10"}"#,
    r#"{"result":{"header":{"revision":"6"},"ID":"7587862094","TTL":"10"}}"#,
    r#"{"result":{"header":{"revision":"7"},"events":[{"kv":{"key":"L3AvYQ==","mod_revision":"12","value":"eA=="}},{"type":"DELETE","kv":{"key":"L3AvYg==","mod_revision":"13"}}]}}"#,
    r#"{"header":{"member_id":"1","raft_term":"2"},"version":"3.4.23","dbSize":"20480","leader":"1","raftIndex":"8","raftTerm":"2","raftAppliedIndex":"8","dbSizeInUse":"16384"}"#,
    r#"{"header":{"member_id":"1"},"member":{"ID":"2","peerURLs":["https://10.0.0.2:2380"],"isLearner":true}}"#,
    r#"{"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14,"members":[{"ID":"1","name":"a","peerURLs":["https://10.0.0.1:2380"],"clientURLs":[]}],"alarms":[{"memberID":"1","alarm":"NOSPACE"}]}"#,
];

/// JSON with etcd's names, in any order and of any types.
fn json(source: &mut Source<'_>, depth: usize, out: &mut String) {
    match source.below(if depth == 0 { 5 } else { 8 }) {
        0 => out.push_str("true"),
        1 => write!(out, "{}", source.number()).unwrap(),
        2 => write!(out, "\"{}\"", source.number()).unwrap(),
        3 => out.push_str(["null", "-1", "1.5e300", "\"L3AvYQ==\"", "\"!\""][source.below(5)]),
        4 => write!(out, "{:?}", source.text()).unwrap(),
        5 => {
            out.push('[');
            for at in 0..source.below(4) {
                out.push_str(if at == 0 { "" } else { "," });
                json(source, depth - 1, out);
            }
            out.push(']');
        }
        _ => {
            out.push('{');
            for at in 0..source.below(6) {
                let name = NAMES[source.below(NAMES.len())];
                write!(out, "{}\"{name}\":", if at == 0 { "" } else { "," }).unwrap();
                json(source, depth - 1, out);
            }
            out.push('}');
        }
    }
}

/// Bytes that are more or less an answer.
fn answer(input: &[u8]) -> Vec<u8> {
    let mut source = Source::new(input);
    match source.below(4) {
        0 => source.rest().to_vec(),
        1 => {
            let mut text = String::new();
            json(&mut source, 6, &mut text);
            text.into_bytes()
        }
        2 => WHOLE[source.below(WHOLE.len())].into(),
        _ => {
            let whole = WHOLE[source.below(WHOLE.len())];
            source.changed(whole.as_bytes())
        }
    }
}

fn understood<A: Answer>(status: u16, body: &[u8], seen: &Seen) {
    let body = Bytes::copy_from_slice(body);
    let is_understood = within(Memory::MESSAGE, body.len(), || {
        decode::<A>((status, body.clone())).is_ok()
    });
    seen.add(is_understood.into());
}

#[test]
fn any_bytes_are_an_answer_or_say_what_is_wrong() {
    let seen: [Seen; 9] = Default::default();
    fuzz!(2 * ROUNDS, |input: &[u8]| {
        let body = answer(input);
        let status = match input.last() {
            Some(0..30) => 503,
            _ => 200,
        };
        understood::<RangeAnswer>(status, &body, &seen[0]);
        understood::<TransactionAnswer>(status, &body, &seen[1]);
        understood::<GrantAnswer>(status, &body, &seen[2]);
        understood::<Done>(status, &body, &seen[3]);
        understood::<StatusAnswer>(status, &body, &seen[4]);
        understood::<MembersAnswer>(status, &body, &seen[5]);
        understood::<MemberAddAnswer>(status, &body, &seen[6]);
        understood::<AlarmsAnswer>(status, &body, &seen[7]);
        understood::<Streamed<KeepAliveAnswer>>(status, &body, &seen[8]);
        let refusal = Refusal::of_status(503, &body);
        assert!(!refusal.text().is_empty() && refusal.text().len() < 4096);
        assert!(!refusal.into_error().to_string().is_empty());
    });
    for seen in &seen {
        seen.check(1, "answers of each kind are understood");
    }
}

/// Revisions are told in order, each once, whatever a watch says.
#[test]
fn any_stream_of_a_watch_is_told_in_order_or_ends() {
    let told = Seen::default();
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut decoder = Decoder::new("/p/", 10);
        let mut lines = Lines::default();
        for (at, part) in input.chunks(200).take(6).enumerate() {
            lines.push(&answer(part));
            lines.push(if at % 5 == 4 { b"" } else { b"\n" });
        }
        let mut last = decoder.after();
        while let Some(line) = lines.next() {
            match within(Memory::MESSAGE, line.len(), || decoder.message(&line)) {
                Ok(batches) => {
                    for batch in batches {
                        assert!(batch.revision > last, "{} after {last}", batch.revision);
                        last = batch.revision;
                        told.note();
                    }
                }
                Err(Ended::Lost(why) | Ended::Broken(why)) => {
                    assert!(!why.is_empty());
                    decoder.begin_again();
                }
            }
        }
        assert!(!lines.is_too_long());
    });
    told.check(1, "changes are told");
}

#[test]
fn any_text_is_an_endpoint_or_refused() {
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let text = match source.below(3) {
            0 => String::from_utf8_lossy(source.rest()).into_owned(),
            1 => format!("https://{}:{}", source.text(), source.number()),
            _ => {
                let whole = [
                    "http://[::1]:2379",
                    "https://etcd-1.example:2379",
                    "10.0.0.1:1",
                ];
                let whole = whole[source.below(3)];
                String::from_utf8_lossy(&source.changed(whole.as_bytes())).into_owned()
            }
        };
        if let Ok(endpoint) = text.parse::<EtcdEndpoint>() {
            assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
        }
        let _ = version(&text);
    });
}

fn status(source: &mut Source<'_>) -> EtcdStatus {
    let answer = StatusAnswer {
        header: Header {
            member_id: Number(source.below(4) as u64),
            ..Header::default()
        },
        leader: Number(source.below(3) as u64),
        raft_applied_index: Number(source.number()),
        is_learner: source.below(4) == 0,
        ..StatusAnswer::default()
    };
    answer.into()
}

#[test]
fn whatever_members_say_of_themselves_another_one_is_to_lead_or_none() {
    let chosen = Seen::default();
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let all: Vec<EtcdStatus> = (0..source.below(6)).map(|_| status(&mut source)).collect();
        for leader in &all {
            if let Some(next) = successor(leader, all.iter()) {
                assert!(next.member != leader.member && !next.is_learner);
                chosen.note();
            }
        }
    });
    chosen.check(100, "members are chosen");
}
