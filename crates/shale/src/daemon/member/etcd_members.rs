//! This node's member of the cluster's own etcd: added without a vote when the node joins, removed with the node.
//!
//! etcd has one member without a vote at a time. One that was added and never started keeps all others out: its machine broke
//! off. Whoever waits for its turn and sees the same one for [`ABANDONED_AFTER`] removes it; a machine that comes back later
//! adds itself again.

use coordination::etcd::{Etcd, EtcdMember, EtcdMemberId};
use model::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use world::{Deadline, Instant, World};

/// How long the member of another node that joins is waited for.
const TURN_MAX: Duration = Duration::from_secs(120);
/// A node starts its member within seconds after it was added.
const ABANDONED_AFTER: Duration = Duration::from_secs(45);
/// How long etcd may take for one change.
const CHANGE_MAX: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

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

/// What a node that wants to add its member does next.
#[derive(PartialEq, Eq, Debug)]
enum Turn {
    /// It was added.
    Added,
    /// This one is in the way and of no use to anybody.
    Remove(EtcdMemberId),
    /// Nobody is in the way.
    Add,
    /// Another node is joining.
    Wait(EtcdMemberId),
}

/// The rule. `waited`: a member that was in the way before, and since when.
fn turn(
    members: &[EtcdMember],
    name: &str,
    url: &str,
    waited: Option<(EtcdMemberId, Duration)>,
) -> Turn {
    let own = members.iter().find(|it| has_url(it, url));
    if let Some(own) = own {
        // One that has run had data, and this machine has none.
        return match own.is_learner && own.name.is_empty() {
            true => Turn::Added,
            false => Turn::Remove(own.id),
        };
    }
    let Some(other) = members.iter().find(|it| it.is_learner) else {
        return Turn::Add;
    };
    let is_abandoned = other.name.is_empty()
        && waited.is_some_and(|(id, time)| id == other.id && time >= ABANDONED_AFTER);
    match is_abandoned || other.name == name {
        true => Turn::Remove(other.id),
        false => Turn::Wait(other.id),
    }
}

fn has_url(member: &EtcdMember, url: &str) -> bool {
    member.peer_urls.iter().any(|it| it == url)
}

/// Whether etcd has a member that is reached at this URL.
///
/// # Errors
/// `Unavailable`: ask again.
pub async fn has_member(etcd: &Etcd, url: &str) -> Result<bool> {
    let members = etcd.members().await?;
    Ok(members.iter().any(|it| has_url(it, url)))
}

/// Adds a member of a node that has no data of it, without a vote until its daemon has started it. Returns all members, by name
/// and `host:port`.
///
/// # Errors
/// `Busy`: another node is joining, or etcd isn't ready; `Unavailable`: it doesn't answer.
pub async fn add(
    world: &World,
    etcd: &Etcd,
    name: &str,
    url: &str,
) -> Result<Vec<(String, String)>> {
    let adding = |error: Error| error.while_doing("adding this node to the cluster's etcd");
    let deadline = Deadline::after(world, TURN_MAX);
    let mut waited: Option<(EtcdMemberId, Instant)> = None;
    loop {
        let tried = async {
            let members = etcd.members().await?;
            let now = world.now();
            let soon = Deadline::after(world, CHANGE_MAX).min(deadline);
            match turn(
                &members,
                name,
                url,
                waited.map(|(id, since)| (id, now - since)),
            ) {
                Turn::Added => return Ok(Some(members)),
                Turn::Remove(id) => {
                    tracing::warn!(member = %id, "removing a member of etcd that never started");
                    remove_one(etcd, id, soon).await?;
                }
                Turn::Add => drop(etcd.add_learner(&[url.to_owned()], soon).await?),
                Turn::Wait(id) => {
                    if waited.is_none_or(|(before, _)| before != id) {
                        waited = Some((id, now));
                    }
                    return Err(in_the_way(&members, id));
                }
            }
            Ok(None)
        };
        match tried.await {
            Ok(Some(members)) => return Ok(named(&members, name, url)),
            Ok(None) => continue,
            // Others may be joining, members that have just started must hear each other first, and whether one was added
            // isn't known after a lost answer.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Unavailable | ErrorKind::Busy | ErrorKind::Exists
                ) && !deadline.has_passed(world) => {}
            Err(error) => return Err(adding(error)),
        }
        world.sleep(AGAIN_AFTER).await;
    }
}

