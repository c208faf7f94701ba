//! What a node proves itself with, and whom it believes.

use super::authority::{Authority, Holder};
use super::certificate::Certificate;
use super::keys::{PrivateKey, SigningRequest};
use super::names::NodeName;
use model::join::AUTHORITIES_MAX;
use model::{Error, ErrorKind, Result, Timestamp};
use rustls::pki_types::CertificateDer;

/// A node's private key and certificate, and the authorities whose certificates it takes for good.
/// While an authority is replaced, the old and the new one are trusted. Cheap enough to clone.
#[derive(Clone, Debug)]
pub struct Credentials {
    key: PrivateKey,
    certificate: Certificate,
    name: NodeName,
    authorities: Vec<Certificate>,
}

impl Credentials {
    /// Puts them together.
    ///
    /// # Errors
    /// `Corrupt` if they don't belong together: the certificate is for another key or no node, there
    /// is no authority or more than [`AUTHORITIES_MAX`], or one is no authority of the node's cluster.
    pub fn new(
        key: PrivateKey,
        certificate: Certificate,
        authorities: Vec<Certificate>,
    ) -> Result<Self> {
        let wrong = |why: String| {
            let error = Error::new(ErrorKind::Corrupt, why);
            error.while_doing("checking the node's key and certificate")
        };
        let Some(name) = certificate.node() else {
            return Err(wrong("the certificate is an authority's".into()));
        };
        if !key.is_of(certificate.public_key()) {
            return Err(wrong("the certificate is for another key".into()));
        }
        if authorities.is_empty() || authorities.len() > AUTHORITIES_MAX {
            let count = authorities.len();
            let text = format!("{count} authorities are trusted, 1 to {AUTHORITIES_MAX} can be");
            return Err(wrong(text));
        }
        for authority in &authorities {
            if authority.authority_of() != Some(name.cluster) {
                let text = format!("{authority:?} is no authority of the cluster of {name}");
                return Err(wrong(text));
            }
        }
        Ok(Self {
            key,
            certificate,
            name,
            authorities,
        })
    }

    /// From texts (PEM): the key, the certificate, the authorities' certificates.
    ///
    /// # Errors
    /// `Corrupt` if one can't be read, or they don't belong together.
    pub fn from_pem(key: &str, certificate: &str, authorities: &str) -> Result<Self> {
        let reading = |what: &'static str| {
            move |error: Error| error.while_doing(format!("reading the node's {what}"))
        };
        let key = PrivateKey::from_pem(key).map_err(reading("private key"))?;
        let mut own = Certificate::all_from_pem(certificate, 1).map_err(reading("certificate"))?;
        let authorities = Certificate::all_from_pem(authorities, AUTHORITIES_MAX)
            .map_err(reading("list of authorities"))?;
        Self::new(key, own.remove(0), authorities)
    }

    /// The private key as text (PEM). Whoever stores it must keep it from everybody but root.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.key.to_pem()
    }

    /// The certificate as text (PEM).
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        self.certificate.to_pem()
    }

    /// The authorities' certificates as text (PEM).
    #[must_use]
    pub fn authorities_pem(&self) -> String {
        self.authorities.iter().map(Certificate::to_pem).collect()
    }

    /// The node and its cluster.
    #[must_use]
    pub fn name(&self) -> NodeName {
        self.name
    }

    /// The node's private key.
    #[must_use]
    pub fn key(&self) -> &PrivateKey {
        &self.key
    }

    /// The node's certificate.
    #[must_use]
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// The authorities that are trusted.
    #[must_use]
    pub fn authorities(&self) -> &[Certificate] {
        &self.authorities
    }

    /// Whether it is time for a new certificate: a third of this one's is left.
    #[must_use]
    pub fn must_renew(&self, now: Timestamp) -> bool {
        now >= self.certificate.validity().last_third()
    }

    /// The same node with a new certificate, as a member got it
    /// ([`RenewReply`](model::join::RenewReply)): for `key`, which may be a new one.
    ///
    /// # Errors
    /// `Corrupt` if it isn't for this node and that key.
    pub fn renewed(
        &self,
        key: PrivateKey,
        certificate: &[u8],
        authorities: &[Vec<u8>],
    ) -> Result<Self> {
        let new = Self::from_der(key, certificate, authorities)?;
        if new.name != self.name {
            let text = format!(
                "the new certificate is for {}, this is {}",
                new.name, self.name
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(new)
    }

    /// The same key and certificate, with these authorities trusted.
    ///
    /// # Errors
    /// As of [`Credentials::new`].
    pub fn trusting(&self, authorities: Vec<Certificate>) -> Result<Self> {
        Self::new(self.key.clone(), self.certificate.clone(), authorities)
    }

    /// From what came over the network.
    pub(crate) fn from_der(
        key: PrivateKey,
        certificate: &[u8],
        authorities: &[Vec<u8>],
    ) -> Result<Self> {
        let authorities = authorities.iter().map(|one| Certificate::from_der(one));
        let authorities = authorities.collect::<Result<Vec<_>>>()?;
        Self::new(key, Certificate::from_der(certificate)?, authorities)
    }

    /// The founder's: an authority certifies its own node.
    ///
    /// # Errors
    /// As of [`Authority::issue`] and [`PrivateKey::generate`].
    pub fn first(authority: &Authority, holder: &Holder, now: Timestamp) -> Result<Self> {
        let key = PrivateKey::generate()?;
        let request = SigningRequest::from_der(&key.signing_request()?)?;
        let certificate = authority.issue(&request, holder, now)?;
        Self::new(key, certificate, vec![authority.certificate().clone()])
    }

    /// What is shown to members: they have the authorities.
    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.rustls()]
    }

    /// What is shown to a machine that joins: it finds the authority by its fingerprint.
    pub(crate) fn full_chain(&self) -> Vec<CertificateDer<'static>> {
        let authorities = self.authorities.iter().map(Certificate::rustls);
        std::iter::once(self.certificate.rustls())
            .chain(authorities)
            .collect()
    }
}
