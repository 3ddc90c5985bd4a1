//! The committed numbers.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::Error;

pub const FILE: &str = "benches/instructions.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The share by which a number may grow.
    pub tolerance: f64,
    /// Instructions of the path thread for each unit, by case.
    path: BTreeMap<String, f64>,
}

impl Limits {
    pub fn read() -> Result<Limits, Error> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
        let text = fs::read_to_string(&path).map_err(|error| format!("{FILE}: {error}"))?;
        Ok(toml::from_str(&text).map_err(|error| format!("{FILE}: {error}"))?)
    }

    pub fn of(&self, case: &str) -> Option<f64> {
        self.path.get(case).copied()
    }

    pub fn set(&mut self, case: &str, instructions: f64) {
        self.path.insert(case.to_owned(), instructions);
    }

    pub fn write(&self) -> Result<(), Error> {
        let mut text = format!(
            "# Instructions the path thread spends, counted by callgrind. `cargo bench --bench instructions` compares with these\n\
             # numbers; with `-- --update` it writes them. They hold for the release profile of one toolchain: a new one may move them.\n\n\
             tolerance = {}\n\n[path]\n",
            self.tolerance
        );
        for (case, instructions) in &self.path {
            text += &format!("{case} = {instructions:.0}\n");
        }
        Ok(fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE), text)?)
    }
}
