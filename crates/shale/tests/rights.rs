//! Users and each other's files: rights that a program file gives to everyone who runs it, and who
//! may open, change and name files.

use crate::fixture::{
    self, Node, eventually, mounted_as, must_run, once_idle, skipped, within_a_minute,
};
use crate::mapping::Mapping;
use std::{
    ffi::CString,
    fs::{self, File, FileTimes},
    io::Error,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{
            fs::{FileExt, MetadataExt, PermissionsExt, chown},
            process::CommandExt,
        },
    },
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

/// nobody.
const USER: u32 = 65_534;
/// A group without members, unless a test says otherwise.
const GROUP: u32 = 4_321;
const CAPABILITIES: &str = "security.capability";
/// `struct vfs_cap_data`, version 2: cap_net_raw, permitted and effective.
const NET_RAW: [u8; 20] = [
    1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

fn checked(result: i64) -> std::io::Result<i64> {
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn errno(result: std::io::Result<impl Sized>) -> i32 {
    result.err().and_then(|e| e.raw_os_error()).unwrap_or(0)
}

/// CAP_FOWNER: to change everybody's files as their owners may.
const FOWNER: u32 = 3;
/// CAP_FSETID: to give files setgid for any group.
const FSETID: u32 = 4;

/// Runs `what` on a separate thread with the rights of a user that has one capability.
fn with_capability<T: Send>(user: u32, capability: u32, what: impl FnOnce() -> T + Send) -> T {
    let run = move || {
        let (set, mut header) = (1_u32 << capability, [0x2008_0522_u32, 0]);
        // Effective, permitted and inheritable ones, twice.
        let data = [set, set, 0, 0, 0, 0];
        // The bare system calls, as in `as_user`.
        // SAFETY: the structures are as capset(2) wants them; the other arguments are numbers.
        unsafe {
            let keep = libc::prctl(libc::PR_SET_KEEPCAPS, 1_u64, 0_u64, 0_u64, 0_u64);
            checked(keep.into()).unwrap();
            checked(libc::syscall(libc::SYS_setresuid, user, user, user)).unwrap();
            let (header, data) = (header.as_mut_ptr(), data.as_ptr());
            checked(libc::syscall(libc::SYS_capset, header, data)).unwrap();
        }
        what()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// Runs `what` on a separate thread with the rights of a user in `groups`; the first one is the
/// user's own.
fn as_user<T: Send>(user: u32, groups: &[u32], what: impl FnOnce() -> T + Send) -> T {
    let run = move || {
        // The bare system calls change only this thread; the C library's functions would change the
        // whole process.
        // SAFETY: the list has the length passed; the other arguments are numbers.
        unsafe {
            let (count, own) = (groups.len(), groups[0]);
            checked(libc::syscall(libc::SYS_setgroups, count, groups.as_ptr())).unwrap();
            checked(libc::syscall(libc::SYS_setresgid, own, own, own)).unwrap();
            checked(libc::syscall(libc::SYS_setresuid, user, user, user)).unwrap();
        }
        what()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// Opens a name in a directory, without resolving the path above it.
fn open_at(directory: &File, name: &str, flags: i32, mode: u32) -> std::io::Result<File> {
    let name = CString::new(name).unwrap();
    // SAFETY: the name ends with NUL, and the directory is open.
    let opened = unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags, mode) };
    let descriptor = checked(opened.into())?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) }.into())
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The mode alone, as `stat -c %a` requests it. If times and sizes were requested and outdated, the
/// kernel would refresh everything.
fn mode_alone(path: &Path) -> u32 {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: statx is plain data; the path ends with NUL.
    unsafe {
        let mut out: libc::statx = std::mem::zeroed();
        let (at, mask) = (libc::AT_FDCWD, libc::STATX_MODE);
        checked(libc::statx(at, path.as_ptr(), 0, mask, &raw mut out).into()).unwrap();
        u32::from(out.stx_mode) & 0o7777
    }
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) -> std::io::Result<i64> {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    let name = CString::new(name).unwrap();
    let (bytes, length) = (value.as_ptr().cast(), value.len());
    // SAFETY: both strings end with NUL; the value has the length passed.
    checked(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), bytes, length, 0) }.into())
}

