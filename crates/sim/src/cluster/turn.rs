//! A client's turn: random actions on a node, compared with the model.

use super::ClusterScenario;
use crate::action::{self, Action, Draw, Seen, content};
use crate::drive::{Driver, survey};
use crate::recovered::History;
use crate::scenario::{agree, brief};
use bytes::Bytes;
use client::{Client, ClientSettings};
use model::operation::NewInode;
use model::{FamilyId, FileKind, InodeId, NodeId, ShardId};
use node::Member;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::model_fs::{ModelFs, Number, ROOT};
use world::World;

/// How long an operation may take under any fault of a script.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// By then a daemon knows that it was expelled.
const EXPELLED_MAX: Duration = Duration::from_secs(30);

/// The content of the file that a client holds open during its turn.
const HELD_SEED: u64 = 77;
const HELD_BYTES: usize = 50_000;

/// What outlives the clients of a shard: the model, and which actions are known to be durable.
pub(super) struct Known {
    pub(super) shard: ShardId,
    /// The root directory of its clients.
    root: InodeId,
    pub(super) model: ModelFs,
    history: History,
    /// Inodes by their numbers in the model.
    inodes: BTreeMap<Number, InodeId>,
    pub(super) draw: Draw,
    pub(super) steps: usize,
    /// A client's node went down in its turn: what is there must be looked at.
    pub(super) is_uncertain: bool,
    /// The node of the client whose turn it is.
    pub(super) client_on: NodeId,
}

pub(super) type Shared = Arc<Mutex<Known>>;

impl Known {
    pub(super) fn new(seed: u64, shard: ShardId, family: FamilyId) -> Shared {
        let root = family.root();
        Arc::new(Mutex::new(Self {
            shard,
            root,
            model: ModelFs::default(),
            history: History::shipped(),
            inodes: BTreeMap::from([(ROOT, root)]),
            draw: Draw::new(seed ^ u64::from(shard.0) << 48),
            steps: 0,
            is_uncertain: false,
            client_on: NodeId(0),
        }))
    }
}

fn settings() -> ClientSettings {
    ClientSettings {
        page_pool_bytes: 16 << 20,
        patience: PATIENCE,
        ..ClientSettings::default()
    }
}

/// The node of a client.
struct Node {
    world: World,
    member: Arc<Member>,
}

impl Node {
    /// What an operation brought. An error counts as the end of the daemon if the cluster has expelled it:
    /// the daemon may hear of that later than its client, and then ends with it.
    ///
    /// # Panics
    /// If it is any other error.
    async fn sees<T, E: std::fmt::Debug>(
        &self,
        brought: Result<T, E>,
        what: impl Fn() -> String,
    ) -> T {
        match brought {
            Ok(seen) => seen,
            Err(error) => {
                let ended = self.world.timeout(EXPELLED_MAX, self.member.ended());
                if ended.await.is_ok() {
                    std::future::pending::<()>().await;
                }
                panic!("{}: {error:?}", what());
            }
        }
    }
}

/// Performs `steps` actions, then closes the client.
///
/// # Panics
/// If an answer isn't the model's, or a change that was answered is gone.
pub(super) async fn turn(
    world: World,
    member: Arc<Member>,
    known: Shared,
    scenario: ClusterScenario,
    steps: u64,
    what: String,
) {
    let (shard, _) = place(&known);
    let client = loop {
        match member.open_client_of(shard, settings()).await {
            Ok(client) => break client,
            Err(error) => world.note("no session", error.kind() as u64),
        }
    };
    let node = Node { world, member };
    if lock(&known).is_uncertain {
        look(&node, &client, &known, &what).await;
    }
    let held = hold(&node, &client, &known, &what).await;
    let mut driver = Driver::with(client.clone(), lock(&known).inodes.clone());
    for step in 0..steps {
        let action = {
            let known = &mut *lock(&known);
            let action = action::draw(&mut known.draw, &known.model, &scenario.sizes);
            known.history.begin(&action);
            known.is_uncertain = true;
            action
        };
        let (expected, made) = expect(&mut lock(&known), &action);
        tracing::debug!(step, ?action, "asks");
        // Programs see a pause, also on a node that is cut off.
        let ran = driver.run(&action, made).await;
        let seen = node.sees(ran, || format!("{what}, step {step}")).await;
        assert!(
            agree(&action, &expected, &seen),
            "{what}, step {step} {action:?}: expected {}, saw {}",
            brief(&expected),
            brief(&seen)
        );
        let known = &mut *lock(&known);
        known.history.answered(&known.model);
        known.inodes.clone_from(driver.inodes());
        known.steps += 1;
    }
    let found = client.read(held, 0, HELD_BYTES).await;
    let found = node.sees(found, || format!("{what}, a file without names"));
    let found = found.await;
    let (found, wanted) = (found.concat(), content(HELD_SEED, HELD_BYTES));
    let differs = found.iter().zip(&wanted).position(|(a, b)| a != b);
    assert!(
        found == wanted,
        "{what}: a file without names, inode {held}, has {} bytes and differs at {differs:?}",
        found.len()
    );
    client.release(held).await;
    let closed = client.close().await;
    node.sees(closed, || format!("{what}, at its end")).await;
    let known = &mut *lock(&known);
    known.history.begin(&Action::SyncAll);
    known.history.answered(&known.model);
    known.is_uncertain = false;
}

