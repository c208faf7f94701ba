//! What several simulated machines promise.

mod faults;
mod network;
mod repeats;

use super::*;
use crate::call::Deadline;
use crate::{Connection, Disk, World};
use bytes::Bytes;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const PORT: u16 = 7000;

/// A cluster and its nodes `a` and `b`.
fn two(seed: u64) -> (Cluster, SimNode, SimNode) {
    let cluster = Cluster::new(seed);
    let (a, b) = (cluster.node("a"), cluster.node("b"));
    (cluster, a, b)
}

fn page(value: u8) -> Bytes {
    Bytes::from(vec![value; 4096])
}

fn opened(world: &World) -> Disk {
    world.open_disk(Path::new("nsd0")).unwrap()
}

/// Answers each byte with its successor, on any number of connections.
async fn serve(world: World) {
    let listener = world.listen((std::net::Ipv4Addr::UNSPECIFIED, PORT).into());
    let listener = listener.await.unwrap();
    loop {
        let mut connection = listener.accept().await.unwrap();
        let serving = async move {
            while let Ok(byte) = connection.read_u8().await {
                if connection.write_u8(byte.wrapping_add(1)).await.is_err() {
                    break;
                }
            }
        };
        world.spawn("serves a connection", serving).detach();
    }
}

async fn connect(world: &World, to: &SimNode, patience: Duration) -> std::io::Result<Connection> {
    let deadline = Deadline::after(world, patience);
    world.connect(to.port(PORT), deadline).await
}

async fn ask(connection: &mut Connection, byte: u8) -> std::io::Result<u8> {
    connection.write_u8(byte).await?;
    connection.read_u8().await
}
