//! A pool of three NSDs, its holders and its ledgers: everything that can happen to them is a method.

use super::chance::Chance;
use manager::Planted;
use manager::space::{Counted, Ledger, Purse, Round, Say, Statement};
use model::member::Term;
use model::{NodeId, NodeRun};

const NSDS: usize = 3;

#[derive(Clone)]
pub(crate) enum Message {
    /// To the ledger of this term.
    Up(NodeRun, Term, Statement),
    /// From the ledger of this term.
    Down(Term, Say),
    /// A holder learns of a ledger.
    Learn(NodeRun, Term),
    /// What NSDs counted so far.
    Count(Term, Round, Vec<u64>),
}

pub(crate) struct Holder {
    pub(crate) run: NodeRun,
    pub(crate) purse: Purse,
    /// Writes that have taken room, and where in the pool their bytes are.
    writes: Vec<(u64, Option<usize>)>,
    /// A write that waits for room.
    pub(crate) waits: Option<u64>,
    /// It had nothing idle at some moment since somebody else's want was heard.
    was_empty: Vec<(NodeRun, u64)>,
}

pub(crate) struct Scene {
    capacity: u64,
    reserve: u64,
    /// The newest is the last; the one before it may not know yet that it is over.
    ledgers: Vec<Ledger>,
    pub(crate) holders: Vec<Holder>,
    pub(crate) messages: Vec<Message>,
    nsds: [u64; NSDS],
    /// Wants that the newest ledger has heard, and not answered.
    wants: Vec<(NodeRun, u64)>,
    planted: Option<Planted>,
    pub(crate) failed: u32,
    began: u64,
    /// What was written without room, and how much may be: the reserve, in every second scene. In the others
    /// nothing is excused.
    unreserved: u64,
    unreserved_max: u64,
}

impl Scene {
    pub(crate) fn new(capacity: u64, holders: u32, planted: Option<Planted>) -> Self {
        let mut scene = Self {
            capacity,
            reserve: capacity / 100 * 5,
            ledgers: Vec::new(),
            holders: Vec::new(),
            messages: Vec::new(),
            nsds: [capacity / 30, 0, 0],
            wants: Vec::new(),
            planted,
            failed: 0,
            began: 0,
            unreserved: 0,
            unreserved_max: capacity / 100 * 5 * u64::from(holders % 2),
        };
        scene.change_ledger();
        (1..=holders).for_each(|node| scene.start(node));
        scene
    }

    fn newest(&mut self) -> &mut Ledger {
        self.ledgers.last_mut().expect("there is always one")
    }

    fn term(&self) -> Term {
        Term(self.ledgers.len() as u64)
    }

    /// A new manager begins with what the membership says of who may have something.
    pub(crate) fn change_ledger(&mut self) {
        let term = Term(self.ledgers.len() as u64 + 1);
        let holders = self.holders.iter().map(|it| it.run);
        let mut ledger = Ledger::new(term, holders);
        self.planted
            .into_iter()
            .for_each(|fault| ledger.plant(fault));
        self.ledgers.push(ledger);
        self.wants.clear();
        let said = self.newest().measure();
        self.down(term, said);
        self.tell_term();
    }

    /// Answers to heartbeats say who is the manager.
    fn tell_term(&mut self) {
        let term = self.term();
        let runs = self.holders.iter().map(|it| Message::Learn(it.run, term));
        self.messages.extend(runs);
    }

    fn start(&mut self, node: u32) {
        self.began += 1;
        let mut purse = Purse::default();
        self.planted
            .into_iter()
            .for_each(|fault| purse.plant(fault));
        let run = NodeRun {
            node: NodeId(node),
            incarnation: self.began,
        };
        // It joins with the newest manager, and learns its term in the answer.
        assert!(self.newest().begin(run), "there is room for more");
        purse.begin_term(self.term());
        self.holders.push(Holder {
            run,
            purse,
            writes: Vec::new(),
            waits: None,
            was_empty: self.wants.clone(),
        });
    }

    fn down(&mut self, term: Term, said: Vec<Say>) {
        let said = said.into_iter().map(|say| Message::Down(term, say));
        self.messages.extend(said);
    }

