//! Files that the client makes itself, under the delegation of their directory.
//!
//! *A create* looks whether the directory is delegated and everything is known that the owner would look at
//! (`known_names/memory/delegated.rs`); then the file is made here, and goes to the owner later (`owner/stream.rs`). If not, the
//! owner makes it. *What is in the way may go by soon*: changes of the directory that are under way, or that it is being prepared
//! (`preparing.rs`). Then the create waits a moment and isn't sent: it would be in the way of others in its turn, and of several
//! programs that make files at the same time none would ever make one here.
//!
//! *A program that has several files made* in a directory whose names are all known makes it worthwhile to ask for the
//! delegation (`known_names/tries.rs` says when); *the first file in a directory that this client has made* does so before it is
//! made, because hardly anybody else has anything of that. Nobody is asked to give anything back for it: what others have the
//! owner refuses. *When it goes back*, what was made here is told first (`tokens/flushing.rs`).

use super::preparing::QUIET_MAX;
use super::under_tokens::NAMES_MAX;
use super::{Names, list_part};
use crate::inode::HeldState;
use crate::known_names::{KnownNames, Making, ToLearn};
use crate::session::Session;
use crate::tokens::Tokens;
use bytes::Bytes;
use futures::future::join4;
use model::operation::NewInode;
use model::token::Ship;
use model::{Attributes, Error, ErrorKind, FileKind, FileName, InodeId, Operation, Reply, Result};
use std::sync::Arc;
use world::Deadline;

/// What a program waits for if tokens ran out while its file was made.
const STREAM_WAIT: &str = "the owner of the metadata, which hasn't heard of a new file";

/// What a create waits for that could be made here a moment later.
const QUIET_WAIT: &str = "other changes of this node in the same directory";

/// Why a directory is to become delegated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Worth {
    /// The owner has made several files in it for this client, and all its names are known.
    Busy,
    /// This client has made it itself, and its first file is about to be made.
    New,
}

/// Most steps until a directory's attributes are known: three tokens, its name, and the attributes, once more if a change of
/// this client came between.
const LEARN_STEPS: usize = 6;

impl Names {
    /// Makes an inode, and opens it if it shall: here, or at the owner.
    pub(super) async fn create_known(
        &self,
        known: &Arc<KnownNames>,
        (directory, name): (InodeId, FileName),
        new: NewInode,
        opens: bool,
    ) -> Result<Attributes> {
        self.session.check_open()?;
        let is_file = new.kind == FileKind::File;
        if is_file {
            let entry = (directory, &name);
            let is_later = match self.make_here(entry, &new, opens).await? {
                Making::Made(made) => return Ok(made),
                Making::Later => true,
                Making::Not => false,
            };
            let now = self.session.standing().now();
            // An owner in this process makes files by function calls: for few of them more would take longer.
            let may_prepare = !is_later && !self.session.owner().is_near();
            if may_prepare && known.wants_new_delegation(directory, now) {
                self.delegate(known, directory, Worth::New);
            }
            // Boxed: a create whose file is made at once pays nothing for it.
            let later = Box::pin(self.make_later(known, entry, (&new, opens), is_later));
            if let Some(made) = later.await? {
                return Ok(made);
            }
        }
        let made = self.create_at_owner((directory, name), new, opens).await;
        let has_made = is_file && made.is_ok();
        if has_made && known.wants_delegation(directory, self.session.standing().now()) {
            self.delegate(known, directory, Worth::Busy);
        }
        made
    }

