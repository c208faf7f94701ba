//! What can be known of this machine before it makes a cluster or joins one: that its addresses can be listened at, and that
//! etcd is installed. Mistakes are found before anything has changed.

use super::etcd_members;
use model::{Error, ErrorKind, Result};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use world::World;

/// The program that quorum nodes run; Debian has it in the package `etcd-server`.
pub const ETCD: &str = "etcd";

/// That a node can listen at its address, and with `runs_etcd` its member of etcd at the next two ports.
///
/// # Errors
/// `InvalidArgument`, with the address and what to do.
pub(crate) async fn check_place(world: &World, address: SocketAddr, runs_etcd: bool) -> Result<()> {
    let mut all = vec![address];
    if runs_etcd {
        let (client, peer) = etcd_members::ports(address)?;
        all.extend([client, peer]);
    }
    for address in all {
        // It is free again when this returns.
        let listened = world.listen(address).await;
        listened.map_err(|error| cannot_listen(address, &error))?;
    }
    Ok(())
}

/// That etcd is installed.
///
/// # Errors
/// `NotFound`, with what to do.
pub fn check_etcd() -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).any(|folder| is_program(&folder.join(ETCD))) {
        true => Ok(()),
        false => Err(no_etcd()),
    }
}

/// The error of a quorum node without etcd.
pub fn no_etcd() -> Error {
    Error::new(
        ErrorKind::NotFound,
        "the program `etcd` isn't installed; quorum nodes need it: `apt-get install etcd-server`, or name an etcd \
         that runs already (`shale cluster create --etcd URL`)",
    )
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> Error {
    let what_to_do = match error.kind() {
        io::ErrorKind::AddrNotAvailable => format!(
            "this machine doesn't have {}: give one of its own addresses with --address (`ip addr` lists them)",
            address.ip()
        ),
        io::ErrorKind::AddrInUse => format!(
            "another program uses port {0} there (`ss -ltnp 'sport = {0}'` shows which): end it, or choose another port \
             with --address {1}:PORT",
            address.port(),
            address.ip()
        ),
        _ => format!("{error}; choose another address with --address"),
    };
    Error::new(ErrorKind::InvalidArgument, what_to_do)
        .while_doing(format!("listening at {address}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(address: SocketAddr) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async { check_place(&World::real(), address, false).await })
    }

    #[test]
    fn an_address_that_a_node_can_not_listen_at_is_named_with_what_to_do() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = checked(address).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(
            error.to_string().contains("another program uses"),
            "{error}"
        );
        // Of the documentation's network: no machine has it.
        let error = checked("192.0.2.7:7311".parse().unwrap()).unwrap_err();
        assert!(
            error.to_string().contains("doesn't have 192.0.2.7"),
            "{error}"
        );
        drop(taken);
        checked(address).unwrap();
    }
}
