//! `serin sessions import`

use std::io::Write;
use std::path::{Path, PathBuf};

use super::recordings::fault;
use crate::app::{Fault, code};
use crate::conversation::Conversations;
use crate::import::{self, Format};
use crate::recorder::mode::Mode;
use crate::recorder::secrets::Secrets;
use crate::recorder::tenant::Tenant;

/// Takes conversations up into a journal, and says what came of it.
///
/// # Errors
/// A finding where entries could not be used, and where files could not.
pub fn run(paths: &[PathBuf], format: Option<Format>, into: Tenant) -> Result<(), Fault> {
    into.may_write().map_err(|error| Fault::new(code::UNREADABLE, error.to_string()))?;
    let Tenant { config, options, .. } = into;
    let mut into = Conversations::open_with(&config.dir, options).map_err(fault)?;
    let mut secrets = (config.mode < Mode::Full).then(|| Secrets::new(config.parts));
    let mut complain = |bad: &import::Bad| drop(writeln!(std::io::stderr(), "serin: {bad}"));
    let counted = import::run(paths, format, secrets.as_mut(), &mut into, &mut complain).map_err(fault)?;
    super::print(&summary(&config.dir, &counted))?;
    let left_out = |what: &str| format!("{what} could not be used, see above; what could be is imported");
    match (counted.unusable, counted.bad) {
        (0, 0) => Ok(()),
        (0, bad) => Err(Fault::new(code::FINDING, left_out(&count(bad, "entry", "entries")))),
        (files, _) => Err(Fault::new(code::UNREADABLE, left_out(&count(files, "file", "files")))),
    }
}

fn summary(dir: &Path, counted: &import::Counted) -> String {
    let exchanges = count(counted.exchanges, "exchange", "exchanges");
    let conversations = count(counted.conversations, "conversation", "conversations");
    let mut text = format!("{}: {exchanges} imported, in {conversations}", dir.display());
    if counted.known > 0 {
        text.push_str(&format!("; {} were there already", counted.known));
    }
    if counted.others > 0 {
        let others = count(counted.others, "request is no turn", "requests are no turns");
        text.push_str(&format!("; {others} of a conversation and left out"));
    }
    text + "\n"
}

fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Filter;
    use crate::recorder::tenant::DEFAULT;

    #[test]
    fn what_was_imported_is_summed_up_in_one_line() {
        let counted = import::Counted { exchanges: 3, conversations: 1, ..import::Counted::default() };
        assert_eq!(summary(Path::new("d"), &counted), "d: 3 exchanges imported, in 1 conversation\n");
        let counted = import::Counted { exchanges: 1, known: 2, others: 1, ..import::Counted::default() };
        assert_eq!(
            summary(Path::new("d"), &counted),
            "d: 1 exchange imported, in 0 conversations; 2 were there already; 1 request is no turn of a conversation and left out\n"
        );
    }

    #[test]
    fn some_of_it_missing_is_an_exit_code_and_the_rest_is_imported() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, journal) = (dir.path().join("a.json"), dir.path().join("journal"));
        let good = r#"{"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]}"#;
        let record = crate::recorder::Config { dir: journal.clone(), ..Default::default() };
        let import = |text: &str| {
            std::fs::write(&file, text).expect("writes");
            let paths = [file.clone(), file.clone()];
            let into = Tenant::one(&record, &[], DEFAULT).expect("no keys");
            run(&paths, None, into).map_err(|fault| (fault.code, fault.message))
        };
        assert_eq!(import(good), Ok(()));
        let (found, says) = import(&format!("{good}\n7")).expect_err("an entry is bad");
        assert_eq!(found, code::FINDING);
        assert!(says.starts_with("2 entries could not be used, see above"), "{says}");
        assert_eq!(import("words").expect_err("no format").0, code::UNREADABLE);
        let sessions = Conversations::read_only(&journal).expect("opens");
        assert_eq!(sessions.list(&Filter::default()).expect("lists").len(), 1);
    }
}