    /// Makes a file here that couldn't be made a moment ago, once what is in the way has gone by: its directory is being prepared,
    /// or (`is_later`) changes of it are under way. Each create waits for such changes once, and not for those that follow. `None`:
    /// the owner must be asked.
    async fn make_later(
        &self,
        known: &KnownNames,
        entry: (InodeId, &FileName),
        (new, opens): (&NewInode, bool),
        mut is_later: bool,
    ) -> Result<Option<Attributes>> {
        let (world, standing) = (self.session.world(), self.session.standing());
        let (directory, _) = entry;
        let deadline = Deadline::after(world, QUIET_MAX);
        let mut has_waited = false;
        while !deadline.has_passed(world) {
            let prepared = self.preparing.waits_until(directory);
            if let Some(until) = prepared.filter(|until| !until.has_passed(world)) {
                let ended = self.preparing.until_ended(directory);
                self.wait_for_quiet(directory, until.min(deadline), ended)
                    .await;
            } else if is_later && !has_waited && known.may_wait(directory, standing.now()) {
                has_waited = true;
                let quiet = self.session.owner().until_quiet(directory);
                self.wait_for_quiet(directory, deadline, quiet).await;
            } else {
                break;
            }
            self.session.check_open()?;
            is_later = match self.make_here(entry, new, opens).await? {
                Making::Made(made) => return Ok(Some(made)),
                Making::Later => true,
                Making::Not => false,
            };
        }
        if has_waited {
            known.note_waited(directory, standing.now());
        }
        Ok(None)
    }

    /// Waits for what goes by in a directory, for as long as that may take.
    pub(super) async fn wait_for_quiet(
        &self,
        directory: InodeId,
        until: Deadline,
        quiet: impl Future<Output = ()>,
    ) {
        let since = self.session.now();
        let _listed = self.session.list(QUIET_WAIT, Some(directory), since);
        // In time or not: who waits looks what it has become.
        let _in_time = until.bound(self.session.world(), quiet).await;
    }

    /// Makes a file here, if that is possible now.
    async fn make_here(
        &self,
        (directory, name): (InodeId, &FileName),
        new: &NewInode,
        opens: bool,
    ) -> Result<Making<Attributes>> {
        let grants = self.rights.grants();
        let (standing, owner) = (self.session.standing(), self.session.owner());
        let held = HeldState::of_new(standing);
        let (made, maker) = match owner.make_here(directory, name, new, opens) {
            Making::Made(made) => made,
            Making::Later => return Ok(Making::Later),
            Making::Not => return Ok(Making::Not),
        };
        if made.wants_numbers {
            self.reserve(directory);
        }
        if opens {
            let opened = self
                .opens
                .hold_made_here(&made.attributes, maker, grants, held);
            opened.await?;
        }
        // After the work: if the tokens ran out meanwhile, others may have the directory, and only the owner knows. If another
        // session has begun, what the one before had made may be lost.
        if self.session.id() != maker || !standing.is_current() {
            let streamed = owner.until_streamed(maker, made.number);
            let told = self.session.within_patience(STREAM_WAIT, streamed).await;
            if let Err(error) = told.and_then(|told| told) {
                if opens {
                    self.opens.release(made.attributes.inode).await;
                }
                let text = "the owner hasn't said what became of a file that was made";
                return Err(Error::new(ErrorKind::Unknown, error.to_string()).while_doing(text));
            }
        }
        Ok(Making::Made(made.attributes))
    }

    /// Reserves numbers for the next files, in the background.
    fn reserve(&self, directory: InodeId) {
        let world = self.session.world();
        let Some(reserving) = self.preparing.begin(world, directory) else {
            return;
        };
        let session = self.session.clone();
        self.session
            .spawn("reserves numbers of inodes", async move {
                if let Err(error) = session.owner().reserve_numbers(directory).await {
                    tracing::debug!(%directory, %error, "no numbers are reserved for what is made");
                }
                drop(reserving);
            });
    }

    /// Asks for a delegation, in the background.
    fn delegate(&self, known: &Arc<KnownNames>, directory: InodeId, worth: Worth) {
        let begun = self.session.standing().now();
        let world = self.session.world();
        let Some(asking) = self.preparing.begin(world, directory) else {
            return;
        };
        let (session, tokens, known) = (self.session.clone(), self.tokens.clone(), known.clone());
        self.session.spawn("asks for a delegation", async move {
            let is_delegated = become_maker(&session, &tokens, &known, directory, worth).await;
            // Before it may be asked for again.
            let tried = begun..session.standing().now();
            known.note_tried(directory, is_delegated, tried);
            drop(asking);
        });
    }
}

