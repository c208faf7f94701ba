//! A client's turn: random actions on a node, compared with the model.

use super::ClusterScenario;
use crate::action::{self, Action, Draw, Seen, content};
use crate::drive::{Driver, survey};
use crate::recovered::History;
use crate::scenario::{agree, brief};
use bytes::Bytes;
use client::{Client, ClientSettings};
use futures::future::{Either, select};
use model::operation::NewInode;
use model::{Error, ErrorKind, FamilyId, FileKind, InodeId, NodeId, ShardId};
use node::Member;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::model_fs::{ModelFs, Number, ROOT};
use world::World;

/// How long an operation may take under any fault of a script.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// By then a daemon knows that it was expelled, or a client that it has lost its session.
const EXPELLED_MAX: Duration = Duration::from_secs(30);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

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
            history: History::default(),
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

/// A client and its node.
struct Node {
    world: World,
    member: Arc<Member>,
    client: Arc<Client>,
    shard: ShardId,
    /// The shard's owner has been here, which answers before that is durable.
    was_near: AtomicBool,
    /// It has while the client did the last thing.
    is_near: AtomicBool,
}

/// The client has lost its session with an owner on its node: what wasn't synced may be gone.
struct Lost;

impl Node {
    fn new(world: World, member: Arc<Member>, client: Arc<Client>, shard: ShardId) -> Self {
        Self {
            world,
            member,
            client,
            shard,
            was_near: AtomicBool::new(false),
            is_near: AtomicBool::new(false),
        }
    }

    fn note_owner(&self) {
        if self.member.hosted_of(self.shard).is_some() {
            self.is_near.store(true, Ordering::Relaxed);
            self.was_near.store(true, Ordering::Relaxed);
        }
    }

    fn has_lost(&self) -> bool {
        self.was_near.load(Ordering::Relaxed) && self.client.losses().sessions > 0
    }

    /// Has the client do something, and notes where its owner is meanwhile.
    async fn does<F: Future>(&self, work: F) -> F::Output {
        self.is_near.store(false, Ordering::Relaxed);
        let looks = async {
            loop {
                self.note_owner();
                self.world.sleep(LOOK_EVERY).await;
            }
        };
        self.note_owner();
        let done = match select(pin!(work), pin!(looks)).await {
            Either::Left((done, _)) => done,
            Either::Right((never, _)) => never,
        };
        self.note_owner();
        done
    }

