//! One node through several faults, one after the other: power cuts at any I/O, kills, slow disks, a
//! calendar that is set back. After each the node starts again, and everything is looked at.

use crate::{
    action::{self, Draw},
    drive::{Driver, survey},
    recovered::History,
    scenario::{self, Report, Scenario, agree, brief, expect},
};
use client::Client;
use model::InodeId;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use testkit::model_fs::{ModelFs, Number, ROOT};
use world::{
    World,
    sim::{Cut, Simulation},
};

/// Faults of a run.
pub const FAULTS: usize = 5;
/// One pause in this many actions, of so many milliseconds at most.
const PAUSE_EVERY: u64 = 100;
const PAUSE_MAX: u64 = 1_000;
/// A planned power cut comes within about this many I/Os; if the work ends before, the node is killed.
const CUT_WITHIN: u64 = 200;

/// What outlives the node.
struct Known {
    model: ModelFs,
    history: History,
    inodes: BTreeMap<Number, InodeId>,
    draw: Draw,
    steps: usize,
    /// The node went down: what is there must be looked at.
    is_uncertain: bool,
}

type Shared = Arc<Mutex<Known>>;

/// How a node's life ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum End {
    Closed,
    Killed,
    PowerCut,
    KilledOnSlowDisk,
    KilledWithClockSetBack,
}

/// Performs the scenario's actions on one node, through [`FAULTS`] faults.
///
/// # Panics
/// If a promise is broken.
pub fn run(seed: u64, scenario: &Scenario) -> Report {
    let simulation = Simulation::new(seed);
    scenario::create(&simulation, scenario);
    let known = Arc::new(Mutex::new(Known {
        model: ModelFs::default(),
        history: History::default(),
        inodes: BTreeMap::from([(ROOT, InodeId::ROOT)]),
        draw: Draw::new(seed),
        steps: 0,
        is_uncertain: false,
    }));
    let mut draw = Draw::new(seed ^ 0x0005_7042);
    let mut report = Report::default();
    for life in 1..=FAULTS + 1 {
        let until = scenario.steps * life / (FAULTS + 1);
        let end = match life {
            _ if life > FAULTS => End::Closed,
            _ => cause(&simulation, &mut draw),
        };
        let what = format!("seed {seed}, life {life}");
        let (known, scenario) = (known.clone(), *scenario);
        let lived = simulation.run(move |world| live(world, known, scenario, until, end, what));
        let end = match (end, lived.is_crashed()) {
            (End::PowerCut, false) => End::Killed,
            _ => end,
        };
        if end != End::Closed {
            *report.faults.entry(format!("{end:?}")).or_default() += 1;
        }
        simulation.faults().no_cut();
        simulation.faults().heal("nsd1");
    }
    let (judged, what) = (known.clone(), format!("seed {seed}, at the end"));
    let scheme = scenario.scheme;
    simulation
        .run(move |world| async move {
            let node = scenario::open(&world, scheme).await;
            let survey = survey::take(node.client(), InodeId::ROOT).await;
            let survey = survey.unwrap_or_else(|error| panic!("{what}: {error}"));
            let fits = lock(&judged).history.check_recovered(&survey);
            fits.unwrap_or_else(|why| panic!("{what}: {why}"));
            scenario::check(&node, seed, &what).await;
            node.close().await.expect("the node closes");
        })
        .finished();
    report.trace = simulation.trace_hash();
    report.steps = lock(&known).steps;
    report.time = simulation.time();
    report
}

fn lock(known: &Shared) -> std::sync::MutexGuard<'_, Known> {
    known.lock().expect("one thread")
}

/// Prepares a fault for the next life.
fn cause(simulation: &Simulation, draw: &mut Draw) -> End {
    let faults = simulation.faults();
    match draw.below(6) {
        0 => End::Killed,
        1 => {
            faults.slow("nsd1", Duration::from_millis(1 + draw.below(40)));
            End::KilledOnSlowDisk
        }
        2 => {
            faults.set_clock_back(Duration::from_secs(draw.below(100_000)));
            End::KilledWithClockSetBack
        }
        _ => {
            let cut = [Cut::Before, Cut::After, Cut::Torn][draw.below(3) as usize];
            faults.cut_at_io(simulation.io_count() + 1 + draw.below(CUT_WITHIN), cut);
            End::PowerCut
        }
    }
}

/// The node works until so many actions are done, and ends; a killed one just disappears.
async fn live(
    world: World,
    known: Shared,
    scenario: Scenario,
    until: usize,
    end: End,
    what: String,
) {
    let node = scenario::open(&world, scenario.scheme).await;
    let client = node.client().clone();
    if lock(&known).is_uncertain {
        look(&client, &known, &what).await;
    }
    let mut driver = Driver::with(client, lock(&known).inodes.clone());
    while lock(&known).steps < until {
        let (action, pause) = {
            let known = &mut *lock(&known);
            let action = action::draw(&mut known.draw, &known.model, &scenario.sizes);
            known.history.begin(&action);
            known.is_uncertain = true;
            let pause = match known.draw.below(PAUSE_EVERY) {
                0 => known.draw.below(PAUSE_MAX),
                _ => 0,
            };
            (action, pause)
        };
        let (expected, made) = expect(&mut lock(&known).model, &action);
        let seen = driver.run(&action, made).await;
        let seen = seen.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        assert!(
            agree(&action, &expected, &seen),
            "{what}, {action:?}: expected {}, saw {}",
            brief(&expected),
            brief(&seen)
        );
        {
            let known = &mut *lock(&known);
            known.history.answered(&known.model, false);
            known.inodes.clone_from(driver.inodes());
            known.steps += 1;
        }
        if pause > 0 {
            world.sleep(Duration::from_millis(pause)).await;
        }
    }
    if end == End::Closed {
        node.close().await.expect("the node closes");
        let known = &mut *lock(&known);
        known.history.begin(&action::Action::SyncAll);
        known.history.answered(&known.model, false);
        known.is_uncertain = false;
    }
}

/// Looks at everything after a fault, and makes it what is known.
async fn look(client: &Client, known: &Shared, what: &str) {
    let survey = survey::take(client, InodeId::ROOT).await;
    let survey = survey.unwrap_or_else(|error| panic!("{what}, after a fault: {error}"));
    let fits = lock(known).history.check_recovered(&survey);
    fits.unwrap_or_else(|why| panic!("{what}, after a fault: {why}"));
    let (model, paths) = ModelFs::from_survey(&survey);
    let mut inodes = BTreeMap::from([(ROOT, InodeId::ROOT)]);
    for (number, path) in paths {
        let found = survey::find(client, InodeId::ROOT, &path).await;
        let found = found.unwrap_or_else(|error| panic!("{what}, after a fault: {error}"));
        inodes.insert(number, found);
    }
    let synced = client.sync_all().await;
    synced.unwrap_or_else(|error| panic!("{what}, after a fault: {error}"));
    let known = &mut *lock(known);
    known.history = History::from_base(&model);
    known.model = model;
    known.inodes = inodes;
    known.is_uncertain = false;
}
