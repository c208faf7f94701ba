//! Whether the cluster still hears this node: asked before a log is on this node's NSDs alone.
//!
//! Coordination may take the change of a view from a node that no other node reaches. If the log were on that node alone then,
//! nobody could take the shard over: the node is expelled, and all that the next owner needs is where nobody comes to. So an owner
//! that reaches no NSD of other nodes any more first finds out whether it is the one that can't be reached, and waits until then.
//! So does whoever takes a shard over, and an owner whose log would be on this node alone because an NSD of another one is given up.

use model::member::HEARTBEAT_EVERY;
use model::{Error, ErrorKind, NsdId, Result};
use pool::Pool;
use std::time::Duration;
use world::{Instant, World};

/// How long it may take to find that out: everybody says something once in [`HEARTBEAT_EVERY`].
pub(crate) const HEARD_MAX: Duration = HEARTBEAT_EVERY.saturating_add(Duration::from_secs(1));
/// The cause by which an append's wait until the log is on other NSDs is listed.
pub(crate) const VIEW_WAIT: &str =
    "coordination, or to be heard by others, before the log leaves an NSD";
/// The cause by which a take-over's wait for the same is listed.
pub(crate) const HEARD_WAIT: &str = "others to hear this node, before the log leaves their NSDs";
/// How often it is looked whether it is known.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How this node stands with the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contact {
    /// The cluster has heard it.
    Heard,
    /// Nobody is known to have heard it.
    NotYet,
    /// Its run has ended: others have its shards.
    Over,
}

/// What a node knows of whether the others hear it.
pub trait Touch: Send + Sync {
    /// Somebody wants to know it soon.
    fn ask(&self);

    /// Whether the cluster has heard this node since then. What was under way at that moment proves nothing.
    fn since(&self, moment: Instant) -> Contact;
}

/// A process that is the whole cluster.
#[derive(Clone, Copy, Debug)]
pub struct Whole;

impl Touch for Whole {
    fn ask(&self) {}

    fn since(&self, _: Instant) -> Contact {
        Contact::Heard
    }
}

/// Returns when the cluster has heard this node since then.
///
/// # Errors
/// `OldEpoch`: the node's run has ended.
pub(crate) async fn heard(world: &World, touch: &dyn Touch, since: Instant) -> Result<()> {
    touch.ask();
    loop {
        match touch.since(since) {
            Contact::Heard => return Ok(()),
            Contact::NotYet => world.sleep(LOOK_EVERY).await,
            Contact::Over => {
                let text = "this node's run has ended: another node may own the shard by now";
                return Err(Error::new(ErrorKind::OldEpoch, text));
            }
        }
    }
}

/// Whether a log that was on `old` is on NSDs of this process alone if it goes on with `new`, and was on another node's before.
/// An NSD is of this process as far as it could be opened.
pub(crate) fn is_alone(pool: &Pool, old: &[NsdId], new: &[NsdId]) -> bool {
    leaves_others(old, new, |nsd| {
        let handle = pool.handle(nsd);
        handle.is_some_and(|handle| handle.opened().is_some())
    })
}