    /// What an operation brought. An error counts as the end of the daemon if the cluster has expelled it:
    /// the daemon may hear of that later than its client, and then ends with it.
    ///
    /// # Panics
    /// If it is any other error.
    async fn sees<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
        what: impl Fn() -> String,
    ) -> Result<T, Lost> {
        let brought = self.does(work).await;
        let was_near = self.was_near.load(Ordering::Relaxed);
        let error = match brought {
            _ if self.has_lost() => return Err(Lost),
            Ok(seen) => return Ok(seen),
            // The owner ended before what it had done was durable, or answered.
            Err(error) if was_near && error.kind() == ErrorKind::Unknown => return Err(Lost),
            Err(error) => error,
        };
        let lost = async {
            while !self.has_lost() {
                self.world.sleep(LOOK_EVERY).await;
            }
        };
        let (ends, lost) = (pin!(self.member.ended()), pin!(lost));
        match self.world.timeout(EXPELLED_MAX, select(ends, lost)).await {
            Ok(Either::Left(_)) => std::future::pending().await,
            Ok(Either::Right(_)) => Err(Lost),
            Err(_) => panic!("{}: {error:?}", what()),
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
    let node = Node::new(world, member, client, shard);
    if let Err(Lost) = act(&node, &known, &scenario, steps, &what).await {
        // The next client looks at everything.
        lock(&known).history.session_lost();
        let _ended = node.client.close().await;
    }
}

async fn act(
    node: &Node,
    known: &Shared,
    scenario: &ClusterScenario,
    steps: u64,
    what: &str,
) -> Result<(), Lost> {
    let client = &node.client;
    if lock(known).is_uncertain {
        look(node, known, what).await?;
    }
    let held = hold(node, known, what).await?;
    let mut driver = Driver::with(client.clone(), lock(known).inodes.clone());
    for step in 0..steps {
        let action = {
            let known = &mut *lock(known);
            let action = action::draw(&mut known.draw, &known.model, &scenario.sizes);
            known.history.begin(&action);
            known.is_uncertain = true;
            action
        };
        let (expected, made) = expect(&mut lock(known), &action);
        tracing::debug!(step, ?action, "asks");
        // Programs see a pause, also on a node that is cut off.
        let runs = driver.run(&action, made);
        let seen = node.sees(runs, || format!("{what}, step {step}")).await?;
        let is_durable = !node.is_near.load(Ordering::Relaxed);
        assert!(
            agree(&action, &expected, &seen),
            "{what}, step {step} {action:?}: expected {}, saw {}",
            brief(&expected),
            brief(&seen)
        );
        let known = &mut *lock(known);
        known.history.answered(&known.model, is_durable);
        known.inodes.clone_from(driver.inodes());
        known.steps += 1;
    }
    let reads = client.read(held, 0, HELD_BYTES);
    let found = node.sees(reads, || format!("{what}, a file without names"));
    let found = found.await?;
    let (found, wanted) = (found.concat(), content(HELD_SEED, HELD_BYTES));
    let differs = found.iter().zip(&wanted).position(|(a, b)| a != b);
    assert!(
        found == wanted,
        "{what}: a file without names, inode {held}, has {} bytes and differs at {differs:?}",
        found.len()
    );
    client.release(held).await;
    let closes = client.close();
    node.sees(closes, || format!("{what}, at its end")).await?;
    let known = &mut *lock(known);
    known.history.begin(&Action::SyncAll);
    known.history.answered(&known.model, true);
    known.is_uncertain = false;
    Ok(())
}

/// Makes a file without names that only this client holds open, wherever the shard moves.
async fn hold(node: &Node, known: &Shared, what: &str) -> Result<InodeId, Lost> {
    let (client, (_, root)) = (&node.client, place(known));
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
        Ok::<_, Error>(inode)
    };
    let made = node.sees(written, || format!("{what}, a file without names"));
    made.await
}

/// Looks at everything after a crash, and makes it what is known.
async fn look(node: &Node, known: &Shared, what: &str) -> Result<(), Lost> {
    let after = || format!("{what}, after a crash");
    let (client, (_, root)) = (&node.client, place(known));
    let survey = node.sees(survey::take(client, root), after).await?;
    let checked = lock(known).history.check_recovered(&survey);
    checked.unwrap_or_else(|why| panic!("{what}, after a crash: {why}"));
    let (model, paths) = ModelFs::from_survey(&survey);
    let mut inodes = BTreeMap::from([(ROOT, root)]);
    for (number, path) in paths {
        let found = survey::find(client, root, &path);
        let found = node.sees(found, after).await?;
        inodes.insert(number, found);
    }
    node.sees(client.sync_all(), after).await?;
    let known = &mut *lock(known);
    known.history = History::from_base(&model);
    known.model = model;
    known.inodes = inodes;
    known.is_uncertain = false;
    Ok(())
}

/// Everything must be as the model has it.
pub(super) async fn compare(world: World, member: Arc<Member>, known: Shared, what: String) {
    let (shard, root) = place(&known);
    let client = member.open_client_of(shard, settings()).await;
    let client = client.unwrap_or_else(|error| panic!("{what}: {error}"));
    let node = Node::new(world, member, client.clone(), shard);
    let is_uncertain = lock(&known).is_uncertain;
    if is_uncertain && look(&node, &known, &what).await.is_err() {
        panic!("{what}: the client has lost its session, and nothing is wrong");
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
