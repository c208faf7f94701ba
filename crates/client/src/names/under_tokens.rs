//! Looks at what is known of names, and asks for what isn't so that it is known the next time; says for how long
//! kernels may keep it.

use super::Names;
use crate::kernels::{Found, Validity};
use crate::known_names::{KnownNames, Learned, Looked, LookedAt};
use crate::session::unexpected_reply;
use model::{Attributes, ErrorKind, FileName, InodeId, Operation, Reply, Result, TokenObject};
use std::sync::Arc;
use std::time::Duration;

/// Most names of a directory that are learned because several others are missing: what fits into a small answer.
const NAMES_MAX: u32 = 1_000;

impl Names {
    /// Finds a name, in what is known if that is enough, and says for how long a kernel may use the answer.
    pub(crate) async fn lookup(
        &self,
        known: &Arc<KnownNames>,
        directory: InodeId,
        name: FileName,
    ) -> Result<Found> {
        self.session.check_open()?;
        let look = self.attributes.look();
        let standing = self.session.standing();
        let looked = known.look(directory, &name, standing.now());
        let wanted = match looked {
            // After the look: whoever slept in between can't trust it.
            _ if !standing.is_current() => Vec::new(),
            Looked::Found(attributes, learned) => {
                let attributes = self.attributes.complete(attributes, look).await?;
                let valid = self.valid(known, directory, &name, Some(learned));
                return Ok(Found::Entry(attributes, valid));
            }
            Looked::Missing => return Ok(Found::Missing(standing.valid_under_tokens())),
            Looked::Unknown(wanted) => wanted,
        };
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
                let is_learned = known.learn(directory, &name, None, asked).is_some();
                if !is_learned {
                    return Ok(Found::Missing(Duration::ZERO));
                }
                if known.wants_names(directory) {
                    self.learn_names(known, directory).await;
                }
                // Others may have wanted the directory meanwhile.
                let looked = known.look(directory, &name, standing.now());
                Ok(Found::Missing(match looked {
                    Looked::Missing => standing.valid_under_tokens(),
                    _ => Duration::ZERO,
                }))
            }
            Err(error) => Err(error),
        }
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

    /// Asks for tokens so that the next answer can be kept.
    async fn claim(&self, known: &Arc<KnownNames>, wanted: Vec<TokenObject>) {
        for object in wanted {
            if !self.tokens.claim_to_know(known, object).await {
                return;
            }
        }
    }

    /// Lists a directory in which programs look for names that aren't there: the next ones are known to be missing, if
    /// it has few others.
    async fn learn_names(&self, known: &Arc<KnownNames>, directory: InodeId) {
        let list = Operation::ReadDirectory {
            directory,
            after: 0,
            limit: NAMES_MAX,
            with_attributes: false,
        };
        let asked = known.begin();
        if let Ok((entries, true)) = self.list_at_owner(list).await {
            known.learn_listing(directory, 0, (&entries, true), asked);
        }
    }

    /// For how long a kernel may use what was found under a name.
    pub(super) fn valid(
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
