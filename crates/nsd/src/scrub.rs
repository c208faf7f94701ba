//! Scrub: reads everything, mends damage from redundant copies, reports the rest.

use crate::checksum::{UNIT, first_mismatch};
use crate::core::Core;
use crate::entry::{IndexEntry, Run, header_units};
use crate::extent::write_header;
use crate::journal::first_damaged;
use crate::key::{Key, Named};
use crate::superblock::{FLAG_INDEX_LOST, FLAG_UNCONFIRMED};
use crate::wanted::IndexPart;
use model::nsd::ScrubReport;
use model::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use world::AlignedBuffer;

/// Entries looked up at once.
const BATCH: usize = 256;

impl Core {
    pub(crate) async fn scrub(self: Arc<Self>, read: Arc<AtomicU64>) -> Result<ScrubReport> {
        self.check_serving()?;
        let Ok(_only_one) = self.scrubbing.try_lock() else {
            let text = format!(
                "NSD {} is already being scrubbed; wait until that scrub has ended",
                self.identity.nsd
            );
            return Err(Error::new(ErrorKind::Busy, text));
        };
        let mut report = ScrubReport {
            nsd: self.identity.nsd,
            ..ScrubReport::default()
        };
        self.scrub_superblock(&mut report).await?;
        self.scrub_journal(&mut report).await?;
        self.scrub_index(&mut report).await?;
        let mut from = Key::lowest();
        loop {
            let batch = self.range(&from, &Key::highest(), BATCH).await?;
            let Some((last, _)) = batch.last() else { break };
            from = last.following();
            for (key, entry) in &batch {
                self.scrub_entry(key, entry, &mut report).await?;
                read.fetch_add(u64::from(entry.length), Ordering::Relaxed);
            }
        }
        // Damaged blobs were counted when they were found.
        self.note_damage(report.mended.len() as u64);
        Ok(report)
    }

    async fn scrub_superblock(&self, report: &mut ScrubReport) -> Result<()> {
        let superblock = self.superblock.lock().await;
        let mended = superblock.mend(&self.disk).await;
        let mended = mended.map_err(|error| self.fail("mending its superblock", &error))?;
        report.mended.extend(mended);
        Ok(())
    }

    /// Damaged live groups are still in memory: a checkpoint makes them obsolete.
    async fn scrub_journal(self: &Arc<Self>, report: &mut ScrubReport) -> Result<()> {
        let groups: Vec<(u64, u32)> = self.state.lock().groups.iter().copied().collect();
        report.bytes += groups.iter().map(|group| u64::from(group.1)).sum::<u64>();
        let damaged = first_damaged(&self.disk, self.ring, self.stamp.region, &groups).await;
        let Some(position) = damaged else {
            return Ok(());
        };
        // A checkpoint may have emptied the ring in the meantime, and new groups may have replaced
        // these.
        if position < self.state.lock().tail {
            return Ok(());
        }
        self.checkpoint().await?;
        let text =
            format!("journal group at position {position} was damaged; index brought up to date");
        report.mended.push(text);
        Ok(())
    }

