//! Commands that concern one node or all, given on another one: what they change, and what they say.

use super::{Cluster, ciphers::change, refused};
use crate::fixture::{eventually, signals::signal};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

/// Settings: one of the whole cluster, one that counts at once, and one that does when a node opens a file system.
const OF_CLUSTER: &str = "repair_bytes_per_second";
const LIVE: &str = "tsc_small_msg_tcp_conn_pct";
const LATER: &str = "pagepool_bytes";

/// What a node says to a command that it must refuse.
#[track_caller]
fn says(cluster: &Cluster, asked: usize, arguments: &[&str], text: &str) {
    let said = refused(&cluster.node(asked).run(arguments));
    assert!(said.contains(text), "{arguments:?}: {said}");
}

/// The words of the line of a table that has this one in this column.
#[track_caller]
fn row<'a>(table: &'a str, column: usize, word: &str) -> Vec<&'a str> {
    let words = |line: &'a str| line.split_whitespace().collect::<Vec<_>>();
    let mut lines = table.lines().map(words);
    let found = lines.find(|line| line.get(column) == Some(&word));
    found.unwrap_or_else(|| panic!("{word}: {table}"))
}

/// What all nodes have said to a command with `--all`, which one of them was given.
fn of_all(cluster: &Cluster, asked: usize, command: &str) -> [Value; 2] {
    let said = cluster.node(asked).ask(&[command, "--all"]);
    let said = said.as_array().unwrap();
    assert_eq!(said.len(), 2, "{said:?}");
    [1, 2].map(|node| {
        let entry = said.iter().find(|entry| entry["node"] == node);
        entry.unwrap()["answer"].clone()
    })
}

#[test]
fn commands_are_given_on_any_node_and_say_what_to_do() {
    let cluster = Cluster::of(2);
    let file = |number| fs::read_to_string(cluster.node(number).dir.join("node.toml")).unwrap();
    let files = [1, 2].map(file);
    classes_and_settings(&cluster);
    answers_for_programs(&cluster);
    mounts_that_end(&cluster);
    file_systems(&cluster);
    an_nsd_that_is_drained(&cluster);
    // Would be broken if a node's own file knew of them, too.
    assert_eq!([1, 2].map(file), files);
    looks_at_all(&cluster);
}

fn classes_and_settings(cluster: &Cluster) {
    let (one, two) = (cluster.node(1), cluster.node(2));
    let table = one.must(&["node", "class", "n2", "gpu"]);
    assert_eq!(row(&table, 1, "n2")[2], "gpu");
    assert_eq!(row(&table, 1, "n1")[2], "default");
    assert_eq!(cluster.line(2, 2)["class"], "gpu");
    let known = "the cluster has no node \"n7\"; there are: 1 (n1), 2 (n2)";
    says(cluster, 2, &["node", "class", "n7", "gpu"], known);
    let letters = "a node class has 1 to 32 letters, digits, '-' or '_', not \"a/b\"";
    says(cluster, 1, &["node", "class", "n2", "a/b"], letters);

    let get = ["config", "get", OF_CLUSTER];
    assert_eq!(one.must(&get).trim(), "268435456");
    two.must(&["config", "set", OF_CLUSTER, "50000000"]);
    one.must(&["config", "set", LIVE, "25", "--class", "gpu"]);
    let set = ["config", "set", LATER, "100000000", "--node", "n1"];
    let table = two.must(&set);
    // Whoever changes it for others is shown what these have then.
    let shown = [LATER, "100000000", "node", "1"];
    assert_eq!(row(&table, 0, LATER)[..4], shown);
    for (number, name, value, from) in [
        (1, OF_CLUSTER, "50000000", "cluster"),
        (2, OF_CLUSTER, "50000000", "cluster"),
        (1, LIVE, "0", "default"),
        (2, LIVE, "25", "class gpu"),
        (1, LATER, "100000000", "node 1"),
        (2, LATER, "268435456", "default"),
    ] {
        let node = cluster.node(number);
        let lines = node.ask(&["config", "list"]);
        let mut lines = lines.as_array().unwrap().iter();
        let line = lines.find(|line| line["name"] == name).unwrap();
        assert_eq!(line["value"], value, "{name} on node {number}");
        assert_eq!(line["from"], from, "{name} on node {number}");
        assert_eq!(node.must(&["config", "get", name]).trim(), value);
        // Any node tells it of any other one.
        let other = cluster.node(3 - number);
        let of = ["config", "get", name, "--node", &number.to_string()];
        assert_eq!(other.must(&of).trim(), value);
    }
    // What a node of the class has, and what a class has that no node is in.
    for (class, live, from) in [("gpu", "25", "class gpu"), ("cpu", "0", "default")] {
        let lines = two.ask(&["config", "list", "--class", class]);
        let mut lines = lines.as_array().unwrap().iter();
        let line = lines.find(|line| line["name"] == LIVE).unwrap();
        assert_eq!(line["value"], live, "{class}");
        assert_eq!(line["from"], from, "{class}");
        let of = ["config", "get", LATER, "--class", class];
        assert_eq!(one.must(&of).trim(), "268435456", "{class}");
    }
    says(cluster, 1, &["config", "get", LIVE, "--node", "n7"], known);
    says(cluster, 1, &["config", "list", "--class", "a/b"], letters);
    let table = two.must(&["config", "list"]);
    assert_eq!(
        row(&table, 0, "setting"),
        ["setting", "value", "from", "meaning"]
    );
    assert_eq!(row(&table, 0, LIVE)[..4], [LIVE, "25", "class", "gpu"]);
    // Would be broken if a node had its class only when it starts.
    let log = |number| fs::read_to_string(cluster.node(number).dir.join("daemon.log")).unwrap();
    eventually("the node takes over what its class has", || {
        log(2).contains("small_percent: 25")
    });
    assert!(!log(1).contains("small_percent: 25"));
    one.must(&["config", "set", LIVE, "--class", "gpu"]);
    assert_eq!(two.must(&["config", "get", LIVE]).trim(), "0");

    let known = "there is no setting \"nothing\"; there are: repair_bytes_per_second, ";
    says(cluster, 2, &["config", "set", "nothing", "1"], known);
    let list = "there is no setting \"nothing\"; `shale config list` shows them";
    says(cluster, 2, &["config", "get", "nothing"], list);
    let same = "repair_bytes_per_second is the same on all nodes; leave --node and --class out";
    for more in [["--node", "n2"], ["--class", "gpu"]] {
        let arguments = [&["config", "set", OF_CLUSTER, "50000000"][..], &more].concat();
        says(cluster, 1, &arguments, same);
    }
}

