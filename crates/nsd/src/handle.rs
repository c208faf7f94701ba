//! An NSD as others use it: a function call if it is on this node, a call to its node otherwise.
//!
//! Every request has a deadline. An answer that didn't come in time is `Unknown`: the NSD may have
//! done what was asked, or may do it later; fences make that harmless.

use crate::Nsd;
use crate::checksum::{UNIT, all_match};
use crate::key::Key;
use bytes::{Bytes, BytesMut};
use model::call::Call;
use model::nsd::{
    AddressedRequest, BlobDelete, BlobInfo, BlobPut, GroupDigest, GroupFence, LIST_ANSWER_MAX,
    LogEntry, LogPut, NSD_METHOD, NsdAnswer, NsdCondition, NsdHealth, NsdReply, NsdRequest,
    NsdUsage,
};
use model::{BlobName, EntryNumber, Error, ErrorKind, GroupId, NsdId, Result, ShardEpoch, ShardId};
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use world::call::{Deadline, Remote};
use world::{Instant, Part, World};

/// The cause by which waits for an NSD are listed.
pub(crate) const NSD_WAIT: &str = "an NSD";

/// Most groups of which another node's NSD is believed to have blobs: sixteen times as many as the largest map has.
const GROUPS_BELIEVED_MAX: usize = 1 << 22;
/// Most versions of groups in one request: each takes up to ten bytes, and no request is larger than a MiB.
const LEARNT_PER_CALL: usize = 65_536;
/// Another node's NSD that hasn't answered anything for this long is avoided.
const HEARD_MAX: Duration = Duration::from_secs(10);
/// How often an NSD of another node is asked how it is, unless it has answered something meanwhile.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// How often one that never answered is asked.
const ASK_FIRST_EVERY: Duration = Duration::from_millis(100);

/// The way to one NSD.
pub struct Handle {
    id: NsdId,
    world: World,
    way: Way,
}

enum Way {
    Local(Arc<Nsd>),
    Call(Called),
}

/// An NSD of another node.
struct Called {
    node: Arc<dyn Remote>,
    /// Its condition as it came with the newest answer.
    heard: Mutex<Option<(NsdCondition, Instant)>>,
    /// When a request of it ended last that its node couldn't be reached for.
    unreached: Mutex<Option<Instant>>,
}

impl Called {
    fn was_heard_since(&self, began: Instant) -> bool {
        let heard = self.heard.lock();
        heard.is_some_and(|(_, at)| at >= began)
    }

    fn note_unreached(&self, now: Instant) {
        *self.unreached.lock() = Some(now);
    }
}

impl Handle {
    /// An NSD that this process has opened.
    #[must_use]
    pub fn local(world: &World, nsd: Arc<Nsd>) -> Arc<Self> {
        Arc::new(Self {
            id: nsd.id(),
            world: world.clone(),
            way: Way::Local(nsd),
        })
    }

    /// An NSD of another node; `before` is the way to it until now, and what was heard there holds.
    /// A task asks how it is for as long as the handle exists.
    #[must_use]
    pub fn remote(
        world: &World,
        id: NsdId,
        node: Arc<dyn Remote>,
        before: Option<&Self>,
    ) -> Arc<Self> {
        let heard = before.and_then(|before| match &before.way {
            Way::Local(_) => None,
            Way::Call(called) => *called.heard.lock(),
        });
        let handle = Arc::new(Self {
            id,
            world: world.clone(),
            way: Way::Call(Called {
                node,
                heard: Mutex::new(heard),
                unreached: Mutex::default(),
            }),
        });
        let (world, weak) = (world.clone(), Arc::downgrade(&handle));
        let asking = async move {
            while let Some(handle) = weak.upgrade() {
                if !handle.was_heard_within(ASK_EVERY) {
                    let deadline = Deadline::after(&world, ASK_EVERY);
                    if let Err(error) = handle.ask(&NsdRequest::Condition, deadline).await {
                        tracing::debug!(nsd = %id, %error, "an NSD doesn't say how it is");
                    }
                }
                let pause = match handle.is_known() {
                    true => ASK_EVERY,
                    false => ASK_FIRST_EVERY,
                };
                drop(handle);
                world.sleep(pause).await;
            }
        };
        handle.world.spawn("nsd-condition", asking).detach();
        handle
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> NsdId {
        self.id
    }

    /// The NSD itself, if this process has opened it.
    #[must_use]
    pub fn opened(&self) -> Option<&Arc<Nsd>> {
        match &self.way {
            Way::Local(nsd) => Some(nsd),
            Way::Call(_) => None,
        }
    }

    /// Whether what is known of it is new enough to give it new pieces without a thought.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        self.was_heard_within(HEARD_MAX)
    }

