//! What one inode's state holds, under the inode's lock: holders, attributes, dirty bytes, batches,
//! cached bytes and known extents. Pure.

use super::batch::{Batch, Batches, Pending};
use super::held::{Held, HeldState};
use super::kernel_pages::{KernelPages, Span};
use super::known::Known;
use super::pattern::Pattern;
use super::plain::Plain;
use super::recent::Recent;
use super::unpublished::Unpublished;
use crate::pages::clean::Clean;
use crate::pages::dirty::{Dirty, Frozen};
use crate::pages::extents::Extents;
use crate::pages::memory::{Blocks, StateCharge};
use crate::session::{Mark, Standing};
use model::token::TokenRecall;
use model::{
    Attributes, ErrorKind, Extent, ExtentKind, Privileges, Result, SessionId, Timestamp, TokenMode,
    TokenRange,
};
use std::sync::Arc;
use tokens::Pieces;
use world::Instant;

/// In-memory state of one inode. Its lock is never held across a wait.
pub(crate) struct Inner {
    opens: u32,
    /// One of them may write.
    is_open_to_write: bool,
    /// The session that holds the inode at the owner, once for each open.
    holder: SessionId,
    /// It was made here, under a delegation.
    is_made_here: bool,
    /// Without names; deleted with its last holder, so its data needn't be written.
    orphan: bool,
    known: Option<Known>,
    /// What may be used of all this.
    held: Held,
    /// Written data or locks were lost with a session, or the inode itself: programs that have it open
    /// hear of it.
    lost: bool,
    /// Counts the times when written data was lost.
    lost_writes: u64,
    /// Counts the times when tokens were lost: what was claimed before is void.
    losses: u64,
    /// Privileges that the inode is known not to have, and how often it may have got some.
    plain: Plain,
    grants: u64,
    /// A truncate or the like runs, or may still run: no write may begin, and size and extents may change.
    exclusive: bool,
    /// Counts these.
    exclusives: u64,
    /// Bytes that a change of this client concerns that is under way at the owner, or whose outcome isn't known.
    changing: Option<(u64, u64)>,
    dirty: Dirty,
    pending: Option<Pending>,
    last_write: Option<Instant>,
    batches: Batches,
    /// This inode's part of the page pool's failing bytes.
    failing_bytes: u64,
    clean: Clean,
    /// What kernels have of its bytes.
    kernel_pages: KernelPages,
    /// What others want of its bytes, and what programs here do with them.
    recent: Recent,
    extents: Extents,
    /// Counts the changes of the mapping from bytes to places: bytes read under an older mapping
    /// must not be cached.
    mapping: u64,
    /// Ranges being fetched into the cache.
    fetches: Vec<(u64, u64)>,
    pattern: Pattern,
    /// The page pool memory that the state itself takes.
    _charge: StateCharge,
}

impl Inner {
    pub(super) fn new(blocks: Arc<Blocks>, standing: Arc<Standing>) -> Self {
        Self {
            opens: 0,
            is_open_to_write: false,
            holder: standing.session(),
            is_made_here: false,
            orphan: false,
            known: None,
            held: Held::new(standing),
            lost: false,
            lost_writes: 0,
            losses: 0,
            plain: Plain::default(),
            grants: 0,
            exclusive: false,
            exclusives: 0,
            changing: None,
            _charge: StateCharge::new(&blocks),
            extents: Extents::new(&blocks),
            dirty: Dirty::new(blocks),
            pending: None,
            last_write: None,
            batches: Batches::default(),
            failing_bytes: 0,
            clean: Clean::default(),
            kernel_pages: KernelPages::default(),
            recent: Recent::default(),
            mapping: 0,
            fetches: Vec::new(),
            pattern: Pattern::default(),
        }
    }

    /// Whether the state may leave the table.
    pub(super) fn is_idle(&self) -> bool {
        self.opens == 0
            && self.is_published()
            && self.clean.is_empty()
            && self.fetches.is_empty()
            && !self.exclusive
    }

    // Holders and names.

    pub(crate) fn is_open(&self) -> bool {
        self.opens > 0
    }

    /// Programs may write to it through one of their opens.
    pub(crate) fn note_open_to_write(&mut self) {
        self.is_open_to_write |= self.is_open();
    }

    /// Whether programs may write to it; at least as long as one has opened it so.
    pub(crate) fn is_open_to_write(&self) -> bool {
        self.is_open_to_write
    }

    /// How often programs have it open.
    pub(crate) fn opens(&self) -> u32 {
        self.opens
    }

