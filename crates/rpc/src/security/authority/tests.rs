//! What an authority issues says what it should, and can be written and read.

use super::super::Credentials;
use super::*;
use proptest::prelude::*;

const CLUSTER: u128 = 0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f;

fn at(days: i64) -> Timestamp {
    Timestamp::from_timespec(1_800_000_000 + days * DAY.as_secs() as i64, 0)
}

fn holder(node: u32) -> Holder {
    Holder {
        node: NodeId(node),
        addresses: vec![
            [10, 0, 0, node as u8].into(),
            "2001:db8::1".parse().unwrap(),
        ],
        has_localhost: true,
    }
}

fn request() -> (PrivateKey, SigningRequest) {
    let key = PrivateKey::generate().unwrap();
    let request = SigningRequest::from_der(&key.signing_request().unwrap()).unwrap();
    (key, request)
}

#[test]
fn a_certificate_says_whose_it_is_and_until_when() {
    let authority = Authority::found(CLUSTER, at(0)).unwrap();
    let (key, request) = request();
    let certificate = authority.issue(&request, &holder(3), at(0)).unwrap();
    let name = certificate.node().unwrap();
    assert_eq!(
        name.to_string(),
        "n3.000102030405060708090a0b0c0d0e0f.shale"
    );
    assert_eq!(certificate.authority_of(), None);
    assert!(key.is_of(certificate.public_key()));
    let validity = certificate.validity();
    assert_eq!(validity.from, at(-1));
    assert_eq!(validity.until, at(2 * 365));
    let own = authority.certificate().validity();
    assert_eq!(own.until, at(20 * 365));
    let again = authority.issue(&request, &holder(3), at(0)).unwrap();
    assert_ne!(again.serial(), certificate.serial());

    let der = certificate.der();
    let (_, parsed) = x509_parser::parse_x509_certificate(der).unwrap();
    let usage = parsed.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.server_auth && usage.client_auth && !usage.any);
    assert!(!parsed.is_ca());
    let names = parsed.subject_alternative_name().unwrap().unwrap().value;
    let names: Vec<String> = names
        .general_names
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(names.len(), 6, "{names:?}");
    assert!(
        names.iter().any(|name| name.contains("localhost")),
        "{names:?}"
    );
}

/// Would be broken if etcd took a node for one of its members.
#[test]
fn only_members_of_etcd_are_called_so() {
    let authority = Authority::found(CLUSTER, at(0)).unwrap();
    let (_, request) = request();
    let name_of = |certificate: &Certificate| {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate.der()).unwrap();
        let mut names = parsed.subject().iter_common_name();
        let name = names.next().unwrap().as_str().unwrap().to_owned();
        assert!(names.next().is_none());
        name
    };
    let member = authority
        .issue_for_etcd(&request, &holder(3), at(0))
        .unwrap();
    assert_eq!(name_of(&member), ETCD_MEMBER);
    assert_eq!(
        member.node(),
        authority.issue(&request, &holder(3), at(0)).unwrap().node()
    );
    for node in [0, 1, u32::MAX] {
        let other = authority.issue(&request, &holder(node), at(0)).unwrap();
        assert_eq!(name_of(&other), format!("Shale node {node}"));
    }
}

#[test]
fn a_node_renews_when_a_third_is_left() {
    let authority = Authority::found(CLUSTER, at(0)).unwrap();
    let credentials = Credentials::first(&authority, &holder(1), at(0)).unwrap();
    assert!(!credentials.must_renew(at(400)));
    assert!(credentials.must_renew(at(500)));
    let (key, request) = request();
    let new = authority.issue(&request, &holder(1), at(500)).unwrap();
    let authorities = [authority.certificate().der().to_vec()];
    let renewed = credentials
        .renewed(key.clone(), new.der(), &authorities)
        .unwrap();
    assert!(!renewed.must_renew(at(500)));
    let other = authority.issue(&request, &holder(2), at(500)).unwrap();
    let error = credentials
        .renewed(key, other.der(), &authorities)
        .unwrap_err();
    assert!(error.to_string().contains("n2."), "{error}");
}