/// What says something to people says it as JSON, too. Would be broken if a program had to read what is written for people.
fn answers_for_programs(cluster: &Cluster) {
    let (one, two) = (cluster.node(1), cluster.node(2));
    let class_of_two = |view: Value| {
        let mut nodes = view["nodes"].as_array().into_iter().flatten();
        let line = nodes.find(|line| line["node"] == 2);
        line.map(|line| line["class"].clone())
    };
    for command in [
        &["cluster", "show"][..],
        &["node", "list"],
        &["node", "class", "n2", "gpu"],
    ] {
        let class = class_of_two(one.ask(command));
        assert_eq!(class, Some("gpu".into()), "{command:?}");
    }
    let file_systems = two.ask(&["fs", "list"]);
    assert_eq!(file_systems[0]["name"], "data", "{file_systems}");
    let got = two.ask(&["config", "get", OF_CLUSTER]);
    assert_eq!(got["value"], "50000000", "{got}");
    let set = two.ask(&["config", "set", OF_CLUSTER, "50000000"]);
    let mut set = set.as_array().unwrap().iter();
    assert!(set.any(|line| *line == got), "{got}");
    // Five minutes.
    let made = two.ask(&["cluster", "join-token"]);
    assert_eq!(made["seconds"], 300, "{made}");
    assert!(made["token"].is_string(), "{made}");
}

/// Would be broken if a node kept its session after its last mount: the owner's node would go on asking for tokens.
fn mounts_that_end(cluster: &Cluster) {
    let owner = cluster.owner(1).unwrap();
    let serves = cluster.node(owner);
    let number = 3 - owner;
    let node = cluster.node(number);
    let sessions = || serves.ask(&["status"])["shards"][0]["sessions"].clone();
    eventually("both use it", || sessions() == 2);
    fs::write(cluster.path(number, "left"), "behind").unwrap();
    node.must(&["umount", node.mnt.to_str().unwrap()]);
    // What needs the file system for a moment doesn't keep it, either: a mount that is refused.
    let place = node.place("refused");
    let arguments = ["mount", place.to_str().unwrap(), "-o", "subdir=nothing"];
    says(
        cluster,
        number,
        &arguments,
        "there is no \"nothing\" in the file system",
    );
    eventually("only the owner's node uses it", || sessions() == 1);
    // Would be broken if a question took everything from the owner's node, and had to wait for that: longer than it may.
    let df = node.ask(&["fs", "df"]);
    assert!(df["inodes"].as_u64() > Some(1), "{df}");
    assert!(df["size"].as_u64() > Some(0), "{df}");
    assert_eq!(sessions(), 1);
    let said = serves.must(&["status"]);
    assert!(said.contains(", 1 session\n"), "{said}");
    let left = |number| fs::read_to_string(cluster.path(number, "left")).unwrap();
    assert_eq!(left(owner), "behind");
    // Without a session nothing is missing.
    node.must(&["fs", "sync"]);
    node.must(&["status"]);
    node.must(&["up"]);
    assert_eq!(left(number), "behind");
    eventually("both use it again", || sessions() == 2);
}

