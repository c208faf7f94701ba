//! Take-over, which is how every shard is opened: raises the epoch, seals the log, finds its end,
//! copies it to the new view, records the old epoch's end, replays (`docs/design.md`).

pub(crate) mod budgets;
mod replay;
mod steps;
mod tail;

#[cfg(test)]
mod tests;
/// The same tests with all NSDs on another node.
#[cfg(test)]
#[allow(clippy::duplicate_mod, reason = "the same tests, a second time")]
#[path = "takeover/tests.rs"]
mod tests_by_call;

use budgets::{
    COPY_BUDGET, DISCARD_BUDGET, HEARD_BUDGET, JOIN_BUDGET, OPEN_BUDGET, RAISE_BUDGET, READ_BUDGET,
    RECORD_BUDGET, SEAL_BUDGET, SEAL_GRACE, within,
};
use replay::Replayed;

use crate::catalog::{self, Catalog};
use crate::frame::EntryKind;
use crate::log::{Clock, Log, Start, Stored, view_size};
use crate::memory::{ShardMemory, UnflushedLimit};
use crate::touch::{self, HEARD_WAIT, Touch};
use crate::tree::{Tree, TreeSetup};
use bytes::Bytes;
use coordination::{Coordination, EndedEpoch, FileSystem, NewFileSystem, ShardRecord, Versioned};
use futures::future::{join_all, try_join_all};
use futures::stream::{FuturesUnordered, StreamExt};
use model::nsd::{LOG_PUTS_BYTES, LOG_PUTS_MAX};
use model::{
    CommitNumber, EntryNumber, Error, ErrorKind, FamilyId, GroupId, NodeRun, NsdId, Result,
    SessionId, ShardEpoch, ShardId,
};
use nsd::Handle;
use pool::{Pool, SegmentSource};
use std::collections::BTreeMap;
use std::sync::Arc;
use steps::{Steps, Watch};
use tail::Tail;
use world::call::Deadline;
use world::{Instant, Part, Point, World};

/// Attempts to raise the epoch while others change the record too.
const RAISES_MAX: usize = 16;
/// Requests in flight to one NSD while the tail is copied: it makes entries of all durable together.
const COPY_WINDOW: usize = 4;

/// Everything needed to open a shard.
#[derive(Clone)]
pub struct Opening {
    /// The machine.
    pub world: World,
    /// The shard's id.
    pub shard: ShardId,
    /// The first family of a shard that is created; one that exists has those in its record.
    pub family: FamilyId,
    /// Stores the owner and the place of the log.
    pub coordination: Coordination,
    /// Stores the tables, and has the NSDs of the log.
    pub pool: Arc<Pool>,
    /// The memory of all shards of this process.
    pub memory: ShardMemory,
    /// This run of this node: the shard's record must name it.
    pub run: NodeRun,
    /// Whether the cluster hears this node.
    pub touch: Arc<dyn Touch>,
}

/// An open shard, without hot records.
pub struct Opened {
    /// This owner's epoch.
    pub epoch: ShardEpoch,
    /// The owner's session, new with each opening. Only tables are written in it.
    pub session: SessionId,
    /// The session of the owner before; 0 if this is the first.
    pub previous: SessionId,
    /// The log.
    pub log: Log,
    /// The catalog of tables.
    pub catalog: Catalog,
    /// The tree of records.
    pub tree: Arc<Tree>,
    /// The newest commit in the tree; 0 for a new shard. The next one must be higher.
    pub last_commit: CommitNumber,
    /// The families whose records it holds.
    pub families: Vec<FamilyId>,
    /// No record names a group of the pool below this, by the word of owners before.
    pub(crate) floor: GroupId,
    /// For rows that aren't in tables yet.
    pub(crate) unflushed: UnflushedLimit,
}

/// Creates an empty shard, assigned to this process.
///
/// # Errors
/// `Exists` if it exists, or if another shard has the family; `Unavailable` if the pool has no NSD for its
/// log.
pub(crate) async fn create(opening: &Opening) -> Result<()> {
    let record = first_record(opening, Some(opening.run))?;
    let created = opening.coordination.create_shard(&record).await;
    created.map_err(|error| error.while_doing(format!("create shard {}", opening.shard)))
}

