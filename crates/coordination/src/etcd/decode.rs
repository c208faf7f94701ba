//! Takes what a watch of etcd says apart: bytes to messages, messages to the changes of whole
//! revisions. Pure.

use super::connection::ANSWER_BYTES_MAX;
use super::gateway::{Answer, Streamed, WatchAnswer, WatchEvent};
use super::refusal::{Refusal, readable};
use super::store::own_key;
use crate::Event;
use crate::history::Batch;
use bytes::{Buf, Bytes, BytesMut};

/// Most bytes of one revision's keys and values: more than a transaction may have.
const REVISION_BYTES_MAX: usize = 4 * crate::STATE_BYTES_MAX;

/// Cuts a stream into lines.
#[derive(Default)]
pub(super) struct Lines {
    buffer: BytesMut,
    /// There is no line's end before this.
    searched: usize,
}

impl Lines {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole line.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        let rest = &self.buffer[self.searched..];
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.buffer.len();
            return None;
        };
        let line = self.buffer.split_to(self.searched + end).freeze();
        self.buffer.advance(1);
        self.searched = 0;
        Some(line)
    }

    /// Whether the line that has begun is longer than any should be.
    pub(super) fn is_too_long(&self) -> bool {
        self.buffer.len() > ANSWER_BYTES_MAX
    }
}

/// Why a watch's stream is of no more use.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// Changes are missing: the caller has to list.
    Lost(String),
    /// Another stream goes on after what was told.
    Broken(String),
}

/// What was understood of a watch so far.
pub(super) struct Decoder {
    prefix: String,
    /// Everything up to this revision was told.
    after: u64,
    /// The changes of a revision of which more may come.
    open: Option<Batch>,
    open_bytes: usize,
}

impl Decoder {
    /// Tells changes after this revision. `prefix`: what our keys begin with in etcd.
    pub(super) fn new(prefix: &str, after: u64) -> Self {
        Self {
            prefix: prefix.to_owned(),
            after,
            open: None,
            open_bytes: 0,
        }
    }

    /// Everything up to this revision was told.
    pub(super) fn after(&self) -> u64 {
        self.after
    }

    /// Another stream begins: what came of a revision that isn't whole comes again.
    pub(super) fn begin_again(&mut self) {
        self.open = None;
        self.open_bytes = 0;
    }

    /// The revisions that are whole after this message, in order.
    pub(super) fn message(&mut self, line: &[u8]) -> Result<Vec<Batch>, Ended> {
        let message: Streamed<WatchAnswer> = serde_json::from_slice(line)
            .map_err(|error| Ended::Broken(format!("its watch isn't etcd's: {error}")))?;
        if let Some(failure) = message.failure() {
            return Err(Ended::Broken(Refusal::new(&failure).text().to_owned()));
        }
        let answer = message.result.unwrap_or_default();
        if answer.canceled {
            let why = readable(answer.cancel_reason.as_bytes());
            return Err(match answer.compact_revision.0 {
                0 => Ended::Broken(format!("etcd ended the watch: {why}")),
                revision => Ended::Lost(format!("the history before {revision} was compacted")),
            });
        }
        let mut whole = Vec::new();
        for event in answer.events {
            self.event(event, &mut whole)?;
        }
        // Without fragments, a message has all changes of its revisions.
        if !answer.fragment {
            whole.extend(self.close());
        }
        Ok(whole)
    }

    fn event(&mut self, event: WatchEvent, whole: &mut Vec<Batch>) -> Result<(), Ended> {
        let revision = event.kv.mod_revision.0;
        if revision <= self.after {
            // The watch begins with the last revision that was told, and after a member got a
            // snapshot etcd (before 3.4.25) repeats what it has told.
            return Ok(());
        }
        let before = self.open.as_ref().map(|batch| batch.revision);
        match before {
            Some(before) if before > revision => {
                return Err(Ended::Broken(format!(
                    "its watch went back from revision {before} to {revision}"
                )));
            }
            Some(before) if before < revision => whole.extend(self.close()),
            _ => {}
        }
        let key = own_key(&self.prefix, &event.kv.key.0);
        let key = key.map_err(|error| Ended::Lost(error.to_string()))?;
        let value = match event.kind.as_str() {
            "" | "PUT" => Some(event.kv.value.0),
            "DELETE" => None,
            other => {
                let other = readable(other.as_bytes());
                return Err(Ended::Broken(format!("its watch tells of {other:?}")));
            }
        };
        self.open_bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        if self.open_bytes > REVISION_BYTES_MAX {
            return Err(Ended::Lost(format!("revision {revision} is too large")));
        }
        let open = self.open.get_or_insert_with(|| Batch {
            revision,
            events: Vec::new(),
        });
        open.events.push(Event { key, value });
        Ok(())
    }

