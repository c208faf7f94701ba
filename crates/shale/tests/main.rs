//! The program as users run it: real daemons, real mounts, a real kernel.
//!
//! All test files form one program, because linking would take most of the time to build several.
//! `cargo test --workspace --test shale_tests posix::` runs the tests in `posix.rs`.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests use the mount as programs do, and break things by hand"
)]

mod broken;
mod cluster;
mod coherence;
mod command_line;
mod degraded;
mod fixture;
mod fstab;
mod full;
mod intruders;
mod kill;
mod lab;
mod listing;
mod locks;
mod mapping;
mod memory;
mod mounts;
mod posix;
mod programs;
mod progress;
mod random;
mod returning;
mod rights;
mod rot;
mod suites;
mod tidy;
mod umount;
mod unmount;
mod user;
