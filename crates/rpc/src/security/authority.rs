//! The cluster's own certificate authority: a key, and a certificate that is signed with it.

use super::certificate::{Certificate, Validity};
use super::keys::{PrivateKey, SigningRequest, signer};
use super::names::NodeName;
use model::join::ADDRESSES_MAX;
use model::{Error, ErrorKind, NodeId, Result, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyUsagePurpose, SanType, SerialNumber, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use std::net::IpAddr;
use std::net::Ipv4Addr;
use std::net::Ipv6Addr;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long an authority's certificate counts: longer than the machines of a cluster live. If it ended
/// unnoticed, no node could reach another one; a key that leaked is replaced by a rotation, which
/// needs no end.
pub const AUTHORITY_LIFE: Duration = DAY.saturating_mul(20 * 365);

/// How long a node's certificate counts. A node renews it when a third is left, so that a node which
/// was off for half a year still comes back by itself; a key that leaked and wasn't noticed is of no
/// use after two years.
pub const NODE_LIFE: Duration = DAY.saturating_mul(2 * 365);

/// How long before it is made a certificate counts already: clocks of a cluster may differ by hours,
/// for example by a time zone.
const CLOCKS_DIFFER_MAX: Duration = DAY;

/// 2025-01-01 UTC, before Shale had certificates. A clock that is before it was never set.
const CLOCK_MIN: Timestamp = Timestamp(1_735_689_600_000_000_000);

/// What certificates of members of the cluster's own etcd are called, and those of nodes never are: members take no others
/// for each other's.
pub const ETCD_MEMBER: &str = "Shale member of etcd";

/// Bytes of a serial number. RFC 5280 allows 20, and 64 random bits are held to be enough.
const SERIAL_BYTES: usize = 16;

/// The node that a certificate is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The node.
    pub node: NodeId,
    /// Its addresses, which peers of etcd check: at most [`ADDRESSES_MAX`].
    pub addresses: Vec<IpAddr>,
    /// The certificate is for `localhost`, 127.0.0.1 and ::1, too: a quorum node's own etcd is asked
    /// there.
    pub has_localhost: bool,
}

/// The authority of a cluster. Only quorum nodes have it.
#[derive(Debug)]
pub struct Authority {
    key: PrivateKey,
    certificate: Certificate,
    cluster: u128,
}

impl Authority {
    /// A new one, with a new key.
    ///
    /// # Errors
    /// `Unavailable` if the system gives no random numbers, or its clock was never set.
    pub fn found(cluster: u128, now: Timestamp) -> Result<Self> {
        Self::found_for(
            cluster,
            Validity::around(now, CLOCKS_DIFFER_MAX, AUTHORITY_LIFE),
            now,
        )
        .map_err(|error| error.while_doing("making the cluster's certificate authority"))
    }

