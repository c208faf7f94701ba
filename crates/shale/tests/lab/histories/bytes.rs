//! What several programs do with the bytes of files that they share, through every way that a program has.

use super::cells::{
    CELL, CELLS_AT_ONCE, CELLS_OF_PAGE, FILES, Kind, Pages, number, value_of, word,
};
use super::clock::now;
use crate::mapping::Mapping;
use rustix::{
    fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use sim::{action::Draw, witness::content::CELLS_MAX};
use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::Write,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Permissions of every file.
pub(super) const MODE: u32 = 0o755;

/// What a program does with a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    Write {
        cell: usize,
        cells: usize,
        value: u32,
    },
    Append {
        value: u32,
    },
    Truncate {
        cells: usize,
    },
    Punch {
        cell: usize,
        cells: usize,
    },
    Zero {
        cell: usize,
        cells: usize,
    },
    Reserve {
        cell: usize,
        cells: usize,
    },
    Copy {
        from: usize,
        first: usize,
        cell: usize,
        cells: usize,
    },
    Read {
        cell: usize,
        cells: usize,
    },
    Seek {
        cell: usize,
    },
    Stat,
    Sync,
    Store {
        cell: usize,
        value: u32,
    },
    Load {
        cell: usize,
    },
}

/// What it sees.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Saw {
    Done,
    /// Fewer than asked for at the file's end.
    Cells(Vec<u32>),
    Copied(usize),
    /// Up to this cell there is no data.
    ZerosTo(usize),
    /// Times in seconds and nanoseconds.
    Attributes {
        cells: usize,
        mtime: (i64, u32),
        ctime: (i64, u32),
    },
}

/// An operation on a file with its answer; times as of [`now`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Did {
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) file: usize,
    pub(super) ask: Ask,
    pub(super) saw: Saw,
}

fn path_of(directory: &Path, file: usize) -> PathBuf {
    directory.join(format!("f{file}"))
}

/// Makes the files; returns their inode numbers.
pub(super) fn prepare(directory: &Path) -> Vec<u64> {
    let make = |(number, kind): (usize, &Kind)| {
        let file = File::create_new(path_of(directory, number)).unwrap();
        file.set_permissions(Permissions::from_mode(MODE)).unwrap();
        let bytes = kind.base() + (kind.cells_at_first() * CELL) as u64;
        file.set_len(bytes).unwrap();
        file.metadata().unwrap().ino()
    };
    FILES.iter().enumerate().map(make).collect()
}

/// All cells of all files, when nobody changes them any more.
pub(super) fn look_at_all(directory: &Path) -> Vec<Did> {
    let look = |(number, kind): (usize, &Kind)| {
        let begun = now();
        let file = File::open(path_of(directory, number)).unwrap();
        let mut bytes = vec![0; CELLS_MAX * CELL];
        let read = file.read_at(&mut bytes, kind.base()).unwrap();
        let ask = Ask::Read {
            cell: 0,
            cells: CELLS_MAX,
        };
        Did {
            begun,
            ended: now(),
            file: number,
            ask,
            saw: Saw::Cells(kind.cells_of(&bytes[..read])),
        }
    };
    FILES.iter().enumerate().map(look).collect()
}

/// A file as a program has it open.
struct Opened {
    kind: Kind,
    path: PathBuf,
    file: File,
    direct: File,
    append: File,
    mapping: Option<Mapping>,
    appends_left: usize,
}

/// One program among several that work on the files in a directory.
pub(super) struct Files {
    opened: Vec<Opened>,
    /// Its number, from 0.
    actor: usize,
    /// How many numbers it has written.
    written: u32,
}

impl Files {
    /// Opens the files, as one of so many programs.
    pub(super) fn open(directory: &Path, actor: usize, actors: usize) -> Self {
        let open = |(number, kind): (usize, &Kind)| {
            let path = path_of(directory, number);
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            let file = options.open(&path).unwrap();
            let is_mapped = *kind == Kind::Mapped;
            Opened {
                kind: *kind,
                direct: options.custom_flags(libc::O_DIRECT).open(&path).unwrap(),
                append: OpenOptions::new().append(true).open(&path).unwrap(),
                mapping: is_mapped.then(|| Mapping::new(&file, libc::MAP_SHARED)),
                appends_left: CELLS_MAX / actors,
                path,
                file,
            }
        };
        Self {
            opened: FILES.iter().enumerate().map(open).collect(),
            actor,
            written: 0,
        }
    }

    /// Does something.
    pub(super) fn step(&mut self, chance: &mut Draw) -> Did {
        let file = chance.below(FILES.len() as u64) as usize;
        let ask = self.draw(file, chance);
        let way = chance.below(3);
        let begun = now();
        let saw = self.perform(file, &ask, way);
        Did {
            begun,
            ended: now(),
            file,
            ask,
            saw,
        }
    }

