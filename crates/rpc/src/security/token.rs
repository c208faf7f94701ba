//! The token that lets a machine join: a line of text that a person carries from a quorum node to the
//! machine (`docs/formats/rpc.md`, "Join token").

use super::certificate::Fingerprint;
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::{Encoding, Specification};
use model::checksum::crc32c;
use model::join::{ADDRESSES_MAX, JoinSecret};
use model::{Error, ErrorKind, Result, Timestamp};
use std::fmt;
use std::net::IpAddr;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

/// How long a token can be used: time to log in on another machine.
pub const TOKEN_LIFE: Duration = Duration::from_secs(5 * 60);

/// What every token begins with.
const PREFIX: &str = "shale";

/// The version that this build writes and reads.
const VERSION: u8 = 1;

/// Most letters of a token with all that people may put between them.
const TEXT_BYTES_MAX: usize = 1024;

/// Crockford's base 32: no letter looks like a digit, and capitals are the same as small letters.
static LETTERS: LazyLock<Encoding> = LazyLock::new(|| {
    let mut letters = Specification::new();
    letters.symbols.push_str("0123456789abcdefghjkmnpqrstvwxyz");
    letters
        .translate
        .from
        .push_str("ABCDEFGHJKMNPQRSTVWXYZOoIiLl");
    letters
        .translate
        .to
        .push_str("abcdefghjkmnpqrstvwxyz001111");
    // A long line is broken when it is pasted, and hyphens come with it.
    letters.ignore.push_str(" \t\r\n-");
    letters.encoding().expect("the letters are 32 and differ")
});

/// What a machine must know to join. Whoever has it can become a node of the cluster, once, until it
/// expires.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// Where quorum nodes listen: 1 to [`ADDRESSES_MAX`].
    pub addresses: Vec<SocketAddr>,
    /// The authority by which the machine knows the cluster.
    pub authority: Fingerprint,
    /// What the machine shows to the cluster.
    pub secret: JoinSecret,
    /// When it can't be used any more, in whole seconds.
    pub expires: Timestamp,
}

impl JoinToken {
    /// A new token with a new secret, which counts for [`TOKEN_LIFE`] from `now`.
    ///
    /// # Errors
    /// `Unavailable` if the system gives no random numbers; `InvalidArgument` if there is no address
    /// or more than [`ADDRESSES_MAX`].
    pub fn new(addresses: Vec<SocketAddr>, authority: Fingerprint, now: Timestamp) -> Result<Self> {
        if addresses.is_empty() || addresses.len() > ADDRESSES_MAX {
            let count = addresses.len();
            let text = format!("a join token has 1 to {ADDRESSES_MAX} addresses, not {count}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let mut secret = [0; 16];
        aws_lc_rs::rand::fill(&mut secret).map_err(|_| {
            Error::new(ErrorKind::Unavailable, "the system gives no random numbers")
        })?;
        Ok(Self {
            addresses,
            authority,
            secret: JoinSecret(secret),
            expires: Timestamp::from_timespec(now.plus(TOKEN_LIFE).seconds(), 0),
        })
    }

    /// As text. It is a secret: show it to whoever asked for it, and to nobody else.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut bytes = vec![VERSION, self.addresses.len() as u8];
        for address in &self.addresses {
            match address.ip() {
                IpAddr::V4(ip) => {
                    bytes.push(4);
                    bytes.extend(ip.octets());
                }
                IpAddr::V6(ip) => {
                    bytes.push(6);
                    bytes.extend(ip.octets());
                }
            }
            bytes.extend(address.port().to_le_bytes());
        }
        bytes.extend(self.authority.0);
        bytes.extend(self.secret.0);
        bytes.extend(self.expires.seconds().to_le_bytes());
        bytes.extend(crc32c(&bytes).to_le_bytes());
        format!("{PREFIX}{VERSION}-{}", LETTERS.encode(&bytes))
    }

    /// Reads a token, also one that was broken into lines. Whether it has expired isn't judged here.
    ///
    /// # Errors
    /// `InvalidArgument` that says whether it is no token, one of another version, or mistyped.
    pub fn from_text(text: &str) -> Result<Self> {
        Self::read(text).map_err(|why| {
            let error = Error::new(ErrorKind::InvalidArgument, why);
            error.while_doing("reading the join token")
        })
    }

    fn read(text: &str) -> std::result::Result<Self, &'static str> {
        const NONE: &str = "it is none; `shale cluster join-token` on a quorum node makes one";
        const WRONG: &str = "it is mistyped or a part is missing; copy all of it again";
        let text = text.trim();
        let is_prefix = text
            .get(..PREFIX.len())
            .is_some_and(|begin| begin.eq_ignore_ascii_case(PREFIX));
        if !is_prefix || text.len() > TEXT_BYTES_MAX {
            return Err(NONE);
        }
        let (version, letters) = text[PREFIX.len()..].split_once('-').ok_or(WRONG)?;
        let version: u32 = version.trim().parse().map_err(|_| WRONG)?;
        if version != u32::from(VERSION) {
            return Err("another version of Shale made it; use the same version here and there");
        }
        let bytes = LETTERS.decode(letters.as_bytes()).map_err(|_| WRONG)?;
        let (bytes, sum) = bytes.split_last_chunk::<4>().ok_or(WRONG)?;
        if crc32c(bytes).to_le_bytes() != *sum {
            return Err(WRONG);
        }
        // From here on it is what somebody made: the rules of the format decide.
        Self::decode(bytes).ok_or("its parts break the rules of its version")
    }

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let [VERSION, count] = take(&mut bytes)? else {
            return None;
        };
        let count = usize::from(count);
        if count == 0 || count > ADDRESSES_MAX {
            return None;
        }
        let address = |_| {
            let ip = match take(&mut bytes)? {
                [4] => IpAddr::from(take::<4>(&mut bytes)?),
                [6] => IpAddr::from(take::<16>(&mut bytes)?),
                _ => return None,
            };
            Some(SocketAddr::new(ip, u16::from_le_bytes(take(&mut bytes)?)))
        };
        let addresses: Vec<_> = (0..count).map(address).collect::<Option<_>>()?;
        let (authority, secret) = (
            Fingerprint(take(&mut bytes)?),
            JoinSecret(take(&mut bytes)?),
        );
        let seconds = i64::from_le_bytes(take(&mut bytes)?);
        let expires = Timestamp::from_timespec(seconds, 0);
        // Times that a timestamp doesn't reach become its last one.
        if !bytes.is_empty() || expires.seconds() != seconds {
            return None;
        }
        Some(Self {
            addresses,
            authority,
            secret,
            expires,
        })
    }

    /// Whether it can't be used any more, by this machine's clock. The cluster's clock decides in the
    /// end.
    #[must_use]
    pub fn has_expired(&self, now: Timestamp) -> bool {
        now >= self.expires
    }
}

