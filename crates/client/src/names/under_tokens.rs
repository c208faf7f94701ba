//! Looks at what is known of names, and asks for what isn't so that it is known the next time; says for how long
//! kernels may keep it.

use super::preparing::QUIET_MAX;
use super::{Names, Part, list_part};
use crate::kernels::{Found, Validity};
use crate::known_names::{KnownNames, Learned, Looked, LookedAt};
use crate::session::{Session, unexpected_reply};
use crate::tokens::Tokens;
use crate::types::Listing;
use model::operation::DirectoryEntry;
use model::token::Ship;
use model::{Attributes, ErrorKind, FileName, InodeId, Operation, Reply, Result, TokenObject};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use world::{Deadline, Work};

/// Names of a directory that are learned at once because several others are missing: what fits into a small answer.
pub(super) const NAMES_MAX: u32 = 1_000;
/// The names of a directory with more of them are learned in parts. A part that follows so late is the last one: a program
/// waits for them.
const LEARN_MAX: Duration = Duration::from_secs(1);

/// So many entries are asked for at least, if they can be kept for the next part of the listing.
const LISTED_MIN: u32 = 256;
/// So many are asked for ahead: of as many files that one client has written an owner asks for a share at a time, and what is
/// left out would be listed without attributes.
const LISTED_AHEAD: u32 = 1_024;
/// No more than one of so many entries may be of unknown attributes where the next part is asked for ahead.
const UNKNOWN_SHARE: usize = 8;
/// What was asked for ahead is waited for no longer. Then the part is asked for again.
const AHEAD_WAIT_MAX: Duration = Duration::from_secs(2);
/// The cause by which waits for that are listed.
const AHEAD_WAIT: &str = "a part of the directory that was asked for ahead";

/// A part of a directory that the owner has listed.
struct Fetched {
    entries: Vec<DirectoryEntry>,
    /// Nothing is behind it.
    end: bool,
    /// When each was learned as it is, with its attributes.
    learned: Vec<Option<Learned>>,
    /// Where the next part begins, if there is one, all up to there is kept, and so are nearly all attributes.
    next: Option<u64>,
}

