//! The daemons of a lab: how they become one cluster, how they are broken and mended, and how they
//! are.

mod breaking;
mod daemons;
mod ending;
mod growing;
pub mod record;
mod roles;
pub mod slow_disk;
mod state;

pub use ending::{Downed, down};
pub use growing::{Brought, up};
pub use state::{DaemonState, NodeState};

use super::machine::{
    Machines,
    bounded::{SOON, until},
    names::{Names, NodeNumber},
};
use model::{Error, ErrorKind, Result};
use record::Record;
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use world::host::LockFile;

/// Locked by the command that changes the lab.
const LOCK: &str = "lab.lock";
/// Time for another command to end.
const LOCK_MAX: Duration = Duration::from_secs(60);

/// A step of long work that is done.
#[derive(Clone, Debug)]
pub struct Step {
    /// How many steps are done, this one included.
    pub done: u32,
    /// How many there are.
    pub total: u32,
    /// What is done.
    pub what: String,
}

/// Hears of steps.
pub type Hears<'a> = &'a (dyn Fn(Step) + Sync);

/// A lab that exists, running or not.
pub struct Lab {
    /// Without symbolic links.
    dir: PathBuf,
    record: Record,
    machines: Machines,
    /// Of commands that change something.
    _lock: Option<LockFile>,
}

impl Lab {
    /// The lab in a directory, to be looked at.
    ///
    /// # Errors
    /// `NotFound` if there is none; `NotPermitted` if the user isn't root.
    pub fn look(dir: &Path) -> Result<Self> {
        refuse_others_than_root()?;
        let dir = dir.canonicalize().map_err(|error| no_lab(dir, &error))?;
        let record =
            Record::load(&dir)?.ok_or_else(|| no_lab(&dir, &io::ErrorKind::NotFound.into()))?;
        Self::of(dir, record, None)
    }

    /// The lab in a directory, to be changed. Waits for up to a minute for another command that
    /// changes it.
    ///
    /// # Errors
    /// As [`Lab::look`]; `Busy`.
    pub fn change(dir: &Path) -> Result<Self> {
        // What it is may change while the other command works.
        let dir = Self::look(dir)?.dir;
        let lock = lock(&dir)?;
        let lab = Self::look(&dir)?;
        Ok(Self {
            _lock: Some(lock),
            ..lab
        })
    }

    fn of(dir: PathBuf, record: Record, lock: Option<LockFile>) -> Result<Self> {
        let machines = Machines::new(record.names(), record.settings.nodes)?;
        Ok(Self {
            dir,
            record,
            machines,
            _lock: lock,
        })
    }

    /// What it is made of.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The lab's directory, without symbolic links.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The nodes that words like `n3` and `3` name, each once.
    ///
    /// # Errors
    /// `InvalidArgument` if a word names none of this lab's.
    pub fn named(&self, words: &[String]) -> Result<Vec<NodeNumber>> {
        let mut nodes = Vec::new();
        for word in words {
            let node: NodeNumber = word
                .parse()
                .map_err(|text: String| Error::new(ErrorKind::InvalidArgument, text))?;
            if self.machines.nodes().all(|it| it != node) {
                let last = self.record.settings.nodes;
                let text = format!("this lab has no node {node}; its nodes are n1 to n{last}");
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        Ok(nodes)
    }

    /// A node's directory, as for `shale --dir`.
    pub fn node_dir(&self, node: NodeNumber) -> PathBuf {
        self.dir.join(node.to_string())
    }

    /// Where a node mounts the file system.
    pub fn mount(&self, node: NodeNumber) -> PathBuf {
        self.node_dir(node).join("mnt")
    }

    /// The file that says how slow a node's disks are.
    fn faults(&self, node: NodeNumber) -> PathBuf {
        self.dir.join(format!("{node}.faults"))
    }

    /// Moves this process to a node.
    ///
    /// # Errors
    /// `NotFound` if the lab is down.
    pub fn enter(&self, node: NodeNumber) -> Result<()> {
        self.refuse_down()?;
        self.machines.enter(node)
    }

    /// # Errors
    /// `NotFound` without a network.
    fn refuse_down(&self) -> Result<()> {
        if self.machines.exist()? {
            return Ok(());
        }
        let shown = self.dir.display();
        let text = format!("the lab in {shown} is down; `shale lab up --dir {shown}` starts it");
        Err(Error::new(ErrorKind::NotFound, text))
    }
}

/// # Errors
/// `NotPermitted` if the user isn't root.
fn refuse_others_than_root() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let text = "a lab makes networks and mounts, for which one must be root; use sudo";
    Err(Error::new(ErrorKind::NotPermitted, text))
}

/// Takes the lock of a lab's directory.
///
/// # Errors
/// `Busy` if another command has had it for a minute.
fn lock(dir: &Path) -> Result<LockFile> {
    let path = dir.join(LOCK);
    let mut taken = None;
    let is_taken = until(LOCK_MAX, SOON, || match world::host::lock_file(&path) {
        Ok(lock) => {
            taken = Some(lock);
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(Error::new(ErrorKind::Unavailable, error.to_string())
            .while_doing(format!("locking {}", path.display()))),
    })?;
    taken.filter(|_| is_taken).ok_or_else(|| {
        let text = format!(
            "another `shale lab` command has been changing the lab in {} for {} s; wait until it \
             has ended (`fuser {}` shows it)",
            dir.display(),
            LOCK_MAX.as_secs(),
            path.display()
        );
        Error::new(ErrorKind::Busy, text)
    })
}

/// The names that the lab of a directory has, or would have.
fn names_of(dir: &Path) -> Result<Names> {
    Ok(Record::load(dir)?.map_or_else(|| Names::of(dir), |record| record.names()))
}

fn no_lab(dir: &Path, error: &io::Error) -> Error {
    let shown = dir.display();
    let (kind, text) = match error.kind() {
        io::ErrorKind::NotFound => (
            ErrorKind::NotFound,
            format!("there is no lab in {shown}; `shale lab up --nodes N --dir {shown}` makes one"),
        ),
        _ => (ErrorKind::Unavailable, format!("{shown}: {error}")),
    };
    Error::new(kind, text)
}
