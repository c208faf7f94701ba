//! `shale lab`: a cluster on this machine, to be tried and broken.

use crate::{
    cli::lab::{Lab as Command, LabNodes, LabSlowDisk, LabUp},
    directory::private,
    lab::{
        cluster::{
            self, Brought, DaemonState, Downed, Lab, NodeState, Step, record::Wanted,
            slow_disk::SlowDisk,
        },
        machine::names::NodeNumber,
    },
    output::{self, say},
};
use model::{Error, ErrorKind, Result};
use serde_json::json;
use std::{
    ffi::OsString,
    io::{Write, stderr},
    os::unix::process::CommandExt,
    path::Path,
    process::ExitCode,
    time::Instant,
};

/// Runs the command.
///
/// # Errors
/// Its refusal.
pub fn lab(command: &Command, json: bool) -> Result<ExitCode> {
    match command {
        Command::Up(arguments) => up(arguments, json),
        Command::Status(dir) => status(&Lab::look(&dir.dir)?, json),
        Command::Kill(nodes) => {
            let (lab, named) = changing(nodes)?;
            let killed = lab.kill(&named)?;
            let dead: Vec<_> = named.iter().filter(|it| !killed.contains(it)).collect();
            let mut text = vec![sentence(&killed, "killed")];
            text.push(sentence(dead, "dead already"));
            done(&lab, &text, json)
        }
        Command::Stop(nodes) => {
            let (lab, named) = changing(nodes)?;
            lab.stop(&named)?;
            done(&lab, &[sentence(&named, "silent")], json)
        }
        Command::Start(nodes) => {
            let (lab, named) = changing(nodes)?;
            lab.start(&named)?;
            done(&lab, &[sentence(&named, "up")], json)
        }
        Command::Partition(nodes) => {
            let (lab, named) = changing(nodes)?;
            lab.partition(&named)?;
            done(&lab, &[sentence(&named, "cut off from the others")], json)
        }
        Command::Heal { dir, nodes } => {
            let lab = Lab::change(&dir.dir)?;
            let healed = lab.heal(&lab.named(nodes)?)?;
            let text = match healed.is_empty() {
                true => "none of them is cut off".into(),
                false => sentence(&healed, "back with the others"),
            };
            done(&lab, &[text], json)
        }
        Command::SlowDisk(arguments) => slow_disk(arguments, json),
        Command::Exec { dir, node, command } => exec(&dir.dir, node, command),
        Command::Down { dir, purge } => {
            let downed = cluster::down(&dir.dir, *purge)?;
            ended(&dir.dir, &downed, json)
        }
    }
}

fn changing(nodes: &LabNodes) -> Result<(Lab, Vec<NodeNumber>)> {
    let lab = Lab::change(&nodes.dir.dir)?;
    let named = lab.named(&nodes.nodes)?;
    Ok((lab, named))
}

/// `n1, n2: what`; nothing for no nodes.
fn sentence<'a>(nodes: impl IntoIterator<Item = &'a NodeNumber>, what: &str) -> String {
    let names: Vec<_> = nodes.into_iter().map(ToString::to_string).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("{}: {what}", names.join(", ")),
    }
}

fn done(lab: &Lab, text: &[String], json: bool) -> Result<ExitCode> {
    if json {
        return status(lab, true);
    }
    for line in text.iter().filter(|line| !line.is_empty()) {
        say!("{line}");
    }
    Ok(ExitCode::SUCCESS)
}

fn up(arguments: &LabUp, json: bool) -> Result<ExitCode> {
    let wanted = Wanted {
        nodes: arguments.nodes,
        nsds_per_node: arguments.nsds_per_node,
        nsd_bytes: arguments.nsd_size,
        scheme: arguments.scheme.as_deref().map(str::parse).transpose()?,
        link_mbit: arguments.link_mbit,
    };
    let begun = Instant::now();
    let hears = |step: Step| {
        if json {
            let progress = json!({
                "phase": step.what, "done": step.done, "total": step.total, "unit": "steps",
            });
            say!("{}", json!({ "progress": progress }));
        } else {
            let (seconds, Step { done, total, what }) = (begun.elapsed().as_secs(), step);
            // Failing to show progress must not end the work.
            let _unseen = writeln!(stderr(), "shale: {done} of {total}: {what} ({seconds} s)");
        }
    };
    let (lab, brought) = cluster::up(&arguments.dir.dir, &wanted, &hears)?;
    if json {
        return status(&lab, true);
    }
    let settings = &lab.record().settings;
    let how = match brought {
        Brought::Made | Brought::Started => "is up",
        Brought::Was => "was up already",
    };
    let shown = lab.dir().display();
    say!(
        "the lab {how}: {} nodes, {}, mounted at {shown}/n1/mnt to {shown}/n{0}/mnt",
        settings.nodes,
        settings.scheme
    );
    say!("  shale lab status --dir {shown}");
    say!(
        "  shale lab kill n{} --dir {shown}      (stop, partition, slow-disk; start, heal)",
        settings.nodes
    );
    say!("  shale lab exec n1 --dir {shown} -- shale status");
    say!("  shale lab down --dir {shown}          (--purge removes the data as well)");
    Ok(ExitCode::SUCCESS)
}