fn has_xattr(path: &Path, name: &str) -> std::io::Result<bool> {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    let name = CString::new(name).unwrap();
    // SAFETY: both strings end with NUL; no value is requested.
    let length = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
    match checked(length as i64) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENODATA) => Ok(false),
        Err(error) => Err(error),
    }
}

fn fallocate(file: &File, mode: i32) {
    // SAFETY: the descriptor is open for the call.
    checked(unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, 4096) }.into()).unwrap();
}

/// Changes the bytes of the named file in the directory.
type Change = fn(&File, &str);

/// All ways to change the bytes of a file in a directory.
const WAYS: [(&str, Change); 9] = [
    ("write", |directory, name| {
        let file = open_at(directory, name, libc::O_WRONLY, 0).unwrap();
        file.write_all_at(b"changed", 3).unwrap();
    }),
    ("append", |directory, name| {
        let flags = libc::O_WRONLY | libc::O_APPEND;
        let file = open_at(directory, name, flags, 0).unwrap();
        file.write_all_at(b"changed", 0).unwrap();
    }),
    ("synchronous write", |directory, name| {
        let flags = libc::O_WRONLY | libc::O_SYNC;
        let file = open_at(directory, name, flags, 0).unwrap();
        file.write_all_at(b"changed", 3).unwrap();
    }),
    ("ftruncate", |directory, name| {
        let file = open_at(directory, name, libc::O_WRONLY, 0).unwrap();
        file.set_len(2).unwrap();
    }),
    ("open with O_TRUNC", |directory, name| {
        open_at(directory, name, libc::O_WRONLY | libc::O_TRUNC, 0).unwrap();
    }),
    ("fallocate", |directory, name| {
        fallocate(&open_at(directory, name, libc::O_WRONLY, 0).unwrap(), 0);
    }),
    ("punch", |directory, name| {
        let file = open_at(directory, name, libc::O_WRONLY, 0).unwrap();
        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        fallocate(&file, how);
    }),
    ("zero-range", |directory, name| {
        let file = open_at(directory, name, libc::O_WRONLY, 0).unwrap();
        fallocate(&file, libc::FALLOC_FL_ZERO_RANGE);
    }),
    ("copy_file_range", |directory, name| {
        let from = open_at(directory, "source", libc::O_RDONLY, 0).unwrap();
        let to = open_at(directory, name, libc::O_WRONLY, 0).unwrap();
        let (none, mut at) = (std::ptr::null_mut(), 0_i64);
        // SAFETY: both descriptors are open, and the offset lives over the call.
        let copied = unsafe {
            libc::copy_file_range(from.as_raw_fd(), none, to.as_raw_fd(), &raw mut at, 10, 0)
        };
        assert_eq!(checked(copied as i64).unwrap(), 10);
    }),
];

