//! A lab for a test: up when it begins, gone when it ends, however it ends.
//!
//! Labs lie in a folder beside the test programs, each with a file that its test keeps locked. A test
//! program that was killed leaves a lab whose file is free: the next one removes it.

use crate::fixture::{
    bounded::{self, Ended},
    poll, skipped,
};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Once,
    time::Duration,
};

/// A lab comes up in minutes if other tests take the cores.
const UP_MAX: Duration = Duration::from_secs(900);
/// Every other command of a lab.
const COMMAND_MAX: Duration = Duration::from_secs(400);
/// Waits for what a cluster does by itself.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// The file that a test keeps locked.
const OWNER: &str = "owner";
/// The folder beside a lab with images of disks: `n1` is mounted on the directory of node 1, ...
pub(super) const IMAGES: &str = "images";
/// ... and unmounting it takes so long at most: the kernel closes the files of a process a little after its end.
const UNMOUNT_MAX: Duration = Duration::from_secs(90);

/// A lab of a test's own; its nodes are numbered from 1.
pub(crate) struct Lab {
    /// As for `shale lab --dir`.
    pub dir: PathBuf,
    home: PathBuf,
    _owner: File,
}

impl Lab {
    /// Nodes with one NSD of 1 GiB each; `None` if this machine can't have a lab, which is reported.
    #[track_caller]
    pub(crate) fn up(nodes: u32, scheme: &str) -> Option<Self> {
        Self::with(&["--nodes", &nodes.to_string(), "--scheme", scheme])
    }

    /// With these arguments of `shale lab up`.
    #[track_caller]
    pub(crate) fn with(arguments: &[&str]) -> Option<Self> {
        let lab = Self::unmade()?;
        let ended = lab.run(&[&["up"], arguments].concat());
        assert_eq!(ended.code, 0, "lab up {arguments:?}: {}", ended.text);
        Some(lab)
    }

    /// Only the place for a lab. Its directory doesn't exist.
    pub(crate) fn unmade() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            let test = std::thread::current().name().unwrap_or("lab").to_owned();
            skipped(&test, "labs need root");
            return None;
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("labs");
        fs::create_dir_all(&folder).unwrap();
        // Nobody takes a new lab for one that was left.
        let making = lock(&folder.join("lock"), FlockOperation::LockExclusive).unwrap();
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| sweep(&folder));
        let home = tempfile::Builder::new().prefix("lab").tempdir_in(&folder);
        // It is removed after the lab in it.
        let home = home.unwrap().keep();
        let owner = lock(&home.join(OWNER), FlockOperation::LockExclusive).unwrap();
        drop(making);
        Some(Self {
            dir: home.join("lab"),
            home,
            _owner: owner,
        })
    }

    /// Runs `shale lab ARGUMENTS --dir DIR`.
    #[track_caller]
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        run_lab(&self.dir, arguments)
    }

    /// Runs a command that must succeed; returns what it said.
    #[track_caller]
    pub(crate) fn must(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments);
        assert_eq!(ended.code, 0, "lab {arguments:?}: {}", ended.text);
        ended.text
    }

    /// Runs a command on a node, in its network and in its mount; it must succeed.
    #[track_caller]
    pub(crate) fn exec(&self, node: u32, command: &[&str]) -> String {
        let node = node.to_string();
        self.must(&[&["exec", &node, "--"], command].concat())
    }

    /// How a node is, as `shale lab status` says.
    #[track_caller]
    pub(crate) fn state(&self, node: u32) -> Value {
        self.states()[node as usize - 1].clone()
    }

    /// The process of a node's daemon, which must run.
    #[track_caller]
    pub(crate) fn daemon(&self, node: u32) -> i32 {
        let state = self.state(node);
        let pid = state["pid"].as_i64();
        pid.unwrap_or_else(|| panic!("n{node} has no daemon: {state}")) as i32
    }

    #[track_caller]
    fn states(&self) -> Vec<Value> {
        let said = self.must(&["status", "--json"]);
        let status: Value = serde_json::from_str(&said).unwrap();
        status["nodes"].as_array().unwrap().clone()
    }

    /// The numbers of its nodes.
    #[track_caller]
    pub(crate) fn nodes(&self) -> Vec<u32> {
        (1..=self.states().len() as u32).collect()
    }

    /// What a command of `shale` answers with `--json` for a node; null if it says something else.
    #[track_caller]
    pub(crate) fn ask(&self, node: u32, command: &[&str]) -> Value {
        let ended = bounded::run(
            Command::new(env!("CARGO_BIN_EXE_shale"))
                .args(command)
                .arg("--json")
                .arg("--dir")
                .arg(self.node(node)),
        );
        serde_json::from_str(&ended.text).unwrap_or_default()
    }

    /// A node's directory, as for `shale --dir`.
    pub(crate) fn node(&self, node: u32) -> PathBuf {
        self.dir.join(format!("n{node}"))
    }

    /// How often a node's daemon has noted something in its log.
    #[track_caller]
    pub(crate) fn noted(&self, node: u32, what: &str) -> usize {
        let log = fs::read_to_string(self.node(node).join("daemon.log")).unwrap();
        log.matches(what).count()
    }

    /// A path in a node's mount.
    pub(crate) fn path(&self, node: u32, name: &str) -> PathBuf {
        self.node(node).join("mnt").join(name)
    }

    /// Waits until something holds that the cluster brings about by itself.
    #[track_caller]
    pub(crate) fn until<T>(&self, what: &str, look: impl FnMut() -> Result<T, String>) -> T {
        poll::until(what, PATIENCE, look)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
        }
        remove(&self.home);
    }
}

