//! Inode numbers: given out in runs per directory, so that a directory's inodes are neighbours.
//!
//! A number that an inode once had is never given out again: programs and kernels know inodes by
//! it. What a directory has of its run when it is removed was nobody's number, and goes on.

use crate::{
    View, counts,
    transaction::{Step, Transaction},
};
use model::{Error, ErrorKind, FileKind, InodeId, InodeNumber};

/// Numbers that a directory takes at once: first, and after doubling. Most directories stay small,
/// and there are 2^40 numbers for ever.
const RUN_FIRST: u32 = 4;
const RUN_MAX: u32 = 1024;

/// The number of a new inode in a directory; counts the inode.
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
        "a run that isn't used up has a number"
    );
    let number = InodeNumber(parent.run_next);
    parent.run_next += 1;
    if number == directory.number() {
        let text = format!("directory {directory} has its own number to give out");
        return Err(counts::damaged(text));
    }
    Ok(number)
}

/// A directory loses its name in `parent`: the rest of its run goes back to where it came from if nothing was
/// taken since, else to that directory.
pub(crate) fn give_back<V: View>(
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
            "directory {id} says that it is in {}, its name that it is in {parent_id}",
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
        // It has room for one run: the longer one stays, the shorter one is lost.
        (parent.run_next, parent.run_end) = (next, end);
    }
    Ok(())
}
