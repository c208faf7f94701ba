//! Pools over real NSDs on simulated disks.

#[path = "tests/failures.rs"]
mod failures;
#[path = "tests/moving.rs"]
mod moving;
#[path = "tests/random.rs"]
mod random;
#[path = "tests/reading.rs"]
mod reading;
#[path = "tests/room.rs"]
mod room;

use crate::{Depth, PieceCondition, Pool, SegmentOwner, SegmentSource, SurveyedSegment};
use bytes::Bytes;
use model::map::PoolMap;
use model::{
    DataId, FamilyId, GroupId, InodeNumber, NsdId, Scheme, SegmentId, SegmentPlace, SessionId,
};
use nsd::{Nsd, NsdServer};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use testkit::disks::entry;
use world::World;
use world::sim::{Faults, Loopback, Simulation};

const WIDE: Scheme = Scheme::Erasure { k: 4, m: 2 };
const MIB: usize = 1 << 20;
const DISK_BYTES: u64 = 512 << 20;
const OWNER: SegmentOwner = SegmentOwner {
    family: FamilyId(1),
    inode: InodeNumber(7),
    data: DataId(9),
    file_offset: 4096,
};

/// A pool of NSDs 1..=n, each in its own failure group, on disks "1", "2", …
struct Rig {
    world: World,
    server: Arc<NsdServer>,
    opened: Mutex<BTreeMap<NsdId, Arc<Nsd>>>,
    faults: Faults,
    pool: Arc<Pool>,
    source: SegmentSource,
}

async fn make_nsd(world: &World, nsd: u32) -> Arc<Nsd> {
    let disk = world
        .open_disk(Path::new(&nsd.to_string()))
        .expect("the simulation has the disk");
    testkit::disks::format(world, &disk, 1, nsd).await;
    Nsd::open(world, disk).await.expect("just formatted")
}

/// Runs a scenario on a pool of `nsds` NSDs; the simulation has disks for 4 more.
fn with_pool<F: Future<Output = ()>>(
    scheme: Scheme,
    nsds: u32,
    disk_bytes: u64,
    scenario: impl FnOnce(Rig) -> F,
) {
    let simulation = Simulation::new(u64::from(nsds) + 100);
    for nsd in 1..=nsds + 4 {
        simulation.disk(&nsd.to_string(), disk_bytes);
    }
    let faults = simulation.faults();
    let run = async |world: World| {
        let rig = Rig::new(world, faults, scheme, nsds).await;
        scenario(rig).await;
    };
    simulation.run(run).finished();
}

/// Bytes that differ everywhere, so that a piece can be found on a disk.
fn plain(length: usize, seed: u64) -> Bytes {
    testkit::content::content(seed, length).into()
}

/// Whether these are the tests with all NSDs on another node.
fn is_by_call() -> bool {
    module_path!().contains("by_call")
}

impl Rig {
    async fn new(world: World, faults: Faults, scheme: Scheme, nsds: u32) -> Self {
        let entries = (1..=nsds).map(entry).collect();
        let map = placement::new_pool(scheme, entries, 5).expect("a legal pool");
        let pool = Pool::new(world.clone(), map, Vec::new());
        let rig = Self {
            world,
            server: Arc::default(),
            opened: Mutex::default(),
            faults,
            pool,
            source: SegmentSource::new(SessionId(3)),
        };
        for nsd in 1..=nsds {
            rig.connect(make_nsd(&rig.world, nsd).await).await;
        }
        rig
    }