#[test]
fn a_certificate_ends_with_its_authoritys() {
    let authority = Authority::found(CLUSTER, at(0)).unwrap();
    let (_, request) = request();
    let last = authority
        .issue(&request, &holder(1), at(20 * 365 - 10))
        .unwrap();
    assert_eq!(last.validity().until, at(20 * 365));
    let error = authority
        .issue(&request, &holder(1), at(20 * 365 + 10))
        .unwrap_err();
    assert!(error.to_string().contains("rotate"), "{error}");
}

#[test]
fn a_clock_that_was_never_set_makes_no_certificates() {
    let never = Timestamp::from_timespec(86_400 * 3, 0);
    let error = Authority::found(CLUSTER, never).unwrap_err();
    assert!(error.to_string().contains("3 days after 1970"), "{error}");
}

#[test]
fn what_doesnt_belong_together_is_refused() {
    let authority = Authority::found(CLUSTER, at(0)).unwrap();
    let other = Authority::found(CLUSTER + 1, at(0)).unwrap();
    let credentials = Credentials::first(&authority, &holder(1), at(0)).unwrap();
    let stranger = Credentials::first(&other, &holder(1), at(0)).unwrap();
    let pem = |key: &Credentials, own: &Credentials, authorities: &str| {
        Credentials::from_pem(&key.key_pem(), &own.certificate_pem(), authorities)
    };
    let trusted = credentials.authorities_pem();
    pem(&credentials, &credentials, &trusted).unwrap();
    let error = |result: Result<Credentials>| result.unwrap_err().to_string();
    assert!(error(pem(&stranger, &credentials, &trusted)).contains("another key"));
    let foreign = stranger.authorities_pem();
    assert!(
        error(pem(&credentials, &credentials, &foreign)).contains("no authority of the cluster")
    );
    let node_as_authority = credentials.certificate_pem();
    assert!(pem(&credentials, &credentials, &node_as_authority).is_err());
    let five = trusted.repeat(5);
    assert!(error(pem(&credentials, &credentials, &five)).contains("5 blocks"));
    assert!(credentials.trusting(Vec::new()).is_err());
    let both = [&authority, &Authority::found(CLUSTER, at(1)).unwrap()];
    let both = both
        .map(|authority| authority.certificate().clone())
        .to_vec();
    let rotating = credentials.trusting(both.clone()).unwrap();
    assert_eq!(rotating.authorities(), both);
    assert!(Authority::from_pem(&other.key_pem(), &authority.certificate().to_pem()).is_err());
}

#[test]
fn requests_that_arent_signed_with_their_own_key_are_refused() {
    let mut der = PrivateKey::generate().unwrap().signing_request().unwrap();
    let last = der.len() - 1;
    der[last] ^= 1;
    assert!(SigningRequest::from_der(&der).is_err());
    let curve = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let other = CertificateParams::default()
        .serialize_request(&curve)
        .unwrap();
    assert!(SigningRequest::from_der(other.der()).is_err());
    assert!(SigningRequest::from_der(&vec![0x30; 5000]).is_err());
}

/// An authority that another program made for this cluster's authority to sign, or one of its own.
#[test]
fn certificates_with_other_names_are_no_nodes() {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let read = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).unwrap();
        Certificate::from_der(params.self_signed(&key).unwrap().der())
    };
    let [one, two] = [1, 2].map(|node| {
        NodeName {
            node: NodeId(node),
            cluster: CLUSTER,
        }
        .to_string()
    });
    assert!(read(&[&one, "localhost"]).is_ok());
    for names in [
        &[&one[..], &two][..],
        &["localhost"],
        &["*.shale"],
        &["n1.shale"],
    ] {
        assert!(read(names).is_err(), "{names:?}");
    }
}

