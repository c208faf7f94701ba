//! Which change of the membership comes next, and which step of it: a function of what is stored and
//! known, so that any manager decides the same, from any step on.
//!
//! The order: expel who has ended, give shards without an owner to somebody, admit who wants to join,
//! let go who wants to leave, move a shard for balance.

use crate::apart::Roles;
use crate::balance::{Load, MOVE_EVERY, Owners, adopt, even_out};
use crate::facts::{Facts, hosts};
use crate::leases::Leases;
use crate::planted::Planted;
use model::member::{
    Change, EXPELLED_MAX, Expelled, Heartbeat, MEMBERS_MAX, Member, Membership, Move, Plan, Role,
    Standing, Step, Weight,
};
use model::{Moment, NodeRun, ShardId};
use std::time::Duration;

/// How long a new manager waits to hear of members before it gives shards away: otherwise it would
/// take them all itself.
const SETTLE: Duration = Duration::from_millis(500);
/// Most shards that one plan gives away; others wait for the next plan.
const MOVES_MAX: usize = 128;
/// How long an owner that knows of it may take to give up a shard, before it is given away all the same: it
/// answers nothing for the shard any more (its only client for some seconds, so that that can give back what it has), and
/// the log's seal ends what it still does.
const GIVE_UP_MAX: Duration = Duration::from_secs(30);
/// How long a member may take to learn that nobody is assigned a shard. One that is blind for longer might serve
/// it on: it gets no lease any more, and is expelled when that has ended.
const LEARN_MAX: Duration = Duration::from_secs(10);

/// Everything that a decision depends on.
pub(crate) struct Situation<'a> {
    pub(crate) record: &'a Membership,
    pub(crate) facts: &'a Facts,
    pub(crate) roles: &'a Roles,
    pub(crate) leases: &'a Leases,
    /// When this manager began to be heard.
    pub(crate) since: Moment,
    /// When a shard was moved for balance, or the manager began.
    pub(crate) last_move: Moment,
    pub(crate) now: Moment,
    pub(crate) planted: Option<Planted>,
}

/// What to do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Doing {
    /// Nothing until something happens or time passes.
    Nothing,
    /// Store this membership.
    Store(Membership),
    /// Change the records of these shards.
    Assign(Vec<Assignment>),
}

/// A change of a shard's record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Assignment {
    pub(crate) shard: ShardId,
    pub(crate) from: Option<NodeRun>,
    pub(crate) to: Option<NodeRun>,
}

/// A shard of the plan under way was taken from its owner long ago, and the member that says this, which may serve it,
/// doesn't know it, although most others do: if few learn anything, it isn't the member that is blind.
pub(crate) fn is_behind(
    record: &Membership,
    facts: &Facts,
    (member, heartbeat): (NodeRun, &Heartbeat),
    now: Moment,
) -> bool {
    let mut moves = record.plan.iter().flat_map(|plan| &plan.moves);
    moves.any(|it| {
        let released = facts.shards.get(&it.shard).and_then(|fact| fact.released);
        let Some(released) = released.filter(|it| now >= it.at.plus(LEARN_MAX)) else {
            return false;
        };
        // Of a shard that a member had, only that one and who says that it has it are waited for.
        let from = it.from.filter(|from| record.is_member(*from));
        let has_it = hosts(heartbeat, it.shard);
        let is_waited_for = has_it || from.is_none_or(|from| from == member);
        if !is_waited_for || heartbeat.knows >= released.version {
            return false;
        }
        let others = facts.heard.keys();
        let others = others.filter(|run| **run != member && record.is_member(**run));
        let (know, blind): (Vec<&NodeRun>, Vec<&NodeRun>) =
            others.partition(|run| facts.knows(**run, it.shard));
        know.len() > blind.len()
    })
}

