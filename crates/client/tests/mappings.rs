//! Programs that map files on several nodes: what one has stored the others load, at every moment.

use crate::rig::pages::{PAGE, PageKernel};
use crate::rig::way::{Way, client_through};
use crate::rig::{self, Node, run_patient as run, storm_seeds};
use crate::sharing::{CELL, History, filled, values};
use client::{Allocate, Client};
use futures::future::join_all;
use model::InodeId;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use world::World;

const PAGES: usize = 6;
const CELLS_OF_PAGE: usize = PAGE / CELL;
const CELLS: usize = PAGES * CELLS_OF_PAGE;

/// Random work of one program: in a mapping, and past it.
async fn work(
    world: World,
    kernel: Arc<PageKernel>,
    number: u64,
    file: InodeId,
    history: Arc<Mutex<History>>,
) {
    let client = kernel.client.clone();
    let mut open = kernel.open(file, number.is_multiple_of(3)).await.unwrap();
    for step in 1..=120u64 {
        let draw = world.random_u64();
        let cell = (draw >> 8) as usize % CELLS;
        let (page, within) = ((cell / CELLS_OF_PAGE) as u64, cell % CELLS_OF_PAGE * CELL);
        let value = step << 56 | number << 32 | step;
        let (from, to) = ((cell * CELL) as u64, ((cell + 1) * CELL) as u64);
        match (draw >> 32) % 24 {
            0..8 => {
                let load = |bytes: &mut [u8]| {
                    let begun = history.lock().now();
                    let seen = values(&bytes[within..within + CELL]);
                    history.lock().saw(file, cell, &seen, begun);
                };
                kernel.touch(&open, page, false, load).await.unwrap();
            }
            8..14 if open.may_change => {
                let store = |bytes: &mut [u8]| {
                    let begun = history.lock().now();
                    bytes[within..within + CELL].copy_from_slice(&filled(value, 1));
                    history.lock().wrote(file, cell..cell + 1, value, begun);
                };
                kernel.touch(&open, page, true, store).await.unwrap();
            }
            14..16 => {
                let begun = history.lock().now();
                let asked = client.read(file, from, CELL);
                let bytes = kernel.past_pages(file, from, to, asked).await.unwrap();
                let mut bytes = bytes.concat();
                bytes.resize(CELL, 0);
                history.lock().saw(file, cell, &values(&bytes), begun);
            }
            16..18 => {
                let begun = history.lock().now();
                let data = filled(value, 1);
                let written = client.write(file, from, &data);
                kernel.past_pages(file, from, to, written).await.unwrap();
                history.lock().wrote(file, cell..cell + 1, value, begun);
            }
            18 => {
                let begun = history.lock().now();
                let punched = client.allocate(file, Allocate::Punch, from, CELL as u64);
                kernel.past_pages(file, from, to, punched).await.unwrap();
                history.lock().wrote(file, cell..cell + 1, 0, begun);
            }
            19 => {
                let may_change = draw >> 40 & 1 == 0;
                let next = kernel.open(file, may_change).await.unwrap();
                kernel.close(std::mem::replace(&mut open, next)).await;
            }
            20 => kernel.sync(file).await,
            21 => drop(client.get_attributes(file).await.unwrap()),
            _ => {
                let pause = Duration::from_millis(draw >> 40 & 0xff);
                world.sleep(pause).await;
            }
        }
    }
    kernel.close(open).await;
}

/// Three programs on each of three nodes. The first client is alone at first.
pub(crate) async fn storm(world: World, node: Node, faults: u64) {
    let file = rig::file(&node.client, "f").await;
    let zeros = vec![0; PAGES * PAGE];
    node.client.write(file, 0, &zeros).await.unwrap();
    let history = Arc::new(Mutex::new(History::default()));
    let clients: Arc<Mutex<Vec<Arc<Client>>>> = Arc::default();
    let nodes = (0..3u64).map(|number| {
        let (world, history, clients) = (world.clone(), history.clone(), clients.clone());
        let node = &node;
        async move {
            let client = match number {
                0 => node.client.clone(),
                _ => {
                    world.sleep(Duration::from_secs(number)).await;
                    let way = Way::new(&world, &node.metanode, faults);
                    way.slow_ms.store(5, Ordering::Relaxed);
                    client_through(node, &way).await
                }
            };
            clients.lock().push(client.clone());
            let kernel = PageKernel::before(node, &client);
            let works = (0..3).map(|program| {
                let number = 1 + number * 3 + program;
                work(world.clone(), kernel.clone(), number, file, history.clone())
            });
            join_all(works).await;
        }
    });
    join_all(nodes).await;
    history.lock().check();
    let clients = std::mem::take(&mut *clients.lock());
    for client in &clients {
        assert_eq!(client.losses().sessions, 0);
    }
    for client in clients {
        if client.session() != node.client.session() {
            client.close().await.unwrap();
        }
    }
    node.check_and_close().await;
}

#[test]
fn programs_load_from_mappings_what_others_stored_there_last() {
    for seed in 0..storm_seeds(12) {
        run(9_900 + seed, |world, node| storm(world, node, 0));
    }
}

#[test]
fn programs_load_from_mappings_what_others_stored_there_last_whatever_gets_lost() {
    for seed in 0..storm_seeds(6) {
        run(9_950 + seed, |world, node| storm(world, node, 3));
    }
}
