//! Fuzz targets: what comes over the admin socket, in both directions.

use super::stopping::{AskPart, ClusterStopped, StepTaken, StopCluster, StopPart, TakeStep};
use super::*;
use fuzzing::{Memory, ROUNDS, Seen, Source, fuzz, within};
use serde::de::DeserializeOwned;

/// A list of small things in JSON takes their room in memory, and three times that while it grows.
const JSON: Memory = Memory {
    fixed: 256 << 10,
    per_byte: 512,
};

/// A type of requests or answers; counts what was understood of changed bytes.
fn body<T: Serialize + DeserializeOwned>(input: &[u8], understood: &Seen) {
    let read = |bytes: &[u8]| {
        let read = within(JSON, bytes.len(), || serde_json::from_slice::<T>(bytes));
        let read = read.ok()?;
        understood.note();
        Some(serde_json::to_vec(&read).unwrap())
    };
    read(input);
    let mut source = Source::new(input);
    let Some(value) = source.value::<T>() else {
        return;
    };
    let bytes = serde_json::to_vec(&value).unwrap();
    assert_eq!(
        read(&bytes).as_ref(),
        Some(&bytes),
        "what was written is read"
    );
    read(&source.changed(&bytes));
}

macro_rules! targets {
    ($(fn $name:ident() for $type:ty;)*) => {$(
        #[test]
        fn $name() {
            let understood = Seen::default();
            fuzz!(ROUNDS / 4, |input: &[u8]| body::<$type>(input, &understood));
            understood.check(1, "bodies are understood");
        }
    )*};
}

targets! {
    fn any_body_is_a_wish_to_mount_or_refused() for MountRequest;
    fn any_body_is_a_wish_to_unmount_or_refused() for UnmountRequest;
    fn any_body_is_a_new_file_system_or_refused() for CreateFileSystem;
    fn any_body_is_a_change_of_a_node_or_refused() for ChangeNode;
    fn any_body_is_a_change_of_a_setting_or_refused() for ChangeSetting;
    fn any_body_is_a_change_of_nsds_or_refused() for ChangeNsds;
    fn any_body_is_a_change_of_a_pool_or_refused() for ChangePool;
    fn any_body_is_a_new_nsd_or_refused() for AddNsd;
    fn any_body_is_a_wish_for_a_join_token_or_refused() for MakeJoinToken;
    fn any_body_is_a_step_of_a_rotation_or_refused() for RotateKeys;
    fn any_body_is_a_wish_to_shut_down_or_refused() for Shutdown;
    fn any_body_is_a_wish_to_stop_the_cluster_or_refused() for StopCluster;
    fn any_body_is_a_step_of_a_stop_or_refused() for TakeStep;
    fn any_body_is_a_question_about_a_part_in_a_stop_or_refused() for AskPart;
    fn any_answer_is_a_step_that_was_taken_or_not_understood() for StepTaken;
    fn any_answer_is_a_part_in_a_stop_or_not_understood() for StopPart;
    fn any_answer_is_a_stopped_cluster_or_not_understood() for ClusterStopped;
    fn any_answer_is_a_refusal_or_not_understood() for Refusal;
    fn any_answer_is_a_progress_or_not_understood() for Progress;
    fn any_answer_is_a_status_or_not_understood() for Status;
    fn any_answer_is_a_view_of_the_cluster_or_not_understood() for ClusterView;
    fn any_answer_is_a_health_or_not_understood() for Health;
    fn any_answer_is_a_df_or_not_understood() for Df;
    fn any_answer_is_a_check_or_not_understood() for CheckResult;
    fn any_answer_is_a_repair_or_not_understood() for RepairStatus;
    fn any_answer_is_a_list_of_waits_or_not_understood() for Waits;
    fn any_answer_is_a_member_or_not_understood() for MemberLine;
    fn any_answer_is_a_pool_or_not_understood() for PoolLine;
    fn any_answer_is_an_nsd_or_not_understood() for NsdLine;
    fn any_answer_is_a_scrub_or_not_understood() for ScrubLine;
    fn any_answer_is_a_join_token_or_not_understood() for JoinTokenMade;
    fn any_answer_is_a_rotation_or_not_understood() for RotationView;
    fn any_answer_is_a_drain_or_not_understood() for Drained;
    fn any_answer_is_a_setting_or_not_understood() for SettingLine;
    fn any_answer_is_an_unmount_or_not_understood() for Unmounted;
    fn any_answer_is_an_end_or_not_understood() for Stopping;
    fn any_line_is_an_event_or_skipped() for EventLine;
}
