//! How connections between nodes are protected: the setting `cipherList`.

use std::fmt;
use std::str::FromStr;

/// A cipher suite of TLS 1.3.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Suite {
    /// AES-128 in Galois/counter mode: the fastest where the processor knows AES.
    Aes128Gcm,
    /// AES-256 in Galois/counter mode.
    Aes256Gcm,
    /// ChaCha20 with Poly1305: the fastest where the processor doesn't know AES.
    ChaCha20Poly1305,
}

impl Suite {
    /// All suites; of those that both sides allow, the first one is used.
    pub const ALL: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

    /// Its name in RFC 8446.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "TLS_AES_128_GCM_SHA256",
            Self::Aes256Gcm => "TLS_AES_256_GCM_SHA384",
            Self::ChaCha20Poly1305 => "TLS_CHACHA20_POLY1305_SHA256",
        }
    }
}

/// One suite or several.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Suites {
    /// Whether each suite of [`Suite::ALL`] is allowed; one at least is.
    allowed: [bool; 3],
}

impl Suites {
    /// All of them.
    pub const ALL: Self = Self { allowed: [true; 3] };

    /// One only.
    #[must_use]
    pub fn only(suite: Suite) -> Self {
        let mut allowed = [false; 3];
        allowed[suite as usize] = true;
        Self { allowed }
    }

    /// Those of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let mut allowed = self.allowed;
        for (allowed, other) in allowed.iter_mut().zip(other.allowed) {
            *allowed |= other;
        }
        Self { allowed }
    }

    /// Whether this one is allowed.
    #[must_use]
    pub fn contains(self, suite: Suite) -> bool {
        self.allowed[suite as usize]
    }

    /// The allowed ones, the best first.
    pub fn iter(self) -> impl Iterator<Item = Suite> {
        let all = Suite::ALL.into_iter();
        all.filter(move |suite| self.contains(*suite))
    }
}

/// How one connection is protected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// `EMPTY`: not at all. Only for laboratories: whoever reaches the port is a member.
    Off,
    /// `AUTHONLY`: both sides prove who they are, requests and names are encrypted, file data can be
    /// read on the way but not changed.
    AuthOnly,
    /// Everything is encrypted, with one of these suites of TLS.
    Encrypted(Suites),
}

/// A text is no value of `cipherList`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadMode(String);

impl fmt::Display for BadMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Suite::ALL.map(Suite::name).join(", ");
        write!(
            f,
            "cipherList doesn't know \"{}\"; give AUTHONLY, EMPTY, or names of ciphers joined by \
             colons: {names}",
            self.0
        )
    }
}

impl std::error::Error for BadMode {}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("EMPTY"),
            Self::AuthOnly => f.write_str("AUTHONLY"),
            Self::Encrypted(suites) => {
                let names: Vec<_> = suites.iter().map(Suite::name).collect();
                f.write_str(&names.join(":"))
            }
        }
    }
}

impl FromStr for Mode {
    type Err = BadMode;

    /// In capitals or not.
    fn from_str(text: &str) -> Result<Self, BadMode> {
        let text = text.trim();
        let is = |name: &str| text.eq_ignore_ascii_case(name);
        if is("EMPTY") {
            return Ok(Self::Off);
        }
        if is("AUTHONLY") {
            return Ok(Self::AuthOnly);
        }
        let suite = |word: &str| {
            let word = word.trim();
            let mut all = Suite::ALL.into_iter();
            let found = all.find(|suite| suite.name().eq_ignore_ascii_case(word));
            found.map(Suites::only).ok_or_else(|| BadMode(word.into()))
        };
        let mut words = text.split(':').map(suite);
        let first = words.next().unwrap_or_else(|| Err(BadMode(text.into())))?;
        let all = words.try_fold(first, |sum, suites| Ok(sum.and(suites?)))?;
        Ok(Self::Encrypted(all))
    }
}

/// Which connections a node opens and takes. As text: `AUTHONLY`, or `AUTHONLY also EMPTY` while a
/// cluster changes from one mode to another (`docs/protocols/security.md`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    opens: Mode,
    /// Each kind of mode once.
    also: Vec<Mode>,
}

impl Policy {
    /// Opens and takes connections of this mode only.
    #[must_use]
    pub fn only(mode: Mode) -> Self {
        Self {
            opens: mode,
            also: Vec::new(),
        }
    }

