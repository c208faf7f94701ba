//! Programs that map files: they load and store in the pages of a simulated kernel, and no daemon hears of it.
//!
//! Not all nodes have such programs: what goes past a kernel's mappings waits for those that use its pages, so that
//! fewer operations of these nodes meet.

use super::CrowdScenario;
use super::known::{CELLS, lock};
use super::performing::{bytes, is_refusal};
use super::programs::{Lost, Programs};
use crate::witness::{Answer, Call};
use model::{NodeId, Result};
use simkernel::{Open, PAGE, PageKernel};
use std::sync::atomic::Ordering;

/// Operations of a program on a file that it has mapped.
const MAPPED_STEPS: u64 = 12;

impl CrowdScenario {
    /// Whether programs of some nodes map files: if several cells fit into a page.
    pub(super) fn maps(&self) -> bool {
        self.maps && self.cell_bytes * 2 <= PAGE
    }

    /// Whether programs of a node do: of two of five.
    pub(super) fn maps_on(&self, node: NodeId) -> bool {
        self.maps() && node.0 % 5 < 2
    }
}

impl Programs {
    /// Does something past the mappings of its node's programs.
    pub(super) async fn past_mappings(
        &self,
        call: &Call,
        work: impl Future<Output = Result<Answer>>,
    ) -> Result<Answer> {
        let (Some(mapping), Some(inode)) = (&self.mapping, call.inode()) else {
            return work.await;
        };
        let at = |cell: &usize| (cell * self.cell_bytes()) as u64;
        let (from, to) = match call {
            // As the kernel does before it tells the daemon.
            Call::Fsync { .. } => {
                mapping.sync(inode).await?;
                return work.await;
            }
            // Linux writes the source's pages back, and drops those that the copy changes.
            Call::Copy {
                from, cell, cells, ..
            } => {
                mapping.sync(from.0).await?;
                (at(cell), at(&(cell + cells)))
            }
            Call::Append { .. } => (0, u64::MAX),
            // Linux doesn't look at its pages for a seek; a program that has stored there calls msync first.
            Call::Seek { cell, .. } => (at(cell), u64::MAX),
            Call::Truncate { cells, .. } => (at(cells), u64::MAX),
            Call::Write { cell, cells, .. }
            | Call::Punch { cell, cells, .. }
            | Call::Zero { cell, cells, .. }
            | Call::Reserve { cell, cells, .. }
            | Call::Read { cell, cells, .. } => (at(cell), at(&(cell + cells))),
            _ => return work.await,
        };
        mapping.past_pages(inode, from, to, work).await
    }

    /// What is lost of a mapping is lost with the client.
    pub(super) fn check_mapping(&self) -> std::result::Result<(), Lost> {
        let lost = self
            .mapping
            .iter()
            .map(|it| it.lost.load(Ordering::Relaxed));
        if lost.sum::<u64>() == 0 {
            return Ok(());
        }
        lock(&self.known).lose_client(self.number);
        Err(Lost)
    }

    /// Works with a file that it has mapped, in the mapping and past it.
    pub(super) async fn map_a_file(&self) -> std::result::Result<(), Lost> {
        let Some(kernel) = &self.mapping else {
            return Ok(());
        };
        let (file, may_change) = {
            let known = &mut *lock(&self.known);
            (known.file(), known.draw.below(3) > 0)
        };
        let Some(inode) = file else {
            return Ok(());
        };
        let open = match kernel.open(inode, may_change).await {
            Ok(open) => open,
            Err(error) => return self.note_no_open(inode, error),
        };
        for _ in 0..MAPPED_STEPS {
            let what = lock(&self.known).draw.below(4);
            match what {
                0 => {
                    let call = lock(&self.known).draw_content(inode);
                    let is_held = call.inode() == Some(inode);
                    self.ask(is_held, call).await?;
                }
                1 if may_change => self.touch(kernel, &open, true).await?,
                _ => self.touch(kernel, &open, false).await?,
            }
        }
        kernel.close(open).await;
        self.check_mapping()
    }

    /// Loads a cell from the mapping, or stores one. Where the page ends before it, the file ended when the page was
    /// read: the program sees zeros there, or gets a signal.
    async fn touch(
        &self,
        kernel: &PageKernel,
        open: &Open,
        stores: bool,
    ) -> std::result::Result<(), Lost> {
        if lock(&self.known).is_lost(self.number) {
            return Err(Lost);
        }
        let (cell, value) = {
            let known = &mut *lock(&self.known);
            (known.draw.below(CELLS) as usize, known.value())
        };
        let (inode, from) = (open.inode(), cell * self.cell_bytes());
        let (page, within) = (from / PAGE, from % PAGE);
        let range = within..within + self.cell_bytes();
        if range.end > PAGE {
            return Ok(());
        }
        let call = match stores {
            true => Call::Store { inode, cell, value },
            false => Call::Load { inode, cell },
        };
        let touch = |page: &mut [u8]| {
            let there = page.get_mut(range);
            if there.is_none() && !stores {
                return Ok(());
            }
            let event = lock(&self.known).begin(self.number, true, call.clone());
            let answer = match there {
                None => Answer::Cells(Vec::new()),
                Some(there) if stores => {
                    there.copy_from_slice(&bytes(value, self.cell_bytes()));
                    Answer::Done
                }
                Some(there) => Answer::Cells(self.cells_of(there)?),
            };
            lock(&self.known).end(event, answer);
            Ok(())
        };
        let touched = kernel.touch(open, page as u64, stores, touch).await;
        self.check_mapping()?;
        match touched.flatten() {
            Ok(()) => Ok(()),
            // It is open, so it is there.
            Err(error) if is_refusal(&error) && lock(&self.known).is_file(inode) => {
                self.breaks_unless_lost(format!("{error} of {call:?} in a mapping"))
            }
            Err(error) => self.note_error(None, &call, Err(error)).map(drop),
        }
    }
}