#[test]
fn whoever_changes_a_programs_bytes_doesnt_get_the_rights_that_it_gives() {
    let node = Node::with(&["--nsd-size", "1G"]);
    fs::write(node.path("source"), vec![b's'; 5000]).unwrap();
    let program = node.path("program");
    let mount = File::open(&node.mnt).unwrap();
    for (way, change) in WAYS {
        for again in [false, true] {
            fs::write(&program, vec![b'p'; 5000]).unwrap();
            set_mode(&program, 0o6777);
            set_xattr(&program, CAPABILITIES, &NET_RAW).unwrap();
            // From here on the kernel has cached the mode, for 6 s.
            assert_eq!(mode_alone(&program), 0o6777);
            as_user(USER, &[USER], || change(&mount, "program"));
            assert_eq!(mode_alone(&program), 0o777, "{way}, {again}");
            assert!(
                !has_xattr(&program, CAPABILITIES).unwrap(),
                "{way}, {again}"
            );
        }
        // Root keeps the bits, as on other file systems; capabilities are removed for everyone.
        set_mode(&program, 0o6777);
        set_xattr(&program, CAPABILITIES, &NET_RAW).unwrap();
        change(&mount, "program");
        assert_eq!(mode_alone(&program), 0o6777, "{way} by root");
        assert!(!has_xattr(&program, CAPABILITIES).unwrap(), "{way} by root");
    }
    // Also through one descriptor, each time they are set again.
    let file = as_user(USER, &[USER], || {
        open_at(&mount, "program", libc::O_WRONLY, 0).unwrap()
    });
    for round in 0..3 {
        set_mode(&program, 0o4755);
        as_user(USER, &[USER], || file.write_all_at(b"x", round).unwrap());
        assert_eq!(mode_alone(&program), 0o755);
        set_xattr(&program, CAPABILITIES, &NET_RAW).unwrap();
        as_user(USER, &[USER], || file.write_all_at(b"y", round).unwrap());
        assert!(!has_xattr(&program, CAPABILITIES).unwrap());
    }
    // Stores into a mapping: nobody knows whose, so the bits stay, and the capabilities go a moment later.
    set_mode(&program, 0o4777);
    set_xattr(&program, CAPABILITIES, &NET_RAW).unwrap();
    as_user(USER, &[USER], || {
        let file = open_at(&mount, "program", libc::O_RDWR, 0).unwrap();
        let mapping = Mapping::new(&file, libc::MAP_SHARED);
        mapping.write(5, b"stored");
        mapping.try_sync().unwrap();
    });
    let have_gone = || !has_xattr(&program, CAPABILITIES).unwrap();
    eventually("the capabilities go", have_gone);
    assert_eq!(mode_alone(&program), 0o4777);
    // A chown gives the file to another user, without these rights.
    set_mode(&program, 0o6755);
    set_xattr(&program, CAPABILITIES, &NET_RAW).unwrap();
    chown(&program, Some(USER), None).unwrap();
    assert_eq!(mode_alone(&program), 0o755);
    assert!(!has_xattr(&program, CAPABILITIES).unwrap());
    node.check();
}

#[test]
fn a_file_that_was_just_made_loses_what_it_is_given_before_the_next_write() {
    let node = Node::with(&["--nsd-size", "1G"]);
    let mount = File::open(&node.mnt).unwrap();
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
    set_mode(&node.mnt, 0o1777);
    let file = as_user(USER, &[USER], || {
        open_at(&mount, "made", flags, 0o755).unwrap()
    });
    as_user(USER, &[USER], || file.write_all_at(b"harmless", 0).unwrap());
    let path = node.path("made");
    chown(&path, Some(0), Some(0)).unwrap();
    set_mode(&path, 0o4755);
    as_user(USER, &[USER], || file.write_all_at(b"harmful!", 0).unwrap());
    assert_eq!(mode_alone(&path), 0o755);
    node.check();
}

/// As xfstests generic/193, 355 and 683 to 685 expect: modes before and after a change by the
/// file's owner, who is in its group, and by another user, who isn't.
#[test]
fn setgid_that_gives_no_rights_stays_for_members_of_the_group() {
    let node = Node::with(&["--nsd-size", "1G"]);
    fs::write(node.path("source"), vec![b's'; 5000]).unwrap();
    let program = node.path("program");
    let mount = File::open(&node.mnt).unwrap();
    for (way, change) in WAYS {
        for (before, by_member, by_other) in [
            (0o6666, 0o2666, 0o666),
            (0o6766, 0o2766, 0o766),
            (0o6676, 0o676, 0o676),
            (0o6777, 0o777, 0o777),
            (0o2676, 0o676, 0o676),
        ] {
            for (group, after) in [(GROUP, by_member), (USER, by_other)] {
                fs::write(&program, vec![b'p'; 5000]).unwrap();
                chown(&program, Some(USER), Some(GROUP)).unwrap();
                set_mode(&program, before);
                assert_eq!(mode_alone(&program), before);
                as_user(USER, &[group], || change(&mount, "program"));
                let found = mode_alone(&program);
                assert_eq!(found, after, "{way}: {before:o} became {found:o}");
            }
        }
    }
    for (before, after) in [(0o6644, 0o2644), (0o6744, 0o2744), (0o6654, 0o654)] {
        set_mode(&program, before);
        chown(&program, Some(0), None).unwrap();
        assert_eq!(mode_alone(&program), after, "{before:o} after a chown");
    }
    node.check();
}

