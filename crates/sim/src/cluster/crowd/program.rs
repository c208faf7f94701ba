//! What programs do: random operations of a client that they share, and what they see.

use super::CrowdScenario;
use super::known::{Shared, TEMPLATE_CELLS, TEMPLATE_VALUES, lock};
use super::listening::{Listening, Of};
use super::locks;
use crate::action::Draw;
use crate::witness::{Answer, Call, ClientNumber, Seen};
use bytes::Bytes;
use client::{Allocate, Client, ClientSettings, OpenFlags};
use futures::future::join_all;
use model::operation::{NewInode, XattrMode};
use model::{
    Advice, Attributes, Error, ErrorKind, FileKind, FileName, InodeId, Result, SetAttributes,
};
use node::Member;
use std::sync::Arc;
use std::time::Duration;
use world::World;

/// What numbers are multiplied by in content, and what undoes it.
const SPREAD: u32 = 0x9E37_79B1;
const UNSPREAD: u32 = 0x0E8B_2F51;
/// The extended attribute.
const XATTR: &[u8] = b"user.witness";
/// Where symlinks lead to.
const TARGET: &[u8] = b"elsewhere";
/// Permissions of what is made.
const MODE: u32 = 0o755;
/// Operations of a program on a file that it holds open.
const HELD_STEPS: u64 = 6;

/// A program's client.
#[derive(Clone)]
pub(super) struct Programs {
    pub(super) world: World,
    pub(super) client: Arc<Client>,
    pub(super) number: ClientNumber,
    pub(super) known: Shared,
    pub(super) scenario: CrowdScenario,
}

/// The client has lost its session.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Lost;

async fn open(member: &Member, known: &Shared, scenario: &CrowdScenario) -> Result<Programs> {
    let settings = ClientSettings {
        page_pool_bytes: 16 << 20,
        patience: scenario.patience,
        ..ClientSettings::default()
    };
    let (shard, heard, losses) = {
        let known = &mut *lock(known);
        let losses = Draw::new(known.draw.bits());
        (known.shard(), known.heard.clone(), losses)
    };
    let wrap = |owners| -> Arc<dyn client::Owners> { Listening::to(owners, &heard, losses) };
    let client = member.open_client_through(shard, settings, wrap);
    let client = client.await?;
    Ok(Programs {
        world: client.world().clone(),
        number: lock(known).new_client(member.run().node, &client),
        client,
        known: known.clone(),
        scenario: *scenario,
    })
}

async fn open_in_the_end(member: &Member, known: &Shared, scenario: &CrowdScenario) -> Programs {
    loop {
        match open(member, known, scenario).await {
            Ok(programs) => return programs,
            // It has waited for its patience.
            Err(error) => tracing::info!(%error, "no session"),
        }
    }
}

/// Makes the first directories and files.
pub(super) async fn prepare(member: Arc<Member>, known: Shared, scenario: CrowdScenario) {
    let programs = open_in_the_end(&member, &known, &scenario).await;
    let mut directory = lock(&known).root();
    for (name, kind) in [
        ("a", FileKind::Directory),
        ("b", FileKind::Directory),
        ("c", FileKind::File),
        ("d", FileKind::File),
        (locks::FILE, FileKind::File),
    ] {
        let call = Call::Create {
            directory,
            name: name.to_string(),
            kind,
        };
        let made = programs.ask(false, call).await;
        // The second directory is in the first one, and so are the files.
        match (made, name) {
            (Ok(Answer::Inode(seen)), "a") => directory = seen.inode,
            (Ok(Answer::Inode(seen)), locks::FILE) => lock(&known).has_counters(seen.inode),
            _ => {}
        }
    }
    programs.make_template(directory).await;
    programs.close().await;
}

/// The programs of a node's client. A client that loses its session is followed by another.
pub(super) async fn programs(
    _: World,
    member: Arc<Member>,
    known: Shared,
    scenario: CrowdScenario,
) {
    loop {
        let programs = open_in_the_end(&member, &known, &scenario).await;
        let all = (0..scenario.programs).map(|_| programs.run());
        let ended = join_all(all).await;
        programs.close().await;
        if ended.iter().all(std::result::Result::is_ok) {
            return;
        }
    }
}

