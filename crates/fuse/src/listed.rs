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
//! time, serve no one, and the kernel makes mistakes with copies that don't reach the end of the
//! directory (docs/protocols/fuse.md).

use model::InodeId;
use parking_lot::Mutex;
use std::time::Duration;
use world::{Instant, Map};

/// Most directories remembered; for others, the kernel makes no copies.
const DIRECTORIES_MAX: usize = 1024;

/// Listings that gave the kernel all attributes, by directory.
pub(crate) struct Listed {
    /// How long a listing counts as fresh.
    fresh: Duration,
    begun: Mutex<Map<InodeId, Listing>>,
}

#[derive(Clone, Copy)]
struct Listing {
    begun: Instant,
    /// The open directory through which it began: only that one can complete it.
    handle: u64,
    /// It reached the end of the directory.
    is_whole: bool,
}

/// One answered request of a listing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedPage {
    /// The open directory.
    pub(crate) handle: u64,
    /// Where the page begins.
    pub(crate) offset: u64,
    /// The entries came with attributes.
    pub(crate) with_attributes: bool,
    /// It reaches the end of the directory.
    pub(crate) ended: bool,
    /// When the request came.
    pub(crate) at: Instant,
}

impl Listed {
    /// For attributes that the kernel may use for `valid`.
    pub(crate) fn new(valid: Duration) -> Self {
        Self {
            fresh: valid / 2,
            begun: Mutex::default(),
        }
    }

    /// Notes an answered page.
    pub(crate) fn page(&self, directory: InodeId, page: ListedPage) {
        let mut begun = self.begun.lock();
        if !page.with_attributes {
            // The kernel's copy may now have names without attributes.
            begun.remove(&directory);
            return;
        }
        if page.offset == 0 {
            if begun.len() >= DIRECTORIES_MAX && !begun.contains_key(&directory) {
                begun.retain(|_, listing| page.at - listing.begun < self.fresh);
                if begun.len() >= DIRECTORIES_MAX {
                    begun.clear();
                }
            }
            let listing = Listing {
                begun: page.at,
                handle: page.handle,
                is_whole: page.ended,
            };
            begun.insert(directory, listing);
        } else if let Some(listing) = begun.get_mut(&directory)
            && listing.handle == page.handle
        {
            listing.is_whole |= page.ended;
        }
    }

    /// A directory may have got another parent.
    pub(crate) fn forget_all(&self) {
        self.begun.lock().clear();
    }

    /// Whether one listing brought the attributes of all the directory's inodes, and they stay
    /// valid for a while.
    pub(crate) fn is_fresh(&self, directory: InodeId, now: Instant) -> bool {
        let begun = self.begun.lock();
        let listing = begun.get(&directory);
        listing.is_some_and(|listing| listing.is_whole && now - listing.begun < self.fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: InodeId = InodeId(7);

    /// Made-up times, counted from a real one.
    struct Times(Instant);

    impl Times {
        fn new() -> Self {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            Self(runtime.block_on(async { world::World::real() }).now())
        }

        fn after(&self, milliseconds: u64) -> Instant {
            self.0 + Duration::from_millis(milliseconds)
        }

        /// A page with attributes.
        fn page(&self, milliseconds: u64, handle: u64, offset: u64, ended: bool) -> ListedPage {
            ListedPage {
                handle,
                offset,
                with_attributes: true,
                ended,
                at: self.after(milliseconds),
            }
        }
    }

    fn six_seconds() -> Listed {
        Listed::new(Duration::from_secs(6))
    }

    #[test]
    fn a_whole_listing_is_fresh_for_half_of_the_time_that_attributes_are_valid() {
        let (listed, times) = (six_seconds(), Times::new());
        assert!(!listed.is_fresh(DIRECTORY, times.after(0)));
        listed.page(DIRECTORY, times.page(0, 1, 0, false));
        listed.page(DIRECTORY, times.page(1_000, 1, 100, false));
        assert!(!listed.is_fresh(DIRECTORY, times.after(1_000)));
        listed.page(DIRECTORY, times.page(2_000, 1, 200, true));
        // It counts from the first page, whose attributes expire first.
        assert!(listed.is_fresh(DIRECTORY, times.after(2_999)));
        assert!(!listed.is_fresh(DIRECTORY, times.after(3_000)));
        assert!(!listed.is_fresh(InodeId(8), times.after(2_000)));
        // Another listing begins, and isn't whole yet.
        listed.page(DIRECTORY, times.page(2_500, 2, 0, false));
        assert!(!listed.is_fresh(DIRECTORY, times.after(2_500)));
        listed.page(DIRECTORY, times.page(2_500, 2, 0, true));
        assert!(listed.is_fresh(DIRECTORY, times.after(5_499)));
        listed.forget_all();
        assert!(!listed.is_fresh(DIRECTORY, times.after(2_500)));
    }

    #[test]
    fn the_end_of_an_older_listing_does_not_complete_a_newer_one() {
        let (listed, times) = (six_seconds(), Times::new());
        listed.page(DIRECTORY, times.page(0, 1, 0, false));
        listed.page(DIRECTORY, times.page(1, 2, 0, false));
        listed.page(DIRECTORY, times.page(2, 1, 100, true));
        assert!(!listed.is_fresh(DIRECTORY, times.after(3)));
        listed.page(DIRECTORY, times.page(4, 2, 100, true));
        assert!(listed.is_fresh(DIRECTORY, times.after(5)));
    }

    #[test]
    fn names_without_attributes_end_what_is_known() {
        let (listed, times) = (six_seconds(), Times::new());
        for offset in [0, 100] {
            listed.page(DIRECTORY, times.page(0, 1, 0, true));
            let plain = ListedPage {
                with_attributes: false,
                ..times.page(1, 1, offset, true)
            };
            listed.page(DIRECTORY, plain);
            assert!(!listed.is_fresh(DIRECTORY, times.after(2)));
            listed.page(DIRECTORY, times.page(3, 1, 200, true));
            assert!(!listed.is_fresh(DIRECTORY, times.after(4)));
        }
    }

    #[test]
    fn a_full_table_lets_old_listings_go_first_and_keeps_its_maximum() {
        let (listed, times) = (six_seconds(), Times::new());
        let max = DIRECTORIES_MAX as u64;
        let list = |directory, at| listed.page(InodeId(directory), times.page(at, 1, 0, true));
        let fresh = |directory, at| listed.is_fresh(InodeId(directory), times.after(at));
        list(1, 0);
        (2..=max).for_each(|directory| list(directory, 1_000));
        // It is full. A directory that is known needs no room.
        list(2, 1_500);
        assert!(fresh(1, 1_500) && fresh(max, 1_500));
        // The first one is too old to be of use and makes room.
        list(max + 1, 3_000);
        assert!((2..=max + 1).all(|directory| fresh(directory, 3_000)));
        assert_eq!(listed.begun.lock().len(), DIRECTORIES_MAX);
        // All are fresh: it begins anew.
        list(max + 2, 3_100);
        assert!(fresh(max + 2, 3_100) && !fresh(2, 3_100));
        assert_eq!(listed.begun.lock().len(), 1);
    }
}
