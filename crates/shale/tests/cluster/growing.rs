//! A node that is alone becomes the first one of a cluster while programs use its mount.

use super::{Cluster, NSD, content, free_net, refused};
use crate::fixture::{Node, alive, eventually, open, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

/// A shell that has its working directory in the mount.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn in_directory(directory: &Path) -> Self {
        let mut child = Command::new("sh")
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    /// Runs a command, and returns the first line that it says.
    fn ask(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a program has, which nothing may take from it.
struct Program {
    kept: File,
    nameless: File,
    locked: File,
    shell: Shell,
    /// Waits for the lock.
    waits: JoinHandle<()>,
    waiter: u32,
    has_lock: Arc<AtomicBool>,
}

impl Program {
    fn begin(node: &Node) -> Self {
        let mut kept = open(&node.path("kept"));
        kept.write_all(&content(1)).unwrap();
        let mut nameless = open(&node.path("nameless"));
        nameless.write_all(&content(2)).unwrap();
        fs::remove_file(node.path("nameless")).unwrap();
        let locked = open(&node.path("locked"));
        flock(&locked, FlockOperation::LockExclusive).unwrap();
        let other = open(&node.path("locked"));
        let has_lock = Arc::<AtomicBool>::default();
        let (tell, told) = std::sync::mpsc::channel();
        let got = has_lock.clone();
        let waits = std::thread::spawn(move || {
            let thread = rustix::thread::gettid().as_raw_pid();
            tell.send(thread as u32).unwrap();
            flock(&other, FlockOperation::LockExclusive).unwrap();
            got.store(true, Ordering::SeqCst);
        });
        let waiter = told.recv().unwrap();
        poll::blocked_in(std::process::id(), waiter, libc::SYS_flock);
        fs::create_dir(node.path("here")).unwrap();
        fs::write(node.path("here/file"), "in the working directory\n").unwrap();
        let shell = Shell::in_directory(&node.path("here"));
        Self {
            kept,
            nameless,
            locked,
            shell,
            waits,
            waiter,
            has_lock,
        }
    }

    /// It still has all of it, and can change it.
    fn goes_on(mut self, node: &Node) {
        for (file, number) in [(&mut self.kept, 1), (&mut self.nameless, 2)] {
            let mut read = Vec::new();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_to_end(&mut read).unwrap();
            assert_eq!(read, content(number), "what {number} had");
            file.write_all(&content(number + 2)).unwrap();
            file.sync_all().unwrap();
        }
        let said = self.shell.ask("cat file; echo made > made");
        assert_eq!(said, "in the working directory");
        let said = self.shell.ask("cat made");
        assert_eq!(said, "made");
        assert!(fs::metadata(node.path("nameless")).is_err());
        let third = open(&node.path("locked"));
        flock(&third, FlockOperation::NonBlockingLockExclusive).unwrap_err();
        assert!(!self.has_lock.load(Ordering::SeqCst), "one has it");
        poll::blocked_in(std::process::id(), self.waiter, libc::SYS_flock);
        flock(&self.locked, FlockOperation::Unlock).unwrap();
        self.waits.join().unwrap();
        // The kernel tells of its last close later.
        let is_free = || flock(&third, FlockOperation::NonBlockingLockExclusive).is_ok();
        eventually("it is free", is_free);
    }
}

fn file(directory: &Path, number: u32) -> PathBuf {
    directory.join(format!("f{number}"))
}

/// Makes, renames and reads files until it is told to stop. Each that is counted was synced.
fn load(directory: &Path, synced: &AtomicU32, stops: &AtomicBool) {
    let mut number = 0;
    while !stops.load(Ordering::SeqCst) {
        let (new, place) = (directory.join("new"), file(directory, number));
        let mut written = File::create(&new).unwrap();
        written.write_all(&content(number)).unwrap();
        written.sync_all().unwrap();
        fs::rename(&new, &place).unwrap();
        File::open(directory).unwrap().sync_all().unwrap();
        assert_eq!(fs::read(&place).unwrap(), content(number));
        number += 1;
        synced.store(number, Ordering::SeqCst);
        if number > 8 {
            fs::remove_file(file(directory, number - 8)).unwrap();
        }
    }
}

/// Ends the load, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Those that were synced last are there, whole.
fn check(directory: &Path, synced: u32) {
    for number in synced.saturating_sub(6)..synced {
        assert_eq!(fs::read(file(directory, number)).unwrap(), content(number));
    }
}

fn alone() -> Cluster {
    let node = Node::unstarted();
    node.must(&["up", "--nsd-size", NSD]);
    Cluster {
        nodes: vec![node],
        net: free_net(),
    }
}

/// Would be broken if making a cluster ended a mount, or if programs lost open files, names, locks, their working directory or
/// data by it, or got an error.
#[test]
fn programs_only_see_a_pause_while_their_node_becomes_the_first_of_a_cluster() {
    let mut cluster = alone();
    let address = cluster.address(1);
    let node = cluster.node(1);
    let pid = node.pid();
    let program = Program::begin(node);
    let directory = node.path("load");
    fs::create_dir(&directory).unwrap();
    let (synced, stops) = (AtomicU32::new(0), AtomicBool::new(false));
    let begins = |from: u32| synced.load(Ordering::SeqCst) > from + 2;
    std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&directory, &synced, &stops));
        let over = Over(&stops);
        eventually("it works", || begins(0) || load.is_finished());
        node.must(&["cluster", "create", "--address", &address]);
        let before = synced.load(Ordering::SeqCst);
        eventually("it works on", || begins(before) || load.is_finished());
        drop(over);
        load.join().unwrap();
    });
    assert_eq!(node.pid(), pid, "it is the same daemon");
    assert_eq!(node.ask(&["status"])["cluster"]["node"], 1);
    program.goes_on(node);
    check(&directory, synced.load(Ordering::SeqCst));
    node.check();
    let again = node.run(&["cluster", "create", "--address", &address]);
    assert!(refused(&again).contains("already"), "{again:?}");
    // Others join, and see what was written before and after.
    cluster.join(false);
    let read = fs::read(cluster.path(2, "kept")).unwrap();
    assert_eq!(read, [content(1), content(3)].concat());
    check(&cluster.path(2, "load"), synced.load(Ordering::SeqCst));
    fs::write(cluster.path(2, "kept"), "from node 2").unwrap();
    let read = fs::read_to_string(cluster.path(1, "kept")).unwrap();
    assert_eq!(read, "from node 2");
}

