//! An etcd that others run, with TLS: whom its members have certificates of, and what the cluster's nodes prove themselves
//! with. Each node has a copy, in files that only its owner reads; a machine that joins gets them with its certificate.

use super::keys;
use crate::daemon::config::OutsideConfig;
use coordination::etcd::{EtcdEndpoint, EtcdSettings};
use model::{Error, ErrorKind, Result};
use rpc::security::client_of_others;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::Path;
use world::World;

const AUTHORITY: &str = "etcd-authority.pem";
const CERTIFICATE: &str = "etcd-client.pem";
const KEY: &str = "etcd-client.key";
/// Longest file: all three must fit into the answer to a machine that joins.
const FILE_BYTES_MAX: u64 = 16 * 1024;

/// The texts (PEM).
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq)]
pub struct OutsideTls {
    /// Certificates of the authorities that are believed.
    pub authority: String,
    /// Certificate and private key, if etcd asks for them.
    pub identity: Option<(String, String)>,
}

impl OutsideTls {
    /// From files that the user names. They are tried out.
    ///
    /// # Errors
    /// `InvalidArgument`, with what is wrong with which file.
    pub fn from_files(
        world: &World,
        authority: &Path,
        identity: Option<(&Path, &Path)>,
    ) -> Result<Self> {
        let read = Self::read(authority, identity)?;
        read.settings(world, Vec::new(), "", None)?;
        Ok(read)
    }

    /// How etcd is reached with them.
    ///
    /// # Errors
    /// `InvalidArgument`, with what can't be read.
    pub fn settings(
        &self,
        world: &World,
        endpoints: Vec<EtcdEndpoint>,
        prefix: &str,
        cluster: Option<u64>,
    ) -> Result<EtcdSettings> {
        let identity = self.identity.as_ref();
        let identity = identity.map(|(certificate, key)| (&certificate[..], &key[..]));
        Ok(EtcdSettings {
            endpoints,
            prefix: prefix.to_owned(),
            tls: Some(client_of_others(world, &self.authority, identity)?),
            cluster,
        })
    }

    /// Where they are in a node's directory.
    pub fn places(&self, dir: &Path) -> OutsideConfig {
        let place = |name| keys::path(dir, name);
        let identity = self.identity.as_ref();
        OutsideConfig {
            authority: place(AUTHORITY),
            identity: identity.map(|_| (place(CERTIFICATE), place(KEY))),
        }
    }

    /// Stores them in a node's directory.
    ///
    /// # Errors
    /// The system's error.
    pub fn store(&self, dir: &Path) -> Result<()> {
        keys::write(dir, AUTHORITY, &self.authority)?;
        if let Some((certificate, key)) = &self.identity {
            keys::write(dir, CERTIFICATE, certificate)?;
            keys::write(dir, KEY, key)?;
        }
        Ok(())
    }

    /// Those that a node has.
    ///
    /// # Errors
    /// `InvalidArgument`: a file can't be read.
    pub fn load(from: &OutsideConfig) -> Result<Self> {
        let identity = from.identity.as_ref();
        let identity = identity.map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        Self::read(&from.authority, identity)
    }

    fn read(authority: &Path, identity: Option<(&Path, &Path)>) -> Result<Self> {
        let identity = match identity {
            None => None,
            Some((certificate, key)) => Some((text(certificate)?, text(key)?)),
        };
        Ok(Self {
            authority: text(authority)?,
            identity,
        })
    }
}

fn text(path: &Path) -> Result<String> {
    let refused = |why: String| {
        Error::new(ErrorKind::InvalidArgument, why)
            .while_doing(format!("reading {}", path.display()))
    };
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
        .map_err(|error| refused(error.to_string()))?;
    match text.len() as u64 > FILE_BYTES_MAX {
        true => Err(refused(format!(
            "it has more than {FILE_BYTES_MAX} bytes; name a file with only the certificates that are needed"
        ))),
        false => Ok(text),
    }
}
