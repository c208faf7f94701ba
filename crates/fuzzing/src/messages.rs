//! What holds for the decoder of every message: it refuses or understands any bytes, within its memory,
//! and what it understands it also writes.

use crate::seen::Seen;
use crate::{Memory, Source, within};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// A format of a type of values.
pub struct Format<E, D> {
    /// The bytes of a value.
    pub encode: E,
    /// The value of bytes that are one; nothing may follow it.
    pub decode: D,
    /// What decoding may take.
    pub memory: Memory,
}

/// What became of the bytes that [`check`] gave a decoder.
#[derive(Default, Debug)]
pub struct Tally {
    made: Seen,
    understood: Seen,
    refused: Seen,
}

impl Tally {
    /// # Panics
    /// If the target never made a value, or its decoder understood none of the bytes, or refused none;
    /// as [`Seen::check`], only after all inputs.
    pub fn check(&self) {
        self.made.check(1, "values are made");
        self.understood.check(1, "bytes are understood");
        self.refused.check(1, "bytes are refused");
    }
}

/// Feeds a decoder: the input as it is; a value's bytes, which it must read as they were written; those
/// bytes changed. All that it understands must be readable again once it is written.
///
/// # Panics
/// If one of these doesn't hold.
pub fn check<T>(
    input: &[u8],
    format: &Format<impl Fn(&T) -> Vec<u8>, impl Fn(&[u8]) -> Option<T>>,
    tally: &Tally,
) where
    T: DeserializeOwned + PartialEq + Debug,
{
    take(input, format, tally);
    let mut source = Source::new(input);
    let Some(value) = source.value::<T>() else {
        return;
    };
    tally.made.note();
    let bytes = (format.encode)(&value);
    let read = within(format.memory, bytes.len(), || (format.decode)(&bytes));
    assert_eq!(read.as_ref(), Some(&value), "what was written is read");
    take(&source.changed(&bytes), format, tally);
}

fn take<T>(
    bytes: &[u8],
    format: &Format<impl Fn(&T) -> Vec<u8>, impl Fn(&[u8]) -> Option<T>>,
    tally: &Tally,
) where
    T: PartialEq + Debug,
{
    let read = within(format.memory, bytes.len(), || (format.decode)(bytes));
    match read {
        None => tally.refused.note(),
        Some(value) => {
            tally.understood.note();
            let again = (format.decode)(&(format.encode)(&value));
            assert_eq!(again, Some(value), "what was understood is read again");
        }
    }
}
