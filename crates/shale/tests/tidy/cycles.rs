//! Checks that the modules of a crate don't use each other in a cycle.
//!
//! A file, or a folder with the file that heads it, is one module among its siblings. It uses a
//! sibling if its code names it or something in it, by a `use` or a path (`crate::…`, `super::…`);
//! names that a parent imports or exports again count as those of the module that defines them.
//! A folder and its head use each other freely, method calls aren't seen, and test code doesn't count.

use super::{crates, root, rust_files};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Uses that may be part of a cycle: crate, the module above both, the user, the used, and why.
const ALLOWED: &[(&str, &str, &str, &str, &str)] = &[];

/// Crates whose cycles haven't been opened.
const NOT_OPENED: &[&str] = &["world"];

/// A module's place below its crate; the crate itself has none.
type Place = Vec<String>;

/// One module's file.
#[derive(Default)]
struct Module {
    /// Names that `use` brings into it, with the places of what they name.
    imported: BTreeMap<String, Place>,
    /// Modules whose names it imports all.
    globs: Vec<Place>,
    /// Places that its code names, with the line.
    named: Vec<(Place, usize)>,
    /// Its words, if it imports all names of another module.
    words: Vec<(String, usize)>,
    /// Modules of test code that it declares.
    tests: Vec<String>,
}

/// A use of a sibling: the module above both, the user, the used.
type Use = (Place, String, String);

/// A word or a sign of code, with its line.
type Token = (String, usize);

/// Code without comments and literals, in words and signs.
fn tokens(code: &str) -> Vec<Token> {
    let (bytes, mut out, mut at, mut line) = (code.as_bytes(), Vec::new(), 0, 1);
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte > 127;
    while at < bytes.len() {
        let rest = &code[at..];
        let end = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with('"') {
            string_end(rest.as_bytes())
        } else if let Some(end) = raw_string_end(rest) {
            end
        } else if rest.starts_with('\'') {
            char_end(rest.as_bytes())
        } else if is_word(bytes[at]) {
            let end = rest.bytes().position(|byte| !is_word(byte));
            let end = end.unwrap_or(rest.len());
            out.push((rest[..end].to_owned(), line));
            end
        } else if rest.starts_with("::") {
            out.push(("::".to_owned(), line));
            2
        } else {
            if !bytes[at].is_ascii_whitespace() {
                out.push((rest[..1].to_owned(), line));
            }
            1
        };
        line += rest[..end].matches('\n').count();
        at += end;
    }
    out
}

