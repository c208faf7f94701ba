//! Tells the supervisor of the daemon (systemd, Type=notify) about starting and stopping.

use std::os::{
    linux::net::SocketAddrExt,
    unix::{
        ffi::OsStrExt,
        net::{SocketAddr, UnixDatagram},
    },
};

/// Environment variable: where the supervisor listens.
pub const SOCKET: &str = "NOTIFY_SOCKET";

/// Sends a state like `READY=1`. Does nothing without a supervisor; only warns if it doesn't
/// listen.
pub fn tell(state: &str) {
    let Some(name) = std::env::var_os(SOCKET) else {
        return;
    };
    let address = match name.as_bytes() {
        // An abstract socket.
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        _ => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        // A supervisor that doesn't read must not block the daemon.
        socket.set_nonblocking(true)?;
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = sent {
        tracing::warn!(%error, state, "couldn't notify the supervisor at NOTIFY_SOCKET");
    }
}
