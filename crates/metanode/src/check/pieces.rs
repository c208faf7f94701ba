//! What a check finds out about segments, summed up: what can't be read with the files in it, and
//! what lacks redundancy by NSD.

use crate::metanode::Metanode;
use crate::report::{CheckReport, FaultKind};
use model::{NsdId, Result};
use pool::{PieceCondition, PieceState};
use std::collections::BTreeMap;

/// Files that the fault names itself; the report has more.
const NAMED_IN_TEXT: usize = 5;

/// What is wrong with the segments that were looked at so far.
#[derive(Default)]
pub(super) struct Pieces {
    /// Segments that can't be read.
    unreadable: u64,
    /// Why the first of them can't be read.
    first_error: Option<String>,
    /// Pieces that lack, by NSD and what is wrong there: how many, and the first.
    lacking: BTreeMap<(NsdId, &'static str), (u64, String)>,
}

impl Pieces {
    /// Notes a segment that can't be read.
    pub(super) fn unreadable(&mut self, subject: &str, error: &model::Error) {
        self.unreadable += 1;
        self.first_error
            .get_or_insert_with(|| format!("{subject}: {error}"));
    }

    /// Notes a piece that isn't good where it should be.
    pub(super) fn lacking(&mut self, subject: &str, state: &PieceState) {
        let what = match state.condition {
            PieceCondition::Good => "good",
            PieceCondition::Absent => "missing",
            PieceCondition::Damaged => "damaged",
            PieceCondition::Unreachable => "out of reach",
        };
        let lacking = self.lacking.entry((state.nsd, what)).or_default();
        lacking.0 += 1;
        if lacking.0 == 1 {
            lacking.1 = format!("piece {} of {subject}", state.piece);
        }
    }

    /// Whether nothing is wrong.
    pub(super) fn is_empty(&self) -> bool {
        self.unreadable == 0 && self.lacking.is_empty()
    }

    /// Adds what another has found.
    pub(super) fn merge(&mut self, other: Pieces) {
        self.unreadable += other.unreadable;
        self.first_error = self.first_error.take().or(other.first_error);
        for (key, (count, first)) in other.lacking {
            let own = self.lacking.entry(key).or_insert((0, first));
            own.0 += count;
        }
    }
}

impl Metanode {
    /// One fault for all that can't be read, one for each NSD that lacks pieces.
    pub(super) async fn report_pieces(
        &self,
        report: &mut CheckReport,
        pieces: Pieces,
    ) -> Result<()> {
        self.name_unreadable().await?;
        if let Some(first) = &pieces.first_error {
            let data = self.unreadable_data();
            let text = format!(
                "{}. In all {} segments can't be read; the first: {first}",
                data.sentence(NAMED_IN_TEXT),
                pieces.unreadable
            );
            report.unreadable_segments = pieces.unreadable;
            report.unreadable_files = data.files;
            report.unreadable = data.names;
            report.fault(FaultKind::Data, text);
        }
        for ((nsd, what), (count, first)) in pieces.lacking {
            let place = if nsd == NsdId::NONE {
                "have no NSD".into()
            } else {
                format!("are {what} on NSD {nsd}")
            };
            let text = format!("{count} pieces {place}; the first: {first}");
            report.fault(FaultKind::Redundancy, text);
        }
        Ok(())
    }
}
