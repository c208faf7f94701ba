//! How a client does what a program asks, and what the witness is told of its answer.

use super::programs::{Programs, TARGET};
use crate::witness::content::CELLS_MAX;
use crate::witness::{AHEAD, Answer, Call, NOW, Seen};
use bytes::Bytes;
use client::{Allocate, Seek};
use model::operation::{NewInode, XattrMode};
use model::{
    Advice, Attributes, Error, ErrorKind, FileKind, FileName, InodeId, Result, SetAttributes,
    TimeChange, Timestamp,
};
use std::collections::BTreeMap;

/// What numbers are multiplied by in content, and what undoes it.
const SPREAD: u32 = 0x9E37_79B1;
const UNSPREAD: u32 = 0x0E8B_2F51;
/// The extended attribute.
const XATTR: &[u8] = b"user.witness";
/// Times before this second are those that programs set.
const TIMES_SET: i64 = 1 << 30;
/// Times that programs set into the future are in these seconds, after year 2240.
const FUTURE: i64 = 1 << 33;
/// Entries of a listing: more than there are names.
const LISTED_MAX: u32 = 1024;
/// Permissions of what is made.
const MODE: u32 = 0o755;
impl Programs {
    /// Does it.
    ///
    /// # Errors
    /// The client's; `Corrupt` if it lies.
    pub(super) async fn perform(&self, call: &Call) -> Result<Answer> {
        let client = &self.client;
        let name = |text: &String| FileName::new(text.as_bytes()).expect("names are names");
        Ok(match call {
            Call::Create {
                directory,
                name: text,
                kind,
            } => {
                let made = client.create(*directory, name(text), new(*kind)).await?;
                Answer::Inode(self.seen(&made, false)?)
            }
            Call::CreateUnnamed { directory } => {
                let made = client
                    .create_unnamed(*directory, new(FileKind::File))
                    .await?;
                Answer::Inode(self.seen(&made, false)?)
            }
            Call::Link {
                inode,
                directory,
                name: text,
            } => {
                client.link(*inode, *directory, name(text)).await?;
                Answer::Done
            }
            Call::Unlink {
                directory,
                name: text,
            } => {
                client.unlink(*directory, name(text)).await?;
                Answer::Done
            }
            Call::RemoveDirectory {
                directory,
                name: text,
            } => {
                client.remove_directory(*directory, name(text)).await?;
                Answer::Done
            }
            Call::Rename { from, to, mode } => {
                let (from, to) = ((from.0, name(&from.1)), (to.0, name(&to.1)));
                client.rename(from.0, from.1, to.0, to.1, *mode).await?;
                Answer::Done
            }
            Call::Lookup {
                directory,
                name: text,
            } => {
                let found = client.lookup(*directory, name(text)).await?;
                Answer::Inode(self.seen(&found, false)?)
            }
            Call::List { directory } => {
                let listing = client
                    .read_directory(*directory, 0, LISTED_MAX, true)
                    .await?;
                let entries = listing.entries.iter().map(|entry| {
                    let name = String::from_utf8_lossy(entry.name.as_bytes());
                    (name.into_owned(), entry.inode)
                });
                let names: BTreeMap<_, _> = entries.collect();
                if names.len() < listing.entries.len() {
                    return Err(lie(format!("a name twice in directory {directory}")));
                }
                // Of those that others are changing there are none.
                let attributes = listing.entries.iter();
                let attributes = attributes.filter_map(|entry| entry.attributes.as_ref());
                let seen = attributes.map(|it| self.seen(it, true));
                Answer::Listed(names, seen.collect::<Result<_>>()?)
            }
            Call::SetMode { inode, mode } => {
                let set = SetAttributes {
                    mode: Some(*mode),
                    ..SetAttributes::default()
                };
                client.set_attributes(*inode, set).await?;
                Answer::Done
            }
            Call::SetXattr {
                inode,
                value: Some(value),
            } => {
                let value = value.to_le_bytes();
                client
                    .set_xattr(*inode, XATTR, &value, XattrMode::Set)
                    .await?;
                Answer::Done
            }
            Call::SetXattr { inode, value: None } => {
                client.remove_xattr(*inode, XATTR).await?;
                Answer::Done
            }
            Call::Stat { inode } => {
                Answer::Inode(self.seen(&client.get_attributes(*inode).await?, true)?)
            }
            Call::GetXattr { inode } => match client.get_xattr(*inode, XATTR).await {
                Ok(value) => Answer::Xattr(Some(number(&value)?)),
                Err(error) if error.kind() == ErrorKind::NoSuchAttribute => Answer::Xattr(None),
                Err(error) => return Err(error),
            },
            Call::SetOwner { inode, owner } => {
                let set = SetAttributes {
                    uid: Some(*owner),
                    ..SetAttributes::default()
                };
                client.set_attributes(*inode, set).await?;
                Answer::Done
            }
            Call::SetTime { inode, time } => {
                let seconds = match time & AHEAD {
                    0 => i64::from(*time),
                    _ => FUTURE + i64::from(time & !AHEAD),
                };
                let time = Timestamp::from_timespec(seconds, 0);
                let set = SetAttributes {
                    mtime: Some(TimeChange::At(time)),
                    ..SetAttributes::default()
                };
                client.set_attributes(*inode, set).await?;
                Answer::Done
            }
            content => {
                self.past_mappings(content, self.perform_content(content))
                    .await?
            }
        })
    }

