//! POSIX semantics that programs rely on, through the kernel and the mount: sizes, holes,
//! reservations, shared copies, handles, limits.

use crate::fixture::{self, Node, open, pattern};
use std::{
    ffi::{CString, OsStr},
    fs::{self, File, OpenOptions},
    io::Error,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
        },
    },
    path::Path,
    process::Command,
};

const MIB: u64 = 1 << 20;

fn errno(result: std::io::Result<impl std::fmt::Debug>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

fn checked(result: i64) -> std::io::Result<i64> {
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn fallocate(file: &File, mode: i32, offset: u64, length: u64) -> std::io::Result<i64> {
    // SAFETY: the descriptor is open for the call.
    checked(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, length as i64) }.into())
}

fn seek(file: &File, offset: u64, whence: i32) -> std::io::Result<i64> {
    // SAFETY: the descriptor is open for the call.
    checked(unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) })
}

fn copy_range(
    from: &File,
    mut at: i64,
    to: &File,
    mut to_at: i64,
    length: usize,
) -> std::io::Result<i64> {
    let (from, to) = (from.as_raw_fd(), to.as_raw_fd());
    // SAFETY: both descriptors are open and both offsets live over the call.
    let copied = unsafe { libc::copy_file_range(from, &raw mut at, to, &raw mut to_at, length, 0) };
    checked(copied as i64)
}

fn used(node: &Node) -> u64 {
    node.must(&["fs", "sync"]);
    node.ask(&["fs", "df"])["used"].as_u64().unwrap()
}

#[test]
fn a_file_reaches_to_the_last_byte_that_an_offset_can_name() {
    let node = Node::new();
    let file = open(&node.path("sparse"));
    let last = i64::MAX as u64 - 1;
    file.write_all_at(b"x", last).unwrap();
    file.write_all_at(b"begin", 0).unwrap();
    file.write_all_at(&pattern(1, 100_000), 1 << 40).unwrap();
    assert_eq!(file.metadata().unwrap().len(), i64::MAX as u64);
    file.sync_all().unwrap();
    let space = file.metadata().unwrap().blocks() * 512;
    assert!(space < MIB, "holes take no space: {space} bytes");
    drop(file);
    node.must(&["down"]);
    node.must(&["up"]);
    let file = open(&node.path("sparse"));
    let mut byte = [0; 1];
    file.read_exact_at(&mut byte, last).unwrap();
    assert_eq!(&byte, b"x");
    file.read_exact_at(&mut byte, last - 1).unwrap();
    assert_eq!(byte, [0]);
    let mut some = vec![0; 100_000];
    file.read_exact_at(&mut some, 1 << 40).unwrap();
    assert_eq!(some, pattern(1, 100_000));
    assert_eq!(seek(&file, 5, libc::SEEK_DATA).unwrap(), 1 << 40);
    let beyond = errno(file.write_at(b"y", i64::MAX as u64));
    assert!(matches!(beyond, libc::EFBIG | libc::EINVAL), "{beyond}");
    file.set_len(3).unwrap();
    file.set_len(i64::MAX as u64).unwrap();
    file.read_exact_at(&mut byte, 1 << 40).unwrap();
    assert_eq!(byte, [0], "truncated bytes don't come back");
    drop(file);
    fs::remove_file(node.path("sparse")).unwrap();
    node.check();
}

