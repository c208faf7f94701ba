//! Renames: moves, replaces and exchanges names.

use crate::{
    Inode, Key, View, counts, lifetime,
    names::{self, Found},
    transaction::{Transaction, touch, touch_content},
    view::Step,
};
use model::{
    Attributes, Error, ErrorKind, FileKind, FileName, InodeId, InodeNumber, Reply,
    operation::RenameMode,
};

/// Most ancestors of a directory's destination. The walk up runs under the shard's lock, and
/// directories can be nested without limit; a path of 4,096 bytes names half as many.
const ANCESTORS_MAX: u64 = 4096;

/// A name and the inode that it refers to.
#[derive(Clone, Copy)]
struct Place {
    directory: InodeId,
    position: u64,
    id: InodeId,
    kind: FileKind,
}

impl Place {
    fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

pub(crate) fn rename<V: View>(
    tx: &mut Transaction<'_, V>,
    from_directory: InodeId,
    from_name: &FileName,
    to_directory: InodeId,
    to_name: &FileName,
    mode: RenameMode,
) -> Step<Reply> {
    if from_directory.fileset() != to_directory.fileset() {
        return Err(ErrorKind::OtherFileset.into());
    }
    tx.ask(&Key::Counters(from_directory.fileset()));
    for (directory, name) in [(from_directory, from_name), (to_directory, to_name)] {
        tx.ask(&Key::Inode(directory));
        tx.ask(&names::head_key(directory, name));
    }
    tx.stop_if_missing()?;
    tx.directory(from_directory)?;
    tx.living_directory(to_directory)?;
    let Some(source) = place(tx, from_directory, from_name)? else {
        return Err(ErrorKind::NotFound.into());
    };
    let target = place(tx, to_directory, to_name)?;
    for place in [Some(source), target].into_iter().flatten() {
        tx.ask(&Key::Inode(place.id));
    }
    tx.stop_if_missing()?;
    for place in [Some(source), target].into_iter().flatten() {
        tx.named(place.id, place.kind)?;
    }
    match (mode, target) {
        (RenameMode::NoReplace, Some(_)) => Err(ErrorKind::Exists.into()),
        (RenameMode::Exchange, None) => Err(ErrorKind::NotFound.into()),
        (_, Some(target)) if target.id == source.id => {
            // Two names of one inode, or the same name twice: POSIX leaves both.
            let moved = tx.child(source.id)?.attributes(source.id);
            Ok(Reply::Renamed {
                moved,
                target: None,
                orphaned: false,
            })
        }
        (RenameMode::Exchange, Some(target)) => exchange(tx, source, target),
        (_, Some(target)) => replace(tx, source, target),
        (_, None) => move_to(tx, source, to_directory, to_name),
    }
}

fn move_to<V: View>(
    tx: &mut Transaction<'_, V>,
    source: Place,
    to_directory: InodeId,
    to_name: &FileName,
) -> Step<Reply> {
    refuse_loop(tx, source, to_directory)?;
    names::remove(tx, source.directory, source.position)?;
    names::insert(tx, to_directory, to_name, source.id.number(), source.kind)?;
    remove_name_from(tx, source.directory, source.is_directory())?;
    add_name_to(tx, to_directory, source.is_directory())?;
    let moved = moved(tx, source.id, to_directory)?;
    Ok(Reply::Renamed {
        moved,
        target: None,
        orphaned: false,
    })
}

fn replace<V: View>(tx: &mut Transaction<'_, V>, source: Place, target: Place) -> Step<Reply> {
    match (source.is_directory(), target.is_directory()) {
        (true, false) => return Err(ErrorKind::NotDirectory.into()),
        (false, true) => return Err(ErrorKind::IsDirectory.into()),
        _ => {}
    }
    refuse_loop(tx, source, target.directory)?;
    if tx.child(target.id)?.entries > 0 {
        return Err(ErrorKind::NotEmpty.into());
    }
    names::remove(tx, source.directory, source.position)?;
    names::replace(
        tx,
        target.directory,
        target.position,
        source.id.number(),
        source.kind,
    )?;
    remove_name_from(tx, source.directory, source.is_directory())?;
    // The target's name goes, the source's arrives.
    remove_name_from(tx, target.directory, target.is_directory())?;
    add_name_to(tx, target.directory, source.is_directory())?;
    let moved = moved(tx, source.id, target.directory)?;
    let (attributes, orphaned) = lifetime::drop_link(tx, target.directory, target.id)?;
    Ok(Reply::Renamed {
        moved,
        target: Some(attributes),
        orphaned,
    })
}

fn exchange<V: View>(tx: &mut Transaction<'_, V>, source: Place, target: Place) -> Step<Reply> {
    refuse_loop(tx, source, target.directory)?;
    refuse_loop(tx, target, source.directory)?;
    names::replace(
        tx,
        source.directory,
        source.position,
        target.id.number(),
        target.kind,
    )?;
    names::replace(
        tx,
        target.directory,
        target.position,
        source.id.number(),
        source.kind,
    )?;
    for (place, other) in [(source, target), (target, source)] {
        remove_name_from(tx, place.directory, place.is_directory())?;
        add_name_to(tx, other.directory, place.is_directory())?;
    }
    let attributes = moved(tx, target.id, source.directory)?;
    let moved = moved(tx, source.id, target.directory)?;
    Ok(Reply::Renamed {
        moved,
        target: Some(attributes),
        orphaned: false,
    })
}

fn place<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    name: &FileName,
) -> Step<Option<Place>> {
    Ok(match names::find(tx, directory, name)? {
        Found::At {
            position,
            inode,
            kind,
        } => Some(Place {
            directory,
            position,
            id: InodeId::new(directory.fileset(), inode),
            kind,
        }),
        Found::Absent => None,
    })
}

