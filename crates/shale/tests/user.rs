//! A node of an ordinary user: fusermount3 mounts, and other users are kept out.

use crate::fixture::{self, Namespace, within_a_minute};
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
};

/// nobody: fusermount3 needs a user with a name.
const USER: u32 = 65_534;
/// Another user, without a name.
const OTHER: u32 = 54_321;

/// Ordinary users' access to /dev/fuse differs between machines; this is the usual setup with udev,
/// with the user's /etc/fuse.conf.
const MACHINE: &str = "mkdir $0/dev && mount -t tmpfs -o mode=755 none $0/dev \
    && mknod $0/dev/fuse c 10 229 && chmod 666 $0/dev/fuse \
    && mount --bind $0/dev/fuse /dev/fuse && mount --bind $0/fuse.conf /etc/fuse.conf";

/// An ordinary user's home with a node in it, on a separate machine.
struct Home {
    space: Namespace,
    home: tempfile::TempDir,
    program: PathBuf,
    dir: PathBuf,
    mnt: PathBuf,
}

impl Home {
    fn new() -> Self {
        Self::with_fuse_conf("")
    }

    fn with_fuse_conf(conf: &str) -> Self {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_shale"));
        // Only root may be able to reach the repository.
        let mut test = as_user(Command::new("setpriv"), USER);
        let may_run = test.args(["test", "-x"]).arg(&program).status();
        let may_run = may_run.unwrap().success();
        let below = if may_run {
            env!("CARGO_TARGET_TMPDIR")
        } else {
            "/var/tmp"
        };
        let home = tempfile::tempdir_in(below).unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        chown(home.path(), Some(USER), Some(USER)).unwrap();
        let program = if may_run {
            program
        } else {
            let copy = home.path().join("shale");
            fixture::copy_program(program, &copy);
            copy
        };
        fs::write(home.path().join("fuse.conf"), conf).unwrap();
        let space = Namespace::new(MACHINE, home.path());
        let dir = home.path().join("node");
        Self {
            space,
            program,
            mnt: dir.join("mnt"),
            dir,
            home,
        }
    }

    fn shale_as(&self, user: u32, arguments: &[&str]) -> (i32, String) {
        let program = self.program.to_str().unwrap();
        let dir = self.dir.to_str().unwrap();
        self.run_as(user, &[&[program], arguments, &["--dir", dir]].concat())
    }

    fn run_as(&self, user: u32, command: &[&str]) -> (i32, String) {
        within_a_minute(as_user(self.space.command("/usr/bin/setpriv"), user).args(command))
    }

    fn must(&self, arguments: &[&str]) -> String {
        let (code, said) = self.shale_as(USER, arguments);
        let log = fs::read_to_string(self.dir.join("daemon.log")).unwrap_or_default();
        assert_eq!(code, 0, "shale {arguments:?}: {said}\n{log}");
        said
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = self.shale_as(USER, &["down", "--force"]);
        let _ = self.shale_as(USER, &["down", "--kill"]);
    }
}

fn as_user(mut setpriv: Command, user: u32) -> Command {
    let id = user.to_string();
    setpriv
        .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
        .current_dir("/");
    setpriv
}

