//! Files that the client makes itself, under the delegation of their directory.
//!
//! *A create* looks whether the directory is delegated and everything is known that the owner would look at
//! (`known_names/memory/delegated.rs`); then the file is made here, and goes to the owner later (`owner/stream.rs`). If not, the
//! owner makes it. *A program that has several files made* in a directory whose names are all known makes it worthwhile to
//! ask for the delegation, beside its operations. *When it goes back*, what was made here is told first (`tokens/flushing.rs`).

use super::Names;
use crate::inode::HeldState;
use crate::known_names::{KnownNames, LookedAt};
use crate::session::Session;
use crate::tokens::Tokens;
use bytes::Bytes;
use model::operation::NewInode;
use model::{Attributes, Error, ErrorKind, FileKind, FileName, InodeId, Operation, Result};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a program waits for if tokens ran out while its file was made.
const STREAM_WAIT: &str = "the owner of the metadata, which hasn't heard of a new file";

/// Most directories for which something is asked in the background at the same time.
const PREPARING_MAX: usize = 64;

/// The directories for which a delegation, or numbers, are being asked for.
#[derive(Default)]
pub(super) struct Preparing(Arc<Mutex<BTreeSet<InodeId>>>);

/// One of them, until it is dropped.
struct Prepared {
    all: Arc<Mutex<BTreeSet<InodeId>>>,
    directory: InodeId,
}

impl Preparing {
    /// `None` if that is under way, or as many are as may be.
    fn begin(&self, directory: InodeId) -> Option<Prepared> {
        let mut all = self.0.lock();
        let is_new = all.len() < PREPARING_MAX && all.insert(directory);
        is_new.then(|| Prepared {
            all: self.0.clone(),
            directory,
        })
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        self.all.lock().remove(&self.directory);
    }
}

/// How often a directory's attributes are asked for: tokens are asked for from the second time on.
const LEARN_ROUNDS: usize = 2;

/// The extended attribute that is passed on to what is made in a directory.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

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
        if is_file && let Some(made) = self.make_here(directory, &name, &new, opens).await? {
            return Ok(made);
        }
        let made = self.create_at_owner((directory, name), new, opens).await;
        if is_file && made.is_ok() && known.wants_delegation(directory) {
            self.delegate(known, directory);
        }
        made
    }

    async fn make_here(
        &self,
        directory: InodeId,
        name: &FileName,
        new: &NewInode,
        opens: bool,
    ) -> Result<Option<Attributes>> {
        let grants = self.rights.grants();
        let (standing, owner) = (self.session.standing(), self.session.owner());
        let held = HeldState::of_new(standing);
        let Some((made, maker)) = owner.make_here(directory, name, new, opens) else {
            return Ok(None);
        };
        if made.wants_numbers {
            self.reserve(directory);
        }
        if opens {
            let opened = self.opens.hold_new(&made.attributes, maker, grants, held);
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
        Ok(Some(made.attributes))
    }

    /// Reserves numbers for the next files, in the background.
    fn reserve(&self, directory: InodeId) {
        let Some(reserving) = self.preparing.begin(directory) else {
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
    fn delegate(&self, known: &Arc<KnownNames>, directory: InodeId) {
        let Some(asking) = self.preparing.begin(directory) else {
            return;
        };
        let (session, tokens, known) = (self.session.clone(), self.tokens.clone(), known.clone());
        self.session.spawn("asks for a delegation", async move {
            if !learn_directory(&session, &tokens, &known, directory).await {
                return;
            }
            let asked = known.begin();
            let default = Operation::GetXattr {
                inode: directory,
                name: Bytes::from_static(DEFAULT_ACL),
            };
            match session.execute(default).await {
                Err(error) if error.kind() == ErrorKind::NoSuchAttribute => {
                    known.learn_plain(directory, asked);
                }
                _ => return,
            }
            if let Err(error) = session.owner().reserve_numbers(directory).await {
                tracing::debug!(%directory, %error, "no numbers are reserved for a delegation");
                return;
            }
            if tokens.claim_delegation(&known, directory).await {
                tracing::debug!(%directory, "files are made here");
            }
            drop(asking);
        });
    }
}

/// Asks for a directory's attributes until they are known under its tokens. Whether they are.
async fn learn_directory(
    session: &Session,
    tokens: &Tokens,
    known: &Arc<KnownNames>,
    directory: InodeId,
) -> bool {
    for _ in 0..LEARN_ROUNDS {
        let wanted = match known.look_at(directory, session.standing().now()) {
            LookedAt::Known(..) => return true,
            LookedAt::Unknown(wanted) => wanted,
        };
        for object in wanted {
            if !tokens.claim_to_know(known, object).await {
                return false;
            }
        }
        let asked = known.begin();
        let Ok(attributes) = session.attributes(directory).await else {
            return false;
        };
        let _learned = known.learn_attributes(&attributes, asked);
    }
    matches!(
        known.look_at(directory, session.standing().now()),
        LookedAt::Known(..)
    )
}
