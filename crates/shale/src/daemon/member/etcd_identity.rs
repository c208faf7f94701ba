//! What this node's member of the cluster's own etcd has for other members: a key and a certificate of its own, which the
//! node makes itself with the authority's key. Ordinary nodes, which have no such key, pass for no member: their
//! certificates have another name ([`ETCD_MEMBER`]).
//!
//! It is made anew when the daemon starts, in its last third, and when another authority certifies. etcd reads it with each
//! connection.

use super::key_ring::KeyRing;
use super::keys;
use model::{Error, ErrorKind, Result, Timestamp};
use parking_lot::Mutex;
use rpc::security::{Credentials, ETCD_MEMBER, Fingerprint, Holder, PrivateKey, SigningRequest};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name that members of etcd know each other by.
pub const NAME: &str = ETCD_MEMBER;

/// The member's key and certificate; files in the node's directory say the same.
pub struct EtcdIdentity {
    dir: PathBuf,
    keys: Option<Arc<KeyRing>>,
    address: IpAddr,
    known: Mutex<Credentials>,
}

impl EtcdIdentity {
    /// Makes it for a daemon that starts, by the authority that has certified the node; one that is there will do if none
    /// can be made. `own`: the node's credentials; `address`: where other members reach this one.
    ///
    /// # Errors
    /// `NotFound`: this node hasn't the authority's key, and nothing that other members take; the system's error.
    pub fn make(
        dir: &Path,
        keys: Option<&Arc<KeyRing>>,
        own: &Credentials,
        address: IpAddr,
        now: Timestamp,
    ) -> Result<Arc<Self>> {
        let made = made(keys, own, own.issuer(), address, now);
        let made = made.and_then(|made| keys::store_etcd(dir, &made).map(|()| made));
        let known = made.or_else(|error| {
            let there = keys::load_etcd(dir, own);
            let there = there.and_then(|it| it.check_at(now).map(|()| it));
            there.map_err(|_| error)
        })?;
        Ok(Arc::new(Self {
            dir: dir.to_path_buf(),
            keys: keys.cloned(),
            address,
            known: Mutex::new(known),
        }))
    }

    /// Makes it anew if it is in its last third, or isn't by this authority. Cheap if there is nothing to do. Whether there
    /// was.
    ///
    /// # Errors
    /// As [`EtcdIdentity::make`]; the one before counts still. Do it again.
    pub fn renew(&self, own: &Credentials, by: Fingerprint, now: Timestamp) -> Result<bool> {
        let mut known = self.known.lock();
        // By the authorities that the node trusts now.
        let is_by = |known: &Credentials| {
            let known = known.trusting(own.authorities().to_vec());
            known.is_ok_and(|it| it.issuer() == Some(by))
        };
        if is_by(&known) && !known.must_renew(now) {
            return Ok(false);
        }
        let made = made(self.keys.as_ref(), own, Some(by), self.address, now)?;
        keys::store_etcd(&self.dir, &made)?;
        *known = made;
        Ok(true)
    }
}

