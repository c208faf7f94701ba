//! Random actions on a file system, drawn from a seed so that each run can be replayed.

use model::{ErrorKind, FileKind, FileName};
use std::collections::BTreeMap;
use testkit::model_fs::{Body, ModelFs, Number};

/// Our own small generator: the same numbers on every machine and in every version.
#[derive(Clone)]
pub struct Draw(u64);

impl Draw {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x6A09_E667_F3BC_C908)
    }

    /// The next 64 bits (splitmix64, Steele et al. 2014).
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end.max(1)
    }

    /// One of the choices; `None` if there are none.
    pub fn one_of<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        if choices.is_empty() {
            None
        } else {
            choices.get(self.below(choices.len() as u64) as usize)
        }
    }
}

/// The bytes of a write, derived from a seed so that an action stays small.
pub fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut draw = Draw::new(seed);
    let mut out = Vec::with_capacity(length + 8);
    while out.len() < length {
        out.extend_from_slice(&draw.bits().to_le_bytes());
    }
    out.truncate(length);
    out
}

/// One operation of a program. Inodes are identified by the model's numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields are what the verbs of POSIX take")]
pub enum Action {
    Create {
        directory: Number,
        name: FileName,
        mode: u32,
    },
    MakeDirectory {
        directory: Number,
        name: FileName,
        mode: u32,
    },
    MakeSymlink {
        directory: Number,
        name: FileName,
        target: Vec<u8>,
    },
    Link {
        inode: Number,
        directory: Number,
        name: FileName,
    },
    Unlink {
        directory: Number,
        name: FileName,
    },
    RemoveDirectory {
        directory: Number,
        name: FileName,
    },
    Rename {
        from: (Number, FileName),
        to: (Number, FileName),
        replace: bool,
        exchange: bool,
    },
    Write {
        file: Number,
        offset: usize,
        seed: u64,
        length: usize,
    },
    Append {
        file: Number,
        seed: u64,
        length: usize,
    },
    Truncate {
        file: Number,
        size: usize,
    },
    Punch {
        file: Number,
        offset: usize,
        length: usize,
    },
    Zero {
        file: Number,
        offset: usize,
        length: usize,
    },
    Reserve {
        file: Number,
        offset: usize,
        length: usize,
    },
    CopyRange {
        from: Number,
        from_offset: usize,
        to: Number,
        to_offset: usize,
        length: usize,
    },
    SetMode {
        inode: Number,
        mode: u32,
    },
    SetXattr {
        inode: Number,
        name: Vec<u8>,
        value: Vec<u8>,
    },
    RemoveXattr {
        inode: Number,
        name: Vec<u8>,
    },
    Read {
        file: Number,
        offset: usize,
        length: usize,
    },
    List {
        directory: Number,
    },
    Fsync {
        inode: Number,
    },
    SyncAll,
}

/// The result of an action, as a user sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// It succeeded.
    Done,
    /// A new inode.
    Made(Number),
    /// The bytes read.
    Bytes(Vec<u8>),
    /// A listing, by name.
    Names(BTreeMap<FileName, FileKind>),
    /// A count of bytes.
    Count(usize),
    /// It was refused.
    Refused(ErrorKind),
}

impl Action {
    /// The inodes that it names.
    pub fn inodes(&self) -> Vec<Number> {
        match self {
            Self::Create { directory, .. }
            | Self::MakeDirectory { directory, .. }
            | Self::MakeSymlink { directory, .. }
            | Self::Unlink { directory, .. }
            | Self::RemoveDirectory { directory, .. }
            | Self::List { directory } => vec![*directory],
            Self::Link {
                inode, directory, ..
            } => vec![*inode, *directory],
            Self::Rename { from, to, .. } => vec![from.0, to.0],
            Self::CopyRange { from, to, .. } => vec![*from, *to],
            Self::Write { file, .. }
            | Self::Append { file, .. }
            | Self::Truncate { file, .. }
            | Self::Punch { file, .. }
            | Self::Zero { file, .. }
            | Self::Reserve { file, .. }
            | Self::Read { file, .. } => vec![*file],
            Self::SetMode { inode, .. }
            | Self::SetXattr { inode, .. }
            | Self::RemoveXattr { inode, .. }
            | Self::Fsync { inode } => vec![*inode],
            Self::SyncAll => Vec::new(),
        }
    }

