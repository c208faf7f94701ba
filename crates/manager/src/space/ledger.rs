//! The half that gives slices. What it gave, what was used and what is left always add up to what it
//! has.

use super::measuring::Measuring;
use super::{
    Counted, HOLDERS_MAX, OVERTAKEN_MAX, RecallNumber, Round, SLICE_BYTES, Say, Statement,
    slice_bytes,
};
use crate::planted::Planted;
use model::NodeRun;
use model::member::Term;
use std::collections::{BTreeMap, BTreeSet};

/// No holder claims more than this of an earlier ledger: more than any pool has.
const CLAIM_MAX: u64 = 1 << 60;
/// So many wants recall what others hold at the same time; more wait for their turn.
const WAITING_MAX: usize = 8;

/// What a holder was given, and what it said last.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Account {
    /// With its claim.
    granted: u64,
    said: Statement,
}

impl Account {
    fn held(&self) -> u64 {
        self.granted
            .checked_sub(self.said.consumed)
            .and_then(|rest| rest.checked_sub(self.said.returned))
            .expect("nobody uses more than it was given: its statement would have been refused")
    }

    /// What it has put into the pool, or may put there.
    fn charged(&self) -> i128 {
        i128::from(self.granted) - i128::from(self.said.returned)
    }
}

/// A want that waits for what others give back.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Waiting {
    want: u64,
    /// Holders that must obey a recall, and which.
    missing: BTreeMap<NodeRun, RecallNumber>,
    /// How often others were given something meanwhile.
    overtaken: u32,
    /// The first measuring that begins after all have obeyed.
    round: Option<Round>,
    /// It was told that the pool is full.
    is_answered: bool,
}

/// The sums of a ledger.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Given {
    /// Bytes in use.
    pub used: u64,
    /// Bytes that holders may use, or have used and not yet said so.
    pub held: u64,
    /// Bytes that may still be given.
    pub free: u64,
    /// Bytes that are kept back.
    pub reserve: u64,
}

/// The slices of one pool.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ledger {
    term: Term,
    /// As the NSDs said last.
    capacity: u64,
    reserve: u64,
    /// What is in use beside what accounts say, at most; `None` before the first measuring.
    base: Option<i128>,
    /// The base may be wrong.
    is_doubtful: bool,
    /// Holders that may have something of an earlier ledger, and haven't said what.
    expected: BTreeSet<NodeRun>,
    accounts: BTreeMap<NodeRun, Account>,
    /// What all accounts are charged.
    charged: i128,
    /// Holders that want something, who wanted first at the head.
    queue: Vec<NodeRun>,
    waiting: BTreeMap<NodeRun, Waiting>,
    recalls: RecallNumber,
    measuring: Option<Measuring>,
    /// The newest measuring that was begun, and the newest that is over.
    begun: Round,
    done: Round,
    planted: Option<Planted>,
}

impl Ledger {
    /// A pool of which nothing is known yet. Nothing is given before all `holders` of earlier ledgers have
    /// claimed what they have, or ended, and the pool was measured.
    #[must_use]
    pub fn new(term: Term, holders: impl IntoIterator<Item = NodeRun>) -> Self {
        Self {
            term,
            capacity: 0,
            reserve: 0,
            base: None,
            is_doubtful: true,
            expected: holders.into_iter().collect(),
            accounts: BTreeMap::new(),
            charged: 0,
            queue: Vec::new(),
            waiting: BTreeMap::new(),
            recalls: RecallNumber(0),
            measuring: None,
            begun: Round(0),
            done: Round(0),
            planted: None,
        }
    }

    /// A fault for a test.
    pub fn plant(&mut self, fault: Planted) {
        self.planted = Some(fault);
    }

    /// Under which it speaks, and is spoken to.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }

    /// What is where. The sums are exact; `free` is 0 if less is there than was given, or if nobody
    /// knows yet.
    #[must_use]
    pub fn given(&self) -> Given {
        let charged = self.accounts.values().map(Account::charged).sum::<i128>();
        assert_eq!(charged, self.charged, "the sum follows the accounts");
        let held = self.accounts.values().map(|it| i128::from(it.held()));
        let promised = self.promised().max(0);
        let used = (promised - held.sum::<i128>()).max(0);
        let bytes = |sum: i128| u64::try_from(sum).unwrap_or(u64::MAX);
        Given {
            used: bytes(used),
            held: bytes(promised - used),
            free: self.free(),
            reserve: self.kept_back(),
        }
    }

    /// In use or promised, at most.
    fn promised(&self) -> i128 {
        self.base.unwrap_or(0) + self.charged
    }

    fn kept_back(&self) -> u64 {
        match self.planted {
            Some(Planted::GiveReserve) => 0,
            _ => self.reserve,
        }
    }

    fn free(&self) -> u64 {
        if !self.knows() {
            return 0;
        }
        let rest = i128::from(self.capacity) - i128::from(self.kept_back()) - self.promised();
        u64::try_from(rest.max(0)).unwrap_or(u64::MAX)
    }

    /// All have claimed what they have, and the pool was measured.
    fn knows(&self) -> bool {
        self.have_claimed() && self.base.is_some()
    }

    fn have_claimed(&self) -> bool {
        self.expected.is_empty() || self.planted == Some(Planted::GiveBeforeClaims)
    }

    /// A holder begins: a run that was given nothing by anybody. False if there are too many, or it is
    /// known. One that has ended must not begin again.
    pub fn begin(&mut self, run: NodeRun) -> bool {
        let is_known = self.accounts.contains_key(&run) || self.expected.contains(&run);
        let holders = self.accounts.len() + self.expected.len();
        if is_known || holders >= HOLDERS_MAX {
            return false;
        }
        self.accounts.insert(run, Account::default());
        true
    }

    /// Takes a holder's statement.
    ///
    /// A statement that is older than the last one counts for nothing; one that doesn't fit what was
    /// given neither: it is of another holder's past. One of somebody who isn't a holder neither.
    pub fn hear(&mut self, from: NodeRun, statement: Statement) -> Vec<Say> {
        let Some(account) = self.account_after(from, &statement) else {
            return Vec::new();
        };
        self.expected.remove(&from);
        let before = self.accounts.insert(from, account);
        self.charged += account.charged() - before.map_or(0, |it| it.charged());
        match statement.want {
            Some(_) if !self.queue.contains(&from) => self.queue.push(from),
            Some(_) => {}
            None => self.forget_want(from),
        }
        for waiting in self.waiting.values_mut() {
            let recall = waiting.missing.get(&from);
            if recall.is_some_and(|recall| statement.obeyed >= *recall) {
                waiting.missing.remove(&from);
            }
        }
        let mut said = self.settle();
        self.give_ahead(from, statement.ahead, &mut said);
        // Said again each time: the last one may have been lost.
        let granted = self.granted(from);
        if !said.contains(&granted) {
            said.push(granted);
        }
        said
    }

    /// What the holder's account is with this statement, if that counts.
    fn account_after(&self, from: NodeRun, statement: &Statement) -> Option<Account> {
        let known = self.accounts.get(&from).copied();
        let claiming = || Account {
            granted: statement.claim,
            said: Statement {
                claim: statement.claim,
                ..Statement::default()
            },
        };
        let is_expected = self.expected.contains(&from);
        let is_revived = self.planted == Some(Planted::ReviveEnded);
        let before = known.or_else(|| (is_expected || is_revived).then(claiming))?;
        let said = before.said;
        if statement.claim > CLAIM_MAX {
            return None;
        }
        let used = statement.consumed.checked_add(statement.returned);
        let fits = used.is_some_and(|used| used <= before.granted);
        let is_growing = statement.consumed >= said.consumed && statement.returned >= said.returned;
        let is_newer = statement.number > said.number && is_growing;
        let is_meant = statement.term == self.term && statement.claim == said.claim;
        if !is_meant || !fits || !is_newer {
            return None;
        }
        let mut after = Account {
            granted: before.granted,
            said: *statement,
        };
        if self.planted == Some(Planted::ForgetReturn) {
            after.granted += statement.returned.saturating_sub(said.returned);
        }
        Some(after)
    }