/// As xfstests generic/375 expects.
#[test]
fn an_owner_outside_of_the_group_loses_setgid_with_chmod_and_setfacl() {
    let node = Node::with(&["--nsd-size", "1G"]);
    fs::write(node.path("file"), b"").unwrap();
    fs::create_dir(node.path("directory")).unwrap();
    for name in ["file", "directory"] {
        let path = node.path(name);
        chown(&path, Some(USER), Some(GROUP)).unwrap();
        for (group, after) in [(GROUP, 0o2777), (USER, 0o777)] {
            let run = |program: &str, arguments: &[&str]| {
                let (user, group) = (format!("--reuid={USER}"), format!("--regid={group}"));
                let who = [&user, &group, "--clear-groups", program];
                must_run(&node.mnt, "setpriv", &[&who, arguments].concat());
            };
            set_mode(&path, 0o2755);
            run("chmod", &["2777", name]);
            assert_eq!(mode_alone(&path), after, "chmod {name}, group {group}");
            set_mode(&path, 0o2755);
            run("setfacl", &["-m", "u::rwx,g::rwx,o::rwx", name]);
            assert_eq!(mode_alone(&path), after, "setfacl {name}, group {group}");
        }
    }
    // Nor does one get it for the group of a directory by making a file there.
    let shared = node.path("directory");
    set_mode(&shared, 0o2777);
    let directory = File::open(&shared).unwrap();
    let make = |name: &str| {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        drop(open_at(&directory, name, flags, 0o2755).unwrap());
    };
    as_user(USER, &[USER], || make("by-other"));
    as_user(USER, &[GROUP], || make("by-member"));
    as_user(USER, &[USER, GROUP], || make("by-member-of-several"));
    with_capability(USER, FSETID, || make("by-capable"));
    make("by-root");
    for (name, setgid) in [
        ("by-other", 0),
        ("by-member", 0o2000),
        ("by-member-of-several", 0o2000),
        ("by-capable", 0o2000),
        ("by-root", 0o2000),
    ] {
        let made = fs::metadata(shared.join(name)).unwrap();
        let found = (made.gid(), made.mode() & 0o2000);
        assert_eq!(found, (GROUP, setgid), "{name}");
    }
}

