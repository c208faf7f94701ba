//! Random operations on files against arrays of bytes.

use crate::rig::{self, content, file, read, run_with};
use client::{Allocate, Client, ClientSettings, Seek};
use model::{InodeId, SetAttributes};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use world::World;

const FILES: usize = 3;
const SPACE: u64 = 700_000;

/// One actor and its own files.
struct Model {
    world: World,
    inodes: Vec<InodeId>,
    files: Vec<Vec<u8>>,
}

impl Model {
    fn below(&self, end: u64) -> u64 {
        self.world.random_u64() % end.max(1)
    }

    /// Small, medium or large, aligned or not.
    fn range(&self) -> (u64, u64) {
        let length = match self.below(4) {
            0 => 1 + self.below(20),
            1 => 4096,
            2 => 1 + self.below(20_000),
            _ => 1 + self.below(150_000),
        };
        let at = self.below(SPACE - length);
        if self.below(3) == 0 {
            (at / 4096 * 4096, length)
        } else {
            (at, length)
        }
    }

    fn grow(&mut self, file: usize, size: u64) {
        let size = size as usize;
        if self.files[file].len() < size {
            self.files[file].resize(size, 0);
        }
    }

    async fn step(&mut self, client: &Client) {
        let file = self.below(FILES as u64) as usize;
        let inode = self.inodes[file];
        let (at, length) = self.range();
        let (from, to) = (at as usize, (at + length) as usize);
        match self.below(20) {
            0..=5 => {
                let bytes = content(self.world.random_u64(), length as usize);
                client.write(inode, at, &bytes).await.unwrap();
                self.grow(file, at + length);
                self.files[file][from..to].copy_from_slice(&bytes);
            }
            6 => {
                let bytes = content(self.world.random_u64(), (length % 5000) as usize);
                if self.files[file].len() < SPACE as usize {
                    let end = client.append(inode, &bytes).await.unwrap();
                    assert_eq!(end, self.files[file].len() as u64);
                    self.files[file].extend_from_slice(&bytes);
                }
            }
            7 => {
                let size = if self.below(4) == 0 { 0 } else { at };
                let set = SetAttributes {
                    size: Some(size),
                    ..SetAttributes::default()
                };
                let attributes = client.set_attributes(inode, set).await.unwrap();
                assert_eq!(attributes.size, size);
                self.files[file].resize(size as usize, 0);
            }
            8 => self.allocate(client, file, at, length).await,
            9 => self.copy(client, file, at, length).await,
            10 => client.fsync(inode, false).await.unwrap(),
            11 => client.flush(inode).await.unwrap(),
            12 => {
                self.world
                    .sleep(Duration::from_millis(self.below(3000)))
                    .await
            }
            13 => self.seek(client, file, at).await,
            14 => {
                let size = client.get_attributes(inode).await.unwrap().size;
                assert_eq!(size, self.files[file].len() as u64);
            }
            _ => {
                let bytes = read(client, inode, at, length as usize).await;
                let end = to.min(self.files[file].len());
                let expected = &self.files[file][from.min(end)..end];
                assert!(bytes == expected, "file {file} at {at}, {length} bytes");
            }
        }
    }

    async fn allocate(&mut self, client: &Client, file: usize, at: u64, length: u64) {
        let keep_size = self.below(2) == 0;
        let how = match self.below(3) {
            0 => Allocate::Punch,
            1 => Allocate::Zero { keep_size },
            _ => Allocate::Reserve { keep_size },
        };
        client
            .allocate(self.inodes[file], how, at, length)
            .await
            .unwrap();
        if how != Allocate::Punch && !keep_size {
            self.grow(file, at + length);
        }
        if !matches!(how, Allocate::Reserve { .. }) {
            let end = self.files[file].len();
            let (from, to) = ((at as usize).min(end), ((at + length) as usize).min(end));
            self.files[file][from..to].fill(0);
        }
    }

    async fn copy(&mut self, client: &Client, to: usize, at: u64, length: u64) {
        let from = (to + 1) % FILES;
        let source_at = self.below(SPACE);
        let done = client
            .copy_range(self.inodes[from], source_at, self.inodes[to], at, length)
            .await
            .unwrap();
        let size = self.files[from].len() as u64;
        assert_eq!(done, length.min(size.saturating_sub(source_at)));
        if done > 0 {
            let bytes = self.files[from][source_at as usize..(source_at + done) as usize].to_vec();
            self.grow(to, at + done);
            self.files[to][at as usize..(at + done) as usize].copy_from_slice(&bytes);
        }
    }

