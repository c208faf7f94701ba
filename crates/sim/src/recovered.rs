//! Judges what is there after a crash: what was synced must be, what wasn't may be missing only
//! from the end.
//!
//! Names, links, rights and extended attributes change in one order: the recovered ones must
//! equal the model after some prefix of the actions, and that prefix must reach at least the
//! last action that was synced. Content is judged per file: each byte must be one that the file
//! held at its last sync or later, and so must the size.

use crate::{
    action::Action,
    drive::survey::Survey,
    model::{Body, ModelFs, Number, Shape},
};
use std::collections::BTreeMap;

/// Everything that was done, and what is known to be durable.
#[derive(Default)]
pub struct History {
    actions: Vec<Action>,
    /// Actions before this are durable in their metadata.
    metadata_durable: usize,
    /// By file: actions before this are durable in its content.
    content_durable: BTreeMap<Number, usize>,
}

impl History {
    /// An action is about to be done: from now on it may or may not have happened.
    pub fn begin(&mut self, action: &Action) {
        self.actions.push(action.clone());
    }

    /// The action that was begun last has been answered.
    pub fn answered(&mut self, fs: &ModelFs) {
        let upto = self.actions.len();
        match &self.actions[upto - 1] {
            Action::SyncAll => {
                self.metadata_durable = upto;
                for file in fs.files() {
                    self.content_durable.insert(file, upto);
                }
            }
            Action::Fsync { inode } => {
                // One log: an fsync makes all metadata before it durable.
                self.metadata_durable = upto;
                self.content_durable.insert(*inode, upto);
            }
            _ => {}
        }
    }

    /// Judges a recovered file system; `Err` says what is wrong.
    ///
    /// # Errors
    /// A sentence: which promise is broken, by what.
    pub fn judge(&self, survey: &Survey) -> Result<(), String> {
        let (shapes, contents) = survey;
        let mut fs = ModelFs::default();
        let mut nearest: Option<(usize, String)> = None;
        for done in 0..=self.actions.len() {
            if done > 0 {
                self.actions[done - 1].on_model(&mut fs);
            }
            if done < self.metadata_durable {
                continue;
            }
            // Several prefixes may look alike in their names; content must fit one of them.
            match difference(&fs.shape(), shapes) {
                None => match self.judge_contents(&fs, done, contents) {
                    Ok(()) => return Ok(()),
                    Err(why) => nearest = Some((usize::MAX, why)),
                },
                Some((count, what)) => {
                    if nearest
                        .as_ref()
                        .is_none_or(|(best, _)| *best != usize::MAX && count < *best)
                    {
                        nearest = Some((count, what));
                    }
                }
            }
        }
        let why = nearest.map_or_else(String::new, |(_, what)| what);
        Err(format!(
            "after {} actions, {} of them durable, no prefix fits: {why}",
            self.actions.len(),
            self.metadata_durable
        ))
    }

    fn judge_contents(
        &self,
        names: &ModelFs,
        done: usize,
        contents: &BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<(), String> {
        let mut paths: BTreeMap<Number, Vec<u8>> = BTreeMap::new();
        collect_files(names, crate::model::ROOT, &mut Vec::new(), &mut paths);
        for (file, path) in &paths {
            let found = contents
                .get(path)
                .ok_or_else(|| format!("{} has no content", show(path)))?;
            self.judge_file(*file, done, path, found)?;
        }
        Ok(())
    }

    /// Replays the versions of one file since its last sync. Content may be ahead of names
    /// (it was flushed while later names weren't) but never behind the sync.
    fn judge_file(
        &self,
        file: Number,
        _done: usize,
        path: &[u8],
        found: &[u8],
    ) -> Result<(), String> {
        let from = self.content_durable.get(&file).copied().unwrap_or(0);
        let mut fs = ModelFs::default();
        let mut versions: Vec<Vec<u8>> = Vec::new();
        for (index, action) in self.actions.iter().enumerate() {
            let before = index < from;
            action.on_model(&mut fs);
            let Some(inode) = fs.inodes.get(&file) else {
                if versions.is_empty() {
                    continue;
                }
                break;
            };
            let Body::File(bytes) = &inode.body else {
                continue;
            };
            if before {
                versions.clear();
            }
            if versions.last() != Some(bytes) {
                versions.push(bytes.clone());
            }
        }
        if from == 0 {
            versions.insert(0, Vec::new());
        }
        let sizes = versions.iter().map(Vec::len);
        let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
        if found.len() < least || found.len() > most {
            return Err(format!(
                "{}: {} bytes, expected {least} to {most}",
                show(path),
                found.len()
            ));
        }
        // A byte that no version has written yet, or that a hole shows, is zero.
        let unsynced = versions.len() > 1;
        for (at, byte) in found.iter().enumerate() {
            let known = versions.iter().any(|version| version.get(at) == Some(byte));
            let gap = unsynced && *byte == 0 && versions.iter().any(|version| version.len() <= at);
            if !known && !gap {
                return Err(format!(
                    "{}: byte {at} is {byte}, which no version since its last sync holds",
                    show(path)
                ));
            }
        }
        Ok(())
    }
}

fn collect_files(
    fs: &ModelFs,
    directory: Number,
    path: &mut Vec<u8>,
    out: &mut BTreeMap<Number, Vec<u8>>,
) {
    for (name, number) in fs.entries(directory) {
        let length = path.len();
        path.push(b'/');
        path.extend_from_slice(name.as_bytes());
        match fs.inode(number).body {
            Body::File(_) => {
                out.entry(number).or_insert_with(|| path.clone());
            }
            Body::Directory(..) => collect_files(fs, number, path, out),
            Body::Symlink(_) => {}
        }
        path.truncate(length);
    }
}

/// How many paths differ, and the first of them.
fn difference(
    expected: &BTreeMap<Vec<u8>, Shape>,
    found: &BTreeMap<Vec<u8>, Shape>,
) -> Option<(usize, String)> {
    let mut count = 0;
    let mut first = None;
    for path in expected
        .keys()
        .chain(found.keys().filter(|path| !expected.contains_key(*path)))
    {
        if expected.get(path) != found.get(path) {
            count += 1;
            first.get_or_insert_with(|| {
                format!(
                    "{}: expected {:?}, found {:?}",
                    show(path),
                    expected.get(path),
                    found.get(path)
                )
            });
        }
    }
    first.map(|what| (count, what))
}

fn show(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
