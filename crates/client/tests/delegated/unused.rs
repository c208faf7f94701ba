//! What is kept for files that a client doesn't make.

use super::Maker;
use crate::rig::run_patient as run;
use model::Operation;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

fn gives_numbers_back(operation: &Operation) -> bool {
    let Operation::Reserve { inodes, data, .. } = operation else {
        return false;
    };
    (*inodes, *data) == (0, 0)
}

/// Would be broken if the room for what a client could make stayed kept as long as its session lasts.
#[test]
fn a_client_that_makes_nothing_for_hours_gives_its_numbers_back() {
    run(9_968, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let reserved = || node.metanode.hosted().reserved_numbers();
        assert!(reserved() > 0);
        world.sleep(3 * HOUR).await;
        assert_eq!(reserved(), 0);
        // It gets others when it makes files again.
        maker.become_alone().await;
        assert!(reserved() > 0);
        maker.client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if what can't be given back at its time stayed reserved as long as the session lasts.
#[test]
fn numbers_that_can_not_be_given_back_at_their_time_go_later() {
    run(9_969, |world, node| async move {
        let maker = Maker::new(&world, &node).await;
        let reserved = || node.metanode.hosted().reserved_numbers();
        *maker.way.keeps.lock() = Some(gives_numbers_back);
        world.sleep(3 * HOUR).await;
        assert!(reserved() > 0, "it was tried in vain");
        *maker.way.keeps.lock() = None;
        world.sleep(3 * HOUR).await;
        assert_eq!(reserved(), 0);
        maker.client.close().await.unwrap();
        node.check_and_close().await;
    });
}