    fn found_for(cluster: u128, validity: Validity, now: Timestamp) -> Result<Self> {
        check_clock(now)?;
        let key = PrivateKey::generate()?;
        let mut params = params(validity)?;
        let name = u32::from_be_bytes(random()?);
        params
            .distinguished_name
            .push(DnType::OrganizationName, format!("{cluster:032x}"));
        params
            .distinguished_name
            .push(DnType::CommonName, format!("Shale authority {name:08x}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(signer(&key)).map_err(unsigned)?;
        Ok(Self {
            certificate: Certificate::from_der(certificate.der())?,
            key,
            cluster,
        })
    }

    /// From texts (PEM): the key, and the certificate.
    ///
    /// # Errors
    /// `Corrupt` if they are no authority's, or don't belong together.
    pub fn from_pem(key: &str, certificate: &str) -> Result<Self> {
        let reading =
            |error: Error| error.while_doing("reading the cluster's certificate authority");
        let key = PrivateKey::from_pem(key).map_err(reading)?;
        let mut all = Certificate::all_from_pem(certificate, 1).map_err(reading)?;
        let certificate = all.remove(0);
        let Some(cluster) = certificate.authority_of() else {
            let error = Error::new(ErrorKind::Corrupt, "the certificate is no authority's");
            return Err(reading(error));
        };
        if !key.is_of(certificate.public_key()) {
            let text = "key and certificate don't belong together";
            return Err(reading(Error::new(ErrorKind::Corrupt, text)));
        }
        Ok(Self {
            key,
            certificate,
            cluster,
        })
    }

    /// Its key as text (PEM). Whoever stores it must keep it from everybody but root.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.key.to_pem()
    }

    /// Its certificate, which all nodes trust.
    #[must_use]
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> u128 {
        self.cluster
    }

    /// Certifies that a node has a key. Whether it should is the caller's to judge.
    ///
    /// # Errors
    /// `InvalidArgument` if the holder has too many addresses; `Unavailable` if this machine's clock
    /// was never set, or the authority's own certificate doesn't count now.
    pub fn issue(
        &self,
        request: &SigningRequest,
        holder: &Holder,
        now: Timestamp,
    ) -> Result<Certificate> {
        let validity = node_validity(now)?;
        self.issue_for(request, holder, validity)
    }

    /// Certifies that a node's member of the cluster's own etcd has a key: good where members speak to each other, which
    /// certificates of nodes aren't.
    ///
    /// # Errors
    /// As of [`Authority::issue`].
    pub fn issue_for_etcd(
        &self,
        request: &SigningRequest,
        holder: &Holder,
        now: Timestamp,
    ) -> Result<Certificate> {
        let validity = node_validity(now)?;
        let doing = || format!("issuing a certificate for the etcd of node {}", holder.node);
        self.signed(ETCD_MEMBER, request, holder, validity)
            .map_err(|error| error.while_doing(doing()))
    }

    /// As [`Authority::issue`], but counts in this time, as far as the authority's own certificate does.
    ///
    /// # Errors
    /// As of [`Authority::issue`].
    pub fn issue_for(
        &self,
        request: &SigningRequest,
        holder: &Holder,
        validity: Validity,
    ) -> Result<Certificate> {
        let issuing = |error: Error| {
            error.while_doing(format!("issuing a certificate for node {}", holder.node))
        };
        let name = format!("Shale node {}", holder.node);
        self.signed(&name, request, holder, validity)
            .map_err(issuing)
    }

    fn signed(
        &self,
        common_name: &str,
        request: &SigningRequest,
        holder: &Holder,
        validity: Validity,
    ) -> Result<Certificate> {
        if holder.addresses.len() > ADDRESSES_MAX {
            let text = format!("it has more than {ADDRESSES_MAX} addresses");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let own = self.certificate.validity();
        let validity = Validity {
            from: validity.from,
            until: validity.until.min(own.until),
        };
        if validity.from >= validity.until {
            let text = "the authority's own certificate has ended; rotate the authority";
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        let name = NodeName {
            node: holder.node,
            cluster: self.cluster,
        };
        let mut params = params(validity)?;
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let mut names = vec![name.to_string()];
        let mut addresses = holder.addresses.clone();
        if holder.has_localhost {
            names.push("localhost".into());
            addresses.extend([
                IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V6(Ipv6Addr::LOCALHOST),
            ]);
        }
        for name in names {
            let name = name.try_into().map_err(unsigned)?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        for address in addresses {
            params.subject_alt_names.push(SanType::IpAddress(address));
        }
        let certificate = CertificateDer::from(self.certificate.der());
        let issuer = Issuer::from_ca_cert_der(&certificate, signer(&self.key)).map_err(unsigned)?;
        let signed = params
            .signed_by(request.public_key(), &issuer)
            .map_err(unsigned)?;
        Certificate::from_der(signed.der())
    }
}

/// What all certificates have.
fn params(validity: Validity) -> Result<CertificateParams> {
    let time = |time: Timestamp| {
        let seconds = u64::try_from(time.seconds()).unwrap_or(0);
        date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    let mut serial = random::<SERIAL_BYTES>()?;
    // A serial number is positive and has no zeros in front.
    serial[0] = serial[0] & 0x7f | 0x40;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.not_before = time(validity.from);
    params.not_after = time(validity.until);
    Ok(params)
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| Error::new(ErrorKind::Unavailable, "the system gives no random numbers"))?;
    Ok(bytes)
}

/// When a node's certificate counts that is issued now.
fn node_validity(now: Timestamp) -> Result<Validity> {
    check_clock(now)?;
    Ok(Validity::around(now, CLOCKS_DIFFER_MAX, NODE_LIFE))
}

fn check_clock(now: Timestamp) -> Result<()> {
    if now < CLOCK_MIN {
        let text = format!(
            "this machine's clock says that it is {} days after 1970; set it first",
            now.seconds() / DAY.as_secs() as i64
        );
        return Err(Error::new(ErrorKind::Unavailable, text));
    }
    Ok(())
}

fn unsigned(error: rcgen::Error) -> Error {
    let text = format!("the certificate couldn't be signed: {error}");
    Error::new(ErrorKind::Unavailable, text)
}

#[cfg(test)]
mod tests;
