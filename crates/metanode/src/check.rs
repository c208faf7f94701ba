//! `fs check`: verifies the live file system and reports faults, changing nothing.

mod pieces;

use crate::background::Background;
use crate::check::pieces::Pieces;
use crate::files::FileNames;
use crate::host::{Host, SCAN_PAGE};
use crate::judging::{Judging, Standing};
use crate::progress::Progress;
use crate::report::{CheckOptions, CheckReport, FaultKind};
use crate::sessions::Decided;
use model::{GroupId, InodeId, Result, SegmentId, SegmentPlace};
use namespace::audit::{Audit, Report};
use namespace::{Key, Record, Table};
use pool::{Depth, PieceCondition};
use shard::Snapshot;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How often and at what interval an inode without names and holders is checked again: its release
/// may be in progress.
const ORPHAN_LOOKS: usize = 20;
const ORPHAN_PAUSE: Duration = Duration::from_millis(50);
/// Segments listed per step.
const STEP_SEGMENTS: usize = 512;

/// Result of scanning all records.
struct Scanned {
    audit: Report,
    names: u64,
    extents: u64,
    orphans: Vec<InodeId>,
    /// The inode for which each live segment was published.
    published: BTreeMap<SegmentId, InodeId>,
}

/// Looks at everything; changes nothing.
pub(crate) struct Check<'a> {
    host: &'a Host,
    judging: &'a Judging,
    background: &'a Background,
    names: FileNames,
}

impl<'a> Check<'a> {
    pub(crate) fn new(
        host: &'a Arc<Host>,
        judging: &'a Judging,
        background: &'a Background,
    ) -> Self {
        Self {
            host,
            judging,
            background,
            names: FileNames::new(host.clone()),
        }
    }

    /// Verifies the live file system: every extent readable and right, counters equal sums, names
    /// and inodes match, no orphan without a holder, no leak. Reads the records as of one commit
    /// while operations and background work continue. Apparent faults are checked again, so data
    /// removed or replaced meanwhile isn't reported.
    ///
    /// # Errors
    /// Only if the check itself couldn't continue; faults are in the report.
    pub(crate) async fn check(
        &self,
        options: CheckOptions,
        progress: &Progress,
    ) -> Result<CheckReport> {
        // Before the records are read: they don't contain later decisions.
        let swept = self.background.swept();
        let beyond = self.background.unreadable_beyond();
        progress.begin("reading names and inodes", "records", None);
        let scanned = scan(&self.host.shard().snapshot().await?, progress).await?;
        let mut report = CheckReport {
            inodes: scanned.audit.inodes,
            names: scanned.names,
            extents: scanned.extents,
            ..CheckReport::default()
        };
        let mut pieces = Pieces::default();
        self.report_records(&mut report, &scanned).await?;
        self.report_orphans(&mut report, &scanned).await?;
        let tables = self.host.shard().catalog().live_segments();
        let all = scanned.audit.live.iter().chain(&tables);
        let bytes = all.map(|place| u64::from(place.length)).sum();
        progress.begin("reading segments", "bytes", Some(bytes));
        for place in &scanned.audit.live {
            progress.add(u64::from(place.length));
            let inode = scanned.published.get(&place.segment);
            let subject = match inode {
                Some(inode) => format!("segment {} (written for inode {inode})", place.segment),
                None => format!("segment {}", place.segment),
            };
            let (mut own, mut own_pieces) = (CheckReport::default(), Pieces::default());
            self.check_segment(&mut own, &mut own_pieces, place, &subject, options)
                .await?;
            let is_live = (own.is_clean() && own_pieces.is_empty())
                || self.judging.is_live(place.segment).await?;
            take_in(&mut report, &mut pieces, (own, own_pieces), is_live);
        }
        self.check_tables(&mut report, &mut pieces, options, progress)
            .await?;
        // Segments with damaged records weren't read.
        if scanned.audit.finding_count == 0 {
            self.background.checked_all(beyond);
        }
        self.report_pieces(&mut report, pieces).await?;
        self.check_leaks(&mut report, &scanned, swept, progress)
            .await?;
        self.check_strangers(&mut report).await?;
        Ok(report)
    }

