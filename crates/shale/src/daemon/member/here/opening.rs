//! Opens file systems: each once, whoever asks for it at the same time, and none waits for another one.
//!
//! A task of its own opens a file system, to the end, also if those who have asked go away: whoever is given up while it asks
//! the owner for a session doesn't know whether there is one, and nobody would end it. So whoever asks next finds it open, and
//! if nobody does it is closed as any other that nobody uses.

use model::{Error, ErrorKind, FileSystemName, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;
use world::{Task, World};

/// The file systems that are being opened.
pub(super) struct Openings<T> {
    state: Arc<Mutex<State<T>>>,
}

struct State<T> {
    under_way: BTreeMap<FileSystemName, Opening<T>>,
    /// None is opened any more.
    is_over: bool,
}

struct Opening<T> {
    /// What has come of it, once it has ended.
    end: watch::Receiver<Option<Result<T>>>,
    task: Task<()>,
}

impl<T> Default for Openings<T> {
    fn default() -> Self {
        let state = State {
            under_way: BTreeMap::new(),
            is_over: false,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }
}

impl<T: Clone + Send + Sync + 'static> Openings<T> {
    /// What comes of the opening that is under way; else what `find` finds; else what `open` opens, after which `find` finds it.
    ///
    /// # Errors
    /// Those of `open`; `ShuttingDown`: none is opened any more.
    pub(super) async fn get<F>(
        &self,
        world: &World,
        name: &FileSystemName,
        find: impl FnOnce() -> Option<T>,
        open: impl FnOnce() -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut end = {
            let mut state = self.state.lock();
            match state.under_way.get(name) {
                Some(opening) => opening.end.clone(),
                None => {
                    // Looked for under the lock: what has been opened is found before it isn't under way any more.
                    if let Some(found) = find() {
                        return Ok(found);
                    }
                    if state.is_over {
                        return Err(over());
                    }
                    let opening = self.begin(world, name, open());
                    let end = opening.end.clone();
                    state.under_way.insert(name.clone(), opening);
                    end
                }
            }
        };
        let ended = end.wait_for(Option::is_some).await;
        // Without an end it was given up.
        let ended = ended.map(|ended| ended.clone());
        ended.ok().flatten().unwrap_or_else(|| Err(over()))
    }

    /// The caller has the lock, for which the end of the task waits.
    fn begin<F>(&self, world: &World, name: &FileSystemName, open: F) -> Opening<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (tell, end) = watch::channel(None);
        let (state, name) = (Arc::downgrade(&self.state), name.clone());
        let task = world.spawn("opens a file system", async move {
            let opened = open.await;
            if let Some(state) = state.upgrade() {
                let own = state.lock().under_way.remove(&name);
                if let Some(own) = own {
                    own.task.detach();
                }
            }
            tell.send_replace(Some(opened));
        });
        Opening { end, task }
    }

    /// From now on none is begun. Returns once those that are under way have ended.
    pub(super) async fn end(&self) {
        let under_way: Vec<_> = {
            let mut state = self.state.lock();
            state.is_over = true;
            let ends = state.under_way.values().map(|it| it.end.clone());
            ends.collect()
        };
        for mut end in under_way {
            // Or given up.
            let _ = end.wait_for(Option::is_some).await;
        }
    }

    /// From now on none is begun, and those that are under way are given up: sessions that they have opened end with this run
    /// of the node. Returns once none of them goes on: what has been opened is found then.
    pub(super) async fn give_up(&self) {
        let given_up = {
            let mut state = self.state.lock();
            state.is_over = true;
            std::mem::take(&mut state.under_way)
        };
        for opening in given_up.into_values() {
            opening.task.stop().await;
        }
    }
}

