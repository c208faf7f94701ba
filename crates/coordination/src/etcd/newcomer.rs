//! How a machine that has no data of a member becomes one: it is added without a vote, when it is its turn.
//!
//! etcd has one member without a vote at a time. One that was added and never started keeps all others out: its machine broke
//! off. Whoever waits for its turn and sees the same one for [`ABANDONED_AFTER`] removes it; a machine that comes back later
//! adds itself again.

use super::members::{Etcd, EtcdMember, EtcdMemberId};
use model::{Error, ErrorKind, Result};
use std::time::Duration;
use world::{Deadline, Instant};

/// A machine starts its member within seconds after it was added.
const ABANDONED_AFTER: Duration = Duration::from_secs(45);
/// How long etcd may take for one change.
const STEP_MAX: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// What a machine that wants to add its member does next.
#[derive(PartialEq, Eq, Debug)]
enum Turn {
    /// It was added.
    Added,
    /// This one is in the way and of no use to anybody.
    Remove(EtcdMemberId),
    /// Nobody is in the way.
    Add,
    /// Another machine is joining.
    Wait(EtcdMemberId),
}

impl Etcd {
    /// Adds the member of a machine that has no data of one, without a vote until it has been started and
    /// [promoted](Etcd::promote). Returns all members, the new one with them; it has no name yet.
    ///
    /// A learner at this URL that was never started is this machine's, from an attempt before, and taken over. Any other
    /// member at this URL, or learner with this name, has lost its data, and is removed first: started again without its
    /// log it would vote, and not know what it had agreed to, so that etcd could forget what it has acknowledged.
    ///
    /// Until the deadline it waits for its turn, and asks again what gave no answer.
    ///
    /// # Errors
    /// `Busy`: another machine is joining, or etcd isn't ready. `Unavailable`: it doesn't answer; it may have been added.
    pub async fn add_newcomer(
        &self,
        name: &str,
        peer_url: &str,
        deadline: Deadline,
    ) -> Result<Vec<EtcdMember>> {
        let world = self.client.world();
        let mut waited = None;
        loop {
            match self.step(name, peer_url, &mut waited, deadline).await {
                Ok(Some(members)) => return Ok(members),
                Ok(None) => continue,
                // Others may be joining, members that have just started must hear each other first, and whether one was
                // added isn't known after a lost answer.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Unavailable | ErrorKind::Busy | ErrorKind::Exists
                    ) && !deadline.has_passed(world) => {}
                Err(error) => return Err(error),
            }
            world.sleep(AGAIN_AFTER).await;
        }
    }

    /// Does what is due next; returns the members once the machine's is among them.
    async fn step(
        &self,
        name: &str,
        peer_url: &str,
        waited: &mut Option<(EtcdMemberId, Instant)>,
        deadline: Deadline,
    ) -> Result<Option<Vec<EtcdMember>>> {
        let members = self.members().await?;
        let world = self.client.world();
        let now = world.now();
        let soon = Deadline::after(world, STEP_MAX).min(deadline);
        let since = waited.map(|(id, since)| (id, now - since));
        match turn(&members, name, peer_url, since) {
            Turn::Added => return Ok(Some(members)),
            Turn::Remove(id) => {
                tracing::warn!(
                    member = %id,
                    url = peer_url,
                    "a member of etcd is removed: its machine has no data of it, or never started it"
                );
                self.remove_if_there(id, soon).await?;
            }
            Turn::Add => drop(self.add_learner(&[peer_url.to_owned()], soon).await?),
            Turn::Wait(id) => {
                if waited.is_none_or(|(before, _)| before != id) {
                    *waited = Some((id, now));
                }
                return Err(in_the_way(&members, id));
            }
        }
        Ok(None)
    }
}

/// The rule. `waited`: a member that was in the way before, and for how long.
fn turn(
    members: &[EtcdMember],
    name: &str,
    peer_url: &str,
    waited: Option<(EtcdMemberId, Duration)>,
) -> Turn {
    if let Some(own) = members.iter().find(|it| it.is_at(peer_url)) {
        // One that has run had data, and this machine has none.
        return match own.was_never_started() {
            true => Turn::Added,
            false => Turn::Remove(own.id),
        };
    }
    let Some(other) = members.iter().find(|it| it.is_learner) else {
        return Turn::Add;
    };
    let is_abandoned = other.was_never_started()
        && waited.is_some_and(|(id, time)| id == other.id && time >= ABANDONED_AFTER);
    match is_abandoned || other.name == name {
        true => Turn::Remove(other.id),
        false => Turn::Wait(other.id),
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
    fn a_member_that_never_started_keeps_no_other_machine_out_for_good() {
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
    fn whoever_waits_is_told_who_is_in_the_way() {
        let other = member(2, "", "https://10.0.0.2:7313", true);
        let said = in_the_way(&[other], EtcdMemberId(2));
        assert_eq!(said.kind(), ErrorKind::Busy);
        let said = said.to_string();
        assert!(said.contains("https://10.0.0.2:7313"), "{said}");
    }
}
