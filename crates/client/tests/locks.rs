//! Locks of programs on several nodes: who waits for whom, who is woken, and what a change of the owner
//! leaves of them.

use crate::rig::way::{Map, Way, next_on_another_node};
use crate::rig::{self, Node, patient, run_patient as run};
use crate::waits::{program, wait_of, work};
use client::{Client, OpenFlags};
use metanode::Metanode;
use model::limits::SESSION_SLOTS;
use model::lock::{LockDoor, LockOwner, LockTaker};
use model::{ErrorKind, InodeId, LockKind, LockRange, Result, ShardId};
use std::future::{Pending, pending};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use testkit::errands::killed_after;
use world::{Part, Task, Work, World};

/// A program on a node of its own.
#[derive(Clone)]
struct Program {
    world: World,
    client: Arc<Client>,
    map: Arc<Map>,
    way: Arc<Way>,
    door: LockDoor,
}

const OWNER: u64 = 1;
const TAKER: LockTaker = LockTaker {
    open: 1,
    pid: 1,
    user: 1,
};

impl Program {
    async fn new(node: &Node) -> Self {
        let way = Way::new(&node.world, &node.metanode, 0);
        let map = Map::to(&way);
        let owner = map.remote_owner();
        let session = owner.open_session(&node.world).await.unwrap();
        let (world, pool) = (node.world.clone(), node.pool.clone());
        let client = Client::new(world.clone(), owner, pool, session, patient());
        let door = client.begin_lock_door().await.unwrap();
        Self {
            world,
            client,
            map,
            way,
            door,
        }
    }

    async fn several<const N: usize>(node: &Node) -> [Self; N] {
        let mut programs = Vec::new();
        for _ in 0..N {
            programs.push(Self::new(node).await);
        }
        programs.try_into().ok().unwrap()
    }

    fn owner(&self) -> LockOwner {
        LockOwner {
            door: self.door,
            id: OWNER,
        }
    }

    /// F_SETLK, also to unlock.
    async fn set(&self, inode: InodeId, kind: Option<LockKind>) -> Result<()> {
        let never = None::<Pending<()>>;
        let all = LockRange::ALL;
        let set = self
            .client
            .set_lock(inode, self.owner(), all, kind, TAKER, never);
        set.await
    }

    async fn lock(&self, inode: InodeId) -> Result<()> {
        self.set(inode, Some(LockKind::Exclusive)).await
    }

    /// F_SETLKW.
    async fn wait(&self, inode: InodeId) -> Result<()> {
        let (all, kind) = (LockRange::ALL, Some(LockKind::Exclusive));
        let never = Some(pending());
        let set = self
            .client
            .set_lock(inode, self.owner(), all, kind, TAKER, never);
        set.await
    }

    /// F_SETLKW in a task, which waits by now.
    async fn waits(&self, inode: InodeId) -> Waits {
        let it = self.clone();
        let done = Arc::new(parking_lot::Mutex::new(None));
        let tell = done.clone();
        let work = async move {
            let result = it.wait(inode).await;
            *tell.lock() = Some(result);
        };
        let task = self.world.spawn("waits for a lock", work);
        self.world.sleep(Duration::from_secs(1)).await;
        Waits { task, done }
    }

    /// Its messages go to another owner.
    fn follow(&mut self, owner: &Arc<Metanode>) {
        let way = Way::new(&self.world, owner, 0);
        way.cut
            .store(self.way.cut.load(Ordering::Relaxed), Ordering::Relaxed);
        *self.map.owner.lock() = Some(way.clone());
        self.way = way;
    }
}

struct Waits {
    task: Task<()>,
    done: Arc<parking_lot::Mutex<Option<Result<()>>>>,
}

impl Waits {
    fn is_waiting(&self) -> bool {
        self.done.lock().is_none()
    }

    /// What it got, within a second.
    async fn woken(self, world: &World) -> Result<()> {
        let soon = world.timeout(Duration::from_secs(1), self.task).await;
        assert!(soon.is_ok(), "it still waits");
        self.done.lock().take().unwrap()
    }
}

