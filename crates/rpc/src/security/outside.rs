//! TLS with servers that aren't Shale but know the cluster's certificates: the cluster's own etcd.

use super::certificate::{Certificate, Fingerprint};
use super::configs::{clock, provider, server_verifier, unusable};
use super::credentials::Credentials;
use super::keys::SigningRequest;
use super::mode::Suites;
use aws_lc_rs::digest::{SHA256, digest};
use model::Result;
use rcgen::PublicKeyData;
use rustls::ClientConfig;
use rustls::version::TLS13;
use std::sync::Arc;
use world::World;

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