    async fn perform_content(&self, call: &Call) -> Result<Answer> {
        let client = &self.client;
        let cell_bytes = self.cell_bytes();
        let at = |cell: usize| (cell * cell_bytes) as u64;
        match call {
            Call::Write {
                inode,
                cell,
                cells,
                value,
            } => {
                client
                    .write(*inode, at(*cell), &bytes(*value, cells * cell_bytes))
                    .await?
            }
            Call::Append {
                inode,
                cells,
                value,
            } => {
                let offset = client
                    .append(*inode, &bytes(*value, cells * cell_bytes))
                    .await?;
                return Ok(Answer::At(self.whole_cells(offset)?));
            }
            Call::Truncate { inode, cells } => {
                let set = SetAttributes {
                    size: Some(at(*cells)),
                    ..SetAttributes::default()
                };
                client.set_attributes(*inode, set).await?;
            }
            Call::Punch { inode, cell, cells } => {
                let (offset, length) = (at(*cell), at(*cells));
                let punch = Allocate::Punch;
                client.allocate(*inode, punch, offset, length).await?;
            }
            Call::Zero { inode, cell, cells } => {
                let (offset, length) = (at(*cell), at(*cells));
                let zero = Allocate::Zero { keep_size: false };
                client.allocate(*inode, zero, offset, length).await?;
            }
            Call::Reserve { inode, cell, cells } => {
                let (offset, length) = (at(*cell), at(*cells));
                let reserve = Allocate::Reserve { keep_size: false };
                client.allocate(*inode, reserve, offset, length).await?;
            }
            Call::Copy {
                from,
                inode,
                cell,
                cells,
                ..
            } => {
                let (source, target, length) = (at(from.1), at(*cell), at(*cells));
                let mut done = 0;
                // The end of a file that is copied into itself may move with what was copied: that is asked for once.
                while done < length && (done == 0 || from.0 != *inode) {
                    let (source, target) = (source + done, target + done);
                    let copied = client
                        .copy_range(from.0, source, *inode, target, length - done)
                        .await;
                    match copied {
                        // The source ends there.
                        Ok(0) => break,
                        Ok(copied) => done += copied,
                        // Some was copied, and then one of the files was gone.
                        Err(error) if done > 0 && is_refusal(&error) => return Ok(Answer::Unknown),
                        Err(error) => return Err(error),
                    }
                }
                return self.whole_cells(done).map(Answer::Copied);
            }
            Call::Read { inode, cell, cells } => {
                let length = cells * cell_bytes;
                let pieces = client.read(*inode, at(*cell), length).await?;
                return self.cells_of(&pieces.concat()).map(Answer::Cells);
            }
            Call::Seek { inode, cell } => {
                let from = at(*cell);
                match client.seek(*inode, from, Seek::Data).await {
                    Ok(data) if data < from => return Err(lie(format!("data before {from}"))),
                    Ok(data) => return Ok(Answer::ZerosTo(data as usize / cell_bytes)),
                    Err(error) if error.kind() == ErrorKind::NoSuchDeviceOrAddress => {
                        return Ok(Answer::ZerosTo(CELLS_MAX));
                    }
                    Err(error) => return Err(error),
                }
            }
            Call::Fsync { inode } => client.fsync(*inode, false).await?,
            other => unreachable!("{other:?} doesn't touch content"),
        }
        Ok(Answer::Done)
    }