/// Makes a file without names that only this client holds open, wherever the shard moves.
async fn hold(node: &Node, client: &Client, known: &Shared, what: &str) -> InodeId {
    let (_, root) = place(known);
    let new = NewInode {
        kind: FileKind::File,
        mode: 0o600,
        uid: 0,
        gid: 0,
        umask: 0,
        rdev: 0,
        target: Bytes::new(),
    };
    let written = async {
        let inode = client.create_unnamed(root, new).await?.inode;
        client
            .write(inode, 0, &content(HELD_SEED, HELD_BYTES))
            .await?;
        client.fsync(inode, false).await?;
        Ok::<_, model::Error>(inode)
    };
    let written = written.await;
    let made = node.sees(written, || format!("{what}, a file without names"));
    made.await
}

/// Looks at everything after a crash, and makes it what is known.
async fn look(node: &Node, client: &Client, known: &Shared, what: &str) {
    let after = || format!("{what}, after a crash");
    let (_, root) = place(known);
    let survey = survey::take(client, root).await;
    let survey = node.sees(survey, after).await;
    let checked = lock(known).history.check_recovered(&survey);
    checked.unwrap_or_else(|why| panic!("{what}, after a crash: {why}"));
    let (model, paths) = ModelFs::from_survey(&survey);
    let mut inodes = BTreeMap::from([(ROOT, root)]);
    for (number, path) in paths {
        let found = survey::find(client, root, &path).await;
        let found = node.sees(found, after).await;
        inodes.insert(number, found);
    }
    let synced = client.sync_all().await;
    node.sees(synced, after).await;
    let known = &mut *lock(known);
    known.history = History::shipped_from(&model);
    known.model = model;
    known.inodes = inodes;
    known.is_uncertain = false;
}

/// Everything must be as the model has it.
pub(super) async fn compare(world: World, member: Arc<Member>, known: Shared, what: String) {
    let (shard, root) = place(&known);
    let node = Node {
        world,
        member: member.clone(),
    };
    let client = member.open_client_of(shard, settings()).await;
    let client = client.unwrap_or_else(|error| panic!("{what}: {error}"));
    if lock(&known).is_uncertain {
        look(&node, &client, &known, &what).await;
    }
    let survey = survey::take(&client, root).await;
    let survey = survey.unwrap_or_else(|error| panic!("{what}: {error}"));
    let checked = lock(&known).history.check_recovered(&survey);
    checked.unwrap_or_else(|why| panic!("{what}: {why}"));
    client.close().await.expect("the client closes");
}

pub(super) fn lock(known: &Shared) -> std::sync::MutexGuard<'_, Known> {
    known.lock().expect("one thread")
}

/// The shard, and the root directory of its clients.
fn place(known: &Shared) -> (ShardId, InodeId) {
    let known = lock(known);
    (known.shard, known.root)
}

fn expect(known: &mut Known, action: &Action) -> (Seen, Option<Number>) {
    let expected = action.on_model(&mut known.model);
    let made = match &expected {
        Seen::Made(number) => Some(*number),
        _ => None,
    };
    (expected, made)
}
