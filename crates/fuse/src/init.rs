//! INIT: negotiates with the kernel which features this mount uses.

use crate::abi::{self, InitIn, InitOut, init};
use crate::locks::LockScope;

/// Bytes of data in one WRITE, and of one READ: the kernel's limit
/// (`fs.fuse.max_pages_limit`, 256 pages).
pub(crate) const DATA_BYTES_MAX: u32 = 1024 * 1024;
/// Background requests in flight, which no program waits for (read-ahead, write-back of mapped
/// pages, RELEASE).
const BACKGROUND_MAX: u16 = 64;
/// With this many in flight the kernel tells programs that the device is congested.
const CONGESTED_FROM: u16 = 48;
/// Requested features; those that the kernel offers as well apply.
const WANTED: u64 = init::ASYNC_READ
    | init::POSIX_LOCKS
    | init::FLOCK_LOCKS
    | init::ATOMIC_O_TRUNC
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::AUTO_INVAL_DATA
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::PARALLEL_DIROPS
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::DIRECT_IO_ALLOW_MMAP
    | init::POSIX_ACL
    // Whether the umask applies depends on the directory's default ACL.
    | init::DONT_MASK;

/// The negotiated features, fixed for the life of the mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Agreement {
    /// `abi::init` bits.
    pub(crate) flags: u64,
    /// Protocol minor version of the kernel.
    pub(crate) minor: u32,
    /// Largest data of a request or reply.
    pub(crate) data_bytes: u32,
}

impl Agreement {
    pub(crate) fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }
}

/// The answer to INIT, or why the kernel is too old. `over_io_uring`: request it if the kernel
/// offers it; the kernel then holds requests back until each of its queues has an entry. `locks`:
/// who manages them. `no_acl`: the kernel asks for no access control lists and obeys none.
pub(crate) fn agree(
    offer: &InitIn,
    readahead_bytes: u32,
    over_io_uring: bool,
    locks: LockScope,
    no_acl: bool,
) -> Result<(Agreement, InitOut), String> {
    if offer.major != abi::MAJOR || offer.minor < abi::MINOR_MIN {
        return Err(format!(
            "the kernel speaks FUSE {}.{}; at least {}.{} (Linux 5.4) is needed",
            offer.major,
            offer.minor,
            abi::MAJOR,
            abi::MINOR_MIN
        ));
    }
    let mut offered = u64::from(offer.flags);
    if offered & init::INIT_EXT != 0 {
        offered |= u64::from(offer.flags2) << 32;
    }
    let mut wanted = WANTED | (u64::from(over_io_uring) * init::OVER_IO_URING);
    if locks == LockScope::Local {
        // The kernel itself implements locks that aren't negotiated.
        wanted &= !(init::POSIX_LOCKS | init::FLOCK_LOCKS);
    }
    if no_acl {
        wanted &= !init::POSIX_ACL;
    }
    let flags = offered & wanted;
    let page_bytes = 4096;
    // Without MAX_PAGES the kernel sends at most 32 pages.
    let data_bytes = if flags & init::MAX_PAGES != 0 {
        DATA_BYTES_MAX
    } else {
        32 * page_bytes
    };
    let out = InitOut {
        major: abi::MAJOR,
        minor: abi::MINOR.min(offer.minor),
        max_readahead: readahead_bytes,
        flags: flags as u32,
        max_background: BACKGROUND_MAX,
        congestion_threshold: CONGESTED_FROM,
        max_write: data_bytes,
        time_gran: 1,
        max_pages: (data_bytes / page_bytes) as u16,
        flags2: (flags >> 32) as u32,
        ..InitOut::default()
    };
    Ok((
        Agreement {
            flags,
            minor: out.minor,
            data_bytes,
        },
        out,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_offers_is_agreed_on() {
        let offer = InitIn {
            major: 7,
            minor: 36,
            flags: (init::MAX_PAGES | init::INIT_EXT) as u32,
            ..Default::default()
        };
        let (agreement, out) =
            agree(&offer, 0, true, LockScope::Cluster, false).expect("new enough");
        assert_eq!(agreement.flags, init::MAX_PAGES | init::INIT_EXT);
        assert_eq!(
            (out.max_write, out.max_pages, out.minor),
            (1 << 20, 256, 36)
        );
        assert_eq!(out.flags2, 0, "no write-back cache, ever");
    }

    #[test]
    fn io_uring_is_agreed_on_if_both_sides_want_it() {
        let offer = InitIn {
            major: 7,
            minor: 45,
            flags: init::INIT_EXT as u32,
            flags2: (init::OVER_IO_URING >> 32) as u32,
            ..Default::default()
        };
        let has = |offer, wanted| {
            let (agreement, out) =
                agree(offer, 0, wanted, LockScope::Cluster, false).expect("new enough");
            assert_eq!(agreement.flags >> 32, u64::from(out.flags2));
            agreement.has(init::OVER_IO_URING)
        };
        assert!(has(&offer, true) && !has(&offer, false));
        let without = InitIn { flags2: 0, ..offer };
        assert!(!has(&without, true));
    }

    #[test]
    fn local_locks_are_left_to_the_kernel() {
        let locks = init::POSIX_LOCKS | init::FLOCK_LOCKS;
        let offer = InitIn {
            major: 7,
            minor: 45,
            flags: locks as u32,
            ..Default::default()
        };
        let agreed = |scope| {
            agree(&offer, 0, false, scope, false)
                .expect("new enough")
                .0
                .flags
        };
        assert_eq!(agreed(LockScope::Cluster) & locks, locks);
        assert_eq!(agreed(LockScope::Local) & locks, 0);
    }

    #[test]
    fn access_control_lists_are_agreed_on_unless_the_mount_has_none() {
        let offer = InitIn {
            major: 7,
            minor: 45,
            flags: init::POSIX_ACL as u32,
            ..Default::default()
        };
        let agreed = |no_acl| {
            let agreed = agree(&offer, 0, false, LockScope::Cluster, no_acl);
            agreed.expect("new enough").0.has(init::POSIX_ACL)
        };
        assert!(agreed(false) && !agreed(true));
    }

    #[test]
    fn an_old_kernel_is_refused_with_the_version_that_is_needed() {
        let offer = InitIn {
            major: 7,
            minor: 26,
            ..Default::default()
        };
        assert!(
            agree(&offer, 0, true, LockScope::Cluster, false)
                .expect_err("too old")
                .contains("7.31")
        );
    }
}