/// Looks at everything. The faults are over, and so is the time in which anything may fail.
pub(super) async fn survey(member: Arc<Member>, known: Shared, cell_bytes: usize) {
    let scenario = CrowdScenario {
        cell_bytes,
        ..CrowdScenario::WITHIN
    };
    let programs = open_in_the_end(&member, &known, &scenario).await;
    let mut directories = vec![lock(&known).root()];
    while let Some(directory) = directories.pop() {
        let Ok(Answer::Names(names)) = programs.ask(false, Call::List { directory }).await else {
            lock(&known).breaks(format!("directory {directory} can't be listed at the end"));
            return;
        };
        for (name, inode) in names {
            let looked = programs.ask(false, Call::Lookup { directory, name }).await;
            let Ok(Answer::Inode(seen)) = looked else {
                lock(&known).breaks(format!("inode {inode} isn't found at the end"));
                continue;
            };
            let mut more = vec![Call::Stat { inode }];
            match seen.kind {
                FileKind::Directory => {
                    more.push(Call::GetXattr { inode });
                    directories.push(inode);
                }
                FileKind::Symlink => match programs.client.read_link(inode).await {
                    Ok(target) if target == TARGET => {}
                    other => lock(&known).breaks(format!("symlink {inode}: {other:?}")),
                },
                _ => {
                    more.push(Call::GetXattr { inode });
                    more.push(Call::Read {
                        inode,
                        cell: 0,
                        cells: crate::witness::content::CELLS_MAX,
                    });
                }
            }
            for call in more {
                let _ = programs.ask(false, call).await;
            }
        }
    }
    programs.close().await;
}

impl Programs {
    /// Makes the file from which programs copy, under a name that other operations don't use.
    async fn make_template(&self, directory: InodeId) {
        let call = Call::Create {
            directory,
            name: "template".to_string(),
            kind: FileKind::File,
        };
        let Ok(Answer::Inode(seen)) = self.ask(false, call).await else {
            return;
        };
        let inode = seen.inode;
        // It isn't among those that programs change.
        lock(&self.known).forget(inode);
        for (cell, value) in (0..TEMPLATE_CELLS as usize).zip(TEMPLATE_VALUES..) {
            let call = Call::Write {
                inode,
                cell,
                cells: 1,
                value,
            };
            if self.ask(false, call).await != Ok(Answer::Done) {
                return;
            }
        }
        if self.ask(false, Call::Fsync { inode }).await == Ok(Answer::Done) {
            lock(&self.known).template = Some(inode);
        }
    }

    /// Bytes of a cell.
    pub(super) fn cell_bytes(&self) -> usize {
        self.scenario.cell_bytes
    }

    /// One program.
    async fn run(&self) -> std::result::Result<(), Lost> {
        let mut step = 0;
        loop {
            let (is_over, pause, what) = {
                let known = &mut *lock(&self.known);
                let is_over = step >= self.scenario.steps && known.faults_are_over;
                // Long ones while there is nothing to do but to wait for the end of a fault.
                let longest = if step >= self.scenario.steps {
                    3_000
                } else {
                    60
                };
                let pause = Duration::from_millis(known.draw.below(longest));
                (is_over, pause, known.draw.below(20))
            };
            if is_over {
                return Ok(());
            }
            self.world.sleep(pause).await;
            match what {
                0 => self.hold_a_file().await?,
                1 => self.use_a_lock().await?,
                _ => {
                    let call = lock(&self.known).draw_call();
                    self.ask(false, call).await?;
                }
            }
            step += 1;
        }
    }

    /// Works with a file that it holds open, whoever removes its names.
    async fn hold_a_file(&self) -> std::result::Result<(), Lost> {
        let call = lock(&self.known).draw_call();
        let Answer::Inode(seen) = self.ask(false, call).await? else {
            return Ok(());
        };
        let flags = OpenFlags {
            write: true,
            ..OpenFlags::default()
        };
        if seen.kind != FileKind::File || self.client.open(seen.inode, flags).await.is_err() {
            return Ok(());
        }
        for _ in 0..HELD_STEPS {
            let call = lock(&self.known).draw_content(seen.inode);
            let is_held = call.inode() == Some(seen.inode);
            self.ask(is_held, call).await?;
        }
        self.client.release(seen.inode).await;
        Ok(())
    }

