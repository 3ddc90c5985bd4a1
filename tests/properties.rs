//! What must hold for any bytes from outside. The same functions are fuzzed (`fuzz/run`); here they are tried on the
//! committed inputs, one folder for each, so that what a fuzzer found once stays found.

use std::path::Path;

#[path = "properties/bodies.rs"]
mod bodies;
#[path = "properties/conversations.rs"]
mod conversations;
#[path = "properties/imports.rs"]
mod imports;
#[path = "properties/journals.rs"]
mod journals;
#[path = "properties/masks.rs"]
mod masks;
#[path = "properties/outlines.rs"]
mod outlines;
#[path = "properties/pieces.rs"]
mod pieces;
#[path = "properties/relay.rs"]
mod relay;
#[path = "properties/settings.rs"]
mod settings;
#[path = "properties/streams.rs"]
mod streams;

/// Tries a property on every input in its folder, and on every beginning of it.
fn holds(name: &str, property: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/inputs").join(name);
    let mut tried = 0;
    for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry").path();
        let input = std::fs::read(&path).expect("a file");
        println!("{}", path.display());
        (0..=input.len()).rev().step_by(input.len() / 40 + 1).for_each(|end| property(&input[..end]));
        tried += 1;
    }
    assert!(tried > 0, "{} is empty", folder.display());
}

#[test]
fn requests_are_read_in_one_way_wherever_they_are_cut() {
    holds("requests", relay::requests);
}

#[test]
fn answers_are_read_in_one_way_wherever_they_are_cut() {
    holds("answers", relay::answers);
}

#[test]
fn streams_say_the_same_wherever_they_are_cut() {
    holds("sse", streams::sse);
}

#[test]
fn any_bodies_can_be_linked() {
    holds("conversations", conversations::conversations);
}

#[test]
fn any_configuration_is_read_or_refused() {
    holds("config", settings::config);
}

#[test]
fn any_words_are_read_or_refused() {
    holds("words", settings::words);
}

#[test]
fn a_damaged_journal_yields_only_what_was_written() {
    holds("journal", journals::journal);
}

#[test]
fn what_was_cut_into_pieces_is_put_together_again() {
    holds("pieces", bodies::pieces);
}

#[test]
fn streams_are_kept_with_their_frames() {
    holds("streams", bodies::streams);
}

#[test]
fn secrets_are_masked_and_nothing_beside_them() {
    holds("masks", masks::masks);
}

#[test]
fn any_file_is_imported_or_complained_about() {
    holds("imports", imports::imports);
}

#[test]
fn an_outline_is_what_a_parser_says() {
    holds("outline", outlines::outline);
}

#[test]
fn every_property_is_fuzzed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let names = |folder: &str| {
        let entries = std::fs::read_dir(folder).expect(folder);
        let stem = |entry: std::fs::DirEntry| {
            entry.path().file_stem().expect("named").to_string_lossy().into_owned()
        };
        let mut names: Vec<_> = entries.map(|entry| stem(entry.expect("an entry"))).collect();
        names.sort();
        names
    };
    let at = |name: &str| names(&folder.join(name).to_string_lossy());
    assert_eq!(at("inputs"), at("targets"));
}