fn file_systems(cluster: &Cluster) {
    let (one, two) = (cluster.node(1), cluster.node(2));
    let said = two.must(&["fs", "create", "scratch"]);
    let mount = "file system scratch is made; mount it with `shale fs mount scratch PATH`\n";
    assert_eq!(said, mount);
    for (number, node) in [(1, one), (2, two)] {
        let shown = |name: &str| node.ask(&["fs", "show", name]);
        eventually("somebody serves it", || {
            !shown("scratch")[0]["owner"].is_null()
        });
        let data = shown("data");
        assert_eq!(data.as_array().unwrap().len(), 1);
        let owner = cluster.owner(3 - number).unwrap();
        assert_eq!(data[0]["owner"], owner);
        let table = node.must(&["fs", "list"]);
        assert_eq!(table.lines().next(), Some("file system  shard  owner"));
        let [shard, owner] = ["shard", "owner"].map(|key| data[0][key].to_string());
        assert_eq!(row(&table, 0, "data"), ["data", &shard[..], &owner[..]]);
        assert_eq!(row(&table, 0, "scratch").len(), 3);
        assert_eq!(table.lines().count(), 3, "{table}");
        let shown = node.must(&["cluster", "show"]);
        let served = format!("\nfile system data: shard {shard}, served by node {owner}\n");
        assert!(shown.contains(&served), "{shown}");
        for table in [shown, node.must(&["node", "list"])] {
            let heads = [
                "node", "name", "class", "state", "address", "roles", "shards", "NSDs",
            ];
            assert_eq!(row(&table, 0, "node"), heads);
            let address = format!("{}:7311", cluster.address(2));
            let begins = ["2", "n2", "gpu", "up", &address[..]];
            assert_eq!(row(&table, 1, "n2")[..5], begins);
        }
    }
    let list = "there is no file system nothing; `shale fs list` shows them";
    says(cluster, 2, &["fs", "show", "nothing"], list);
}

/// A file whose data is on an NSD.
fn write_synced(path: &Path, byte: u8) {
    let mut file = File::create_new(path).unwrap();
    file.write_all(&vec![byte; 1 << 20]).unwrap();
    file.sync_all().unwrap();
}

/// Would be broken if what is written during a drain were lost when it is taken back.
fn a_drain_that_is_taken_back(cluster: &Cluster, drained: &str) {
    let (one, two) = (cluster.node(1), cluster.node(2));
    let cancel = ["nsd", "drain", drained, "--cancel"];
    says(cluster, 1, &cancel, "it isn't being drained");
    // So slowly that it can't end.
    one.must(&["config", "set", OF_CLUSTER, "4096"]);
    eventually("the manager knows", || {
        one.ask(&["repair", "status"])["cluster"]["limit_bytes_per_second"] == 4096
    });
    let path = |number: u8| cluster.path(1, &format!("whole{number}"));
    for number in 0..8 {
        write_synced(&path(number), number);
    }
    let table = one.must(&["nsd", "drain", drained]);
    assert!(row(&table, 0, drained).contains(&"draining"), "{table}");
    for number in 8..12 {
        write_synced(&path(number), number);
    }
    let none = "none of its NSDs is being drained";
    says(cluster, 2, &["node", "drain", "n1", "--cancel"], none);
    let kept = two.ask(&["node", "drain", "n2", "--cancel"]);
    assert_eq!(kept["nsds"][0].to_string(), drained, "{kept}");
    let table = two.must(&["nsd", "list"]);
    assert!(row(&table, 0, drained).contains(&"active"), "{table}");
    one.must(&["config", "set", OF_CLUSTER]);
    eventually("all slots are back", || {
        one.ask(&["repair", "status"])["state"] == "idle"
    });
    for number in 0..12 {
        let path = cluster.path(2, &format!("whole{number}"));
        assert!(fs::read(path).unwrap() == vec![number; 1 << 20], "{number}");
    }
}

