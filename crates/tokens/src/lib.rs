//! Decides who may cache or change what, and how that is recalled.
//!
//! Two state machines without I/O: the [`Granter`] of a shard's owner and the [`Holder`] of a client.
//! Times are given, messages come out as actions. The protocol, and why it is right although messages
//! overtake each other, is in `docs/protocols/tokens.md`.
//!
//! *A read of cached attributes*: the client claims the inode's token ([`Holder::claim`]); it is
//! held, so a use begins at once; [`Holder::end_use`] says whether the answer counts. *The first
//! one*: the claim waits, [`holder::Action::Ask`] goes to the owner, whose [`Granter::ask`] answers
//! or waits for others. *A create in a directory that another client delegates*: the owner claims
//! the directory for the operation ([`Granter::claim`]), which recalls the delegation; when the
//! holder has flushed and returned it, the operation runs. *A failure*: a holder that stays silent
//! loses its session once its tokens have run out ([`granter::Action::End`]); after a take-over
//! holders say what they have ([`Granter::reclaim`]).

mod contention;
pub mod granter;
pub mod holder;
pub mod needs;
mod pieces;
mod planted;
mod widen;

pub use contention::Contention;
pub use granter::Granter;
pub use holder::Holder;
pub use pieces::{Piece, Pieces};
pub use planted::Planted;
pub use widen::widened;

pub use model::Moment;

use std::time::Duration;

/// How long a token may be used after the request was sent that the owner answered last.
pub const TOKEN_TIME: Duration = Duration::from_secs(6);