#[test]
fn keys_are_in_no_log() {
    let authority = Authority::found(CLUSTER, at(0)).unwrap();
    let credentials = Credentials::first(&authority, &holder(1), at(0)).unwrap();
    let shown = format!("{authority:?} {credentials:?} {:?}", credentials.key());
    assert!(
        shown.len() < 600 && !shown.contains("PRIVATE KEY"),
        "{shown}"
    );
    let broken = credentials
        .key_pem()
        .replace("BEGIN PRIVATE", "BEGIN PRIVAT");
    let middle = broken.lines().nth(1).unwrap();
    let error = PrivateKey::from_pem(&broken).unwrap_err().to_string();
    assert!(!error.contains(middle), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn what_is_written_is_read(node in any::<u32>(), cluster in any::<u128>(), days in 0..1000_i64) {
        let founded = Authority::found(cluster, at(days)).unwrap();
        let certificate = founded.certificate().to_pem();
        let authority = Authority::from_pem(&founded.key_pem(), &certificate).unwrap();
        prop_assert_eq!(authority.cluster(), cluster);
        prop_assert_eq!(authority.certificate(), founded.certificate());
        let holder = Holder { node: NodeId(node), ..holder(1) };
        let credentials = Credentials::first(&authority, &holder, at(days)).unwrap();
        let read = Credentials::from_pem(
            &credentials.key_pem(),
            &credentials.certificate_pem(),
            &credentials.authorities_pem(),
        ).unwrap();
        prop_assert_eq!(read.name(), NodeName { node: NodeId(node), cluster });
        prop_assert_eq!(read.certificate(), credentials.certificate());
        prop_assert_eq!(read.key_pem(), credentials.key_pem());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_no_certificate(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        at in any::<prop::sample::Index>(),
    ) {
        static GOOD: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
            let authority = Authority::found(CLUSTER, Timestamp(CLOCK_MIN.0)).unwrap();
            authority.certificate().der().to_vec()
        });
        prop_assert!(Certificate::from_der(&bytes).is_err());
        // One that was changed in the middle is read or refused.
        let mut changed = GOOD.clone();
        let at = at.index(changed.len());
        for (to, from) in changed[at..].iter_mut().zip(&bytes) {
            *to = *from;
        }
        let _ = Certificate::from_der(&changed);
        let _ = SigningRequest::from_der(&bytes);
        let text = String::from_utf8_lossy(&bytes);
        prop_assert!(Certificate::all_from_pem(&text, 4).is_err());
        prop_assert!(PrivateKey::from_pem(&text).is_err());
    }
}

/// DER and PEM that were changed in a few places: other libraries parse them.
#[test]
fn any_changed_certificate_or_request_is_read_or_refused() {
    use fuzzing::{Memory, ROUNDS, Source, fuzz, within};
    /// Certificates are small; what is parsed of them is copied a few times.
    const CERTIFICATE: Memory = Memory {
        fixed: 256 << 10,
        per_byte: 64,
    };
    let authority = Authority::found(CLUSTER, at(0)).unwrap();
    let (key, request) = request();
    let certificate = authority.issue(&request, &holder(3), at(0)).unwrap();
    let signing_request = key.signing_request().unwrap();
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let whole = [
            certificate.der(),
            authority.certificate().der(),
            &signing_request,
        ];
        let chosen = source.below(3);
        let der = source.changed(whole[chosen]);
        within(CERTIFICATE, der.len(), || {
            if let Ok(read) = Certificate::from_der(&der) {
                assert_eq!(read.der(), der);
                assert!(read.node().is_some() != read.authority_of().is_some());
                let _ = Credentials::new(key.clone(), read.clone(), vec![read]);
            }
            if let Ok(read) = SigningRequest::from_der(&der) {
                // Its signature fits, so its key is the one that made it.
                assert_eq!(read.key_hash(), request.key_hash());
            }
        });
        let pem = [certificate.to_pem(), key.to_pem()];
        let chosen = source.below(2);
        let text = source.changed(pem[chosen].as_bytes());
        let text = String::from_utf8_lossy(&text);
        within(CERTIFICATE, text.len(), || {
            let _ = Certificate::all_from_pem(&text, 4);
            let _ = PrivateKey::from_pem(&text);
        });
    });
}
