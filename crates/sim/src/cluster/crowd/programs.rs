//! A client, and what the programs that share it have in common.

use super::CrowdScenario;
use super::known::Shared;
use crate::witness::ClientNumber;
use client::Client;
use simkernel::PageKernel;
use std::sync::Arc;
use world::World;

/// Where symlinks lead to.
pub(super) const TARGET: &[u8] = b"elsewhere";

/// A program's client.
#[derive(Clone)]
pub(super) struct Programs {
    pub(super) world: World,
    pub(super) client: Arc<Client>,
    pub(super) number: ClientNumber,
    pub(super) known: Shared,
    pub(super) scenario: CrowdScenario,
    /// The kernel before it, on nodes whose programs map files.
    pub(super) mapping: Option<Arc<PageKernel>>,
}

/// The client has lost its session.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Lost;
