//! Asks an etcd of several members: who is asked, how often, until when.
//!
//! A request goes to the member that answered last. Another one gets it only if it certainly wasn't
//! done: no connection, a member that knows of no leader. What only reads, or may be done twice, is
//! also asked elsewhere when no answer comes; of what changes a key that is there, whose copies can't
//! change it again, copies are sent (`copies`). Everything else ends with an unknown outcome: nothing
//! here repeats what may have run.
//!
//! Each new connection begins with a question who is there: a member of another etcd, an older one, or
//! one without a vote gets no requests.

use super::connection::{Answered, HttpConnection, NoAnswer};
use super::gateway::{self, Answer, Nothing, StatusAnswer};
use super::refusal::{Meaning, Refusal};
use super::settings::{EtcdEndpoint, EtcdSettings};
use bytes::Bytes;
use hyper::body::Incoming;
use model::{Error, ErrorKind};
use parking_lot::Mutex;
use rustls::ClientConfig;
use serde::Serialize;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use world::{Deadline, Instant, Part, World};

/// The cause by which waits for an etcd are listed.
const ETCD_WAIT: &str = "coordination";

/// How long an answer is waited for; etcd's own limit is about as long.
pub(super) const REQUEST_DEADLINE: Duration = Duration::from_secs(5);
/// How long one of several endpoints may take to answer what can be asked elsewhere: so short that a caller who waits
/// for a second gets the answer of another one. All being slow, twice as long in the next round, up to ...
const ATTEMPT_MIN: Duration = Duration::from_millis(400);
/// ... this; and ...
const ATTEMPT_MAX: Duration = Duration::from_millis(1500);
/// ... how long a connection to it may take, in the same way.
const CONNECT_MIN: Duration = Duration::from_millis(250);
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// An endpoint that has said nothing for so long when its caller gives up is asked last from then on.
const SILENT: Duration = Duration::from_millis(200);
/// Pause after all endpoints have failed; each time twice as long, up to ...
const PAUSE: Duration = Duration::from_millis(100);
/// ... this.
const PAUSE_MAX: Duration = Duration::from_millis(800);
/// Most requests at the same time; more wait within their deadlines.
const REQUESTS_MAX: usize = 64;
/// Most watches at the same time, each with a connection of its own; more are silent.
const WATCHES_MAX: usize = 64;
/// Most open connections to an endpoint that wait for their next request.
const KEPT_MAX: usize = 8;
/// The oldest etcd that has all we use.
const OLDEST: (u32, u32) = (3, 4);

/// Whether a request may be done twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Times {
    /// It changes nothing, or twice the same as once.
    Any,
    /// Never twice.
    Once,
}

/// An etcd.
pub(super) struct Client {
    world: World,
    endpoints: Vec<Endpoint>,
    tls: Option<Arc<ClientConfig>>,
    /// The endpoint that is asked first.
    preferred: AtomicUsize,
    known: Arc<Known>,
    places: Semaphore,
    watches: Semaphore,
}

/// What this process knows of the etcd, whichever of its clients has learned it.
#[derive(Default)]
struct Known {
    /// The etcd that all endpoints belong to.
    cluster: OnceLock<u64>,
    /// The highest revision that it has answered with.
    newest: AtomicU64,
}

struct Endpoint {
    address: EtcdEndpoint,
    /// Connections that wait for their next request.
    kept: Mutex<Vec<HttpConnection>>,
    /// What was last said of it in the log; empty: nothing, or it has answered since.
    noted: Mutex<String>,
}

/// A request that an endpoint hasn't answered yet. If its caller drops it after a while, which is shorter than ours,
/// the endpoint is left for the next one all the same.
struct Waiting<'a> {
    client: &'a Client,
    at: usize,
    since: Instant,
    is_over: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let client = self.client;
        if !self.is_over && client.world.now() - self.since >= SILENT {
            client.endpoints[self.at].kept.lock().clear();
            let why = "it was silent for as long as its caller waited";
            client.note(self.at, Some(&Fault::Unknown(why.to_owned())));
            if client.preferred() == self.at {
                client.prefer((self.at + 1) % client.endpoints.len(), why);
            }
        }
    }
}

/// Why an endpoint gave no answer that counts.
#[derive(Debug)]
pub(super) enum Fault {
    /// The request was certainly not done.
    NotDone(String),
    /// It may have been done.
    Unknown(String),
    /// etcd has refused it, finally.
    Refused(Refusal),
}

