//! How much memory a decoder may take for the bytes that it is given.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// What a decoder may have allocated at any one time.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Bytes, whatever it decodes.
    pub fixed: u64,
    /// Bytes for each byte that it decodes.
    pub per_byte: u64,
}

impl Memory {
    /// For decoders without lists: buffers of errors.
    pub const SMALL: Self = Self {
        fixed: 16 << 10,
        per_byte: 8,
    };

    /// For messages that postcard decodes. Before the first element of a list, serde takes room for as
    /// many as the list claims to have, but at most 1 MiB (`serde::de::size_hint`); of the lists that an
    /// element is in, none has claimed more and gone on. The largest elements that can be a single byte in
    /// a message have 56; a list that grows is copied, so that for a moment it has three times its memory.
    pub const MESSAGE: Self = Self {
        fixed: 4 << 20,
        per_byte: 256,
    };

    fn of(self, bytes: usize) -> u64 {
        self.fixed + self.per_byte * bytes as u64
    }
}

/// Runs a decoder for so many bytes of input; what it takes is counted on this thread.
///
/// # Panics
/// If it takes more memory than it may.
pub fn within<T>(memory: Memory, input_bytes: usize, decode: impl FnOnce() -> T) -> T {
    let mut result = None;
    let counted = allocation_counter::measure(|| {
        // The counter must be left in order.
        result = Some(catch_unwind(AssertUnwindSafe(decode)));
    });
    let result = match result.expect("the decoder ran") {
        Ok(result) => result,
        Err(panic) => resume_unwind(panic),
    };
    let most = memory.of(input_bytes);
    assert!(
        counted.bytes_max <= most,
        "{} bytes of memory for {input_bytes} bytes of input, at most {most} are allowed",
        counted.bytes_max
    );
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    const FEW: Memory = Memory {
        fixed: 100,
        per_byte: 2,
    };

    #[test]
    fn memory_beyond_the_bound_is_noticed_also_if_it_was_given_back() {
        // The compiler leaves out memory that nobody looks at.
        let take = |bytes: usize| black_box(vec![1_u8; bytes]).len();
        assert_eq!(within(FEW, 10, || take(120)), 120);
        let large = catch_unwind(|| within(FEW, 10, || take(121)));
        let text = large.unwrap_err();
        let text = text.downcast_ref::<String>().unwrap();
        assert!(text.starts_with("121 bytes of memory"), "{text}");
    }

    #[test]
    fn a_panic_passes_and_the_count_begins_anew() {
        for _ in 0..100 {
            let panics = || within::<()>(FEW, 0, || panic!("{}", "x".repeat(10)));
            catch_unwind(panics).unwrap_err();
        }
        within(FEW, 0, || drop(black_box(vec![1_u8; 100])));
    }
}
