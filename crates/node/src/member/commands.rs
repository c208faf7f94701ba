//! Commands of people that one node passes on to another: `shale nsd add --node 3`, `shale health --all`.
//!
//! What a command says and answers, only the program knows: here it is bytes. The node that is asked runs it as if its
//! own people had asked. Nodes trust each other; whoever may talk to a daemon's admin API is asked for no more rights.

use super::Member;
use bytes::Bytes;
use futures::future::BoxFuture;
use model::call::{Call, Class, Method, NoAnswer, Reply};
use model::{Error, ErrorKind, NodeId, NodeRun, Result};
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::Duration;
use world::Deadline;
use world::call::Remote;

/// A command: the payload is the program's own, both ways.
pub(super) const COMMAND: Method = Method(0x0600);

/// Longest command.
const COMMAND_BYTES_MAX: usize = 256 * 1024;
/// Longest answer: a list of a thousand unreadable files, with paths.
const ANSWER_BYTES_MAX: u32 = 8 * 1024 * 1024;

/// Runs commands that come from other nodes.
pub trait Commands: Send + Sync {
    /// Runs one to its end, or until it is dropped.
    ///
    /// # Errors
    /// The command's own.
    fn run(&self, from: NodeRun, command: Bytes) -> BoxFuture<'_, Result<Bytes>>;
}

/// Who runs them here; nobody until the program says so.
#[derive(Default)]
pub(super) struct CommandDesk {
    commands: RwLock<Option<Arc<dyn Commands>>>,
}

impl CommandDesk {
    /// Answers another node.
    pub(super) async fn serve(&self, from: NodeRun, call: Call) -> Reply {
        // Another node's program may have a fault; what is decoded takes many times its bytes.
        if call.payload.len() > COMMAND_BYTES_MAX {
            let refused: Result<()> = Err(too_long());
            return Reply::new(&refused, Bytes::new());
        }
        let commands = self.commands.read().clone();
        let answer = match commands {
            Some(commands) => commands.run(from, call.payload).await,
            None => {
                let text = "this node is starting or ending; try again";
                Err(Error::new(ErrorKind::Busy, text))
            }
        };
        match answer {
            Ok(bytes) if bytes.len() <= ANSWER_BYTES_MAX as usize => Reply::new(&Ok(()), bytes),
            Ok(bytes) => {
                let text = format!(
                    "the answer has {} bytes, more than {ANSWER_BYTES_MAX}; ask on that node itself",
                    bytes.len()
                );
                let refused: Result<()> = Err(Error::new(ErrorKind::InvalidArgument, text));
                Reply::new(&refused, Bytes::new())
            }
            Err(error) => Reply::new::<()>(&Err(error), Bytes::new()),
        }
    }
}

impl Member {
    /// From now on commands of other nodes are run by this.
    pub fn answer_commands(&self, commands: Arc<dyn Commands>) {
        *self.parts.services.commands().commands.write() = Some(commands);
    }

    /// No command of another node is run any more; those under way go on.
    pub fn refuse_commands(&self) {
        *self.parts.services.commands().commands.write() = None;
    }

    /// Has a command run by another node, and waits for its answer that long at most.
    ///
    /// # Errors
    /// The command's own; `Unavailable`: the node couldn't be asked, nothing was done; `Unknown`: it was asked, and
    /// whether it has done it isn't known.
    pub async fn command(&self, node: NodeId, command: Bytes, patience: Duration) -> Result<Bytes> {
        if command.len() > COMMAND_BYTES_MAX {
            return Err(too_long());
        }
        let mut call = Call::new(COMMAND, Class::Metadata, &());
        call.payload = command;
        call.reply_bytes_max = ANSWER_BYTES_MAX;
        let deadline = Deadline::after(&self.parts.world, patience);
        let to: Arc<dyn Remote> = match node == self.parts.run.node {
            true => self.parts.peers.own(),
            false => self.parts.peers.to(node),
        };
        let answered = to.call(call, deadline).await;
        let answer = answered.map_err(|none| {
            let (kind, what) = match &none {
                NoAnswer::NotRun(_) => (ErrorKind::Unavailable, "wasn't asked"),
                NoAnswer::Unknown(_) => (ErrorKind::Unknown, "has not answered"),
            };
            Error::new(kind, format!("node {node} {what}: {none}"))
        })?;
        answer.reply.decode::<()>()?;
        Ok(answer.reply.payload)
    }
}

fn too_long() -> Error {
    let text = format!("a command has at most {COMMAND_BYTES_MAX} bytes");
    Error::new(ErrorKind::InvalidArgument, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    struct Echo;

    impl Commands for Echo {
        fn run(&self, _: NodeRun, command: Bytes) -> BoxFuture<'_, Result<Bytes>> {
            Box::pin(async move { Ok(command) })
        }
    }

    #[test]
    fn a_command_that_is_too_long_is_refused_unread() {
        let desk = CommandDesk::default();
        *desk.commands.write() = Some(Arc::new(Echo));
        let from = NodeRun {
            node: NodeId(2),
            incarnation: 1,
        };
        for (bytes, is_taken) in [(COMMAND_BYTES_MAX, true), (COMMAND_BYTES_MAX + 1, false)] {
            let mut call = Call::new(COMMAND, Class::Metadata, &());
            call.payload = vec![b' '; bytes].into();
            let reply = desk.serve(from, call).now_or_never().unwrap();
            assert_eq!(reply.decode::<()>().is_ok(), is_taken, "{bytes} bytes");
            assert_eq!(reply.payload.len(), if is_taken { bytes } else { 0 });
        }
    }
}
