//! `shale node …` and `shale fs create`: changes of the cluster that any node makes in coordination.

use super::InCluster;
use crate::admin::{ChangeNode, FileSystemLine};
use coordination::RootOwner;
use model::{Error, ErrorKind, FileSystemName, NodeId, Result};

impl InCluster {
    /// `shale node expel`, `unexpel` and `class`.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument`; `Busy`: the node can't be expelled, because coordination would end with it; those of
    /// coordination.
    pub async fn change_node(&self, node: u32, change: &ChangeNode) -> Result<()> {
        let node = NodeId(node);
        if change.barred == Some(true) && node == self.member().run().node {
            let text =
                "a node isn't expelled by itself: ask another one, or stop it with `shale down`";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if let Some(class) = &change.class {
            check_class(class)?;
        }
        let facts = self.member().coordination();
        if change.barred == Some(true) {
            let checked = self.check_can_do_without(node).await;
            checked.map_err(|error| error.while_doing(format!("expelling node {node}")))?;
        }
        let changed = facts.change_node(node, |it| {
            if let Some(class) = &change.class {
                it.class.clone_from(class);
            }
            it.is_barred = change.barred.unwrap_or(it.is_barred);
            Ok(())
        });
        changed.await.map(drop)
    }

    /// `shale node drain`: the NSDs that are emptied; none if the node is empty.
    ///
    /// # Errors
    /// As [`node::Member::drain_node`].
    pub async fn drain(&self, node: u32) -> Result<Vec<u32>> {
        let nsds = self.member().drain_node(NodeId(node)).await?;
        Ok(nsds.into_iter().map(|nsd| nsd.0).collect())
    }

    /// `shale fs create`: the root directory is the daemon's user's.
    ///
    /// # Errors
    /// As [`node::Member::create_file_system`].
    pub async fn create_file_system(&self, name: &str) -> Result<FileSystemLine> {
        let name: FileSystemName = name.parse()?;
        // Were it root's, an ordinary user whose daemon this is could create nothing in it.
        let owner = RootOwner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        let made = self.member().create_file_system_for(&name, owner).await?;
        Ok(FileSystemLine {
            name: name.to_string(),
            id: made.id.0,
            shard: made.shard.0,
            owner: None,
        })
    }
}

/// What a class may be called.
pub(super) fn check_class(class: &str) -> Result<()> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !class.is_empty() && class.len() <= 32 && class.chars().all(is_fine) {
        return Ok(());
    }
    let text = format!("a node class has 1 to 32 letters, digits, '-' or '_', not {class:?}");
    Err(Error::new(ErrorKind::InvalidArgument, text))
}
