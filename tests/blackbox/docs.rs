//! The pages of docs/ tell the truth: every command with the syntax of its record, every session, every error text, and
//! links that lead somewhere.

use redis_lock::core::codec::{self, Change};
use redis_lock::core::hold::Mode;
use redis_lock::metadata::{Arg, ArgKind, Record, COMMANDS};
use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::harness::{cmd, on_every_server, Kind, Server};
use crate::markdown::{anchors, links, rows, section};
use crate::readme::README;
use crate::transcript::{self, words};

const REFERENCE: &str = include_str!("../../docs/commands.md");
const WAITING: &str = include_str!("../../docs/waiting.md");
const LEGACY: &str = include_str!("../../docs/legacy.md");
const INTERNALS: &str = include_str!("../../docs/internals.md");
const GUARANTEES: &str = include_str!("../../docs/guarantees.md");
const FAILURES: &str = include_str!("../../src/command/failure.rs");

/// The syntax as COMMAND DOCS gives it and redis-cli hints at it.
pub fn syntax(record: &Record) -> String {
    let args = record.args.iter().map(argument).collect::<Vec<_>>();
    format!("{} {}", record.name, args.join(" "))
}

fn argument(arg: &Arg) -> String {
    let text = match (&arg.kind, arg.token) {
        (ArgKind::OneOf(choices), _) => choices.iter().map(argument).collect::<Vec<_>>().join(" | "),
        (ArgKind::Flag, Some(word)) => word.to_owned(),
        (ArgKind::Texts, _) => format!("{} ...", arg.name),
        (_, Some(word)) => format!("{word} {}", arg.name),
        (_, None) => arg.name.to_owned(),
    };
    if arg.optional {
        format!("[{text}]")
    } else {
        text
    }
}

fn public() -> impl Iterator<Item = &'static &'static Record> {
    COMMANDS.iter().filter(|record| !record.name.starts_with("LOCK._"))
}

on_every_server! {
    fn every_session_is_what_a_server_replies(kind: Kind) {
        let server = Server::start(kind);
        transcript::assert_true(&server, REFERENCE);
        transcript::assert_true(&server, WAITING);
        transcript::assert_true(&server, LEGACY);
    }

    fn every_error_that_can_be_typed_is_what_a_server_replies(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "SET", "data", "x").ok();
        cmd!(client, "LOCK.ACQUIRE", "atlas", "TOKEN", "3f9c", "SHARED").array();
        let mut tried = 0;
        for row in rows(REFERENCE, "Reply | Try it") {
            if row[1].starts_with("LOCK.") {
                assert_eq!(client.cmd(&words(&row[1])).err(), row[0], "{}", row[1]);
                tried += 1;
            }
        }
        assert!(tried > 10, "only {tried} errors can be tried");
    }

    fn every_field_of_info_is_documented(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "LOCK.ACQUIRE", "job").array();
        assert!(cmd!(client, "LOCK.ACQUIRE", "job", "TOKEN", "t", "POLL", 10_000).is_null());
        let info = cmd!(client, "LOCK.INFO", "job");
        let mut live = info.fields();
        for list in ["holders", "queue"] {
            let fields = info.get(list).array()[0].fields();
            live.extend(fields.iter().map(|field| format!("{list}[].{field}")));
        }
        let written: Vec<String> = rows(REFERENCE, "Field | Meaning")
            .iter()
            .flat_map(|row| row[0].split("`, `").map(str::to_owned).collect::<Vec<_>>())
            .collect();
        live.sort();
        let mut sorted = written.clone();
        sorted.sort();
        assert_eq!(sorted, live);
    }

    fn the_flags_of_a_command_are_the_documented_ones(kind: Kind) {
        let server = Server::start(kind);
        for record in public() {
            let info = cmd!(server.client(), "COMMAND", "INFO", record.name);
            let flags = info.array()[0].array()[2].array().iter().map(|flag| flag.text());
            let flags: Vec<String> = flags.filter(|flag| flag != "module").collect();
            let line = format!("Flags: {}.", flags.join(", "));
            let section = section(REFERENCE, &format!("## {}", record.name));
            assert!(section.iter().any(|text| text.contains(&line)), "{}: no {line:?}", record.name);
        }
    }
}

#[test]
fn every_command_has_its_section() {
    for record in public() {
        let section = section(REFERENCE, &format!("## {}", record.name));
        let complexity = format!("Time: {} Since {}.", record.complexity, record.since);
        assert_eq!(section[1], format!("    {}", syntax(record)));
        assert_eq!(section[3], record.summary);
        assert!(section.iter().any(|line| line.starts_with(&complexity)), "{}: no {complexity:?}", record.name);
    }
    let headings = REFERENCE.lines().filter_map(|line| line.strip_prefix("## LOCK.")).collect::<Vec<_>>();
    assert_eq!(headings.len(), public().count(), "{headings:?}");
}

#[test]
fn every_error_text_has_its_row() {
    let written: Vec<String> = rows(REFERENCE, "Reply | Try it").into_iter().map(|row| row[0].clone()).collect();
    let literals = FAILURES.split("#[cfg(test)]").next().unwrap_or_default().split('"').skip(1).step_by(2);
    let texts: Vec<&str> = literals.filter(|text| starts_with_code(text)).collect();
    assert!(texts.len() > 10, "{texts:?}");
    for text in texts {
        assert!(written.iter().any(|row| matches(text, row)), "{text:?} is not in the table of errors");
    }
}

fn starts_with_code(text: &str) -> bool {
    let code = text.split(' ').next().unwrap_or_default();
    code.len() >= 3 && code.bytes().all(|byte| byte.is_ascii_uppercase()) && code != text
}

