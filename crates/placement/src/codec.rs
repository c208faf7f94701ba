//! Erasure codes: computes parity and reconstructs lost pieces with ISA-L.
//!
//! Arithmetic is GF(2^8) with the polynomial 0x11d; the matrix is ISA-L's `gf_gen_cauchy1_matrix`,
//! all of whose square submatrices are invertible. Codes work byte by byte, so any range of a piece
//! is rebuilt from the same range of k others.

use crate::layout::piece_length;
use bytes::Bytes;
use model::checksum::{UNIT, crc32c_of_each_unit};
use model::{Error, ErrorKind, Payload, Scheme};
use std::ffi::c_int;

/// Alignment of pieces' buffers, such that disks write them without a copy.
const ALIGNMENT: usize = 4096;
/// Bytes of each piece that are summed and encoded in one go: whole units, and so few that those of six pieces fit into a
/// core's cache (1 MiB in small ones) beside what else it does.
const CHUNK: usize = 32 * 1024;
const _: () = assert!(CHUNK.is_multiple_of(UNIT));

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
    let piece_bytes = piece_bytes(scheme, plain.len());
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
    let parity = parity::<M>((k, m), &sources, |_, _| {});
    pieces.extend(parity);
    pieces
}

/// Computes the checksums of `plain`, and its pieces. Cheaper than one after the other: what doesn't fit into a core's
/// cache is read once.
#[must_use]
pub fn sum_and_encode_in<M: PieceMemory>(scheme: Scheme, plain: Bytes) -> (Payload, Vec<Payload>) {
    let piece_bytes = piece_bytes(scheme, plain.len());
    let (k, m) = match scheme {
        Scheme::Erasure { k, m } if plain.len() == usize::from(k) * piece_bytes => {
            (usize::from(k), usize::from(m))
        }
        _ => {
            let plain = Payload::from(plain);
            let pieces = encode_in::<M>(scheme, &plain);
            return (plain, pieces);
        }
    };
    if piece_bytes == 0 {
        let plain = Payload::from(plain);
        return (plain.clone(), vec![plain; k + m]);
    }
    let sources: Vec<&[u8]> = plain.chunks(piece_bytes).collect();
    let mut units = vec![Vec::with_capacity(piece_bytes / UNIT); k];
    let parity = parity::<M>((k, m), &sources, |source, part| {
        units[source].extend(crc32c_of_each_unit(part));
    });
    let plain = Payload::with_units(plain, units.concat()).expect("a checksum of each unit");
    let data = (0..k).map(|piece| plain.slice(piece * piece_bytes..(piece + 1) * piece_bytes));
    let pieces = data.chain(parity).collect();
    (plain, pieces)
}

/// Bytes of a piece of a segment with so many bytes.
fn piece_bytes(scheme: Scheme, length: usize) -> usize {
    let length = u32::try_from(length).expect("a segment has at most 16 MiB");
    piece_length(scheme, length) as usize
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
    let length = sources[0].len();
    let mut out: Vec<M> = (0..rows).map(|_| M::with_any_content(length)).collect();
    let mut coded: Vec<&mut [u8]> = out.iter_mut().map(M::bytes_mut).collect();
    Product::new(coefficients, sources.len(), rows).compute(sources, &mut coded);
    out.into_iter().map(M::freeze).collect()
}

/// The m parity pieces of k sources, with their checksums. Goes from chunk to chunk through all pieces, because what has just
/// been read or computed is in a core's cache; `on_part` gets each chunk of each source, by its index, in order.
fn parity<M: PieceMemory>(
    (k, m): (usize, usize),
    sources: &[&[u8]],
    mut on_part: impl FnMut(usize, &[u8]),
) -> Vec<Payload> {
    let length = sources[0].len();
    let product = Product::new(&matrix(k, m)[k * k..], k, m);
    let mut out: Vec<M> = (0..m).map(|_| M::with_any_content(length)).collect();
    let mut units = vec![Vec::with_capacity(length / UNIT); m];
    for from in (0..length).step_by(CHUNK) {
        let part = from..length.min(from + CHUNK);
        let parts: Vec<&[u8]> = sources.iter().map(|it| &it[part.clone()]).collect();
        for (source, bytes) in parts.iter().enumerate() {
            on_part(source, bytes);
        }
        let rows = out.iter_mut().map(|row| &mut row.bytes_mut()[part.clone()]);
        let mut rows: Vec<&mut [u8]> = rows.collect();
        product.compute(&parts, &mut rows);
        for (row, units) in rows.iter().zip(&mut units) {
            units.extend(crc32c_of_each_unit(row));
        }
    }
    let with_units = out.into_iter().zip(units);
    let payload = |(row, units): (M, Vec<u32>)| Payload::with_units(row.freeze(), units);
    let payloads = with_units.map(payload).collect::<Option<_>>();
    payloads.expect("a checksum of each unit")
}

/// Rows of coefficients, prepared for ISA-L.
struct Product {
    tables: Vec<u8>,
    k: usize,
    rows: usize,
}

impl Product {
    /// `coefficients` has k for each row.
    fn new(coefficients: &[u8], k: usize, rows: usize) -> Self {
        assert_eq!(
            coefficients.len(),
            rows * k,
            "one coefficient for each source and row"
        );
        let mut tables = vec![0u8; 32 * k * rows];
        if rows > 0 {
            // SAFETY: `coefficients` has k * rows bytes and `tables` 32 for each of them.
            unsafe {
                ec_init_tables(
                    k as c_int,
                    rows as c_int,
                    coefficients.as_ptr(),
                    tables.as_mut_ptr(),
                );
            }
        }
        Self { tables, k, rows }
    }

    /// Multiplies each row with the sources, into `coded`. All have the same length.
    fn compute(&self, sources: &[&[u8]], coded: &mut [&mut [u8]]) {
        assert!(
            sources.len() == self.k && coded.len() == self.rows,
            "all sources, and a result of each row"
        );
        let length = sources[0].len();
        assert!(
            sources.iter().all(|source| source.len() == length),
            "sources of equal length"
        );
        assert!(
            coded.iter().all(|row| row.len() == length),
            "memory of the requested length"
        );
        if self.rows == 0 {
            return;
        }
        let data: Vec<*const u8> = sources.iter().map(|source| source.as_ptr()).collect();
        let coded: Vec<*mut u8> = coded.iter_mut().map(|row| row.as_mut_ptr()).collect();
        let bytes = c_int::try_from(length).expect("a piece has at most 16 MiB");
        // SAFETY: `tables` was made for k sources and so many rows. `data` points to k sources and `coded` to as many
        // buffers, all of `length` bytes, which live until the call returns; nothing else uses the buffers.
        unsafe {
            ec_encode_data(
                bytes,
                self.k as c_int,
                self.rows as c_int,
                self.tables.as_ptr(),
                data.as_ptr(),
                coded.as_ptr(),
            );
        }
    }
}

#[cfg(test)]
mod tests;
