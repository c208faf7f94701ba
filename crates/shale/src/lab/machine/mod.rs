//! Several small machines inside this one: each has a network of its own, and processes in it. Knows
//! nothing of what runs there.

pub mod bounded;
pub mod names;
mod network;
mod plan;
pub mod processes;
#[cfg(test)]
mod tests;

use crate::process::Process;
use model::{Error, ErrorKind, Result};
use names::{Names, NodeNumber};
use network::Tools;
use plan::Bridges;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{ffi::OsStr, fs::File, os::fd::AsFd, process::Command};

/// The machines of one lab.
#[derive(Clone, Debug)]
pub struct Machines {
    names: Names,
    count: u32,
    tools: Tools,
}

impl Machines {
    /// Of the lab with these names and so many nodes, whether they exist yet or not.
    ///
    /// # Errors
    /// `NotFound` if iproute2 isn't installed.
    pub fn new(names: Names, count: u32) -> Result<Self> {
        let tools = Tools::find()?;
        Ok(Self {
            names,
            count,
            tools,
        })
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeNumber> + Clone + use<> {
        NodeNumber::all(self.count)
    }

    /// Whether anything of the network exists.
    ///
    /// # Errors
    /// `Unavailable` if the kernel doesn't tell.
    pub fn exist(&self) -> Result<bool> {
        Ok(!network::namespaces(&self.names)?.is_empty())
    }

    /// Whether the network exists and every node is linked to the hub.
    ///
    /// # Errors
    /// `Unavailable` if the kernel doesn't tell.
    pub fn are_linked(&self) -> Result<bool> {
        let found = network::namespaces(&self.names)?;
        let wanted = self.nodes().map(|node| self.names.node(node));
        if !wanted
            .chain([self.names.hub()])
            .all(|name| found.contains(&name))
        {
            return Ok(false);
        }
        let bridges = self.bridges()?;
        Ok(self.nodes().all(|node| bridges.contains_key(&node)))
    }

    /// Makes the network; nothing of it may exist. `link_mbit`: megabits per second of each node's
    /// link, each way.
    ///
    /// # Errors
    /// `Unavailable` with the step that failed; what was made stays until [`Machines::remove`].
    pub fn build(&self, link_mbit: Option<u32>) -> Result<()> {
        let batches = plan::build(&self.names, self.count, link_mbit);
        self.tools.run(&batches)
    }

    /// Kills everything that runs on the nodes and removes the network, whatever exists of it.
    /// Returns how many processes were killed. Blocks until they are gone.
    ///
    /// # Errors
    /// `Unavailable` if a process stays, or the kernel refuses.
    pub fn remove(&self) -> Result<usize> {
        let mut killed = 0;
        for namespace in network::namespaces(&self.names)? {
            let file = names::file(&namespace);
            killed += processes::kill(|| processes::in_namespace(&file))?;
        }
        self.tools.remove(&self.names)?;
        Ok(killed)
    }

    /// The processes on a node.
    ///
    /// # Errors
    /// `Unavailable` if the kernel doesn't tell.
    pub fn processes(&self, node: NodeNumber) -> Result<Vec<Process>> {
        processes::in_namespace(&names::file(&self.names.node(node)))
    }

    /// A command that will run on a node: in its network, and otherwise as if started here. In
    /// particular it sees the same mounts, and what it mounts is seen here.
    ///
    /// # Errors
    /// `NotFound` if the node has no network.
    pub fn command(&self, node: NodeNumber, program: impl AsRef<OsStr>) -> Result<Command> {
        let mut command = Command::new(program);
        world::host::in_network_namespace(&mut command, self.namespace(node)?);
        Ok(command)
    }

    /// Moves this thread to a node, and what it starts from now on.
    ///
    /// # Errors
    /// `NotFound` if the node has no network; `NotPermitted` if the kernel refuses.
    pub fn enter(&self, node: NodeNumber) -> Result<()> {
        let namespace = self.namespace(node)?;
        let moved = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
        moved.map_err(|error| {
            Error::new(ErrorKind::NotPermitted, error.to_string())
                .while_doing(format!("entering the network of {node}"))
        })
    }

    fn namespace(&self, node: NodeNumber) -> Result<File> {
        let file = names::file(&self.names.node(node));
        File::open(&file).map_err(|error| {
            Error::new(ErrorKind::NotFound, error.to_string())
                .while_doing(format!("opening the network of {node}, {}", file.display()))
        })
    }

    /// Cuts nodes off from all others: what is sent either way is lost, and nobody gets an error.
    /// The nodes named together still reach each other.
    ///
    /// # Errors
    /// `Unavailable` if there is no network, or the kernel refuses.
    pub fn cut(&self, nodes: &[NodeNumber]) -> Result<()> {
        let bridges = self.bridges()?;
        self.tools.run(&[plan::cut(&self.names, &bridges, nodes)])
    }

    /// Brings nodes back to those that aren't cut off.
    ///
    /// # Errors
    /// As [`Machines::cut`].
    pub fn join(&self, nodes: &[NodeNumber]) -> Result<()> {
        let bridges = self.bridges()?;
        self.tools.run(&[plan::join(&self.names, &bridges, nodes)])
    }

    /// The nodes that are cut off, each with those that it still reaches.
    ///
    /// # Errors
    /// As [`Machines::cut`].
    pub fn cut_off(&self) -> Result<Vec<(NodeNumber, Vec<NodeNumber>)>> {
        let bridges = self.bridges()?;
        let all = self.nodes();
        Ok(all
            .filter_map(|node| Some((node, plan::company(&bridges, node)?)))
            .collect())
    }

    fn bridges(&self) -> Result<Bridges> {
        self.tools.bridges(&self.names)
    }
}
