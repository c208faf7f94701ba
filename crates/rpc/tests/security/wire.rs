//! A wire on which somebody sits: listens, changes, repeats, holds back.

use super::*;
use std::collections::VecDeque;
use tokio::io::{ReadHalf, WriteHalf};
use world::Task;

/// A direction of the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    ToServer,
    ToClient,
}

/// What is done to the bytes of one direction from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// A bit of the byte that comes so many bytes later is changed.
    Flip(usize, u32),
    /// All from the byte on that comes so many bytes later is dropped, and the connection closed.
    Cut(usize),
}

/// How bytes are handed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Portions {
    /// As they come.
    AsTheyCome,
    /// One by one.
    Single,
    /// Together with all that comes within some milliseconds.
    Together,
}

#[derive(Default)]
struct Side {
    deeds: VecDeque<Deed>,
    /// All bytes that came.
    seen: Vec<u8>,
    /// Bytes to slip in before what comes next.
    slip: Vec<u8>,
}

/// The wire between a node and a server: every connection goes through it.
pub(super) struct Wire {
    world: World,
    server: Arc<Server>,
    security: Arc<Security>,
    portions: Portions,
    sides: [Mutex<Side>; 2],
    tasks: Mutex<Vec<Task<()>>>,
    pub(super) dialed: Mutex<u32>,
}

impl Wire {
    pub(super) fn new(
        world: &World,
        server: &Arc<Server>,
        security: Arc<Security>,
        portions: Portions,
    ) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            server: server.clone(),
            security,
            portions,
            sides: Default::default(),
            tasks: Mutex::default(),
            dialed: Mutex::default(),
        })
    }

    pub(super) fn plan(&self, way: Way, deed: Deed) {
        self.sides[way as usize].lock().deeds.push_back(deed);
    }

    /// All that went this way.
    pub(super) fn seen(&self, way: Way) -> Vec<u8> {
        self.sides[way as usize].lock().seen.clone()
    }

    /// Sends these bytes before the next ones that go this way.
    pub(super) fn slip_in(&self, way: Way, bytes: Vec<u8>) {
        self.sides[way as usize].lock().slip = bytes;
    }

    fn connect(self: &Arc<Self>) -> DuplexStream {
        let (asking, near) = duplex(64 << 10);
        let far = stranger(&self.server);
        let (near_read, near_write) = tokio::io::split(near);
        let (far_read, far_write) = tokio::io::split(far);
        let (there, back) = (self.clone(), self.clone());
        let task = self.world.spawn("wire", async move {
            let there = there.relay(Way::ToServer, near_read, far_write);
            let back = back.relay(Way::ToClient, far_read, near_write);
            // Either end closes both: a connection has two directions and one life.
            futures::future::select(Box::pin(there), Box::pin(back)).await;
        });
        self.tasks.lock().push(task);
        asking
    }

    async fn relay(
        self: Arc<Self>,
        way: Way,
        mut from: ReadHalf<DuplexStream>,
        mut to: WriteHalf<DuplexStream>,
    ) {
        let mut bytes = vec![0; 256 << 10];
        loop {
            let mut count = from.read(&mut bytes).await.unwrap_or(0);
            if count == 0 {
                return;
            }
            if self.portions == Portions::Together {
                loop {
                    let more = from.read(&mut bytes[count..]);
                    match self.world.timeout(ms(20), more).await {
                        Ok(Ok(more)) if more > 0 => count += more,
                        _ => break,
                    }
                }
            }
            let (out, is_cut) = self.treated(way, &bytes[..count]);
            let step = if self.portions == Portions::Single {
                1
            } else {
                out.len().max(1)
            };
            for part in out.chunks(step) {
                if to.write_all(part).await.is_err() || to.flush().await.is_err() {
                    return;
                }
            }
            if is_cut {
                return;
            }
        }
    }

    fn treated(&self, way: Way, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut side = self.sides[way as usize].lock();
        side.seen.extend_from_slice(bytes);
        let mut out = std::mem::take(&mut side.slip);
        let mut bytes = bytes.to_vec();
        let mut is_cut = false;
        let length = bytes.len();
        side.deeds.retain_mut(|deed| match deed {
            Deed::Flip(at, bit) if *at < length => {
                bytes[*at] ^= 1 << *bit;
                false
            }
            Deed::Cut(at) if *at < length => {
                bytes.truncate(*at);
                is_cut = true;
                false
            }
            Deed::Flip(at, _) | Deed::Cut(at) => {
                *at -= length;
                true
            }
        });
        out.extend(bytes);
        (out, is_cut)
    }
}

/// The asking node's end of the wire.
pub(super) struct Tapped(pub(super) Arc<Wire>);

impl Dial for Tapped {
    fn dial(&self, node: NodeId, _: Place, _: Deadline) -> BoxFuture<'_, io::Result<Channel>> {
        Box::pin(async move {
            *self.0.dialed.lock() += 1;
            let stream = self.0.connect();
            self.0.security.connect(stream, node, None).await
        })
    }
}