impl Situation<'_> {
    pub(crate) fn next(&self) -> Doing {
        match &self.record.plan {
            Some(plan) => self.go_on(plan),
            None => self.begin(),
        }
    }

    /// The next step of a plan.
    fn go_on(&self, plan: &Plan) -> Doing {
        match plan.step {
            Step::Shards => {
                let todo: Vec<_> = plan.moves.iter().map(|it| self.move_of(it)).collect();
                let is_skipped = self.has(Planted::SkipShards);
                if is_skipped || todo.iter().all(|todo| *todo == Todo::Done) {
                    return Doing::Store(self.after_shards(plan));
                }
                let due = todo.into_iter().filter_map(|todo| match todo {
                    Todo::Assign(assignment) => Some(assignment),
                    Todo::Done | Todo::Wait => None,
                });
                Doing::Assign(due.collect())
            }
            Step::Nsds => Doing::Store(self.after_nsds(plan)),
        }
    }

    fn after_shards(&self, plan: &Plan) -> Membership {
        let mut record = self.record.clone();
        record.plan = match plan.change {
            Change::Balance => None,
            Change::Expel(_) | Change::Leave(_) => Some(Plan {
                change: plan.change.clone(),
                step: Step::Nsds,
                moves: Vec::new(),
            }),
        };
        record
    }

    fn after_nsds(&self, plan: &Plan) -> Membership {
        let mut record = self.record.clone();
        record.plan = None;
        let runs = match &plan.change {
            Change::Expel(ended) => {
                let expelled = ended.iter();
                expelled
                    .map(|it| (it.run, Standing::Expelled(it.cause)))
                    .collect()
            }
            Change::Leave(run) => vec![(*run, Standing::Left)],
            Change::Balance => unreachable!("a balance has no such step"),
        };
        for (at, (run, standing)) in runs.into_iter().enumerate() {
            let member = record.members.get_mut(&run.node);
            let member = member.expect("nobody goes from the membership while a plan is under way");
            assert_eq!(
                member.run, run,
                "no run joins while another of its node ends"
            );
            let is_first = at == 0 || !self.has(Planted::MarkFirst);
            member.standing = standing;
            member.nsds_away = is_first && !self.has(Planted::SkipNsds);
        }
        record
    }

    /// What is to be done for one shard of a plan.
    fn move_of(&self, it: &Move) -> Todo {
        let Some(fact) = self.facts.shards.get(&it.shard) else {
            return Todo::Done;
        };
        let assign = |to| {
            Todo::Assign(Assignment {
                shard: it.shard,
                from: fact.assigned,
                to,
            })
        };
        let to_is_gone = !self.record.is_member(it.to) || self.is_condemned(it.to);
        // Whatever is without an owner then is the next plan's.
        if fact.assigned == Some(it.to) || to_is_gone {
            return Todo::Done;
        }
        let from_lives = it.from.filter(|from| self.record.is_member(*from));
        if from_lives.is_some_and(|from| self.is_condemned(from)) {
            return Todo::Done;
        }
        match (fact.assigned, from_lives) {
            (Some(owner), Some(from)) if owner == from && self.has(Planted::TwoOwners) => {
                assign(Some(it.to))
            }
            (Some(owner), Some(from)) if owner == from => assign(None),
            (Some(owner), _) if Some(owner) == it.from => assign(Some(it.to)),
            // Somebody else has decided otherwise.
            (Some(_), _) => Todo::Done,
            (None, Some(from)) if self.facts.has_given_up(from, it.shard) => assign(Some(it.to)),
            (None, _) if self.is_free(it.shard) => assign(Some(it.to)),
            (None, _) => Todo::Wait,
        }
    }

    /// Nobody serves a shard that nobody is assigned: all members that may have said so, or know it and take long.
    fn is_free(&self, shard: ShardId) -> bool {
        let released = self.facts.shards.get(&shard).and_then(|fact| fact.released);
        let is_late = released.is_some_and(|it| self.now >= it.at.plus(GIVE_UP_MAX));
        let is_blind = self.has(Planted::GiveToTwo);
        let mut owners = self.record.members.values().filter(|member| {
            member.may_own && member.standing.is_member() && !self.is_condemned(member.run)
        });
        owners.all(|member| {
            let run = member.run;
            let knows = is_blind || self.facts.knows(run, shard);
            self.facts.has_given_up(run, shard) || (is_late && knows)
        })
    }

    /// The change that comes next when no plan is under way.
    fn begin(&self) -> Doing {
        let changed = self
            .expelled()
            .or_else(|| self.adopted())
            .or_else(|| self.admitted())
            .or_else(|| self.let_go())
            .or_else(|| self.balanced());
        changed.map_or(Doing::Nothing, Doing::Store)
    }

    /// The membership with the runs expelled that have ended, as many as one plan may expel. Storing it
    /// is the fence.
    fn expelled(&self) -> Option<Membership> {
        let mut ended: Vec<Expelled> = Vec::new();
        for (run, cause) in &self.facts.condemned {
            let is_done = self.roles.has_ended(self.record, *run) || ended.len() == EXPELLED_MAX;
            // Of two runs of a node the earlier one goes first; the other one is the next plan's.
            let is_second = ended.last().is_some_and(|it| it.run.node == run.node);
            if !is_done && !is_second {
                let (run, cause) = (*run, *cause);
                ended.push(Expelled { run, cause });
            }
        }
        if ended.is_empty() {
            return None;
        }
        let owners = self.owners()?;
        let mut record = self.record.clone();
        for Expelled { run, cause } in &ended {
            let standing = Standing::Expelled(*cause);
            let member = Member {
                run: *run,
                may_own: true,
                standing,
                nsds_away: false,
            };
            // One that was assigned a shard and never joined isn't in it.
            let known = record.members.entry(run.node).or_insert(member);
            known.run = *run;
            known.standing = standing;
        }
        let orphans = self.orphans(|assigned| self.roles.has_ended(&record, assigned));
        record.plan = Some(Plan {
            change: Change::Expel(ended),
            step: Step::Shards,
            moves: adopt(&orphans, &owners),
        });
        Some(record)
    }

    /// A plan that gives shards of runs that ended, and those that nobody is assigned, to somebody.
    fn adopted(&self) -> Option<Membership> {
        let orphans = self.orphans(|assigned| self.roles.has_ended(self.record, assigned));
        if orphans.is_empty() {
            return None;
        }
        let moves = adopt(&orphans, &self.owners()?);
        self.with_moves(moves)
    }

    /// The membership with everybody in it who wants to join.
    fn admitted(&self) -> Option<Membership> {
        let mut record = self.record.clone();
        for (run, heard) in &self.facts.heard {
            let admits_any = self.has(Planted::AdmitExpelled);
            let is_ended = self.roles.has_ended(self.record, *run) && !admits_any;
            let is_wanted = heard.role != Role::Client
                && !is_ended
                && !record.is_member(*run)
                && !self.is_condemned(*run)
                && !self.leases.is_over(*run, self.now);
            // An earlier run of the node is expelled first.
            let earlier = record.members.get(&run.node);
            let is_free = earlier.is_none_or(|earlier| !earlier.standing.is_member());
            let has_place = earlier.is_some();
            if is_wanted && is_free && (has_place || self.makes_room(&mut record)) {
                let member = Member {
                    run: *run,
                    may_own: heard.role == Role::Owner,
                    standing: Standing::In,
                    nsds_away: false,
                };
                record.members.insert(run.node, member);
            }
        }
        (record.members != self.record.members).then_some(record)
    }

    /// Makes room for another node: if all places are taken, that of one that was removed is free.
    fn makes_room(&self, record: &mut Membership) -> bool {
        if record.members.len() < MEMBERS_MAX {
            return true;
        }
        let mut members = record.members.values();
        let removed = members.find(|member| {
            !member.standing.is_member() && self.roles.removed.contains(&member.run.node)
        });
        let Some(node) = removed.map(|member| member.run.node) else {
            return false;
        };
        record.members.remove(&node);
        true
    }

    /// The membership with a plan for the first member that wants to leave.
    fn let_go(&self) -> Option<Membership> {
        let mut members = self.record.members.values();
        let member = members.find(|member| {
            let heard = self.facts.heard.get(&member.run);
            member.standing == Standing::In && heard.is_some_and(|heard| heard.is_leaving)
        })?;
        let mut record = self.record.clone();
        let run = member.run;
        let standing = &mut record.members.get_mut(&run.node)?.standing;
        *standing = Standing::Leaving;
        let mut owners = self.owners()?;
        owners.remove(&run);
        let orphans = self.orphans(|assigned| assigned == run);
        record.plan = Some(Plan {
            change: Change::Leave(run),
            step: Step::Shards,
            moves: adopt(&orphans, &owners),
        });
        Some(record)
    }

    /// A plan that moves one shard for balance.
    fn balanced(&self) -> Option<Membership> {
        let is_needless = self.has(Planted::NeedlessMoves);
        if self.now < self.last_move.plus(MOVE_EVERY) && !is_needless {
            return None;
        }
        let best = even_out(&self.loads(), &self.owners()?, is_needless);
        self.with_moves(best.into_iter().collect())
    }

    fn with_moves(&self, moves: Vec<Move>) -> Option<Membership> {
        let plan = Plan {
            change: Change::Balance,
            step: Step::Shards,
            moves,
        };
        (!plan.moves.is_empty()).then(|| Membership {
            plan: Some(plan),
            ..self.record.clone()
        })
    }

    /// Shards that nobody is assigned, or whose assigned run `has_ended`.
    fn orphans(&self, has_ended: impl Fn(NodeRun) -> bool) -> Vec<Load> {
        let mut orphans = self.loads();
        orphans.retain(|load| load.assigned.is_none_or(&has_ended));
        orphans.truncate(MOVES_MAX);
        orphans
    }

    fn loads(&self) -> Vec<Load> {
        let shards = self.facts.shards.iter();
        let load = |(shard, assigned): (ShardId, Option<NodeRun>)| {
            let heard = assigned.and_then(|run| self.facts.heard.get(&run));
            let mut hosted = heard.into_iter().flat_map(|heard| &heard.hosts);
            let weight = hosted.find(|(hosted, _)| *hosted == shard);
            Load {
                shard,
                assigned,
                weight: weight.map_or(Weight::ONE, |(_, weight)| *weight),
            }
        };
        shards
            .map(|(shard, fact)| load((*shard, fact.assigned)))
            .collect()
    }

    /// Who may get shards, with what they have. `None` while a new manager waits to hear of them.
    fn owners(&self) -> Option<Owners> {
        let mut owners = Owners::new();
        for member in self.record.members.values() {
            let may = member.may_own
                && member.standing == Standing::In
                && !self.is_condemned(member.run)
                && !self.facts.apart.is_going(member.run)
                && !self.leases.is_over(member.run, self.now);
            let heard = self.facts.heard.get(&member.run);
            match heard {
                Some(heard) if may && !heard.is_leaving => {
                    owners.insert(member.run, Default::default());
                }
                None if may && self.now < self.since.plus(SETTLE) => return None,
                _ => {}
            }
        }
        for load in self.loads() {
            let busy = load.assigned.and_then(|run| owners.get_mut(&run));
            if let Some(busy) = busy {
                busy.add(load.weight);
            }
        }
        Some(owners)
    }

    fn is_condemned(&self, run: NodeRun) -> bool {
        self.facts.condemned.contains_key(&run)
    }

    fn has(&self, fault: Planted) -> bool {
        self.planted == Some(fault)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Todo {
    Done,
    Wait,
    Assign(Assignment),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::tests::run;
    use model::NodeId;

    const SHARD: ShardId = ShardId(7);
    /// The revision of coordination that says that nobody is assigned the shard.
    const RELEASED: u64 = 10;

    /// Balance moves the shard from the second of three members to the first one. What comes next, so long after
    /// nobody was assigned it; `heard`: nodes, what they know, and whether they have the shard.
    fn next(passed: Duration, heard: &[(u32, u64, bool)]) -> Doing {
        let member = |node| Member {
            run: run(node),
            may_own: true,
            standing: Standing::In,
            nsds_away: false,
        };
        let moved = Move {
            shard: SHARD,
            from: Some(run(2)),
            to: run(1),
        };
        let record = Membership {
            members: (1..=3).map(|node| (NodeId(node), member(node))).collect(),
            plan: Some(Plan {
                change: Change::Balance,
                step: Step::Shards,
                moves: vec![moved],
            }),
            ..Membership::default()
        };
        let released = Moment(Duration::from_secs(100));
        let mut facts = Facts::default();
        facts.learn_shard(SHARD, None, RELEASED, released);
        // As its last owner closes it, which begins nothing anew.
        let closed = released.plus(Duration::from_secs(1));
        facts.learn_shard(SHARD, None, RELEASED + 2, closed);
        for (node, knows, has_it) in heard {
            let heartbeat = Heartbeat {
                role: Role::Owner,
                is_leaving: false,
                knows: *knows,
                hosts: has_it.then_some((SHARD, Weight::ONE)).into_iter().collect(),
            };
            facts.heard.insert(run(*node), heartbeat);
        }
        let leases = Leases::default();
        let situation = Situation {
            record: &record,
            facts: &facts,
            roles: &Roles::default(),
            leases: &leases,
            since: Moment::default(),
            last_move: Moment::default(),
            now: released.plus(passed),
            planted: None,
        };
        situation.next()
    }

    /// Would be broken if a shard was given to another owner while a member may serve it that doesn't know that it
    /// lost it, or never, because one that knows doesn't let go.
    #[test]
    fn who_knows_that_it_lost_a_shard_is_waited_for_so_long_and_who_may_not_know_for_ever() {
        let given = Doing::Assign(vec![Assignment {
            shard: SHARD,
            from: None,
            to: Some(run(1)),
        }]);
        let waits = Doing::Assign(Vec::new());
        let (first, third) = ((1, RELEASED, false), (3, RELEASED, false));
        let second = |knows, has_it| [first, (2, knows, has_it), third];
        assert_eq!(next(Duration::ZERO, &second(RELEASED, false)), given);
        // It knows, and doesn't let go.
        let early = GIVE_UP_MAX - Duration::from_nanos(1);
        assert_eq!(next(early, &second(RELEASED, true)), waits);
        assert_eq!(next(GIVE_UP_MAX, &second(RELEASED, true)), given);
        // It may not know.
        let late = GIVE_UP_MAX * 10;
        assert_eq!(next(late, &second(RELEASED - 1, true)), waits);
        assert_eq!(next(late, &second(RELEASED - 1, false)), waits);
        assert_eq!(next(late, &[first, third]), waits, "nobody heard it");
        // Nor may another one, which could have had it before.
        let blind = (3, RELEASED - 1, false);
        assert_eq!(next(late, &[first, (2, RELEASED, true), blind]), waits);
    }
}
