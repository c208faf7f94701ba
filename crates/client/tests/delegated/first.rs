//! The first files in directories that their client has just made.

use super::{Maker, ROOT, names_of};
use crate::names::{far, make, messages, new_directory};
use crate::rig::way::{client_through, next_on_another_node};
use crate::rig::{new_file, run_patient as run};
use client::Losses;
use futures::future::{join, join_all};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;
use testkit::inodes::name;

/// Would be broken if each directory had its first files made by the owner, one by one.
#[test]
fn the_second_file_in_a_directory_of_ones_own_asks_nobody() {
    run(10_200, |world, node| async move {
        let (client, way) = far(&world, &node).await;
        for text in ["d", "e"] {
            let directory = make(&client, ROOT, text, new_directory()).await;
            client.lookup_to_keep(ROOT, name(text)).await.unwrap();
            let both = (client.clone(), way.clone());
            let mut maker = Maker::at(&world, both, text, directory);
            let first = maker.make_in_place().await;
            // Its attributes, and what is looked for in it; and what it takes to make files.
            assert!((1..=10).contains(&first), "{first} messages");
            maker.make_some(20).await;
            maker.until_sent().await;
            assert_eq!(names_of(&node.client, directory).await, maker.names);
        }
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if a directory cost more than its making where no file follows.
#[test]
fn a_directory_without_files_is_made_with_one_message() {
    run(10_201, |world, node| async move {
        let (client, way) = far(&world, &node).await;
        client.lookup_to_keep(ROOT, name("none")).await.unwrap();
        for number in 0..20 {
            let text = format!("d{number}");
            let made = make(&client, ROOT, &text, new_directory());
            let (_, asked) = messages(&way, made).await;
            assert_eq!(asked, 1, "{text}");
        }
        world.sleep(Duration::from_secs(1)).await;
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if who has made a directory took it for empty, or for its own, when others have come to it first.
#[test]
fn who_has_made_a_directory_meets_what_others_have_made_in_it_first() {
    for (seed, files) in [(10_202, 1), (10_203, 30), (10_204, 300)] {
        run(seed, move |world, node| async move {
            let (client, way) = far(&world, &node).await;
            let directory = make(&client, ROOT, "d", new_directory()).await;
            client.lookup_to_keep(ROOT, name("d")).await.unwrap();
            let (other, other_way) = far(&world, &node).await;
            let mut first = Maker::at(&world, (other.clone(), other_way), "d", directory);
            for _ in 0..files {
                first.make_one().await;
            }
            // They needn't have been sent.
            let again = client.create(directory, name("n0"), new_file()).await;
            assert!(again.is_err(), "it is there");
            let mut second = Maker::at(&world, (client.clone(), way), "d", directory);
            second.names = first.names.clone();
            for _ in 0..30 {
                second.make_one().await;
                world.sleep(Duration::from_millis(20)).await;
            }
            second.until_sent().await;
            assert_eq!(names_of(&node.client, directory).await, second.names);
            let (shown, _) = client.get_attributes_to_keep(directory).await.unwrap();
            let seen = other.get_attributes(directory).await.unwrap();
            assert_eq!((seen.mtime, seen.ctime), (shown.mtime, shown.ctime));
            client.close().await.unwrap();
            other.close().await.unwrap();
            node.check_and_close().await;
        });
    }
}

/// Others come just while the first files are being prepared and made.
#[test]
fn programs_of_two_clients_that_begin_in_a_new_directory_at_once_lose_nothing() {
    for seed in 10_210..10_218 {
        run(seed, |world, node| async move {
            let (client, way) = far(&world, &node).await;
            let (other, other_way) = far(&world, &node).await;
            let directory = make(&client, ROOT, "d", new_directory()).await;
            client.lookup_to_keep(ROOT, name("d")).await.unwrap();
            for way in [&way, &other_way] {
                way.slow_ms.store(4, Ordering::Relaxed);
            }
            let programs = [&client, &client, &other].into_iter().zip(0_usize..);
            let made = join_all(programs.map(|(client, program)| {
                let world = world.clone();
                async move {
                    let begins = world.random_u64() % 30;
                    world.sleep(Duration::from_millis(begins)).await;
                    super::makes(client, directory, program, 0..10).await
                }
            }));
            let made = made.await.concat();
            for client in [&client, &other] {
                client.fsync(directory, false).await.unwrap();
            }
            let names: BTreeSet<_> = made.into_iter().map(|(text, _)| text).collect();
            for client in [&node.client, &client, &other] {
                assert_eq!(names_of(client, directory).await, names);
            }
            client.close().await.unwrap();
            other.close().await.unwrap();
            node.check_and_close().await;
        });
    }
}

/// The owner that is asked for all this ends meanwhile, and the next one grants nothing for a while.
#[test]
fn first_files_are_made_whoever_is_the_owner() {
    for (seed, after_ms) in [(10_220, 0), (10_221, 3), (10_222, 8), (10_223, 20)] {
        run(seed, move |world, node| async move {
            let (mut maker, map) = Maker::with_map(&world, &node).await;
            maker.until_sent().await;
            let directory = make(&maker.client, ROOT, "e", new_directory()).await;
            maker.client.lookup_to_keep(ROOT, name("e")).await.unwrap();
            maker.text = "e".to_owned();
            (maker.directory, maker.names) = (directory, BTreeSet::new());
            maker.way.slow_ms.store(5, Ordering::Relaxed);
            node.metanode.sync().await.unwrap();
            let way = maker.way.clone();
            let moving = async {
                world.sleep(Duration::from_millis(after_ms)).await;
                way.cut.store(true, Ordering::Relaxed);
                let (next, next_way) = next_on_another_node(&node).await;
                map.move_to(&next_way);
                (next, next_way)
            };
            let making = async {
                for _ in 0..12 {
                    maker.make_one().await;
                }
            };
            let ((next, next_way), ()) = join(moving, making).await;
            maker.until_sent().await;
            let other = client_through(&node, &next_way).await;
            assert_eq!(names_of(&other, directory).await, maker.names);
            assert_eq!(maker.client.losses(), Losses::default());
            maker.client.close().await.unwrap();
            other.close().await.unwrap();
            next.close().await.unwrap();
        });
    }
}