#[test]
fn space_is_reserved_punched_and_zeroed_as_fallocate_says() {
    let node = Node::new();
    let file = open(&node.path("f"));
    let data = pattern(2, MIB as usize);
    file.write_all_at(&data, 0).unwrap();
    let (keep, punch, zero) = (
        libc::FALLOC_FL_KEEP_SIZE,
        libc::FALLOC_FL_PUNCH_HOLE,
        libc::FALLOC_FL_ZERO_RANGE,
    );
    fallocate(&file, punch | keep, 100_000, 50_000).unwrap();
    fallocate(&file, zero, 300_000, 1000).unwrap();
    fallocate(&file, zero | keep, MIB - 10, 1000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), MIB);
    let mut expected = data;
    expected[100_000..150_000].fill(0);
    expected[300_000..301_000].fill(0);
    expected[MIB as usize - 10..].fill(0);
    assert!(fs::read(node.path("f")).unwrap() == expected);
    // A reservation changes the size only without KEEP_SIZE, and the space in both cases.
    let before = file.metadata().unwrap().blocks();
    fallocate(&file, keep, 4 * MIB, MIB).unwrap();
    assert_eq!(file.metadata().unwrap().len(), MIB);
    fallocate(&file, 0, 2 * MIB, MIB).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3 * MIB);
    assert_eq!(file.metadata().unwrap().blocks() - before, 2 * MIB / 512);
    expected.resize(3 * MIB as usize, 0);
    assert!(fs::read(node.path("f")).unwrap() == expected);
    assert_eq!(
        errno(fallocate(&file, punch, 0, 10)),
        libc::EOPNOTSUPP,
        "a hole never moves the size, so KEEP_SIZE has to be said"
    );
    for mode in [libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE] {
        assert_eq!(errno(fallocate(&file, mode, 0, 4096)), libc::EOPNOTSUPP);
    }
    assert_eq!(errno(fallocate(&file, 0, i64::MAX as u64, 10)), libc::EFBIG);
    assert_eq!(errno(fallocate(&file, 0, 0, 0)), libc::EINVAL);
    assert_eq!(seek(&file, 0, libc::SEEK_HOLE).unwrap(), 100_000);
    assert_eq!(seek(&file, 100_000, libc::SEEK_DATA).unwrap(), 150_000);
    assert_eq!(errno(seek(&file, 3 * MIB, libc::SEEK_DATA)), libc::ENXIO);
    drop(file);
    node.check();
}

#[test]
fn a_copied_range_shares_its_bytes_until_one_side_changes() {
    let node = Node::new();
    let data = pattern(3, 16 * MIB as usize);
    fs::write(node.path("from"), &data).unwrap();
    let before = used(&node);
    let (from, to) = (open(&node.path("from")), open(&node.path("to")));
    let mut done = 0;
    while done < data.len() {
        let copied = copy_range(&from, done as i64, &to, done as i64, data.len() - done).unwrap();
        assert!(copied > 0);
        done += copied as usize;
    }
    // Less than before if the metadata's tables were merged meanwhile.
    let grown = used(&node).saturating_sub(before);
    assert!(grown < MIB, "a copy of 16 MiB took {grown} bytes");
    to.write_all_at(b"changed", 5 * MIB).unwrap();
    assert!(fs::read(node.path("from")).unwrap() == data);
    fs::remove_file(node.path("from")).unwrap();
    drop(from);
    let mut expected = data;
    expected[5 * MIB as usize..][..7].copy_from_slice(b"changed");
    assert!(fs::read(node.path("to")).unwrap() == expected);
    assert_eq!(
        errno(copy_range(&to, 0, &to, 10, 100)),
        libc::EINVAL,
        "overlapping"
    );
    node.check();
}

/// `struct file_handle` with space for the longest.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

fn handle_of(path: &Path) -> Handle {
    let mut handle = Handle {
        bytes: 128,
        kind: 0,
        handle: [0; 128],
    };
    let mut mount = 0;
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends with NUL; `handle` has the room that it states.
    let result = unsafe {
        libc::name_to_handle_at(
            libc::AT_FDCWD,
            path.as_ptr(),
            (&raw mut handle).cast(),
            &raw mut mount,
            0,
        )
    };
    checked(result.into()).unwrap();
    handle
}

fn open_handle(mount: &File, handle: &mut Handle, flags: i32) -> std::io::Result<File> {
    let (mount, handle) = (mount.as_raw_fd(), (handle as *mut Handle).cast());
    // SAFETY: the handle is one that name_to_handle_at filled.
    let fd = checked(unsafe { libc::open_by_handle_at(mount, handle, flags) }.into())?;
    // SAFETY: the descriptor is new and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }.into())
}

