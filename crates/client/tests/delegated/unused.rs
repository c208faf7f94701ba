//! What is kept for files that a client doesn't make.

use super::Maker;
use crate::rig::run_patient as run;
use std::time::Duration;

/// Would be broken if the room for what a client could make stayed kept as long as its session lasts.
#[test]
fn a_client_that_makes_nothing_for_hours_gives_its_numbers_back() {
    run(9_968, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let reserved = || node.metanode.hosted().reserved_numbers();
        assert!(reserved() > 0);
        world.sleep(Duration::from_secs(3 * 3600)).await;
        assert_eq!(reserved(), 0);
        // It gets others when it makes files again.
        maker.become_alone().await;
        assert!(reserved() > 0);
        maker.client.close().await.unwrap();
        node.check_and_close().await;
    });
}
