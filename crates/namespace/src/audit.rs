//! Checks a family's records against each other: for `shale fs check` and for tests.
//!
//! An [`Audit`] is shown all records, in any order; it keeps sums, not records, and finally reports
//! contradictions. Memory: about 200 bytes per inode and segment.

mod circles;
mod damage;

use crate::audit::damage::Damage;
use crate::{Counters, Inode, Key, Record, Reserved};
use model::{
    DataId, Error, ExtentKind, FileKind, FilesetId, InodeId, InodeNumber, SegmentId, SegmentPlace,
    SessionId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Findings reported in full; further ones are only counted.
pub const FINDINGS_MAX: usize = 1000;

/// A contradiction between records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Its subject, as "inode 0:65".
    pub subject: String,
    /// The inode concerned.
    pub inode: Option<InodeId>,
    /// The contradiction.
    pub text: String,
}

/// The result of an audit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Contradictions, at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// All contradictions.
    pub finding_count: u64,
    /// Inodes, orphans included.
    pub inodes: u64,
    /// Inodes without names that their holders keep alive.
    pub orphans: u64,
    /// Data ids queued for reclaim.
    pub reclaims: u64,
    /// Sum of the sizes of regular files.
    pub logical: u128,
    /// Sum of allocated bytes.
    pub allocated: u128,
    /// Segments that extents point at: their blobs must exist.
    pub live: Vec<SegmentPlace>,
    /// Segments whose blobs may exist or not.
    pub dead: Vec<SegmentPlace>,
}

/// The part of an inode that is compared with other records.
struct Seen {
    kind: FileKind,
    links: u32,
    size: u64,
    allocated: u64,
    content: u64,
    extents: u64,
    inline_extents: u64,
    extents_end: u64,
    xattr_bytes: u64,
    entries: u64,
    parent: InodeNumber,
    data: DataId,
    cutting: bool,
    /// Unused numbers of a directory's run: next, end.
    run: (u64, u64),
}

#[derive(Default)]
struct NameSums {
    /// Names of the inode, and the directory of the last one.
    names: u32,
    kind: Option<FileKind>,
    directory: Option<InodeId>,
}

#[derive(Default)]
struct ExtentSums {
    extents: u64,
    inline: u64,
    // Twice the bits of the summands: damaged records must not overflow the check.
    bytes: u128,
    end: u64,
}

/// Collects records.
#[derive(Default)]
pub struct Audit {
    inodes: BTreeMap<InodeId, Seen>,
    counters: BTreeMap<FilesetId, Counters>,
    named: BTreeMap<InodeId, NameSums>,
    entries: BTreeMap<InodeId, (u64, u64)>,
    heads: BTreeMap<(InodeId, u64), (u8, u8)>,
    extents: BTreeMap<(FilesetId, DataId), ExtentSums>,
    overlaps: Vec<(FilesetId, DataId, u64)>,
    last_extent: Option<(FilesetId, DataId, u64)>,
    xattrs: BTreeMap<InodeId, u64>,
    pointed: BTreeMap<SegmentId, u128>,
    segments: BTreeMap<SegmentId, (u64, SegmentPlace)>,
    dead: BTreeMap<SegmentId, SegmentPlace>,
    orphans: BTreeSet<InodeId>,
    reclaims: BTreeMap<(FilesetId, DataId), (InodeId, bool)>,
    folds: BTreeSet<InodeId>,
    cuts: BTreeSet<InodeId>,
    reserved: Vec<(SessionId, FilesetId, Arc<Reserved>)>,
    wrong_kind: Vec<Key>,
    damage: Damage,
}

