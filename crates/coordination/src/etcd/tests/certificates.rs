//! A real etcd that lets nobody in without a certificate.

#![allow(clippy::disallowed_methods, reason = "tests: they write certificates")]

use super::servers::{Servers, in_real_time};
use super::{EtcdCertificates, EtcdSettings};
use crate::{Change, Coordination, News};
use futures::future::join_all;
use model::ErrorKind;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// A certificate with this name, for servers and clients, and its key.
    fn certify(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap(), key)
    }

    /// A client that trusts this authority, with a certificate of its own or without.
    fn client(&self, own: Option<&Authority>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from(self.0.der().to_vec()))
            .unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match own {
            None => config.with_no_client_auth(),
            Some(own) => {
                let (certificate, key) = own.certify("client");
                let chain = vec![certificate.der().clone()];
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }
}

fn written(directory: &Path, name: &str, content: &str) -> std::path::PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

#[test]
fn with_certificates_only_those_of_the_authority_are_let_in_and_believed() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = ours.certify("etcd.cluster-1");
    let files = EtcdCertificates {
        certificate: written(directory.path(), "c", &certificate.pem()),
        key: written(directory.path(), "k", &key.serialize_pem()),
        authority: written(directory.path(), "a", &ours.0.pem()),
        peer: None,
    };
    let servers = Servers::start_secured(files, "etcd.cluster-1", &ours.client(Some(&ours)));
    let settings = servers.settings("/shale/1/");
    in_real_time(async |world| {
        let store = Coordination::etcd(&world, &settings).unwrap();
        let mut watch = store.watch("key", store.list("").await.unwrap().revision);
        let change = Change::put("key", 0, "x");
        let version = store.transaction(vec![change]).await.unwrap();
        let news = watch.next(Duration::from_secs(60)).await;
        assert!(matches!(news, News::Changed { revision, .. } if revision == version));
        let lease = store.grant(Duration::from_secs(5)).await.unwrap().id;
        store.keep_alive(lease).await.unwrap();

        let wrong = |spoil: fn(&mut EtcdSettings)| {
            let mut settings = settings.clone();
            spoil(&mut settings);
            settings
        };
        let with = |tls| EtcdSettings {
            tls: Some(tls),
            ..settings.clone()
        };
        let wrong = [
            with(ours.client(None)),
            with(ours.client(Some(&foreign))),
            with(foreign.client(Some(&ours))),
            wrong(|it| it.endpoints[0].certified_as = Some("etcd.cluster-2".to_owned())),
            wrong(|it| it.endpoints[0].certified_as = None),
            wrong(|it| it.endpoints[0].has_tls = false),
        ];
        let asked = wrong.map(|wrong| {
            let outsider = Coordination::etcd(&world, &wrong).unwrap();
            async move { outsider.get("key").await }
        });
        for answer in join_all(asked).await {
            let refused = answer.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        }
    });
}