impl fmt::Debug for JoinToken {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken")
            .field("addresses", &self.addresses)
            .field("authority", &self.authority)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// What the cluster keeps of a secret: its SHA-256. It can't be turned back, so whoever reads the
/// cluster's records can't join with them.
#[must_use]
pub fn secret_hash(secret: JoinSecret) -> [u8; 32] {
    let hash = digest(&SHA256, &secret.0);
    hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The first `N` bytes.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some_token() -> impl Strategy<Value = JoinToken> {
        let addresses = prop::collection::vec(any::<SocketAddr>(), 1..=ADDRESSES_MAX);
        let rest = (any::<[u8; 32]>(), any::<[u8; 16]>(), 0..9_000_000_000_i64);
        (addresses, rest).prop_map(|(mut addresses, (authority, secret, seconds))| {
            // Scopes and flows of IPv6 mean something on one machine only.
            for address in &mut addresses {
                *address = SocketAddr::new(address.ip(), address.port());
            }
            JoinToken {
                addresses,
                authority: Fingerprint(authority),
                secret: JoinSecret(secret),
                expires: Timestamp::from_timespec(seconds, 0),
            }
        })
    }

    fn a_token() -> JoinToken {
        let addresses = vec![([10, 1, 2, 3], 7100).into(), ([10, 1, 2, 4], 7100).into()];
        let now = Timestamp::from_timespec(1_800_000_000, 5);
        JoinToken::new(addresses, Fingerprint([7; 32]), now).unwrap()
    }

    proptest! {
        #[test]
        fn a_token_is_read_as_it_was_written(token in some_token()) {
            let text = token.to_text();
            prop_assert_eq!(JoinToken::from_text(&text).unwrap(), token.clone());
            prop_assert_eq!(JoinToken::from_text(&text.to_uppercase()).unwrap(), token.clone());
            let (begin, letters) = text.split_at(7);
            let lines: Vec<String> = letters
                .as_bytes()
                .chunks(20)
                .map(|line| String::from_utf8(line.to_vec()).unwrap())
                .collect();
            let pasted = format!("  {begin}{}\n", lines.join("\r\n  "));
            prop_assert_eq!(JoinToken::from_text(&pasted).unwrap(), token);
        }

        #[test]
        fn a_mistyped_token_is_named_as_such(
            token in some_token(),
            at in any::<prop::sample::Index>(),
            other in "[0-9a-hjkmnp-tv-z]",
        ) {
            let text = token.to_text();
            let at = 7 + at.index(text.len() - 7);
            let mut wrong = text.clone();
            wrong.replace_range(at..=at, &other);
            prop_assume!(wrong != text);
            let error = JoinToken::from_text(&wrong).unwrap_err().to_string();
            prop_assert!(error.contains("mistyped"), "{}", error);
            let cut = JoinToken::from_text(&text[..at]).unwrap_err().to_string();
            prop_assert!(cut.contains("mistyped"), "{}", cut);
        }

        #[test]
        fn any_text_is_no_token(text in ".{0,300}") {
            prop_assert!(JoinToken::from_text(&text).is_err());
        }

        /// With the right checksum: read, or refused.
        #[test]
        fn forged_tokens_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = [vec![1, bytes.first().map_or(1, |byte| byte % 4)], bytes].concat();
            bytes.extend(crc32c(&bytes).to_le_bytes());
            let text = format!("shale1-{}", LETTERS.encode(&bytes));
            if let Ok(token) = JoinToken::from_text(&text) {
                prop_assert!(token.addresses.len() <= ADDRESSES_MAX);
            }
        }
    }

