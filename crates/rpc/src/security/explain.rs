//! What went wrong in a handshake, in an operator's words.

use super::refusals::{Kind, Refusal};
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error};
use std::io;

/// Which side of the connection this node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// It opened it.
    Asking,
    /// It answers.
    Answering,
}

impl Side {
    fn other(self) -> &'static str {
        match self {
            Self::Asking => "the other node",
            Self::Answering => "the other side",
        }
    }
}

/// Why TLS ended.
pub(crate) fn explain(error: &io::Error, side: Side) -> Refusal {
    let other = side.other();
    let tls = error
        .get_ref()
        .and_then(|error| error.downcast_ref::<Error>());
    let Some(tls) = tls else {
        return match error.kind() {
            io::ErrorKind::InvalidData => Refusal::new(Kind::Garbage, error.to_string()),
            io::ErrorKind::UnexpectedEof => {
                let text = format!("{other} closed the connection during the handshake");
                Refusal::new(Kind::Unfinished, text)
            }
            _ => Refusal::new(
                Kind::Unfinished,
                format!("the handshake broke off: {error}"),
            ),
        };
    };
    match tls {
        Error::InvalidCertificate(why) => {
            let text = format!("{other}'s certificate {}", about_certificate(why));
            Refusal::new(Kind::Identity, text)
        }
        Error::NoCertificatesPresented => {
            Refusal::new(Kind::Identity, format!("{other} has no certificate"))
        }
        Error::AlertReceived(alert) => about_alert(*alert, other),
        Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Refusal::new(
            Kind::Mode,
            format!("{other} and this node have no cipher or purpose in common: {tls}"),
        ),
        _ => Refusal::new(
            Kind::Garbage,
            format!("{other} breaks the rules of TLS: {tls}"),
        ),
    }
}

fn about_alert(alert: AlertDescription, other: &str) -> Refusal {
    use AlertDescription as Alert;
    let refused = |why: &str| {
        let text = format!("{other} refused this one's certificate: {why}");
        Refusal::new(Kind::Refused, text)
    };
    match alert {
        Alert::NoApplicationProtocol => Refusal::new(
            Kind::Mode,
            format!(
                "{other} takes no connections of this kind; the setting cipherList differs there, or \
                 it lets no machines join"
            ),
        ),
        Alert::HandshakeFailure | Alert::ProtocolVersion => Refusal::new(
            Kind::Mode,
            format!(
                "{other} allows no cipher that is allowed here; the setting cipherList differs"
            ),
        ),
        Alert::CertificateExpired => {
            refused("it has ended or doesn't count yet, by that node's clock")
        }
        Alert::UnknownCA => refused("it comes from no authority that is trusted there"),
        Alert::CertificateRequired => refused("it came without one"),
        Alert::BadCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateUnknown
        | Alert::UnsupportedCertificate
        | Alert::AccessDenied
        | Alert::DecryptError => refused("it is of no use there"),
        other_alert => Refusal::new(
            Kind::Refused,
            format!("{other} ended the handshake: {other_alert:?}"),
        ),
    }
}

fn about_certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::ExpiredContext { time, not_after } => {
            format!(
                "ended {} ago, by this node's clock",
                between(*not_after, *time)
            )
        }
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "counts only in {}, by this node's clock; are both clocks right?",
            between(*time, *not_before)
        ),
        CertificateError::Expired => "has ended".into(),
        CertificateError::NotValidYet => "doesn't count yet".into(),
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "comes from no authority that is trusted here: it belongs to another cluster, or the \
             authorities differ"
                .into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "is another node's: is its address the one of another node or cluster?".into()
        }
        other => format!("is of no use: {other}"),
    }
}

/// The time from one point to a later one, in its largest whole unit.
fn between(from: UnixTime, until: UnixTime) -> String {
    let seconds = until.as_secs().saturating_sub(from.as_secs());
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
