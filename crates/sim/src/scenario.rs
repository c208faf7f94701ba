//! Runs a node from a seed: random actions compared with the model, power cuts, recovery,
//! checks.

use crate::{
    action::{self, Action, Draw, Seen, Sizes},
    drive::{Driver, many_files, survey},
    recovered::History,
};
use client::ClientSettings;
use metanode::CheckOptions;
use model::{NsdId, Scheme};
use node::{Creation, Node, NodePaths};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};
use testkit::model_fs::ModelFs;
use world::{
    World,
    sim::{Cut, Outcome, Simulation},
};

/// Parameters of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The pool's scheme; the pool has as many NSDs as it is wide.
    pub scheme: Scheme,
    /// Number of actions.
    pub steps: usize,
    /// Bounds of the random sizes.
    pub sizes: Sizes,
    /// Bytes per block: small, so that little data needs several segments.
    pub block_bytes: u32,
    /// Bytes of each region. Large regions have large journals, which every start reads.
    pub region_bytes: u64,
}

/// What a run was like.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Hash of everything that happened.
    pub trace: u64,
    /// Actions that were answered.
    pub steps: usize,
    /// Simulated time.
    pub time: Duration,
    /// How often each fault was caused.
    pub faults: BTreeMap<String, usize>,
}

impl Scenario {
    /// 10,000 actions through several faults.
    pub const STORM: Self = Self {
        steps: 10_000,
        sizes: Sizes {
            names: 20,
            inodes: 80,
            file_bytes: 120_000,
            write_bytes: 30_000,
            sync_every: 100,
        },
        region_bytes: 128 << 20,
        ..Self::MANY
    };

    /// Some thousand actions for one power cut.
    pub const CUT: Self = Self {
        steps: 6_000,
        ..Self::MANY
    };

    /// An erasure-coded pool for one power cut.
    pub const ERASURE: Self = Self {
        scheme: Scheme::Erasure { k: 4, m: 2 },
        steps: 300,
        ..Self::LONG
    };

    /// Few actions on few files with many syncs: for a power cut at every I/O.
    pub const SMALL: Self = Self {
        scheme: Scheme::Replicate(1),
        steps: 14,
        sizes: Sizes {
            names: 6,
            inodes: 12,
            file_bytes: 300_000,
            write_bytes: 120_000,
            sync_every: 4,
        },
        block_bytes: 64 * 1024,
        region_bytes: 32 << 20,
    };

    /// Very many actions on small files, rarely synced.
    pub const MANY: Self = Self {
        scheme: Scheme::Replicate(1),
        steps: 20_000,
        sizes: Sizes {
            names: 20,
            inodes: 80,
            file_bytes: 40_000,
            write_bytes: 9_000,
            sync_every: 300,
        },
        block_bytes: 64 * 1024,
        region_bytes: 64 << 20,
    };

    /// Many actions on files of some megabytes.
    pub const LONG: Self = Self {
        scheme: Scheme::Replicate(1),
        steps: 3_000,
        sizes: Sizes {
            names: 30,
            inodes: 150,
            file_bytes: 3_000_000,
            write_bytes: 400_000,
            sync_every: 40,
        },
        block_bytes: 256 * 1024,
        region_bytes: 2 << 30,
    };
}

/// Most bytes that tree, log and catalog of an empty file system may take, copies included.
pub const METADATA_BYTES_MAX: u64 = 16 << 20;
/// Time after which the space of removed files must be free again.
const SPACE_RETURNS_WITHIN: Duration = Duration::from_secs(600);

fn paths(scheme: Scheme) -> NodePaths {
    let nsds = (1..=scheme.width() as u32)
        .map(|nsd| (NsdId(nsd), PathBuf::from(format!("nsd{nsd}"))))
        .collect();
    NodePaths {
        coordination: "coordination".into(),
        nsds,
    }
}

fn settings() -> ClientSettings {
    // A small page pool, so that memory pressure and read-ahead are tested as well.
    ClientSettings {
        page_pool_bytes: 16 << 20,
        ..ClientSettings::default()
    }
}

/// Makes an empty file system on the simulation's disks.
pub fn create(simulation: &Simulation, scenario: &Scenario) {
    let (scheme, block_bytes) = (scenario.scheme, scenario.block_bytes);
    let nsd_bytes = scenario.region_bytes;
    simulation
        .run(move |world| async move {
            let creation = Creation {
                scheme,
                nsd_bytes,
                block_bytes,
            };
            Node::create(&world, &paths(scheme), creation)
                .await
                .expect("a new file system is made");
        })
        .finished();
}