    /// Whether it ever said how it is.
    #[must_use]
    pub fn is_known(&self) -> bool {
        match &self.way {
            Way::Local(_) => true,
            Way::Call(called) => called.heard.lock().is_some(),
        }
    }

    /// Whether a request of it has ended since then because its node couldn't be reached, or doesn't serve it now: such a
    /// request says nothing about its disk. Requests that an NSD which answers others doesn't answer in time say something.
    #[must_use]
    pub fn was_unreached_since(&self, began: Instant) -> bool {
        match &self.way {
            Way::Local(_) => false,
            Way::Call(called) => called.unreached.lock().is_some_and(|at| at >= began),
        }
    }

    fn was_heard_within(&self, age: Duration) -> bool {
        match &self.way {
            Way::Local(_) => true,
            Way::Call(called) => {
                let heard = called.heard.lock();
                heard.is_some_and(|(_, at)| self.world.now() - at <= age)
            }
        }
    }

    /// Whether it serves, as far as is known.
    #[must_use]
    pub fn health(&self) -> NsdHealth {
        match &self.way {
            Way::Local(nsd) => nsd.health(),
            Way::Call(called) => {
                let heard = called.heard.lock();
                heard.map_or(NsdHealth::Online, |(condition, _)| condition.health)
            }
        }
    }

    /// How much it holds, as far as is known; zeros before the first answer.
    #[must_use]
    pub fn usage(&self) -> NsdUsage {
        match &self.way {
            Way::Local(nsd) => nsd.usage(),
            Way::Call(called) => {
                let heard = called.heard.lock();
                heard.map_or_else(NsdUsage::default, |(condition, _)| condition.usage)
            }
        }
    }

    /// How much it holds, as it says now.
    ///
    /// # Errors
    /// `Unavailable` if it has failed; `Unknown` if it didn't answer by the deadline.
    pub async fn ask_usage(&self, deadline: Deadline) -> Result<NsdUsage> {
        if let Way::Call(_) = &self.way {
            self.ask(&NsdRequest::Condition, deadline).await?;
        }
        match self.health() {
            NsdHealth::Failed => {
                let text = format!("NSD {} has failed", self.id);
                Err(Error::new(ErrorKind::Unavailable, text))
            }
            NsdHealth::Online | NsdHealth::Full => Ok(self.usage()),
        }
    }

    /// Whether its index was rebuilt and it waits for [`Handle::confirm_epochs`], as of its newest
    /// answer.
    #[must_use]
    pub fn needs_confirmation(&self) -> bool {
        match &self.way {
            Way::Local(nsd) => nsd.needs_confirmation(),
            Way::Call(called) => {
                let heard = called.heard.lock();
                heard.is_none_or(|(condition, _)| condition.needs_confirmation)
            }
        }
    }

    /// As [`Nsd::put`].
    ///
    /// # Errors
    /// As [`Nsd::put`], and `Unknown` if it didn't answer by the deadline.
    pub async fn put(&self, put: BlobPut, deadline: Deadline) -> Result<()> {
        match &self.way {
            Way::Local(nsd) => self.bound(nsd.put(put), deadline).await,
            Way::Call(_) => Box::pin(self.put_by_call(put, deadline)).await,
        }
    }