/// Waits until so many clients have said at an owner what they hold: each has a file open, which is seen then.
async fn until_told(owner: &Metanode, world: &World, clients: usize) {
    while owner.in_use().inodes < clients {
        world.sleep(Duration::from_millis(1)).await;
    }
}

/// A lock is one program's under the next owner, and another one's when that has unlocked it. The owner ends then.
async fn passes_on(file: InodeId, has: &Program, next: &mut Program, owner: &Arc<Metanode>) {
    next.follow(owner);
    let refused = next.lock(file).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    has.set(file, None).await.unwrap();
    next.lock(file).await.unwrap();
    owner.close().await.unwrap();
}

async fn files<const N: usize>(node: &Node) -> [InodeId; N] {
    let mut files = [InodeId::ROOT; N];
    for (number, file) in files.iter_mut().enumerate() {
        *file = rig::file(&node.client, &format!("f{number}")).await;
    }
    files
}

#[test]
fn programs_on_two_nodes_that_would_wait_for_each_other_are_told() {
    run(9_500, |world, node| async move {
        let [a, b] = Program::several(&node).await;
        let [f, g] = files(&node).await;
        a.lock(f).await.unwrap();
        b.lock(g).await.unwrap();
        let waits = a.waits(g).await;
        assert!(waits.is_waiting());
        let refused = b.wait(f).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WouldDeadlock);
        // It can still give way.
        assert!(waits.is_waiting());
        b.set(g, None).await.unwrap();
        waits.woken(&world).await.unwrap();
        let refused = b.lock(g).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn programs_on_three_nodes_that_would_wait_in_a_circle_are_told() {
    run(9_510, |world, node| async move {
        let [a, b, c] = Program::several(&node).await;
        let [f, g, h] = files(&node).await;
        for (program, file) in [(&a, f), (&b, g), (&c, h)] {
            program.lock(file).await.unwrap();
        }
        let first = a.waits(g).await;
        let second = b.waits(h).await;
        let refused = c.wait(f).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WouldDeadlock);
        assert!(first.is_waiting() && second.is_waiting());
        // Its node dies: that breaks the circle too.
        c.way.cut.store(true, Ordering::Relaxed);
        let sessions = node.metanode.hosted().sessions();
        let session = c.door.session;
        assert!(sessions.of_clients().any(|(id, _)| id == session));
        node.metanode.close_session(session).await.unwrap();
        second.woken(&world).await.unwrap();
        assert!(first.is_waiting());
        b.set(g, None).await.unwrap();
        first.woken(&world).await.unwrap();
    });
}

/// One waits for a lock whose holder closes the file, ends its door, closes its client, or loses its
/// session.
#[test]
fn whoever_waits_on_another_node_is_woken_however_the_lock_ends() {
    run(9_520, |world, node| async move {
        let [file] = files(&node).await;
        let waiter = Program::new(&node).await;
        for end in 0..5 {
            let holder = Program::new(&node).await;
            holder.lock(file).await.unwrap();
            let waits = waiter.waits(file).await;
            world.sleep(Duration::from_secs(30)).await;
            assert!(waits.is_waiting());
            let (client, owner) = (&holder.client, holder.owner());
            match end {
                0 => holder.set(file, None).await.unwrap(),
                1 => client.release_process_locks(file, owner).await,
                2 => client.end_lock_door(holder.door),
                3 => client.close().await.unwrap(),
                _ => {
                    let session = holder.door.session;
                    node.metanode.close_session(session).await.unwrap();
                }
            }
            waits.woken(&world).await.unwrap();
            waiter.set(file, None).await.unwrap();
        }
    });
}

/// Would be broken if locks stayed that no program has because no owner could be told in time, or if one that the same process,
/// or another one with its name, takes afterwards went with them.
#[test]
fn an_owner_that_can_not_be_told_of_the_end_of_locks_is_told_later() {
    run(9_540, |world, node| async move {
        let [holder, other] = Program::several(&node).await;
        let [file] = files(&node).await;
        let (client, owner) = (&holder.client, holder.owner());
        let name_owner = |is_named: bool| {
            *holder.map.owner.lock() = is_named.then(|| holder.way.clone());
        };
        for end in 0..3 {
            holder.lock(file).await.unwrap();
            name_owner(false);
            match end {
                0 => client.release_process_locks(file, owner).await,
                1 => client.release_open_locks(holder.door, TAKER.open).await,
                _ => {
                    client.release_process_locks(file, owner).await;
                    name_owner(true);
                    holder.lock(file).await.unwrap();
                    world.sleep(Duration::from_secs(30)).await;
                    let refused = other.lock(file).await.unwrap_err();
                    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
                    name_owner(false);
                    client.end_lock_door(holder.door);
                    let late = patient().patience + Duration::from_secs(30);
                    world.sleep(late).await;
                }
            }
            name_owner(true);
            other.waits(file).await.woken(&world).await.unwrap();
            other.set(file, None).await.unwrap();
        }
    });
}

/// Would be broken if a program that makes processes end without locks could make the node keep something for each of them while
/// no owner answers, and others' locks wait until the owner had heard of all.
#[test]
fn an_owner_that_is_away_is_told_later_only_of_processes_that_had_locks() {
    run(9_545, |_world, node| async move {
        let [holder] = Program::several(&node).await;
        let [file] = files(&node).await;
        holder.lock(file).await.unwrap();
        *holder.map.owner.lock() = None;
        for id in OWNER..OWNER + 500 {
            let owner = LockOwner {
                id,
                ..holder.owner()
            };
            holder.client.release_process_locks(file, owner).await;
        }
        let asked = || holder.way.asked.load(Ordering::Relaxed);
        let before = asked();
        *holder.map.owner.lock() = Some(holder.way.clone());
        holder.lock(file).await.unwrap();
        assert!(asked() - before < 50, "{} requests", asked() - before);
    });
}

/// Would be broken if the owner were told on nobody's errand, or who waits for that weren't tied to it.
#[test]
fn who_takes_a_lock_waits_for_the_owner_that_has_not_heard_of_the_end_of_another() {
    run(9_546, |world, node| async move {
        let [holder] = Program::several(&node).await;
        let [file] = files(&node).await;
        holder.lock(file).await.unwrap();
        *holder.map.owner.lock() = None;
        let (client, owner) = (&holder.client, holder.owner());
        client.release_process_locks(file, owner).await;
        let locking = {
            let holder = holder.clone();
            async move { holder.lock(file).await }
        };
        let (errand, locking) = program(&world, locking).await;
        assert_eq!(wait_of(client, errand).part, Part::ForWork(Work::EndLocks));
        let telling = work(&world, Work::EndLocks).errand;
        assert_eq!(wait_of(client, telling).part, Part::ForOwner(ShardId(0)));
        *holder.map.owner.lock() = Some(holder.way.clone());
        locking.await.unwrap();
    });
}

/// Would be broken if a wait that was given up stayed at the owner, which couldn't be told: it would grant the lock to nobody.
#[test]
fn a_wait_for_a_lock_that_is_given_up_while_no_owner_is_there_ends_later() {
    run(9_570, |world, node| async move {
        let [gone, other] = Program::several(&node).await;
        let [file] = files(&node).await;
        other.lock(file).await.unwrap();
        let waiting = {
            let (gone, world) = (gone.clone(), world.clone());
            async move {
                let (all, kind) = (LockRange::ALL, Some(LockKind::Exclusive));
                let (client, owner) = (&gone.client, gone.owner());
                let interrupted = Some(world.sleep(Duration::from_secs(10)));
                let waits = client.set_lock(file, owner, all, kind, TAKER, interrupted);
                let refused = waits.await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Unavailable);
                client.release_process_locks(file, owner).await;
            }
        };
        let waiting = world.spawn("waits for a lock", waiting);
        world.sleep(Duration::from_secs(5)).await;
        *gone.map.owner.lock() = None;
        waiting.await;
        *gone.map.owner.lock() = Some(gone.way.clone());
        world.sleep(Duration::from_secs(10)).await;
        other.set(file, None).await.unwrap();
        other.lock(file).await.unwrap();
    });
}