    async fn scrub_index(self: &Arc<Self>, report: &mut ScrubReport) -> Result<()> {
        let core = self.clone();
        let looked = self.world.blocking(move || core.index.check_pages()).await;
        let (mismatches, mended) = looked?;
        report.mended.extend(mended);
        let quiet = self.checkpointing.lock().await;
        let core = self.clone();
        let finish_check = move || core.index.finish_check(mismatches);
        let settled = self.world.blocking(finish_check).await;
        drop(quiet);
        let (lost, mended) = settled?;
        report.mended.extend(mended);
        if lost {
            let mut superblock = self.superblock.lock().await;
            superblock.flags |= FLAG_INDEX_LOST | FLAG_UNCONFIRMED;
            let stored = superblock.store(&self.disk).await;
            stored.map_err(|error| self.fail("writing its superblock", &error))?;
            let text = format!(
                "the index of NSD {} is damaged; rebuild it",
                self.identity.nsd
            );
            self.note_damage(1);
            // Opening the region again rebuilds the index.
            self.fail("being scrubbed", &"its index is damaged");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(())
    }

    async fn scrub_entry(
        &self,
        key: &Key,
        entry: &Arc<IndexEntry>,
        report: &mut ScrubReport,
    ) -> Result<()> {
        report.checked += 1;
        report.bytes += u64::from(entry.length);
        let found = self.check_entry(key, entry).await;
        if !self.is_still(key, entry).await? {
            return Ok(());
        }
        match found {
            Found::Good => {}
            Found::BadHeader(table) => {
                if self.rewrite_header(key, entry, &table).await? {
                    report.mended.push(format!("header of {key} rewritten"));
                }
            }
            Found::Damaged(why) => {
                tracing::warn!(nsd = self.identity.nsd.0, %key, why, "scrub found damage");
                self.note_damage(1);
                match key.named() {
                    Named::Blob(name) => report.damaged.push(name),
                    Named::Log(shard, number) => report.damaged_log.push((shard, number)),
                }
            }
        }
        let free = entry.runs().unwrap_or_default().iter().any(|run: &Run| {
            let state = self.state.lock();
            state.space.touches_free(*run)
        });
        if free && self.is_still(key, entry).await? {
            let text = format!("the space of {key} is marked as free");
            return Err(self.fail("being scrubbed", &text));
        }
        Ok(())
    }

    /// Whether a key still has this entry.
    async fn is_still(&self, key: &Key, entry: &IndexEntry) -> Result<bool> {
        let now = self.locate(key).await?;
        Ok(now.is_some_and(|now| now.is_same_as(entry)))
    }

    /// Keeps the runs of an entry from being reused, if the key still has it.
    async fn pin(&self, key: &Key, entry: &IndexEntry) -> Result<bool> {
        let mut part = IndexPart::default();
        loop {
            let wanted = {
                let mut state = self.state.lock();
                let wanted = state.wanted_keys(&[*key], part);
                if wanted.is_known() {
                    return Ok(state.pin(key, entry, wanted.known()));
                }
                wanted
            };
            let read = self.in_index(move || wanted.read()).await;
            part = read.map_err(|error| self.index_error(error))?;
        }
    }

    async fn check_entry(&self, key: &Key, entry: &IndexEntry) -> Found {
        let payload = match self.read_payload_bytes(entry).await {
            Ok(payload) => payload,
            Err(error) => return Found::Damaged(format!("can't be read: {error}")),
        };
        let good_header = match entry.runs() {
            None => entry.checksums.clone(),
            Some(_) => self.table_in_header(key, entry).await,
        };
        let table = match (&good_header, &entry.checksums) {
            (Some(table), _) | (None, Some(table)) => table.clone(),
            (None, None) => match self.table_from_payload(key, entry).await {
                Ok(table) => table,
                Err(why) => return Found::Damaged(why),
            },
        };
        if let Some(unit) = first_mismatch(key, 0, &payload, &table) {
            return Found::Damaged(format!("unit {unit} doesn't match its checksum"));
        }
        match good_header {
            Some(_) => Found::Good,
            None => Found::BadHeader(table),
        }
    }

    /// Rewrites the header from the index, unless the entry was removed.
    async fn rewrite_header(&self, key: &Key, entry: &IndexEntry, table: &[u32]) -> Result<bool> {
        let runs = entry.runs().expect("only extents have headers");
        if !self.pin(key, entry).await? {
            return Ok(false);
        }
        let mut block = AlignedBuffer::zeroed(header_units(entry.units()) as usize * UNIT);
        write_header(&mut block, self.stamp.region, key, entry, table);
        let offset = self.unit_offset(runs[0].unit);
        let written = self.disk.write_durable(offset, block.freeze()).await;
        self.state.lock().unpin(entry);
        written.map_err(|error| self.fail("mending a header", &error))?;
        Ok(true)
    }
}

/// Result of scrubbing one entry.
enum Found {
    Good,
    /// The payload is good; this is its checksum table.
    BadHeader(Arc<[u32]>),
    Damaged(String),
}
