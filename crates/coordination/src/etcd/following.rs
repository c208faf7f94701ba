//! One watch: a stream of etcd that is read all the time, and begun again elsewhere when it breaks.
//!
//! The stream is read also while nobody asks for news: etcd before 3.4.31 loses changes of a watch that
//! isn't read. What nobody asks for is forgotten when it becomes too much, and the watch is lost.
//!
//! etcd's notices of progress aren't used: before 3.4.25 they can be ahead of what was told. So a watch whose
//! stream breaks after a long time without changes may find its revision compacted, and is lost.

use super::client::{Client, Fault};
use super::decode::{Decoder, Ended, Lines};
use super::gateway::{self, Base64, Number, WatchCreate, end_of};
use super::store::Store;
use crate::history::{History, Next};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;
use world::{Deadline, Task, World};

/// After this time without a word the member is asked whether it is there and has a leader.
const QUIET_MAX: Duration = Duration::from_secs(5);
/// How long it may take to say so.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Pause after no endpoint gave a stream; each time twice as long, up to ...
const PAUSE: Duration = Duration::from_millis(100);
/// ... this.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// No revision is as high.
const NEVER: u64 = u64::MAX;

/// A watch's side of etcd.
pub(crate) struct Following {
    told: Arc<Told>,
    _task: Task<()>,
}

/// What etcd has told and nobody has asked for yet.
struct Told {
    history: Mutex<History>,
    changed: watch::Sender<()>,
}

/// What reads the stream.
struct Reader {
    client: Arc<Client>,
    decoder: Decoder,
    key: String,
    told: Arc<Told>,
}

impl Store {
    /// Follows the keys that begin with `prefix` from after this revision.
    pub(crate) fn follow(&self, prefix: &str, after: u64) -> Following {
        let told = Arc::new(Told {
            history: Mutex::new(History::new(after)),
            changed: watch::Sender::new(()),
        });
        let reader = Reader {
            client: self.client().clone(),
            decoder: Decoder::new(&self.prefix, after),
            key: format!("{}{prefix}", self.prefix),
            told: told.clone(),
        };
        let world = self.world();
        let _task = world.spawn("etcd watch", reader.read(world.clone()));
        Following { told, _task }
    }
}

impl Following {
    /// The next change after `after`; what was told before is forgotten. Waits for at most `patience`.
    pub(crate) async fn next(&self, world: &World, after: u64, patience: Duration) -> Next {
        let mut changed = self.told.changed.subscribe();
        let deadline = Deadline::after(world, patience);
        loop {
            changed.mark_unchanged();
            let next = {
                let mut history = self.told.history.lock();
                history.compact(after);
                history.next("", after)
            };
            if !matches!(next, Next::Nothing(_)) || deadline.has_passed(world) {
                return next;
            }
            if deadline.bound(world, changed.changed()).await.is_err() {
                return next;
            }
        }
    }
}

impl Reader {
    async fn read(mut self, world: World) {
        let client = self.client.clone();
        let _place = client.place_for_watch().await;
        let mut pause = PAUSE;
        let mut at = self.client.preferred();
        for attempt in 1.. {
            let before = self.decoder.after();
            let round = (attempt - 1) / self.client.endpoints().len();
            let ended = self.read_from(&world, at, round).await;
            let has_gone_on = self.decoder.after() > before;
            let why = match ended {
                Ended::Lost(why) => {
                    tracing::info!(key = self.key, why, "a watch of etcd is lost");
                    self.told.history.lock().compact(NEVER);
                    self.told.changed.send_replace(());
                    return;
                }
                Ended::Broken(why) => why,
            };
            tracing::debug!(key = self.key, why, "a stream of etcd broke");
            let count = self.client.endpoints().len();
            at = (at + 1) % count;
            if has_gone_on {
                pause = PAUSE;
            } else if attempt % count == 0 {
                world.sleep(pause).await;
                pause = PAUSE_MAX.min(pause * 2);
            }
        }
    }

    /// Reads a stream from this endpoint until it breaks.
    async fn read_from(&mut self, world: &World, at: usize, round: usize) -> Ended {
        let after = self.decoder.after();
        // The last revision that was told is asked for again, to be passed over: had the history
        // been compacted at the very revision after it, etcd (before 3.4.36) would leave out removals
        // of that revision, and not say that they are missing.
        let create = WatchCreate {
            key: Base64::text(self.key.clone()),
            range_end: end_of(&self.key),
            start_revision: Number(after.max(1)),
            fragment: true,
        };
        let watch = gateway::Watch {
            create_request: create,
        };
        let (connection, body) = match self.client.stream(at, round, gateway::WATCH, &watch).await {
            Ok(begun) => begun,
            Err(Fault::NotDone(why) | Fault::Unknown(why)) => return Ended::Broken(why),
            Err(Fault::Refused(refusal)) => return Ended::Broken(refusal.text().to_owned()),
        };
        let ended = self.read_body(world, at, body).await;
        drop(connection);
        self.decoder.begin_again();
        ended
    }

    async fn read_body(&mut self, world: &World, at: usize, mut body: Incoming) -> Ended {
        let mut lines = Lines::default();
        loop {
            let frame = match world.timeout(QUIET_MAX, body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => return Ended::Broken(error.to_string()),
                Ok(None) => return Ended::Broken("its watch has ended".to_owned()),
                Err(_) => {
                    let deadline = Deadline::after(world, ANSWER_MAX);
                    match self.client.is_there(at, deadline).await {
                        Ok(()) => continue,
                        Err(why) => return Ended::Broken(why),
                    }
                }
            };
            let Ok(bytes) = frame.into_data() else {
                continue;
            };
            lines.push(&bytes);
            while let Some(line) = lines.next() {
                match self.decoder.message(&line) {
                    Ok(batches) if batches.is_empty() => {}
                    Ok(batches) => {
                        let mut history = self.told.history.lock();
                        batches.into_iter().for_each(|batch| history.push(batch));
                        drop(history);
                        self.told.changed.send_replace(());
                    }
                    Err(ended) => return ended,
                }
            }
            if lines.is_too_long() {
                // A list is smaller.
                return Ended::Lost("a message of its watch is too long".to_owned());
            }
        }
    }
}
