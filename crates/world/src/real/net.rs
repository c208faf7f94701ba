//! Connections through the kernel: TCP, each write sent at once, silent peers given up.

use super::urgent::is_urgent_thread;
use crate::net_limits::{BACKLOG_MAX, EPHEMERAL_PORTS, SILENCE_MAX};
use rustix::net::sockopt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;

/// Probes of an idle connection that remain unanswered before it fails.
const PROBES: u32 = 3;

/// Pause before the first probe and between two; with all of them [`SILENCE_MAX`] is reached.
const PROBE_EVERY: Duration = Duration::from_millis(SILENCE_MAX.as_millis() as u64 / 4);

/// Most bytes of which a waiting reader is told together: eight packets between processes of a machine, and far below what
/// the kernel holds for it (3 MiB or more, as most systems are set up; 1 MiB within a machine), so that the peer can send on
/// while it takes them. The kernel takes half of what it holds if that is less.
const TOGETHER_MAX: usize = 512 * 1024;

/// A reader that wants less is told of each packet: there are few of them.
const TOGETHER_MIN: usize = 32 * 1024;

/// Bytes that the kernel holds for a reader whose peer is at a loopback address: a few receives. It takes twice as much memory
/// with its own.
const LOOPBACK_HELD: usize = 1 << 20;

/// How the names of rules of congestion begin that space packets by timers.
const PACED: &str = "bbr";

/// The rule of most systems, which doesn't.
const UNPACED: &str = "cubic";

/// A listening TCP socket.
pub(crate) struct RealListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl RealListener {
    /// Listens; `runtime` is told of connections that come.
    pub(crate) fn bind(address: SocketAddr, runtime: &Handle) -> io::Result<Self> {
        let _context = runtime.enter();
        let socket = new_socket(address)?;
        // Connections that are accepted have both from here.
        avoid_pacing(&socket);
        hold_little(&socket, address);
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

/// A connection. Belongs to the runtime whose task polls it, so that a busy one's sockets never keep
/// the urgent one waiting: when it is polled by the other one it is taken from the first.
pub(crate) struct RealStream {
    /// None after it couldn't be given to the other runtime.
    stream: Option<TcpStream>,
    is_urgent: bool,
}

impl RealStream {
    /// A connection that the calling task has made.
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream: Some(stream),
            is_urgent: is_urgent_thread(),
        }
    }

    /// The socket, as one of the calling task's runtime.
    pub(crate) fn here(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        let is_urgent = is_urgent_thread();
        if self.is_urgent != is_urgent {
            let stream = self.stream.take().ok_or(io::ErrorKind::NotConnected)?;
            self.stream = Some(TcpStream::from_std(stream.into_std()?)?);
            self.is_urgent = is_urgent;
        }
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Ok(Pin::new(stream))
    }

    /// The socket, for its two halves, as one of the calling task's runtime: they stay there. None if it couldn't be
    /// given to that.
    pub(crate) fn into_here(mut self) -> Option<TcpStream> {
        self.here().ok()?;
        self.stream
    }
}

/// The receiving half of a connection.
pub(crate) struct RealReader {
    half: OwnedReadHalf,
    /// How many bytes must have come until the kernel tells of them.
    together: usize,
}

impl RealReader {
    pub(crate) fn new(half: OwnedReadHalf) -> Self {
        Self { half, together: 1 }
    }

    pub(crate) fn half(&mut self) -> Pin<&mut OwnedReadHalf> {
        Pin::new(&mut self.half)
    }

    /// See `ConnectionReader::want`.
    pub(crate) fn want(&mut self, bytes: usize) -> io::Result<bool> {
        let together = match bytes < TOGETHER_MIN {
            true => 1,
            false => bytes.min(TOGETHER_MAX),
        };
        if together != self.together {
            tell_of(self.half.as_ref(), together)?;
            self.together = together;
        }
        Ok(together > 1)
    }
}

/// Has the kernel tell of bytes once so many have come: now if they have. It tells of fewer when the connection ends, or
/// when it has no room for more.
fn tell_of(stream: &TcpStream, bytes: usize) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).expect("far below 2 GiB");
    // SAFETY: the option's value is an integer of this size, which lives until the call returns.
    let set = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Connects, from the local address if one is given; the caller bounds the time.