/// State that outlives a crash: the model, and which actions are known to be durable.
#[derive(Default)]
struct Known {
    model: ModelFs,
    history: History,
    steps: usize,
}

/// Performs actions drawn from `seed` on an empty file system; every answer must be the model's.
/// Ends normally or by a crash.
fn act(
    simulation: &Simulation,
    scenario: &Scenario,
    seed: u64,
    known: &Arc<Mutex<Known>>,
) -> Outcome<()> {
    let (scenario, known) = (*scenario, known.clone());
    simulation.run(move |world| async move {
        let node = open(&world, scenario.scheme).await;
        let mut driver = Driver::new(node.client().clone());
        let mut draw = Draw::new(seed);
        for step in 0..scenario.steps {
            let action = {
                let mut known = known.lock().expect("one thread");
                let action = action::draw(&mut draw, &known.model, &scenario.sizes);
                known.history.begin(&action);
                action
            };
            let (expected, made) = expect(&mut known.lock().expect("one thread").model, &action);
            let seen = driver
                .run(&action, made)
                .await
                .unwrap_or_else(|error| panic!("seed {seed} step {step}: {error:?}"));
            assert!(
                agree(&action, &expected, &seen),
                "seed {seed} step {step} {action:?}: expected {}, saw {}",
                brief(&expected),
                brief(&seen)
            );
            let known = &mut *known.lock().expect("one thread");
            known.history.answered(&known.model, false);
            known.steps += 1;
        }
        node.close().await.expect("the node closes");
    })
}

/// Performs the action on the model.
pub(crate) fn expect(
    model: &mut ModelFs,
    action: &Action,
) -> (Seen, Option<testkit::model_fs::Number>) {
    let expected = action.on_model(model);
    let made = if let Seen::Made(number) = &expected {
        Some(*number)
    } else {
        None
    };
    (expected, made)
}

/// A rename may be wrong in several ways at once; POSIX doesn't say which error it returns.
pub(crate) fn agree(action: &Action, expected: &Seen, seen: &Seen) -> bool {
    let refused = |seen: &Seen| matches!(seen, Seen::Refused(_));
    expected == seen
        || (matches!(action, Action::Rename { .. }) && refused(expected) && refused(seen))
}

pub(crate) fn brief(seen: &Seen) -> String {
    match seen {
        Seen::Bytes(bytes) if bytes.len() > 64 => format!(
            "{} bytes, beginning {:?}, sum {}",
            bytes.len(),
            &bytes[..16],
            bytes.iter().map(|b| u64::from(*b)).sum::<u64>()
        ),
        other => format!("{other:?}"),
    }
}

pub(crate) async fn open(world: &World, scheme: Scheme) -> Arc<Node> {
    let node = Node::open(world, &paths(scheme), settings())
        .await
        .unwrap_or_else(|error| panic!("the node doesn't open: {error:?}"));
    node.metanode().start_background();
    node
}

/// Recovers, surveys, judges, checks.
fn recover_and_check(
    simulation: &Simulation,
    scenario: &Scenario,
    seed: u64,
    known: &Arc<Mutex<Known>>,
    what: &str,
) {
    let (scheme, known, what) = (scenario.scheme, known.clone(), what.to_owned());
    simulation.faults().no_cut();
    simulation
        .run(move |world| async move {
            let node = open(&world, scheme).await;
            let survey = survey::take(node.client(), model::InodeId::ROOT)
                .await
                .unwrap_or_else(|error| panic!("seed {seed} {what}: {error}"));
            if let Err(why) = known
                .lock()
                .expect("one thread")
                .history
                .check_recovered(&survey)
            {
                panic!("seed {seed} {what}: {why}");
            }
            check(&node, seed, &what).await;
            node.close().await.expect("the node closes");
        })
        .finished();
}

/// `fs check` must find nothing: exact counters (P9 in `docs/promises.md`), no orphan, no leak,
/// every extent readable.
pub(crate) async fn check(node: &Node, seed: u64, what: &str) {
    node.client().sync_all().await.expect("syncs");
    settle(node).await;
    let report = node
        .metanode()
        .check(CheckOptions { deep: true })
        .await
        .expect("the check runs");
    assert!(report.is_clean(), "seed {seed} {what}: {:?}", report.faults);
}

