//! A pool's ledger and its holders, whose messages are lost, repeated and overtake each other.

use super::chance::Chance;
use manager::Planted;
use manager::space::{Ledger, Purse, Say, Statement};
use model::{NodeId, NodeRun};

const RUNS: u64 = 200;
const RUNS_LONG: u64 = 20_000;
const STEPS: usize = 3_000;

/// Those that have to do with space.
pub(crate) const FAULTS: [Planted; 6] = [
    Planted::LoseSlice,
    Planted::GiveReserve,
    Planted::ForgetReturn,
    Planted::TakeOldStatement,
    Planted::FullEarly,
    Planted::KeepIdle,
];

enum Message {
    Up(NodeRun, Statement),
    Down(Say),
}

struct Holder {
    run: NodeRun,
    purse: Purse,
    /// Writes that have taken room.
    writes: Vec<u64>,
    /// What it stored and hasn't deleted.
    stored: u64,
    /// A write that waits for room.
    waits: Option<u64>,
}

struct Scene {
    capacity: u64,
    reserve: u64,
    ledger: Ledger,
    holders: Vec<Holder>,
    messages: Vec<Message>,
    /// Bytes in the pool, whoever stored them.
    used: u64,
    planted: Option<Planted>,
    failed: u32,
    began: u64,
}

impl Scene {
    fn new(capacity: u64, holders: u32, planted: Option<Planted>) -> Self {
        let mut ledger = Ledger::of_pool(capacity, 0);
        planted.into_iter().for_each(|fault| ledger.plant(fault));
        let mut scene = Self {
            capacity,
            reserve: capacity / 100 * 5,
            ledger,
            holders: Vec::new(),
            messages: Vec::new(),
            used: 0,
            planted,
            failed: 0,
            began: 0,
        };
        (1..=holders).for_each(|node| scene.start(node));
        scene
    }

    fn start(&mut self, node: u32) {
        self.began += 1;
        let mut purse = Purse::default();
        self.planted
            .into_iter()
            .for_each(|fault| purse.plant(fault));
        self.holders.push(Holder {
            run: NodeRun {
                node: NodeId(node),
                incarnation: self.began,
            },
            purse,
            writes: Vec::new(),
            stored: 0,
            waits: None,
        });
    }

    fn down(&mut self, said: Vec<Say>) {
        self.messages.extend(said.into_iter().map(Message::Down));
    }

