//! Replays the changes of a tree in the order of their ranks.
//!
//! The changes that were answered make a line ([`Line`]). A look has a stretch of this line in which it must be
//! true: one place if it has a rank, with the creates under delegations that stand there; otherwise from the last change
//! that was answered before it began to the first one that began after it ended. Changes with unknown outcomes are tried
//! where nothing else explains an answer, latest places first. What may be gone with a lost client ([`Gone`]) is the end of
//! an epoch, and of what it made under delegations ([`Streams`]): where nothing else explains an answer, it is gone from
//! some change on.

use super::gone::Gone;
use super::line::{Line, check_real_time};
use super::streams::Streams;
use super::tree::Tree;
use super::{Answer, Call, ClientNumber, Event, Explained, History, Tick};
use model::ShardEpoch;
use std::collections::BTreeMap;

/// Most states that a search visits before it gives up.
const STATES_MAX: usize = 2_000_000;

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
    /// Of these clients all is gone that they made under delegations from these times on.
    unsent: BTreeMap<ClientNumber, Tick>,
    tree: Tree,
    explained: Vec<bool>,
    made: Vec<bool>,
}

struct Replay<'a> {
    line: Line<'a>,
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
    let streams = Streams::of(history, &gone)?;
    for event in of_tree() {
        let is_change = event.call.is_ranked_change();
        let is_refused = matches!(event.answer, Answer::Refused(_));
        let may_show_gone = || gone.may_be(event) || streams.may_show_gone(event);
        match (&event.answer, event.rank) {
            // Nobody else has seen what it showed.
            _ if (is_refused || !is_change) && may_show_gone() => {}
            (Answer::Unknown, _) if !is_change => {}
            (Answer::Refused(_), _) => looks.push(event),
            (_, Some(_)) if is_change => changes.push(event),
            (_, None) if event.is_delegated => changes.push(event),
            // Nobody has seen it.
            (Answer::Unknown, None) if matches!(event.call, Call::CreateUnnamed { .. }) => {}
            (Answer::Unknown, None) => unknown.push(event),
            (_, None) if is_change => {
                return Err(format!("a change has neither rank nor refusal: {event:?}"));
            }
            _ => looks.push(event),
        }
    }
    let line = Line::of(changes, &looks, &gone, &streams)?;
    check_real_time(history, &gone)?;
    let looks = looks.into_iter().map(|event| {
        let (from, to) = line.stretch(event);
        Look { from, to, event }
    });
    let looks: Vec<_> = looks.collect();
    if let Some(look) = looks.iter().find(|look| look.from > look.to) {
        return Err(format!(
            "nothing can explain {:?}: it was asked before the order allows",
            look.event
        ));
    }
    let unknown: Vec<_> = unknown
        .into_iter()
        .map(|event| Unknown {
            from: line.before(event.begun),
            to: line.not_begun_after(history.made_by(event.client)),
            event,
        })
        .collect();
    let mut replay = Replay {
        line,
        looks,
        unknown,
        states: 0,
        stuck: (0, String::new()),
    };
    let made_unknown = replay.search(history.root)?;
    Ok(Explained {
        changes: replay.line.changes.len(),
        looks: replay.looks.len(),
        made_unknown,
        content: 0,
    })
}

impl Replay<'_> {
    /// Depth first: goes on with the next change while that works, and turns to unknown changes at the
    /// latest place where it doesn't.
    fn search(&mut self, root: model::InodeId) -> Result<usize, String> {
        let first = At {
            changes: 0,
            gone: None,
            unsent: BTreeMap::new(),
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
        let Some(change) = self.line.changes.get(at.changes) else {
            return Ok(None);
        };
        if self.line.may_be_gone[at.changes] && at.is_gone(change) {
            let mut after = at.clone();
            after.changes += 1;
            return Ok(Some(after));
        }
        match at.tree.after(&change.call, &change.answer) {
            Some(tree) => Ok(Some(At {
                changes: at.changes + 1,
                gone: at.gone,
                unsent: at.unsent.clone(),
                tree,
                explained: at.explained.clone(),
                made: at.made.clone(),
            })),
            None => Err(format!("{change:?} can't have succeeded there")),
        }
    }

    /// Goes on without the next change and what follows it in its epoch, or of its client's creates under delegations, if
    /// that may be gone and all looks before it are explained.
    fn without_next(&self, at: &At) -> Option<At> {
        let change = self.line.changes.get(at.changes)?;
        let mut looks = self.looks.iter().zip(&at.explained);
        let is_left = |(look, explained): (&Look<'_>, &bool)| look.to == at.changes && !explained;
        if !self.line.may_be_gone[at.changes] || at.is_gone(change) || looks.any(is_left) {
            return None;
        }
        let mut after = at.clone();
        after.changes += 1;
        after.lose(change);
        Some(after)
    }
}

impl At {
    /// Whether a change that may be gone is, because one before it is.
    fn is_gone(&self, change: &Event) -> bool {
        match change.is_delegated {
            true => {
                let unsent = self.unsent.get(&change.client);
                unsent.is_some_and(|unsent| *unsent < change.begun)
            }
            false => self.gone == epoch(change),
        }
    }

    /// A change is gone, and what follows it. Of creates under way at the same time either may have been the first.
    fn lose(&mut self, change: &Event) {
        if !change.is_delegated {
            self.gone = epoch(change);
            return;
        }
        let unsent = self.unsent.entry(change.client).or_insert(change.ended);
        *unsent = change.ended.min(*unsent);
    }
}

fn epoch(change: &Event) -> Option<ShardEpoch> {
    change.rank.map(|rank| rank.epoch)
}
