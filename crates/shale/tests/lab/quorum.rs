//! A lab without one of its members of etcd, and without most of them.

use super::{
    etcd,
    faults::{others, until_whole},
    fixture::Lab,
    load::{Load, Pauses},
};
use crate::fixture::{chains, figure, signals::signal};
use model::member::NODE_LEASE;
use rustix::process::Signal;
use sim::by_suite;
use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Runs when there is time.
const RUNS: usize = 10;
/// A program that has waited for so long isn't only slow.
const WAITS: Duration = Duration::from_secs(2);
/// Longer than programs wait for anything else.
const LONG: Duration = Duration::from_secs(100);
/// Files that each program makes while a member is away: elections take one or two seconds.
const FILES: u64 = 20;
/// Files that each program makes when all members are back.
const FILES_AFTERWARDS: u64 = 5;

/// A member of etcd.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Member {
    /// The one that leads.
    Leader,
    /// Another one.
    Follower,
}

/// One member gets no more time: the others go on without it. Returns how long programs were held up, and the shortest rest of a
/// lease that a node has told of, in milliseconds.
#[track_caller]
fn lose_one(lab: &Lab, nodes: &[u32], member: Member) -> (Pauses, u64) {
    let leader = lab.until("a member leads", || etcd::leader(lab));
    let lost = match member {
        Member::Leader => leader,
        Member::Follower => others(nodes, &[leader])[0],
    };
    let process = etcd::process(lab, lost);
    let mut shortest = u64::MAX;
    let mut look = || {
        let told = nodes.iter().filter_map(|node| standing(lab, *node).ok());
        shortest = told.map(|(lease, _)| lease).fold(shortest, u64::min);
    };
    let before = (runs_of(lab, nodes), owner_of(lab, nodes[0]));
    let mut load = Load::start(lab, nodes);
    load.mark();
    signal(process, Signal::STOP);
    let begun = Instant::now();
    match member {
        Member::Leader => lab.until("another member leads", || match etcd::leader(lab)? {
            found if found == leader => Err("it still does".into()),
            _ => Ok(()),
        }),
        Member::Follower => lab.until("all leases are newer", || {
            look();
            has_lasted(begun, 2 * NODE_LEASE)
        }),
    }
    load.gets_on_while(nodes, FILES, |_| look());
    let pauses = load.pauses(nodes);
    signal(process, Signal::CONT);
    load.end(nodes);
    let after = (runs_of(lab, nodes), owner_of(lab, nodes[0]));
    assert_eq!(
        after, before,
        "no node had to join again, and none has lost the shard"
    );
    load.must_be_seen(lab, nodes);
    load.remove(lab, nodes[0]);
    (pauses, shortest)
}

/// Loses a member so many times; how others felt that is a figure.
#[track_caller]
fn lose_each(lab: &Lab, nodes: &[u32], member: Member, runs: usize) {
    if runs == 0 {
        return;
    }
    let (mut worst, mut shortest) = (Pauses::default(), u64::MAX);
    for _ in 0..runs {
        let (pauses, lease) = lose_one(lab, nodes, member);
        // An election may take a slow machine longer than a lease lasts.
        assert!(member == Member::Leader || lease > 0, "a lease ran out");
        worst.add(&pauses);
        shortest = shortest.min(lease);
        until_whole(lab);
    }
    let name = match member {
        Member::Leader => "etcd's leader",
        Member::Follower => "a member of etcd that doesn't lead",
    };
    figure(&format!(
        "lab: {name} silent: longest operations {worst}, worst of {runs}; leases lasted {shortest} ms at least"
    ));
}

/// Whether what began then has lasted for so long.
fn has_lasted(begun: Instant, least: Duration) -> Result<(), String> {
    let lasted = begun.elapsed();
    (lasted >= least)
        .then_some(())
        .ok_or_else(|| format!("{lasted:?}"))
}

