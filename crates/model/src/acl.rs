//! The names of the extended attributes that are POSIX access control lists.

/// The list that decides access.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// A directory's list that new inodes in it inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Whether an extended attribute is one of the two lists.
#[must_use]
pub fn is_list(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}
