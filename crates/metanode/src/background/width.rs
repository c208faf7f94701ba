//! On which pool the width of new segments depends.

use model::MapEpoch;
use pool::Pool;

/// The map, and the changes of members under it.
pub(super) type Width = (MapEpoch, u64);

/// The pool's now.
pub(super) fn width(pool: &Pool) -> Width {
    (pool.map().epoch, pool.changes_of_members())
}
