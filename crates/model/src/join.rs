//! What a machine and a cluster say to each other when the machine joins, and a member and the cluster
//! when its certificate is renewed. `docs/protocols/security.md` tells how it is used.

use crate::call::Method;
use crate::{Error, ErrorKind, NodeId, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::net::SocketAddr;

/// A machine asks to join: a [`JoinRequest`], answered with a [`JoinReply`]. The only method of a
/// connection that is opened for joining, and of no other.
pub const JOIN: Method = Method(0x0500);

/// A member asks for a new certificate of its own: a [`RenewRequest`], answered with a [`RenewReply`].
pub const RENEW: Method = Method(0x0501);

/// A member that has the key of the cluster's authority asks for that of the authority which takes its place: an
/// [`AuthorityKeyRequest`], answered with an [`AuthorityKey`], only over a connection that proves who asks.
pub const AUTHORITY_KEY: Method = Method(0x0502);

/// Whether a method is answered only over connections that prove who asks, and that nobody on the way can read.
#[must_use]
pub fn needs_proof(method: Method) -> bool {
    method == AUTHORITY_KEY
}

/// Most bytes of a private key (PEM); those of this build have about 250.
pub const KEY_BYTES_MAX: usize = 4 * 1024;

/// Most bytes of a request for a signature (PKCS #10, DER); those of this build have about 250.
pub const SIGNING_REQUEST_BYTES_MAX: usize = 2 * 1024;

/// Most bytes of a signature (ECDSA, ASN.1); those of this build have about 70.
pub const SIGNATURE_BYTES_MAX: usize = 256;

/// Most bytes of a certificate (DER); those of this build have about 600.
pub const CERTIFICATE_BYTES_MAX: usize = 4 * 1024;

/// Most authorities that are trusted at the same time: the one in use, the next one, and some that
/// are left from rotations that were broken off.
pub const AUTHORITIES_MAX: usize = 4;

/// Most addresses of a node, in a request, a certificate or a token.
pub const ADDRESSES_MAX: usize = 8;

/// Longest name of a machine: Linux allows no longer ones.
pub const HOST_BYTES_MAX: usize = 64;

/// Most bytes of what a machine wishes to be, which only the node's own code understands.
pub const WISHES_BYTES_MAX: usize = 4 * 1024;

/// Most bytes of what the cluster tells a new node besides its certificate.
pub const MORE_BYTES_MAX: usize = 64 * 1024;

/// What whoever wants to join must know; used once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JoinSecret(pub [u8; 16]);

impl fmt::Debug for JoinSecret {
    /// Nothing of it: it must not get into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinSecret")
    }
}

/// A machine's request to join.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The token's secret.
    pub secret: JoinSecret,
    /// The machine's public key, signed with its private one: PKCS #10, DER.
    pub signing_request: Vec<u8>,
    /// Where the node will listen, the best address first.
    pub addresses: Vec<SocketAddr>,
    /// The machine's name.
    pub host: String,
    /// What it wishes to be, as the node's code encodes it.
    pub wishes: Vec<u8>,
}

impl JoinRequest {
    /// Keeps the written maxima.
    ///
    /// # Errors
    /// `InvalidArgument` that names the part which is too large.
    pub fn check(&self) -> Result<()> {
        within(
            "signing request",
            self.signing_request.len(),
            SIGNING_REQUEST_BYTES_MAX,
        )?;
        within("list of addresses", self.addresses.len(), ADDRESSES_MAX)?;
        within("machine's name", self.host.len(), HOST_BYTES_MAX)?;
        within("part with its wishes", self.wishes.len(), WISHES_BYTES_MAX)
    }
}

/// The cluster's answer to a machine that may join.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JoinReply {
    /// The cluster.
    pub cluster: u128,
    /// The number that the machine has as a node, for ever.
    pub node: NodeId,
    /// Its certificate: X.509, DER.
    pub certificate: Vec<u8>,
    /// The authorities whose certificates the cluster trusts: X.509, DER, at most [`AUTHORITIES_MAX`].
    pub authorities: Vec<Vec<u8>>,
    /// What else the node must know, as the node's code encodes it.
    pub more: Vec<u8>,
}

impl JoinReply {
    /// Keeps the written maxima.
    ///
    /// # Errors
    /// `InvalidArgument` that names the part which is too large.
    pub fn check(&self) -> Result<()> {
        check_certificates(&self.certificate, &self.authorities)?;
        within("part for the node", self.more.len(), MORE_BYTES_MAX)
    }
}