    /// The session that holds it at the owner, as often.
    pub(crate) fn holder(&self) -> SessionId {
        self.holder
    }

    /// A session holds it at the owner as often as programs have it open.
    pub(crate) fn set_holder(&mut self, session: SessionId) {
        self.holder = session;
    }

    /// A program opened the inode, and this session holds it once more. False if another session has
    /// followed: then nothing is noted, and that one must hold it.
    #[must_use]
    pub(crate) fn note_open(&mut self, session: SessionId) -> bool {
        if self.opens == 0 {
            self.holder = session;
        }
        let is_held = self.holder == session && self.held.is_of(session);
        self.opens += u32::from(is_held);
        is_held
    }

    /// A program closed the inode. Returns the session that holds it; `None` if it isn't open.
    pub(crate) fn note_close(&mut self) -> Option<SessionId> {
        if !self.is_open() {
            return None;
        }
        self.opens -= 1;
        self.is_open_to_write &= self.is_open();
        self.lost &= self.is_open();
        Some(self.holder)
    }

    /// Refuses what programs do with a file of which something was lost, until all have closed it.
    pub(crate) fn check_lost(&self) -> Result<()> {
        match self.lost {
            true => Err(ErrorKind::SessionEnded.into()),
            false => Ok(()),
        }
    }

    /// How often tokens were lost.
    pub(crate) fn losses(&self) -> u64 {
        self.losses
    }

    /// Tokens are lost.
    pub(crate) fn note_loss(&mut self) {
        self.losses += 1;
    }

    /// Written data is lost.
    pub(crate) fn note_lost_writes(&mut self) {
        self.lost_writes += 1;
        self.note_lost();
    }

    /// How often written data was lost.
    pub(crate) fn lost_writes(&self) -> u64 {
        self.lost_writes
    }

    /// Something is lost of which programs that have it open must hear.
    pub(crate) fn note_lost(&mut self) {
        self.lost |= self.is_open();
    }

    // Tokens.

    /// What is held now, to be compared when the answer to a question comes.
    pub(crate) fn held_state(&self) -> HeldState {
        self.held.state()
    }

    /// Whether a read may be answered from what is known and cached.
    pub(crate) fn may_read(&self, offset: u64, end: u64) -> bool {
        self.held.may_read(offset, end, self.size().unwrap_or(0))
    }

    /// Whether a kernel may get these pages, under a token of this mode, and keep them.
    pub(crate) fn may_fill(&self, pages: Span, mode: TokenMode) -> bool {
        self.held.may_fill(pages, self.size().unwrap_or(0), mode)
    }

    /// Whether a kernel may write these bytes back.
    pub(crate) fn may_write_back(&self, offset: u64, end: u64) -> bool {
        let may_go = |(from, to)| {
            self.held.may_write_back(from, to)
                || (self.kernel_pages.are_dropping((from, to)) && self.held.is_current())
        };
        // Of a part of it that goes, and one that is held, each may be written back.
        may_go((offset, end))
            || (self.kernel_pages.page_by_page((offset, end)).into_iter()).all(may_go)
    }

    /// A kernel's request for pages is about to be answered. Nobody keeps account while no tokens are used.
    pub(crate) fn filled(&mut self, fill: u64, mode: TokenMode) {
        match self.held.has_all() {
            true => self.kernel_pages.answered(fill, mode),
            false => self.kernel_pages.filled(fill, mode),
        }
    }

    /// Whether no token is needed now.
    pub(crate) fn has_all(&self) -> bool {
        self.held.has_all()
    }

    /// What kernels have of its bytes.
    pub(crate) fn kernel_pages(&mut self) -> &mut KernelPages {
        &mut self.kernel_pages
    }

    /// Whether a write may be taken in; `at_end`: where the file ends.
    pub(crate) fn may_write(&self, offset: u64, end: u64, at_end: bool) -> bool {
        self.held.may_write(offset, end, at_end)
    }

    /// Others want some of its bytes: what goes back, which is that at least. What kernels may have isn't touched without
    /// need: they would have to drop it first.
    pub(crate) fn widen(
        &mut self,
        recall: &TokenRecall,
        in_use: Option<TokenRange>,
        now: Instant,
    ) -> Vec<TokenRange> {
        let ranges = self.recent.widen(recall, in_use, now);
        match self.kernel_pages.may_be_some() {
            true => recall.ranges.clone(),
            false => ranges,
        }
    }