fn over() -> Error {
    Error::new(ErrorKind::ShuttingDown, "the node is going down")
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::future::{join, pending, ready};
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use world::sim::Simulation;

    const SECOND: Duration = Duration::from_secs(1);

    fn name(text: &str) -> FileSystemName {
        text.parse().unwrap()
    }

    /// A node's file systems: each takes a second to open.
    #[derive(Default)]
    struct Node {
        openings: Openings<usize>,
        open: Arc<Mutex<BTreeMap<FileSystemName, usize>>>,
        begun: Arc<AtomicUsize>,
    }

    impl Node {
        /// The how manieth that was opened a file system is.
        async fn get(&self, world: &World, text: &str) -> Result<usize> {
            let name = name(text);
            let find = || self.open.lock().get(&name).copied();
            let open = || {
                let number = self.begun.fetch_add(1, Ordering::Relaxed);
                let (world, open, name) = (world.clone(), self.open.clone(), name.clone());
                async move {
                    world.sleep(SECOND).await;
                    open.lock().insert(name, number);
                    Ok(number)
                }
            };
            self.openings.get(world, &name, find, open).await
        }
    }

    #[test]
    fn a_file_system_that_cannot_be_opened_holds_up_no_other_one() {
        let run = Simulation::new(1).run(async |world: World| {
            let node = Node::default();
            let (far, none) = (name("far"), || None);
            let hangs = node.openings.get(&world, &far, none, pending);
            let mut hangs = pin!(hangs);
            assert!(hangs.as_mut().now_or_never().is_none());
            assert_eq!(node.get(&world, "near").await, Ok(0));
            assert!(hangs.as_mut().now_or_never().is_none());
            // Those who want it don't ask anew, and hear of its end.
            let again = node.openings.get(&world, &far, none, pending);
            let mut again = pin!(again);
            assert!(again.as_mut().now_or_never().is_none());
            node.openings.give_up().await;
            let ends: [Result<usize>; 2] = join(hangs, again).await.into();
            for end in ends {
                assert_eq!(end.unwrap_err().kind(), ErrorKind::ShuttingDown);
            }
        });
        run.finished();
    }

    /// Would be broken if the session of a client that was just being opened stayed until the node's end.
    #[test]
    fn what_was_begun_for_somebody_who_went_away_is_there_for_the_next_one() {
        let run = Simulation::new(2).run(async |world: World| {
            let node = Node::default();
            assert!(node.get(&world, "a").now_or_never().is_none());
            let both = join(node.get(&world, "a"), node.get(&world, "a")).await;
            assert_eq!(both, (Ok(0), Ok(0)));
            assert!(node.get(&world, "b").now_or_never().is_none());
            world.sleep(2 * SECOND).await;
            assert_eq!(node.open.lock().len(), 2, "nobody waited for it");
            assert_eq!(node.get(&world, "b").await, Ok(1));
            assert_eq!(node.begun.load(Ordering::Relaxed), 2);
        });
        run.finished();
    }

    #[test]
    fn what_is_refused_is_tried_again_by_the_next_one() {
        let run = Simulation::new(3).run(async |world: World| {
            let node = Node::default();
            let refuse = || ready(Err(Error::new(ErrorKind::Unavailable, "no owner")));
            let name = name("a");
            let refused = node.openings.get(&world, &name, || None, refuse);
            let refused = refused.await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
            assert_eq!(node.get(&world, "a").await, Ok(0));
        });
        run.finished();
    }

    /// Would be broken if a client could still come after all that are open were taken out to be closed.
    #[test]
    fn once_those_under_way_are_given_up_none_of_them_goes_on() {
        let run = Simulation::new(5).run(async |world: World| {
            let openings = Openings::<usize>::default();
            let (name, held) = (name("a"), Arc::new(()));
            let open = || {
                let held = held.clone();
                async move {
                    let _held = held;
                    pending().await
                }
            };
            let asked = openings.get(&world, &name, || None, open);
            assert!(asked.now_or_never().is_none());
            openings.give_up().await;
            assert_eq!(Arc::strong_count(&held), 1);
        });
        run.finished();
    }

    #[test]
    fn at_the_end_those_under_way_are_waited_for_and_none_is_begun() {
        let run = Simulation::new(4).run(async |world: World| {
            let node = Node::default();
            assert!(node.get(&world, "a").now_or_never().is_none());
            node.openings.end().await;
            assert_eq!(node.get(&world, "a").await, Ok(0), "it is open");
            let refused = node.get(&world, "b").await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ShuttingDown);
        });
        run.finished();
    }
}
