//! Other projects' test suites on a mounted file system: pjdfstest (POSIX semantics), fsx (random
//! reads, writes and mappings), stress-ng (many processes), fio (verified random I/O through each
//! of the kernel's I/O engines), and the ACL tools.
//!
//! `make test-deps` installs what they need; docs/semantics.md lists what may fail and why.

use crate::fixture::{Node, forget_mounts, must_run, repository};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A program that `make test-deps` installs in `target/tools`.
fn tool(name: &str) -> PathBuf {
    let path = repository().join("target/tools/bin").join(name);
    assert!(
        path.exists(),
        "{} is missing; `make test-deps` installs it",
        path.display()
    );
    path
}

/// Whether `make test-all` runs.
fn is_long() -> bool {
    std::env::var_os("SHALE_LONG").is_some()
}

/// Output of a pjdfstest run: its tests' names by result.
pub(crate) struct Said {
    pub(crate) text: String,
}

impl Said {
    pub(crate) fn of(&self, result: &str) -> Vec<&str> {
        let lines = self.text.lines().map(str::trim_end);
        lines
            .filter_map(|line| line.strip_suffix(result))
            .map(str::trim)
            .collect()
    }
}

/// The directory of a mount in which pjdfstest makes its files.
pub(crate) const WORK: &str = "work";

/// Where pjdfstest runs.
pub(crate) struct Pjdfstest<'a> {
    /// The file for its configuration.
    pub(crate) config: PathBuf,
    /// The mount, as the suite's mount namespace shows it.
    pub(crate) mnt: &'a Path,
    /// Commands of a shell that prepare this namespace.
    pub(crate) before: String,
}

impl Pjdfstest<'_> {
    /// Runs the tests whose names contain `only`. For read-only remounts mount(8) calls
    /// /sbin/mount.fuse: in a separate mount namespace that is our program, as where the helpers are
    /// installed.
    pub(crate) fn run(&self, only: &str, may_remount: bool) -> Said {
        let text = format!(
            "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nutimensat = {{}}\nutime_now = {{}}\n\
             [settings]\nnaptime = 0.001\nallow_remount = {may_remount}\n\
             [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n"
        );
        fs::write(&self.config, text).unwrap();
        let work = self.mnt.join(WORK);
        let program = r#"mount --bind "$SHALE" "$(readlink -f /sbin/mount.fuse)" \
            && mkdir -p "$WORK" && cd "$WORK" && exec "$@""#;
        let program = format!("{}; {program}", self.before);
        let output = Command::new("unshare")
            .args(["-m", "sh", "-ec", &program, "sh"])
            .arg(tool("pjdfstest"))
            .arg("-c")
            .arg(&self.config)
            .arg("-p")
            .arg(&work)
            .args(["-s", "/dev/shm", only])
            .env("SHALE", env!("CARGO_BIN_EXE_shale"))
            .env("WORK", &work)
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap();
        Said {
            text: String::from_utf8_lossy(&output.stdout).into_owned(),
        }
    }
}

#[test]
fn pjdfstest_finds_no_fault() {
    // A socket's address holds 108 bytes, and the suite appends names of about 60.
    let short = tempfile::tempdir().unwrap();
    let mount = short.path().to_str().unwrap();
    let mut node = Node::with(&["--nsd-size", "2G", "--allow-other", "--mount", mount]);
    node.mnt = short.path().into();
    // The suite keeps files open after some of its tests, so the mount can become read-only only in
    // a separate run.
    let suite = Pjdfstest {
        config: node.dir.join("pjdfstest.toml"),
        mnt: &node.mnt,
        before: forget_mounts(&node.mnt),
    };
    let first = suite.run("", false);
    assert_eq!(first.of("FAILED"), Vec::<&str>::new(), "{}", first.text);
    let skipped = first.of("skipped");
    let (read_only, others): (Vec<&str>, Vec<&str>) =
        skipped.iter().partition(|name| name.contains("erofs"));
    // The reason is in docs/semantics.md.
    assert_eq!(others, ["link::link_count_max"], "{}", first.text);
    assert!(first.of(" ok").len() >= 384, "{}", first.text);
    let second = suite.run("erofs", true);
    assert_eq!(second.of(" ok"), read_only, "{}", second.text);
}

#[test]
fn fsx_sees_every_byte_it_wrote() {
    let node = Node::new();
    let config = node.dir.join("fsx.toml");
    fs::write(
        &config,
        "flen = 1048576\n[opsize]\nmax = 131072\n[weights]\nclose_open = 5\nread = 10\n\
         write = 10\nmapread = 10\ntruncate = 5\nfsync = 2\nfdatasync = 2\nmapwrite = 10\n\
         punch_hole = 5\nposix_fallocate = 3\nsendfile = 5\ncopy_file_range = 5\n",
    )
    .unwrap();
    let count = if is_long() { "200000" } else { "10000" };
    let program = tool("fsx");
    for seed in ["1", "2", "3"] {
        let config = config.to_str().unwrap();
        let arguments = ["-f", config, "-N", count, "-S", seed, "file"];
        let said = must_run(&node.mnt, program.to_str().unwrap(), &arguments);
        assert!(
            said.contains("A-OK"),
            "fsx says nothing of its work: {said}"
        );
    }
    node.check();
}

