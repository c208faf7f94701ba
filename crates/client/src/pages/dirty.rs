//! Written bytes of one inode that aren't in flight to disk. Byte-exact: nothing is read to
//! complete a page.

use super::memory::{Blocks, Counted};
use super::run_memory::{RunMemory, WRITTEN_PIECE_BYTES};
use bytes::Bytes;
use model::Extent;
use std::collections::BTreeMap;
use std::sync::Arc;
use world::Instant;

/// A contiguous piece of a file, frozen to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frozen {
    /// First byte in the file.
    pub(crate) offset: u64,
    /// The bytes.
    pub(crate) bytes: Bytes,
    /// Memory that they keep alive.
    pub(crate) memory: u64,
}

// A small piece until it is published: in the batch and in its job; the pack's extents, the batch's
// extents with a copy while neighbours are joined, the published extents; the owner of its memory.
const _: () = assert!(
    2 * size_of::<Frozen>() + 4 * size_of::<Extent>() + size_of::<Counted<Vec<u8>>>()
        <= WRITTEN_PIECE_BYTES as usize
);

impl Frozen {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    pub(crate) fn slice(&self, from: u64, to: u64) -> Bytes {
        self.bytes
            .slice((from - self.offset) as usize..(to - self.offset) as usize)
    }
}

#[derive(Debug)]
struct Run {
    /// Bytes of the memory that were cut off at the front.
    head: usize,
    memory: RunMemory,
}

impl Run {
    fn bytes(&self) -> &[u8] {
        &self.memory.as_slice()[self.head..]
    }

    fn length(&self) -> u64 {
        self.bytes().len() as u64
    }

    fn freeze(self, offset: u64) -> Frozen {
        let memory = self.memory.held();
        Frozen {
            offset,
            bytes: self.memory.freeze().slice(self.head..),
            memory,
        }
    }
}

/// The dirty bytes of a block.
#[derive(Debug)]
struct Fill {
    bytes: u64,
    /// Since when the block has been dirty, even if the oldest bytes were overwritten since.
    since: Instant,
}

/// Dirty runs, sorted, disjoint, none across a block boundary.
#[derive(Debug)]
pub(crate) struct Dirty {
    blocks: Arc<Blocks>,
    runs: BTreeMap<u64, Run>,
    /// Dirty bytes of each block that has any.
    fill: BTreeMap<u64, Fill>,
    bytes: u64,
    /// Starts of blocks after ones just completed: these will probably be completed too.
    streams: [u64; STREAMS_MAX],
}

/// Most writers of one file recognised as writing block after block.
const STREAMS_MAX: usize = 8;

