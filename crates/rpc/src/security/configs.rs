//! What TLS must do for each kind of connection: version 1.3, certificates of both sides, no
//! resumption, no early data.
//!
//! No session is ever resumed: each connection proves both sides anew, so that replaced certificates
//! and authorities count from the next connection on.

use super::certificate::Certificate;
use super::credentials::Credentials;
use super::mode::{Mode, Policy, Suite, Suites};
use super::names::NodeName;
use model::{Error, ErrorKind, Result};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::sync::Arc;
use std::time::Duration;
use world::World;

/// What a connection is for. TLS agrees on it (ALPN), so nobody on the way can change it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Frames of nodes, of which payloads can be read on the way.
    AuthOnly,
    /// Frames of nodes, wholly encrypted.
    Encrypted,
    /// A machine joins: it has no certificate yet.
    Join,
}

impl Purpose {
    const ALL: [Purpose; 3] = [Purpose::AuthOnly, Purpose::Encrypted, Purpose::Join];

    /// Its names in TLS, the best first.
    pub(crate) fn protocols(self) -> &'static [&'static [u8]] {
        match self {
            Self::AuthOnly => &[b"shale-authonly/1"],
            Self::Encrypted => &[b"shale/2", INSIDE_TLS],
            Self::Join => &[b"shale-join/1"],
        }
    }

    /// The first of the names that is one of ours.
    pub(crate) fn of<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let mut names = names.into_iter();
        names.find_map(|name| {
            let mut all = Self::ALL.into_iter();
            all.find(|one| one.protocols().contains(&name))
        })
    }

    fn alpn(self) -> Vec<Vec<u8>> {
        self.protocols().iter().map(|name| name.to_vec()).collect()
    }
}

/// The name of encrypted connections whose frames go inside TLS: builds before the one that seals them know no other.
pub(crate) const INSIDE_TLS: &[u8] = b"shale/1";

/// TLS's clock is the world's.
#[derive(Debug)]
struct Clock(World);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.wall().seconds()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

/// The configurations of a node.
pub(crate) struct Configs {
    /// The node, and its cluster.
    pub(crate) name: NodeName,
    /// Whose certificates are taken.
    pub(crate) authorities: Vec<Certificate>,
    /// For the connections that it opens, unless they aren't protected.
    pub(crate) client: Option<(Purpose, Arc<ClientConfig>)>,
    auth_only: Option<Arc<ServerConfig>>,
    encrypted: Option<Arc<ServerConfig>>,
    join: Arc<ServerConfig>,
}

impl Configs {
    pub(crate) fn new(world: &World, policy: &Policy, credentials: &Credentials) -> Result<Self> {
        let client = |purpose, suites| -> Result<_> {
            Ok(Some((
                purpose,
                Arc::new(client(world, credentials, purpose, suites)?),
            )))
        };
        let server = |purpose, suites| -> Result<_> {
            Ok(Arc::new(server(world, credentials, purpose, suites)?))
        };
        let takes_auth_only = policy.takes().any(|mode| mode == Mode::AuthOnly);
        Ok(Self {
            name: credentials.name(),
            authorities: credentials.authorities().to_vec(),
            client: match policy.opens() {
                Mode::Off => None,
                Mode::AuthOnly => client(Purpose::AuthOnly, Suites::ALL)?,
                Mode::Encrypted(suites) => client(Purpose::Encrypted, suites)?,
            },
            auth_only: takes_auth_only
                .then(|| server(Purpose::AuthOnly, Suites::ALL))
                .transpose()?,
            encrypted: policy
                .takes_encrypted()
                .map(|suites| server(Purpose::Encrypted, suites))
                .transpose()?,
            join: server(Purpose::Join, Suites::ALL)?,
        })
    }

    /// For connections of this purpose that others open, if they are taken.
    pub(crate) fn server(&self, purpose: Purpose) -> Option<&Arc<ServerConfig>> {
        match purpose {
            Purpose::AuthOnly => self.auth_only.as_ref(),
            Purpose::Encrypted => self.encrypted.as_ref(),
            Purpose::Join => Some(&self.join),
        }
    }

