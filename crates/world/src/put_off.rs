//! What a thread does once for all that it goes on with in one go, instead of for each.

use std::cell::RefCell;

/// Something that is done later.
type Work = Box<dyn FnOnce()>;

thread_local! {
    /// What is done at the end, and for what; `None` while the thread isn't in [`in_one_go`].
    static PUT_OFF: RefCell<Option<Vec<(usize, Work)>>> = const { RefCell::new(None) };
}

/// Runs `work`, which goes on with many futures on a plain thread. What they put off ([`put_off`]) is done at its end, also if
/// it panics: others wait for that, and the thread may go on. It must not wait for that itself.
pub fn in_one_go<R>(work: impl FnOnce() -> R) -> R {
    let _end = PUT_OFF.with_borrow_mut(|put_off| {
        // Only the outermost one ends it.
        put_off.is_none().then(|| {
            *put_off = Some(Vec::new());
            OneGo
        })
    });
    work()
}

/// A thread is in [`in_one_go`] as long as it has this.
struct OneGo;

impl Drop for OneGo {
    fn drop(&mut self) {
        // What these make themselves isn't put off any more.
        for (_, work) in PUT_OFF.take().into_iter().flatten() {
            work();
        }
    }
}

/// Puts off what `work` makes until the end of [`in_one_go`], unless something is put off for the same thing (`key`; an
/// address that stays as long as that) already. False: the thread isn't in one, and the caller does it itself.
pub fn put_off(key: usize, work: impl FnOnce() -> Box<dyn FnOnce()>) -> bool {
    PUT_OFF.with_borrow_mut(|put_off| {
        let Some(all) = put_off else {
            return false;
        };
        if all.iter().all(|(known, _)| *known != key) {
            all.push((key, work()));
        }
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    #[test]
    fn what_is_put_off_is_done_once_for_each_key_at_the_end() {
        let done = Rc::new(RefCell::new(Vec::new()));
        let later = |key: usize| {
            let done = done.clone();
            put_off(key, || Box::new(move || done.borrow_mut().push(key)))
        };
        assert!(!later(1), "the caller does it");
        let result = in_one_go(|| {
            assert!(later(2) && later(3) && later(2));
            in_one_go(|| assert!(later(4)));
            assert!(done.borrow().is_empty());
            7
        });
        assert_eq!(result, 7);
        assert_eq!(*done.borrow(), [2, 3, 4]);
        assert!(!later(5));
    }

    /// Would be broken if a thread that survives a panic put off for ever what it makes from then on.
    #[test]
    fn what_is_put_off_is_done_if_the_work_panics() {
        let done = Rc::new(RefCell::new(Vec::new()));
        let later = |key: usize| {
            let done = done.clone();
            put_off(key, || Box::new(move || done.borrow_mut().push(key)))
        };
        let panics = || {
            in_one_go(|| {
                assert!(later(1));
                in_one_go(|| assert!(!later(2), "it panics when both are put off"));
            });
        };
        catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
        assert_eq!(*done.borrow(), [1, 2]);
        assert!(!later(3), "the thread isn't in one any more");
    }
}