fn string_end(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn raw_string_end(rest: &str) -> Option<usize> {
    let inside = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = inside.bytes().take_while(|byte| *byte == b'#').count();
    let inside = inside[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = inside.find(&end)? + end.len();
    Some(rest.len() - inside.len() + length)
}

/// The end of a character; of a lifetime, only its sign.
fn char_end(bytes: &[u8]) -> usize {
    if bytes.get(1) == Some(&b'\\') {
        let end = bytes[3..].iter().position(|byte| *byte == b'\'');
        return end.map_or(bytes.len(), |end| end + 4);
    }
    let end = bytes.iter().take(6).skip(2).position(|b| *b == b'\'');
    match end {
        Some(end) if bytes[1] > 127 || end == 0 => end + 3,
        _ => 1,
    }
}

/// The first token after the item or attribute that begins here.
fn item_end(tokens: &[Token], mut at: usize) -> usize {
    while tokens.get(at).is_some_and(|(word, _)| word == "#") {
        at = bracket_end(tokens, at + 1);
    }
    let is_function = tokens[at..].iter().take(4).any(|(word, _)| word == "fn");
    while let Some((word, _)) = tokens.get(at) {
        match word.as_str() {
            "{" => return bracket_end(tokens, at),
            "(" | "[" => at = bracket_end(tokens, at),
            ";" => return at + 1,
            "," if !is_function => return at + 1,
            "}" => return at,
            _ => at += 1,
        }
    }
    at
}

/// The first token after the bracket that opens here.
fn bracket_end(tokens: &[Token], mut at: usize) -> usize {
    let mut depth = 0;
    while let Some((word, _)) = tokens.get(at) {
        at += 1;
        match word.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            _ => {}
        }
    }
    at
}

/// Reads a module's code.
fn read(place: &Place, code: &str) -> Module {
    let (tokens, mut module) = (tokens(code), Module::default());
    let is = |at: usize, word: &str| tokens.get(at).is_some_and(|(token, _)| token == word);
    let (mut at, mut inside, mut depth) = (0, Vec::new(), 0);
    while let Some((word, line)) = tokens.get(at) {
        let here = || {
            [
                place.clone(),
                inside.iter().map(|(name, _)| String::clone(name)).collect(),
            ]
            .concat()
        };
        let test = ["#", "[", "cfg", "(", "test", ")", "]"];
        if (0..test.len()).all(|ahead| is(at + ahead, test[ahead])) {
            let end = item_end(&tokens, at);
            let item = &tokens[at..end];
            if let [.., (word, _), (name, _), (semicolon, _)] = item
                && word == "mod"
                && semicolon == ";"
            {
                module.tests.push(name.clone());
            }
            at = end;
            continue;
        }
        match word.as_str() {
            "use" if depth == inside.len() || is(at + 1, "crate") || is(at + 1, "super") => {
                let here = here();
                at = read_use(&tokens, at + 1, &here, &Vec::new(), &mut module);
                continue;
            }
            "pub" if is(at + 1, "(") => {
                at = bracket_end(&tokens, at + 1);
                continue;
            }
            "crate" | "super" | "self" if is(at + 1, "::") => {
                let mut path = Vec::new();
                let line = *line;
                while let Some((word, _)) = tokens.get(at) {
                    path.push(word.clone());
                    if !is(at + 1, "::") || is(at + 2, "<") {
                        break;
                    }
                    at += 2;
                }
                if let Some(path) = absolute(&here(), &path) {
                    module.named.push((path, line));
                }
            }
            "mod" if is(at + 2, "{") => {
                inside.push((tokens[at + 1].0.clone(), depth));
                depth += 1;
                at += 2;
            }
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                inside.pop_if(|(_, opened)| *opened == depth);
            }
            _ => module.words.push((word.clone(), *line)),
        }
        at += 1;
    }
    module
}

/// Reads one branch of a `use`; returns the first token after it.
fn read_use(
    tokens: &[Token],
    mut at: usize,
    here: &Place,
    above: &Place,
    module: &mut Module,
) -> usize {
    let mut path = above.clone();
    while let Some((word, line)) = tokens.get(at) {
        match word.as_str() {
            "::" => at += 1,
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|(word, _)| word != "}") {
                    at = read_use(tokens, at, here, &path, module);
                }
                at += 1;
                if tokens
                    .get(at)
                    .is_some_and(|(word, _)| word == ";" || word == ",")
                {
                    at += 1;
                }
                return at;
            }
            "*" => {
                if let Some(place) = absolute(here, &path) {
                    module.globs.push(place.clone());
                }
                at += 1;
                path.clear();
            }
            "," | ";" | "}" | "as" => {
                let mut name = path.last().cloned();
                if word == "as" {
                    name = Some(tokens[at + 1].0.clone());
                    at += 2;
                }
                if let (Some(place), Some(name)) = (absolute(here, &path), name) {
                    module.named.push((place.clone(), *line));
                    let name = if name == "self" {
                        place.last().cloned()
                    } else {
                        Some(name)
                    };
                    module.imported.extend(name.map(|name| (name, place)));
                }
                return at + usize::from(tokens[at].0 != "}");
            }
            _ => {
                path.push(word.clone());
                at += 1;
            }
        }
    }
    at
}

