//! A program's hold on the simulated network: listeners, and the halves of connections.

use super::run::SimWorld;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::ReadBuf;

/// A simulated listener.
pub(crate) struct SimListener {
    world: Arc<SimWorld>,
    address: SocketAddr,
}

/// The receiving half of a simulated connection.
pub(crate) struct SimReader {
    half: Half,
}

/// The sending half of a simulated connection.
pub(crate) struct SimWriter {
    half: Half,
}

struct Half {
    world: Arc<SimWorld>,
    connection: u64,
    end: usize,
    is_reader: bool,
}

/// An attempt to connect; gives up when dropped.
struct Attempt<'a> {
    world: &'a Arc<SimWorld>,
    number: u64,
}

impl SimWorld {
    /// See `World::listen`.
    pub(crate) fn listen(self: &Arc<Self>, address: SocketAddr) -> io::Result<SimListener> {
        let mut machine = self.machine.lock();
        if !machine.is_running(self.run) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let address = machine.network.listen(self.node, self.run, address)?;
        Ok(SimListener {
            world: self.clone(),
            address,
        })
    }

    /// The machine's address.
    pub(crate) fn address(&self) -> IpAddr {
        self.machine.lock().network.address(self.node)
    }

    /// See `World::connect` and `connect_from`. Waits for ever if nothing answers.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        address: SocketAddr,
        local: Option<SocketAddr>,
    ) -> io::Result<(SimReader, SimWriter)> {
        let now = self.network_time();
        let number = {
            let mut machine = self.machine.lock();
            if !machine.is_running(self.run) {
                return Err(io::ErrorKind::NotConnected.into());
            }
            let (node, run) = (self.node, self.run);
            machine.network.connect(now, node, run, address, local)?
        };
        let attempt = Attempt {
            world: self,
            number,
        };
        let connection = poll_fn(|context| {
            let mut machine = self.machine.lock();
            match machine.network.connected(number, context.waker()) {
                Some(outcome) => Poll::Ready(outcome),
                None => Poll::Pending,
            }
        })
        .await;
        drop(attempt);
        Ok(halves(self, connection?, 0))
    }
}

fn halves(world: &Arc<SimWorld>, connection: u64, end: usize) -> (SimReader, SimWriter) {
    let half = |is_reader| Half {
        world: world.clone(),
        connection,
        end,
        is_reader,
    };
    (
        SimReader { half: half(true) },
        SimWriter { half: half(false) },
    )
}

impl SimListener {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) async fn accept(&self) -> (SimReader, SimWriter) {
        let connection = poll_fn(|context| {
            let mut machine = self.world.machine.lock();
            match machine.network.accept(self.address, context.waker()) {
                Some(connection) => Poll::Ready(connection),
                None => Poll::Pending,
            }
        })
        .await;
        halves(&self.world, connection, 1)
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let now = self.world.network_time();
        let mut machine = self.world.machine.lock();
        machine
            .network
            .stop_listening(now, self.world.run, self.address);
    }
}

impl SimReader {
    /// Own address and the peer's.
    pub(crate) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        let machine = self.half.world.machine.lock();
        machine
            .network
            .addresses(self.half.connection, self.half.end)
    }

    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Half {
            world,
            connection,
            end,
            ..
        } = &self.half;
        let now = world.network_time();
        let mut machine = world.machine.lock();
        if !machine.is_running(world.run) {
            return Poll::Pending;
        }
        machine
            .network
            .read(now, *connection, *end, buffer, context.waker())
    }
}

impl SimWriter {
    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Half {
            world,
            connection,
            end,
            ..
        } = &self.half;
        let now = world.network_time();
        let mut machine = world.machine.lock();
        if !machine.is_running(world.run) {
            return Poll::Pending;
        }
        machine
            .network
            .write(now, *connection, *end, slices, context.waker())
    }

    pub(crate) fn shutdown(&mut self) -> io::Result<()> {
        let now = self.half.world.network_time();
        let mut machine = self.half.world.machine.lock();
        if machine.is_running(self.half.world.run) {
            machine
                .network
                .shut_down(now, self.half.connection, self.half.end);
        }
        Ok(())
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        let now = self.world.network_time();
        let mut machine = self.world.machine.lock();
        // When the process has ended, the kernel has closed the connection.
        if machine.is_running(self.world.run) {
            machine
                .network
                .drop_half(now, self.connection, self.end, self.is_reader);
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let now = self.world.network_time();
        let mut machine = self.world.machine.lock();
        machine.network.stop_connecting(now, self.number);
    }
}
