//! What the session may cache and change of an inode, kept beside what it caches: looked at under the
//! inode's lock before each use.
//!
//! A recall takes the right away here first; then what was changed is published, what was cached is
//! dropped, and the token goes back (`tokens.rs`). So whatever is cached without the right is about to
//! be dropped, and nothing that was learned without it is kept ([`Held::learned`]).

use super::kernel_pages::Span;
use crate::session::Standing;
use model::{SessionId, TokenMode, TokenRange};
use std::sync::Arc;
use tokens::Pieces;

/// A state of what is held: what was asked for in one must not be kept in another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldState {
    own: u64,
    all: u64,
    known: u64,
    /// Nothing is taken away meanwhile: it was claimed.
    is_claimed: bool,
}

impl HeldState {
    /// Of an inode that is about to be made.
    pub(crate) fn of_new(standing: &Standing) -> Self {
        Self {
            own: 0,
            all: standing.changes(),
            known: 0,
            is_claimed: false,
        }
    }

    /// If `is_claimed`, of somebody who uses the tokens until the answer is taken in.
    pub(crate) fn if_claimed(self, is_claimed: bool) -> Self {
        Self { is_claimed, ..self }
    }
}

fn is_exact(mode: Option<TokenMode>) -> bool {
    matches!(mode, Some(TokenMode::Shared | TokenMode::Exclusive))
}

/// The tokens of one inode that may be used without a claim.
pub(crate) struct Held {
    standing: Arc<Standing>,
    attributes: Option<TokenMode>,
    bytes: Pieces,
    /// Counts the times when something was taken away, or the attributes' token came.
    changes: u64,
    /// Counts the times when the attributes that were known became void.
    voids: u64,
}

impl Held {
    pub(super) fn new(standing: Arc<Standing>) -> Self {
        Self {
            standing,
            attributes: None,
            bytes: Pieces::default(),
            changes: 0,
            voids: 0,
        }
    }

    /// Whether this is the client's session.
    pub(super) fn is_of(&self, session: SessionId) -> bool {
        self.standing.session() == session
    }

    /// What was held when something was asked for.
    pub(crate) fn state(&self) -> HeldState {
        HeldState {
            own: self.changes,
            all: self.standing.changes(),
            known: self.voids,
            is_claimed: false,
        }
    }

    /// Attributes that were asked for before this are void. Also those of who had claimed the token: a
    /// size that was a lower bound, while several wrote, isn't the size under the token that followed;
    /// and an answer from before a change of this client mustn't follow that change's own.
    pub(super) fn void(&mut self) {
        self.voids += 1;
    }

    /// Whether nothing has become void since that state but what the attributes' token made void when it came.
    pub(super) fn has_only_come(&self, since: HeldState) -> bool {
        self.voids == since.known + 1
    }

    /// Whether attributes may be kept that were asked for in that state.
    pub(super) fn learned(&self, asked: HeldState) -> bool {
        let now = self.state();
        let is_held = self.standing.was_given_all() || self.attributes.is_some();
        let is_same = now.all == asked.all && now.known == asked.known;
        is_same && (asked.is_claimed || (now.own == asked.own && is_held))
    }

    /// The attributes' token is this one. Returns whether what is known may be less than there is: it
    /// may be from a time when others wrote too, and now counts as exact. That time needn't have been
    /// shown just before: what is being given back isn't shown, and a grant may come meanwhile that
    /// leaves a shared token of it.
    pub(super) fn set_attributes(&mut self, mode: Option<TokenMode>) -> bool {
        let becomes_exact = is_exact(mode) && !self.is_exact();
        // What was asked for without the token isn't kept under it: others may have changed it in between.
        self.changes += u64::from(self.attributes.is_some() != mode.is_some());
        self.attributes = mode;
        becomes_exact
    }

    /// Whether the size that is known is the size.
    pub(super) fn is_exact(&self) -> bool {
        is_exact(self.attributes)
    }

    /// The bytes' tokens are these. Returns whether they were others.
    pub(super) fn set_bytes(&mut self, bytes: Pieces) -> bool {
        let is_other = self.bytes != bytes;
        self.changes += u64::from(is_other);
        self.bytes = bytes;
        is_other
    }