impl Audit {
    /// An audit without records.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Shows one record. Overlapping extents are found if extents come in key order.
    pub fn add_record(&mut self, key: &Key, record: &Record) {
        match (key, record) {
            (Key::Fileset(_), Record::Fileset(_))
            | (Key::Slot { .. }, Record::Slot(_))
            | (Key::Stream(_), Record::Stream(_))
            | (Key::Session(_), Record::Session(_)) => {}
            (Key::Reserved { session, fileset }, Record::Reserved(reserved)) => {
                self.reserved.push((*session, *fileset, reserved.clone()));
            }
            (Key::Counters(fileset), Record::Counters(counters)) => {
                self.counters.insert(*fileset, (**counters).clone());
            }
            (Key::Inode(id), Record::Inode(inode)) => {
                self.inodes.insert(*id, seen(inode));
            }
            (
                Key::Name {
                    directory,
                    position,
                },
                Record::Name(name),
            ) => self.see_name(*directory, *position, name),
            (Key::Extent { fileset, data, end }, Record::Extent(extent)) => {
                self.see_extent((*fileset, *data, *end), extent);
            }
            (Key::Xattr { inode, name }, Record::Xattr(value)) => {
                *self.xattrs.entry(*inode).or_default() += (name.len() + value.len()) as u64;
            }
            (Key::Segment(id), Record::Segment(segment)) => {
                self.segments.insert(*id, (segment.live, segment.place));
            }
            (Key::Dead(id), Record::Dead(dead)) => {
                self.dead.insert(*id, dead.place);
            }
            (Key::Orphan(id), Record::Orphan(_)) => {
                self.orphans.insert(*id);
            }
            (Key::Reclaim { fileset, data }, Record::Reclaim(reclaim)) => {
                let inode = InodeId::new(*fileset, reclaim.inode);
                self.reclaims
                    .insert((*fileset, *data), (inode, reclaim.xattrs));
            }
            (Key::Fold(id), Record::Mark) => {
                self.folds.insert(*id);
            }
            (Key::Cut(id), Record::Mark) => {
                self.cuts.insert(*id);
            }
            (key, _) => self.wrong_kind.push(key.clone()),
        }
    }

    /// Shows a record that can't be decoded; its key may be unknown. Contradictions that it could
    /// explain aren't blamed on other records.
    pub fn add_damaged(&mut self, key: Option<&Key>, error: &Error) {
        self.damage.see(key, error);
    }

    /// Returns the contradictions and the sums.
    #[must_use]
    pub fn finish(self) -> Report {
        let mut report = Report {
            inodes: self.inodes.len() as u64,
            orphans: self.orphans.len() as u64,
            reclaims: self.reclaims.len() as u64,
            logical: self
                .inodes
                .values()
                .filter(|seen| seen.kind == FileKind::File)
                .map(|seen| u128::from(seen.size))
                .sum(),
            allocated: self
                .inodes
                .values()
                .map(|seen| u128::from(seen.allocated))
                .sum(),
            live: self.segments.values().map(|(_, place)| *place).collect(),
            dead: self.dead.values().copied().collect(),
            ..Report::default()
        };
        self.damage.tell(&mut report);
        for key in &self.wrong_kind {
            report.find(format!("{key:?}"), "holds a record of another kind".into());
        }
        self.check_inodes(&mut report);
        self.check_names(&mut report);
        self.check_circles(&mut report);
        self.check_marks(&mut report);
        self.check_data(&mut report);
        self.check_segments(&mut report);
        self.check_counters(&mut report);
        self.check_numbers(&mut report);
        self.check_reserved(&mut report);
        report
    }

    fn see_name(&mut self, directory: InodeId, position: u64, name: &crate::Name) {
        let head = self.heads.entry((directory, position >> 8)).or_default();
        let ordinal = (position & 0xff) as u8;
        head.1 = head.1.max(ordinal);
        if ordinal == 0 {
            head.0 = name.highest;
        }
        let sums = self.entries.entry(directory).or_default();
        let Some(entry) = &name.entry else { return };
        sums.0 += 1;
        sums.1 += u64::from(entry.kind == FileKind::Directory);
        let named = self
            .named
            .entry(InodeId::new(directory.fileset(), entry.inode))
            .or_default();
        named.names += 1;
        named.kind = Some(entry.kind);
        named.directory = Some(directory);
    }

