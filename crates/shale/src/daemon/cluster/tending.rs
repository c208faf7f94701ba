//! What a quorum node does for the cluster's own etcd while its member leads it: members that never came are removed, a
//! full database gets room, endpoints of members that are gone are forgotten. And while it is the cluster's manager as
//! well, another member is to lead: if this node dies, manager and leader aren't lost together, so that others needn't wait
//! for an election before they take the manager's place.

use crate::daemon::member::endpoints::outdated;
use crate::daemon::member::{InCluster, joining::etcd_settings};
use crate::daemon::serving::Serving;
use coordination::etcd::{Etcd, EtcdMember, EtcdTended, EtcdTending};
use model::Result;
use std::sync::Arc;
use std::time::Duration;
use world::{Deadline, World};

/// How often a manager looks whether its node's member leads, too.
const LEAD_EVERY: Duration = Duration::from_secs(5);
/// How often whoever leads looks after etcd.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Looks after etcd as long as the node has a member of it. Never returns.
pub(crate) async fn tend(serving: Arc<Serving>, here: Arc<InCluster>) {
    let world = here.member().world().clone();
    let mut tending = EtcdTending::new(&world);
    let mut due = Deadline::after(&world, LOOK_EVERY);
    loop {
        world.sleep(LEAD_EVERY).await;
        let is_due = due.has_passed(&world);
        if !is_due && !here.member().is_manager() {
            continue;
        }
        if is_due {
            due = Deadline::after(&world, LOOK_EVERY);
        }
        match tend_once(&world, &serving, &here, &mut tending, is_due).await {
            Ok(()) => {}
            Err(error) => tracing::warn!(%error, "etcd couldn't be looked after"),
        }
    }
}

async fn tend_once(
    world: &World,
    serving: &Serving,
    here: &InCluster,
    tending: &mut EtcdTending,
    is_due: bool,
) -> Result<()> {
    let known = serving.config.lock().cluster.clone();
    let (Some(cluster), Some(own)) = (known, here.own_endpoint()) else {
        return Ok(());
    };
    // Without a vote it isn't among them.
    let Some(at) = cluster.coordination.iter().position(|it| *it == own) else {
        return Ok(());
    };
    let settings = etcd_settings(world, &cluster, &here.credentials())?;
    let etcd = Etcd::new(world, &settings)?;
    let status = etcd.status_at(at).await?;
    if status.leader != Some(status.member) {
        // Whoever leads next begins anew.
        *tending = EtcdTending::new(world);
        return Ok(());
    }
    if here.member().is_manager() {
        match etcd.lead_elsewhere().await {
            Ok(Some(next)) => {
                tracing::info!(%next, "another member leads etcd, because the manager is here");
                return Ok(());
            }
            Ok(None) => {}
            // Nobody else looks after etcd as long as this member leads.
            Err(error) => tracing::warn!(%error, "etcd couldn't be given another leader"),
        }
    }
    if !is_due {
        return Ok(());
    }
    let tour = tending.look(&settings).await?;
    for done in tour.done {
        let (event, what) = told(&done);
        tracing::warn!("{what}");
        serving.events.tell(event, "etcd", &what);
    }
    forget_outdated(here, &tour.members).await
}

fn told(done: &EtcdTended) -> (&'static str, String) {
    match done {
        EtcdTended::MadeRoom(left_out) if left_out.is_empty() => {
            let what = "the database was full: its history was dropped, and there is room again";
            ("etcd-made-room", what.to_owned())
        }
        EtcdTended::MadeRoom(left_out) => {
            let members = left_out.iter();
            let members = members.map(|it| format!("{} ({})", it.endpoint, it.error));
            let members = members.collect::<Vec<_>>().join(", ");
            let what = format!(
                "the database was full: its history was dropped, but not all members could rewrite it, so it may be full \
                 again at once: free space on the disks of these, or bring them back: {members}; if it is full again, it is \
                 tried again within ten minutes"
            );
            ("etcd-member-left-out", what)
        }
        EtcdTended::Removed(member) => {
            let place = member.peer_urls.join(", ");
            let what = format!(
                "the member for {place} was removed: its machine never started it, and others couldn't join meanwhile; it \
                 joins again with a new token"
            );
            ("etcd-member-removed", what)
        }
    }
}

/// Nobody asks a member that is gone.
async fn forget_outdated(here: &InCluster, members: &[EtcdMember]) -> Result<()> {
    let facts = here.member().coordination();
    for node in outdated(&facts.nodes().await?, members) {
        facts
            .change_node(node, |it| {
                it.etcd = None;
                Ok(())
            })
            .await?;
        tracing::info!(%node, "the node has no member of etcd any more");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use coordination::etcd::EtcdLeftOut;
    use model::{Error, ErrorKind};

    /// Would be broken if it was told that there is room although a member is still full.
    #[test]
    fn room_is_told_only_if_all_members_have_it() {
        let (event, what) = told(&EtcdTended::MadeRoom(Vec::new()));
        assert_eq!(event, "etcd-made-room");
        assert!(what.contains("there is room again"), "{what}");
        let left_out = EtcdLeftOut {
            endpoint: "https://10.0.0.2:7312".parse().expect("an endpoint"),
            error: Error::new(ErrorKind::Unavailable, "no space left on device"),
        };
        let (event, what) = told(&EtcdTended::MadeRoom(vec![left_out]));
        assert_eq!(event, "etcd-member-left-out");
        assert!(!what.contains("there is room"), "{what}");
        for part in ["https://10.0.0.2:7312", "no space left on device"] {
            assert!(what.contains(part), "{what}");
        }
    }
}
