//! Names of the tree's objects and where their bytes are; changed only by log entries.

use model::SegmentPlace;

/// The catalog of one owner of a shard. Cheap to clone.
#[derive(Clone)]
pub struct Catalog {}

impl Catalog {
    /// All segments that the tree's objects need now, for sweep and check.
    pub fn live_segments(&self) -> Vec<SegmentPlace> {
        unimplemented!("catalog")
    }
}
