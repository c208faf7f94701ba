//! A thread with a runtime of its own, for the few tasks that go on however busy all other threads are.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;

thread_local! {
    /// Whether this is an urgent thread.
    static IS_URGENT: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is an urgent one: sockets that it polls are its own runtime's.
pub(super) fn is_urgent_thread() -> bool {
    IS_URGENT.get()
}

/// The thread. Dropping it drops its tasks and ends it soon; nobody waits for that, so a task of its
/// own may hold the last reference.
pub(super) struct UrgentThread {
    handle: Handle,
    stop: Arc<Notify>,
}

impl UrgentThread {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let stop = Arc::new(Notify::new());
        let stopped = stop.clone();
        std::thread::Builder::new()
            .name("urgent".into())
            .spawn(move || {
                IS_URGENT.set(true);
                runtime.block_on(stopped.notified());
            })?;
        Ok(Self { handle, stop })
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for UrgentThread {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use crate::{Blocked, Connection, Deadline, World};
    use std::net::Ipv4Addr;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::oneshot;

    fn runtime() -> Runtime {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(2).enable_all();
        builder.build().unwrap()
    }

    async fn pair(world: &World) -> (Connection, Connection) {
        let listener = world.listen((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
        let deadline = Deadline::after(world, Duration::from_secs(20));
        let connecting = world.connect(listener.address(), deadline);
        let (connected, accepted) = futures::join!(connecting, listener.accept());
        (connected.unwrap(), accepted.unwrap())
    }

    #[test]
    fn urgent_tasks_timers_and_sockets_go_on_while_all_other_threads_block() {
        let runtime = runtime();
        let world = {
            let _context = runtime.enter();
            World::real()
        };
        let urgent = world.urgent();
        let blocked = Blocked::new(&world);
        assert!(world.is_here() && !urgent.is_here());
        let work = {
            let (world, urgent) = (world.clone(), urgent.clone());
            async move {
                assert!(urgent.is_here() && !world.is_here());
                urgent.sleep(Duration::from_millis(1)).await;
                let (mut connected, mut accepted) = pair(&urgent).await;
                connected.write_all(b"all").await.unwrap();
                let mut bytes = [0; 3];
                accepted.read_exact(&mut bytes).await.unwrap();
                let never = urgent.timeout(Duration::from_millis(1), accepted.read_u8());
                never.await.unwrap_err();
                bytes
            }
        };
        let worked = world.block_on(urgent.spawn("works", work));
        assert_eq!(&worked, b"all");
        drop(blocked);
    }

    #[test]
    fn a_connection_goes_along_when_it_is_handed_to_the_other_runtime() {
        let runtime = runtime();
        let world = {
            let _context = runtime.enter();
            World::real()
        };
        let urgent = world.urgent();
        let echo = async |mut connection: Connection| {
            let byte = connection.read_u8().await.unwrap();
            connection.write_u8(byte + 1).await.unwrap();
            connection
        };
        // Made by one runtime, used by the other one, and back.
        let made = {
            let urgent = urgent.clone();
            urgent
                .clone()
                .spawn("makes", async move { pair(&urgent).await })
        };
        let (mut here, mut there) = world.block_on(made);
        for round in 0..3 {
            let blocked = (round == 1).then(|| Blocked::new(&world));
            let [mine, other] = match round {
                1 => [&urgent, &urgent],
                _ => [&urgent, &world],
            };
            let echoing = other.spawn("echoes", async move { echo(there).await });
            let asking = mine.spawn("asks", async move {
                here.write_u8(round).await.unwrap();
                assert_eq!(here.read_u8().await.unwrap(), round + 1);
                here
            });
            here = world.block_on(asking);
            there = world.block_on(echoing);
            drop(blocked);
        }
    }

    #[test]
    fn the_halves_of_a_connection_are_of_the_runtime_of_the_task_that_splits_it() {
        let runtime = runtime();
        let world = {
            let _context = runtime.enter();
            World::real()
        };
        let urgent = world.urgent();
        let made = {
            let world = world.clone();
            world
                .clone()
                .spawn("makes", async move { pair(&world).await })
        };
        let (here, there) = world.block_on(made);
        // Halves that were left with its runtime would never hear of a byte.
        let blocked = Blocked::new(&world);
        let work = {
            let urgent = urgent.clone();
            async move {
                let (mut reader, mut writer) = here.into_split();
                let (mut far_reader, mut far_writer) = there.into_split();
                let asking = async {
                    writer.write_u8(1).await.unwrap();
                    reader.read_u8().await.unwrap()
                };
                let echoing = async {
                    let byte = far_reader.read_u8().await.unwrap();
                    far_writer.write_u8(byte + 1).await.unwrap();
                };
                let both = async { futures::join!(asking, echoing) };
                urgent.timeout(Duration::from_secs(20), both).await
            }
        };
        let heard = world.block_on(urgent.spawn("splits", work));
        assert_eq!(heard, Ok((2, ())));
        drop(blocked);
    }

    #[test]
    fn the_thread_ends_with_the_last_world_and_drops_its_tasks() {
        let runtime = runtime();
        let (gone, is_gone) = oneshot::channel::<()>();
        let waits = {
            let _context = runtime.enter();
            let world = World::real();
            let urgent = world.urgent();
            assert_eq!(urgent.urgent().runtime().id(), urgent.runtime().id());
            assert_ne!(urgent.runtime().id(), world.runtime().id());
            urgent.spawn("waits", async move {
                let _gone = gone;
                std::future::pending::<()>().await;
            })
        };
        waits.detach();
        let ended = runtime.block_on(is_gone);
        assert!(ended.is_err(), "the task was dropped");
    }
}