/// Makes a file system that was drafted, with an empty shard for this run to take over, or for whom the
/// cluster's manager chooses.
///
/// # Errors
/// Those of [`Coordination::create_file_system`]; `Unavailable` also if the pool has no NSD for its log.
pub(crate) async fn create_file_system(
    opening: &Opening,
    new: &NewFileSystem,
    assigned: Option<NodeRun>,
) -> Result<FileSystem> {
    let record = first_record(opening, assigned)?;
    opening.coordination.create_file_system(new, &record).await
}

/// The record of a shard that is to be created.
fn first_record(opening: &Opening, assigned: Option<NodeRun>) -> Result<ShardRecord> {
    let view = opening.pool.log_view(view_size(&opening.pool))?;
    Ok(ShardRecord {
        shard: opening.shard,
        families: vec![opening.family],
        assigned,
        epoch: ShardEpoch(0),
        owner: SessionId(0),
        view,
        first_entry: EntryNumber(1),
        closed: Vec::new(),
        ended: Vec::new(),
        trimmed_below: EntryNumber(1),
        marker: 0,
    })
}

/// The owners that a process knows to be its own, from a shard that it gave up until it takes it
/// over again. It may do so only if no other owner began meanwhile: what it has in memory besides
/// the records (opens, locks, answers that aren't durable) is void then.
pub(crate) struct Lineage {
    /// The sessions of its owners and attempts; the outcome of an attempt may be unknown. `None`: it
    /// had no owner, so anyone may have been before it.
    ours: Option<Vec<SessionId>>,
}

/// Most attempts remembered while their outcomes are unknown. Of more, the oldest are forgotten:
/// they were decided long ago.
const LINEAGE_MAX: usize = 64;

impl Lineage {
    /// Begins with an owner of this process, or with none.
    pub(crate) fn new(owner: Option<SessionId>) -> Self {
        Self {
            ours: owner.map(|owner| vec![owner]),
        }
    }

    /// Notes the owner that an attempt found in the record, and the attempt. False if another owner
    /// came in between: the attempt must not be made.
    #[must_use]
    fn attempt(&mut self, found: SessionId, session: SessionId) -> bool {
        let Some(ours) = &mut self.ours else {
            return true;
        };
        if !ours.contains(&found) {
            return false;
        }
        if !ours.contains(&session) {
            if ours.len() >= LINEAGE_MAX {
                ours.drain(..LINEAGE_MAX / 2);
                ours.push(found);
            }
            ours.push(session);
        }
        true
    }

    /// Notes that an attempt succeeded: the record names no earlier session any more.
    fn succeeded(&mut self, session: SessionId) {
        self.ours = Some(vec![session]);
    }
}

/// Takes a shard over and opens it. Afterwards every acknowledged commit is in the tree, and the
/// previous owner can't write any more.
///
/// # Errors
/// `NotFound`: it was never created. `Unavailable`: no NSD of its log answers now, or a step took
/// longer than its budget. `OldEpoch`: the shard's record names another process, or another process
/// took it over meanwhile. `Superseded`: another owner served it since this process gave it up.
/// `Corrupt`: acknowledged entries are gone.
pub(crate) async fn open(opening: Opening, lineage: &mut Lineage) -> Result<Opened> {
    let story = |error: Error| error.while_doing(format!("take over shard {}", opening.shard));
    take(&opening, lineage).await.map_err(story)
}

async fn take(opening: &Opening, lineage: &mut Lineage) -> Result<Opened> {
    let settled = settle(opening, lineage).await?;
    opening.world.at(Point::EndRecorded).await;
    discard_rest(opening, &settled).await?;
    opening.world.at(Point::RestDiscarded).await;
    start(opening, settled).await
}

/// A log whose earlier owners can't write any more, with its end recorded.
struct Settled {
    session: SessionId,
    previous: SessionId,
    record: Versioned<ShardRecord>,
    /// The view; each member has every entry up to the end.
    members: Vec<Arc<Handle>>,
    tail: Tail,
    steps: Steps,
}

