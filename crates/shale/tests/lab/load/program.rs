//! A program of a load: it makes, syncs, reads, renames and removes files, one after the other, and takes the time of
//! each operation.

use super::journal::{self, Entry, Stage};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

/// Pause between two files: the daemons shall have most of the CPU.
const PACE: Duration = Duration::from_millis(100);
/// After so many of its own files it reads one that may be of another program.
const OTHERS_EVERY: u64 = 4;

/// A running program.
pub(crate) struct Program {
    /// What its files' names begin with.
    prefix: String,
    /// The name of its directory, ...
    directory: String,
    /// ... and where that is.
    path: PathBuf,
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Default)]
struct State {
    /// Its number, as the kernel tells the daemon; 0: it hasn't begun.
    thread: i32,
    is_to_end: bool,
    has_ended: bool,
    /// Why it ended by itself.
    failed: Option<String>,
    /// Files that are done.
    files: u64,
    /// Operations that were answered.
    operations: u64,
    doing: Option<(&'static str, Instant)>,
    /// The longest that each operation has taken.
    longest: BTreeMap<&'static str, Duration>,
    entries: Vec<Entry>,
}

impl Program {
    /// Starts one that works in a directory of a load's. It makes the directory, which others may use as well.
    pub(crate) fn start(place: &Path, directory: &str, prefix: String) -> Arc<Self> {
        let program = Arc::new(Self {
            prefix,
            directory: directory.to_owned(),
            path: place.join(directory),
            state: Mutex::default(),
            told: Condvar::new(),
        });
        let own = program.clone();
        std::thread::spawn(move || own.run());
        program
    }

    /// How it is: its `thread`, `files` and `operations` that are done, what it is `doing`, what took `longest`, in
    /// milliseconds, whether it has `ended`, and why it has `failed`.
    pub(crate) fn report(&self) -> Value {
        let state = self.state();
        let millis = |time: Duration| time.as_millis() as u64;
        let doing = state.doing.map(|(operation, begun)| {
            json!({ "operation": operation, "milliseconds": millis(begun.elapsed()) })
        });
        let longest = state.longest.iter();
        let longest: BTreeMap<_, _> = longest.map(|(what, time)| (*what, millis(*time))).collect();
        json!({
            "program": self.prefix, "thread": state.thread, "files": state.files, "operations": state.operations,
            "doing": doing, "longest": longest, "ended": state.has_ended, "failed": state.failed,
        })
    }

    /// From now on it counts how long operations take.
    pub(crate) fn mark(&self) {
        let mut state = self.state();
        state.longest.clear();
        if let Some((_, begun)) = &mut state.doing {
            *begun = Instant::now();
        }
    }

    /// It ends after the file that it is at.
    pub(crate) fn end(&self) {
        self.state().is_to_end = true;
        self.told.notify_all();
    }

    /// Its files.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.state().entries.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn run(&self) {
        self.state().thread = rustix::thread::gettid().as_raw_pid();
        let ended = self.work();
        let mut state = self.state();
        state.failed = ended.err();
        state.has_ended = true;
    }

    fn work(&self) -> Result<(), String> {
        self.timed("mkdir", || fs::create_dir_all(&self.path))?;
        let directory = self.timed("open", || File::open(&self.path))?;
        for number in 0_u64.. {
            self.make(&format!("{}-{number}", self.prefix), &directory)?;
            if number.is_multiple_of(OTHERS_EVERY) {
                self.read_another(number)?;
            }
            self.state().files += 1;
            if self.is_told_to_end() {
                break;
            }
        }
        Ok(())
    }

    /// Waits for as long as it pauses between files.
    fn is_told_to_end(&self) -> bool {
        let waited = self
            .told
            .wait_timeout_while(self.state(), PACE, |state| !state.is_to_end);
        waited.unwrap().0.is_to_end
    }

    fn make(&self, name: &str, directory: &File) -> Result<(), String> {
        let bytes = journal::content(name);
        let (first, second) = (self.path.join(name), self.path.join(journal::moved(name)));
        self.state().entries.push(Entry {
            directory: self.directory.clone(),
            name: name.to_owned(),
            stage: Stage::Writing,
        });
        let new = || File::options().write(true).create_new(true).open(&first);
        let mut file = self.timed("create", new)?;
        self.timed("write", || file.write_all(&bytes))?;
        self.timed("sync", || file.sync_all())?;
        self.timed("close", || {
            drop(file);
            Ok(())
        })?;
        self.reaches(Stage::Written);
        if self.timed("read", || fs::read(&first))? != bytes {
            return Err(format!("{name} has other bytes than were written"));
        }
        self.reaches(Stage::Renaming);
        self.timed("rename", || fs::rename(&first, &second))?;
        self.timed("sync", || directory.sync_all())?;
        self.reaches(Stage::Renamed);
        if !journal::is_kept(name) {
            self.reaches(Stage::Removing);
            self.timed("remove", || fs::remove_file(&second))?;
            self.timed("sync", || directory.sync_all())?;
            self.reaches(Stage::Removed);
        }
        Ok(())
    }

    fn read_another(&self, number: u64) -> Result<(), String> {
        let names = self.timed("list", || journal::settled(&self.path))?;
        let Some(name) = names.get(number as usize % names.len().max(1)) else {
            return Ok(());
        };
        let path = self.path.join(journal::moved(name));
        match self.timed("read", || fs::read(&path))? == journal::content(name) {
            true => Ok(()),
            false => Err(format!("{} has other bytes", path.display())),
        }
    }

    /// Of the file that it is at.
    fn reaches(&self, stage: Stage) {
        let mut state = self.state();
        state
            .entries
            .last_mut()
            .expect("it is at one of its files")
            .stage = stage;
    }

    fn timed<T>(
        &self,
        operation: &'static str,
        act: impl FnOnce() -> io::Result<T>,
    ) -> Result<T, String> {
        self.state().doing = Some((operation, Instant::now()));
        let done = act();
        let mut state = self.state();
        let (_, begun) = state.doing.take().expect("it does one at a time");
        let longest = state.longest.entry(operation).or_default();
        *longest = (*longest).max(begun.elapsed());
        state.operations += 1;
        done.map_err(|error| format!("{operation} in {}: {error}", self.path.display()))
    }
}
