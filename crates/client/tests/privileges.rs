//! What a client on another node asks before a file's bytes change: whether that takes privileges from it.

use crate::names::{chmod, far, make, messages};
use crate::rig::way::Which;
use crate::rig::{new_file, run_patient as run};
use model::{InodeId, Operation, Privileges};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BY_ROOT: Privileges = Privileges::DropCapabilities;
const BY_OTHERS: Privileges = Privileges::Drop { group: None };

/// Would be broken if a program waited for one answer after the other, or for one that nobody needs.
#[test]
fn the_privileges_that_a_write_takes_are_asked_for_at_the_same_time_and_no_others() {
    run(9_830, |world, node| async move {
        let (far, way) = far(&world, &node).await;
        let file = make(&node.client, InodeId::ROOT, "f", new_file()).await;
        let (may_differ, asked) = messages(&way, far.drop_privileges(file, BY_ROOT)).await;
        assert_eq!((may_differ.unwrap(), asked), (false, 1));

        let late: Which = |operation| matches!(operation, Operation::GetAttributes { .. });
        *way.late.lock() = Some(late);
        let dropping = {
            let far = Arc::clone(&far);
            async move { far.drop_privileges(file, BY_OTHERS).await }
        };
        let before = way.asked.load(Ordering::Relaxed);
        let dropping = world.spawn("a program", dropping);
        way.until_late().await;
        assert_eq!(way.asked.load(Ordering::Relaxed) - before, 2);
        *way.late.lock() = None;
        assert!(!dropping.await.unwrap());

        chmod(&node.client, file, 0o4755).await.unwrap();
        assert!(!far.drop_privileges(file, BY_ROOT).await.unwrap());
        let mode = async || node.client.get_attributes(file).await.unwrap().mode;
        assert_eq!(mode().await, 0o4755);
        assert!(far.drop_privileges(file, BY_OTHERS).await.unwrap());
        assert_eq!(mode().await, 0o755);
        far.close().await.unwrap();
        node.close().await;
    });
}
