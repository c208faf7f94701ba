//! Programs that map files on several nodes: what one has stored the others load, at every moment.

use crate::rig::way::{Way, client_through};
use crate::rig::{self, Node, run_patient as run, storm_seeds};
use crate::sharing::{CELL, History, filled, values};
use client::{Allocate, Client};
use futures::future::{join, join_all};
use model::{ErrorKind, InodeId};
use parking_lot::Mutex;
use simkernel::{PAGE, PageKernel};
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
            20 => kernel.sync(file).await.unwrap(),
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
            let kernel = PageKernel::before(&client);
            let works = (0..3).map(|program| {
                let number = 1 + number * 3 + program;
                work(world.clone(), kernel.clone(), number, file, history.clone())
            });
            join_all(works).await;
            assert_eq!(kernel.lost.load(Ordering::Relaxed), 0);
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

/// Its page is changed and not written back when others get the bytes.
#[test]
fn what_a_node_that_lost_its_session_has_in_mappings_goes_and_is_not_written_back() {
    run(9_990, |world, node| async move {
        let here = &node.client;
        let file = rig::file(here, "f").await;
        here.write(file, 0, &[1; 2 * PAGE]).await.unwrap();
        here.fsync(file, false).await.unwrap();
        let way = Way::new(&world, &node.metanode, 0);
        let cut = client_through(&node, &way).await;
        let kernel = PageKernel::before(&cut);
        let open = kernel.open(file, true).await.unwrap();
        kernel.fill_with(&open, 0..2, 2).await;
        way.cut.store(true, Ordering::Relaxed);
        here.write(file, 0, &[3; PAGE]).await.unwrap();
        way.cut.store(false, Ordering::Relaxed);
        let begun = world.now();
        while kernel.has(file, 0) || kernel.has(file, 1) {
            assert!(world.now() - begun < Duration::from_secs(60));
            world.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(cut.losses().sessions, 1);
        assert_eq!(kernel.lost.load(Ordering::Relaxed), 2);
        let first = |bytes: &mut [u8]| bytes[0];
        let seen = kernel.touch(&open, 0, false, first).await;
        assert_eq!(seen.unwrap_err().kind(), ErrorKind::SessionEnded);
        kernel.close(open).await;
        // Who opens it again sees what there is.
        let open = kernel.open(file, true).await.unwrap();
        for (page, value) in [(0, 3), (1, 1)] {
            let seen = kernel.touch(&open, page, false, first).await;
            assert_eq!(seen.unwrap(), value, "page {page}");
        }
        kernel.close(open).await;
        cut.close().await.unwrap();
        assert!(rig::read(here, file, 0, 2 * PAGE).await == [[3; PAGE], [1; PAGE]].concat());
        node.check_and_close().await;
    });
}

/// The second of two kernels of a client has a page that the first one asks for while others want it.
#[test]
fn each_kernel_of_a_client_drops_what_others_want() {
    run(9_991, |world, node| async move {
        let here = &node.client;
        let file = rig::file(here, "f").await;
        here.write(file, 0, &[1; 2 * PAGE]).await.unwrap();
        let way = Way::new(&world, &node.metanode, 0);
        let far = client_through(&node, &way).await;
        let kernels = [(); 2].map(|()| PageKernel::before(&far));
        let mut opens = Vec::new();
        for kernel in &kernels {
            let open = kernel.open(file, false).await.unwrap();
            let load = |bytes: &mut [u8]| assert_eq!(bytes[0], 1);
            for page in 0..2 {
                kernel.touch(&open, page, false, load).await.unwrap();
            }
            opens.push(open);
        }
        for value in 2..20 {
            let bytes = [value; 2 * PAGE];
            let written = here.write(file, 0, &bytes);
            let loads = async {
                let page = u64::from(value) % 2;
                kernels[0]
                    .touch(&opens[0], page, false, |bytes| bytes[0])
                    .await
            };
            let (written, _) = join(written, loads).await;
            written.unwrap();
            for (kernel, open) in kernels.iter().zip(&opens) {
                for page in 0..2 {
                    let seen = kernel.touch(open, page, false, |bytes| bytes[0]).await;
                    assert_eq!(seen.unwrap(), value, "page {page}");
                }
            }
        }
        for (kernel, open) in kernels.iter().zip(opens) {
            kernel.close(open).await;
        }
        far.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// In opposite orders, so that each is asked for pages while it asks for others.
#[test]
fn kernels_that_want_each_others_pages_wait_for_no_deadline() {
    for seed in 0..storm_seeds(12) {
        run(9_960 + seed, |world, node| async move {
            let file = rig::file(&node.client, "f").await;
            node.client
                .write(file, 0, &[0; PAGES * PAGE])
                .await
                .unwrap();
            let mut kernels = Vec::new();
            for _ in 0..2 {
                let way = Way::new(&world, &node.metanode, 0);
                let client = client_through(&node, &way).await;
                kernels.push((PageKernel::before(&client), client));
            }
            let works = kernels.iter().enumerate().map(|(number, (kernel, _))| {
                let world = &world;
                async move {
                    let open = kernel.open(file, true).await.unwrap();
                    for step in 0..200u64 {
                        let page = match number {
                            0 => step % PAGES as u64,
                            _ => PAGES as u64 - 1 - step % PAGES as u64,
                        };
                        let begun = world.now();
                        let store = |bytes: &mut [u8]| bytes[number] = step as u8;
                        kernel.touch(&open, page, true, store).await.unwrap();
                        assert!(world.now() - begun < Duration::from_secs(3));
                    }
                    kernel.close(open).await;
                }
            });
            join_all(works).await;
            for (_, client) in kernels {
                client.close().await.unwrap();
            }
            node.check_and_close().await;
        });
    }
}

/// Would be broken if readers of pages that are going had all places that the kernel needs to write them back.
#[test]
fn pages_go_although_many_programs_ask_for_them_again() {
    for seed in 0..storm_seeds(4) {
        run(9_980 + seed, |world, node| async move {
            let here = &node.client;
            let file = rig::file(here, "f").await;
            here.write(file, 0, &[1; 128 * PAGE]).await.unwrap();
            let way = Way::new(&world, &node.metanode, 0);
            let far = client_through(&node, &way).await;
            let kernel = PageKernel::before(&far);
            let open = kernel.open(file, true).await.unwrap();
            kernel.fill_with(&open, 0..128, 2).await;
            let begun = world.now();
            let written = async {
                here.write(file, 0, &[3; 128 * PAGE]).await.unwrap();
                world.now() - begun
            };
            let loads = (0..128u64).map(|page| {
                let (kernel, open, world) = (&kernel, &open, &world);
                async move {
                    for _ in 0..40 {
                        kernel
                            .touch(open, page, false, |bytes| bytes[0])
                            .await
                            .unwrap();
                        world.sleep(Duration::from_millis(10)).await;
                    }
                }
            });
            let (took, _) = join(written, join_all(loads)).await;
            assert!(took < Duration::from_secs(4), "{took:?}");
            kernel.close(open).await;
            far.close().await.unwrap();
            node.check_and_close().await;
        });
    }
}

/// Would be broken if a kernel had only so long for all that it writes back.
#[test]
fn what_a_kernel_writes_back_for_long_is_not_lost() {
    run(9_992, |world, node| async move {
        const MANY: usize = 2_000;
        let here = &node.client;
        let file = rig::file(here, "f").await;
        here.write(file, 0, &vec![1; MANY * PAGE]).await.unwrap();
        let way = Way::new(&world, &node.metanode, 0);
        let far = client_through(&node, &way).await;
        let kernel = PageKernel::before(&far);
        let open = kernel.open(file, true).await.unwrap();
        kernel.fill_with(&open, 0..MANY as u64, 2).await;
        // Quick ones first, so that a notice has many of the others.
        let clean = MANY as u64..MANY as u64 + 4_000;
        for page in clean {
            kernel.touch(&open, page, false, |_| ()).await.unwrap();
        }
        here.append(file, &[3]).await.unwrap();
        assert_eq!(kernel.lost.load(Ordering::Relaxed), 0);
        assert!(rig::read(here, file, 0, MANY * PAGE).await == vec![2; MANY * PAGE]);
        kernel.close(open).await;
        far.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Its tokens had run out, so it waits for new ones; then somebody wants its page, and waits for it.
#[test]
fn a_write_back_that_waits_for_tokens_goes_on_when_its_page_must_go() {
    run(9_993, |world, node| async move {
        let here = &node.client;
        let file = rig::file(here, "f").await;
        here.write(file, 0, &[1; 2 * PAGE]).await.unwrap();
        here.fsync(file, false).await.unwrap();
        let way = Way::new(&world, &node.metanode, 0);
        let far = client_through(&node, &way).await;
        let kernel = PageKernel::before(&far);
        let open = kernel.open(file, true).await.unwrap();
        kernel.fill_with(&open, 0..1, 2).await;
        way.cut.store(true, Ordering::Relaxed);
        world.sleep(Duration::from_millis(6_100)).await;
        let others = async {
            world.sleep(Duration::from_millis(20)).await;
            way.cut.store(false, Ordering::Relaxed);
            here.append(file, &[3]).await.unwrap();
        };
        let begun = world.now();
        let (synced, ()) = join(kernel.sync(file), others).await;
        synced.unwrap();
        let took = world.now() - begun;
        assert!(took < Duration::from_secs(3), "{took:?}");
        assert_eq!(far.losses().sessions, 0);
        assert!(rig::read(here, file, 0, PAGE).await == [2; PAGE][..]);
        kernel.close(open).await;
        far.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if that had only as long as a part of a file, or as nobody keeps account.
#[test]
fn what_was_changed_while_a_client_was_alone_is_written_back_for_the_second_one() {
    run(9_994, |world, node| async move {
        const MANY: usize = 2_000;
        let here = &node.client;
        let file = rig::file(here, "f").await;
        here.write(file, 0, &vec![1; MANY * PAGE]).await.unwrap();
        let kernel = PageKernel::before(here);
        let open = kernel.open(file, true).await.unwrap();
        kernel.fill_with(&open, 0..MANY as u64, 2).await;
        let way = Way::new(&world, &node.metanode, 0);
        let far = client_through(&node, &way).await;
        assert!(rig::read(&far, file, 0, MANY * PAGE).await == vec![2; MANY * PAGE]);
        assert_eq!(kernel.lost.load(Ordering::Relaxed), 0);
        kernel.touch(&open, 0, false, |_| ()).await.unwrap();
        kernel.close(open).await;
        far.close().await.unwrap();
        node.check_and_close().await;
    });
}
