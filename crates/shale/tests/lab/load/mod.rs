//! A load on a cluster of which every byte can be checked: programs on its nodes make, sync, read, rename and remove files,
//! and know what was acknowledged. Where nodes go on, programs may be held up; an error is the test's failure.

mod journal;
mod listed;
mod pauses;
mod process;
mod program;

pub(crate) use pauses::Pauses;

use super::fixture::Lab;
use crate::cluster::Cluster;
use crate::fixture::poll;
use journal::Entry;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, channel},
    },
    time::Duration,
};

/// A program that gets nowhere for so long hangs: clients give up after a minute.
const HANG_MAX: Duration = Duration::from_secs(180);
/// Looking at all files of a load on one node.
const CHECK_MAX: Duration = Duration::from_secs(300);
/// An answer from a process of programs, which waits for no file system.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A cluster whose nodes mount its file system; they are numbered from 1.
pub(crate) trait Mounts {
    /// A path in a node's mount.
    fn path_on(&self, node: u32, name: &str) -> PathBuf;
}

impl Mounts for Lab {
    fn path_on(&self, node: u32, name: &str) -> PathBuf {
        self.path(node, name)
    }
}

impl Mounts for Cluster {
    fn path_on(&self, node: u32, name: &str) -> PathBuf {
        self.path(node as usize, name)
    }
}

/// Programs that run on nodes of a cluster. They are killed when it is dropped.
pub(crate) struct Load {
    /// Its directory.
    name: String,
    /// By node.
    processes: BTreeMap<u32, Process>,
    /// Waits of programs that their nodes have told of.
    listed: BTreeSet<String>,
}

struct Process {
    child: Child,
    input: ChildStdin,
    answers: Receiver<Value>,
}

impl Process {
    fn start(node: u32, place: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", process::TEST, "--nocapture"])
            .env(process::NAME, format!("{node} {}", place.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, answers) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, answer)) = line.split_once(process::ANSWER) {
                    // Nobody listens to a process that is given up.
                    let _ = tell.send(serde_json::from_str(answer).unwrap());
                }
            }
        });
        Self {
            child,
            input,
            answers,
        }
    }

    /// One value for each program, or each file.
    fn ask(&mut self, command: &str) -> Vec<Value> {
        writeln!(self.input, "{command}").unwrap();
        let answer = self.answers.recv_timeout(ANSWER_MAX);
        let answer = answer.unwrap_or_else(|error| panic!("the process of a load: {error}"));
        answer.as_array().expect("it answers with a list").clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // One that waits for a daemon that is still stopped ends with that.
        if !std::thread::panicking() {
            let _ = self.child.wait();
        }
    }
}

impl Load {
    /// Starts programs on these nodes. Returns once each has made a file.
    #[track_caller]
    pub(crate) fn start(cluster: &impl Mounts, nodes: &[u32]) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("load{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let place = |node: u32| cluster.path_on(node, &name);
        let start = |node: &u32| (*node, Process::start(*node, &place(*node)));
        let mut load = Self {
            processes: nodes.iter().map(start).collect(),
            listed: BTreeSet::new(),
            name,
        };
        load.gets_on(nodes, 1);
        load
    }

    fn ask(&mut self, nodes: &[u32], command: &str) -> Vec<Value> {
        let mut answers = Vec::new();
        for node in nodes {
            let process = self.processes.get_mut(node);
            answers.extend(process.expect("programs run there").ask(command));
        }
        answers
    }

    /// How the programs on these nodes are; none may have failed.
    #[track_caller]
    fn look(&mut self, nodes: &[u32]) -> Vec<Value> {
        let reports = self.ask(nodes, "look");
        let failed = reports.iter().find(|it| !it["failed"].is_null());
        if let Some(report) = failed {
            panic!("a program of the load has failed: {report}");
        }
        reports
    }

    /// Waits until each program on these nodes has made so many more files.
    #[track_caller]
    pub(crate) fn gets_on(&mut self, nodes: &[u32], files: u64) {
        self.gets_on_while(nodes, files, |_| {});
    }

    /// The same. `look` is called again and again meanwhile.
    #[track_caller]
    pub(crate) fn gets_on_while(
        &mut self,
        nodes: &[u32],
        files: u64,
        mut look: impl FnMut(&mut Self),
    ) {
        let before = self.look(nodes);
        poll::until("programs get on", HANG_MAX, || {
            look(self);
            let now = self.look(nodes);
            let made = |(now, before)| count(now, "files") - count(before, "files");
            let is_so = now.iter().zip(&before).map(made).all(|it| it >= files);
            is_so.then_some(()).ok_or_else(|| shown(&now))
        });
    }

    /// How many files all programs on these nodes have made together.
    #[track_caller]
    pub(crate) fn files(&mut self, nodes: &[u32]) -> u64 {
        self.look(nodes).iter().map(|it| count(it, "files")).sum()
    }

