//! A copy-on-write view of the index area, for checking the state on the disk.

use super::{Area, Shared, check_bounds, for_pages};
use crate::checksum::UNIT;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;

/// See [`Area::scratch`].
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(super) area: Area,
    pub(super) state: Mutex<ScratchState>,
}

#[derive(Debug)]
pub(super) struct ScratchState {
    pub(super) length: u64,
    pub(super) page0: Box<[u8; UNIT]>,
    pub(super) pages: BTreeMap<u64, Box<[u8; UNIT]>>,
}

impl Scratch {
    fn page(&self, state: &ScratchState, page: u64) -> io::Result<Box<[u8; UNIT]>> {
        if page == 0 {
            return Ok(state.page0.clone());
        }
        if let Some(own) = state.pages.get(&page) {
            return Ok(own.clone());
        }
        let mut bytes = Box::new([0; UNIT]);
        let below = self.area.shared.state.lock();
        self.area.shared.read_page(&below, page, &mut bytes[..])?;
        Ok(bytes)
    }

    fn is_written_below(&self, page: u64) -> bool {
        Shared::is_written(&self.area.shared.state.lock(), page)
    }
}

impl redb::StorageBackend for Scratch {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        check_bounds(offset, out.len(), state.length)?;
        for_pages(offset, out.len(), |page, inside, range| {
            let bytes = self.page(&state, page)?;
            let end = inside + range.len();
            out[range].copy_from_slice(&bytes[inside..end]);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.state.lock().length = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        for_pages(offset, data.len(), |page, inside, range| {
            let mut bytes = if range.len() == UNIT {
                Box::new([0; UNIT])
            } else if state.pages.contains_key(&page) || self.is_written_below(page) {
                self.page(&state, page)?
            } else {
                Box::new([0; UNIT])
            };
            bytes[inside..inside + range.len()].copy_from_slice(&data[range]);
            if page == 0 {
                state.page0 = bytes;
            } else {
                state.pages.insert(page, bytes);
            }
            Ok(())
        })
    }
}