    /// Up to where bytes from `offset` on may be cached.
    pub(crate) fn readable_to(&self, offset: u64) -> u64 {
        self.held.readable_to(offset)
    }

    /// The tokens that may be used are others.
    pub(crate) fn set_held_attributes(&mut self, mode: Option<TokenMode>) {
        if self.held.set_attributes(mode) {
            self.void_known();
        }
    }

    /// Who needs the exact size has claimed the attributes. What is shown of them may be less: then what is
    /// known may be from a time when others wrote too.
    pub(crate) fn begin_exact(&mut self) {
        if !self.held.is_exact() {
            self.void_known();
        }
    }

    /// As [`Inner::set_held_attributes`], for bytes. What is being fetched isn't cached.
    pub(crate) fn set_held_bytes(&mut self, bytes: Pieces) {
        self.mapping += u64::from(self.held.set_bytes(bytes));
    }

    /// The attributes' token goes back. What was written under it is published; what a kernel has written back since,
    /// and what was written under another token, makes the file no longer than its own bytes do.
    pub(crate) fn forget_attributes(&mut self) {
        self.cut_pending(0);
        self.void_known();
        self.plain = Plain::default();
    }

    /// Unpublished writes make the file no longer than this, or their own bytes.
    fn cut_pending(&mut self, size: u64) {
        let runs = self.batches.iter().flat_map(Batch::runs);
        let end = runs.map(Frozen::end).fold(self.dirty.end(), u64::max);
        if let Some(pending) = &mut self.pending {
            pending.size = end.max(size.min(pending.size));
        }
    }

    /// A program has made it here, under a delegation.
    pub(crate) fn note_made_here(&mut self) {
        self.is_made_here = true;
    }

    /// Whether it was made so while its state was kept.
    pub(crate) fn is_made_here(&self) -> bool {
        self.is_made_here
    }

    /// Whether it has no names.
    pub(crate) fn is_orphan(&self) -> bool {
        self.orphan
    }

    /// It has lost its last name, or gets one (again). Returns whether it had none.
    pub(crate) fn set_orphan(&mut self, orphan: bool) -> bool {
        std::mem::replace(&mut self.orphan, orphan)
    }

    // Attributes.

    pub(crate) fn known(&self) -> Option<Known> {
        self.known
    }

    /// Logical size including unpublished writes; `None` if the owner's size isn't known.
    pub(crate) fn size(&self) -> Option<u64> {
        self.known.map(|known| self.size_of(known))
    }

    /// Logical size including unpublished writes, with these attributes of the owner.
    pub(crate) fn size_of(&self, known: Known) -> u64 {
        self.pending
            .map_or(known.size, |pending| pending.size.max(known.size))
    }

    /// Takes in the owner's answer to an operation of this client. If what was held when it was `asked`
    /// isn't held any more, nothing is known afterwards. Answers may arrive out of order: an older one
    /// changes nothing.
    pub(crate) fn learn(&mut self, attributes: &Attributes, asked: HeldState) {
        match self.held.learned(asked) {
            true => self.known = Some(Known::after(self.known, attributes)),
            false => self.void_known(),
        }
    }

    /// Nothing is known any more, nor learned from answers that are on their way.
    pub(crate) fn void_known(&mut self) {
        self.known = None;
        self.held.void();
    }

    /// As `learn`, if nothing is known. Returns whether that was so.
    pub(crate) fn learn_first(&mut self, attributes: &Attributes, asked: HeldState) -> bool {
        let is_first = self.known.is_none() && self.held.learned(asked);
        if is_first {
            self.known = Some(Known::from(attributes));
        }
        is_first
    }

    /// As `learn`, if anything is known.
    pub(crate) fn learn_again(&mut self, attributes: &Attributes, asked: HeldState) {
        if self.known.is_some() {
            self.learn(attributes, asked);
        }
    }

    /// A read moved atime.
    pub(crate) fn note_access(&mut self, at: Timestamp) {
        if let Some(known) = &mut self.known {
            known.atime = at;
        }
    }

    /// Adds unpublished writes to attributes from the owner. Whether there are any.
    pub(crate) fn merge_into(&self, attributes: &mut Attributes) -> bool {
        let Some(pending) = self.pending else {
            return false;
        };
        attributes.size = attributes.size.max(pending.size);
        if pending.generation == attributes.generation {
            let mtime = attributes.mtime;
            attributes.mtime = mtime.after_write(attributes.ctime, pending.written);
        }
        attributes.ctime = attributes.ctime.max(pending.written);
        let unpublished = self.unpublished_bytes();
        // Space that will be allocated when the data is written; until then overwritten bytes are
        // counted twice.
        attributes.allocated =
            (attributes.allocated + unpublished).min(attributes.size.max(attributes.allocated));
        true
    }

