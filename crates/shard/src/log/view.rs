//! Changes of the view, and trimming: all that needs a compare-and-set of the shard's record.

use super::{Log, Shared};
use crate::touch::{self, HEARD_MAX, VIEW_WAIT};
use coordination::{ClosedFragment, RootOwner, ShardRecord, Versioned};
use model::{EntryNumber, Error, ErrorKind, FamilyId, NsdId, Result};
use nsd::Handle;
use std::sync::Arc;
use std::time::Duration;
use world::call::Deadline;
use world::{Instant, Part, Point};

/// Most NSDs tried for one place in the view.
const CANDIDATES_MAX: usize = 4;
/// Time limit for a new member to get ready.
const PREPARE_DEADLINE: Duration = Duration::from_secs(2);
/// Time limit for an NSD to trim; on failure the next trim does it.
const TRIM_DEADLINE: Duration = Duration::from_secs(10);
/// Attempts to write a record when the outcome is unknown.
const WRITES_MAX: usize = 5;
const WRITE_PAUSE: Duration = Duration::from_millis(50);

/// Why the view changes.
#[derive(Clone)]
enum Cause {
    /// A failed member must be replaced.
    Faulty(NsdId, Error),
    /// A member that still answers must be replaced: its NSD is being given up.
    Leaving {
        leaving: NsdId,
        /// The view is large enough without it.
        is_spare: bool,
        /// When that was seen.
        found: Instant,
    },
    /// Members are missing and may be available again.
    Missing,
}

impl Log {
    /// Adds members if the view has fewer than `wanted` and the pool has NSDs for them.
    pub(crate) async fn widen(&self, wanted: usize) -> Result<()> {
        let (generation, view) = self.view_now();
        if view.len() >= wanted || self.shared.pool.log_replacement(&view, NO_NSD).is_none() {
            return Ok(());
        }
        self.shared
            .change_view_in_task(generation, Cause::Missing)
            .await?;
        Ok(())
    }

    /// The view and its generation; a change applies only to that generation.
    fn view_now(&self) -> (u64, Vec<NsdId>) {
        let state = self.shared.state.lock();
        let members = state.members.iter().map(|nsd| nsd.id());
        (state.generation, members.collect())
    }

    /// Replaces members whose NSDs are given up or failed, or in the failure group of another member's, if
    /// other NSDs are available. Members that a view of `wanted` doesn't need leave without: a pool whose
    /// scheme survives fewer losses than before may have no other NSD. One stays for now if the log would be on this node alone
    /// without it and nobody is known to hear this node: to be tried again.
    pub(crate) async fn leave_given_up(&self, wanted: usize) -> Result<()> {
        let (generation, view) = self.view_now();
        let takes_log = |nsd: &NsdId| self.shared.pool.takes_log(*nsd);
        let (good, given_up): (Vec<NsdId>, Vec<NsdId>) =
            view.iter().partition(|nsd| takes_log(nsd));
        let is_enough = good.len() >= wanted;
        // Not simply the first one: an NSD that can't take its place may be able to when another member has left.
        let has_other = |nsd: &NsdId| self.shared.pool.log_replacement(&view, *nsd).is_some();
        let mut given_up = given_up.into_iter();
        let given_up = given_up.find(|nsd| is_enough || has_other(nsd));
        let together = || {
            let mut together = self.shared.pool.log_together(&good).into_iter();
            together.find(has_other)
        };
        let is_spare = is_enough && given_up.is_some();
        let Some(leaving) = given_up.or_else(together) else {
            return Ok(());
        };
        let found = self.shared.world.now();
        self.shared.be_heard_without(&view, leaving, found).await;
        let cause = Cause::Leaving {
            leaving,
            is_spare,
            found,
        };
        self.shared.change_view_in_task(generation, cause).await?;
        Ok(())
    }

    /// The last entry held by an earlier view. Entries up to it lose copies when NSDs of that view
    /// are removed.
    #[must_use]
    pub fn closed_end(&self) -> Option<EntryNumber> {
        match self.shared.record.try_lock() {
            Ok(record) => record.value.closed.iter().map(|closed| closed.last).max(),
            // The record is being changed: the caller must ask again.
            Err(_) => Some(self.acknowledged()),
        }
    }

