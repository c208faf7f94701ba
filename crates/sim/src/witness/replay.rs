//! Replays the changes of a tree in the order of their ranks.
//!
//! The changes that were answered make a line. A look has a stretch of this line in which it must be
//! true: one place if it has a rank, otherwise from the last change that was answered before it began to
//! the first one that began after it ended. Changes with unknown outcomes are tried where nothing else
//! explains an answer, latest places first. What may be gone with a lost client ([`Gone`]) is the end of an epoch: where
//! nothing else explains an answer, it is gone from some change on.

use super::gone::Gone;
use super::largest::Largest;
use super::tree::Tree;
use super::{Answer, Call, Event, Explained, History};
use model::ShardEpoch;
use model::operation::Rank;

/// Most states that a search visits before it gives up.
const STATES_MAX: usize = 200_000;

/// A look: from where to where on the line it may be true, and which it is.
struct Look<'a> {
    from: usize,
    to: usize,
    event: &'a Event,
}

/// A change that may have been made anywhere from one place to another, or never.
struct Unknown<'a> {
    from: usize,
    to: usize,
    event: &'a Event,
}

/// Where the search is: so many changes were made or are gone, these looks are explained, these unknown changes made.
#[derive(Clone)]
struct At {
    changes: usize,
    /// The rest of this epoch is gone.
    gone: Option<ShardEpoch>,
    tree: Tree,
    explained: Vec<bool>,
    made: Vec<bool>,
}

struct Replay<'a> {
    changes: Vec<&'a Event>,
    /// Whether each of them may be gone.
    may_be_gone: Vec<bool>,
    looks: Vec<Look<'a>>,
    unknown: Vec<Unknown<'a>>,
    states: usize,
    /// The furthest place where an answer wasn't explained.
    stuck: (usize, String),
}

/// Explains names and attributes.
pub(super) fn explain(history: &History) -> Result<Explained, String> {
    // A refusal of content says something of the tree, too: the inode was gone.
    let of_tree = || {
        let events = history.events.iter();
        events.filter(|it| it.call.is_of_tree() || matches!(it.answer, Answer::Refused(_)))
    };
    let mut changes = Vec::new();
    let (mut looks, mut unknown) = (Vec::new(), Vec::new());
    let gone = Gone::of(history);
    for event in of_tree() {
        let is_change = event.call.is_ranked_change();
        let is_refused = matches!(event.answer, Answer::Refused(_));
        match (&event.answer, event.rank) {
            // Nobody else has seen what it showed.
            _ if (is_refused || !is_change) && gone.may_be(event) => {}
            (Answer::Unknown, _) if !is_change => {}
            (Answer::Refused(_), _) => looks.push(event),
            (_, Some(_)) if is_change => changes.push(event),
            // Nobody has seen it.
            (Answer::Unknown, None) if matches!(event.call, Call::CreateUnnamed { .. }) => {}
            (Answer::Unknown, None) => unknown.push(event),
            (_, None) if is_change => {
                return Err(format!("a change has neither rank nor refusal: {event:?}"));
            }
            _ => looks.push(event),
        }
    }
    changes.sort_by_key(|event| (event.rank, event.begun));
    for pair in changes.windows(2) {
        let is_silent = pair.iter().any(|event| may_change_nothing(event));
        if pair[0].rank == pair[1].rank && !is_silent {
            return Err(format!(
                "two changes with one rank: {:?} and {:?}",
                pair[0], pair[1]
            ));
        }
    }
    let may_be_gone: Vec<bool> = changes.iter().map(|event| gone.may_be(event)).collect();
    let certain = changes.iter().zip(&may_be_gone).filter(|it| !it.1);
    let certain: Vec<_> = certain.map(|(event, _)| event.rank).collect();
    check_real_time(of_tree().filter(|event| !gone.may_be(event)), &certain)?;
    let ranks: Vec<_> = changes.iter().map(|event| event.rank).collect();
    let answered = Answered::new(&changes, &may_be_gone, &looks);
    let looks: Vec<_> = looks
        .into_iter()
        .map(|event| match event.rank {
            // Those with a rank were checked against the clock already.
            Some(_) => {
                let at = ranks.partition_point(|rank| *rank <= event.rank);
                Look {
                    from: at,
                    to: at,
                    event,
                }
            }
            None => Look {
                from: answered.before(event.begun),
                to: answered.not_begun_after(event.ended),
                event,
            },
        })
        .collect();
    if let Some(look) = looks.iter().find(|look| look.from > look.to) {
        return Err(format!(
            "nothing can explain {:?}: it was asked before the order allows",
            look.event
        ));
    }
    let unknown: Vec<_> = unknown
        .into_iter()
        .map(|event| Unknown {
            from: answered.before(event.begun),
            to: answered.not_begun_after(history.made_by(event.client)),
            event,
        })
        .collect();
    let mut replay = Replay {
        changes,
        may_be_gone,
        looks,
        unknown,
        states: 0,
        stuck: (0, String::new()),
    };
    let made_unknown = replay.search(history.root)?;
    Ok(Explained {
        changes: replay.changes.len(),
        looks: replay.looks.len(),
        made_unknown,
        content: 0,
    })
}

