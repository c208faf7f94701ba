//! Erasure codes: computes parity and reconstructs lost pieces with ISA-L.
//!
//! Arithmetic is GF(2^8) with the polynomial 0x11d; the matrix is ISA-L's `gf_gen_cauchy1_matrix`,
//! all of whose square submatrices are invertible. Codes work byte by byte, so any range of a piece
//! is rebuilt from the same range of k others.

use crate::layout::piece_length;
use bytes::Bytes;
use model::{Error, ErrorKind, Payload, Scheme};
use std::ffi::c_int;

/// Alignment of pieces' buffers, such that disks write them without a copy.
const ALIGNMENT: usize = 4096;

#[link(name = "isal")]
unsafe extern "C" {
    fn gf_gen_cauchy1_matrix(matrix: *mut u8, rows: c_int, k: c_int);
    fn gf_invert_matrix(matrix: *mut u8, inverted: *mut u8, n: c_int) -> c_int;
    fn gf_mul(a: u8, b: u8) -> u8;
    fn ec_init_tables(k: c_int, rows: c_int, coefficients: *const u8, tables: *mut u8);
    fn ec_encode_data(
        length: c_int,
        k: c_int,
        rows: c_int,
        tables: *const u8,
        data: *const *const u8,
        coded: *const *mut u8,
    );
}

/// Page-aligned memory for computed pieces. The caller provides it, because fresh memory costs more
/// (a page fault per 4 KiB) than computing its content.
pub trait PieceMemory: Sized {
    /// `length` page-aligned bytes of arbitrary initialised content.
    fn with_any_content(length: usize) -> Self;
    /// The bytes.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// The same memory as shared read-only bytes.
    fn freeze(self) -> Bytes;
}

/// All pieces of a segment, in order. Copies and whole data pieces are slices of `plain`, with its
/// checksums; only pieces that need padding are copied. Parity pieces are page-aligned.
#[must_use]
pub fn encode(scheme: Scheme, plain: &Payload) -> Vec<Payload> {
    encode_in::<Aligned>(scheme, plain)
}

/// Like [`encode`], in the caller's memory.
#[must_use]
pub fn encode_in<M: PieceMemory>(scheme: Scheme, plain: &Payload) -> Vec<Payload> {
    let (k, m) = match scheme {
        Scheme::Replicate(n) => return vec![plain.clone(); usize::from(n)],
        Scheme::Erasure { k, m } => (usize::from(k), usize::from(m)),
    };
    let length = u32::try_from(plain.len()).expect("a segment has at most 16 MiB");
    let piece_bytes = piece_length(scheme, length) as usize;
    let mut pieces: Vec<Payload> = Vec::with_capacity(k + m);
    for piece in 0..k {
        let from = (piece * piece_bytes).min(plain.len());
        let to = (from + piece_bytes).min(plain.len());
        pieces.push(padded::<M>(plain.slice(from..to), piece_bytes));
    }
    if piece_bytes == 0 {
        pieces.resize(k + m, Bytes::new().into());
        return pieces;
    }
    let sources: Vec<&[u8]> = pieces.iter().map(|piece| &piece.bytes()[..]).collect();
    let parity = multiply::<M>(&matrix(k, m)[k * k..], &sources, m);
    pieces.extend(parity.into_iter().map(Payload::from));
    pieces
}

/// Computes pieces from k others, in the caller's memory. All slices of `have` are the same byte
/// range of their pieces, and so are the results. `have` holds (piece, bytes) of different pieces;
/// those after the first k are ignored. `Unavailable` if there are fewer than k.
pub fn reconstruct_in<M: PieceMemory>(
    scheme: Scheme,
    have: &[(u8, Bytes)],
    wanted: &[u8],
) -> Result<Vec<Bytes>, Error> {
    let needed = scheme.data_pieces();
    if have.len() < needed {
        let text = format!(
            "only {} of {} pieces of a {scheme} segment are available, {needed} are needed",
            have.len(),
            scheme.width()
        );
        return Err(Error::new(ErrorKind::Unavailable, text));
    }
    let have = &have[..needed];
    let Scheme::Erasure { k, m } = scheme else {
        return Ok(vec![have[0].1.clone(); wanted.len()]);
    };
    let (k, m) = (usize::from(k), usize::from(m));
    let length = have[0].1.len();
    assert!(
        have.iter().all(|(_, bytes)| bytes.len() == length),
        "the same range of every piece"
    );
    if length == 0 {
        return Ok(vec![Bytes::new(); wanted.len()]);
    }
    let rows: Vec<usize> = have.iter().map(|(piece, _)| usize::from(*piece)).collect();
    let coefficients = decoding_rows(k, m, &rows, wanted);
    let sources: Vec<&[u8]> = have.iter().map(|(_, bytes)| bytes.as_ref()).collect();
    Ok(multiply::<M>(&coefficients, &sources, wanted.len()))
}

