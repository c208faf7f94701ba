//! Recognises sequential readers of a file, and decides how far to read ahead. Pure.

/// Streams tracked per file.
const STREAMS_MAX: usize = 4;
/// Smallest read-ahead step.
pub(crate) const AHEAD_BYTES_MIN: u64 = 256 * 1024;
/// Most bytes of one fetch.
pub(crate) const UNIT_BYTES: u64 = 1024 * 1024;
/// How far from its expected place a read may be once its stream is proven: the kernel sends the
/// parts of one read in any order.
const SLACK: u64 = 1024 * 1024;

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// Offset where the next read is expected.
    next: u64,
    /// Everything up to here has been read or fetched.
    ahead_to: u64,
    /// How far ahead of the reader to stay.
    window: u64,
    /// Reads that matched, at most 255.
    hits: u8,
    used: u64,
}

/// The readers of one file.
#[derive(Debug, Default)]
pub(crate) struct Pattern {
    streams: Vec<Stream>,
    clock: u64,
}

impl Pattern {
    /// Notes a read of `offset..end`. Returns the range to fetch now, at most `window_max` ahead of
    /// the read and never beyond `size`.
    pub(crate) fn note(
        &mut self,
        offset: u64,
        end: u64,
        size: u64,
        window_max: u64,
    ) -> Option<(u64, u64)> {
        self.clock += 1;
        let clock = self.clock;
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.fits(offset)) else {
            self.begin(offset, end);
            return None;
        };
        stream.used = clock;
        stream.hits = stream.hits.saturating_add(1);
        stream.next = stream.next.max(end);
        if stream.hits < 2 || window_max == 0 {
            return None;
        }
        let step = (stream.window / 2).clamp(AHEAD_BYTES_MIN, UNIT_BYTES);
        let from = stream.ahead_to.max(stream.next);
        let to = (stream.next + stream.window.min(window_max)).min(size);
        // Fetch whole steps, but include a small rest at the end of the file.
        if to < from + step && to < size || to <= from {
            return None;
        }
        stream.ahead_to = to;
        stream.window = (stream.window * 2).min(window_max.max(AHEAD_BYTES_MIN));
        Some((from, to))
    }

    fn begin(&mut self, offset: u64, end: u64) {
        // A reader that starts at the beginning will probably continue.
        let hits = u8::from(offset == 0);
        let stream = Stream {
            next: end,
            ahead_to: 0,
            window: 2 * AHEAD_BYTES_MIN,
            hits,
            used: self.clock,
        };
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(stream);
        } else {
            let oldest = self.streams.iter_mut().min_by_key(|stream| stream.used);
            *oldest.expect("there are streams") = stream;
        }
    }
}

impl Stream {
    fn fits(&self, offset: u64) -> bool {
        if self.hits < 2 {
            return offset == self.next;
        }
        offset + SLACK >= self.next && offset <= self.next + SLACK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 8 << 20;

    #[test]
    fn a_sequential_reader_is_recognised_by_its_second_read_from_the_start() {
        let mut pattern = Pattern::default();
        assert_eq!(pattern.note(0, 131_072, 1 << 30, MAX), None);
        let (from, to) = pattern
            .note(131_072, 262_144, 1 << 30, MAX)
            .expect("recognised");
        assert_eq!(from, 262_144);
        assert_eq!(to, 262_144 + 2 * AHEAD_BYTES_MIN);
    }

    #[test]
    fn the_window_grows_and_every_byte_is_asked_for_once() {
        let mut pattern = Pattern::default();
        let size = 64 << 20;
        let mut asked = 0;
        let mut most = 0;
        for at in (0..size).step_by(131_072) {
            if let Some((from, to)) = pattern.note(at, at + 131_072, size, MAX) {
                if asked > 0 {
                    assert_eq!(from, asked);
                }
                asked = to;
                most = most.max(to - at);
            }
        }
        assert_eq!(asked, size);
        assert!(most > MAX - (1 << 20) && most <= MAX + 131_072, "{most}");
    }

    #[test]
    fn random_reads_never_read_ahead() {
        let mut pattern = Pattern::default();
        let mut at = 1u64;
        for _ in 0..10_000 {
            at = at
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let offset = (at >> 30) % (1 << 18) * 4096;
            assert_eq!(pattern.note(offset, offset + 4096, 1 << 30, MAX), None);
        }
    }

    #[test]
    fn several_readers_of_one_file_and_parts_out_of_order_stay_recognised() {
        let mut pattern = Pattern::default();
        let mut asked = [0u32; 3];
        // Each begins in order; later the parts of a read change places.
        let steps = (0..64u64).map(|step| if step < 4 { step } else { step ^ 1 });
        for step in steps {
            for (reader, asked) in asked.iter_mut().enumerate() {
                let at = (reader as u64) * (100 << 20) + step * 131_072;
                *asked += u32::from(pattern.note(at, at + 131_072, 1 << 30, MAX).is_some());
            }
        }
        assert!(asked.iter().all(|asked| *asked > 3), "{asked:?}");
    }

    #[test]
    fn nothing_is_fetched_behind_the_end_or_when_it_is_off() {
        let mut pattern = Pattern::default();
        pattern.note(0, 100, 250, MAX);
        assert_eq!(pattern.note(100, 200, 250, MAX), Some((200, 250)));
        assert_eq!(pattern.note(200, 250, 250, MAX), None);
        let mut off = Pattern::default();
        for at in 0..100u64 {
            assert_eq!(off.note(at * 4096, (at + 1) * 4096, 1 << 20, 0), None);
        }
    }
}