fn an_nsd_that_is_drained(cluster: &Cluster) {
    let one = cluster.node(1);
    let nsds = one.ask(&["nsd", "list"]);
    let nsds = nsds.as_array().unwrap();
    let [left, drained] = [1, 2].map(|home| {
        let line = nsds.iter().find(|line| line["node"] == home);
        line.unwrap()["nsd"].to_string()
    });
    let is_lost = |asked: usize| {
        let nsds = cluster.node(asked).ask(&["nsd", "list"]);
        let mut lines = nsds.as_array().unwrap().iter();
        let is_it = |line: &Value| line["nsd"].to_string().as_str() == drained;
        lines.any(|line| is_it(line) && line["state"] == "lost")
    };
    a_drain_that_is_taken_back(cluster, &drained);
    fs::write(cluster.path(2, "kept"), vec![7; 3 << 20]).unwrap();
    let table = one.must(&["nsd", "drain", &drained]);
    let row = row(&table, 0, &drained);
    assert_eq!(row[1], "n2");
    assert!(
        row.contains(&"draining") || row.contains(&"lost"),
        "{table}"
    );
    eventually("it is empty, as both nodes tell", || {
        is_lost(1) && is_lost(2)
    });
    assert_eq!(fs::read(cluster.path(1, "kept")).unwrap(), vec![7; 3 << 20]);
    let list = format!("there is no NSD {drained} in use; `shale nsd list` shows them");
    says(cluster, 1, &["nsd", "drain", &drained], &list);
    let ended = "it is out of use; `shale nsd add` adds a new one";
    says(cluster, 1, &["nsd", "drain", &drained, "--cancel"], ended);
    let ended = "it has no NSD in use; `shale nsd add` adds one";
    says(cluster, 1, &["node", "drain", "n2", "--cancel"], ended);
    // The last one, of which another node is asked.
    let add = "can't move to another failure group: add an NSD first, or change the pool to a scheme that needs fewer failure \
               groups";
    says(cluster, 2, &["nsd", "drain", &left], add);
}

fn looks_at_all(cluster: &Cluster) {
    let (one, two) = (cluster.node(1), cluster.node(2));
    change(cluster, 1, 2, "EMPTY");
    let remedy = "outside of laboratories: `shale config set cipher_list AUTHONLY`";
    let heads = ["node 1 (n1):\n", "node 2 (n2):\n"];
    // Each has something wrong.
    let said = two.run(&["health", "--all"]);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(heads.iter().all(|head| said.contains(head)), "{said}");
    let wrong = "warning: connections: connections between nodes aren't protected (cipher_list is EMPTY, or is being changed \
                 from it)";
    for words in [wrong, &format!("\n    {remedy}\n")] {
        assert_eq!(said.matches(words).count(), 2, "{words}: {said}");
    }
    // What both keep of it, and what they began with.
    let begins = |events: &Value| {
        let mut events = events.as_array().unwrap().iter();
        events.any(|line| {
            line["event"] == "warning-begins"
                && line["subject"] == "connections"
                && line["remedy"] == remedy
        })
    };
    eventually("both have kept it", || {
        of_all(cluster, 2, "events").iter().all(&begins)
    });
    let said = two.must(&["events", "--all"]);
    assert!(heads.iter().all(|head| said.contains(head)), "{said}");
    assert!(
        said.matches(" node-joined this node: run ").count() >= 2,
        "{said}"
    );
    assert!(
        said.matches(&format!("\n    {remedy}\n")).count() >= 2,
        "{said}"
    );
    let said = two.must(&["status", "--all"]);
    assert!(heads.iter().all(|head| said.contains(head)), "{said}");
    assert_eq!(
        said.matches("connections to other nodes: EMPTY\n").count(),
        2,
        "{said}"
    );
    let names = of_all(cluster, 1, "status").map(|status| status["cluster"]["name"].clone());
    assert_eq!(names, ["n1", "n2"]);

    let pid = one.pid();
    signal(pid, Signal::STOP);
    let said = two.run(&["health", "--all"]);
    // Its watchdog may have had to kill it.
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::CONT);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let said = String::from_utf8(said.stdout).unwrap();
    let silent = "node 1 (n1):\n  no answer from n1 within 2 s\n    see whether its daemon runs, in the same version, and the \
                  network reaches it (`shale node list`)\n";
    assert!(said.contains(silent), "{said}");
}
