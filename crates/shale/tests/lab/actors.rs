//! Programs on a lab's nodes, several at once: this test program again, each to run one of its tests, and to talk
//! with the test that has started it.

use super::fixture::Lab;
use crate::fixture::poll;
use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    time::Duration,
};

/// No program is silent for longer unless it hangs, even on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// What a program that was killed has said comes within this time.
const LAST_WORDS_MAX: Duration = Duration::from_secs(5);
/// Environment variable with what a program is to do: words, one a line.
const WORK: &str = "SHALE_TEST_LAB_WORK";
/// What a program says to its test follows this, also behind words of the test harness.
const SAYS: &str = "says: ";

/// A program on a node; killed when dropped.
pub(crate) struct Actor {
    node: u32,
    child: Child,
    ear: Option<ChildStdin>,
    lines: Receiver<String>,
    /// All that it has said.
    said: String,
}

impl Actor {
    /// Starts this program on a node, in its network and in its mount, to run this test alone, which asks [`work`] for
    /// these words. None of them has a line break.
    pub(crate) fn start(lab: &Lab, node: u32, test: &str, words: &[String]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shale"));
        command
            .args(["lab", "exec", &node.to_string(), "--dir"])
            .arg(&lab.dir)
            .arg("--")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(WORK, words.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        forward(child.stderr.take().unwrap(), sender.clone());
        forward(child.stdout.take().unwrap(), sender);
        Self {
            node,
            ear: child.stdin.take(),
            child,
            lines,
            said: String::new(),
        }
    }

    /// Says something to it.
    #[track_caller]
    pub(crate) fn tell(&mut self, words: &str) {
        let ear = self.ear.as_mut().expect("it hears until it ends");
        if writeln!(ear, "{words}").is_err() {
            self.fail("hears nothing");
        }
    }

    /// What it says next. Blocks until then.
    #[track_caller]
    pub(crate) fn hear(&mut self) -> String {
        match self.hear_within(PATIENCE) {
            Some(words) => words,
            None => self.fail("hangs"),
        }
    }

    /// What it says next, if it does in this time. Blocks for as long.
    #[track_caller]
    pub(crate) fn hear_within(&mut self, patience: Duration) -> Option<String> {
        loop {
            match self.lines.recv_timeout(patience) {
                Ok(line) => {
                    self.note(&line);
                    if let Some((_, words)) = line.split_once(SAYS) {
                        return Some(words.to_owned());
                    }
                }
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => self.fail("has ended"),
            }
        }
    }

    /// Lets it hear no more, and waits for its end; it must have succeeded.
    #[track_caller]
    pub(crate) fn end(mut self) {
        drop(self.ear.take());
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.note(&line);
        }
        let child = &mut self.child;
        let status = poll::until("a program ends", PATIENCE, || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            other => Err(format!("{other:?}")),
        });
        if !status.success() || !self.said.contains("1 passed") {
            self.fail("has failed");
        }
    }

    fn note(&mut self, line: &str) {
        self.said += line;
        self.said.push('\n');
    }

    /// Ends the test, with all that the program has said.
    #[track_caller]
    fn fail(&mut self, what: &str) -> ! {
        let _ = self.child.kill();
        // One that hangs in the kernel never ends.
        while let Ok(line) = self.lines.recv_timeout(LAST_WORDS_MAX) {
            self.note(&line);
        }
        panic!("a program on n{} {what}:\n{}", self.node, self.said);
    }
}

/// Sends what a program says, line by line, until it ends.
fn forward(from: impl Read + Send + 'static, to: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
}

impl Drop for Actor {
    fn drop(&mut self) {
        // One that hangs in the kernel ends with its lab; nobody waits for it here.
        let _ = self.child.kill();
        let _ = self.child.try_wait();
    }
}

/// Starts programs, each on a node and with words of its own, and lets them go on when all are [ready](ready_and_go).
#[track_caller]
pub(crate) fn start_all(
    lab: &Lab,
    test: &str,
    programs: impl IntoIterator<Item = (u32, Vec<String>)>,
) -> Vec<Actor> {
    let mut actors: Vec<_> = programs
        .into_iter()
        .map(|(node, words)| Actor::start(lab, node, test, &words))
        .collect();
    for actor in &mut actors {
        assert_eq!(actor.hear(), "ready");
    }
    for actor in &mut actors {
        actor.tell("go");
    }
    actors
}

/// What this program is to do; `None` if no other test has started it.
pub(crate) fn work() -> Option<Vec<String>> {
    let words = std::env::var(WORK).ok()?;
    Some(words.lines().map(str::to_owned).collect())
}

/// Says something to the test that has started this program.
pub(crate) fn say(words: &str) {
    let line = format!("{SAYS}{words}\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

/// What the test says next; nothing if it says no more. Blocks until then.
pub(crate) fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Says that this program is ready, and waits until all others are.
pub(crate) fn ready_and_go() {
    say("ready");
    assert_eq!(hear(), "go");
}

/// Becomes true when the test says no more.
pub(crate) fn is_over() -> Arc<AtomicBool> {
    let is_over = Arc::new(AtomicBool::new(false));
    let told = is_over.clone();
    // Ends with the program, or with what it hears.
    std::thread::spawn(move || {
        while !hear().is_empty() {}
        told.store(true, Ordering::Relaxed);
    });
    is_over
}
