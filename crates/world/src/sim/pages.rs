//! The content of a simulated disk, where only non-zero pages take memory.

use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: usize = 4096;
static ZEROS: [u8; PAGE] = [0; PAGE];

/// Sparse bytes; clones share pages until one of them writes.
#[derive(Clone, Default)]
pub(super) struct Pages {
    pages: BTreeMap<u64, Arc<[u8; PAGE]>>,
}

impl Pages {
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) {
        let mut done = 0;
        while done < buffer.len() {
            let (page, start, length) = part_at(offset + done as u64, buffer.len() - done);
            let content = self.pages.get(&page).map_or(&ZEROS, |content| &**content);
            buffer[done..done + length].copy_from_slice(&content[start..start + length]);
            done += length;
        }
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (page, start, length) = part_at(offset + done as u64, bytes.len() - done);
            let part = &bytes[done..done + length];
            if part == ZEROS {
                self.pages.remove(&page);
            } else if let Ok(whole) = <[u8; PAGE]>::try_from(part) {
                self.pages.insert(page, Arc::new(whole));
            } else {
                let content = self.pages.entry(page).or_insert_with(|| Arc::new(ZEROS));
                Arc::make_mut(content)[start..start + length].copy_from_slice(part);
            }
            done += length;
        }
    }
}

/// The page of `offset`, the position of `offset` in it, and how many of `length` bytes lie in that
/// page.
fn part_at(offset: u64, length: usize) -> (u64, usize, usize) {
    let start = (offset % PAGE as u64) as usize;
    (offset / PAGE as u64, start, length.min(PAGE - start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sparse_pages_read_like_plain_memory(
            writes in prop::collection::vec((0_usize..20_000, 0_usize..9_000, any::<u8>()), 0..20)
        ) {
            let mut plain = vec![0_u8; 32_768];
            let mut pages = Pages::default();
            for (offset, length, value) in writes {
                plain[offset..offset + length].fill(value);
                pages.write(offset as u64, &vec![value; length]);
            }
            let mut seen = vec![1_u8; 32_768];
            pages.read(0, &mut seen);
            prop_assert!(seen == plain);
        }
    }

    #[test]
    fn zeros_take_no_memory() {
        let mut pages = Pages::default();
        pages.write(0, &[7; 8192]);
        pages.write(0, &[0; 1 << 20]);
        assert!(pages.pages.is_empty());
    }
}
