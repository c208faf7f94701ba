//! Inode numbers: handed out in runs per directory, so that a directory's inodes are neighbours.
//!
//! A number that an inode once had is never reused: programs and kernels identify inodes by it.
//! When a directory is removed, the unused rest of its run is reused.
//!
//! An owner that ended may have given more numbers than the records say, and told programs of them. So the next one uses no
//! rest of a run that it finds ([`View::first_number`]).
//!
//! A client that applies operations before the owner does takes numbers that it has *reserved*, and
//! names them in the operation: the owner, which applies it later, takes the same ones. A session's
//! reserved numbers are a record; a number leaves it when it is used, so none is used twice.

use crate::{
    Key, Record, Stop, View, counts,
    record::{Reserved, Run},
    transaction::Transaction,
    view::Step,
};
use model::{
    DataId, Error, ErrorKind, FileKind, FilesetId, InodeId, InodeNumber, Reply,
    limits::{RESERVED_MAX, RESERVED_RUNS_MAX},
};
use std::sync::Arc;

/// Length of a directory's first run and of its longest; each is twice the one before. Most
/// directories stay small, and 2^40 numbers must last for ever.
const RUN_FIRST: u32 = 4;
const RUN_MAX: u32 = 1024;

// Owners count on it that no operation moves the counter farther.
const _: () = assert!(RUN_MAX <= RESERVED_MAX);

/// Numbers from here on are for what is made with the owner's word only. Numbers that are reserved are lost with a session, or
/// if later ones are used first: a node with a fault could use all of them up, and nothing could be made any more.
const RESERVED_END: u64 = 1 << (InodeId::NUMBER_BITS - 1);

/// Set in every data id that an inode didn't get with its number.
const FRESH_DATA: u64 = 1 << 63;

/// Asks for what [`take`] reads besides the directory.
pub(crate) fn ask<V: View>(tx: &mut Transaction<'_, V>, fileset: FilesetId) {
    tx.ask(&Key::Counters(fileset));
    if tx.fresh.is_some() {
        tx.ask(&Key::Reserved {
            session: tx.session,
            fileset,
        });
    }
}

/// Takes the number for a new inode in a directory; counts the inode. The number is the next one of
/// the directory's run, or the one that the session has reserved and taken already.
pub(crate) fn take<V: View>(tx: &mut Transaction<'_, V>, directory: InodeId) -> Step<InodeNumber> {
    let counters = tx.counters_mut(directory.fileset())?;
    counters.inodes += 1;
    if let Some(fresh) = tx.fresh {
        let number = fresh.inode.ok_or_else(unnamed)?;
        use_up(tx, directory.fileset(), number.0, |all| &mut all.inodes)?;
        return Ok(number);
    }
    let own = tx.first_number(directory.fileset());
    let parent = tx.inode_mut(directory)?;
    // It has no run yet, or one of an owner before, used up or not.
    let is_not_own = parent.run_next < own;
    if is_not_own || parent.run_next == parent.run_end {
        // Runs grow anew under each owner. Otherwise each owner would take a long one for each large directory and use little
        // of it, and changes would wait again and again until so many numbers are durable.
        let before = if is_not_own { 0 } else { parent.run_length };
        let length = (before * 2).clamp(RUN_FIRST, RUN_MAX);
        parent.run_length = length;
        let counters = tx.counters_mut(directory.fileset())?;
        let first = counters.next_inode;
        let end = first + u64::from(length);
        if end >= 1 << InodeId::NUMBER_BITS {
            return Err(used_up());
        }
        counters.next_inode = end;
        let parent = tx.inode_mut(directory)?;
        parent.run_next = first;
        parent.run_end = end;
    }
    let parent = tx.inode_mut(directory)?;
    assert!(
        parent.run_next < parent.run_end,
        "an unfinished run has a number"
    );
    let number = InodeNumber(parent.run_next);
    parent.run_next += 1;
    if number == directory.number() {
        let text = format!("directory {directory} would hand out its own number");
        return Err(counts::damaged(text));
    }
    Ok(number)
}

/// Takes the data id for a file's next content.
pub(crate) fn take_data<V: View>(tx: &mut Transaction<'_, V>, fileset: FilesetId) -> Step<DataId> {
    if let Some(fresh) = tx.fresh {
        let data = fresh.data.ok_or_else(unnamed)?;
        if data.0 & FRESH_DATA == 0 {
            return Err(unreserved(data.0));
        }
        use_up(tx, fileset, data.0 & !FRESH_DATA, |all| &mut all.data)?;
        return Ok(data);
    }
    let counters = tx.counters_mut(fileset)?;
    let data = DataId(counters.next_data | FRESH_DATA);
    counters.next_data += 1;
    Ok(data)
}

/// Reserves numbers of a fileset for the session of the operation.
pub(crate) fn reserve<V: View>(
    tx: &mut Transaction<'_, V>,
    fileset: FilesetId,
    inodes: u32,
    data: u32,
) -> Step<Reply> {
    let refused = |text: &str| Err(Error::new(ErrorKind::InvalidArgument, text).into());
    if inodes > RESERVED_MAX || data > RESERVED_MAX {
        return refused("an operation reserves 1 to 1024 numbers of a kind");
    }
    let (key, mut all) = reserved_with_counters(tx, fileset)?;
    let runs = all.inodes.len().max(all.data.len());
    if runs >= RESERVED_RUNS_MAX {
        return refused("the session has too many unfinished runs of numbers: use those first");
    }
    let counters = tx.counters_mut(fileset)?;
    let (inode, first_data) = (counters.next_inode, counters.next_data);
    let (inodes_end, data_end) = (inode + u64::from(inodes), first_data + u64::from(data));
    if inodes > 0 && inodes_end > RESERVED_END {
        let text =
            "no more inode numbers of the fileset are reserved: half of them were handed out";
        return Err(Error::new(ErrorKind::NoSpace, text).into());
    }
    counters.next_inode = inodes_end;
    counters.next_data = data_end;
    for (runs, next, end) in [
        (&mut all.inodes, inode, inodes_end),
        (&mut all.data, first_data, data_end),
    ] {
        if next < end {
            runs.push(Run { next, end });
        }
    }
    tx.put(key, Record::Reserved(Arc::new(all)));
    Ok(Reply::Reserved {
        inode: InodeNumber(inode),
        inodes,
        first_data: DataId(first_data | FRESH_DATA),
        data,
    })
}

