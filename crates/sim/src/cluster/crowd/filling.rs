//! Programs that make many files in a row in a directory of their client, which gets a delegation for that, and programs
//! of other clients that come there from time to time: what was made must be sent before they see it.

use super::known::{CELLS, lock};
use super::own::{DIRECTORIES, draw_name};
use super::programs::{Lost, Programs};
use crate::witness::{Answer, Call};
use model::operation::RenameMode;
use model::{FileKind, InodeId};
use std::time::Duration;

/// Names that stay there when a client begins to make files again.
const KEPT: usize = 2;
/// Operations of a program in a row.
const FILL_STEPS: usize = 24;
/// Of so many of them one comes after a pause of so many milliseconds at most.
const PAUSE_EVERY: u64 = 12;
const PAUSE_MAX: u64 = 20;

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