/// Asks for all that it takes to make files in a directory, in which creates wait meanwhile. Whether it has come.
async fn become_maker(
    session: &Session,
    tokens: &Tokens,
    known: &Arc<KnownNames>,
    directory: InodeId,
    worth: Worth,
) -> bool {
    let deadline = Deadline::after(session.world(), QUIET_MAX);
    let quiet = known.until_quiet(directory);
    // Quiet or not: if something is in the way, that is seen.
    let _in_time = deadline.bound(session.world(), quiet).await;
    let is_maker = match worth {
        // Numbers come last: of what isn't delegated, others take them.
        Worth::Busy => {
            learn_directory(session, tokens, known, directory).await
                && learn_plain(session, known, directory).await
                && tokens.claim_delegation(known, directory).await
                && reserve_numbers(session, directory).await
        }
        Worth::New => prepare_new(session, tokens, known, directory).await,
    };
    if is_maker {
        tracing::debug!(%directory, "files are made here");
    }
    is_maker
}

/// Of a directory that this client has just made: hardly anybody else has anything of it, so its tokens come first, and under
/// them all the rest at once. A program waits meanwhile.
async fn prepare_new(
    session: &Session,
    tokens: &Tokens,
    known: &Arc<KnownNames>,
    directory: InodeId,
) -> bool {
    if !tokens.claim_new_delegation(known, directory).await {
        return false;
    }
    let prepared = join4(
        learn_directory(session, tokens, known, directory),
        learn_plain(session, known, directory),
        learn_new_names(session, known, directory),
        reserve_numbers(session, directory),
    );
    let (is_known, is_plain, (), has_numbers) = prepared.await;
    is_known && is_plain && has_numbers
}

/// Reserves numbers for files in a directory that is delegated. Whether it has some.
async fn reserve_numbers(session: &Session, directory: InodeId) -> bool {
    let reserved = session.owner().reserve_numbers(directory).await;
    if let Err(error) = &reserved {
        tracing::debug!(%directory, %error, "no numbers are reserved for a delegation");
    }
    reserved.is_ok()
}

/// Learns which names are in a new directory, mostly none: all others are missing. If those of others are too many, programs
/// look for each.
async fn learn_new_names(session: &Session, known: &KnownNames, directory: InodeId) {
    let asked = known.begin();
    let part = (directory, 0, NAMES_MAX, false);
    if let Ok((entries, is_end)) = list_part(session, part).await {
        known.learn_listing(directory, 0, (&entries, is_end), asked);
    }
}

/// Learns a directory's attributes under its tokens. Whether they are known.
async fn learn_directory(
    session: &Session,
    tokens: &Tokens,
    known: &Arc<KnownNames>,
    directory: InodeId,
) -> bool {
    for _ in 0..LEARN_STEPS {
        let Some(to_learn) = known.to_learn(directory) else {
            return false;
        };
        match to_learn {
            ToLearn::Nothing => return true,
            ToLearn::Under(object) => {
                if !tokens.claim_to_know(known, object, Ship::IfHeld).await {
                    return false;
                }
            }
            // Under the token of the directory with this name: nobody has to give anything back for it.
            ToLearn::Name(above, name) => {
                let asked = known.begin();
                let lookup = Operation::Lookup {
                    directory: above,
                    name: name.clone(),
                };
                let Ok(Reply::Entry { attributes, .. }) = session.execute(lookup).await else {
                    return false;
                };
                let learned = known.learn(above, &name, Some(&attributes), asked);
                if learned.is_none() {
                    return false;
                }
            }
            ToLearn::Attributes => {
                let asked = known.begin();
                let Ok(attributes) = session.attributes(directory).await else {
                    return false;
                };
                let _learned = known.learn_attributes(&attributes, asked);
            }
        }
    }
    known.to_learn(directory) == Some(ToLearn::Nothing)
}

/// Learns that a directory has no default ACL. Whether that is known.
async fn learn_plain(session: &Session, known: &Arc<KnownNames>, directory: InodeId) -> bool {
    if known.is_plain(directory) {
        return true;
    }
    let asked = known.begin();
    let default = Operation::GetXattr {
        inode: directory,
        name: Bytes::from_static(model::acl::DEFAULT),
    };
    let answer = session.execute(default).await;
    if answer.is_err_and(|error| error.kind() == ErrorKind::NoSuchAttribute) {
        known.learn_plain(directory, asked);
    }
    known.is_plain(directory)
}
