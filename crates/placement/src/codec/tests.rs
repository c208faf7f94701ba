//! Compares ISA-L with a scalar reference, and tries every pattern of losses.

use super::*;
use proptest::prelude::*;

/// Multiplication in GF(2^8) with the polynomial 0x11d, bit by bit.
fn reference_product(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        let carry = a & 0x80 != 0;
        a <<= 1;
        if carry {
            a ^= 0x1d;
        }
        b >>= 1;
    }
    product
}

fn reference_inverse(a: u8) -> u8 {
    (1..=255)
        .find(|b| reference_product(a, *b) == 1)
        .expect("every number but 0 has an inverse")
}

/// Parity piece `row` (0..m) as specified in docs/formats/segment.md: the coefficient of data piece
/// j is 1 / ((k + row) xor j).
fn reference_parity(k: usize, row: usize, data: &[Bytes]) -> Vec<u8> {
    let mut parity = vec![0u8; data[0].len()];
    for (column, piece) in data.iter().enumerate() {
        let coefficient = reference_inverse(((k + row) ^ column) as u8);
        let products: Vec<u8> = (0..=255)
            .map(|byte| reference_product(coefficient, byte))
            .collect();
        for (sum, byte) in parity.iter_mut().zip(piece) {
            *sum ^= products[usize::from(*byte)];
        }
    }
    parity
}

fn plain(length: usize, seed: u64) -> Bytes {
    let mut random = crate::random::Random::new(seed);
    (0..length.div_ceil(8))
        .flat_map(|_| random.next().to_le_bytes())
        .take(length)
        .collect()
}

const SCHEMES: [(u8, u8); 6] = [(4, 2), (4, 3), (8, 2), (8, 3), (16, 2), (16, 3)];

fn is_aligned(bytes: &Bytes) -> bool {
    (bytes.as_ptr() as usize).is_multiple_of(ALIGNMENT)
}

/// Checks each piece's checksums against its bytes, because later checks trust them.
fn encode(scheme: Scheme, plain: &Bytes) -> Vec<Bytes> {
    let pieces = super::encode(scheme, &plain.clone().into());
    for piece in &pieces {
        assert_eq!(piece.units(), Payload::from(piece.bytes().clone()).units());
    }
    pieces.iter().map(|piece| piece.bytes().clone()).collect()
}

#[test]
fn parity_is_what_the_format_says_for_every_scheme() {
    for k in 1..=16u8 {
        for m in 1..=4u8 {
            let scheme = Scheme::Erasure { k, m };
            let pieces = encode(scheme, &plain(usize::from(k) * 4096 - 5, u64::from(k)));
            let data = &pieces[..usize::from(k)];
            for row in 0..usize::from(m) {
                assert_eq!(
                    pieces[usize::from(k) + row],
                    reference_parity(usize::from(k), row, data),
                    "{scheme} row {row}"
                );
            }
        }
    }
}

/// Would be broken if a checksum that is computed on the way were of other bytes, at a border of what is computed in one go or at
/// the end, or if parity were another one: nobody computes either again before it is stored.
#[test]
fn what_is_summed_and_encoded_at_once_is_as_one_after_the_other() {
    let piece = |pieces: Vec<Payload>| -> Vec<(Bytes, Vec<u32>)> {
        let parts = |piece: &Payload| (piece.bytes().clone(), piece.units().to_vec());
        pieces.iter().map(parts).collect()
    };
    for (scheme, pieces_of_data) in [
        (Scheme::Erasure { k: 4, m: 2 }, 4),
        (Scheme::Erasure { k: 5, m: 1 }, 5),
        (Scheme::Erasure { k: 3, m: 0 }, 3),
        (Scheme::Replicate(2), 1),
    ] {
        for in_one_go in [UNIT, CHUNK - UNIT, CHUNK, CHUNK + UNIT, 3 * CHUNK] {
            for less in [0, 1, UNIT, UNIT + 1] {
                let whole = plain((in_one_go * pieces_of_data).saturating_sub(less), 7);
                let (summed, at_once) = sum_and_encode_in::<Aligned>(scheme, whole.clone());
                let what = format!("{scheme}, {} bytes", whole.len());
                let expected = Payload::from(whole.clone());
                assert_eq!(summed.bytes(), &whole, "{what}");
                assert_eq!(summed.units(), expected.units(), "{what}");
                assert_eq!(
                    piece(at_once),
                    piece(super::encode(scheme, &expected)),
                    "{what}"
                );
            }
        }
    }
    let whole = plain(1 << 20, 1);
    let (_, pieces) = sum_and_encode_in::<Aligned>(Scheme::Erasure { k: 4, m: 2 }, whole.clone());
    for (index, piece) in pieces[..4].iter().enumerate() {
        let from = whole[index << 18..].as_ptr();
        assert_eq!(piece.bytes().as_ptr(), from, "no copy of piece {index}");
    }
    assert!(pieces[4..].iter().all(|piece| is_aligned(piece.bytes())));
}