/// Refuses to move a directory into its own subtree. Asks for ancestors one by one; after a lookup
/// of the path they are in memory.
fn refuse_loop<V: View>(
    tx: &mut Transaction<'_, V>,
    moving: Place,
    to_directory: InodeId,
) -> Step<()> {
    if !moving.is_directory() || moving.directory == to_directory {
        return Ok(());
    }
    let mut at = to_directory;
    // Position at the last power of two of steps: reaching it again proves a cycle (Brent).
    let (mut mark, mut steps, mut steps_to_mark) = (None, 0u64, 1u64);
    loop {
        if mark == Some(at) {
            let text = format!("the ancestors of directory {to_directory} form a circle at {at}");
            return Err(counts::damaged(text));
        }
        steps += 1;
        if steps > ANCESTORS_MAX {
            let text = format!(
                "a directory moves only to places with at most {} directories above them",
                ANCESTORS_MAX
            );
            return Err(Error::new(ErrorKind::TooManyLinks, text).into());
        }
        if steps == steps_to_mark {
            mark = Some(at);
            steps_to_mark *= 2;
        }
        if at == moving.id {
            let text = "a directory can't be moved into its own subtree";
            return Err(Error::new(ErrorKind::InvalidArgument, text).into());
        }
        let parent = InodeId::new(at.fileset(), tx.child(at)?.parent);
        if parent == at {
            return Ok(());
        }
        at = parent;
    }
}

fn remove_name_from<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    is_directory: bool,
) -> Step<()> {
    change_directory(tx, directory, |inode| {
        counts::take_name(inode, directory, is_directory)
    })
}

fn add_name_to<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    is_directory: bool,
) -> Step<()> {
    change_directory(tx, directory, |inode| {
        inode.entries += 1;
        counts::add_link(&mut inode.links, is_directory)
    })
}

fn change_directory<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    change: impl FnOnce(&mut Inode) -> Step<()>,
) -> Step<()> {
    let now = tx.now;
    let inode = tx.inode_mut(directory)?;
    change(inode)?;
    touch_content(inode, now);
    Ok(())
}

/// Gives the moved inode a new ctime, and a directory its new parent.
fn moved<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    to_directory: InodeId,
) -> Step<Attributes> {
    let now = tx.now;
    let inode = tx.inode_mut(id)?;
    touch(inode, now);
    inode.parent = if inode.kind == FileKind::Directory {
        to_directory.number()
    } else {
        InodeNumber(0)
    };
    Ok(inode.attributes(id))
}