    fn draw(&mut self, file: usize, chance: &mut Draw) -> Ask {
        let value = value_of(self.actor, self.written);
        let mut below = |end: usize| chance.below(end as u64) as usize;
        let (mut cell, mut cells) = (below(CELLS_MAX - CELLS_AT_ONCE), 1 + below(CELLS_AT_ONCE));
        // Whole pages, which may go past all caches.
        if below(2) == 0 {
            cell -= cell % CELLS_OF_PAGE;
            cells = cells.next_multiple_of(CELLS_OF_PAGE);
        }
        let opened = &mut self.opened[file];
        let ask = match opened.kind {
            Kind::Plain => match below(20) {
                0..=4 => Ask::Write { cell, cells, value },
                5 => Ask::Truncate {
                    cells: CELLS_MAX / 4 + below(CELLS_MAX / 2),
                },
                6 => Ask::Punch { cell, cells },
                7 => Ask::Zero { cell, cells },
                8 => Ask::Reserve { cell, cells },
                // From the other one of this kind.
                9..=10 => Ask::Copy {
                    from: 1 - file,
                    first: below(CELLS_MAX - CELLS_AT_ONCE),
                    cell,
                    cells,
                },
                11..=14 => Ask::Read { cell, cells },
                15 => Ask::Seek { cell },
                16..=18 => Ask::Stat,
                _ => Ask::Sync,
            },
            Kind::Mapped => match below(14) {
                0..=3 => Ask::Store { cell, value },
                4..=7 => Ask::Load { cell },
                8..=9 => Ask::Write { cell, cells, value },
                10 => Ask::Punch { cell, cells },
                11..=12 => Ask::Read { cell, cells },
                _ => Ask::Sync,
            },
            Kind::Appended => match below(4) {
                0..=1 if opened.appends_left > 0 => {
                    opened.appends_left -= 1;
                    Ask::Append { value }
                }
                2 => Ask::Stat,
                _ => Ask::Read { cell, cells },
            },
        };
        let is_new = matches!(
            ask,
            Ask::Write { .. } | Ask::Append { .. } | Ask::Store { .. }
        );
        self.written += u32::from(is_new);
        ask
    }

    /// Does it in one of the ways in which it can be done.
    fn perform(&self, file: usize, ask: &Ask, way: u64) -> Saw {
        let opened = &self.opened[file];
        let kind = opened.kind;
        let at = |cell: usize| kind.base() + (cell * CELL) as u64;
        let length = |cells: usize| (cells * CELL) as u64;
        let allocate = |how: FallocateFlags, cell: usize, cells: usize| {
            fallocate(&opened.file, how, at(cell), length(cells)).unwrap();
        };
        match *ask {
            Ask::Write { cell, cells, value } => {
                let bytes = Pages::filled(value);
                let bytes = &bytes.0[..cells * CELL];
                opened
                    .to_write(way, cell, cells)
                    .write_all_at(bytes, at(cell))
                    .unwrap();
            }
            Ask::Append { value } => {
                let bytes = Pages::filled(value);
                let written = (&opened.append).write(&bytes.0[..CELL]).unwrap();
                assert_eq!(written, CELL);
            }
            Ask::Truncate { cells } => opened.file.set_len(at(cells)).unwrap(),
            Ask::Punch { cell, cells } => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                allocate(how, cell, cells);
            }
            Ask::Zero { cell, cells } => allocate(FallocateFlags::ZERO_RANGE, cell, cells),
            Ask::Reserve { cell, cells } => allocate(FallocateFlags::empty(), cell, cells),
            Ask::Copy {
                from,
                first,
                cell,
                cells,
            } => {
                let source = &self.opened[from].file;
                // The kernel ends a copy where it believes the source to end, and doesn't ask.
                source.metadata().unwrap();
                let (mut of, mut to) = (at(first), at(cell));
                let copied = copy_file_range(
                    source,
                    Some(&mut of),
                    &opened.file,
                    Some(&mut to),
                    cells * CELL,
                );
                return Saw::Copied(kind.cell_at(kind.base() + copied.unwrap() as u64));
            }
            Ask::Read { cell, cells } => {
                let mut bytes = Pages::filled(0);
                let bytes = &mut bytes.0[..cells * CELL];
                let read = match way {
                    0 => File::open(&opened.path).unwrap().read_at(bytes, at(cell)),
                    _ => opened.to_write(way, cell, cells).read_at(bytes, at(cell)),
                };
                return Saw::Cells(kind.cells_of(&bytes[..read.unwrap()]));
            }
            Ask::Seek { cell } => {
                return Saw::ZerosTo(match seek(&opened.file, SeekFrom::Data(at(cell))) {
                    Ok(data) => {
                        assert!(data >= at(cell), "data at {data}, before {}", at(cell));
                        ((data - kind.base()) as usize / CELL).min(CELLS_MAX)
                    }
                    Err(Errno::NXIO) => CELLS_MAX,
                    Err(error) => panic!("{ask:?}: {error}"),
                });
            }
            Ask::Stat => {
                let found = match way {
                    0 => fs::metadata(&opened.path).unwrap(),
                    _ => opened.file.metadata().unwrap(),
                };
                return Saw::Attributes {
                    cells: kind.cell_at(found.len()),
                    mtime: (found.mtime(), found.mtime_nsec() as u32),
                    ctime: (found.ctime(), found.ctime_nsec() as u32),
                };
            }
            Ask::Sync => opened.file.sync_all().unwrap(),
            Ask::Store { cell, value } => opened.mapped().store(cell * CELL, word(value)),
            Ask::Load { cell } => {
                return Saw::Cells(vec![number(opened.mapped().load(cell * CELL))]);
            }
        }
        Saw::Done
    }
}

impl Opened {
    /// The descriptor for whole pages without caches, or the usual one.
    fn to_write(&self, way: u64, cell: usize, cells: usize) -> &File {
        let is_whole = cell.is_multiple_of(CELLS_OF_PAGE) && cells.is_multiple_of(CELLS_OF_PAGE);
        match is_whole && way == 1 {
            true => &self.direct,
            false => &self.file,
        }
    }

    fn mapped(&self) -> &Mapping {
        self.mapping.as_ref().expect("it is a mapped file")
    }
}
