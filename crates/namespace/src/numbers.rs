//! Inode numbers: handed out in runs per directory, so that a directory's inodes are neighbours.
//!
//! A number that an inode once had is never reused: programs and kernels identify inodes by it.
//! When a directory is removed, the unused rest of its run is reused.

use crate::{View, counts, transaction::Transaction, view::Step};
use model::{Error, ErrorKind, FileKind, InodeId, InodeNumber};

/// Length of a directory's first run and of its longest; each is twice the one before. Most
/// directories stay small, and 2^40 numbers must last for ever.
const RUN_FIRST: u32 = 4;
const RUN_MAX: u32 = 1024;

/// Takes the number for a new inode in a directory; counts the inode.
pub(crate) fn take<V: View>(tx: &mut Transaction<'_, V>, directory: InodeId) -> Step<InodeNumber> {
    let counters = tx.counters_mut(directory.fileset())?;
    counters.inodes += 1;
    let parent = tx.inode_mut(directory)?;
    if parent.run_next == parent.run_end {
        let length = (parent.run_length * 2).clamp(RUN_FIRST, RUN_MAX);
        parent.run_length = length;
        let counters = tx.counters_mut(directory.fileset())?;
        let first = counters.next_inode;
        let end = first + u64::from(length);
        if end >= 1 << InodeId::NUMBER_BITS {
            return Err(Error::new(
                ErrorKind::NoSpace,
                "all inode numbers of the fileset are used up",
            )
            .into());
        }
        counters.next_inode = end;
        let parent = tx.inode_mut(directory)?;
        parent.run_next = first;
        parent.run_end = end;
    }
    let parent = tx.inode_mut(directory)?;
    assert!(
        parent.run_next < parent.run_end,
        "an unfinished run has a number"
    );
    let number = InodeNumber(parent.run_next);
    parent.run_next += 1;
    if number == directory.number() {
        let text = format!("directory {directory} would hand out its own number");
        return Err(counts::damaged(text));
    }
    Ok(number)
}

/// Called when a directory loses its name in `parent`: the unused rest of its run goes back to the
/// fileset if no later run was handed out, else to `parent`.
pub(crate) fn return_run<V: View>(
    tx: &mut Transaction<'_, V>,
    parent_id: InodeId,
    id: InodeId,
) -> Step<()> {
    let inode = tx.inode(id)?;
    let (next, end) = (inode.run_next, inode.run_end);
    if inode.kind != FileKind::Directory || next == end {
        return Ok(());
    }
    if inode.parent != parent_id.number() {
        return Err(counts::damaged(format!(
            "directory {id} gives {} as its parent, but its name is in {parent_id}",
            inode.parent
        )));
    }
    let inode = tx.inode_mut(id)?;
    (inode.run_next, inode.run_end) = (0, 0);
    let counters = tx.counters_mut(id.fileset())?;
    if counters.next_inode == end {
        counters.next_inode = next;
        return Ok(());
    }
    let parent = tx.inode_mut(parent_id)?;
    if parent.run_end == next {
        parent.run_end = end;
    } else if end == parent.run_next {
        parent.run_next = next;
    } else if end - next > parent.run_end - parent.run_next {
        // A directory has room for one run: it keeps the longer one; the shorter one is lost.
        (parent.run_next, parent.run_end) = (next, end);
    }
    Ok(())
}
