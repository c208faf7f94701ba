//! The line of all changes that were answered, and where on it a look may stand.
//!
//! Changes that the owner has answered stand in the order of their ranks. A create under a delegation was answered by its
//! client, and applied later. Nobody else can see its directory in between, so it may be thought of as made just before
//! it was answered: it stands as late as the clock allows, but before what its owner has applied after it.

use super::gone::Gone;
use super::largest::Largest;
use super::streams::Streams;
use super::{Call, Event, History, Tick};
use model::operation::Rank;
use std::cmp::Reverse;

/// Changes in their order, and what their clocks and those of looks say of the others' places.
pub(super) struct Line<'a> {
    pub(super) changes: Vec<&'a Event>,
    /// Whether each of them may be gone.
    pub(super) may_be_gone: Vec<bool>,
    /// Of those that have their places by their ranks.
    ranks: Vec<Option<Rank>>,
    /// For each number of these: the places just behind so many of them, and just before the next one.
    stretches: Vec<(usize, usize)>,
    all: Answered,
    /// Creates under delegations only.
    delegated: Answered,
}

impl<'a> Line<'a> {
    /// Of all changes that were answered, in any order.
    ///
    /// # Errors
    /// Ranks that contradict each other, or the clock.
    pub(super) fn of(
        changes: Vec<&'a Event>,
        looks: &[&'a Event],
        gone: &Gone<'_>,
        streams: &Streams<'_>,
    ) -> Result<Self, String> {
        let (delegated, mut ordered): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|event| event.is_delegated);
        ordered.sort_by_key(|event| (event.rank, event.begun));
        for pair in ordered.windows(2) {
            let is_silent = pair.iter().any(|event| may_change_nothing(event));
            if pair[0].rank == pair[1].rank && !is_silent {
                return Err(format!(
                    "two changes with one rank: {:?} and {:?}",
                    pair[0], pair[1]
                ));
            }
        }
        let line = Self::with(ordered, looks, gone, streams);
        let mut placed = line.places(delegated, streams).into_iter().peekable();
        let mut merged = Vec::new();
        for (place, change) in line.changes.iter().copied().enumerate() {
            while let Some((_, create)) = placed.next_if(|it| it.0 <= place) {
                merged.push(create);
            }
            merged.push(change);
        }
        merged.extend(placed.map(|(_, create)| create));
        Ok(Self::with(merged, looks, gone, streams))
    }

