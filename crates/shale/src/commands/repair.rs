//! Prints the daemon's answer to `shale repair status`.

use crate::{
    admin::RepairStatus,
    output::{bytes, say},
};
use std::process::ExitCode;

pub(super) fn repair(repair: &RepairStatus) -> ExitCode {
    say!(
        "{}: {} segments to do, {} done ({} pieces, {} written)",
        repair.state,
        repair.segments_to_do,
        repair.segments_done,
        repair.pieces_done,
        bytes(repair.bytes_done)
    );
    if !repair.reason.is_empty() {
        say!("{}", repair.reason);
    }
    ExitCode::SUCCESS
}