    /// Asks, and notes what it sees.
    pub(super) async fn ask(&self, is_held: bool, call: Call) -> std::result::Result<Answer, Lost> {
        if lock(&self.known).is_lost(self.number) {
            return Err(Lost);
        }
        let event = lock(&self.known).begin(self.number, is_held, call.clone());
        let answer = Of::event(event, self.perform(&call)).await;
        let known = &mut *lock(&self.known);
        match answer {
            Ok(answer) => {
                known.end(event, answer.clone());
                Ok(answer)
            }
            // Unknown: its session ended before the owner said what became of it. The client goes on
            // with another session, and may have lost what it hadn't synced.
            Err(error) if matches!(error.kind(), ErrorKind::SessionEnded | ErrorKind::Unknown) => {
                known.lose_client(self.number);
                Err(Lost)
            }
            // Stale: the inode is gone, and its program didn't hold it open.
            Err(error)
                if error.advice() == Advice::FixRequest || error.kind() == ErrorKind::Stale =>
            {
                let answer = Answer::Refused(error.kind());
                known.end(event, answer.clone());
                Ok(answer)
            }
            Err(error) => {
                if !self.scenario.may_fail() || error.kind() == ErrorKind::Corrupt {
                    known.breaks(format!("client {} saw {error} of {call:?}", self.number));
                }
                Ok(Answer::Unknown)
            }
        }
    }

    async fn perform(&self, call: &Call) -> Result<Answer> {
        let client = &self.client;
        let name = |text: &String| FileName::new(text.as_bytes()).expect("names are names");
        Ok(match call {
            Call::Create {
                directory,
                name: text,
                kind,
            } => {
                let made = client.create(*directory, name(text), new(*kind)).await?;
                Answer::Inode(self.seen(&made, false)?)
            }
            Call::Link {
                inode,
                directory,
                name: text,
            } => {
                client.link(*inode, *directory, name(text)).await?;
                Answer::Done
            }
            Call::Unlink {
                directory,
                name: text,
            } => {
                client.unlink(*directory, name(text)).await?;
                Answer::Done
            }
            Call::RemoveDirectory {
                directory,
                name: text,
            } => {
                client.remove_directory(*directory, name(text)).await?;
                Answer::Done
            }
            Call::Rename { from, to, mode } => {
                let (from, to) = ((from.0, name(&from.1)), (to.0, name(&to.1)));
                client.rename(from.0, from.1, to.0, to.1, *mode).await?;
                Answer::Done
            }
            Call::Lookup {
                directory,
                name: text,
            } => {
                let found = client.lookup(*directory, name(text)).await?;
                Answer::Inode(self.seen(&found, false)?)
            }
            Call::List { directory } => {
                let listing = client.read_directory(*directory, 0, 1024, false).await?;
                let entries = listing.entries.iter().map(|entry| {
                    let name = String::from_utf8_lossy(entry.name.as_bytes());
                    (name.into_owned(), entry.inode)
                });
                Answer::Names(entries.collect())
            }
            Call::SetMode { inode, mode } => {
                let set = SetAttributes {
                    mode: Some(*mode),
                    ..SetAttributes::default()
                };
                client.set_attributes(*inode, set).await?;
                Answer::Done
            }
            Call::SetXattr {
                inode,
                value: Some(value),
            } => {
                let value = value.to_le_bytes();
                client
                    .set_xattr(*inode, XATTR, &value, XattrMode::Set)
                    .await?;
                Answer::Done
            }
            Call::SetXattr { inode, value: None } => {
                client.remove_xattr(*inode, XATTR).await?;
                Answer::Done
            }
            Call::Stat { inode } => {
                Answer::Inode(self.seen(&client.get_attributes(*inode).await?, true)?)
            }
            Call::GetXattr { inode } => match client.get_xattr(*inode, XATTR).await {
                Ok(value) => Answer::Xattr(Some(number(&value)?)),
                Err(error) if error.kind() == ErrorKind::NoSuchAttribute => Answer::Xattr(None),
                Err(error) => return Err(error),
            },
            content => self.perform_content(content).await?,
        })
    }

