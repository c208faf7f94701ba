//! What the owner knows of a session: until when its tokens may be used, and what it holds.

use crate::{Moment, TOKEN_TIME};
use model::TokenObject;
use model::member::NODE_LEASE;
use std::collections::BTreeMap;
use std::time::Duration;

/// The part of a span by which it is longer on a machine whose clock is slower by a twentieth.
const DRIFT: u32 = 19;
/// A session that can reach the owner asks within this time after an answer, its way included.
const ASKS_WITHIN: Duration = Duration::from_secs(3);

/// For how long tokens may be used after an answer that gave this span, by the owner's clock.
fn outlived(span: Duration) -> Duration {
    span + span / DRIFT
}

/// A session's standing with the owner.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Standing {
    /// The session uses no token afterwards, unless it is answered again.
    runs_out: Moment,
    /// When it was answered last, or said to a new owner what it had.
    answered: Moment,
    /// Its daemon is gone, as the cluster has decided.
    is_gone: bool,
    /// It returned nothing in time and isn't answered any more.
    is_refused: bool,
    /// When its end was last asked for.
    pub(super) end_said: Option<Moment>,
    /// Objects of which it holds something, and how many pieces.
    pub(super) objects: BTreeMap<TokenObject, usize>,
    /// Pieces of all objects.
    pub(super) pieces: usize,
    /// Its requests and claims that wait.
    pub(super) waiting: usize,
}

impl Standing {
    /// A session of the owner before, which may have answered it until now.
    pub(super) fn inherited(now: Moment) -> Self {
        Self {
            runs_out: now.plus(outlived(TOKEN_TIME)),
            answered: now,
            ..Self::default()
        }
    }

    /// For how long an answer that is given now lets the session use its tokens, counted from when
    /// it sent the request; `None` if it must not be answered.
    pub(super) fn answer(&mut self, own_until: Moment, now: Moment) -> Option<Duration> {
        if self.is_leaving() || own_until <= now {
            return None;
        }
        let span = TOKEN_TIME.min(own_until.since(now));
        self.runs_out = self.runs_out.max(now.plus(outlived(span)));
        self.answered = now;
        Some(span)
    }

    /// Whether it isn't answered any more, because it will end.
    pub(super) fn is_leaving(&self) -> bool {
        self.is_refused || self.end_said.is_some()
    }

    /// Whether its tokens have surely run out.
    pub(super) fn has_run_out(&self, now: Moment) -> bool {
        self.runs_out <= now
    }

    /// When its tokens have run out, unless it is answered before.
    pub(super) fn runs_out(&self) -> Moment {
        self.runs_out
    }

    /// Whether it is the session that is silent, and not the owner that hears nobody: the owner's lease, which lasts
    /// until then, was extended when the session should have asked again.
    pub(super) fn is_silent(&self, own_until: Moment) -> bool {
        let should_have_asked = self.answered.plus(ASKS_WITHIN);
        own_until >= should_have_asked.plus(NODE_LEASE)
    }

    /// It has said something.
    pub(super) fn note_heard(&mut self, now: Moment) {
        self.answered = self.answered.max(now);
    }

    /// Whether its daemon is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Nobody uses its tokens any more.
    pub(super) fn run_out(&mut self) {
        self.runs_out = Moment::default();
        self.is_gone = true;
    }

    /// Takes down how much it holds of an object.
    pub(super) fn count(&mut self, object: TokenObject, pieces: usize) {
        let before = match pieces {
            0 => self.objects.remove(&object),
            _ => self.objects.insert(object, pieces),
        };
        self.pieces = self.pieces + pieces - before.unwrap_or(0);
    }

    /// Answers it no more.
    pub(super) fn refuse(&mut self) {
        self.is_refused = true;
    }
}
