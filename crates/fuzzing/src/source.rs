//! Turns an input's bytes into choices: numbers, texts, values, changes of bytes.

/// Numbers at which something begins or ends, in small and large types.
const EDGES: [u64; 24] = [
    0,
    1,
    2,
    3,
    7,
    8,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x1000,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x0100_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_fffe,
    0xffff_ffff_ffff_ffff,
];

/// Most values that one decoded value is made of; further lists in it are empty.
pub(crate) const PARTS_MAX: usize = 512;

/// An input. At its end it gives zeros, so everything that is made of it ends.
#[derive(Clone)]
pub struct Source<'a> {
    rest: &'a [u8],
    pub(crate) parts: usize,
}

impl<'a> Source<'a> {
    /// All choices from these bytes.
    #[must_use]
    pub fn new(input: &'a [u8]) -> Self {
        let parts = PARTS_MAX;
        Self { rest: input, parts }
    }

    /// What hasn't been used.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether all is used.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Any byte.
    pub fn byte(&mut self) -> u8 {
        match self.rest.split_first() {
            None => 0,
            Some((first, rest)) => {
                self.rest = rest;
                *first
            }
        }
    }

    /// `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    /// True as often as false.
    pub fn chance(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A number below `most`, which isn't 0.
    pub fn below(&mut self, most: usize) -> usize {
        if most <= 256 {
            usize::from(self.byte()) % most
        } else {
            u64::from_le_bytes(self.array()) as usize % most
        }
    }

    /// A number of any magnitude: often a small one, or one at which something begins or ends.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            kind @ 0..24 => EDGES[usize::from(kind)],
            kind @ 24..72 => u64::from(kind % 8),
            kind @ 72..120 => u64::from(kind - 72),
            kind => u64::from_le_bytes(self.array()) >> (kind % 64),
        }
    }

    /// At most so many bytes.
    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        let count = self.below(most + 1);
        let (taken, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        taken.to_vec()
    }

    /// A short text: a name, as most texts of messages, or a few signs of any kind.
    pub fn text(&mut self) -> String {
        let count = self.below(12);
        let is_name = self.byte() < 200;
        let sign = |byte: u8| match is_name {
            true => char::from(b"abcdefghijklmnopqrstuvwxyz0123456789.-_"[usize::from(byte) % 39]),
            false => ['\0', '/', '"', '\n', 'ü', '\u{202e}', '🐚', '\\', ' ', '%']
                [usize::from(byte) % 10],
        };
        (0..count).map(|_| sign(self.byte())).collect()
    }

    /// These bytes with one to four changes, as damage, a bug or somebody who means it would make them.
    #[must_use]
    pub fn changed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = bytes.to_vec();
        for _ in 0..=self.below(4) {
            self.change(&mut out);
        }
        out
    }

    fn change(&mut self, out: &mut Vec<u8>) {
        let at = self.below(out.len() + 1);
        let end = (at + 1 + self.below(16)).min(out.len());
        match self.below(10) {
            // A bit, a byte.
            0 | 1 if at < out.len() => out[at] ^= 1 << self.below(8),
            2 if at < out.len() => out[at] = EDGES[self.below(EDGES.len())] as u8,
            // A length or an offset, in the orders and forms that formats have.
            3 => overwrite(out, at, &(self.number() as u32).to_le_bytes()),
            4 => {
                let number = self.number();
                let wide = match self.chance() {
                    true => number.to_le_bytes(),
                    false => number.to_be_bytes(),
                };
                overwrite(out, at, &wide);
            }
            5 => {
                let varint = varint(self.number());
                out.splice(at..(at + 1).min(out.len()), varint);
            }
            // The end is missing, or something in the middle, or comes twice, or is somebody else's.
            6 => out.truncate(at),
            7 => drop(out.drain(at..end)),
            8 => {
                let part = out[at..end].to_vec();
                let to = self.below(out.len() + 1);
                out.splice(to..to, part);
            }
            _ => {
                let foreign = self.bytes(16);
                out.splice(at..at, foreign);
            }
        }
    }
}

fn overwrite(out: &mut [u8], at: usize, with: &[u8]) {
    for (byte, new) in out[at..].iter_mut().zip(with) {
        *byte = *new;
    }
}

/// As postcard writes numbers.
fn varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_of_every_kind_and_never_fail() {
        let (mut shorter, mut longer, mut same) = (0, 0, 0);
        for round in 0..2000_u64 {
            let entropy: Vec<u8> = (0..64_u64)
                .map(|at| {
                    (round
                        .wrapping_mul(0x9e37_79b9)
                        .wrapping_add(at * 0x85eb_ca6b)
                        >> 13) as u8
                })
                .collect();
            let base = vec![7; round as usize % 40];
            let changed = Source::new(&entropy).changed(&base);
            match changed.len().cmp(&base.len()) {
                std::cmp::Ordering::Less => shorter += 1,
                std::cmp::Ordering::Greater => longer += 1,
                std::cmp::Ordering::Equal => same += 1,
            }
        }
        assert!(
            shorter > 100 && longer > 100 && same > 100,
            "{shorter} {longer} {same}"
        );
    }

    #[test]
    fn an_exhausted_source_still_answers() {
        let mut source = Source::new(&[]);
        assert_eq!((source.byte(), source.number(), source.below(9)), (0, 0, 0));
        assert_eq!((source.bytes(9), source.text()), (vec![], String::new()));
        assert!(source.is_empty() && source.rest().is_empty());
    }
}