    /// How many of their operations were answered.
    #[track_caller]
    pub(crate) fn operations(&mut self, nodes: &[u32]) -> u64 {
        let reports = self.look(nodes);
        reports.iter().map(|it| count(it, "operations")).sum()
    }

    /// Whether every program on these nodes has waited for an answer for so long.
    ///
    /// # Errors
    /// What they do.
    #[track_caller]
    pub(crate) fn all_wait(&mut self, nodes: &[u32], time: Duration) -> Result<(), String> {
        let reports = self.look(nodes);
        let all_wait = reports.iter().all(|it| has_waited(it, time));
        all_wait.then_some(()).ok_or_else(|| shown(&reports))
    }

    /// Whether no program on these nodes gets on, be it that it has waited for an answer for so long, or that it has ended.
    ///
    /// # Errors
    /// What they do.
    #[track_caller]
    pub(crate) fn none_gets_on(&mut self, nodes: &[u32], time: Duration) -> Result<(), String> {
        let reports = self.ask(nodes, "look");
        let stands = |it: &Value| it["ended"] == true || has_waited(it, time);
        let none_gets_on = reports.iter().all(stands);
        none_gets_on.then_some(()).ok_or_else(|| shown(&reports))
    }

    /// From now on the programs count how long operations take.
    pub(crate) fn mark(&mut self) {
        let nodes = self.nodes();
        self.ask(&nodes, "mark");
    }

    /// The longest that operations of these nodes' programs have taken since.
    #[track_caller]
    pub(crate) fn pauses(&mut self, nodes: &[u32]) -> Pauses {
        let mut pauses = Pauses::default();
        for report in self.look(nodes) {
            let longest = report["longest"].as_object().expect("times by operation");
            for (operation, time) in longest {
                let time = Duration::from_millis(time.as_u64().unwrap());
                pauses.note(operation, time);
            }
        }
        pauses
    }

    /// Ends the programs of nodes that go on: none of them may have failed.
    #[track_caller]
    pub(crate) fn end(&mut self, nodes: &[u32]) {
        self.end_whatever_happened(nodes);
        self.look(nodes);
    }

    /// Ends the programs of nodes that were given up by the others.
    #[track_caller]
    pub(crate) fn end_whatever_happened(&mut self, nodes: &[u32]) {
        self.ask(nodes, "end");
        poll::until("programs end", HANG_MAX, || {
            let now = self.ask(nodes, "look");
            let have_ended = now.iter().all(|it| it["ended"] == true);
            have_ended.then_some(()).ok_or_else(|| shown(&now))
        });
    }

    /// Each of these nodes must show what was acknowledged to any of the programs. All of them have ended, but for those
    /// of nodes that were given up.
    #[track_caller]
    pub(crate) fn must_be_seen(&mut self, cluster: &impl Mounts, nodes: &[u32]) {
        let all = self.nodes();
        let files = Value::Array(self.ask(&all, "files"));
        let entries: Vec<Entry> = serde_json::from_value(files).unwrap();
        // All at the same time: a node waits for others more than it computes.
        let check = |node: &u32| {
            let (place, entries) = (cluster.path_on(*node, &self.name), entries.clone());
            let checked = begun(move || journal::check(&place, &entries));
            (*node, checked)
        };
        let checks: Vec<_> = nodes.iter().map(check).collect();
        for (node, checked) in checks {
            let checked = end_of("looking at all files", &checked);
            checked.unwrap_or_else(|why| panic!("n{node}: {why}"));
        }
    }

    /// Removes its files, through this node.
    #[track_caller]
    pub(crate) fn remove(self, cluster: &impl Mounts, node: u32) {
        let place = cluster.path_on(node, &self.name);
        let removed = within("removing all files", move || std::fs::remove_dir_all(place));
        removed.unwrap();
    }

    fn nodes(&self) -> Vec<u32> {
        self.processes.keys().copied().collect()
    }
}

fn count(report: &Value, what: &str) -> u64 {
    report[what].as_u64().expect("programs count")
}

/// Whether a program has waited for an answer for so long.
fn has_waited(report: &Value, time: Duration) -> bool {
    let waited = report["doing"]["milliseconds"].as_u64().unwrap_or(0);
    u128::from(waited) >= time.as_millis()
}

fn shown(reports: &[Value]) -> String {
    let lines: Vec<_> = reports.iter().map(Value::to_string).collect();
    lines.join("\n")
}

/// Does what must end in time: if it hangs, the test says so and ends.
#[track_caller]
pub(crate) fn within<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    end_of(what, &begun(work))
}

/// Does it meanwhile; what comes of it comes there.
fn begun<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (tell, done) = channel();
    std::thread::spawn(move || tell.send(work()));
    done
}

#[track_caller]
fn end_of<T>(what: &str, done: &Receiver<T>) -> T {
    let done = done.recv_timeout(CHECK_MAX);
    done.unwrap_or_else(|error| panic!("{what}: {error}"))
}