/// Why a request failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// No endpoint answered in time.
    NoAnswer(Error),
    /// etcd has refused it.
    Refused(Refusal),
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::NoAnswer(error) => error,
            Failed::Refused(refusal) => refusal.into_error(),
        }
    }
}

impl From<NoAnswer> for Fault {
    fn from(none: NoAnswer) -> Self {
        match none {
            NoAnswer::NotSent(text) => Self::NotDone(text),
            NoAnswer::Unknown(text) => Self::Unknown(text),
        }
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        match refusal.meaning {
            Meaning::NotHere => Self::NotDone(refusal.text().to_owned()),
            Meaning::Other => Self::Unknown(refusal.text().to_owned()),
            _ => Self::Refused(refusal),
        }
    }
}

impl Fault {
    fn text(&self) -> &str {
        match self {
            Self::NotDone(text) | Self::Unknown(text) => text,
            Self::Refused(refusal) => refusal.text(),
        }
    }
}

impl Client {
    pub(super) fn new(world: &World, settings: &EtcdSettings) -> model::Result<Self> {
        settings.check()?;
        let known = Known {
            cluster: settings.cluster.map(OnceLock::from).unwrap_or_default(),
            ..Known::default()
        };
        Ok(Self {
            world: world.clone(),
            endpoints: settings.endpoints.iter().map(Endpoint::new).collect(),
            tls: settings.tls.clone(),
            preferred: AtomicUsize::new(0),
            known: Arc::new(known),
            places: Semaphore::new(REQUESTS_MAX),
            watches: Semaphore::new(WATCHES_MAX),
        })
    }

    /// Another client of the same etcd, with connections, timers and room for requests of its own, in this world.
    pub(super) fn beside(&self, world: World) -> Self {
        Self {
            world,
            endpoints: self.endpoints().map(Endpoint::new).collect(),
            tls: self.tls.clone(),
            preferred: AtomicUsize::new(self.preferred()),
            known: self.known.clone(),
            places: Semaphore::new(REQUESTS_MAX),
            watches: Semaphore::new(WATCHES_MAX),
        }
    }

    pub(super) fn world(&self) -> &World {
        &self.world
    }

    /// The etcd that is asked, once a member has said which it is.
    pub(super) fn cluster(&self) -> Option<u64> {
        self.known.cluster.get().copied()
    }

    /// Asks the same etcd as another client did, and believes no less.
    pub(super) fn follow_on(&self, before: &Self) {
        if let Some(cluster) = before.cluster() {
            // The settings may name it already; whichever is wrong, its members are refused.
            let _ = self.known.cluster.set(cluster);
        }
        let newest = before.known.newest.load(Ordering::Relaxed);
        self.known.newest.fetch_max(newest, Ordering::Relaxed);
    }

    pub(super) fn endpoints(&self) -> impl ExactSizeIterator<Item = &EtcdEndpoint> {
        self.endpoints.iter().map(|endpoint| &endpoint.address)
    }

    /// The endpoint to ask first.
    pub(super) fn preferred(&self) -> usize {
        self.preferred.load(Ordering::Relaxed)
    }

    /// Asks until [`REQUEST_DEADLINE`].
    pub(super) async fn ask<A: Answer>(
        &self,
        path: &'static str,
        body: &impl Serialize,
        times: Times,
    ) -> Result<A, Failed> {
        let deadline = Deadline::after(&self.world, REQUEST_DEADLINE);
        let (answer, _) = self.ask_until(path, body, times, deadline).await?;
        Ok(answer)
    }

    /// Asks until the deadline. Returns the answer and who gave it.
    pub(super) async fn ask_until<A: Answer>(
        &self,
        path: &'static str,
        body: &impl Serialize,
        times: Times,
        deadline: Deadline,
    ) -> Result<(A, usize), Failed> {
        let asked = (path, encode(body), times);
        let asked = pin!(self.ask_in_turn(asked, self.preferred(), deadline));
        self.listed(asked).await
    }

    /// Waits for etcd, and says so in the list of waits.
    pub(super) async fn listed<T>(&self, asked: Pin<&mut impl Future<Output = T>>) -> T {
        let part = Part::ForCoordination;
        self.world.listed(ETCD_WAIT, part, asked).await
    }