    /// The holder has ended: nothing of it is written to the pool any more. What it may have written
    /// counts as used until the pool was measured.
    pub fn end(&mut self, run: NodeRun) -> Vec<Say> {
        if self.planted == Some(Planted::LoseSlice) {
            return Vec::new();
        }
        let was_expected = self.expected.remove(&run);
        let ended = self.accounts.remove(&run);
        if ended.is_none() && !was_expected {
            return Vec::new();
        }
        self.forget_want(run);
        for waiting in self.waiting.values_mut() {
            waiting.missing.remove(&run);
        }
        if let Some(account) = ended {
            self.charged -= account.charged();
            let mut kept = account.charged();
            if self.planted == Some(Planted::ForgetUnsaid) {
                kept -= i128::from(account.held());
            }
            self.base = self.base.map(|base| base + kept);
            self.is_doubtful = true;
        }
        // What it had said is in the measuring's sum, and in the base now.
        if self.measuring.take().is_some() {
            self.is_doubtful = true;
        }
        self.settle()
    }

    /// What NSDs say, asked since [`Say::Measure`]; `None` if none does: ask for another measuring after a while.
    pub fn measured(&mut self, round: Round, counted: Option<Counted>) -> Vec<Say> {
        let Some(measuring) = self.measuring.take_if(|it| it.round == round) else {
            return Vec::new();
        };
        // Without an answer those who wait go on waiting, for the next one.
        if let Some(counted) = counted {
            self.done = round;
            let measuring = match self.planted {
                Some(Planted::MeasureEarly) => self.measuring_from_now(),
                _ => measuring,
            };
            // Together: an NSD that is back brings bytes in use and free ones.
            self.base = Some(measuring.bound(&counted));
            (self.capacity, self.reserve) = (counted.capacity, counted.reserve);
        }
        self.settle()
    }

    /// Asks for a measuring as soon as none is under way: what was deleted, or written and not said, isn't
    /// in the base.
    pub fn measure(&mut self) -> Vec<Say> {
        self.is_doubtful = true;
        self.settle()
    }

    fn measuring_from_now(&self) -> Measuring {
        let accounts = self.accounts.values();
        Measuring {
            round: self.begun,
            consumed_before: accounts.map(|it| i128::from(it.said.consumed)).sum(),
        }
    }

    fn granted(&self, to: NodeRun) -> Say {
        Say::Granted {
            to,
            total: self.accounts[&to].granted,
        }
    }

    fn forget_want(&mut self, run: NodeRun) {
        self.queue.retain(|it| *it != run);
        self.waiting.remove(&run);
    }

    /// Serves those who want something, as far as there is room, in the order in which they came.
    fn settle(&mut self) -> Vec<Say> {
        let mut said = Vec::new();
        if self.knows() {
            for run in self.queue.clone() {
                self.serve(run, &mut said);
                let waiting = self.unanswered().find(|(waiting, _)| **waiting == run);
                if waiting.is_some_and(|(_, it)| it.overtaken >= OVERTAKEN_MAX) {
                    // All others wait until it is answered.
                    break;
                }
            }
        }
        self.begin_measuring(&mut said);
        said
    }

    /// Those who wait and have no answer.
    fn unanswered(&self) -> impl Iterator<Item = (&NodeRun, &Waiting)> {
        self.waiting.iter().filter(|(_, it)| !it.is_answered)
    }

    fn serve(&mut self, run: NodeRun, said: &mut Vec<Say>) {
        let account = self.accounts[&run];
        let want = account.said.want.expect("who is in the queue wants it");
        let known = self.waiting.get(&run).filter(|it| it.want == want.number);
        // What it was given since it said so counts.
        let lacking = want.bytes.saturating_sub(account.held());
        let free = self.free();
        if lacking == 0 {
            self.forget_want(run);
        } else if known.is_some_and(|it| it.is_answered) {
            // Until it knows that, it says the same want again.
        } else if free >= lacking {
            self.forget_want(run);
            // While somebody waits, nobody is given more than its writes need.
            let slice = match self.unanswered().next() {
                None => slice_bytes(free, self.accounts.len()).max(lacking),
                Some(_) => lacking,
            };
            self.grant(run, slice, said);
        } else {
            self.wait(run, want.number, said);
        }
    }

