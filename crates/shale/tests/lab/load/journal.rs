//! The files of a load: what is in each, how far it has come, and whether a node shows it so.

use crate::fixture::pattern;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

/// Of so many files one is kept; the others are removed.
const KEPT_EVERY: u64 = 3;
/// Bytes of files, in turn: inside their inode, copied, in pieces, in many pieces.
const SIZES: [usize; 5] = [700, 5_000, 40_000, 200_000, 600_000];
/// What the second name of a file ends with.
const MOVED: &str = ".moved";

/// How far a file has come, as its program knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// Perhaps there, with any part of its bytes: nothing was acknowledged.
    Writing,
    /// Synced, under its first name.
    Written,
    /// Under one of its names.
    Renaming,
    /// Under its second name.
    Renamed,
    /// Under its second name, or gone.
    Removing,
    /// Gone.
    Removed,
}

/// A file. Its first name says what is in it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Its directory, in the load's.
    pub directory: String,
    /// Its first name, which ends with its number.
    pub name: String,
    /// How far it has come.
    pub stage: Stage,
}

/// What is in the file with this first name.
pub(crate) fn content(name: &str) -> Vec<u8> {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, |seed: u64, byte| {
        (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    pattern(seed, SIZES[number_of(name) as usize % SIZES.len()])
}

fn number_of(name: &str) -> u64 {
    let digits = name.rsplit('-').next().unwrap_or_default();
    let number = digits.parse();
    number.unwrap_or_else(|_| panic!("{name} isn't a file of a load"))
}

/// Whether the file with this first name stays.
pub(crate) fn is_kept(name: &str) -> bool {
    number_of(name).is_multiple_of(KEPT_EVERY)
}

/// A file's second name.
pub(crate) fn moved(name: &str) -> String {
    format!("{name}{MOVED}")
}

/// The first names of files in a directory that nobody changes any more: each is there, whole, under its second name.
pub(crate) fn settled(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let first = name.to_str().and_then(|it| it.strip_suffix(MOVED));
        names.extend(first.filter(|it| is_kept(it)).map(str::to_owned));
    }
    Ok(names)
}

/// Compares what a load's directory shows with what its programs know. None of them may run, unless it can't reach the
/// file system any more.
///
/// # Errors
/// The first difference.
pub(crate) fn check(place: &Path, entries: &[Entry]) -> Result<(), String> {
    let directories: BTreeSet<_> = entries.iter().map(|it| it.directory.as_str()).collect();
    for directory in directories {
        let path = place.join(directory);
        let mut names = names_in(&path)?;
        for entry in entries.iter().filter(|it| it.directory == directory) {
            let found = [&entry.name, &moved(&entry.name)].map(|name| names.remove(name.as_str()));
            entry.check(&path, found)?;
        }
        if let Some(name) = names.first() {
            return Err(format!(
                "{} shows {name}, which nobody made",
                path.display()
            ));
        }
    }
    Ok(())
}

fn names_in(directory: &Path) -> Result<BTreeSet<String>, String> {
    let failed = |error: io::Error| format!("listing {}: {error}", directory.display());
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        names.insert(name.to_string_lossy().into_owned());
    }
    Ok(names)
}

impl Entry {
    /// Its path once it is renamed.
    pub(crate) fn second(&self, place: &Path) -> PathBuf {
        place.join(&self.directory).join(moved(&self.name))
    }

    /// `found`: whether its directory shows its first and its second name.
    fn check(&self, directory: &Path, found: [bool; 2]) -> Result<(), String> {
        let [is_first, is_second] = found;
        let may_be = match self.stage {
            Stage::Writing => !is_second,
            Stage::Written => is_first && !is_second,
            Stage::Renaming => is_first != is_second,
            Stage::Renamed => !is_first && is_second,
            Stage::Removing => !is_first,
            Stage::Removed => !is_first && !is_second,
        };
        if !may_be {
            return Err(format!(
                "{} is {:?}, and its names are there: {found:?}",
                directory.join(&self.name).display(),
                self.stage
            ));
        }
        let name = match (is_first, is_second) {
            (false, false) => return Ok(()),
            // It may have any part of its bytes.
            _ if self.stage == Stage::Writing => return Ok(()),
            (true, _) => self.name.clone(),
            (false, true) => moved(&self.name),
        };
        let path = directory.join(name);
        let bytes =
            fs::read(&path).map_err(|error| format!("reading {}: {error}", path.display()))?;
        match bytes == content(&self.name) {
            true => Ok(()),
            false => Err(format!(
                "{} ({:?}) has {} other bytes",
                path.display(),
                self.stage,
                bytes.len()
            )),
        }
    }
}
