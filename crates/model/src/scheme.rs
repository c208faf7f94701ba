//! Redundancy schemes of storage pools and segments.

use crate::error::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// How a segment survives the loss of NSDs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Scheme {
    /// `n` whole copies, 1..=4.
    Replicate(u8),
    /// `k` data pieces (1..=16) and `m` parity pieces (1..=4).
    Erasure {
        /// Data pieces.
        k: u8,
        /// Parity pieces.
        m: u8,
    },
}

impl Scheme {
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
        if let Some(n) = inner("replicate(") {
            let n: u8 = n.trim().parse().map_err(|_| wrong())?;
            return if (1..=4).contains(&n) {
                Ok(Self::Replicate(n))
            } else {
                Err(wrong())
            };
        }
        let (k, m) = inner("erasure(")
            .and_then(|t| t.split_once('+'))
            .ok_or_else(wrong)?;
        let k: u8 = k.trim().parse().map_err(|_| wrong())?;
        let m: u8 = m.trim().parse().map_err(|_| wrong())?;
        if (1..=16).contains(&k) && (1..=4).contains(&m) {
            Ok(Self::Erasure { k, m })
        } else {
            Err(wrong())
        }
    }
}