/// The place that a path names, seen from a module. A path without `crate`, `super` or `self` in
/// front may begin with a module below.
fn absolute(here: &Place, path: &[String]) -> Option<Place> {
    let mut place = here.clone();
    let mut path = path.iter().map(String::as_str).peekable();
    match path.peek()? {
        &"crate" => {
            place.clear();
            path.next();
        }
        &"std" | &"core" | &"alloc" => return None,
        _ => {}
    }
    for word in path {
        match word {
            "self" => {}
            "super" => {
                place.pop()?;
            }
            word => place.push(word.to_owned()),
        }
    }
    Some(place)
}

/// Follows imports and exports until a place names a module or an item that a module defines.
fn resolve(modules: &BTreeMap<Place, Module>, place: &Place) -> Place {
    let mut place = place.clone();
    // A chain of exports is short; a cycle of them isn't followed for ever.
    for _ in 0..8 {
        let mut known = (0..=place.len()).rev();
        let known = known.find(|length| modules.contains_key(&place[..*length]));
        let known = known.expect("the crate's root is a module");
        let Some(name) = place.get(known) else {
            return place;
        };
        match modules[&place[..known]].imported.get(name) {
            Some(next) if *next != place[..=known] => {
                place = [next.as_slice(), &place[known + 1..]].concat();
            }
            _ => return place[..known].to_vec(),
        }
    }
    place
}

/// Uses between siblings, with the first place of each in the code.
fn uses(modules: &BTreeMap<Place, Module>) -> BTreeMap<Use, String> {
    let mut out = BTreeMap::new();
    for (user, module) in modules {
        let mut named: Vec<(Place, usize)> = module.named.clone();
        for glob in &module.globs {
            let glob = resolve(modules, glob);
            for (word, line) in &module.words {
                named.push((
                    [glob.as_slice(), std::slice::from_ref(word)].concat(),
                    *line,
                ));
            }
        }
        for (used, line) in named {
            let used = resolve(modules, &used);
            let shared = user.iter().zip(&used).take_while(|(a, b)| a == b).count();
            if let (Some(from), Some(to)) = (user.get(shared), used.get(shared)) {
                let edge = (user[..shared].to_vec(), from.clone(), to.clone());
                let code = format!("{}:{line} names {}", user.join("/"), used.join("::"));
                out.entry(edge).or_insert(code);
            }
        }
    }
    out
}

/// Those uses that are part of a cycle: the used one reaches the user again.
fn in_cycles(uses: &BTreeSet<Use>) -> BTreeSet<Use> {
    let reaches = |from: &Use| {
        let (level, user, used) = from;
        let (mut seen, mut open) = (BTreeSet::from([used.clone()]), vec![used.clone()]);
        while let Some(next) = open.pop() {
            for (_, _, to) in uses.iter().filter(|(at, by, _)| at == level && *by == next) {
                if seen.insert(to.clone()) {
                    open.push(to.clone());
                }
            }
        }
        seen.contains(user)
    };
    uses.iter().filter(|edge| reaches(edge)).cloned().collect()
}

/// The modules of a crate, from its files' paths below `src` and their code.
fn modules<'a>(files: impl Iterator<Item = (String, &'a str)>) -> BTreeMap<Place, Module> {
    let mut modules = BTreeMap::from([(Vec::new(), Module::default())]);
    for (path, code) in files {
        let path = path.trim_end_matches(".rs");
        let mut place: Place = path.split('/').map(str::to_owned).collect();
        let last = place.last().expect("a path has a last part");
        if last == "mod" || place.len() == 1 && (last == "lib" || last == "main") {
            place.pop();
        }
        let module = read(&place, code);
        modules.insert(place, module);
    }
    let tests = modules.iter().flat_map(|(place, module)| {
        let below = |name: &String| [place.as_slice(), std::slice::from_ref(name)].concat();
        module.tests.iter().map(below)
    });
    let tests: Vec<Place> = tests.collect();
    modules.retain(|place, _| !tests.iter().any(|test| place.starts_with(test)));
    modules
}