#[test]
fn with_noacl_there_are_no_lists_and_those_that_were_set_come_back_without() {
    const LIST: &str = "system.posix_acl_access";
    let node = Node::with(&["--nsd-size", "1G"]);
    fs::write(node.path("file"), b"").unwrap();
    set_mode(&node.path("file"), 0o600);
    must_run(&node.mnt, "setfacl", &["-m", "u:65534:r", "file"]);
    set_xattr(&node.path("file"), "user.note", b"x").unwrap();
    let opens = || {
        let mount = File::open(&node.mnt).unwrap();
        as_user(USER, &[USER], || {
            open_at(&mount, "file", libc::O_RDONLY, 0).is_ok()
        })
    };
    assert!(opens());
    let listed = must_run(&node.mnt, "getfattr", &["-m", "-", "file"]);
    assert!(
        listed.contains("user.note") && listed.contains(LIST),
        "{listed}"
    );
    for transport in ["auto", "fuse"] {
        node.must(&["down"]);
        node.must(&["up", "-o", &format!("noacl,transport={transport}")]);
        let file = node.path("file");
        assert_eq!(errno(has_xattr(&file, LIST)), libc::EOPNOTSUPP);
        let minimal = [2, 0, 0, 0];
        assert_eq!(errno(set_xattr(&file, LIST, &minimal)), libc::EOPNOTSUPP);
        assert_eq!(
            errno(has_xattr(&file, "system.posix_acl_default")),
            libc::EOPNOTSUPP
        );
        assert!(has_xattr(&file, "user.note").unwrap());
        let listed = must_run(&node.mnt, "getfattr", &["-m", "-", "file"]);
        assert!(
            listed.contains("user.note") && !listed.contains(LIST),
            "{listed}"
        );
        assert!(!opens(), "only the permission bits count");
    }
    node.must(&["down"]);
    node.must(&["up", "-o", "acl"]);
    assert!(has_xattr(&node.path("file"), LIST).unwrap());
    assert!(opens());
}

/// mount(8) hands over the options of fstab and those of the command line together.
#[test]
fn a_remount_refuses_to_turn_access_control_lists_on_or_off() {
    let node = Node::with(&["--nsd-size", "1G"]);
    let remount = |options: &str| {
        within_a_minute(
            Command::new(env!("CARGO_BIN_EXE_shale"))
                .arg0("mount.shale")
                .args([&node.dir, &node.mnt])
                .args(["-o", &format!("remount,{options}")]),
        )
    };
    for (running, other) in [("acl", "noacl"), ("noacl", "acl")] {
        node.must(&["down"]);
        node.must(&["up", "-o", running]);
        let swapped = format!("{running},nosuid,{other}");
        for options in [other, &swapped] {
            let (code, said) = remount(options);
            assert_eq!(code, 32, "{running} to {options}: {said}");
            let wanted = format!("can't become {other}");
            assert!(
                said.contains(&wanted) && said.contains("mount again"),
                "{said}"
            );
        }
        assert!(!mounted_as(&node.mnt).unwrap().contains("nosuid"));
        let same = format!("{other},noexec,{running}");
        for (options, flag) in [("nosuid", "nosuid"), (&same, "noexec")] {
            let (code, said) = remount(options);
            assert_eq!(code, 0, "{running} with {options}: {said}");
            assert!(mounted_as(&node.mnt).unwrap().contains(flag));
        }
    }
}

/// `ls -l` asks each file for its label until one answers that labels aren't supported.
#[test]
fn files_without_a_label_support_none_where_the_kernel_has_no_selinux() {
    const LABEL: &str = "security.selinux";
    let node = Node::with(&["--nsd-size", "1G"]);
    let file = node.path("file");
    fs::write(&file, b"").unwrap();
    let labels = fs::read_to_string("/proc/filesystems").unwrap();
    if labels.contains("\tselinuxfs\n") {
        assert!(has_xattr(&file, LABEL).is_ok());
        let test = "files_without_a_label_support_none_where_the_kernel_has_no_selinux";
        skipped(test, "the kernel has SELinux");
        return;
    }
    assert_eq!(errno(has_xattr(&file, LABEL)), libc::EOPNOTSUPP);
    // A label from another node isn't lost.
    set_xattr(&file, LABEL, b"system_u:object_r:etc_t:s0").unwrap();
    assert!(has_xattr(&file, LABEL).unwrap());
    let listed = must_run(&node.mnt, "getfattr", &["-m", "-", "file"]);
    assert!(listed.contains(LABEL), "{listed}");
}

