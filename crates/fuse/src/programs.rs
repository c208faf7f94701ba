//! Files that are being executed through a mount.
//!
//! The kernel itself refuses to write to or truncate a running program (ETXTBSY) before it sends a
//! request, with one exception: with `ATOMIC_O_TRUNC` it checks `open(O_RDONLY | O_TRUNC)` only
//! after the file was opened, and so truncated. This file checks that case.

use model::InodeId;
use parking_lot::Mutex;
use world::Map;

/// The kernel's FMODE_EXEC: the open is execve's. Its RELEASE comes once no process runs the file.
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

    /// Whether an open with these flags would truncate a running program. Opens for writing are
    /// left to the kernel, which knows better: RELEASE comes some time after the process's end.
    pub(crate) fn would_be_cut(&self, inode: InodeId, flags: i32) -> bool {
        flags & (libc::O_TRUNC | libc::O_ACCMODE) == libc::O_TRUNC | libc::O_RDONLY
            && self.opens.lock().contains_key(&inode)
    }
}