/// Runs background work until none is left.
async fn settle(node: &Node) {
    for _ in 0..200 {
        let done = node
            .metanode()
            .run_background_once()
            .await
            .expect("background work succeeds");
        if done.steps == 0 {
            return;
        }
    }
    panic!("background work never ends");
}

/// Random actions without faults, then a restart.
pub fn run(seed: u64, scenario: &Scenario) -> Report {
    let simulation = Simulation::new(seed);
    create(&simulation, scenario);
    let known = Arc::new(Mutex::new(Known::default()));
    act(&simulation, scenario, seed, &known).finished();
    // After a clean end nothing may be missing.
    {
        let known = &mut *known.lock().expect("one thread");
        known.history.begin(&Action::SyncAll);
        known.history.answered(&known.model, false);
    }
    recover_and_check(&simulation, scenario, seed, &known, "after a clean end");
    report(&simulation, &known, None)
}

/// Random actions and many files, then everything is removed: ten minutes later no data blob is
/// left, and the metadata takes at most [`METADATA_BYTES_MAX`] (P8 in `docs/promises.md`).
pub fn space_returns(seed: u64, scenario: &Scenario, files: u32) {
    let simulation = Simulation::new(seed);
    create(&simulation, scenario);
    act(&simulation, scenario, seed, &Arc::default()).finished();
    let scheme = scenario.scheme;
    simulation
        .run(move |world| async move {
            let node = open(&world, scheme).await;
            many_files::make(node.client(), files).await;
            many_files::remove_all(node.client())
                .await
                .expect("removes");
            world.sleep(SPACE_RETURNS_WITHIN).await;
            let report = node
                .metanode()
                .check(CheckOptions { deep: true })
                .await
                .expect("the check runs");
            assert!(report.is_clean(), "seed {seed}: {:?}", report.faults);
            assert_eq!(report.data_blobs, 0, "seed {seed}: data remains");
            let used = node.pool().usage().raw_used;
            assert!(
                used <= METADATA_BYTES_MAX,
                "seed {seed}: {used} bytes of metadata remain"
            );
            node.close().await.expect("the node closes");
        })
        .finished();
}

/// Random actions, ended by a power cut at a random I/O.
pub fn crash(seed: u64, scenario: &Scenario) -> Report {
    let simulation = Simulation::new(seed);
    create(&simulation, scenario);
    let begun = simulation.io_count();
    let known = Arc::new(Mutex::new(Known::default()));
    let mut draw = Draw::new(seed ^ 0x00C0_FFEE);
    let cut = [Cut::Before, Cut::After, Cut::Torn][draw.below(3) as usize];
    // The same run without a cut says how many I/Os there are; an estimate was once so far off that
    // hardly a run was cut.
    let whole = simulation.fork();
    act(&whole, scenario, seed, &Arc::default()).finished();
    let at = begun + draw.below(whole.io_count() - begun);
    simulation.faults().cut_at_io(at, cut);
    let outcome = act(&simulation, scenario, seed, &known);
    assert!(outcome.is_crashed(), "seed {seed}: no cut at I/O {at}");
    let what = format!("cut {cut:?} at I/O {at}");
    recover_and_check(&simulation, scenario, seed, &known, &what);
    report(&simulation, &known, Some(format!("Cut{cut:?}")))
}

fn report(simulation: &Simulation, known: &Mutex<Known>, fault: Option<String>) -> Report {
    Report {
        trace: simulation.trace_hash(),
        steps: known.lock().expect("one thread").steps,
        time: simulation.time(),
        faults: fault.map(|fault| (fault, 1)).into_iter().collect(),
    }
}

/// Cuts the power at every I/O that changes data, in all three ways; returns the number of cuts.
pub fn cut_everywhere(seed: u64, scenario: &Scenario) -> u64 {
    let created = Simulation::new(seed);
    create(&created, scenario);
    let begun = created.io_count();
    let whole = created.fork();
    act(&whole, scenario, seed, &Arc::default()).finished();
    let changes = whole.changing_ios();
    let mut cuts = 0;
    for at in changes.into_iter().filter(|io| *io >= begun) {
        for cut in [Cut::Before, Cut::After, Cut::Torn] {
            let simulation = created.fork();
            simulation.faults().cut_at_io(at, cut);
            let known = Arc::new(Mutex::new(Known::default()));
            act(&simulation, scenario, seed, &known);
            let what = format!("cut {cut:?} at I/O {at}");
            recover_and_check(&simulation, scenario, seed, &known, &what);
            cuts += 1;
        }
    }
    cuts
}
