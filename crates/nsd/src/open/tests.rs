//! Openings of regions whose journal says what can't be.

use super::*;
use crate::checksum::UNIT;
use crate::entry::IndexEntry;
use crate::record::encode_group;
use crate::small::{BYTES, DISK, disk_of, formatted};
use model::nsd::LogPut;
use model::{EntryNumber, ShardEpoch, ShardId};
use world::sim::Simulation;

/// Would be broken if the header of a put were written to where another entry is, before it shows that the put can't be there.
#[test]
fn a_put_in_the_place_of_another_entry_is_refused_and_nothing_is_written_there() {
    let simulation = Simulation::new(1);
    let device = simulation.disk(DISK, BYTES);
    let forged = simulation.run(async |world: World| {
        let core = formatted(&world, disk_of(&world)).await;
        let (shard, number) = (ShardId(3), EntryNumber(1));
        let put = LogPut {
            shard,
            epoch: ShardEpoch(1),
            number,
            bytes: Bytes::from(vec![6; 100_000]),
        };
        core.clone().put_log(put).await.unwrap();
        core.checkpoint().await.unwrap();

        // What is there proves it, but for the header.
        let key = Key::log(shard, number);
        let there = core.locate(&key).await.unwrap().unwrap();
        let mut put = Record::Put {
            key,
            entry: Arc::new(IndexEntry {
                birth: there.birth + 1,
                ..(*there).clone()
            }),
            payload: Bytes::new(),
        };
        let head = core.state.lock().head;
        let group = encode_group(core.stamp, head, &mut [&mut put]);
        let written = core.disk.write_durable(core.ring.offset(head), group);
        written.await.unwrap();
        core.unit_offset(there.runs().unwrap()[0].unit)
    });
    let place = forged.finished();
    let before = device.content(place, UNIT);
    let opened = simulation.run(async |world: World| {
        let refused = open(&world, disk_of(&world)).await.map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        let text = refused.to_string();
        assert!(text.contains("over another entry"), "{text}");
    });
    opened.finished();
    assert!(device.content(place, UNIT) == before);
}
