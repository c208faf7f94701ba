//! Redundancy schemes of storage pools and segments.

use crate::error::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// How a segment survives the loss of NSDs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "Received")]
pub enum Scheme {
    /// `n` whole copies, 1..=4 of a pool. A segment of a pool with [`Scheme::PARITY_MAX`] parity pieces may have one more, which
    /// survive the same losses ([`Scheme::COPIES_MAX`]).
    Replicate(u8),
    /// `k` data pieces (1..=16) and `m` parity pieces (1..=4).
    Erasure {
        /// Data pieces.
        k: u8,
        /// Parity pieces.
        m: u8,
    },
}

/// A scheme as it was read: its numbers may be anything.
#[derive(Deserialize)]
enum Received {
    Replicate(u8),
    Erasure { k: u8, m: u8 },
}

impl TryFrom<Received> for Scheme {
    type Error = &'static str;

    fn try_from(received: Received) -> Result<Self, &'static str> {
        let scheme = match received {
            Received::Replicate(n) => Self::Replicate(n),
            Received::Erasure { k, m } => Self::Erasure { k, m },
        };
        scheme.is_valid().then_some(scheme).ok_or("no such scheme")
    }
}

impl Scheme {
    /// Most parity pieces of a segment.
    pub const PARITY_MAX: u8 = 4;

    /// Most copies of a segment: a short one of an erasure-coded pool has one more than that has parity pieces.
    pub const COPIES_MAX: u8 = Self::PARITY_MAX + 1;

    /// Most copies of a segment of a pool of copies.
    const POOL_COPIES_MAX: u8 = 4;

    /// Whether there is such a scheme, of a segment at least.
    fn is_valid(self) -> bool {
        match self {
            Self::Replicate(n) => (1..=Self::COPIES_MAX).contains(&n),
            Self::Erasure { k, m } => (1..=16).contains(&k) && (1..=Self::PARITY_MAX).contains(&m),
        }
    }

    /// Whether a pool can have it.
    fn is_of_pool(self) -> bool {
        let is_too_wide = matches!(self, Self::Replicate(n) if n > Self::POOL_COPIES_MAX);
        self.is_valid() && !is_too_wide
    }

    /// Most pieces that a segment has (k + m).
    pub const PIECES_MAX: usize = 20;

    /// Pieces of a whole segment: n copies, or k + m.
    #[must_use]
    pub fn width(self) -> usize {
        match self {
            Self::Replicate(n) => usize::from(n),
            Self::Erasure { k, m } => usize::from(k) + usize::from(m),
        }
    }

    /// Pieces that hold plain data: 1 for copies, k for erasure coding.
    #[must_use]
    pub fn data_pieces(self) -> usize {
        match self {
            Self::Replicate(_) => 1,
            Self::Erasure { k, .. } => usize::from(k),
        }
    }

    /// Pieces that may be lost without losing data.
    #[must_use]
    pub fn tolerance(self) -> usize {
        self.width() - self.data_pieces()
    }

    /// Pieces that may still be on the way when a segment counts as written, such that one more
    /// loss is always survived: m - 1, or n - 2, never below 0.
    #[must_use]
    pub fn stragglers_max(self) -> usize {
        self.tolerance().saturating_sub(1)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replicate(n) => write!(f, "replicate({n})"),
            Self::Erasure { k, m } => write!(f, "erasure({k}+{m})"),
        }
    }
}

impl FromStr for Scheme {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "scheme {text:?} is unknown; use replicate(1..4) or erasure(k+m) with k 1..16 and m 1..4, like erasure(4+2)"
                ),
            )
        };
        let inner = |prefix: &str| {
            text.trim()
                .strip_prefix(prefix)
                .and_then(|t| t.strip_suffix(')'))
        };
        let number = |text: &str| text.trim().parse::<u8>().map_err(|_| wrong());
        let scheme = match inner("replicate(") {
            Some(n) => Self::Replicate(number(n)?),
            None => {
                let (k, m) = inner("erasure(")
                    .and_then(|text| text.split_once('+'))
                    .ok_or_else(wrong)?;
                let (k, m) = (number(k)?, number(m)?);
                Self::Erasure { k, m }
            }
        };
        scheme.is_of_pool().then_some(scheme).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(scheme: Scheme) -> Option<Scheme> {
        let bytes = postcard::to_stdvec(&scheme).unwrap();
        postcard::from_bytes(&bytes).ok()
    }

    /// Would be broken if records and messages with short segments of a pool with four parity pieces couldn't be read: these
    /// have five copies.
    #[test]
    fn what_a_segment_can_have_is_read_and_nothing_else() {
        let copies = (1..=5).map(Scheme::Replicate);
        let parity = (1..=4).flat_map(|m| [1, 16].map(|k| Scheme::Erasure { k, m }));
        for scheme in copies.chain(parity) {
            assert_eq!(read(scheme), Some(scheme));
        }
        let coded = [(0, 2), (17, 2), (4, 0), (4, 5)].map(|(k, m)| Scheme::Erasure { k, m });
        for scheme in [0, 6, 255].map(Scheme::Replicate).into_iter().chain(coded) {
            assert_eq!(read(scheme), None, "{scheme}");
        }
    }

    #[test]
    fn a_pool_has_at_most_four_copies() {
        for text in ["replicate(1)", "replicate(4)", "erasure(16+4)"] {
            let scheme: Scheme = text.parse().unwrap();
            assert_eq!(scheme.to_string(), text);
        }
        for text in [
            "replicate(0)",
            "replicate(5)",
            "erasure(4+5)",
            "erasure(17+2)",
        ] {
            assert!(text.parse::<Scheme>().is_err(), "{text}");
        }
    }
}