    fn see_extent(
        &mut self,
        (fileset, data, end): (FilesetId, DataId, u64),
        extent: &model::Extent,
    ) {
        if extent.end() != end {
            self.wrong_kind.push(Key::Extent { fileset, data, end });
        }
        if let Some(last) = self.last_extent.replace((fileset, data, end))
            && (last.0, last.1) == (fileset, data)
            && last.2 > extent.offset
        {
            self.overlaps.push((fileset, data, extent.offset));
        }
        let sums = self.extents.entry((fileset, data)).or_default();
        sums.extents += 1;
        sums.bytes += u128::from(extent.length);
        sums.end = sums.end.max(end);
        match &extent.kind {
            ExtentKind::Inline(_) => sums.inline += 1,
            ExtentKind::Data { place, .. } => {
                *self.pointed.entry(place.segment).or_default() += u128::from(extent.length)
            }
            ExtentKind::Reserved => {}
        }
    }

    /// Whether no such inode exists, not even one that can't be decoded.
    fn is_missing(&self, id: InodeId) -> bool {
        !self.inodes.contains_key(&id) && !self.damage.hides(&Key::Inode(id))
    }

    fn check_inodes(&self, report: &mut Report) {
        for (id, inode) in &self.inodes {
            let mut wrong = |text: String| report.find_inode(*id, text);
            let named = self.named.get(id);
            let names = named.map_or(0, |sums| sums.names);
            let (entries, subdirectories) = self.entries.get(id).copied().unwrap_or_default();
            let is_root = inode.kind == FileKind::Directory && inode.parent == id.number();
            if inode.entries != entries {
                wrong(format!(
                    "records {} entries, but has {entries} names",
                    inode.entries
                ));
            }
            let links = match (inode.kind, names, is_root) {
                (FileKind::Directory, 0, false) => 0,
                (FileKind::Directory, _, _) => 2 + subdirectories,
                _ => u64::from(names),
            };
            if u64::from(inode.links) != links {
                wrong(format!("records {} links, but has {links}", inode.links));
            }
            if let Some(named) = named {
                if named.kind != Some(inode.kind) {
                    wrong("its name gives another type".into());
                }
                if inode.kind == FileKind::Directory
                    && (names > 1 || named.directory.map(InodeId::number) != Some(inode.parent))
                {
                    wrong(
                        "is a directory with several names, or with one outside its parent".into(),
                    );
                }
            }
            if (inode.links == 0) != self.orphans.contains(id) {
                wrong(format!(
                    "records {} links, which contradicts its orphan record or the lack of one",
                    inode.links
                ));
            }
            let empty = ExtentSums::default();
            let sums = self
                .extents
                .get(&(id.fileset(), inode.data))
                .unwrap_or(&empty);
            if sums.extents != inode.extents || sums.inline != inode.inline_extents {
                wrong(format!(
                    "records {} extents, but has {}",
                    inode.extents, sums.extents
                ));
            }
            let held = sums.bytes + u128::from(inode.content);
            if held != u128::from(inode.allocated) {
                wrong(format!(
                    "records {} allocated bytes, but holds {held}",
                    inode.allocated
                ));
            }
            if sums.end > inode.extents_end || (inode.content > 0 && inode.extents > 0) {
                wrong("has extents where it should have none".into());
            }
            if self.xattrs.get(id).copied().unwrap_or(0) != inode.xattr_bytes {
                wrong("records the wrong number of bytes of extended attributes".into());
            }
            if self.folds.contains(id) != (inode.inline_extents > 0)
                || self.cuts.contains(id) != inode.cutting
            {
                wrong("its fold or cut mark is missing or superfluous".into());
            }
        }
    }

    fn check_names(&self, report: &mut Report) {
        for id in self.named.keys().filter(|id| self.is_missing(**id)) {
            report.find_inode(*id, "has names but doesn't exist".into());
        }
        for directory in self.entries.keys().filter(|id| self.is_missing(**id)) {
            report.find_directory(*directory, "has entries but doesn't exist".into());
        }
        for ((directory, hash), (highest, seen)) in &self.heads {
            if highest != seen {
                let text = format!(
                    "the head of hash {hash:x} gives {highest} as the highest ordinal, but {seen} is"
                );
                report.find_directory(*directory, text);
            }
        }
    }

