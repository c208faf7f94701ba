//! The first frame of each side: who it is, which versions it speaks, what it grants.

use crate::Fault;
use crate::lanes::Lane;
use bytes::Bytes;
use model::{NodeId, NodeRun};

/// The version of frames that this build writes.
pub(crate) const VERSION: u8 = 1;

/// Oldest version of frames that this build speaks. There is none before the first.
const VERSION_MIN: u16 = VERSION as u16;

/// Bytes of a hello that says nothing of lanes.
const HELLO_BYTES_MIN: usize = 88;

/// Bytes of this build's hello.
const HELLO_BYTES: usize = 92;

/// Who a side is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The cluster. Nodes of different clusters don't talk.
    pub cluster: u128,
    /// The daemon.
    pub run: NodeRun,
}

/// How much a caller may have under way in a class on one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Credit {
    /// Requests.
    pub requests: u32,
    /// Bytes of the requests and of the largest replies that they allow.
    pub bytes: u64,
}

/// Credits of each class, from lease to repair.
pub type Credits = [Credit; 4];

/// A hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    pub(crate) oldest: u16,
    pub(crate) newest: u16,
    pub(crate) from: Identity,
    /// The node that the sender means to talk to.
    pub(crate) to: NodeId,
    pub(crate) credits: Credits,
    /// None: a build that knows no lanes, and has one connection for everything.
    pub(crate) lanes: Option<Lanes>,
}

/// What a hello says of lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lanes {
    /// Number of the connection's lane ([`Lane::number`]), as who opened it said; 0: it is for all
    /// classes.
    pub(crate) lane: u8,
    /// Counted connections that the sender wants.
    pub(crate) connections: u8,
}

impl Hello {
    pub(crate) fn new(from: Identity, to: NodeId, credits: Credits, lanes: Lanes) -> Self {
        Self {
            oldest: VERSION_MIN,
            newest: VERSION.into(),
            from,
            to,
            credits,
            lanes: Some(lanes),
        }
    }

    /// The lane that the connection is for; none: for all classes.
    pub(crate) fn lane(&self) -> Result<Option<Lane>, Fault> {
        let number = self.lanes.map_or(0, |lanes| lanes.lane);
        let known = Lane::ALL.into_iter().find(|lane| lane.number() == number);
        match known {
            None if number > 0 => Err(Fault::new(format!("this node knows no lane {number}"))),
            lane => Ok(lane),
        }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(HELLO_BYTES);
        out.extend(self.oldest.to_le_bytes());
        out.extend(self.newest.to_le_bytes());
        out.extend(self.from.run.node.0.to_le_bytes());
        out.extend(self.from.run.incarnation.to_le_bytes());
        out.extend(self.from.cluster.to_le_bytes());
        out.extend(self.to.0.to_le_bytes());
        out.extend([0; 4]);
        for credit in self.credits {
            out.extend(credit.requests.to_le_bytes());
            out.extend(credit.bytes.to_le_bytes());
        }
        assert_eq!(out.len(), HELLO_BYTES_MIN);
        if let Some(lanes) = self.lanes {
            out.extend([lanes.lane, lanes.connections, 0, 0]);
        }
        out.into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut rest = bytes;
        let mut take = |count: usize| {
            let (part, after) = rest
                .split_at_checked(count)
                .ok_or_else(|| Fault::new("a hello is too short"))?;
            rest = after;
            let mut wide = [0; 16];
            wide[..count].copy_from_slice(part);
            Ok(u128::from_le_bytes(wide))
        };
        let (oldest, newest) = (take(2)? as u16, take(2)? as u16);
        let run = NodeRun {
            node: NodeId(take(4)? as u32),
            incarnation: take(8)? as u64,
        };
        let cluster = take(16)?;
        let to = NodeId(take(4)? as u32);
        take(4)?;
        let mut credits = Credits::default();
        for credit in &mut credits {
            credit.requests = take(4)? as u32;
            credit.bytes = take(8)? as u64;
        }
        let lanes = match bytes.len() {
            ..HELLO_BYTES => None,
            HELLO_BYTES.. => Some(Lanes {
                lane: take(1)? as u8,
                connections: take(1)? as u8,
            }),
        };
        Ok(Self {
            oldest,
            newest,
            from: Identity { cluster, run },
            to,
            credits,
            lanes,
        })
    }

    /// Whether the sender of `other` is one to talk to.
    pub(crate) fn check(&self, other: &Hello) -> Result<(), Fault> {
        if other.from.cluster != self.from.cluster {
            return Err(Fault::new("the other node belongs to another cluster"));
        }
        if other.to != self.from.run.node {
            let (meant, here) = (other.to, self.from.run.node);
            let text = format!("the other node wants node {meant}, this is node {here}");
            return Err(Fault::new(text));
        }
        if other.oldest > self.newest || other.newest < self.oldest {
            let text = format!(
                "the other node speaks versions {} to {}, this one {} to {}",
                other.oldest, other.newest, self.oldest, self.newest
            );
            return Err(Fault::new(text));
        }
        Ok(())
    }
}
