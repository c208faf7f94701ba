//! Clients with directories of their own, in which they make many files in a row: then they get delegations.
//!
//! Programs of other clients come there from time to time, so that what was made must be sent before they see it. They
//! know of a file there only when they have found its name: nobody else could know its number either, and before it is
//! sent its owner doesn't.

use super::known::{CELLS, lock};
use super::programs::{Lost, Programs};
use crate::action::Draw;
use crate::witness::{Answer, Call, ClientNumber};
use model::operation::RenameMode;
use model::{FileKind, InodeId};
use std::collections::BTreeSet;
use std::time::Duration;

/// The names of the directories, in the root: none that other operations use.
const DIRECTORIES: [&str; 2] = ["own0", "own1"];
/// Names in such a directory: more than a client makes without a delegation.
const NAMES: u64 = 12;
/// Names that stay there when a client begins to make files again.
const KEPT: usize = 2;
/// Operations of a program in a row.
const FILL_STEPS: usize = 24;
/// Of so many of them one comes after a pause of so many milliseconds at most.
const PAUSE_EVERY: u64 = 12;
const PAUSE_MAX: u64 = 20;

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
    fn free_name(&self) -> Option<&'static str> {
        let is_free = |name: &&str| self.all.iter().all(|it| it.2 != *name);
        DIRECTORIES.into_iter().find(is_free)
    }

    fn add(&mut self, client: ClientNumber, directory: InodeId, name: &'static str) {
        if self.all.iter().all(|it| it.1 != directory) {
            self.all.push((client, directory, name));
        }
    }

    /// Somebody has removed it.
    fn forget(&mut self, directory: InodeId) {
        self.all.retain(|it| it.1 != directory);
    }

    fn any(&self, draw: &mut Draw) -> Option<InodeId> {
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

fn draw_name(draw: &mut Draw) -> String {
    format!("n{}", draw.below(NAMES))
}

impl Programs {
    /// Makes files in the client's own directory, and looks at them.
    pub(super) async fn fill_own_directory(&self) -> Result<(), Lost> {
        let Some(directory) = self.own_directory().await? else {
            return Ok(());
        };
        let names = match self.ask(false, Call::List { directory }).await? {
            Answer::Listed(names, _) => names,
            Answer::Refused(_) => {
                lock(&self.known).own.forget(directory);
                return Ok(());
            }
            _ => return Ok(()),
        };
        for name in names.into_keys().skip(KEPT) {
            self.ask(false, Call::Unlink { directory, name }).await?;
        }
        for _ in 0..FILL_STEPS {
            self.work_in(directory).await?;
        }
        Ok(())
    }

    /// The client's own directory; `None` if others have all of them.
    async fn own_directory(&self) -> Result<Option<InodeId>, Lost> {
        let (directory, name) = {
            let known = &mut *lock(&self.known);
            if let Some(own) = known.own_directory(self.number) {
                return Ok(Some(own));
            }
            let Some(name) = known.own.free_name() else {
                return Ok(None);
            };
            (known.root(), name)
        };
        let create = Call::Create {
            directory,
            name: name.to_string(),
            kind: FileKind::Directory,
        };
        let mut found = self.ask(false, create).await?;
        if let Answer::Refused(_) = found {
            let lookup = Call::Lookup {
                directory,
                name: name.to_string(),
            };
            found = self.ask(false, lookup).await?;
        }
        let Answer::Inode(seen) = found else {
            return Ok(None);
        };
        if seen.kind != FileKind::Directory {
            return Ok(None);
        }
        let known = &mut *lock(&self.known);
        known.own.add(self.number, seen.inode, name);
        Ok(known.own_directory(self.number))
    }

    async fn work_in(&self, directory: InodeId) -> Result<(), Lost> {
        let (call, pause) = {
            let draw = &mut lock(&self.known).draw;
            let name = draw_name(draw);
            let call = match draw.below(12) {
                0 => Call::Unlink { directory, name },
                1 => Call::Lookup { directory, name },
                2 => Call::List { directory },
                _ => Call::Create {
                    directory,
                    name,
                    kind: FileKind::File,
                },
            };
            let pauses = draw.below(PAUSE_EVERY) == 0;
            (call, pauses.then(|| draw.below(PAUSE_MAX)))
        };
        if let Some(pause) = pause {
            self.world.sleep(Duration::from_millis(pause)).await;
        }
        let Answer::Inode(seen) = self.ask(false, call).await? else {
            return Ok(());
        };
        if seen.kind != FileKind::File {
            return Ok(());
        }
        let calls = {
            let known = &mut *lock(&self.known);
            let (inode, cell) = (seen.inode, known.draw.below(CELLS) as usize);
            let write = Call::Write {
                inode,
                cell,
                cells: 1,
                value: known.value(),
            };
            let read = Call::Read {
                inode,
                cell: 0,
                cells: cell + 1,
            };
            match known.draw.below(16) {
                0..2 => vec![Call::Stat { inode }],
                2..4 => vec![write, Call::Stat { inode }],
                4 => vec![write, read],
                5 => vec![write, Call::Fsync { inode }],
                6 => vec![Call::Fsync { inode }],
                7 => vec![Call::SetMode { inode, mode: 0o640 }],
                8 => vec![Call::Stat { inode: directory }],
                _ => Vec::new(),
            }
        };
        for call in calls {
            self.ask(false, call).await?;
        }
        Ok(())
    }

    /// Comes to some client's own directory, and looks at something there or changes it.
    pub(super) async fn visit_own_directory(&self) -> Result<(), Lost> {
        let call = {
            let known = &mut *lock(&self.known);
            let Some(directory) = known.own.any(&mut known.draw) else {
                return Ok(());
            };
            let name = draw_name(&mut known.draw);
            let other = (known.directory(), known.name());
            let itself = known.draw.one_of(&DIRECTORIES).expect("there are names");
            let itself = (known.root(), (*itself).to_string());
            let mode = RenameMode::Replace;
            match known.draw.below(20) {
                0..4 => Call::List { directory },
                4..9 => Call::Lookup { directory, name },
                9..11 => Call::Unlink { directory, name },
                11..13 => Call::Rename {
                    from: (directory, name),
                    to: other,
                    mode,
                },
                13 => Call::Rename {
                    from: other,
                    to: (directory, name),
                    mode,
                },
                14..16 => Call::Create {
                    directory,
                    name,
                    kind: FileKind::File,
                },
                16 => Call::Stat { inode: directory },
                17 => Call::SetMode {
                    inode: directory,
                    mode: 0o750,
                },
                18 => Call::RemoveDirectory {
                    directory: itself.0,
                    name: itself.1,
                },
                _ => Call::Rename {
                    from: itself,
                    to: other,
                    mode,
                },
            }
        };
        self.ask(false, call).await?;
        Ok(())
    }
}
