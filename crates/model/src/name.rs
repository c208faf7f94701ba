//! The name of a directory entry.

use crate::error::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A name that may appear in a directory: 1..=255 bytes, no '/', no NUL, not "." or "..".
///
/// One that is read from a message or a record is checked as well: a name with a '/' in it would make
/// every kernel refuse to list its directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Box<[u8]>")]
pub struct FileName(Box<[u8]>);

impl FileName {
    /// Longest name in bytes (NAME_MAX of Linux).
    pub const BYTES_MAX: usize = 255;

    /// Checks and takes a name.
    ///
    /// # Errors
    /// `NameTooLong` (ENAMETOOLONG) or `InvalidArgument` (EINVAL): fix the request.
    pub fn new(bytes: &[u8]) -> Result<Self, Error> {
        Self::check(bytes)?;
        Ok(Self(bytes.into()))
    }

    fn check(bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > Self::BYTES_MAX {
            return Err(Error::new(
                ErrorKind::NameTooLong,
                "file name is longer than 255 bytes",
            ));
        }
        if bytes.is_empty()
            || bytes == b"."
            || bytes == b".."
            || bytes.iter().any(|b| *b == b'/' || *b == 0)
        {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "not a valid file name",
            ));
        }
        Ok(())
    }

    /// The bytes of the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<Box<[u8]>> for FileName {
    type Error = Error;

    fn try_from(bytes: Box<[u8]>) -> Result<Self, Error> {
        Self::check(&bytes)?;
        Ok(Self(bytes))
    }
}

impl fmt::Debug for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(&self.0))
    }
}
