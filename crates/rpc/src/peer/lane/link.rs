//! One connection to another node, as its task sees it.

use super::LaneOfPeer;
use crate::Fault;
use crate::caller::News;
use crate::channel::Channel;
use crate::drive::{Next, Side, drive, idle};
use crate::frame::{Frame, Header};
use crate::traffic::{Step, Todo};
use std::sync::Arc;
use tokio::sync::Notify;

/// One connection.
pub(super) struct Link {
    lane: Arc<LaneOfPeer>,
    number: u64,
    work: Arc<Notify>,
}

impl Link {
    pub(super) fn new(lane: Arc<LaneOfPeer>, number: u64, work: Arc<Notify>) -> Self {
        Self { lane, number, work }
    }
}

impl Side for Link {
    fn allow(&self, header: &Header) -> Result<(), Fault> {
        let judge = |traffic: &mut crate::traffic::Traffic<_>, _| {
            (traffic.allow(self.number, header), Todo::nothing())
        };
        self.lane.with(judge)
    }

    fn arrived(&self, frame: Frame) -> Result<(), Fault> {
        let news =
            self.lane.with(
                |traffic, now| match traffic.arrived(self.number, frame, now) {
                    Ok((todo, news)) => (Ok(news), todo),
                    Err(fault) => (Err(fault), Todo::nothing()),
                },
            )?;
        let Some(peer) = self.lane.peer() else {
            return Err(Fault::new("the connection was dropped"));
        };
        match news {
            News::None => Ok(()),
            News::Hello(run, lanes) => peer.greeted(&self.lane, self.number, run, lanes),
            News::Connections(theirs) => {
                peer.wanted(theirs);
                Ok(())
            }
        }
    }

    fn heard(&self) {
        self.lane.with(|traffic, now| {
            traffic.heard(self.number, now);
            ((), Todo::nothing())
        });
    }

    fn next(&self) -> Next {
        self.lane.with(|traffic, now| {
            let (step, todo) = traffic.next(self.number, now);
            let next = match step {
                Step::Send(frame) => Next::Send(frame),
                Step::Over => Next::Over,
                Step::Idle => idle(traffic.beat(self.number, now)),
            };
            (next, todo)
        })
    }

    fn work(&self) -> &Notify {
        &self.work
    }
}

/// Drives a connection to its end.
pub(super) async fn serve(mut end: LinkEnd, channel: Channel) {
    let world = end.link.lane.world();
    end.why = drive(world, channel, &end.link).await.to_string();
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
        let Link { lane, number, .. } = &self.link;
        let why = lane.link_ended(*number, &self.why);
        tracing::debug!(why, lane = ?lane.lane(), "a connection ended");
    }
}
