//! Runs `shale` on a lab's nodes, and finds what runs there.

use super::{
    super::machine::{bounded::until, names::NodeNumber, processes},
    Lab,
    roles::Role,
};
use crate::daemon::SLOW_DISKS;
use crate::process::Process;
use model::{Error, ErrorKind, Result};
use std::{path::Path, time::Duration};
use world::program;

/// A command that only asks.
const ASK_MAX: Duration = Duration::from_secs(30);
/// Pause between two questions whether a node serves: each is a process, and cores are few.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// A node starts: it may have to wait for others, replay logs, and take a turn on few cores.
const START_MAX: Duration = Duration::from_secs(300);
/// Most letters of a failed command's message.
const SAID_CHARS_MAX: usize = 2_000;
/// Most letters of a word in a command that is shown.
const WORD_CHARS_MAX: usize = 100;

impl Lab {
    /// Runs `shale ARGUMENTS --dir DIR` on a node, and returns what it printed.
    ///
    /// # Errors
    /// `Unavailable` with what the command said, and where to look.
    pub(super) fn shale(
        &self,
        node: NodeNumber,
        arguments: &[&str],
        patience: Duration,
    ) -> Result<String> {
        let dir = self.node_dir(node);
        let words: Vec<_> = arguments.iter().map(|word| shortened(word)).collect();
        let shown = format!(
            "on {node}: `shale {} --dir {}`",
            words.join(" "),
            dir.display()
        );
        let own = std::env::current_exe().map_err(|error| {
            Error::new(ErrorKind::Unavailable, error.to_string()).while_doing(shown.clone())
        })?;
        let mut command = self.machines.command(node, own)?;
        command
            .args(arguments)
            .arg("--dir")
            .arg(&dir)
            .env_remove("SHALE_DIR")
            .env(SLOW_DISKS, self.faults(node))
            .current_dir("/");
        let ended = program::run(&mut command, "", patience)
            .map_err(|failure| Error::from(failure).while_doing(shown.clone()))?;
        if ended.status.success() {
            return Ok(ended.output);
        }
        let said = ended.complaint.trim();
        let said: String = said.chars().take(SAID_CHARS_MAX).collect();
        let text = format!("{}: {said}{}", ended.status, log_of(&dir));
        Err(Error::new(ErrorKind::Unavailable, text).while_doing(shown))
    }

    /// Whether a node's daemon answers, and its mount is there.
    pub(super) fn serves(&self, node: NodeNumber) -> bool {
        let Ok(said) = self.shale(node, &["status", "--json"], ASK_MAX) else {
            return false;
        };
        let status: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
        let mounts = status["mounts"].as_array().cloned().unwrap_or_default();
        mounts.iter().any(|mount| mount["state"] == "mounted")
    }

    /// The processes on a node that have one of these roles, the daemon first.
    pub(super) fn with_role(
        &self,
        node: NodeNumber,
        fits: impl Fn(Role) -> bool,
    ) -> Result<Vec<Process>> {
        let mut found = self.machines.processes(node)?;
        found.retain(|process| fits(Role::of(&process.arguments)));
        found.sort_by_key(|process| Role::of(&process.arguments));
        Ok(found)
    }

    /// A node's daemon, running or stopped.
    pub(super) fn daemon(&self, node: NodeNumber) -> Result<Option<Process>> {
        let found = self.with_role(node, |role| role == Role::Daemon)?;
        Ok(found.into_iter().find(|process| !process.is_gone()))
    }

    /// Starts a node that has been one before, or lets a stopped one go on. Returns once it serves.
    ///
    /// # Errors
    /// `Unavailable`, with the reason.
    pub(super) fn bring_up(&self, node: NodeNumber) -> Result<()> {
        processes::thaw(&self.with_role(node, Role::falls_silent)?)?;
        // One that was stopped for long may end itself: others have taken its place.
        let mut lives = false;
        let is_known = until(START_MAX, ASK_EVERY, || {
            lives = self.daemon(node)?.is_some();
            Ok(!lives || self.serves(node))
        })?;
        if lives && is_known {
            return Ok(());
        }
        if lives {
            let text = format!(
                "it runs and doesn't serve after {} s{}",
                START_MAX.as_secs(),
                log_of(&self.node_dir(node))
            );
            return Err(
                Error::new(ErrorKind::Unavailable, text).while_doing(format!("starting {node}"))
            );
        }
        // What a daemon left behind holds what the next one needs.
        processes::kill(|| self.with_role(node, Role::is_shale))?;
        self.shale(node, &["up"], START_MAX)?;
        self.wait_until_served(node)
    }

    /// Returns once a node that has just been started serves.
    ///
    /// # Errors
    /// `Unavailable` if it doesn't in time.
    pub(super) fn wait_until_served(&self, node: NodeNumber) -> Result<()> {
        if until(START_MAX, ASK_EVERY, || Ok(self.serves(node)))? {
            return Ok(());
        }
        let text = format!(
            "it doesn't serve after {} s{}",
            START_MAX.as_secs(),
            log_of(&self.node_dir(node))
        );
        Err(Error::new(ErrorKind::Unavailable, text).while_doing(format!("waiting for {node}")))
    }
}

/// A word of a command line for people: tokens are long, and good for one use anyway.
fn shortened(word: &str) -> String {
    match word.char_indices().nth(WORD_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &word[..end]),
        None => word.to_owned(),
    }
}

fn log_of(dir: &Path) -> String {
    let log = dir.join(crate::directory::log::FILE);
    format!("; the node's log is {}", log.display())
}

/// Runs work for each of these nodes, all at the same time; returns the first error in their order.
/// Blocks until all are done.
///
/// # Errors
/// One of the work's.
pub(super) fn at_once(
    nodes: &[NodeNumber],
    work: impl Fn(NodeNumber) -> Result<()> + Sync,
) -> Result<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = nodes
            .iter()
            .map(|node| scope.spawn(move || work(*node)))
            .collect();
        let ended: Vec<_> = running
            .into_iter()
            .map(|thread| thread.join().expect("the work doesn't panic"))
            .collect();
        ended.into_iter().collect()
    })
}
