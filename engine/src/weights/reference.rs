//! The reference recall model, made rather than trained.
use crate::error::Error;
pub struct Files { pub config: String, pub weights: Vec<u8>, pub tokenizer: &'static str, pub template: &'static str }
pub fn build() -> Result<Files, Error> { Err(Error::Unsupported("the reference model".into())) }
