//! A server's half: what it shall do, how far it has come, and what the manager hasn't heard yet.

use super::{
    Assignment, Attempt, Cursor, FINISHED_MAX, Finished, JobId, Orders, Outcome, REMEMBERED_MAX,
    Running, Stamp, Statement,
};
use crate::planted::Planted;
use model::Moment;
use model::member::Term;
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Job {
    assignment: Assignment,
    at: Cursor,
    bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Ended {
    stamp: Stamp,
    attempt: Attempt,
    outcome: Outcome,
    at: Moment,
    /// The first statement that said so.
    said: Option<u64>,
    is_heard: bool,
}

/// The jobs of one server in one pool. It remembers the last one of each kind and group that it has
/// ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Worker {
    term: Term,
    /// Of the newest orders.
    ordered: u64,
    number: u64,
    jobs: BTreeMap<JobId, Job>,
    ended: BTreeMap<JobId, Ended>,
    planted: Option<Planted>,
}

impl Worker {
    /// A fault for a test.
    pub fn plant(&mut self, fault: Planted) {
        self.planted = Some(fault);
    }

    /// What is to be done now, and where each job goes on. What isn't in it any more is to be stopped.
    pub fn jobs(&self) -> impl Iterator<Item = (Assignment, Cursor)> {
        self.jobs.values().map(|job| (job.assignment, job.at))
    }

    /// A job has come this far, after so many more bytes; all before it is durable. Counts for nothing
    /// if it isn't to be done any more.
    pub fn advance(&mut self, job: JobId, attempt: Attempt, at: Cursor, bytes: u64) {
        let known = self.jobs.get_mut(&job);
        if let Some(known) = known.filter(|it| it.assignment.attempt == attempt) {
            known.at = known.at.max(at);
            known.bytes += bytes;
        }
    }

    /// A job has ended.
    pub fn end(&mut self, job: JobId, attempt: Attempt, outcome: Outcome, now: Moment) {
        let known = self.jobs.get(&job);
        let Some(known) = known.filter(|it| it.assignment.attempt == attempt) else {
            return;
        };
        let ended = Ended {
            stamp: known.assignment.stamp,
            attempt,
            outcome,
            at: now,
            said: None,
            is_heard: false,
        };
        self.jobs.remove(&job);
        if self.ended.len() >= REMEMBERED_MAX && !self.ended.contains_key(&job) {
            let oldest = self.ended.iter().min_by_key(|(_, it)| it.at);
            let oldest = oldest.map(|(job, _)| *job);
            oldest.and_then(|oldest| self.ended.remove(&oldest));
        }
        self.ended.insert(job, ended);
    }

    /// What to say now, to be said again until it is answered. Of what it has ended a statement has at
    /// most [`FINISHED_MAX`]: the rest comes when these were heard.
    pub fn state(&mut self, now: Moment) -> Statement {
        self.number += 1;
        let number = self.number;
        let mut unheard = self.ended.iter_mut().filter(|(_, it)| !it.is_heard);
        let finished = unheard.by_ref().take(FINISHED_MAX).map(|(job, ended)| {
            ended.said.get_or_insert(number);
            Finished {
                job: *job,
                stamp: ended.stamp,
                attempt: ended.attempt,
                outcome: ended.outcome,
                ago: now.since(ended.at),
            }
        });
        let finished = finished.collect();
        let has_more = unheard.next().is_some();
        let running = self.jobs.iter().map(|(job, known)| Running {
            job: *job,
            stamp: known.assignment.stamp,
            attempt: known.assignment.attempt,
            at: known.at,
            bytes: known.bytes,
        });
        Statement {
            term: self.term,
            number,
            running: running.collect(),
            finished,
            has_more,
        }
    }

    /// The manager has answered.
    pub fn ordered(&mut self, orders: &Orders) {
        let is_new_manager = orders.term > self.term;
        let is_newer = is_new_manager || (orders.term == self.term && orders.number > self.ordered);
        if !is_newer {
            return;
        }
        self.ordered = orders.number;
        self.term = orders.term;
        for ended in self.ended.values_mut() {
            if is_new_manager {
                (ended.said, ended.is_heard) = (None, false);
            } else if ended.said.is_some_and(|said| said <= orders.heard) {
                ended.is_heard = true;
            }
        }
        let before = std::mem::take(&mut self.jobs);
        for assignment in &orders.assignments {
            let job = assignment.job;
            // The manager hasn't heard yet that it has ended.
            let ended = self.ended.get(&job);
            if ended.is_some_and(|ended| ended.attempt == assignment.attempt) {
                continue;
            }
            let known = before.get(&job);
            let known = known.filter(|it| it.assignment.attempt == assignment.attempt);
            let mut next = known.copied().unwrap_or(Job {
                assignment: *assignment,
                at: assignment.from,
                bytes: 0,
            });
            next.assignment.bytes_per_second = assignment.bytes_per_second;
            self.jobs.insert(job, next);
        }
    }
}