    /// Whether a change of bytes has no privileges to drop.
    pub(crate) fn loses_nothing_to(&self, privileges: Privileges) -> bool {
        self.plain.loses_nothing_to(privileges)
    }

    /// Remembers which privileges the inode didn't have when it was `asked`, unless what was held then
    /// isn't any more.
    pub(crate) fn learn_plain(&mut self, plain: Plain, asked: HeldState) {
        if self.held.learned(asked) {
            self.plain = plain;
        }
    }

    /// It may have got privileges.
    pub(crate) fn forget_plain(&mut self) {
        self.plain = Plain::default();
        self.grants += 1;
    }

    /// The state of an inode that was just made here, for [`Inner::learn_born`].
    pub(crate) fn before_born(&self) -> (HeldState, u64) {
        (self.held_state(), self.grants)
    }

    /// Nothing has been done with an inode that was made here with these attributes, and its tokens have come since it
    /// was in that state: it is empty and fully known.
    pub(crate) fn learn_born(&mut self, attributes: &Attributes, (held, grants): (HeldState, u64)) {
        let now = self.held_state();
        if !self.held.has_only_come(held) || !self.learn_first(attributes, now) {
            return;
        }
        // The owner may date the file earlier than this client, whose clock is ahead: its answers count all the same.
        if let Some(known) = &mut self.known {
            known.ctime = Timestamp::default();
        }
        self.learn_empty();
        if self.grants == grants {
            self.learn_plain(Plain::of(attributes, false), now);
        }
    }

