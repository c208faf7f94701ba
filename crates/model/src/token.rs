//! Tokens: the right of a session to cache or change something, and the messages with which it is
//! asked for, given, recalled and returned. The rules are in `docs/protocols/tokens.md`.

use crate::id::Tenure;
use crate::{Error, ErrorKind, InodeId, Result};
use serde::{Deserialize, Serialize};

/// Most ranges in one message about a token.
pub const TOKEN_RANGES_MAX: usize = 256;

/// What a token is for. Each kind has its own tokens: an inode's attributes don't conflict with its
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum TokenObject {
    /// The attributes of an inode.
    Inode(InodeId),
    /// The bytes of a file.
    Bytes(InodeId),
    /// The names of a directory, and the attributes of those children that are found only there.
    Directory(InodeId),
}

/// What a token lets its holder do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum TokenMode {
    /// Cache it. Any number of sessions at once.
    Shared,
    /// Write at the same time as others, without caching what they change: sizes and times of
    /// modification are merged by the owner. Only of an inode.
    SharedWrite,
    /// Cache and change it. Of a directory this is a delegation.
    Exclusive,
}

impl TokenMode {
    /// Whether two sessions may have these modes of the same thing.
    #[must_use]
    pub fn goes_with(self, other: TokenMode) -> bool {
        self == other && self != TokenMode::Exclusive
    }

    /// Whether who has this mode needs nothing more to do what the other one allows.
    #[must_use]
    pub fn covers(self, other: TokenMode) -> bool {
        self == other || self == TokenMode::Exclusive
    }

    /// The least mode that covers both.
    #[must_use]
    pub fn or(self, other: TokenMode) -> TokenMode {
        if self == other {
            self
        } else {
            TokenMode::Exclusive
        }
    }

    /// What is left of this mode if no more than `most` may be kept.
    #[must_use]
    pub fn at_most(self, most: Option<TokenMode>) -> Option<TokenMode> {
        match most {
            Some(most) if most.covers(self) => Some(self),
            Some(most) if self.covers(most) => Some(most),
            _ => None,
        }
    }
}

/// Bytes of a file from `start` up to, not including, `end`; never empty. Inodes and directories
/// have one range, [`TokenRange::ALL`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct TokenRange {
    /// First byte.
    pub start: u64,
    /// First byte behind it; `u64::MAX` has everything to the end of the file, however long it
    /// becomes.
    pub end: u64,
}

impl TokenRange {
    /// Everything.
    pub const ALL: Self = Self {
        start: 0,
        end: u64::MAX,
    };

    /// A range; `None` if it would be empty.
    #[must_use]
    pub fn new(start: u64, end: u64) -> Option<Self> {
        (start < end).then_some(Self { start, end })
    }

    /// What both have; `None` if that is nothing.
    #[must_use]
    pub fn common(self, other: Self) -> Option<Self> {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// Whether they have a byte in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.common(other).is_some()
    }
}

/// Refuses what no sound daemon sends of an object: parts that aren't 1 to [`TOKEN_RANGES_MAX`], in
/// order, without overlaps and none empty; parts of what has none; a mode that the object doesn't
/// have.
///
/// # Errors
/// `InvalidArgument`.
pub fn check_parts(
    object: TokenObject,
    mode: Option<TokenMode>,
    ranges: &[TokenRange],
) -> Result<()> {
    let refuse = |why: &str| Err(Error::new(ErrorKind::InvalidArgument, why.to_owned()));
    if ranges.is_empty() || ranges.len() > TOKEN_RANGES_MAX {
        return refuse("a message about a token has 1 to 256 ranges");
    }
    let is_sound = ranges.iter().all(|range| range.start < range.end);
    if !is_sound || !ranges.windows(2).all(|pair| pair[0].end <= pair[1].start) {
        return refuse("the ranges of a token are in order and don't overlap");
    }
    let has_parts = matches!(object, TokenObject::Bytes(_));
    if !has_parts && ranges != [TokenRange::ALL] {
        return refuse("only a file's bytes have ranges");
    }
    if mode == Some(TokenMode::SharedWrite) && !matches!(object, TokenObject::Inode(_)) {
        return refuse("only an inode is written by several sessions at the same time");
    }
    Ok(())
}

/// Numbers the grants of an owner in their order. Messages about a token name the newest grant that
/// their sender knows, because replies and recalls may overtake each other.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct GrantNumber {
    /// The owner's time in office.
    pub tenure: Tenure,
    /// Counts its grants.
    pub count: u64,
}

/// When an owner refuses a token, so that the operation for which it is wanted is sent to it instead.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Ship {
    /// Never: it can't be sent.
    Never,
    /// If others have or want what doesn't go with it, or have waited for something of the object lately: nobody gives
    /// anything back for it.
    IfHeld,
    /// If others wait for something of the object, or have lately. Who just has it gives it back: for operations that need that
    /// as well when they are sent.
    IfContended,
}

/// Asks for a token.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct TokenRequest {
    /// For what.
    pub object: TokenObject,
    /// To do what.
    pub mode: TokenMode,
    /// What is needed, in order, without overlaps; 1 to [`TOKEN_RANGES_MAX`]. Others have to give it
    /// back.
    pub required: Vec<TokenRange>,
    /// What would be useful beside it; nobody gives it back for this. Contains what is required.
    pub desired: TokenRange,
    /// When the operation is to be sent to the owner instead.
    pub ship: Ship,
}

