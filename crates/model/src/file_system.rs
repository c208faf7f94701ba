//! The name of a file system of a cluster.

use crate::{Error, ErrorKind, Result};
use std::fmt;
use std::str::FromStr;

/// Most bytes of a file system's name.
pub const FILE_SYSTEM_NAME_BYTES_MAX: usize = 64;

/// What people call a file system: 1 to 64 visible ASCII characters without `/`. Made by `parse`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileSystemName(String);

impl FileSystemName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a new file system may have this name. One that has it already stays readable.
    ///
    /// # Errors
    /// `InvalidArgument`: it has a comma. A mount names its file system in a list of options with commas between them.
    pub fn check_new(&self) -> Result<()> {
        if !self.0.contains(',') {
            return Ok(());
        }
        let text = format!(
            "a new file system's name has no comma, which would end it in a list of mount options: choose another one \
             than {self}"
        );
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }
}

impl FromStr for FileSystemName {
    type Err = Error;

    /// `InvalidArgument` if no file system can have this name.
    fn from_str(text: &str) -> Result<Self> {
        let is_good = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
        if (1..=FILE_SYSTEM_NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_good) {
            return Ok(Self(text.to_owned()));
        }
        let text = format!(
            "a file system's name has 1 to {FILE_SYSTEM_NAME_BYTES_MAX} visible ASCII characters without \
             \"/\", not {text:?}"
        );
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }
}

impl fmt::Display for FileSystemName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_1_to_64_visible_ascii_characters_and_no_slash() {
        let longest = "x".repeat(FILE_SYSTEM_NAME_BYTES_MAX);
        for good in ["a", "data", "team-7.old_2~", "!", "..", &longest] {
            let name: FileSystemName = good.parse().unwrap();
            assert_eq!((name.as_str(), name.to_string().as_str()), (good, good));
        }
        let too_long = "x".repeat(FILE_SYSTEM_NAME_BYTES_MAX + 1);
        for bad in [
            "", "a/b", "/", "a b", "a\n", "a\0", "\u{7f}", "größe", &too_long,
        ] {
            let refused = bad.parse::<FileSystemName>().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{bad:?}");
            let text = refused.to_string();
            assert!(text.contains("1 to 64 visible ASCII characters"), "{text}");
        }
    }

    /// Would be broken if `fs=a,ro` could be a file system's name, or one that exists couldn't be read any more.
    #[test]
    fn a_name_with_a_comma_is_read_and_given_to_no_new_file_system() {
        for good in ["a", "team-7.old_2~"] {
            let name: FileSystemName = good.parse().unwrap();
            name.check_new().unwrap();
        }
        for bad in ["a,ro", ",", "a,"] {
            let name: FileSystemName = bad.parse().unwrap();
            let refused = name.check_new().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
            assert!(refused.to_string().contains("no comma"), "{refused}");
        }
    }
}
