//! The name of a directory entry.

use crate::error::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A name that may appear in a directory: 1..=255 bytes, no '/', no NUL, not "." or "..".
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileName(Box<[u8]>);

impl FileName {
    /// Longest name in bytes (NAME_MAX of Linux).
    pub const BYTES_MAX: usize = 255;

    /// Checks and takes a name.
    ///
    /// # Errors
    /// `NameTooLong` (ENAMETOOLONG) or `InvalidArgument` (EINVAL): fix the request.
    pub fn new(bytes: &[u8]) -> Result<Self, Error> {
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
        Ok(Self(bytes.into()))
    }

    /// The bytes of the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
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
