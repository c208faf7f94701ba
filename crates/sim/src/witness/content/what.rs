//! What operations do to the objects of a file, whose states are numbers.

use crate::witness::order::Operation;
use std::rc::Rc;

/// What it does to the object, or says of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// The state is this.
    Is(u64),
    /// It becomes this.
    Set(u64),
    /// It becomes one of these.
    OneOf(Rc<[u64]>),
    /// It becomes at least this.
    Raise(u64),
    /// It is the first, and becomes the second.
    Move(u64, u64),
    /// It grows by this, from what nobody knows.
    Grow(u64),
    /// It is at most this.
    AtMost(u64),
    /// It is at least this.
    AtLeast(u64),
}

impl What {
    /// Whether it changes nothing.
    pub(super) fn is_look(&self) -> bool {
        matches!(self, Self::Is(_) | Self::AtMost(_) | Self::AtLeast(_))
    }
}

impl Operation for What {
    type State = u64;

    fn leaves(&self, state: &u64) -> bool {
        match self {
            Self::Is(it) => state == it,
            Self::AtMost(it) => state <= it,
            Self::AtLeast(it) => state >= it,
            _ => false,
        }
    }

    fn changes(&self, state: &u64, mut each: impl FnMut(u64)) {
        match self {
            Self::Set(it) => each(*it),
            Self::OneOf(all) => all.iter().copied().for_each(each),
            Self::Raise(it) => each(*state.max(it)),
            Self::Move(from, to) if state == from => each(*to),
            Self::Grow(by) => each(state + by),
            Self::Move(..) | Self::Is(_) | Self::AtMost(_) | Self::AtLeast(_) => {}
        }
    }
}