fn made(
    keys: Option<&Arc<KeyRing>>,
    own: &Credentials,
    by: Option<Fingerprint>,
    address: IpAddr,
    now: Timestamp,
) -> Result<Credentials> {
    let authority = keys.zip(by).and_then(|(keys, by)| keys.of(&by.0));
    let authority = authority.ok_or_else(|| {
        let text = "this node runs a member of etcd and hasn't the key of the cluster's authority, with which it certifies \
                    that; copy keys/authority.key and keys/authority.pem from the directory of another quorum node";
        Error::new(ErrorKind::NotFound, text)
    })?;
    let key = PrivateKey::generate()?;
    let request = SigningRequest::from_der(&key.signing_request()?)?;
    let holder = Holder {
        node: own.name().node,
        addresses: vec![address],
        has_localhost: true,
    };
    let certificate = authority.issue_for_etcd(&request, &holder, now)?;
    Credentials::new(key, certificate, own.authorities().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpc::security::Authority;

    const DAY: i64 = 24 * 60 * 60;

    /// So many days after some day in 2026.
    fn at(days: i64) -> Timestamp {
        Timestamp::from_timespec(1_770_000_000 + days * DAY, 0)
    }

    struct Case {
        home: tempfile::TempDir,
        keys: Arc<KeyRing>,
        own: Credentials,
    }

    impl Case {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            keys::found(home.path(), 7, "10.0.0.1:7311".parse().unwrap(), at(0)).unwrap();
            Self {
                keys: KeyRing::load(home.path()).unwrap().unwrap(),
                own: keys::load(home.path()).unwrap(),
                home,
            }
        }

        fn make(&self, keys: Option<&Arc<KeyRing>>, days: i64) -> Result<Arc<EtcdIdentity>> {
            let address = "10.0.0.1".parse().unwrap();
            EtcdIdentity::make(self.home.path(), keys, &self.own, address, at(days))
        }

        fn stored(&self, own: &Credentials) -> Credentials {
            keys::load_etcd(self.home.path(), own).unwrap()
        }
    }

    #[test]
    fn a_member_of_etcd_has_a_certificate_by_the_authority_that_certifies() {
        let case = Case::new();
        let identity = case.make(Some(&case.keys), 0).unwrap();
        let first = case.stored(&case.own);
        let old = first.issuer().unwrap();
        assert_eq!(Some(old), case.own.issuer());
        assert_ne!(first.key().key_hash(), case.own.key().key_hash());
        first.check_at(at(0)).unwrap();
        assert!(!identity.renew(&case.own, old, at(0)).unwrap());
        // Another authority takes the place of the first one, and certifies.
        let next = Authority::found(7, at(0)).unwrap();
        let new = next.certificate().fingerprint();
        let both = vec![
            case.own.authorities()[0].clone(),
            next.certificate().clone(),
        ];
        let own = case.own.trusting(both).unwrap();
        assert!(!identity.renew(&own, old, at(0)).unwrap());
        let early = identity.renew(&own, new, at(0)).unwrap_err();
        assert_eq!(early.kind(), ErrorKind::NotFound, "its key isn't here yet");
        assert_eq!(case.stored(&own).certificate_pem(), first.certificate_pem());
        case.keys.add(next).unwrap();
        assert!(identity.renew(&own, new, at(0)).unwrap());
        assert!(!identity.renew(&own, new, at(0)).unwrap());
        let second = case.stored(&own);
        assert_eq!(second.issuer(), Some(new));
        assert_ne!(
            second.key().key_hash(),
            first.key().key_hash(),
            "a new key, too"
        );
    }

    #[test]
    fn it_is_made_anew_in_its_last_third_and_at_a_start_if_it_can_be() {
        let case = Case::new();
        let identity = case.make(Some(&case.keys), 0).unwrap();
        let by = case.own.issuer().unwrap();
        let first = case.stored(&case.own).certificate_pem();
        assert!(!identity.renew(&case.own, by, at(400)).unwrap());
        assert!(identity.renew(&case.own, by, at(500)).unwrap());
        let second = case.stored(&case.own).certificate_pem();
        assert_ne!(second, first);
        case.make(Some(&case.keys), 500).unwrap();
        let third = case.stored(&case.own).certificate_pem();
        assert_ne!(third, second);
        // Without the authority's key what is there will do, as long as it counts.
        case.make(None, 600).unwrap();
        assert_eq!(case.stored(&case.own).certificate_pem(), third);
        let ended = case.make(None, 3_000).err().unwrap();
        assert_eq!(ended.kind(), ErrorKind::NotFound);
        // A crash between key and certificate.
        let key = PrivateKey::generate().unwrap().to_pem();
        keys::write(case.home.path(), "etcd.key", &key).unwrap();
        assert!(case.make(None, 600).is_err());
        case.make(Some(&case.keys), 600).unwrap();
        case.stored(&case.own).check_at(at(600)).unwrap();
    }
}
