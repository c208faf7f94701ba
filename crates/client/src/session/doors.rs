//! The doors of the client, and the locks that programs hold through them: a new session begins with
//! the same doors and no lock, and files on which locks were lost are named. Who goes on in the session has both.

use crate::owner::Book;
use model::lock::LockDoor;
use model::owner::{LockCall, OwnerReply, OwnerRequest};
use model::{InodeId, Result, SessionId};
use parking_lot::Mutex;
use std::collections::BTreeSet;

/// The doors of a client.
#[derive(Default)]
pub(crate) struct Doors {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Numbers of doors that haven't ended.
    live: BTreeSet<u32>,
    /// What the session holds through them.
    book: Book,
    session: SessionId,
}

impl Doors {
    /// A door begins.
    pub(crate) fn begin(&self, number: u32) {
        self.state.lock().live.insert(number);
    }

    /// A door ends, with its locks.
    pub(crate) fn end(&self, number: u32) {
        let mut state = self.state.lock();
        state.live.remove(&number);
        let session = state.session;
        let end = OwnerRequest::Lock(LockCall::EndDoor(LockDoor { session, number }));
        // Its answer may come when nobody listens.
        state.book.answered(&end, &Ok(OwnerReply::Done));
    }

    /// Those that haven't ended, as doors of a session.
    pub(crate) fn of(&self, session: SessionId) -> Vec<LockDoor> {
        let state = self.state.lock();
        let numbers = state.live.iter();
        numbers
            .map(|number| LockDoor {
                session,
                number: *number,
            })
            .collect()
    }

    /// The owner has answered a request about locks.
    pub(crate) fn answered(&self, request: &OwnerRequest, reply: &Result<OwnerReply>) {
        if !request.is_in_order() {
            return;
        }
        let mut state = self.state.lock();
        if request.session() == Some(state.session) {
            state.book.answered(request, reply);
        }
    }

    /// What the session holds through them.
    pub(crate) fn book(&self) -> Book {
        self.state.lock().book.clone()
    }

    /// The session holds this already. Returns the largest number of a door.
    pub(crate) fn go_on(&self, book: Book) -> u32 {
        let mut state = self.state.lock();
        (state.live, state.book) = (book.doors(), book);
        state.live.last().copied().unwrap_or_default()
    }

    /// A session begins, without locks. Returns the files on which the one before had some.
    pub(crate) fn follow(&self, session: SessionId) -> BTreeSet<InodeId> {
        let mut state = self.state.lock();
        state.session = session;
        std::mem::take(&mut state.book).locked()
    }
}
