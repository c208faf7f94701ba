//! Connections between nodes: bytes that arrive in the order in which they were sent, real (TCP) and
//! simulated.
//!
//! The path of a message: the caller writes slices to its [`ConnectionWriter`] (`write_vectored`
//! takes several without copying them together first). Real: the kernel sends them at once
//! (TCP_NODELAY). Simulated: `sim::network` copies them into one packet, which arrives after the
//! link's latency. The peer's [`ConnectionReader`] gives the bytes in pieces of any size.
//!
//! A connection ends in one of these ways, in both bodies:
//! * the peer closed it or its process ended: reads give the rest, then end (or `ConnectionReset` if
//!   the peer had not read everything);
//! * the peer's machine is gone or can't be reached: nothing tells; after [`crate::SILENCE_MAX`] without a
//!   sign of it reads and writes fail with `TimedOut`;
//! * the peer's machine started again: `ConnectionReset`.

#[cfg(test)]
mod tests;

use crate::call::Deadline;
use crate::net_limits::EPHEMERAL_PORTS;
use crate::real::{
    RealListener, RealReader, RealStream, address_towards, connect_tcp, ephemeral_ports,
};
use crate::sim::{SimListener, SimReader, SimWriter};
use crate::{Inner, World};
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

/// Takes connections at one address. Dropping it frees the address.
pub struct Listener {
    inner: ListenerInner,
}

pub(crate) enum ListenerInner {
    Real(RealListener),
    Simulated(SimListener),
}

/// One connection. Dropping it closes it. A task of either of the machine's runtimes
/// ([`World::urgent`]) may use it: it goes along when it is handed from one to the other. One task at a
/// time waits for it, in both directions; while it doesn't wait to write, others may write what is taken at once, on
/// threads of the same kind ([`World::is_here`]).
pub struct Connection {
    body: Body,
    ends: Ends,
}

enum Body {
    Real(RealStream),
    Simulated(SimReader, SimWriter),
}

/// The receiving half of a connection.
pub struct ConnectionReader {
    inner: Reader,
    ends: Ends,
}

/// The sending half of a connection. Dropping it, or `shutdown`, tells the peer that nothing more
/// comes; what was written before still arrives. One task waits for it; while it doesn't, others may write
/// what is taken at once.
pub struct ConnectionWriter {
    inner: Writer,
    ends: Ends,
}

enum Reader {
    Real(RealReader),
    Simulated(SimReader),
    /// The connection was lost when it was split.
    Lost,
}

enum Writer {
    Real(OwnedWriteHalf),
    Simulated(SimWriter),
    /// As for readers.
    Lost,
}

/// The two addresses of a connection.
#[derive(Clone, Copy)]
struct Ends {
    own: SocketAddr,
    peer: SocketAddr,
}

impl World {
    /// Takes connections at `address`; port 0 stands for any free port. A listener of
    /// [`World::urgent`] is told of connections however busy other tasks are.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable` and others.
    pub async fn listen(&self, address: SocketAddr) -> io::Result<Listener> {
        let inner = match &self.inner {
            Inner::Real(world) => ListenerInner::Real(RealListener::bind(address, &world.handle)?),
            Inner::Simulated(world) => ListenerInner::Simulated(world.listen(address)?),
        };
        Ok(Listener { inner })
    }

    /// The addresses of a host: of its name, or the one that `host` is in letters (IPv6 with or
    /// without brackets). May take as long as the machine's resolver: bound it by a deadline. Names
    /// don't exist in a simulation.
    ///
    /// # Errors
    /// `NotFound` if there is none; others of the system.
    pub async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let letters = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        if let Ok(address) = letters.unwrap_or(host).parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let found: Vec<SocketAddr> = match &self.inner {
            Inner::Real(_) => tokio::net::lookup_host((host, port)).await?.collect(),
            Inner::Simulated(_) => Vec::new(),
        };
        if found.is_empty() {
            let text = format!("{host} has no address");
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        Ok(found)
    }

    /// Connects to the listener at `address`.
    ///
    /// # Errors
    /// `ConnectionRefused` if the machine is there and nobody listens; `TimedOut` at the deadline;
    /// others of the system.
    pub async fn connect(&self, address: SocketAddr, deadline: Deadline) -> io::Result<Connection> {
        self.connect_as(None, address, deadline).await
    }

    /// As [`World::connect`], from an address and port of this machine.
    ///
    /// # Errors
    /// Besides those of `connect`: `AddrInUse` or `AddrNotAvailable` if another socket has the port,
    /// or the address isn't this machine's.
    pub async fn connect_from(
        &self,
        local: SocketAddr,
        address: SocketAddr,
        deadline: Deadline,
    ) -> io::Result<Connection> {
        self.connect_as(Some(local), address, deadline).await
    }

    async fn connect_as(
        &self,
        local: Option<SocketAddr>,
        address: SocketAddr,
        deadline: Deadline,
    ) -> io::Result<Connection> {
        let connecting = async {
            match &self.inner {
                Inner::Real(_) => Connection::real(connect_tcp(address, local).await?),
                Inner::Simulated(world) => {
                    let halves = world.connect(address, local).await?;
                    Ok(Connection::simulated(halves))
                }
            }
        };
        deadline.bound(self, connecting).await.unwrap_or_else(|_| {
            let text = format!("no connection to {address} before the deadline");
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        })
    }

