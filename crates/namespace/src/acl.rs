//! POSIX access control lists: their effect on permission bits and on new inodes.
//!
//! The kernel checks access; the file system must do the rest: a chmod changes the list, a list
//! changes the permission bits, and a new inode inherits its directory's default list. The rules
//! are POSIX.1e draft 17, section 23.1, as Linux implements them (`fs/posix_acl.c`).
//!
//! A list is stored as Linux passes it, as the extended attribute's value, little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 4 | version, 2 |
//! | 8 for each entry | u16 tag, u16 permissions (rwx), u32 user or group, else `!0` |

use bytes::Bytes;
use model::{Error, ErrorKind};

pub(crate) use model::acl::{ACCESS, DEFAULT, is_list};

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;

mod tag {
    pub(super) const USER_OBJ: u16 = 0x01;
    pub(super) const USER: u16 = 0x02;
    pub(super) const GROUP_OBJ: u16 = 0x04;
    pub(super) const GROUP: u16 = 0x08;
    pub(super) const MASK: u16 = 0x10;
    pub(super) const OTHER: u16 = 0x20;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AclEntry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A valid list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Acl(Vec<AclEntry>);

impl Acl {
    /// Parses an attribute's value. `None`: a list without entries, which is the same as no list.
    pub(crate) fn parse(value: &[u8]) -> Result<Option<Self>, Error> {
        let wrong = |why: &str| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("not a valid ACL: {why}"),
            )
        };
        let (version, rest) = value
            .split_first_chunk::<4>()
            .ok_or_else(|| wrong("it is too short"))?;
        if u32::from_le_bytes(*version) != VERSION {
            // EOPNOTSUPP, as on Linux.
            return Err(ErrorKind::NotSupported.into());
        }
        let (entries, behind) = rest.as_chunks::<ENTRY_BYTES>();
        if !behind.is_empty() {
            return Err(wrong("its last entry is cut off"));
        }
        let entries: Vec<AclEntry> = entries
            .iter()
            .map(|&[t0, t1, p0, p1, i0, i1, i2, i3]| AclEntry {
                tag: u16::from_le_bytes([t0, t1]),
                permissions: u16::from_le_bytes([p0, p1]),
                id: u32::from_le_bytes([i0, i1, i2, i3]),
            })
            .collect();
        if entries.is_empty() {
            return Ok(None);
        }
        let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
        let one_of_each = [tag::USER_OBJ, tag::GROUP_OBJ, tag::OTHER]
            .iter()
            .all(|&tag| count(tag) == 1);
        let named = count(tag::USER) + count(tag::GROUP);
        let masks = count(tag::MASK);
        if !one_of_each
            || masks > 1
            || (named > 0 && masks == 0)
            || named + masks + 3 != entries.len()
        {
            return Err(wrong(
                "it needs one owner, group and other, and a mask if users or groups are named",
            ));
        }
        if !entries.is_sorted_by_key(|entry| entry.tag) {
            return Err(wrong("its entries are in the wrong order"));
        }
        if entries.iter().any(|entry| entry.permissions > 0o7) {
            return Err(wrong(
                "an entry has permissions besides read, write and execute",
            ));
        }
        Ok(Some(Self(entries)))
    }

    /// Encodes the list as an attribute's value.
    pub(crate) fn to_value(&self) -> Bytes {
        let mut value = Vec::with_capacity(4 + self.0.len() * ENTRY_BYTES);
        value.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.0 {
            value.extend_from_slice(&entry.tag.to_le_bytes());
            value.extend_from_slice(&entry.permissions.to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value.into()
    }

    /// Whether permission bits express all of it.
    pub(crate) fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// `mode` with the permission bits of this list: the group's are those of the mask.
    pub(crate) fn apply_to_mode(&self, mode: u32) -> u32 {
        let mut shown = mode & !0o777;
        for entry in &self.0 {
            if let Some(shift) = self.shift_of(entry.tag) {
                shown |= u32::from(entry.permissions) << shift;
            }
        }
        shown
    }

    /// chmod: the list with the permissions of `mode`.
    pub(crate) fn with_mode(mut self, mode: u32) -> Self {
        self.change(|permissions, bits| *permissions = bits, mode);
        self
    }

    /// The access list and mode of an inode that is created with `mode` under this default list:
    /// each grants no more than the other. The umask isn't applied.
    pub(crate) fn inherited(mut self, mode: u32) -> (Self, u32) {
        self.change(|permissions, bits| *permissions &= bits, mode);
        let mode = self.apply_to_mode(mode);
        (self, mode)
    }

    fn change(&mut self, apply: impl Fn(&mut u16, u16), mode: u32) {
        let shifts: Vec<_> = self
            .0
            .iter()
            .map(|entry| self.shift_of(entry.tag))
            .collect();
        for (entry, shift) in self.0.iter_mut().zip(shifts) {
            if let Some(shift) = shift {
                apply(&mut entry.permissions, (mode >> shift & 0o7) as u16);
            }
        }
    }

    /// Position of this tag's bits in the mode, if any: named users and groups have none, and the
    /// owning group has them only if there is no mask.
    fn shift_of(&self, tag: u16) -> Option<u32> {
        let has_mask = self.0.iter().any(|entry| entry.tag == tag::MASK);
        match tag {
            tag::USER_OBJ => Some(6),
            tag::MASK => Some(3),
            tag::GROUP_OBJ if !has_mask => Some(3),
            tag::OTHER => Some(0),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        Acl(entries
            .iter()
            .map(|&(tag, permissions, id)| AclEntry {
                tag,
                permissions,
                id,
            })
            .collect())
        .to_value()
        .to_vec()
    }

    const NONE: u32 = !0;

    #[test]
    fn lists_are_read_and_written_without_a_difference() {
        let value = acl(&[
            (tag::USER_OBJ, 7, NONE),
            (tag::USER, 5, 1000),
            (tag::USER, 4, 1001),
            (tag::GROUP_OBJ, 5, NONE),
            (tag::GROUP, 6, 100),
            (tag::MASK, 7, NONE),
            (tag::OTHER, 0, NONE),
        ]);
        let list = Acl::parse(&value).expect("valid").expect("not empty");
        assert_eq!(list.to_value(), value);
        assert!(!list.is_minimal());
        assert_eq!(list.apply_to_mode(0o104_644), 0o104_770);
    }

    #[test]
    fn nonsense_is_refused() {
        let good = [
            (tag::USER_OBJ, 7, NONE),
            (tag::GROUP_OBJ, 5, NONE),
            (tag::OTHER, 0, NONE),
        ];
        assert!(Acl::parse(&acl(&good)).is_ok());
        assert_eq!(Acl::parse(&acl(&[])).expect("means none"), None);
        let mut no_mask = good.to_vec();
        no_mask.insert(1, (tag::USER, 7, 5));
        let mut disordered = good.to_vec();
        disordered.swap(0, 1);
        let mut too_much = good.to_vec();
        too_much[0].1 = 8;
        for bad in [&no_mask[..], &disordered, &too_much, &good[..2]] {
            assert!(Acl::parse(&acl(bad)).is_err(), "{bad:?}");
        }
        assert!(Acl::parse(&[2, 0, 0]).is_err());
        assert!(Acl::parse(&[3, 0, 0, 0]).is_err());
        assert!(Acl::parse(&[2, 0, 0, 0, 1]).is_err());
    }

    #[test]
    fn a_new_inode_has_what_both_mode_and_default_list_allow() {
        let value = acl(&[
            (tag::USER_OBJ, 7, NONE),
            (tag::USER, 7, 1000),
            (tag::GROUP_OBJ, 5, NONE),
            (tag::MASK, 7, NONE),
            (tag::OTHER, 5, NONE),
        ]);
        let default = Acl::parse(&value).expect("valid").expect("not empty");
        let (list, mode) = default.clone().inherited(0o640);
        assert_eq!(mode, 0o640);
        let expected = acl(&[
            (tag::USER_OBJ, 6, NONE),
            (tag::USER, 7, 1000),
            (tag::GROUP_OBJ, 5, NONE),
            (tag::MASK, 4, NONE),
            (tag::OTHER, 0, NONE),
        ]);
        assert_eq!(list.to_value(), expected);
        assert_eq!(default.clone().with_mode(0o705).apply_to_mode(0), 0o705);
    }
}