    async fn put_by_call(&self, put: BlobPut, deadline: Deadline) -> Result<()> {
        let request = NsdRequest::Put {
            name: put.name,
            nonce: put.nonce,
            header: put.header,
            fence: put.fence,
            units: put.payload.units().to_vec(),
        };
        // Of its units' checksums, without another look at the bytes.
        let crc = Some(put.payload.crc());
        let payload = put.payload.bytes().clone();
        let answer = self.ask_with(&request, payload, crc, deadline);
        self.check_done(&answer.await?.0)
    }

    /// As [`Nsd::get`].
    ///
    /// # Errors
    /// As [`Nsd::get`]; `Corrupt` also if bytes were damaged on their way; `Unknown` if it didn't
    /// answer by the deadline.
    pub async fn get(
        &self,
        name: BlobName,
        offset: u32,
        length: u32,
        deadline: Deadline,
    ) -> Result<Bytes> {
        match &self.way {
            Way::Local(nsd) => self.bound(nsd.get(name, offset, length), deadline).await,
            Way::Call(_) => Box::pin(self.get_by_call(name, offset, length, deadline)).await,
        }
    }

    async fn get_by_call(
        &self,
        name: BlobName,
        offset: u32,
        length: u32,
        deadline: Deadline,
    ) -> Result<Bytes> {
        let request = NsdRequest::Get {
            name,
            offset,
            length,
        };
        let (reply, bytes) = self.ask(&request, deadline).await?;
        let NsdReply::Units { first, checksums } = reply else {
            return Err(self.misunderstood());
        };
        if length == 0 {
            return Ok(Bytes::new());
        }
        // Units behind those that were asked for have no place in the blob.
        let start = (offset as usize).checked_sub(first as usize * UNIT);
        let start = start.ok_or_else(|| self.misunderstood())?;
        if !all_match(&Key::blob(name), first, &bytes, &checksums) {
            let text = format!("blob {name} of NSD {} was damaged on its way", self.id);
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let end = start + length as usize;
        if end > bytes.len() {
            return Err(self.misunderstood());
        }
        Ok(bytes.slice(start..end))
    }

    /// As [`Nsd::info`].
    ///
    /// # Errors
    /// As [`Nsd::info`], and `Unknown` if it didn't answer by the deadline.
    pub async fn info(&self, name: BlobName, deadline: Deadline) -> Result<BlobInfo> {
        match &self.way {
            Way::Local(nsd) => self.bound(nsd.info(name), deadline).await,
            Way::Call(_) => match self.ask(&NsdRequest::Info(name), deadline).await? {
                (NsdReply::Info(info), _) => Ok(info),
                _ => Err(self.misunderstood()),
            },
        }
    }

    /// As [`Nsd::delete`].
    ///
    /// # Errors
    /// As [`Nsd::delete`], and `Unknown` if it didn't answer by the deadline.
    pub async fn delete(&self, delete: BlobDelete, deadline: Deadline) -> Result<()> {
        match &self.way {
            Way::Local(nsd) => self.bound(nsd.delete(delete), deadline).await,
            Way::Call(_) => {
                let request = NsdRequest::Delete(delete);
                self.done(&request, Bytes::new(), deadline).await
            }
        }
    }

    /// As [`Nsd::list`].
    ///
    /// # Errors
    /// As [`Nsd::list`], and `Unknown` if it didn't answer by the deadline.
    pub async fn list(
        &self,
        group: GroupId,
        after: Option<BlobName>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<BlobInfo>> {
        let Way::Call(_) = &self.way else {
            let nsd = self.opened().expect("it isn't called");
            return self.bound(nsd.list(group, after, limit), deadline).await;
        };
        let limit = limit.min(crate::LIST_MAX);
        let (mut found, mut after) = (Vec::new(), after);
        while found.len() < limit {
            let part = (limit - found.len()).min(LIST_ANSWER_MAX);
            let request = NsdRequest::List {
                group,
                after,
                limit: u32::try_from(part).expect("an answer is small"),
            };
            let (NsdReply::Infos(infos), _) = self.ask(&request, deadline).await? else {
                return Err(self.misunderstood());
            };
            // Who asks goes on behind the last one: an NSD that went back would be asked for ever.
            let goes_on = |info: &BlobInfo| {
                info.name.group == group && after.is_none_or(|after| info.name > after)
            };
            let is_sorted = infos.is_sorted_by(|one, next| one.name < next.name);
            if infos.len() > part || !is_sorted || !infos.iter().all(goes_on) {
                return Err(self.misunderstood());
            }
            let is_all = infos.len() < part;
            after = infos.last().map(|info| info.name).or(after);
            found.extend(infos);
            if is_all {
                break;
            }
        }
        Ok(found)
    }

    /// As [`Nsd::digest`].
    ///
    /// # Errors
    /// As [`Nsd::digest`], and `Unknown` if it didn't answer by the deadline.
    pub async fn digest(&self, group: GroupId, deadline: Deadline) -> Result<GroupDigest> {
        match &self.way {
            Way::Local(nsd) => self.bound(nsd.digest(group), deadline).await,
            Way::Call(_) => match self.ask(&NsdRequest::Digest(group), deadline).await? {
                (NsdReply::Digest(digest), _) => Ok(digest),
                _ => Err(self.misunderstood()),
            },
        }
    }

    /// All groups of which it holds blobs, in order.
    ///
    /// # Errors
    /// As [`Nsd::groups`], and `Unknown` if it didn't answer by the deadline.
    pub async fn groups(&self, deadline: Deadline) -> Result<Vec<GroupId>> {
        let mut found: Vec<GroupId> = Vec::new();
        let mut from = GroupId(0);
        loop {
            let part = match &self.way {
                Way::Local(nsd) => {
                    self.bound(nsd.groups(from, LIST_ANSWER_MAX), deadline)
                        .await?
                }
                Way::Call(_) => {
                    let limit = LIST_ANSWER_MAX as u32;
                    match self
                        .ask(&NsdRequest::Groups { from, limit }, deadline)
                        .await?
                    {
                        (NsdReply::Groups(groups), _) => groups,
                        _ => return Err(self.misunderstood()),
                    }
                }
            };
            let is_last = part.len() < LIST_ANSWER_MAX;
            // An NSD that went back would be asked for ever.
            let goes_on = part.first().is_none_or(|first| *first >= from);
            if !goes_on || !part.is_sorted_by(|one, next| one < next) {
                return Err(self.misunderstood());
            }
            if found.len() + part.len() > GROUPS_BELIEVED_MAX {
                return Err(self.misunderstood());
            }
            found.extend(part);
            match found.last().and_then(|last| last.0.checked_add(1)) {
                Some(next) if !is_last => from = GroupId(next),
                _ => return Ok(found),
            }
        }
    }

    /// As [`Nsd::learn_groups`], however many there are.
    ///
    /// # Errors
    /// As [`Nsd::learn_groups`], and `Unknown` if it didn't answer by the deadline.
    pub async fn learn_groups(&self, fences: &[GroupFence], deadline: Deadline) -> Result<()> {
        match &self.way {
            Way::Local(nsd) => self.bound(nsd.learn_groups(fences), deadline).await,
            Way::Call(_) => {
                // One at least, also without any: who asks wants to hear that it is there.
                let mut rest = fences;
                loop {
                    let (part, others) = rest.split_at(rest.len().min(LEARNT_PER_CALL));
                    let request = NsdRequest::Learn(part.to_vec());
                    self.done(&request, Bytes::new(), deadline).await?;
                    if others.is_empty() {
                        return Ok(());
                    }
                    rest = others;
                }
            }
        }
    }

    /// As [`Nsd::log_put`].
    ///
    /// # Errors
    /// As [`Nsd::log_put`], and `Unknown` if it didn't answer by the deadline.
    pub async fn log_put(&self, put: LogPut, deadline: Deadline) -> Result<()> {
        match &self.way {
            Way::Local(nsd) => self.bound(nsd.log_put(put), deadline).await,
            Way::Call(_) => {
                let request = NsdRequest::LogPut {
                    shard: put.shard,
                    epoch: put.epoch,
                    number: put.number,
                };
                Box::pin(self.done(&request, put.bytes, deadline)).await
            }
        }
    }

    /// As [`Nsd::log_puts`], of one log.
    ///
    /// # Errors
    /// As [`Nsd::log_puts`], and `Unknown` if it didn't answer by the deadline. `InvalidArgument` also if they are more than
    /// [`model::nsd::LOG_PUTS_MAX`].
    pub async fn log_puts(
        &self,
        shard: ShardId,
        epoch: ShardEpoch,
        entries: Vec<(EntryNumber, Bytes)>,
        deadline: Deadline,
    ) -> Result<()> {
        if let Way::Local(nsd) = &self.way {
            let put = |(number, bytes)| LogPut {
                shard,
                epoch,
                number,
                bytes,
            };
            let puts = entries.into_iter().map(put).collect();
            return self.bound(nsd.log_puts(puts), deadline).await;
        }
        let total = entries.iter().map(|(_, bytes)| bytes.len()).sum();
        let mut joined = BytesMut::with_capacity(total);
        let mut listed = Vec::with_capacity(entries.len());
        for (number, bytes) in &entries {
            let length = u32::try_from(bytes.len()).expect("an entry is small");
            listed.push((*number, length));
            joined.extend_from_slice(bytes);
        }
        let request = NsdRequest::LogPuts {
            shard,
            epoch,
            entries: listed,
        };
        Box::pin(self.done(&request, joined.freeze(), deadline)).await
    }

    /// As [`Nsd::log_read`].
    ///
    /// # Errors
    /// As [`Nsd::log_read`], and `Unknown` if it didn't answer by the deadline.
    pub async fn log_read(
        &self,
        shard: ShardId,
        from: EntryNumber,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<LogEntry>> {
        let Way::Call(_) = &self.way else {
            let nsd = self.opened().expect("it isn't called");
            return self.bound(nsd.log_read(shard, from, limit), deadline).await;
        };
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let request = NsdRequest::LogRead { shard, from, limit };
        let (NsdReply::Entries(listed), mut bytes) = self.ask(&request, deadline).await? else {
            return Err(self.misunderstood());
        };
        let mut entries = Vec::with_capacity(listed.len());
        // Who asks goes on behind the last one: that must be further on, and have a next one.
        let mut next = from.0;
        for (epoch, number, length) in listed {
            if length as usize > bytes.len() || number.0 < next || number.0 == u64::MAX {
                return Err(self.misunderstood());
            }
            next = number.0 + 1;
            entries.push(LogEntry {
                epoch,
                number,
                bytes: bytes.split_to(length as usize),
            });
        }
        Ok(entries)
    }

    /// As [`Nsd::log_trim`].
    ///
    /// # Errors
    /// As [`Nsd::log_trim`], and `Unknown` if it didn't answer by the deadline.
    pub async fn log_trim(
        &self,
        shard: ShardId,
        epoch: ShardEpoch,
        below: EntryNumber,
        deadline: Deadline,
    ) -> Result<()> {
        match &self.way {
            Way::Local(nsd) => {
                self.bound(nsd.log_trim(shard, epoch, below), deadline)
                    .await
            }
            Way::Call(_) => {
                let request = NsdRequest::LogTrim {
                    shard,
                    epoch,
                    below,
                };
                self.done(&request, Bytes::new(), deadline).await
            }
        }
    }

    /// As [`Nsd::log_discard`].
    ///
    /// # Errors
    /// As [`Nsd::log_discard`], and `Unknown` if it didn't answer by the deadline.
    pub async fn log_discard(
        &self,
        shard: ShardId,
        epoch: ShardEpoch,
        above: EntryNumber,
        deadline: Deadline,
    ) -> Result<()> {
        match &self.way {
            Way::Local(nsd) => {
                let discard = nsd.log_discard(shard, epoch, above);
                self.bound(discard, deadline).await
            }
            Way::Call(_) => {
                let request = NsdRequest::LogDiscard {
                    shard,
                    epoch,
                    above,
                };
                self.done(&request, Bytes::new(), deadline).await
            }
        }
    }

    /// As [`Nsd::seal`].
    ///
    /// # Errors
    /// As [`Nsd::seal`], and `Unknown` if it didn't answer by the deadline.
    pub async fn seal(&self, shard: ShardId, epoch: ShardEpoch, deadline: Deadline) -> Result<()> {
        match &self.way {
            Way::Local(nsd) => self.bound(nsd.seal(shard, epoch), deadline).await,
            Way::Call(_) => {
                let request = NsdRequest::Seal { shard, epoch };
                self.done(&request, Bytes::new(), deadline).await
            }
        }
    }

    /// As [`Nsd::confirm_epochs`].
    ///
    /// # Errors
    /// As [`Nsd::confirm_epochs`], and `Unknown` if it didn't answer by the deadline.
    pub async fn confirm_epochs(
        &self,
        epochs: &[(ShardId, ShardEpoch)],
        deadline: Deadline,
    ) -> Result<()> {
        match &self.way {
            Way::Local(nsd) => self.bound(nsd.confirm_epochs(epochs), deadline).await,
            Way::Call(_) => {
                let request = NsdRequest::ConfirmEpochs(epochs.to_vec());
                self.done(&request, Bytes::new(), deadline).await
            }
        }
    }

    async fn bound<T>(
        &self,
        work: impl Future<Output = Result<T>>,
        deadline: Deadline,
    ) -> Result<T> {
        let work = pin!(deadline.bound(&self.world, work));
        let part = Part::ForNsd(self.id);
        match self.world.listed(NSD_WAIT, part, work).await {
            Ok(result) => result,
            Err(_) => Err(self.late()),
        }
    }

    async fn done(&self, request: &NsdRequest, payload: Bytes, deadline: Deadline) -> Result<()> {
        let answer = self.ask_with(request, payload, None, deadline);
        self.check_done(&answer.await?.0)
    }

    fn check_done(&self, reply: &NsdReply) -> Result<()> {
        match reply {
            NsdReply::Done => Ok(()),
            _ => Err(self.misunderstood()),
        }
    }

    async fn ask(&self, request: &NsdRequest, deadline: Deadline) -> Result<(NsdReply, Bytes)> {
        Box::pin(self.ask_with(request, Bytes::new(), None, deadline)).await
    }

    async fn ask_with(
        &self,
        request: &NsdRequest,
        payload: Bytes,
        payload_crc: Option<u32>,
        deadline: Deadline,
    ) -> Result<(NsdReply, Bytes)> {
        let Way::Call(called) = &self.way else {
            unreachable!("an NSD of this process isn't called");
        };
        let addressed: AddressedRequest = (self.id, request.clone());
        let call = Call {
            payload,
            payload_crc,
            reply_bytes_max: request.reply_bytes_max(),
            ..Call::new(NSD_METHOD, request.class(), &addressed)
        };
        let began = self.world.now();
        // It ends by the deadline by itself.
        let answer = called.node.call(call, deadline);
        let part = Part::ForNsd(self.id);
        let answer = self.world.listed(NSD_WAIT, part, answer).await;
        let answer = answer.map_err(Error::from).inspect_err(|_| {
            // A connection that breaks, or can't be made, ends requests before their deadlines.
            if !deadline.has_passed(&self.world) || !called.was_heard_since(began) {
                called.note_unreached(self.world.now());
            }
        })?;
        let decoded = answer.reply.decode::<NsdAnswer>();
        let NsdAnswer { condition, reply } =
            decoded.inspect_err(|_| called.note_unreached(self.world.now()))?;
        let condition = NsdCondition {
            usage: condition.usage.bounded(),
            ..condition
        };
        *called.heard.lock() = Some((condition, self.world.now()));
        Ok((reply?, answer.reply.payload))
    }

    fn late(&self) -> Error {
        let text = format!("NSD {} didn't answer in time", self.id);
        Error::new(ErrorKind::Unknown, text)
    }

    fn misunderstood(&self) -> Error {
        let text = format!("NSD {} answered something else than was asked", self.id);
        Error::new(ErrorKind::Unknown, text)
    }
}
