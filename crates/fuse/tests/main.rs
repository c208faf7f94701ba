//! Real mounts of a file system in memory, used through the kernel.
//!
//! All are one program, because linking is what makes building tests slow. The module is the file:
//! `cargo test --workspace --test fuse_tests files::` runs those of `files.rs`.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "programs on a mount use the real file system, threads and time"
)]

mod files;
mod life;
mod mounted;
mod switched_off;
mod transports;
