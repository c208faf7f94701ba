//! Checks that `make fuzz` finds every fuzz target, which it selects by how their names begin, and that all that nodes say to
//! each other has one, and all that is said over the socket of a daemon.

use super::{all_rust_files, name_of, root};
use std::collections::BTreeSet;
use std::fs;

/// How the names of targets begin.
const BEGINNINGS: [&str; 2] = ["any_", "whatever_"];

/// Names of the functions of a file that run a target; if a macro makes them, those that it is given.
fn targets(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fuzz!(") {
        let function = code[..at].rsplit_once("fn ").map_or("", |(_, rest)| rest);
        match function.split('(').next().unwrap_or("") {
            "$name" => found.extend(code.split("fn ").filter_map(|rest| {
                let (name, rest) = rest.split_once("()")?;
                let is_given = rest.starts_with(" for ") && !name.starts_with('$');
                is_given.then_some(name)
            })),
            name => found.push(name),
        }
    }
    found
}

#[test]
fn every_fuzz_target_is_found_by_its_name_and_its_crate() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    for beginning in BEGINNINGS {
        assert!(makefile.contains(&format!(" ::{beginning}")), "{beginning}");
    }
    let (_, crates) = makefile.split_once("CRATES ?= ").unwrap();
    let crates: Vec<&str> = crates.lines().next().unwrap().split(' ').collect();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for path in all_rust_files() {
        let name = name_of(&path);
        let of_crate = name.split('/').nth(1).unwrap();
        // The one's tests run targets that fail, and this file has them as texts.
        if of_crate == "fuzzing" || name.ends_with("tidy/fuzz_targets.rs") {
            continue;
        }
        let code = fs::read_to_string(&path).unwrap();
        for target in targets(&code) {
            seen += 1;
            let is_named = BEGINNINGS.iter().any(|it| target.starts_with(it));
            if !is_named || !crates.contains(&of_crate) {
                wrong.push(format!("{name}: {target}"));
            }
        }
    }
    assert!(seen > 80, "the walk found the targets: {seen}");
    assert!(wrong.is_empty(), "`make fuzz` runs none of {wrong:?}");
}

/// The file with the targets of messages.
const MESSAGES: &str = "crates/model/tests/messages.rs";

/// Each method between nodes, as what its requests are read, and as what its answers. Requests for nothing aren't read.
const METHODS: [(&str, &str, &str); 16] = [
    ("NSD_METHOD", "AddressedRequest", "NsdAnswer"),
    ("OWNER", "OwnerCall", "OwnerReply"),
    ("HEARTBEAT", "Heartbeat", "HeartbeatReply"),
    ("ATTEND", "Attend", "()"),
    ("WHO_MANAGES", "()", "Option<KnownManager>"),
    ("UNREACHED", "Unreached", "()"),
    ("HEARD", "NodeRun", "Heard"),
    ("REACHES_BACK", "()", "bool"),
    ("HAS_ENDED", "()", "Option<KnownEnd>"),
    ("SPACE_STATE", "Statement", "Told"),
    ("SPACE_TELL", "Told", "Statement"),
    ("JOBS", "JobsRequest", "JobsReply"),
    ("JOIN", "JoinRequest", "JoinReply"),
    ("RENEW", "RenewRequest", "RenewReply"),
    ("AUTHORITY_KEY", "AuthorityKeyRequest", "AuthorityKey"),
    // Its payloads have targets of their own.
    ("COMMAND", "()", "()"),
];

/// The file with the targets of payloads that nodes read themselves, and these.
const PAYLOADS: &str = "crates/shale/src/daemon/relay.rs";
const OF_PAYLOADS: [&str; 2] = [
    "any_command_of_another_node_is_answered_or_refused",
    "any_answer_of_another_node_is_passed_on_or_unknown",
];

/// Names of the methods that a file gives numbers to.
fn methods(code: &str) -> Vec<&str> {
    let named = code.split("const ").filter_map(|rest| {
        let (name, value) = rest.split_once(": Method = ")?;
        let is_number = value.starts_with("Method(0x") && !name.contains('\n');
        is_number.then_some(name)
    });
    named.collect()
}

