//! Checks a file system after a crash: everything synced must be there, and unsynced actions may be
//! missing only from the end.
//!
//! Names, links, permissions and extended attributes change in one order: the recovered ones must
//! equal the model after some prefix of the actions, and that prefix must include the last synced
//! action. Content is checked per file: each byte must be one that the file held at its last sync or
//! later, and so must the size.
//!
//! *A client that lost its session* may have lost unsynced actions from the end while it went on: the last one may then be
//! done without them.

use crate::action::Action;
use std::collections::BTreeMap;
use testkit::model_fs::{Body, ModelFs, Number, Shape, Survey};

/// All actions, and which of them are known to be durable.
#[derive(Default)]
pub struct History {
    /// What was there, durably, before the first of them.
    base: ModelFs,
    actions: Vec<Action>,
    /// The metadata changes of actions before this one are durable.
    metadata_durable: usize,
    /// By file: the content changes of actions before this one are durable.
    content_durable: BTreeMap<Number, usize>,
    /// The session was lost while the last action was asked for.
    is_session_lost: bool,
}

impl History {
    /// The history of a file system that holds this durably.
    #[must_use]
    pub fn from_base(base: &ModelFs) -> Self {
        Self {
            base: base.clone(),
            ..Self::default()
        }
    }

    /// Records an action that is about to start: from now on it may or may not have happened.
    pub fn begin(&mut self, action: &Action) {
        self.actions.push(action.clone());
    }

    /// Records that the last action has been answered. `is_durable`: by an owner on another node, which makes changes of
    /// metadata durable first, with all before.
    pub fn answered(&mut self, fs: &ModelFs, is_durable: bool) {
        let upto = self.actions.len();
        if is_durable {
            self.metadata_durable = upto;
        }
        match &self.actions[upto - 1] {
            Action::SyncAll => {
                self.metadata_durable = upto;
                for file in fs.files() {
                    self.content_durable.insert(file, upto);
                }
            }
            Action::Fsync { inode } => {
                // There is one log, so an fsync makes all earlier metadata durable.
                self.metadata_durable = upto;
                self.content_durable.insert(*inode, upto);
            }
            _ => {}
        }
    }

    /// The client has lost its session, at the earliest while it asked for the last action, and has noticed it: it asks for
    /// nothing more.
    pub fn session_lost(&mut self) {
        self.is_session_lost = true;
    }

    /// The states that so many actions, which made `fs`, may have left.
    fn left_by(&self, done: usize, fs: &ModelFs) -> Vec<ModelFs> {
        let mut states = vec![fs.clone()];
        if let Some(last) = self.actions.last()
            && self.is_session_lost
            && done + 1 < self.actions.len()
            && last.inodes().iter().all(|it| fs.inodes.contains_key(it))
        {
            let mut after = fs.clone();
            last.on_model(&mut after);
            states.push(after);
        }
        states
    }

    /// Checks a recovered file system.
    ///
    /// # Errors
    /// A sentence that says which promise is broken, and where.
    pub fn check_recovered(&self, survey: &Survey) -> Result<(), String> {
        let (shapes, contents) = survey;
        let mut fs = self.base.clone();
        let mut nearest: Option<(usize, String)> = None;
        for done in 0..=self.actions.len() {
            if done > 0 {
                self.actions[done - 1].on_model(&mut fs);
            }
            if done < self.metadata_durable {
                continue;
            }
            // Several prefixes may have the same names; content must match one of them.
            for fs in self.left_by(done, &fs) {
                match difference(&fs.shape(), shapes) {
                    None => match self.check_contents(&fs, done, contents) {
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
        }
        let why = nearest.map_or_else(String::new, |(_, what)| what);
        Err(format!(
            "after {} actions, {} of them durable, no prefix fits: {why}",
            self.actions.len(),
            self.metadata_durable
        ))
    }

    fn check_contents(
        &self,
        names: &ModelFs,
        done: usize,
        contents: &BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<(), String> {
        let mut paths: BTreeMap<Number, Vec<u8>> = BTreeMap::new();
        collect_files(names, testkit::model_fs::ROOT, &mut Vec::new(), &mut paths);
        for (file, path) in &paths {
            let found = contents
                .get(path)
                .ok_or_else(|| format!("{} has no content", show(path)))?;
            self.check_file(*file, done, path, found)?;
        }
        Ok(())
    }

    /// Replays the versions of one file since its last sync. Content may be newer than names
    /// (flushed when later names weren't), but never older than the sync.
    fn check_file(
        &self,
        file: Number,
        _done: usize,
        path: &[u8],
        found: &[u8],
    ) -> Result<(), String> {
        let from = self.content_durable.get(&file).copied().unwrap_or(0);
        let mut fs = self.base.clone();
        let is_new = !fs.inodes.contains_key(&file);
        let mut versions: Vec<Vec<u8>> = Vec::new();
        if !is_new {
            versions.push(fs.bytes(file).clone());
        }
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
        if from == 0 && is_new {
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
        // A byte not yet written in any version, or in a hole, is zero.
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

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::inodes::name;
    use testkit::model_fs::ROOT;

    fn create(text: &str) -> Action {
        Action::Create {
            directory: ROOT,
            name: name(text),
            mode: 0o600,
        }
    }

    /// A file system with these files, which are empty.
    fn survey(files: &[&str]) -> Survey {
        let mut fs = ModelFs::default();
        for text in files {
            create(text).on_model(&mut fs);
        }
        let contents = files.iter().map(|text| (format!("/{text}"), Vec::new()));
        let contents = contents.map(|(path, bytes)| (path.into_bytes(), bytes));
        (fs.shape(), contents.collect())
    }

    #[test]
    fn actions_are_missing_before_the_last_one_only_if_the_session_was_lost() {
        let (mut history, mut fs) = (History::default(), ModelFs::default());
        for (text, is_durable) in [("a", true), ("b", false), ("c", false)] {
            let action = create(text);
            history.begin(&action);
            action.on_model(&mut fs);
            history.answered(&fs, is_durable);
        }
        let fits = |history: &History, files: &[&str]| history.check_recovered(&survey(files));
        for files in [&["a"][..], &["a", "b"], &["a", "b", "c"]] {
            assert_eq!(fits(&history, files), Ok(()));
        }
        for files in [&["a", "c"][..], &[], &["c"]] {
            assert!(fits(&history, files).is_err(), "{files:?}");
        }
        history.session_lost();
        assert_eq!(fits(&history, &["a", "c"]), Ok(()));
        for files in [&[][..], &["c"]] {
            assert!(
                fits(&history, files).is_err(),
                "what was durable: {files:?}"
            );
        }
    }
}