/// Whether this row shows the text, with something for each `{...}` of it.
fn matches(text: &str, row: &str) -> bool {
    let mut rest = row;
    for (index, piece) in text.split(['{', '}']).step_by(2).enumerate() {
        match rest.find(piece) {
            Some(0) => rest = &rest[piece.len()..],
            Some(at) if index > 0 => rest = &rest[at + piece.len()..],
            _ => return false,
        }
    }
    true
}

#[test]
fn every_log_line_is_in_the_source() {
    let sources: String = source_files().iter().map(|file| fs::read_to_string(file).expect("a source file")).collect();
    for row in rows(REFERENCE, "Line | Meaning") {
        let text = row[0].replace("allkeys-lru", "{policy}").replace("9000", "{left_ms}");
        let text = text.trim_end_matches(" ...");
        assert!(sources.contains(text), "nothing logs {text:?}");
    }
}

#[test]
fn the_bytes_of_the_format_page_are_the_lock_it_says() {
    let bytes = format_bytes("01 01 ");
    let [holder] = &codec::decode_lock(&bytes).expect("a lock")[..] else { panic!("one holder") };
    assert_eq!((holder.fence.get(), holder.lease.ms()), (12_345, 1_000));
    assert_eq!((holder.token.bytes(), holder.label.bytes()), (&b"tok"[..], &b"label"[..]));
    assert!(INTERNALS.contains("A fence of 12345, a lease of one second, token `tok`, label `label`"));

    let bytes = format_bytes("02 02 ");
    let Change::Set { holder, alone } = codec::decode(&bytes).expect("a change") else { panic!("a holder") };
    assert_eq!((holder.fence.get(), holder.lease.ms(), alone), (12_345, 1_000, true));
    assert_eq!((holder.mode, holder.unnamed, holder.cap_ms), (Mode::Shared(Some(3)), false, None));
    assert_eq!((holder.token.bytes(), holder.label.bytes()), (&b"tok"[..], &b""[..]));
    assert_eq!(holder.names.iter().map(|name| name.bytes()).collect::<Vec<_>>(), [b"in"]);
    assert!(
        INTERNALS.contains("A shared holder of fence 12345 with a lease of one second, limit 3, one hold named `in`")
    );
}

/// The bytes of the one line of the page that begins with these.
#[track_caller]
fn format_bytes(head: &str) -> Vec<u8> {
    let start = format!("    {head}");
    let lines: Vec<&str> = INTERNALS.lines().filter(|line| line.starts_with(&start)).collect();
    let [line] = lines[..] else { panic!("one line begins with {head}: {lines:?}") };
    line.trim().split(' ').map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect()
}

#[test]
fn every_file_that_is_named_exists() {
    let root = root();
    let quoted = INTERNALS.split('`').skip(1).step_by(2);
    let named: Vec<&str> = quoted.filter(|text| text.ends_with(".rs") && !text.contains('<')).collect();
    assert!(named.len() > 10, "{named:?}");
    for file in named {
        let places = ["", "src", "tests/blackbox", "src/command"].map(|place| root.join(place).join(file));
        assert!(places.iter().any(|place| place.exists()), "no {file}");
    }
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn source_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut dirs = vec![root().join("src")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("a directory of src/") {
            let path = entry.expect("an entry of src/").path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files
}

#[test]
fn every_guarantee_names_tests_that_exist() {
    let mut named = 0;
    let rows = GUARANTEES.lines().filter(|line| line.starts_with("| ") && !line.contains("| Shown by |"));
    for row in rows {
        let shown = row.rsplit(" | ").next().unwrap_or_default();
        let tests: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "no test shows {row}");
        for test in tests {
            let (file, name) = test.split_once("::").unwrap_or_else(|| panic!("{test} is no test"));
            let (path, name) = match (file, name.split_once("::")) {
                ("quorum_model" | "simulation", _) => (root().join("tests").join(file).join("main.rs"), name),
                ("histories", Some((file, name))) => {
                    (root().join("tests/histories").join(file).with_extension("rs"), name)
                }
                _ => (root().join("tests/blackbox").join(file).with_extension("rs"), name),
            };
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{test}: {error}"));
            assert!(text.contains(&format!("fn {name}(")), "there is no {test}");
            named += 1;
        }
    }
    assert!(named > 40, "{named} tests");
    for quoted in GUARANTEES.split('`').skip(1).step_by(2).filter(|quoted| quoted.starts_with("examples/")) {
        assert!(root().join(quoted).exists(), "no {quoted}");
    }
}

#[test]
fn every_link_leads_somewhere() {
    let root = root();
    let mut pages: Vec<PathBuf> = vec![root.join("README.md"), root.join("CHANGELOG.md")];
    let docs = fs::read_dir(root.join("docs")).expect("docs/");
    pages.extend(docs.map(|entry| entry.expect("an entry of docs/").path()));
    let mut followed = 0;
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        for (file, anchor) in links(&text) {
            if file.contains("://") {
                continue;
            }
            let target = if file.is_empty() { page.clone() } else { page.with_file_name("").join(&file) };
            assert!(target.exists(), "{}: no {file}", page.display());
            if !anchor.is_empty() {
                let text = fs::read_to_string(&target).expect("a linked page");
                assert!(anchors(&text).contains(&anchor), "{}: no #{anchor} in {file}", page.display());
            }
            followed += 1;
        }
    }
    assert!(followed > 10 && !links(README).is_empty(), "{followed} links");
}
