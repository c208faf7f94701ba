//! When the kernel may answer a listing from its own copy of it.
//!
//! The kernel keeps a directory's names if asked to (FOPEN_CACHE_DIR), and drops them when the
//! directory's mtime moves or when it changed the directory itself. But it keeps no attributes
//! with them: those expire after some seconds, and asking for each inode alone costs far more
//! than a new listing with attributes. So its copy is used only while the attributes are valid
//! that came with the listing.

use model::InodeId;
use parking_lot::Mutex;
use std::time::Duration;
use world::{Instant, Map};

/// Directories that are remembered; of more, the kernel's copies aren't used.
const DIRECTORIES_MAX: usize = 1024;

/// Listings that gave the kernel all attributes, by directory.
#[derive(Default)]
pub(crate) struct Listed {
    begun: Mutex<Map<InodeId, Listing>>,
}

#[derive(Clone, Copy)]
struct Listing {
    begun: Instant,
    /// It came to the end.
    is_whole: bool,
}

impl Listed {
    /// A page from `offset` on was answered; `ended`: the directory ends with it.
    pub(crate) fn page(
        &self,
        directory: InodeId,
        offset: u64,
        with_attributes: bool,
        ended: bool,
        now: Instant,
    ) {
        let mut begun = self.begun.lock();
        if !with_attributes {
            // The kernel's copy gets names of which it doesn't know the attributes.
            begun.remove(&directory);
            return;
        }
        if offset == 0 {
            if begun.len() >= DIRECTORIES_MAX {
                begun.clear();
            }
            let is_whole = ended;
            begun.insert(
                directory,
                Listing {
                    begun: now,
                    is_whole,
                },
            );
        } else if let Some(listing) = begun.get_mut(&directory) {
            listing.is_whole |= ended;
        }
    }

    /// Whether all attributes of the directory's inodes came with one listing and are valid for a
    /// while longer, if each is for `valid`.
    pub(crate) fn is_fresh(&self, directory: InodeId, valid: Duration, now: Instant) -> bool {
        let begun = self.begun.lock();
        let listing = begun.get(&directory);
        listing.is_some_and(|listing| listing.is_whole && now - listing.begun < valid / 2)
    }
}
