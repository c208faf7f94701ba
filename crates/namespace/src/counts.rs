//! Counts in records that go up and down: refuses, never wraps, when damaged records would take one
//! below zero or a user would overflow one.

use crate::{Inode, Stop, view::Step};
use model::{Error, ErrorKind, InodeId};
use std::fmt::Display;

/// A number used as a count.
pub(crate) trait Count: Copy + Display {
    fn minus(self, by: Self) -> Option<Self>;
    fn plus(self, by: Self) -> Option<Self>;
}

macro_rules! count {
    ($($number:ty)*) => {
        $(impl Count for $number {
            fn minus(self, by: Self) -> Option<Self> { self.checked_sub(by) }
            fn plus(self, by: Self) -> Option<Self> { self.checked_add(by) }
        })*
    };
}
count!(u32 u64 u128 usize);

/// Two records contradict each other.
pub(crate) fn damaged(text: String) -> Stop {
    Error::new(ErrorKind::Corrupt, text).into()
}

/// `have - by`; a record that counts less than is removed is damaged.
pub(crate) fn subtract<T: Count>(have: T, by: T, whose: impl Display, what: &str) -> Step<T> {
    have.minus(by).ok_or_else(|| {
        damaged(format!(
            "{whose} counts {have} {what}, but {by} of them are removed"
        ))
    })
}

/// `have + by`; a count at its maximum is full.
pub(crate) fn add<T: Count>(have: T, by: T, whose: impl Display, what: &str) -> Step<T> {
    have.plus(by).ok_or_else(|| {
        let text = format!("{whose} counts {have} {what}, and {by} more exceed the maximum");
        Error::new(ErrorKind::NoSpace, text).into()
    })
}

/// Counts one more subdirectory, if it is one.
pub(crate) fn add_link(links: &mut u32, is_directory: bool) -> Step<()> {
    *links = links
        .checked_add(u32::from(is_directory))
        .ok_or(ErrorKind::TooManyLinks)?;
    Ok(())
}

/// Removes one name from a directory's counts.
pub(crate) fn take_name(directory: &mut Inode, id: InodeId, is_directory: bool) -> Step<()> {
    directory.entries = subtract(directory.entries, 1, id, "entries")?;
    directory.links = subtract(directory.links, u32::from(is_directory), id, "links")?;
    Ok(())
}