#[test]
fn handles_find_their_files_after_a_restart_and_a_rename() {
    let node = Node::new();
    fs::create_dir_all(node.path("a/b/c")).unwrap();
    fs::write(node.path("a/b/c/file"), b"found").unwrap();
    fs::write(node.path("gone"), b"x").unwrap();
    let mut file = handle_of(&node.path("a/b/c/file"));
    let mut directory = handle_of(&node.path("a/b"));
    let mut gone = handle_of(&node.path("gone"));
    fs::rename(node.path("a/b/c/file"), node.path("moved")).unwrap();
    fs::remove_file(node.path("gone")).unwrap();
    node.must(&["down"]);
    node.must(&["up"]);
    let mount = File::open(&node.mnt).unwrap();
    let found = open_handle(&mount, &mut file, libc::O_RDWR).unwrap();
    let mut bytes = [0; 5];
    found.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"found");
    found.write_all_at(b"F", 0).unwrap();
    assert_eq!(fs::read(node.path("moved")).unwrap(), b"Found");
    let found = open_handle(&mount, &mut directory, libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
    let listed = fs::read_dir(format!("/proc/self/fd/{}", found.as_raw_fd())).unwrap();
    let names: Vec<_> = listed.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [OsStr::new("c")]);
    assert_eq!(
        errno(open_handle(&mount, &mut gone, libc::O_RDONLY)),
        libc::ESTALE
    );
}

#[test]
fn an_inode_has_sixty_five_thousand_names_and_no_more() {
    let node = Node::new();
    fs::write(node.path("one"), b"shared").unwrap();
    fs::create_dir(node.path("d")).unwrap();
    for number in 1..65_000 {
        fs::hard_link(node.path("one"), node.path(&format!("d/{number}"))).unwrap();
    }
    assert_eq!(fs::metadata(node.path("one")).unwrap().nlink(), 65_000);
    assert_eq!(
        errno(fs::hard_link(node.path("one"), node.path("more"))),
        libc::EMLINK
    );
    assert_eq!(fs::read_dir(node.path("d")).unwrap().count(), 64_999);
    fs::remove_file(node.path("one")).unwrap();
    assert_eq!(fs::read(node.path("d/64999")).unwrap(), b"shared");
    node.check();
}

