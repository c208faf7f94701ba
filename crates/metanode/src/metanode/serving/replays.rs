//! Runs each request in order once: remembers the last one of each slot with its reply.
//!
//! In memory only, as are the opens and locks that these requests change.

use model::limits::SESSION_SLOTS;
use model::owner::{Order, OwnerReply};
use model::{Error, ErrorKind, Result, SessionId};
use parking_lot::Mutex;
use world::Map;

/// The last request in order of each slot of each open session on another node.
#[derive(Default)]
pub(crate) struct Replays {
    sessions: Mutex<Map<SessionId, Slots>>,
}

type Slots = Vec<Option<Last>>;

struct Last {
    number: u64,
    reply: Result<OwnerReply>,
}

impl Replays {
    /// Runs a request unless it or a later one of its slot has run; answers as the first time.
    ///
    /// # Errors
    /// The request's own; `Stale` if a later one has run or the session isn't open;
    /// `InvalidArgument` for an order that no client gives.
    pub(crate) fn once(
        &self,
        session: SessionId,
        order: Order,
        is_open: impl FnOnce() -> bool,
        run: impl FnOnce() -> Result<OwnerReply>,
    ) -> Result<OwnerReply> {
        if order.slot >= SESSION_SLOTS || order.number == 0 {
            return Err(ErrorKind::InvalidArgument.into());
        }
        let mut sessions = self.sessions.lock();
        if !is_open() {
            let text = format!("session {session} isn't open here");
            return Err(Error::new(ErrorKind::Stale, text));
        }
        let slots = sessions.entry(session).or_default();
        slots.resize_with(usize::from(SESSION_SLOTS), || None);
        let last = &mut slots[usize::from(order.slot)];
        match last {
            Some(last) if last.number == order.number => return last.reply.clone(),
            Some(last) if last.number > order.number => {
                let text = format!(
                    "request {} of slot {} comes after request {}",
                    order.number, order.slot, last.number
                );
                return Err(Error::new(ErrorKind::Stale, text));
            }
            _ => {}
        }
        let reply = run();
        *last = Some(Last {
            number: order.number,
            reply: reply.clone(),
        });
        reply
    }

    /// Forgets a session that isn't open any more.
    pub(crate) fn forget(&self, session: SessionId) {
        self.sessions.lock().remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn repeated_and_late_requests_change_nothing() {
        let replays = Replays::default();
        let runs = Cell::new(0);
        let ask = |slot, number, is_open| {
            let order = Order { slot, number };
            let reply = replays.once(
                SessionId(1),
                order,
                || is_open,
                || {
                    runs.set(runs.get() + 1);
                    Ok(OwnerReply::Freed(runs.get() % 2 == 1))
                },
            );
            (reply.map_err(|error| error.kind()), runs.get())
        };
        let (yes, no) = (OwnerReply::Freed(true), OwnerReply::Freed(false));
        assert_eq!(ask(3, 1, true), (Ok(yes.clone()), 1));
        assert_eq!(ask(3, 1, true), (Ok(yes.clone()), 1), "repeated");
        assert_eq!(ask(3, 4, true), (Ok(no), 2), "one between was given up");
        assert_eq!(ask(3, 2, true), (Err(ErrorKind::Stale), 2), "late");
        assert_eq!(ask(4, 1, true), (Ok(yes), 3), "another slot");
        assert_eq!(ask(4, 2, false), (Err(ErrorKind::Stale), 3));
        let outside = ask(SESSION_SLOTS, 1, true);
        assert_eq!(outside, (Err(ErrorKind::InvalidArgument), 3));
    }
}
