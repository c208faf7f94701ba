//! Answers other nodes' requests to the NSDs that this process has opened.

use crate::Nsd;
use crate::handle::NSD_WAIT;
use crate::key::Key;
use bytes::{Bytes, BytesMut};
use futures::future::{BoxFuture, FutureExt};
use model::call::{Call, Class, Reply};
use model::nsd::{
    AddressedRequest, BlobPut, LIST_ANSWER_MAX, LOG_PUTS_MAX, LOG_READ_BYTES, LogPut, NSD_METHOD,
    NsdAnswer, NsdReply, NsdRequest,
};
use model::{EntryNumber, Error, ErrorKind, NodeRun, NsdId, Payload, Result, ShardEpoch, ShardId};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use world::Part;
use world::call::{Deadline, Service};

/// Largest answer, in bytes, that a read allows which is short work: one of 64 KiB, which takes microseconds to prove.
const SHORT_REPLY_MAX: u32 = 96 * 1024;

/// The NSDs of this process, for other nodes.
#[derive(Default)]
pub struct NsdServer {
    nsds: RwLock<BTreeMap<NsdId, Arc<Nsd>>>,
}

impl NsdServer {
    /// Begins to answer for an NSD, or for its newly opened form.
    pub fn add(&self, nsd: Arc<Nsd>) {
        self.nsds.write().insert(nsd.id(), nsd);
    }

    /// Ends answering for an NSD.
    pub fn remove(&self, nsd: NsdId) {
        self.nsds.write().remove(&nsd);
    }

