//! Two nodes of one cluster as tests of the rules set them up: who they are, what they grant each other, when it is.

use crate::frame::{Outgoing, cost};
use crate::hello::{Credit, Credits, Hello, Identity, Lanes};
use model::call::{Call, Class};
use model::{NodeId, NodeRun};
use world::sim::Simulation;
use world::{Instant, World};

/// What a side says that has one connection for everything, or nothing to say.
pub(super) const NO_LANES: Lanes = Lanes {
    lane: 0,
    connections: 0,
};

/// So little of each class that tests come to its end: few requests, and so many bytes.
pub(super) const fn few(bytes: u64) -> Credits {
    [Credit { requests: 3, bytes }; 4]
}

/// A node in its first run.
pub(super) fn identity(node: u32) -> Identity {
    identity_of_run(node, 1)
}

/// A run of a node.
pub(super) fn identity_of_run(node: u32, incarnation: u64) -> Identity {
    let run = NodeRun {
        node: NodeId(node),
        incarnation,
    };
    Identity { cluster: 1, run }
}

/// How one node begins to talk to another one.
pub(super) fn hello_from_to(from: u32, to: u32, credits: Credits, lanes: Lanes) -> Hello {
    Hello::new(identity(from), NodeId(to), credits, lanes)
}

/// A moment of simulated time.
pub(super) fn now() -> Instant {
    Simulation::new(1)
        .run(async |world: World| world.now())
        .finished()
}

/// A frame as it is sent.
pub(super) fn bytes_of(frame: Outgoing) -> Vec<u8> {
    let Outgoing {
        header,
        body,
        payload,
    } = frame;
    [header, body, payload].concat()
}

/// The class of a request that runs, and what it takes of the class's bytes.
pub(super) fn taken_by(call: &Call) -> (Class, u64) {
    (call.class, cost(call))
}

/// Requests that run never take more than was granted.
#[track_caller]
pub(super) fn assert_within(granted: Credits, running: impl Iterator<Item = (Class, u64)>) {
    let running: Vec<_> = running.collect();
    for (class, credit) in Class::ALL.into_iter().zip(granted) {
        let of_class = running.iter().filter(|taken| taken.0 == class);
        let bytes: Vec<u64> = of_class.map(|taken| taken.1).collect();
        assert!(bytes.len() <= credit.requests as usize);
        assert!(bytes.iter().sum::<u64>() <= credit.bytes);
    }
}