    /// Gives the pool an opened NSD.
    async fn connect(&self, nsd: Arc<Nsd>) {
        let id = nsd.id();
        self.opened.lock().insert(id, nsd.clone());
        if !is_by_call() {
            self.pool.add_nsd(nsd);
            return;
        }
        self.server.add(nsd);
        let node = Loopback::new(&self.world, self.server.clone(), Duration::from_millis(1));
        self.pool.add_remote_nsd(id, node);
        let handle = self.pool.handle(id).expect("just added");
        while !handle.is_heard() {
            self.world.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Takes an NSD away from the pool.
    fn disconnect(&self, nsd: NsdId) -> Arc<Nsd> {
        self.pool.remove_nsd(nsd);
        self.server.remove(nsd);
        self.opened.lock().remove(&nsd).expect("the pool has it")
    }

    fn nsd(&self, nsd: NsdId) -> Arc<Nsd> {
        self.opened.lock()[&nsd].clone()
    }

    async fn write(&self, bytes: &Bytes) -> SegmentPlace {
        self.pool
            .write(&self.source, OWNER, bytes.clone())
            .await
            .expect("the pool takes segments")
    }

    async fn read(&self, place: &SegmentPlace) -> Bytes {
        self.pool
            .read_whole(place)
            .await
            .expect("the segment is readable")
    }

    /// The NSD that holds a piece.
    fn holder(&self, place: &SegmentPlace, piece: u8) -> NsdId {
        self.pool.groups().members(place.group)[usize::from(place.slot_of(piece))].target()
    }

    /// Whether every piece exists, on the right NSD, and is good to its last byte.
    async fn is_whole(&self, place: &SegmentPlace) -> bool {
        let states = self
            .pool
            .verify(place, Depth::Bytes)
            .await
            .expect("a place of this pool");
        states
            .iter()
            .all(|state| !state.is_wanted || state.condition == PieceCondition::Good)
            && (0..place.scheme.width() as u8).all(|piece| {
                states
                    .iter()
                    .any(|state| state.piece == piece && state.is_wanted)
            })
    }

    async fn set_map(&self, map: PoolMap) {
        self.pool
            .set_map(map)
            .await
            .expect("all reachable members confirm");
    }

    async fn add_nsd(&self, nsd: u32) {
        self.connect(make_nsd(&self.world, nsd).await).await;
        self.set_map(placement::add_nsd(&self.pool.map(), entry(nsd)).expect("a new number"))
            .await;
    }

    /// Does what a metanode's planner does, until nothing is left to do.
    async fn repair_all(&self) {
        self.repair_live(|_| true).await;
    }

    /// The same, but sweeps segments that aren't live.
    async fn repair_live(&self, is_live: impl Fn(SegmentId) -> bool) {
        for _ in 0..4 {
            let groups = self.pool.groups();
            let mut arrived = Vec::new();
            for group in groups.all() {
                let mut after = None;
                loop {
                    let survey = self
                        .pool
                        .survey(group, after, 16)
                        .await
                        .expect("members answer");
                    for segment in &survey.segments {
                        self.mend_or_sweep(segment, is_live(segment.place.segment))
                            .await;
                    }
                    after = survey.resume;
                    if after.is_none() {
                        break;
                    }
                }
                let slots = self
                    .pool
                    .arrived_slots(group)
                    .await
                    .expect("members answer");
                arrived.extend(slots.into_iter().map(|slot| (group, slot)));
            }
            if arrived.is_empty() {
                return;
            }
            self.set_map(placement::finish_moves(&self.pool.map(), &arrived))
                .await;
        }
    }

    async fn mend_or_sweep(&self, segment: &SurveyedSegment, is_live: bool) {
        if !is_live {
            for (name, nsd) in &segment.present {
                self.pool
                    .delete_blobs(*nsd, &[*name])
                    .await
                    .expect("it listed the blob");
            }
        } else if !segment.absent.is_empty() {
            self.pool
                .repair_segment(&segment.place, Depth::Index)
                .await
                .expect("enough is left");
        }
    }
}

#[test]
fn the_nonce_of_a_piece_never_changes() {
    let place = SegmentPlace {
        segment: model::SegmentId {
            session: SessionId(3),
            counter: 4,
        },
        group: GroupId(5),
        scheme: WIDE,
        skipped_slots: 0,
        missing: 0,
        length: 6,
        crc: 7,
    };
    let nonce = |piece| crate::segment::nonce(place.blob(piece), &place);
    assert_ne!(nonce(1), nonce(2));
    assert_eq!(
        nonce(1),
        crate::segment::nonce(
            place.blob(1),
            &SegmentPlace {
                missing: 3,
                ..place
            }
        )
    );
    assert_eq!(nonce(1), 8_269_207_809_921_507_885);
}