#[test]
fn only_extended_attributes_that_mean_something_can_be_set() {
    let node = Node::with(&["--nsd-size", "1G"]);
    let file = node.path("file");
    fs::write(&file, b"").unwrap();
    for name in [
        "system.",
        "system.note",
        "system.posix_acl",
        "note",
        "os2.note",
    ] {
        assert_eq!(
            errno(set_xattr(&file, name, b"x")),
            libc::EOPNOTSUPP,
            "{name}"
        );
        assert_eq!(errno(has_xattr(&file, name)), libc::EOPNOTSUPP, "{name}");
    }
    for name in ["user.note", "trusted.note", "security.note"] {
        set_xattr(&file, name, b"x").unwrap();
        assert!(has_xattr(&file, name).unwrap());
    }
    // Names that the kernel protects are protected here too.
    let mount = File::open(&node.mnt).unwrap();
    as_user(USER, &[USER], || {
        let opened = open_at(&mount, "file", libc::O_RDONLY, 0).unwrap();
        for (name, expected) in [
            (c"user.theirs", libc::EACCES),
            (c"trusted.theirs", libc::EPERM),
            (c"security.theirs", libc::EPERM),
            (c"security.capability", libc::EPERM),
            (c"system.theirs", libc::EOPNOTSUPP),
            (c"system.posix_acl_access", libc::EPERM),
        ] {
            // Well-formed capabilities, or a list without entries.
            let value = match name == c"system.posix_acl_access" {
                true => &[2, 0, 0, 0][..],
                false => &NET_RAW[..],
            };
            let (bytes, length) = (value.as_ptr().cast(), value.len());
            // SAFETY: the name ends with NUL; the value has the length passed.
            let set =
                unsafe { libc::fsetxattr(opened.as_raw_fd(), name.as_ptr(), bytes, length, 0) };
            assert_eq!(errno(checked(set.into())), expected, "{name:?}");
        }
    });
    node.check();
}

#[test]
fn a_write_moves_both_times_to_now_also_if_mtime_was_set_ahead() {
    let node = Node::with(&["--nsd-size", "1G"]);
    let path = node.path("file");
    let file = fixture::open(&path);
    let ahead = SystemTime::now() + Duration::from_secs(1_000_000);
    file.set_times(FileTimes::new().set_modified(ahead))
        .unwrap();
    file.write_all_at(b"x", 0).unwrap();
    for synced in [false, true] {
        let found = file.metadata().unwrap();
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        assert!(found.ctime() as u64 <= now.as_secs(), "{synced}");
        assert!(found.mtime() as u64 <= now.as_secs(), "{synced}");
        file.sync_all().unwrap();
    }
}

/// A second mount of the whole node.
fn second_mount(node: &Node) -> std::path::PathBuf {
    let place = node.place("view");
    node.must(&["mount", place.to_str().unwrap()]);
    place
}

#[test]
fn a_name_that_another_mount_just_made_is_judged_before_it_is_opened() {
    let node = Node::with(&["--nsd-size", "1G"]);
    fs::create_dir(node.path("shared")).unwrap();
    set_mode(&node.path("shared"), 0o777);
    let there = second_mount(&node);
    let shared = File::open(there.join("shared")).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Root's private file is created and removed repeatedly.
        let maker = scope.spawn(|| {
            let path = node.path("shared/file");
            while !ended.load(Ordering::Relaxed) {
                // The first one makes it; both remove files that aren't root's.
                let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
                let here = File::open(node.path("shared")).unwrap();
                if let Ok(file) = open_at(&here, "file", flags, 0o600) {
                    file.write_all_at(b"secret", 0).unwrap();
                    assert_eq!(file.metadata().unwrap().len(), 6, "it was truncated");
                }
                let _ = fs::remove_file(&path);
            }
        });
        // Checked after the maker has ended, which would run forever after a panic.
        let opened = as_user(USER, &[USER], || {
            for _ in 0..4_000 {
                let flags = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
                match open_at(&shared, "file", flags, 0o600) {
                    Ok(file) if file.metadata().unwrap().uid() == USER => {}
                    Ok(_) => return Err("root's file is open".to_owned()),
                    // ESTALE: it was created, removed and created again between two lookups of the
                    // kernel.
                    Err(error) => match error.raw_os_error() {
                        Some(libc::EACCES | libc::ESTALE) => {}
                        _ => return Err(error.to_string()),
                    },
                }
            }
            Ok(())
        });
        ended.store(true, Ordering::Relaxed);
        maker.join().unwrap();
        assert_eq!(opened, Ok(()));
    });
    // A name that both make at the same moment can be opened by both: the kernel retries itself.
    let here = File::open(node.path("shared")).unwrap();
    std::thread::scope(|scope| {
        for directory in [&here, &shared] {
            scope.spawn(move || {
                for number in 0..2_000 {
                    let flags = libc::O_RDWR | libc::O_CREAT;
                    open_at(directory, &format!("both{number}"), flags, 0o600).unwrap();
                }
            });
        }
    });
    node.check();
}