#[test]
fn what_every_method_between_nodes_asks_and_answers_has_a_fuzz_target() {
    let mut found = BTreeSet::new();
    for path in all_rust_files() {
        // Tests of connections have methods of their own.
        if name_of(&path).contains("/src/") && !name_of(&path).contains("/tests/") {
            let code = fs::read_to_string(&path).unwrap();
            let named = methods(&code);
            // One without a name couldn't be listed.
            let numbers = code.matches("Method(0x").count();
            assert_eq!(named.len(), numbers, "{}: {named:?}", name_of(&path));
            found.extend(named.into_iter().map(str::to_owned));
        }
    }
    let listed: BTreeSet<String> = METHODS.iter().map(|(name, ..)| (*name).into()).collect();
    assert_eq!(found, listed, "what is asked and answered is listed above");

    let code = fs::read_to_string(root().join(MESSAGES)).unwrap();
    let has_target = |of: &str| code.contains(&format!("() for {of}, "));
    for (name, asks, answers) in METHODS {
        assert!(asks == "()" || has_target(asks), "{name} asks with {asks}");
        let answers = format!("Result<{answers}>");
        assert!(has_target(&answers), "{name} is answered with {answers}");
    }
    let code = fs::read_to_string(root().join(PAYLOADS)).unwrap();
    assert_eq!(targets(&code), OF_PAYLOADS);
}

/// What is said over the socket of a daemon, and the file with its targets.
const ADMIN: &str = "crates/shale/src/admin/";
const OF_ADMIN: &str = "crates/shale/src/admin/tests.rs";

/// Types that serde reads, by name, each with its definition.
fn read_types(code: &str) -> Vec<(&str, &str)> {
    let derived = code.split("#[derive(").skip(1);
    let types = derived.filter_map(|rest| {
        let (derives, rest) = rest.split_once(")]")?;
        let words = ["pub struct ", "pub enum "];
        let (_, named) = words.iter().find_map(|word| rest.split_once(*word))?;
        let (name, _) = named.split_once(|letter: char| !letter.is_ascii_alphanumeric())?;
        let definition = rest.split("\n}\n").next()?;
        derives
            .contains("Deserialize")
            .then_some((name, definition))
    });
    types.collect()
}

/// Types that serde reads for themselves, because no other one has them, and that none of these targets is for.
fn untargeted<'a>(code: &'a str, targets: &str) -> Vec<&'a str> {
    let types = read_types(code);
    let is_within = |name: &str, (other, definition): &(&str, &str)| {
        let mut fields = definition
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        *other != name && fields.any(|line| line.split(|it| !is_part(it)).any(|word| word == name))
    };
    let names = types.iter().map(|(name, _)| *name);
    let left = names.filter(|name| {
        let has_target = targets.contains(&format!("() for {name};"));
        !has_target && !types.iter().any(|other| is_within(name, other))
    });
    left.collect()
}

#[test]
fn what_is_said_over_the_socket_of_a_daemon_has_a_fuzz_target() {
    let files = all_rust_files().into_iter();
    let files = files.filter(|path| {
        let name = name_of(path);
        name.starts_with(ADMIN) && name != OF_ADMIN
    });
    let code: String = files
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let targets = fs::read_to_string(root().join(OF_ADMIN)).unwrap();
    assert!(read_types(&code).len() > 40, "the walk found the types");
    assert_eq!(untargeted(&code, &targets), Vec::<&str>::new());
}

#[test]
fn planted_types_are_found() {
    let one = "#[derive(Serialize, Deserialize)]\npub struct One {\n    pub two: Vec<Two>,\n}\n";
    let two = "#[derive(Deserialize)]\n#[serde(default)]\npub enum Two {\n    A,\n}\n";
    let three = "#[derive(Debug)]\npub struct Three {\n    pub four: Four,\n}\n";
    let four =
        "#[derive(Deserialize)]\npub struct Four {\n    // Not Four.\n    pub four: u8,\n}\n";
    let code = [one, two, three, four].concat();
    let names: Vec<&str> = read_types(&code).iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["One", "Two", "Four"]);
    assert_eq!(untargeted(&code, "fn any_x() for One;"), ["Four"]);
    assert_eq!(untargeted(&code, "fn any_x() for Two;"), ["One", "Four"]);
}

#[test]
fn planted_methods_are_found() {
    let code = "pub const ONE: Method = Method(0x0100);\npub(super) const TWO: Method = Method(0x0200);\n\
                const NOT: u8 = 1;\nlet three: Method = Method(0x0300);\nconst ALSO_NOT: Method = ONE;";
    assert_eq!(methods(code), ["ONE", "TWO"]);
}

#[test]
fn planted_targets_are_found() {
    let code = "fn one() { x(); fuzz!(9, |_| {}) }\nmacro_rules! targets { ($(fn $name:ident() for $type:ty;)*) => { $(fn $name() { fuzz!(9, f) })* } }\n\
                targets! { fn two() for u8; fn three() for Vec<u8>; }\nfn four() {}";
    assert_eq!(targets(code), ["one", "two", "three"]);
}