    /// A place for one more request, within its deadline.
    pub(super) async fn place(&self, deadline: Deadline) -> Result<SemaphorePermit<'_>, Failed> {
        match deadline.bound(&self.world, self.places.acquire()).await {
            Ok(place) => Ok(place.expect("the semaphore is never closed")),
            Err(_) => {
                let text = format!("{REQUESTS_MAX} requests to etcd were under way all the time");
                Err(Failed::NoAnswer(Error::new(ErrorKind::Unavailable, text)))
            }
        }
    }

    async fn ask_in_turn<A: Answer>(
        &self,
        asked: (&'static str, Bytes, Times),
        from: usize,
        deadline: Deadline,
    ) -> Result<(A, usize), Failed> {
        let _place = self.place(deadline).await?;
        self.ask_placed(asked, from, deadline).await
    }

    /// Asks until the deadline, the endpoint `from` first (counted on from the last one to the first). The caller has a
    /// place.
    pub(super) async fn ask_placed<A: Answer>(
        &self,
        (path, body, times): (&'static str, Bytes, Times),
        from: usize,
        deadline: Deadline,
    ) -> Result<(A, usize), Failed> {
        let count = self.endpoints.len();
        let first = from % count;
        let mut faults = vec![String::new(); count];
        // Whether one of the attempts can have been done.
        let mut is_unknown = false;
        let mut pause = PAUSE;
        for attempt in 0.. {
            let at = (first + attempt) % count;
            if attempt > 0 && attempt % count == 0 {
                let rest = deadline.rest(&self.world);
                self.world.sleep(pause.min(rest)).await;
                pause = PAUSE_MAX.min(pause * 2);
            }
            if deadline.has_passed(&self.world) {
                break;
            }
            let asked = (path, body.clone(), times);
            let fault = match self.attempt(at, asked, attempt / count, deadline).await {
                Ok(answer) => {
                    self.prefer(at, &faults[first]);
                    return Ok((answer, at));
                }
                Err(Fault::Refused(refusal)) => {
                    self.prefer(at, &faults[first]);
                    return Err(Failed::Refused(refusal));
                }
                Err(fault) => fault,
            };
            faults[at] = fault.text().to_owned();
            if matches!(fault, Fault::Unknown(_)) {
                is_unknown = true;
                if times == Times::Once {
                    self.prefer((at + 1) % count, &faults[at]);
                    break;
                }
            }
        }
        let outcome = match (times, is_unknown) {
            (Times::Any, _) => "ask again",
            (Times::Once, true) => "whether the request took effect is unknown",
            (Times::Once, false) => "the request wasn't made",
        };
        Err(Failed::NoAnswer(self.unanswered(&faults, outcome)))
    }

    /// Asks this endpoint, whoever it is: also a learner, or one without a leader.
    pub(super) async fn ask_endpoint<A: Answer>(
        &self,
        at: usize,
        path: &'static str,
        body: &impl Serialize,
        deadline: Deadline,
    ) -> model::Result<A> {
        let asking = async {
            let mut connection = self.connect(at, deadline).await.map_err(Fault::NotDone)?;
            let answered = connection.ask(path, encode(body), false).await?;
            decode(answered)
        };
        let answer = match deadline.bound(&self.world, asking).await {
            Ok(answer) => answer,
            Err(_) => Err(Fault::Unknown("no answer in time".to_owned())),
        };
        answer.map_err(|fault| {
            let doing = format!("asking etcd's member at {}", self.endpoints[at].address);
            match fault {
                Fault::Refused(refusal) => refusal.into_error(),
                fault => Error::new(ErrorKind::Unavailable, fault.text()),
            }
            .while_doing(doing)
        })
    }

    /// Whether this endpoint answers until the deadline, and knows of a leader.
    pub(super) async fn is_there(&self, at: usize, deadline: Deadline) -> Result<(), String> {
        let status = (gateway::STATUS, encode(&Nothing {}), Times::Any);
        // The last round: whoever asks has time.
        let asking = self.attempt(at, status, usize::MAX, deadline);
        let answered: Result<StatusAnswer, Fault> = asking.await;
        answered.map(drop).map_err(|fault| fault.text().to_owned())
    }

    /// A place for one more watch.
    pub(super) async fn place_for_watch(&self) -> SemaphorePermit<'_> {
        match self.watches.try_acquire() {
            Ok(place) => place,
            Err(_) => {
                tracing::warn!(WATCHES_MAX, "a watch of etcd waits for another one to end");
                let place = self.watches.acquire().await;
                place.expect("the semaphore is never closed")
            }
        }
    }

    /// Begins a stream of answers from this endpoint, on a connection of its own. `round`: how often all endpoints
    /// have been tried.
    pub(super) async fn stream(
        &self,
        at: usize,
        round: usize,
        path: &'static str,
        body: &impl Serialize,
    ) -> Result<(HttpConnection, Incoming), Fault> {
        let deadline = Deadline::after(&self.world, REQUEST_DEADLINE);
        let beginning = async {
            let patience = self.sooner((CONNECT_MIN, CONNECT_MAX), round, deadline);
            let mut connection = self.introduce(at, patience).await?;
            let (status, answer) = connection.send(path, encode(body), true).await?;
            if status != 200 {
                let body = super::connection::whole(answer).await;
                let body = body.map_err(Fault::Unknown)?;
                return Err(Refusal::of_status(status, &body).into());
            }
            Ok((connection, answer))
        };
        let begun = deadline.bound(&self.world, beginning).await;
        begun.unwrap_or_else(|_| Err(Fault::Unknown("no answer in time".to_owned())))
    }

    /// Asks an endpoint once. `round`: how often all of them have been asked.
    async fn attempt<A: Answer>(
        &self,
        at: usize,
        (path, body, times): (&'static str, Bytes, Times),
        round: usize,
        deadline: Deadline,
    ) -> Result<A, Fault> {
        let endpoint = &self.endpoints[at];
        // What may be asked once only is waited for as long as possible.
        let deadline = match times {
            Times::Any => self.sooner((ATTEMPT_MIN, ATTEMPT_MAX), round, deadline),
            Times::Once => deadline,
        };
        let mut waiting = Waiting {
            client: self,
            at,
            since: self.world.now(),
            is_over: false,
        };
        // Requests that run at the same time may be answered in another order.
        let newest = self.known.newest.load(Ordering::Relaxed);
        let connection = self.connection(at, round, deadline).await;
        let mut connection = connection.inspect_err(|fault| {
            waiting.is_over = true;
            self.note(at, Some(fault));
        })?;
        let asking = connection.ask(path, body, true);
        let answered = deadline.bound(&self.world, asking).await;
        waiting.is_over = true;
        let fault = match answered {
            Ok(Ok(answered)) => {
                let answer = decode(answered).and_then(|answer| self.believe(at, answer, newest));
                if !matches!(answer, Err(Fault::Unknown(_))) {
                    endpoint.keep(connection);
                }
                self.note(at, answer.as_ref().err());
                return answer;
            }
            Ok(Err(none)) => none.into(),
            Err(_) => Fault::Unknown("no answer in time".to_owned()),
        };
        // The others are likely to be no better.
        endpoint.kept.lock().clear();
        self.note(at, Some(&fault));
        Err(fault)
    }

    /// Refuses an answer that is older than what etcd has shown before the question was sent: its members have lost
    /// what they had agreed to, or one answers from old state.
    fn believe<A: Answer>(&self, at: usize, answer: A, newest: u64) -> Result<A, Fault> {
        let Some(revision) = answer.revision() else {
            return Ok(answer);
        };
        if revision < newest {
            let endpoint = &self.endpoints[at].address;
            tracing::error!(
                %endpoint, revision, newest,
                "etcd answers with an older state than it has shown before: it was restored from a backup, or has lost \
                 its data; nothing that it says is used"
            );
            return Err(Fault::Unknown(format!(
                "it is at revision {revision}, and etcd has shown {newest} before: its data were lost or restored \
                 from a backup"
            )));
        }
        self.known.newest.fetch_max(revision, Ordering::Relaxed);
        Ok(answer)
    }

    /// A connection that was kept, or a new one.
    async fn connection(
        &self,
        at: usize,
        round: usize,
        deadline: Deadline,
    ) -> Result<HttpConnection, Fault> {
        let patience = self.sooner((CONNECT_MIN, CONNECT_MAX), round, deadline);
        loop {
            let kept = self.endpoints[at].kept.lock().pop();
            let Some(mut connection) = kept else {
                return self.introduce(at, patience).await;
            };
            let usable = patience.bound(&self.world, connection.is_usable()).await;
            if usable == Ok(true) {
                return Ok(connection);
            }
        }
    }

    /// The first time from now, twice as long in each round, at most the second one, if there are other endpoints; or
    /// the deadline.
    fn sooner(
        &self,
        (least, most): (Duration, Duration),
        round: usize,
        deadline: Deadline,
    ) -> Deadline {
        if self.endpoints.len() == 1 {
            return deadline;
        }
        let doubled = u32::try_from(round).ok();
        let doubled = doubled.and_then(|round| 2_u32.checked_pow(round));
        let time = doubled.map_or(most, |times| most.min(least.saturating_mul(times)));
        deadline.min(Deadline::after(&self.world, time))
    }

    async fn connect(&self, at: usize, deadline: Deadline) -> Result<HttpConnection, String> {
        let address = &self.endpoints[at].address;
        HttpConnection::open(&self.world, address, self.tls.as_ref(), deadline).await
    }

    /// Connects, and makes sure that a member of the right etcd is there, which can do requests.
    async fn introduce(&self, at: usize, deadline: Deadline) -> Result<HttpConnection, Fault> {
        let mut connection = self.connect(at, deadline).await.map_err(Fault::NotDone)?;
        let asking = connection.ask(gateway::STATUS, encode(&Nothing {}), true);
        let Ok(answered) = deadline.bound(&self.world, asking).await else {
            return Err(Fault::NotDone("it doesn't say who it is".to_owned()));
        };
        // Whatever became of this question, the request wasn't sent.
        let answered =
            answered.map_err(|none| Fault::NotDone(Fault::from(none).text().to_owned()))?;
        let status: StatusAnswer =
            decode(answered).map_err(|fault| Fault::NotDone(fault.text().to_owned()))?;
        self.check(&status).map_err(Fault::NotDone)?;
        Ok(connection)
    }

    fn check(&self, status: &StatusAnswer) -> Result<(), String> {
        if version(&status.version).is_none_or(|version| version < OLDEST) {
            let found = super::refusal::readable(status.version.as_bytes());
            let (major, minor) = OLDEST;
            return Err(format!(
                "its version is {found:?}; etcd {major}.{minor} or newer is needed"
            ));
        }
        if status.is_learner {
            return Err("it is a learner, which can't answer yet".to_owned());
        }
        let found = status.header.cluster_id.0;
        let ours = *self.known.cluster.get_or_init(|| found);
        if found != ours {
            return Err(format!(
                "it belongs to another etcd ({found:x}) than this cluster's ({ours:x}): remove it from the \
                 endpoints"
            ));
        }
        Ok(())
    }

    /// Asks this endpoint first from now on.
    pub(super) fn prefer(&self, at: usize, why: &str) {
        let before = self.preferred.swap(at, Ordering::Relaxed);
        if before != at {
            let (from, to) = (&self.endpoints[before].address, &self.endpoints[at].address);
            tracing::warn!(%from, %to, why, "another member of etcd is asked from now on");
        }
    }

    /// Says in the log when an endpoint begins to fail, or fails in another way.
    fn note(&self, at: usize, fault: Option<&Fault>) {
        let endpoint = &self.endpoints[at];
        let why = match fault {
            Some(Fault::NotDone(why) | Fault::Unknown(why)) => why.as_str(),
            // An answer, whatever it is.
            Some(Fault::Refused(_)) | None => "",
        };
        let mut noted = endpoint.noted.lock();
        if *noted != why {
            why.clone_into(&mut noted);
            if !why.is_empty() {
                let endpoint = &endpoint.address;
                tracing::warn!(%endpoint, why, "a member of etcd doesn't answer as it should");
            }
        }
    }

    fn unanswered(&self, faults: &[String], outcome: &str) -> Error {
        let known = self.endpoints.iter().zip(faults);
        let known = known.filter(|(_, fault)| !fault.is_empty());
        let known = known.map(|(endpoint, fault)| format!("{}: {fault}", endpoint.address));
        let known = known.collect::<Vec<_>>().join("; ");
        let text = format!("etcd doesn't answer ({known}): {outcome}");
        Error::new(ErrorKind::Unavailable, text)
    }
}

impl Endpoint {
    fn new(address: &EtcdEndpoint) -> Self {
        Self {
            address: address.clone(),
            kept: Mutex::default(),
            noted: Mutex::default(),
        }
    }

    /// Keeps a connection whose last answer was read to its end.
    fn keep(&self, connection: HttpConnection) {
        let mut kept = self.kept.lock();
        if kept.len() < KEPT_MAX {
            kept.push(connection);
        }
    }
}

pub(super) fn encode(body: &impl Serialize) -> Bytes {
    let encoded = serde_json::to_vec(body);
    encoded.expect("our messages are structs of strings").into()
}

pub(super) fn decode<A: Answer>((status, body): Answered) -> Result<A, Fault> {
    if status != 200 {
        return Err(Refusal::of_status(status, &body).into());
    }
    let answer: A = serde_json::from_slice(&body)
        .map_err(|error| Fault::Unknown(format!("its answer isn't etcd's: {error}")))?;
    match answer.failure() {
        Some(failure) => Err(Refusal::new(&failure).into()),
        None => Ok(answer),
    }
}

/// The first two numbers of a version.
pub(super) fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(str::parse);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    }
}
