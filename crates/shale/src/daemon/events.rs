//! What happened on this node, for `shale events`: kept in a file of the node's directory, bounded, so that it is still
//! there after a restart.

use crate::admin::EventLine;
use crate::directory::private;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The file, one JSON object on each line.
const FILE: &str = "events.jsonl";
/// Events that are kept.
const KEPT_MAX: usize = 2_000;
/// The file is written anew when it has so many lines.
const LINES_MAX: usize = 2 * KEPT_MAX;
/// Longest message that is kept.
const MESSAGE_BYTES_MAX: usize = 1_024;

/// The events of this node.
pub struct Events {
    path: PathBuf,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    lines: VecDeque<EventLine>,
    in_file: usize,
    /// The file lacks lines, or ends within one: it is written anew with the next event.
    is_torn: bool,
    /// What was wrong at the last look: it is told once.
    wrong: Wrong,
}

/// What is wrong, by subject and message.
pub type Wrong = BTreeMap<(String, String), Problem>;

/// How bad something is that is wrong, and what to do about it.
#[derive(Clone)]
pub struct Problem {
    /// `warning` or `critical`.
    pub severity: String,
    /// What to do.
    pub remedy: String,
}

impl Events {
    /// Those that the directory's file has. A file that can't be read is left as it is.
    pub fn open(dir: &Path) -> Self {
        let path = dir.join(FILE);
        let mut kept = Kept::default();
        if let Ok(file) = private::open(std::fs::OpenOptions::new().read(true), &path) {
            for line in BufReader::new(file).split(b'\n').map_while(Result::ok) {
                kept.in_file += 1;
                // A line that was torn by a power cut says nothing.
                match serde_json::from_slice(&line) {
                    Ok(event) => kept.add(event),
                    Err(_) => kept.is_torn = true,
                }
            }
        }
        Self {
            path,
            kept: Mutex::new(kept),
        }
    }

    /// Keeps an event.
    pub fn tell(&self, event: &str, subject: &str, message: &str) {
        self.keep(event, subject, message, None);
    }

    fn keep(&self, event: &str, subject: &str, message: &str, remedy: Option<&str>) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let bounded = |text: &str| text[..text.floor_char_boundary(MESSAGE_BYTES_MAX)].to_owned();
        let line = EventLine {
            at: since.map_or(0, |it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
            event: event.into(),
            subject: subject.into(),
            message: bounded(message),
            remedy: remedy.map(bounded),
        };
        let mut kept = self.kept.lock();
        kept.add(line.clone());
        let written = match kept.is_torn || kept.in_file >= LINES_MAX {
            true => self.write_anew(&mut kept),
            false => self.append(&mut kept, &line),
        };
        kept.is_torn = written.is_err();
        if let Err(error) = written {
            tracing::warn!(%error, path = %self.path.display(), "an event couldn't be kept on disk");
        }
    }

    /// Tells what has become wrong, and what is right again, since the last look. `now`: what is wrong. A subject that gets
    /// worse begins to be the worse thing, and one that gets better ends to be it.
    pub fn compare(&self, now: Wrong) {
        let before = std::mem::replace(&mut self.kept.lock().wrong, now.clone());
        let (before, now) = (worst_of(&before), worst_of(&now));
        for (subject, (severity, message, remedy)) in &now {
            let known = before.get(subject).map(|(known, ..)| *known);
            if known.is_none_or(|known| known < *severity) {
                let begins = format!("{}-begins", severity.0);
                self.keep(&begins, subject, message, Some(*remedy));
            }
        }
        for (subject, (severity, message, _)) in &before {
            let left = now.get(subject).map(|(left, ..)| *left);
            if left.is_none_or(|left| left < *severity) {
                self.tell(&format!("{}-ends", severity.0), subject, message);
            }
        }
    }

    /// All that are kept, oldest first.
    pub fn lines(&self) -> Vec<EventLine> {
        self.kept.lock().lines.iter().cloned().collect()
    }

    fn append(&self, kept: &mut Kept, line: &EventLine) -> std::io::Result<()> {
        let mut file = private::open(
            std::fs::OpenOptions::new().create(true).append(true),
            &self.path,
        )?;
        kept.in_file += 1;
        file.write_all(format!("{}\n", text_of(line)).as_bytes())
    }

    fn write_anew(&self, kept: &mut Kept) -> std::io::Result<()> {
        let new = self.path.with_extension("new");
        let mut file = private::open(
            std::fs::OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true),
            &new,
        )?;
        file.set_len(0)?;
        let lines = kept.lines.iter().map(|line| text_of(line) + "\n");
        file.write_all(lines.collect::<String>().as_bytes())?;
        // Without it a power cut could leave a file without lines under the name.
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        kept.in_file = kept.lines.len();
        Ok(())
    }
}

/// A severity, which sorts by how bad it is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Severity<'a>(&'a str);

impl PartialOrd for Severity<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        let rank = |it: &Self| u8::from(it.0 == "critical");
        Some(rank(self).cmp(&rank(other)))
    }
}

/// How bad the worst is that is wrong with a subject, what it is, and what to do about it.
type Worst<'a> = (Severity<'a>, &'a str, &'a str);