async fn settle(opening: &Opening, lineage: &mut Lineage) -> Result<Settled> {
    let began = opening.world.now();
    let mut watch = Watch::new(&opening.world);
    let raise = raise_epoch(opening, lineage);
    let (session, previous, record) =
        within(&opening.world, RAISE_BUDGET, "raise its epoch", raise).await?;
    let raise = watch.step();
    opening.world.at(Point::EpochRaised).await;
    let answering = seal(opening, &record.value).await?;
    let seal = watch.step();
    opening.world.at(Point::LogSealed).await;
    let tail = if record.value.marker == 0 {
        // The first owner never reported the shard as open: all entries are garbage.
        Tail::empty()
    } else {
        let until = Deadline::after(&opening.world, READ_BUDGET);
        tail::read(opening, &record.value, &answering, until).await?
    };
    let read = watch.step();
    opening.world.at(Point::TailRead).await;
    let members = make_whole(opening, &record.value, answering, &tail).await?;
    let copy = watch.step();
    opening.world.at(Point::TailCopied).await;
    be_heard(opening, &record.value.view, &members, began).await?;
    let record = record_end(opening, record, &members, tail.end);
    let record = within(&opening.world, RECORD_BUDGET, "record its end", record).await?;
    let steps = Steps {
        raise,
        seal,
        read,
        copy,
        record: watch.step(),
    };
    Ok(Settled {
        session,
        previous,
        record,
        members,
        tail,
        steps,
    })
}

/// A log that was on another node's NSDs goes on with those of this node alone only if the cluster has heard this node since
/// then: nobody could take the shard over from a node that nobody reaches.
async fn be_heard(
    opening: &Opening,
    old: &[NsdId],
    members: &[Arc<Handle>],
    since: Instant,
) -> Result<()> {
    let new: Vec<NsdId> = members.iter().map(|member| member.id()).collect();
    if !touch::is_alone(&opening.pool, old, &new) {
        return Ok(());
    }
    let (world, step) = (&opening.world, "be heard by the cluster");
    let heard = touch::heard(world, &*opening.touch, since);
    let heard = world.listed(HEARD_WAIT, Part::Wait, heard);
    within(world, HEARD_BUDGET, step, heard).await
}

/// Removes the entries after the end from the view. A newer owner may have written there meanwhile:
/// NSDs that it sealed refuse this.
async fn discard_rest(opening: &Opening, settled: &Settled) -> Result<()> {
    let Settled {
        record,
        members,
        tail,
        steps,
        ..
    } = settled;
    let mut watch = Watch::new(&opening.world);
    let epoch = record.value.epoch;
    let deadline = Deadline::after(&opening.world, DISCARD_BUDGET);
    let discards = members.iter().map(async |member| {
        let discarded = member.log_discard(opening.shard, epoch, tail.end, deadline);
        discarded.await.map_err(|error| away(member, error))
    });
    try_join_all(discards).await?;
    let discard = watch.step();
    let bytes: usize = tail.entries.iter().map(|entry| entry.bytes.len()).sum();
    tracing::info!(
        shard = %opening.shard, %epoch, end = %tail.end, entries = tail.entries.len(), view = ?record.value.view,
        bytes, raise_ms = steps.raise, seal_ms = steps.seal, read_ms = steps.read, copy_ms = steps.copy,
        record_ms = steps.record, discard_ms = discard, "shard taken over"
    );
    Ok(())
}

