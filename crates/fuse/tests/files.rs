//! Files and directories as programs see them through a real mount.

use crate::mounted::{self, both_ways, memory, on_both_transports};
use fuse::TransportChoice;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;
use testkit::memory::MemorySettings;

on_both_transports! {
    written_bytes_come_back_at_every_length,
    a_reader_with_cached_pages_sees_each_later_write,
    appends_of_two_descriptors_all_stay,
    truncate_and_o_trunc_cut_what_readers_have_cached,
    mappings_and_calls_see_each_others_bytes,
    ten_thousand_names_are_each_listed_once,
    names_move_link_and_vanish_as_posix_says,
    an_unlinked_file_lives_until_its_last_close,
    a_file_made_without_a_name_can_get_one,
    bytes_of_birth_and_seldom_calls_get_an_answer,
    the_kernel_judges_permissions_and_umask,
    extended_attributes_and_times_are_kept,
    two_threads_in_own_directories_do_not_disturb_each_other,
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length)
        .map(|at| ((at * 31 + at / 4096 + seed) % 251) as u8)
        .collect()
}

fn written_bytes_come_back_at_every_length(transport: TransportChoice) {
    for settings in both_ways() {
        let mounted = memory(transport, settings);
        for length in [
            0,
            1,
            4095,
            4096,
            4097,
            131_072,
            1 << 20,
            (1 << 20) + 1,
            (3 << 20) + 7,
        ] {
            let path = mounted.path(&format!("f{length}"));
            let bytes = pattern(length, length);
            fs::write(&path, &bytes).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), length as u64);
            assert!(
                fs::read(&path).unwrap() == bytes,
                "{length} bytes, {settings:?}"
            );
        }
    }
}

fn a_reader_with_cached_pages_sees_each_later_write(transport: TransportChoice) {
    for settings in both_ways() {
        let mounted = memory(transport, settings);
        let path = mounted.path("f");
        fs::write(&path, pattern(64 * 1024, 0)).unwrap();
        let reader = File::open(&path).unwrap();
        let writer = OpenOptions::new().write(true).open(&path).unwrap();
        let mut seen = [0; 4096];
        for round in 0..200u8 {
            let at = u64::from(round % 16) * 4096;
            writer.write_all_at(&[round; 4096], at).unwrap();
            reader.read_exact_at(&mut seen, at).unwrap();
            assert_eq!(seen, [round; 4096], "round {round}, {settings:?}");
        }
    }
}

fn appends_of_two_descriptors_all_stay(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let path = mounted.path("log");
    let line = |writer: u8| vec![b'a' + writer; 100];
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (path, line) = (path.clone(), line(writer));
            scope.spawn(move || {
                let mut file = OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(path)
                    .unwrap();
                for _ in 0..200 {
                    file.write_all(&line).unwrap();
                }
            });
        }
    });
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 2 * 200 * 100);
    assert!(
        bytes
            .chunks(100)
            .all(|chunk| chunk == line(0) || chunk == line(1))
    );
}

fn truncate_and_o_trunc_cut_what_readers_have_cached(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let path = mounted.path("f");
    fs::write(&path, pattern(10_000, 1)).unwrap();
    assert_eq!(fs::read(&path).unwrap().len(), 10_000);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(5_000).unwrap();
    assert_eq!(fs::read(&path).unwrap(), pattern(10_000, 1)[..5_000]);
    file.set_len(6_000).unwrap();
    assert_eq!(fs::read(&path).unwrap()[5_000..], [0; 1_000]);
    fs::write(&path, b"short").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"short");
}

/// A shared mapping of the first `length` bytes.
struct Mapping {
    at: *mut u8,
    length: usize,
}

impl Mapping {
    fn of(file: &File, length: usize) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of an open file, at an address that the kernel chooses.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self {
            at: at.cast(),
            length,
        }
    }

    fn get(&self, at: usize) -> u8 {
        assert!(at < self.length);
        // SAFETY: inside the mapping, which lives as long as self.
        unsafe { self.at.add(at).read_volatile() }
    }

    fn set(&self, at: usize, byte: u8) {
        assert!(at < self.length);
        // SAFETY: inside the mapping, which lives as long as self and is writable.
        unsafe { self.at.add(at).write_volatile(byte) }
    }

    fn sync(&self) {
        // SAFETY: exactly the mapping.
        let result = unsafe { libc::msync(self.at.cast(), self.length, libc::MS_SYNC) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping; its address isn't known elsewhere.
        unsafe { libc::munmap(self.at.cast(), self.length) };
    }
}