    async fn report_records(&self, report: &mut CheckReport, scanned: &Scanned) -> Result<()> {
        let findings = &scanned.audit.findings;
        let inodes: BTreeSet<InodeId> = findings.iter().filter_map(|it| it.inode).collect();
        let names = if inodes.is_empty() {
            BTreeMap::new()
        } else {
            self.names.names_of(&inodes).await?
        };
        for finding in findings {
            let kind = if finding.subject.starts_with("fileset") {
                FaultKind::Counter
            } else {
                FaultKind::Record
            };
            let name = finding.inode.and_then(|inode| names.get(&inode));
            let name = name.map_or(String::new(), |name| format!(" ({name})"));
            report.fault(kind, format!("{}{name} {}", finding.subject, finding.text));
        }
        report.more_faults += scanned.audit.finding_count - scanned.audit.findings.len() as u64;
        Ok(())
    }

    /// Reports inodes without names and holders, except those whose last close came after the scan
    /// or is in progress.
    async fn report_orphans(&self, report: &mut CheckReport, scanned: &Scanned) -> Result<()> {
        let mut suspects = scanned.orphans.clone();
        suspects.retain(|inode| !self.host.is_in_use(*inode));
        for _ in 0..ORPHAN_LOOKS {
            if suspects.is_empty() {
                return Ok(());
            }
            self.host.world().sleep(ORPHAN_PAUSE).await;
            for inode in std::mem::take(&mut suspects) {
                let is_there = self
                    .host
                    .shard()
                    .record(&Key::Orphan(inode))
                    .await?
                    .is_some();
                if is_there && !self.host.is_in_use(inode) {
                    suspects.push(inode);
                }
            }
        }
        for inode in suspects {
            report.fault(
                FaultKind::Orphan,
                format!("inode {inode} has no name and no holder"),
            );
        }
        Ok(())
    }

    async fn check_segment(
        &self,
        report: &mut CheckReport,
        pieces: &mut Pieces,
        place: &SegmentPlace,
        subject: &str,
        options: CheckOptions,
    ) -> Result<()> {
        report.segments += 1;
        match self.host.pool().read_whole(place).await {
            Ok(plain) => {
                report.bytes += plain.len() as u64;
                self.background.note_checked(place.segment, Ok(()));
            }
            // Removed during the check.
            Err(_) if !self.judging.is_live(place.segment).await? => return Ok(()),
            Err(error) => {
                self.background
                    .note_checked(place.segment, Err(error.kind()));
                pieces.unreadable(subject, &error);
            }
        }
        let depth = if options.deep {
            Depth::Bytes
        } else {
            Depth::Index
        };
        let states = match self.host.pool().verify(place, depth).await {
            Ok(states) => states,
            Err(error) => {
                report.fault(
                    FaultKind::Record,
                    format!("{subject} can't be in this pool: {error}"),
                );
                return Ok(());
            }
        };
        let has_good = |piece: u8| {
            states
                .iter()
                .any(|other| other.piece == piece && other.condition == PieceCondition::Good)
        };
        for state in states
            .iter()
            .filter(|state| state.condition != PieceCondition::Good)
        {
            // A moving slot has two NSDs: the old one may lack the piece, and so may the new one as
            // long as the old one has it.
            let is_moving = state.condition == PieceCondition::Absent && has_good(state.piece);
            if (state.is_wanted && !is_moving) || !has_good(state.piece) {
                pieces.lacking(subject, state);
            }
        }
        Ok(())
    }

    /// Checks the tree's tables. A table replaced during the check isn't a fault.
    async fn check_tables(
        &self,
        report: &mut CheckReport,
        pieces: &mut Pieces,
        options: CheckOptions,
        progress: &Progress,
    ) -> Result<()> {
        for place in self.host.shard().catalog().live_segments() {
            progress.add(u64::from(place.length));
            let mut own = CheckReport::default();
            let mut own_pieces = Pieces::default();
            let subject = format!("segment {} of the metadata's tables", place.segment);
            self.check_segment(&mut own, &mut own_pieces, &place, &subject, options)
                .await?;
            let tables = self.host.shard().catalog().live_segments();
            let is_live = tables.iter().any(|now| now.segment == place.segment);
            take_in(report, pieces, (own, own_pieces), is_live);
        }
        Ok(())
    }