/// Of each subject the worst that is wrong with it.
fn worst_of(wrong: &Wrong) -> BTreeMap<&str, Worst<'_>> {
    let mut worst: BTreeMap<&str, Worst<'_>> = BTreeMap::new();
    for ((subject, message), Problem { severity, remedy }) in wrong {
        let found = (Severity(severity), message.as_str(), remedy.as_str());
        let known = worst.entry(subject.as_str()).or_insert(found);
        if known.0 < found.0 {
            *known = found;
        }
    }
    worst
}

impl Kept {
    fn add(&mut self, line: EventLine) {
        if self.lines.len() >= KEPT_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
}

fn text_of(line: &EventLine) -> String {
    serde_json::to_string(line).expect("an event is plain data")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(subject: &str, message: &str, severity: &str) -> ((String, String), Problem) {
        let problem = Problem {
            severity: severity.into(),
            remedy: format!("mend {subject}"),
        };
        ((subject.into(), message.into()), problem)
    }

    #[test]
    fn events_are_still_there_after_a_restart_and_never_more_than_the_maximum() {
        let home = tempfile::tempdir().unwrap();
        let events = Events::open(home.path());
        for number in 0..LINES_MAX + 10 {
            events.tell("test", &number.to_string(), "happened");
        }
        let newest = (LINES_MAX + 9).to_string();
        assert_eq!(events.lines().last().unwrap().subject, newest);
        let again = Events::open(home.path());
        assert_eq!(again.lines().len(), KEPT_MAX);
        assert_eq!(again.lines().last().unwrap().subject, newest);
        let file = std::fs::read_to_string(home.path().join(FILE)).unwrap();
        assert!(file.lines().count() <= LINES_MAX);
    }

    #[test]
    fn what_stays_wrong_is_told_once_and_its_end_too() {
        let home = tempfile::tempdir().unwrap();
        let events = Events::open(home.path());
        let wrong = |message: &str| BTreeMap::from([problem("NSD 1", message, "warning")]);
        events.compare(wrong("slow"));
        events.compare(wrong("slow"));
        // Numbers in it change.
        events.compare(wrong("slower"));
        events.compare(BTreeMap::new());
        let lines = events.lines();
        let told: Vec<_> = lines.iter().map(|it| it.event.as_str()).collect();
        assert_eq!(told, ["warning-begins", "warning-ends"]);
        // What can be done is told with it, and kept.
        let remedies = |lines: &[EventLine]| {
            let all = lines.iter().map(|it| it.remedy.clone());
            all.collect::<Vec<_>>()
        };
        let expected = [Some("mend NSD 1".to_owned()), None];
        assert_eq!(remedies(&lines), expected);
        assert_eq!(remedies(&Events::open(home.path()).lines()), expected);
    }

    #[test]
    fn what_gets_worse_and_better_again_is_told() {
        let home = tempfile::tempdir().unwrap();
        let events = Events::open(home.path());
        let wrong = |severities: &[&str]| {
            let one = |severity: &&str| problem("space", &format!("is {severity}"), severity);
            severities.iter().map(one).collect::<Wrong>()
        };
        events.compare(wrong(&["warning"]));
        events.compare(wrong(&["critical", "warning"]));
        events.compare(wrong(&["critical"]));
        events.compare(wrong(&["warning"]));
        events.compare(BTreeMap::new());
        let told = events.lines().into_iter().map(|it| (it.event, it.message));
        let told: Vec<_> = told.collect();
        let expected = [
            ("warning-begins", "is warning"),
            ("critical-begins", "is critical"),
            ("critical-ends", "is critical"),
            ("warning-ends", "is warning"),
        ];
        let expected = expected.map(|(event, message)| (event.to_string(), message.to_string()));
        assert_eq!(told, expected);
    }

    #[test]
    fn a_line_that_could_not_be_written_or_was_torn_costs_no_other_line() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(FILE);
        let events = Events::open(home.path());
        events.tell("first", "a", "written");
        // Nobody can append to a directory.
        std::fs::rename(&file, home.path().join("aside")).unwrap();
        std::fs::create_dir(&file).unwrap();
        events.tell("second", "a", "couldn't be written");
        std::fs::remove_dir(&file).unwrap();
        std::fs::rename(home.path().join("aside"), &file).unwrap();
        // As if it had been written in part.
        let mut torn = std::fs::File::options().append(true).open(&file).unwrap();
        torn.write_all(b"{\"at\":1,\xff").unwrap();
        events.tell("third", "a", "written");
        let names = |events: &Events| {
            let lines = events.lines().into_iter();
            lines.map(|it| it.event).collect::<Vec<_>>()
        };
        assert_eq!(
            names(&Events::open(home.path())),
            ["first", "second", "third"]
        );
        // A power cut tears the last line; the next daemon goes on below it.
        torn = std::fs::File::options().append(true).open(&file).unwrap();
        torn.write_all(b"{\"at\":1,\xff").unwrap();
        let again = Events::open(home.path());
        again.tell("fourth", "a", "written");
        let expected = ["first", "second", "third", "fourth"];
        assert_eq!(names(&again), expected);
        assert_eq!(names(&Events::open(home.path())), expected);
    }
}