/// A session won't use what it has reserved of a run, from this number on. Nobody else gets these numbers unless they are the
/// newest of the fileset: no inode has had them.
pub(crate) fn give_back<V: View>(tx: &mut Transaction<'_, V>, from: InodeId) -> Step<Reply> {
    let (fileset, number) = (from.fileset(), from.number().0);
    let (key, mut all) = reserved_with_counters(tx, fileset)?;
    let at = run_of(&all.inodes, number)?;
    let run = &mut all.inodes[at];
    let end = std::mem::replace(&mut run.end, number);
    if run.next == number {
        all.inodes.remove(at);
    }
    let counters = tx.counters_mut(fileset)?;
    if counters.next_inode == end {
        counters.next_inode = number;
    }
    put_reserved(tx, key, all);
    Ok(Reply::Reserved {
        inode: InodeNumber(number),
        inodes: 0,
        first_data: DataId(FRESH_DATA),
        data: 0,
    })
}

/// Marks a reserved number as used, and those of its run before it as lost.
fn use_up<V: View>(
    tx: &mut Transaction<'_, V>,
    fileset: FilesetId,
    number: u64,
    kind: impl Fn(&mut Reserved) -> &mut Vec<Run>,
) -> Step<()> {
    let (key, mut all) = reserved(tx, fileset)?;
    let runs = kind(&mut all);
    let at = run_of(runs, number)?;
    runs[at].next = number + 1;
    if runs[at].next == runs[at].end {
        runs.remove(at);
    }
    put_reserved(tx, key, all);
    Ok(())
}

/// The run with an unused number.
fn run_of(runs: &[Run], number: u64) -> Step<usize> {
    let holds = |run: &Run| (run.next..run.end).contains(&number);
    let at = runs.iter().position(holds);
    at.ok_or_else(|| unreserved(number))
}

fn put_reserved<V: View>(tx: &mut Transaction<'_, V>, key: Key, all: Reserved) {
    match all.inodes.is_empty() && all.data.is_empty() {
        true => tx.delete(key),
        false => tx.put(key, Record::Reserved(Arc::new(all))),
    }
}

/// What the session of the operation has reserved of a fileset, and where that is written down.
fn reserved<V: View>(tx: &mut Transaction<'_, V>, fileset: FilesetId) -> Step<(Key, Reserved)> {
    let key = reserved_key(tx, fileset);
    let all = match tx.get(&key)? {
        Some(Record::Reserved(all)) => (*all).clone(),
        _ => Reserved::default(),
    };
    Ok((key, all))
}

/// As [`reserved`], for who changes the counters as well.
fn reserved_with_counters<V: View>(
    tx: &mut Transaction<'_, V>,
    fileset: FilesetId,
) -> Step<(Key, Reserved)> {
    tx.ask(&Key::Counters(fileset));
    tx.ask(&reserved_key(tx, fileset));
    tx.stop_if_missing()?;
    reserved(tx, fileset)
}

fn reserved_key<V: View>(tx: &Transaction<'_, V>, fileset: FilesetId) -> Key {
    Key::Reserved {
        session: tx.session,
        fileset,
    }
}

fn unnamed() -> Stop {
    let text = "an operation that its client has applied names the numbers that it took";
    Error::new(ErrorKind::InvalidArgument, text).into()
}

fn unreserved(number: u64) -> Stop {
    let text = format!("number {number} isn't reserved for the session, or was used before");
    Error::new(ErrorKind::InvalidArgument, text).into()
}

fn used_up() -> Stop {
    let text = "all inode numbers of the fileset are used up";
    Error::new(ErrorKind::NoSpace, text).into()
}

/// Called when a directory loses its name in `parent`: the unused rest of its run goes back to the
/// fileset if no later run was handed out, else to `parent`. One of an owner before is dropped.
pub(crate) fn return_run<V: View>(
    tx: &mut Transaction<'_, V>,
    parent_id: InodeId,
    id: InodeId,
) -> Step<()> {
    let inode = tx.inode(id)?;
    let (next, end) = (inode.run_next, inode.run_end);
    if inode.kind != FileKind::Directory || next == end {
        return Ok(());
    }
    if inode.parent != parent_id.number() {
        return Err(counts::damaged(format!(
            "directory {id} gives {} as its parent, but its name is in {parent_id}",
            inode.parent
        )));
    }
    let inode = tx.inode_mut(id)?;
    (inode.run_next, inode.run_end) = (0, 0);
    if next < tx.first_number(id.fileset()) {
        return Ok(());
    }
    let counters = tx.counters_mut(id.fileset())?;
    if counters.next_inode == end {
        counters.next_inode = next;
        return Ok(());
    }
    let parent = tx.inode_mut(parent_id)?;
    if parent.run_end == next {
        parent.run_end = end;
    } else if end == parent.run_next {
        parent.run_next = next;
    } else if end - next > parent.run_end - parent.run_next {
        // A directory has room for one run: it keeps the longer one; the shorter one is lost.
        (parent.run_next, parent.run_end) = (next, end);
    }
    Ok(())
}