impl Names {
    /// Finds a name, in what is known if that is enough, and says for how long a kernel may use the answer.
    pub(crate) async fn lookup(
        &self,
        known: &Arc<KnownNames>,
        directory: InodeId,
        name: FileName,
    ) -> Result<Found> {
        self.session.check_open()?;
        let mut wanted = match self.look_here(known, directory, &name).await? {
            ControlFlow::Break(found) => return Ok(found),
            ControlFlow::Continue(wanted) => wanted,
        };
        let ahead = self.wanted_ahead(known, directory, &name);
        if !ahead.is_empty() {
            // Boxed because it is rare: otherwise every lookup's future would contain it.
            Box::pin(self.learn_ahead(known, directory, ahead)).await;
            wanted = match self.look_here(known, directory, &name).await? {
                ControlFlow::Break(found) => return Ok(found),
                ControlFlow::Continue(wanted) => wanted,
            };
        }
        let look = self.attributes.look();
        let standing = self.session.standing();
        self.claim(known, wanted).await;
        let asked = known.begin();
        let lookup = Operation::Lookup {
            directory,
            name: name.clone(),
        };
        match self.session.execute(lookup).await {
            Ok(Reply::Entry { attributes, .. }) => {
                let learned = known.learn(directory, &name, Some(&attributes), asked);
                let attributes = self.attributes.complete(attributes, look).await?;
                let valid = self.valid(known, directory, &name, learned);
                Ok(Found::Entry(attributes, valid))
            }
            Ok(other) => unexpected_reply(&other),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                known.learn(directory, &name, None, asked);
                if let Some(parts) = known.wants_names(directory) {
                    self.learn_names(known, directory, parts).await;
                }
                // Others may have wanted the directory, or changed it.
                let looked = known.look(directory, &name, standing.now());
                Ok(Found::Missing(match looked {
                    Looked::Missing => standing.valid_under_tokens(),
                    _ => Duration::ZERO,
                }))
            }
            Err(error) => Err(error),
        }
    }

    /// Finds a name in what is known. If that isn't enough: the tokens with which the owner's answer could be kept.
    async fn look_here(
        &self,
        known: &KnownNames,
        directory: InodeId,
        name: &FileName,
    ) -> Result<ControlFlow<Found, Vec<TokenObject>>> {
        let look = self.attributes.look();
        let standing = self.session.standing();
        let looked = known.look(directory, name, standing.now());
        Ok(match looked {
            // After the look: whoever slept in between can't trust it.
            _ if !standing.is_current() => ControlFlow::Continue(Vec::new()),
            Looked::Found(attributes, learned) => {
                let attributes = self.attributes.complete(attributes, look).await?;
                let valid = self.valid(known, directory, name, Some(learned));
                ControlFlow::Break(Found::Entry(attributes, valid))
            }
            Looked::Missing => ControlFlow::Break(Found::Missing(standing.valid_under_tokens())),
            Looked::Unknown(wanted) => ControlFlow::Continue(wanted),
        })
    }

    /// An inode's attributes, in what is known if that is enough, and for how long a kernel may keep them. Only those
    /// of directories are known by their numbers: a kernel asks for them before it follows a path.
    pub(crate) async fn attributes(
        &self,
        known: &Arc<KnownNames>,
        inode: InodeId,
    ) -> Result<(Attributes, Duration)> {
        self.session.check_open()?;
        let look = self.attributes.look();
        let standing = self.session.standing();
        let looked = known.look_at(inode, standing.now());
        let wanted = match looked {
            // As above.
            _ if !standing.is_current() => Vec::new(),
            LookedAt::Known(attributes, learned) => {
                let attributes = self.attributes.complete(attributes, look).await?;
                return Ok((attributes, self.valid_at(known, inode, Some(learned))));
            }
            LookedAt::Unknown(wanted) => wanted,
        };
        self.claim(known, wanted).await;
        let asked = known.begin();
        let attributes = self.session.attributes(inode).await?;
        let learned = known.learn_attributes(&attributes, asked);
        let attributes = self.attributes.complete(attributes, look).await?;
        Ok((attributes, self.valid_at(known, inode, learned)))
    }

    /// Part of a directory, in what is known if that is enough, and for how long a kernel may keep each entry.
    pub(super) async fn list_known(
        &self,
        known: &Arc<KnownNames>,
        (directory, after, limit, with_attributes): Part,
    ) -> Result<Listing> {
        let look = self.attributes.look();
        self.session.check_open()?;
        let standing = self.session.standing();
        let list = || known.list(directory, after, limit, with_attributes);
        let mut listed = list();
        if listed.is_none() && with_attributes && self.comes(directory, after).await {
            listed = list();
        }
        if let Some((entries, end)) = listed
            && standing.is_current()
        {
            if let Some(next) = self.ahead.enter(directory, after) {
                self.list_ahead(known, directory, next);
            }
            let learned = known.learned(directory, &entries);
            let listing = self.listing(entries, end, look).await?;
            return Ok(self.valid_listing(known, directory, listing, &learned));
        }
        if known.wants(directory, standing.now()) {
            let object = TokenObject::Directory(directory);
            self.claim(known, vec![object]).await;
        }
        // What is kept needn't be asked for again with the next part.
        let asked_for = match known.holds(directory) {
            true => limit.max(LISTED_MIN),
            false => limit,
        };
        let part = (directory, after, asked_for, with_attributes);
        let Fetched {
            mut entries,
            mut end,
            learned,
            next,
        } = fetch(&self.session, &self.tokens, known, part).await?;
        // Who has come this far reads the rest.
        if let Some(next) = next.filter(|_| after > 0) {
            self.list_ahead(known, directory, next);
        }
        let limit = (limit as usize).max(1);
        end &= entries.len() <= limit;
        entries.truncate(limit);
        let listing = self.listing(entries, end, look).await?;
        Ok(self.valid_listing(known, directory, listing, &learned))
    }

    /// Waits for a part that was asked for ahead, for a while. Whether it was under way.
    async fn comes(&self, directory: InodeId, after: u64) -> bool {
        let world = self.session.world();
        let deadline = Deadline::after(world, AHEAD_WAIT_MAX);
        let here = self.ahead.until_here(directory, after);
        let work = Work::Ask(directory);
        let waiting = self
            .session
            .wait_for_work(AHEAD_WAIT, directory, work, here);
        matches!(deadline.bound(world, waiting).await, Ok(Ok(true)))
    }

    /// Asks for a part of a directory that programs are about to come to, unless it is known.
    fn list_ahead(&self, known: &Arc<KnownNames>, directory: InodeId, after: u64) {
        if known.list(directory, after, 1, true).is_some() {
            return;
        }
        let Some(coming) = self.ahead.begin(directory, after) else {
            return;
        };
        let (session, tokens) = (self.session.clone(), self.tokens.clone());
        let known = known.clone();
        let lists = async move {
            let part = (directory, after, LISTED_AHEAD, true);
            if let Ok(fetched) = fetch(&session, &tokens, &known, part).await {
                coming.end(fetched.next);
            }
        };
        let work = Work::Ask(directory);
        self.session.spawn_work("lists a part ahead", work, lists);
    }

    /// Says how long a kernel may use each entry of a listing, of which this was learned.
    fn valid_listing(
        &self,
        known: &KnownNames,
        directory: InodeId,
        listing: Listing,
        learned: &[Option<Learned>],
    ) -> Listing {
        listing.valid_for(|at, entry| {
            let learned = learned.get(at).copied().flatten();
            self.valid(known, directory, &entry.name, learned)
        })
    }

    /// Asks for tokens so that the next answer can be kept. The owner needs a directory's names back from others to look into it;
    /// attributes only if there is a file of that name.
    async fn claim(&self, known: &Arc<KnownNames>, wanted: Vec<TokenObject>) {
        for object in wanted {
            let ship = match object {
                TokenObject::Directory(_) => Ship::IfContended,
                TokenObject::Inode(_) | TokenObject::Bytes(_) => Ship::IfHeld,
            };
            if !self.tokens.claim_to_know(known, object, ship).await {
                return;
            }
        }
    }

    /// Lists a directory in which programs look for names that aren't there, in so many parts at most: if that is all of it, the
    /// next ones are known to be missing. A part that doesn't follow what is known ends it: the directory was changed meanwhile,
    /// or is too large to be kept.
    async fn learn_names(&self, known: &Arc<KnownNames>, directory: InodeId, parts: u32) {
        let world = self.session.world();
        // Creates wait meanwhile: beside changes of this client no names are learned.
        let _prepared = self.preparing.begin(world, directory);
        let quiet = known.until_quiet(directory);
        self.wait_for_quiet(directory, Deadline::after(world, QUIET_MAX), quiet)
            .await;
        let deadline = Deadline::after(world, LEARN_MAX);
        let mut after = 0;
        for _ in 0..parts {
            let part = (directory, after, NAMES_MAX, false);
            let asked = known.begin();
            let Ok((entries, is_end)) = list_part(&self.session, part).await else {
                return;
            };
            let goes_on = known.learn_listing(directory, after, (&entries, is_end), asked);
            let Some(last) = entries.last().filter(|_| goes_on && !is_end) else {
                return;
            };
            if deadline.has_passed(world) {
                return;
            }
            after = last.position;
        }
    }

    /// For how long a kernel may use what was found under a name.
    fn valid(
        &self,
        known: &KnownNames,
        directory: InodeId,
        name: &FileName,
        learned: Option<Learned>,
    ) -> Validity {
        let is_known = learned.map(|learned| known.show_entry(directory, name, learned));
        let (is_name, is_all) = is_known.unwrap_or_default();
        let valid = self.session.standing().valid_under_tokens();
        let valid_if = |is_known| if is_known { valid } else { Duration::ZERO };
        Validity {
            name: valid_if(is_name),
            attributes: valid_if(is_all),
        }
    }

    /// For how long a kernel may keep attributes that it asked for by their inode's number.
    fn valid_at(&self, known: &KnownNames, inode: InodeId, learned: Option<Learned>) -> Duration {
        match learned {
            Some(learned) if known.show_attributes(inode, learned) => {
                self.session.standing().valid_under_tokens()
            }
            _ => Duration::ZERO,
        }
    }
}

/// Asks for a part of a directory, and for the tokens under which it can be kept.
async fn fetch(
    session: &Session,
    tokens: &Tokens,
    known: &Arc<KnownNames>,
    part: Part,
) -> Result<Fetched> {
    let (directory, after, _, with_attributes) = part;
    let asked = known.begin();
    let (mut entries, end) = list_part(session, part).await?;
    let is_kept = known.learn_listing(directory, after, (&entries, end), asked);
    if with_attributes {
        let now = session.standing().now();
        let inodes = known.listed_without_token(directory, &entries, now);
        if inodes.len() > 1 {
            let asking = known.ask_to_know();
            for came in tokens.ask_to_know(known, inodes).await {
                asking.learn(directory, &mut entries, &came);
            }
        }
    }
    let learned = known.learned(directory, &entries);
    let unknown = learned.iter().filter(|learned| learned.is_none()).count();
    // Who lists what can't be known, as many directories, asks for each part when it comes to it.
    let is_of_use = is_kept && unknown <= entries.len() / UNKNOWN_SHARE;
    let last = entries.last().filter(|_| is_of_use && !end);
    Ok(Fetched {
        next: last.map(|last| last.position),
        entries,
        end,
        learned,
    })
}
