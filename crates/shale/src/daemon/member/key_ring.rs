//! The keys of the cluster's authority that this node has, with which it certifies others: the one, and while another
//! authority takes its place, that one's as well.

use super::keys;
use coordination::Authorities;
use model::{Error, ErrorKind, Result, Timestamp};
use parking_lot::Mutex;
use rpc::security::Authority;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The keys; files in the node's directory say the same.
pub struct KeyRing {
    dir: PathBuf,
    held: Mutex<Held>,
}

struct Held {
    /// The one that certifies, or has, or will: there is always one.
    main: Arc<Authority>,
    next: Option<Arc<Authority>>,
    /// The next one may be about to be told to the cluster: it isn't dropped because nobody knows it.
    is_offered: bool,
}

impl KeyRing {
    /// Those of a directory; `None`: it has none.
    ///
    /// # Errors
    /// `Corrupt` if one can't be read.
    pub fn load(dir: &Path) -> Result<Option<Arc<Self>>> {
        let mut all = keys::load_authorities(dir)?.into_iter().map(Arc::new);
        let Some(main) = all.next() else {
            return Ok(None);
        };
        let held = Held {
            main,
            next: all.next(),
            is_offered: false,
        };
        Ok(Some(Arc::new(Self {
            dir: dir.to_path_buf(),
            held: Mutex::new(held),
        })))
    }

    /// The cluster.
    pub fn cluster(&self) -> u128 {
        self.held.lock().main.cluster()
    }

    /// The one that the cluster was founded with, if no other has taken its place.
    pub fn main(&self) -> Arc<Authority> {
        self.held.lock().main.clone()
    }

    /// The authority with this name, if its key is here.
    pub fn of(&self, hash: &[u8; 32]) -> Option<Arc<Authority>> {
        let held = self.held.lock();
        let mut all = std::iter::once(&held.main).chain(&held.next);
        all.find(|it| hash_of(it) == *hash).cloned()
    }

    /// The names of all.
    pub fn hashes(&self) -> Vec<[u8; 32]> {
        let held = self.held.lock();
        let all = std::iter::once(&held.main).chain(&held.next);
        let mut hashes: Vec<_> = all.map(|it| hash_of(it)).collect();
        hashes.dedup();
        hashes
    }

    /// The one to certify with.
    ///
    /// # Errors
    /// `Unavailable`: its key isn't here yet; another node has it.
    pub fn certifying(&self, authorities: Option<&Authorities>) -> Result<Arc<Authority>> {
        let Some(authorities) = authorities else {
            return Ok(self.main());
        };
        self.of(&authorities.certifying().hash).ok_or_else(|| {
            let text =
                "this node hasn't got the key of the cluster's new authority yet; ask another one";
            Error::new(ErrorKind::Unavailable, text)
        })
    }

    /// A new authority, whose key is stored here and that the cluster may be told of: the same one until it is told, or
    /// withdrawn ([`KeyRing::withdraw_unknown`]) and dropped.
    ///
    /// # Errors
    /// Those of [`Authority::found`]; the system's error.
    pub fn offer(&self, now: Timestamp) -> Result<Arc<Authority>> {
        let mut held = self.held.lock();
        if let Some(next) = held.next.clone() {
            held.is_offered = true;
            return Ok(next);
        }
        let next = Authority::found(held.main.cluster(), now)?;
        keys::store_next_authority(&self.dir, &next)?;
        let next = Arc::new(next);
        held.next = Some(next.clone());
        held.is_offered = true;
        Ok(next)
    }

    /// These count now: if the authority that was offered is none of them, the cluster doesn't know it, and won't. If it is
    /// one, it is kept although [`KeyRing::keep`] may be told older ones next.
    pub fn withdraw_unknown(&self, authorities: &Authorities) {
        let mut held = self.held.lock();
        let offered = held.next.as_deref().map(hash_of);
        let is_known = |hash: [u8; 32]| authorities.trusted().any(|it| it.hash == hash);
        held.is_offered &= offered.is_some_and(is_known);
    }

    /// Stores a key that another node has given: that of an authority which the cluster trusts.
    ///
    /// # Errors
    /// The system's error.
    pub fn add(&self, authority: Authority) -> Result<()> {
        let mut held = self.held.lock();
        keys::store_next_authority(&self.dir, &authority)?;
        held.next = Some(Arc::new(authority));
        held.is_offered = false;
        Ok(())
    }