async fn start(opening: &Opening, settled: Settled) -> Result<Opened> {
    let Settled {
        session,
        previous,
        record,
        members,
        tail,
        ..
    } = settled;
    let mut watch = Watch::new(&opening.world);
    let (marker, trimmed_below) = (record.value.marker, record.value.trimmed_below);
    let stored = tail.entries.iter().map(|entry| Stored {
        number: entry.header.number,
        bytes: entry.bytes.len() as u64,
        time: entry.header.time,
    });
    let stored = stored.collect();
    let end = tail.end;
    let replayed = replay::replay(opening.shard, marker, tail)?;
    let commits = replayed.commits.len();
    let decode = watch.step();
    let clock = Arc::new(Clock::new(opening.world.clone(), replayed.newest_time));
    let families = record.value.families.clone();
    let log = Log::start(Start {
        world: opening.world.clone(),
        coordination: opening.coordination.clone(),
        pool: opening.pool.clone(),
        touch: opening.touch.clone(),
        record,
        members,
        end,
        last_commit: replayed.last_commit,
        clock,
        stored,
    });
    let owners = (session, previous);
    let opened = open_tree(
        opening,
        &log,
        end,
        trimmed_below,
        owners,
        families,
        replayed,
    );
    let opened = within(&opening.world, OPEN_BUDGET, "open its tree", opened).await;
    if let Err(error) = &opened {
        // What goes on in the background must not write any more.
        log.end(error.clone());
    } else {
        let open = watch.step();
        tracing::info!(shard = %opening.shard, commits, decode_ms = decode, open_ms = open, "the tree of the shard is open");
    }
    opened
}

/// Opens the tree on a log that nothing was appended to yet.
async fn open_tree(
    opening: &Opening,
    log: &Log,
    end: EntryNumber,
    trimmed_below: EntryNumber,
    (session, previous): (SessionId, SessionId),
    families: Vec<FamilyId>,
    replayed: Replayed,
) -> Result<Opened> {
    let epoch = log.epoch();
    let mut state = replayed.catalog;
    if state.marker == 0 {
        // Never 0, which means "no marker yet".
        state.marker = (u128::from(opening.world.random_u64()) << 64) | u128::from(epoch.0);
        log.append(EntryKind::Marker, &state.marker.to_le_bytes())
            .await?;
        log.record_marker(state.marker).await?;
    }
    let segments = Arc::new(SegmentSource::new(session));
    // After the epoch was raised: no owner before can say anything new.
    let floor = opening.coordination.floor(opening.shard).await?;
    let catalog = Catalog::new(catalog::Setup {
        world: opening.world.clone(),
        log: log.clone(),
        pool: opening.pool.clone(),
        segments,
        // Any of them: what is of the shard itself carries the oldest.
        family: families[0],
        state,
        snapshot: replayed.snapshot,
        floor,
    });
    let unflushed = opening.memory.unflushed_limit();
    let tree = Tree::open(TreeSetup {
        world: opening.world.clone(),
        log: log.clone(),
        catalog: catalog.clone(),
        pool: opening.pool.clone(),
        cache: opening.memory.tables().clone(),
        unflushed_bytes: unflushed.bytes(),
        commits: replayed.commits,
        end,
        trimmed_below,
    })
    .await?;
    Ok(Opened {
        epoch,
        session,
        previous,
        log: log.clone(),
        catalog,
        tree: Arc::new(tree),
        last_commit: replayed.last_commit,
        families,
        floor,
        unflushed,
    })
}

