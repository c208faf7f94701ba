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
use crate::real::{RealListener, connect_tcp};
use crate::sim::{SimListener, SimReader, SimWriter};
use crate::{Inner, World};
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Takes connections at one address. Dropping it frees the address.
pub struct Listener {
    inner: ListenerInner,
}

pub(crate) enum ListenerInner {
    Real(RealListener),
    Simulated(SimListener),
}

/// One connection. Dropping it closes it.
#[derive(Debug)]
pub struct Connection {
    reader: ConnectionReader,
    writer: ConnectionWriter,
}

/// The receiving half of a connection.
pub struct ConnectionReader {
    inner: Reader,
    ends: Ends,
}

/// The sending half of a connection. Dropping it, or `shutdown`, tells the peer that nothing more
/// comes; what was written before still arrives.
pub struct ConnectionWriter {
    inner: Writer,
    ends: Ends,
}

enum Reader {
    Real(OwnedReadHalf),
    Simulated(SimReader),
}

enum Writer {
    Real(OwnedWriteHalf),
    Simulated(SimWriter),
}

/// The two addresses of a connection.
#[derive(Clone, Copy)]
struct Ends {
    own: SocketAddr,
    peer: SocketAddr,
}

impl World {
    /// Takes connections at `address`; port 0 stands for any free port.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable` and others.
    pub async fn listen(&self, address: SocketAddr) -> io::Result<Listener> {
        let inner = match &self.inner {
            Inner::Real(_) => ListenerInner::Real(RealListener::bind(address).await?),
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
        let connecting = async {
            match &self.inner {
                Inner::Real(_) => Connection::real(connect_tcp(address).await?),
                Inner::Simulated(world) => Ok(Connection::simulated(world.connect(address).await?)),
            }
        };
        deadline.bound(self, connecting).await.unwrap_or_else(|_| {
            let text = format!("no connection to {address} before the deadline");
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        })
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
    fn real(stream: tokio::net::TcpStream) -> io::Result<Self> {
        let ends = Ends {
            own: stream.local_addr()?,
            peer: stream.peer_addr()?,
        };
        let (reader, writer) = stream.into_split();
        Ok(Self::new(Reader::Real(reader), Writer::Real(writer), ends))
    }

    fn simulated((reader, writer): (SimReader, SimWriter)) -> Self {
        let (own, peer) = reader.addresses();
        let ends = Ends { own, peer };
        Self::new(Reader::Simulated(reader), Writer::Simulated(writer), ends)
    }

    fn new(reader: Reader, writer: Writer, ends: Ends) -> Self {
        Self {
            reader: ConnectionReader {
                inner: reader,
                ends,
            },
            writer: ConnectionWriter {
                inner: writer,
                ends,
            },
        }
    }

    /// The peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.reader.ends.peer
    }

    /// The address on this side.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.reader.ends.own
    }

    /// Both halves, to be used by two tasks.
    #[must_use]
    pub fn into_split(self) -> (ConnectionReader, ConnectionWriter) {
        (self.reader, self.writer)
    }
}

impl AsyncRead for ConnectionReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Reader::Real(reader) => Pin::new(reader).poll_read(context, buffer),
            Reader::Simulated(reader) => reader.poll_read(context, buffer),
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
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(context)
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
