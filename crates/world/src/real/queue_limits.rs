//! How long a request to a disk may be, such that the kernel takes it at once.
//!
//! io_uring gives the device a request on the thread that submits it, if that needn't wait. One that the block layer would have
//! to split counts as waiting: the kernel takes it back, hands it to a thread of its own and gives it to the device there,
//! which costs two switches of threads and pins its memory twice. Memory of 4 KiB pages that aren't neighbours needs a segment
//! for each, of which many devices take fewer than 256.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

/// Longest request, and the one where nothing is known of the device.
const MOST: usize = 1 << 20;
/// However little a device takes: each request costs time, too.
const LEAST: usize = 64 << 10;
/// Bytes of a page, which needs a segment of its own if its neighbour in memory is elsewhere.
const PAGE: usize = 4096;

/// Longest request to a file or block device, in bytes: a power of two from 64 KiB to 1 MiB.
pub(super) fn request_bytes_max(file: &File) -> usize {
    match queue_of(file) {
        Some(queue) => {
            let value = |name| fs::read_to_string(queue.join(name)).ok();
            let number = |name| value(name)?.trim().parse::<usize>().ok();
            fitting(number("max_segments"), number("max_sectors_kb"))
        }
        None => MOST,
    }
}

/// Where the kernel shows the limits of the device that has the file.
fn queue_of(file: &File) -> Option<PathBuf> {
    let metadata = file.metadata().ok()?;
    let device = match metadata.file_type().is_block_device() {
        true => metadata.rdev(),
        false => metadata.dev(),
    };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let shown = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // A partition has those of its disk, in whose directory it is.
    let places = [shown.join("queue"), shown.join("../queue")];
    places.into_iter().find(|place| place.is_dir())
}

/// Longest request that a device takes whole which takes so many segments and KiB; what isn't known doesn't limit.
fn fitting(segments: Option<usize>, kib: Option<usize>) -> usize {
    let of_segments = segments.map_or(MOST, |count| count.saturating_mul(PAGE));
    let of_length = kib.map_or(MOST, |kib| kib.saturating_mul(1024));
    let most = of_segments.min(of_length).clamp(LEAST, MOST);
    1 << most.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_no_more_pages_than_a_device_takes_segments() {
        assert_eq!(fitting(Some(254), Some(4096)), 512 << 10);
        assert_eq!(fitting(Some(256), Some(4096)), 1 << 20);
        assert_eq!(fitting(Some(127), Some(128)), 128 << 10);
        assert_eq!(fitting(Some(65_535), Some(65_535)), 1 << 20);
        assert_eq!(fitting(Some(1), Some(usize::MAX)), 64 << 10);
        assert_eq!(fitting(None, Some(512)), 512 << 10);
        assert_eq!(fitting(None, None), 1 << 20);
    }

    #[test]
    fn what_has_no_device_of_its_own_has_the_longest() {
        let null = File::open("/proc/self/stat").unwrap();
        assert_eq!(request_bytes_max(&null), MOST);
    }
}