    /// Reports blobs that nothing points at and that the last sweep should have deleted.
    async fn check_leaks(
        &self,
        report: &mut CheckReport,
        scanned: &Scanned,
        swept: Option<Decided>,
        progress: &Progress,
    ) -> Result<()> {
        let judge = self.judging.judge(self.judging.decided().await?).await?;
        let known: BTreeSet<SegmentId> = scanned
            .audit
            .live
            .iter()
            .chain(&scanned.audit.dead)
            .map(|place| place.segment)
            .collect();
        // Their number, and where the first is.
        let mut leaks: (u64, Option<String>) = (0, None);
        let groups: Vec<GroupId> = self.host.pool().map().all_groups().collect();
        progress.begin(
            "looking for lost space",
            "groups",
            Some(groups.len() as u64),
        );
        for group in groups {
            progress.add(1);
            let mut after = None;
            loop {
                let survey = self.host.pool().survey(group, after, STEP_SEGMENTS).await?;
                let mut suspects = BTreeSet::new();
                let all = survey.segments.iter();
                // Blobs of other families are their shards' business.
                for segment in all.filter(|segment| self.host.holds(segment.owner.family)) {
                    report.blobs += segment.present.len() as u64;
                    let id = segment.place.segment;
                    report.data_blobs += if judge.is_table(id) {
                        0
                    } else {
                        segment.present.len() as u64
                    };
                    if known.contains(&id) {
                        continue;
                    }
                    let is_leak = match self.judging.standing(&judge, segment).await? {
                        Standing::Garbage => swept.as_ref().is_some_and(|swept| swept.covers(id)),
                        Standing::Damaged => false,
                        _ => !judge.decided.may_have_begun(id.session),
                    };
                    if is_leak {
                        suspects.insert(id);
                    }
                }
                if !suspects.is_empty() {
                    let now = self.judging.decided().await?;
                    suspects.retain(|id| !judge.decided.began_until(&now, id.session));
                }
                // One that was just being deleted is gone now.
                let again = match suspects.is_empty() {
                    true => Vec::new(),
                    false => {
                        let again = self.host.pool().survey(group, after, STEP_SEGMENTS).await?;
                        again.segments
                    }
                };
                for segment in again {
                    let id = segment.place.segment;
                    if suspects.contains(&id) {
                        leaks.0 += 1;
                        leaks.1.get_or_insert_with(|| {
                            let nsds = segment.present.iter().map(|(_, nsd)| nsd.to_string());
                            format!("{id} on NSDs {}", nsds.collect::<Vec<_>>().join(", "))
                        });
                    }
                }
                after = survey.resume;
                if after.is_none() {
                    break;
                }
            }
        }
        if let (count, Some(first)) = leaks {
            let text = format!("nothing points at {count} segments; the first: {first}");
            report.fault(FaultKind::Leak, text);
        }
        Ok(())
    }

    /// Reports blobs on NSDs that aren't members of the blobs' group (any more), although the last
    /// survey should have deleted them.
    async fn check_strangers(&self, report: &mut CheckReport) -> Result<()> {
        let Some(before) = self.background.rid_of_strangers() else {
            return Ok(());
        };
        let strangers = self.background.strangers().await?;
        // Slots moved meanwhile: their previous NSDs are deleting pieces right now.
        if self.background.rid_of_strangers() != Some(before) {
            return Ok(());
        }
        for (nsd, group) in strangers {
            let text = format!("NSD {nsd} holds blobs of group {group}, which it left");
            report.fault(FaultKind::Leak, text);
        }
        Ok(())
    }
}

/// Adds the results for one segment; its faults only if it is still live.
fn take_in(
    report: &mut CheckReport,
    pieces: &mut Pieces,
    (own, own_pieces): (CheckReport, Pieces),
    is_live: bool,
) {
    report.segments += own.segments;
    report.bytes += own.bytes;
    if is_live {
        pieces.merge(own_pieces);
        own.faults
            .into_iter()
            .for_each(|fault| report.fault(fault.kind, fault.text));
    }
}

async fn scan(shard: &Snapshot, progress: &Progress) -> Result<Scanned> {
    let mut audit = Audit::new();
    let mut scanned = Scanned {
        audit: Report::default(),
        names: 0,
        extents: 0,
        orphans: Vec::new(),
        published: BTreeMap::new(),
    };
    for table in Table::ALL {
        let (from, to) = table.range();
        let mut walk = shard.walk(&from, &to);
        while !walk.is_done() {
            let page = shard.next(&mut walk, SCAN_PAGE).await?;
            progress.add(page.records.len() as u64);
            for damaged in &page.damaged {
                audit.add_damaged(damaged.key.as_ref(), &damaged.error);
            }
            for (key, record) in &page.records {
                audit.add_record(key, record);
                match (key, record) {
                    (Key::Name { .. }, Record::Name(name)) => {
                        scanned.names += u64::from(name.entry.is_some())
                    }
                    (Key::Extent { .. }, _) => scanned.extents += 1,
                    (Key::Orphan(inode), _) => scanned.orphans.push(*inode),
                    (Key::Segment(id), Record::Segment(segment)) => {
                        scanned.published.insert(*id, segment.inode);
                    }
                    _ => {}
                }
            }
        }
    }
    scanned.audit = audit.finish();
    Ok(scanned)
}