/// Raises the epoch under a new session, if the record names this process. Returns that session,
/// the one of the owner before, and the record.
async fn raise_epoch(
    opening: &Opening,
    lineage: &mut Lineage,
) -> Result<(SessionId, SessionId, Versioned<ShardRecord>)> {
    let session = opening.coordination.next_session().await?;
    for _ in 0..RAISES_MAX {
        let missing = || Error::new(ErrorKind::NotFound, "it was never created");
        let record = opening
            .coordination
            .shard(opening.shard)
            .await?
            .ok_or_else(missing)?;
        let mut next = record.value;
        if next.assigned != Some(opening.run) {
            return Err(not_assigned(opening, next.assigned));
        }
        let previous = next.owner;
        if !lineage.attempt(previous, session) {
            let text = "another owner came in between: this process must open it anew";
            return Err(Error::new(ErrorKind::Superseded, text));
        }
        next.epoch = next.epoch.next();
        next.owner = session;
        match opening.coordination.set_shard(record.version, &next).await {
            Ok(version) => {
                lineage.succeeded(session);
                let record = Versioned {
                    value: next,
                    version,
                };
                return Ok((session, previous, record));
            }
            Err(error) if error.kind() == ErrorKind::Changed => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::new(
        ErrorKind::Busy,
        "its record was changed by others at the same time",
    ))
}

fn not_assigned(opening: &Opening, assigned: Option<NodeRun>) -> Error {
    let text = match assigned {
        Some(other) => format!("it is assigned to run {other}, not to {}", opening.run),
        None => "it is assigned to nobody".to_string(),
    };
    Error::new(ErrorKind::OldEpoch, text)
}

/// Seals the members that answer at about the same time as the first. One is enough, since each has
/// all acknowledged entries.
async fn seal(opening: &Opening, record: &ShardRecord) -> Result<Vec<Arc<Handle>>> {
    let mut last = Error::new(
        ErrorKind::Unavailable,
        format!("no NSD of its log is reached: {:?}", record.view),
    );
    let deadline = Deadline::after(&opening.world, SEAL_BUDGET);
    let mut until = deadline;
    let reached = record
        .view
        .iter()
        .filter_map(|nsd| opening.pool.handle(*nsd));
    let mut waiting: BTreeMap<usize, Arc<Handle>> = reached.enumerate().collect();
    let mut answering = BTreeMap::new();
    let mut seals: FuturesUnordered<_> = waiting
        .iter()
        .map(|(at, member)| {
            let (at, member) = (*at, member.clone());
            async move { (at, seal_one(opening, record, &member, deadline).await) }
        })
        .collect();
    loop {
        let Ok(Some((at, sealed))) = until.bound(&opening.world, seals.next()).await else {
            break;
        };
        let member = waiting.remove(&at).expect("each is sealed once");
        match sealed {
            Ok(()) => {
                if answering.is_empty() {
                    until = Deadline::after(&opening.world, SEAL_GRACE);
                }
                answering.insert(at, member);
            }
            Err(error) if error.kind() == ErrorKind::OldEpoch => return Err(error),
            Err(error) => last = left_out(opening, &member, error),
        }
    }
    for member in waiting.values() {
        last = left_out(opening, member, no_answer(member));
    }
    if answering.is_empty() {
        Err(last)
    } else {
        Ok(answering.into_values().collect())
    }
}

fn left_out(opening: &Opening, member: &Arc<Handle>, error: Error) -> Error {
    tracing::warn!(shard = %opening.shard, nsd = %member.id(), %error, "a member of the log is left out");
    error
}

fn no_answer(member: &Arc<Handle>) -> Error {
    let text = format!("NSD {} doesn't answer", member.id());
    Error::new(ErrorKind::Unavailable, text)
}

async fn seal_one(
    opening: &Opening,
    record: &ShardRecord,
    member: &Arc<Handle>,
    deadline: Deadline,
) -> Result<()> {
    let sealed = member.seal(opening.shard, record.epoch, deadline).await;
    sealed.map_err(|error| away(member, error))?;
    let confirmed = deadline.bound(&opening.world, confirm(opening, member, deadline));
    confirmed.await.unwrap_or_else(|_| Err(no_answer(member)))
}

/// The error of a member whose answer didn't come: as if it weren't there.
fn away(member: &Arc<Handle>, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unknown => no_answer(member),
        _ => error,
    }
}

/// An NSD whose index was rebuilt has lost the seals; coordination has all epochs.
async fn confirm(opening: &Opening, member: &Arc<Handle>, deadline: Deadline) -> Result<()> {
    if !member.needs_confirmation() {
        return Ok(());
    }
    let shards = opening.coordination.shards().await?;
    let epochs: Vec<(ShardId, ShardEpoch)> = shards
        .iter()
        .map(|record| (record.shard, record.epoch))
        .collect();
    let confirmed = member.confirm_epochs(&epochs, deadline).await;
    confirmed.map_err(|error| away(member, error))
}

