//! Connections through the kernel: TCP, each write sent at once, silent peers given up.

use crate::net_limits::{BACKLOG_MAX, SILENCE_MAX};
use rustix::net::sockopt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Probes of an idle connection that remain unanswered before it fails.
const PROBES: u32 = 3;

/// Pause before the first probe and between two; with all of them [`SILENCE_MAX`] is reached.
const PROBE_EVERY: Duration = Duration::from_millis(SILENCE_MAX.as_millis() as u64 / 4);

/// A listening TCP socket.
pub(crate) struct RealListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl RealListener {
    pub(crate) async fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = new_socket(address)?;
        // A daemon that starts again finds connections of its predecessor in TIME_WAIT.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG_MAX as u32)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.listener.accept().await?;
        set_options(&stream)?;
        Ok(stream)
    }
}

/// Connects; the caller bounds the time.
pub(crate) async fn connect_tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = new_socket(address)?.connect(address).await?;
    set_options(&stream)?;
    Ok(stream)
}

fn new_socket(address: SocketAddr) -> io::Result<TcpSocket> {
    match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    // Probes aren't sent while data is unacknowledged; this bounds that time.
    sockopt::set_tcp_user_timeout(stream, SILENCE_MAX.as_millis() as u32)?;
    Ok(())
}
