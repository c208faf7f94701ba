//! Decides when the kernel may answer a listing from its own copy.
//!
//! The kernel keeps a directory's names if asked to (FOPEN_CACHE_DIR), and drops them when the
//! directory's mtime moves or when it changes the directory itself. But it keeps no attributes with
//! them: those expire after some seconds, and requesting each inode's separately costs far more
//! than a new listing with attributes. So a copy is made and used only while the attributes of all
//! entries are valid: a first listing brings them, a second one soon after it fills the copy, a
//! third one is answered by the kernel.
//!
//! Directories that are listed once or without attributes get no copy: it would cost the kernel
//! time, serve nobody, and the kernel makes mistakes with copies that don't reach the end of the
//! directory (docs/protocols/fuse.md).

use model::InodeId;
use parking_lot::Mutex;
use std::time::Duration;
use world::{Instant, Map};

/// Most directories remembered; for others, the kernel's copies aren't used.
const DIRECTORIES_MAX: usize = 1024;

/// Listings that gave the kernel all attributes, by directory.
#[derive(Default)]
pub(crate) struct Listed {
    begun: Mutex<Map<InodeId, Listing>>,
}

#[derive(Clone, Copy)]
struct Listing {
    begun: Instant,
    /// It reached the end of the directory.
    is_whole: bool,
}

impl Listed {
    /// Notes an answered page that starts at `offset`; `ended`: it reaches the end of the
    /// directory.
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
            // The kernel's copy now has names without attributes.
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

    /// A directory may have got another parent.
    pub(crate) fn forget_all(&self) {
        self.begun.lock().clear();
    }

    /// Whether one listing brought the attributes of all the directory's inodes, and they stay
    /// valid for a while, if attributes are valid for `valid`.
    pub(crate) fn is_fresh(&self, directory: InodeId, valid: Duration, now: Instant) -> bool {
        let begun = self.begun.lock();
        let listing = begun.get(&directory);
        listing.is_some_and(|listing| listing.is_whole && now - listing.begun < valid / 2)
    }
}
