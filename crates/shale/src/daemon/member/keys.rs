//! A node's key and certificates, and the authority's key on quorum nodes: files in the node's directory that only its owner
//! reads.
//!
//! *A crash* never leaves a key without its certificate. A node's new key is written into a file of its own together with its
//! certificate first ([`replace`]), and whoever starts next goes on from there ([`finish`]). The key of the authority that
//! takes the place of another one is in one file with its certificate until it has ([`promote_authority`]).

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
/// What the node's member of etcd has for other members.
const ETCD_KEY: &str = "etcd.key";
const ETCD_CERTIFICATE: &str = "etcd.pem";
const AUTHORITY_KEY: &str = "authority.key";
const AUTHORITY: &str = "authority.pem";
/// A node's new key and certificate, until they are where they belong.
const NEXT: &str = "node.next.pem";
/// Key and certificate of the authority that takes the place of the other one.
const NEXT_AUTHORITY: &str = "authority.next.pem";
/// With what a certificate begins that comes behind a key.
const CERTIFICATE_BEGINS: &str = "-----BEGIN CERTIFICATE-----";
/// Longest file.
const FILE_BYTES_MAX: u64 = 256 * 1024;

/// The files that etcd reads itself.
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub authorities: PathBuf,
    pub etcd_certificate: PathBuf,
    pub etcd_key: PathBuf,
}

/// Where they are.
pub fn files(dir: &Path) -> Files {
    let folder = dir.join(FOLDER);
    Files {
        certificate: folder.join(CERTIFICATE),
        key: folder.join(KEY),
        authorities: folder.join(AUTHORITIES),
        etcd_certificate: folder.join(ETCD_CERTIFICATE),
        etcd_key: folder.join(ETCD_KEY),
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

/// Stores a node's credentials that have another key than before.
///
/// # Errors
/// The system's error: the old ones count, or the new ones do once [`finish`] has been called.
pub fn replace(dir: &Path, credentials: &Credentials) -> Result<()> {
    let (key, certificate) = (credentials.key_pem(), credentials.certificate_pem());
    write(dir, NEXT, &(key + &certificate))?;
    write(dir, AUTHORITIES, &credentials.authorities_pem())?;
    finish_key(dir)
}

/// Puts a node's new key and certificate where they belong, and those of an authority that had begun to take the place of
/// another one, if an attempt to replace them broke off. Only for whoever has the directory's lock.
///
/// # Errors
/// The system's error; `Corrupt` if they can't be read.
pub fn finish(dir: &Path) -> Result<()> {
    if let Some((_, certificate)) = read_pair(dir, NEXT_AUTHORITY)?
        && read(dir, AUTHORITY).is_ok_and(|it| it == certificate)
    {
        // Otherwise the authority after it would be written over its key.
        promote_authority(dir)?;
    }
    finish_key(dir)
}

fn finish_key(dir: &Path) -> Result<()> {
    let Some((key, certificate)) = read_pair(dir, NEXT)? else {
        return Ok(());
    };
    write(dir, KEY, &key)?;
    write(dir, CERTIFICATE, &certificate)?;
    remove_file(dir, NEXT)
}

/// Stores which authorities the node trusts.
///
/// # Errors
/// The system's error.
pub fn store_trust(dir: &Path, credentials: &Credentials) -> Result<()> {
    write(dir, AUTHORITIES, &credentials.authorities_pem())
}

/// Stores what the node's member of etcd has for other members. If it breaks off in between, they don't belong together
/// ([`load_etcd`]), and are made anew.
///
/// # Errors
/// The system's error.
pub fn store_etcd(dir: &Path, own: &Credentials) -> Result<()> {
    write(dir, ETCD_KEY, &own.key_pem())?;
    write(dir, ETCD_CERTIFICATE, &own.certificate_pem())
}

/// What the node's member of etcd has for other members. `own`: the node's credentials.
///
/// # Errors
/// `NotFound` if there is nothing; `Corrupt` if it can't be read, or doesn't belong together.
pub fn load_etcd(dir: &Path, own: &Credentials) -> Result<Credentials> {
    let (key, certificate) = (read(dir, ETCD_KEY)?, read(dir, ETCD_CERTIFICATE)?);
    Credentials::from_pem(&key, &certificate, &own.authorities_pem())
}

/// Stores the authority's key: this node can certify others from now on.
///
/// # Errors
/// The system's error.
pub fn store_authority(dir: &Path, key: &str, certificate: &str) -> Result<()> {
    write(dir, AUTHORITY, certificate)?;
    write(dir, AUTHORITY_KEY, key)
}

/// Stores the key of the authority that takes the place of the one that this node has.
///
/// # Errors
/// The system's error.
pub fn store_next_authority(dir: &Path, authority: &Authority) -> Result<()> {
    let certificate = authority.certificate().to_pem();
    write(dir, NEXT_AUTHORITY, &(authority.key_pem() + &certificate))
}

/// The next authority has taken the place of the other one, whose key is gone from here on. Can be done again.
///
/// # Errors
/// The system's error; `Corrupt` if the next one can't be read.
pub fn promote_authority(dir: &Path) -> Result<()> {
    let Some((key, certificate)) = read_pair(dir, NEXT_AUTHORITY)? else {
        return Ok(());
    };
    store_authority(dir, &key, &certificate)?;
    remove_file(dir, NEXT_AUTHORITY)
}

/// Removes the key of the next authority, if this node has it.
///
/// # Errors
/// The system's error.
pub fn remove_next_authority(dir: &Path) -> Result<()> {
    remove_file(dir, NEXT_AUTHORITY)
}

/// Removes the authority's key, if this node has it.
///
/// # Errors
/// The system's error.
pub fn remove_authority(dir: &Path) -> Result<()> {
    remove_file(dir, NEXT_AUTHORITY)?;
    remove_file(dir, AUTHORITY_KEY)
}

fn remove_file(dir: &Path, name: &str) -> Result<()> {
    let path = path(dir, name);
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
    let (key, certificate) = match read_pair(dir, NEXT)? {
        Some(next) => next,
        None => (read(dir, KEY)?, read(dir, CERTIFICATE)?),
    };
    Credentials::from_pem(&key, &certificate, &read(dir, AUTHORITIES)?)
}

/// The authorities whose keys this node has: none, the one, or it and the one that takes its place.
///
/// # Errors
/// `Corrupt` if one can't be read.
pub fn load_authorities(dir: &Path) -> Result<Vec<Authority>> {
    let key = match read(dir, AUTHORITY_KEY) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let certificate = read(dir, AUTHORITY)?;
    let next = read_pair(dir, NEXT_AUTHORITY)?;
    let next = next.map(|(key, certificate)| Authority::from_pem(&key, &certificate));
    let next = next.transpose()?;
    match (Authority::from_pem(&key, &certificate), next) {
        (Ok(authority), next) => Ok(std::iter::once(authority).chain(next).collect()),
        // It is taking the other one's place: its certificate is there already, its key isn't.
        (Err(_), Some(next)) if next.certificate().to_pem() == certificate => Ok(vec![next]),
        (Err(error), _) => Err(error),
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

/// A key with its certificate out of one file.
fn read_pair(dir: &Path, name: &str) -> Result<Option<(String, String)>> {
    let text = match read(dir, name) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    let Some(begin) = text.find(CERTIFICATE_BEGINS) else {
        let path = path(dir, name);
        let text = format!("{} has no certificate behind its key", path.display());
        return Err(Error::new(ErrorKind::Corrupt, text));
    };
    let (key, certificate) = text.split_at(begin);
    Ok(Some((key.to_owned(), certificate.to_owned())))
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
mod tests;
