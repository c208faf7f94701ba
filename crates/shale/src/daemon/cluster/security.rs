//! What a running node does for the cluster's keys and for how connections are protected: it takes over what coordination
//! says of both, says itself how far it has come, and leads changes through their steps while it is the manager.
//!
//! One pass after the other: what can't be done now is tried again with the next. The rules are `member`'s (`protection`,
//! `rotation`, `renewal`).

use super::etcd::EtcdHandle;
use crate::daemon::member::InCluster;
use crate::daemon::member::renewal::Trust;
use crate::daemon::serving::Serving;
use coordination::{Authorities, NodeSecurity};
use model::{Error, ErrorKind, Result};
use rpc::security::Certificate;
use std::sync::Arc;
use std::time::Duration;
use world::Deadline;

/// Pause between two passes; what coordination says is known without asking it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The manager's node looks only with every third pass whether all nodes have made a step: that costs lists of them.
const LEAD_EVERY: u64 = 3;
/// Whether nodes still trust an authority that was replaced is looked at once it was, and with every so many passes until
/// none does.
const STILL_TRUSTING_EVERY: u64 = 10;
/// Passes that failed in a row until people are told: coordination may be away for some seconds.
const FAILURES_TOLD: u32 = 5;
/// How long this node's member of etcd may take to end and to start again.
const ETCD_MAX: Duration = Duration::from_secs(60);
/// How often it is looked whether it has been started.
const ETCD_EVERY: Duration = Duration::from_millis(100);
/// All nodes want new certificates at the same time: so much time for each of them, at most so much in all, among which each
/// chooses by chance.
const CERTIFYING_EACH: Duration = Duration::from_millis(20);
const CERTIFYING_MAX: Duration = Duration::from_secs(60);
/// Most authorities that are read of a file.
const AUTHORITIES_MAX: usize = model::join::AUTHORITIES_MAX;

/// Looks after the node's keys, trust and connections. Never returns.
pub(crate) async fn keep(serving: Arc<Serving>, here: Arc<InCluster>, etcd: Option<EtcdHandle>) {
    let world = here.member().world().clone();
    let (mut said, mut failures, mut last) = (None, 0, String::new());
    let mut replaced = Replaced::default();
    for number in 0_u64.. {
        let mut done = pass(&serving, &here, etcd.as_ref(), &mut said).await;
        if number.is_multiple_of(LEAD_EVERY) && here.member().is_manager() {
            // Whatever this node couldn't do itself.
            let led = lead(&here).await;
            done = done.and(led);
        }
        if let Err(error) = replaced.look(&here, number).await {
            tracing::debug!(%error, "which nodes still trust an old authority couldn't be read");
        }
        match done {
            Ok(()) => {
                failures = 0;
                last.clear();
                here.set_security_trouble(None);
            }
            Err(error) => {
                failures += 1;
                let why = error.to_string();
                if failures >= FAILURES_TOLD {
                    here.set_security_trouble(Some(why.clone()));
                }
                if why != last {
                    tracing::warn!(%error, "the node can't do its part of a change of keys or connections yet");
                    last = why;
                }
            }
        }
        world.sleep(LOOK_EVERY).await;
    }
}

/// Whether all nodes have stopped trusting an authority that was replaced.
#[derive(Default)]
struct Replaced {
    /// The version of the authorities that was looked at.
    seen: Option<u64>,
    /// None trusts the old one with that version.
    is_over: bool,
}

impl Replaced {
    /// Looks, with this pass, which nodes still do, for `shale health`.
    async fn look(&mut self, here: &InCluster, pass: u64) -> Result<()> {
        let roster = here.member().roster();
        let Some(known) = &roster.authorities else {
            return Ok(());
        };
        let is_new = self.seen != Some(known.version);
        if !is_new && (self.is_over || !pass.is_multiple_of(STILL_TRUSTING_EVERY)) {
            return Ok(());
        }
        let still = here.still_trusting(&known.value).await?;
        (self.seen, self.is_over) = (Some(known.version), still.is_empty());
        here.set_still_trusting(still);
        Ok(())
    }
}

/// Does what there is to do now. `said`: what the node has said last.
async fn pass(
    serving: &Serving,
    here: &InCluster,
    etcd: Option<&EtcdHandle>,
    said: &mut Option<NodeSecurity>,
) -> Result<()> {
    let roster = here.member().roster();
    let ciphers = roster.ciphers.as_ref();
    if let Some(policy) = here.follow_ciphers(ciphers.map(|it| &it.value)).await? {
        let what = format!("connections to other nodes are protected as {policy} from now on");
        serving
            .events
            .tell("connections-changed", "this node", &what);
    }
    // Also if the next step fails: what this node has made is what others wait for.
    let followed = match &roster.authorities {
        Some(known) => follow(serving, here, etcd, &known.value).await,
        None => here.renew_etcd_identity(None).map(drop),
    };
    say(here, etcd, said).await?;
    followed
}

