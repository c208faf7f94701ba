//! Requests that are lost with etcd's leader: copies of them are sent to other members.
//!
//! A member that has passed a change on to a leader which dies waits for it until its own limit, five seconds or more, and
//! says nothing meanwhile, although another leader is elected after one or two (etcd 3.4 and 3.5: only reads hear of the
//! election). Whoever needs the answer would wait as long. So a request whose copies do no harm is sent again while the first
//! one is still waited for.

use super::client::{Client, Failed, REQUEST_DEADLINE, Times};
use super::gateway::{self, Answer, Grant, GrantAnswer, Transaction, TransactionAnswer};
use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use model::{Error, ErrorKind};
use std::pin::pin;
use std::time::Duration;
use world::Deadline;

/// When copies follow the first request, if none has been answered. An election takes one or two seconds; a disk of etcd that
/// is slow for so long gets a few writes more, no more than these.
const COPIES_AFTER: [Duration; 6] = [
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1200),
    Duration::from_millis(1600),
    Duration::from_millis(2000),
    Duration::from_millis(3000),
];
/// How long those before are waited for when a copy was too late: the one that was made answers soon, if it answers at all.
const GRACE: Duration = Duration::from_millis(400);

/// What an answer says of the request.
enum Said<A> {
    /// It was made, or this copy was, by this endpoint.
    Done(A, usize),
    /// This copy has done nothing, so one before it may have done all.
    Nothing(Result<A, Failed>),
    /// Nobody knows.
    Unknown(Error),
}

impl Client {
    /// Makes changes at most once, of which one must change a key that is there at its expected version: the revision of a key
    /// is never used again, so a copy that comes later finds another one and changes nothing. (A key that is made may be
    /// made again by a copy after somebody has removed it.)
    ///
    /// # Errors
    /// As for other requests. After `NoAnswer` it is unknown whether the changes were made, also if a copy found other
    /// versions.
    pub(super) async fn change_guarded(
        &self,
        transaction: &Transaction,
    ) -> Result<TransactionAnswer, Failed> {
        let body = super::client::encode(transaction);
        let is_done = |answer: &TransactionAnswer| answer.succeeded;
        self.ask_copies((gateway::TRANSACTION, body), is_done).await
    }

    /// Grants a lease. One that a copy was granted ends by itself.
    ///
    /// # Errors
    /// As for other requests.
    pub(super) async fn grant(&self, grant: &Grant) -> Result<GrantAnswer, Failed> {
        let body = super::client::encode(grant);
        self.ask_copies((gateway::GRANT, body), |_: &GrantAnswer| true)
            .await
    }

    async fn ask_copies<A: Answer>(
        &self,
        request: (&'static str, Bytes),
        is_done: impl Fn(&A) -> bool,
    ) -> Result<A, Failed> {
        let asked = pin!(self.ask_copies_unlisted(request, is_done));
        self.listed(asked).await
    }

    async fn ask_copies_unlisted<A: Answer>(
        &self,
        (path, body): (&'static str, Bytes),
        is_done: impl Fn(&A) -> bool,
    ) -> Result<A, Failed> {
        let world = self.world();
        let deadline = Deadline::after(world, REQUEST_DEADLINE);
        // One for all copies: what else is asked meanwhile, above all what can be read, mustn't wait for their end.
        let _place = self.place(deadline).await?;
        // A single member is lost with its leader.
        let more = match self.endpoints().len() {
            1 => &[],
            _ => &COPIES_AFTER[..],
        };
        let mut times = more.iter().map(|time| Deadline::after(world, *time));
        let mut copies = FuturesUnordered::new();
        // Each copy begins with the next member, also if who lost the one before is preferred no longer.
        let mut from = self.preferred();
        let mut begin = || {
            let asked = self.ask_placed((path, body.clone(), Times::Once), from, deadline);
            from += 1;
            asked
        };
        copies.push(begin());
        let mut next = times.next();
        let mut lost = None;
        loop {
            let until = next.map_or(deadline, |next| next.min(deadline));
            let said = match until.bound(world, copies.next()).await {
                Ok(Some(answer)) => told_by(answer, &is_done),
                // All are lost, or it is time for another one.
                Ok(None) | Err(_) => {
                    if deadline.has_passed(world) {
                        return Err(lost.unwrap_or_else(unanswered));
                    }
                    if copies.is_empty() {
                        let Some(next) = next else {
                            return Err(lost.unwrap_or_else(unanswered));
                        };
                        world.sleep(next.rest(world)).await;
                    }
                    copies.push(begin());
                    next = times.next();
                    continue;
                }
            };
            match said {
                Said::Done(answer, at) => return Ok(self.won(answer, at, copies)),
                Said::Unknown(error) => lost = Some(Failed::NoAnswer(error)),
                Said::Nothing(answer) if copies.is_empty() && lost.is_none() => return answer,
                Said::Nothing(answer) => {
                    let soon = deadline.min(Deadline::after(world, GRACE));
                    while let Ok(Some(other)) = soon.bound(world, copies.next()).await {
                        match told_by(other, &is_done) {
                            Said::Done(answer, at) => return Ok(self.won(answer, at, copies)),
                            Said::Unknown(error) => lost = Some(Failed::NoAnswer(error)),
                            // Who refuses may have made it all the same (`Meaning::Full`), so that the others found it.
                            Said::Nothing(Err(refused)) => lost = Some(refused),
                            Said::Nothing(Ok(_)) => {}
                        }
                    }
                    let have_all_looked = copies.is_empty() && lost.is_none();
                    return match answer {
                        Ok(answer) if have_all_looked => Ok(answer),
                        _ => Err(Failed::NoAnswer(too_late())),
                    };
                }
            }
        }
    }

    /// The answer that counts; the other copies are given up. Who gave it is asked first from now on, also if one of the
    /// others is lost there: that would be taken for silence.
    fn won<A, F>(&self, answer: A, at: usize, copies: FuturesUnordered<F>) -> A {
        drop(copies);
        self.prefer(at, "it has answered a copy of a request");
        answer
    }
}

fn told_by<A>(answer: Result<(A, usize), Failed>, is_done: impl Fn(&A) -> bool) -> Said<A> {
    match answer {
        Ok((answer, at)) if is_done(&answer) => Said::Done(answer, at),
        Ok((answer, _)) => Said::Nothing(Ok(answer)),
        Err(Failed::NoAnswer(error)) => Said::Unknown(error),
        Err(refused) => Said::Nothing(Err(refused)),
    }
}

fn unanswered() -> Failed {
    let text = "etcd doesn't answer: whether the request took effect is unknown";
    Failed::NoAnswer(Error::new(ErrorKind::Unavailable, text))
}

fn too_late() -> Error {
    let text = "etcd has answered only a copy of the request, which came too late: whether the request took effect is \
                unknown";
    Error::new(ErrorKind::Unavailable, text)
}
