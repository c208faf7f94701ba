//! Directories that clients have for themselves, and what is in them.
//!
//! Programs of other clients know of a file there only when they have found its name: nobody else could know its number
//! either, and before it is sent its owner doesn't.

use crate::action::Draw;
use crate::witness::{Call, ClientNumber};
use model::InodeId;
use std::collections::BTreeSet;

/// The names of the directories, in the root: none that other operations use.
pub(super) const DIRECTORIES: [&str; 2] = ["own0", "own1"];
/// Names in such a directory: more than a client makes without a delegation.
const NAMES: u64 = 12;

/// The directories, and whose they are.
pub(super) struct OwnDirectories {
    /// In each fifth seed.
    is_used: bool,
    all: Vec<(ClientNumber, InodeId, &'static str)>,
    /// Files in them that nobody else has found.
    files: BTreeSet<InodeId>,
}

impl OwnDirectories {
    /// There are none yet.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            is_used: seed % 5 == 4,
            all: Vec::new(),
            files: BTreeSet::new(),
        }
    }

    /// Whether clients make some.
    pub(super) fn are_used(&self) -> bool {
        self.is_used
    }

    /// That of a client, which takes over one of those that are gone if it has none.
    pub(super) fn of(
        &mut self,
        client: ClientNumber,
        is_gone: impl Fn(ClientNumber) -> bool,
    ) -> Option<InodeId> {
        let own = self.all.iter().position(|it| it.0 == client);
        let left = || self.all.iter().position(|it| is_gone(it.0));
        let at = own.or_else(left)?;
        self.all[at].0 = client;
        Some(self.all[at].1)
    }

    /// A name that no directory was given.
    pub(super) fn free_name(&self) -> Option<&'static str> {
        let is_free = |name: &&str| self.all.iter().all(|it| it.2 != *name);
        DIRECTORIES.into_iter().find(is_free)
    }

    /// A client has made it.
    pub(super) fn add(&mut self, client: ClientNumber, directory: InodeId, name: &'static str) {
        if self.all.iter().all(|it| it.1 != directory) {
            self.all.push((client, directory, name));
        }
    }

    /// Somebody has removed it.
    pub(super) fn forget(&mut self, directory: InodeId) {
        self.all.retain(|it| it.1 != directory);
    }

    /// Any client's.
    pub(super) fn any(&self, draw: &mut Draw) -> Option<InodeId> {
        draw.one_of(&self.all).map(|it| it.1)
    }

    /// Whether other programs are to leave alone what a client has found or made.
    pub(super) fn keeps(&mut self, client: ClientNumber, call: &Call, found: InodeId) -> bool {
        if let Call::Create {
            directory, name, ..
        }
        | Call::Lookup { directory, name } = call
        {
            if DIRECTORIES.contains(&name.as_str()) {
                return true;
            }
            match self
                .all
                .iter()
                .any(|it| (it.0, it.1) == (client, *directory))
            {
                true => self.files.insert(found),
                false => self.files.remove(&found),
            };
        }
        self.files.contains(&found)
    }
}

/// A name in such a directory.
pub(super) fn draw_name(draw: &mut Draw) -> String {
    format!("n{}", draw.below(NAMES))
}