/// Whether a change may have left everything as it was, and then has the rank of what was newest: an owner in its client's
/// process notes nothing of it. So has a name that is moved to itself, or to another name of the same file.
fn may_change_nothing(event: &Event) -> bool {
    event.is_near && matches!(event.call, Call::Rename { .. })
}

/// Who was answered before another one asked has the earlier place on the line. Several looks may have one
/// place, behind the same change: also one that a former owner answered after the next one had answered another,
/// as long as nothing was changed between. A file without a name is seen by its maker only: nothing stands before it, or behind.
fn check_real_time<'a>(
    events: impl Iterator<Item = &'a Event>,
    changes: &[Option<Rank>],
) -> Result<(), String> {
    let place = |event: &Event| changes.partition_point(|rank| *rank <= event.rank);
    let is_seen = |event: &&Event| !matches!(event.call, Call::CreateUnnamed { .. });
    let ranked = events.filter(|event| event.rank.is_some());
    let mut ranked: Vec<_> = ranked.filter(is_seen).collect();
    ranked.sort_by_key(|event| event.begun);
    let mut ended: Vec<_> = ranked.clone();
    ended.sort_by_key(|event| event.ended);
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
        let is_change = event.call.is_ranked_change() && !may_change_nothing(event);
        if place(before) > place(event) || (is_change && place(before) == place(event)) {
            return Err(format!(
                "the order contradicts the clock: {before:?} was answered before {event:?} began"
            ));
        }
    }
    Ok(())
}

/// Which changes of the line must come before a time, and which may: as they were answered themselves, and as those
/// looks show that the owner answered.
struct Answered {
    /// By the time when each ended: its place on the line, or the largest of those that ended before it.
    ended: Largest<usize>,
    /// By the time when each began, latest first: its place, or the smallest of those that began later.
    begun: Vec<(u64, usize)>,
    all: usize,
}

impl Answered {
    /// Those that may be gone say nothing.
    fn new(changes: &[&Event], may_be_gone: &[bool], looks: &[&Event]) -> Self {
        let places = || {
            let all = changes.iter().enumerate();
            all.filter(move |(at, _)| !may_be_gone[*at])
        };
        let ranked = || looks.iter().filter(|look| look.rank.is_some());
        let place = |look: &Event| changes.partition_point(|it| it.rank <= look.rank);
        let changed = places().map(|(at, it)| (it.ended, at + 1));
        let shown = ranked().map(|look| (look.ended, place(look)));
        let ended = Largest::of(changed.chain(shown));
        let mut begun: Vec<_> = places().map(|(at, it)| (it.begun, at)).collect();
        begun.extend(ranked().map(|look| (look.begun, place(look))));
        begun.sort_unstable_by(|a, b| b.cmp(a));
        let mut smallest = changes.len();
        for (_, at) in &mut begun {
            smallest = smallest.min(*at);
            *at = smallest;
        }
        Self {
            ended,
            begun,
            all: changes.len(),
        }
    }

    /// How many changes of the line are made at least when something begins.
    fn before(&self, begun: u64) -> usize {
        self.ended.before(begun).unwrap_or(0)
    }

