//! What a canary plants and how an answer becomes a verdict.
//!
//! Pure functions and bounded registries: no clock, no I/O. The proxy verifies a [`tag`], the
//! canary plants a [`secret`] in a [`haystack`], registers it as [`dye`], and lets the [`judge`] score the answer.

pub mod degeneration;
pub mod denied;
pub mod dye;
pub mod haystack;
pub mod judge;
pub mod schema;
pub mod secret;
pub mod tag;
pub mod text;
pub mod tools;