    fn holder(&mut self, run: NodeRun) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|it| it.run == run)
    }

    pub(crate) fn deliver(&mut self, at: usize) -> Result<(), String> {
        match self.messages.remove(at) {
            Message::Up(from, term, statement) => {
                let said = self.ledgers[term.0 as usize - 1].hear(from, statement);
                if term == self.term() && statement.term == term {
                    self.heard(from, statement, &said)?;
                }
                self.down(term, said);
            }
            Message::Learn(run, term) => {
                if let Some(holder) = self.holder(run) {
                    holder.purse.begin_term(term);
                }
            }
            Message::Count(term, round, counted) => self.count(term, round, counted)?,
            Message::Down(term, Say::Measure(round)) => {
                self.messages.push(Message::Count(term, round, Vec::new()));
            }
            Message::Down(term, Say::Granted { to, total }) => {
                if let Some(holder) = self.holder(to) {
                    holder.purse.granted(term, total);
                }
            }
            Message::Down(term, Say::Recall { to, number }) => {
                if let Some(holder) = self.holder(to) {
                    holder.purse.recalled(term, number);
                }
            }
            Message::Down(term, Say::Full { to, want }) => {
                if let Some(holder) = self.holder(to)
                    && holder.purse.full(term, want).is_some()
                {
                    holder.waits = None;
                    self.failed += 1;
                }
            }
        }
        self.look();
        Ok(())
    }

    /// One NSD after the other says what it has.
    fn count(&mut self, term: Term, round: Round, mut counted: Vec<u64>) -> Result<(), String> {
        counted.push(self.nsds[counted.len()]);
        if counted.len() < NSDS {
            self.messages.push(Message::Count(term, round, counted));
            return Ok(());
        }
        let ledger = &mut self.ledgers[term.0 as usize - 1];
        let counted = Counted {
            used: counted.iter().sum(),
            capacity: self.capacity,
            reserve: self.reserve,
        };
        let said = ledger.measured(round, Some(counted));
        if term == self.term() {
            self.judge(&said)?;
        }
        self.down(term, said);
        Ok(())
    }

    fn heard(&mut self, from: NodeRun, statement: Statement, said: &[Say]) -> Result<(), String> {
        // One that counts for nothing isn't answered.
        if said.is_empty() {
            return Ok(());
        }
        if let Some(want) = statement.want
            && !self.wants.contains(&(from, want.number))
        {
            self.wants.push((from, want.number));
        }
        self.judge(said)
    }

    /// Who has nothing idle now can't be asked for more.
    fn look(&mut self) {
        for holder in &mut self.holders {
            if holder.purse.idle() == 0 {
                holder.was_empty.clone_from(&self.wants);
            }
        }
    }

    /// A pool is full only if nobody had something idle all the time since the want was heard.
    fn judge(&mut self, said: &[Say]) -> Result<(), String> {
        self.look();
        for say in said {
            let Say::Full { to, want } = say else {
                continue;
            };
            let mut others = self.holders.iter().filter(|it| it.run != *to);
            let idle = others.find(|it| !it.was_empty.contains(&(*to, *want)));
            let is_new = self.wants.contains(&(*to, *want));
            if let Some(holder) = idle.filter(|_| is_new) {
                let bytes = holder.purse.available();
                return Err(format!("full for {to}, and {} has {bytes}", holder.run));
            }
        }
        Ok(())
    }

    /// Something that a holder does.
    pub(crate) fn act(&mut self, at: usize, chance: &mut Chance, bytes_max: u64) {
        let holder = &mut self.holders[at];
        let nsd = chance.below(NSDS as u64) as usize;
        match chance.below(8) {
            0 | 1 => {
                let bytes = holder.waits.unwrap_or(1 + chance.below(bytes_max));
                if holder.purse.take(bytes) {
                    holder.writes.push((bytes, None));
                    holder.waits = None;
                } else {
                    holder.waits = Some(bytes);
                }
            }
            // First the bytes are there, then the holder knows.
            2 => {
                if let Some((bytes, place)) = holder.writes.last_mut().filter(|it| it.1.is_none()) {
                    *place = Some(nsd);
                    self.nsds[nsd] += *bytes;
                }
            }
            3 => match holder.writes.pop() {
                Some((bytes, Some(_))) => {
                    holder.purse.written(bytes);
                    holder.purse.put_back(bytes);
                }
                Some((bytes, None)) if chance.one_in(3) => holder.purse.put_back(bytes),
                Some(write) => holder.writes.push(write),
                None => {}
            },
            // Nobody says that something was deleted.
            4 if chance.one_in(9) => {
                let bytes = chance.below(self.nsds[nsd] + 1) / 4;
                let under_way = self.holders.iter().flat_map(|it| &it.writes);
                let under_way = under_way.filter(|it| it.1 == Some(nsd));
                let kept: u64 = under_way.map(|it| it.0).sum();
                self.nsds[nsd] -= bytes.min(self.nsds[nsd].saturating_sub(kept));
            }
            // Tables and repair ask for no room.
            5 if chance.one_in(20) => {
                let bytes = chance.below(self.reserve / 10);
                if self.unreserved + bytes <= self.unreserved_max {
                    self.unreserved += bytes;
                    self.nsds[nsd] += bytes;
                    holder.purse.written(bytes);
                }
            }
            _ if chance.one_in(8) => self.say_to(at, Term(self.term().0.max(2) - 1)),
            _ => self.say(at),
        }
        self.look();
    }

    /// Something that ledgers do by themselves.
    pub(crate) fn by_itself(&mut self, chance: &mut Chance) {
        let at = match chance.one_in(3) {
            true => chance.below(self.ledgers.len() as u64) as usize,
            false => self.ledgers.len() - 1,
        };
        if chance.one_in(4) {
            self.tell_term();
        }
        let ledger = &mut self.ledgers[at];
        let said = match chance.one_in(20) {
            true => ledger.measure(),
            false => ledger.again(),
        };
        self.down(Term(at as u64 + 1), said);
    }

    pub(crate) fn say(&mut self, at: usize) {
        self.say_to(at, self.term());
    }

    fn say_to(&mut self, at: usize, term: Term) {
        let holder = &mut self.holders[at];
        let statement = holder.purse.state();
        let message = Message::Up(holder.run, term, statement);
        self.messages.push(message);
    }

    /// A holder ends, whatever it last said, and another run of its node begins.
    pub(crate) fn end(&mut self, at: usize) {
        let holder = self.holders.remove(at);
        self.wants.retain(|(run, _)| *run != holder.run);
        let term = self.term();
        let said = self.newest().end(holder.run);
        self.down(term, said);
        self.start(holder.run.node.0);
    }

    pub(crate) fn check(&mut self) -> Result<(), String> {
        let of = |holder: &Holder| {
            let in_pool = holder.writes.iter().filter(|it| it.1.is_some());
            let in_pool: u64 = in_pool.map(|it| it.0).sum();
            holder.purse.available() + holder.purse.taken() - in_pool
        };
        let promised: u64 = self.holders.iter().map(of).sum();
        let used: u64 = self.nsds.iter().sum();
        if used + promised > self.capacity - self.reserve + self.unreserved {
            let capacity = self.capacity;
            return Err(format!("{used} used and {promised} promised of {capacity}"));
        }
        let given = self.newest().given();
        let sum = given.used + given.held + given.free + given.reserve;
        // A ledger that doesn't know exactly errs to the side of the full pool.
        if given.free > 0 && sum != self.capacity {
            return Err(format!("the sums are wrong: {given:?}"));
        }
        Ok(())
    }

    /// All messages arrive; then the ledger knows exactly what is, and gives all of it.
    pub(crate) fn come_to_rest(&mut self) -> Result<(), String> {
        for holder in &mut self.holders {
            while let Some((bytes, place)) = holder.writes.pop() {
                if place.is_some() {
                    holder.purse.written(bytes);
                }
                holder.purse.put_back(bytes);
            }
            holder.waits = None;
            holder.purse.forget_want();
        }
        self.messages.clear();
        let term = self.term();
        for holder in &mut self.holders {
            holder.purse.begin_term(term);
        }
        // Somebody wants all that is free, so that everything is recalled.
        let used: u64 = self.nsds.iter().sum();
        let all = (self.capacity - self.reserve).saturating_sub(used);
        for _ in 0..50 {
            if self.holders[0].purse.take(all) {
                return Ok(());
            }
            (0..self.holders.len()).for_each(|at| self.say(at));
            let said = self.newest().again();
            self.down(term, said);
            while !self.messages.is_empty() {
                self.deliver(0)?;
            }
            self.check()?;
        }
        let given = self.newest().given();
        Err(format!("{all} bytes are free, and can't be had: {given:?}"))
    }
}