    /// Refuses connections of another purpose in TLS's own words.
    pub(crate) fn refusing(&self, purpose: Option<Purpose>) -> &Arc<ServerConfig> {
        let nodes = self.auth_only.as_ref().or(self.encrypted.as_ref());
        match (purpose, nodes) {
            (Some(Purpose::Join), Some(nodes)) => nodes,
            _ => &self.join,
        }
    }
}

/// The cryptography, with these suites only.
pub(crate) fn provider(suites: Suites) -> Arc<CryptoProvider> {
    let suite = |suite| match suite {
        Suite::Aes128Gcm => aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
        Suite::Aes256Gcm => aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
        Suite::ChaCha20Poly1305 => aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    };
    Arc::new(CryptoProvider {
        cipher_suites: suites.iter().map(suite).collect(),
        // The first one resists whoever records today and has a quantum computer later.
        kx_groups: vec![
            aws_lc_rs::kx_group::X25519MLKEM768,
            aws_lc_rs::kx_group::X25519,
        ],
        ..aws_lc_rs::default_provider()
    })
}

/// How TLS spells a node's name.
pub(crate) fn server_name(name: NodeName) -> ServerName<'static> {
    let name = ServerName::try_from(name.to_string());
    name.expect("a node's name has the letters and lengths of a domain's")
}

/// Takes certificates of servers that one of these authorities issued.
pub(crate) fn server_verifier<'a>(
    authorities: impl IntoIterator<Item = CertificateDer<'a>>,
) -> Result<Arc<WebPkiServerVerifier>> {
    let roots = Arc::new(roots(authorities)?);
    WebPkiServerVerifier::builder_with_provider(roots, provider(Suites::ALL))
        .build()
        .map_err(unusable)
}

fn roots<'a>(authorities: impl IntoIterator<Item = CertificateDer<'a>>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.into_owned()).map_err(unusable)?;
    }
    Ok(roots)
}

fn client(
    world: &World,
    credentials: &Credentials,
    purpose: Purpose,
    suites: Suites,
) -> Result<ClientConfig> {
    let authorities = credentials.authorities().iter();
    let authorities = roots(authorities.map(|authority| authority.rustls()))?;
    let config = ClientConfig::builder_with_details(provider(suites), clock(world))
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_root_certificates(authorities)
        .with_client_auth_cert(credentials.chain(), credentials.key().rustls())
        .map_err(unusable)?;
    Ok(finished_client(config, purpose))
}

/// What all configurations of clients have.
pub(crate) fn finished_client(mut config: ClientConfig, purpose: Purpose) -> ClientConfig {
    config.alpn_protocols = purpose.alpn();
    config.resumption = Resumption::disabled();
    // The name is checked, but nobody on the way needs to read it.
    config.enable_sni = false;
    config
}

/// The clock and cryptography for a client that has no certificate.
pub(crate) fn clock(world: &World) -> Arc<dyn TimeProvider> {
    Arc::new(Clock(world.clone()))
}

fn server(
    world: &World,
    credentials: &Credentials,
    purpose: Purpose,
    suites: Suites,
) -> Result<ServerConfig> {
    let builder = ServerConfig::builder_with_details(provider(suites), clock(world))
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?;
    let config = if purpose == Purpose::Join {
        builder
            .with_no_client_auth()
            .with_single_cert(credentials.full_chain(), credentials.key().rustls())
    } else {
        let authorities = credentials.authorities().iter();
        let authorities = Arc::new(roots(authorities.map(|authority| authority.rustls()))?);
        let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider(suites))
            .build()
            .map_err(unusable)?;
        builder
            .with_client_cert_verifier(verifier)
            .with_single_cert(credentials.chain(), credentials.key().rustls())
    };
    let mut config = config.map_err(unusable)?;
    config.alpn_protocols = purpose.alpn();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

pub(crate) fn unusable(error: impl std::fmt::Display) -> Error {
    let text = format!("TLS can't use the node's key and certificates: {error}");
    Error::new(ErrorKind::Corrupt, text)
}
