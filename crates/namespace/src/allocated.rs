//! Bytes that an inode takes, counted in it and in its fileset.

use crate::{
    View,
    counts::{add, subtract},
    transaction::Transaction,
    view::Step,
};
use model::InodeId;

/// Adds bytes to an inode and its fileset.
pub(crate) fn add_allocated<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    bytes: u64,
) -> Step<()> {
    let inode = tx.inode_mut(id)?;
    inode.allocated = add(inode.allocated, bytes, id, "allocated bytes")?;
    let fileset = id.fileset();
    let counters = tx.counters_mut(fileset)?;
    counters.allocated = add(counters.allocated, bytes.into(), fileset, "allocated bytes")?;
    Ok(())
}

/// Takes bytes off an inode and its fileset.
pub(crate) fn take_allocated<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    bytes: u64,
) -> Step<()> {
    let inode = tx.inode_mut(id)?;
    inode.allocated = subtract(inode.allocated, bytes, id, "allocated bytes")?;
    let fileset = id.fileset();
    let counters = tx.counters_mut(fileset)?;
    counters.allocated = subtract(counters.allocated, bytes.into(), fileset, "allocated bytes")?;
    Ok(())
}