    /// Drops what the cluster doesn't trust any more: the next authority takes the other one's place, or is removed. Whether
    /// anything has changed.
    ///
    /// # Errors
    /// The system's error: do it again.
    pub fn keep(&self, authorities: &Authorities) -> Result<bool> {
        let mut held = self.held.lock();
        let Some(next) = held.next.clone() else {
            return Ok(false);
        };
        let is_trusted = |hash: [u8; 32]| authorities.trusted().any(|it| it.hash == hash);
        let (main, hash) = (hash_of(&held.main), hash_of(&next));
        if is_trusted(hash) {
            held.is_offered = false;
            if is_trusted(main) && main != hash {
                return Ok(false);
            }
            keys::promote_authority(&self.dir)?;
            held.main = next;
        } else if held.is_offered {
            return Ok(false);
        } else {
            keys::remove_next_authority(&self.dir)?;
        }
        held.next = None;
        Ok(true)
    }
}

/// An authority's name.
pub fn hash_of(authority: &Authority) -> [u8; 32] {
    authority.certificate().fingerprint().0
}

#[cfg(test)]
mod tests {
    use super::*;
    use coordination::{AuthorityFact, NextAuthority};

    fn fact(hash: [u8; 32]) -> AuthorityFact {
        AuthorityFact {
            hash,
            certificate: Vec::new(),
        }
    }

    fn authorities(current: [u8; 32], next: Option<([u8; 32], bool)>) -> Authorities {
        Authorities {
            current: fact(current),
            next: next.map(|(hash, certifies)| NextAuthority {
                authority: fact(hash),
                certifies,
            }),
        }
    }

    /// In 2026.
    fn now() -> Timestamp {
        Timestamp::from_timespec(1_770_000_000, 0)
    }

    fn ring(dir: &Path) -> Arc<KeyRing> {
        KeyRing::load(dir).unwrap().unwrap()
    }

    #[test]
    fn an_offered_key_is_kept_until_the_cluster_knows_it_or_never_will() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path();
        assert!(KeyRing::load(dir).unwrap().is_none());
        keys::found(dir, 7, "10.0.0.1:7311".parse().unwrap(), now()).unwrap();
        let keys = ring(dir);
        let old = hash_of(&keys.main());
        assert_eq!(hash_of(&keys.certifying(None).unwrap()), old);
        let new = hash_of(&keys.offer(now()).unwrap());
        assert_eq!(hash_of(&keys.offer(now()).unwrap()), new, "the same one");
        assert_eq!(keys.hashes(), [old, new]);
        // Nobody has been told yet.
        assert!(!keys.keep(&authorities(old, None)).unwrap());
        assert_eq!(ring(dir).hashes(), [old, new], "it is stored");
        // Two people begin at once: the second one is told of it before this node has heard of it.
        keys.withdraw_unknown(&authorities(old, Some((new, false))));
        assert!(!keys.keep(&authorities(old, None)).unwrap());
        keys.withdraw_unknown(&authorities(old, Some(([9; 32], false))));
        assert!(keys.keep(&authorities(old, None)).unwrap());
        assert_eq!((keys.hashes(), ring(dir).hashes()), (vec![old], vec![old]));
    }

    #[test]
    fn the_next_key_takes_the_others_place_when_that_is_not_trusted_any_more() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path();
        keys::found(dir, 7, "10.0.0.1:7311".parse().unwrap(), now()).unwrap();
        let keys = ring(dir);
        let old = hash_of(&keys.main());
        let next = Authority::found(7, now()).unwrap();
        let new = hash_of(&next);
        let trusting = authorities(old, Some((new, false)));
        keys.add(next).unwrap();
        assert!(!keys.keep(&trusting).unwrap());
        assert_eq!(hash_of(&keys.certifying(Some(&trusting)).unwrap()), old);
        let certifying = authorities(old, Some((new, true)));
        assert!(!keys.keep(&certifying).unwrap());
        assert_eq!(hash_of(&keys.certifying(Some(&certifying)).unwrap()), new);
        let other = authorities(old, Some(([9; 32], true)));
        let away = keys.certifying(Some(&other)).unwrap_err();
        assert_eq!(away.kind(), ErrorKind::Unavailable);
        assert!(keys.keep(&authorities(new, None)).unwrap());
        for keys in [keys, ring(dir)] {
            assert_eq!(keys.hashes(), [new]);
            assert!(!keys.keep(&authorities(new, None)).unwrap());
        }
    }
}