impl TokenRequest {
    /// Asks for a whole object to look at it, unless others want it too.
    #[must_use]
    pub fn to_look_at(object: TokenObject) -> Self {
        Self {
            object,
            mode: TokenMode::Shared,
            required: vec![TokenRange::ALL],
            desired: TokenRange::ALL,
            ship: Ship::IfHeld,
        }
    }

    /// Asks for a whole object alone, unless others want it too.
    #[must_use]
    pub fn to_have_alone(object: TokenObject) -> Self {
        Self {
            mode: TokenMode::Exclusive,
            ..Self::to_look_at(object)
        }
    }

    /// Refuses what no sound daemon sends.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn check(&self) -> Result<()> {
        check_parts(self.object, Some(self.mode), &self.required)?;
        let mut required = self.required.iter();
        if required.all(|range| range.common(self.desired) == Some(*range)) {
            return Ok(());
        }
        let why = "what is desired of a token contains what is required";
        Err(Error::new(ErrorKind::InvalidArgument, why))
    }
}

/// The answer to a [`TokenRequest`].
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum TokenReply {
    /// The session holds these now, at least in this mode.
    Granted {
        /// What is required, and perhaps more around it.
        ranges: Vec<TokenRange>,
        /// The mode.
        mode: TokenMode,
        /// The grant.
        number: GrantNumber,
    },
    /// Others want the object too: send the operation to the owner.
    Ship,
    /// Others have been asked to give it back and haven't yet: ask again, under the same number.
    Waits,
    /// The session holds or waits for as much as it may: give something back first.
    TooMany,
}

/// Asks a session to give something back.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct TokenRecall {
    /// Of what.
    pub object: TokenObject,
    /// Which parts, in order, without overlaps; 1 to [`TOKEN_RANGES_MAX`].
    pub ranges: Vec<TokenRange>,
    /// What the session may keep of them.
    pub keep: Option<TokenMode>,
    /// The newest grant to which the recall applies.
    pub up_to: GrantNumber,
}

/// Says that a session no longer uses something. What it had changed under the token is durable.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct TokenReturn {
    /// Of what.
    pub object: TokenObject,
    /// Which parts.
    pub ranges: Vec<TokenRange>,
    /// What it keeps of them.
    pub keep: Option<TokenMode>,
    /// The newest grant that it gives back. It won't use one of these that comes late.
    pub up_to: GrantNumber,
}

#[cfg(test)]
mod tests {
    use super::*;
    use TokenMode::{Exclusive, Shared, SharedWrite};

    const MODES: [TokenMode; 3] = [Shared, SharedWrite, Exclusive];

    #[test]
    fn what_covers_another_mode_goes_with_no_more_than_that_does() {
        for strong in MODES {
            for weak in MODES.into_iter().filter(|weak| strong.covers(*weak)) {
                for other in MODES.into_iter().filter(|other| strong.goes_with(*other)) {
                    assert!(weak.goes_with(other), "{strong:?} {weak:?} {other:?}");
                }
            }
        }
    }

    #[test]
    fn the_least_upper_and_the_greatest_lower_mode_are_that() {
        for one in MODES {
            for other in MODES {
                let either = one.or(other);
                assert!(either.covers(one) && either.covers(other));
                let least = MODES.iter().filter(|m| m.covers(one) && m.covers(other));
                assert!(least.into_iter().all(|mode| mode.covers(either)));
                let lower = MODES
                    .iter()
                    .filter(|m| one.covers(**m) && other.covers(**m));
                let lower: Vec<_> = lower.collect();
                let kept = one.at_most(Some(other));
                assert_eq!(kept.is_some(), !lower.is_empty());
                assert!(
                    lower
                        .into_iter()
                        .all(|mode| kept.is_some_and(|kept| kept.covers(*mode)))
                );
            }
            assert_eq!(one.at_most(None), None);
        }
    }

    #[test]
    fn what_no_sound_daemon_sends_is_refused() {
        let range = |start, end| TokenRange { start, end };
        let bytes = TokenObject::Bytes(InodeId(2));
        let inode = TokenObject::Inode(InodeId(2));
        let many: Vec<_> = (0..257).map(|at| range(at * 2, at * 2 + 1)).collect();
        assert!(check_parts(bytes, Some(Shared), &many[..256]).is_ok());
        assert!(check_parts(inode, Some(SharedWrite), &[TokenRange::ALL]).is_ok());
        for (object, mode, ranges) in [
            (bytes, Some(Shared), &many[..]),
            (bytes, None, &[]),
            (bytes, None, &[range(3, 3)]),
            (bytes, None, &[range(4, 3)]),
            (bytes, None, &[range(3, 5), range(4, 6)]),
            (bytes, None, &[range(5, 6), range(1, 2)]),
            (bytes, Some(SharedWrite), &[TokenRange::ALL]),
            (inode, Some(Shared), &[range(0, 5)]),
        ] {
            let refused = check_parts(object, mode, ranges).expect_err("nobody sends that");
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        }
        let mut request = TokenRequest {
            object: bytes,
            mode: Shared,
            required: vec![range(3, 5)],
            desired: range(3, 5),
            ship: Ship::Never,
        };
        assert!(request.check().is_ok());
        request.desired = range(4, 9);
        assert!(request.check().is_err());
    }

    #[test]
    fn ranges_have_in_common_what_both_contain() {
        let range = |start, end| TokenRange::new(start, end).expect("not empty");
        assert_eq!(TokenRange::new(3, 3), None);
        assert_eq!(range(0, 5).common(range(3, 9)), Some(range(3, 5)));
        assert!(!range(0, 3).overlaps(range(3, 9)));
        assert!(range(7, 8).overlaps(TokenRange::ALL));
    }
}