#[test]
fn an_ordinary_user_mounts_with_fusermount3_and_keeps_others_out() {
    let home = Home::new();
    home.must(&["up", "--nsd-size", "4G"]);
    let shown = home.space.mounted_as(&home.mnt).unwrap();
    let source = home.dir.canonicalize().unwrap();
    assert!(
        shown.starts_with(&format!("{} fuse.shale", source.display())),
        "{shown}"
    );
    assert!(
        shown.contains("nosuid") && shown.contains("nodev"),
        "{shown}"
    );
    let file = home.mnt.join("file");
    let file = file.to_str().unwrap();
    let (code, said) = home.run_as(
        USER,
        &["sh", "-c", "echo mine > $0 && stat -c %u:%g $0", file],
    );
    assert_eq!((code, said.trim()), (0, "65534:65534"));
    // Neither root nor any other user gets in.
    let denied = fs::read_dir(home.space.inside(&home.mnt)).unwrap_err();
    assert_eq!(denied.raw_os_error(), Some(libc::EACCES));
    let (code, said) = home.run_as(OTHER, &["cat", file]);
    assert!(code != 0 && said.contains("Permission denied"), "{said}");
    // The regions hold all users' bytes: other users can't read them directly.
    let region = fs::metadata(home.dir.join("nsd/1.region")).unwrap();
    assert_eq!((region.uid(), region.mode() & 0o777), (USER, 0o600));
    // A subdirectory, mounted read-only in addition.
    let view = home.home.path().join("view");
    let view = view.to_str().unwrap();
    home.run_as(
        USER,
        &["mkdir", view, home.mnt.join("docs").to_str().unwrap()],
    );
    home.must(&["mount", view, "-o", "ro,noatime,noexec,subdir=docs"]);
    let shown = home.space.mounted_as(Path::new(view)).unwrap();
    assert!(shown.contains(" ro") && shown.contains("noatime") && shown.contains("noexec"));
    home.must(&["umount", view]);
    home.must(&["down"]);
    home.must(&["up"]);
    assert_eq!(home.run_as(USER, &["cat", file]), (0, "mine\n".into()));
    // Other ways to end it, by the user and while programs use it.
    for way in [["fusermount3", "-u"], ["fusermount3", "-uz"]] {
        let (code, said) = home.run_as(USER, &[way[0], way[1], home.mnt.to_str().unwrap()]);
        assert_eq!(code, 0, "{said}");
        home.must(&["up"]);
    }
    home.must(&["down", "--force"]);
}

#[test]
fn the_node_and_the_directories_of_another_user_are_refused() {
    let home = Home::new();
    home.must(&["up", "--nsd-size", "4G"]);
    for user in [OTHER, 0] {
        let (code, said) = home.shale_as(user, &["up"]);
        assert_eq!(code, 1);
        assert!(said.contains("belongs to user 65534"), "{said}");
    }
    let (code, said) = home.shale_as(OTHER, &["status"]);
    assert_eq!(code, 1);
    assert!(said.contains("run as its owner"), "{said}");
    let theirs = home.home.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    let (code, said) = home.shale_as(USER, &["mount", theirs.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(said.contains("directories that are theirs"), "{said}");
    let (code, said) = home.run_as(
        OTHER,
        &[
            home.program.to_str().unwrap(),
            "up",
            "--dir",
            home.home.path().join("x").to_str().unwrap(),
        ],
    );
    assert_eq!(code, 1);
    assert!(
        said.contains("creating") && said.contains("ermission denied"),
        "{said}"
    );
}

#[test]
fn without_fusermount3_it_says_what_to_install() {
    let home = Home::new();
    let mut up = as_user(home.space.command("/usr/bin/setpriv"), USER);
    up.args(["/usr/bin/env", "PATH=/nowhere"])
        .arg(&home.program);
    up.args(["up", "--nsd-size", "4G", "--dir"]).arg(&home.dir);
    let (code, said) = within_a_minute(&mut up);
    assert_eq!(code, 1);
    assert!(said.contains("install the package fuse3"), "{said}");
    home.must(&["up"]);
}

#[test]
fn allow_other_needs_the_permission_of_fuse_conf() {
    let up = ["up", "--nsd-size", "4G", "-o", "allow_other"];
    let home = Home::new();
    let (code, said) = home.shale_as(USER, &up);
    assert_eq!(code, 1);
    assert!(
        said.contains("user_allow_other") && said.contains("/etc/fuse.conf"),
        "{said}"
    );
    let home = Home::with_fuse_conf("user_allow_other\n");
    home.must(&up);
    let file = home.mnt.join("file");
    let script = ["sh", "-c", "echo words > $0", file.to_str().unwrap()];
    assert_eq!(home.run_as(USER, &script).0, 0);
    for user in [OTHER, 0] {
        let read = home.run_as(user, &["cat", file.to_str().unwrap()]);
        assert_eq!(read, (0, "words\n".into()));
    }
}
