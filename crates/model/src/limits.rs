//! The maximum of everything, and the relations between the maxima.

/// Largest plain segment in bytes.
pub const SEGMENT_BYTES_MAX: u32 = 16 * 1024 * 1024;
/// Unit of placement, checksums and disk I/O in bytes.
pub const UNIT_BYTES: u32 = 4096;
/// Default block size of a file system: what one segment of a streamed file holds.
pub const BLOCK_BYTES_DEFAULT: u32 = 4 * 1024 * 1024;
/// Smallest block size.
pub const BLOCK_BYTES_MIN: u32 = 64 * 1024;
/// Files up to this size are stored in the inode's extent record. IO500's mdtest-hard writes 3,901
/// bytes; 4,096 covers that and is one page.
pub const INLINE_FILE_BYTES_MAX: u32 = 4096;
/// Writes up to this size that must be durable soon go into the log inline.
pub const INLINE_WRITE_BYTES_MAX: u32 = 32 * 1024;
/// Erasure pools store smaller segments as copies, because each piece would be too small to be
/// worth its unit.
pub const ERASURE_BYTES_MIN: u32 = 64 * 1024;
/// Most records that one operation or commit step may touch.
pub const OPERATION_RECORDS_MAX: usize = 4096;
/// Most extents in one publish. Each may cut two existing ones, so the number of records stays
/// under `OPERATION_RECORDS_MAX`.
pub const PUBLISH_EXTENTS_MAX: usize = 256;
/// Largest logical file size: 8 EiB - 1.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Most names of one inode.
pub const LINKS_MAX: u32 = 65_000;
/// Most bytes of extended attributes of one inode, names and values together.
pub const XATTR_INODE_BYTES_MAX: usize = 64 * 1024;
/// Longest name of an extended attribute in bytes (Linux).
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Longest target of a symbolic link in bytes (PATH_MAX - 1).
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Most entries that one directory listing step returns.
pub const LISTING_ENTRIES_MAX: usize = 1024;
/// Most shards that one process hosts: each has a log, a tree and up to
/// [`UNFLUSHED_BYTES_MAX`] of changes of its own.
pub const SHARDS_OF_PROCESS_MAX: usize = 64;
/// Slots of a session with a shard: nearly as many as a mount has places for requests that wait (256). A client of another
/// node than the owner holds one for each sync, until what it publishes is durable; who finds none waits for one commit more.
pub const SESSION_SLOTS: u8 = 240;
/// Most inode numbers, and most data ids, that one operation reserves for a session.
pub const RESERVED_MAX: u32 = 1024;
/// Most runs of reserved inode numbers, and most of data ids, that a session has in a fileset.
pub const RESERVED_RUNS_MAX: usize = 64;
/// Most operations that may be applied but not yet durable.
pub const UNFLUSHED_OPERATIONS_MAX: usize = 200_000;
/// Most bytes of records that may be applied but not yet durable.
pub const UNFLUSHED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Inode numbers that changes give which aren't durable: from so many on changes wait. A commit takes far less time
/// than making so many inodes. Each owner of a shard gives up as many and [`RESERVED_MAX`] more, of 2^40.
pub const UNFLUSHED_NUMBERS_MAX: u64 = 32 * 1024;
/// Largest log entry in bytes.
pub const LOG_ENTRY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Percentage of a pool that ordinary writes leave free for the log, compaction and deletes.
pub const RESERVED_PERCENT: u64 = 5;
/// Most names in one delete request to an NSD.
pub const DELETE_NAMES_MAX: usize = 10_000;

const _: () = assert!(INLINE_FILE_BYTES_MAX <= INLINE_WRITE_BYTES_MAX);
const _: () = assert!(PUBLISH_EXTENTS_MAX * 8 <= OPERATION_RECORDS_MAX);
const _: () = assert!((SEGMENT_BYTES_MAX as u64).is_multiple_of(UNIT_BYTES as u64));
const _: () = assert!(BLOCK_BYTES_DEFAULT <= SEGMENT_BYTES_MAX);
