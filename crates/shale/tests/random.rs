//! Random operations through the kernel and the mount give the same results as the model.

use crate::fixture::Node;
use sim::action::{Action, Draw, Seen, Sizes, content, draw};
use std::{
    collections::BTreeMap,
    ffi::CString,
    fs::{self, File, OpenOptions},
    io::{Error, Result, Write},
    os::{
        fd::AsRawFd,
        unix::{ffi::OsStrExt, fs::FileExt, fs::PermissionsExt},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use testkit::model_fs::{Body, ModelFs, Number, ROOT};

const SIZES: Sizes = Sizes {
    names: 30,
    inodes: 200,
    file_bytes: 3_000_000,
    write_bytes: 400_000,
    sync_every: 60,
};

/// A path in the mount of one of the model's inodes.
fn path_of(model: &ModelFs, mnt: &Path, wanted: Number) -> PathBuf {
    fn find(model: &ModelFs, directory: Number, at: &Path, wanted: Number) -> Option<PathBuf> {
        for (name, number) in model.entries(directory) {
            let path = at.join(std::ffi::OsStr::from_bytes(name.as_bytes()));
            if number == wanted {
                return Some(path);
            }
            if matches!(model.inode(number).body, Body::Directory(..))
                && let Some(found) = find(model, number, &path, wanted)
            {
                return Some(found);
            }
        }
        None
    }
    if wanted == ROOT {
        mnt.to_path_buf()
    } else {
        find(model, ROOT, mnt, wanted).expect("the model's inodes have names")
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn checked(result: libc::c_int) -> Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error())
    }
}

fn write_open(path: &Path) -> Result<File> {
    OpenOptions::new().write(true).read(true).open(path)
}

/// Performs an action by system calls; paths are those before the action.
fn through_the_kernel(before: &ModelFs, mnt: &Path, action: &Action) -> Result<Seen> {
    let path = |number: Number| path_of(before, mnt, number);
    let child = |directory: Number, name: &model::FileName| {
        path(directory).join(std::ffi::OsStr::from_bytes(name.as_bytes()))
    };
    match action {
        Action::Create {
            directory,
            name,
            mode,
        } => {
            let path = child(*directory, name);
            let file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&path)?;
            file.set_permissions(fs::Permissions::from_mode(*mode))?;
            Ok(Seen::Made(0))
        }
        Action::MakeDirectory {
            directory, name, ..
        } => fs::create_dir(child(*directory, name)).map(|()| Seen::Made(0)),
        Action::MakeSymlink {
            directory,
            name,
            target,
        } => {
            std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(target), child(*directory, name))
                .map(|()| Seen::Made(0))
        }
        Action::Link {
            inode,
            directory,
            name,
        } => fs::hard_link(path(*inode), child(*directory, name)).map(|()| Seen::Done),
        Action::Unlink { directory, name } => {
            fs::remove_file(child(*directory, name)).map(|()| Seen::Done)
        }
        Action::RemoveDirectory { directory, name } => {
            fs::remove_dir(child(*directory, name)).map(|()| Seen::Done)
        }
        Action::Rename {
            from,
            to,
            replace,
            exchange,
        } => {
            let (old, new) = (c_path(&child(from.0, &from.1)), c_path(&child(to.0, &to.1)));
            let flags = if *exchange {
                libc::RENAME_EXCHANGE
            } else if *replace {
                0
            } else {
                libc::RENAME_NOREPLACE
            };
            // SAFETY: both strings live until the call returns.
            checked(unsafe {
                libc::renameat2(
                    libc::AT_FDCWD,
                    old.as_ptr(),
                    libc::AT_FDCWD,
                    new.as_ptr(),
                    flags,
                )
            })
            .map(|()| Seen::Done)
        }
        Action::Truncate { file, size } => write_open(&path(*file))?
            .set_len(*size as u64)
            .map(|()| Seen::Done),
        Action::SetMode { inode, mode } => {
            fs::set_permissions(path(*inode), fs::Permissions::from_mode(*mode))
                .map(|()| Seen::Done)
        }
        Action::SetXattr { inode, name, value } => {
            let (path, name) = (
                c_path(&path(*inode)),
                CString::new(name.as_slice()).unwrap(),
            );
            // SAFETY: the strings and the value live until the call returns.
            checked(unsafe {
                libc::setxattr(
                    path.as_ptr(),
                    name.as_ptr(),
                    value.as_ptr().cast(),
                    value.len(),
                    0,
                )
            })
            .map(|()| Seen::Done)
        }
        Action::RemoveXattr { inode, name } => {
            let (path, name) = (
                c_path(&path(*inode)),
                CString::new(name.as_slice()).unwrap(),
            );
            // SAFETY: the strings live until the call returns.
            checked(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) }).map(|()| Seen::Done)
        }
        Action::List { directory } => {
            let mut names = BTreeMap::new();
            for entry in fs::read_dir(path(*directory))? {
                let entry = entry?;
                let kind = entry.file_type()?;
                let kind = if kind.is_dir() {
                    model::FileKind::Directory
                } else if kind.is_symlink() {
                    model::FileKind::Symlink
                } else {
                    model::FileKind::File
                };
                names.insert(
                    model::FileName::new(entry.file_name().as_bytes()).unwrap(),
                    kind,
                );
            }
            Ok(Seen::Names(names))
        }
        Action::Fsync { inode } => {
            if matches!(before.inode(*inode).body, Body::Symlink(_)) {
                return Ok(Seen::Done);
            }
            File::open(path(*inode))?.sync_all().map(|()| Seen::Done)
        }
        Action::SyncAll => Ok(Seen::Done),
        _ => content_through_the_kernel(before, mnt, action),
    }
}