fn slow_disk(arguments: &LabSlowDisk, json: bool) -> Result<ExitCode> {
    let (lab, named) = changing(&arguments.nodes)?;
    let how = SlowDisk {
        read_mbit: arguments.read_mbit,
        write_mbit: arguments.write_mbit,
        latency_ms: arguments.latency_ms,
    };
    lab.slow_disk(&named, how)?;
    let text = match how.is_none() {
        true => "disks as quick as they are".to_owned(),
        false => format!("slow disks, {}", how.sentence()),
    };
    done(&lab, &[sentence(&named, &text)], json)
}

/// Becomes the command.
fn exec(dir: &Path, node: &str, command: &[OsString]) -> Result<ExitCode> {
    let lab = Lab::look(dir)?;
    let node = lab.named(&[node.to_owned()])?[0];
    let state = lab.state()?.swap_remove(node.0 as usize - 1);
    lab.enter(node)?;
    // The way into a mount that nobody serves may never end.
    let is_served = state.mounted && state.state == DaemonState::Running;
    let (program, arguments) = command.split_first().expect("clap wants a command");
    private::restore_umask();
    let error = std::process::Command::new(program)
        .args(arguments)
        .env("SHALE_DIR", lab.node_dir(node))
        .current_dir(if is_served { state.mount } else { state.dir })
        .exec();
    let text = format!("{error}; is it installed, and is its name right?");
    Err(Error::new(ErrorKind::NotFound, text).while_doing(format!(
        "running {} on {node}",
        Path::new(program).display()
    )))
}

fn ended(dir: &Path, downed: &Downed, json: bool) -> Result<ExitCode> {
    if json {
        let not_synced: Vec<_> = downed.not_synced.iter().map(ToString::to_string).collect();
        output::json(&json!({
            "killed": downed.killed, "purged": downed.purged, "not_synced": not_synced,
        }));
        return Ok(ExitCode::SUCCESS);
    }
    let shown = dir.display();
    let data = match downed.purged {
        true => "its data is removed".to_owned(),
        false => format!("data stays in {shown}, if there was any"),
    };
    say!(
        "no lab runs in {shown} any more ({} processes killed); {data}",
        downed.killed
    );
    if !downed.not_synced.is_empty() {
        let text = "couldn't sync: the last seconds of what was written there may be lost";
        say!("{}", sentence(&downed.not_synced, text));
    }
    Ok(ExitCode::SUCCESS)
}

fn status(lab: &Lab, json: bool) -> Result<ExitCode> {
    let nodes = lab.state()?;
    let settings = &lab.record().settings;
    if json {
        output::json(&json!({
            "dir": lab.dir(), "complete": lab.record().complete, "settings": settings,
            "nodes": nodes,
        }));
        return Ok(ExitCode::SUCCESS);
    }
    let link = settings
        .link_mbit
        .map(|it| format!(", links of {it} Mbit/s"))
        .unwrap_or_default();
    say!(
        "{}: {} nodes, {}{link}",
        lab.dir().display(),
        settings.nodes,
        settings.scheme
    );
    if !lab.record().complete {
        say!("it was never finished: `shale lab down --purge` removes it");
    }
    let heading = ["node", "address", "pid", "state", "up", "NSDs", "mount"];
    let rows: Vec<_> = nodes.iter().map(row).collect();
    output::table(&heading, &rows);
    Ok(ExitCode::SUCCESS)
}

fn row(node: &NodeState) -> Vec<String> {
    let nothing = || "–".to_owned();
    let mut state = vec![match node.state {
        DaemonState::Running => "running".to_owned(),
        DaemonState::Silent => "silent".to_owned(),
        DaemonState::Dead => "dead".to_owned(),
    }];
    if let Some(others) = &node.cut_off_with {
        state.push(match others.is_empty() {
            true => "cut off".to_owned(),
            false => format!("cut off with {}", others.join(", ")),
        });
    }
    state.extend(
        node.slow_disk
            .map(|it| format!("slow disks ({})", it.sentence())),
    );
    let mount = node.mount.display();
    vec![
        node.node.clone(),
        node.address.to_string(),
        node.pid.map_or_else(nothing, |pid| pid.to_string()),
        state.join("; "),
        node.up_seconds
            .map_or_else(nothing, |seconds| format!("{seconds} s")),
        node.nsds.to_string(),
        match (node.mounted, node.state) {
            (false, _) => nothing(),
            (true, DaemonState::Dead) => format!("{mount} (nobody serves it)"),
            (true, _) => mount.to_string(),
        },
    ]
}
