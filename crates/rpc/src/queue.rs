//! What waits to be sent, by class: small requests before bulk, and no class for ever last. What may wait for others at the
//! other node has a row of its own behind the rest of its class.

use crate::frame::class_index;
use model::call::Class;
use std::collections::VecDeque;

/// How many of earlier classes may be sent in a row while one of a later class waits.
const OVERTAKEN_MAX: u32 = 8;

/// Two of each class.
const ROWS: usize = 8;

/// A queue per class.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    waiting: [VecDeque<T>; ROWS],
    /// How often each row was overtaken since its last turn.
    overtaken: [u32; ROWS],
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self {
            waiting: Default::default(),
            overtaken: [0; ROWS],
        }
    }

    pub(crate) fn push(&mut self, class: Class, item: T) {
        self.waiting[2 * class_index(class)].push_back(item);
    }

    /// As [`Queue::push`], of something that mustn't keep the rest of its class from going.
    pub(crate) fn push_apart(&mut self, class: Class, item: T) {
        self.waiting[2 * class_index(class) + 1].push_back(item);
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// How many of the class wait, with those that went apart.
    pub(crate) fn len_of(&self, class: Class) -> usize {
        self.waiting[2 * class_index(class)].len() + self.len_apart(class)
    }

    /// How many of the class wait that went apart.
    pub(crate) fn len_apart(&self, class: Class) -> usize {
        self.waiting[2 * class_index(class) + 1].len()
    }

    /// The first one of each row.
    pub(crate) fn fronts(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter().filter_map(VecDeque::front)
    }

    /// The next one, among the rows whose first `may_go`.
    pub(crate) fn pop(&mut self, may_go: impl Fn(&T) -> bool) -> Option<T> {
        let can = |queue: &VecDeque<T>| queue.front().is_some_and(&may_go);
        let can_go: [bool; ROWS] = std::array::from_fn(|row| can(&self.waiting[row]));
        let all = || (0..ROWS).filter(|row| can_go[*row]);
        let late = all()
            .rev()
            .find(|row| self.overtaken[*row] >= OVERTAKEN_MAX);
        let chosen = late.or_else(|| all().next())?;
        for row in all().filter(|row| *row > chosen) {
            self.overtaken[row] += 1;
        }
        self.overtaken[chosen] = 0;
        self.waiting[chosen].pop_front()
    }

    /// Takes out the first one that is meant.
    pub(crate) fn remove(&mut self, is_meant: impl Fn(&T) -> bool) -> Option<T> {
        let mut found = self.waiting.iter_mut().filter_map(|queue| {
            let at = queue.iter().position(&is_meant)?;
            queue.remove(at)
        });
        found.next()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.waiting.iter_mut().flat_map(std::mem::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_requests_overtake_bulk_but_not_for_ever() {
        let mut queue = Queue::new();
        for number in 0..20 {
            queue.push(Class::Bulk, ("bulk", number));
            queue.push(Class::Metadata, ("metadata", number));
        }
        let sent: Vec<_> = std::iter::from_fn(|| queue.pop(|_| true)).collect();
        assert_eq!(sent.len(), 40);
        assert!(sent[..8].iter().all(|(class, _)| *class == "metadata"));
        assert_eq!(sent[8], ("bulk", 0));
        assert_eq!(sent[17], ("bulk", 1));
        for class in ["bulk", "metadata"] {
            let mut numbers = sent
                .iter()
                .filter(|sent| sent.0 == class)
                .map(|sent| sent.1);
            assert!(numbers.by_ref().eq(0..20), "{class} keeps its order");
        }
    }

    #[test]
    fn what_goes_apart_delays_nothing_of_its_class_and_comes_before_later_ones() {
        let mut queue = Queue::new();
        queue.push_apart(Class::Metadata, 1);
        queue.push(Class::Metadata, 2);
        queue.push(Class::Bulk, 3);
        assert_eq!(queue.len_of(Class::Metadata), 2);
        assert_eq!(queue.len_apart(Class::Metadata), 1);
        assert_eq!((queue.len_of(Class::Bulk), queue.len()), (1, 3));
        assert_eq!(queue.pop(|_| true), Some(2));
        assert_eq!(queue.pop(|item| *item != 1), Some(3));
        assert_eq!(queue.pop(|_| true), Some(1));
    }

    #[test]
    fn a_class_that_may_not_go_delays_no_other() {
        let mut queue = Queue::new();
        queue.push(Class::Metadata, 1);
        queue.push(Class::Bulk, 2);
        assert_eq!(queue.pop(|item| *item != 1), Some(2));
        assert_eq!(queue.pop(|item| *item != 1), None);
        assert_eq!(queue.remove(|item| *item == 1), Some(1));
        assert_eq!(queue.len(), 0);
    }
}
