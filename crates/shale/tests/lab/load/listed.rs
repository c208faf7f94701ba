//! Programs that wait for long show in `shale waiters` of their node, whatever they wait for.

use super::{Load, has_waited, shown};
use crate::lab::fixture::Lab;
use serde_json::Value;
use std::{fs, time::Duration};

/// Whoever has waited for longer must show. What an operation waits for shows after a second, and it may wait for several
/// things in turn.
const LISTED_AFTER: Duration = Duration::from_secs(5);

impl Load {
    /// Each program on these nodes, whose daemons live, that has waited for so long must be in its node's `waiters`.
    /// Looks at each wait until it has been there.
    #[track_caller]
    pub(crate) fn must_be_listed(&mut self, lab: &Lab, nodes: &[u32]) {
        for node in nodes {
            let waiting = self.look(&[*node]).into_iter().filter(|program| {
                has_waited(program, LISTED_AFTER) && !self.listed.contains(&name_of_wait(program))
            });
            let mut missing: Vec<Value> = waiting.collect();
            let mut said = Value::Null;
            // A wait that ends before the node is asked isn't there: what is missing twice, and goes on, is hidden.
            for _ in 0..2 {
                if missing.is_empty() {
                    break;
                }
                said = lab.ask(*node, &["waiters"]);
                missing.retain(|program| {
                    let is_there = is_listed(program, &said);
                    if is_there {
                        self.listed.insert(name_of_wait(program));
                    }
                    !is_there
                });
                let now = self.look(&[*node]);
                missing.retain(|program| now.iter().any(|it| is_same(it, program)));
            }
            missing.retain(|program| !waits_for_another(program));
            let missing = shown(&missing);
            assert!(missing.is_empty(), "n{node}: {missing}\nin: {said}");
        }
    }
}

/// Each of a program's operations has another one.
fn name_of_wait(program: &Value) -> String {
    format!("{} {}", program["program"], program["operations"])
}

fn is_listed(program: &Value, said: &Value) -> bool {
    let thread = format!(" of process {} on inode ", program["thread"]);
    let mut lines = said.as_array().into_iter().flatten();
    lines.any(|line| line["what"].as_str().is_some_and(|it| it.contains(&thread)))
}

/// Whether a program is at the operation still at which it was.
fn is_same(now: &Value, before: &Value) -> bool {
    !now["doing"].is_null() && name_of_wait(now) == name_of_wait(before)
}

/// Whether a program waits in the kernel for another one, which shows: when two want the same name it asks once.
fn waits_for_another(program: &Value) -> bool {
    let stack = fs::read_to_string(format!("/proc/{}/stack", program["thread"]));
    stack.is_ok_and(|stack| !stack.is_empty() && !stack.contains("fuse"))
}