/// Takes the next steps of changes whose last ones all nodes have made.
async fn lead(here: &InCluster) -> Result<()> {
    let roster = here.member().roster();
    if let Some(known) = &roster.ciphers {
        here.lead_ciphers(known).await?;
    }
    if let Some(known) = &roster.authorities {
        here.lead_rotation(known).await?;
    }
    Ok(())
}

/// Takes over which authorities count: trusts them, has its member of etcd believe them, gets or drops their keys, and gets a
/// certificate of the one that certifies.
async fn follow(
    serving: &Serving,
    here: &InCluster,
    etcd: Option<&EtcdHandle>,
    authorities: &Authorities,
) -> Result<()> {
    let (dir, tell) = (serving.dir(), |what: &str| {
        serving.events.tell("keys-changed", "this node", what);
    });
    match here.trust(dir, authorities).await? {
        Trust::Same => {}
        Trust::More => tell("it trusts the authority that takes the place of the cluster's, too"),
        Trust::Less => {
            tell("it trusts the cluster's new authority only");
            here.member().renew_connections().await;
        }
    }
    here.follow_keys(authorities).await?;
    let by = authorities.certifying().hash;
    // Before the node's own certificate, which says to others that this node is done.
    here.renew_etcd_identity(Some(by))?;
    if let Some(etcd) = etcd
        && !start_again_in_turn(here, etcd).await?
    {
        return Ok(());
    }
    if here.credentials().issuer().is_some_and(|it| it.0 == by) {
        return Ok(());
    }
    wait_for_turn(here).await;
    if here.change_key(dir, by).await? {
        tell("it has a new key, and a certificate by the cluster's new authority");
    }
    Ok(())
}

/// Has this node's member of etcd believe what the node believes, when it is its turn. Returns whether it does.
async fn start_again_in_turn(here: &InCluster, etcd: &EtcdHandle) -> Result<bool> {
    if etcd.believes() == here.credentials().authorities_pem() {
        return Ok(true);
    }
    if !here.is_turn_of_etcd().await? {
        return Ok(false);
    }
    // Others may be away for good: then people must hear why the rotation stands still.
    here.check_may_start_again().await.map_err(|error| {
        error.while_doing(
            "starting this node's member of etcd again, so that it believes other authorities",
        )
    })?;
    let (world, before) = (here.member().world(), etcd.starts());
    let deadline = Deadline::after(world, ETCD_MAX);
    etcd.start_again();
    while etcd.starts() == before {
        if deadline.has_passed(world) {
            let text = format!(
                "this node's member of etcd, which is to believe other authorities, hasn't started again within {} s; see \
                 etcd.log",
                ETCD_MAX.as_secs()
            );
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        world.sleep(ETCD_EVERY).await;
    }
    here.until_own_etcd_works(deadline).await?;
    Ok(true)
}

/// Spreads the requests of a large cluster.
async fn wait_for_turn(here: &InCluster) {
    let world = here.member().world();
    let nodes = u32::try_from(here.member().roster().addresses.len()).unwrap_or(u32::MAX);
    let most = CERTIFYING_EACH.saturating_mul(nodes).min(CERTIFYING_MAX);
    let part = (world.random_u64() % 1024) as f64 / 1024.0;
    world.sleep(most.mul_f64(part)).await;
}

/// Says what the node has made of what coordination says, if that isn't what it has said last.
async fn say(
    here: &InCluster,
    etcd: Option<&EtcdHandle>,
    said: &mut Option<NodeSecurity>,
) -> Result<()> {
    let own = here.credentials();
    let trusts = match etcd {
        // It is the last one to believe somebody, and the last one to stop it.
        Some(etcd) => Certificate::all_from_pem(&etcd.believes(), AUTHORITIES_MAX)?,
        None => own.authorities().to_vec(),
    };
    let now = NodeSecurity {
        trusts: trusts.iter().map(|it| it.fingerprint().0).collect(),
        certified_by: own.issuer().map(|it| it.0),
        keys: here.keys().map(|keys| keys.hashes()).unwrap_or_default(),
        policy: here.policy().to_string(),
    };
    if said.as_ref() == Some(&now) {
        return Ok(());
    }
    let node = here.member().run().node;
    here.member()
        .coordination()
        .say_security(node, &now)
        .await?;
    *said = Some(now);
    Ok(())
}
