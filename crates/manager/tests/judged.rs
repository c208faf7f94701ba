//! What is right: at every moment, for each change of a fact, and when everything has calmed down.

use super::cluster::{Cluster, Life};
use model::member::{Cause, Change, EXPELLED_MAX, Expelled, Membership, Standing, Step};
use model::{NodeRun, ShardId};

/// At every moment.
pub(crate) fn moment(cluster: &Cluster) -> Result<(), String> {
    for shard in cluster.store.shards.keys() {
        let serving = cluster.nodes.iter();
        let serving: Vec<_> = serving
            .filter(|node| cluster.serves(node, *shard))
            .map(|node| node.run)
            .collect();
        if serving.len() > 1 {
            return Err(format!("shard {shard} is served by {serving:?}"));
        }
    }
    for node in &cluster.nodes {
        let lasts = node
            .lease
            .ends()
            .is_some_and(|end| node.clock(cluster.now) < end);
        let is_left = cluster.store.membership.members.get(&node.run.node);
        let is_left = is_left.is_some_and(|member| member.standing == Standing::Left);
        let is_ended = cluster.store.membership.has_ended(node.run) && !is_left;
        if node.life != Life::Down && is_ended && lasts {
            return Err(format!("{} was expelled, and its lease lasts", node.run));
        }
    }
    Ok(())
}

/// Before a membership is stored.
pub(crate) fn change(cluster: &Cluster, new: &Membership) -> Result<(), String> {
    let old = &cluster.store.membership;
    if new.term < old.term {
        return Err("an earlier term follows a later one".into());
    }
    for (node, member) in &new.members {
        let before = old.members.get(node);
        let was_over = before.is_some_and(|it| it.run == member.run && !it.standing.is_member());
        if was_over && member.standing.is_member() {
            return Err(format!("{} joins again after its end", member.run));
        }
        let is_older = before.is_some_and(|it| it.run > member.run);
        if is_older {
            return Err(format!("an older run joins: {}", member.run));
        }
        let is_replaced = before.is_some_and(|it| it.run < member.run && it.standing.is_member());
        if is_replaced && new.is_member(member.run) {
            return Err(format!(
                "{} joins before the run before it ended",
                member.run
            ));
        }
    }
    match (&old.plan, &new.plan) {
        (None, Some(plan)) => plan_begins(cluster, new, &plan.change),
        (Some(before), after) if before.step == Step::Shards => {
            let goes_on = after.as_ref().is_some_and(|it| it.step == Step::Nsds);
            let is_same = after.as_ref() == Some(before);
            if is_same || before.change == Change::Balance {
                return Ok(());
            }
            if !goes_on {
                return Err(format!("a plan is forgotten: {before:?}"));
            }
            for it in &before.moves {
                let is_left = cluster.store.shards[&it.shard].assigned == it.from;
                let can_take = new.is_member(it.to);
                if is_left && can_take && !is_condemned(cluster, it.to) {
                    return Err(format!("{:?} wasn't moved", it.shard));
                }
            }
            Ok(())
        }
        (Some(before), None) => {
            let runs = match &before.change {
                Change::Expel(ended) => ended.iter().map(|it| it.run).collect(),
                Change::Leave(run) => vec![*run],
                Change::Balance => return Ok(()),
            };
            let is_marked = |run: &NodeRun| {
                let member = new.members.get(&run.node);
                member.is_some_and(|member| member.nsds_away)
            };
            match runs.into_iter().find(|run| !is_marked(run)) {
                None => Ok(()),
                Some(run) => Err(format!("the NSDs of {run} aren't marked")),
            }
        }
        _ => Ok(()),
    }
}

/// The run is dead or silent, so that a manager may know.
fn is_condemned(cluster: &Cluster, run: NodeRun) -> bool {
    let node = cluster.node(run.node);
    let lasts = node
        .lease
        .ends()
        .is_some_and(|end| node.clock(cluster.now) < end);
    node.run != run || node.life == Life::Down || !lasts
}

fn plan_begins(cluster: &Cluster, new: &Membership, change: &Change) -> Result<(), String> {
    match change {
        Change::Expel(ended) => {
            if ended.is_empty() || ended.len() > EXPELLED_MAX {
                return Err(format!("a plan expels {} runs", ended.len()));
            }
            for Expelled { run, cause } in ended {
                let node = cluster.node(run.node);
                let is_dead = node.run != *run || node.life == Life::Down;
                let is_by_lease = matches!(cause, Cause::Silent | Cause::Apart(_));
                if !is_by_lease && !is_dead {
                    return Err(format!("{run} is expelled for {cause:?}, and lives"));
                }
                if new.is_member(*run) {
                    return Err(format!("a plan expels {run}, which stays a member"));
                }
            }
        }
        Change::Leave(run) => {
            if !cluster.node(run.node).wants_to_leave {
                return Err(format!("{run} didn't want to leave"));
            }
        }
        Change::Balance => {
            let plan = new.plan.as_ref().expect("it begins");
            let owned = |run: NodeRun| {
                let shards = cluster.store.shards.values();
                shards.filter(|it| it.assigned == Some(run)).count()
            };
            for it in &plan.moves {
                let Some(from) = it.from.filter(|from| new.is_member(*from)) else {
                    continue;
                };
                if owned(from) < owned(it.to) + 2 {
                    return Err(format!("{it:?} makes nothing better"));
                }
            }
        }
    }
    Ok(())
}

/// Before a shard's record is changed by a manager.
pub(crate) fn assignment(
    cluster: &Cluster,
    shard: ShardId,
    from: Option<NodeRun>,
    to: Option<NodeRun>,
) -> Result<(), String> {
    let membership = &cluster.store.membership;
    if let (Some(from), Some(to)) = (from, to)
        && !membership.has_ended(from)
    {
        return Err(format!("shard {shard} goes from {from}, a member, to {to}"));
    }
    match to {
        Some(to) if !membership.is_member(to) => {
            Err(format!("shard {shard} goes to {to}, which is no member"))
        }
        _ => Ok(()),
    }
}

/// When nothing has gone wrong for a while.
pub(crate) fn rest(cluster: &Cluster) -> Result<(), String> {
    let membership = &cluster.store.membership;
    if membership.plan.is_some() {
        return Err(format!("a plan doesn't end: {:?}", membership.plan));
    }
    for node in &cluster.nodes {
        let member = membership.members.get(&node.run.node);
        let is_left = member.is_some_and(|it| it.standing == Standing::Left);
        if node.life == Life::Down && is_left {
            continue;
        }
        if !membership.is_member(node.run) {
            return Err(format!("{} doesn't become a member", node.run));
        }
        if member.is_some_and(|it| it.nsds_away) {
            return Err(format!("the NSDs of {} stay away", node.run));
        }
    }
    for (shard, record) in &cluster.store.shards {
        let owner = record.assigned.filter(|run| membership.is_member(*run));
        let owner = owner.ok_or_else(|| format!("shard {shard} has no owner: {record:?}"))?;
        if !cluster.serves(cluster.node(owner.node), *shard) {
            return Err(format!("{owner} doesn't serve shard {shard}"));
        }
    }
    Ok(())
}
