//! Hides the extended attributes that the mount's kernel has no use for.

use model::acl::is_list;
use model::{Error, ErrorKind, Result};

/// The label of SELinux.
const LABEL: &[u8] = b"security.selinux";

/// Whether this node's kernel labels files. Without it no program has a use for a label.
#[must_use]
pub fn node_has_selinux() -> bool {
    let types = std::fs::read_to_string("/proc/filesystems");
    // If that can't be read, nothing is hidden.
    types.map_or(true, |types| lists_selinux(&types))
}

fn lists_selinux(types: &str) -> bool {
    types
        .lines()
        .any(|line| line.split_whitespace().last() == Some("selinuxfs"))
}

/// Refuses access control lists on a mount with `noacl`.
pub(crate) fn check(no_acl: bool, name: &[u8]) -> Result<()> {
    if no_acl && is_list(name) {
        return Err(ErrorKind::NotSupported.into());
    }
    Ok(())
}

/// The error for a missing attribute. On a node without SELinux, a file without a label reports
/// that labels aren't supported: `ls -l` then stops asking for those of the other files.
pub(crate) fn absent(selinux: bool, name: &[u8], error: Error) -> Error {
    if !selinux && name == LABEL && error.kind() == ErrorKind::NoSuchAttribute {
        return ErrorKind::NotSupported.into();
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kernels_own_word_counts_as_selinux() {
        assert!(lists_selinux("nodev\tsysfs\nnodev\tselinuxfs\n\text4\n"));
        assert!(!lists_selinux(
            "nodev\tsysfs\n\text4\nnodev\tnotselinuxfs\n"
        ));
    }

    #[test]
    fn a_missing_label_is_unsupported_only_on_nodes_without_selinux() {
        let missing = || Error::from(ErrorKind::NoSuchAttribute);
        let kind = |selinux, name: &[u8]| absent(selinux, name, missing()).kind();
        assert_eq!(kind(false, LABEL), ErrorKind::NotSupported);
        assert_eq!(kind(true, LABEL), ErrorKind::NoSuchAttribute);
        assert_eq!(kind(false, b"user.a"), ErrorKind::NoSuchAttribute);
        let stale = Error::from(ErrorKind::Stale);
        assert_eq!(absent(false, LABEL, stale).kind(), ErrorKind::Stale);
    }

    #[test]
    fn noacl_refuses_lists_and_nothing_else() {
        let lists = [model::acl::ACCESS, model::acl::DEFAULT];
        assert!(lists.iter().all(|name| check(true, name).is_err()));
        assert!(lists.iter().all(|name| check(false, name).is_ok()));
        assert!(check(true, b"user.posix_acl_access").is_ok());
    }
}