#[test]
fn rights_that_one_mount_takes_away_are_gone_in_the_other_at_once() {
    let node = Node::with(&["--nsd-size", "1G"]);
    fs::create_dir(node.path("d")).unwrap();
    fs::write(node.path("d/file"), b"private soon").unwrap();
    let there = second_mount(&node);
    let theirs = File::open(&there).unwrap();
    let opens = |flags| {
        as_user(USER, &[USER], || {
            open_at(&theirs, "d/file", flags, 0).is_ok()
        })
    };
    let removes = || {
        as_user(USER, &[USER], || {
            // SAFETY: the name ends with NUL, and the directory is open.
            unsafe { libc::unlinkat(theirs.as_raw_fd(), c"d/file".as_ptr(), 0) == 0 }
        })
    };
    for _ in 0..20 {
        assert!(opens(libc::O_RDONLY));
        set_mode(&node.path("d/file"), 0o600);
        assert!(!opens(libc::O_RDONLY));
        let run = |arguments: &[&str]| must_run(&node.mnt, "setfacl", arguments);
        run(&["-m", "u:65534:rw", "d/file"]);
        assert!(opens(libc::O_RDWR));
        run(&["-m", "u:65534:-", "d/file"]);
        assert!(!opens(libc::O_RDONLY));
        run(&["-b", "d/file"]);
        set_mode(&node.path("d/file"), 0o644);
        set_mode(&node.path("d"), 0o700);
        assert!(!opens(libc::O_RDONLY));
        // Sticky: write permission on the directory isn't enough to remove others' files.
        set_mode(&node.path("d"), 0o777);
        set_mode(&node.path("d"), 0o1777);
        assert!(!removes());
    }
    // A setuid bit that a write through one mount removes has no effect through the other.
    set_mode(&node.path("d/file"), 0o4777);
    assert_eq!(mode_alone(&there.join("d/file")), 0o4777);
    let mount = File::open(&node.mnt).unwrap();
    as_user(USER, &[USER], || {
        let file = open_at(&mount, "d/file", libc::O_WRONLY, 0).unwrap();
        file.write_all_at(b"x", 0).unwrap();
    });
    assert_eq!(mode_alone(&there.join("d/file")), 0o777);
}

