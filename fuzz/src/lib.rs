//! The properties that `tests/properties.rs` tries on committed inputs, built for the fuzzer.

#[path = "../../tests/properties/bodies.rs"]
pub mod bodies;
#[path = "../../tests/properties/conversations.rs"]
pub mod conversations;
#[path = "../../tests/properties/imports.rs"]
pub mod imports;
#[path = "../../tests/properties/journals.rs"]
pub mod journals;
#[path = "../../tests/properties/masks.rs"]
pub mod masks;
#[path = "../../tests/properties/outlines.rs"]
pub mod outlines;
#[path = "../../tests/properties/pieces.rs"]
pub mod pieces;
#[path = "../../tests/properties/relay.rs"]
pub mod relay;
#[path = "../../tests/properties/settings.rs"]
pub mod settings;
#[path = "../../tests/properties/streams.rs"]
pub mod streams;
