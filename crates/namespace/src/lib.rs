//! Applies one file system operation to a view of the records.
//!
//! Everything here is a pure function of its arguments: the operation brings time and identity, the
//! [`View`] brings the records, [`apply`] returns the changed records and the reply. The owner of a
//! shard and (later) a delegated client run the same code. The encoding of keys and records is in
//! `docs/formats/records.md`.
//!
//! How a host uses it:
//! 1. [`apply`]; on [`Stop::Missing`] fetch *all* the named needs and retry.
//! 2. Apply the [`Effects`] to its records (each key appears once), remember the commit.
//! 3. Send the reply when its own rules for durability allow.
//! 4. In the background: [`Table::Orphans`] after an open, [`Table::Reclaims`], [`Table::Cuts`],
//!    [`Table::Folds`] and [`Table::Deads`], each entry with the operation that its doc names.

mod acl;
mod allocated;
mod apply;
mod attributes;
pub mod audit;
mod balance;
mod counts;
mod entries;
mod extents;
mod genesis;
mod key;
mod lifetime;
mod listing;
mod names;
mod numbers;
mod publish;
mod ranges;
mod record;
mod rename;
mod segments;
pub mod sessions;
mod spans;
mod transaction;
mod view;
mod xattrs;

#[cfg(test)]
mod tests;

pub use apply::apply;
pub use genesis::genesis;
pub use key::{Key, Table};
pub use names::{POSITION_END, position_hash};
pub use record::{
    Counters, Dead, Fileset, Inode, Name, NameEntry, Orphan, Reclaim, Record, Reserved, Run,
    Segment, Session, Slot,
};
pub use spans::{Span, spans};
pub use view::{Effects, Missing, Need, Outcome, Stop, View};
