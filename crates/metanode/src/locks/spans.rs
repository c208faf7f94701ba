//! Spans of the locks of one kind on an inode that has many: finds conflicts with a request in few
//! steps, however many locks there are and whoever holds them.
//!
//! Consists of parts, each one piece of memory, which are skipped as a whole if they end before the
//! request's range or belong to the requester alone. Not a tree: lockers could choose its depth.

use model::LockRange;
use model::lock::LockOwner;

/// Most locks of a part; a larger one is split.
const PART_MAX: usize = 512;

/// Locks by start and owner.
pub(super) struct Spans {
    parts: Vec<Part>,
    part_max: usize,
}

impl Default for Spans {
    fn default() -> Self {
        Self::with_parts_of(PART_MAX)
    }
}

/// Consecutive spans; never empty.
struct Part {
    spans: Vec<Span>,
    /// The highest end.
    end: u64,
    /// The common owner, if all have the same.
    owner: Option<LockOwner>,
}

/// A lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) owner: LockOwner,
}

impl Span {
    fn place(&self) -> (u64, LockOwner) {
        (self.start, self.owner)
    }
}

impl Part {
    fn of(spans: Vec<Span>) -> Self {
        let first = spans.first().expect("no part is empty").owner;
        Self {
            end: spans.iter().map(|span| span.end).max().unwrap_or(0),
            owner: spans
                .iter()
                .all(|span| span.owner == first)
                .then_some(first),
            spans,
        }
    }
}

impl Spans {
    pub(super) fn with_parts_of(part_max: usize) -> Self {
        Self {
            parts: Vec::new(),
            part_max,
        }
    }

    pub(super) fn add(&mut self, span: Span) {
        let Some(at) = self.part_of(&span) else {
            self.parts.push(Part::of(vec![span]));
            return;
        };
        let part = &mut self.parts[at];
        let place = part.spans.partition_point(|it| it.place() < span.place());
        part.spans.insert(place, span);
        part.end = part.end.max(span.end);
        part.owner = part.owner.filter(|owner| *owner == span.owner);
        if part.spans.len() > self.part_max {
            let behind = part.spans.split_off(self.part_max / 2);
            let before = std::mem::take(&mut part.spans);
            self.parts[at] = Part::of(before);
            self.parts.insert(at + 1, Part::of(behind));
        }
    }

    pub(super) fn remove(&mut self, span: &Span) {
        let at = self.part_of(span).expect("only what was added is removed");
        let mut spans = std::mem::take(&mut self.parts[at].spans);
        let place = spans.partition_point(|it| it.place() < span.place());
        let removed = spans.remove(place);
        assert!(removed == *span, "only what was added is removed");
        if spans.is_empty() {
            self.parts.remove(at);
            return;
        }
        self.parts[at] = Part::of(spans);
        self.join_small(at);
        if let Some(before) = at.checked_sub(1) {
            self.join_small(before);
        }
    }

    /// Merges small adjacent parts, so that there are never many.
    fn join_small(&mut self, at: usize) {
        let [part, next, ..] = &mut self.parts[at..] else {
            return;
        };
        if part.spans.len() + next.spans.len() <= self.part_max / 2 {
            let mut spans = std::mem::take(&mut part.spans);
            spans.append(&mut next.spans);
            self.parts[at] = Part::of(spans);
            self.parts.remove(at + 1);
        }
    }

    /// Locks of other owners that overlap the range, by start.
    pub(super) fn others(
        &self,
        range: LockRange,
        owner: LockOwner,
    ) -> impl Iterator<Item = &Span> + use<'_> {
        let begins = move |part: &&Part| part.spans.first().is_some_and(|it| it.start <= range.end);
        let matters = move |part: &&Part| part.end >= range.start && part.owner != Some(owner);
        let parts = self.parts.iter().take_while(begins).filter(matters);
        parts
            .flat_map(move |part| {
                part.spans
                    .iter()
                    .take_while(move |it| it.start <= range.end)
            })
            .filter(move |span| span.end >= range.start && span.owner != owner)
    }

    /// The part where a lock is or belongs. None if there is no part.
    fn part_of(&self, span: &Span) -> Option<usize> {
        let behind = self.parts.partition_point(|part| {
            let first = part.spans.first();
            first.is_some_and(|first| first.place() <= span.place())
        });
        (!self.parts.is_empty()).then(|| behind.saturating_sub(1))
    }
}
