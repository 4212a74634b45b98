//! docs/track-record.md tells the truth about its names: every bug that can be seeded has its row, and every test that
//! is named exists. That the tests find the bugs is what `make track-record` shows.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::docs::{root, source_files};

const RECORD: &str = include_str!("../../docs/track-record.md");

/// The bug of each row, and its tests.
fn rows() -> Vec<(&'static str, Vec<&'static str>)> {
    let rows = RECORD.lines().filter(|line| line.starts_with("| `"));
    let quoted = |cell: &'static str| cell.split('`').skip(1).step_by(2).collect::<Vec<_>>();
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let [bug, _, tests] = cells[..] else { panic!("{line}") };
        (quoted(bug)[0], quoted(tests))
    };
    rows.map(row).collect()
}

#[test]
fn every_bug_that_can_be_seeded_has_its_row() {
    let mut seeded = BTreeSet::new();
    for file in source_files().iter().filter(|file| !file.ends_with("canary.rs")) {
        let source = fs::read_to_string(file).expect("a source file");
        let names = source.split("bug(\"").skip(1).filter_map(|rest| rest.split_once('"'));
        seeded.extend(names.map(|(name, _)| name.to_owned()));
    }
    let written: Vec<String> = rows().into_iter().map(|(bug, _)| bug.to_owned()).collect();
    assert_eq!(written.len(), written.iter().collect::<BTreeSet<_>>().len(), "two rows for one bug");
    assert_eq!(written.iter().cloned().collect::<BTreeSet<_>>(), seeded);
    assert!(written.len() >= 20, "{} bugs", written.len());
}

#[test]
fn every_test_that_finds_a_bug_exists() {
    for (bug, tests) in rows() {
        assert!(!tests.is_empty(), "{bug}: no test");
        for test in tests {
            let (module, name) = test.rsplit_once("::").unwrap_or_else(|| panic!("{bug}: {test} is no test"));
            let found = files(module)
                .iter()
                .any(|file| fs::read_to_string(file).is_ok_and(|source| source.contains(&format!("fn {name}("))));
            assert!(found, "{bug}: there is no {test}");
        }
    }
}

/// Where a module can be: of a unit test in the source, of a black-box test beside this file.
fn files(module: &str) -> Vec<PathBuf> {
    if module == "simulation" {
        return vec![root().join("tests/simulation/main.rs")];
    }
    let module = module.strip_suffix("::tests").unwrap_or(module);
    let dir = if module.starts_with("core::") { "src" } else { "tests/blackbox" };
    let path = module.split("::").fold(root().join(dir), |path: PathBuf, part| path.join(part));
    let beside = PathBuf::from(format!("{}_tests.rs", path.display()));
    vec![path.with_extension("rs"), path.join("mod.rs"), beside]
}