/// The kernel checks a change through a descriptor against the cached owner, without asking.
#[test]
fn a_former_owner_cannot_change_a_file_that_another_mount_gave_away() {
    let node = Node::with(&["--nsd-size", "1G"]);
    set_mode(&node.mnt, 0o1777);
    let there = second_mount(&node);
    let theirs = File::open(&there).unwrap();
    for (uid, gid) in [(Some(0), None), (None, Some(GROUP))] {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        let file = as_user(USER, &[USER], || {
            open_at(&theirs, "f", flags, 0o755).unwrap()
        });
        as_user(USER, &[USER], || {
            file.set_permissions(fs::Permissions::from_mode(0o700))
                .unwrap();
        });
        let path = node.path("f");
        chown(&path, uid, gid).unwrap();
        set_mode(&path, 0o755);
        let tried = as_user(USER, &[USER], || {
            let chmod = file.set_permissions(fs::Permissions::from_mode(0o6777));
            let past = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
            let list: [u8; 28] = [
                2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 7, 0, 255, 255, 255, 255, 32, 0,
                7, 0, 255, 255, 255, 255,
            ];
            let name = c"system.posix_acl_access".as_ptr();
            let (bytes, length) = (list.as_ptr().cast(), list.len());
            // SAFETY: the name ends with NUL; the value has the length passed.
            let acl = unsafe { libc::fsetxattr(file.as_raw_fd(), name, bytes, length, 0) };
            [
                errno(chmod),
                errno(file.set_times(past)),
                errno(checked(acl.into())),
            ]
        });
        if uid.is_some() {
            assert_eq!(tried, [libc::EPERM; 3]);
            assert_eq!(mode_alone(&path), 0o755);
            // Who may change everybody's files is no former owner.
            with_capability(USER, FOWNER, || {
                file.set_permissions(fs::Permissions::from_mode(0o711))
                    .unwrap();
            });
            assert_eq!(mode_alone(&path), 0o711);
        } else {
            // Still the owner's own file, but without setgid for a group that the owner isn't in.
            assert_eq!(tried, [0; 3]);
            assert_eq!(mode_alone(&path), 0o4777);
            // With setgid, if it is one of several groups of the owner, as the kernel judges, too.
            as_user(USER, &[USER, GROUP], || {
                file.set_permissions(fs::Permissions::from_mode(0o2777))
                    .unwrap();
            });
            assert_eq!(mode_alone(&path), 0o2777);
        }
        fs::remove_file(&path).unwrap();
    }
}

/// As xfstests generic/306 expects: a read-only file system refuses changes of itself, but not of
/// objects that only have their names there.
#[test]
fn devices_links_and_bind_mounts_on_a_read_only_mount_can_be_written() {
    let node = Node::with(&["--nsd-size", "1G"]);
    must_run(&node.mnt, "mknod", &["null", "c", "1", "3"]);
    must_run(&node.mnt, "mknod", &["zero", "c", "1", "5"]);
    fs::write(node.path("bound"), b"").unwrap();
    let elsewhere = node.place("elsewhere").join("target");
    fs::write(&elsewhere, b"").unwrap();
    std::os::unix::fs::symlink(&elsewhere, node.path("link")).unwrap();
    let mnt = node.mnt.to_str().unwrap();
    once_idle("mount", &["-i", "-o", "remount,ro", mnt]);
    assert_eq!(errno(File::create(node.path("new"))), libc::EROFS);
    File::options()
        .write(true)
        .open(node.path("null"))
        .unwrap()
        .write_all_at(b"x", 0)
        .unwrap();
    let mut zeros = [1; 512];
    File::open(node.path("zero"))
        .unwrap()
        .read_exact_at(&mut zeros, 0)
        .unwrap();
    assert_eq!(zeros, [0; 512]);
    let bound = node.path("bound");
    let target = elsewhere.to_str().unwrap();
    must_run(
        Path::new("/"),
        "mount",
        &["--bind", target, bound.to_str().unwrap()],
    );
    for name in ["null", "link", "bound"] {
        for (create, truncate, append) in [
            (false, false, false),
            (true, false, false),
            (false, true, false),
            (true, true, false),
            (true, false, true),
        ] {
            let mut options = File::options();
            let options = options
                .write(true)
                .create(create)
                .truncate(truncate)
                .append(append);
            let file = options.open(node.path(name)).unwrap();
            file.write_all_at(b"written", 0).unwrap();
        }
    }
    assert!(fs::read(&elsewhere).unwrap().starts_with(b"written"));
    once_idle("umount", &["-i", bound.to_str().unwrap()]);
    assert_eq!(errno(fs::write(node.path("bound"), b"x")), libc::EROFS);
}
