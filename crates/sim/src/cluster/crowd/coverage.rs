//! Which operations met each other: on the same target, its parent, a child, an ancestor, or under
//! another name of the same file.

use crate::witness::{Answer, Call, Event, History, NEVER};
use model::InodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use world::Point;

/// How the targets of two operations stand to each other, from the first to the second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Relation {
    /// The same inode or the same name.
    Same,
    /// The second has the directory of the first, or contains its name.
    Parent,
    /// The second has something in the directory that is the first's.
    Child,
    /// The second has a directory further above, or below.
    Ancestor,
    /// Both have one file, by different names.
    HardLinked,
}

impl Relation {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Same,
        Self::Parent,
        Self::Child,
        Self::Ancestor,
        Self::HardLinked,
    ];
}

type Pair = (&'static str, &'static str, Relation);

/// How often each pair of operations ran at the same time, by the relation of their targets; and which
/// points of the program runs came to.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Coverage {
    met: BTreeMap<Pair, u64>,
    /// How often each point of the program was passed, and daemons were interrupted there.
    points: BTreeMap<Point, u64>,
    interrupted: BTreeMap<Point, u64>,
    /// Operations that were done, refused, and never answered.
    done: usize,
    refused: usize,
    unanswered: usize,
    /// Files that clients have made under delegations, and those of them that others have seen.
    delegated: usize,
    delegated_seen: usize,
    /// File locks that were granted, and refused.
    locks_granted: usize,
    locks_refused: usize,
}

/// Pairs that never met are listed if they aren't more.
const LISTED_MAX: usize = 40;

/// The operations, as they are counted.
const VERBS: [&str; 26] = [
    "create", "tmpfile", "link", "unlink", "rmdir", "rename", "chmod", "chown", "utimes",
    "setxattr", "lookup", "list", "stat", "getxattr", "write", "append", "truncate", "punch",
    "zero", "reserve", "copy", "read", "seek", "fsync", "store", "load",
];

fn verb(call: &Call) -> &'static str {
    match call {
        Call::Create { .. } => "create",
        Call::CreateUnnamed { .. } => "tmpfile",
        Call::Link { .. } => "link",
        Call::Unlink { .. } => "unlink",
        Call::RemoveDirectory { .. } => "rmdir",
        Call::Rename { .. } => "rename",
        Call::SetMode { .. } => "chmod",
        Call::SetOwner { .. } => "chown",
        Call::SetTime { .. } => "utimes",
        Call::SetXattr { .. } => "setxattr",
        Call::Lookup { .. } => "lookup",
        Call::List { .. } => "list",
        Call::Stat { .. } => "stat",
        Call::GetXattr { .. } => "getxattr",
        Call::Write { .. } => "write",
        Call::Append { .. } => "append",
        Call::Truncate { .. } => "truncate",
        Call::Punch { .. } => "punch",
        Call::Zero { .. } => "zero",
        Call::Reserve { .. } => "reserve",
        Call::Copy { .. } => "copy",
        Call::Read { .. } => "read",
        Call::Seek { .. } => "seek",
        Call::Fsync { .. } => "fsync",
        Call::Store { .. } => "store",
        Call::Load { .. } => "load",
    }
}

type Name = (InodeId, String);

/// What an operation is about.
struct Target {
    verb: &'static str,
    begun: u64,
    ended: u64,
    client: u32,
    names: Vec<Name>,
    inodes: BTreeSet<InodeId>,
}

impl Coverage {
    /// What met in a history.
    #[must_use]
    pub fn of(history: &History) -> Self {
        let mut events: Vec<_> = history.events.iter().collect();
        events.sort_by_key(|event| event.begun);
        // Attributes that an answer was completed with are no operation of their own.
        events.dedup_by_key(|event| event.begun);
        let (mut at, mut parents) = (BTreeMap::new(), BTreeMap::new());
        let mut targets: Vec<Target> = Vec::new();
        let mut coverage = Self::default();
        coverage.count_delegated(&events);
        for event in &events {
            match event.answer {
                // Copied in steps, the target of which was removed in between: nobody says how much.
                Answer::Unknown if matches!(event.call, Call::Copy { .. }) => coverage.refused += 1,
                Answer::Unknown => coverage.unanswered += 1,
                Answer::Refused(_) => coverage.refused += 1,
                _ => coverage.done += 1,
            }
        }
        for event in events {
            let target = Target::of(event, &at);
            learn(event, &mut at, &mut parents);
            // Those that were under way when this one began.
            targets.retain(|earlier| earlier.ended > event.begun);
            for earlier in targets
                .iter()
                .filter(|it| it.client != target.client || it.ended != NEVER)
            {
                for relation in earlier.relations(&target, &parents) {
                    let pair = match earlier.verb <= target.verb {
                        true => (earlier.verb, target.verb, relation),
                        false => (target.verb, earlier.verb, turned(relation)),
                    };
                    *coverage.met.entry(pair).or_default() += 1;
                }
            }
            targets.push(target);
        }
        coverage
    }