fn modules_of(source: &Path) -> BTreeMap<Place, Module> {
    let mut paths = Vec::new();
    rust_files(source, &mut paths);
    let files: Vec<(String, String)> = paths
        .iter()
        .map(|path| {
            let below = path.strip_prefix(source).unwrap().to_str().unwrap();
            (below.to_owned(), fs::read_to_string(path).unwrap())
        })
        .collect();
    modules(
        files
            .iter()
            .map(|(path, code)| (path.clone(), code.as_str())),
    )
}

#[test]
fn modules_use_each_other_in_one_direction() {
    let (mut wrong, mut stale, mut seen) = (Vec::new(), Vec::new(), 0);
    for name in crates() {
        let known = uses(&modules_of(&root().join("crates").join(&name).join("src")));
        let mut edges: BTreeSet<Use> = known.keys().cloned().collect();
        seen += edges.len();
        let cyclic = in_cycles(&edges);
        if NOT_OPENED.contains(&name.as_str()) {
            stale.extend(cyclic.is_empty().then(|| format!("crate {name}")));
            continue;
        }
        for (_, level, user, used, _) in ALLOWED.iter().filter(|allowed| allowed.0 == name) {
            let level: Place = level
                .split("::")
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect();
            let edge = (level, (*user).to_owned(), (*used).to_owned());
            edges.remove(&edge);
            if !cyclic.contains(&edge) {
                stale.push(format!("{name}: {user} -> {used}"));
            }
        }
        for edge in in_cycles(&edges) {
            let (level, user, used) = &edge;
            let level = [std::slice::from_ref(&name), level].concat().join("::");
            wrong.push(format!("{level}: {user} -> {used} ({})", known[&edge]));
        }
    }
    assert!(seen > 500, "the walk found {seen} uses");
    assert!(wrong.is_empty(), "cycles of modules:\n{}", wrong.join("\n"));
    assert!(stale.is_empty(), "no longer in a cycle: {stale:?}");
}

#[test]
fn planted_cycles_are_found() {
    let files = [
        (
            "lib.rs",
            "mod a; mod b; mod c; mod d; mod g;\n#[cfg(test)]\nmod rig;\npub use a::A;\nuse c::C;",
        ),
        (
            "a.rs",
            "use crate::b::{self, B as Other};\nfn f() -> &'static str { \"crate::d::D\" }",
        ),
        (
            "b.rs",
            "mod e; mod f; use e::E; // crate::d::D\nfn g<'a>(_: &'a u8) { '\\''; super::d::h(); }",
        ),
        (
            "b/e.rs",
            "use super::f::F;\n#[cfg(test)]\nmod tests { use crate::d::D; }",
        ),
        (
            "b/f.rs",
            "fn g() { let _: super::E = r#\"crate::c\"#; crate::b::of_head(); }",
        ),
        ("c.rs", "pub(in crate::d) fn c() { { use crate::d::D; } }"),
        (
            "d.rs",
            "use crate::A;\n#[cfg(test)]\nfn t(_: u8, _: crate::c::C) {}\nstruct D;",
        ),
        ("g.rs", "use super::*;\nfn f(_: C) {}"),
        ("rig.rs", "use crate::c::C;"),
    ];
    let modules = modules(files.iter().map(|(path, code)| ((*path).to_owned(), *code)));
    let uses: BTreeSet<Use> = uses(&modules).into_keys().collect();
    let shown = |edges: &BTreeSet<Use>| -> Vec<String> {
        let one = |(level, user, used): &Use| format!("{}:{user}->{used}", level.join("::"));
        edges.iter().map(one).collect()
    };
    let all = [
        ":a->b", ":b->d", ":c->d", ":d->a", ":g->c", "b:e->f", "b:f->e",
    ];
    assert_eq!(shown(&uses), all);
    let cyclic = [":a->b", ":b->d", ":d->a", "b:e->f", "b:f->e"];
    assert_eq!(shown(&in_cycles(&uses)), cyclic);
}
