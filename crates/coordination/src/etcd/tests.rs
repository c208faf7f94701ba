//! A real etcd, and servers that only claim to be one.

#![allow(clippy::unwrap_used, reason = "tests")]

pub(crate) mod servers;

use super::{
    Etcd, EtcdBegin, EtcdCertificates, EtcdEndpoint, EtcdServer, EtcdSettings, EtcdStatus,
};

mod answers;
mod blocked;
mod certificates;
mod failures;
mod membership;
mod room;
mod strangers;
