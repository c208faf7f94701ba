//! What etcd's errors mean: whether a request can have run, and what to do.

use super::gateway::Failure;
use model::{Error, ErrorKind};

/// An error that etcd answered with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    text: String,
    pub(super) meaning: Meaning,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Meaning {
    /// This member did nothing, because of its state: another one may do it.
    NotHere,
    /// There is no such lease.
    LeaseEnded,
    /// The history that it needs is gone.
    Compacted,
    /// The database is full. A change was made all the same by whoever found that out while making it.
    Full,
    /// The request is larger than this etcd takes; nothing was done.
    TooLarge,
    /// More operations than this etcd takes; nothing was done.
    TooMany,
    /// It wants a password or another certificate; nothing was done.
    Denied,
    /// No member has this name.
    NoMember,
    /// A member has these URLs already.
    MemberExists,
    /// The member has a vote already.
    NoLearner,
    /// The change of the members has to wait for something.
    NotNow,
    /// It may have been done.
    Other,
}

/// Texts of etcd's errors (`rpctypes/error.go`, the same in 3.4 to 3.6) and what they mean. The codes
/// are coarser.
const MEANINGS: [(&str, Meaning); 23] = [
    // Refused by the member before it hands the request on.
    ("no leader", Meaning::NotHere),
    ("rpc not supported for learner", Meaning::NotHere),
    ("not capable", Meaning::NotHere),
    ("too many requests", Meaning::NotHere),
    // By its raft, which hands the lead over to another member at this moment or knows of no leader.
    ("raft proposal dropped", Meaning::NotHere),
    ("requested lease not found", Meaning::LeaseEnded),
    ("required revision has been compacted", Meaning::Compacted),
    ("database space exceeded", Meaning::Full),
    ("request is too large", Meaning::TooLarge),
    ("received message larger than max", Meaning::TooLarge),
    ("too many operations in txn request", Meaning::TooMany),
    ("permission denied", Meaning::Denied),
    ("user name is empty", Meaning::Denied),
    ("invalid auth token", Meaning::Denied),
    ("member not found", Meaning::NoMember),
    ("Peer URLs already exists", Meaning::MemberExists),
    ("member ID already exist", Meaning::MemberExists),
    (
        "can only promote a learner member which is in sync",
        Meaning::NotNow,
    ),
    ("can only promote a learner member", Meaning::NoLearner),
    ("not enough started members", Meaning::NotNow),
    ("too many learner members", Meaning::NotNow),
    ("unhealthy cluster", Meaning::NotNow),
    ("lease already exists", Meaning::Other),
];

/// Most bytes of an error's text that are kept.
const TEXT_BYTES_MAX: usize = 300;

impl Refusal {
    pub(super) fn new(failure: &Failure) -> Self {
        let text = match failure.message.is_empty() {
            true => &failure.error,
            false => &failure.message,
        };
        let known = MEANINGS.iter().find(|(part, _)| text.contains(part));
        let text = match text.is_empty() {
            true => format!("error {}", failure.code.max(failure.grpc_code)),
            false => readable(text.as_bytes()),
        };
        Self {
            text,
            meaning: known.map_or(Meaning::Other, |(_, meaning)| *meaning),
        }
    }