    fn check_marks(&self, report: &mut Report) {
        for id in self.orphans.iter().chain(&self.folds).chain(&self.cuts) {
            if self.is_missing(*id) {
                report.find_inode(*id, "is marked but doesn't exist".into());
            }
        }
    }

    fn check_data(&self, report: &mut Report) {
        let used: BTreeSet<(FilesetId, DataId)> = self
            .inodes
            .iter()
            .map(|(id, inode)| (id.fileset(), inode.data))
            .collect();
        for (fileset, data) in self.extents.keys() {
            let queued = Key::Reclaim {
                fileset: *fileset,
                data: *data,
            };
            if !used.contains(&(*fileset, *data))
                && !self.reclaims.contains_key(&(*fileset, *data))
                && !self.damage.hides(&queued)
                && !self.damage.hides_inodes_of(*fileset)
            {
                report.find(
                    format!("data id {data}"),
                    "has extents, but belongs to no inode and no reclaim record".into(),
                );
            }
        }
        for (fileset, data) in self.reclaims.keys().filter(|key| used.contains(*key)) {
            report.find(
                format!("data id {data} of fileset {fileset}"),
                "is being reclaimed while in use".into(),
            );
        }
        for (_, data, offset) in &self.overlaps {
            report.find(
                format!("data id {data}"),
                format!("extents overlap at byte {offset}"),
            );
        }
        let going: BTreeSet<InodeId> = self
            .reclaims
            .values()
            .filter(|(_, xattrs)| *xattrs)
            .map(|(inode, _)| *inode)
            .collect();
        for id in self
            .xattrs
            .keys()
            .filter(|id| self.is_missing(**id) && !going.contains(*id))
        {
            report.find_inode(*id, "has extended attributes but doesn't exist".into());
        }
    }

    fn check_segments(&self, report: &mut Report) {
        for (id, bytes) in &self.pointed {
            match self.segments.get(id) {
                None if self.damage.hides(&Key::Segment(*id)) => {}
                None => report.find(
                    format!("segment {id}"),
                    format!("{bytes} bytes refer to it, but it has no segment record"),
                ),
                Some((live, _)) if u128::from(*live) != *bytes => {
                    report.find(
                        format!("segment {id}"),
                        format!("records {live} live bytes, but {bytes} refer to it"),
                    );
                }
                Some(_) => {}
            }
            if self.dead.contains_key(id) {
                report.find(
                    format!("segment {id}"),
                    "is on the dead list, but extents refer to it".into(),
                );
            }
        }
        for id in self
            .segments
            .keys()
            .filter(|id| !self.pointed.contains_key(*id))
        {
            report.find(
                format!("segment {id}"),
                "has a segment record, but no extent refers to it".into(),
            );
        }
    }

    /// Numbers in directories' runs must be unused, and runs must not overlap.
    fn check_numbers(&self, report: &mut Report) {
        let mut runs: Vec<(InodeId, u64, InodeId)> = Vec::new();
        for (id, inode) in &self.inodes {
            let (next, end) = inode.run;
            if next >= end || self.damage.hides(&Key::Counters(id.fileset())) {
                continue;
            }
            let counters = self.counters.get(&id.fileset());
            if counters.is_none_or(|counters| counters.next_inode < end) {
                report.find_inode(
                    *id,
                    "has a run of inode numbers that was never handed out".into(),
                );
                continue;
            }
            runs.push((InodeId::new(id.fileset(), InodeNumber(next)), end, *id));
        }
        runs.sort_unstable();
        let mut last: Option<(FilesetId, u64)> = None;
        for (first, end, id) in runs {
            if last.is_some_and(|(fileset, last)| {
                fileset == first.fileset() && last > first.number().0
            }) {
                report.find_inode(
                    id,
                    "shares a run of inode numbers with another directory".into(),
                );
            }
            last = Some((first.fileset(), end));
            let behind = InodeId::new(first.fileset(), InodeNumber(end - 1));
            if let Some((other, _)) = self.inodes.range(first..=behind).next() {
                let text = format!("could still hand out the number of inode {other}");
                report.find_inode(id, text);
            }
        }
    }