    fn close(&mut self) -> Option<Batch> {
        self.open_bytes = 0;
        let batch = self.open.take()?;
        self.after = batch.revision;
        Some(batch)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::etcd::gateway::Base64;
    use proptest::prelude::*;

    fn base64(text: &str) -> String {
        let letters = serde_json::to_string(&Base64::text(text)).unwrap();
        letters.trim_matches('"').to_owned()
    }

    fn put(key: &str, revision: u64) -> String {
        let (key, value) = (base64(&format!("/p/{key}")), base64("x"));
        format!(r#"{{"kv":{{"key":"{key}","mod_revision":"{revision}","value":"{value}"}}}}"#)
    }

    fn removal(key: &str, revision: u64) -> String {
        let key = base64(&format!("/p/{key}"));
        format!(r#"{{"type":"DELETE","kv":{{"key":"{key}","mod_revision":"{revision}"}}}}"#)
    }

    fn message(fragment: bool, events: &[String]) -> Vec<u8> {
        let events = events.join(",");
        let fragment = if fragment { r#""fragment":true,"# } else { "" };
        format!(r#"{{"result":{{{fragment}"events":[{events}]}}}}"#).into_bytes()
    }

    fn keys(batch: &Batch) -> Vec<&str> {
        batch.events.iter().map(|it| it.key.as_str()).collect()
    }

    fn told(batches: &[Batch]) -> Vec<(u64, Vec<&str>)> {
        let told = batches.iter().map(|it| (it.revision, keys(it)));
        told.collect()
    }

    #[test]
    fn revisions_of_one_message_are_told_one_by_one() {
        let mut decoder = Decoder::new("/p/", 10);
        let events = [put("a", 11), put("b", 11), removal("a", 14), put("c", 15)];
        let batches = decoder.message(&message(false, &events)).unwrap();
        let expected = [(11, vec!["a", "b"]), (14, vec!["a"]), (15, vec!["c"])];
        assert_eq!(told(&batches), expected);
        assert_eq!(batches[1].events[0].value, None);
        assert_eq!(batches[2].events[0].value, Some(Bytes::from_static(b"x")));
        assert_eq!(decoder.after(), 15);
    }

    #[test]
    fn a_revision_in_fragments_is_told_once_and_whole() {
        let mut decoder = Decoder::new("/p/", 10);
        let first = message(true, &[put("a", 11), put("a", 12)]);
        let batches = decoder.message(&first).unwrap();
        assert_eq!(told(&batches), [(11, vec!["a"])]);
        let second = message(true, &[put("b", 12)]);
        assert!(decoder.message(&second).unwrap().is_empty());
        // The stream breaks here: everything from 12 on comes again.
        decoder.begin_again();
        let again = message(true, &[put("a", 11), put("a", 12), put("b", 12)]);
        assert!(decoder.message(&again).unwrap().is_empty());
        let batches = decoder.message(&message(false, &[put("c", 12)])).unwrap();
        assert_eq!(told(&batches), [(12, vec!["a", "b", "c"])]);
    }

    #[test]
    fn what_was_told_is_not_told_again() {
        let mut decoder = Decoder::new("/p/", 10);
        let events = [put("a", 9), put("a", 10), put("b", 11)];
        let batches = decoder.message(&message(false, &events)).unwrap();
        assert_eq!(told(&batches), [(11, vec!["b"])]);
        let batches = decoder.message(&message(false, &events)).unwrap();
        assert!(batches.is_empty());
        let created = br#"{"result":{"header":{"revision":"99"},"created":true}}"#;
        assert!(decoder.message(created).unwrap().is_empty());
        assert_eq!(decoder.after(), 11);
    }

    #[test]
    fn a_stream_that_can_not_go_on_says_why() {
        let mut decoder = Decoder::new("/p/", 10);
        let mut ended = |line: &[u8]| decoder.message(line).unwrap_err();
        let compacted = br#"{"result":{"canceled":true,"compact_revision":"20"}}"#;
        assert!(matches!(ended(compacted), Ended::Lost(_)));
        let other_key = format!(
            r#"{{"kv":{{"key":"{}","mod_revision":"12"}}}}"#,
            base64("/q/a")
        );
        assert!(matches!(
            ended(&message(false, &[other_key])),
            Ended::Lost(_)
        ));
        for broken in [
            &br#"{"result":{"canceled":true,"cancel_reason":"etcdserver: permission denied"}}"#[..],
            br#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}"#,
            br#"{"error":{"code":14,"message":"etcdserver: no leader"}}"#,
            b"garbage",
            b"",
            br#"{"result":{"events":[{"kv":{"key":"!"}}]}}"#,
            &message(false, &[put("b", 13), put("a", 12)]),
            &message(
                false,
                &[put("b", 13).replace("\"kv\"", "\"type\":\"MOVE\",\"kv\"")],
            ),
        ] {
            assert!(matches!(ended(broken), Ended::Broken(_)));
        }
        // One revision without an end.
        let value = base64(&"v".repeat(1 << 20));
        let key = base64("/p/a");
        let large = format!(r#"{{"kv":{{"key":"{key}","mod_revision":"14","value":"{value}"}}}}"#);
        let large = message(true, &[large]);
        let mut decoder = Decoder::new("/p/", 10);
        let ended = (0..100).find_map(|_| decoder.message(&large).err());
        assert!(matches!(ended, Some(Ended::Lost(_))));
    }

    proptest! {
        #[test]
        fn lines_are_the_same_however_the_bytes_arrive(
            text in "[a-c\n]{0,60}",
            cuts in proptest::collection::vec(0usize..60, 0..10),
        ) {
            let mut cuts = cuts;
            cuts.push(text.len());
            cuts.sort_unstable();
            let mut lines = Lines::default();
            let mut found: Vec<Bytes> = Vec::new();
            let mut at = 0;
            for cut in cuts {
                let cut = cut.min(text.len());
                lines.push(&text.as_bytes()[at..cut]);
                at = cut;
                while let Some(line) = lines.next() {
                    found.push(line);
                }
            }
            let mut whole: Vec<&str> = text.split('\n').collect();
            whole.pop();
            prop_assert!(found.iter().map(|line| &line[..]).eq(whole.iter().map(|line| line.as_bytes())));
        }
    }
}