    /// Makes a file, which the program then has open.
    ///
    /// # Errors
    /// The client's; `Corrupt` if it lies.
    pub(super) async fn make_open(&self, directory: InodeId, name: &str) -> Result<Answer> {
        let name = FileName::new(name.as_bytes()).expect("names are names");
        let new = new(FileKind::File);
        let made = self.client.create_and_open(directory, name, new).await?;
        Ok(Answer::Inode(self.seen(&made, false)?))
    }

    /// The size only where the client says it exactly.
    fn seen(&self, attributes: &Attributes, with_size: bool) -> Result<Seen> {
        let is_sized = with_size && attributes.kind == FileKind::File;
        Ok(Seen {
            inode: attributes.inode,
            kind: attributes.kind,
            mode: attributes.mode,
            links: attributes.links,
            owner: attributes.uid,
            cells: match is_sized {
                true => Some(self.whole_cells(attributes.size)?),
                false => None,
            },
            time: is_sized.then(|| match attributes.mtime.seconds() {
                set @ 0..TIMES_SET => set as u32,
                set @ FUTURE.. => (set - FUTURE) as u32 | AHEAD,
                _ => NOW,
            }),
            mtime: attributes.mtime,
            ctime: attributes.ctime,
        })
    }

    fn whole_cells(&self, bytes: u64) -> Result<usize> {
        let bytes = bytes as usize;
        match bytes % self.cell_bytes() {
            0 => Ok(bytes / self.cell_bytes()),
            _ => Err(lie(format!("a file of {bytes} bytes, which nobody made"))),
        }
    }

    pub(super) fn cells_of(&self, bytes: &[u8]) -> Result<Vec<u32>> {
        self.whole_cells(bytes.len() as u64)?;
        let cells = bytes.chunks(self.cell_bytes()).map(|cell| {
            let first = number(&cell[..4])?;
            if cell.chunks(4).all(|word| word == &cell[..4]) {
                Ok(first.wrapping_mul(UNSPREAD))
            } else {
                Err(lie(format!(
                    "a cell that begins with {first} and goes on otherwise"
                )))
            }
        });
        cells.collect()
    }
}

fn new(kind: FileKind) -> NewInode {
    NewInode {
        kind,
        mode: MODE,
        umask: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: match kind {
            FileKind::Symlink => Bytes::from_static(TARGET),
            _ => Bytes::new(),
        },
    }
}

/// Whether an operation can't be done, and nothing is wrong with the file system. Stale: the inode is gone, and
/// its program didn't hold it open.
pub(super) fn is_refusal(error: &Error) -> bool {
    error.advice() == Advice::FixRequest || error.kind() == ErrorKind::Stale
}

/// What no honest file system says.
fn lie(what: String) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

fn number(value: &[u8]) -> Result<u32> {
    let bytes = value.try_into();
    let bytes = bytes.map_err(|_| lie(format!("a number of {} bytes", value.len())))?;
    Ok(u32::from_le_bytes(bytes))
}

/// So many bytes that all hold the same number, spread so that two numbers hardly share a byte: one that
/// is left of an older write must be seen.
pub(super) fn bytes(value: u32, bytes: usize) -> Vec<u8> {
    let word = value.wrapping_mul(SPREAD);
    word.to_le_bytes().repeat(bytes / 4)
}