    async fn answer(&self, call: Call) -> Result<Reply> {
        if call.method != NSD_METHOD {
            let text = format!("method {} is none of an NSD's", call.method.0);
            return Err(Error::new(ErrorKind::NotSupported, text));
        }
        let (id, request): AddressedRequest = call.decode()?;
        if call.reply_bytes_max < read_bytes(&request) {
            let text = "it allows a smaller answer than it asks for";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let nsd = self.nsds.read().get(&id).cloned();
        let nsd = nsd.ok_or_else(|| {
            let text = format!("this node doesn't serve NSD {id}");
            Error::new(ErrorKind::Unavailable, text)
        })?;
        let answered = pin!(nsd.answer(request, call.payload));
        let (world, part) = (&nsd.core.world, Part::ForNsd(id));
        let (reply, payload, payload_crc) = match world.listed(NSD_WAIT, part, answered).await {
            Ok((reply, payload, crc)) => (Ok(reply), payload, crc),
            Err(error) => (Err(error), Bytes::new(), None),
        };
        let condition = nsd.condition();
        Ok(Reply {
            payload_crc,
            ..Reply::new(&Ok(NsdAnswer { condition, reply }), payload)
        })
    }
}

/// The bytes of blobs or entries that a request may have read. Its credits must cover them: an answer that it doesn't allow
/// would be made, in memory that nobody has counted, and dropped.
fn read_bytes(request: &NsdRequest) -> u32 {
    match request {
        NsdRequest::Get { length, .. } => *length,
        NsdRequest::LogRead { .. } => LOG_READ_BYTES as u32,
        _ => 0,
    }
}

/// The entries that came one after the other.
fn split(
    shard: ShardId,
    epoch: ShardEpoch,
    entries: &[(EntryNumber, u32)],
    mut payload: Bytes,
) -> Result<Vec<LogPut>> {
    let total: u64 = entries.iter().map(|(_, length)| u64::from(*length)).sum();
    if entries.len() > LOG_PUTS_MAX || total != payload.len() as u64 {
        let text = format!(
            "{} log entries of {total} bytes came with {} bytes; at most {LOG_PUTS_MAX} may come together",
            entries.len(),
            payload.len()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let put = |(number, length): &(EntryNumber, u32)| LogPut {
        shard,
        epoch,
        number: *number,
        bytes: payload.split_to(*length as usize),
    };
    Ok(entries.iter().map(put).collect())
}

impl Service for NsdServer {
    fn serve(&self, _from: NodeRun, call: Call, _deadline: Deadline) -> BoxFuture<'_, Reply> {
        async move {
            let reply = self.answer(call).await;
            reply.unwrap_or_else(|error| Reply::new::<NsdAnswer>(&Err(error), Bytes::new()))
        }
        .boxed()
    }

    /// Reads of a few units whose place is known without the index, which may have to be read.
    fn is_short(&self, call: &Call) -> bool {
        let may_be = call.method == NSD_METHOD
            && call.class == Class::Bulk
            && call.payload.is_empty()
            && call.reply_bytes_max <= SHORT_REPLY_MAX;
        if !may_be {
            return false;
        }
        let Ok((id, NsdRequest::Get { name, .. })) = call.decode::<AddressedRequest>() else {
            return false;
        };
        let nsd = self.nsds.read().get(&id).cloned();
        nsd.is_some_and(|nsd| nsd.core.is_at_hand(&Key::blob(name)))
    }
}

impl Nsd {
    /// Does what a request from another node asks. Gives the bytes beside the reply, and their CRC-32C if it is known.
    async fn answer(
        &self,
        request: NsdRequest,
        payload: Bytes,
    ) -> Result<(NsdReply, Bytes, Option<u32>)> {
        let reply = match request {
            NsdRequest::Put {
                name,
                nonce,
                header,
                fence,
                units,
            } => {
                let payload = Payload::with_units(payload, units).ok_or_else(|| {
                    let text = format!("blob {name} came without a checksum for each unit");
                    Error::new(ErrorKind::InvalidArgument, text)
                })?;
                let put = BlobPut {
                    name,
                    nonce,
                    header,
                    payload,
                    fence,
                };
                self.put(put).await?;
                NsdReply::Done
            }
            NsdRequest::Get {
                name,
                offset,
                length,
            } => {
                let end = offset.saturating_add(length);
                let key = Key::blob(name);
                let (_, proven) = self.core.read_proven(&key, Some(offset..end)).await?;
                let reply = NsdReply::Units {
                    first: proven.first,
                    checksums: proven.checksums().to_vec(),
                };
                let crc = proven.crc(&key);
                return Ok((reply, proven.bytes, crc));
            }
            NsdRequest::Info(name) => NsdReply::Info(self.info(name).await?),
            NsdRequest::Delete(delete) => {
                self.delete(delete).await?;
                NsdReply::Done
            }
            NsdRequest::List {
                group,
                after,
                limit,
            } => {
                let limit = (limit as usize).min(LIST_ANSWER_MAX);
                NsdReply::Infos(self.list(group, after, limit).await?)
            }
            NsdRequest::Digest(group) => NsdReply::Digest(self.digest(group).await?),
            NsdRequest::Groups { from, limit } => {
                let limit = (limit as usize).min(LIST_ANSWER_MAX);
                NsdReply::Groups(self.groups(from, limit).await?)
            }
            NsdRequest::Learn(fences) => {
                self.learn_groups(&fences).await?;
                NsdReply::Done
            }
            NsdRequest::LogPut {
                shard,
                epoch,
                number,
            } => {
                let put = LogPut {
                    shard,
                    epoch,
                    number,
                    bytes: payload,
                };
                self.log_put(put).await?;
                NsdReply::Done
            }
            NsdRequest::LogPuts {
                shard,
                epoch,
                entries,
            } => {
                let puts = split(shard, epoch, &entries, payload)?;
                self.log_puts(puts).await?;
                NsdReply::Done
            }
            NsdRequest::LogRead { shard, from, limit } => {
                let entries = self.log_read(shard, from, limit as usize).await?;
                let listed = entries.iter().map(|entry| {
                    let length = u32::try_from(entry.bytes.len()).expect("an entry is small");
                    (entry.epoch, entry.number, length)
                });
                let reply = NsdReply::Entries(listed.collect());
                let total = entries.iter().map(|entry| entry.bytes.len()).sum();
                let mut joined = BytesMut::with_capacity(total);
                for entry in &entries {
                    joined.extend_from_slice(&entry.bytes);
                }
                return Ok((reply, joined.freeze(), None));
            }
            NsdRequest::LogTrim {
                shard,
                epoch,
                below,
            } => {
                self.log_trim(shard, epoch, below).await?;
                NsdReply::Done
            }
            NsdRequest::LogDiscard {
                shard,
                epoch,
                above,
            } => {
                self.log_discard(shard, epoch, above).await?;
                NsdReply::Done
            }
            NsdRequest::Seal { shard, epoch } => {
                self.seal(shard, epoch).await?;
                NsdReply::Done
            }
            NsdRequest::ConfirmEpochs(epochs) => {
                self.confirm_epochs(&epochs).await?;
                NsdReply::Done
            }
            NsdRequest::Condition => NsdReply::Done,
        };
        Ok((reply, Bytes::new(), None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would be broken if an entry got bytes of the one before or after it.
    #[test]
    fn each_of_several_entries_gets_its_own_bytes() {
        let (shard, epoch) = (ShardId(3), ShardEpoch(4));
        let lengths = [(7, 3), (8, 0), (5, 2)];
        let entries = lengths.map(|(number, length)| (EntryNumber(number), length));
        let puts = split(shard, epoch, &entries, Bytes::from_static(b"abcde")).unwrap();
        let found = puts.iter().map(|put| (put.number.0, &put.bytes[..]));
        let found: Vec<(u64, &[u8])> = found.collect();
        assert_eq!(found, [(7, &b"abc"[..]), (8, &b""[..]), (5, &b"de"[..])]);
        let are_of_one_log = puts
            .iter()
            .all(|put| (put.shard, put.epoch) == (shard, epoch));
        assert!(are_of_one_log);
        for wrong in [&b"abcd"[..], b"abcdef"] {
            let refused = split(shard, epoch, &entries, Bytes::from_static(wrong));
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }
}