fn in_the_way(members: &[EtcdMember], id: EtcdMemberId) -> Error {
    let other = members.iter().find(|it| it.id == id);
    let who = other.map_or(String::new(), |it| {
        let name = match it.name.is_empty() {
            true => "a node that hasn't started its member",
            false => &it.name,
        };
        format!("{name}, at {}", it.peer_urls.join(", "))
    });
    let text = format!(
        "another node is becoming a quorum node ({who}), and there is one at a time; try again when it has its vote, or if it is \
         gone for good, remove it with `shale node remove`"
    );
    Error::new(ErrorKind::Busy, text)
}

/// All members, this node's with its name, which etcd doesn't know yet.
fn named(members: &[EtcdMember], name: &str, url: &str) -> Vec<(String, String)> {
    let all = members.iter().flat_map(|member| {
        let name = match has_url(member, url) {
            true => name.to_owned(),
            false => member.name.clone(),
        };
        let peers = member.peer_urls.iter();
        peers.map(move |it| (name.clone(), it.trim_start_matches("https://").to_owned()))
    });
    all.collect()
}

/// Removes the member of a node that is gone, found by its URL or its name; nothing if there is none.
///
/// # Errors
/// `Busy`: without it there would be no quorum. `Unavailable`: it may have been removed; remove it again.
pub async fn remove(world: &World, etcd: &Etcd, name: &str, url: &str) -> Result<()> {
    let members = etcd.members().await?;
    let own = members
        .iter()
        .filter(|it| it.name == name || has_url(it, url));
    for member in own {
        remove_one(etcd, member.id, Deadline::after(world, CHANGE_MAX)).await?;
    }
    Ok(())
}

async fn remove_one(etcd: &Etcd, id: EtcdMemberId, deadline: Deadline) -> Result<()> {
    match etcd.remove(id, deadline).await {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error.while_doing(format!("removing member {id} of etcd")))
        }
        _ => Ok(()),
    }
}

/// Removes what a member of this node has stored: its data are of no more use.
///
/// # Errors
/// The system's error.
pub fn remove_data(dir: &Path) -> Result<()> {
    let data = dir.join("etcd");
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
    fn a_member_that_never_started_keeps_no_other_node_out_for_good() {
        let first = member(1, "n1", "https://10.0.0.1:7313", false);
        let of = |others: &[EtcdMember], waited: Option<(u64, u64)>| {
            let all = [std::slice::from_ref(&first), others].concat();
            let waited =
                waited.map(|(id, seconds)| (EtcdMemberId(id), Duration::from_secs(seconds)));
            turn(&all, "n3", OWN, waited)
        };
        assert_eq!(of(&[], None), Turn::Add);
        // Of another machine, which may be about to start it; until nobody believes that.
        let silent = member(2, "", "https://10.0.0.2:7313", true);
        let wait = Turn::Wait(EtcdMemberId(2));
        for waited in [None, Some((2, 44)), Some((7, 100))] {
            assert_eq!(
                of(std::slice::from_ref(&silent), waited),
                wait,
                "{waited:?}"
            );
        }
        let remove = Turn::Remove(EtcdMemberId(2));
        assert_eq!(of(&[silent], Some((2, 45))), remove);
        // One that has started catches up, and is left in peace.
        let started = member(2, "n2", "https://10.0.0.2:7313", true);
        assert_eq!(of(&[started], Some((2, 1_000))), wait);
        // Its own of an attempt before: with this address, with another one, and of a life before this one.
        assert_eq!(of(&[member(2, "", OWN, true)], None), Turn::Added);
        let elsewhere = member(2, "n3", "https://10.0.0.9:7313", true);
        assert_eq!(of(&[elsewhere], None), remove);
        for is_learner in [true, false] {
            assert_eq!(of(&[member(2, "n7", OWN, is_learner)], None), remove);
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
}
