//! One object at a client: what is held, used, waited for, and given back.

use super::{FlushNumber, UseNumber, WaitNumber, Want};
use crate::pieces::{contain, overlap};
use crate::{Pieces, Planted};
use model::owner::Tenure;
use model::token::{GrantNumber, TokenRecall, TokenReturn};
use model::{TokenMode, TokenObject, TokenRange};
use std::collections::BTreeMap;

/// Most returns that are remembered for grants that come late. More become one that forbids all.
const RETURNED_MAX: usize = 64;

/// An operation under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Use {
    range: TokenRange,
    mode: TokenMode,
    /// Its token was lost meanwhile.
    pub(super) is_void: bool,
}

/// Something that is being given back.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Taking {
    pub(super) recall: TokenRecall,
    /// Under way once no use forbids it.
    pub(super) flush: Option<FlushNumber>,
}

impl Taking {
    pub(super) fn new(recall: TokenRecall) -> Self {
        Self {
            recall,
            flush: None,
        }
    }

    /// Whether a use may not go on beside it.
    fn forbids(&self, range: TokenRange, mode: TokenMode) -> bool {
        mode.at_most(self.recall.keep) != Some(mode) && overlap(&self.recall.ranges, &[range])
    }
}

/// The state of an object.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Object {
    pub(super) pieces: Pieces,
    /// The newest grant that has come.
    pub(super) newest: GrantNumber,
    pub(super) uses: BTreeMap<UseNumber, Use>,
    /// Operations that have no token yet.
    pub(super) waits: BTreeMap<WaitNumber, Want>,
    pub(super) takings: Vec<Taking>,
    /// What was returned while requests had no reply: grants that come late don't count there.
    pub(super) returned: Vec<TokenReturn>,
    planted: Option<Planted>,
}

impl Object {
    pub(super) fn new(planted: Option<Planted>) -> Self {
        Self {
            planted,
            ..Self::default()
        }
    }

    /// Whether nothing of it need be remembered.
    pub(super) fn is_idle(&self) -> bool {
        self.pieces.is_empty()
            && self.uses.is_empty()
            && self.waits.is_empty()
            && self.takings.is_empty()
    }

    /// Whether all of it is held alone, whether or not it is being given back.
    pub(super) fn is_exclusive(&self) -> bool {
        self.pieces.cover(TokenRange::ALL, TokenMode::Exclusive)
    }

    /// Whether a use could begin.
    pub(super) fn may_use(&self, range: TokenRange, mode: TokenMode) -> bool {
        self.pieces.cover(range, mode) && !self.is_taken(range, mode)
    }

    /// What is held but for what is being given back.
    pub(super) fn usable(&self) -> Pieces {
        let mut usable = self.pieces.clone();
        let newest = GrantNumber {
            tenure: Tenure(u64::MAX),
            count: u64::MAX,
        };
        for taking in &self.takings {
            for range in &taking.recall.ranges {
                usable.reduce(*range, taking.recall.keep, newest);
            }
        }
        usable
    }

    /// What operations use or wait for that doesn't go with keeping no more than this: everything between.
    pub(super) fn in_use(&self, keep: Option<TokenMode>) -> Option<TokenRange> {
        let uses = self.uses.values().map(|begun| (begun.range, begun.mode));
        let waits = self.waits.values().map(|want| (want.range, want.mode));
        let forbidden = uses
            .chain(waits)
            .filter(|(_, mode)| mode.at_most(keep) != Some(*mode));
        forbidden.map(|(range, _)| range).reduce(|a, b| TokenRange {
            start: a.start.min(b.start),
            end: a.end.max(b.end),
        })
    }

    /// Whether it is being given back.
    pub(super) fn is_taken(&self, range: TokenRange, mode: TokenMode) -> bool {
        let mut takings = self.takings.iter();
        self.planted != Some(Planted::UseTaken) && takings.any(|taking| taking.forbids(range, mode))
    }

    pub(super) fn begin(&mut self, number: UseNumber, range: TokenRange, mode: TokenMode) {
        let begun = Use {
            range,
            mode,
            is_void: false,
        };
        self.uses.insert(number, begun);
    }

