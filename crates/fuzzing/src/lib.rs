//! What fuzz targets share: inputs, values of any type, changed bytes, bounds of memory.
//!
//! A *target* is a test that hands a decoder bytes that nobody vouches for. [`fuzz!`] runs it with a
//! fixed number of inputs, [`ROUNDS`] or a part or multiple of it, the same in every run; `SHALE_LONG`
//! makes them more, `SHALE_FUZZ_ROUNDS` sets their number and `SHALE_FUZZ_START` the first one, so that
//! every run can see others. Under `cargo bolero` the same target is driven by a fuzzer that looks at the
//! code which an input reaches.
//!
//! An input is entropy: a [`Source`] turns it into bytes for a decoder, into values of a message's type,
//! and into changes of their encoded form.

mod bounds;
mod engine;
mod messages;
mod seen;
mod source;
mod values;

pub use bolero;
pub use bounds::{Memory, within};
pub use engine::{ROUNDS, run};
pub use messages::{Format, Tally, check};
pub use seen::Seen;
pub use source::Source;

/// Runs a closure, which takes `&[u8]` and panics if something is wrong, with that many inputs. To be
/// used once in a test function.
#[macro_export]
macro_rules! fuzz {
    ($rounds:expr, $target:expr) => {{
        let location = $crate::bolero::TargetLocation {
            package_name: env!("CARGO_PKG_NAME"),
            manifest_dir: env!("CARGO_MANIFEST_DIR"),
            module_path: module_path!(),
            file: file!(),
            line: line!(),
            item_path: $crate::bolero::__item_path__!(),
            test_name: None,
        };
        $crate::run(location, $rounds, &$target)
    }};
}
