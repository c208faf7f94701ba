//! Reads the tail of a log from the members that answer, finds its end and drops garbage.

use super::{Opening, away};
use crate::frame::{Header, open_entry};
use crate::log::IN_FLIGHT_MAX;
use bytes::Bytes;
use coordination::ShardRecord;
use model::{EntryNumber, Error, ErrorKind, NsdId, Result, ShardEpoch};
use nsd::Handle;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use world::Planted;
use world::call::Deadline;

/// Entries requested per read.
const READ_LIMIT: usize = nsd::LOG_READ_MAX;
/// Time limit of a read. A late NSD is then asked for one entry at a time, and if late again, for
/// no more: it may have stopped answering after the seal, and others have the same entries.
const READ_DEADLINE: Duration = Duration::from_secs(30);
/// An NSD with more damaged entries than this isn't read further.
const DAMAGED_MAX: usize = 1024;

/// The entries that replay needs.
pub(super) struct Tail {
    /// Without gaps, up to `end`.
    pub(super) entries: Vec<TailEntry>,
    /// The last entry of the log; later entries were never acknowledged.
    pub(super) end: EntryNumber,
    /// For members of the last view: from which entry on they were read, and which they have from there.
    held: BTreeMap<NsdId, (EntryNumber, BTreeSet<EntryNumber>)>,
    /// Every member of the view has all entries below this, unless it has lost one.
    sure_below: EntryNumber,
}

pub(super) struct TailEntry {
    pub(super) header: Header,
    /// The complete entry as stored on NSDs.
    pub(super) bytes: Bytes,
    pub(super) payload: Bytes,
}

impl Tail {
    pub(super) fn empty() -> Self {
        Self {
            entries: Vec::new(),
            end: EntryNumber(0),
            held: BTreeMap::new(),
            sure_below: EntryNumber(1),
        }
    }

    /// The entries that a member of the last view lacks, as far as it was read: unacknowledged ones, and those that are
    /// damaged there or were lost with its index. Without them the next take-over couldn't do with this member alone.
    pub(super) fn missing_on(&self, nsd: NsdId) -> Vec<(EntryNumber, Bytes)> {
        let nothing = (self.sure_below, BTreeSet::new());
        let (from, held) = self.held.get(&nsd).unwrap_or(&nothing);
        let missing = |entry: &&TailEntry| {
            entry.header.number >= *from && !held.contains(&entry.header.number)
        };
        self.entries
            .iter()
            .filter(missing)
            .map(|entry| (entry.header.number, entry.bytes.clone()))
            .collect()
    }
}

/// Reads everything that isn't trimmed, until a given time. Fails rather than leave out an
/// acknowledged entry.
pub(super) async fn read(
    opening: &Opening,
    record: &ShardRecord,
    answering: &[Arc<Handle>],
    until: Deadline,
) -> Result<Tail> {
    let mut found = BTreeMap::new();
    for fragment in &record.closed {
        let first = fragment.first.max(record.trimmed_below);
        // NSDs that answered the seal first: each of the others could delay the opening by a
        // minute.
        let mut view = fragment.view.clone();
        view.sort_by_key(|nsd| answering.iter().all(|member| member.id() != *nsd));
        for nsd in view.iter().filter_map(|nsd| opening.pool.handle(*nsd)) {
            if has_all(&found, first, fragment.last) {
                break;
            }
            collect(
                opening,
                record,
                &nsd,
                first,
                Some(fragment.last),
                &mut found,
                until,
            )
            .await?;
        }
    }
    let first = record.first_entry.max(record.trimmed_below);
    let mut held = BTreeMap::new();
    let mut members = Vec::with_capacity(answering.len());
    let mut sure_below = first;
    // The log of an NSD of this node needn't come through the network.
    let mut order: Vec<&Arc<Handle>> = answering.iter().collect();
    order.sort_by_key(|nsd| nsd.opened().is_none());
    for (at, nsd) in order.into_iter().enumerate() {
        // The first one is read completely. The others have the same entries except for those that
        // may have been in flight; they are read completely only if something is damaged.
        let from = if at == 0 || !has_all(&found, first, EntryNumber(sure_below.0 - 1)) {
            first
        } else {
            sure_below
        };
        let member = collect(opening, record, nsd, from, None, &mut found, until).await?;
        if at == 0 {
            let newest = member.numbers.last().copied().unwrap_or(first);
            // A young log has fewer entries than may be in flight.
            sure_below = first.max(EntryNumber(newest.0.saturating_sub(IN_FLIGHT_MAX)));
        }
        held.insert(nsd.id(), (from, member.numbers));
        members.push((member.damaged, member.unread));
    }
    let end = find_end(record, &found)?;
    check_end(&found, end, members)?;
    let kept = match opening.world.has_planted(Planted::ReplayShort) {
        true => found.len().saturating_sub(1),
        false => found.len(),
    };
    let entries = found
        .into_values()
        .take_while(|entry| entry.header.number <= end)
        .take(kept)
        .collect();
    Ok(Tail {
        entries,
        end,
        held,
        sure_below,
    })
}

/// Refuses an end that may be wrong. Every member of a view has all acknowledged entries, so a
/// member that was read to its end shows them, unless the following entries are damaged on all.
fn check_end(
    found: &BTreeMap<EntryNumber, TailEntry>,
    end: EntryNumber,
    members: Vec<(BTreeSet<EntryNumber>, Option<Error>)>,
) -> Result<()> {
    // Parts of an incomplete payload come after the end.
    let mut next = end.next();
    while found.contains_key(&next) {
        next = next.next();
    }
    let mut unread = None;
    let mut is_sure = false;
    for (damaged, error) in members {
        is_sure |= error.is_none() && !damaged.contains(&next);
        unread = unread.or(error);
    }
    if is_sure {
        return Ok(());
    }
    let why = unread.unwrap_or_else(|| {
        let text = "it was stored, and is damaged on every NSD that answers";
        Error::new(ErrorKind::Corrupt, text)
    });
    Err(why.while_doing(format!("read log entry {next}, which may be acknowledged")))
}

