//! Tokens of files that the client has made under a delegation and that the owner hasn't heard of.
//!
//! Nobody else can know of such a file before the owner does, so its maker has it alone: the first program that uses it finds
//! all that it needs here, and the owner grants the tokens with the operation that makes the file. What recalls them
//! before that answer has come waits for it a moment, as for any grant that it overtakes. An owner that grants none (it has yet
//! to hear what others hold, say) is asked for them, and no directory goes back before they have come (`flushing.rs`).

use super::Tokens;
use crate::inode::InodeRef;
use model::token::GrantNumber;
use model::{InodeId, SessionId, TokenObject};

impl Tokens {
    /// Takes the tokens of an inode that was just made, if they come with what makes it.
    pub(super) fn claim_born(&self, state: &InodeRef) {
        if !self.session.owner().is_streaming() {
            return;
        }
        let inode = state.id();
        // Before it is asked whether anything has been done with it.
        let before = state.lock().before_born();
        let mut locked = self.state.lock();
        if locked.is_over {
            return;
        }
        let Some(holder) = &mut locked.holder else {
            return;
        };
        if !holder.may_be_born(objects(inode)) {
            return;
        }
        let Some(attributes) = self.session.owner().ask_for_tokens(inode) else {
            return;
        };
        holder.born(objects(inode));
        self.act(locked);
        state.lock().learn_born(&attributes, before);
    }

    /// The owner has made a file, and granted these with it.
    pub(super) fn note_born(
        &self,
        session: SessionId,
        inode: InodeId,
        grants: Option<[GrantNumber; 2]>,
    ) {
        let now = self.session.standing().now();
        let mut state = self.state.lock();
        if let Some(holder) = self.holder_of(&mut state, session) {
            let grants = grants.map_or([None, None], |grants| grants.map(Some));
            for (object, grant) in objects(inode).into_iter().zip(grants) {
                holder.born_answered(object, grant, now);
            }
        }
        self.act(state);
    }
}

fn objects(inode: InodeId) -> [TokenObject; 2] {
    [TokenObject::Inode(inode), TokenObject::Bytes(inode)]
}
