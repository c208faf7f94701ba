//! The pieces of the answer to a read. Pure.

use crate::inode::Inner;
use crate::pages::ranges::Gaps;
use bytes::Bytes;

/// The zeros of all holes.
static ZEROS: [u8; 128 * 1024] = [0; 128 * 1024];

/// Pieces of an answer, unordered.
#[derive(Default)]
pub(super) struct Answer(pub(super) Vec<(u64, Bytes)>);

impl Answer {
    /// Takes what is in memory: dirty runs take precedence over batches in flight, those over cached
    /// bytes. Returns the number of read-ahead bytes used for the first time.
    pub(super) fn take_from_memory(&mut self, inner: &mut Inner, gaps: &mut Gaps) -> u64 {
        if !inner.dirty().is_empty() {
            gaps.fill(|from, to, found| {
                inner.dirty().visit(from, to, |at, bytes| {
                    self.0.push((at, Bytes::copy_from_slice(bytes)));
                    found(at, at + bytes.len() as u64);
                });
            });
        }
        for batch in inner.batches().iter().rev() {
            gaps.fill_from_runs(
                |at| {
                    let run = batch.runs_from(at).first()?;
                    Some((run.offset, run.end(), run))
                },
                |from, to, run| self.0.push((from, run.slice(from, to))),
            );
        }
        if inner.clean().is_empty() {
            return 0;
        }
        let mut used_ahead = 0;
        gaps.fill(|from, to, found| {
            used_ahead += inner.clean_mut().visit(from, to, |at, bytes| {
                found(at, at + bytes.len() as u64);
                self.0.push((at, bytes));
            });
        });
        used_ahead
    }

    pub(super) fn add_zeros(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let length = (to - at).min(ZEROS.len() as u64);
            self.0
                .push((at, Bytes::from_static(&ZEROS[..length as usize])));
            at += length;
        }
    }

    /// `fetched` must be sorted and disjoint.
    pub(super) fn take_fetched(&mut self, gaps: &mut Gaps, fetched: &[(u64, Bytes)]) {
        let end = |(start, bytes): &(u64, Bytes)| start + bytes.len() as u64;
        gaps.fill_from_runs(
            |at| {
                let piece = fetched.get(fetched.partition_point(|piece| end(piece) <= at))?;
                Some((piece.0, end(piece), piece))
            },
            |from, to, (start, bytes)| {
                let part = bytes.slice((from - start) as usize..(to - start) as usize);
                self.0.push((from, part));
            },
        );
    }

    pub(super) fn in_order(mut self) -> Vec<Bytes> {
        self.0.sort_by_key(|(at, _)| *at);
        self.0.into_iter().map(|(_, bytes)| bytes).collect()
    }
}