/// The daemon that has the directory's lock.
fn daemon(node: &Node) -> Option<i32> {
    let text = fs::read_to_string(node.dir.join("daemon.lock")).ok()?;
    let pid: i32 = text.trim().parse().ok()?;
    alive(pid).then_some(pid)
}

/// How far a daemon may be when it dies, and whether it is.
type Stage<'a> = (&'a str, &'a dyn Fn(&Node) -> bool);

/// Would be broken if a daemon that dies anywhere while its node becomes a cluster's left what no daemon can go on with, or lost
/// what a program has synced.
#[test]
fn a_daemon_that_dies_while_its_node_becomes_a_cluster_loses_nothing_that_was_synced() {
    let says = |node: &Node, what: &str| {
        let log = fs::read_to_string(node.dir.join("daemon.log"));
        log.unwrap_or_default().contains(what)
    };
    let stages: [Stage<'_>; 5] = [
        ("its plan is there", &|node| {
            let toml = fs::read_to_string(node.dir.join("node.toml"));
            toml.unwrap_or_default().contains("founding = true")
        }),
        ("its etcd has begun", &|node| {
            node.dir.join("etcd/member/wal").exists()
        }),
        ("programs wait", &|node| says(node, "programs wait")),
        ("its facts have moved", &|node| {
            says(node, "facts are in the cluster's etcd")
        }),
        ("it has joined", &|node| {
            says(node, "the node has joined the cluster")
        }),
    ];
    for (stage, is_so_far) in stages {
        let mut cluster = alone();
        let address = cluster.address(1);
        let node = cluster.node(1);
        let pid = daemon(node).unwrap();
        let directory = node.path("load");
        fs::create_dir(&directory).unwrap();
        for number in 0..6 {
            let mut written = File::create(file(&directory, number)).unwrap();
            written.write_all(&content(number)).unwrap();
            written.sync_all().unwrap();
        }
        // It dies with its program.
        let mut nameless = open(&node.path("nameless"));
        nameless.write_all(&content(9)).unwrap();
        fs::remove_file(node.path("nameless")).unwrap();
        let create = ["cluster", "create", "--address", &address];
        std::thread::scope(|scope| {
            let attempt = scope.spawn(|| node.run(&create));
            eventually(stage, || attempt.is_finished() || is_so_far(node));
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
            // It may have been through.
            let _made_or_not = attempt.join().unwrap();
        });
        let is_free = |port: u16| TcpListener::bind((address.as_str(), port)).is_ok();
        eventually("its etcd is gone with it", || {
            !alive(pid) && (7311..=7313).all(is_free)
        });
        drop(nameless);
        let is_founded = || {
            let toml = fs::read_to_string(node.dir.join("node.toml")).unwrap();
            toml.contains("[cluster]") && !toml.contains("founding = true")
        };
        match is_founded() {
            true => node.must(&["up"]),
            false => node.must(&create),
        };
        assert_eq!(node.ask(&["status"])["cluster"]["node"], 1, "{stage}");
        check(&directory, 6);
        assert!(fs::metadata(node.path("nameless")).is_err(), "{stage}");
        node.check();
        cluster.join(false);
        check(&cluster.path(2, "load"), 6);
    }
}
