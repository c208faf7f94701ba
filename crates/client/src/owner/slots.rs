//! The slots of a session: how many changes may be under way, and the number of each.

use model::limits::SESSION_SLOTS;
use model::operation::Turn;
use model::owner::Order;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// The free slots.
pub(super) struct Slots {
    free: Mutex<Vec<Slot>>,
    /// One permit for each.
    permits: Semaphore,
}

/// A slot, and the last numbers that it may have used.
#[derive(Debug)]
pub(super) struct Slot {
    index: u8,
    operations: u64,
    orders: u64,
}

impl Default for Slots {
    fn default() -> Self {
        let slot = |index| Slot {
            index,
            operations: 0,
            orders: 0,
        };
        Self {
            // The first ones are used most.
            free: Mutex::new((0..SESSION_SLOTS).rev().map(slot).collect()),
            permits: Semaphore::new(usize::from(SESSION_SLOTS)),
        }
    }
}

impl Slots {
    /// Takes a slot; waits until one is free.
    pub(super) async fn take(&self) -> Slot {
        let permit = self.permits.acquire().await;
        permit.expect("the semaphore is never closed").forget();
        let slot = self.free.lock().pop();
        slot.expect("each permit is a free slot")
    }

    /// Gives a slot back whose last request is decided: answered, or certainly not run.
    pub(super) fn give_back(&self, slot: Slot) {
        self.free.lock().push(slot);
        self.permits.add_permits(1);
    }
}

impl Slot {
    /// The slot and number for an operation.
    pub(super) fn next_operation(&mut self) -> Turn {
        self.operations += 1;
        Turn::Slot {
            slot: self.index,
            number: self.operations,
        }
    }

    /// The place of a request that is in order.
    pub(super) fn next_order(&mut self) -> Order {
        self.orders += 1;
        Order {
            slot: self.index,
            number: self.orders,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn numbers_of_a_slot_only_grow_and_a_taken_slot_is_nobody_elses() {
        let slots = Slots::default();
        let take = || slots.take().now_or_never();
        let mut first = take().unwrap();
        let operation = |number| Turn::Slot { slot: 0, number };
        assert_eq!(first.next_operation(), operation(1));
        let order = |number| Order { slot: 0, number };
        assert_eq!(first.next_order(), order(1));
        let others: Vec<Slot> = std::iter::from_fn(take).collect();
        assert_eq!(others.len(), usize::from(SESSION_SLOTS) - 1);
        assert!(others.iter().all(|slot| slot.index != first.index));
        slots.give_back(first);
        let mut again = take().unwrap();
        assert_eq!(again.next_operation(), operation(2));
        assert_eq!(again.next_order(), order(2));
    }
}
