//! Files that are being executed through a mount.
//!
//! The kernel itself refuses to write to or truncate a running program (ETXTBSY), before it asks
//! for anything; except for `open(O_RDONLY | O_TRUNC)`: with `ATOMIC_O_TRUNC` it looks only when
//! the file has been opened, and so truncated. That one case is judged here.

use model::InodeId;
use parking_lot::Mutex;
use world::Map;

/// FMODE_EXEC of the kernel: the open is an execve's. Its RELEASE comes when no process runs the
/// file any more.
const OPEN_TO_EXECUTE: i32 = 0x20;

/// Opens of files that are executed.
#[derive(Default)]
pub(crate) struct Programs {
    opens: Mutex<Map<InodeId, u32>>,
}

impl Programs {
    /// Notes an open.
    pub(crate) fn opened(&self, inode: InodeId, flags: i32) {
        if flags & OPEN_TO_EXECUTE == 0 {
            return;
        }
        *self.opens.lock().entry(inode).or_default() += 1;
    }

    /// Notes the end of an open with these flags.
    pub(crate) fn released(&self, inode: InodeId, flags: i32) {
        if flags & OPEN_TO_EXECUTE == 0 {
            return;
        }
        let mut opens = self.opens.lock();
        if let Some(count) = opens.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                opens.remove(&inode);
            }
        }
    }

    /// Whether an open with these flags would truncate what is being executed. Not for writers:
    /// of those the kernel knows better, since a RELEASE comes some time after the process's end.
    pub(crate) fn would_be_cut(&self, inode: InodeId, flags: i32) -> bool {
        flags & (libc::O_TRUNC | libc::O_ACCMODE) == libc::O_TRUNC | libc::O_RDONLY
            && self.opens.lock().contains_key(&inode)
    }
}
