//! The catalog maps names of the tree's objects to their segments. Only log entries change it, so
//! that one owner under one epoch decides (`docs/formats/catalog.md`).

mod reclaim;
mod state;

pub(crate) use state::{CatalogState, Change, Content, Object, decode_change, decode_snapshot};

use crate::frame::{self, EntryKind};
use crate::log::Log;
use bytes::BytesMut;
use model::{EntryNumber, Error, ErrorKind, FamilyId, GroupId, Result, SegmentPlace};
use parking_lot::Mutex;
use pool::{Pool, SegmentOwner, SegmentSource};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::Notify;
use world::World;

/// The catalog of one owner of a shard. Cheap to clone.
#[derive(Clone)]
pub struct Catalog {
    shared: Arc<Shared>,
}

pub(crate) struct Setup {
    pub(crate) world: World,
    pub(crate) log: Log,
    pub(crate) pool: Arc<Pool>,
    /// Names for table segments.
    pub(crate) segments: Arc<SegmentSource>,
    pub(crate) family: FamilyId,
    pub(crate) state: CatalogState,
    /// First entry of the newest snapshot; 0 for none.
    pub(crate) snapshot: EntryNumber,
    /// The owners before said that no record names a group below this.
    pub(crate) floor: GroupId,
}

struct Shared {
    world: World,
    log: Log,
    pool: Arc<Pool>,
    segments: Arc<SegmentSource>,
    owner: SegmentOwner,
    state: Mutex<CatalogState>,
    snapshot: Mutex<EntryNumber>,
    /// Held while a change is decided, appended and applied: one at a time.
    changing: tokio::sync::Mutex<()>,
    /// Signals dead segments to delete.
    dead: Notify,
    /// No object gets a segment in a group below this.
    floor: AtomicU32,
}

/// Precondition of a put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Condition {
    /// None.
    Any,
    /// The name doesn't exist.
    Absent,
    /// The name exists with this version.
    Version(EntryNumber),
}

/// Why a put failed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The precondition doesn't hold.
    Condition,
    /// The log's error.
    Log(Error),
}