    /// Discards the entries below `below`, which replay no longer needs.
    pub(crate) async fn trim(&self, below: EntryNumber) -> Result<()> {
        let shared = &self.shared;
        let mut record = shared.record.lock().await;
        if below <= record.value.trimmed_below {
            return Ok(());
        }
        if let Some(error) = self.failed() {
            return Err(error);
        }
        let holders = record.value.log_holders();
        let change = |next: &mut ShardRecord| {
            next.trimmed_below = next.trimmed_below.max(below);
            next.closed.retain(|fragment| fragment.last >= below);
            // The newest end below the trim stays: it marks later entries of epochs up to it as
            // garbage.
            let keep_from = next
                .ended
                .iter()
                .rposition(|end| end.last < below)
                .unwrap_or(0);
            next.ended.drain(..keep_from);
        };
        shared.write_record(&mut record, None, change).await?;
        {
            let mut state = shared.state.lock();
            state.trimmed_below = below;
            while state.marks.len() > 1 && state.marks[1].number < below {
                state.marks.pop_front();
            }
        }
        drop(record);
        for nsd in holders
            .into_iter()
            .filter_map(|nsd| shared.pool.handle(nsd))
        {
            let deadline = Deadline::after(&shared.world, TRIM_DEADLINE);
            let trimmed = nsd.log_trim(shared.shard, shared.epoch, below, deadline);
            if let Err(error) = trimmed.await {
                tracing::info!(shard = %shared.shard, nsd = %nsd.id(), %error, "log not trimmed");
            }
        }
        Ok(())
    }

    /// Writes the marker into the record, once, after it is in the log.
    pub(crate) async fn record_marker(&self, marker: u128) -> Result<()> {
        let mut record = self.shared.record.lock().await;
        let change = |next: &mut ShardRecord| next.marker = marker;
        self.shared.write_record(&mut record, None, change).await
    }

    /// Whom the root directory of a family is for.
    ///
    /// # Errors
    /// Those of coordination.
    pub(crate) async fn root_owner_of(&self, family: FamilyId) -> Result<RootOwner> {
        self.shared.coordination.root_owner_of(family).await
    }

    /// Gives the shard one more family, in its record. Returns all of them.
    ///
    /// # Errors
    /// `Exists` if another shard has it; `OldEpoch` if another owner followed; those of coordination.
    pub(crate) async fn add_family(&self, family: FamilyId) -> Result<Vec<FamilyId>> {
        let mut record = self.shared.record.lock().await;
        if !record.value.families.contains(&family) {
            let change = |next: &mut ShardRecord| {
                if let Err(at) = next.families.binary_search(&family) {
                    next.families.insert(at, family);
                }
            };
            self.shared
                .write_record(&mut record, Some(family), change)
                .await?;
        }
        Ok(record.value.families.clone())
    }
}

/// No NSD has this id; passing it asks for an additional member instead of a replacement.
const NO_NSD: NsdId = NsdId(u32::MAX);

impl Shared {
    /// Replaces a member, if the view hasn't changed since it failed. False: it stays for now, because the log would be on this
    /// node alone and nobody is known to hear this node; to be tried again.
    pub(super) async fn replace(
        self: &Arc<Self>,
        generation: u64,
        faulty: NsdId,
        why: Error,
    ) -> Result<bool> {
        self.change_view_in_task(generation, Cause::Faulty(faulty, why))
            .await
    }

    /// Runs in its own task: a dropped caller must not leave the view half changed.
    async fn change_view_in_task(self: &Arc<Self>, generation: u64, cause: Cause) -> Result<bool> {
        let shared = self.clone();
        let (answer, wait) = tokio::sync::oneshot::channel();
        self.world
            .spawn("log-view", async move {
                let result = shared.change_view(generation, cause).await;
                let _gone = answer.send(result);
            })
            .detach();
        // Here: the task is on nobody's errand.
        let changed = self.world.listed(VIEW_WAIT, Part::Wait, wait).await;
        changed.map_err(|_| {
            Error::new(
                ErrorKind::ShuttingDown,
                "the log ended while its view changed",
            )
        })?
    }

    /// False: the view stays as it is for now ([`Self::replace`]).
    async fn change_view(&self, generation: u64, cause: Cause) -> Result<bool> {
        let found = match cause {
            Cause::Leaving { found, .. } => found,
            Cause::Faulty(..) | Cause::Missing => self.world.now(),
        };
        let mut record = self.record.lock().await;
        let first = {
            let mut state = self.state.lock();
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.generation != generation {
                return Ok(true);
            }
            // Found for another entry while this one waited.
            if matches!(cause, Cause::Faulty(..)) && state.kept.is_some_and(|kept| kept >= found) {
                return Ok(false);
            }
            state.view_changing = true;
            state.acknowledged.next()
        };
        let result = self.write_view(&mut record, &cause, first, found).await;
        let result = {
            let mut state = self.state.lock();
            state.view_changing = false;
            match result {
                Ok(Some(members)) => {
                    state.members = members.into();
                    state.generation += 1;
                    state.done.clear();
                    Ok(true)
                }
                Ok(None) => {
                    // One that is given up says nothing of another one that has failed.
                    if matches!(cause, Cause::Faulty(..)) {
                        state.kept = Some(self.world.now());
                    }
                    Ok(false)
                }
                Err(error) => Err(error),
            }
        };
        match (result, cause) {
            (Ok(is_other), _) => {
                self.moved.notify_waiters();
                Ok(is_other)
            }
            // Nothing was lost: the old view stays.
            (Err(error), Cause::Missing | Cause::Leaving { .. })
                if error.kind() != ErrorKind::OldEpoch =>
            {
                self.moved.notify_waiters();
                Err(error)
            }
            (Err(error), _) => {
                self.fail(error.clone());
                Err(error)
            }
        }
    }

