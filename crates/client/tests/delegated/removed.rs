//! Files that a client looks at and removes one after the other in a directory that is delegated to it.

use super::Maker;
use crate::names::{chmod, far, kind_of, messages};
use crate::rig::run_patient as run;
use client::Found;
use futures::future::join_all;
use model::{ErrorKind, FileName};
use testkit::inodes::name;

fn nth(number: usize) -> FileName {
    name(&format!("n{number}"))
}

/// Looks at a file as a kernel does that removes it next. How many messages that takes.
async fn look_at(maker: &Maker, text: &FileName) -> u64 {
    let (client, directory) = (&maker.client, maker.directory);
    let looks = async {
        client.get_attributes_to_keep(directory).await.unwrap();
        client.lookup_to_keep(directory, text.clone()).await
    };
    let (found, asked) = messages(&maker.way, looks).await;
    assert!(matches!(found, Ok(Found::Entry(..))), "{text:?}: {found:?}");
    asked
}

/// Would be broken if a program that removes files waited for the owner twice with each: also to look at it.
#[test]
fn who_removes_all_files_of_a_directory_asks_for_little_but_that() {
    run(9_978, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        maker.make_some(200).await;
        maker.until_sent().await;
        let (client, directory) = (maker.client.clone(), maker.directory);
        let mut looked = 0;
        for number in 0..maker.names.len() {
            looked += look_at(&maker, &nth(number)).await;
            let removal = client.unlink(directory, nth(number));
            let (removed, asked) = messages(&maker.way, removal).await;
            removed.unwrap();
            assert_eq!(asked, 1, "{number}");
            let gone = client.lookup(directory, nth(number)).await;
            assert_eq!(kind_of(gone), ErrorKind::NotFound);
        }
        assert!(looked < 50, "{looked} messages");
        let left = node.client.read_directory(directory, 0, 10, false).await;
        assert!(left.unwrap().entries.is_empty());
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if nothing were known beside removals of this client, of which one is always under way here.
#[test]
fn programs_that_remove_files_of_one_directory_together_ask_for_little_but_that() {
    const FILES: usize = 200;
    const PROGRAMS: usize = 4;
    run(9_977, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        maker.make_some(FILES).await;
        maker.until_sent().await;
        let (client, directory) = (maker.client.clone(), maker.directory);
        let program = |first: usize| {
            let client = client.clone();
            async move {
                for number in (first..FILES).step_by(PROGRAMS) {
                    let found = client.lookup_to_keep(directory, nth(number)).await;
                    assert!(matches!(found, Ok(Found::Entry(..))), "{number}: {found:?}");
                    client.unlink(directory, nth(number)).await.unwrap();
                }
            }
        };
        let all = join_all((0..PROGRAMS).map(program));
        let (_, asked) = messages(&maker.way, all).await;
        assert!(asked < 300, "{asked} messages");
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if what is known of a file that nobody has looked at stayed known when others change it, or if the owner
/// were asked about what it hasn't been told.
#[test]
fn what_others_change_of_files_that_were_asked_about_ahead_is_seen_at_once() {
    run(9_979, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let (other, _) = far(&world, &node).await;
        maker.make_some(60).await;
        maker.until_sent().await;
        let told = maker.names.len() - 1;
        let (client, directory) = (maker.client.clone(), maker.directory);
        for number in told - 30..told - 27 {
            look_at(&maker, &nth(number)).await;
        }
        maker.make_some(20).await;
        let last = maker.names.len() - 1;
        look_at(&maker, &nth(told - 5)).await;
        let known = nth(told - 2);
        let look = client.lookup(directory, known.clone());
        let (found, asked) = messages(&maker.way, look).await;
        let found = found.unwrap();
        assert_eq!(asked, 0, "it was asked about");
        chmod(&other, found.inode, 0o600).await.unwrap();
        let found = client.lookup(directory, known).await.unwrap();
        assert_eq!(found.mode & 0o777, 0o600);
        for number in told - 10..=last {
            let found = client.lookup(directory, nth(number)).await.unwrap();
            let seen = other.get_attributes(found.inode).await.unwrap();
            assert_eq!(seen, found, "{number}");
        }
        let removed = nth(told - 3);
        other.unlink(directory, removed.clone()).await.unwrap();
        let gone = client.lookup(directory, removed).await;
        assert_eq!(kind_of(gone), ErrorKind::NotFound);
        for client in [client, other] {
            client.close().await.unwrap();
        }
        node.check_and_close().await;
    });
}