    /// Reserved numbers must be handed out and unused.
    fn check_reserved(&self, report: &mut Report) {
        for (session, fileset, reserved) in &self.reserved {
            if self.damage.hides(&Key::Counters(*fileset)) {
                continue;
            }
            let counters = self.counters.get(fileset);
            let subject = || format!("session {session}");
            for run in &reserved.inodes {
                if counters.is_none_or(|counters| counters.next_inode < run.end) {
                    let text = "has reserved inode numbers that were never handed out";
                    report.find(subject(), text.into());
                    continue;
                }
                let number = |number| InodeId::new(*fileset, InodeNumber(number));
                let used = self.inodes.range(number(run.next)..=number(run.end - 1));
                for (inode, _) in used.take(1) {
                    let text = format!("could still use the number of inode {inode}");
                    report.find(subject(), text);
                }
            }
            for run in &reserved.data {
                if counters.is_none_or(|counters| counters.next_data < run.end) {
                    let text = "has reserved data ids that were never handed out";
                    report.find(subject(), text.into());
                }
            }
        }
    }

    fn check_counters(&self, report: &mut Report) {
        let mut sums: BTreeMap<FilesetId, (u64, u128, u128)> = BTreeMap::new();
        for (id, inode) in &self.inodes {
            let sum = sums.entry(id.fileset()).or_default();
            sum.0 += 1;
            if inode.kind == FileKind::File {
                sum.1 += u128::from(inode.size);
            }
            sum.2 += u128::from(inode.allocated);
            if self.damage.hides(&Key::Counters(id.fileset())) {
                continue;
            }
            let next = self
                .counters
                .get(&id.fileset())
                .map_or(0, |counters| counters.next_inode);
            if id.number().0 >= next {
                report.find_inode(*id, "has a number that was never handed out".into());
            }
        }
        for (fileset, counters) in &self.counters {
            let sum = sums.remove(fileset).unwrap_or_default();
            let said = (counters.inodes, counters.logical, counters.allocated);
            if said != sum && !self.damage.hides_inodes_of(*fileset) {
                let text = format!(
                    "counts (inodes, logical, allocated) {said:?}, but the sums are {sum:?}"
                );
                report.find(format!("fileset {fileset}"), text);
            }
        }
        let is_hidden = |fileset: &&FilesetId| self.damage.hides(&Key::Counters(**fileset));
        for fileset in sums.keys().filter(|fileset| !is_hidden(fileset)) {
            report.find(
                format!("fileset {fileset}"),
                "has inodes but no counters".into(),
            );
        }
    }
}

impl Report {
    fn find(&mut self, subject: String, text: String) {
        self.add(subject, None, text);
    }

    fn find_inode(&mut self, inode: InodeId, text: String) {
        self.add(format!("inode {inode}"), Some(inode), text);
    }

    fn find_directory(&mut self, inode: InodeId, text: String) {
        self.add(format!("directory {inode}"), Some(inode), text);
    }

    fn add(&mut self, subject: String, inode: Option<InodeId>, text: String) {
        self.finding_count += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding {
                subject,
                inode,
                text,
            });
        }
    }
}

fn seen(inode: &Inode) -> Seen {
    Seen {
        kind: inode.kind,
        links: inode.links,
        size: inode.size,
        allocated: inode.allocated,
        content: if inode.kind == FileKind::File {
            inode.content.len() as u64
        } else {
            0
        },
        extents: inode.extents,
        inline_extents: inode.inline_extents,
        extents_end: inode.extents_end,
        xattr_bytes: u64::from(inode.xattr_bytes),
        entries: inode.entries,
        parent: inode.parent,
        data: inode.data,
        cutting: inode.cutting_from.is_some(),
        run: (inode.run_next, inode.run_end),
    }
}
