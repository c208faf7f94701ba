//! Sums up a check's findings about segments: unreadable ones with their files, and missing
//! redundancy by NSD.

use crate::check::Check;
use crate::report::{CheckReport, FaultKind};
use model::{NsdId, Result};
use pool::{PieceCondition, PieceState};
use std::collections::BTreeMap;

/// Files named in the fault's text; the report has more.
const NAMED_IN_TEXT: usize = 5;

/// Faults of the segments examined so far.
#[derive(Default)]
pub(super) struct Pieces {
    /// Segments that can't be read.
    unreadable: u64,
    /// Why the first of them can't be read.
    first_error: Option<String>,
    /// Bad pieces by NSD and condition: their number, and the first one.
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

    /// Whether there are no faults.
    pub(super) fn is_empty(&self) -> bool {
        self.unreadable == 0 && self.lacking.is_empty()
    }

    /// Adds the findings of another.
    pub(super) fn merge(&mut self, other: Pieces) {
        self.unreadable += other.unreadable;
        self.first_error = self.first_error.take().or(other.first_error);
        for (key, (count, first)) in other.lacking {
            let own = self.lacking.entry(key).or_insert((0, first));
            own.0 += count;
        }
    }
}

impl Check<'_> {
    /// Reports one fault for all unreadable segments, and one for each NSD with bad pieces.
    pub(super) async fn report_pieces(
        &self,
        report: &mut CheckReport,
        pieces: Pieces,
    ) -> Result<()> {
        self.background.name_unreadable().await?;
        if let Some(first) = &pieces.first_error {
            let data = self.background.unreadable_data();
            let text = format!(
                "{}. In all {} segments can't be read; the first: {first}",
                data.sentence(NAMED_IN_TEXT),
                pieces.unreadable
            );
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