fn has_all(
    found: &BTreeMap<EntryNumber, TailEntry>,
    first: EntryNumber,
    last: EntryNumber,
) -> bool {
    last < first || found.range(first..=last).count() as u64 == last.0 - first.0 + 1
}

/// Result of reading one NSD.
struct Collected {
    /// The valid entries that it has.
    numbers: BTreeSet<EntryNumber>,
    /// Numbers of entries that it has but can't read.
    damaged: BTreeSet<EntryNumber>,
    /// Why it wasn't read to its end.
    unread: Option<Error>,
}

/// Adds the valid entries of one NSD in `first..=last`, and returns which it has. Entries of a
/// newer Shale are an error: skipping them would move the end and turn them into garbage.
async fn collect(
    opening: &Opening,
    record: &ShardRecord,
    nsd: &Arc<Handle>,
    first: EntryNumber,
    last: Option<EntryNumber>,
    found: &mut BTreeMap<EntryNumber, TailEntry>,
    until: Deadline,
) -> Result<Collected> {
    let mut numbers = BTreeSet::new();
    let mut damaged = BTreeSet::new();
    let mut unread = None;
    let mut from = first;
    let mut limit_max = READ_LIMIT;
    let mut limit = limit_max;
    while last.is_none_or(|last| from <= last) {
        let patience = READ_DEADLINE.min(until.rest(&opening.world));
        let deadline = Deadline::after(&opening.world, patience);
        let read = nsd.log_read(record.shard, from, limit, deadline).await;
        let is_late = matches!(&read, Err(error) if error.kind() == ErrorKind::Unknown);
        if is_late && limit > 1 && !until.has_passed(&opening.world) {
            (limit_max, limit) = (1, 1);
            continue;
        }
        let entries = match read.map_err(|error| away(nsd, error)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::Corrupt && damaged.len() < DAMAGED_MAX => {
                // Reads entries one by one around the damage; another member has the damaged ones.
                if limit == 1 {
                    damaged.insert(from);
                    from = from.next();
                }
                limit = 1;
                continue;
            }
            Err(error) => {
                tracing::warn!(shard = %record.shard, nsd = %nsd.id(), %from, %error, "log not read to its end");
                unread = Some(error);
                break;
            }
        };
        let Some(newest) = entries.last() else { break };
        // Behind the last of all numbers there is nothing to read.
        let next = newest.number.0.checked_add(1).map(EntryNumber);
        limit = limit_max;
        for entry in entries {
            let (header, payload) = match open_entry(&entry.bytes) {
                Ok(opened) => opened,
                Err(error) if error.kind() == ErrorKind::NotSupported => return Err(error),
                Err(_) => continue,
            };
            if header.number != entry.number
                || header.shard != record.shard
                || !is_valid(record, &header)
            {
                continue;
            }
            if last.is_some_and(|last| header.number > last) {
                break;
            }
            numbers.insert(header.number);
            found.entry(header.number).or_insert(TailEntry {
                header,
                bytes: entry.bytes,
                payload,
            });
        }
        match next {
            Some(next) => from = next,
            None => break,
        }
    }
    Ok(Collected {
        numbers,
        damaged,
        unread,
    })
}

/// Whether an entry's epoch may have written at its place: entries of ended epochs after their ends
/// are garbage.
fn is_valid(record: &ShardRecord, header: &Header) -> bool {
    let ended_before = record
        .ended
        .iter()
        .filter(|end| end.last < header.number)
        .map(|end| end.epoch)
        .max();
    let ended_after = record
        .ended
        .iter()
        .filter(|end| end.last >= header.number)
        .map(|end| end.epoch)
        .min();
    header.epoch > ended_before.unwrap_or(ShardEpoch(0))
        && ended_after.is_none_or(|epoch| header.epoch <= epoch)
}

/// The last entry before the first hole, if nothing acknowledged is in or after the hole.
fn find_end(record: &ShardRecord, found: &BTreeMap<EntryNumber, TailEntry>) -> Result<EntryNumber> {
    let mut end = EntryNumber(record.trimmed_below.0 - 1);
    for number in found
        .range(record.trimmed_below..)
        .map(|(number, _)| *number)
    {
        if number != end.next() {
            break;
        }
        end = number;
    }
    let known = found
        .values()
        .map(|entry| entry.header.acknowledged)
        .max()
        .unwrap_or(EntryNumber(0));
    let ended = record
        .ended
        .last()
        .map_or(EntryNumber(0), |ended| ended.last);
    let needed = known
        .max(ended)
        .max(record.trimmed_below)
        .max(EntryNumber(record.first_entry.0 - 1));
    if end < needed {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "log entry {} was acknowledged, but no NSD that answers has it whole (entries {} to {needed} are needed)",
                end.next(),
                record.trimmed_below
            ),
        ));
    }
    // Parts of an incomplete payload were never acknowledged.
    if let Some(newest) = found.get(&end)
        && newest.header.part + 1 < newest.header.parts
    {
        let cut = EntryNumber(end.0 - u64::from(newest.header.part) - 1);
        return Ok(cut.max(ended).max(EntryNumber(record.trimmed_below.0 - 1)));
    }
    Ok(end)
}
