//! What an etcd that is Shale's alone needs from time to time, so that nobody has to look after it: room in its database,
//! and no place held by machines that never came.
//!
//! Asked for by the node whose member leads: there is one of it whenever anything can be done at all, while a full etcd
//! may have no manager. Two that believe so for a moment do no harm, because each step can be done twice.

use super::members::{Etcd, EtcdMember, EtcdMemberId};
use super::settings::{ENDPOINTS_MAX, EtcdEndpoint, EtcdSettings};
use super::upkeep::{EtcdAlarm, EtcdLeftOut};
use model::Result;
use std::collections::BTreeMap;
use std::time::Duration;
use world::{Deadline, Instant, World};

/// How long a member that was added may take to run for the first time. etcd takes no other newcomer meanwhile.
pub const UNSTARTED_MAX: Duration = Duration::from_secs(600);
/// How long the alarm of a full etcd stays when a member couldn't rewrite its database in the round before. Each round keeps
/// everybody waiting while the others rewrite theirs, and may end the member that can't. Doubles with each such round ...
const AGAIN_MIN: Duration = Duration::from_secs(60);
/// ... up to this.
const AGAIN_MAX: Duration = Duration::from_secs(600);
/// How long the removal of one may take.
const REMOVE_MAX: Duration = Duration::from_secs(30);

/// Looks after an etcd.
pub struct EtcdTending {
    world: World,
    /// Since when members are known that have never run.
    unstarted: BTreeMap<EtcdMemberId, Instant>,
    rounds: Rounds,
}

/// Rounds in which room is made.
#[derive(Default)]
struct Rounds {
    /// How long to wait after the last round, and until when, if that didn't do all.
    waits: Option<(Duration, Instant)>,
}

impl Rounds {
    fn is_due(&self, now: Instant) -> bool {
        self.waits.is_none_or(|(_, until)| now >= until)
    }

    /// A round has ended, in which all members have rewritten their databases or not.
    fn end(&mut self, did_all: bool, now: Instant) {
        let pause = match self.waits {
            None => AGAIN_MIN,
            Some((pause, _)) => (pause * 2).min(AGAIN_MAX),
        };
        self.waits = match did_all {
            true => None,
            false => Some((pause, now + pause)),
        };
    }
}

/// Something that was done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EtcdTended {
    /// The database was full, and isn't any more, but at these members.
    MadeRoom(Vec<EtcdLeftOut>),
    /// A member that never ran was removed.
    Removed(EtcdMember),
}

/// What was found and done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdTour {
    /// The members, without those that were removed.
    pub members: Vec<EtcdMember>,
    /// What was done.
    pub done: Vec<EtcdTended>,
}

impl EtcdTending {
    /// Has seen nothing yet.
    #[must_use]
    pub fn new(world: &World) -> Self {
        Self {
            world: world.clone(),
            unstarted: BTreeMap::new(),
            rounds: Rounds::default(),
        }
    }

    /// Looks once, and does what is due: removes members that haven't run within [`UNSTARTED_MAX`] after they were first
    /// seen here, and makes room if the database is full. May take minutes then. If not all members could do their part the
    /// time before, it waits longer, up to ten minutes, unless there was no alarm meanwhile.
    ///
    /// # Errors
    /// `Unavailable`: etcd doesn't answer; `NoSpace`: it is full of facts. Look again later.
    pub async fn look(&mut self, settings: &EtcdSettings) -> Result<EtcdTour> {
        let etcd = Etcd::new(&self.world, settings)?;
        let members = etcd.members().await?;
        let mut done = Vec::new();
        for member in self.overdue(&members, self.world.now()) {
            let deadline = Deadline::after(&self.world, REMOVE_MAX);
            etcd.remove_if_there(member.id, deadline).await?;
            done.push(EtcdTended::Removed(member));
        }
        let alarms = etcd.alarms().await?;
        let is_full = alarms.iter().any(|it| matches!(it, EtcdAlarm::NoSpace(_)));
        if !is_full {
            self.rounds = Rounds::default();
        } else if self.rounds.is_due(self.world.now()) {
            let all = of_all(&self.world, settings, &members)?;
            // Whoever doesn't come so far has kept nobody waiting.
            let forgotten = all.forget_history().await?;
            let rewritten = all.rewrite(forgotten).await;
            let did_all = matches!(&rewritten, Ok(left_out) if left_out.is_empty());
            self.rounds.end(did_all, self.world.now());
            done.push(EtcdTended::MadeRoom(rewritten?));
        }
        let is_left = |it: &EtcdMember| !done.contains(&EtcdTended::Removed(it.clone()));
        Ok(EtcdTour {
            members: members.into_iter().filter(is_left).collect(),
            done,
        })
    }

    /// The members that have had enough time to run, and haven't.
    fn overdue(&mut self, members: &[EtcdMember], now: Instant) -> Vec<EtcdMember> {
        let unstarted = members.iter().filter(|it| it.was_never_started());
        let seen: BTreeMap<_, _> = unstarted
            .clone()
            .map(|it| (it.id, *self.unstarted.get(&it.id).unwrap_or(&now)))
            .collect();
        let overdue = unstarted.filter(|it| now - seen[&it.id] >= UNSTARTED_MAX);
        let overdue = overdue.cloned().collect();
        self.unstarted = seen;
        overdue
    }
}

/// The etcd at the endpoints of all its members, whichever of them the settings name.
fn of_all(world: &World, settings: &EtcdSettings, members: &[EtcdMember]) -> Result<Etcd> {
    let urls = members.iter().filter_map(|it| it.client_urls.first());
    let endpoints: Result<Vec<EtcdEndpoint>> = urls.map(|it| it.parse()).collect();
    let mut endpoints = endpoints?;
    // As the settings have them: these may say more of a certificate.
    for endpoint in &mut endpoints {
        let known = settings.endpoints.iter();
        let mut known = known.filter(|it| it.authority() == endpoint.authority());
        if let Some(known) = known.next() {
            endpoint.clone_from(known);
        }
    }
    endpoints.truncate(ENDPOINTS_MAX);
    let settings = EtcdSettings {
        endpoints,
        ..settings.clone()
    };
    Etcd::new(world, &settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use world::sim::Simulation;

    fn member(id: u64, name: &str, is_learner: bool) -> EtcdMember {
        EtcdMember {
            id: EtcdMemberId(id),
            name: name.to_owned(),
            peer_urls: vec![format!("https://10.0.0.{id}:7313")],
            client_urls: Vec::new(),
            is_learner,
        }
    }

    #[test]
    fn a_member_that_never_ran_is_removed_after_a_while_and_no_other_is() {
        let ran = Simulation::new(1).run(async |world: World| {
            let mut tending = EtcdTending::new(&world);
            let newcomer = member(4, "", true);
            let members = [
                member(1, "n1", false),
                // Runs, and copies what there is.
                member(3, "n3", true),
                newcomer.clone(),
            ];
            assert_eq!(tending.overdue(&members, world.now()), []);
            world.sleep(UNSTARTED_MAX - Duration::from_millis(1)).await;
            assert_eq!(tending.overdue(&members, world.now()), []);
            world.sleep(Duration::from_millis(1)).await;
            assert_eq!(
                tending.overdue(&members, world.now()),
                std::slice::from_ref(&newcomer)
            );
            // The next one at its place has its own time.
            assert_eq!(tending.overdue(&members[..2], world.now()), []);
            assert_eq!(tending.overdue(&members, world.now()), []);
        });
        ran.finished();
    }
}
