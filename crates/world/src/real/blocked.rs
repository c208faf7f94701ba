//! For tests of what must go on however busy the machine is.

use crate::World;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Barrier};

/// All threads of a real runtime block until this is dropped. Made by a thread that isn't one of them.
pub struct Blocked(Arc<(Mutex<bool>, Condvar)>);

impl Blocked {
    /// Returns once all of them do. Waits as long as that takes.
    #[must_use]
    pub fn new(world: &World) -> Self {
        let threads = world.handle().metrics().num_workers();
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let all_block = Arc::new(Barrier::new(threads + 1));
        for _ in 0..threads {
            let (gate, all_block) = (gate.clone(), all_block.clone());
            let block = async move {
                all_block.wait();
                let mut is_open = gate.0.lock();
                gate.1.wait_while(&mut is_open, |is_open| !*is_open);
            };
            world.spawn("blocks", block).detach();
        }
        all_block.wait();
        Self(gate)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}
