//! The program as its users meet it: real daemons, real mounts, a real kernel.
//!
//! All are one program, because linking is what makes building tests slow. The module is the file:
//! `cargo test --workspace --test shale_tests posix::` runs those of `posix.rs`.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests use the mount as programs do, and break things by hand"
)]

mod broken;
mod command_line;
mod degraded;
mod fixture;
mod fstab;
mod full;
mod intruders;
mod kill;
mod listing;
mod locks;
mod mapping;
mod memory;
mod mounts;
mod posix;
mod programs;
mod random;
mod returning;
mod rights;
mod rot;
mod suites;
mod tidy;
mod umount;
mod unmount;
mod user;
