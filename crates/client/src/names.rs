//! Names: lookup, create, link, unlink, rename, listings, symbolic links.
//!
//! A client on another node than the owner looks first at what it knows of names (`known_names.rs`).

mod ahead;
mod delegated;
mod neighbours;
mod preparing;
mod under_tokens;

use crate::attributes::InodeAttributes;
use crate::inode::HeldState;
use crate::kernels::Validity;
use crate::known_names::KnownNames;
use crate::opens::Opens;
use crate::page_pool::{Look, PagePool};
use crate::privileges::Rights;
use crate::session::{Session, unexpected_reply};
use crate::tokens::Tokens;
use crate::types::Listing;
use crate::write_behind::WriteBehind;
use ahead::Ahead;
use bytes::Bytes;
use model::operation::{DirectoryEntry, NewInode, RenameMode};
use model::{Attributes, Error, ErrorKind, FileKind, FileName, InodeId, Operation, Reply, Result};
use preparing::Preparing;
use std::sync::Arc;

/// A part of a directory: which, after which position, at most how many entries, and whether with their attributes.
type Part = (InodeId, u64, u32, bool);

/// The names in directories.
pub(crate) struct Names {
    session: Arc<Session>,
    pages: Arc<PagePool>,
    rights: Arc<Rights>,
    write_behind: Arc<WriteBehind>,
    attributes: Arc<InodeAttributes>,
    opens: Arc<Opens>,
    tokens: Arc<Tokens>,
    preparing: Preparing,
    ahead: Ahead,
}

impl Names {
    pub(crate) fn new(
        session: Arc<Session>,
        pages: Arc<PagePool>,
        rights: Arc<Rights>,
        write_behind: Arc<WriteBehind>,
        attributes: Arc<InodeAttributes>,
        opens: Arc<Opens>,
        tokens: Arc<Tokens>,
    ) -> Self {
        Self {
            session,
            pages,
            rights,
            write_behind,
            attributes,
            opens,
            tokens,
            preparing: Preparing::default(),
            ahead: Ahead::default(),
        }
    }

    /// What is known of names; `None` of a client that asks its owner by a function call.
    pub(crate) fn known(&self) -> Option<&Arc<KnownNames>> {
        self.session.names()
    }

    /// An operation that finds or makes an inode under a name. Attributes include unpublished writes.
    pub(crate) fn entry(
        &self,
        operation: Operation,
    ) -> impl Future<Output = Result<Attributes>> + Send {
        let look = self.attributes.look();
        let executed = self.session.execute(operation);
        async move {
            match executed.await? {
                Reply::Entry { attributes, .. } => self.attributes.complete(attributes, look).await,
                other => unexpected_reply(&other),
            }
        }
    }

    /// Makes an inode. If its program `opens` it, in one step: whoever removes its name meanwhile leaves it to the program.
    pub(crate) async fn create(
        &self,
        entry: (InodeId, FileName),
        new: NewInode,
        opens: bool,
    ) -> Result<Attributes> {
        match self.known() {
            // Boxed: a client that asks by a function call pays nothing for it.
            Some(known) => Box::pin(self.create_known(known, entry, new, opens)).await,
            None => self.create_at_owner(entry, new, opens).await,
        }
    }

    async fn create_at_owner(
        &self,
        (directory, name): (InodeId, FileName),
        new: NewInode,
        opens: bool,
    ) -> Result<Attributes> {
        let create = Operation::create(directory, name, new, opens);
        let unheard = self.tokens.begin_change_of_names(directory, None);
        let made = match opens {
            true => self.make_and_open(create).await,
            false => self.entry(create).await,
        };
        unheard.hear(&made);
        made
    }

    /// Makes a file without a name and opens it.
    pub(crate) async fn create_unnamed(
        &self,
        directory: InodeId,
        new: NewInode,
    ) -> Result<Attributes> {
        let create = Operation::CreateUnnamed { directory, new };
        let attributes = self.make_and_open(create).await?;
        let state = self.pages.inode(attributes.inode);
        state.lock().set_orphan(true);
        Ok(attributes)
    }