    fn count_delegated(&mut self, events: &[&Event]) {
        let delegated = events.iter().filter(|event| event.is_delegated);
        let made = delegated.filter_map(|event| Some((event.made()?, event.client)));
        let makers: BTreeMap<InodeId, u32> = made.collect();
        let mut seen = BTreeSet::new();
        for event in events {
            let by_another = |inode: &InodeId| {
                makers
                    .get(inode)
                    .is_some_and(|maker| *maker != event.client)
            };
            seen.extend(event.shows().into_iter().filter(by_another));
        }
        self.delegated_seen += seen.len();
        self.delegated += makers.len();
    }

    /// Adds what another run covered.
    pub fn add(&mut self, other: &Self) {
        for (pair, count) in &other.met {
            *self.met.entry(*pair).or_default() += count;
        }
        self.passed(other.points.clone());
        self.done += other.done;
        self.refused += other.refused;
        self.unanswered += other.unanswered;
        self.delegated += other.delegated;
        self.delegated_seen += other.delegated_seen;
        self.locked((other.locks_granted, other.locks_refused));
        for (point, count) in &other.interrupted {
            *self.interrupted.entry(*point).or_default() += count;
        }
    }

    /// Points of the program were passed so often.
    pub fn passed(&mut self, points: BTreeMap<Point, u64>) {
        for (point, count) in points {
            *self.points.entry(point).or_default() += count;
        }
    }

    /// So many locks were granted, and refused.
    pub fn locked(&mut self, (granted, refused): (usize, usize)) {
        self.locks_granted += granted;
        self.locks_refused += refused;
    }

    /// Operations that were done, refused, and never answered.
    #[must_use]
    pub fn answers(&self) -> [usize; 3] {
        [self.done, self.refused, self.unanswered]
    }

    /// Files that clients have made under delegations, and those of them that others have seen.
    #[must_use]
    pub fn delegated(&self) -> [usize; 2] {
        [self.delegated, self.delegated_seen]
    }

    /// File locks that were granted, and refused.
    #[must_use]
    pub fn locks(&self) -> [usize; 2] {
        [self.locks_granted, self.locks_refused]
    }

    /// A daemon was interrupted at a point.
    pub fn interrupted(&mut self, point: Point) {
        *self.interrupted.entry(point).or_default() += 1;
    }

    /// The points that no run came to.
    #[must_use]
    pub fn never_passed(&self) -> Vec<Point> {
        let all = Point::ALL.iter().copied();
        all.filter(|point| !self.points.contains_key(point))
            .collect()
    }

    /// How many pairs of operations met in a relation.
    #[must_use]
    pub fn pairs(&self, relation: Relation) -> usize {
        let met = self.met.keys().filter(|pair| pair.2 == relation);
        met.count()
    }

    /// The pairs of operations that never met on the same target.
    #[must_use]
    pub fn never_on_same(&self) -> Vec<(&'static str, &'static str)> {
        let mut verbs = VERBS;
        verbs.sort_unstable();
        let pairs = verbs.iter().enumerate();
        let pairs = pairs.flat_map(|(at, first)| verbs[at..].iter().map(move |it| (*first, *it)));
        let is_met = |pair: &(_, _)| self.met.contains_key(&(pair.0, pair.1, Relation::Same));
        pairs.filter(|pair| !is_met(pair)).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let possible = VERBS.len() * (VERBS.len() + 1) / 2;
        for relation in Relation::ALL {
            let (pairs, times) = (
                self.pairs(relation),
                self.met.iter().filter(|(pair, _)| pair.2 == relation),
            );
            let times: u64 = times.map(|(_, count)| *count).sum();
            write!(formatter, "{relation:?} {pairs}/{possible} ({times}×) ")?;
        }
        let never = self.never_on_same();
        write!(formatter, "\nnever on the same: {} pairs", never.len())?;
        if never.len() <= LISTED_MAX {
            write!(formatter, " {never:?}")?;
        }
        write!(
            formatter,
            "\n{} operations done, {} refused, {} without an answer; {} locks granted, {} refused",
            self.done, self.refused, self.unanswered, self.locks_granted, self.locks_refused,
        )?;
        write!(
            formatter,
            "\ndelegated: {} creates, {} flushed for others",
            self.delegated, self.delegated_seen,
        )?;
        let (all, never) = (Point::ALL.len(), self.never_passed());
        let interrupted: u64 = self.interrupted.values().sum();
        write!(
            formatter,
            "\npoints passed: {}/{all}, never: {never:?}; {interrupted} interruptions at {} points",
            all - never.len(),
            self.interrupted.len(),
        )
    }
}