#[test]
fn names_are_any_bytes_up_to_their_limits() {
    let node = Node::new();
    let mut names: Vec<Vec<u8>> = vec![
        vec![b'n'; 255],
        (1..=255).filter(|byte| *byte != b'/').collect(),
        "ж…\n".into(),
        b"\xff\xfe".to_vec(),
        b"...".to_vec(),
        b" ".to_vec(),
    ];
    for name in &names {
        fs::write(node.mnt.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let mut listed: Vec<Vec<u8>> = fs::read_dir(&node.mnt)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().as_bytes().to_vec())
        .collect();
    listed.sort();
    names.sort();
    assert_eq!(listed, names);
    for name in &names {
        assert_eq!(
            &fs::read(node.mnt.join(OsStr::from_bytes(name))).unwrap(),
            name
        );
    }
    let long = node.mnt.join(OsStr::from_bytes(&[b'n'; 256]));
    assert_eq!(errno(fs::write(long, b"x")), libc::ENAMETOOLONG);
    let target = "t".repeat(4095);
    symlink(&target, node.path("link")).unwrap();
    assert_eq!(
        fs::read_link(node.path("link")).unwrap().as_os_str(),
        OsStr::new(&target)
    );
}

#[test]
fn setuid_setgid_and_sticky_bits_do_what_they_say() {
    let node = Node::with(&["--nsd-size", "1G", "--allow-other"]);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    // A setgid directory passes on its group, and setgid to subdirectories.
    let shared = node.path("shared");
    fs::create_dir(&shared).unwrap();
    std::os::unix::fs::chown(&shared, Some(0), Some(1234)).unwrap();
    set(&shared, 0o2777).unwrap();
    fs::write(shared.join("file"), b"").unwrap();
    fs::create_dir(shared.join("sub")).unwrap();
    assert_eq!(fs::metadata(shared.join("file")).unwrap().gid(), 1234);
    assert_eq!(fs::metadata(shared.join("sub")).unwrap().gid(), 1234);
    assert_eq!(mode(&shared.join("sub")) & 0o2000, 0o2000);
    // A write by another user clears setuid and setgid; a chown does so for everyone.
    let program = node.path("program");
    fs::write(&program, b"x").unwrap();
    set(&program, 0o6777).unwrap();
    as_user(&node, "printf y > program");
    assert_eq!(mode(&program), 0o777);
    set(&program, 0o6777).unwrap();
    std::os::unix::fs::chown(&program, Some(7), Some(7)).unwrap();
    assert_eq!(mode(&program), 0o777);
    // In a sticky directory only owners may remove.
    let sticky = node.path("sticky");
    fs::create_dir(&sticky).unwrap();
    set(&sticky, 0o1777).unwrap();
    fs::write(sticky.join("roots"), b"x").unwrap();
    let tried = as_user(&node, "rm -f sticky/roots; touch sticky/own; rm sticky/own");
    assert!(tried.contains("not permitted"), "{tried}");
    assert!(sticky.join("roots").exists() && !sticky.join("own").exists());
    // A supplementary group may open what the group may.
    let grouped = node.path("grouped");
    fs::write(&grouped, b"for the group").unwrap();
    std::os::unix::fs::chown(&grouped, Some(0), Some(4321)).unwrap();
    set(&grouped, 0o640).unwrap();
    let command = |groups: &str| {
        let output = std::process::Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", groups, "cat"])
            .arg(&grouped)
            .output()
            .unwrap();
        (output.status.success(), output.stdout)
    };
    assert_eq!(command("--groups=4321"), (true, b"for the group".to_vec()));
    assert!(!command("--clear-groups").0);
}

/// Runs a shell command in the mount as nobody; returns its error output.
fn as_user(node: &Node, command: &str) -> String {
    let output = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["sh", "-c", command])
        .current_dir(&node.mnt)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_running_program_is_neither_written_nor_truncated() {
    let node = Node::new();
    let program = node.path("program");
    fixture::copy_program("/bin/sleep", &program);
    let bytes = fs::read(&program).unwrap();
    let open = |flags: i32| {
        let (access, more) = (flags & libc::O_ACCMODE, flags & !libc::O_ACCMODE);
        OpenOptions::new()
            .read(access != libc::O_WRONLY)
            .write(access != libc::O_RDONLY)
            .custom_flags(more)
            .open(&program)
    };
    let mut running = Command::new(&program).arg("60").spawn().unwrap();
    for flags in [
        libc::O_WRONLY,
        libc::O_RDWR | libc::O_TRUNC,
        // The kernel checks this only after the file was opened.
        libc::O_RDONLY | libc::O_TRUNC,
    ] {
        assert_eq!(errno(open(flags)), libc::ETXTBSY, "{flags:o}");
    }
    assert_eq!(fs::read(&program).unwrap(), bytes);
    running.kill().unwrap();
    running.wait().unwrap();
    // Writers may proceed at once. A truncating open for reading may be refused until the kernel
    // has told the daemon that the process is gone.
    open(libc::O_WRONLY).unwrap();
    fixture::eventually("the program's file is free", || {
        open(libc::O_RDONLY | libc::O_TRUNC).is_ok()
    });
    assert_eq!(fs::metadata(&program).unwrap().len(), 0);
}

#[test]
fn statfs_counts_what_is_there() {
    let node = Node::new();
    let statfs = || {
        // SAFETY: statvfs is plain data; the path ends with NUL.
        unsafe {
            let mut out: libc::statvfs = std::mem::zeroed();
            let path = CString::new(node.mnt.as_os_str().as_bytes()).unwrap();
            checked(libc::statvfs(path.as_ptr(), &raw mut out).into()).unwrap();
            out
        }
    };
    node.must(&["fs", "sync"]);
    let before = statfs();
    assert_eq!(before.f_namemax, 255);
    for number in 0..100 {
        fs::write(node.path(&number.to_string()), pattern(number, 300_000)).unwrap();
    }
    node.must(&["fs", "sync"]);
    let after = statfs();
    let taken = (before.f_bfree - after.f_bfree) * before.f_frsize;
    assert!((30_000_000..40_000_000).contains(&taken), "{taken}");
    let inodes = |s: &libc::statvfs| s.f_files - s.f_ffree;
    assert_eq!(inodes(&after) - inodes(&before), 100);
}

#[test]
fn synchronous_opens_survive_a_kill_without_fsync() {
    let node = Node::new();
    for (name, flag) in [("sync", libc::O_SYNC), ("dsync", libc::O_DSYNC)] {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(flag)
            .open(node.path(name))
            .unwrap();
        file.write_all_at(name.as_bytes(), 100_000).unwrap();
    }
    node.kill();
    node.must(&["up"]);
    for name in ["sync", "dsync"] {
        let bytes = fs::read(node.path(name)).unwrap();
        assert_eq!(&bytes[100_000..], name.as_bytes());
    }
}
