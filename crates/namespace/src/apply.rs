//! The entry point: runs an operation, once per number of a slot.

use crate::{
    Key, Need, Outcome, Record, Slot, Stop, View, attributes, entries, lifetime, listing, publish,
    ranges, rename, sessions, transaction::Transaction, view::Step, xattrs,
};
use model::{
    CommitNumber, Error, ErrorKind, Operation, Reply, limits::SESSION_SLOTS, operation::Stamp,
};
use std::sync::Arc;

/// Applies one operation to a view: returns the changed records and the reply. `commit` is the
/// number of the commit that the effects will belong to; new extents and segments carry it as their
/// birth.
///
/// # Errors
/// `Missing` names what to fetch before the operation is retried; `Refused` is the answer to an
/// operation that changes nothing.
pub fn apply(
    operation: &Operation,
    stamp: &Stamp,
    commit: CommitNumber,
    view: &impl View,
) -> Result<Outcome, Stop> {
    let mut tx = Transaction::new(view, stamp, commit);
    match stamp.slot {
        None => {
            let reply = run(&mut tx, operation)?;
            Ok(Outcome {
                effects: tx.finish(operation)?,
                reply,
            })
        }
        Some((slot, number)) => run_once(tx, operation, stamp, slot, number),
    }
}

/// Runs an operation unless its slot shows that it has already run.
fn run_once<V: View>(
    mut tx: Transaction<'_, V>,
    operation: &Operation,
    stamp: &Stamp,
    slot: u8,
    number: u64,
) -> Result<Outcome, Stop> {
    if slot >= SESSION_SLOTS {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("sessions have {SESSION_SLOTS} slots"),
        )
        .into());
    }
    let key = Key::Slot {
        session: stamp.session,
        slot,
    };
    let session = Key::Session(stamp.session);
    let (Some(standing), Some(last)) = (tx.known(&session), tx.known(&key)) else {
        // Names the operation's own needs too, so that fetching these costs no extra round.
        let mut needs = match run(&mut tx, operation) {
            Err(Stop::Missing(needs)) => needs,
            _ => Vec::new(),
        };
        let own = [session, key];
        needs.extend(
            own.into_iter()
                .filter(|key| tx.known(key).is_none())
                .map(Need::Key),
        );
        return Err(Stop::Missing(needs));
    };
    // An absent slot would take an operation that ran long ago for a new one.
    if !matches!(standing, Some(Record::Session(session)) if !session.ended) {
        return Err(sessions::ended(stamp.session).into());
    }
    let last = match last {
        Some(Record::Slot(slot)) => Some(slot),
        _ => None,
    };
    let last_number = last.as_ref().map_or(0, |slot| slot.number);
    if let Some(last) = last.filter(|last| last.number == number) {
        let reply = last.answer.clone()?;
        return Ok(Outcome {
            effects: crate::Effects::default(),
            reply,
        });
    }
    if number < last_number || number == 0 {
        let text = format!(
            "operation {number} of slot {slot} was answered and forgotten; the last is {last_number}"
        );
        return Err(Error::new(ErrorKind::Stale, text).into());
    }
    let record = |answer| Record::Slot(Arc::new(Slot { number, answer }));
    let done = run(&mut tx, operation).and_then(|reply| Ok((tx.finish(operation)?, reply)));
    match done {
        Ok((mut effects, reply)) => {
            effects.0.push((key, Some(record(Ok(reply.clone())))));
            Ok(Outcome { effects, reply })
        }
        // No answer yet: the host finishes what is in the way and runs the same number again.
        Err(Stop::Refused(error)) if error.kind() == ErrorKind::Busy => Err(error.into()),
        Err(Stop::Refused(error)) => {
            let effects = crate::Effects(vec![(key, Some(record(Err(error.clone()))))]);
            Err(Stop::RefusedInSlot(error, effects))
        }
        Err(stop) => Err(stop),
    }
}

fn run<V: View>(tx: &mut Transaction<'_, V>, operation: &Operation) -> Step<Reply> {
    match operation {
        Operation::Lookup { directory, name } => entries::lookup(tx, *directory, name),
        Operation::LookupParent { directory } => entries::lookup_parent(tx, *directory),
        Operation::GetAttributes { inode } => attributes::get(tx, *inode),
        Operation::SetAttributes { inode, set } => attributes::set(tx, *inode, set),
        Operation::ContinueCut { inode } => attributes::continue_cut(tx, *inode),
        Operation::Create {
            directory,
            name,
            new,
        } => entries::create(tx, *directory, name, new),
        Operation::CreateUnnamed { directory, new } => entries::create_unnamed(tx, *directory, new),
        Operation::Link {
            inode,
            directory,
            name,
        } => entries::link(tx, *inode, *directory, name),
        Operation::Unlink { directory, name } => entries::unlink(tx, *directory, name),
        Operation::RemoveDirectory { directory, name } => {
            entries::remove_directory(tx, *directory, name)
        }
        Operation::Rename {
            from_directory,
            from_name,
            to_directory,
            to_name,
            mode,
        } => rename::rename(
            tx,
            *from_directory,
            from_name,
            *to_directory,
            to_name,
            *mode,
        ),
        Operation::ReadDirectory {
            directory,
            after,
            limit,
            with_attributes,
        } => listing::read_directory(tx, *directory, *after, *limit, *with_attributes),
        Operation::ReadLink { inode } => entries::read_link(tx, *inode),
        Operation::GetXattr { inode, name } => xattrs::get(tx, *inode, name),
        Operation::ListXattrs { inode } => xattrs::list(tx, *inode),
        Operation::SetXattr {
            inode,
            name,
            value,
            mode,
            drop_setgid,
        } => xattrs::set(tx, *inode, name, value, *mode, *drop_setgid),
        Operation::RemoveXattr { inode, name } => xattrs::remove(tx, *inode, name),
        Operation::ReadExtents {
            inode,
            offset,
            length,
            limit,
        } => publish::read_extents(tx, *inode, *offset, *length, *limit),
        Operation::Publish(publish) => publish::publish(tx, publish),
        Operation::ChangeRange {
            inode,
            offset,
            length,
            change,
            keep_size,
        } => ranges::change_range(tx, *inode, *offset, *length, *change, *keep_size),
        Operation::Share {
            from,
            from_offset,
            to,
            to_offset,
            length,
        } => ranges::share(tx, *from, *from_offset, *to, *to_offset, *length),
        Operation::NoteAccess { inode, at } => attributes::note_access(tx, *inode, *at),
        Operation::Release { inode } => lifetime::release(tx, *inode),
        Operation::GetUsage { inode } => usage(tx, inode.fileset()),
        Operation::Reclaim { fileset, data } => lifetime::reclaim(tx, *fileset, *data),
        Operation::Condemn { places } => lifetime::condemn(tx, places),
        Operation::ForgetDead { segments } => lifetime::forget_dead(tx, segments),
    }
}

fn usage<V: View>(tx: &mut Transaction<'_, V>, fileset: model::FilesetId) -> Step<Reply> {
    match tx.get(&Key::Counters(fileset))? {
        Some(Record::Counters(counters)) => Ok(Reply::Usage {
            inodes: counters.inodes,
            logical: counters.logical,
            allocated: counters.allocated,
        }),
        _ => Err(Error::new(
            ErrorKind::NotFound,
            format!("fileset {fileset} has no counters"),
        )
        .into()),
    }
}