pub(crate) async fn connect_tcp(
    address: SocketAddr,
    local: Option<SocketAddr>,
) -> io::Result<TcpStream> {
    let socket = new_socket(address)?;
    avoid_pacing(&socket);
    hold_little(&socket, address);
    if let Some(local) = local {
        // The same port is free for connections to other addresses, and after an earlier one in
        // TIME_WAIT.
        socket.set_reuseaddr(true)?;
        socket.bind(local)?;
    }
    let stream = socket.connect(address).await?;
    set_options(&stream)?;
    Ok(stream)
}

/// The address from which this machine sends to `address`. Nothing is sent.
pub(crate) fn address_towards(address: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // A datagram socket asks only the routing table; the port plays no part, but 0 is refused.
    socket.connect((address, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// The ports that the kernel gives to connecting sockets.
pub(crate) fn ephemeral_ports() -> RangeInclusive<u16> {
    let path = Path::new("/proc/sys/net/ipv4/ip_local_port_range");
    let text = crate::host::read_file(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut ports = text.split_whitespace().map(str::parse::<u16>);
    match (ports.next(), ports.next()) {
        (Some(Ok(first)), Some(Ok(last))) if first <= last => first..=last,
        _ => EPHEMERAL_PORTS,
    }
}

fn new_socket(address: SocketAddr) -> io::Result<TcpSocket> {
    match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }
}

/// Lets a socket that isn't connected yet send what its window allows at once, where the system's rule of congestion spaces
/// packets by timers: BBR, made for long ways. Between nodes of a cluster credits bound what is under way, and round trips are
/// as short as the precision of timers; for a stream between two daemons on two cores they took an eighth of the CPU time.
/// If the kernel hasn't the usual rule, the system's stays: it is correct as well.
fn avoid_pacing(socket: &TcpSocket) {
    let is_paced = sockopt::tcp_congestion(socket).is_ok_and(|rule| rule.starts_with(PACED));
    if is_paced && let Err(error) = sockopt::set_tcp_congestion(socket, UNPACED) {
        tracing::debug!(%error, "connections are paced");
    }
}

/// Bounds what the kernel holds of what has come over connections within this machine, for a socket that isn't connected yet.
/// By itself it holds ever more as long as the peer is quicker, up to 16 MiB on recent kernels: where CPUs are used up it is
/// for milliseconds at a time, and what is taken then is in no cache any more. Over a network the peer must be ahead by what
/// is on the way, so nothing is bounded there. A daemon that isn't root's may not say so, and is served as well.
fn hold_little(socket: &TcpSocket, address: SocketAddr) {
    if !address.ip().is_loopback() {
        return;
    }
    if let Err(error) = sockopt::set_socket_recv_buffer_size_force(socket, LOOPBACK_HELD) {
        tracing::debug!(%error, "the kernel bounds what it holds itself");
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Builder;

    /// Whether the kernel has a rule of congestion. Some only load one when it is asked for.
    fn has(rule: &str) -> bool {
        let socket = TcpSocket::new_v4().unwrap();
        sockopt::set_tcp_congestion(&socket, rule).is_ok()
    }

    /// Both ends of a connection within this machine.
    async fn ends() -> [TcpStream; 2] {
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = RealListener::bind(any_port, &Handle::current()).unwrap();
        let connected = connect_tcp(listener.address(), None);
        let (connected, accepted) = futures::join!(connected, listener.accept());
        [connected.unwrap(), accepted.unwrap()]
    }

    /// Would be as much as the kernel likes if it were said to one of the ends only, or after they are connected.
    #[test]
    fn little_waits_in_the_kernel_within_a_machine() {
        let runtime = Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let socket = TcpSocket::new_v4().unwrap();
            let may = sockopt::set_socket_recv_buffer_size_force(&socket, LOOPBACK_HELD).is_ok();
            for end in ends().await {
                let held = sockopt::socket_recv_buffer_size(&end).unwrap();
                assert_eq!(held == 2 * LOOPBACK_HELD, may, "{held}");
            }
        });
    }

    #[test]
    fn both_ends_of_a_connection_send_without_pauses() {
        let runtime = Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            if has(PACED) && has(UNPACED) {
                let socket = TcpSocket::new_v4().unwrap();
                sockopt::set_tcp_congestion(&socket, PACED).unwrap();
                avoid_pacing(&socket);
                assert_eq!(sockopt::tcp_congestion(&socket).unwrap(), UNPACED);
            }
            for end in ends().await {
                let rule = sockopt::tcp_congestion(&end).unwrap();
                assert!(!(rule.starts_with(PACED) && has(UNPACED)), "{rule}");
            }
        });
    }
}
