//! What programs do: random operations of a client that they share, and what they see.

use super::CrowdScenario;
use super::known::{Shared, TEMPLATE_CELLS, TEMPLATE_VALUES, lock};
use super::listening::{Listening, Of};
use super::locks;
use super::performing::is_refusal;
use super::programs::{Lost, Programs, TARGET};
use crate::action::Draw;
use crate::witness::{Answer, Call};
use client::{ClientSettings, OpenFlags};
use futures::future::join_all;
use model::{Error, ErrorKind, FileKind, InodeId, Result};
use node::Member;
use simkernel::PageKernel;
use std::sync::Arc;
use std::time::Duration;
use world::World;

/// Operations of a program on a file that it holds open.
const HELD_STEPS: u64 = 6;

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
        mapping: None,
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
        let mut programs = open_in_the_end(&member, &known, &scenario).await;
        if scenario.maps_on(member.run().node) {
            programs.mapping = Some(PageKernel::before(&programs.client));
        }
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
    programs.all_locks_are_free().await;
    let mut directories = vec![lock(&known).root()];
    while let Some(directory) = directories.pop() {
        let listed = programs.ask(false, Call::List { directory }).await;
        let Ok(Answer::Listed(names, _)) = listed else {
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
            let (is_over, pause, what, has_own) = {
                let known = &mut *lock(&self.known);
                let is_over = step >= self.scenario.steps && known.faults_are_over;
                // Long ones while there is nothing to do but to wait for the end of a fault.
                let longest = if step >= self.scenario.steps {
                    3_000
                } else {
                    60
                };
                let pause = Duration::from_millis(known.draw.below(longest));
                (is_over, pause, known.draw.below(24), known.own.are_used())
            };
            if is_over {
                return Ok(());
            }
            self.world.sleep(pause).await;
            match what {
                0 => self.hold_a_file().await?,
                1 => self.use_a_lock().await?,
                2 => self.make_unnamed().await?,
                3..6 if self.mapping.is_some() => self.map_a_file().await?,
                6 => self.make_and_hold().await?,
                7 if has_own => self.fill_own_directory().await?,
                8..10 if has_own => self.visit_own_directory().await?,
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
        if seen.kind != FileKind::File {
            return Ok(());
        }
        if let Err(error) = self.client.open(seen.inode, flags).await {
            return self.note_no_open(seen.inode, error);
        }
        self.use_held(seen.inode).await?;
        self.client.release(seen.inode).await;
        Ok(())
    }

    async fn use_held(&self, inode: InodeId) -> std::result::Result<(), Lost> {
        for _ in 0..HELD_STEPS {
            let call = lock(&self.known).draw_content(inode);
            let is_held = call.inode() == Some(inode);
            self.ask(is_held, call).await?;
        }
        Ok(())
    }

    /// Makes a file and works with it, whoever removes its name, however soon.
    async fn make_and_hold(&self) -> std::result::Result<(), Lost> {
        let (directory, name) = {
            let known = &mut *lock(&self.known);
            (known.directory(), known.name())
        };
        let call = Call::Create {
            directory,
            name: name.clone(),
            kind: FileKind::File,
        };
        let making = self.make_open(directory, &name);
        let Answer::Inode(seen) = self.ask_by(false, call, making).await? else {
            return Ok(());
        };
        self.use_held(seen.inode).await?;
        self.client.release(seen.inode).await;
        Ok(())
    }

    /// Makes a file without a name, works with it, and most of the time names it.
    async fn make_unnamed(&self) -> std::result::Result<(), Lost> {
        let directory = lock(&self.known).directory();
        let made = self.ask(false, Call::CreateUnnamed { directory }).await?;
        let Answer::Inode(seen) = made else {
            return Ok(());
        };
        let inode = seen.inode;
        self.use_held(inode).await?;
        let name = {
            let known = &mut *lock(&self.known);
            (known.draw.below(4) > 0).then(|| (known.directory(), known.name()))
        };
        if let Some((directory, name)) = name {
            let link = Call::Link {
                inode,
                directory,
                name,
            };
            self.ask(true, link).await?;
        }
        self.client.release(inode).await;
        Ok(())
    }

    /// Asks, and notes what it sees.
    pub(super) async fn ask(&self, is_held: bool, call: Call) -> std::result::Result<Answer, Lost> {
        let work = self.perform(&call);
        self.ask_by(is_held, call.clone(), work).await
    }

    /// As `ask`, of what is done so.
    async fn ask_by(
        &self,
        is_held: bool,
        call: Call,
        work: impl Future<Output = Result<Answer>>,
    ) -> std::result::Result<Answer, Lost> {
        if lock(&self.known).is_lost(self.number) {
            return Err(Lost);
        }
        let event = lock(&self.known).begin(self.number, is_held, call.clone());
        let answer = Of::event(event, work).await;
        self.check_mapping()?;
        if let Ok(answer) = answer {
            lock(&self.known).end(event, answer.clone());
            // It may have been done in the session that has followed a lost one.
            return match self.has_lost() {
                true => Err(Lost),
                false => Ok(answer),
            };
        }
        self.note_error(Some(event), &call, answer)
    }

    /// What an open says that failed: the file is gone, or something is wrong.
    pub(super) fn note_no_open(
        &self,
        inode: InodeId,
        error: Error,
    ) -> std::result::Result<(), Lost> {
        let call = Call::Stat { inode };
        self.note_error(None, &call, Err(error)).map(drop)
    }

    /// What must not be, unless the client has lost its session and nobody has noticed yet.
    pub(super) fn breaks_unless_lost(&self, what: String) -> std::result::Result<(), Lost> {
        if self.has_lost() {
            return Err(Lost);
        }
        let known = &mut *lock(&self.known);
        known.breaks(format!("client {}: {what}", self.number));
        Ok(())
    }

    /// Whether the client has lost its session; then all know.
    fn has_lost(&self) -> bool {
        let known = &mut *lock(&self.known);
        if self.client.losses().sessions > 0 {
            known.lose_client(self.number);
        }
        known.is_lost(self.number)
    }

    /// What an error says of an operation: of one that hasn't begun nothing is noted.
    pub(super) fn note_error(
        &self,
        event: Option<usize>,
        call: &Call,
        answer: Result<Answer>,
    ) -> std::result::Result<Answer, Lost> {
        // What it held open may be gone with its session.
        if answer.is_err() && self.has_lost() {
            return Err(Lost);
        }
        let known = &mut *lock(&self.known);
        match answer {
            Ok(answer) => Ok(answer),
            // Unknown: its session ended before the owner said what became of it. The client goes on
            // with another session, and may have lost what it hadn't synced.
            Err(error) if matches!(error.kind(), ErrorKind::SessionEnded | ErrorKind::Unknown) => {
                known.lose_client(self.number);
                Err(Lost)
            }
            Err(error) if is_refusal(&error) => {
                let answer = Answer::Refused(error.kind());
                if let Some(event) = event {
                    known.end(event, answer.clone());
                }
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

    /// Ends the client. What it can't write then is lost.
    async fn close(self) {
        let _lost = self.check_mapping();
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