impl Dirty {
    pub(crate) fn new(blocks: Arc<Blocks>) -> Self {
        Self {
            blocks,
            runs: BTreeMap::new(),
            fill: BTreeMap::new(),
            bytes: 0,
            streams: [u64::MAX; STREAMS_MAX],
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Dirty bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Behind the last dirty byte.
    pub(crate) fn end(&self) -> u64 {
        let last = self.runs.last_key_value();
        last.map_or(0, |(start, run)| start + run.length())
    }

    /// Contiguous pieces.
    pub(crate) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Since when the oldest dirty block has been dirty.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.fill.values().map(|fill| fill.since).min()
    }

    /// Since when the block that became dirty last has been dirty.
    pub(crate) fn newest(&self) -> Option<Instant> {
        self.fill.values().map(|fill| fill.since).max()
    }

    /// Copies `data` in. Returns how many bytes became dirty that weren't before.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8], now: Instant) -> u64 {
        let before = self.bytes;
        let block = self.blocks.block_bytes();
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let room = (block - at % block).min(rest.len() as u64) as usize;
            let (part, behind) = rest.split_at(room);
            self.write_in_block(at, part, now);
            at += room as u64;
            rest = behind;
        }
        self.bytes - before
    }

    fn write_in_block(&mut self, at: u64, data: &[u8], now: Instant) {
        let block = self.blocks.block_bytes();
        let end = at + data.len() as u64;
        // Kept even if all of it is overwritten here: earlier writes have waited as long.
        let since = self.fill.get(&(at / block)).map_or(now, |fill| fill.since);
        let previous = self
            .runs
            .range_mut(..=at)
            .next_back()
            .filter(|(start, run)| **start / block == at / block && **start + run.length() >= at);
        let Some((start, run)) = previous else {
            self.cut(at, end);
            let stream = self.streams.contains(&at);
            let memory = RunMemory::new(data, stream, &self.blocks);
            self.runs.insert(at, Run { head: 0, memory });
            self.count(at, data.len() as u64, since);
            return;
        };
        let inside = ((*start + run.length()).min(end) - at) as usize;
        let position = run.head + (at - *start) as usize;
        run.memory.overwrite(position, &data[..inside]);
        if inside < data.len() {
            let start = *start;
            self.cut(at + inside as u64, end);
            let run = self
                .runs
                .get_mut(&start)
                .expect("the cut begins after this run");
            run.memory.extend(&data[inside..], &self.blocks);
            self.count(at, (data.len() - inside) as u64, since);
        }
    }

    fn count(&mut self, at: u64, bytes: u64, since: Instant) {
        let block = at / self.blocks.block_bytes();
        let new = Fill { bytes: 0, since };
        self.fill.entry(block).or_insert(new).bytes += bytes;
        self.bytes += bytes;
    }

    fn uncount(&mut self, at: u64, bytes: u64) {
        let block = at / self.blocks.block_bytes();
        let fill = self
            .fill
            .get_mut(&block)
            .expect("dirty bytes are counted in their block");
        fill.bytes -= bytes;
        if fill.bytes == 0 {
            self.fill.remove(&block);
        }
        self.bytes -= bytes;
    }

    /// Drops the dirty bytes in `from..to`. Returns their number.
    pub(crate) fn cut(&mut self, from: u64, to: u64) -> u64 {
        if from >= to {
            return 0;
        }
        let before = self.bytes;
        let first = self.runs.range(..from).next_back().map(|(start, _)| *start);
        let inside = self.runs.range(from..to).map(|(start, _)| *start);
        let touched: Vec<u64> = first.into_iter().chain(inside).collect();
        for start in touched {
            let end = start + self.runs[&start].length();
            let (cut_from, cut_to) = (from.max(start), to.min(end));
            if cut_from >= cut_to {
                continue;
            }
            let mut run = self.runs.remove(&start).expect("just seen");
            if cut_to < end {
                let tail = &run.bytes()[(cut_to - start) as usize..];
                // A cut at the front keeps the memory. After a cut in the middle the tail gets its
                // own.
                if cut_from == start {
                    let head = run.head + (cut_to - start) as usize;
                    let memory = std::mem::replace(&mut run.memory, RunMemory::none(&self.blocks));
                    self.runs.insert(cut_to, Run { head, memory });
                } else {
                    let memory = RunMemory::new(tail, false, &self.blocks);
                    self.runs.insert(cut_to, Run { head: 0, memory });
                }
            }
            if cut_from > start {
                run.memory.truncate(run.head + (cut_from - start) as usize);
                self.runs.insert(start, run);
            }
            self.uncount(start, cut_to - cut_from);
        }
        before - self.bytes
    }

    /// The first dirty piece at or after `at`, clipped to start at `at`.
    pub(crate) fn next(&self, at: u64) -> Option<(u64, u64)> {
        let before = self.runs.range(..at).next_back();
        let runs = before.into_iter().chain(self.runs.range(at..).next());
        runs.map(|(start, run)| (at.max(*start), start + run.length()))
            .find(|(from, to)| from < to)
    }

    /// Calls `found(start, bytes)` for each dirty piece in `from..to`, in order.
    pub(crate) fn visit(&self, from: u64, to: u64, mut found: impl FnMut(u64, &[u8])) {
        let first = self.runs.range(..from).next_back();
        for (start, run) in first.into_iter().chain(self.runs.range(from..to)) {
            let (a, b) = (from.max(*start), to.min(start + run.length()));
            if a < b {
                found(a, &run.bytes()[(a - start) as usize..(b - start) as usize]);
            }
        }
    }

    /// Takes the completely dirty blocks between `from` and `to`, each as one piece.
    pub(crate) fn take_full_blocks(&mut self, from: u64, to: u64) -> Vec<Frozen> {
        let block = self.blocks.block_bytes();
        let touched = self.fill.range(from / block..to.div_ceil(block));
        let full: Vec<u64> = touched
            .filter(|(_, fill)| fill.bytes == block)
            .map(|(number, _)| *number)
            .collect();
        full.into_iter()
            .map(|number| self.take_block(number * block))
            .collect()
    }

    fn take_block(&mut self, start: u64) -> Frozen {
        let block = self.blocks.block_bytes();
        let next = start.saturating_add(block);
        let known = self.streams.iter().position(|at| *at == start);
        self.streams[..=known.unwrap_or(STREAMS_MAX - 1)].rotate_right(1);
        self.streams[0] = next;
        self.uncount(start, block);
        let first = self
            .runs
            .remove(&start)
            .expect("a full block begins with a run");
        if first.length() == block {
            return first.freeze(start);
        }
        let mut whole = self.blocks.block();
        whole.push(first.bytes());
        while let Some((at, _)) = self.runs.range(start..start + block).next() {
            let at = *at;
            let run = self.runs.remove(&at).expect("just seen");
            whole.push(run.bytes());
        }
        Frozen {
            offset: start,
            bytes: whole.freeze(),
            memory: block,
        }
    }

    /// Takes the blocks that have been dirty since `time` or longer, in order.
    pub(crate) fn take_older(&mut self, time: Instant) -> Vec<Frozen> {
        let block = self.blocks.block_bytes();
        let old = self.fill.iter().filter(|(_, fill)| fill.since <= time);
        let old: Vec<u64> = old.map(|(number, _)| *number).collect();
        let mut frozen = Vec::new();
        for number in old {
            let fill = self.fill.remove(&number).expect("just seen");
            self.bytes -= fill.bytes;
            let mut from = number * block;
            // The last block may reach to the end of the number range.
            let last = from + (block - 1);
            while let Some((at, _)) = self.runs.range(from..=last).next() {
                let at = *at;
                let run = self.runs.remove(&at).expect("just seen").freeze(at);
                from = run.end().min(last);
                frozen.push(run);
            }
        }
        frozen
    }

    /// Takes everything, in order.
    pub(crate) fn take_all(&mut self) -> Vec<Frozen> {
        self.fill.clear();
        self.bytes = 0;
        std::mem::take(&mut self.runs)
            .into_iter()
            .map(|(at, run)| run.freeze(at))
            .collect()
    }
}

#[cfg(test)]
mod tests;
