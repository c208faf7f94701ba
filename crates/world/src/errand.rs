//! What work is done for: the number by which waits of several nodes are put together.
//!
//! *A request of a program* begins an errand ([`begin`]), which gets its number when it first waits or
//! calls another node. The call carries the number, and what the other node does for it is on the same
//! errand, as the caller's ([`within`]). *Work that several wait for* (a commit, a recall) has an errand
//! of its own ([`World::at_work`](crate::World::at_work)). An errand belongs to a future: tasks that are
//! spawned inside of it have none, unless they begin one.

use model::NodeId;
use std::cell::Cell;
use std::future::Future;

/// What some work is done for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Errand {
    /// The same number in all that is done for one request of a program, on all nodes; 0: nobody waits
    /// for it.
    pub trace: u64,
    /// The node whose call is served; `None`: the errand began here.
    pub from: Option<NodeId>,
}

impl Errand {
    /// Nobody's.
    pub const NONE: Self = Self {
        trace: 0,
        from: None,
    };

    /// Whether nobody waits for it.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.trace == 0
    }
}

tokio::task_local! {
    /// That of the future that is being polled.
    static CURRENT: Cell<Errand>;
    /// There while that future mustn't hear that its errand is given up.
    static UNDISTURBED: ();
}

/// A future that is an errand of its own. Costs no number until it waits or calls.
pub fn begin<F: Future>(future: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(Cell::new(Errand::NONE), future)
}

/// A future that serves another node's call. One of no errand (`trace` 0) stays so.
pub fn within<F: Future>(trace: u64, from: NodeId, future: F) -> impl Future<Output = F::Output> {
    let errand = Errand {
        trace,
        from: Some(from),
    };
    CURRENT.scope(Cell::new(errand), future)
}

/// A future that doesn't hear that its errand is given up ([`World::give_up`](crate::World::give_up)): others rely on what it
/// does, and would take its end for a failure.
pub fn undisturbed<F: Future>(future: F) -> impl Future<Output = F::Output> {
    UNDISTURBED.scope((), future)
}

/// The errand of the future that is being polled, without giving it a number; `None` if it has none, or mustn't hear that it is
/// given up.
pub(crate) fn disturbed() -> Option<Errand> {
    let is_undisturbed = UNDISTURBED.try_with(|()| ()).is_ok();
    let errand = CURRENT.try_with(Cell::get).ok()?;
    (!is_undisturbed && !errand.is_none()).then_some(errand)
}

/// The errand of the future that is being polled. One that began here and has no number yet gets
/// `number`.
pub(crate) fn current(number: impl FnOnce() -> u64) -> Errand {
    let known = CURRENT.try_with(|current| {
        let mut errand = current.get();
        if errand.is_none() && errand.from.is_none() {
            errand.trace = number();
            current.set(errand);
        }
        errand
    });
    known.unwrap_or(Errand::NONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::future::ready;

    fn now(number: u64) -> Errand {
        current(|| number)
    }

    #[test]
    fn an_errand_gets_one_number_and_that_of_a_call_keeps_the_callers() {
        assert_eq!(now(1), Errand::NONE, "outside of any");
        let begun = begin(async {
            let first = now(2);
            // Another one inside, as that of work which several wait for, and the first one goes on.
            let other = begin(async { now(3) }).await;
            (first, other, now(4))
        });
        let numbered = |trace| Errand { trace, from: None };
        let all = begun.now_or_never().expect("it waits for nothing");
        assert_eq!(all, (numbered(2), numbered(3), numbered(2)));
        let node = NodeId(7);
        let served = |trace| within(trace, node, ready(()).map(|()| now(5)));
        let from = Some(node);
        let of_errand = served(6).now_or_never();
        assert_eq!(of_errand, Some(Errand { trace: 6, from }));
        let of_none = served(0).now_or_never().expect("it waits for nothing");
        assert!(of_none.is_none(), "{of_none:?}");
        assert_eq!(now(8), Errand::NONE);
    }
}