    async fn perform_content(&self, call: &Call) -> Result<Answer> {
        let client = &self.client;
        let cell_bytes = self.cell_bytes();
        let at = |cell: usize| (cell * cell_bytes) as u64;
        match call {
            Call::Write {
                inode,
                cell,
                cells,
                value,
            } => {
                client
                    .write(*inode, at(*cell), &bytes(*value, cells * cell_bytes))
                    .await?
            }
            Call::Append {
                inode,
                cells,
                value,
            } => {
                let offset = client
                    .append(*inode, &bytes(*value, cells * cell_bytes))
                    .await?;
                return Ok(Answer::At(self.whole_cells(offset)?));
            }
            Call::Truncate { inode, cells } => {
                let set = SetAttributes {
                    size: Some(at(*cells)),
                    ..SetAttributes::default()
                };
                client.set_attributes(*inode, set).await?;
            }
            Call::Punch { inode, cell, cells } => {
                let (offset, length) = (at(*cell), at(*cells));
                let punch = Allocate::Punch;
                client.allocate(*inode, punch, offset, length).await?;
            }
            Call::Zero { inode, cell, cells } => {
                let (offset, length) = (at(*cell), at(*cells));
                let zero = Allocate::Zero { keep_size: false };
                client.allocate(*inode, zero, offset, length).await?;
            }
            Call::Reserve { inode, cell, cells } => {
                let (offset, length) = (at(*cell), at(*cells));
                let reserve = Allocate::Reserve { keep_size: false };
                client.allocate(*inode, reserve, offset, length).await?;
            }
            Call::Copy {
                from,
                inode,
                cell,
                cells,
                ..
            } => {
                let (source, target, length) = (at(from.1), at(*cell), at(*cells));
                let mut done = 0;
                while done < length {
                    let (source, target) = (source + done, target + done);
                    let copied = client
                        .copy_range(from.0, source, *inode, target, length - done)
                        .await?;
                    if copied == 0 {
                        return Err(lie(format!("{done} bytes of {length} were copied")));
                    }
                    done += copied;
                }
            }
            Call::Read { inode, cell, cells } => {
                let length = cells * cell_bytes;
                let pieces = client.read(*inode, at(*cell), length).await?;
                return self.cells_of(&pieces.concat()).map(Answer::Cells);
            }
            Call::Fsync { inode } => client.fsync(*inode, false).await?,
            other => unreachable!("{other:?} doesn't touch content"),
        }
        Ok(Answer::Done)
    }

    /// The size only where the client says it exactly.
    fn seen(&self, attributes: &Attributes, with_size: bool) -> Result<Seen> {
        let is_sized = with_size && attributes.kind == FileKind::File;
        Ok(Seen {
            inode: attributes.inode,
            kind: attributes.kind,
            mode: attributes.mode,
            links: attributes.links,
            cells: match is_sized {
                true => Some(self.whole_cells(attributes.size)?),
                false => None,
            },
        })
    }

    fn whole_cells(&self, bytes: u64) -> Result<usize> {
        let bytes = bytes as usize;
        match bytes % self.cell_bytes() {
            0 => Ok(bytes / self.cell_bytes()),
            _ => Err(lie(format!("a file of {bytes} bytes, which nobody made"))),
        }
    }

    fn cells_of(&self, bytes: &[u8]) -> Result<Vec<u32>> {
        self.whole_cells(bytes.len() as u64)?;
        let cells = bytes.chunks(self.cell_bytes()).map(|cell| {
            let first = number(&cell[..4])?;
            if cell.chunks(4).all(|word| word == &cell[..4]) {
                Ok(first.wrapping_mul(UNSPREAD))
            } else {
                Err(lie(format!(
                    "a cell that begins with {first} and goes on otherwise"
                )))
            }
        });
        cells.collect()
    }

    /// Ends the client. What it can't write then is lost.
    async fn close(self) {
        if self.client.losses().sessions > 0 {
            lock(&self.known).lose_client(self.number);
        }
        let is_lost = lock(&self.known).is_lost(self.number);
        let synced = self.client.sync_all().await;
        lock(&self.known).closes(self.number);
        let closed = self.client.close().await;
        let Err(error) = synced.and(closed) else {
            return;
        };
        let known = &mut *lock(&self.known);
        let is_ended = error.kind() == ErrorKind::SessionEnded;
        match () {
            () if is_lost => {}
            () if is_ended => known.lose_client(self.number),
            () if self.scenario.may_fail() => {
                known.lose_client(self.number);
            }
            () => known.breaks(format!("client {} doesn't close: {error}", self.number)),
        }
    }
}

fn new(kind: FileKind) -> NewInode {
    NewInode {
        kind,
        mode: MODE,
        umask: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: match kind {
            FileKind::Symlink => Bytes::from_static(TARGET),
            _ => Bytes::new(),
        },
    }
}

/// What no honest file system says.
fn lie(what: String) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

fn number(value: &[u8]) -> Result<u32> {
    let bytes = value.try_into();
    let bytes = bytes.map_err(|_| lie(format!("a number of {} bytes", value.len())))?;
    Ok(u32::from_le_bytes(bytes))
}

/// So many bytes that all hold the same number, spread so that two numbers hardly share a byte: one that
/// is left of an older write must be seen.
fn bytes(value: u32, bytes: usize) -> Vec<u8> {
    let word = value.wrapping_mul(SPREAD);
    word.to_le_bytes().repeat(bytes / 4)
}