    /// Makes an inode, which the session that makes it holds, and notes that it is open.
    async fn make_and_open(&self, make: Operation) -> Result<Attributes> {
        let grants = self.rights.grants();
        let held = HeldState::of_new(self.session.standing());
        let look = self.attributes.look();
        let is_unnamed = matches!(make, Operation::CreateUnnamed { .. });
        let (attributes, maker) = match self.session.execute_in(make).await? {
            (Reply::Entry { attributes, .. }, maker) => (attributes, maker),
            (other, _) => unexpected_reply(&other),
        };
        // Before anything else is waited for: who gives up then has an open file to close.
        match is_unnamed {
            true => {
                let held = self.opens.hold_unnamed(&attributes, maker, grants, held);
                held.await?;
            }
            false => {
                let held = self.opens.hold_new(&attributes, maker, grants, held);
                held.await?;
            }
        }
        let shown = self.attributes.complete(attributes, look).await;
        if shown.is_err() {
            self.opens.release(attributes.inode).await;
        }
        shown
    }

    /// Adds a name to an inode. Publishes the inode's dirty data first.
    pub(crate) async fn link(
        &self,
        inode: InodeId,
        directory: InodeId,
        name: FileName,
    ) -> Result<Attributes> {
        self.write_behind.publish_inode(inode).await?;
        // Before the link: a concurrent last close must not discard the data as useless.
        let state = self.pages.find_inode(inode);
        let was_orphan = state
            .as_ref()
            .is_some_and(|state| state.lock().set_orphan(false));
        let unheard = self.tokens.begin_change_of_names(directory, Some(inode));
        let look = self.attributes.look();
        let link = Operation::Link {
            inode,
            directory,
            name,
        };
        let linked = self.session.execute(link).await;
        unheard.hear(&linked);
        // Unless it may have the name all the same, or get it later.
        let is_refused = |error: &Error| error.kind() != ErrorKind::Unknown;
        let is_unnamed = was_orphan && linked.as_ref().is_err_and(is_refused);
        if let (true, Some(state)) = (is_unnamed, state) {
            let mut inner = state.lock();
            inner.set_orphan(true);
            if !inner.is_open() && self.session.standing().has_all() {
                self.pages.discard(inode, &mut inner);
            }
        }
        match linked? {
            Reply::Entry { attributes, .. } => self.attributes.complete(attributes, look).await,
            other => unexpected_reply(&other),
        }
    }

    /// Unlink, or the removal of a directory: of a name in this one.
    pub(crate) async fn remove(&self, directory: InodeId, operation: Operation) -> Result<()> {
        if let Operation::Unlink { directory, name } = &operation {
            self.tell_close(*directory, name).await;
        }
        let unheard = self.tokens.begin_change_of_names(directory, None);
        let removed = self.session.execute(operation).await;
        unheard.hear(&removed);
        match removed? {
            Reply::Removed {
                attributes,
                orphaned,
                ..
            } => {
                self.note_removed(&attributes, orphaned);
                Ok(())
            }
            other => unexpected_reply(&other),
        }
    }

    /// Moves a name. Publishes the moved inode's data first, so that after a crash the new name
    /// never lacks the data.
    pub(crate) async fn rename(
        &self,
        (from_directory, from_name): (InodeId, FileName),
        (to_directory, to_name): (InodeId, FileName),
        mode: RenameMode,
    ) -> Result<()> {
        self.publish_named(from_directory, &from_name).await?;
        match mode {
            RenameMode::Exchange => self.publish_named(to_directory, &to_name).await?,
            _ => self.tell_close(to_directory, &to_name).await,
        }
        let operation = Operation::Rename {
            from_directory,
            from_name,
            to_directory,
            to_name,
            mode,
        };
        let other = (to_directory != from_directory).then_some(to_directory);
        let unheard = self.tokens.begin_change_of_names(from_directory, other);
        let renamed = self.session.execute(operation).await;
        unheard.hear(&renamed);
        match renamed? {
            Reply::Renamed {
                target, orphaned, ..
            } => {
                if let Some(target) = target {
                    self.note_removed(&target, orphaned);
                }
                Ok(())
            }
            other => unexpected_reply(&other),
        }
    }