impl Target {
    fn of(event: &Event, at: &BTreeMap<Name, InodeId>) -> Self {
        let (mut names, mut inodes) = (Vec::new(), BTreeSet::new());
        match &event.call {
            Call::Create {
                directory, name, ..
            }
            | Call::Unlink { directory, name }
            | Call::RemoveDirectory { directory, name }
            | Call::Lookup { directory, name } => names.push((*directory, name.clone())),
            Call::Link {
                inode,
                directory,
                name,
            } => {
                names.push((*directory, name.clone()));
                inodes.insert(*inode);
            }
            Call::Rename { from, to, .. } => names.extend([from.clone(), to.clone()]),
            Call::List { directory } | Call::CreateUnnamed { directory } => {
                inodes.insert(*directory);
            }
            Call::Copy { from, inode, .. } => inodes.extend([from.0, *inode]),
            call => inodes.extend(call.inode()),
        }
        inodes.extend(names.iter().filter_map(|name| at.get(name)));
        Self {
            verb: verb(&event.call),
            begun: event.begun,
            ended: event.ended,
            client: event.client,
            names,
            inodes,
        }
    }

    fn relations(&self, other: &Self, parents: &BTreeMap<InodeId, InodeId>) -> BTreeSet<Relation> {
        debug_assert!(self.begun < other.begun);
        let mut relations = BTreeSet::new();
        let share_name = self.names.iter().any(|name| other.names.contains(name));
        if !self.inodes.is_disjoint(&other.inodes) {
            let by_names = !self.names.is_empty() && !other.names.is_empty();
            relations.insert(match by_names && !share_name {
                true => Relation::HardLinked,
                false => Relation::Same,
            });
        } else if share_name {
            relations.insert(Relation::Same);
        }
        let is_above = |above: &Self, below: &Self, steps: std::ops::Range<usize>| {
            let mut directories: Vec<_> = below.names.iter().map(|name| Some(name.0)).collect();
            directories.extend(below.inodes.iter().map(|inode| parents.get(inode).copied()));
            directories.into_iter().flatten().any(|first| {
                let line = std::iter::successors(Some(first), |it| parents.get(it).copied());
                let mut line = line.take(steps.end).skip(steps.start);
                line.any(|it| above.inodes.contains(&it))
            })
        };
        let found = [
            (Relation::Parent, is_above(other, self, 0..1)),
            (Relation::Child, is_above(self, other, 0..1)),
            (
                Relation::Ancestor,
                is_above(self, other, 1..8) || is_above(other, self, 1..8),
            ),
        ];
        relations.extend(found.iter().filter(|it| it.1).map(|it| it.0));
        relations
    }
}

fn turned(relation: Relation) -> Relation {
    match relation {
        Relation::Parent => Relation::Child,
        Relation::Child => Relation::Parent,
        relation => relation,
    }
}

/// What an operation says of where things are; roughly, for the count only.
fn learn(
    event: &Event,
    at: &mut BTreeMap<Name, InodeId>,
    parents: &mut BTreeMap<InodeId, InodeId>,
) {
    match (&event.call, &event.answer) {
        (
            Call::Create {
                directory, name, ..
            }
            | Call::Lookup { directory, name },
            Answer::Inode(seen),
        ) => {
            at.insert((*directory, name.clone()), seen.inode);
            parents.insert(seen.inode, *directory);
        }
        (
            Call::Link {
                inode,
                directory,
                name,
            },
            Answer::Done,
        ) => {
            at.insert((*directory, name.clone()), *inode);
        }
        (
            Call::Unlink { directory, name } | Call::RemoveDirectory { directory, name },
            Answer::Done,
        ) => {
            at.remove(&(*directory, name.clone()));
        }
        (Call::Rename { from, to, .. }, Answer::Done) => {
            if let Some(moved) = at.remove(from) {
                at.insert(to.clone(), moved);
                parents.insert(moved, to.0);
            }
        }
        _ => {}
    }
}