    /// How many may be made at most when something ends.
    fn not_begun_after(&self, ended: u64) -> usize {
        let count = self.begun.partition_point(|(begun, _)| *begun > ended);
        count
            .checked_sub(1)
            .map_or(self.all, |last| self.begun[last].1)
    }
}

impl Replay<'_> {
    /// Depth first: goes on with the next change while that works, and turns to unknown changes at the
    /// latest place where it doesn't.
    fn search(&mut self, root: model::InodeId) -> Result<usize, String> {
        let first = At {
            changes: 0,
            gone: None,
            tree: Tree::new(root),
            explained: vec![false; self.looks.len()],
            made: vec![false; self.unknown.len()],
        };
        // Each with the unknown change to try next there.
        let mut path = vec![(first, 0)];
        let mut is_new = true;
        while let Some((at, next)) = path.last_mut() {
            self.states += 1;
            if self.states > STATES_MAX {
                let (changes, why) = &self.stuck;
                return Err(format!(
                    "the search was given up; its furthest place was after {changes} changes, where {why}"
                ));
            }
            if std::mem::take(&mut is_new) {
                match self.go_on(at) {
                    Ok(None) => return Ok(at.made.iter().filter(|made| **made).count()),
                    Ok(Some(after)) => {
                        path.push((after, 0));
                        is_new = true;
                        continue;
                    }
                    Err(why) if at.changes >= self.stuck.0 => self.stuck = (at.changes, why),
                    Err(_) => {}
                }
            }
            // The last possibility: what follows is gone.
            let tried = *next..=self.unknown.len();
            let mut found = None;
            for number in tried {
                *next = number + 1;
                let Some(unknown) = self.unknown.get(number) else {
                    found = self.without_next(at);
                    break;
                };
                if at.made[number] || unknown.from > at.changes || unknown.to < at.changes {
                    continue;
                }
                if let Some(tree) = at.tree.after(&unknown.event.call, &unknown.event.answer) {
                    let mut after = at.clone();
                    after.tree = tree;
                    after.made[number] = true;
                    found = Some(after);
                    break;
                }
            }
            match found {
                Some(after) => {
                    path.push((after, 0));
                    is_new = true;
                }
                None => {
                    path.pop();
                }
            }
        }
        let (changes, why) = &self.stuck;
        Err(format!("after {changes} changes, {why}"))
    }

    /// Explains the looks here, and makes the next change. `None`: there is none, and all is explained.
    fn go_on(&self, at: &mut At) -> Result<Option<At>, String> {
        for (number, look) in self.looks.iter().enumerate() {
            if at.explained[number] || look.from > at.changes {
                continue;
            }
            at.explained[number] = at.tree.explains(look.event);
            if !at.explained[number] && look.to == at.changes {
                return Err(format!("nothing explains {:?}", look.event));
            }
        }
        let Some(change) = self.changes.get(at.changes) else {
            return Ok(None);
        };
        if self.may_be_gone[at.changes] && at.gone == epoch(change) {
            let mut after = at.clone();
            after.changes += 1;
            return Ok(Some(after));
        }
        match at.tree.after(&change.call, &change.answer) {
            Some(tree) => Ok(Some(At {
                changes: at.changes + 1,
                gone: at.gone,
                tree,
                explained: at.explained.clone(),
                made: at.made.clone(),
            })),
            None => Err(format!("{change:?} can't have succeeded there")),
        }
    }

    /// Goes on without the next change and what follows it in its epoch, if that may be gone and all looks before it are
    /// explained.
    fn without_next(&self, at: &At) -> Option<At> {
        let change = self.changes.get(at.changes)?;
        let mut looks = self.looks.iter().zip(&at.explained);
        let is_left = |(look, explained): (&Look<'_>, &bool)| look.to == at.changes && !explained;
        if !self.may_be_gone[at.changes] || at.gone == epoch(change) || looks.any(is_left) {
            return None;
        }
        let mut after = at.clone();
        after.changes += 1;
        after.gone = epoch(change);
        Some(after)
    }
}

fn epoch(change: &Event) -> Option<ShardEpoch> {
    change.rank.map(|rank| rank.epoch)
}