fn mappings_and_calls_see_each_others_bytes(transport: TransportChoice) {
    for settings in both_ways() {
        let mounted = memory(transport, settings);
        let path = mounted.path("mapped");
        fs::write(&path, pattern(3 * 4096, 3)).unwrap();
        let both = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let reader = File::open(&path).unwrap();
        let mapping = Mapping::of(&both, 3 * 4096);
        let mut byte = [0];
        for round in 0..100u8 {
            let at = usize::from(round) * 123 % (3 * 4096);
            mapping.set(at, round);
            both.read_exact_at(&mut byte, at as u64).unwrap();
            assert_eq!(
                byte,
                [round],
                "a store is seen by the same descriptor, {settings:?}"
            );
            reader.read_exact_at(&mut byte, at as u64).unwrap();
            assert_eq!(
                byte,
                [round],
                "a store is seen by a reader's descriptor, {settings:?}"
            );
            both.write_all_at(&[round + 100], at as u64).unwrap();
            assert_eq!(
                mapping.get(at),
                round + 100,
                "a write is seen in the mapping, {settings:?}"
            );
        }
        mapping.set(0, 255);
        mapping.sync();
        drop((mapping, both, reader));
        assert_eq!(fs::read(&path).unwrap()[0], 255);
    }
}

fn ten_thousand_names_are_each_listed_once(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let directory = mounted.path("many");
    fs::create_dir(&directory).unwrap();
    for at in 0..10_000 {
        File::create(directory.join(format!("name-{at}"))).unwrap();
    }
    let names = || {
        fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect::<Vec<_>>()
    };
    let listed = names();
    assert_eq!(listed.len(), 10_000);
    assert_eq!(listed.iter().collect::<BTreeSet<_>>().len(), 10_000);
    // Removing while listing, as `rm -r` does, lists each name once.
    for entry in fs::read_dir(&directory).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert!(names().is_empty());
    fs::remove_dir(&directory).unwrap();
}

fn names_move_link_and_vanish_as_posix_says(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let path = |name: &str| mounted.path(name);
    fs::create_dir(path("d")).unwrap();
    fs::write(path("d/a"), b"a").unwrap();
    fs::write(path("b"), b"b").unwrap();
    assert_eq!(
        fs::remove_dir(path("d")).unwrap_err().raw_os_error(),
        Some(libc::ENOTEMPTY)
    );
    assert_eq!(
        fs::create_dir(path("d")).unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    fs::hard_link(path("b"), path("d/c")).unwrap();
    assert_eq!(fs::metadata(path("b")).unwrap().nlink(), 2);
    fs::rename(path("d/a"), path("b")).unwrap();
    assert_eq!(fs::read(path("b")).unwrap(), b"a");
    assert_eq!(fs::read(path("d/c")).unwrap(), b"b");
    assert_eq!(fs::metadata(path("d/c")).unwrap().nlink(), 1);
    assert_eq!(
        fs::metadata(path("d/a")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    symlink("d/c", path("s")).unwrap();
    assert_eq!(fs::read_link(path("s")).unwrap().to_str(), Some("d/c"));
    assert_eq!(fs::read(path("s")).unwrap(), b"b");
    fs::create_dir(path("d/e")).unwrap();
    assert_eq!(fs::metadata(path("d")).unwrap().nlink(), 3);
    fs::rename(path("d/e"), path("e")).unwrap();
    assert_eq!(fs::metadata(path("d")).unwrap().nlink(), 2);
    assert_eq!(
        fs::metadata(path("e/..")).unwrap().ino(),
        fs::metadata(mounted.directory.path()).unwrap().ino()
    );
    assert_eq!(
        fs::write(path(&"x".repeat(256)), b"")
            .unwrap_err()
            .raw_os_error(),
        Some(libc::ENAMETOOLONG)
    );
}

fn an_unlinked_file_lives_until_its_last_close(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let path = mounted.path("gone");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    file.write_all(b"still here").unwrap();
    let before = mounted.fs.inodes();
    fs::remove_file(&path).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    drop(file);
    // RELEASE comes after close(2).
    let patience = std::time::Duration::from_secs(20);
    mounted::eventually(patience, "the inode is released", &mut || {
        mounted.fs.inodes() < before
    });
}

fn a_file_made_without_a_name_can_get_one(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let mut file = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(mounted.directory.path())
        .unwrap();
    file.write_all(b"named later").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let from = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let path = mounted.path("named");
    let to = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: both paths end with NUL and live over the call.
    let linked = unsafe {
        libc::linkat(
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            libc::AT_SYMLINK_FOLLOW,
        )
    };
    assert_eq!(linked, 0, "{}", std::io::Error::last_os_error());
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"named later");
}

fn bytes_of_birth_and_seldom_calls_get_an_answer(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let path = mounted.path("f");
    fs::write(&path, b"x").unwrap();
    assert!(
        fs::metadata(&path).unwrap().created().is_ok(),
        "STATX tells btime"
    );
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    file.sync_all().unwrap();
    File::open(mounted.directory.path())
        .unwrap()
        .sync_all()
        .unwrap();
    // SAFETY: calls on an open descriptor with plain numbers.
    unsafe {
        assert_eq!(libc::fallocate(file.as_raw_fd(), 0, 0, 4096), -1);
        assert_eq!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::EOPNOTSUPP)
        );
        // Without the file system's help the kernel treats the whole file as data.
        assert_eq!(libc::lseek(file.as_raw_fd(), 0, libc::SEEK_DATA), 0);
    }
    // The kernel copies the bytes itself if the file system can't.
    assert_eq!(fs::copy(&path, mounted.path("copy")).unwrap(), 1);
    mkfifo(&mounted.path("pipe"));
}