    fn deliver(&mut self, at: usize) -> Result<(), String> {
        match self.messages.remove(at) {
            Message::Up(from, statement) => {
                // An ended holder's last words come after its end.
                if self.holders.iter().any(|it| it.run == from) {
                    let said = self.ledger.hear(from, statement);
                    self.down(said);
                }
            }
            Message::Down(said) => {
                let (Say::Granted { to, .. } | Say::Recall { to, .. } | Say::Full { to, .. }) =
                    said;
                let elsewhere: u64 = self
                    .holders
                    .iter()
                    .filter(|it| it.run != to)
                    .map(|it| it.purse.available())
                    .sum();
                let Some(holder) = self.holders.iter_mut().find(|it| it.run == to) else {
                    return Ok(());
                };
                match said {
                    Say::Granted { total, .. } => holder.purse.granted(total),
                    Say::Recall { number, .. } => holder.purse.recalled(number),
                    Say::Full { want, .. } => {
                        if holder.purse.full(want) {
                            self.failed += 1;
                            let bytes = holder.waits.take().expect("it waits");
                            let own = holder.purse.available();
                            // What was given or freed since the answer is little.
                            if own + elsewhere >= bytes + self.capacity / 4 {
                                return Err(format!(
                                    "no room for {bytes}, and others have {elsewhere}"
                                ));
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Something that a holder does.
    fn act(&mut self, at: usize, chance: &mut Chance, bytes_max: u64) {
        let holder = &mut self.holders[at];
        match chance.below(6) {
            0 | 1 => {
                let bytes = holder.waits.unwrap_or(1 + chance.below(bytes_max));
                if holder.purse.take(bytes) {
                    holder.writes.push(bytes);
                    holder.waits = None;
                } else {
                    holder.waits = Some(bytes);
                }
            }
            2 => {
                if let Some(bytes) = holder.writes.pop() {
                    holder.purse.spend(bytes);
                    holder.stored += bytes;
                    self.used += bytes;
                }
            }
            3 => {
                if let Some(bytes) = holder.writes.pop() {
                    holder.purse.put_back(bytes);
                }
            }
            4 if chance.one_in(8) => {
                let bytes = chance.below(holder.stored + 1) / 2;
                holder.stored -= bytes;
                self.used -= bytes;
                holder.purse.free(bytes);
            }
            _ => self.say(at),
        }
    }

    fn say(&mut self, at: usize) {
        let holder = &mut self.holders[at];
        let statement = holder.purse.state();
        self.messages.push(Message::Up(holder.run, statement));
    }

    fn end(&mut self, at: usize) {
        // What it did since its last statement is known to nobody; the shards' count of live data
        // says so to the next ledger. Here it says all before it ends, so that sums stay exact.
        let mut holder = self.holders.remove(at);
        let last = holder.purse.state();
        let said = self.ledger.hear(holder.run, last);
        self.down(said);
        let said = self.ledger.end(holder.run);
        self.down(said);
    }

    fn check(&self) -> Result<(), String> {
        let promised: u64 = self
            .holders
            .iter()
            .map(|it| it.purse.available() + it.purse.taken())
            .sum();
        if self.used + promised > self.capacity - self.reserve {
            return Err(format!(
                "{} used and {promised} promised of {}",
                self.used, self.capacity
            ));
        }
        let given = self.ledger.given();
        if given.used + given.held + given.free + given.reserve != self.capacity {
            return Err(format!("the sums are wrong: {given:?}"));
        }
        Ok(())
    }

    /// All messages arrive; then the ledger knows exactly what is.
    fn come_to_rest(&mut self) -> Result<(), String> {
        for holder in &mut self.holders {
            while let Some(bytes) = holder.writes.pop() {
                holder.purse.put_back(bytes);
            }
        }
        // Somebody wants all that is free, so that everything is recalled.
        let all = self.capacity - self.reserve - self.used;
        let first = &mut self.holders[0];
        first.waits = None;
        for round in 0.. {
            if self.holders[0].purse.take(all) {
                return Ok(());
            }
            if round == 50 {
                let given = self.ledger.given();
                return Err(format!("{all} bytes are free, and can't be had: {given:?}"));
            }
            for at in 0..self.holders.len() {
                if at > 0 {
                    self.holders[at].purse.forget_want();
                }
                self.say(at);
            }
            let said = self.ledger.recalls();
            self.down(said);
            while !self.messages.is_empty() {
                match self.messages[0] {
                    // It is wanted again in the next round.
                    Message::Down(Say::Full { to, want }) => {
                        self.messages.remove(0);
                        let mut holders = self.holders.iter_mut();
                        let holder = holders.find(|it| it.run == to);
                        if let Some(holder) = holder {
                            holder.purse.full(want);
                        }
                    }
                    _ => self.deliver(0)?,
                }
            }
            self.check()?;
        }
        Ok(())
    }
}

fn storm(seed: u64, planted: Option<Planted>) -> Result<u32, String> {
    let mut chance = Chance::new(seed);
    let told = |why: String| format!("seed {seed}: {why}");
    let capacity = [10 << 20, 200 << 20, 4 << 30][chance.below(3) as usize];
    let holders = 2 + chance.below(4) as u32;
    let mut scene = Scene::new(capacity, holders, planted);
    let bytes_max = capacity / (10 + chance.below(100));
    for _ in 0..STEPS {
        match chance.below(20) {
            0 if !scene.messages.is_empty() => {
                let at = chance.below(scene.messages.len() as u64) as usize;
                scene.messages.remove(at);
            }
            1 if scene.holders.len() > 1 && chance.below(20) == 0 => {
                let at = chance.below(scene.holders.len() as u64) as usize;
                let node = scene.holders[at].run.node.0;
                scene.end(at);
                scene.start(node);
            }
            2..9 if !scene.messages.is_empty() => {
                let at = chance.below(scene.messages.len() as u64) as usize;
                scene.deliver(at).map_err(told)?;
            }
            _ => {
                let at = chance.below(scene.holders.len() as u64) as usize;
                scene.act(at, &mut chance, bytes_max);
            }
        }
        scene.check().map_err(told)?;
    }
    scene.come_to_rest().map_err(told)?;
    Ok(scene.failed)
}

#[test]
fn space_is_never_promised_twice_nor_lost_and_full_means_full() {
    let runs = match std::env::var_os("SHALE_LONG") {
        Some(_) => RUNS_LONG,
        None => RUNS,
    };
    let mut failed = 0;
    for seed in 0..runs {
        match storm(seed, None) {
            Ok(count) => failed += count,
            Err(why) => panic!("{why}"),
        }
    }
    assert!(failed > 100, "the pools were full {failed} times");
}

/// The last byte above the reserve can be written, wherever the slices are, and not one more.
#[test]
fn a_write_fails_only_when_no_slice_anywhere_can_be_recalled() {
    for seed in 0..50 {
        let mut chance = Chance::new(seed);
        let mut scene = Scene::new(100 << 20, 4, None);
        for _ in 0..400 {
            let at = chance.below(4) as usize;
            scene.act(at, &mut chance, 4 << 20);
            while !scene.messages.is_empty() {
                scene.deliver(0).unwrap_or_else(|why| panic!("{why}"));
            }
        }
        scene
            .come_to_rest()
            .unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        // Everything that may be had is taken now.
        scene.holders[1].waits = Some(1);
        assert!(!scene.holders[1].purse.take(1));
        scene.say(1);
        while !scene.messages.is_empty() {
            scene.deliver(0).unwrap_or_else(|why| panic!("{why}"));
            for at in 0..4 {
                let obeys = matches!(
                    scene.messages.first(),
                    Some(Message::Down(Say::Recall { to, .. })) if *to == scene.holders[at].run
                );
                if obeys {
                    scene.deliver(0).unwrap_or_else(|why| panic!("{why}"));
                    scene.say(at);
                }
            }
        }
        assert!(scene.failed > 0, "seed {seed}: the pool is full");
        assert_eq!(scene.holders[1].waits, None, "seed {seed}: it was told so");
    }
}

#[test]
fn every_planted_fault_of_space_is_found() {
    let mut unfound = Vec::new();
    for fault in FAULTS {
        match (0..200).find_map(|seed| storm(seed, Some(fault)).err()) {
            Some(why) => println!("{fault:?}: {why}"),
            None => unfound.push(fault),
        }
    }
    assert!(unfound.is_empty(), "not found: {unfound:?}");
}