    /// Performs the action on the model and returns the model's answer.
    pub fn on_model(&self, fs: &mut ModelFs) -> Seen {
        let done =
            |result: Result<(), ErrorKind>| result.map_or_else(Seen::Refused, |()| Seen::Done);
        let made =
            |result: Result<Number, ErrorKind>| result.map_or_else(Seen::Refused, Seen::Made);
        match self {
            Self::Create {
                directory,
                name,
                mode,
            } => made(fs.create(*directory, name, Body::File(Vec::new()), *mode)),
            Self::MakeDirectory {
                directory,
                name,
                mode,
            } => made(fs.create(*directory, name, Body::Directory(BTreeMap::new(), 0), *mode)),
            Self::MakeSymlink {
                directory,
                name,
                target,
            } => made(fs.create(*directory, name, Body::Symlink(target.clone()), 0o777)),
            Self::Link {
                inode,
                directory,
                name,
            } => done(fs.link(*inode, *directory, name)),
            Self::Unlink { directory, name } => done(fs.unlink(*directory, name)),
            Self::RemoveDirectory { directory, name } => {
                done(fs.remove_directory(*directory, name))
            }
            Self::Rename {
                from,
                to,
                replace,
                exchange,
            } => done(fs.rename((from.0, &from.1), (to.0, &to.1), *replace, *exchange)),
            Self::Write {
                file,
                offset,
                seed,
                length,
            } => {
                fs.write(*file, *offset, &content(*seed, *length));
                Seen::Done
            }
            Self::Append { file, seed, length } => {
                let end = fs.bytes(*file).len();
                fs.write(*file, end, &content(*seed, *length));
                Seen::Count(end)
            }
            Self::Truncate { file, size } => {
                fs.truncate(*file, *size);
                Seen::Done
            }
            Self::Punch {
                file,
                offset,
                length,
            } => {
                fs.zero(*file, *offset, *length, false);
                Seen::Done
            }
            Self::Zero {
                file,
                offset,
                length,
            } => {
                fs.zero(*file, *offset, *length, true);
                Seen::Done
            }
            Self::Reserve {
                file,
                offset,
                length,
            } => {
                let end = fs.bytes(*file).len().max(offset + length);
                fs.truncate(*file, end);
                Seen::Done
            }
            Self::CopyRange {
                from,
                from_offset,
                to,
                to_offset,
                length,
            } => Seen::Count(fs.copy_range(*from, *from_offset, *to, *to_offset, *length)),
            Self::SetMode { inode, mode } => {
                fs.set_mode(*inode, *mode);
                Seen::Done
            }
            Self::SetXattr { inode, name, value } => {
                fs.set_xattr(*inode, name, value);
                Seen::Done
            }
            Self::RemoveXattr { inode, name } => done(fs.remove_xattr(*inode, name)),
            Self::Read {
                file,
                offset,
                length,
            } => {
                let bytes = fs.bytes(*file);
                let end = bytes.len().min(offset + length);
                Seen::Bytes(if *offset < end {
                    bytes[*offset..end].to_vec()
                } else {
                    Vec::new()
                })
            }
            Self::List { directory } => Seen::Names(
                fs.entries(*directory)
                    .into_iter()
                    .map(|(name, number)| (name, fs.kind(number)))
                    .collect(),
            ),
            Self::Fsync { .. } | Self::SyncAll => Seen::Done,
        }
    }
}

/// Bounds of the random sizes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Number of different names in a directory.
    pub names: u64,
    /// Number of inodes above which removing is more likely than creating.
    pub inodes: usize,
    /// Largest offset of a write in bytes.
    pub file_bytes: u64,
    /// Largest write in bytes.
    pub write_bytes: u64,
    /// One fsync or sync in this many actions.
    pub sync_every: u64,
}