/// The rest of a node's lease, in milliseconds, and its run.
fn standing(lab: &Lab, node: u32) -> Result<(u64, u64), String> {
    let status = lab.ask(node, &["status"]);
    let cluster = &status["cluster"];
    let number = |what: &str| cluster[what].as_u64().ok_or_else(|| status.to_string());
    Ok((number("lease_milliseconds")?, number("incarnation")?))
}

/// The runs of nodes: one that has joined again has another one.
pub(crate) fn runs_of(lab: &Lab, nodes: &[u32]) -> Vec<u64> {
    let run = |node: &u32| lab.until("a node tells its run", || standing(lab, *node));
    nodes.iter().map(run).map(|(_, run)| run).collect()
}

/// The node that owns the shard.
fn owner_of(lab: &Lab, asked: u32) -> u64 {
    lab.until("a node owns the shard", || {
        let view = lab.ask(asked, &["cluster", "show"]);
        let owner = view["file_systems"][0]["owner"].as_u64();
        owner.ok_or_else(|| view.to_string())
    })
}

/// Whether a node shows such a way, from a wait of its own to the end of that one's chain.
fn shows(lab: &Lab, node: u32, is_told: impl Fn(&[chains::Link]) -> bool) -> Result<(), String> {
    let waiters = lab.ask(node, &["waiters", "--all"]);
    let ways = chains::from(&waiters, node.into());
    ways.iter()
        .any(|way| is_told(way))
        .then_some(())
        .ok_or_else(|| format!("n{node}: {waiters}"))
}

/// Whether a node shows that a program there waits because nobody may serve without a quorum, and what helps.
fn shows_waiters(lab: &Lab, node: u32) -> Result<(), String> {
    shows(lab, node, |way| {
        let (first, last) = (&way[0], &way[way.len() - 1]);
        let causes = ["it has no lease: ", "the cluster has no manager: "];
        let helps = last.remedy.as_deref().unwrap_or_default();
        first.text.contains(" of process ")
            && causes.iter().any(|cause| last.text.starts_with(cause))
            && helps.starts_with("see that most of the quorum nodes run")
    })
}

/// A program of a node that waits in a system call, and has got a signal there that it handles.
struct Signalled {
    program: Child,
    /// What it makes.
    made: PathBuf,
}

/// Opens a file, without another process, and says what it has heard and done.
const OPENS: &str = r#"trap 'echo heard' USR1; : > "$1" && echo made"#;

