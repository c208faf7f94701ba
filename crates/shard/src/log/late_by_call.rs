//! Requests of a former owner that reach an NSD of another node only after others took the shard
//! over.

use crate::rig::{SHARD, commit, loopback, machine, open, opened_nsd, power_on, value};
use model::call::Call;
use model::nsd::{AddressedRequest, NsdRequest};
use model::{EntryNumber, NsdId, Scheme};
use std::time::Duration;

const TWO: Scheme = Scheme::Replicate(2);

fn is_discard(call: &Call) -> bool {
    let request = call.decode::<AddressedRequest>();
    matches!(request, Ok((_, NsdRequest::LogDiscard { .. })))
}

/// An owner prepares a new member of its view, and the discard is held back past two take-overs.
#[test]
fn a_discard_from_before_two_take_overs_erases_nothing() {
    let machine = machine(31, TWO, 3);
    let faults = machine.faults();
    machine
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let first = open(opening.clone()).await.unwrap();
            commit(&first, 1, &[("a", Some("1"))]).await.unwrap();
            let view = first.log.view();
            let spare = (1..=3).map(NsdId).find(|nsd| !view.contains(nsd)).unwrap();
            let held = loopback(spare).hold(is_discard);
            // The view loses a member; the spare one is sealed, and its discard is on its way.
            faults.slow(&view[1].to_string(), Duration::from_secs(3600));
            commit(&first, 2, &[("a", Some("2"))]).await.unwrap();
            assert_eq!(first.log.view(), [view[0]]);
            // The others take the spare one into the view, without a held discard.
            let still = loopback(spare).hold(|_| false);
            faults.slow(&view[1].to_string(), Duration::from_secs(3600));
            let second = open(opening.clone()).await.unwrap();
            commit(&second, 3, &[("a", Some("3"))]).await.unwrap();
            let third = open(opening.clone()).await.unwrap();
            commit(&third, 4, &[("a", Some("4"))]).await.unwrap();
            assert!(third.log.view().contains(&spare));
            let spare_nsd = opened_nsd(spare);
            let before = spare_nsd
                .log_read(SHARD, EntryNumber(0), 1000)
                .await
                .unwrap();
            drop((held, still));
            world.sleep(Duration::from_secs(10)).await;
            let after = spare_nsd
                .log_read(SHARD, EntryNumber(0), 1000)
                .await
                .unwrap();
            assert!(!before.is_empty());
            assert!(
                after.starts_with(&before),
                "{} of {}",
                after.len(),
                before.len()
            );
            assert_eq!(value(&third, "a").await.as_deref(), Some("4"));
        })
        .finished();
}