    /// Whether bytes up to `end` may be read from what is cached; the size is known to be `size`.
    pub(super) fn may_read(&self, offset: u64, end: u64, size: u64) -> bool {
        let bytes = TokenRange::new(offset, end.min(size));
        self.may_show((bytes, TokenMode::Shared), end, size)
    }

    /// Whether a kernel may get pages up to `end` and keep them: also what is behind the end of the file, which is
    /// zeros to it.
    pub(super) fn may_fill(&self, (from, end): Span, size: u64, mode: TokenMode) -> bool {
        self.may_show((TokenRange::new(from, end), mode), end, size)
    }

    /// Whether it is known where the file ends, if before `end`, and these bytes are held.
    fn may_show(
        &self,
        (bytes, mode): (Option<TokenRange>, TokenMode),
        end: u64,
        size: u64,
    ) -> bool {
        if self.standing.has_all() {
            return true;
        }
        // Others that write at the same time only make the file longer.
        let is_exact = match self.attributes {
            Some(TokenMode::Shared | TokenMode::Exclusive) => true,
            Some(TokenMode::SharedWrite) => end <= size,
            None => false,
        };
        is_exact && self.has_bytes(bytes, mode)
    }

    /// Whether a kernel may write these bytes back.
    pub(super) fn may_write_back(&self, offset: u64, end: u64) -> bool {
        if self.standing.has_all() {
            return true;
        }
        self.has_bytes(TokenRange::new(offset, end), TokenMode::Exclusive)
    }

    /// Whether these bytes are held. Then nobody else can have changed them or where in them the file ends, whoever
    /// holds the attributes.
    fn has_bytes(&self, range: Option<TokenRange>, mode: TokenMode) -> bool {
        range.is_none_or(|range| self.bytes.cover(range, mode)) && self.standing.is_current()
    }

    /// Whether what is known of the size may be published.
    pub(super) fn may_change_size(&self) -> bool {
        let held = self.attributes;
        self.standing.was_given_all()
            || held.is_some_and(|held| held.covers(TokenMode::SharedWrite))
    }

    /// Whether tokens may be used at all.
    pub(super) fn is_current(&self) -> bool {
        self.standing.is_current()
    }

    /// Whether no token is needed now.
    pub(super) fn has_all(&self) -> bool {
        self.standing.has_all()
    }

    /// Whether bytes may be written; `at_end`: where the file ends.
    pub(super) fn may_write(&self, offset: u64, end: u64, at_end: bool) -> bool {
        if self.standing.has_all() {
            return true;
        }
        let mode = match at_end {
            true => TokenMode::Exclusive,
            false => TokenMode::SharedWrite,
        };
        self.attributes.is_some_and(|held| held.covers(mode))
            && self.has_bytes(TokenRange::new(offset, end), TokenMode::Exclusive)
    }

    /// Up to where bytes from `offset` on may be cached.
    pub(super) fn readable_to(&self, offset: u64) -> u64 {
        if self.standing.was_given_all() {
            return u64::MAX;
        }
        let mut to = offset;
        let rest = TokenRange::new(offset, u64::MAX);
        for piece in rest.into_iter().flat_map(|rest| self.bytes.within(rest)) {
            if piece.range.start != to {
                break;
            }
            to = piece.range.end;
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use world::sim::Simulation;

    #[test]
    fn what_was_asked_for_without_the_token_is_not_kept_under_it() {
        Simulation::new(1)
            .run(|world| async move {
                let mut held = Held::new(Standing::new(world, SessionId(1), false));
                let asked = held.state();
                assert!(!held.learned(asked), "nothing is held");
                // Others may have changed it before this came.
                held.set_attributes(Some(TokenMode::SharedWrite));
                assert!(!held.learned(asked));
                let asked = held.state();
                held.set_attributes(Some(TokenMode::Exclusive));
                assert!(held.learned(asked), "it was held all the time");
                held.set_attributes(None);
                held.set_attributes(Some(TokenMode::Shared));
                assert!(!held.learned(asked), "it was away");
            })
            .finished();
    }
}
