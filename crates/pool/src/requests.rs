//! One request to one NSD, with its deadline.

use crate::members::Member;
use model::nsd::{BlobDelete, BlobPut};
use model::{Error, NsdId, Result};
use std::time::Duration;
use world::World;
use world::call::Deadline;

/// An NSD that hasn't answered a put after this time counts as failed.
const PUT_DEADLINE: Duration = Duration::from_secs(30);
/// An NSD that hasn't answered a delete after this time counts as away.
const DELETE_DEADLINE: Duration = Duration::from_secs(30);

/// One put with its deadline.
pub(crate) async fn put_to(
    world: &World,
    member: &Member,
    put: BlobPut,
) -> std::result::Result<(), (NsdId, Error)> {
    let nsd = member.nsd.id();
    let bytes = put.payload.len() as u64;
    let request = member.begin(world);
    let deadline = Deadline::after(world, PUT_DEADLINE);
    let put = member.nsd.put(put, deadline).await;
    let put = put.inspect_err(|error| request.note_failed(error));
    put.map(|()| member.count_written(bytes))
        .map_err(|error| (nsd, error))
}

/// One delete request with its deadline.
pub(crate) async fn delete_on(world: &World, member: &Member, delete: BlobDelete) -> Result<()> {
    let deadline = Deadline::after(world, DELETE_DEADLINE);
    member.nsd.delete(delete, deadline).await
}
