//! The `name:value` lines of `INFO`.

use std::collections::BTreeMap;

use super::client::Client;

/// One answer of `INFO`.
#[derive(Debug)]
pub struct Info(BTreeMap<String, String>);

impl Info {
    /// Reads lines of `name:value`; titles are skipped.
    pub fn parse(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Self(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    #[track_caller]
    pub fn text(&self, name: &str) -> &str {
        self.find(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.0))
    }

    #[track_caller]
    pub fn int(&self, name: &str) -> i64 {
        let value = self.text(name);
        value.parse().unwrap_or_else(|_| panic!("{name} is no number: {value:?}"))
    }

    pub fn find(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// Asks for one section of `INFO`.
#[track_caller]
pub fn info(client: &mut Client, section: &str) -> Info {
    Info::parse(&client.cmd(&["INFO", section]).text())
}

/// One number: `info_int(&mut client, "lock", "lock_held")`.
#[track_caller]
pub fn info_int(client: &mut Client, section: &str, name: &str) -> i64 {
    info(client, section).int(name)
}
