//! What a client on another node asks before a file's bytes change: whether that takes privileges from it.

use crate::names::{chmod, far, make, messages};
use crate::rig::way::Which;
use crate::rig::{new_file, run_patient as run};
use client::OpenFlags;
use model::operation::XattrMode;
use model::{ErrorKind, InodeId, Operation, Privileges};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

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

/// Would be broken if bytes that programs have stored in a mapping had the capabilities of those before for longer than a moment, if
/// those were forgotten that are set just then, or if the write-back waited for that: others may be waiting for its pages.
#[test]
fn stores_into_a_mapping_take_a_files_capabilities_soon() {
    run(9_835, |world, node| async move {
        let (far, way) = far(&world, &node).await;
        let file = make(&node.client, InodeId::ROOT, "f", new_file()).await;
        let write = OpenFlags {
            write: true,
            ..OpenFlags::default()
        };
        far.open(file, write).await.unwrap();
        let name = b"security.capability";
        for round in 0..3 {
            let set = node.client.set_xattr(file, name, b"raw", XattrMode::Set);
            set.await.unwrap();
            let late: Which = |operation| matches!(operation, Operation::GetXattr { .. });
            *way.late.lock() = Some(late);
            far.write_stored(file, round, b"stored").await.unwrap();
            way.until_late().await;
            let set = node.client.set_xattr(file, name, b"admin", XattrMode::Set);
            set.await.unwrap();
            far.write_stored(file, round, b"once more").await.unwrap();
            *way.late.lock() = None;
            world.sleep(Duration::from_secs(10)).await;
            let left = node.client.get_xattr(file, name).await.unwrap_err();
            assert_eq!(left.kind(), ErrorKind::NoSuchAttribute);
        }
        far.release(file).await;
        far.close().await.unwrap();
        node.close().await;
    });
}
