//! Keys are their owner's alone, and complete whatever breaks off.

use super::*;
use std::os::unix::fs::PermissionsExt;

#[test]
fn secrets_are_readable_by_their_owner_only_and_read_as_they_were_written() {
    let home = tempfile::tempdir().unwrap();
    // In 2026.
    let now = Timestamp::from_timespec(1_770_000_000, 0);
    let address = "10.0.0.1:7311".parse().unwrap();
    assert!(load_authorities(home.path()).unwrap().is_empty());
    found(home.path(), 7, address, now).unwrap();
    let credentials = load(home.path()).unwrap();
    assert_eq!(credentials.name().cluster, 7);
    assert_eq!(own_authority(home.path()).cluster(), 7);
    // An attempt with another address is made anew as a whole.
    let other = "10.0.0.2:7311".parse().unwrap();
    found(home.path(), 7, other, now).unwrap();
    let again = load(home.path()).unwrap();
    assert_ne!(again.certificate_pem(), credentials.certificate_pem());
    let authority = own_authority(home.path());
    let trusted = again.authorities()[0].fingerprint();
    assert_eq!(trusted, authority.certificate().fingerprint());
    store_next_authority(home.path(), &Authority::found(7, now).unwrap()).unwrap();
    remove_authority(home.path()).unwrap();
    assert!(load_authorities(home.path()).unwrap().is_empty());
    remove_authority(home.path()).unwrap();
    found(home.path(), 7, address, now).unwrap();
    store_next_authority(home.path(), &Authority::found(7, now).unwrap()).unwrap();
    write(home.path(), NEXT, "as while a key is replaced").unwrap();
    store_etcd(home.path(), &again).unwrap();
    let folder = home.path().join(FOLDER);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    for file in [
        KEY,
        CERTIFICATE,
        AUTHORITIES,
        AUTHORITY_KEY,
        AUTHORITY,
        NEXT,
        NEXT_AUTHORITY,
        ETCD_KEY,
        ETCD_CERTIFICATE,
    ] {
        assert_eq!(mode(&folder.join(file)), 0o600, "{file}");
    }
}

fn own_authority(dir: &Path) -> Authority {
    load_authorities(dir).unwrap().remove(0)
}

/// Would be broken if a crash could leave a node with a key that isn't its certificate's: it couldn't start any more.
#[test]
fn a_new_key_is_complete_wherever_its_storing_breaks_off() {
    let now = Timestamp::from_timespec(1_770_000_000, 0);
    let address = "10.0.0.1:7311".parse().unwrap();
    // How many of the steps were made until the crash.
    for steps in 0..5 {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path();
        found(dir, 7, address, now).unwrap();
        let old = load(dir).unwrap();
        let holder = Holder {
            node: NodeId(1),
            addresses: vec![address.ip()],
            has_localhost: true,
        };
        let new = Credentials::first(&own_authority(dir), &holder, now).unwrap();
        let pair = new.key_pem() + &new.certificate_pem();
        let all: [&dyn Fn() -> Result<()>; 4] = [
            &|| write(dir, NEXT, &pair),
            &|| write(dir, KEY, &new.key_pem()),
            &|| write(dir, CERTIFICATE, &new.certificate_pem()),
            &|| remove_file(dir, NEXT),
        ];
        all[..steps].iter().for_each(|step| step().unwrap());
        let expected = match steps {
            0 => &old,
            _ => &new,
        };
        for _ in 0..2 {
            let found = load(dir).unwrap();
            assert_eq!(
                found.certificate_pem(),
                expected.certificate_pem(),
                "{steps}"
            );
            finish(dir).unwrap();
            assert!(!path(dir, NEXT).exists());
        }
        replace(dir, &new).unwrap();
        assert_eq!(load(dir).unwrap().key_pem(), new.key_pem());
    }
}

#[test]
fn an_authority_takes_the_place_of_another_one_wherever_that_breaks_off() {
    let now = Timestamp::from_timespec(1_770_000_000, 0);
    let address = "10.0.0.1:7311".parse().unwrap();
    for steps in 0..4 {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path();
        found(dir, 7, address, now).unwrap();
        let old = own_authority(dir).certificate().fingerprint();
        let next = Authority::found(7, now).unwrap();
        store_next_authority(dir, &next).unwrap();
        let (key, certificate) = (next.key_pem(), next.certificate().to_pem());
        let next = next.certificate().fingerprint();
        let all: [&dyn Fn() -> Result<()>; 3] = [
            &|| write(dir, AUTHORITY, &certificate),
            &|| write(dir, AUTHORITY_KEY, &key),
            &|| remove_next_authority(dir),
        ];
        all[..steps].iter().for_each(|step| step().unwrap());
        let found = load_authorities(dir).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|it| it.certificate().fingerprint())
            .collect();
        match steps {
            0 => assert_eq!(found, [old, next]),
            2 => assert_eq!(found, [next, next], "it is there twice"),
            _ => assert_eq!(found, [next]),
        }
        // Whoever starts goes on with what had begun, and begins nothing.
        finish(dir).unwrap();
        assert_eq!(path(dir, NEXT_AUTHORITY).exists(), steps == 0);
        let left = load_authorities(dir).unwrap().len();
        assert_eq!(left, if steps == 0 { 2 } else { 1 }, "{steps}");
        for _ in 0..2 {
            promote_authority(dir).unwrap();
            let found = load_authorities(dir).unwrap();
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].certificate().fingerprint(), next);
            let key = std::fs::read_to_string(path(dir, AUTHORITY_KEY)).unwrap();
            assert_eq!(key, found[0].key_pem(), "the old key is gone");
        }
    }
}

#[test]
fn a_machine_that_tries_again_joins_with_the_same_key() {
    let home = tempfile::tempdir().unwrap();
    let key = key_to_join(home.path()).unwrap().to_pem();
    assert_eq!(key_to_join(home.path()).unwrap().to_pem(), key);
}
