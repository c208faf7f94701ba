//! Where an etcd is and which part of it is ours.

use model::{Error, ErrorKind, Result};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::{fmt, str::FromStr, sync::Arc};

/// Most endpoints: etcd advises at most seven members.
pub const ENDPOINTS_MAX: usize = 16;
/// Longest prefix of keys in bytes.
pub const PREFIX_BYTES_MAX: usize = 256;

/// How an etcd is reached.
#[derive(Clone)]
pub struct EtcdSettings {
    /// Its members, 1 to [`ENDPOINTS_MAX`], the nearest first: the others are asked when it fails.
    pub endpoints: Vec<EtcdEndpoint>,
    /// What all our keys in it begin with, ends with `/`. Others may use the same etcd with prefixes
    /// that aren't ours and don't begin with it.
    pub prefix: String,
    /// For endpoints with TLS: whom we trust, and our own certificate if the members ask for one.
    pub tls: Option<Arc<ClientConfig>>,
    /// The etcd that they are members of ([`EtcdStatus::cluster`](super::EtcdStatus::cluster)): others are refused.
    /// `None`: whichever answers first.
    pub cluster: Option<u64>,
}

/// Where a member of etcd answers clients. Written `https://host:port`, `http://host:port`, or
/// `host:port`, which is without TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdEndpoint {
    /// A name or an address (IPv6 in brackets).
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether it speaks TLS.
    pub has_tls: bool,
    /// The name or address that its certificate must have; `None`: `host`.
    pub certified_as: Option<String>,
}

impl EtcdEndpoint {
    /// The same endpoint with TLS, whose certificate must have this name or address.
    #[must_use]
    pub fn certified_as(mut self, name: impl Into<String>) -> Self {
        self.has_tls = true;
        self.certified_as = Some(name.into());
        self
    }

    /// Its host and port.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// What its certificate must have.
    pub(super) fn server_name(&self) -> Result<ServerName<'static>> {
        let name = self.certified_as.as_deref().unwrap_or(&self.host);
        let plain = name.trim_start_matches('[').trim_end_matches(']');
        ServerName::try_from(plain.to_owned())
            .map_err(|_| refused(format!("{name:?} can't be the name in a certificate")))
    }
}

impl FromStr for EtcdEndpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            refused(format!(
                "{text:?} isn't an etcd endpoint; write https://host:port or http://host:port"
            ))
        };
        let (has_tls, authority) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            Some(_) => return Err(wrong()),
            None => (false, text),
        };
        let (host, port) = authority.rsplit_once(':').ok_or_else(wrong)?;
        let is_bracketed = host.starts_with('[') && host.ends_with(']');
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
        let is_address = |letter: char| letter.is_ascii_hexdigit() || ":.".contains(letter);
        let is_host = match is_bracketed {
            true => host[1..host.len() - 1].chars().all(is_address),
            false => !host.is_empty() && host.chars().all(is_plain),
        };
        let port = port.parse().ok().filter(|port| *port != 0);
        let Some(port) = port.filter(|_| is_host) else {
            return Err(wrong());
        };
        Ok(Self {
            host: host.to_owned(),
            port,
            has_tls,
            certified_as: None,
        })
    }
}

impl fmt::Display for EtcdEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.has_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

impl fmt::Debug for EtcdSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the certificate and its key.
        f.debug_struct("EtcdSettings")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("tls", &self.tls.is_some())
            .field("cluster", &self.cluster)
            .finish()
    }
}

impl EtcdSettings {
    pub(super) fn check(&self) -> Result<()> {
        if self.endpoints.is_empty() || self.endpoints.len() > ENDPOINTS_MAX {
            let count = self.endpoints.len();
            let text = format!("{count} endpoints of etcd are given; 1 to {ENDPOINTS_MAX} can be");
            return Err(refused(text));
        }
        let prefix = &self.prefix;
        if !prefix.ends_with('/') || prefix.len() > PREFIX_BYTES_MAX {
            return Err(refused(format!(
                "the prefix of keys {prefix:?} doesn't end with / or is longer than \
                 {PREFIX_BYTES_MAX} bytes"
            )));
        }
        for endpoint in &self.endpoints {
            if endpoint.has_tls {
                endpoint.server_name()?;
                if self.tls.is_none() {
                    let text = format!("{endpoint} needs certificates, and none are given");
                    return Err(refused(text));
                }
            }
        }
        Ok(())
    }
}

fn refused(text: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_people_write_them() {
        for (text, host, port, has_tls) in [
            ("10.0.0.1:2379", "10.0.0.1", 2379, false),
            ("http://etcd-1.site:1", "etcd-1.site", 1, false),
            ("https://[fd00::1]:2379", "[fd00::1]", 2379, true),
        ] {
            let endpoint: EtcdEndpoint = text.parse().unwrap();
            assert_eq!((&endpoint.host[..], endpoint.port), (host, port));
            assert_eq!(endpoint.has_tls, has_tls);
            assert!(endpoint.to_string().ends_with(text));
        }
        for text in [
            "",
            "host",
            ":1",
            "host:",
            "host:0",
            "host:65536",
            "ftp://host:1",
            "http://user@host:1",
            "http://host:1/path",
            "http://host\r\nX: y:1",
            "[::1]x:1",
            "[]x]:1",
        ] {
            let refused = text.parse::<EtcdEndpoint>().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{text:?}");
        }
    }

    #[test]
    fn settings_that_can_not_work_are_refused() {
        let settings = |endpoints: &[&str], prefix: &str| EtcdSettings {
            endpoints: endpoints.iter().map(|it| it.parse().unwrap()).collect(),
            prefix: prefix.to_owned(),
            tls: None,
            cluster: None,
        };
        settings(&["a:1", "b:1"], "/shale/1/").check().unwrap();
        let long = format!("{}/", "p".repeat(PREFIX_BYTES_MAX));
        for wrong in [
            settings(&[], "/shale/1/"),
            settings(&["a:1"; ENDPOINTS_MAX + 1], "/shale/1/"),
            settings(&["a:1"], ""),
            settings(&["a:1"], "/shale"),
            settings(&["a:1"], &long),
            settings(&["https://a:1"], "/shale/1/"),
        ] {
            let refused = wrong.check().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{wrong:?}");
        }
        let endpoint = "a:1".parse::<EtcdEndpoint>().unwrap();
        let endpoint = endpoint.certified_as("node 1");
        endpoint.server_name().unwrap_err();
    }
}