/// A member's request for a new certificate. Which node it is, its connection proves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RenewRequest {
    /// The node's public key, which may be a new one, signed with its private one: PKCS #10, DER.
    pub signing_request: Vec<u8>,
    /// The addresses of the node, which the certificate names.
    pub addresses: Vec<IpAddr>,
    /// The certificate that the node has: X.509, DER.
    pub certificate: Vec<u8>,
    /// A signature with that certificate's key: the key in the signing request is to be the node's.
    pub voucher: Vec<u8>,
}

impl RenewRequest {
    /// Keeps the written maxima.
    ///
    /// # Errors
    /// `InvalidArgument` that names the part which is too large.
    pub fn check(&self) -> Result<()> {
        within(
            "signing request",
            self.signing_request.len(),
            SIGNING_REQUEST_BYTES_MAX,
        )?;
        within("list of addresses", self.addresses.len(), ADDRESSES_MAX)?;
        within("certificate", self.certificate.len(), CERTIFICATE_BYTES_MAX)?;
        within("voucher", self.voucher.len(), SIGNATURE_BYTES_MAX)
    }
}

/// The answer to a [`RenewRequest`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RenewReply {
    /// The new certificate: X.509, DER.
    pub certificate: Vec<u8>,
    /// The authorities whose certificates the cluster trusts: X.509, DER, at most [`AUTHORITIES_MAX`].
    pub authorities: Vec<Vec<u8>>,
}

impl RenewReply {
    /// Keeps the written maxima.
    ///
    /// # Errors
    /// `InvalidArgument` that names the part which is too large.
    pub fn check(&self) -> Result<()> {
        check_certificates(&self.certificate, &self.authorities)
    }
}

/// A member's request for the key of an authority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AuthorityKeyRequest {
    /// SHA-256 of the authority's certificate.
    pub authority: [u8; 32],
}

/// The key of an authority. Its certificate is known from coordination.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityKey {
    /// The private key: PKCS #8, PEM.
    pub key: String,
}

impl AuthorityKey {
    /// Keeps the written maxima.
    ///
    /// # Errors
    /// `InvalidArgument` if it is too large.
    pub fn check(&self) -> Result<()> {
        within("key", self.key.len(), KEY_BYTES_MAX)
    }
}

impl fmt::Debug for AuthorityKey {
    /// Nothing of it: it must not get into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthorityKey")
    }
}

fn check_certificates(certificate: &[u8], authorities: &[Vec<u8>]) -> Result<()> {
    within("certificate", certificate.len(), CERTIFICATE_BYTES_MAX)?;
    within("list of authorities", authorities.len(), AUTHORITIES_MAX)?;
    let mut authorities = authorities.iter();
    authorities.try_for_each(|one| within("authority", one.len(), CERTIFICATE_BYTES_MAX))
}

fn within(what: &str, size: usize, most: usize) -> Result<()> {
    if size > most {
        let text = format!("its {what} has {size}, at most {most} are allowed");
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> JoinRequest {
        JoinRequest {
            secret: JoinSecret([0xab; 16]),
            signing_request: vec![1; 300],
            addresses: vec![([10, 0, 0, 1], 7100).into()],
            host: "storage7".into(),
            wishes: vec![2; 10],
        }
    }

    #[test]
    fn a_part_that_is_too_large_is_named() {
        request().check().unwrap();
        let mut large = request();
        large.wishes = vec![0; WISHES_BYTES_MAX + 1];
        let error = large.check().unwrap_err();
        assert!(error.to_string().contains("wishes has 4097"), "{error}");
        let mut large = request();
        large.addresses = vec![large.addresses[0]; ADDRESSES_MAX + 1];
        large.check().unwrap_err();
        let reply = RenewReply {
            certificate: vec![0; 600],
            authorities: vec![vec![0; CERTIFICATE_BYTES_MAX + 1]],
        };
        reply.check().unwrap_err();
    }

    #[test]
    fn garbage_is_no_request() {
        let mut seed = 1_u64;
        for length in 0..2000 {
            let bytes: Vec<u8> = (0..length)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (seed >> 56) as u8
                })
                .collect();
            if let Ok((request, _)) = postcard::take_from_bytes::<JoinRequest>(&bytes) {
                let _ = request.check();
                assert!(request.signing_request.len() <= bytes.len());
            }
            let _ = postcard::take_from_bytes::<JoinReply>(&bytes);
        }
    }

    #[test]
    fn the_secret_is_in_no_log() {
        let text = format!("{:?}", request());
        assert!(!text.contains("171") && !text.contains("ab, ab"), "{text}");
        let key = AuthorityKey {
            key: "secret".into(),
        };
        assert!(!format!("{key:?}").contains("secret"));
        key.check().unwrap();
        let large = AuthorityKey {
            key: "x".repeat(KEY_BYTES_MAX + 1),
        };
        assert!(!large.check().unwrap_err().to_string().contains("xx"));
    }
}