fn content_through_the_kernel(before: &ModelFs, mnt: &Path, action: &Action) -> Result<Seen> {
    let path = |number: Number| path_of(before, mnt, number);
    let allocate = |file: Number, how: libc::c_int, offset: usize, length: usize| {
        let file = write_open(&path(file))?;
        // SAFETY: fallocate takes a descriptor that `file` keeps open.
        checked(unsafe { libc::fallocate(file.as_raw_fd(), how, offset as i64, length as i64) })
            .map(|()| Seen::Done)
    };
    match action {
        Action::Write {
            file,
            offset,
            seed,
            length,
        } => write_open(&path(*file))?
            .write_all_at(&content(*seed, *length), *offset as u64)
            .map(|()| Seen::Done),
        Action::Append { file, seed, length } => {
            OpenOptions::new()
                .append(true)
                .open(path(*file))?
                .write_all(&content(*seed, *length))?;
            Ok(Seen::Count(before.bytes(*file).len()))
        }
        Action::Punch {
            file,
            offset,
            length,
        } => allocate(
            *file,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            *offset,
            *length,
        ),
        Action::Zero {
            file,
            offset,
            length,
        } => allocate(*file, libc::FALLOC_FL_ZERO_RANGE, *offset, *length),
        Action::Reserve {
            file,
            offset,
            length,
        } => allocate(*file, 0, *offset, *length),
        Action::CopyRange {
            from,
            from_offset,
            to,
            to_offset,
            length,
        } => {
            let (source, target) = (File::open(path(*from))?, write_open(&path(*to))?);
            let (mut at, mut to_at, mut done) = (*from_offset as i64, *to_offset as i64, 0);
            loop {
                // SAFETY: both descriptors are open and the offsets are ours.
                let step = unsafe {
                    libc::copy_file_range(
                        source.as_raw_fd(),
                        &raw mut at,
                        target.as_raw_fd(),
                        &raw mut to_at,
                        *length - done,
                        0,
                    )
                };
                if step < 0 {
                    return Err(Error::last_os_error());
                }
                done += step as usize;
                if step == 0 || done == *length {
                    return Ok(Seen::Count(done));
                }
            }
        }
        Action::Read {
            file,
            offset,
            length,
        } => {
            let file = File::open(path(*file))?;
            let mut out = vec![0; *length];
            let mut got = 0;
            loop {
                let step = file.read_at(&mut out[got..], (*offset + got) as u64)?;
                if step == 0 || got == *length {
                    out.truncate(got);
                    return Ok(Seen::Bytes(out));
                }
                got += step;
            }
        }
        other => unreachable!("{other:?} doesn't touch content"),
    }
}

fn agree(expected: &Seen, seen: &Result<Seen>) -> bool {
    match (expected, seen) {
        // The kernel makes some checks itself, in another order.
        (Seen::Refused(_), Err(error)) => error.raw_os_error() != Some(libc::EIO),
        (Seen::Made(_), Ok(Seen::Made(_))) => true,
        (expected, Ok(seen)) => expected == seen,
        (_, Err(_)) => false,
    }
}

#[test]
fn random_operations_through_the_mount_see_what_the_model_sees() {
    let steps = if std::env::var_os("SHALE_LONG").is_some() {
        200_000
    } else {
        8_000
    };
    let node = Node::new();
    let mut model = ModelFs::default();
    let mut chance = Draw::new(42);
    for step in 0..steps {
        let action = draw(&mut chance, &model, &SIZES);
        let seen = through_the_kernel(&model, &node.mnt, &action);
        let expected = action.on_model(&mut model);
        assert!(
            agree(&expected, &seen),
            "step {step} {action:?}: expected {}, saw {}",
            short(&format!("{expected:?}")),
            short(&format!("{seen:?}"))
        );
        if step == steps / 2 {
            node.must(&["down"]);
            node.must(&["up"]);
        }
    }
    for file in model.files() {
        assert!(
            &fs::read(path_of(&model, &node.mnt, file)).unwrap() == model.bytes(file),
            "content at the end"
        );
    }
    node.check();
}