    /// Takes connections of this mode, too.
    #[must_use]
    pub fn also_taking(mut self, mode: Mode) -> Self {
        let is_taken = match mode {
            Mode::Off | Mode::AuthOnly => self.takes().any(|taken| taken == mode),
            Mode::Encrypted(suites) => {
                let taken = self.takes_encrypted();
                taken.is_some_and(|taken| taken.and(suites) == taken)
            }
        };
        if is_taken {
            return self;
        }
        let mut also = self.also.iter_mut();
        match (mode, also.find(|mode| matches!(mode, Mode::Encrypted(_)))) {
            (Mode::Encrypted(suites), Some(Mode::Encrypted(taken))) => *taken = taken.and(suites),
            _ => self.also.push(mode),
        }
        self
    }

    /// The mode of the connections that it opens.
    #[must_use]
    pub fn opens(&self) -> Mode {
        self.opens
    }

    /// The modes that it takes.
    pub fn takes(&self) -> impl Iterator<Item = Mode> + '_ {
        std::iter::once(self.opens).chain(self.also.iter().copied())
    }

    /// Whether it takes connections without protection.
    #[must_use]
    pub fn takes_plain(&self) -> bool {
        self.takes().any(|mode| mode == Mode::Off)
    }

    /// The suites with which it takes encrypted connections, if it does.
    #[must_use]
    pub fn takes_encrypted(&self) -> Option<Suites> {
        let suites = self.takes().filter_map(|mode| match mode {
            Mode::Encrypted(suites) => Some(suites),
            Mode::Off | Mode::AuthOnly => None,
        });
        suites.reduce(Suites::and)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.opens)?;
        self.also
            .iter()
            .try_for_each(|mode| write!(f, " also {mode}"))
    }
}

impl FromStr for Policy {
    type Err = BadMode;

    fn from_str(text: &str) -> Result<Self, BadMode> {
        let mut words = text.split_whitespace();
        let mut policy = Self::only(words.next().unwrap_or("").parse()?);
        while let Some(word) = words.next() {
            if !word.eq_ignore_ascii_case("also") {
                return Err(BadMode(word.into()));
            }
            policy = policy.also_taking(words.next().unwrap_or("").parse()?);
        }
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some_mode() -> impl Strategy<Value = Mode> {
        let suites = prop::collection::vec(0..3_usize, 1..4).prop_map(|chosen| {
            let chosen = chosen.into_iter().map(|at| Suites::only(Suite::ALL[at]));
            Mode::Encrypted(chosen.reduce(Suites::and).unwrap())
        });
        prop_oneof![Just(Mode::Off), Just(Mode::AuthOnly), suites]
    }

    proptest! {
        #[test]
        fn a_policy_is_read_as_it_was_written(
            opens in some_mode(),
            also in prop::collection::vec(some_mode(), 0..5),
        ) {
            let policy = also.into_iter().fold(Policy::only(opens), Policy::also_taking);
            prop_assert!(policy.also.len() <= 3);
            prop_assert_eq!(policy.to_string().parse(), Ok(policy));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,80}") {
            if let Ok(policy) = text.parse::<Policy>() {
                prop_assert_eq!(policy.to_string().parse(), Ok(policy));
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_right() {
        assert_eq!("authonly".parse(), Ok(Mode::AuthOnly));
        let both = "TLS_CHACHA20_POLY1305_SHA256:tls_aes_128_gcm_sha256";
        let suites = Suites::only(Suite::Aes128Gcm).and(Suites::only(Suite::ChaCha20Poly1305));
        assert_eq!(both.parse(), Ok(Mode::Encrypted(suites)));
        let error = "AES128-SHA".parse::<Mode>().unwrap_err().to_string();
        assert!(error.contains("\"AES128-SHA\""), "{error}");
        assert!(error.contains("AUTHONLY") && error.contains("TLS_AES_256_GCM_SHA384"));
        for wrong in ["", ":", "EMPTY:AUTHONLY", "AUTHONLY EMPTY", "AUTHONLY also"] {
            assert!(wrong.parse::<Policy>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_policy_takes_what_it_says() {
        let policy: Policy = "AUTHONLY".parse().unwrap();
        assert!(!policy.takes_plain());
        assert_eq!(policy.takes_encrypted(), None);
        let text = "EMPTY also TLS_AES_256_GCM_SHA384 also TLS_CHACHA20_POLY1305_SHA256";
        let policy: Policy = text.parse().unwrap();
        assert_eq!(policy.opens(), Mode::Off);
        assert!(policy.takes_plain() && !policy.takes().any(|mode| mode == Mode::AuthOnly));
        let suites: Vec<_> = policy.takes_encrypted().unwrap().iter().collect();
        assert_eq!(suites, [Suite::Aes256Gcm, Suite::ChaCha20Poly1305]);
    }
}