    /// `None`: a member that was found to have failed, or to be given up, at `found` can't be left yet.
    async fn write_view(
        &self,
        record: &mut Versioned<ShardRecord>,
        cause: &Cause,
        first: EntryNumber,
        found: Instant,
    ) -> Result<Option<Vec<Arc<Handle>>>> {
        let old = record.value.view.clone();
        let faulty = match cause {
            Cause::Faulty(nsd, _) | Cause::Leaving { leaving: nsd, .. } => *nsd,
            Cause::Missing => NO_NSD,
        };
        let mut view: Vec<NsdId> = old.iter().copied().filter(|nsd| *nsd != faulty).collect();
        let mut asked = old.clone();
        for _ in 0..CANDIDATES_MAX {
            let Some(candidate) = self.pool.log_replacement(&asked, faulty) else {
                break;
            };
            if self.prepare(candidate, first).await? {
                view.push(candidate);
                break;
            }
            asked.push(candidate);
        }
        let needs_another = matches!(
            cause,
            Cause::Leaving {
                is_spare: false,
                ..
            }
        );
        if needs_another && view.len() < old.len() {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "no NSD is ready to take the place of one that leaves",
            ));
        }
        if view.is_empty() {
            let error = match cause {
                Cause::Faulty(_, why) => why.clone(),
                Cause::Missing | Cause::Leaving { .. } => {
                    Error::new(ErrorKind::Unavailable, "the view is empty")
                }
            };
            return Err(error.while_doing(format!(
                "keep the log of shard {}: no NSD is left for it",
                self.shard
            )));
        }
        if view == old {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "no NSD is ready to join the view",
            ));
        }
        if !self.may_go_on(cause, &old, &view, found).await? {
            let what = match cause {
                Cause::Leaving { .. } => "is given up",
                Cause::Faulty(..) | Cause::Missing => "doesn't answer",
            };
            tracing::info!(shard = %self.shard, ?old, ?view, "the log stays on an NSD that {what}: nobody is known to hear this node");
            return Ok(None);
        }
        match cause {
            Cause::Faulty(_, why) => {
                tracing::warn!(shard = %self.shard, ?old, ?view, %first, %why, "a member of the log's view is replaced");
            }
            Cause::Leaving { .. } => {
                tracing::info!(shard = %self.shard, ?old, ?view, %first, "the log leaves an NSD")
            }
            Cause::Missing => {
                tracing::info!(shard = %self.shard, ?old, ?view, %first, "the log's view grows")
            }
        }
        let change = |next: &mut ShardRecord| {
            if first > next.first_entry {
                next.closed.push(ClosedFragment {
                    view: old.clone(),
                    first: next.first_entry,
                    last: EntryNumber(first.0 - 1),
                });
            }
            next.view.clone_from(&view);
            next.first_entry = first;
        };
        self.world.at(Point::ViewChosen).await;
        if let Err(error) = self.write_record(record, None, change).await {
            // It is unknown which view is recorded, and a take-over may use the new one: nothing
            // more may be acknowledged on the old one. NoSpace means that nothing was written, by no attempt.
            if error.kind() != ErrorKind::NoSpace {
                self.fail(error.clone());
            }
            return Err(error);
        }
        self.world.at(Point::ViewRecorded).await;
        view.into_iter()
            .map(|nsd| {
                let missing = || {
                    Error::new(
                        ErrorKind::Unavailable,
                        format!("NSD {nsd} of the log's view can't be reached"),
                    )
                };
                self.pool.handle(nsd).ok_or_else(missing)
            })
            .collect::<Result<Vec<_>>>()
            .map(Some)
    }

    /// Gives the cluster time to hear this node, if the log may be on this node alone without that NSD. This is before the view
    /// begins to change: an NSD that is given up still takes entries, and they are acknowledged meanwhile.
    async fn be_heard_without(&self, view: &[NsdId], leaving: NsdId, since: Instant) {
        let rest: Vec<NsdId> = view.iter().copied().filter(|nsd| *nsd != leaving).collect();
        if touch::is_alone(&self.pool, view, &rest) {
            let heard = touch::heard(&self.world, &*self.touch, since);
            // Whether it was is looked at when the new view is known.
            let _known = self.world.timeout(HEARD_MAX, heard).await;
        }
    }

    /// Whether the log may go on with these NSDs because one was found, then, to have failed or to be given up: others can take
    /// the shard over from them, or the cluster has heard this node since.
    async fn may_go_on(
        &self,
        cause: &Cause,
        old: &[NsdId],
        new: &[NsdId],
        found: Instant,
    ) -> Result<bool> {
        if !touch::is_alone(&self.pool, old, new) {
            return Ok(true);
        }
        let patience = match cause {
            // It had the time already.
            Cause::Leaving { .. } => Duration::ZERO,
            Cause::Faulty(..) | Cause::Missing => HEARD_MAX,
        };
        let heard = touch::heard(&self.world, &*self.touch, found);
        match self.world.timeout(patience, heard).await {
            Ok(heard) => heard.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// Makes an NSD ready to be a member: it must refuse older owners and hold nothing from `first`
    /// on.
    async fn prepare(&self, nsd: NsdId, first: EntryNumber) -> Result<bool> {
        let Some(member) = self.pool.handle(nsd) else {
            return Ok(false);
        };
        let deadline = Deadline::after(&self.world, PREPARE_DEADLINE);
        let work = async {
            member.seal(self.shard, self.epoch, deadline).await?;
            let last = EntryNumber(first.0 - 1);
            member
                .log_discard(self.shard, self.epoch, last, deadline)
                .await
        };
        match work.await {
            Ok(()) => Ok(!member.needs_confirmation()),
            Err(error) if error.kind() == ErrorKind::OldEpoch => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Compare-and-set of the record. Others that write it are newer owners, which raise the epoch,
    /// and those who assign the shard. So a record of this epoch is this owner's, also one that it
    /// doesn't know: an earlier write whose outcome was unknown, or whose caller was dropped, may
    /// take effect late. Then the change is made to that record.
    ///
    /// `change` makes the change to any record of this epoch, and nothing to one that has it.
    /// `added` is the family that it adds.
    async fn write_record(
        &self,
        record: &mut Versioned<ShardRecord>,
        added: Option<FamilyId>,
        change: impl Fn(&mut ShardRecord),
    ) -> Result<()> {
        let mut last = None;
        for attempt in 0..WRITES_MAX {
            if attempt > 0 {
                self.world.sleep(WRITE_PAUSE).await;
            }
            let mut next = record.value.clone();
            change(&mut next);
            let set = match added {
                Some(family) => {
                    self.coordination
                        .add_family(record.version, &next, family)
                        .await
                }
                None => self.coordination.set_shard(record.version, &next).await,
            };
            match set {
                Ok(version) => {
                    *record = Versioned {
                        value: next,
                        version,
                    };
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Changed => {
                    match self.coordination.shard(self.shard).await {
                        Ok(Some(now)) if now.value.epoch == self.epoch => {
                            let mut changed = now.value.clone();
                            change(&mut changed);
                            let is_done = changed == now.value;
                            *record = now;
                            if is_done {
                                return Ok(());
                            }
                            last = Some(error);
                        }
                        Ok(_) => {
                            let error = format!(
                                "shard {} has a newer owner than epoch {}",
                                self.shard, self.epoch
                            );
                            let error = Error::new(ErrorKind::OldEpoch, error);
                            self.fail(error.clone());
                            return Err(error);
                        }
                        Err(error) => last = Some(error),
                    }
                }
                Err(error) if error.kind() == ErrorKind::Exists => return Err(error),
                Err(error) => last = Some(outcome(last, error)),
            }
        }
        let error = last.expect("at least one attempt was made");
        Err(error.while_doing(format!("change the record of shard {}", self.shard)))
    }
}

/// What is known of a write of the record when one more attempt at the same version has ended with `error`. What an attempt
/// `before` may have written, or may write late, it may still have when this one is refused.
fn outcome(before: Option<Error>, error: Error) -> Error {
    match before {
        Some(before) if !matches!(before.kind(), ErrorKind::NoSpace | ErrorKind::Changed) => before,
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would be broken if an owner whose first write of a view wasn't answered went on with the view before, because
    /// coordination was full when it tried again.
    #[test]
    fn a_write_that_may_have_been_made_is_not_refused_by_a_later_attempt() {
        use ErrorKind::{Changed, NoSpace, Unavailable};
        let cases: [(&[ErrorKind], ErrorKind); 4] = [
            (&[NoSpace, NoSpace], NoSpace),
            (&[Unavailable, NoSpace, NoSpace], Unavailable),
            (&[NoSpace, Unavailable], Unavailable),
            // The record has another version, so the attempts before are void.
            (&[Changed, NoSpace], NoSpace),
        ];
        for (attempts, known) in cases {
            let ended = |before, kind: &ErrorKind| Some(outcome(before, (*kind).into()));
            let ended = attempts.iter().fold(None, ended);
            assert_eq!(ended.map(|error| error.kind()), Some(known), "{attempts:?}");
        }
    }
}