    /// Whoever makes a token by hand can make its checksum fit.
    #[test]
    fn any_text_is_a_token_or_refused() {
        let read = fuzzing::Seen::default();
        fuzzing::fuzz!(fuzzing::ROUNDS, |input: &[u8]| {
            let mut source = fuzzing::Source::new(input);
            let addresses = (0..1 + source.below(ADDRESSES_MAX)).map(|_| {
                let ip: IpAddr = match source.chance() {
                    true => source.array::<4>().into(),
                    false => source.array::<16>().into(),
                };
                SocketAddr::new(ip, source.number() as u16)
            });
            let token = JoinToken {
                addresses: addresses.collect(),
                authority: Fingerprint(source.array()),
                secret: JoinSecret(source.array()),
                expires: Timestamp::from_timespec(source.number() as i64 / 2_000_000_000, 0),
            };
            let text = token.to_text();
            assert_eq!(JoinToken::from_text(&text), Ok(token));
            let bytes = LETTERS.decode(&text.as_bytes()[7..]).unwrap();
            let mut forged = source.changed(&bytes[..bytes.len() - 4]);
            forged.extend(crc32c(&forged).to_le_bytes());
            let forged = format!("shale1-{}", LETTERS.encode(&forged));
            let mistyped = String::from_utf8_lossy(&source.changed(text.as_bytes())).into_owned();
            let any = String::from_utf8_lossy(input).into_owned();
            for text in [forged, mistyped, any] {
                let memory = fuzzing::Memory::SMALL;
                let found = fuzzing::within(memory, text.len(), || JoinToken::from_text(&text));
                if let Ok(found) = found {
                    assert!((1..=ADDRESSES_MAX).contains(&found.addresses.len()));
                    assert_eq!(JoinToken::from_text(&found.to_text()), Ok(found));
                    read.note();
                }
            }
        });
        read.check(1, "forged tokens are read");
    }

    #[test]
    fn a_token_says_what_is_wrong_with_it() {
        let error = |text: &str| JoinToken::from_text(text).unwrap_err().to_string();
        assert!(error("hello").contains("join-token"));
        let text = a_token().to_text();
        let newer = text.replacen("shale1", "shale2", 1);
        assert!(
            error(&newer).contains("another version"),
            "{}",
            error(&newer)
        );
        assert!(error(&text.repeat(20)).contains("it is none"));
    }

    #[test]
    fn a_token_counts_for_five_minutes() {
        let token = a_token();
        let at = |seconds: i64| Timestamp::from_timespec(1_800_000_000 + seconds, 0);
        assert!(!token.has_expired(at(299)));
        assert!(token.has_expired(at(300)));
    }

    /// So that tokens of an older build are read.
    #[test]
    fn the_text_of_a_token_is_fixed() {
        let token = JoinToken {
            addresses: vec![([10, 1, 2, 3], 7100).into()],
            authority: Fingerprint(std::array::from_fn(|at| at as u8)),
            secret: JoinSecret(std::array::from_fn(|at| 0xf0 + at as u8)),
            expires: Timestamp::from_timespec(1_800_000_000, 0),
        };
        let text = "shale1-040g82g1081vr6r0041061050r3gg28a1c60t3gf208h44rm2mb1e60s38dhr78y3zrf3wq\
                    kyktzdxzrz7xfqz7xzvzg1mj9dc000000z2x5fv0";
        assert_eq!(token.to_text(), text);
    }

    #[test]
    fn the_secret_is_in_no_log() {
        let token = a_token();
        let shown = format!("{token:?}");
        let secret = token.secret.0.map(|byte| byte.to_string()).join(", ");
        assert!(
            !shown.contains(&secret) && shown.contains("10.1.2.3"),
            "{shown}"
        );
        let hash = secret_hash(token.secret);
        assert_ne!(hash[..16], token.secret.0);
    }
}
