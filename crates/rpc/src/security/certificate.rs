//! A certificate as what it says: whose it is, from when to when, who may sign with it.

use super::names::{DOMAIN, NodeName};
use aws_lc_rs::digest::{SHA256, digest};
use model::join::CERTIFICATE_BYTES_MAX;
use model::{Error, ErrorKind, Result, Timestamp};
use rustls::pki_types::CertificateDer;
use std::fmt;
use std::time::Duration;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

/// What a certificate's block is called in PEM.
const PEM_TAG: &str = "CERTIFICATE";

/// SHA-256 of a certificate (DER): names it without doubt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// From when to when a certificate counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Validity {
    /// Its first second.
    pub from: Timestamp,
    /// Its last second.
    pub until: Timestamp,
}

impl Validity {
    /// Begins some time before `now`, so that it counts on machines whose clocks are behind.
    #[must_use]
    pub(crate) fn around(now: Timestamp, before: Duration, after: Duration) -> Self {
        let before = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
        let seconds = now.seconds().saturating_sub(before);
        Self {
            from: Timestamp::from_timespec(seconds, 0),
            until: Timestamp::from_timespec(now.plus(after).seconds(), 0),
        }
    }

    /// When a third of it is left.
    #[must_use]
    pub fn last_third(&self) -> Timestamp {
        let third = (self.until.seconds() - self.from.seconds()) / 3;
        Timestamp::from_timespec(self.until.seconds() - third, 0)
    }
}

/// A certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    der: CertificateDer<'static>,
    /// The node whose it is; an authority's has none.
    node: Option<NodeName>,
    /// The cluster that it says it belongs to, if it is an authority's.
    authority_of: Option<u128>,
    validity: Validity,
    serial: String,
    public_key: Vec<u8>,
    /// The same without what says that it is one: a point of its curve.
    key_point: Vec<u8>,
    /// The name (DER) of whoever issued it, as it says, and its own.
    issuer: Vec<u8>,
    subject: Vec<u8>,
}

impl Certificate {
    /// Reads a certificate (X.509, DER). Whether anybody should believe it isn't judged here.
    ///
    /// # Errors
    /// `Corrupt` if it is no certificate of a node or authority of a Shale cluster.
    pub fn from_der(der: &[u8]) -> Result<Self> {
        let wrong = |why: &str| Error::new(ErrorKind::Corrupt, why);
        if der.len() > CERTIFICATE_BYTES_MAX {
            return Err(wrong("it is larger than a certificate"));
        }
        let (rest, parsed) = x509_parser::parse_x509_certificate(der)
            .map_err(|error| wrong(&format!("it is no X.509 certificate: {error}")))?;
        if !rest.is_empty() {
            return Err(wrong("bytes follow the certificate"));
        }
        let time =
            |time: &x509_parser::time::ASN1Time| Timestamp::from_timespec(time.timestamp(), 0);
        let validity = parsed.validity();
        let authority_of = if parsed.is_ca() {
            Some(cluster_of(&parsed).ok_or_else(|| wrong("its subject names no cluster"))?)
        } else {
            None
        };
        let node = node_of(&parsed)?;
        if node.is_some() == authority_of.is_some() {
            return Err(wrong("it is neither a node's nor an authority's"));
        }
        Ok(Self {
            node,
            authority_of,
            validity: Validity {
                from: time(&validity.not_before),
                until: time(&validity.not_after),
            },
            serial: parsed.raw_serial_as_string(),
            public_key: parsed.public_key().raw.to_vec(),
            key_point: parsed.public_key().subject_public_key.data.to_vec(),
            issuer: parsed.issuer().as_raw().to_vec(),
            subject: parsed.subject().as_raw().to_vec(),
            der: CertificateDer::from(der.to_vec()),
        })
    }