/// Waits until a program has ended, however.
#[track_caller]
fn until_ended(lab: &Lab, what: &str, program: &mut Child) {
    lab.until(what, || match program.try_wait() {
        Ok(Some(_)) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

impl Signalled {
    /// Three programs wait on a node, and this one does afterwards: the others end, of which one is told to, and one handles a
    /// signal and is killed then.
    #[track_caller]
    fn all_but_one_end(lab: &Lab, node: u32) -> Self {
        let start = |name: &str| {
            let path = lab.path(node, name);
            let mut command = Command::new("sh");
            command.args(["-c", OPENS, "sh"]).arg(path);
            command.stdout(Stdio::piped()).spawn().unwrap()
        };
        let programs = ["stopped", "killed", "goes-on"].map(start);
        let pids = programs
            .each_ref()
            .map(|it| i32::try_from(it.id()).unwrap());
        for pid in pids {
            let request = format!(" of process {pid} ");
            lab.until("a program waits", || {
                shows(lab, node, |way| way[0].text.contains(&request))
            });
        }
        let [to_stop, to_kill, goes_on] = pids;
        signal(goes_on, Signal::USR1);
        // The kernel tells the daemon of a program's first signal only.
        signal(to_kill, Signal::USR1);
        signal(to_kill, Signal::KILL);
        signal(to_stop, Signal::TERM);
        let [mut stopped, mut killed, program] = programs;
        for ended in [&mut stopped, &mut killed] {
            until_ended(lab, "a killed program ends", ended);
        }
        Self {
            program,
            made: lab.path(node, "goes-on"),
        }
    }

    /// It still waits.
    #[track_caller]
    fn must_wait(&mut self) {
        let ended = self.program.try_wait().unwrap();
        assert!(ended.is_none(), "a signal that it handles ended its wait");
    }

    /// It has heard its signal and gone on.
    #[track_caller]
    fn must_go_on(mut self, lab: &Lab) {
        // Before what it has said is read, for which nothing sets a limit. It says so little that the pipe has room for it.
        until_ended(lab, "a program goes on", &mut self.program);
        let output = self.program.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert!(said.contains("heard") && said.contains("made"), "{said}");
        fs::remove_file(self.made).unwrap();
    }
}

/// Two of three members get no more time, until nobody has a lease and all programs wait, and for so long at least; then they
/// go on. Programs that are killed meanwhile end. Returns for how long most members were away, and how soon each program had
/// made a file after that.
#[track_caller]
fn lose_most(lab: &Lab, nodes: &[u32], least: Duration) -> (Duration, Duration) {
    let runs = runs_of(lab, nodes);
    let members = [nodes[0], nodes[1]].map(|node| etcd::process(lab, node));
    let mut load = Load::start(lab, nodes);
    let begun = Instant::now();
    for member in members {
        signal(member, Signal::STOP);
    }
    // Under held leases work goes on: some program begins a file and ends it. There are two on each node.
    let before = load.files(nodes);
    lab.until("work goes on", || {
        let more = load.files(nodes) - before;
        (more > 2 * nodes.len() as u64)
            .then_some(())
            .ok_or_else(|| format!("{more} files more"))
    });
    lab.until("no node has a lease", || {
        for node in nodes {
            let (lease, _) = standing(lab, *node)?;
            if lease > 0 {
                return Err(format!("n{node} has {lease} ms"));
            }
        }
        Ok(())
    });
    lab.until("all programs wait", || load.all_wait(nodes, WAITS));
    let answered = load.operations(nodes);
    for node in nodes {
        lab.until("waiters are shown", || shows_waiters(lab, *node));
    }
    let mut signalled = Signalled::all_but_one_end(lab, nodes[2]);
    lab.until("it is away for long", || has_lasted(begun, least));
    assert_eq!(
        load.operations(nodes),
        answered,
        "nobody answers without a lease, and nobody is told an error"
    );
    signalled.must_wait();

    let away = begun.elapsed();
    let back = Instant::now();
    for member in members {
        signal(member, Signal::CONT);
    }
    load.gets_on(nodes, 1);
    let waited = back.elapsed();
    load.gets_on(nodes, FILES_AFTERWARDS);
    signalled.must_go_on(lab);
    load.end(nodes);
    load.must_be_seen(lab, nodes);
    load.remove(lab, nodes[0]);
    assert_eq!(runs_of(lab, nodes), runs, "no node had to join again");
    (away, waited)
}

#[test]
fn a_lost_member_of_etcd_holds_nobody_up_and_without_a_quorum_work_waits() {
    let Some(lab) = Lab::up(3, "erasure(2+1)") else {
        return;
    };
    until_whole(&lab);
    let nodes = lab.nodes();
    let runs = by_suite(1, RUNS);
    lose_each(&lab, &nodes, Member::Leader, runs);
    lose_each(&lab, &nodes, Member::Follower, by_suite(0, RUNS));
    let mut worst = (Duration::ZERO, Duration::ZERO);
    for run in 1..=runs {
        let least = match run == RUNS {
            true => LONG,
            false => Duration::ZERO,
        };
        let (away, waited) = lose_most(&lab, &nodes, least);
        worst = (worst.0.max(away), worst.1.max(waited));
        until_whole(&lab);
    }
    figure(&format!(
        "lab: etcd without a quorum for {:.1} s: all work went on {:.1} s after it was back, worst of {runs}",
        worst.0.as_secs_f64(),
        worst.1.as_secs_f64()
    ));
}