#[test]
fn data_pieces_share_the_plain_memory_and_parity_is_page_aligned() {
    let whole = plain(1 << 20, 1);
    let pieces = encode(Scheme::Erasure { k: 4, m: 2 }, &whole);
    for (index, piece) in pieces[..4].iter().enumerate() {
        assert_eq!(
            piece.as_ptr(),
            whole[index << 18..].as_ptr(),
            "no copy of piece {index}"
        );
    }
    assert!(pieces[4..].iter().all(is_aligned));
    let padded = encode(Scheme::Erasure { k: 4, m: 2 }, &plain((1 << 20) - 1, 1));
    assert!(padded.iter().all(|piece| piece.len() == 1 << 18));
    assert_eq!(padded[3][(1 << 18) - 1], 0);
    assert!(is_aligned(&padded[3]));
}

#[test]
fn copies_are_the_plain_data() {
    let whole = plain(777, 1);
    let pieces = encode(Scheme::Replicate(3), &whole);
    assert!(
        pieces.len() == 3
            && pieces
                .iter()
                .all(|piece| piece.as_ptr() == whole.as_ptr() && piece.len() == 777)
    );
}

/// All ways to choose `n` of `0..of`, as bits.
fn choices(of: usize, n: usize) -> impl Iterator<Item = u32> {
    (0..1u32 << of).filter(move |bits| bits.count_ones() as usize == n)
}

fn check_losses(scheme: Scheme, pieces: &[Bytes], lost: u32) {
    let have: Vec<(u8, Bytes)> = (0..pieces.len())
        .filter(|piece| lost & (1 << piece) == 0)
        .map(|piece| (piece as u8, pieces[piece].clone()))
        .collect();
    let wanted: Vec<u8> = (0..pieces.len() as u8)
        .filter(|piece| lost & (1 << piece) != 0)
        .collect();
    let rebuilt =
        reconstruct_in::<Aligned>(scheme, &have, &wanted).expect("there are enough pieces");
    for (piece, bytes) in wanted.iter().zip(rebuilt) {
        assert_eq!(
            bytes,
            pieces[usize::from(*piece)],
            "{scheme}, lost {lost:b}, piece {piece}"
        );
    }
}

#[test]
fn every_loss_that_the_scheme_tolerates_is_rebuilt() {
    for (k, m) in SCHEMES {
        let scheme = Scheme::Erasure { k, m };
        let pieces = encode(scheme, &plain(usize::from(k) * 4096 - 9, 3));
        let short: Vec<Bytes> = pieces
            .iter()
            .map(|piece| piece.slice(piece.len() - 200..))
            .collect();
        for losses in 1..=usize::from(m) {
            choices(scheme.width(), losses).for_each(|lost| check_losses(scheme, &short, lost));
        }
    }
}

#[test]
fn one_piece_too_few_is_unavailable() {
    let scheme = Scheme::Erasure { k: 4, m: 2 };
    let pieces = encode(scheme, &plain(1 << 16, 3));
    let have: Vec<(u8, Bytes)> = (3..6u8)
        .map(|piece| (piece, pieces[usize::from(piece)].clone()))
        .collect();
    assert_eq!(
        reconstruct_in::<Aligned>(scheme, &have, &[0])
            .expect_err("three of four")
            .kind(),
        ErrorKind::Unavailable
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn random_segments_survive_random_losses(
        k in 2u8..=16, m in 1u8..=4, length in 1usize..300_000, seed: u64, cut in any::<prop::sample::Index>(),
    ) {
        let scheme = Scheme::Erasure { k, m };
        let whole = plain(length, seed);
        let pieces = encode(scheme, &whole);
        prop_assert_eq!(join(scheme, length as u32, &pieces[..usize::from(k)]), whole);
        let mut order: Vec<u8> = (0..scheme.width() as u8).collect();
        crate::random::Random::new(seed).shuffle(&mut order);
        let (lost, kept) = order.split_at(usize::from(m));
        // Any byte range is rebuilt from the same range of the others.
        let from = cut.index(pieces[0].len());
        let range = from..(from + 5000).min(pieces[0].len());
        let have: Vec<(u8, Bytes)> = kept.iter().map(|p| (*p, pieces[usize::from(*p)].slice(range.clone()))).collect();
        let rebuilt = reconstruct_in::<Aligned>(scheme, &have, lost).expect("enough pieces");
        for (piece, bytes) in lost.iter().zip(rebuilt) {
            prop_assert_eq!(bytes, pieces[usize::from(*piece)].slice(range.clone()));
        }
    }
}
