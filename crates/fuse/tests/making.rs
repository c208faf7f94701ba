//! What a kernel asks about a file that a program makes, if nothing that it is answered may be kept.

use crate::mounted::{Mounted, on_both_transports};
use fuse::{
    Caller, Create, FileSystem, FileSystemSpace, Found, InodeEntry, Listing, Make, Open, Opened,
    Read, Shown, TransportChoice, Validity, Write,
};
use model::operation::RenameMode;
use model::{Attributes, ErrorKind, FileKind, FileName, InodeId, Result, SetAttributes};
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

on_both_transports! {
    an_open_that_makes_a_file_asks_nothing_about_it_and_the_next_stat_does,
}

/// A file system in which any file can be made, as by others at the same time: each question about a file's attributes
/// has another answer.
#[derive(Default)]
struct Changing {
    last: AtomicU64,
    /// Questions about attributes of files.
    asked: AtomicU64,
}

fn attributes(inode: InodeId, mode: u32) -> Attributes {
    let kind = match inode {
        InodeId::ROOT => FileKind::Directory,
        _ => FileKind::File,
    };
    Attributes {
        mode,
        ..testkit::inodes::attributes(inode, kind)
    }
}

fn entry(inode: InodeId) -> InodeEntry {
    InodeEntry {
        attributes: attributes(inode, 0o777),
        valid: Validity::default(),
    }
}

impl FileSystem for Changing {
    async fn lookup(&self, _: &Caller, _: InodeId, _: &FileName) -> Result<Found> {
        Ok(Found::Absent(Duration::ZERO))
    }
    async fn lookup_parent(&self, _: &Caller, _: InodeId) -> Result<InodeEntry> {
        Ok(entry(InodeId::ROOT))
    }
    async fn get_attributes(&self, _: &Caller, inode: InodeId) -> Result<Shown> {
        let mode = match inode {
            InodeId::ROOT => 0o777,
            _ => 0o600 + self.asked.fetch_add(1, Ordering::Relaxed) as u32,
        };
        Ok(Shown {
            attributes: attributes(inode, mode),
            valid: Duration::ZERO,
        })
    }
    async fn set_attributes(&self, _: &Caller, _: InodeId, _: SetAttributes) -> Result<Shown> {
        Err(ErrorKind::ReadOnly.into())
    }
    async fn create(
        &self,
        _: &Caller,
        _: InodeId,
        _: &FileName,
        _: Create,
    ) -> Result<(InodeEntry, Opened)> {
        let inode = InodeId(2 + self.last.fetch_add(1, Ordering::Relaxed));
        Ok((entry(inode), Opened::default()))
    }
    async fn make(&self, _: &Caller, _: InodeId, _: &FileName, _: Make<'_>) -> Result<InodeEntry> {
        Err(ErrorKind::ReadOnly.into())
    }
    async fn unlink(&self, _: &Caller, _: InodeId, _: &FileName) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }
    async fn remove_directory(&self, _: &Caller, _: InodeId, _: &FileName) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }
    async fn rename(
        &self,
        _: &Caller,
        _: (InodeId, &FileName),
        _: (InodeId, &FileName),
        _: RenameMode,
    ) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }
    async fn open(&self, _: &Caller, _: InodeId, _: Open) -> Result<Opened> {
        Ok(Opened::default())
    }
    async fn read(&self, _: &Caller, _: Read) -> Result<Vec<bytes::Bytes>> {
        Ok(Vec::new())
    }
    async fn write(&self, _: &Caller, _: Write<'_>) -> Result<u32> {
        Err(ErrorKind::ReadOnly.into())
    }
    async fn read_directory(&self, _: &Caller, _: InodeId, _: u64, _: &mut Listing) -> Result<()> {
        Ok(())
    }
    async fn space(&self, _: &Caller, _: InodeId) -> Result<FileSystemSpace> {
        Err(ErrorKind::NotSupported.into())
    }
}

fn an_open_that_makes_a_file_asks_nothing_about_it_and_the_next_stat_does(
    transport: TransportChoice,
) {
    let mounted = Mounted::with(transport, |_| Changing::default(), |_| {});
    let asked = || mounted.fs.asked.load(Ordering::Relaxed);
    let mut enough = 0;
    for number in 0..20 {
        let before = asked();
        let file = File::create_new(mounted.path(&format!("f{number}"))).unwrap();
        let made = asked();
        enough += u32::from(made == before);
        file.metadata().unwrap();
        assert_eq!(asked(), made + 1, "others may have changed it since");
    }
    // A thread that has to wait for a processor in between asks late.
    assert!(
        enough >= 10,
        "the answer to CREATE was enough {enough} times"
    );
}