/// Joins all data pieces, in order, to the plain data (copies: a single piece). Copies the bytes
/// once if there is more than one piece.
#[must_use]
pub fn join(scheme: Scheme, length: u32, data: &[Bytes]) -> Bytes {
    assert_eq!(data.len(), scheme.data_pieces(), "all data pieces");
    let length = length as usize;
    if let [only] = data {
        return only.slice(..length);
    }
    let mut plain = Aligned::with_any_content(length);
    let mut at = 0;
    for piece in data {
        let part = piece.len().min(length - at);
        plain.bytes_mut()[at..at + part].copy_from_slice(&piece[..part]);
        at += part;
    }
    plain.freeze()
}

/// Bytes in their own page-aligned memory.
struct Aligned {
    memory: Vec<u8>,
    from: usize,
    length: usize,
}

impl PieceMemory for Aligned {
    fn with_any_content(length: usize) -> Self {
        let memory = vec![0; length + ALIGNMENT];
        let from = memory.as_ptr().align_offset(ALIGNMENT);
        assert!(from <= ALIGNMENT, "bytes can be aligned to a page");
        Self {
            memory,
            from,
            length,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.from..self.from + self.length]
    }

    fn freeze(self) -> Bytes {
        Bytes::from(self.memory).slice(self.from..self.from + self.length)
    }
}

fn padded<M: PieceMemory>(piece: Payload, length: usize) -> Payload {
    if piece.len() == length {
        return piece;
    }
    let mut out = M::with_any_content(length);
    let (data, padding) = out.bytes_mut().split_at_mut(piece.len());
    data.copy_from_slice(piece.bytes());
    padding.fill(0);
    out.freeze().into()
}

/// The k + m rows of k coefficients: the identity, then the parity rows.
fn matrix(k: usize, m: usize) -> Vec<u8> {
    assert!(
        (1..=16).contains(&k) && m <= 4,
        "k is 1..=16 and m at most 4"
    );
    let mut matrix = vec![0u8; (k + m) * k];
    // SAFETY: the function writes exactly (k + m) * k bytes, which `matrix` has.
    unsafe { gf_gen_cauchy1_matrix(matrix.as_mut_ptr(), (k + m) as c_int, k as c_int) };
    matrix
}

/// For each wanted piece, the k coefficients that compute it from the pieces `have`.
fn decoding_rows(k: usize, m: usize, have: &[usize], wanted: &[u8]) -> Vec<u8> {
    let matrix = matrix(k, m);
    let mut part = vec![0u8; k * k];
    for (row, piece) in have.iter().enumerate() {
        part[row * k..(row + 1) * k].copy_from_slice(&matrix[piece * k..(piece + 1) * k]);
    }
    let mut inverted = vec![0u8; k * k];
    // SAFETY: both matrices have k * k bytes; the first may be destroyed.
    let failed = unsafe { gf_invert_matrix(part.as_mut_ptr(), inverted.as_mut_ptr(), k as c_int) };
    assert!(
        failed == 0,
        "different rows of a Cauchy matrix can be inverted"
    );
    let mut out = vec![0u8; wanted.len() * k];
    for (piece, row) in wanted.iter().zip(out.chunks_exact_mut(k)) {
        let piece = usize::from(*piece);
        for (column, coefficient) in row.iter_mut().enumerate() {
            // SAFETY: pure arithmetic on two bytes.
            let product = |a: u8, b: u8| unsafe { gf_mul(a, b) };
            *coefficient = (0..k).fold(0, |sum, i| {
                sum ^ product(matrix[piece * k + i], inverted[i * k + column])
            });
        }
    }
    out
}

/// Multiplies the rows of `coefficients` with the sources: one page-aligned result for each row.
fn multiply<M: PieceMemory>(coefficients: &[u8], sources: &[&[u8]], rows: usize) -> Vec<Bytes> {
    let k = sources.len();
    let length = sources[0].len();
    assert_eq!(
        coefficients.len(),
        rows * k,
        "one coefficient for each source and row"
    );
    assert!(
        sources.iter().all(|source| source.len() == length),
        "sources of equal length"
    );
    if rows == 0 {
        return Vec::new();
    }
    let mut tables = vec![0u8; 32 * k * rows];
    let mut out: Vec<M> = (0..rows).map(|_| M::with_any_content(length)).collect();
    assert!(
        out.iter_mut().all(|row| row.bytes_mut().len() == length),
        "memory of the requested length"
    );
    let data: Vec<*const u8> = sources.iter().map(|source| source.as_ptr()).collect();
    let coded: Vec<*mut u8> = out
        .iter_mut()
        .map(|row| row.bytes_mut().as_mut_ptr())
        .collect();
    let bytes = c_int::try_from(length).expect("a piece has at most 16 MiB");
    // SAFETY: `coefficients` has k * rows bytes and `tables` 32 for each of them. `data` points to
    // k sources and `coded` to `rows` buffers, all of at least `length` bytes, which live until the
    // call returns; nothing else uses the buffers.
    unsafe {
        ec_init_tables(
            k as c_int,
            rows as c_int,
            coefficients.as_ptr(),
            tables.as_mut_ptr(),
        );
        ec_encode_data(
            bytes,
            k as c_int,
            rows as c_int,
            tables.as_ptr(),
            data.as_ptr(),
            coded.as_ptr(),
        );
    }
    out.into_iter().map(M::freeze).collect()
}

#[cfg(test)]
mod tests;
