//! Other clients come to a directory while a client makes files in it itself: what a program was told is made is there for
//! them, whether its maker has sent it or not.

use super::{Maker, names_of};
use crate::names::{far, kind_of};
use crate::rig::{Node, new_file, run_patient as run, storm_seeds};
use client::Client;
use futures::future::join;
use model::{ErrorKind, FileName, InodeId};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;
use testkit::inodes::name;
use world::World;

/// Directories, one after the other. Each is new: nobody has wanted it lately, so it is delegated soon.
const ROUNDS: usize = 2 * Visit::ALL.len();
/// Files that are made in each once it is delegated.
const FILES: u64 = 20;
/// The longest pause after each of them, in milliseconds: several are made until the oldest is sent.
const PAUSE_MAX_MS: u64 = 20;
/// How long messages of their maker take at most, in milliseconds: recalls and what it sends overtake each other.
const SLOW_MS: u64 = 5;

/// What another client does when it comes.
#[derive(Clone, Copy, Debug)]
enum Visit {
    List,
    Lookup,
    Create,
    Unlink,
}

impl Visit {
    const ALL: [Self; 4] = [Self::List, Self::Lookup, Self::Create, Self::Unlink];

    /// Comes, and meets all files of which their maker's program was `told` before; nobody else removes any.
    async fn pay(self, client: &Client, directory: InodeId, told: &RefCell<Vec<String>>) {
        match self {
            Self::List => {
                let before = told.borrow().clone();
                let listed = names_of(client, directory).await;
                let missing = before.iter().filter(|text| !listed.contains(*text));
                let missing: Vec<_> = missing.collect();
                assert!(missing.is_empty(), "{missing:?} aren't listed");
            }
            Self::Lookup => {
                let found = client.lookup(directory, newest(told)).await;
                assert_eq!(found.unwrap().links, 1);
            }
            Self::Create => {
                let made = client.create(directory, newest(told), new_file()).await;
                assert_eq!(kind_of(made), ErrorKind::Exists);
            }
            Self::Unlink => {
                let text = newest(told);
                told.borrow_mut().pop();
                client.unlink(directory, text).await.unwrap();
            }
        }
    }
}

fn newest(told: &RefCell<Vec<String>>) -> FileName {
    let told = told.borrow();
    name(told.last().unwrap())
}

async fn pause(world: &World, most_ms: u64) {
    let pause = Duration::from_millis(world.random_u64() % (most_ms + 1));
    world.sleep(pause).await;
}

/// A client makes files in directories that are delegated to it. To each another one comes at some time meanwhile: one on a
/// third node, or that of the owner's node.
pub(crate) async fn storm(world: World, node: Node) {
    let (client, way) = far(&world, &node).await;
    let (other, _) = far(&world, &node).await;
    for round in 0..ROUNDS {
        let both = (client.clone(), way.clone());
        let mut maker = Maker::of(&world, both, &format!("d{round}")).await;
        let directory = maker.directory;
        let told: Vec<String> = maker.names.iter().cloned().collect();
        let told = RefCell::new(told);
        way.slow_ms.store(SLOW_MS, Ordering::Relaxed);
        let making = async {
            for _ in 0..FILES {
                maker.make_one().await;
                let text = format!("n{}", maker.names.len() - 1);
                told.borrow_mut().push(text);
                pause(&world, PAUSE_MAX_MS).await;
            }
        };
        let visit = Visit::ALL[round % Visit::ALL.len()];
        let visitor = [&other, &node.client][round / Visit::ALL.len()];
        let visiting = async {
            // About as long as the files take.
            pause(&world, FILES * PAUSE_MAX_MS / 2).await;
            visit.pay(visitor, directory, &told).await;
        };
        join(making, visiting).await;
        way.slow_ms.store(0, Ordering::Relaxed);
        maker.until_sent().await;
        let told: BTreeSet<String> = told.into_inner().into_iter().collect();
        assert_eq!(names_of(&node.client, directory).await, told);
    }
    client.close().await.unwrap();
    other.close().await.unwrap();
    node.check_and_close().await;
}

/// Would be broken if a delegation went back before its owner had all that programs were told is made.
#[test]
fn who_comes_to_a_directory_at_any_time_finds_what_its_maker_was_told_is_made() {
    for seed in 0..storm_seeds(8) {
        run(10_100 + seed, storm);
    }
}
