//! The entry point: runs an operation, once per number of a slot or stream.

use crate::{
    Key, Need, Outcome, Record, Slot, Stop, View, attributes, entries, lifetime, listing, numbers,
    publish, ranges, rename, sessions, transaction::Transaction, view::Step, xattrs,
};
use model::{
    Error, ErrorKind, Operation, Reply,
    limits::SESSION_SLOTS,
    operation::{Rank, Stamp, Turn},
};
use std::sync::Arc;

/// Applies one operation to a view: returns the changed records and the reply. `rank` is where the
/// effects will be; new extents and segments carry its commit as their birth.
///
/// # Errors
/// `Missing` names what to fetch before the operation is retried; `Refused` is the answer to an
/// operation that changes nothing.
pub fn apply(
    operation: &Operation,
    stamp: &Stamp,
    rank: Rank,
    view: &impl View,
) -> Result<Outcome, Stop> {
    let mut tx = Transaction::new(view, stamp, rank.commit);
    let is_counted = matches!(stamp.turn, Turn::Slot { .. } | Turn::Stream { .. });
    if operation.is_read() == is_counted && stamp.turn != Turn::Own {
        let text = "changes are counted between nodes, and reads aren't";
        return Err(Error::new(ErrorKind::InvalidArgument, text).into());
    }
    match stamp.turn {
        Turn::Read | Turn::Own => {
            let reply = run(&mut tx, operation)?;
            Ok(Outcome {
                effects: tx.finish(operation)?,
                reply,
                before: None,
            })
        }
        Turn::Slot { slot, number } => {
            if slot >= SESSION_SLOTS {
                let text = format!("sessions have {SESSION_SLOTS} slots");
                return Err(Error::new(ErrorKind::InvalidArgument, text).into());
            }
            let session = stamp.session;
            let key = Key::Slot { session, slot };
            run_once(tx, operation, stamp, key, (number, rank))
        }
        Turn::Stream { number, .. } => {
            let key = Key::Stream(stamp.session);
            run_once(tx, operation, stamp, key, (number, rank))
        }
    }
}

/// Runs an operation unless the record of its slot or stream shows that it has already run.
fn run_once<V: View>(
    mut tx: Transaction<'_, V>,
    operation: &Operation,
    stamp: &Stamp,
    key: Key,
    (number, rank): (u64, Rank),
) -> Result<Outcome, Stop> {
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
    // An absent record would take an operation that ran long ago for a new one.
    if !matches!(standing, Some(Record::Session(session)) if !session.ended) {
        return Err(sessions::ended(stamp.session).into());
    }
    if let Some((reply, before)) = answered(&key, last, number)? {
        return Ok(Outcome {
            effects: crate::Effects::default(),
            reply,
            before,
        });
    }
    let is_stream = matches!(key, Key::Stream(_));
    let record = |answer| match is_stream {
        true => Record::Stream(number),
        false => Record::Slot(Arc::new(Slot {
            number,
            rank,
            answer,
        })),
    };
    let done = run(&mut tx, operation).and_then(|reply| Ok((tx.finish(operation)?, reply)));
    match done {
        Ok((mut effects, reply)) => {
            effects.0.push((key, Some(record(Ok(reply.clone())))));
            Ok(Outcome {
                effects,
                reply,
                before: None,
            })
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

/// The answer to a number that has been applied before, and where if that is known; `None` if it is
/// the next one.
fn answered(key: &Key, last: Option<Record>, number: u64) -> Step<Option<(Reply, Option<Rank>)>> {
    let refused = |text| Err(Error::new(ErrorKind::Stale, text).into());
    match last {
        Some(Record::Slot(last)) if last.number == number => {
            let reply = last.answer.clone().map_err(Stop::from)?;
            Ok(Some((reply, Some(last.rank))))
        }
        Some(Record::Slot(last)) if last.number > number => refused(format!(
            "operation {number} of {key:?} was answered and forgotten; the last is {}",
            last.number
        )),
        // Its client has answered it long ago.
        Some(Record::Stream(last)) if last >= number && number > 0 => Ok(Some((Reply::Done, None))),
        _ if number == 0 => refused(format!("the operations of {key:?} are counted from 1")),
        last if matches!(key, Key::Stream(_)) => match last {
            Some(Record::Stream(last)) if last + 1 == number => Ok(None),
            None if number == 1 => Ok(None),
            last => refused(format!(
                "operation {number} of {key:?} came before others; the last is {last:?}"
            )),
        },
        _ => Ok(None),
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
        }
        | Operation::CreateHeld {
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
        Operation::Reserve {
            inode,
            inodes: 0,
            data: 0,
        } => numbers::give_back(tx, *inode),
        Operation::Reserve {
            inode,
            inodes,
            data,
        } => numbers::reserve(tx, inode.fileset(), *inodes, *data),
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
