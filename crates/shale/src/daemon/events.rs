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
    /// What was wrong at the last look, by subject and message: it is told once.
    wrong: BTreeMap<(String, String), String>,
}

impl Events {
    /// Those that the directory's file has. A file that can't be read is left as it is.
    pub fn open(dir: &Path) -> Self {
        let path = dir.join(FILE);
        let mut kept = Kept::default();
        if let Ok(file) = private::open(std::fs::OpenOptions::new().read(true), &path) {
            for line in BufReader::new(file).lines().map_while(Result::ok) {
                kept.in_file += 1;
                // A line that was torn by a power cut says nothing.
                if let Ok(event) = serde_json::from_str(&line) {
                    kept.add(event);
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
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let end = message.floor_char_boundary(MESSAGE_BYTES_MAX);
        let line = EventLine {
            at: since.map_or(0, |it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
            event: event.into(),
            subject: subject.into(),
            message: message[..end].into(),
        };
        let mut kept = self.kept.lock();
        kept.add(line.clone());
        let written = match kept.in_file >= LINES_MAX {
            true => self.write_anew(&mut kept),
            false => self.append(&mut kept, &line),
        };
        if let Err(error) = written {
            tracing::warn!(%error, path = %self.path.display(), "an event couldn't be kept on disk");
        }
    }

    /// Tells what has become wrong, and what is right again, since the last look. `now`: subject, message, and severity of
    /// what is wrong.
    pub fn compare(&self, now: BTreeMap<(String, String), String>) {
        let before = std::mem::replace(&mut self.kept.lock().wrong, now.clone());
        for ((subject, message), severity) in &now {
            let is_new = !before.keys().any(|(known, _)| known == subject);
            if is_new {
                self.tell(&format!("{severity}-begins"), subject, message);
            }
        }
        for ((subject, message), severity) in &before {
            let is_over = !now.keys().any(|(known, _)| known == subject);
            if is_over {
                self.tell(&format!("{severity}-ends"), subject, message);
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
        writeln!(file, "{}", text_of(line))
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
        for line in &kept.lines {
            writeln!(file, "{}", text_of(line))?;
        }
        kept.in_file = kept.lines.len();
        std::fs::rename(&new, &self.path)
    }
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
        let wrong = |message: &str| {
            BTreeMap::from([(
                ("NSD 1".to_string(), message.to_string()),
                "warning".to_string(),
            )])
        };
        events.compare(wrong("slow"));
        events.compare(wrong("slow"));
        // Numbers in it change.
        events.compare(wrong("slower"));
        events.compare(BTreeMap::new());
        let told: Vec<_> = events.lines().into_iter().map(|it| it.event).collect();
        assert_eq!(told, ["warning-begins", "warning-ends"]);
    }
}