    /// An answer whose HTTP status isn't 200.
    pub(super) fn of_status(status: u16, body: &[u8]) -> Self {
        match serde_json::from_slice::<Failure>(body) {
            Ok(failure) if !failure.message.is_empty() || !failure.error.is_empty() => {
                Self::new(&failure)
            }
            _ if matches!(status, 404 | 405) => Self {
                text: format!(
                    "HTTP status {status}: it is no etcd, or was started with \
                     --enable-grpc-gateway=false"
                ),
                meaning: Meaning::NotHere,
            },
            _ => Self {
                text: format!("HTTP status {status}: {}", readable(body)),
                meaning: Meaning::Other,
            },
        }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn into_error(self) -> Error {
        let Self { text, meaning } = self;
        let (kind, advice) = match meaning {
            Meaning::LeaseEnded => (ErrorKind::NotFound, "the lease has ended"),
            Meaning::Compacted => (ErrorKind::Unavailable, "read again"),
            Meaning::Full => (
                ErrorKind::NoSpace,
                "etcd's database is full: compact its history, defragment its members and clear the \
                 alarm, or raise its --quota-backend-bytes",
            ),
            Meaning::TooLarge => (
                ErrorKind::NoSpace,
                "raise --max-request-bytes of etcd's members to the default (1.5 MiB) or more",
            ),
            Meaning::TooMany => (
                ErrorKind::InvalidArgument,
                "raise --max-txn-ops of etcd's members",
            ),
            Meaning::Denied => (
                ErrorKind::Unavailable,
                "etcd asks for a user, and Shale has none: let it trust certificates instead",
            ),
            Meaning::NoMember => (ErrorKind::NotFound, "etcd has no such member"),
            Meaning::MemberExists => (ErrorKind::Exists, "list the members"),
            Meaning::NoLearner => (ErrorKind::InvalidArgument, "the member has a vote"),
            Meaning::NotNow => (
                ErrorKind::Busy,
                "etcd's members aren't ready for it: try again",
            ),
            Meaning::NotHere => (ErrorKind::Unavailable, "nothing was done"),
            Meaning::Other => (
                ErrorKind::Unavailable,
                "whether the request took effect is unknown",
            ),
        };
        Error::new(kind, format!("etcd answered {text:?}: {advice}"))
    }
}

/// The begin of a text that may be anything.
pub(super) fn readable(text: &[u8]) -> String {
    let begin = &text[..text.len().min(TEXT_BYTES_MAX)];
    String::from_utf8_lossy(begin).replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_all_versions_of_the_gateway_are_understood() {
        let of = |body: &str| Refusal::of_status(404, body.as_bytes()).meaning;
        let three_four = r#"{"error":"etcdserver: requested lease not found","message":"etcdserver: requested lease not found","code":5}"#;
        assert_eq!(of(three_four), Meaning::LeaseEnded);
        let three_six =
            r#"{"code":5,"message":"etcdserver: requested lease not found","details":[]}"#;
        assert_eq!(of(three_six), Meaning::LeaseEnded);
        assert_eq!(of("404 page not found\n"), Meaning::NotHere);
        let other = Refusal::of_status(
            503,
            b"{\"message\":\"etcdserver: request timed out\",\"code\":14}",
        );
        assert_eq!(other.meaning, Meaning::Other);
        assert_eq!(other.into_error().kind(), ErrorKind::Unavailable);
        // Answered while the lead was handed over: nothing was done, so the next member is asked.
        let dropped =
            br#"{"error":"raft proposal dropped","message":"raft proposal dropped","code":2}"#;
        assert_eq!(Refusal::of_status(500, dropped).meaning, Meaning::NotHere);
        let learner = "etcdserver: can only promote a learner member";
        let in_sync = format!("{learner} which is in sync with leader");
        for (message, meaning) in [(learner, Meaning::NoLearner), (&in_sync, Meaning::NotNow)] {
            let message = message.to_owned();
            let failure = Failure {
                message,
                ..Failure::default()
            };
            assert_eq!(Refusal::new(&failure).meaning, meaning);
        }
    }

    #[test]
    fn an_error_that_is_anything_is_shortened_to_what_can_be_read() {
        let mut garbage = vec![0xff, 0, b'\n', 27];
        garbage.resize(1 << 20, b'x');
        let refusal = Refusal::of_status(500, &garbage);
        assert!(refusal.text().len() < 4 * TEXT_BYTES_MAX);
        assert!(!refusal.text().contains(char::is_control));
        assert_eq!(refusal.meaning, Meaning::Other);
    }
}