fn mkfifo(path: &std::path::Path) {
    use std::os::unix::fs::FileTypeExt;
    let c_path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path ends with NUL and lives over the call.
    assert_eq!(unsafe { libc::mkfifo(c_path.as_ptr(), 0o644) }, 0);
    assert!(fs::metadata(path).unwrap().file_type().is_fifo());
}

fn the_kernel_judges_permissions_and_umask(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let path = mounted.path("private");
    fs::write(&path, b"secret").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let as_nobody = |program: &str| {
        let mut command = Command::new(program);
        command.arg(&path).uid(65534).gid(65534);
        command.output().unwrap().status.success()
    };
    assert!(!as_nobody("cat"));
    fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(as_nobody("cat"));
    // A shell sets its own umask: this process's applies to all tests.
    let made = mounted.path("masked");
    let mut shell = Command::new("sh");
    shell.args(["-ec", "umask 027; : > \"$0\""]).arg(&made);
    assert!(shell.status().unwrap().success());
    assert_eq!(fs::metadata(made).unwrap().mode() & 0o777, 0o640);
}

fn extended_attributes_and_times_are_kept(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let path = mounted.path("f");
    fs::write(&path, b"").unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program)
            .args(arguments)
            .arg(&path)
            .output()
            .unwrap();
        assert!(output.status.success(), "{program} {arguments:?}");
    };
    run("touch", &["-d", "1970-01-01T00:00:00.123456789Z"]);
    let seen = fs::metadata(&path).unwrap();
    assert_eq!((seen.mtime(), seen.mtime_nsec()), (0, 123_456_789));
    run("touch", &["-d", "1931-05-05T00:00:00.5Z"]);
    assert_eq!(fs::metadata(&path).unwrap().mtime_nsec(), 500_000_000);
    let name = c"user.colour";
    let c_path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: strings end with NUL, lengths are those of the buffers.
    unsafe {
        let set = libc::setxattr(
            c_path.as_ptr(),
            name.as_ptr(),
            b"red".as_ptr().cast(),
            3,
            libc::XATTR_CREATE,
        );
        assert_eq!(set, 0);
        let mut value = [0u8; 16];
        let got = libc::getxattr(
            c_path.as_ptr(),
            name.as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        );
        assert_eq!((got, &value[..3]), (3, &b"red"[..]));
        assert_eq!(
            libc::getxattr(c_path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), 2),
            -1
        );
        assert_eq!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::ERANGE)
        );
        let listed = libc::listxattr(c_path.as_ptr(), value.as_mut_ptr().cast(), value.len());
        assert_eq!((listed, &value[..12]), (12, &b"user.colour\0"[..]));
    }
}

fn two_threads_in_own_directories_do_not_disturb_each_other(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let directory = mounted.path(&format!("t{thread}"));
            scope.spawn(move || {
                fs::create_dir(&directory).unwrap();
                for at in 0..1000 {
                    let path = directory.join(at.to_string());
                    fs::write(&path, pattern(at, thread)).unwrap();
                    assert_eq!(fs::read(&path).unwrap(), pattern(at, thread));
                    if at % 2 == 0 {
                        fs::remove_file(&path).unwrap();
                    }
                }
                assert_eq!(fs::read_dir(&directory).unwrap().count(), 500);
            });
        }
    });
}