    /// Reads the certificates of a text (PEM); other blocks aren't allowed. At most `most`.
    ///
    /// # Errors
    /// `Corrupt` if something else is there, or nothing, or too many.
    pub fn all_from_pem(text: &str, most: usize) -> Result<Vec<Self>> {
        let blocks = pem_blocks(text, most)?;
        let certificate = |block: &pem::Pem| {
            if block.tag() != PEM_TAG {
                let text = format!("it has a block \"{}\" among its certificates", block.tag());
                return Err(Error::new(ErrorKind::Corrupt, text));
            }
            Self::from_der(block.contents())
        };
        blocks.iter().map(certificate).collect()
    }

    /// As text (PEM).
    #[must_use]
    pub fn to_pem(&self) -> String {
        to_pem(PEM_TAG, self.der.to_vec())
    }

    /// Its bytes.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    pub(crate) fn rustls(&self) -> CertificateDer<'static> {
        self.der.clone()
    }

    /// The node whose it is.
    #[must_use]
    pub fn node(&self) -> Option<NodeName> {
        self.node
    }

    /// The cluster whose authority's it is.
    #[must_use]
    pub fn authority_of(&self) -> Option<u128> {
        self.authority_of
    }

    /// From when to when it counts.
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// Its serial number in hexadecimal.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// Its fingerprint.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let hash = digest(&SHA256, &self.der);
        Fingerprint(hash.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// Whether it says that this authority issued it; whether that is true isn't judged here. No two authorities have
    /// the same name: each has random digits in it.
    #[must_use]
    pub fn names_as_issuer(&self, authority: &Self) -> bool {
        authority.authority_of.is_some() && self.issuer == authority.subject
    }

    /// The public key that it vouches for (DER).
    pub(crate) fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    /// The same, as a point of its curve.
    pub(crate) fn key_point(&self) -> &[u8] {
        &self.key_point
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node {
            Some(name) => write!(f, "Certificate({name}, serial {})", self.serial),
            None => write!(f, "Certificate(authority {})", self.fingerprint()),
        }
    }
}

/// The only node's name among the names of a certificate.
fn node_of(parsed: &X509Certificate<'_>) -> Result<Option<NodeName>> {
    let wrong = |why: &str| Error::new(ErrorKind::Corrupt, why);
    let names = parsed
        .subject_alternative_name()
        .map_err(|_| wrong("its alternative names can't be read"))?;
    let mut found = None;
    for name in names.iter().flat_map(|names| &names.value.general_names) {
        let GeneralName::DNSName(name) = name else {
            continue;
        };
        if name.rsplit('.').next() != Some(DOMAIN) {
            continue;
        }
        let name = name.parse::<NodeName>();
        let name = name.map_err(|_| wrong("a name in it is no node's"))?;
        if found.replace(name).is_some() {
            return Err(wrong("it names several nodes"));
        }
    }
    Ok(found)
}

/// The cluster in an authority's subject.
fn cluster_of(parsed: &X509Certificate<'_>) -> Option<u128> {
    let text = parsed.subject().iter_organization().next()?.as_str().ok()?;
    let cluster = u128::from_str_radix(text, 16).ok()?;
    (format!("{cluster:032x}") == text).then_some(cluster)
}

/// Most bytes of a text with keys or certificates.
const PEM_BYTES_MAX: usize = 64 * 1024;

/// The blocks of a text: one at least, at most `most`.
pub(crate) fn pem_blocks(text: &str, most: usize) -> Result<Vec<pem::Pem>> {
    let wrong = |why: String| Error::new(ErrorKind::Corrupt, why);
    if text.len() > PEM_BYTES_MAX {
        return Err(wrong(format!("it has more than {PEM_BYTES_MAX} bytes")));
    }
    // The parser's own words could repeat parts of a key.
    let blocks = pem::parse_many(text).map_err(|_| wrong("it isn't PEM".into()))?;
    if blocks.is_empty() || blocks.len() > most {
        let count = blocks.len();
        return Err(wrong(format!(
            "it has {count} blocks of PEM, 1 to {most} are expected"
        )));
    }
    Ok(blocks)
}

pub(crate) fn to_pem(tag: &str, bytes: Vec<u8>) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(tag, bytes), config)
}