    /// Whether a truncate or the like runs, or may still run.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    pub(crate) fn begin_exclusive(&mut self) {
        self.exclusive = true;
        self.exclusives += 1;
    }

    /// The exclusive use that keeps a write from beginning, if one does. The change may be waiting for others that want the
    /// very pages that a kernel writes back (`is_kernels`).
    pub(crate) fn excluded_by(&self, is_kernels: bool) -> Option<u64> {
        let may_have_to_go = is_kernels && !self.has_all();
        (self.exclusive && !may_have_to_go).then_some(self.exclusives)
    }

    /// Returns the bytes of a change that was begun, if what came of it wasn't taken in.
    pub(crate) fn end_exclusive(&mut self) -> Option<(u64, u64)> {
        self.exclusive = false;
        self.changing.take()
    }

    /// Who excludes writers sends the owner a change of these bytes. Until that ends nobody knows which bytes
    /// others, or a stat of this client, have seen already, so reads of them wait for it.
    pub(crate) fn begin_change(&mut self, from: u64, to: u64) {
        debug_assert!(self.exclusive, "writers are excluded");
        self.changing = Some((from, to));
    }

    /// As [`Inner::begin_change`], of a range. What it makes longer concerns all bytes from the end of the file on, too.
    pub(crate) fn begin_range_change(&mut self, from: u64, to: u64, may_grow: bool) {
        let size = self.size().unwrap_or(0);
        match may_grow && to > size {
            true => self.begin_change(size.min(from), u64::MAX),
            false => self.begin_change(from, to),
        }
    }

    /// What came of the change is taken in.
    pub(crate) fn end_change(&mut self) {
        self.changing = None;
    }

    /// Whether a change of these bytes is under way at the owner.
    pub(crate) fn is_changing(&self, offset: u64, end: u64) -> bool {
        self.changing
            .is_some_and(|(from, to)| offset < to && from < end)
    }

    // Written data.

    pub(crate) fn dirty(&self) -> &Dirty {
        &self.dirty
    }

    /// When a program wrote to it last.
    pub(crate) fn last_write(&self) -> Option<Instant> {
        self.last_write
    }

    /// A program writes `data` at `now`, for which the clock shows `time`. Returns how many bytes
    /// became dirty that weren't before. The attributes are known.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8], now: Instant, time: Timestamp) -> u64 {
        let known = self.known.expect("a write needs size and generation");
        let size = self.size_of(known).max(offset + data.len() as u64);
        self.note_write(size, known.generation, now, time);
        self.take_in(offset, data, now)
    }

    fn take_in(&mut self, offset: u64, data: &[u8], now: Instant) -> u64 {
        let end = offset + data.len() as u64;
        self.recent.note_write((offset, end), now);
        self.dirty.write(offset, data, now)
    }

    fn note_write(&mut self, size: u64, generation: u32, now: Instant, time: Timestamp) {
        // Not adjusted to an mtime that utimes has set into the future: ctime gets this time too.
        let last_write = self.pending.map_or(time, |pending| pending.written);
        self.pending = Some(Pending {
            size,
            written: time.max(last_write),
            generation,
        });
        self.last_write = Some(now);
    }

    /// As [`Inner::write`], of what a kernel writes back, in this generation of the attributes: they need be neither
    /// known nor held. Others may have made the file shorter than was known.
    pub(crate) fn write_back(
        &mut self,
        offset: u64,
        data: &[u8],
        generation: u32,
        now: Instant,
        time: Timestamp,
    ) -> u64 {
        self.kernel_pages.note_written_back();
        // A change of the size that is under way may be one that makes it less.
        if self.known.is_some() && self.held.may_change_size() && !self.exclusive {
            return self.write(offset, data, now, time);
        }
        let end = offset + data.len() as u64;
        let (size, generation) = match self.pending {
            Some(pending) => (pending.size.max(end), pending.generation),
            None => (end, generation),
        };
        self.note_write(size, generation, now, time);
        self.take_in(offset, data, now)
    }

    /// Drops the dirty bytes from `from` on, where the file ends now. Returns their number.
    pub(crate) fn cut_dirty(&mut self, from: u64) -> u64 {
        let cut = self.dirty.cut(from, u64::MAX);
        self.cut_pending(from);
        cut
    }

    /// Takes all dirty bytes, to freeze them.
    pub(crate) fn take_dirty(&mut self) -> Vec<Frozen> {
        self.dirty.take_all()
    }

    /// Takes those dirty since `time` or longer, to freeze them.
    pub(crate) fn take_dirty_since(&mut self, time: Instant) -> Vec<Frozen> {
        self.dirty.take_older(time)
    }

    /// Takes the completely dirty blocks between `from` and `to`, to freeze them.
    pub(crate) fn take_full_blocks(&mut self, from: u64, to: u64) -> Vec<Frozen> {
        self.dirty.take_full_blocks(from, to)
    }

    /// Makes a batch of runs just taken from the dirty ones. It makes the file no longer than its bytes do: what was
    /// known of the size besides may be old when it is published.
    pub(crate) fn freeze(&mut self, runs: Vec<Frozen>, mark: Mark) -> &Batch {
        let pending = self.pending;
        let pending = pending.expect("dirty bytes come with a pending change");
        let size = runs.iter().map(Frozen::end).max().unwrap_or(0);
        self.batches.add(runs, Pending { size, ..pending }, mark)
    }

    pub(crate) fn batches(&self) -> &Batches {
        &self.batches
    }

    pub(crate) fn batches_mut(&mut self) -> &mut Batches {
        &mut self.batches
    }

    /// Whether nothing is left to write or publish.
    pub(crate) fn is_published(&self) -> bool {
        self.dirty.is_empty() && self.batches.is_empty()
    }

    /// Forgets the pending change if no unpublished byte is left.
    pub(crate) fn settle(&mut self) {
        if self.is_published() {
            self.pending = None;
        }
    }

    fn unpublished_bytes(&self) -> u64 {
        self.dirty.bytes() + self.batches.bytes()
    }

    /// A walk over the unpublished pieces.
    pub(crate) fn unpublished(&self) -> Unpublished<'_> {
        Unpublished::new(&self.dirty, &self.batches)
    }

    /// Counts its failing bytes again. Returns their number before and now.
    pub(crate) fn recount_failing(&mut self) -> (u64, u64) {
        let now = match self.batches.failing_since() {
            Some(_) => self.unpublished_bytes(),
            None => 0,
        };
        (std::mem::replace(&mut self.failing_bytes, now), now)
    }

    // Cached bytes.

    pub(crate) fn clean(&self) -> &Clean {
        &self.clean
    }

    /// For readers, who mark what they use, and for the page pool: it alone adds and drops bytes,
    /// because it counts them.
    pub(crate) fn clean_mut(&mut self) -> &mut Clean {
        &mut self.clean
    }

    /// A program reads these bytes.
    pub(crate) fn note_use(&mut self, bytes: Span, now: Instant) {
        self.recent.note_read(bytes, now);
    }

    /// Notes a read of `offset..end` for read-ahead, at most `most` bytes ahead. Returns the range to
    /// be fetched now.
    pub(crate) fn note_read(
        &mut self,
        (offset, end): (u64, u64),
        size: u64,
        most: u64,
    ) -> Option<(u64, u64)> {
        let (from, to) = self.pattern.note(offset, end, size, most)?;
        Some((self.clean.covered_to(from), to))
    }

    /// A range is being fetched into the cache.
    pub(crate) fn begin_fetch(&mut self, range: (u64, u64)) {
        self.fetches.push(range);
    }

    pub(crate) fn end_fetch(&mut self, range: (u64, u64)) {
        self.fetches.retain(|fetched| *fetched != range);
    }

    /// Whether any part of a range is being fetched.
    pub(crate) fn is_fetching(&self, from: u64, to: u64) -> bool {
        let mut fetches = self.fetches.iter();
        fetches.any(|(start, end)| *start < to && from < *end)
    }

    // Places of bytes.

    pub(crate) fn extents(&self) -> &Extents {
        &self.extents
    }

    /// Changes with the mapping from bytes to places.
    pub(crate) fn mapping(&self) -> u64 {
        self.mapping
    }

    /// Takes in the extents of `from..known_to`, asked for under the present mapping.
    pub(crate) fn learn_extents(&mut self, from: u64, known_to: u64, extents: &[Extent]) {
        self.extents.learn(from, known_to, extents);
    }

    /// The inode was just made: all of it is a hole.
    pub(crate) fn learn_empty(&mut self) {
        self.extents.punch(0, u64::MAX);
    }

    /// These extents are published.
    pub(crate) fn note_published(&mut self, extents: &[Extent]) {
        for extent in extents {
            match extent.kind {
                // The bytes are cached, not the record: inline bytes in records have no budget
                // here.
                ExtentKind::Inline(_) => self.extents.forget(extent.offset, extent.end()),
                _ => self.extents.put(extent),
            }
        }
        self.mapping += 1;
    }

    /// The file now ends at `size`.
    pub(crate) fn punch_from(&mut self, size: u64, asked: HeldState) {
        // Others may have made it longer since.
        let is_so = self.held.learned(asked) && self.readable_to(size) == u64::MAX;
        match is_so {
            true => self.extents.punch(size, u64::MAX),
            false => self.extents.forget(size, u64::MAX),
        }
        self.mapping += 1;
    }

    /// The places of `from..to` may have changed.
    pub(crate) fn forget_extents(&mut self, from: u64, to: u64) {
        self.extents.forget(from, to);
        self.mapping += 1;
    }

    /// All places may have changed, or their memory is needed.
    pub(crate) fn forget_all_extents(&mut self) {
        self.extents.forget_all();
        self.mapping += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::known::tests::attributes;
    use super::*;
    use world::sim::Simulation;

    #[test]
    fn a_batch_makes_the_file_no_longer_than_its_own_bytes() {
        let ended = Simulation::new(1).run(|world| async move {
            let standing = Standing::new(world.clone(), SessionId(1), false);
            standing.set_has_all(true);
            let mut inner = Inner::new(Blocks::new(1 << 16, 16 << 20), standing);
            let asked = inner.held_state();
            inner.learn(&attributes(3, 0, 100_000), asked);
            inner.write(10, &[1; 20], world.now(), Timestamp(7));
            let runs = inner.take_dirty();
            let made = inner.freeze(runs, Mark::of_none()).pending();
            let seen = (made.size, made.written, made.generation);
            assert_eq!(seen, (30, Timestamp(7), 3));
            assert_eq!(inner.size(), Some(100_000), "programs see it all the same");
        });
        ended.finished();
    }

    /// Would be broken if answers of an owner whose clock is behind were taken for old ones: the file would stay empty.
    #[test]
    fn the_owners_attributes_of_a_file_that_was_made_here_count_whatever_clocks_say() {
        let ended = Simulation::new(2).run(|world| async move {
            let standing = Standing::new(world.clone(), SessionId(1), false);
            let mut inner = Inner::new(Blocks::new(1 << 16, 16 << 20), standing);
            let before = inner.before_born();
            inner.set_held_attributes(Some(TokenMode::Exclusive));
            inner.learn_born(&attributes(0, 3_600, 0), before);
            assert_eq!(inner.size(), Some(0));
            let asked = inner.held_state();
            inner.learn(&attributes(0, 1, 100), asked);
            assert_eq!(inner.size(), Some(100));
        });
        ended.finished();
    }
}
