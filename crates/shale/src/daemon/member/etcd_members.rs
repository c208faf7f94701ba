//! This node's member of the cluster's own etcd: where it is, and that it comes and goes with the node.

use coordination::etcd::{Etcd, EtcdMember, EtcdMemberId};
use model::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use world::{Deadline, World};

/// How long the member of another node that joins is waited for.
const TURN_MAX: Duration = Duration::from_secs(120);
/// How long etcd may take for one change.
const CHANGE_MAX: Duration = Duration::from_secs(10);

/// Where a node's member of etcd listens: at the two ports after the node's own.
///
/// # Errors
/// `InvalidArgument` if there are no such ports.
pub fn ports(address: SocketAddr) -> Result<(SocketAddr, SocketAddr)> {
    let after = |by: u16| {
        let port = address.port().checked_add(by).ok_or_else(|| {
            let text = "etcd takes the next two ports after that of --address; choose a lower one";
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        Ok::<_, Error>(SocketAddr::new(address.ip(), port))
    };
    Ok((after(1)?, after(2)?))
}

/// Where others reach the member of etcd of a node with this address.
///
/// # Errors
/// As [`ports`].
pub fn peer_url(address: SocketAddr) -> Result<String> {
    let (_, peer) = ports(address)?;
    Ok(format!("https://{peer}"))
}

/// Whether etcd has a member that is reached at this URL.
///
/// # Errors
/// `Unavailable`: ask again.
pub(crate) async fn has_member(etcd: &Etcd, url: &str) -> Result<bool> {
    let members = etcd.members().await?;
    Ok(members.iter().any(|it| it.is_at(url)))
}

/// Adds the member of a node that has no data of it, as [`Etcd::add_newcomer`] does. Returns all members, by name and
/// `host:port`.
///
/// # Errors
/// `Busy`: another node is joining, or etcd isn't ready; `Unavailable`: it doesn't answer.
pub(crate) async fn add(
    world: &World,
    etcd: &Etcd,
    name: &str,
    url: &str,
) -> Result<Vec<(String, String)>> {
    let deadline = Deadline::after(world, TURN_MAX);
    let added = etcd.add_newcomer(name, url, deadline).await;
    let members =
        added.map_err(|error| error.while_doing("adding this node to the cluster's etcd"))?;
    Ok(named(&members, name, url))
}

/// All members, this node's with its name, which etcd doesn't know yet.
fn named(members: &[EtcdMember], name: &str, url: &str) -> Vec<(String, String)> {
    let all = members.iter().flat_map(|member| {
        let name = match member.is_at(url) {
            true => name.to_owned(),
            false => member.name.clone(),
        };
        let peers = member.peer_urls.iter();
        peers.map(move |it| (name.clone(), it.trim_start_matches("https://").to_owned()))
    });
    all.collect()
}

/// Removes the member of a node that is gone; nothing if there is none. `url`: where others reached it.
///
/// # Errors
/// `Busy`: without it there would be no quorum. `Unavailable`: it may have been removed; remove it again.
pub(crate) async fn remove(world: &World, etcd: &Etcd, name: &str, url: &str) -> Result<()> {
    let members = etcd.members().await?;
    for member in of_node(&members, name, url) {
        let deadline = Deadline::after(world, CHANGE_MAX);
        etcd.remove_if_there(member, deadline).await?;
    }
    Ok(())
}

/// The members of a node: that of its name, and what is at its URL and was never started. One at its URL that has another name is
/// another node's: that of a machine that has joined anew, with an empty disk and the address that it had.
fn of_node(members: &[EtcdMember], name: &str, url: &str) -> Vec<EtcdMemberId> {
    let is_its = |it: &&EtcdMember| it.name == name || (it.was_never_started() && it.is_at(url));
    members.iter().filter(is_its).map(|it| it.id).collect()
}

/// Where a node's member of etcd has its data.
pub fn data_directory(dir: &Path) -> PathBuf {
    dir.join("etcd")
}

/// Removes what a member of this node has stored: its data are of no more use. Leaves the directory if it is a disk of its
/// own, or a link to one.
///
/// # Errors
/// The system's error.
pub fn remove_data(dir: &Path) -> Result<()> {
    empty_data(dir)?;
    // An empty one that stays is in nobody's way.
    let _ = std::fs::remove_dir(data_directory(dir));
    Ok(())
}

/// The same, but leaves the directory in any case.
///
/// # Errors
/// The system's error.
pub fn empty_data(dir: &Path) -> Result<()> {
    let data = data_directory(dir).join("member");
    match std::fs::remove_dir_all(&data) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::new(ErrorKind::Unavailable, error.to_string())
                .while_doing(format!("removing {}", data.display())))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "https://10.0.0.3:7313";

    fn member(id: u64, name: &str, url: &str, is_learner: bool) -> EtcdMember {
        EtcdMember {
            id: EtcdMemberId(id),
            name: name.into(),
            peer_urls: vec![url.into()],
            client_urls: Vec::new(),
            is_learner,
        }
    }

    #[test]
    fn a_member_that_joins_knows_all_by_name() {
        let members = [
            member(1, "n1", "https://10.0.0.1:7313", false),
            member(2, "", OWN, true),
        ];
        let expected = [("n1", "10.0.0.1:7313"), ("n3", "10.0.0.3:7313")];
        let expected = expected.map(|(name, peer)| (name.to_owned(), peer.to_owned()));
        assert_eq!(named(&members, "n3", OWN), expected);
    }

    /// Would be broken if a machine that has joined anew lost its new member of etcd with its old node.
    #[test]
    fn a_node_that_is_removed_takes_no_member_of_another_one_with_it() {
        let removed = |other: EtcdMember| {
            let members = [member(1, "n1", "https://10.0.0.1:7313", false), other];
            of_node(&members, "n3", OWN)
        };
        let own = [EtcdMemberId(2)];
        assert_eq!(removed(member(2, "n3", OWN, false)), own);
        let elsewhere = "https://10.0.0.9:7313";
        assert_eq!(removed(member(2, "n3", elsewhere, true)), own);
        // It was added, and its machine broke off.
        assert_eq!(removed(member(2, "", OWN, true)), own);
        assert!(removed(member(2, "", elsewhere, true)).is_empty());
        for is_learner in [true, false] {
            assert!(removed(member(2, "n4", OWN, is_learner)).is_empty());
        }
    }

    /// Would be broken if a cluster couldn't be founded, joined or given up with the data of its etcd on a disk of their own.
    #[test]
    fn data_are_removed_from_a_disk_of_their_own() {
        let home = tempfile::tempdir().unwrap();
        let data = data_directory(home.path());
        let store = |at: &Path| std::fs::create_dir_all(at.join("member").join("wal")).unwrap();
        remove_data(home.path()).unwrap();
        store(&data);
        remove_data(home.path()).unwrap();
        assert!(!data.exists());
        // The root directory of a disk, which can't be removed either.
        store(&data);
        std::fs::create_dir(data.join("lost+found")).unwrap();
        remove_data(home.path()).unwrap();
        assert!(!data.join("member").exists() && data.join("lost+found").exists());
        std::fs::remove_dir_all(&data).unwrap();
        let disk = home.path().join("disk");
        store(&disk);
        std::os::unix::fs::symlink(&disk, &data).unwrap();
        remove_data(home.path()).unwrap();
        assert!(data.is_symlink() && data.is_dir() && !disk.join("member").exists());
    }
}
