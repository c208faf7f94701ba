//! Cells of files: runs of bytes that all hold one number, which is written once and by one program.

use model::limits::BLOCK_BYTES_DEFAULT;
use sim::witness::content::CELLS_MAX;

/// Bytes of a cell: several share a page.
pub(super) const CELL: usize = 1024;
const PAGE: usize = 4096;
/// Cells of a page, which O_DIRECT reads and writes together.
pub(super) const CELLS_OF_PAGE: usize = PAGE / CELL;
/// Most cells of one operation.
pub(super) const CELLS_AT_ONCE: usize = 2 * CELLS_OF_PAGE;

/// What is done with a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Everything but what the others are for.
    Plain,
    /// Its size stays, so that it can be mapped: who stores behind the end of a file gets a signal.
    Mapped,
    /// It only grows, so that in the end each append shows where it went.
    Appended,
}

/// The files, by their numbers.
pub(super) const FILES: [Kind; 5] = [
    Kind::Plain,
    Kind::Plain,
    Kind::Mapped,
    Kind::Appended,
    Kind::Appended,
];

impl Kind {
    /// Where cells begin: so that they lie in two blocks, or in the pages that a test's mapping has.
    pub(super) fn base(self) -> u64 {
        match self {
            Self::Mapped => 0,
            Self::Plain | Self::Appended => {
                u64::from(BLOCK_BYTES_DEFAULT) - (CELLS_MAX / 2 * CELL) as u64
            }
        }
    }

    /// Cells of a new file.
    pub(super) fn cells_at_first(self) -> usize {
        match self {
            Self::Mapped => CELLS_MAX,
            Self::Plain | Self::Appended => 0,
        }
    }

    /// Which cell begins at an offset that is where one can begin.
    pub(super) fn cell_at(self, offset: u64) -> usize {
        let bytes = offset.checked_sub(self.base()).map(|bytes| bytes as usize);
        let cell = bytes.filter(|bytes| bytes.is_multiple_of(CELL));
        cell.unwrap_or_else(|| panic!("no cell of a {self:?} file begins at {offset}")) / CELL
    }

    /// The numbers in cells.
    pub(super) fn cells_of(self, bytes: &[u8]) -> Vec<u32> {
        assert!(bytes.len().is_multiple_of(CELL), "{} bytes", bytes.len());
        let words = |cell: &[u8]| -> Vec<u32> {
            let words = cell.chunks_exact(8);
            words
                .map(|word| number(u64::from_ne_bytes(word.try_into().unwrap())))
                .collect()
        };
        bytes
            .chunks(CELL)
            .map(|cell| {
                let all = words(cell);
                // A store through a mapping changes the first word of a cell.
                let is_whole = self == Self::Mapped || all.iter().all(|it| *it == all[0]);
                assert!(is_whole, "a cell of several numbers: {all:x?}");
                all[0]
            })
            .collect()
    }
}

/// Memory for O_DIRECT.
#[repr(align(4096))]
pub(super) struct Pages(pub(super) [u8; CELLS_AT_ONCE * CELL]);

impl Pages {
    /// With this number in all cells.
    pub(super) fn filled(value: u32) -> Box<Self> {
        let mut pages = Box::new(Self([0; CELLS_AT_ONCE * CELL]));
        for bytes in pages.0.chunks_exact_mut(8) {
            bytes.copy_from_slice(&word(value).to_ne_bytes());
        }
        pages
    }
}

/// A number that only this program writes, and only once.
pub(super) fn value_of(actor: usize, written: u32) -> u32 {
    assert!(written < 1 << 20);
    ((actor as u32 + 1) << 20) | written
}

/// Which program has written a number.
pub(super) fn actor_of(value: u32) -> Option<usize> {
    (value as usize >> 20).checked_sub(1)
}

/// Odd, so that it can be undone.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
/// Undoes it.
const UNSPREAD: u64 = 0xF1DE_83E1_9937_733D;
const _: () = assert!(SPREAD.wrapping_mul(UNSPREAD) == 1);

/// A number as it is in files: two hardly share a byte, so that a mixture of them is none. Zero is zeros.
pub(super) fn word(value: u32) -> u64 {
    u64::from(value).wrapping_mul(SPREAD)
}

pub(super) fn number(word: u64) -> u32 {
    let number = word.wrapping_mul(UNSPREAD);
    u32::try_from(number).unwrap_or_else(|_| panic!("nobody has written {word:#x}"))
}

#[test]
fn numbers_come_back_from_files_and_mixtures_are_none() {
    let value = value_of(4, 1_000);
    assert_eq!((number(word(value)), actor_of(value)), (value, Some(4)));
    assert_eq!((number(word(0)), actor_of(0)), (0, None));
    let cells = Pages::filled(value);
    assert_eq!(Kind::Plain.cells_of(&cells.0[..2 * CELL]), [value, value]);
    let mut torn = Pages::filled(value);
    torn.0[CELL - 8..].fill(0);
    let torn = std::panic::catch_unwind(|| Kind::Plain.cells_of(&torn.0[..CELL]));
    torn.expect_err("half of a cell is another one's");
    let (one, other) = (word(value).to_ne_bytes(), word(value + 1).to_ne_bytes());
    let mixed = [&one[..4], &other[4..]].concat();
    let mixed = u64::from_ne_bytes(mixed.try_into().unwrap());
    std::panic::catch_unwind(|| number(mixed)).expect_err("a mixture");
}
