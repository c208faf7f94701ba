//! Simulated kernels before a client: they keep names, attributes and pages for as long as they may, as Linux does
//! with FUSE. What Linux itself does with the client's answers has its own tests (`crates/shale/tests`).
//!
//! *A load from a mapping*: the program touches a page of its [`PageKernel`]; if it isn't there, the kernel locks it,
//! reads it through the client, and says that it keeps it. *A store* marks it as changed. *A recall*: the client tells
//! the kernel to drop the page ([`client::Kernel::expire`]); the kernel waits for its lock, writes it back if it
//! was changed, and forgets it. *A failure*: what can't be written back is lost, and counted.

mod names;
mod pages;

pub use names::SimKernel;
pub use pages::{Open, PAGE, PageKernel};

use client::{Client, Kernel, KernelNumber};
use std::sync::Arc;
use std::time::Duration;
use world::World;

/// The client tells the kernel what it must not use any more.
fn connect(client: &Client, kernel: Arc<dyn Kernel>) -> KernelNumber {
    client.add_kernel(Arc::downgrade(&kernel))
}

/// On its way for a part of `most`.
async fn travel(world: &World, most: Duration) {
    let nanos = world.random_u64() % most.as_nanos() as u64;
    world.sleep(Duration::from_nanos(nanos)).await;
}
