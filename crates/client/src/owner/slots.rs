//! The slots of a session: how many changes may be under way, and the number of each.

use futures::future::select;
use model::limits::SESSION_SLOTS;
use model::operation::Turn;
use model::owner::Order;
use parking_lot::Mutex;
use std::ops::Range;
use std::pin::pin;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Slots kept for publishing. Other clients can wait for what this one publishes, and other changes wait
/// for other clients: they must not hold all slots meanwhile.
const FOR_PUBLISHING: u8 = 48;

/// The free slots.
pub(super) struct Slots {
    all: Free,
    for_publishing: Free,
}

/// Free slots of one purpose, and a permit for each.
struct Free {
    slots: Mutex<Vec<Slot>>,
    permits: Semaphore,
}

/// A slot, and the last numbers that it may have used.
#[derive(Debug)]
pub(super) struct Slot {
    index: u8,
    operations: u64,
    orders: u64,
}

impl Free {
    fn of(indices: Range<u8>) -> Self {
        let slot = |index| Slot {
            index,
            operations: 0,
            orders: 0,
        };
        Self {
            permits: Semaphore::new(indices.len()),
            // The first ones are used most.
            slots: Mutex::new(indices.rev().map(slot).collect()),
        }
    }

    fn pop(&self, permit: SemaphorePermit<'_>) -> Slot {
        permit.forget();
        let slot = self.slots.lock().pop();
        slot.expect("each permit is a free slot")
    }

    fn try_take(&self) -> Option<Slot> {
        let permit = self.permits.try_acquire().ok()?;
        Some(self.pop(permit))
    }

    async fn take(&self) -> Slot {
        let permit = self.permits.acquire().await;
        self.pop(permit.expect("the semaphore is never closed"))
    }
}

impl Slots {
    pub(super) fn new() -> Self {
        let others = SESSION_SLOTS - FOR_PUBLISHING;
        Self {
            all: Free::of(0..others),
            for_publishing: Free::of(others..SESSION_SLOTS),
        }
    }

    /// Takes a slot; waits until one is free. Of those that wait for the same ones the first one gets the next: who publishes
    /// waits for all of them, or whoever comes later would take those that are everybody's.
    pub(super) async fn take(&self, is_publish: bool) -> Slot {
        match (self.all.try_take(), is_publish) {
            (Some(slot), _) => slot,
            (None, true) => {
                let (own, all) = (pin!(self.for_publishing.take()), pin!(self.all.take()));
                // The other one is dropped, and gives back what it may have been given in the same moment.
                select(own, all).await.factor_first().0
            }
            (None, false) => self.all.take().await,
        }
    }

    /// Gives a slot back whose last request is decided: answered, or certainly not run.
    pub(super) fn give_back(&self, slot: Slot) {
        let free = match slot.index < SESSION_SLOTS - FOR_PUBLISHING {
            true => &self.all,
            false => &self.for_publishing,
        };
        free.slots.lock().push(slot);
        free.permits.add_permits(1);
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
        let slots = Slots::new();
        let take = || slots.take(true).now_or_never();
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

    /// Would be broken if who publishes waited for the slots of publishers only: those that came later took all others.
    #[test]
    fn who_waits_to_publish_has_the_next_slot_whosever_that_is() {
        let slots = Slots::new();
        let mut taken: Vec<Slot> = std::iter::from_fn(|| slots.take(true).now_or_never()).collect();
        // Once one of those that are everybody's comes back, and once one of those for publishing.
        for at in [0, taken.len() - 1] {
            let mut first = pin!(slots.take(true));
            let mut second = pin!(slots.take(true));
            assert!(first.as_mut().now_or_never().is_none());
            assert!(second.as_mut().now_or_never().is_none());
            let index = taken[at].index;
            slots.give_back(taken.remove(at));
            assert!(slots.take(true).now_or_never().is_none(), "it came later");
            assert!(second.as_mut().now_or_never().is_none());
            let slot = first.now_or_never().expect("it waits for longest");
            assert_eq!(slot.index, index);
            taken.insert(at, slot);
        }
        taken.into_iter().for_each(|slot| slots.give_back(slot));
        let free = std::iter::from_fn(|| slots.take(true).now_or_never()).count();
        assert_eq!(free, usize::from(SESSION_SLOTS), "none is lost");
    }

    #[test]
    fn other_changes_leave_slots_for_publishing() {
        let slots = Slots::new();
        let take = |is_publish| slots.take(is_publish).now_or_never();
        let others = std::iter::from_fn(|| take(false)).count();
        assert_eq!(others, usize::from(SESSION_SLOTS - FOR_PUBLISHING));
        let slot = take(true).unwrap();
        slots.give_back(slot);
        assert!(take(false).is_none() && take(true).is_some());
    }
}