    /// A name is about to be removed. If it leads to a file that is closed, of which the owner would be told later, it is told
    /// now: it would keep the file as one in use, to release it a moment later.
    async fn tell_close(&self, directory: InodeId, name: &FileName) {
        let leads_to = self
            .known()
            .and_then(|known| known.leads_to(directory, name));
        let Some(inode) = leads_to else { return };
        let owner = self.session.owner();
        if owner.is_close_untold(inode) {
            // Boxed because it is rare: otherwise every removal's future would contain it.
            let told = Box::pin(owner.tell_close(inode)).await;
            if let Err(error) = told {
                tracing::debug!(%inode, %error, "the owner can't be told of a closed file");
            }
        }
    }

    /// An inode lost a name. If that was its last, its data is useless: now, or after its last
    /// holder.
    fn note_removed(&self, attributes: &Attributes, orphaned: bool) {
        let is_gone = attributes.links == 0
            || (attributes.kind == FileKind::Directory && attributes.links < 2);
        if !is_gone {
            return;
        }
        let is_file = attributes.kind != FileKind::Directory;
        if let Some(known) = self.known().filter(|_| is_file && !orphaned) {
            known.note_gone(attributes.inode);
        }
        let Some(state) = self.pages.find_inode(attributes.inode) else {
            return;
        };
        let mut inner = state.lock();
        if orphaned {
            inner.set_orphan(true);
        } else {
            self.pages.discard(attributes.inode, &mut inner);
        }
    }

    async fn publish_named(&self, directory: InodeId, name: &FileName) -> Result<()> {
        if self.pages.dirty() == 0 {
            return Ok(());
        }
        let operation = Operation::Lookup {
            directory,
            name: name.clone(),
        };
        let Reply::Entry { attributes, .. } = self.session.execute(operation).await? else {
            return Ok(());
        };
        self.write_behind.publish_inode(attributes.inode).await
    }

    /// The target of a symbolic link.
    pub(crate) async fn read_link(&self, inode: InodeId) -> Result<Bytes> {
        let operation = Operation::ReadLink { inode };
        match self.session.execute(operation).await? {
            Reply::Target(target) => Ok(target),
            other => unexpected_reply(&other),
        }
    }

    /// Part of a directory: the entries after position `after`, at most `limit`.
    pub(crate) async fn list(
        &self,
        directory: InodeId,
        after: u64,
        limit: u32,
        with_attributes: bool,
    ) -> Result<Listing> {
        let part = (directory, after, limit, with_attributes);
        let Some(known) = self.known() else {
            let look = self.attributes.look();
            let asked = self.session.standing().asked();
            let (entries, end) = list_part(&self.session, part).await?;
            let listing = self.listing(entries, end, look).await?;
            let valid = self.session.standing().valid_since(asked);
            let valid = Validity {
                name: valid,
                attributes: valid,
            };
            return Ok(listing.valid_for(|_, _| valid));
        };
        // Boxed: a client that asks by a function call pays nothing for it.
        Box::pin(self.list_known(known, part)).await
    }

    /// Attributes include unpublished writes.
    async fn listing(
        &self,
        mut entries: Vec<DirectoryEntry>,
        end: bool,
        look: Look,
    ) -> Result<Listing> {
        for entry in &mut entries {
            if let Some(attributes) = &mut entry.attributes {
                *attributes = self.attributes.complete(*attributes, look).await?;
            }
        }
        Ok(Listing {
            valid: vec![Validity::default(); entries.len()],
            entries,
            end,
        })
    }
}

/// A part of a directory, as its owner says, and whether it is the last one.
async fn list_part(
    session: &Session,
    (directory, after, limit, with_attributes): Part,
) -> Result<(Vec<DirectoryEntry>, bool)> {
    let list = Operation::ReadDirectory {
        directory,
        after,
        limit,
        with_attributes,
    };
    match session.execute(list).await? {
        Reply::Listing { entries, end } => Ok((entries, end)),
        other => unexpected_reply(&other),
    }
}
