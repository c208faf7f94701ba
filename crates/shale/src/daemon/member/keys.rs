//! A node's key and certificates, and the authority's key on quorum nodes: files in the node's directory that only its owner
//! reads.

use crate::directory::private;
use model::{Error, ErrorKind, NodeId, Result, Timestamp};
use rpc::security::{Authority, Credentials, Holder, PrivateKey};
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The folder.
const FOLDER: &str = "keys";
const KEY: &str = "node.key";
const CERTIFICATE: &str = "node.pem";
const AUTHORITIES: &str = "authorities.pem";
const AUTHORITY_KEY: &str = "authority.key";
const AUTHORITY: &str = "authority.pem";
/// Longest file.
const FILE_BYTES_MAX: u64 = 256 * 1024;

/// The files that etcd reads itself.
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub authorities: PathBuf,
}

/// Where they are.
pub fn files(dir: &Path) -> Files {
    let folder = dir.join(FOLDER);
    Files {
        certificate: folder.join(CERTIFICATE),
        key: folder.join(KEY),
        authorities: folder.join(AUTHORITIES),
    }
}

/// Makes a cluster's authority and the credentials of its first node. What an attempt before has made is replaced: nobody
/// knows it.
///
/// # Errors
/// The system's error.
pub fn found(dir: &Path, cluster: u128, address: SocketAddr, now: Timestamp) -> Result<()> {
    let authority = Authority::found(cluster, now)?;
    let holder = Holder {
        node: NodeId(1),
        addresses: vec![address.ip()],
        has_localhost: true,
    };
    let credentials = Credentials::first(&authority, &holder, now)?;
    store_authority(dir, &authority.key_pem(), &authority.certificate().to_pem())?;
    store(dir, &credentials)
}

/// Stores a node's credentials. The certificate last: with it they are complete.
///
/// # Errors
/// The system's error.
pub fn store(dir: &Path, credentials: &Credentials) -> Result<()> {
    write(dir, KEY, &credentials.key_pem())?;
    write(dir, AUTHORITIES, &credentials.authorities_pem())?;
    write(dir, CERTIFICATE, &credentials.certificate_pem())
}

/// Stores the authority's key: this node can certify others from now on.
///
/// # Errors
/// The system's error.
pub fn store_authority(dir: &Path, key: &str, certificate: &str) -> Result<()> {
    write(dir, AUTHORITY, certificate)?;
    write(dir, AUTHORITY_KEY, key)
}

/// Removes the authority's key, if this node has it.
///
/// # Errors
/// The system's error.
pub fn remove_authority(dir: &Path) -> Result<()> {
    let path = path(dir, AUTHORITY_KEY);
    world::host::remove_file(&path).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(Error::new(ErrorKind::Unavailable, error.to_string())
            .while_doing(format!("removing {}", path.display()))),
    })
}

/// The node's credentials.
///
/// # Errors
/// `NotFound` if there are none; `Corrupt` if they can't be read.
pub fn load(dir: &Path) -> Result<Credentials> {
    let (key, certificate) = (read(dir, KEY)?, read(dir, CERTIFICATE)?);
    Credentials::from_pem(&key, &certificate, &read(dir, AUTHORITIES)?)
}

/// The authority, if this node has its key.
///
/// # Errors
/// `Corrupt` if it can't be read.
pub fn load_authority(dir: &Path) -> Result<Option<Authority>> {
    match read(dir, AUTHORITY_KEY) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(key) => Authority::from_pem(&key, &read(dir, AUTHORITY)?).map(Some),
    }
}

/// The key that a machine joins with: made when it first tries, and the same when it tries again.
///
/// # Errors
/// The system's error.
pub fn key_to_join(dir: &Path) -> Result<PrivateKey> {
    match read(dir, KEY) {
        Ok(key) => PrivateKey::from_pem(&key),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let key = PrivateKey::generate()?;
            write(dir, KEY, &key.to_pem())?;
            Ok(key)
        }
        Err(error) => Err(error),
    }
}

/// Removes all of them.
///
/// # Errors
/// The system's error.
pub fn remove(dir: &Path) -> Result<()> {
    let folder = dir.join(FOLDER);
    match std::fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::new(ErrorKind::Unavailable, error.to_string())
                .while_doing(format!("removing {}", folder.display())))
        }
        _ => Ok(()),
    }
}

/// Where a file of the folder is.
pub fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(FOLDER).join(name)
}

/// Writes a file of the folder, which its owner reads only.
///
/// # Errors
/// The system's error.
pub fn write(dir: &Path, name: &str, text: &str) -> Result<()> {
    let folder = dir.join(FOLDER);
    let (path, new) = (folder.join(name), folder.join(format!("{name}.new")));
    let write = || -> std::io::Result<()> {
        private::make_private_directory(&folder)?;
        let how = &mut OpenOptions::new();
        let mut file = private::open(how.create(true).truncate(false).write(true), &new)?;
        file.set_len(0)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &path)?;
        std::fs::File::open(&folder)?.sync_all()
    };
    write().map_err(|error| {
        Error::new(ErrorKind::Unavailable, error.to_string())
            .while_doing(format!("writing {}", path.display()))
    })
}

fn read(dir: &Path, name: &str) -> Result<String> {
    let path = dir.join(FOLDER).join(name);
    let read = || -> std::io::Result<String> {
        let file = private::open(OpenOptions::new().read(true), &path)?;
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorKind::AccessDenied,
            _ => ErrorKind::Unavailable,
        };
        Error::new(kind, error.to_string()).while_doing(format!("reading {}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn secrets_are_readable_by_their_owner_only_and_read_as_they_were_written() {
        let home = tempfile::tempdir().unwrap();
        // In 2026.
        let now = Timestamp::from_timespec(1_770_000_000, 0);
        let address = "10.0.0.1:7311".parse().unwrap();
        assert!(load_authority(home.path()).unwrap().is_none());
        found(home.path(), 7, address, now).unwrap();
        let credentials = load(home.path()).unwrap();
        assert_eq!(credentials.name().cluster, 7);
        let authority = load_authority(home.path()).unwrap().unwrap();
        assert_eq!(authority.cluster(), 7);
        // An attempt with another address is made anew as a whole.
        let other = "10.0.0.2:7311".parse().unwrap();
        found(home.path(), 7, other, now).unwrap();
        let again = load(home.path()).unwrap();
        assert_ne!(again.certificate_pem(), credentials.certificate_pem());
        let authority = load_authority(home.path()).unwrap().unwrap();
        let trusted = again.authorities()[0].fingerprint();
        assert_eq!(trusted, authority.certificate().fingerprint());
        remove_authority(home.path()).unwrap();
        assert!(load_authority(home.path()).unwrap().is_none());
        remove_authority(home.path()).unwrap();
        found(home.path(), 7, address, now).unwrap();
        let folder = home.path().join(FOLDER);
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        for file in [KEY, CERTIFICATE, AUTHORITIES, AUTHORITY_KEY, AUTHORITY] {
            assert_eq!(mode(&folder.join(file)), 0o600, "{file}");
        }
    }

    #[test]
    fn a_machine_that_tries_again_joins_with_the_same_key() {
        let home = tempfile::tempdir().unwrap();
        let key = key_to_join(home.path()).unwrap().to_pem();
        assert_eq!(key_to_join(home.path()).unwrap().to_pem(), key);
    }
}
