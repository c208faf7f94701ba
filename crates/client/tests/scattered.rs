//! Programs that read and write at random in a file that another client has written: soon they need nobody for it.

use crate::names::messages;
use crate::rig::way::{Way, client_through};
use crate::rig::{self, Node, run_patient as run};
use client::Client;
use model::InodeId;
use std::sync::Arc;
use std::time::Duration;
use world::World;

const PAGE: usize = 4096;
const PAGES: u64 = 1024;
/// Longer than uses and recalls count as recent.
const WHILE: Duration = Duration::from_millis(3_000);
/// Longer than an owner grants only what is required.
const CONTENDED: Duration = Duration::from_millis(1_500);

fn page(number: u64) -> u64 {
    number * 7_919 % PAGES * PAGE as u64
}

/// After so many writes the other one reads.
const READ_EVERY: u64 = 4;

async fn client(world: &World, node: &Node) -> (Arc<Client>, Arc<Way>) {
    let way = Way::new(world, &node.metanode, 0);
    (client_through(node, &way).await, way)
}

async fn use_page(client: &Client, file: InodeId, number: u64, writes: bool) {
    let bytes = vec![number as u8; PAGE];
    match writes {
        true => client.write(file, page(number), &bytes).await.unwrap(),
        false => {
            let read = rig::read(client, file, page(number), PAGE).await;
            assert_eq!(read, bytes, "page {number}");
        }
    }
}

#[test]
fn who_works_at_random_in_what_another_one_has_written_soon_has_it() {
    for writes in [false, true] {
        run(8_700, |world, node| async move {
            let ((one, _), (other, way)) =
                (client(&world, &node).await, client(&world, &node).await);
            let file = rig::file(&one, "f").await;
            for number in 0..PAGES {
                use_page(&one, file, number, true).await;
            }
            one.sync_all().await.unwrap();
            world.sleep(WHILE).await;
            for number in 0..64 {
                use_page(&other, file, number, writes).await;
            }
            world.sleep(CONTENDED).await;
            use_page(&other, file, 64, writes).await;
            let later = async {
                for number in 65..128 {
                    use_page(&other, file, number, writes).await;
                }
            };
            let ((), asked) = messages(&way, later).await;
            assert!(asked <= 8, "{asked} messages, writes: {writes}");
            // And nothing is lost on the way.
            for number in 0..PAGES {
                use_page(&one, file, number, false).await;
            }
            other.close().await.unwrap();
            one.close().await.unwrap();
            node.close().await;
        });
    }
}

/// A program that goes on writing at a file's end keeps that, while another one reads what it has written before.
#[test]
fn who_goes_on_writing_keeps_what_it_writes_while_others_read_the_rest() {
    run(8_701, |world, node| async move {
        let ((one, way), (other, _)) = (client(&world, &node).await, client(&world, &node).await);
        let file = rig::file(&one, "f").await;
        for number in 0..PAGES {
            use_page(&one, file, number, true).await;
        }
        world.sleep(WHILE).await;
        let end = PAGES * PAGE as u64;
        let mut asked = 0;
        for number in 0..400 {
            let write = one.write(file, end + number * 512, &[7; 512]);
            let (written, sent) = messages(&way, write).await;
            written.unwrap();
            // The first ones ask for what makes the file longer.
            asked += if number < 100 { 0 } else { sent };
            if number % READ_EVERY == 0 {
                use_page(&other, file, number, false).await;
            }
        }
        // Who reads takes the attributes, which the next write wants back. It takes no bytes that the writes need.
        let most = 2 * 300 / READ_EVERY + 8;
        assert!(asked <= most, "{asked} messages");
        other.close().await.unwrap();
        one.close().await.unwrap();
        node.close().await;
    });
}