/// Concurrent actors in the next test, each a process.
const ACTORS: u64 = 4;
/// Each actor owns every fourth piece of the shared file; pieces aren't page aligned.
const PIECE: usize = 3_001;
const PIECES: u64 = 200;

/// Work of one process: random operations in its own folder, and in between in its share of a file
/// and a directory used by all.
fn act(mnt: &Path, actor: u64, steps: u64) {
    let own = mnt.join(format!("actor{actor}"));
    fs::create_dir(&own).unwrap();
    let shared = OpenOptions::new()
        .read(true)
        .write(true)
        .open(mnt.join("shared"))
        .unwrap();
    let crowd = mnt.join("crowd");
    let (mut model, mut chance) = (ModelFs::default(), Draw::new(1_000 + actor));
    let mut pieces: BTreeMap<u64, u64> = BTreeMap::new();
    let mut names: BTreeMap<u64, u64> = BTreeMap::new();
    let at = |piece: u64| (piece * ACTORS + actor) * PIECE as u64;
    let name = |number: u64| crowd.join(format!("{actor}-{number}"));
    let holds = |piece: u64, seed: u64| {
        let mut found = vec![0; PIECE];
        shared.read_exact_at(&mut found, at(piece)).unwrap();
        assert!(
            found == content(seed, PIECE),
            "piece {piece} of actor {actor}"
        );
    };
    for step in 0..steps {
        let action = draw(&mut chance, &model, &SIZES);
        let seen = through_the_kernel(&model, &own, &action);
        let expected = action.on_model(&mut model);
        assert!(
            agree(&expected, &seen),
            "actor {actor}, step {step} {action:?}: expected {}, saw {}",
            short(&format!("{expected:?}")),
            short(&format!("{seen:?}"))
        );
        let (piece, number) = (chance.below(PIECES), chance.below(60));
        match chance.below(8) {
            0 => {
                shared
                    .write_all_at(&content(step, PIECE), at(piece))
                    .unwrap();
                pieces.insert(piece, step);
            }
            1 => {
                if let Some(seed) = pieces.get(&piece) {
                    holds(piece, *seed);
                }
            }
            // A name in the shared directory is replaced, moved or removed.
            2 => {
                fs::write(name(number), content(step, 500)).unwrap();
                names.insert(number, step);
            }
            3 if names.contains_key(&number) => {
                fs::rename(name(number), name(number + 60)).unwrap();
                let seed = names.remove(&number).unwrap();
                names.insert(number + 60, seed);
            }
            4 if names.contains_key(&(number + 60)) => {
                fs::remove_file(name(number + 60)).unwrap();
                names.remove(&(number + 60));
            }
            5 if step % 16 == 0 => {
                // Changes by others never hide one's own names.
                let mine = format!("{actor}-");
                let listed = fs::read_dir(&crowd).unwrap();
                let listed = listed.map(|entry| entry.unwrap().file_name().into_string().unwrap());
                let count = listed.filter(|name| name.starts_with(&mine)).count();
                assert_eq!(count, names.len(), "names of actor {actor} in the crowd");
            }
            6 if step % 64 == 0 => shared.sync_data().unwrap(),
            _ => {}
        }
    }
    for file in model.files() {
        let found = fs::read(path_of(&model, &own, file)).unwrap();
        assert!(&found == model.bytes(file), "content of actor {actor}");
    }
    for (piece, seed) in pieces {
        holds(piece, seed);
    }
    for (number, seed) in &names {
        assert!(fs::read(name(*number)).unwrap() == content(*seed, 500));
    }
}

/// The child process of the next test. Does nothing on its own.
#[test]
fn child_that_acts() {
    let Some(mnt) = std::env::var_os("SHALE_TEST_ACT_IN") else {
        return;
    };
    let number = |name: &str| std::env::var(name).unwrap().parse().unwrap();
    act(
        Path::new(&mnt),
        number("SHALE_TEST_ACTOR"),
        number("SHALE_TEST_STEPS"),
    );
}

#[test]
fn several_processes_at_once_each_see_what_their_model_sees() {
    let steps = if std::env::var_os("SHALE_LONG").is_some() {
        40_000
    } else {
        1_500
    };
    let node = Node::new();
    fs::create_dir(node.path("crowd")).unwrap();
    File::create(node.path("shared")).unwrap();
    let actors: Vec<_> = (0..ACTORS)
        .map(|actor| {
            Command::new("timeout")
                .arg("600")
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", "random::child_that_acts", "--nocapture"])
                .env("SHALE_TEST_ACT_IN", &node.mnt)
                .env("SHALE_TEST_ACTOR", actor.to_string())
                .env("SHALE_TEST_STEPS", steps.to_string())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for actor in actors {
        let output = actor.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert!(said.contains("1 passed"), "the actor acted: {said}");
    }
    assert!(fs::read_dir(node.path("crowd")).unwrap().count() > 10);
    node.check();
}

fn short(text: &str) -> String {
    text.chars().take(300).collect()
}
