//! Looks through all files for extents in closed generations: for data that files share, which no
//! segment's record leads to.

use super::{Emptying, Pass};
use crate::background::Pace;
use crate::background::freeing::STEP_BYTES;
use crate::background::rewrite::Part;
use model::{ErrorKind, Extent, ExtentKind, Result};
use namespace::{Key, Record, Table};
use shard::successor;

/// Inodes per step.
const PAGE: usize = 256;
/// Extents of one file that are replaced at once. A walk comes by again if there are more.
const EXTENTS_MAX: usize = 4096;

impl Emptying {
    /// Examines a page of inodes, or as many as the allowance is enough for, and rewrites what of their
    /// content is in closed generations. Returns the number of extents replaced.
    pub(super) async fn walk_some(&self, pass: &mut Pass, pace: Pace) -> Result<u64> {
        let Some(from) = pass.walk.take() else {
            return Ok(0);
        };
        let (_, to) = Table::Inodes.range();
        let page = self.host.shard().scan(&from, &to, PAGE).await?;
        let mut replaced = 0;
        for (key, record) in &page {
            let (Key::Inode(inode), Record::Inode(file)) = (key, record) else {
                continue;
            };
            if file.extents == 0 {
                continue;
            }
            if self.allowance.of_round(pace) == 0 {
                // It comes first when what was moved is paid.
                pass.replaced += replaced;
                pass.walk = Some(key.clone());
                return Ok(replaced);
            }
            let mut found: Vec<Extent> = Vec::new();
            let mut bytes = 0;
            let look = |extent: &Extent| {
                if let ExtentKind::Data { place, .. } = &extent.kind
                    && place.group < pass.target
                {
                    bytes += extent.length;
                    found.push(extent.clone());
                }
                found.len() < EXTENTS_MAX && bytes < STEP_BYTES
            };
            self.host.each_extent(*inode, file.data, 0, look).await?;
            self.allowance.take(bytes, bytes);
            let parts = found
                .chunk_by(|a, b| a.end() == b.offset)
                .map(|run| Part {
                    inode: *inode,
                    data: file.data,
                    extents: run.to_vec(),
                    bytes: None,
                })
                .collect();
            match self.rewriter.rewrite(parts).await {
                Ok(done) => replaced += done.replaced,
                // Unreadable data is left to repair. The next scan fails if it was the shard.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Corrupt) =>
                {
                    tracing::info!(%inode, %error, "a file's data can't be moved now");
                }
                Err(error) => return Err(error),
            }
        }
        pass.replaced += replaced;
        if let Some((last, _)) = page.last()
            && page.len() == PAGE
        {
            pass.walk = Some(successor(last));
        }
        Ok(replaced)
    }
}