/// Would be broken if its wait were asked for again and again, each time in vain at once: nothing else went on, or if it stayed at
/// the owner, which would grant the lock to nobody.
#[test]
fn a_killed_program_waits_for_no_lock_any_more() {
    run(9_575, |world, node| async move {
        let [killed, other] = Program::several(&node).await;
        let [file] = files(&node).await;
        other.lock(file).await.unwrap();
        let second = Duration::from_secs(1);
        let waiting = killed_after(&world, 5 * second, killed.wait(file));
        let told = world.timeout(60 * second, waiting).await;
        let refused = told.expect("its wait ends").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        world.sleep(10 * second).await;
        other.set(file, None).await.unwrap();
        other.lock(file).await.unwrap();
    });
}

/// Would be broken if a lock that was asked for in vain came after its program had closed the file, or if its request stayed among
/// those that wait: nobody would give that lock back.
#[test]
fn a_lock_whose_program_has_gone_while_the_owner_was_away_is_nobodys() {
    run(9_560, |world, node| async move {
        let [gone, other] = Program::several(&node).await;
        let [file] = files(&node).await;
        for waits in [false, true] {
            if waits {
                other.lock(file).await.unwrap();
            }
            gone.way.cut.store(true, Ordering::Relaxed);
            let refused = match waits {
                true => gone.wait(file).await,
                false => gone.lock(file).await,
            };
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unknown);
            gone.way.cut.store(false, Ordering::Relaxed);
            let (client, owner) = (&gone.client, gone.owner());
            client.release_process_locks(file, owner).await;
            // What is still asked for in the background is decided by now.
            world.sleep(Duration::from_secs(60)).await;
            if waits {
                other.set(file, None).await.unwrap();
            }
            other.lock(file).await.unwrap();
            other.set(file, None).await.unwrap();
        }
    });
}