fn leaves_others(old: &[NsdId], new: &[NsdId], is_own: impl Fn(NsdId) -> bool) -> bool {
    new.iter().all(|nsd| is_own(*nsd)) && old.iter().any(|nsd| !is_own(*nsd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{SHARD, commit, loopback, machine, open, power_on_beside, value};
    use crate::takeover::Opening;
    use futures::future::join;
    use model::Scheme;
    use model::map::NsdState;
    use parking_lot::Mutex;
    use std::collections::BTreeSet;
    use std::pin::pin;
    use std::sync::Arc;
    use world::errand;

    const OWN: NsdId = NsdId(1);
    const FAR: NsdId = NsdId(2);

    #[test]
    fn a_log_is_alone_if_it_leaves_the_nsds_of_all_other_nodes() {
        let is_own = |nsd: NsdId| nsd.0 <= 2;
        let alone = |old: &[u32], new: &[u32]| {
            let ids = |nsds: &[u32]| nsds.iter().copied().map(NsdId).collect::<Vec<_>>();
            leaves_others(&ids(old), &ids(new), is_own)
        };
        assert!(alone(&[1, 3], &[1]));
        assert!(alone(&[1, 3], &[1, 2]), "another NSD of this node");
        assert!(alone(&[3], &[1]));
        assert!(!alone(&[1, 3], &[1, 4]), "another node's NSD");
        assert!(!alone(&[1, 3], &[3]));
        assert!(!alone(&[1, 2], &[1]), "it was alone before");
    }

    /// A node that is told how it stands.
    struct Told(Mutex<Contact>);

    impl Touch for Told {
        fn ask(&self) {}

        fn since(&self, _: Instant) -> Contact {
            *self.0.lock()
        }
    }

    /// What opens the shard on a node with one of the NSDs, and what it is told of whether it is heard: not yet.
    async fn owner_that_nobody_hears(world: &World) -> (Arc<Told>, Opening) {
        let told = Arc::new(Told(Mutex::new(Contact::NotYet)));
        let opening = Opening {
            touch: told.clone(),
            ..power_on_beside(world, OWN).await
        };
        (told, opening)
    }

    /// What happens at last to an owner that reaches only its own NSD.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Then {
        Told(Contact),
        /// The NSD of the other node answers again.
        Answers,
    }

    /// Would be broken if a node that nobody reaches took the log to itself, where no other owner could follow.
    #[test]
    fn an_owner_leaves_the_nsds_of_other_nodes_only_if_the_cluster_hears_it() {
        for then in [
            Then::Told(Contact::Heard),
            Then::Told(Contact::Over),
            Then::Answers,
        ] {
            let machine = machine(37, Scheme::Replicate(2), 2);
            let ran = machine.run(move |world| async move {
                let (told, opening) = owner_that_nobody_hears(&world).await;
                let opened = open(opening).await.unwrap();
                commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
                let before = opened.log.view();
                assert_eq!(before.len(), 2);
                let held = loopback(FAR).hold(|_| true);
                let rows = [("b", Some("2"))];
                let mut second = pin!(errand::begin(commit(&opened, 2, &rows)));
                let mut causes = BTreeSet::new();
                for _ in 0..30 {
                    let waited = world.timeout(Duration::from_secs(1), second.as_mut());
                    assert!(waited.await.is_err(), "{then:?}: it waits");
                    causes.extend(world.waits().0.iter().map(|wait| wait.cause));
                }
                assert!(causes.contains(VIEW_WAIT), "{then:?}: {causes:?}");
                assert_eq!(opened.log.view(), before);
                assert_eq!(opened.log.failed(), None);
                match then {
                    Then::Told(contact) => *told.0.lock() = contact,
                    Then::Answers => drop(held),
                }
                let ended = second.await;
                if then == Then::Told(Contact::Over) {
                    assert_eq!(ended.unwrap_err().kind(), ErrorKind::OldEpoch);
                    assert_eq!(opened.log.view(), before);
                    return;
                }
                ended.unwrap();
                assert_eq!(value(&opened, "b").await.as_deref(), Some("2"));
                match then {
                    Then::Answers => assert_eq!(opened.log.view(), before),
                    Then::Told(_) => assert_eq!(opened.log.view(), [OWN]),
                }
            });
            ran.finished();
        }
    }

    /// Begins to drain an NSD.
    async fn give_up(pool: &Pool, nsd: NsdId) {
        let mut map = (*pool.map()).clone();
        map.epoch = map.epoch.next();
        let entry = map.nsds.iter_mut().find(|entry| entry.nsd == nsd);
        entry.unwrap().state = NsdState::Draining;
        pool.set_map(map).await.unwrap();
    }

    /// Would be broken if a node that nobody reaches took the log to itself because the NSD of another node is given up; if
    /// nothing were written until it is known whether somebody does; or if the NSD were kept although somebody does.
    #[test]
    fn a_log_leaves_an_nsd_that_is_given_up_for_its_own_node_only_if_the_cluster_hears_it() {
        for told_at_last in [Contact::Heard, Contact::Over] {
            let machine = machine(41, Scheme::Replicate(2), 2);
            let ran = machine.run(move |world| async move {
                let (told, opening) = owner_that_nobody_hears(&world).await;
                let opened = open(opening.clone()).await.unwrap();
                commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
                let before = opened.log.view();
                assert_eq!(before.len(), 2);
                give_up(&opening.pool, FAR).await;
                for number in 2..=4 {
                    let begun = world.now();
                    let writing = async {
                        let rows = [("b", Some("2"))];
                        commit(&opened, number, &rows).await.unwrap();
                        world.now() - begun
                    };
                    // One NSD is enough for the log.
                    let (left, took) = join(opened.log.leave_given_up(1), writing).await;
                    left.unwrap();
                    assert!(took < HEARD_MAX / 2, "{took:?}");
                    assert_eq!(opened.log.view(), before);
                    assert_eq!(opened.log.failed(), None);
                }
                *told.0.lock() = told_at_last;
                let left = opened.log.leave_given_up(1).await;
                if told_at_last == Contact::Over {
                    assert_eq!(left.unwrap_err().kind(), ErrorKind::OldEpoch);
                    assert_eq!(opened.log.view(), before);
                    return;
                }
                left.unwrap();
                assert_eq!(opened.log.view(), [OWN]);
                commit(&opened, 5, &[("c", Some("3"))]).await.unwrap();
            });
            ran.finished();
        }
    }

    /// Would be broken if an NSD were kept because nobody hears the node, although yet another node takes the log.
    #[test]
    fn a_log_goes_from_another_node_to_the_next_one_whether_the_cluster_hears_the_owner_or_not() {
        let machine = machine(43, Scheme::Replicate(2), 3);
        let ran = machine.run(|world| async move {
            let (_, opening) = owner_that_nobody_hears(&world).await;
            let opened = open(opening.clone()).await.unwrap();
            commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
            let before = opened.log.view();
            let far = before.iter().copied().find(|nsd| *nsd != OWN).unwrap();
            give_up(&opening.pool, far).await;
            opened.log.leave_given_up(2).await.unwrap();
            let after = opened.log.view();
            assert_eq!(after.len(), 2);
            assert!(!after.contains(&far), "{after:?}");
            commit(&opened, 2, &[("a", Some("2"))]).await.unwrap();
        });
        ran.finished();
    }

    /// Would be broken if a node that nobody reaches took the log to itself when it opens the shard again.
    #[test]
    fn a_take_over_leaves_the_nsds_of_other_nodes_only_if_the_cluster_hears_the_node() {
        let machine = machine(39, Scheme::Replicate(2), 2);
        let ran = machine.run(|world| async move {
            let (told, opening) = owner_that_nobody_hears(&world).await;
            let opened = open(opening.clone()).await.unwrap();
            commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
            let _held = loopback(FAR).hold(|_| true);
            let mut opens = pin!(errand::begin(open(opening.clone())));
            let mut causes = BTreeSet::new();
            let ended = loop {
                match world.timeout(Duration::from_secs(1), opens.as_mut()).await {
                    Ok(ended) => break ended,
                    Err(_) => causes.extend(world.waits().0.iter().map(|wait| wait.cause)),
                }
            };
            let refused = ended.err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
            assert!(causes.contains(HEARD_WAIT), "{causes:?}");
            let record = opening.coordination.shard(SHARD).await.unwrap().unwrap();
            assert_eq!(record.value.view.len(), 2);
            *told.0.lock() = Contact::Heard;
            let opened = open(opening).await.unwrap();
            assert_eq!(opened.log.view(), [OWN]);
            assert_eq!(value(&opened, "a").await.as_deref(), Some("1"));
        });
        ran.finished();
    }
}