    /// A reported hole must read as zeros, and seeking must end.
    async fn seek(&mut self, client: &Client, file: usize, at: u64) {
        let inode = self.inodes[file];
        match client.seek(inode, at, Seek::Data).await {
            Ok(data) => {
                let hole = &self.files[file][at as usize..data as usize];
                assert!(hole.iter().all(|byte| *byte == 0));
                assert!(client.seek(inode, data, Seek::Hole).await.unwrap() > data);
            }
            Err(_) => {
                let rest = self.files[file].get(at as usize..).unwrap_or_default();
                assert!(rest.iter().all(|byte| *byte == 0));
            }
        }
    }

    async fn check_all(&self, client: &Client) {
        for (inode, model) in self.inodes.iter().zip(&self.files) {
            assert!(read(client, *inode, 0, 2 * SPACE as usize).await == *model);
        }
    }
}

fn run_steps(seed: u64, steps: usize, settings: ClientSettings) {
    run_with(seed, settings, |node| async move {
        let client = &node.client;
        let mut model = Model {
            world: node.world.clone(),
            inodes: Vec::new(),
            files: vec![Vec::new(); FILES],
        };
        for number in 0..FILES {
            model
                .inodes
                .push(file(client, &format!("file{number}")).await);
        }
        for _ in 0..steps {
            model.step(client).await;
        }
        model.check_all(client).await;
        client.sync_all().await.unwrap();
        assert_eq!(client.page_pool_bytes().0, 0);
        model.check_all(client).await;
    });
}

/// Concurrent actors in one client.
const ACTORS: u64 = 4;
/// Each owns every fourth piece of the shared file; pieces are aligned to neither pages nor blocks.
const PIECE: u64 = 5_003;
const PIECES: u64 = 60;

/// Random operations on the actor's own files, and in between on its share of the common file.
async fn act(world: World, client: Arc<Client>, actor: u64, shared: InodeId, steps: usize) {
    let mut model = Model {
        world: world.clone(),
        inodes: Vec::new(),
        files: vec![Vec::new(); FILES],
    };
    for number in 0..FILES {
        let text = format!("actor{actor}file{number}");
        model.inodes.push(file(&client, &text).await);
    }
    let at = |piece: u64| (piece * ACTORS + actor) * PIECE;
    let mut pieces = BTreeMap::new();
    for step in 0..steps {
        model.step(&client).await;
        let piece = model.below(PIECES);
        match model.below(6) {
            0 | 1 => {
                let seed = world.random_u64();
                let bytes = content(seed, PIECE as usize);
                client.write(shared, at(piece), &bytes).await.unwrap();
                pieces.insert(piece, seed);
            }
            2 => client.fsync(shared, step % 2 == 0).await.unwrap(),
            _ => check_piece(&client, shared, at(piece), pieces.get(&piece)).await,
        }
    }
    model.check_all(&client).await;
    for piece in 0..PIECES {
        check_piece(&client, shared, at(piece), pieces.get(&piece)).await;
    }
    assert!(pieces.len() > 10, "actor {actor} wrote its pieces");
}

async fn check_piece(client: &Client, shared: InodeId, at: u64, seed: Option<&u64>) {
    let found = read(client, shared, at, PIECE as usize).await;
    match seed {
        Some(seed) => assert!(found == content(*seed, PIECE as usize), "piece at {at}"),
        None => assert!(found.iter().all(|byte| *byte == 0), "piece at {at}"),
    }
}

#[test]
fn several_actors_at_once_each_read_what_they_wrote() {
    for seed in 21..=24 {
        run_with(seed, rig::settings(), |node| async move {
            let shared = file(&node.client, "shared").await;
            let actors: Vec<_> = (0..ACTORS)
                .map(|actor| {
                    let (world, client) = (node.world.clone(), node.client.clone());
                    let work = act(world, client, actor, shared, 300);
                    node.world.spawn("actor", work)
                })
                .collect();
            for actor in actors {
                actor.await;
            }
            node.client.sync_all().await.unwrap();
            assert_eq!(node.client.page_pool_bytes().0, 0);
            node.close().await;
        });
    }
}

#[test]
fn any_sequence_of_operations_reads_as_an_array_of_bytes() {
    for seed in 1..=8 {
        run_steps(seed, 1500, rig::settings());
    }
}

#[test]
fn any_sequence_reads_as_bytes_also_with_large_blocks_and_without_read_ahead() {
    for seed in 11..=14 {
        let settings = ClientSettings {
            block_bytes: 4 << 20,
            read_ahead_bytes_max: 0,
            segments_in_flight_max: 1,
            ..rig::settings()
        };
        run_steps(seed, 800, settings);
    }
}