/// Would be broken if the refusal were taken for that of an owner that ends: the request would be asked for again and again, and
/// would keep one of the session's slots as long as that lasts.
#[test]
fn a_lock_that_is_asked_for_when_its_mount_has_ended_is_refused_at_once() {
    run(9_550, |world, node| async move {
        let [late] = Program::several(&node).await;
        let [file] = files(&node).await;
        late.client.end_lock_door(late.door);
        world.sleep(Duration::from_secs(1)).await;
        for _ in 0..=SESSION_SLOTS {
            let asked = world.timeout(Duration::from_secs(1), late.lock(file));
            let refused = asked.await.expect("it is answered").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Interrupted);
        }
        late.client.close().await.unwrap();
    });
}

#[test]
fn a_lock_is_its_holders_under_the_next_owner_and_those_of_who_stays_away_are_free() {
    run(9_530, |world, node| async move {
        let [mut stays, mut waiter, mut away] = Program::several(&node).await;
        let [kept, lost, other] = files(&node).await;
        for (program, file) in [(&stays, kept), (&away, lost)] {
            program
                .client
                .open(file, OpenFlags::default())
                .await
                .unwrap();
            program.lock(file).await.unwrap();
        }
        let waits = waiter.waits(kept).await;
        node.metanode.sync().await.unwrap();
        away.way.cut.store(true, Ordering::Relaxed);
        // Programs that learn of the new owner late: the waiter asks it first.
        let (next, _) = next_on_another_node(&node).await;
        for program in [&mut waiter, &mut away] {
            program.follow(&next);
        }
        let begun = world.now();
        let takes = {
            let waiter = waiter.clone();
            async move { waiter.lock(lost).await }
        };
        let takes = world.spawn("takes a lock of one that is away", takes);
        world.sleep(Duration::from_secs(4)).await;
        assert!(waits.is_waiting());
        stays.follow(&next);
        let refused = waiter.lock(kept).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
        takes.await.unwrap();
        let waited = world.now() - begun;
        let grace = Duration::from_secs(14)..Duration::from_secs(30);
        assert!(grace.contains(&waited), "{waited:?}");
        assert!(waits.is_waiting());
        let refused = waiter.lock(kept).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
        stays.set(kept, None).await.unwrap();
        waits.woken(&world).await.unwrap();

        // It comes back: what it had is lost, and it is told.
        away.way.cut.store(false, Ordering::Relaxed);
        world.sleep(Duration::from_secs(10)).await;
        let told = away.client.read(lost, 0, 1).await.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::SessionEnded);
        let told = away.lock(lost).await.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::SessionEnded);
        away.lock(other).await.unwrap();
        away.client.release(lost).await;
        let refused = away.lock(lost).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
        assert_eq!(away.client.losses().files_with_locks, 1);
        next.close().await.unwrap();
    });
}