impl Lab {
    /// For whoever looks why a test has failed.
    fn show_logs(&self) {
        for node in 1..=16 {
            let Ok(log) = fs::read_to_string(self.node(node).join("daemon.log")) else {
                continue;
            };
            let lines: Vec<_> = log.lines().collect();
            eprintln!("last lines of the log of n{node}:");
            for line in &lines[lines.len().saturating_sub(20)..] {
                eprintln!("  {line}");
            }
        }
    }
}

#[track_caller]
fn run_lab(dir: &Path, arguments: &[&str]) -> Ended {
    // What follows `--` is another program's.
    let own = arguments.iter().position(|it| *it == "--");
    let (own, others) = arguments.split_at(own.unwrap_or(arguments.len()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_shale"));
    command
        .arg("lab")
        .args(own)
        .arg("--dir")
        .arg(dir)
        .args(others);
    let patience = if arguments[0] == "up" {
        UP_MAX
    } else {
        COMMAND_MAX
    };
    bounded::run_within(&mut command, patience)
}

/// Removes the labs of test programs that were killed.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let home = entry.path();
        let owner = home.join(OWNER);
        if owner.exists() && lock(&owner, FlockOperation::NonBlockingLockExclusive).is_ok() {
            eprintln!("{} was left by a test that was killed", home.display());
            remove(&home);
        }
    }
}

/// Ends the lab in a place, whatever is left of it, and removes the place.
fn remove(home: &Path) {
    let lab = home.join("lab");
    let ended = std::panic::catch_unwind(|| {
        if home.join(IMAGES).exists() {
            run_lab(&lab, &["down"]);
            unmount_images(home, &lab);
        }
        run_lab(&lab, &["down", "--purge"])
    });
    match ended {
        Ok(ended) if ended.code == 0 => fs::remove_dir_all(home).unwrap(),
        other => eprintln!("{} can't be removed: {other:?}", home.display()),
    }
}

/// Unmounts the disks of a lab that is down.
fn unmount_images(home: &Path, lab: &Path) {
    for entry in fs::read_dir(home.join(IMAGES)).unwrap() {
        let place = lab.join(entry.unwrap().file_name());
        poll::until("umount", UNMOUNT_MAX, || {
            let disk = |path: &Path| path.metadata().map(|it| it.dev()).ok();
            // What was put aside for one that couldn't be mounted has no place in the lab.
            if disk(&place).is_none_or(|own| disk(lab) == Some(own)) {
                return Ok(());
            }
            let umount = bounded::run(Command::new("umount").arg(&place));
            match umount.code {
                0 => Ok(()),
                _ => Err(umount.text),
            }
        });
    }
}

fn lock(path: &Path, how: FlockOperation) -> std::io::Result<File> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    flock(&file, how)?;
    Ok(file)
}
