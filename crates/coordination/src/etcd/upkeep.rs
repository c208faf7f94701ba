//! Room in an etcd's database: alarms, and what ends them.
//!
//! Servers that a daemon runs compact their history themselves (`server`). One that is given must be
//! started with `--auto-compaction-retention`, or be compacted by its operator: others may use its
//! history, so Shale doesn't.

use super::client::{Failed, Times};
use super::gateway::{self, AlarmRequest, AlarmsAnswer, Compaction, Done, Nothing, Number};
use super::members::{CHANGE_MAX, Etcd, EtcdMemberId};
use super::refusal::Meaning;
use super::settings::EtcdEndpoint;
use model::{Error, ErrorKind, Result};
use std::time::Duration;
use world::Deadline;

/// How long a member may take to rewrite its database.
const DEFRAGMENT_MAX: Duration = Duration::from_secs(60);

/// What a member complains of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EtcdAlarm {
    /// Its database is full: nobody can change anything.
    NoSpace(EtcdMemberId),
    /// Its data differ from those of the others: remove the member and add it anew.
    Corrupt(EtcdMemberId),
    /// Something that Shale doesn't know.
    Other(EtcdMemberId, String),
}

/// A member that hasn't rewritten its database when room was made: it may be full again at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdLeftOut {
    /// Where it is asked.
    pub endpoint: EtcdEndpoint,
    /// Why it hasn't.
    pub error: Error,
}

/// An etcd whose history is forgotten, so that rewriting its databases makes room.
pub(super) struct Forgotten {
    /// The endpoints that answer, with their places.
    answering: Vec<(usize, EtcdEndpoint)>,
    left_out: Vec<EtcdLeftOut>,
}

impl Etcd {
    /// All alarms.
    ///
    /// # Errors
    /// `Unavailable`: ask again.
    pub async fn alarms(&self) -> Result<Vec<EtcdAlarm>> {
        let get = AlarmRequest {
            action: "GET",
            member: None,
            alarm: None,
        };
        let asked = self
            .client
            .ask::<AlarmsAnswer>(gateway::ALARM, &get, Times::Any);
        let alarms = asked.await?.alarms.into_iter();
        Ok(alarms
            .map(|alarm| {
                let member = EtcdMemberId(alarm.member.0);
                match alarm.alarm.as_str() {
                    "NOSPACE" => EtcdAlarm::NoSpace(member),
                    "CORRUPT" => EtcdAlarm::Corrupt(member),
                    _ => EtcdAlarm::Other(member, alarm.alarm),
                }
            })
            .collect())
    }

    /// Makes room in a full database and ends its alarms: forgets the history (watches that are behind
    /// are lost), then each endpoint's member rewrites its database, during which it answers nobody.
    /// Only for an etcd that is Shale's alone. The endpoints must be all of its members. One that doesn't answer, or can't
    /// rewrite its database, is left out, and told: if it is full when it is asked for a change, there is another alarm.
    ///
    /// # Errors
    /// `Unavailable`: too few members answered, or none could rewrite its database; ask again, it does no harm. `NoSpace`:
    /// it is full of facts: raise `--quota-backend-bytes`.
    pub async fn make_room(&self) -> Result<Vec<EtcdLeftOut>> {
        let forgotten = self.forget_history().await?;
        self.rewrite(forgotten).await
    }

    /// The first half of [`Etcd::make_room`], for which nobody waits.
    ///
    /// # Errors
    /// `Unavailable`: too few members answered.
    pub(super) async fn forget_history(&self) -> Result<Forgotten> {
        let (mut answering, mut left_out) = (Vec::new(), Vec::new());
        let mut revision: Option<u64> = None;
        for (at, (endpoint, status)) in self.status().await.into_iter().enumerate() {
            match status {
                Ok(status) => {
                    let known = revision.unwrap_or(status.revision);
                    revision = Some(known.min(status.revision));
                    answering.push((at, endpoint));
                }
                Err(error) => left_out.push(leave_out(endpoint, error)),
            }
        }
        if let Some(last) = left_out.last().filter(|_| answering.is_empty()) {
            return Err(last.error.clone());
        }
        let compaction = Compaction {
            revision: Number(revision.unwrap_or(0)),
            physical: true,
        };
        let deadline = Deadline::after(self.client.world(), CHANGE_MAX);
        let client = &self.client;
        let asked =
            client.ask_until::<Done>(gateway::COMPACTION, &compaction, Times::Any, deadline);
        match asked.await {
            Ok(_) => {}
            // By an attempt before, or by the server itself.
            Err(Failed::Refused(refusal)) if refusal.meaning == Meaning::Compacted => {}
            Err(failed) => {
                return Err(Error::from(failed).while_doing("forgetting etcd's history"));
            }
        }
        Ok(Forgotten {
            answering,
            left_out,
        })
    }

    /// The second half of [`Etcd::make_room`]: one member after the other rewrites its database, then alarms end.
    ///
    /// # Errors
    /// As there.
    pub(super) async fn rewrite(&self, forgotten: Forgotten) -> Result<Vec<EtcdLeftOut>> {
        let Forgotten {
            answering,
            mut left_out,
        } = forgotten;
        let client = &self.client;
        let mut rewritten = 0;
        for (at, endpoint) in answering {
            let deadline = Deadline::after(client.world(), DEFRAGMENT_MAX);
            let asked = client.ask_endpoint::<Done>(at, gateway::DEFRAGMENT, &Nothing {}, deadline);
            match asked.await {
                Ok(Done {}) => rewritten += 1,
                // It needs room on its disk for what is in use, once more. One whose disk is full says so, and etcd before
                // 3.4.35 and 3.5.17 dies of it (its issue 18810): the others mustn't stay full for that.
                Err(error) => {
                    let error = error.while_doing("rewriting a member's database");
                    left_out.push(leave_out(endpoint, error));
                }
            }
        }
        if let Some(last) = left_out.last().filter(|_| rewritten == 0) {
            return Err(last.error.clone());
        }
        for alarm in self.alarms().await? {
            let EtcdAlarm::NoSpace(member) = alarm else {
                continue;
            };
            let end = AlarmRequest {
                action: "DEACTIVATE",
                member: Some(Number(member.0)),
                alarm: Some("NOSPACE".to_owned()),
            };
            // Rewriting may have taken minutes.
            let deadline = Deadline::after(client.world(), CHANGE_MAX);
            let AlarmsAnswer { .. } = self.change(gateway::ALARM, &end, deadline).await?;
        }
        // A member that is still full says so with the next change, which nobody may make for long.
        let left = self.alarms().await?;
        if left.iter().any(|it| matches!(it, EtcdAlarm::NoSpace(_))) {
            let text = "etcd is full of facts: raise its --quota-backend-bytes";
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        Ok(left_out)
    }
}

fn leave_out(endpoint: EtcdEndpoint, error: Error) -> EtcdLeftOut {
    tracing::warn!(%endpoint, %error, "a member of etcd is left out while room is made");
    EtcdLeftOut { endpoint, error }
}
