//! A disk under the file system in memory: streams of writes go to it after they were answered.

use bytes::Bytes;
use model::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use tokio::sync::Semaphore;
use world::{AlignedBuffer, Disk, World};

/// Most writes in flight, and the bytes of each.
const WRITES_MAX: u32 = 64;
const WRITE_BYTES: usize = 1 << 20;

/// The disk that stores the data.
pub(super) struct Behind {
    disk: Disk,
    /// The newest bytes, until they fill a piece.
    open: Mutex<Option<Piece>>,
    /// One permit per write that may still start.
    room: Arc<Semaphore>,
    /// The first failed write's error, for the next fsync.
    failure: Arc<Mutex<Option<io::Error>>>,
}

/// A piece of a stream of writes. The kernel splits a write from memory that isn't page aligned at
/// a page boundary, so requests needn't be whole blocks.
struct Piece {
    start: u64,
    filled: usize,
    buffer: AlignedBuffer,
}

impl Behind {
    pub(super) fn new(disk: Disk) -> Self {
        Self {
            disk,
            open: Mutex::default(),
            room: Arc::new(Semaphore::new(WRITES_MAX as usize)),
            failure: Arc::default(),
        }
    }

    pub(super) async fn read(&self, offset: u64, length: usize) -> Result<Bytes> {
        let read = self.disk.read(offset, length).await;
        read.map_err(|error| of_disk(&error, "reading the disk"))
    }

    pub(super) async fn write(&self, world: &World, offset: u64, data: &[u8]) {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let (taken, full) = self.take(at, rest);
            if let Some(piece) = full {
                self.send(world, piece).await;
            }
            (at, rest) = (at + taken as u64, &rest[taken..]);
        }
    }

    /// Copies the bytes that fit into the open piece; returns the piece if it is full.
    fn take(&self, at: u64, data: &[u8]) -> (usize, Option<Piece>) {
        let mut open = self.open.lock();
        let piece = open.get_or_insert_with(|| Piece {
            start: at,
            filled: 0,
            buffer: AlignedBuffer::with_any_content(WRITE_BYTES),
        });
        if piece.start + piece.filled as u64 != at {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "not a stream of writes");
            self.failure.lock().get_or_insert(error);
            *open = None;
            return (data.len(), None);
        }
        let taken = data.len().min(WRITE_BYTES - piece.filled);
        piece.buffer[piece.filled..piece.filled + taken].copy_from_slice(&data[..taken]);
        piece.filled += taken;
        let is_full = piece.filled == WRITE_BYTES;
        (taken, open.take_if(|_| is_full))
    }

    async fn send(&self, world: &World, mut piece: Piece) {
        let place = self.room.clone().acquire_owned().await;
        piece.buffer.truncate(piece.filled);
        let (disk, failure) = (self.disk.clone(), self.failure.clone());
        let work = async move {
            if let Err(error) = disk.write(piece.start, piece.buffer.freeze()).await {
                failure.lock().get_or_insert(error);
            }
            drop(place);
        };
        world.spawn("write behind", work).detach();
    }

    pub(super) async fn flush(&self, world: &World) -> Result<()> {
        let open = self.open.lock().take();
        if let Some(piece) = open {
            self.send(world, piece).await;
        }
        let all = self.room.acquire_many(WRITES_MAX).await;
        let flushed = self.disk.flush().await;
        drop(all);
        let failure = self.failure.lock().take();
        let result = failure.map_or(flushed, Err);
        result.map_err(|error| of_disk(&error, "writing the disk"))
    }
}

fn of_disk(error: &io::Error, what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, error.to_string()).while_doing(what)
}
