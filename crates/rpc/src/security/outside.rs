//! TLS with servers that aren't Shale: the cluster's own etcd, which has certificates of the cluster, and one that others run,
//! which has theirs.

use super::certificate::{Certificate, Fingerprint, pem_blocks};
use super::configs::{clock, provider, server_verifier, unusable};
use super::credentials::Credentials;
use super::keys::SigningRequest;
use super::mode::Suites;
use aws_lc_rs::digest::{SHA256, digest};
use model::{Error, ErrorKind, Result};
use rcgen::PublicKeyData;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use std::sync::Arc;
use world::World;

/// Most authorities that a file of an etcd that others run may have.
const AUTHORITIES_OF_OTHERS_MAX: usize = 32;
/// Most certificates from a client's own up to one below its authority.
const CHAIN_MAX: usize = 8;

/// How an etcd that others run is spoken to with TLS 1.3: whom we believe, and what we prove ourselves with if it asks: a
/// certificate and its private key. All are texts (PEM).
///
/// # Errors
/// `InvalidArgument`, which says what can't be read, or that key and certificate don't belong together.
pub fn client_of_others(
    world: &World,
    authorities: &str,
    identity: Option<(&str, &str)>,
) -> Result<Arc<ClientConfig>> {
    let authorities = certificates(authorities, AUTHORITIES_OF_OTHERS_MAX)
        .map_err(|error| error.while_doing("reading the certificates of etcd's authority"))?;
    let builder = ClientConfig::builder_with_details(provider(Suites::ALL), clock(world))
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_webpki_verifier(server_verifier(authorities).map_err(unreadable)?);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let doing = "reading the certificate and key for etcd";
            let chain =
                certificates(certificate, CHAIN_MAX).map_err(|error| error.while_doing(doing))?;
            let key = private_key(key).map_err(|error| error.while_doing(doing))?;
            let built = builder.with_client_auth_cert(chain, key);
            built.map_err(|error| unreadable(unusable(error)).while_doing(doing))?
        }
    };
    Ok(Arc::new(config))
}

fn unreadable(why: impl ToString) -> Error {
    Error::new(ErrorKind::InvalidArgument, why.to_string())
}

fn certificates(text: &str, most: usize) -> Result<Vec<CertificateDer<'static>>> {
    let blocks = pem_blocks(text, most).map_err(unreadable)?;
    let certificate = |block: &pem::Pem| match block.tag() {
        "CERTIFICATE" => Ok(CertificateDer::from(block.contents().to_vec())),
        other => Err(unreadable(format!(
            "it has a block {other:?}; only certificates are expected"
        ))),
    };
    blocks.iter().map(certificate).collect()
}

/// A key as openssl, cfssl and Go write them.
fn private_key(text: &str) -> Result<PrivateKeyDer<'static>> {
    // openssl writes the curve's name before the key.
    let blocks = pem_blocks(text, 2).map_err(unreadable)?;
    let mut keys = blocks.iter().filter_map(|block| {
        let bytes = block.contents().to_vec();
        match block.tag() {
            "PRIVATE KEY" => Some(PrivateKeyDer::Pkcs8(bytes.into())),
            "EC PRIVATE KEY" => Some(PrivateKeyDer::Sec1(bytes.into())),
            "RSA PRIVATE KEY" => Some(PrivateKeyDer::Pkcs1(bytes.into())),
            _ => None,
        }
    });
    keys.next()
        .ok_or_else(|| unreadable("it has no private key without a password"))
}

impl Credentials {
    /// How this node proves itself to the cluster's etcd, and finds out that it is the cluster's: its members have
    /// certificates of nodes, which name their addresses.
    ///
    /// # Errors
    /// `Corrupt` if TLS can't use them.
    pub fn etcd_client(&self, world: &World) -> Result<Arc<ClientConfig>> {
        let authorities = self.authorities().iter().map(Certificate::rustls);
        let config = ClientConfig::builder_with_details(provider(Suites::ALL), clock(world))
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_webpki_verifier(server_verifier(authorities)?)
            .with_client_auth_cert(self.chain(), self.key().rustls())
            .map_err(unusable)?;
        Ok(Arc::new(config))
    }
}

impl SigningRequest {
    /// Names its public key: the same in all requests with that key.
    #[must_use]
    pub fn key_fingerprint(&self) -> Fingerprint {
        let digest = digest(&SHA256, self.public_key().der_bytes());
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Fingerprint(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::{Authority, Holder, PrivateKey};
    use fuzzing::{Memory, ROUNDS, Seen, Source, fuzz, within};
    use model::{NodeId, Timestamp};

    /// An authority's certificate, a certificate of it, and its key.
    fn files() -> [String; 3] {
        // In 2026.
        let now = Timestamp::from_timespec(1_770_000_000, 0);
        let authority = Authority::found(1, now).unwrap();
        let holder = Holder {
            node: NodeId(1),
            addresses: Vec::new(),
            has_localhost: true,
        };
        let own = Credentials::first(&authority, &holder, now).unwrap();
        let trusted = authority.certificate().to_pem();
        [trusted, own.certificate_pem(), own.key_pem()]
    }

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "no tasks: the real world wants a runtime to be there"
    )]
    fn certificates_of_others_are_read_or_refused_with_what_is_wrong() {
        let [trusted, certificate, key] = files();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _context = runtime.enter();
        let world = World::real();
        let client = |authorities: &str, identity| client_of_others(&world, authorities, identity);
        client(&trusted, None).unwrap();
        client(&trusted, Some((&certificate, &key))).unwrap();
        client(&format!("{trusted}{trusted}"), None).unwrap();
        let other = PrivateKey::generate().unwrap().to_pem();
        for (authorities, identity, part) in [
            ("", None, "authority"),
            ("nonsense", None, "authority"),
            (&key[..], None, "only certificates"),
            (
                &trusted[..],
                Some((&key[..], &key[..])),
                "only certificates",
            ),
            (
                &trusted[..],
                Some((&certificate[..], &certificate[..])),
                "no private key",
            ),
            (
                &trusted[..],
                Some((&certificate[..], &other[..])),
                "for etcd",
            ),
        ] {
            let error = client(authorities, identity).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    /// Whoever founds a cluster names the files.
    #[test]
    fn any_changed_file_for_an_etcd_of_others_is_used_or_refused() {
        /// What TLS is configured with, and the texts some times over.
        const TLS: Memory = Memory {
            fixed: 1 << 20,
            per_byte: 128,
        };
        let whole = files();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.unwrap();
        let _context = runtime.enter();
        let (world, used) = (World::real(), Seen::default());
        fuzz!(ROUNDS / 2, |input: &[u8]| {
            let mut source = Source::new(input);
            let mut files = whole.clone();
            let file = &mut files[source.below(3)];
            let changed = source.changed(file.as_bytes());
            *file = String::from_utf8_lossy(&changed).into_owned();
            let [authorities, certificate, key] = &files;
            let bytes = authorities.len() + certificate.len() + key.len();
            let client = within(TLS, bytes, || {
                client_of_others(&world, authorities, Some((&certificate[..], &key[..])))
            });
            match client {
                Ok(_) => used.note(),
                Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}"),
            }
        });
        used.check(1, "changed files are used");
    }
}
