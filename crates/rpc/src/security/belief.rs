//! What others make of a node's certificate: which authority has issued it, and whether they believe that.

use super::certificate::{Certificate, Fingerprint};
use super::configs::{server_name, server_verifier};
use super::credentials::Credentials;
use super::names::NodeName;
use model::{Error, ErrorKind, Result, Timestamp};
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::UnixTime;
use std::time::Duration;

impl Credentials {
    /// The authority that the certificate names as its issuer, if it is trusted.
    #[must_use]
    pub fn issuer(&self) -> Option<Fingerprint> {
        let mut authorities = self.authorities().iter();
        let issuer = authorities.find(|it| self.certificate().names_as_issuer(it));
        issuer.map(|it| it.fingerprint())
    }

    /// Checks that whoever trusts the same authorities believes the certificate at this time.
    ///
    /// # Errors
    /// `Corrupt` if they don't, or this machine's clock was never set.
    pub fn check_at(&self, now: Timestamp) -> Result<()> {
        self.believe(self.certificate(), self.name(), now)
    }

    /// Checks that whoever trusts the same authorities as this node believes at this time that a certificate is a node's.
    ///
    /// # Errors
    /// As of [`Credentials::check_at`].
    pub(super) fn believe(
        &self,
        certificate: &Certificate,
        name: NodeName,
        now: Timestamp,
    ) -> Result<()> {
        let wrong = |why: String| Error::new(ErrorKind::Corrupt, why);
        let seconds = u64::try_from(now.seconds());
        let seconds = seconds.map_err(|_| wrong("this machine's clock was never set".into()))?;
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let verifier = server_verifier(self.authorities().iter().map(|it| it.rustls()))?;
        let (certificate, name) = (certificate.rustls(), server_name(name));
        let believed = verifier.verify_server_cert(&certificate, &[], &name, &[], now);
        let believed = believed.map(drop);
        believed.map_err(|error| wrong(format!("the certificate can't be believed: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::{Authority, Holder, PrivateKey, SigningRequest};
    use model::NodeId;

    /// In 2026.
    const NOW: i64 = 1_770_000_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_timespec(seconds, 0)
    }

    fn holder() -> Holder {
        Holder {
            node: NodeId(1),
            addresses: Vec::new(),
            has_localhost: false,
        }
    }

    #[test]
    fn the_issuer_of_a_certificate_is_known_as_long_as_it_is_trusted() {
        let [old, new] = [(); 2].map(|()| Authority::found(1, at(NOW)).unwrap());
        let [a, b] = [&old, &new].map(|it| it.certificate().clone());
        let own = Credentials::first(&new, &holder(), at(NOW)).unwrap();
        assert_eq!(own.issuer(), Some(b.fingerprint()));
        let both = own.trusting(vec![a.clone(), b.clone()]).unwrap();
        assert_eq!(both.issuer(), Some(b.fingerprint()));
        both.check_at(at(NOW)).unwrap();
        let other = own.trusting(vec![a]).unwrap();
        assert_eq!(other.issuer(), None);
        other.check_at(at(NOW)).unwrap_err();
        // Its time has not begun, or is over.
        for when in [NOW - 3 * 86_400, NOW + 3 * 365 * 86_400, -1] {
            own.check_at(at(when)).unwrap_err();
        }
    }

    /// A certificate that names the right authority, and that somebody else has signed.
    #[test]
    fn a_name_alone_is_not_believed() {
        let authority = Authority::found(1, at(NOW)).unwrap();
        let own = Credentials::first(&authority, &holder(), at(NOW)).unwrap();
        let mut forged = own.certificate().der().to_vec();
        // The signature is at its end.
        *forged.last_mut().unwrap() ^= 1;
        let forged = Certificate::from_der(&forged).unwrap();
        let trusted = vec![authority.certificate().clone()];
        let forged = Credentials::new(own.key().clone(), forged, trusted).unwrap();
        assert_eq!(forged.issuer(), own.issuer());
        forged.check_at(at(NOW)).unwrap_err();
    }

    #[test]
    fn a_key_has_the_name_that_its_requests_have() {
        let key = PrivateKey::generate().unwrap();
        for _ in 0..2 {
            let request = SigningRequest::from_der(&key.signing_request().unwrap()).unwrap();
            assert_eq!(request.key_hash(), key.key_hash());
            assert_eq!(request.key_fingerprint().0, key.key_hash());
        }
        let other = PrivateKey::generate().unwrap();
        assert_ne!(other.key_hash(), key.key_hash());
    }
}