/// The stressors of stress-ng that use a file system and that FUSE has requests for. Each verifies
/// its results.
const STRESSORS_OF_NAMES: &str = "access chattr chdir chmod chown dentry dir dirdeep dirmany \
     dnotify filename getdent handle inode-flags inotify link mknod rename symlink touch utime \
     xattr";
const STRESSORS_OF_FILES: &str = "copy-file dup fallocate fcntl file-ioctl flock fpunch fsize \
     fstat hdd io iomix lease locka lockf lockofd open sync-file";

fn stress(stressors: &str) {
    let node = Node::with(&["--nsd-size", "4G"]);
    let time = if is_long() { "10s" } else { "1s" };
    for stressor in stressors.split_whitespace() {
        let two = format!("--{stressor}");
        let arguments = ["60", "stress-ng", "--verify", "--timeout", time, &two, "2"];
        // The suite's own time limit ends it; sync(2), which some call, waits for the whole
        // machine.
        let output = Command::new("timeout")
            .args(arguments)
            .current_dir(&node.mnt)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{stressor}: {text}");
        // A stressor that can't run here would pass without doing anything.
        let has_run = text.contains("successful run completed") && !text.contains("skipp");
        assert!(has_run, "{stressor}: {text}");
    }
    node.check();
}

#[test]
fn stress_ng_finds_no_fault_with_names() {
    stress(STRESSORS_OF_NAMES);
}

#[test]
fn stress_ng_finds_no_fault_with_files() {
    stress(STRESSORS_OF_FILES);
}

#[test]
fn fio_reads_what_it_wrote_through_each_way_of_the_kernel() {
    let node = Node::with(&["--nsd-size", "2G"]);
    let size = if is_long() {
        "--size=256m"
    } else {
        "--size=16m"
    };
    // Whole pages where the engine requires it, otherwise unaligned pieces.
    let ways = [
        ("psync", "37k", "0"),
        ("mmap", "64k", "0"),
        ("posixaio", "37k", "0"),
        ("sync", "4k", "1"),
        ("libaio", "4k", "1"),
        ("io_uring", "1m", "1"),
    ];
    for (engine, block, direct) in ways {
        let way = [
            format!("--ioengine={engine}"),
            format!("--bs={block}"),
            format!("--direct={direct}"),
        ];
        let mut arguments = vec![
            "120",
            "fio",
            "--name=job",
            "--rw=randrw",
            "--numjobs=2",
            size,
        ];
        arguments.extend(["--iodepth=16", "--verify=crc32c", "--verify_state_save=0"]);
        arguments.extend(way.iter().map(String::as_str));
        must_run(&node.mnt, "timeout", &arguments);
        must_run(&node.mnt, "sh", &["-c", "rm job.*"]);
    }
    node.check();
}

#[test]
fn access_control_lists_are_kept_inherited_and_obeyed() {
    let node = Node::with(&["--nsd-size", "1G", "--allow-other"]);
    let run = |program: &str, arguments: &[&str]| must_run(&node.mnt, program, arguments);
    fs::create_dir(node.path("d")).unwrap();
    run("setfacl", &["-d", "-m", "u:65534:rwx,g:1:r", "d"]);
    // The default list replaces the umask.
    run(
        "sh",
        &[
            "-c",
            "umask 077; touch d/file; mkdir d/sub; ln -s file d/link",
        ],
    );
    let file = run("getfacl", &["-ncE", "d/file"]);
    let wanted = "user::rw-\nuser:65534:rwx\ngroup::r-x\ngroup:1:r--\nmask::rw-\nother::r--\n\n";
    assert_eq!(file, wanted);
    let sub = run("getfacl", &["-ncE", "d/sub"]);
    assert!(
        sub.contains("default:user:65534:rwx") && sub.contains("\nuser:65534:rwx"),
        "{sub}"
    );
    // The list and the permission bits stay consistent.
    run("chmod", &["640", "d/file"]);
    let file = run("getfacl", &["-ncE", "d/file"]);
    assert!(
        file.contains("mask::r--") && file.contains("user:65534:rwx"),
        "{file}"
    );
    run("setfacl", &["-m", "m:rw", "d/file"]);
    assert!(run("stat", &["-c", "%a", "d/file"]).contains("660"));
    // It is enforced: the user nobody may write only because of the list.
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let as_nobody = |command: &str| {
        Command::new("setpriv")
            .args(nobody)
            .args(["sh", "-c", command])
            .current_dir(&node.mnt)
            .output()
            .unwrap()
            .status
            .success()
    };
    assert!(as_nobody("echo hello >> d/file"));
    run("setfacl", &["-m", "u:65534:-", "d/file"]);
    assert!(!as_nobody("cat d/file"));
    node.must(&["down"]);
    node.must(&["up"]);
    assert!(!as_nobody("cat d/file"), "lists outlive a restart");
    run("setfacl", &["-b", "d/file"]);
    assert_eq!(
        run("getfacl", &["-ncE", "d/file"]),
        "user::rw-\ngroup::r-x\nother::---\n\n"
    );
    assert!(!run("ls", &["-l", "d/file"]).contains('+'));
    node.check();
}
