//! A private key, which never leaves its node, and the request to have its public half certified.

use super::certificate::{pem_blocks, to_pem};
use aws_lc_rs::digest::{SHA256, digest};
use model::join::SIGNING_REQUEST_BYTES_MAX;
use model::{Error, ErrorKind, Result};
use rcgen::{
    CertificateParams, CertificateSigningRequestParams, KeyPair, PKCS_ECDSA_P256_SHA256,
    PublicKeyData, SigningKey,
};
use rustls::pki_types::{CertificateSigningRequestDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::fmt;
use std::sync::Arc;

/// What a key's block is called in PEM.
const PEM_TAG: &str = "PRIVATE KEY";

/// Bytes of a point on P-256, uncompressed, behind its first byte 4.
const POINT_BYTES: usize = 65;

/// A private key: ECDSA on P-256. Cheap to clone.
#[derive(Clone)]
pub struct PrivateKey {
    pair: Arc<KeyPair>,
}

impl PrivateKey {
    /// A new one, from the system's random numbers.
    ///
    /// # Errors
    /// `Unavailable` if the system gives none.
    pub fn generate() -> Result<Self> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|error| {
            let text = format!("no key could be made: {error}");
            Error::new(ErrorKind::Unavailable, text)
        })?;
        Ok(Self {
            pair: Arc::new(pair),
        })
    }

    /// From text (PEM, PKCS #8).
    ///
    /// # Errors
    /// `Corrupt` if it is no such key. The text isn't repeated.
    pub fn from_pem(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::new(ErrorKind::Corrupt, why);
        let blocks = pem_blocks(text, 1)?;
        let block = &blocks[0];
        if block.tag() != PEM_TAG {
            return Err(wrong("it is no private key"));
        }
        let der = PrivatePkcs8KeyDer::from(block.contents());
        let pair = KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256)
            .map_err(|_| wrong("it is no private key for ECDSA on P-256"))?;
        Ok(Self {
            pair: Arc::new(pair),
        })
    }

    /// As text (PEM, PKCS #8). Whoever stores it must keep it from everybody but root.
    #[must_use]
    pub fn to_pem(&self) -> String {
        to_pem(PEM_TAG, self.pair.serialize_der())
    }

    /// Asks an authority to certify the public half: PKCS #10, DER.
    ///
    /// # Errors
    /// `Unavailable` if the system gives no random numbers.
    pub fn signing_request(&self) -> Result<Vec<u8>> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let request = params.serialize_request(&*self.pair).map_err(|error| {
            let text = format!("the request for a certificate couldn't be signed: {error}");
            Error::new(ErrorKind::Unavailable, text)
        })?;
        Ok(request.der().to_vec())
    }

    /// SHA-256 of the public key, as [`SigningRequest::key_hash`] of its requests.
    #[must_use]
    pub fn key_hash(&self) -> [u8; 32] {
        let hash = digest(&SHA256, self.pair.der_bytes());
        hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// Signs: ECDSA with SHA-256, ASN.1.
    ///
    /// # Errors
    /// `Unavailable` if the system gives no random numbers.
    pub(crate) fn sign(&self, message: &[u8]) -> Result<Vec<u8>> {
        self.pair.sign(message).map_err(|error| {
            let text = format!("nothing could be signed with the node's key: {error}");
            Error::new(ErrorKind::Unavailable, text)
        })
    }

    /// Whether a certificate is for this key.
    pub(crate) fn is_of(&self, public_key: &[u8]) -> bool {
        self.pair.subject_public_key_info() == public_key
    }

    pub(crate) fn pair(&self) -> &KeyPair {
        &self.pair
    }

    pub(crate) fn rustls(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.pair.serialize_der()).into()
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey")
    }
}

/// A public key whose owner has shown that it has the private one.
pub struct SigningRequest {
    request: CertificateSigningRequestParams,
}

impl SigningRequest {
    /// Reads a request for a signature (PKCS #10, DER) and checks that it is signed with its own key.
    ///
    /// # Errors
    /// `InvalidArgument` if it isn't, or its key is none for ECDSA on P-256.
    pub fn from_der(der: &[u8]) -> Result<Self> {
        let wrong = |why: &str| {
            let error = Error::new(ErrorKind::InvalidArgument, why);
            error.while_doing("reading a request for a certificate")
        };
        if der.len() > SIGNING_REQUEST_BYTES_MAX {
            return Err(wrong("it is too large"));
        }
        let der = CertificateSigningRequestDer::from(der);
        let request = CertificateSigningRequestParams::from_der(&der)
            .map_err(|error| wrong(&error.to_string()))?;
        let key = &request.public_key;
        let is_ours = *key.algorithm() == PKCS_ECDSA_P256_SHA256
            && key.der_bytes().len() == POINT_BYTES
            && key.der_bytes()[0] == 4;
        if !is_ours {
            return Err(wrong("its key isn't one for ECDSA on P-256"));
        }
        Ok(Self { request })
    }

    /// SHA-256 of the public key. Requests with the same key are the same machine's, though each is
    /// signed anew and has other bytes.
    #[must_use]
    pub fn key_hash(&self) -> [u8; 32] {
        let hash = digest(&SHA256, self.request.public_key.der_bytes());
        hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    pub(crate) fn public_key(&self) -> &impl PublicKeyData {
        &self.request.public_key
    }
}

/// What a key pair signs with, for whoever makes certificates.
pub(crate) fn signer(key: &PrivateKey) -> &impl SigningKey {
    key.pair()
}
