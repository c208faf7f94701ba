//! Reads the records of a file, for work that isn't an operation.

use crate::host::{Host, SCAN_PAGE};
use model::{DataId, Extent, InodeId, Result};
use namespace::{Inode, Key, Record};
use shard::successor;
use std::sync::Arc;

/// Most pages of extents searched for one inode.
const PAGES_MAX: usize = 1024;

impl Host {
    /// The record of an inode.
    pub(crate) async fn inode_record(&self, inode: InodeId) -> Result<Option<Arc<Inode>>> {
        Ok(match self.shard().record(&Key::Inode(inode)).await? {
            Some(Record::Inode(record)) => Some(record),
            _ => None,
        })
    }

    /// Visits the extents of a data id from `offset` on, in order, as long as `more` returns true.
    pub(crate) async fn each_extent(
        &self,
        inode: InodeId,
        data: DataId,
        offset: u64,
        mut more: impl FnMut(&Extent) -> bool,
    ) -> Result<()> {
        let shard = self.shard();
        let fileset = inode.fileset();
        let mut from = Key::Extent {
            fileset,
            data,
            end: offset.saturating_add(1),
        };
        let to = Key::Extent {
            fileset,
            data: data.next(),
            end: 0,
        };
        for _ in 0..PAGES_MAX {
            let page = shard.scan(&from, &to, SCAN_PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok(());
            };
            from = successor(last);
            for (_, record) in &page {
                if let Record::Extent(extent) = record
                    && !more(extent)
                {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
