//! Runs `ip` and `tc`, and asks the kernel how a lab's network is now.

use super::{
    names::{self, Names, NodeNumber},
    plan::{Batch, Bridges, Tool},
};
use model::{Error, ErrorKind, Result};
use serde::Deserialize;
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use world::program;

/// No change of a network takes longer, even on a loaded machine.
const RUN_MAX: Duration = Duration::from_secs(60);
/// Where administrators' programs are, if the PATH doesn't say.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// The programs that change networks.
#[derive(Clone, Debug)]
pub struct Tools {
    ip: PathBuf,
    tc: PathBuf,
}

/// A line of `ip -json link show`.
#[derive(Deserialize)]
struct Link {
    ifname: String,
    /// The bridge whose port it is.
    master: Option<String>,
}

impl Tools {
    /// Finds them.
    ///
    /// # Errors
    /// `NotFound`, saying what to install.
    pub fn find() -> Result<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<_> = std::env::split_paths(&path)
            .chain(FOLDERS.map(PathBuf::from))
            .collect();
        let find = |name: &str| {
            let mut places = folders.iter().map(|folder| folder.join(name));
            places.find(|place| place.is_file()).ok_or_else(|| {
                let text = format!(
                    "there is no program `{name}` here; install iproute2 (`apt-get install iproute2`)"
                );
                Error::new(ErrorKind::NotFound, text)
            })
        };
        Ok(Self {
            ip: find("ip")?,
            tc: find("tc")?,
        })
    }

    fn command(&self, tool: Tool, namespace: Option<&str>) -> Command {
        let mut command = Command::new(match tool {
            Tool::Ip => &self.ip,
            Tool::Tc => &self.tc,
        });
        if let Some(namespace) = namespace {
            command.args(["-netns", namespace]);
        }
        command
    }

    /// Runs batches in their order.
    ///
    /// # Errors
    /// `Unavailable` with the command that failed and the kernel's reason; those before it are done.
    pub fn run(&self, batches: &[Batch]) -> Result<()> {
        batches.iter().try_for_each(|batch| self.run_one(batch))
    }

    fn run_one(&self, batch: &Batch) -> Result<()> {
        let mut command = self.command(batch.tool, batch.namespace.as_deref());
        command.args(["-batch", "-"]);
        let input = batch.lines.join("\n") + "\n";
        let ended = program::run(&mut command, &input, RUN_MAX)?;
        if ended.status.success() {
            return Ok(());
        }
        let tool = match batch.tool {
            Tool::Ip => "ip",
            Tool::Tc => "tc",
        };
        let shown = match &batch.namespace {
            Some(namespace) => format!("{tool} -netns {namespace}"),
            None => tool.to_owned(),
        };
        let (why, line) = failure(&ended.complaint, &batch.lines);
        Err(Error::new(ErrorKind::Unavailable, why).while_doing(format!("`{shown} {line}`")))
    }

    /// The bridge that each node's port in the hub is on.
    ///
    /// # Errors
    /// `Unavailable` if there is no hub, or it can't be asked.
    pub fn bridges(&self, names: &Names) -> Result<Bridges> {
        let mut command = self.command(Tool::Ip, Some(&names.hub()));
        command.args(["-json", "link", "show"]);
        let ended = program::run(&mut command, "", RUN_MAX)?;
        let asked = || format!("asking for the links of the lab's hub, {}", names.hub());
        if !ended.status.success() {
            let text = ended.complaint.trim().to_owned();
            return Err(Error::new(ErrorKind::Unavailable, text).while_doing(asked()));
        }
        let links: Vec<Link> = serde_json::from_str(&ended.output).map_err(|error| {
            Error::new(ErrorKind::Unavailable, error.to_string()).while_doing(asked())
        })?;
        let ports = links.into_iter().filter_map(|link| {
            let node: NodeNumber = link.ifname.parse().ok()?;
            Some((node, link.master?))
        });
        Ok(ports.collect())
    }

    /// Removes a lab's namespaces; their links and bridges go with them. Nothing may run there.
    ///
    /// # Errors
    /// `Unavailable` with the kernel's reason.
    pub fn remove(&self, names: &Names) -> Result<()> {
        let lines: Vec<_> = namespaces(names)?
            .iter()
            .map(|name| format!("netns delete {name}"))
            .collect();
        if lines.is_empty() {
            return Ok(());
        }
        self.run(&[Batch {
            tool: Tool::Ip,
            namespace: None,
            lines,
        }])
    }
}

/// The namespaces of a lab that exist.
///
/// # Errors
/// `Unavailable` if their folder can't be read.
pub fn namespaces(names: &Names) -> Result<Vec<String>> {
    let folder = names::folder();
    let failed = |error: io::Error| unreadable(&error, folder);
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        // No namespace was ever made.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        if names.has(&name) {
            found.extend(name.into_string());
        }
    }
    found.sort();
    Ok(found)
}

fn unreadable(error: &io::Error, path: &Path) -> Error {
    Error::new(ErrorKind::Unavailable, error.to_string())
        .while_doing(format!("reading {}", path.display()))
}

/// Why a batch ended early, and at which line, from what the tool said: the reason, and in a line of
/// its own `Command failed -:LINE`.
fn failure<'a>(complaint: &str, lines: &'a [String]) -> (String, &'a str) {
    let (said, at): (Vec<_>, Vec<_>) = complaint
        .lines()
        .map(|line| (line, line.strip_prefix("Command failed -:")))
        .partition(|(_, at)| at.is_none());
    let said: Vec<_> = said.into_iter().map(|(line, _)| line).collect();
    let at = at
        .first()
        .and_then(|(_, at)| at.and_then(|at| at.parse::<usize>().ok()));
    let line = at.and_then(|at| lines.get(at.checked_sub(1)?));
    (said.join("; "), line.map_or("-batch -", String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_line_of_a_batch_is_named_with_the_reason() {
        let lines = ["link set lo up".to_owned(), "link set x up".to_owned()];
        let said = "Cannot find device \"x\"\nCommand failed -:2\n";
        let told = ("Cannot find device \"x\"".to_owned(), "link set x up");
        assert_eq!(failure(said, &lines), told);
        assert_eq!(failure("oh\nno\n", &lines), ("oh; no".into(), "-batch -"));
        assert_eq!(failure("Command failed -:9", &lines).1, "-batch -");
    }
}