    /// These, in this order.
    fn with(
        changes: Vec<&'a Event>,
        looks: &[&'a Event],
        gone: &Gone<'_>,
        streams: &Streams<'_>,
    ) -> Self {
        let may_be_gone: Vec<bool> = changes
            .iter()
            .map(|event| match event.is_delegated {
                true => streams.may_be_gone(event),
                false => gone.may_be(event),
            })
            .collect();
        let ordered = || {
            let all = changes.iter().enumerate();
            all.filter(|(_, event)| !event.is_delegated)
        };
        let ranks: Vec<_> = ordered().map(|(_, event)| event.rank).collect();
        let behind = std::iter::once(0).chain(ordered().map(|(at, _)| at + 1));
        let before = ordered().map(|(at, _)| at);
        let before = before.chain(std::iter::once(changes.len()));
        let stretches: Vec<_> = behind.zip(before).collect();
        // Those that may be gone say nothing.
        let marks = changes.iter().enumerate().zip(&may_be_gone);
        let marks = marks.filter(|(_, may_be_gone)| !**may_be_gone);
        let marks: Vec<_> = marks
            .map(|((at, event), _)| (event.is_delegated, Mark::of(event, at, at + 1)))
            .collect();
        let ranked = looks.iter().filter(|look| look.rank.is_some());
        let silent: Vec<_> = ordered()
            .map(|(_, event)| may_change_nothing(event))
            .collect();
        let shown = ranked.map(|look| {
            let newest = place(&ranks, look.rank);
            // What changed nothing has the same rank, and may have been made after it was shown.
            let others = (0..newest).rev();
            let same = others.take_while(|at| ranks[*at] == look.rank && silent[*at]);
            let (behind, _) = stretches[newest - same.count()];
            Mark::of(look, stretches[newest].1, behind)
        });
        let of_changes = marks.iter().map(|it| it.1);
        let all = Answered::new(of_changes.chain(shown), changes.len());
        let delegated = marks.iter().filter(|it| it.0).map(|it| it.1);
        let delegated = Answered::new(delegated, changes.len());
        Self {
            changes,
            may_be_gone,
            ranks,
            stretches,
            all,
            delegated,
        }
    }

    /// Where creates under delegations stand on this line, which has none yet: before which change. In their order.
    fn places(
        &self,
        mut delegated: Vec<&'a Event>,
        streams: &Streams<'_>,
    ) -> Vec<(usize, &'a Event)> {
        // What a client made before something else, it made before that was answered.
        delegated
            .sort_by_key(|event| (event.client, event.rank.is_none(), event.rank, event.ended));
        let mut made: Vec<(Tick, &Event)> = Vec::new();
        for event in delegated.into_iter().rev() {
            let next = made.last();
            let next = next.filter(|(_, it)| it.client == event.client && it.rank.is_some());
            let by = next.map_or(event.ended, |(by, _)| event.ended.min(*by));
            made.push((by, event));
        }
        // What began after another one was answered stands behind it: the latest first.
        made.sort_by_key(|(_, event)| Reverse(event.begun));
        let mut later: Vec<(Tick, usize)> = Vec::new();
        let mut placed = Vec::new();
        for (by, event) in made {
            let applied = match (event.rank, streams.first_seen(event)) {
                (Some(rank), _) => place(&self.ranks, Some(rank)),
                (None, Some(seen)) => self.ranks.partition_point(|it| *it < Some(seen)),
                (None, None) => self.changes.len(),
            };
            let count = later.partition_point(|(begun, _)| *begun > by);
            let after = count.checked_sub(1).map(|last| later[last].1);
            let at = self.all.not_begun_after(by).min(applied);
            let at = after.map_or(at, |after| at.min(after));
            let smallest = later.last().map_or(at, |it| at.min(it.1));
            later.push((event.begun, smallest));
            placed.push((at, by, event));
        }
        placed.sort_by_key(|(at, by, event)| (*at, *by, event.rank));
        placed.into_iter().map(|(at, _, it)| (at, it)).collect()
    }

    /// Between which places on the line a look must be true.
    pub(super) fn stretch(&self, look: &Event) -> (usize, usize) {
        if look.rank.is_none() {
            return (self.before(look.begun), self.not_begun_after(look.ended));
        }
        // Where its rank is was checked against the clock already.
        let (from, to) = self.stretches[place(&self.ranks, look.rank)];
        let from = from.max(self.delegated.before(look.begun));
        (from, to.min(self.delegated.not_begun_after(look.ended)))
    }

    /// How many changes of the line are made at least when something begins.
    pub(super) fn before(&self, begun: Tick) -> usize {
        self.all.before(begun)
    }

    /// How many may be made at most when something ends.
    pub(super) fn not_begun_after(&self, ended: Tick) -> usize {
        self.all.not_begun_after(ended)
    }
}

/// So many changes with these ranks were made at a rank.
fn place(ranks: &[Option<Rank>], rank: Option<Rank>) -> usize {
    ranks.partition_point(|it| *it <= rank)
}

/// Whether a change may have left everything as it was, and then has the rank of what was newest: an owner in its client's
/// process notes nothing of it. So has a name that is moved to itself, or to another name of the same file.
fn may_change_nothing(event: &Event) -> bool {
    event.is_near && matches!(event.call, Call::Rename { .. })
}

/// Who was answered before another one asked has the earlier place in the order. Several looks may have one
/// place, behind the same change: also one that a former owner answered after the next one had answered another,
/// as long as nothing was changed between. A file without a name is seen by its maker only: nothing stands before it, or behind.
/// A create under a delegation is applied after it was asked for, and later than it was answered.
pub(super) fn check_real_time(history: &History, gone: &Gone<'_>) -> Result<(), String> {
    let events = history.events.iter();
    let ranked = events.filter(|event| event.call.is_of_tree() && event.rank.is_some());
    let certain = ranked.filter(|event| event.is_delegated || !gone.may_be(event));
    let mut ranked: Vec<_> = certain.collect();
    let is_change = |event: &Event| event.call.is_ranked_change() && !event.is_delegated;
    let changes = ranked.iter().filter(|event| is_change(event));
    let mut changes: Vec<_> = changes.map(|event| event.rank).collect();
    changes.sort_unstable();
    ranked.retain(|event| !matches!(event.call, Call::CreateUnnamed { .. }));
    ranked.sort_by_key(|event| event.begun);
    let ended = ranked.iter().copied().filter(|event| !event.is_delegated);
    let mut ended: Vec<_> = ended.collect();
    ended.sort_by_key(|event| event.ended);
    let place = |event: &Event| place(&changes, event.rank);
    let mut next = 0;
    let mut newest: Option<&Event> = None;
    for event in ranked {
        while next < ended.len() && ended[next].ended < event.begun {
            if newest.is_none_or(|newest| place(newest) < place(ended[next])) {
                newest = Some(ended[next]);
            }
            next += 1;
        }
        let Some(before) = newest else { continue };
        let must_differ = is_change(event) && !may_change_nothing(event);
        if place(before) > place(event) || (must_differ && place(before) == place(event)) {
            return Err(format!(
                "the order contradicts the clock: {before:?} was answered before {event:?} began"
            ));
        }
    }
    Ok(())
}

/// What the time of an event says of the others' places.
#[derive(Clone, Copy)]
struct Mark {
    begun: Tick,
    ended: Tick,
    /// So many changes are made at most when something ends before it begins.
    most: usize,
    /// So many are made at least when something begins after it has ended.
    least: usize,
}

impl Mark {
    fn of(event: &Event, most: usize, least: usize) -> Self {
        Self {
            begun: event.begun,
            ended: event.ended,
            most,
            least,
        }
    }
}

/// Which changes of the line must come before a time, and which may: as they were answered themselves, and as those
/// looks show that the owner answered.
struct Answered {
    /// By the time when each ended: its place on the line, or the largest of those that ended before it.
    ended: Largest<usize>,
    /// By the time when each began, latest first: its place, or the smallest of those that began later.
    begun: Vec<(Tick, usize)>,
    all: usize,
}

impl Answered {
    /// Of a line with so many changes.
    fn new(marks: impl Iterator<Item = Mark> + Clone, all: usize) -> Self {
        let ended = Largest::of(marks.clone().map(|mark| (mark.ended, mark.least)));
        let mut begun: Vec<_> = marks.map(|mark| (mark.begun, mark.most)).collect();
        begun.sort_unstable_by(|a, b| b.cmp(a));
        let mut smallest = all;
        for (_, at) in &mut begun {
            smallest = smallest.min(*at);
            *at = smallest;
        }
        Self { ended, begun, all }
    }

    fn before(&self, begun: Tick) -> usize {
        self.ended.before(begun).unwrap_or(0)
    }

    fn not_begun_after(&self, ended: Tick) -> usize {
        let count = self.begun.partition_point(|(begun, _)| *begun > ended);
        count
            .checked_sub(1)
            .map_or(self.all, |last| self.begun[last].1)
    }
}