/// Draws the next action that is possible in the model's state.
pub fn draw(draw: &mut Draw, fs: &ModelFs, sizes: &Sizes) -> Action {
    let directories = fs.directories();
    let files = fs.files();
    let directory = *draw.one_of(&directories).expect("the root always exists");
    let name = any_name(draw, fs, directory, sizes);
    if draw.below(sizes.sync_every) == 0 {
        let all: Vec<Number> = fs.inodes.keys().copied().collect();
        return match draw.below(4) {
            0 => Action::SyncAll,
            _ => Action::Fsync {
                inode: *draw.one_of(&all).expect("the root always exists"),
            },
        };
    }
    let full = fs.inodes.len() > sizes.inodes;
    match (draw.below(100), draw.one_of(&files).copied()) {
        (0..14, _) if !full => Action::Create {
            directory,
            name,
            mode: 0o600 + draw.below(0o100) as u32,
        },
        (14..18, _) if !full => Action::MakeDirectory {
            directory,
            name,
            mode: 0o755,
        },
        (18..20, _) if !full => Action::MakeSymlink {
            directory,
            name,
            target: content(draw.bits(), 1 + draw.below(60) as usize)
                .iter()
                .map(|b| b'a' + b % 26)
                .collect(),
        },
        (0..20, _) | (20..27, _) => Action::Unlink { directory, name },
        (27..30, _) => Action::RemoveDirectory { directory, name },
        (30..37, _) => {
            let to_directory = *draw.one_of(&directories).expect("the root always exists");
            let to_name = any_name(draw, fs, to_directory, sizes);
            Action::Rename {
                from: (directory, name),
                to: (to_directory, to_name),
                replace: draw.below(4) > 0,
                exchange: draw.below(6) == 0,
            }
        }
        (37..40, Some(inode)) => Action::Link {
            inode,
            directory,
            name,
        },
        (40..58, Some(file)) => {
            let (offset, length) = range(draw, fs, file, sizes);
            Action::Write {
                file,
                offset,
                seed: draw.bits(),
                length,
            }
        }
        (58..62, Some(file)) => Action::Append {
            file,
            seed: draw.bits(),
            length: 1 + draw.below(sizes.write_bytes) as usize,
        },
        (62..66, Some(file)) => {
            let size = if draw.below(3) == 0 {
                0
            } else {
                draw.below(sizes.file_bytes) as usize
            };
            Action::Truncate { file, size }
        }
        (66..70, Some(file)) => {
            let (offset, length) = range(draw, fs, file, sizes);
            match draw.below(3) {
                0 => Action::Punch {
                    file,
                    offset,
                    length,
                },
                1 => Action::Zero {
                    file,
                    offset,
                    length,
                },
                _ => Action::Reserve {
                    file,
                    offset,
                    length,
                },
            }
        }
        (70..73, Some(from)) => {
            let to = *draw.one_of(&files).expect("at least `from` exists");
            let (from_offset, length) = range(draw, fs, from, sizes);
            let to_offset = draw.below(sizes.file_bytes / 2) as usize;
            // Copies within one file must not overlap, and only copy existing bytes, since the file
            // may grow during the copy.
            let overlaps = from == to
                && (from_offset + length > fs.bytes(from).len()
                    || (from_offset < to_offset + length && to_offset < from_offset + length));
            if overlaps {
                return Action::Read {
                    file: from,
                    offset: from_offset,
                    length,
                };
            }
            Action::CopyRange {
                from,
                from_offset,
                to,
                to_offset,
                length,
            }
        }
        (73..76, Some(inode)) => Action::SetMode {
            inode,
            mode: 0o400 + draw.below(0o400) as u32,
        },
        (76..79, Some(inode)) => Action::SetXattr {
            inode,
            name: format!("user.{}", draw.below(4)).into_bytes(),
            value: content(draw.bits(), draw.below(300) as usize),
        },
        (79..81, Some(inode)) => Action::RemoveXattr {
            inode,
            name: format!("user.{}", draw.below(4)).into_bytes(),
        },
        (81..92, Some(file)) => {
            let (offset, length) = range(draw, fs, file, sizes);
            Action::Read {
                file,
                offset,
                length: length * 2,
            }
        }
        _ => Action::List { directory },
    }
}

/// An existing name most of the time, otherwise any.
fn any_name(draw: &mut Draw, fs: &ModelFs, directory: Number, sizes: &Sizes) -> FileName {
    let entries = fs.entries(directory);
    if draw.below(3) > 0
        && let Some((name, _)) = draw.one_of(&entries)
    {
        return name.clone();
    }
    FileName::new(format!("n{}", draw.below(sizes.names)).as_bytes()).expect("a short plain name")
}

/// A range near the file's content: inside, across its end, or far after it; small, page-sized or
/// large.
fn range(draw: &mut Draw, fs: &ModelFs, file: Number, sizes: &Sizes) -> (usize, usize) {
    let size = fs.bytes(file).len() as u64;
    let mut offset = match draw.below(4) {
        0 => 0,
        1 | 2 => draw.below(size + 1),
        _ => draw.below(sizes.file_bytes),
    };
    let length = match draw.below(4) {
        0 => 1 + draw.below(100),
        1 => 4096,
        _ => 1 + draw.below(sizes.write_bytes),
    };
    if draw.below(3) == 0 {
        offset -= offset % 4096;
    }
    (offset as usize, length as usize)
}