/// Would be broken if a client told a new owner of a lock that it had asked the one before to end: that one had given it to
/// another program, which lost it without hearing of that.
#[test]
fn a_lock_that_ended_without_an_answer_is_its_next_holders_under_the_next_owner() {
    run(9_540, |world, node| async move {
        let [mut first, mut second, mut third] = Program::several(&node).await;
        let [locked, other] = files(&node).await;
        for (program, file) in [(&first, locked), (&second, other)] {
            let opens = program.client.open(file, OpenFlags::default());
            opens.await.unwrap();
        }
        first.lock(locked).await.unwrap();
        let waits = second.waits(locked).await;
        node.metanode.sync().await.unwrap();
        // The owner hears of the end, and its answer is lost.
        first.way.deaf.store(true, Ordering::Relaxed);
        let unlocks = {
            let first = first.clone();
            async move { first.set(locked, None).await }
        };
        let unlocks = world.spawn("unlocks", unlocks);
        waits.woken(&world).await.unwrap();

        let (next, _) = next_on_another_node(&node).await;
        // Who had the lock before says first what it holds, and asks only later for the end of it again.
        first.follow(&next);
        first.way.slow_ms.store(200, Ordering::Relaxed);
        until_told(&next, &world, 1).await;
        first.way.cut.store(true, Ordering::Relaxed);
        second.follow(&next);
        until_told(&next, &world, 2).await;
        first.way.cut.store(false, Ordering::Relaxed);
        unlocks.await.unwrap();
        passes_on(locked, &second, &mut third, &next).await;
    });
}

/// Would be broken if the client took the order of two answers for that in which the owner has done what they answer: of what one
/// thread of a program locks as another one unlocks it, it would tell the next owner as of a lock, which others have by then.
#[test]
fn a_lock_that_another_thread_has_ended_is_its_next_holders_under_the_next_owner() {
    run(9_580, |world, node| async move {
        let [mut first, mut second, mut third] = Program::several(&node).await;
        let [locked, other] = files(&node).await;
        for (program, file) in [(&first, locked), (&second, other)] {
            let opens = program.client.open(file, OpenFlags::default());
            opens.await.unwrap();
        }
        // It is locked, and the answer is on its way as the other thread unlocks.
        first.way.lock_ms.store(500, Ordering::Relaxed);
        let locks = {
            let first = first.clone();
            async move { first.lock(locked).await }
        };
        let locks = world.spawn("locks", locks);
        world.sleep(Duration::from_millis(100)).await;
        first.set(locked, None).await.unwrap();
        locks.await.unwrap();
        second.lock(locked).await.unwrap();
        node.metanode.sync().await.unwrap();

        let (next, _) = next_on_another_node(&node).await;
        first.follow(&next);
        until_told(&next, &world, 1).await;
        second.follow(&next);
        until_told(&next, &world, 2).await;
        passes_on(locked, &second, &mut third, &next).await;
    });
}

/// Would be broken if a program heard of an interruption that was none: its lock was granted, and the owner ended before it
/// had heard that nobody waits any more.
#[test]
fn a_lock_that_was_granted_as_its_owner_ended_is_asked_of_the_next_one() {
    run(9_550, |world, node| async move {
        let [mut first, mut second] = Program::several(&node).await;
        let [file] = files(&node).await;
        first.lock(file).await.unwrap();
        let waits = second.waits(file).await;
        node.metanode.sync().await.unwrap();
        // What is under way is still answered: that the lock is granted.
        second.way.cut.store(true, Ordering::Relaxed);
        first.set(file, None).await.unwrap();
        world.sleep(Duration::from_millis(100)).await;
        let (next, _) = next_on_another_node(&node).await;
        for program in [&mut first, &mut second] {
            program.follow(&next);
            program.way.cut.store(false, Ordering::Relaxed);
        }
        let Waits { task, done } = waits;
        task.await;
        assert_eq!(done.lock().take(), Some(Ok(())));
        let refused = first.lock(file).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
        next.close().await.unwrap();
    });
}