    /// A holder would like to hold so much: it gets a slice, unless it has that already. Only while there is plenty
    /// and nobody wants anything: nothing is recalled for it, and nobody waits longer.
    fn give_ahead(&mut self, run: NodeRun, liked: u64, said: &mut Vec<Say>) {
        let is_plenty = slice_bytes(self.free(), self.accounts.len()) == SLICE_BYTES;
        if liked > self.accounts[&run].held() && self.queue.is_empty() && is_plenty {
            self.grant(run, SLICE_BYTES, said);
        }
    }

    fn grant(&mut self, run: NodeRun, bytes: u64, said: &mut Vec<Say>) {
        assert!(bytes <= self.free(), "what is given was free");
        let account = self.accounts.get_mut(&run).expect("it wants something");
        account.granted += bytes;
        self.charged += i128::from(bytes);
        said.push(self.granted(run));
        // Others that wait must ask it too: its write may not happen.
        if self.unanswered().next().is_some() {
            self.recalls = RecallNumber(self.recalls.0 + 1);
            let number = self.recalls;
            said.push(Say::Recall { to: run, number });
            for waiting in self.waiting.values_mut() {
                waiting.overtaken += 1;
                waiting.missing.insert(run, number);
                waiting.round = None;
            }
        }
    }

    /// Recalls what others have for this want, or says that it is in vain.
    fn wait(&mut self, run: NodeRun, want: u64, said: &mut Vec<Say>) {
        let full = Say::Full { to: run, want };
        if self.planted == Some(Planted::FullEarly) {
            return said.push(full);
        }
        let known = self.waiting.get(&run);
        if known.is_none_or(|it| it.want != want) {
            // An answered want was another one.
            let going_on = known.filter(|it| !it.is_answered);
            let overtaken = going_on.map_or(0, |it| it.overtaken);
            if going_on.is_none() && self.unanswered().count() >= WAITING_MAX {
                return;
            }
            self.recalls = RecallNumber(self.recalls.0 + 1);
            let number = self.recalls;
            let others = self.accounts.iter();
            let missing = others.filter(|(other, account)| **other != run && account.held() > 0);
            let missing: BTreeMap<_, _> = missing.map(|(other, _)| (*other, number)).collect();
            said.extend(missing.keys().map(|to| Say::Recall { to: *to, number }));
            let waiting = Waiting {
                want,
                missing,
                overtaken,
                round: None,
                is_answered: false,
            };
            self.waiting.insert(run, waiting);
        }
        let next = Round(self.begun.0 + 1);
        let waiting = self.waiting.get_mut(&run).expect("it waits");
        if waiting.missing.is_empty() {
            let round = *waiting.round.get_or_insert(next);
            if self.done >= round {
                waiting.is_answered = true;
                said.push(full);
            }
        }
    }

    fn begin_measuring(&mut self, said: &mut Vec<Say>) {
        let rounds = self.unanswered().filter_map(|(_, it)| it.round);
        let is_needed = rounds.max() > Some(self.begun) || self.is_doubtful;
        let can = self.measuring.is_none() && self.have_claimed();
        if is_needed && can {
            self.begun = Round(self.begun.0 + 1);
            self.measuring = Some(self.measuring_from_now());
            self.is_doubtful = false;
            said.push(Say::Measure(self.begun));
        }
    }

    /// What waits for an answer is said again.
    #[must_use]
    pub fn again(&self) -> Vec<Say> {
        let mut said = Vec::new();
        for (run, waiting) in &self.waiting {
            let (to, want) = (*run, waiting.want);
            said.extend(waiting.is_answered.then_some(Say::Full { to, want }));
            let missing = waiting.missing.iter();
            said.extend(missing.map(|(to, number)| Say::Recall {
                to: *to,
                number: *number,
            }));
        }
        said.extend(self.measuring.map(|it| Say::Measure(it.round)));
        said
    }
}
