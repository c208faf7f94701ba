//! Real mounts of a file system in memory, used through the kernel.
//!
//! All test files form one program, because linking would take most of the time to build several.
//! `cargo test --workspace --test fuse_tests files::` runs the tests in `files.rs`.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "programs on a mount use the real file system, threads and time"
)]

mod files;
mod life;
mod making;
mod mounted;
mod refusing;
mod switched_off;
mod transports;