/// The members of the new view, each with every entry of its fragment that replay needs: the
/// members that answered, and replacements for those that didn't.
async fn make_whole(
    opening: &Opening,
    record: &ShardRecord,
    answering: Vec<Arc<Handle>>,
    tail: &Tail,
) -> Result<Vec<Arc<Handle>>> {
    let mut members = Vec::new();
    let deadline = Deadline::after(&opening.world, COPY_BUDGET);
    let copies = answering.iter().map(|member| {
        let missing = tail.missing_on(member.id());
        copy(opening, record, member, missing, deadline)
    });
    let copies = join_all(copies).await;
    for (member, copied) in answering.iter().zip(copies) {
        match copied {
            Ok(()) => members.push(member.clone()),
            Err(error) if error.kind() == ErrorKind::OldEpoch => return Err(error),
            Err(error) => drop(left_out(opening, member, error)),
        }
    }
    let deadline = Deadline::after(&opening.world, JOIN_BUDGET);
    let mut asked: Vec<NsdId> = record.view.clone();
    while members.len() < view_size(&opening.pool) {
        let Some(candidate) = opening.pool.log_replacement(&asked, NsdId(u32::MAX)) else {
            break;
        };
        asked.push(candidate);
        let Some(nsd) = opening.pool.handle(candidate) else {
            continue;
        };
        let all = tail
            .entries
            .iter()
            .filter(|entry| entry.header.number >= record.first_entry);
        let all = all
            .map(|entry| (entry.header.number, entry.bytes.clone()))
            .collect();
        let joined = async {
            seal_one(opening, record, &nsd, deadline).await?;
            copy(opening, record, &nsd, all, deadline).await
        };
        match joined.await {
            Ok(()) => members.push(nsd),
            Err(error) if error.kind() == ErrorKind::OldEpoch => return Err(error),
            Err(error) => {
                tracing::warn!(shard = %opening.shard, nsd = %candidate, %error, "an NSD can't join the log")
            }
        }
    }
    if members.is_empty() {
        return Err(Error::new(ErrorKind::Unavailable, "no NSD takes its log"));
    }
    Ok(members)
}

async fn copy(
    opening: &Opening,
    record: &ShardRecord,
    nsd: &Arc<Handle>,
    entries: Vec<(EntryNumber, Bytes)>,
    deadline: Deadline,
) -> Result<()> {
    let mut copies = FuturesUnordered::new();
    for batch in batches(entries) {
        copies.push(nsd.log_puts(opening.shard, record.epoch, batch, deadline));
        if copies.len() >= COPY_WINDOW
            && let Some(copied) = copies.next().await
        {
            copied.map_err(|error| away(nsd, error))?;
        }
    }
    while let Some(copied) = copies.next().await {
        copied.map_err(|error| away(nsd, error))?;
    }
    Ok(())
}

/// Entries as requests put them together: one by one they would cost a message each, and a write of the journal for every few.
fn batches(entries: Vec<(EntryNumber, Bytes)>) -> Vec<Vec<(EntryNumber, Bytes)>> {
    let mut batches: Vec<Vec<(EntryNumber, Bytes)>> = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        let length = entry.1.len();
        match batches.last_mut() {
            Some(batch) if batch.len() < LOG_PUTS_MAX && bytes < LOG_PUTS_BYTES => {
                bytes += length;
                batch.push(entry);
            }
            _ => {
                bytes = length;
                batches.push(vec![entry]);
            }
        }
    }
    batches
}

/// Fixes what the old epoch has written. The view is recorded with it: every member has everything
/// up to the end.
async fn record_end(
    opening: &Opening,
    record: Versioned<ShardRecord>,
    members: &[Arc<Handle>],
    end: EntryNumber,
) -> Result<Versioned<ShardRecord>> {
    let mut next = record.value;
    let ended = EndedEpoch {
        epoch: ShardEpoch(next.epoch.0 - 1),
        last: end,
    };
    match next.ended.last_mut() {
        // Epochs that wrote nothing are merged: an owner that can't open a shard retries for long.
        Some(newest) if newest.last == end => *newest = ended,
        _ => next.ended.push(ended),
    }
    next.view = members.iter().map(|nsd| nsd.id()).collect();
    match opening.coordination.set_shard(record.version, &next).await {
        Ok(version) => Ok(Versioned {
            value: next,
            version,
        }),
        Err(error) if error.kind() == ErrorKind::Changed => Err(Error::new(
            ErrorKind::OldEpoch,
            format!("epoch {} has a newer owner", next.epoch),
        )),
        Err(error) => Err(error),
    }
}