    /// The address of this machine from which connections to `address` come if nobody binds them.
    /// Sends nothing and doesn't wait.
    ///
    /// # Errors
    /// `NetworkUnreachable` and others: no way leads there.
    pub fn address_towards(&self, address: IpAddr) -> io::Result<IpAddr> {
        match &self.inner {
            Inner::Real(_) => address_towards(address),
            Inner::Simulated(world) => Ok(world.address()),
        }
    }

    /// The ports that connecting sockets of this machine get when nobody chooses one.
    #[must_use]
    pub fn ephemeral_ports(&self) -> RangeInclusive<u16> {
        match &self.inner {
            Inner::Real(_) => ephemeral_ports(),
            Inner::Simulated(_) => EPHEMERAL_PORTS,
        }
    }
}

impl Listener {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        match &self.inner {
            ListenerInner::Real(listener) => listener.address(),
            ListenerInner::Simulated(listener) => listener.address(),
        }
    }

    /// The next connection.
    ///
    /// # Errors
    /// Those of the system, such as too many open files. The listener stays usable.
    pub async fn accept(&self) -> io::Result<Connection> {
        match &self.inner {
            ListenerInner::Real(listener) => Connection::real(listener.accept().await?),
            ListenerInner::Simulated(listener) => {
                Ok(Connection::simulated(listener.accept().await))
            }
        }
    }
}

impl Connection {
    fn real(stream: TcpStream) -> io::Result<Self> {
        let ends = Ends {
            own: stream.local_addr()?,
            peer: stream.peer_addr()?,
        };
        let body = Body::Real(RealStream::new(stream));
        Ok(Self { body, ends })
    }

    fn simulated((reader, writer): (SimReader, SimWriter)) -> Self {
        let (own, peer) = reader.addresses();
        Self {
            body: Body::Simulated(reader, writer),
            ends: Ends { own, peer },
        }
    }

    /// The peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.ends.peer
    }

    /// The address on this side.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.ends.own
    }

    /// Both halves, to be used by tasks of the calling task's runtime, where the connection goes along to if it was made or
    /// used elsewhere. None of them waits for the other one.
    #[must_use]
    pub fn into_split(self) -> (ConnectionReader, ConnectionWriter) {
        let (reader, writer) = match self.body {
            Body::Real(stream) => match stream.into_here().map(TcpStream::into_split) {
                Some((reader, writer)) => {
                    (Reader::Real(RealReader::new(reader)), Writer::Real(writer))
                }
                None => (Reader::Lost, Writer::Lost),
            },
            Body::Simulated(reader, writer) => {
                (Reader::Simulated(reader), Writer::Simulated(writer))
            }
        };
        let ends = self.ends;
        (
            ConnectionReader {
                inner: reader,
                ends,
            },
            ConnectionWriter {
                inner: writer,
                ends,
            },
        )
    }
}

impl ConnectionReader {
    /// Says how many bytes more the caller surely waits for. While they are many, it is woken for each 512 KiB of them, and
    /// not for each packet: say anew before each read how many are left, and one when that isn't known. A read gives what is
    /// there all the same. True: it may wait although some bytes have come, and whoever wants to know of them wants one.
    ///
    /// # Errors
    /// Those of the system; the connection is of no use then.
    pub fn want(&mut self, bytes: usize) -> io::Result<bool> {
        match &mut self.inner {
            Reader::Real(reader) => reader.want(bytes),
            Reader::Simulated(_) | Reader::Lost => Ok(false),
        }
    }
}

impl AsyncRead for ConnectionReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Reader::Real(reader) => reader.half().poll_read(context, buffer),
            Reader::Simulated(reader) => reader.poll_read(context, buffer),
            Reader::Lost => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncWrite for ConnectionWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.inner {
            Writer::Real(writer) => Pin::new(writer).poll_write_vectored(context, slices),
            Writer::Simulated(writer) => writer.poll_write(context, slices),
            Writer::Lost => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Neither body holds bytes back.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Writer::Real(writer) => Pin::new(writer).poll_shutdown(context),
            Writer::Simulated(writer) => Poll::Ready(writer.shutdown()),
            Writer::Lost => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.body {
            Body::Real(stream) => stream.here()?.poll_read(context, buffer),
            Body::Simulated(reader, _) => reader.poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.body {
            Body::Real(stream) => stream.here()?.poll_write_vectored(context, slices),
            Body::Simulated(_, writer) => writer.poll_write(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Neither body holds bytes back.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.body {
            Body::Real(stream) => stream.here()?.poll_shutdown(context),
            Body::Simulated(_, writer) => Poll::Ready(writer.shutdown()),
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "connection of {} to {}",
            self.ends.own, self.ends.peer
        )
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "listener at {}", self.address())
    }
}

impl fmt::Debug for ConnectionReader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "bytes from {} to {}",
            self.ends.peer, self.ends.own
        )
    }
}

impl fmt::Debug for ConnectionWriter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "bytes from {} to {}",
            self.ends.own, self.ends.peer
        )
    }
}
