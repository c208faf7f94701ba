//! One connection to another node, as its task sees it.

use super::LaneOfPeer;
use crate::Fault;
use crate::caller::News;
use crate::channel::Reading;
use crate::drive::{Side, drive};
use crate::frame::{Frame, Header};
use crate::outlet::{Next, Outlet};
use crate::receive::Receiver;
use crate::traffic::Todo;
use std::sync::Arc;
use tokio::sync::Notify;

/// How calls reach a connection: what it sends by, and how its task is woken.
pub(super) struct Way {
    pub(super) number: u64,
    pub(super) work: Notify,
    pub(super) outlet: Outlet,
}

/// One connection.
pub(super) struct Link {
    lane: Arc<LaneOfPeer>,
    way: Arc<Way>,
}

impl Link {
    pub(super) fn new(lane: Arc<LaneOfPeer>, way: Arc<Way>) -> Self {
        Self { lane, way }
    }

    fn number(&self) -> u64 {
        self.way.number
    }
}

impl Side for Link {
    fn allow(&self, header: &Header) -> Result<(), Fault> {
        let judge = |traffic: &mut crate::traffic::Traffic<_>, _| {
            (traffic.allow(self.number(), header), Todo::nothing())
        };
        self.lane.with(judge)
    }

    fn arrived(&self, frame: Frame) -> Result<(), Fault> {
        let news =
            self.lane.with(
                |traffic, now| match traffic.arrived(self.number(), frame, now) {
                    Ok((todo, news)) => (Ok(news), todo),
                    Err(fault) => (Err(fault), Todo::nothing()),
                },
            )?;
        let Some(peer) = self.lane.peer() else {
            return Err(Fault::new("the connection was dropped"));
        };
        match news {
            News::None => Ok(()),
            News::Hello(run, lanes) => peer.greeted(&self.lane, self.number(), run, lanes),
            News::Connections(theirs) => {
                peer.wanted(theirs);
                Ok(())
            }
        }
    }

    fn heard(&self) {
        self.lane.with(|traffic, now| {
            traffic.heard(self.number(), now);
            ((), Todo::nothing())
        });
    }

    fn next(&self) -> Next {
        self.lane.next(self.number())
    }

    fn work(&self) -> &Notify {
        &self.way.work
    }
}

/// Drives a connection to its end.
pub(super) async fn serve(mut end: LinkEnd, read: Reading, receiver: Receiver) {
    let (world, outlet) = (end.link.lane.world(), &end.link.way.outlet);
    let why = drive(world, read, receiver, outlet, &end.link).await;
    end.why = why.to_string();
}

/// Ends all calls of a connection when its task ends, however it does.
pub(super) struct LinkEnd {
    link: Link,
    why: String,
}

impl LinkEnd {
    pub(super) fn new(link: Link) -> Self {
        Self {
            link,
            why: "the connection was dropped".into(),
        }
    }
}

impl Drop for LinkEnd {
    fn drop(&mut self) {
        let lane = &self.link.lane;
        let why = lane.link_ended(self.link.number(), &self.why);
        tracing::debug!(why, lane = ?lane.lane(), "a connection ended");
    }
}