    /// Takes down a grant, but for what of it has been given back already.
    pub(super) fn grant(&mut self, ranges: &[TokenRange], mode: TokenMode, number: GrantNumber) {
        let mut granted = Pieces::default();
        for range in ranges {
            granted.grant(*range, mode, number);
        }
        let returned = self.returned.iter();
        for back in returned.filter(|_| self.planted != Some(Planted::UseReturned)) {
            for range in &back.ranges {
                granted.reduce(*range, back.keep, back.up_to);
            }
        }
        for piece in granted.iter() {
            self.pieces.grant(piece.range, piece.mode, piece.number);
        }
        self.newest = self.newest.max(number);
    }

    /// Whether more of this is held than may be kept.
    pub(super) fn has_more_than(&self, ranges: &[TokenRange], keep: Option<TokenMode>) -> bool {
        if self.planted == Some(Planted::ReturnEarly) {
            return false;
        }
        let mut held = ranges.iter().flat_map(|range| self.pieces.within(*range));
        held.any(|piece| piece.mode.at_most(keep) != Some(piece.mode))
    }

    /// Whether all that is recalled is being given back. Then what comes back counts for this
    /// recall as well.
    pub(super) fn is_taking(&mut self, recall: &TokenRecall) -> bool {
        let same = self.takings.iter_mut().find(|taking| {
            let keeps_no_more = taking.recall.keep == recall.keep || taking.recall.keep.is_none();
            keeps_no_more
                && recall
                    .ranges
                    .iter()
                    .all(|range| contain(&taking.recall.ranges, *range))
        });
        if let Some(same) = same {
            same.recall.up_to = same.recall.up_to.max(recall.up_to);
            return true;
        }
        false
    }

    /// What can be flushed, because no use under way needs it.
    pub(super) fn next_to_flush(&mut self) -> Option<&mut Taking> {
        let ignores_uses = self.planted == Some(Planted::ForgetUses);
        let uses = &self.uses;
        self.takings.iter_mut().find(|taking| {
            let mut uses = uses.values();
            let is_used = uses.any(|other| taking.forbids(other.range, other.mode));
            taking.flush.is_none() && (!is_used || ignores_uses)
        })
    }

    /// Takes out what has been flushed.
    pub(super) fn take_out(&mut self, flush: FlushNumber) -> Option<TokenRecall> {
        let at = self
            .takings
            .iter()
            .position(|taking| taking.flush == Some(flush))?;
        Some(self.takings.swap_remove(at).recall)
    }

    /// Gives up what is recalled; says what is returned.
    pub(super) fn returned(
        &mut self,
        object: TokenObject,
        recall: TokenRecall,
        is_asked: bool,
    ) -> TokenReturn {
        let back = TokenReturn {
            object,
            ranges: recall.ranges,
            keep: recall.keep,
            up_to: recall.up_to.max(self.newest),
        };
        let keep = match self.planted {
            Some(Planted::KeepExclusive) if back.keep.is_some() => Some(TokenMode::Exclusive),
            _ => back.keep,
        };
        for range in &back.ranges {
            self.pieces.reduce(*range, keep, back.up_to);
        }
        if is_asked {
            self.remember(&back);
        }
        back
    }

    fn remember(&mut self, back: &TokenReturn) {
        let mut known = self.returned.iter_mut();
        if let Some(same) =
            known.find(|other| (&other.ranges, other.keep) == (&back.ranges, back.keep))
        {
            same.up_to = same.up_to.max(back.up_to);
            return;
        }
        self.returned.push(back.clone());
        if self.returned.len() > RETURNED_MAX {
            let up_to = self.returned.iter().map(|back| back.up_to).max();
            self.returned = vec![TokenReturn {
                object: back.object,
                ranges: vec![TokenRange::ALL],
                keep: None,
                up_to: up_to.unwrap_or_default(),
            }];
        }
    }

    /// What is held of a range is known to a new owner under this number.
    pub(super) fn renumber(&mut self, range: TokenRange, number: GrantNumber) {
        self.pieces.renumber(range, number);
        self.newest = self.newest.max(number);
    }

    /// Nothing is held there any more, and what was done with it doesn't count.
    pub(super) fn lose(&mut self, range: TokenRange) {
        let newest = GrantNumber {
            count: u64::MAX,
            ..self.newest
        };
        self.pieces.reduce(range, None, newest);
        for lost in self
            .uses
            .values_mut()
            .filter(|lost| lost.range.overlaps(range))
        {
            lost.is_void = true;
        }
    }
}