impl Catalog {
    pub(crate) fn new(setup: Setup) -> Self {
        let shared = Shared {
            world: setup.world,
            log: setup.log,
            pool: setup.pool,
            owner: SegmentOwner::table(setup.family),
            segments: setup.segments,
            state: Mutex::new(setup.state),
            snapshot: Mutex::new(setup.snapshot),
            changing: tokio::sync::Mutex::new(()),
            floor: AtomicU32::new(setup.floor.0),
            dead: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// All segments that the tree's objects use, and dead ones not deleted yet: sweep and check
    /// must not treat them as garbage. Segments still being written aren't included, so judge only
    /// sessions that have ended.
    #[must_use]
    pub fn live_segments(&self) -> Vec<SegmentPlace> {
        self.shared.state.lock().segments()
    }

    /// Bytes and number of the tree's objects.
    #[must_use]
    pub fn usage(&self) -> CatalogUsage {
        let state = self.shared.state.lock();
        CatalogUsage {
            objects: state.objects.len() as u64,
            bytes: state.objects.values().map(|object| object.size).sum(),
            dead_segments: state.dead.len() as u64,
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<Object> {
        self.shared.state.lock().objects.get(name).cloned()
    }

    /// Names starting with `prefix` and their objects, in order.
    pub(crate) fn list(&self, prefix: &str) -> Vec<(String, Object)> {
        let state = self.shared.state.lock();
        let from = state.objects.range(prefix.to_owned()..);
        from.take_while(|(name, _)| name.starts_with(prefix))
            .map(|(name, object)| (name.clone(), object.clone()))
            .collect()
    }

    /// From now on no object gets a segment in a group below `floor`. [`Catalog::live_segments`]
    /// shows all that have one.
    pub(crate) async fn refuse_below(&self, floor: GroupId) {
        // A put that is being made durable was decided by the floor before.
        let _none_is_changing = self.shared.changing.lock().await;
        self.shared.floor.fetch_max(floor.0, Ordering::Relaxed);
    }

    /// Whether content that was stored some time ago is in groups that the shard has left since.
    fn is_below_floor(&self, content: &Content) -> bool {
        let floor = GroupId(self.shared.floor.load(Ordering::Relaxed));
        match content {
            Content::Inline(_) => false,
            Content::Segments(places) => places.iter().any(|place| place.group < floor),
        }
    }

    /// Stores content again, in groups that take new segments.
    async fn stored_again(&self, content: Content) -> Result<Content> {
        let places = content.into_segments();
        let mut bytes = BytesMut::new();
        for place in &places {
            for piece in self.read_segment(*place, 0, place.length).await? {
                bytes.extend_from_slice(&piece);
            }
        }
        let stored = self.store_segments(bytes.freeze()).await;
        self.abandon(places);
        stored.map(Content::Segments)
    }

    /// Puts an object durably. On failure the new content's segments are queued for deletion. Runs
    /// to its end even if the future is dropped.
    pub(crate) async fn put(
        &self,
        name: String,
        condition: Condition,
        content: Content,
        attributes: Vec<(String, String)>,
    ) -> std::result::Result<EntryNumber, Refusal> {
        let catalog = self.clone();
        self.in_task(async move {
            let mut content = content;
            let _one_at_a_time = loop {
                let changing = catalog.shared.changing.lock().await;
                if !catalog.is_below_floor(&content) {
                    break changing;
                }
                drop(changing);
                content = catalog.stored_again(content).await.map_err(Refusal::Log)?;
            };
            let found = catalog
                .shared
                .state
                .lock()
                .objects
                .get(&name)
                .map(|object| object.version);
            let holds = match condition {
                Condition::Any => true,
                Condition::Absent => found.is_none(),
                Condition::Version(version) => found == Some(version),
            };
            if !holds {
                catalog.abandon(content.into_segments());
                return Err(Refusal::Condition);
            }
            let change = Change::Put {
                name,
                content,
                attributes,
                time: catalog.shared.log.clock().now(),
            };
            catalog.commit(change).await.map_err(Refusal::Log)
        })
        .await
        .map_err(Refusal::Log)?
    }

    /// Removes names durably and atomically; missing names are no error. Their segments are deleted
    /// later, in the background.
    pub(crate) async fn remove(&self, names: Vec<String>) -> Result<()> {
        let catalog = self.clone();
        self.in_task(async move {
            let _one_at_a_time = catalog.shared.changing.lock().await;
            let names: Vec<String> = {
                let state = catalog.shared.state.lock();
                names
                    .into_iter()
                    .filter(|name| state.objects.contains_key(name))
                    .collect()
            };
            if names.is_empty() {
                return Ok(());
            }
            let change = Change::Remove {
                names,
                time: catalog.shared.log.clock().now(),
            };
            catalog.commit(change).await.map(drop)
        })
        .await?
    }

    /// Appends the whole catalog to the log, so that earlier entries can be trimmed.
    pub(crate) async fn append_snapshot(&self) -> Result<EntryNumber> {
        let catalog = self.clone();
        self.in_task(async move {
            let _one_at_a_time = catalog.shared.changing.lock().await;
            let shared = &catalog.shared;
            let payload = shared.state.lock().encode_snapshot();
            let last = shared
                .log
                .append(EntryKind::CatalogSnapshot, &payload)
                .await?;
            let number = EntryNumber(last.0 + 1 - frame::parts(payload.len()));
            *shared.snapshot.lock() = number;
            Ok(number)
        })
        .await?
    }

    /// The first entry of the newest snapshot; 0 for none.
    pub(crate) fn snapshot(&self) -> EntryNumber {
        *self.shared.snapshot.lock()
    }

    pub(crate) fn log(&self) -> &Log {
        &self.shared.log
    }

    /// Appends and applies a change. The caller holds `changing`.
    async fn commit(&self, change: Change) -> Result<EntryNumber> {
        let number = self
            .shared
            .log
            .append(EntryKind::CatalogChange, &change.encode())
            .await?;
        let died = {
            let mut state = self.shared.state.lock();
            state.apply(number, change);
            !state.dead.is_empty()
        };
        if died {
            self.shared.dead.notify_one();
        }
        Ok(number)
    }

    async fn in_task<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        let (answer, wait) = tokio::sync::oneshot::channel();
        self.shared
            .world
            .spawn("catalog", async move {
                let _gone = answer.send(work.await);
            })
            .detach();
        wait.await
            .map_err(|_| Error::new(ErrorKind::ShuttingDown, "the catalog ended during a change"))
    }
}

/// Space used by the tree's objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CatalogUsage {
    /// Objects.
    pub objects: u64,
    /// Their bytes, before redundancy.
    pub bytes: u64,
    /// Segments waiting to be deleted.
    pub dead_segments: u64,
}
